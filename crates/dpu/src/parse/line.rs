//! Lines that arrive in pieces.

use super::Broken;
use alloc::vec::Vec;

/// Maximum buffer in bytes that is kept for the next line.
const KEPT_MAX: usize = 4 << 10;

/// The current line.
#[derive(Debug, Default)]
pub(super) struct Line {
    kept: Vec<u8>,
    done: bool,
}

impl Line {
    /// Returns the buffer's memory in bytes.
    pub(super) const fn kept(&self) -> usize {
        self.kept.capacity()
    }

    /// Continues the line. Returns the line without its end, once it is complete, and the number of bytes
    /// consumed.
    ///
    /// # Errors
    ///
    /// If the line has more than `max` bytes.
    pub(super) fn take<'a>(
        &'a mut self,
        bytes: &'a [u8],
        max: usize,
    ) -> Result<(Option<&'a [u8]>, usize), Broken> {
        if core::mem::take(&mut self.done) {
            self.kept.clear();
            self.kept.shrink_to(KEPT_MAX);
        }
        let end = bytes.iter().position(|&byte| byte == b'\n');
        let part = &bytes[..end.unwrap_or(bytes.len())];
        if self.kept.len() + part.len() > max {
            return Err(Broken { reason: "a line is longer than it may be" });
        }
        if end.is_none() || !self.kept.is_empty() {
            self.kept.extend_from_slice(part);
        }
        let Some(end) = end else { return Ok((None, bytes.len())) };
        self.done = true;
        let line = if self.kept.is_empty() { part } else { &self.kept };
        Ok((Some(line.strip_suffix(b"\r").unwrap_or(line)), end + 1))
    }
}

/// Parses a decimal number of at most `max`.
pub(super) fn decimal(text: &[u8], max: u64) -> Option<u64> {
    // Twenty digits may exceed 64 bits.
    let digits = (1..=19).contains(&text.len()) && text.iter().all(u8::is_ascii_digit);
    let number =
        text.iter().fold(0_u64, |sum, digit| sum.wrapping_mul(10).wrapping_add(u64::from(digit & 15)));
    Some(number).filter(|&number| digits && number <= max)
}

#[cfg(test)]
mod tests {
    use super::{Line, decimal};

    /// A line in pieces, one at once behind it, and one that is too long.
    #[test]
    fn lines_come_in_pieces() {
        let mut line = Line::default();
        assert_eq!(line.take(b"ab", 5), Ok((None, 2)));
        assert_eq!(line.take(b"c\r", 5), Ok((None, 2)));
        assert_eq!(line.take(b"\nnext\n", 5), Ok((Some(&b"abc"[..]), 1)));
        assert_eq!(line.take(b"next\nx", 5), Ok((Some(&b"next"[..]), 5)));
        assert_eq!(line.take(b"\n", 5), Ok((Some(&b""[..]), 1)));
        assert_eq!(line.take(b"12345", 5), Ok((None, 5)));
        assert!(line.take(b"6", 5).is_err());
    }

    #[test]
    fn numbers_are_digits_up_to_a_bound() {
        assert_eq!(decimal(b"0012", 99), Some(12));
        for wrong in [&b""[..], b"-1", b"+1", b"1x", b"100", b"99999999999999999999"] {
            assert_eq!(decimal(wrong, 99), None);
        }
    }
}
