//! Numbers in Redis's text forms.

use alloc::format;
use alloc::string::String;

/// Parses a whole number as Redis's `string2ll`: an optional minus, no leading zeros, no surrounding
/// characters.
#[must_use]
pub fn integer(text: &[u8]) -> Option<i64> {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    let is_short = (1..=19).contains(&digits.len());
    if !is_short || (digits[0] == b'0' && text.len() > 1) || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    // Nineteen digits fit 64 bits without a sign.
    let size = digits.iter().fold(0_u64, |sum, digit| sum * 10 + u64::from(digit - b'0'));
    if digits.len() == text.len() { i64::try_from(size).ok() } else { 0_i64.checked_sub_unsigned(size) }
}

/// Returns the shortest text for `number`, in the form of Redis 7.2 and later: `1.5`, `1e+21`, `inf`.
#[must_use]
pub fn double(number: f64) -> String {
    if number.is_nan() {
        return "nan".into();
    }
    if number.is_infinite() {
        return if number > 0.0 { "inf".into() } else { "-inf".into() };
    }
    if number == 0.0 {
        return if number.is_sign_negative() { "-0".into() } else { "0".into() };
    }
    let text = format!("{number:e}");
    let (mantissa, exponent) = text.split_once('e').expect("the form has an exponent");
    let exponent: i32 = exponent.parse().expect("the form's exponent is a number");
    if (-7..21).contains(&exponent) {
        return format!("{number}");
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}e{sign}{}", exponent.abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_have_one_form() {
        for text in ["0", "-1", "9223372036854775807", "-9223372036854775808", "10"] {
            assert_eq!(integer(text.as_bytes()), Some(text.parse().unwrap()), "{text}");
        }
        for text in [
            "",
            "-",
            "-0",
            "+1",
            "01",
            " 1",
            "1 ",
            "9223372036854775808",
            "-9223372036854775809",
            "99999999999999999999",
            "1x",
        ] {
            assert_eq!(integer(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn doubles_are_short() {
        for (number, text) in [
            (0.1, "0.1"),
            (3.0, "3"),
            (-2.5, "-2.5"),
            (1e20, "100000000000000000000"),
            (1e21, "1e+21"),
            (1.5e-9, "1.5e-9"),
            (f64::NEG_INFINITY, "-inf"),
            (-0.0, "-0"),
        ] {
            assert_eq!(double(number), text);
        }
    }
}
