//! The use of keys, as index entries record it: the time of the last use, or with an LFU policy the frequency of use.
//!
//! Key types: [`Use`], one use; [`Settings`], the growth and decay of a frequency. A frequency is Redis's: a counter
//! of 8 bits that grows at random, the less likely the larger it is, and decays with time. An entry has the counter
//! in its low 8 bits, and above it the minutes of its last change.

/// The frequency of a new key, which is not evicted first.
const FIRST: u32 = 5;
const COUNTER_BITS: u32 = 8;
const COUNTER_MAX: u32 = (1 << COUNTER_BITS) - 1;
const MINUTES_MASK: u32 = 0xffff;

/// How fast the frequency of a key grows and falls.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    /// The larger, the more uses make the counter grow (`lfu-log-factor`).
    pub(crate) log_factor: u32,
    /// The minutes in which the counter falls by one; 0 for never (`lfu-decay-time`).
    pub(crate) decay_minutes: u32,
}

impl Settings {
    pub(crate) const DEFAULT: Self = Self { log_factor: 10, decay_minutes: 1 };

    /// Returns the frequency that an entry notes, as it is now.
    pub(crate) fn frequency(self, used: u32, now: i64) -> u32 {
        let passed = minutes(now).wrapping_sub(used >> COUNTER_BITS) & MINUTES_MASK;
        let falls = passed.checked_div(self.decay_minutes).unwrap_or(0);
        (used & COUNTER_MAX).saturating_sub(falls)
    }
}

fn minutes(now: i64) -> u32 {
    (clock(now) / 60) & MINUTES_MASK
}

/// Returns the time in seconds, in the form of entries.
pub(super) fn clock(now: i64) -> u32 {
    u32::try_from((now / 1000) & 0xffff_ffff).unwrap_or(0)
}

/// An access to a key: its time, and the frequency counter of an LFU policy.
#[derive(Clone, Copy, Debug)]
pub(super) struct Use {
    pub(super) now: i64,
    /// With an LFU policy: its settings, and a random number below 1.
    pub(super) lfu: Option<(Settings, f64)>,
}

impl Use {
    /// Returns the use that the entry of a new key notes.
    pub(super) fn first(self) -> u32 {
        if self.lfu.is_some() { minutes(self.now) << COUNTER_BITS | FIRST } else { clock(self.now) }
    }

    /// Returns the use that an entry notes after this one.
    pub(super) fn after(self, before: u32) -> u32 {
        let Some((settings, chance)) = self.lfu else { return clock(self.now) };
        let counter = settings.frequency(before, self.now);
        let above = f64::from(counter.saturating_sub(FIRST));
        let grows = counter < COUNTER_MAX && chance < 1.0 / (above * f64::from(settings.log_factor) + 1.0);
        minutes(self.now) << COUNTER_BITS | (counter + u32::from(grows))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A key that is used a thousand times counts more than one that is used ten times, and falls by one a minute.
    #[test]
    fn a_frequency_grows_and_falls() {
        let mut rng = farmem::Rng::from_number(3);
        let mut after = |uses| {
            let chance = |rng: &mut farmem::Rng| f64::from(rng.below(1000)) / 1000.0;
            let one =
                |rng: &mut farmem::Rng| Use { now: 600_000, lfu: Some((Settings::DEFAULT, chance(rng))) };
            (0..uses).fold(one(&mut rng).first(), |used, _| one(&mut rng).after(used))
        };
        let (few, many) = (after(10), after(1_000));
        let at = |used, now| Settings::DEFAULT.frequency(used, now);
        assert!(at(few, 600_000) < at(many, 600_000), "{few:x} {many:x}");
        assert!((10..40).contains(&at(many, 600_000)), "{many:x}");
        assert_eq!(at(many, 600_000 + 180_000), at(many, 600_000) - 3);
        assert_eq!(at(many, 600_000 + 60_000 * 300), 0);
    }
}
