//! Queues of updates that a role has still to be told: numbered batches, one outstanding at a time (PROTOCOL
//! 8.19).
//!
//! The head of a queue that is not held is *sent*: its bytes never change until it is answered, even across a
//! restart of the control plane, because a role that already applied it answers by number alone.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use farmem_wire::message::{Update, Updates};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The updates for one role since its join.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Queue {
    pub(crate) reach: Reach,
    /// Number of the head, or of the next batch when there is none.
    pub(crate) seq: u64,
    /// Updates added since the role fell silent.
    pub(crate) missed: u32,
    batches: VecDeque<Batch>,
    /// True if the head is new in this step and no frame with it has left. Never set between steps.
    #[serde(skip)]
    fresh: bool,
}

/// Whether changes can wait for a role.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Reach {
    /// The role joins. It gets nothing before its join is answered, since only the answer tells it its
    /// endpoint.
    Held,
    /// The role answers.
    Ready,
    /// The role has not answered for long. The head is still sent, slowly.
    Silent,
}

/// Updates that travel in one message.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Batch {
    pub(crate) entries: Vec<Entry>,
    /// Length of the updates in bytes.
    pub(crate) len: usize,
}

/// Result of a batch.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) applied: Vec<Entry>,
    pub(crate) refused: Option<Entry>,
    /// Updates behind the refused one, so not applied, that were withdrawn meanwhile.
    pub(crate) dropped: Vec<Entry>,
}

/// One update and its bookkeeping.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Entry {
    pub(crate) told: LoggedUpdate,
    /// Updates that roll it back. `None` means that it must not be refused.
    pub(crate) undo: Option<Vec<LoggedUpdate>>,
    /// The change to which it belongs.
    pub(crate) change: Option<u64>,
    /// True if the change waits for its answer.
    pub(crate) waited: bool,
    /// True if the change was rolled back while this was in flight: if it is applied, it is rolled back.
    pub(crate) withdrawn: bool,
}

impl Entry {
    /// Creates an update that belongs to no change and must not be refused.
    pub(crate) const fn plain(told: LoggedUpdate) -> Self {
        Self { told, undo: None, change: None, waited: false, withdrawn: false }
    }
}

impl Queue {
    /// Creates the queue of a joining role, with everything it must know.
    pub(crate) fn held(entries: impl IntoIterator<Item = Entry>) -> Self {
        let mut queue =
            Self { reach: Reach::Held, seq: 1, missed: 0, batches: VecDeque::new(), fresh: false };
        entries.into_iter().for_each(|entry| queue.push(entry));
        queue
    }

    /// Returns the batch that is outstanding, if any.
    pub(crate) fn outstanding(&self) -> Option<&Batch> {
        if self.reach == Reach::Held { None } else { self.batches.front() }
    }

    pub(crate) fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.batches.iter().flat_map(|batch| &batch.entries)
    }

    /// Appends an update, to the last batch if that has room and has not been sent.
    pub(crate) fn push(&mut self, entry: Entry) {
        let len = encoded_len(&entry.told);
        let open = self.batches.len() > usize::from(self.head_sent());
        match self.batches.back_mut() {
            Some(last) if open && last.len + len <= Updates::BYTES_MAX => {
                last.entries.push(entry);
                last.len += len;
            }
            _ => {
                if self.batches.is_empty() {
                    self.fresh = true;
                }
                self.batches.push_back(Batch { entries: Vec::from([entry]), len });
            }
        }
        if self.reach == Reach::Silent {
            self.missed = self.missed.saturating_add(1);
        }
    }

    /// Handles the answer to the head. `refused` is the index of the refused update. Updates that were not
    /// applied and are still wanted become the next head.
    ///
    /// Returns `None` if nothing is outstanding or there is no such index.
    pub(crate) fn answer(&mut self, refused: Option<usize>) -> Option<Answer> {
        let count = self.outstanding()?.entries.len();
        if refused.is_some_and(|index| index >= count) {
            return None;
        }
        let mut applied = self.batches.pop_front()?.entries;
        let mut rest = refused.map_or_else(Vec::new, |index| applied.split_off(index)).into_iter();
        let refused = rest.next();
        let (dropped, rest): (Vec<Entry>, Vec<Entry>) = rest.partition(|entry| entry.withdrawn);
        self.seq += 1;
        self.missed = 0;
        self.fresh = true;
        self.reach = Reach::Ready;
        self.push_front(rest);
        Some(Answer { applied, refused, dropped })
    }

    /// Puts updates before all others: applied updates that are not wanted must be gone before anything
    /// decided since. Only allowed right after [`Queue::answer`], when no head is in flight.
    pub(crate) fn push_front(&mut self, entries: Vec<Entry>) {
        assert!(!self.head_sent(), "nothing overtakes a batch that was sent");
        let mut ahead = Self::held(entries).batches;
        ahead.append(&mut self.batches);
        self.batches = ahead;
    }

    /// Withdraws the updates of `change` that can be rolled back: unsent ones are removed, those in flight
    /// are marked. Returns for how many of the removed ones the change waited.
    pub(crate) fn withdraw(&mut self, change: u64) -> u32 {
        let skip = usize::from(self.head_sent());
        for entry in self.batches.iter_mut().take(skip).flat_map(|batch| &mut batch.entries) {
            entry.withdrawn |= entry.change == Some(change) && entry.undo.is_some();
        }
        let mut unwaited = 0;
        for batch in self.batches.iter_mut().skip(skip) {
            let before = batch.entries.len();
            batch.entries.retain(|entry| {
                let keep = entry.change != Some(change) || entry.undo.is_none();
                unwaited += u32::from(!keep && entry.waited);
                keep
            });
            if batch.entries.len() != before {
                batch.len = batch.entries.iter().map(|entry| encoded_len(&entry.told)).sum();
            }
        }
        self.batches.retain(|batch| !batch.entries.is_empty());
        unwaited
    }

    /// Marks the role as silent: no change waits for it any more.
    pub(crate) fn fall_silent(&mut self) {
        self.reach = Reach::Silent;
        self.missed = 0;
        self.batches.iter_mut().flat_map(|batch| &mut batch.entries).for_each(|entry| entry.waited = false);
    }

    /// Releases the queue after the role's join was answered: its head goes out.
    pub(crate) fn release(&mut self) {
        self.reach = Reach::Ready;
        self.fresh = true;
    }

    /// Ends a step: the head leaves now.
    pub(crate) fn settle(&mut self) {
        self.fresh = false;
    }

    fn head_sent(&self) -> bool {
        self.reach != Reach::Held && !self.fresh && !self.batches.is_empty()
    }

    /// Returns what is wrong with this queue, if anything is.
    pub(crate) fn fault(&self) -> Option<&'static str> {
        for batch in &self.batches {
            let len: usize = batch.entries.iter().map(|entry| encoded_len(&entry.told)).sum();
            if batch.entries.is_empty() || len != batch.len || len > Updates::BYTES_MAX {
                return Some("a batch is not empty, knows its length and fits a message");
            }
        }
        if self.seq == 0 || (self.reach == Reach::Held && self.seq != 1) {
            return Some("the first batch after a join is number 1");
        }
        if self.fresh {
            return Some("no head is fresh between steps");
        }
        None
    }
}

impl Batch {
    /// Appends the bytes of the updates and returns how many updates there are.
    pub(crate) fn emit(&self, bytes: &mut Vec<u8>) -> u16 {
        let mut count = 0;
        for entry in &self.entries {
            entry.told.0.emit(bytes);
            count += 1;
        }
        count
    }
}

fn encoded_len(told: &LoggedUpdate) -> usize {
    let mut bytes = Vec::new();
    told.0.emit(&mut bytes);
    bytes.len()
}

/// An update, kept as its bytes on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LoggedUpdate(pub(crate) Update);

impl Serialize for LoggedUpdate {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut bytes = Vec::new();
        self.0.emit(&mut bytes);
        bytes.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for LoggedUpdate {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let bytes = Vec::<u8>::deserialize(deserializer)?;
        let one = Updates::request(1, 1, &bytes).map_err(D::Error::custom)?;
        one.iter().next().map(Self).ok_or_else(|| D::Error::custom("an update"))
    }
}
