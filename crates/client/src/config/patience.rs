//! The time that programs wait for a rack that does not answer: `patience` in rack.toml, or a command-line
//! option.

use std::sync::OnceLock;
use std::time::Duration;

/// Default patience of a rack.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Maximum patience: one day.
pub(super) const PATIENCE_MAX: Duration = Duration::from_secs(24 * 3600);

static SET: OnceLock<Duration> = OnceLock::new();

/// Sets the patience of every description that this process reads from here on, and overrides `patience`
/// there. Only the first call has an effect.
pub fn set_patience(patience: Duration) {
    let _first = SET.set(patience);
}

/// Returns the patience that [`set_patience`] has set.
pub(super) fn of_process() -> Option<Duration> {
    SET.get().copied()
}

/// Parses a time: a number with `ms`, `s`, `m` or `h`, such as `500ms` or `60 s`.
///
/// # Errors
/// The expected form, as text.
pub fn parse_patience(text: &str) -> Result<Duration, String> {
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    let millis = match unit.trim() {
        "ms" => Some(1),
        "s" => Some(1_000),
        "m" | "min" => Some(60_000),
        "h" => Some(3_600_000),
        _ => None,
    };
    let span = number.parse::<u64>().ok().zip(millis).and_then(|(number, millis)| number.checked_mul(millis));
    let span = span.map(Duration::from_millis).filter(|&span| span <= PATIENCE_MAX);
    span.ok_or_else(|| "expected a time of at most a day, such as \"500ms\", \"60s\" or \"5m\"".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        let cases = [("0s", 0), ("500ms", 500), ("60 s", 60_000), ("5m", 300_000), ("24h", 86_400_000)];
        for (text, millis) in cases {
            assert_eq!(parse_patience(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for text in ["", "s", "60", "-1s", "25h", "1.5s", "99999999999999999999s", "60 seconds"] {
            assert!(parse_patience(text).is_err(), "{text}");
        }
    }
}
