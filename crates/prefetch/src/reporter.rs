//! Reports of a program to the DPU beside it: dropped items, own reads, and changes.
//!
//! Key type: [`Reporter`], for any thread of the program. `Reporter` numbers the changes and knows which items may be
//! taken (PROTOCOL 19.1 to 19.5), even without a DPU. Reports go into a list that the DPU empties, or into a ring to
//! a DPU process (`farmem_dpu_server::AtDpu`). A report without room only costs speed. The mark up to which far
//! memory has all changes always has room.

use super::ring::{DROPS_MAX, Line, Report, WORD_MAX, Word, lock};
use super::tap::Tap;
use farmem_dpu::accesses::Position;
use farmem_dpu::changes::{Change, Changes};
use farmem_dpu::prefetcher::{Acked, Copy};
use farmem_dpu::view::{KeyId, KeySecret};
use farmem_link::OpenError;
use farmem_link::dpu::{Broken, Submissions};
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Maximum number of reports that the DPU has not taken.
pub const TOLD_MAX: usize = 1 << 16;

/// Reports of a program, in order. Keys of dropped items are in a list of their own, because they are numerous and
/// take one word each.
#[derive(Debug, Default)]
pub(super) struct Reports {
    pub(super) said: Vec<Report>,
    pub(super) dropped: Vec<KeyId>,
    /// Number of reports without room.
    unheard: u64,
}

impl Reports {
    fn say(&mut self, told: Report) {
        if self.said.len() + self.dropped.len() < TOLD_MAX {
            self.said.push(told);
        } else {
            self.unheard += 1;
        }
    }

    fn drops(&mut self, keys: impl Iterator<Item = KeyId>, seen: Position) {
        let before = self.dropped.len();
        let room = TOLD_MAX.saturating_sub(self.said.len() + before + 1);
        let mut keys = keys.fuse();
        self.dropped.extend(keys.by_ref().take(room));
        self.unheard += keys.count() as u64;
        let count = self.dropped.len() - before;
        match self.said.last_mut() {
            Some(Report::Drops { count: more, seen: of }) if *of == seen => *more += count,
            _ if count > 0 => self.said.push(Report::Drops { count, seen }),
            _ => {}
        }
    }
}

/// The list between a program and a DPU of its process.
#[derive(Debug, Default)]
pub(crate) struct List {
    told: Mutex<Reports>,
}

impl List {
    /// Moves all reports into empty lists. Returns the number of reports without room so far.
    fn take(&self, into: &mut Reports) -> u64 {
        let mut list = lock(&self.told);
        std::mem::swap(&mut list.said, &mut into.said);
        std::mem::swap(&mut list.dropped, &mut into.dropped);
        list.unheard
    }
}

/// The changes that far memory has. No change may be missing, because consumers would then refuse the item of a
/// changed record. Memory is proportional to the pending changes.
#[derive(Debug)]
pub(crate) struct Acks {
    acked: Mutex<Acked>,
    /// The last change up to which far memory has all.
    through: AtomicU64,
}

impl Acks {
    fn new(through: Change) -> Self {
        Self { acked: Mutex::new(Acked::new(through)), through: AtomicU64::new(through.0) }
    }

    fn add(&self, change: Change) {
        let mut acked = lock(&self.acked);
        acked.add_all(change..=change);
        self.through.fetch_max(acked.through().0, Ordering::Release);
    }

    fn through(&self) -> Change {
        Change(self.through.load(Ordering::Acquire))
    }
}

/// The channel between a program and its DPU.
#[derive(Debug)]
enum Channel {
    Near(Arc<List>),
    /// A ring to another process, and the number of reports without room.
    Far {
        line: Line,
        unheard: AtomicU64,
    },
}

impl Channel {
    fn say(&self, told: Report) {
        match self {
            Self::Near(list) => lock(&list.told).say(told),
            Self::Far { line, unheard } => {
                let mut record = Vec::new();
                Word::emit(told, &[], &mut record);
                unheard.fetch_add(u64::from(!line.push(&record)), Ordering::Relaxed);
            }
        }
    }

    fn drops(&self, seen: Position, mut keys: impl Iterator<Item = KeyId>) {
        let (line, unheard) = match self {
            Self::Near(list) => return lock(&list.told).drops(keys, seen),
            Self::Far { line, unheard } => (line, unheard),
        };
        let (mut some, mut record) = (Vec::new(), Vec::new());
        loop {
            some.clear();
            some.extend(keys.by_ref().take(DROPS_MAX));
            let count = some.len();
            if count == 0 {
                return;
            }
            Word::emit(Report::Drops { count, seen }, &some, &mut record);
            if !line.push(&record) {
                unheard.fetch_add(count as u64, Ordering::Relaxed);
            }
        }
    }
}

/// The DPU's end of a program's reports.
#[derive(Debug)]
pub struct Hearing(Source);

#[derive(Debug)]
enum Source {
    /// A program of this process.
    Near(Arc<List>, Arc<Acks>),
    /// Another process, which may have written anything.
    Far(Box<Submissions>),
}

impl Hearing {
    /// Creates the end of another process's reports, through this ring.
    #[must_use]
    pub fn far(words: Submissions) -> Self {
        Self(Source::Far(Box::new(words)))
    }

    /// Moves all reports, or as many as fit, into empty lists. Returns the number of reports without room so far.
    ///
    /// # Errors
    /// [`Broken`] if another process wrote an invalid report.
    pub(super) fn take(&mut self, into: &mut Reports) -> Result<u64, Broken> {
        let words = match &mut self.0 {
            Source::Near(list, _) => return Ok(list.take(into)),
            Source::Far(words) => words,
        };
        let mut buf = [0; WORD_MAX];
        while into.said.len() + into.dropped.len() + DROPS_MAX < TOLD_MAX
            && let Some(len) = words.pop(&mut buf)?
        {
            let word = Word::parse(&buf[..len]).ok_or(Broken)?;
            into.said.push(word.told);
            into.dropped.extend(word.dropped());
        }
        words.release();
        Ok(0)
    }

    /// Returns the last change up to which far memory has all.
    pub(super) fn through(&self) -> Change {
        match &self.0 {
            Source::Near(_, acks) => acks.through(),
            Source::Far(words) => Change(words.mark()),
        }
    }
}

/// A program's side of the reports. Clones belong to the same program.
#[derive(Clone, Debug)]
pub struct Reporter {
    changes: Arc<Changes>,
    acks: Arc<Acks>,
    way: Arc<Channel>,
    tap: Tap,
    secret: KeySecret,
}

impl Reporter {
    /// Creates the side of a program with `floors` floors, whose changes continue after `after`: 0, or at least the
    /// versions of an earlier run's records.
    #[must_use]
    pub fn new(tap: Tap, secret: KeySecret, floors: NonZeroU32, after: Change) -> Self {
        let (changes, acks) = (Arc::new(Changes::new(floors, after)), Arc::new(Acks::new(after)));
        Self { changes, acks, way: Arc::new(Channel::Near(Arc::default())), tap, secret }
    }

    /// Sends the reports of this program through `line` from now on. Its changes and floors continue.
    pub fn by(self, tap: Tap, line: Line) -> Self {
        line.raise_mark(self.acks.through().0);
        Self { way: Arc::new(Channel::Far { line, unheard: AtomicU64::new(0) }), tap, ..self }
    }

    /// Numbers a change or removal of a record; the number goes into the record ([`Change::onto`]). Call this before
    /// the program gives up its own copy, and before it sends.
    #[must_use = "the record carries it, and its end is told by `acknowledged`"]
    pub fn change(&self, key: &[u8], copy: Copy) -> Change {
        let key = self.secret.id(key);
        let change = self.changes.change(key);
        self.way.say(Report::Changes { key, copy, seen: self.tap.executed_through() });
        change
    }

    /// Reports that far memory has the change, or never will because it was refused.
    pub fn acknowledged(&self, change: Change) {
        self.acks.add(change);
        if let Channel::Far { line, .. } = &*self.way {
            line.raise_mark(self.acks.through().0);
        }
    }

    /// Reports that the program reads a record itself, because it was not in the zone.
    pub fn asks(&self, key: &[u8]) {
        self.way.say(Report::Asks(self.secret.id(key)));
    }

    /// Reports that the program has the record that it read; call this before it uses the record.
    pub fn reads(&self, key: &[u8], found: bool) {
        self.way.say(Report::Reads { key: self.secret.id(key), found });
    }

    /// Reports that the program dropped an item that is unchanged in far memory.
    pub fn drops(&self, key: &[u8]) {
        self.drops_all([key]);
    }

    /// Reports several dropped items at once, which costs less per item. Call this before the program reports the
    /// request for which it dropped them as executed.
    pub fn drops_all<'k>(&self, keys: impl IntoIterator<Item = &'k [u8]>) {
        let seen = self.tap.executed_through();
        self.way.drops(seen, keys.into_iter().map(|key| self.secret.id(key)));
    }

    /// Returns true if an item of this key with this stamp may be taken. Call this after the program has looked into
    /// its own memory.
    #[must_use]
    pub fn good(&self, key: &[u8], stamp: Change) -> bool {
        stamp >= self.changes.floor(self.secret.id(key))
    }

    /// Returns the last change up to which far memory has all.
    #[must_use]
    pub fn acknowledged_through(&self) -> Change {
        self.acks.through()
    }

    /// Returns false if the DPU process has ended, as far as this process knows: then no item is taken from its zone.
    #[must_use]
    pub fn is_heard(&self) -> bool {
        match &*self.way {
            Channel::Near(_) => true,
            Channel::Far { line, .. } => !line.is_over(),
        }
    }

    /// Returns the number of reports without room at a DPU process.
    #[must_use]
    pub fn unheard(&self) -> u64 {
        match &*self.way {
            Channel::Near(list) => lock(&list.told).unheard,
            Channel::Far { unheard, .. } => unheard.load(Ordering::Relaxed),
        }
    }

    /// Returns the other end, for a DPU in this process.
    ///
    /// # Errors
    /// [`OpenError::Setting`] if the program's DPU is another process: only that process gets the reports.
    pub(super) fn hearing(&self) -> Result<Hearing, OpenError> {
        match &*self.way {
            Channel::Near(list) => Ok(Hearing(Source::Near(Arc::clone(list), Arc::clone(&self.acks)))),
            Channel::Far { .. } => Err(OpenError::Setting {
                setting: "a driver's Reporter",
                value: "a Reporter whose reports go to a DPU in another process".into(),
                remedy: "use `Reporter::new` for a driver in this process, or leave prefetching to that DPU"
                    .into(),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tap::tap;
    use super::*;
    use farmem_dpu::changes::FLOORS;

    /// Drops keep their place among the reports. Reports without room are counted, of any kind. After the list was
    /// taken, reports have room again.
    #[test]
    fn reports_are_ordered_and_bounded() {
        let secret = KeySecret([1, 2]);
        let (tap, _watch) = tap(1 << 10, secret);
        let beside = Reporter::new(tap, secret, FLOORS, Change(0));
        let key = |n: usize| (n as u64).to_le_bytes();
        let keys: Vec<[u8; 8]> = (0..TOLD_MAX).map(key).collect();
        let seen = Position::UNKNOWN;
        beside.drops_all(keys[..2].iter().map(|key| &key[..]));
        beside.drops(&keys[2]);
        beside.asks(&keys[3]);
        beside.drops(&keys[4]);
        let (mut list, mut talk) = (beside.hearing().unwrap(), Reports::default());
        assert_eq!(list.take(&mut talk), Ok(0));
        let asks = Report::Asks(KeyId(3));
        assert_eq!(talk.said, [Report::Drops { count: 3, seen }, asks, Report::Drops { count: 1, seen }]);
        assert_eq!(talk.dropped, [0, 1, 2, 4].map(KeyId));
        talk = Reports::default();
        beside.drops_all(keys.iter().map(|key| &key[..]));
        beside.asks(&keys[3]);
        beside.drops_all([]);
        assert_eq!(list.take(&mut talk), Ok(2));
        assert_eq!((talk.said.len(), talk.dropped.len()), (1, TOLD_MAX - 1));
        talk = Reports::default();
        beside.asks(&keys[3]);
        assert_eq!((list.take(&mut talk), talk.said), (Ok(2), vec![asks]));
    }
}
