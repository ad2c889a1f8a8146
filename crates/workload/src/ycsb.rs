//! The record access patterns of YCSB's workloads (Cooper et al., SoCC 2010), and their distributions.
//!
//! Distributions are YCSB's own, constants and quirks included, so that figures are comparable: a zipfian
//! distribution after Gray et al. (SIGMOD 1994), and a scrambled one that scatters the popular records over
//! the keys. Java's random numbers are not imitated: the sequence depends on the seed alone, but differs from
//! YCSB's.

use farmem::Rng;

/// YCSB's skew.
pub const ZIPFIAN_CONSTANT: f64 = 0.99;
/// Items from which a scrambled distribution draws before it folds them onto the records: 0 to this.
pub const SCRAMBLED_ITEMS: u64 = 10_000_000_000;
/// The zeta of [`SCRAMBLED_ITEMS`] at [`ZIPFIAN_CONSTANT`], as YCSB publishes it.
pub const SCRAMBLED_ZETA: f64 = 26.469_028_201_783_02;
/// The longest scan of workload E.
pub const SCAN_LEN_MAX: u32 = 100;

/// Returns the FNV-1a hash of a number's eight bytes, low byte first, as in YCSB: the magnitude of the signed
/// result.
#[must_use]
pub const fn hash(number: u64) -> u64 {
    let bytes = number.to_le_bytes();
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut n = 0;
    while n < bytes.len() {
        hash = (hash ^ bytes[n] as u64).wrapping_mul(0x100_0000_01b3);
        n += 1;
    }
    hash.cast_signed().unsigned_abs()
}

/// Returns `sum` plus the sum of 1 / i^theta for i from `from + 1` to `to`: zeta, from the start or from the
/// end of an earlier sum.
#[must_use]
pub fn zeta(from: u64, to: u64, theta: f64, sum: f64) -> f64 {
    (from + 1..=to).fold(sum, |sum, i| sum + 1.0 / (i as f64).powf(theta))
}

/// A zipfian distribution of numbers below a bound; 0 is the most frequent, then 1.
#[derive(Clone, Debug)]
pub struct Zipfian {
    items: u64,
    theta: f64,
    alpha: f64,
    zeta_2: f64,
    /// Zeta of `counted` items.
    zeta_n: f64,
    counted: u64,
    eta: f64,
}

impl Zipfian {
    /// Creates a distribution below `items` with YCSB's skew. The time is proportional to `items`.
    ///
    /// # Panics
    /// Panics when `items` is zero.
    #[must_use]
    pub fn new(items: u64) -> Self {
        Self::with(items, ZIPFIAN_CONSTANT, zeta(0, items, ZIPFIAN_CONSTANT, 0.0))
    }

    /// Creates a distribution below `items` with a skew between 0 and 1 and its known zeta.
    ///
    /// # Panics
    /// Panics when `items` is zero or the skew is out of range.
    #[must_use]
    pub fn with(items: u64, theta: f64, zeta_n: f64) -> Self {
        assert!(items > 0, "something must be drawn");
        assert!(theta > 0.0 && theta < 1.0, "a skew of {theta} is not between 0 and 1");
        let mut zipfian = Self {
            items,
            theta,
            alpha: 1.0 / (1.0 - theta),
            zeta_2: zeta(0, 2, theta, 0.0),
            zeta_n,
            counted: items,
            eta: 0.0,
        };
        zipfian.settle_eta();
        zipfian
    }

    /// Draws the next number.
    pub fn next(&mut self, rng: &mut Rng) -> u64 {
        self.next_below(self.items, rng)
    }

    /// Draws the next number below `items`, which must not decrease between calls: zeta grows by the new
    /// items only. For fewer items, the previous zeta is used, as in YCSB.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a fraction of a count is a count"
    )]
    pub fn next_below(&mut self, items: u64, rng: &mut Rng) -> u64 {
        if items > self.counted {
            self.zeta_n = zeta(self.counted, items, self.theta, self.zeta_n);
            self.counted = items;
            self.settle_eta();
        }
        let u = fraction(rng);
        let uz = u * self.zeta_n;
        if uz < 1.0 {
            return 0;
        }
        if uz < 1.0 + 0.5_f64.powf(self.theta) {
            return 1;
        }
        let rank = items as f64 * (self.eta * u - self.eta + 1.0).powf(self.alpha);
        (rank as u64).min(items.saturating_sub(1)) // a product of doubles may round up to the bound
    }

    /// Returns the zeta of the last item count.
    #[must_use]
    pub const fn zeta_n(&self) -> f64 {
        self.zeta_n
    }

    /// Computes eta as YCSB does: from the initial number of items, even if more were counted since.
    fn settle_eta(&mut self) {
        let tail = (2.0 / self.items as f64).powf(1.0 - self.theta);
        self.eta = (1.0 - tail) / (1.0 - self.zeta_2 / self.zeta_n);
    }
}

/// A zipfian distribution with the frequent numbers scattered: the hash of a zipfian number, modulo the
/// bound.
#[derive(Clone, Debug)]
pub struct ScrambledZipfian {
    items: u64,
    zipfian: Zipfian,
}

impl ScrambledZipfian {
    /// Creates a distribution below `items`.
    ///
    /// # Panics
    /// Panics when `items` is zero.
    #[must_use]
    pub fn new(items: u64) -> Self {
        assert!(items > 0, "something must be drawn");
        Self { items, zipfian: Zipfian::with(SCRAMBLED_ITEMS + 1, ZIPFIAN_CONSTANT, SCRAMBLED_ZETA) }
    }

    /// Draws the next number.
    pub fn next(&mut self, rng: &mut Rng) -> u64 {
        hash(self.zipfian.next(rng)) % self.items
    }
}

/// The distribution of requested records.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Keys {
    /// YCSB's default, used by PULSE: few records are popular, scattered among the others.
    #[default]
    Zipfian,
    /// All records equally often, as with YCSB's `requestdistribution=uniform`.
    Uniform,
}

/// One of YCSB's core workloads, with its default request distribution.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Workload {
    /// Half reads, half updates.
    A,
    /// 95 % reads, 5 % updates.
    B,
    /// Reads only.
    C,
    /// 95 % reads that favour the most recently inserted records, 5 % inserts.
    D,
    /// 95 % scans of 1 to 100 records, 5 % inserts.
    E,
    /// Half reads, half reads followed by an update.
    F,
}

/// An operation on a record number; [`Operation::key`] returns the key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// Read a record.
    Read {
        /// The record's number.
        record: u64,
    },
    /// Write a record that exists.
    Update {
        /// The record's number.
        record: u64,
    },
    /// Write a new record.
    Insert {
        /// The record's number: the next after the last.
        record: u64,
    },
    /// Read records in order of their keys.
    Scan {
        /// The first record.
        record: u64,
        /// Number of records, 1 to [`SCAN_LEN_MAX`].
        len: u32,
    },
    /// Read a record, and then write it.
    ReadModifyWrite {
        /// The record's number.
        record: u64,
    },
}

impl Operation {
    /// Returns the record's number.
    #[must_use]
    pub const fn record(&self) -> u64 {
        match *self {
            Self::Read { record }
            | Self::Update { record }
            | Self::Insert { record }
            | Self::ReadModifyWrite { record }
            | Self::Scan { record, .. } => record,
        }
    }

    /// Returns the record's key: YCSB's hash of the number, below 2^63.
    #[must_use]
    pub const fn key(&self) -> u64 {
        hash(self.record())
    }
}

impl Workload {
    /// Returns `count` operations on a table of `records`, whose keys are the [`hash`] of 0 to `records` - 1.
    /// Equal seeds give equal sequences.
    ///
    /// # Panics
    /// Panics when `records` is zero.
    #[must_use]
    pub fn operations(self, records: u64, count: u64, seed: u64) -> Operations {
        assert!(records > 0, "there is nothing to read");
        // YCSB draws from the final number of expected records, plus twice the expected inserts and one, and
        // skips records that do not exist yet. The popular records therefore stay the same while records are
        // added.
        let expected = if self == Self::E { count / 10 } else { 0 };
        Operations {
            workload: self,
            records,
            left: count,
            keys: Keys::Zipfian,
            chooser: ScrambledZipfian::new(records + expected + 1),
            // YCSB's "latest": a zipfian distance before the last record.
            latest: (self == Self::D).then(|| Zipfian::new(records)),
            rng: Rng::from_number(seed),
        }
    }
}

/// The operations of a workload.
#[derive(Clone, Debug)]
pub struct Operations {
    workload: Workload,
    /// The present number of records.
    records: u64,
    left: u64,
    keys: Keys,
    chooser: ScrambledZipfian,
    /// For workload D: the distance before the last record.
    latest: Option<Zipfian>,
    rng: Rng,
}

impl Operations {
    /// Sets the distribution of requested records.
    #[must_use]
    pub const fn with_keys(mut self, keys: Keys) -> Self {
        self.keys = keys;
        self
    }

    fn existing(&mut self) -> u64 {
        if let (Some(latest), Keys::Zipfian) = (&mut self.latest, self.keys) {
            return self.records - 1 - latest.next_below(self.records, &mut self.rng);
        }
        loop {
            let record = match self.keys {
                Keys::Zipfian => self.chooser.next(&mut self.rng),
                Keys::Uniform => return self.rng.next_u64() % self.records,
            };
            if record < self.records {
                return record;
            }
        }
    }
}

impl Iterator for Operations {
    type Item = Operation;

    fn next(&mut self) -> Option<Operation> {
        self.left = self.left.checked_sub(1)?;
        let common = match self.workload {
            Workload::A | Workload::F => self.rng.chance(50, 100),
            Workload::B | Workload::D | Workload::E => self.rng.chance(95, 100),
            Workload::C => true,
        };
        Some(match (self.workload, common) {
            (Workload::E, true) => {
                let record = self.existing();
                Operation::Scan { record, len: 1 + self.rng.below(SCAN_LEN_MAX) }
            }
            (Workload::D | Workload::E, false) => {
                self.records += 1;
                Operation::Insert { record: self.records - 1 }
            }
            (Workload::F, false) => Operation::ReadModifyWrite { record: self.existing() },
            (_, true) => Operation::Read { record: self.existing() },
            (_, false) => Operation::Update { record: self.existing() },
        })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = usize::try_from(self.left).ok();
        (left.unwrap_or(usize::MAX), left)
    }
}

/// Returns a double of 53 random bits in [0, 1).
fn fraction(rng: &mut Rng) -> f64 {
    (rng.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// The first keys that YCSB loads: user6284781860667377211, user8517097267634966620.
    #[test]
    fn the_hash_is_ycsbs() {
        assert_eq!([hash(0), hash(1)], [6_284_781_860_667_377_211, 8_517_097_267_634_966_620]);
    }

    /// The published zeta of 10^10 items: a million of them summed, the rest by Euler and Maclaurin.
    #[test]
    fn zeta_is_the_published_one() {
        let theta = ZIPFIAN_CONSTANT;
        let (near, far) = (1_000_000_u64, SCRAMBLED_ITEMS);
        let (n, m) = (near as f64, far as f64);
        let integral = (m.powf(1.0 - theta) - n.powf(1.0 - theta)) / (1.0 - theta);
        let ends = (m.powf(-theta) - n.powf(-theta)) / 2.0;
        let slopes = theta / 12.0 * (n.powf(-theta - 1.0) - m.powf(-theta - 1.0));
        let sum = zeta(0, near, theta, 0.0) + integral + ends + slopes;
        assert!((sum - SCRAMBLED_ZETA).abs() < 1e-6, "{sum}");
    }

    #[test]
    fn zeta_grows_by_what_is_added() {
        let mut grown = Zipfian::new(1000);
        grown.next_below(5000, &mut Rng::from_number(1));
        assert_eq!(
            grown.zeta_n(),
            Zipfian::new(5000).zeta_n(),
            "to the last bit: the same sum in the same order"
        );
        grown.next_below(10, &mut Rng::from_number(1));
        assert_eq!(grown.zeta_n(), Zipfian::new(5000).zeta_n(), "and does not shrink");
    }

    /// The first two items have exactly their share, the others about theirs (Gray's inverse is an
    /// approximation).
    #[test]
    fn zipfian_numbers_have_their_shares() {
        let (items, draws) = (1000_u64, 400_000_u64);
        let mut zipfian = Zipfian::new(items);
        let mut rng = Rng::from_number(7);
        let mut counts = vec![0_u64; 1000];
        for _ in 0..draws {
            counts[usize::try_from(zipfian.next(&mut rng)).unwrap()] += 1;
        }
        let share = |from: u64, to: u64| {
            zeta(from, to, ZIPFIAN_CONSTANT, 0.0) / zeta(0, items, ZIPFIAN_CONSTANT, 0.0) * draws as f64
        };
        for (from, to, tolerance) in
            [(0, 1, 0.02), (1, 2, 0.02), (2, 10, 0.1), (10, 100, 0.05), (100, 1000, 0.05)]
        {
            let drawn: u64 =
                counts[usize::try_from(from).unwrap()..usize::try_from(to).unwrap()].iter().sum();
            let off = drawn as f64 / share(from, to) - 1.0;
            assert!(off.abs() < tolerance, "items {from}..{to}: {off:+.3}");
        }
    }

    /// In a scrambled distribution, the most frequent number is the hash of item 0, with the share of one
    /// item of 10^10.
    #[test]
    fn scrambled_numbers_keep_the_skew() {
        let (items, draws) = (10_000, 200_000);
        let mut scrambled = ScrambledZipfian::new(items);
        let mut rng = Rng::from_number(3);
        let mut counts = BTreeMap::<u64, u32>::new();
        for _ in 0..draws {
            *counts.entry(scrambled.next(&mut rng)).or_default() += 1;
        }
        let (&hottest, &count) = counts.iter().max_by_key(|(_, count)| **count).unwrap();
        assert_eq!(hottest, hash(0) % items);
        let share = f64::from(count) / f64::from(draws);
        assert!((share * SCRAMBLED_ZETA - 1.0).abs() < 0.05, "{share}");
        assert!(counts.keys().all(|&record| record < items));
        assert!(counts.len() > 9_000, "and the others are all over: {}", counts.len());
    }

    #[test]
    fn workloads_have_their_mix() {
        let (records, count) = (5_000, 40_000);
        for (workload, shares) in [
            (Workload::A, [50.0, 50.0, 0.0, 0.0, 0.0]),
            (Workload::B, [95.0, 5.0, 0.0, 0.0, 0.0]),
            (Workload::C, [100.0, 0.0, 0.0, 0.0, 0.0]),
            (Workload::D, [95.0, 0.0, 5.0, 0.0, 0.0]),
            (Workload::E, [0.0, 0.0, 5.0, 95.0, 0.0]),
            (Workload::F, [50.0, 0.0, 0.0, 0.0, 50.0]),
        ] {
            let (mut seen, mut there, mut lens) = ([0_u32; 5], records, 0);
            for operation in workload.operations(records, count, 42) {
                match operation {
                    Operation::Read { .. } => seen[0] += 1,
                    Operation::Update { .. } => seen[1] += 1,
                    Operation::ReadModifyWrite { .. } => seen[4] += 1,
                    Operation::Insert { record } => {
                        seen[2] += 1;
                        assert_eq!(record, there, "the next");
                        there += 1;
                    }
                    Operation::Scan { len, .. } => {
                        seen[3] += 1;
                        lens += len;
                        assert!((1..=SCAN_LEN_MAX).contains(&len));
                    }
                }
                assert!(operation.record() < there, "{operation:?} is there");
            }
            assert_eq!(u64::from(seen.iter().sum::<u32>()), count);
            for (seen, share) in seen.iter().zip(shares) {
                assert!((f64::from(*seen) / 400.0 - share).abs() < 0.5, "{workload:?}: {seen} for {share} %");
            }
            if workload == Workload::E {
                assert!((f64::from(lens) / f64::from(seen[3]) - 50.5).abs() < 1.0);
            }
        }
    }

    /// Workload D: the most recently inserted record is read most often, with its share of the zipfian
    /// distribution, as records are added.
    #[test]
    fn the_latest_records_are_read_most() {
        let (mut there, mut reads, mut last, mut old) = (1_000_u64, 0_u32, 0_u32, 0_u32);
        for operation in Workload::D.operations(1_000, 100_000, 11) {
            match operation {
                Operation::Insert { .. } => there += 1,
                other => {
                    reads += 1;
                    last += u32::from(other.record() == there - 1);
                    old += u32::from(other.record() < 1_000);
                }
            }
        }
        // Zeta of 1,000 to 6,000 items is 7.7 to 9.6.
        let share = f64::from(last) / f64::from(reads);
        assert!((1.0 / 9.8..1.0 / 7.5).contains(&share), "{share}");
        assert!(old * 3 < reads, "{old} of {reads} are of those that were there first");
    }

    /// Uniform keys: every record is requested about equally often, new ones too.
    #[test]
    fn uniform_keys_have_equal_shares() {
        let mut counts = vec![0_u32; 100];
        for operation in Workload::C.operations(100, 100_000, 9).with_keys(Keys::Uniform) {
            counts[usize::try_from(operation.record()).unwrap()] += 1;
        }
        assert!(counts.iter().all(|count| (850..1150).contains(count)), "{counts:?}");
        let scans = Workload::E.operations(10, 20_000, 9).with_keys(Keys::Uniform);
        assert!(
            scans.filter(|op| matches!(op, Operation::Scan { record, .. } if *record > 500)).count() > 1000
        );
    }

    #[test]
    fn a_seed_is_a_sequence() {
        let of = |seed| Workload::A.operations(100, 50, seed).collect::<Vec<_>>();
        assert_eq!(of(1), of(1));
        assert_ne!(of(1), of(2));
    }
}
