//! Link profiles: rate, delay and loss of the network that a link imitates. A [`PacedLink`](crate::PacedLink)
//! applies one.
//!
//! Key type: [`LinkProfile`], parsed from text in the style of tc and netem. A profile does not measure time;
//! [`Shaper`](crate::Shaper) does.

use farmem_machine::Duration;
use std::fmt;
use std::str::FromStr;

/// Number of bytes that a frame takes on an Ethernet in addition to its own, over IPv4. These are preamble
/// and gap (20), Ethernet (14 and 4), IP (20), UDP (8) and ICRC (4).
pub const WIRE_OVERHEAD: u64 = 70;

/// Range of a profile's rate, in bytes per second: 1 Mbit/s to 10 Tbit/s.
const RATES: std::ops::RangeInclusive<u64> = 125_000..=1_250_000_000_000;
/// Maximum one-way delay. Three of them, from host to switch to node to host, are less than the 40 ms after
/// which a host retransmits.
const DELAY_MAX: Duration = Duration::from_millis(10);
/// Maximum number of bytes that a link holds back, queued or in flight. Further frames are lost, as in a full
/// queue.
pub const HELD_BYTES_MAX: u64 = 64 << 20;
/// Maximum number of bytes that a profile may have in flight (rate times delay, and the burst). The other
/// half of the held bytes is for a queue.
const IN_FLIGHT_MAX: u64 = HELD_BYTES_MAX / 2;
/// Unit of loss: frames per million.
const MILLION: u32 = 1_000_000;

/// The network that a link imitates, from the view of one sender. Its frames leave at `rate`, in bursts of at
/// most `burst`, and arrive `delay` later.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct LinkProfile {
    /// Rate in bytes per second on the wire, including [`WIRE_OVERHEAD`]; `None` is no limit.
    rate: Option<u64>,
    /// Number of bytes that leave at once after a pause. With 0, a frame has left when its last bit has, as
    /// on a wire.
    burst: u64,
    /// Time from a frame's departure to its arrival.
    delay: Duration,
    /// Number of frames lost per million.
    loss: u32,
}

/// The named profiles.
const NAMED: [(&str, LinkProfile); 6] = [
    ("none", LinkProfile::NONE),
    ("10g-10us", LinkProfile::wire(10, 10)),
    ("25g-5us", LinkProfile::wire(25, 5)),
    ("100g-2us", LinkProfile::wire(100, 2)),
    ("200g-1us", LinkProfile::wire(200, 1)),
    ("400g-1us", LinkProfile::wire(400, 1)),
];

impl LinkProfile {
    /// The unchanged link: no frame is held back.
    pub const NONE: Self = Self { rate: None, burst: 0, delay: Duration::from_nanos(0), loss: 0 };

    /// Creates the profile of a wire with this rate in Gbit/s and this delay in microseconds.
    const fn wire(gbits: u64, micros: u64) -> Self {
        Self { rate: Some(gbits * 125_000_000), burst: 0, delay: Duration::from_micros(micros), loss: 0 }
    }

    /// Returns true if no frame is held back or lost.
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == Self::NONE
    }

    /// Returns the rate in bytes per second, if there is a limit.
    #[must_use]
    pub const fn rate(&self) -> Option<u64> {
        self.rate
    }

    /// Returns the number of bytes that leave at once after a pause.
    #[must_use]
    pub const fn burst(&self) -> u64 {
        self.burst
    }

    /// Returns the one-way delay.
    #[must_use]
    pub const fn delay(&self) -> Duration {
        self.delay
    }

    /// Returns the number of frames lost per million.
    #[must_use]
    pub const fn loss_ppm(&self) -> u32 {
        self.loss
    }
}

/// The fault of a text that is not a profile, with the expected form.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct ProfileError(String);

/// Parses a name, or `rate=25Gbit/s,delay=5us,burst=64KiB,loss=0.1%` with at least one of these values, in
/// any order.
impl FromStr for LinkProfile {
    type Err = ProfileError;

    fn from_str(text: &str) -> Result<Self, ProfileError> {
        if let Some((_, profile)) = NAMED.iter().find(|(name, _)| *name == text) {
            return Ok(*profile);
        }
        if !text.contains('=') {
            let names: Vec<&str> = NAMED.iter().map(|(name, _)| *name).collect();
            return Err(ProfileError(format!(
                "no link profile is called {text:?}: expected one of {}, or values as in rate=25Gbit/s,delay=5us",
                names.join(", ")
            )));
        }
        let mut seen = Values::default();
        for part in text.split(',') {
            seen.take(part)?;
        }
        seen.check()
    }
}

#[derive(Default)]
struct Values {
    rate: Option<u64>,
    burst: Option<u64>,
    delay: Option<Duration>,
    loss: Option<u32>,
}

impl Values {
    fn take(&mut self, part: &str) -> Result<(), ProfileError> {
        let (key, value) = part.split_once('=').unwrap_or((part, ""));
        let is_first = match key {
            "rate" => self.rate.replace(rate(value)?).is_none(),
            "burst" => self.burst.replace(burst(value)?).is_none(),
            "delay" => self.delay.replace(delay(value)?).is_none(),
            "loss" => self.loss.replace(loss(value)?).is_none(),
            _ => {
                let known = "expected rate, burst, delay or loss, each with a value";
                return Err(ProfileError(format!("a link has no {part:?}: {known}")));
            }
        };
        if is_first { Ok(()) } else { Err(ProfileError(format!("{key} is given twice: expected it once"))) }
    }

    fn check(self) -> Result<LinkProfile, ProfileError> {
        let (burst, delay) = (self.burst.unwrap_or(0), self.delay.unwrap_or_default());
        if self.burst.is_some() && self.rate.is_none() {
            return Err(ProfileError(
                "a burst without a rate has no effect: expected rate=... as well".into(),
            ));
        }
        // The product is at most 1.25e12 bytes/s times 1e7 ns: far below 2^64 in bytes, and below 2^128
        // before the division.
        let flying =
            self.rate.map_or(0, |rate| u128::from(rate) * u128::from(delay.as_nanos()) / 1_000_000_000);
        let flying = flying + u128::from(burst);
        if flying > u128::from(IN_FLIGHT_MAX) {
            return Err(ProfileError(format!(
                "rate times delay plus the burst are {flying} bytes in flight: expected at most {IN_FLIGHT_MAX}; lower one of them"
            )));
        }
        Ok(LinkProfile { rate: self.rate, burst, delay, loss: self.loss.unwrap_or(0) })
    }
}

fn rate(text: &str) -> Result<u64, ProfileError> {
    // The units are in bits per second; a unit of bytes is eight times as large.
    const UNITS: [(&str, u64); 9] = [
        ("bit", 1),
        ("kbit", 1_000),
        ("mbit", 1_000_000),
        ("gbit", 1_000_000_000),
        ("tbit", 1_000_000_000_000),
        ("b", 8),
        ("kb", 8_000),
        ("mb", 8_000_000),
        ("gb", 8_000_000_000),
    ];
    let expected = "expected 1Mbit/s to 10Tbit/s, such as 25Gbit/s, or in bytes as 3.125GB/s";
    let lower = text.to_ascii_lowercase();
    if lower.ends_with("bps") {
        let both = "tc uses bps for bytes per second, most others for bits";
        return Err(ProfileError(format!("rate={text} is ambiguous: {both}; {expected}")));
    }
    let per_second = lower.strip_suffix("/s");
    // The form of tc has no "/s"; "25GB" alone is an amount.
    let amount = per_second.or_else(|| lower.ends_with("bit").then_some(lower.as_str()));
    let bits = amount.and_then(|amount| scaled(amount, &UNITS));
    let bytes = bits.map(|bits| bits / 8);
    bytes
        .filter(|bytes| RATES.contains(bytes))
        .ok_or_else(|| ProfileError(format!("rate={text}: {expected}")))
}

fn burst(text: &str) -> Result<u64, ProfileError> {
    const UNITS: [(&str, u64); 5] =
        [("b", 1), ("kb", 1_000), ("kib", 1 << 10), ("mb", 1_000_000), ("mib", 1 << 20)];
    let bytes = scaled(&text.to_ascii_lowercase(), &UNITS).filter(|&bytes| bytes <= IN_FLIGHT_MAX);
    bytes.ok_or_else(|| ProfileError(format!("burst={text}: expected bytes, 0B to 32MiB, such as 64KiB")))
}

fn delay(text: &str) -> Result<Duration, ProfileError> {
    const UNITS: [(&str, u64); 6] = [
        ("ns", 1),
        ("us", 1_000),
        ("usec", 1_000),
        ("ms", 1_000_000),
        ("msec", 1_000_000),
        ("s", 1_000_000_000),
    ];
    let span = scaled(text, &UNITS).map(Duration::from_nanos).filter(|&span| span <= DELAY_MAX);
    span.ok_or_else(|| {
        ProfileError(format!(
            "delay={text}: expected a time with its unit, 0us to 10ms, such as 5us (a host retransmits after 40 ms)"
        ))
    })
}

fn loss(text: &str) -> Result<u32, ProfileError> {
    // One percent is ten thousand millionths.
    let millionths = scaled(text, &[("%", 10_000)]).and_then(|n| u32::try_from(n).ok());
    // A value other than zero must not be rounded to zero.
    let is_none = !text.contains(|c| matches!(c, '1'..='9'));
    millionths.filter(|&n| n <= MILLION / 2 && (n > 0 || is_none)).ok_or_else(|| {
        ProfileError(format!(
            "loss={text}: expected a share of the frames with its %, 0% or 0.0001% to 50%, such as 0.1%"
        ))
    })
}

/// Parses a decimal number with a unit; returns it in the smallest unit, rounded down. `None` if the text is
/// invalid or exceeds 64 bits.
fn scaled(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let (_, scale) = units.iter().find(|(name, _)| *name == unit)?;
    let (whole, part) = number.split_once('.').unwrap_or((number, "0"));
    if part.is_empty() || part.len() > 12 {
        return None;
    }
    let whole: u64 = whole.parse().ok()?;
    let part = u128::from(part.parse::<u64>().ok()?) * u128::from(*scale)
        / 10_u128.pow(u32::try_from(part.len()).ok()?);
    whole.checked_mul(*scale)?.checked_add(u64::try_from(part).ok()?)
}

/// Displays a profile in the form that [`LinkProfile::from_str`] parses: its name if it has one, otherwise
/// the values.
impl fmt::Display for LinkProfile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some((name, _)) = NAMED.iter().find(|(_, profile)| profile == self) {
            return f.write_str(name);
        }
        let mut between = "";
        if let Some(rate) = self.rate {
            write!(f, "rate={}", in_unit(rate * 8, "bit/s", &["", "k", "M", "G", "T"]))?;
            between = ",";
        }
        if self.delay > Duration::default() {
            write!(f, "{between}delay={}", in_unit(self.delay.as_nanos(), "s", &["n", "u", "m"]))?;
            between = ",";
        }
        if self.burst > 0 {
            write!(f, "{between}burst={}B", self.burst)?;
            between = ",";
        }
        if self.loss > 0 {
            write!(f, "{between}loss={}.{:04}%", self.loss / 10_000, self.loss % 10_000)?;
        }
        Ok(())
    }
}

/// Formats a number in the largest unit in which it is whole.
fn in_unit(number: u64, unit: &str, prefixes: &[&str]) -> String {
    let (mut number, mut at) = (number, 0);
    while at + 1 < prefixes.len() && number >= 1000 && number.is_multiple_of(1000) {
        number /= 1000;
        at += 1;
    }
    format!("{number}{}{unit}", prefixes[at])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<LinkProfile, String> {
        text.parse().map_err(|error: ProfileError| error.to_string())
    }

    /// Units in the style of tc and common units have the same meaning.
    #[test]
    fn values_are_read_as_tc_users_write_them() {
        let wanted = LinkProfile {
            rate: Some(3_125_000_000),
            burst: 65_536,
            delay: Duration::from_nanos(2_500),
            loss: 1_000,
        };
        for text in [
            "rate=25Gbit/s,delay=2.5us,burst=64KiB,loss=0.1%",
            "loss=0.1%,burst=65536B,rate=25gbit,delay=2500ns",
            "rate=3.125GB/s,delay=0.0025ms,burst=64kib,loss=0.1000%",
        ] {
            assert_eq!(parse(text), Ok(wanted), "{text}");
        }
        assert_eq!(parse("100g-2us"), parse("rate=100Gbit/s,delay=2us"));
        assert!(parse("none").unwrap().is_none());
        assert!(parse("delay=0us").unwrap().is_none());
    }

    /// A printed profile parses to the same profile.
    #[test]
    fn what_is_printed_is_read_back() {
        for text in ["none", "400g-1us", "rate=1.5Mbit/s", "delay=7us,loss=12.3456%", "rate=1Gbit/s,burst=9B"]
        {
            let profile = parse(text).unwrap();
            assert_eq!(parse(&profile.to_string()), Ok(profile), "{profile}");
        }
        assert_eq!(parse("rate=100gbit,delay=2000ns").unwrap().to_string(), "100g-2us");
        assert_eq!(parse("rate=25gbit,delay=7500ns").unwrap().to_string(), "rate=25Gbit/s,delay=7500ns");
    }

    /// Each error names the fault and a valid form.
    #[test]
    fn what_is_no_profile_is_refused_by_name() {
        for (text, named) in [
            ("fast", "\"fast\""),
            ("", "\"\""),
            ("rate=0bit/s", "rate=0bit/s: expected 1Mbit/s"),
            ("rate=11Tbit/s", "rate=11Tbit/s: expected"),
            ("rate=99999999999999999999Gbit/s", "expected 1Mbit/s"),
            ("rate=18446744073709551615Gbit/s", "expected 1Mbit/s"),
            ("rate=25Gbps", "ambiguous"),
            ("rate=25GB", "rate=25GB: expected"),
            ("rate=-1Gbit/s", "rate=-1Gbit/s"),
            ("rate=1.Gbit/s", "rate=1.Gbit/s"),
            ("rate=", "rate="),
            ("delay=5", "delay=5: expected a time with its unit"),
            ("delay=11ms", "delay=11ms"),
            ("delay=18446744073709551615s", "expected a time"),
            ("loss=51%", "loss=51%"),
            ("loss=0.1", "with its %"),
            ("loss=0.00009%", "0.0001% to 50%"),
            ("loss=0.0000000000000001%", "0.0001% to 50%"),
            ("burst=1MiB", "a burst without a rate"),
            ("rate=1Gbit/s,burst=1GiB", "burst=1GiB"),
            ("rate=1Gbit/s,rate=1Gbit/s", "rate is given twice"),
            ("rate=1Gbit/s,jitter=1us", "\"jitter=1us\""),
            ("rate=1Gbit/s,", "\"\""),
            ("rate=400Gbit/s,delay=10ms", "500000000 bytes in flight"),
        ] {
            let refused = parse(text).expect_err(text);
            assert!(refused.contains(named), "{text}: {refused}");
        }
    }
}
