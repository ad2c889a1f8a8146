//! Numbers as memcached parses them, which is as C's `strtoull` and `strtol` do.

/// A number at the start of a text.
struct Digits {
    /// True for a number with a minus sign.
    negative: bool,
    value: u64,
    /// Offset of the byte behind the last digit.
    end: usize,
}

/// Parses the number at the start of a text. Returns `None` without digits, or above 64 bits.
fn digits(text: &[u8]) -> Option<Digits> {
    let mut at = text.iter().position(|byte| !is_space(*byte))?;
    let negative = text[at] == b'-';
    at += usize::from(matches!(text[at], b'-' | b'+'));
    let from = at;
    let mut value = 0_u64;
    while let Some(digit) = text.get(at).filter(|byte| byte.is_ascii_digit()) {
        value = value.checked_mul(10)?.checked_add(u64::from(digit - b'0'))?;
        at += 1;
    }
    (at > from).then_some(Digits { negative, value, end: at })
}

/// Returns true for white space, as C's `isspace` does.
const fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r' | 0x0b | 0x0c)
}

/// Returns whether a number may end here: at the end of the text, at a space, or at a zero byte.
fn ends_at(text: &[u8], at: usize) -> bool {
    text.get(at).is_none_or(|&byte| is_space(byte) || byte == 0)
}

/// Parses an unsigned number of 64 bits. As in C a minus sign negates it; memcached refuses a result above
/// the largest signed number.
#[must_use]
pub fn unsigned(text: &[u8]) -> Option<u64> {
    let Digits { negative, value, end } = digits(text)?;
    let value = if negative { value.wrapping_neg() } else { value };
    let said = text.split(|&byte| byte == 0).next().unwrap_or(text);
    let too_large = i64::try_from(value).is_err() && said.contains(&b'-');
    (ends_at(text, end) && !too_large).then_some(value)
}

/// Parses an unsigned number of which 32 bits count.
#[must_use]
pub fn short(text: &[u8]) -> Option<u32> {
    unsigned(text).map(|value| u32::try_from(value & u64::from(u32::MAX)).expect("32 bits"))
}

/// Parses a signed number of which 32 bits count.
#[must_use]
pub fn signed(text: &[u8]) -> Option<i32> {
    let Digits { negative, value, end } = digits(text)?;
    let value = if negative { 0_i64.checked_sub_unsigned(value)? } else { i64::try_from(value).ok()? };
    let low = u32::try_from(value.cast_unsigned() & u64::from(u32::MAX)).expect("32 bits");
    ends_at(text, end).then_some(low.cast_signed())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_as_c_reads_them() {
        for (text, is) in [
            (&b"12"[..], Some(12)),
            (b"  +12  ", Some(12)),
            (b"12 abc", Some(12)),
            (b"12abc", None),
            (b"", None),
            (b"   ", None),
            (b"-", None),
            (b"-1", None),
            (b"-18446744073709551615", Some(1)),
            (b"18446744073709551615", Some(u64::MAX)),
            (b"18446744073709551616", None),
            (b"18446744073709551615 -", None),
            (b"7\0x", Some(7)),
        ] {
            assert_eq!(unsigned(text), is, "{text:?}");
        }
        assert_eq!(signed(b"-1"), Some(-1));
        assert_eq!(signed(b"4294967297"), Some(1), "32 bits count");
        assert_eq!(signed(b"9223372036854775808"), None);
        assert_eq!(short(b"4294967296"), Some(0));
    }
}
