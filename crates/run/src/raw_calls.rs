//! System calls that processes make past libc, so past the preload library (`raw`). The pager decides each
//! call, and learns its effect.
//!
//! The pager lets calls of a process without far memory pass. For a process with far memory, the pager answers
//! as the library would, or the kernel makes the call. The kernel's list of mappings then shows the effect on
//! far memory. The pager reads the list before it next relies on its own view of these pages. Until then the
//! pages are *in doubt*. They keep their bytes, and their faults are served, because a call that the kernel
//! refuses changes nothing.

use super::spans::Kind;
use super::{Pager, errno};
use farmem_client::Error;
use farmem_uffd::remote::call::ELSEWHERE;
use farmem_uffd::remote::raw::{
    Listener, Notification, RawCall, Seen, Touched, Watched, is_pipe, may_change_mappings, opens_direct,
    process_of,
};
use farmem_uffd::remote::{Advised, advised, advised_shared, place};
use farmem_wire::message::PAGE_LEN;
use std::collections::VecDeque;
use std::ops::Range;

/// The state of calls past libc.
#[derive(Debug, Default)]
pub(super) struct RawCalls {
    listener: Option<Listener>,
    /// Threads whose call waits for a fork or a change of mappings by another thread of their process.
    waiting: VecDeque<Notification>,
}

/// Pages that a system call may have changed, not checked yet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Doubt {
    pages: Range<u64>,
    by: Caller,
    of: DoubtOf,
}

/// The state that a call in doubt may have changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum DoubtOf {
    /// The mapping.
    Contents,
    /// The access rights.
    Rights,
    /// The access rights, which the pager has noted as the call asks for them. Only a copy of the rights needs the check.
    NotedRights,
}

/// A thread that makes a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Caller {
    /// Its number in the pager's PID namespace.
    pub(super) here: u32,
    /// Its number in its own namespace, which faults carry.
    pub(super) own: u32,
}

/// Maximum number of threads with noted rights that are not checked.
const NOTED_MAX: usize = 64;

impl Doubt {
    /// Returns true if the call may have mapped something else.
    pub(super) fn is_of_contents(&self) -> bool {
        self.of == DoubtOf::Contents
    }

    /// Returns the calling thread, by its number in the pager's PID namespace.
    pub(super) const fn caller(&self) -> u32 {
        self.by.here
    }

    /// Returns true when the call has ended. `thread`, by its own number, makes another call.
    fn is_over(&self, thread: u32) -> bool {
        self.by.own == thread || !may_change_mappings(self.by.here)
    }
}

/// The decision on a system call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    GoOn,
    Done,
    Refused(u64),
    /// The call waits for another thread of the process.
    Wait,
}

impl Pager {
    /// Returns the parameters of the filter.
    #[must_use]
    pub fn watched(&self) -> Watched {
        let shared = self.sharing.as_ref().map(|sharing| {
            let (base, len) = sharing.shared_mapping().span();
            base.0..base.0 + len
        });
        let watched = Watched::new(self.base, shared);
        if self.statics.is_some() { watched.with_static(self.options.threshold) } else { watched }
    }

    /// Starts to answer the calls that the filter asks about.
    ///
    /// # Errors
    /// [`Error::System`] when the listener cannot be watched.
    pub fn watch(&mut self, listener: Listener) -> Result<(), Error> {
        let watched = self.acceptor.watch(&listener, super::Watch::Other(super::PAST_LIBC));
        watched
            .map_err(|e| Error::System { what: "system calls cannot be watched".into(), source: e.into() })?;
        self.raw_calls.listener = Some(listener);
        // What was asked while the program was being started is reported no more.
        self.asked();
        Ok(())
    }

    /// Answers all waiting threads.
    pub(super) fn asked(&mut self) {
        let Some(listener) = self.raw_calls.listener.take() else { return };
        while let Some(asked) = listener.receive() {
            self.answer(&listener, asked);
        }
        if listener.is_closed() {
            self.acceptor.forget(&listener);
        }
        self.raw_calls.listener = Some(listener);
    }

    /// Returns true when a call waits for another thread.
    pub(super) fn has_waiting_calls(&self) -> bool {
        !self.raw_calls.waiting.is_empty()
    }

    /// Answers the calls that waited for another thread.
    pub(super) fn asked_again(&mut self) {
        if !self.has_waiting_calls() {
            return;
        }
        let Some(listener) = self.raw_calls.listener.take() else { return };
        for asked in std::mem::take(&mut self.raw_calls.waiting) {
            self.answer(&listener, asked);
        }
        self.raw_calls.listener = Some(listener);
    }

    fn answer(&mut self, listener: &Listener, asked: Notification) {
        let Some(call) = asked.call else { return listener.let_proceed(&asked) };
        let caller = process_of(asked.thread);
        let process = self.with_memory_of(asked.thread);
        if !listener.is_waiting(&asked) {
            return;
        }
        let (leader, own) = caller.unwrap_or((asked.thread, asked.thread));
        let caller = Caller { here: asked.thread, own };
        if let Ok(memory) = process
            && self.statics.is_some()
            && self.answers_static((listener, &asked), memory, (leader, caller), call)
        {
            return self.remove_gone();
        }
        let verdict = match (call, process) {
            // A process without far memory may also write to another process.
            (RawCall::WriteTo { process }, _) => self.judge_write(process, own == asked.thread),
            (_, Ok(Some(key))) => {
                self.stats.past_libc += 1;
                self.judge(key, caller, call)
            }
            (_, Ok(None)) => Verdict::GoOn,
            // The pager cannot inspect the process, so it may have far memory.
            (_, Err(_)) => Verdict::Refused(errno::PERM),
        };
        self.give(listener, asked, verdict);
        self.remove_gone();
    }

    fn remove_gone(&mut self) {
        while let Some(key) = self.gone.pop() {
            self.remove_process(key);
        }
    }

    /// Gives a waiting thread its verdict.
    pub(super) fn give(&mut self, listener: &Listener, asked: Notification, verdict: Verdict) {
        match verdict {
            Verdict::GoOn => listener.let_proceed(&asked),
            Verdict::Done => listener.complete(&asked, 0),
            Verdict::Refused(errno) => {
                listener.fail(&asked, i32::try_from(errno).expect("a number of an error"));
            }
            Verdict::Wait => self.raw_calls.waiting.push_back(asked),
        }
    }

    /// Decides a call.
    pub(super) fn judge(&mut self, key: u32, caller: Caller, call: RawCall) -> Verdict {
        match call {
            RawCall::Map { first, len, .. } if call.replaces() => {
                self.judge_range(key, caller, (first, len), RawCall::Replace { first, len })
            }
            // The library makes these calls itself; others are of no effect on far memory.
            RawCall::Map { .. }
            | RawCall::Break { .. }
            | RawCall::Fork
            | RawCall::ForkByRecord
            | RawCall::Register { .. } => Verdict::GoOn,
            // `answer` has handled this call.
            RawCall::WriteTo { .. } => Verdict::Refused(errno::NOSYS),
            RawCall::NotHere { errno } => Verdict::Refused(u64::from(errno.unsigned_abs())),
            RawCall::SetDirect { descriptor } => {
                // On a pipe the flag means packet mode.
                if is_pipe(caller.here, descriptor) { Verdict::GoOn } else { Verdict::Refused(errno::INVAL) }
            }
            RawCall::OpenHow { first, len } => self.judge_open(key, caller.here, (first, len)),
            RawCall::Replace { first, len } => self.judge_range(key, caller, (first, len), call),
            RawCall::Protect { first, len, .. } => self.judge_range(key, caller, (first, len), call),
            RawCall::Advise { first, len, .. } => self.judge_range(key, caller, (first, len), call),
            RawCall::Never { first, len, .. } => self.judge_range(key, caller, (first, len), call),
            RawCall::Remap { first, len, new_len, target, .. } => {
                let old = self.judge_range(key, caller, (first, len.max(1)), call);
                let Some(target) = target.filter(|_| old == Verdict::GoOn) else { return old };
                self.judge_range(
                    key,
                    caller,
                    (target, new_len),
                    RawCall::Replace { first: target, len: new_len },
                )
            }
        }
    }

    /// Decides a write to a process whose pages are not pinned. A caller in another PID namespace may name
    /// another process.
    fn judge_write(&self, process: i32, counted_as_here: bool) -> Verdict {
        // No process has a negative number.
        let Ok(process) = u32::try_from(process) else { return Verdict::GoOn };
        match self.with_memory_of(process) {
            _ if !counted_as_here => Verdict::Refused(errno::NOSYS),
            Ok(None) => Verdict::GoOn,
            Ok(Some(_)) => Verdict::Refused(errno::NOSYS),
            Err(_) => Verdict::Refused(errno::PERM),
        }
    }

    /// Decides `openat2`, whose flags are in the caller's memory.
    fn judge_open(&self, key: u32, thread: u32, (first, len): (u64, u64)) -> Verdict {
        let process = &self.processes[&key];
        if process.remote.touched(first, len) != Touched::Nothing || self.shared_part(first, len) {
            // A read of the flags could wait for the pager itself.
            return Verdict::Refused(errno::NOSYS);
        }
        if opens_direct(thread, first) { Verdict::Refused(errno::INVAL) } else { Verdict::GoOn }
    }

    fn shared_part(&self, first: u64, len: u64) -> bool {
        self.sharing.as_ref().is_some_and(|sharing| {
            let (base, all) = sharing.shared_mapping().span();
            first < base.0 + all && first.saturating_add(len) > base.0
        })
    }

    fn judge_range(&mut self, key: u32, caller: Caller, (first, len): (u64, u64), call: RawCall) -> Verdict {
        if self.shared_part(first, len) {
            return match call {
                RawCall::Advise { advice, .. } if advised_shared(advice) == Advised::Nothing => Verdict::Done,
                _ => Verdict::Refused(errno::INVAL),
            };
        }
        let gate = place::gate(self.base) as u64;
        if first < gate + PAGE_LEN as u64 && first.saturating_add(len) > gate {
            return Verdict::Refused(errno::INVAL);
        }
        let process = &self.processes[&key];
        let (pages, whole) = match process.remote.touched(first, len) {
            Touched::Nothing => return Verdict::GoOn,
            Touched::Control => return Verdict::Refused(errno::INVAL),
            Touched::Far { pages, whole } => (pages, whole),
        };
        if process.forking.is_some_and(|forker| forker != caller.own) {
            return Verdict::Wait;
        }
        if !first.is_multiple_of(PAGE_LEN as u64) {
            return Verdict::Refused(errno::INVAL);
        }
        self.look_again(key, caller.own);
        // Mappings that the program made there itself belong to the kernel alone.
        let far = self.processes[&key].spans.within(pages.clone()).any(|(_, kind)| kind != Kind::Elsewhere);
        match call {
            RawCall::Advise { advice, .. } => self.judge_advice(key, pages, (whole, far), advice),
            RawCall::Never { errno, .. } if far => Verdict::Refused(u64::from(errno.unsigned_abs())),
            RawCall::Replace { .. } => self.doubt(key, Doubt { pages, by: caller, of: DoubtOf::Contents }),
            RawCall::Protect { keyed: true, .. } if far => Verdict::Refused(errno::INVAL),
            RawCall::Protect { .. } if self.used(key, pages.clone()) < pages.end => {
                Verdict::Refused(errno::NOMEM)
            }
            RawCall::Protect { .. } => self.doubt(key, Doubt { pages, by: caller, of: DoubtOf::Rights }),
            RawCall::Remap { len: 0, .. } if far => Verdict::Refused(errno::INVAL),
            RawCall::Remap { len, new_len, in_place, .. } if far => {
                if !in_place || new_len > len || new_len == 0 {
                    return Verdict::Refused(errno::NOMEM);
                }
                self.doubt(key, Doubt { pages, by: caller, of: DoubtOf::Contents })
            }
            _ => Verdict::GoOn,
        }
    }

    fn judge_advice(
        &mut self,
        key: u32,
        pages: Range<u64>,
        (whole, far): (bool, bool),
        advice: i32,
    ) -> Verdict {
        if let Advised::Inherit { inherited } = advised(advice) {
            return self.judge_inherit(key, pages, whole, inherited);
        }
        if !far {
            return Verdict::GoOn;
        }
        match advised(advice) {
            Advised::Nothing => Verdict::Done,
            Advised::System => Verdict::GoOn,
            Advised::Refused => Verdict::Refused(errno::INVAL),
            Advised::Inherit { .. } => unreachable!("judged above"),
            Advised::Drop { lazily } => {
                let alone = whole && !self.is_elsewhere(key, pages.clone());
                let used = self.used(key, pages.clone()) == pages.end;
                if lazily && !alone {
                    // The kernel would refuse the advice for far pages after it has changed other pages.
                    return Verdict::Refused(errno::INVAL);
                }
                self.drop_pages(key, pages);
                match (alone, used) {
                    (true, true) => Verdict::Done,
                    (true, false) => Verdict::Refused(errno::NOMEM),
                    // The kernel handles the rest; the far pages are discarded already.
                    (false, _) => Verdict::GoOn,
                }
            }
        }
    }

    /// Decides a fork advice. MADV_DONTFORK by the kernel changes nothing in far pages, but MADV_DOFORK must
    /// never reach them.
    fn judge_inherit(&mut self, key: u32, pages: Range<u64>, whole: bool, inherited: bool) -> Verdict {
        if self.is_all_elsewhere(key, pages.clone()) && (whole || !inherited) {
            return Verdict::GoOn;
        }
        if inherited && !whole {
            return Verdict::Refused(errno::INVAL);
        }
        match self.leave_to_children(key, pages, inherited) {
            Ok(()) if whole => Verdict::Done,
            Ok(()) | Err(ELSEWHERE) => Verdict::GoOn,
            Err(errno) => Verdict::Refused(errno),
        }
    }

    /// Lets the kernel make the call, and notes the pages for a later check. Refuses the call where a check is
    /// impossible.
    fn doubt(&mut self, key: u32, doubt: Doubt) -> Verdict {
        if self.seen(key).is_none() {
            return Verdict::Refused(errno::PERM);
        }
        let Some(process) = self.processes.get_mut(&key) else { return Verdict::GoOn };
        process.doubts.push(doubt.clone());
        // Pages that may become something else are watched first, so that the pager does not take them for
        // unwatched far memory.
        if doubt.is_of_contents() && !self.take_over_plain(key, doubt.pages) {
            return Verdict::Refused(errno::NOMEM);
        }
        Verdict::GoOn
    }

    /// Notes a change of rights that the kernel makes, and may refuse. The rights are checked before they are copied.
    pub(super) fn doubt_noted_rights(&mut self, key: u32, by: Caller, pages: Range<u64>) {
        let Some(process) = self.processes.get_mut(&key) else { return };
        let of = DoubtOf::NotedRights;
        match process.doubts.iter_mut().find(|doubt| (doubt.by, doubt.of) == (by, of)) {
            // The rights of pages in between are what the kernel shows, too.
            Some(doubt) => {
                doubt.pages = doubt.pages.start.min(pages.start)..doubt.pages.end.max(pages.end);
            }
            None => process.doubts.push(Doubt { pages, by, of }),
        }
        if process.doubts.len() > NOTED_MAX {
            self.check_doubts(key, by.own);
        }
    }

    /// Checks the pages in doubt, but for noted rights, which matter to few calls and come with many.
    pub(super) fn look_again(&mut self, key: u32, thread: u32) {
        let is_urgent = |doubt: &Doubt| doubt.of != DoubtOf::NotedRights;
        if self.processes.get(&key).is_some_and(|process| process.doubts.iter().any(is_urgent)) {
            self.check_doubts(key, thread);
        }
    }

    /// Checks the pages in doubt against the kernel's mappings, on behalf of a thread whose earlier calls have
    /// all ended. Calls of other threads may still be in progress, so their pages stay in doubt while nothing
    /// has changed.
    pub(super) fn check_doubts(&mut self, key: u32, thread: u32) {
        let Some(process) = self.processes.get(&key).filter(|process| !process.doubts.is_empty()) else {
            return;
        };
        // What has ended before the mappings are read shows in them.
        let over: Vec<bool> = process.doubts.iter().map(|doubt| doubt.is_over(thread)).collect();
        // The process has ended or runs another program; the pager notices that elsewhere.
        let Some(seen) = self.seen(key) else { return };
        let Some(process) = self.processes.get_mut(&key) else { return };
        for (doubt, is_over) in std::mem::take(&mut process.doubts).into_iter().zip(over) {
            let still = self.take_over(key, &doubt, &seen);
            if still
                && !is_over
                && let Some(process) = self.processes.get_mut(&key)
            {
                process.doubts.push(doubt);
            }
        }
    }

    /// Returns true if a call in progress may have mapped something else at one of the pages.
    pub(super) fn is_in_doubt(&self, key: u32, pages: &Range<u64>) -> bool {
        let overlaps = |doubt: &Doubt| doubt.pages.start < pages.end && pages.start < doubt.pages.end;
        self.processes[&key].doubts.iter().any(|doubt| doubt.is_of_contents() && overlaps(doubt))
    }

    /// Updates the state of pages in doubt from the kernel's mappings. Returns true when some are still mapped
    /// as before.
    fn take_over(&mut self, key: u32, doubt: &Doubt, seen: &[Seen]) -> bool {
        let pages = &doubt.pages;
        let (mut at, mut still) = (pages.start, false);
        for Seen { pages: there, protection } in seen {
            let (from, to) = (there.start.max(at), there.end.min(pages.end));
            if from >= to {
                continue;
            }
            self.replaced(key, at..from);
            (at, still) = (to, true);
            if doubt.is_of_contents() {
                continue;
            }
            self.change_far(key, from..to, |kind| kind.with_protection(*protection));
        }
        self.replaced(key, at..pages.end);
        still
    }

    /// Drops doubts about the access rights of pages that are mapped anew.
    pub(super) fn anew(&mut self, key: u32, pages: &Range<u64>) {
        let Some(process) = self.processes.get_mut(&key) else { return };
        for doubt in std::mem::take(&mut process.doubts) {
            let Range { start, end } = doubt.pages;
            if doubt.is_of_contents() || end <= pages.start || pages.end <= start {
                process.doubts.push(doubt);
                continue;
            }
            let parts = [start..pages.start.max(start), pages.end.min(end)..end];
            let left = parts.into_iter().filter(|part| !part.is_empty());
            process.doubts.extend(left.map(|pages| Doubt { pages, ..doubt.clone() }));
        }
    }

    /// Records that far memory has become something else.
    fn replaced(&mut self, key: u32, pages: Range<u64>) {
        if pages.is_empty() {
            return;
        }
        self.drop_pages(key, pages.clone());
        self.end_plain(key, pages.clone(), false);
        self.set_span(key, pages, Some(Kind::Elsewhere));
    }
}
