//! What a role has still to be told: a queue of numbered batches, one outstanding at a time (PROTOCOL 8.19).
//!
//! The head of a queue that is not held is *sent*: its bytes never change until it is answered, also across a restart of the
//! control plane, because a role that already applied it answers by number alone.

use crate::record::LoggedUpdate;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use farmem_wire::message::Updates;
use serde::{Deserialize, Serialize};

/// The updates for one role, from its join on.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Queue {
    pub(crate) reach: Reach,
    /// The number of the head; of the next batch when there is none.
    pub(crate) seq: u64,
    /// Updates added since the role fell silent.
    pub(crate) missed: u32,
    batches: VecDeque<Batch>,
    /// The head is new in this step and no frame with it has left. Never set between steps.
    #[serde(skip)]
    fresh: bool,
}

/// Whether a role can be waited for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Reach {
    /// It joins: it gets nothing before its join is answered, since only the answer tells it its endpoint.
    Held,
    /// It answers.
    Ready,
    /// It has not answered for long; the head is still sent, slowly.
    Silent,
}

/// Updates that travel in one message.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Batch {
    pub(crate) entries: Vec<Entry>,
    /// Their bytes.
    pub(crate) len: usize,
}

/// What became of a batch.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) applied: Vec<Entry>,
    pub(crate) refused: Option<Entry>,
    /// Behind the refused one, so not applied, and given up meanwhile.
    pub(crate) dropped: Vec<Entry>,
}

/// One update and what hangs on it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Entry {
    pub(crate) told: LoggedUpdate,
    /// What takes it back. `None`: it must not be refused.
    pub(crate) undo: Option<Vec<LoggedUpdate>>,
    /// The change it belongs to.
    pub(crate) change: Option<u64>,
    /// The change waits for its answer.
    pub(crate) waited: bool,
    /// The change was given up while this was on its way: if it is applied, it is taken back.
    pub(crate) withdrawn: bool,
}

impl Entry {
    /// An update that belongs to no change and must not be refused.
    pub(crate) const fn plain(told: LoggedUpdate) -> Self {
        Self { told, undo: None, change: None, waited: false, withdrawn: false }
    }
}

impl Queue {
    /// The queue of a role that joins, with all it must know.
    pub(crate) fn held(entries: impl IntoIterator<Item = Entry>) -> Self {
        let mut queue =
            Self { reach: Reach::Held, seq: 1, missed: 0, batches: VecDeque::new(), fresh: false };
        entries.into_iter().for_each(|entry| queue.push(entry));
        queue
    }

    /// The batch that is outstanding, if any.
    pub(crate) fn outstanding(&self) -> Option<&Batch> {
        if self.reach == Reach::Held { None } else { self.batches.front() }
    }

    pub(crate) fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.batches.iter().flat_map(|batch| &batch.entries)
    }

    /// Puts an update at the end, into the last batch if that has room and has not been sent.
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

    /// Takes the head's answer: `refused` is the index of the update that was refused. What was not applied and is still wanted is
    /// the next head.
    ///
    /// Answers `None` when nothing is outstanding or there is no such index.
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

    /// Puts updates before all others: what was applied and is not wanted must be gone before anything that was decided since. Only
    /// right behind [`Queue::answer`], when no head is on its way.
    pub(crate) fn push_front(&mut self, entries: Vec<Entry>) {
        assert!(!self.head_sent(), "nothing overtakes a batch that was sent");
        let mut ahead = Self::held(entries).batches;
        ahead.append(&mut self.batches);
        self.batches = ahead;
    }

    /// Gives up the updates of `change` that can be taken back: those not sent are removed, those on their way marked. Answers
    /// how many of the removed ones the change waited for.
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

    /// No change waits for this role any more.
    pub(crate) fn fall_silent(&mut self) {
        self.reach = Reach::Silent;
        self.missed = 0;
        self.batches.iter_mut().flat_map(|batch| &mut batch.entries).for_each(|entry| entry.waited = false);
    }

    /// The role's join was answered: its head goes out.
    pub(crate) fn release(&mut self) {
        self.reach = Reach::Ready;
        self.fresh = true;
    }

    /// The end of a step: whatever is at the head leaves now.
    pub(crate) fn settle(&mut self) {
        self.fresh = false;
    }

    fn head_sent(&self) -> bool {
        self.reach != Reach::Held && !self.fresh && !self.batches.is_empty()
    }

    /// What is wrong with this queue, if anything is.
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
    /// Appends the updates' bytes; answers how many updates.
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
