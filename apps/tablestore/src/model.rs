//! A model of valid scan results: the keys, with the time at which each was inserted.

use std::collections::BTreeMap;

/// A logical time: the number of inserts begun or ended.
pub(crate) type Moment = u64;

/// The keys, each with the time of its insert's reply, if there was one.
#[derive(Debug)]
pub(crate) struct Model {
    keys: BTreeMap<u64, Option<Moment>>,
    now: Moment,
}

impl Model {
    /// Creates a model with these initial keys.
    pub(crate) fn new(keys: impl Iterator<Item = u64>) -> Self {
        Self { keys: keys.map(|key| (key, Some(0))).collect(), now: 0 }
    }

    /// Returns the current time.
    pub(crate) const fn now(&self) -> Moment {
        self.now
    }

    /// Begins the insert of `key`. An existing key stays: its value is the same.
    pub(crate) fn begin(&mut self, key: u64) {
        self.now += 1;
        self.keys.entry(key).or_insert(None);
    }

    /// Records the reply to the insert of `key`.
    pub(crate) fn settle(&mut self, key: u64) {
        self.now += 1;
        self.keys.get_mut(&key).expect("its insert has begun").get_or_insert(self.now);
    }

    /// Returns true if `keys` is a valid result of a scan that started at `began` and returns at most `most` keys
    /// from `from` on. A valid result is sorted. The result contains every key whose insert ended before `began`, and may
    /// contain keys whose insert has begun.
    pub(crate) fn allows(
        &self,
        from: u64,
        most: usize,
        began: Moment,
        keys: impl Iterator<Item = u64>,
    ) -> bool {
        let mut keys = keys.peekable();
        let mut left = most;
        for (&key, settled) in self.keys.range(from..) {
            if left == 0 {
                break;
            }
            if keys.peek() == Some(&key) {
                keys.next();
                left -= 1;
            } else if settled.is_some_and(|settled| settled <= began) {
                return false;
            }
        }
        keys.next().is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Stable keys must be present, concurrently inserted ones may be, no others are.
    #[test]
    fn a_scan_is_allowed_or_not() {
        let mut model = Model::new([10, 20, 30, 40].into_iter());
        let began = model.now();
        model.begin(25);
        model.settle(25);
        model.begin(35);
        let allows = |from, most, keys: &[u64]| model.allows(from, most, began, keys.iter().copied());
        assert!(allows(15, 3, &[20, 30, 40]));
        assert!(allows(15, 3, &[20, 25, 30]));
        assert!(allows(15, 3, &[20, 30, 35]));
        assert!(allows(15, 9, &[20, 25, 30, 35, 40]));
        assert!(allows(41, 9, &[]));
        assert!(!allows(15, 3, &[20, 30]), "too few");
        assert!(!allows(15, 3, &[20, 25, 40]), "30 stood still");
        assert!(!allows(15, 3, &[20, 30, 40, 40]), "too many");
        assert!(!allows(15, 3, &[20, 26, 30]), "26 was never there");
        assert!(!allows(15, 3, &[20, 20, 30]), "twice");
        assert!(!allows(15, 3, &[30, 20, 40]), "out of order");
        assert!(!model.allows(15, 3, model.now(), [20, 30, 35].into_iter()), "25 was there by now");
    }
}
