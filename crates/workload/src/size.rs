//! Sizes on a command line.

use bytesize::ByteSize;

/// Parses a size such as 64MiB, 2 GB or 4096, for clap.
///
/// # Errors
/// The accepted format.
pub fn bytes(text: &str) -> Result<u64, String> {
    match text.parse::<ByteSize>() {
        // A size beyond 64 bits parses as the maximum.
        Ok(ByteSize(u64::MAX)) => Err("no machine has 16 EiB; write it as 64MiB, 2 GB or 4096".to_owned()),
        Ok(ByteSize(bytes)) => Ok(bytes),
        Err(_) => Err("write it as 64MiB, 2 GB or 4096".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::bytes;

    #[test]
    fn sizes_have_units() {
        assert_eq!(bytes("64MiB"), Ok(64 << 20));
        assert_eq!(bytes("2 GB"), Ok(2_000_000_000));
        assert_eq!(bytes("4096"), Ok(4096));
        for wrong in ["", "MiB", "4 apples", "-1", "99999999999999999999TiB", "16EiB"] {
            assert!(bytes(wrong).unwrap_err().contains("64MiB"), "{wrong}");
        }
    }
}
