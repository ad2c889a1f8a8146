//! Numbers in x87's extended precision, in which Redis adds fractions (`INCRBYFLOAT`, `HINCRBYFLOAT`): 64 bits of
//! significand on every machine.
//!
//! Key type: [`LongDouble`]. Parsing equals C's `strtold`, and printing equals `%.17Lf` without zeros at the end, so
//! replies are Redis's to the digit.

use num_bigint::BigUint;
use rustc_apfloat::ieee::X87DoubleExtended;
use rustc_apfloat::{Float as _, Round, Status};

/// The bytes of a number's text at most (`MAX_LONG_DOUBLE_CHARS`).
const TEXT_LEN_MAX: usize = 5 * 1024;
/// The digits behind the point.
const DIGITS: u32 = 17;
/// The exponent of the least significant bit when the exponent field is 0, negated.
const EXPONENT_BIAS: i32 = 16_383 + 63;

/// A number; it may be infinite, and is never NaN.
#[derive(Clone, Copy, Debug)]
pub(super) struct LongDouble(X87DoubleExtended);

impl LongDouble {
    pub(super) const ZERO: Self = Self(X87DoubleExtended::ZERO);

    /// Parses a whole text; `None` if the text is no number, or one that is too large or too small.
    pub(super) fn parse(text: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(text).ok().filter(|text| text.len() < TEXT_LEN_MAX)?;
        let (sign, digits) = match text.as_bytes().first()? {
            b'-' => ("-", &text[1..]),
            b'+' => ("", &text[1..]),
            _ => ("", text),
        };
        let lower = digits.to_ascii_lowercase();
        let number = match lower.as_str() {
            "inf" | "infinity" if sign.is_empty() => return Some(Self(X87DoubleExtended::INFINITY)),
            "inf" | "infinity" => return Some(Self(-X87DoubleExtended::INFINITY)),
            hex if hex.starts_with("0x") => {
                let (significand, exponent) = hex[2..].split_once('p').unwrap_or_else(|| (&hex[2..], "0"));
                format!("{sign}0x{}p{}", digits_of(significand, 16)?, exponent_of(exponent)?)
            }
            decimal => {
                let (significand, exponent) = decimal.split_once('e').unwrap_or((decimal, "0"));
                format!("{sign}{}e{}", digits_of(significand, 10)?, exponent_of(exponent)?)
            }
        };
        let read = X87DoubleExtended::from_str_r(&number, Round::NearestTiesToEven).ok()?;
        let vanished = read.status.contains(Status::UNDERFLOW) && read.value.is_zero();
        (read.value.is_finite() && !vanished).then_some(Self(read.value))
    }

    pub(super) fn is_finite(self) -> bool {
        self.0.is_finite()
    }

    /// Returns the sum if it is finite.
    pub(super) fn plus(self, other: Self) -> Option<Self> {
        let sum = self.0.add_r(other.0, Round::NearestTiesToEven).value;
        sum.is_finite().then_some(Self(sum))
    }

    /// Prints the number without an exponent.
    pub(super) fn text(self) -> String {
        let bits = self.0.to_bits();
        let field = i32::try_from((bits >> 64) & 0x7fff).expect("15 bits");
        let significand = u64::try_from(bits & u128::from(u64::MAX)).expect("64 bits");
        let exponent = field.max(1) - EXPONENT_BIAS;
        let scaled = BigUint::from(significand) * BigUint::from(10_u8).pow(DIGITS);
        let whole = if exponent >= 0 {
            scaled << exponent
        } else {
            // Round to the nearest, ties to even.
            let places = exponent.unsigned_abs();
            let (floor, half) = (&scaled >> places, BigUint::from(1_u8) << (places - 1));
            let rest = &scaled - (&floor << places);
            let up = rest > half || (rest == half && floor.bit(0));
            floor + u8::from(up)
        };
        let mut text = format!("{whole:0>18}");
        text.insert(text.len() - DIGITS as usize, '.');
        let text = text.trim_end_matches('0').trim_end_matches('.');
        let is_negative = bits >> 79 & 1 == 1 && text != "0";
        format!("{}{text}", if is_negative { "-" } else { "" })
    }
}

/// Normalizes digits with at most one point for the parser of `rustc_apfloat`; `None` without a digit.
fn digits_of(text: &str, radix: u32) -> Option<&str> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let are_digits = whole.chars().chain(fraction.chars()).all(|digit| digit.is_digit(radix));
    (are_digits && whole.len() + fraction.len() > 0).then_some(text)
}

/// Parses a decimal exponent. An exponent beyond all numbers is cut to a large one.
fn exponent_of(text: &str) -> Option<i64> {
    const FAR: i64 = 100_000;
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    let are_digits = !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_digit());
    let number = digits.parse::<i64>().unwrap_or(FAR).min(FAR);
    are_digits.then_some(if text.starts_with('-') { -number } else { number })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(one: &str, other: &str) -> Option<String> {
        let number = |text: &str| LongDouble::parse(text.as_bytes());
        Some(number(one)?.plus(number(other)?)?.text())
    }

    /// As glibc's `strtold`, `+` and `printf("%.17Lf")` on x86 have them.
    #[test]
    fn sums_are_those_of_80_bits() {
        for (one, other, wanted) in [
            ("0.1", "0.2", "0.3"),
            ("10.50", "0.1", "10.6"),
            ("5.0e3", "2.0e2", "5200"),
            ("9007199254740993", "0.5", "9007199254740993.5"),
            ("18446744073709551615", "0", "18446744073709551615"),
            ("18446744073709551615", "0.25", "18446744073709551615"),
            ("-1", "1", "0"),
            ("-0", "-0", "0"),
            ("0x1.8p1", ".5", "3.5"),
            ("0x10", "+1.", "17"),
            ("1e-17", "0", "0.00000000000000001"),
            ("3e-18", "0", "0"),
            ("1e30", "-1e12", "999999999999999998993903910912"),
        ] {
            assert_eq!(sum(one, other).as_deref(), Some(wanted), "{one} + {other}");
        }
    }

    #[test]
    fn invalid_numbers_are_refused() {
        for wrong in [
            "", "-", ".", "e5", "1e", "1e+", "1.2.3", " 1", "1 ", "nan", "0x", "0xp1", "--1", "+-1",
            "1e99999", "1e-99999", "é",
        ] {
            assert!(LongDouble::parse(wrong.as_bytes()).is_none(), "{wrong:?}");
        }
        assert!(LongDouble::parse(&[b'1'; TEXT_LEN_MAX]).is_none());
        assert_eq!(sum("inf", "1"), None, "no sum is infinite");
        assert_eq!(sum("1e4932", "1e4932"), None);
        assert!(sum("1e4931", "0").unwrap().len() > 4_900);
    }
}
