//! Sizes on a command line.

use bytesize::ByteSize;

/// A size as people write it: 64MiB, 2 GB, 4096. For clap.
///
/// # Errors
/// How to write one.
pub fn bytes(text: &str) -> Result<u64, String> {
    match text.parse::<ByteSize>() {
        // What does not fit 64 bits is parsed as the most that does.
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
