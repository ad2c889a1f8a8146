//! The calls of a process through a mailbox: allocation of addresses, and changes of allocated ones.

use super::spans::Kind;
use super::{Pager, errno};
use farmem_paging::private::Programs as _;
use farmem_uffd::remote::call::{Call, ELSEWHERE, NO_MORE, TARGET_ELSEWHERE, VALUES, doorbell, resize};
use farmem_wire::message::PAGE_LEN;
use std::ops::Range;

/// Logarithm of the largest alignment of a mapping that is not at its hint.
const ALIGNMENT_MAX: u32 = 30;

/// The result of a call: a value, or an error status.
type Answer = Result<u64, u64>;

impl Pager {
    /// Handles a write to a doorbell: executes the call, and lets the write pass.
    pub(super) fn doorbell_rung(&mut self, key: u32, page: u64, thread: u32) {
        let Some(process) = self.processes.get(&key) else { return };
        let Ok(page_number) = usize::try_from(page) else { return };
        let Some(mailbox) = page_number.checked_sub(1).map(|doorbell| doorbell / 2) else { return };
        let (number, call) = process.remote.call(mailbox);
        // A signal makes a thread repeat its write; the reply is in the mailbox already.
        if number != process.called[mailbox] && doorbell(mailbox, number) == page_number {
            let answer = match call {
                Some(
                    call @ (Call::Open { .. }
                    | Call::Hold { .. }
                    | Call::Truncate { .. }
                    | Call::Unlink { .. }),
                ) => self.call_for_object(key, mailbox, call),
                Some(Call::Pin { caller, pid, start, len }) => {
                    self.pin(key, (caller, pid), (start, len)).map(|[pin, bytes]| [pin, bytes, 0, 0])
                }
                Some(call) => self.carry_out(key, call, thread).map(|value| [value, 0, 0, 0]),
                None => Err(errno::INVAL),
            };
            let Some(process) = self.processes.get_mut(&key) else { return };
            process.called[mailbox] = number;
            let (status, values) = match answer {
                Ok(values) => (0, values),
                Err(status) => (status, [0; VALUES]),
            };
            process.remote.answer(mailbox, status, values);
            self.stats.calls += 1;
            let next = doorbell(mailbox, number.wrapping_add(1)) as u64;
            self.served(key, next, |remote| remote.write_protect(next..next + 1));
        }
        self.served(key, page, |remote| remote.allow(page..page + 1));
    }

    pub(super) fn carry_out(&mut self, key: u32, call: Call, thread: u32) -> Answer {
        self.look_again(key, thread);
        match call {
            Call::Map { len, protection, hint, unreserved } => {
                self.map(key, len, hint, Kind::Far { protection, inherited: true, reserved: !unreserved })
            }
            Call::Renew { start, len, protection, unreserved } => {
                let pages = self.range(key, start, len)?;
                let kind = Kind::Far { protection, inherited: true, reserved: !unreserved };
                self.promise(key, pages.clone(), |_| kind)?;
                self.drop_pages(key, pages.clone());
                self.anew(key, &pages);
                if self.is_elsewhere(key, pages.clone()) {
                    self.end_plain(key, pages.clone(), false);
                    self.set_span(key, pages, Some(Kind::Elsewhere));
                    return Err(ELSEWHERE);
                }
                self.set_span(key, pages, Some(kind));
                Ok(0)
            }
            Call::Unmap { start, len } => {
                let pages = self.range(key, start, len)?;
                self.drop_pages(key, pages.clone());
                self.anew(key, &pages);
                let is_elsewhere = self.is_elsewhere(key, pages.clone());
                self.end_plain(key, pages.clone(), !is_elsewhere);
                if is_elsewhere {
                    self.set_span(key, pages, Some(Kind::Elsewhere));
                    return Err(ELSEWHERE);
                }
                self.set_span(key, pages, None);
                Ok(0)
            }
            Call::Drop { start, len, lazily } => {
                let pages = self.range(key, start, len)?;
                if lazily && self.is_elsewhere(key, pages.clone()) {
                    return Err(if self.is_all_elsewhere(key, pages) { ELSEWHERE } else { errno::INVAL });
                }
                self.drop_pages(key, pages.clone());
                if self.is_elsewhere(key, pages.clone()) {
                    return Err(ELSEWHERE);
                }
                if self.used(key, pages.clone()) < pages.end { Err(errno::NOMEM) } else { Ok(0) }
            }
            Call::Protect { start, len, protection } => {
                let pages = self.range(key, start, len)?;
                let end = self.used(key, pages.clone());
                let protected = |kind| Kind::with_protection(kind, protection);
                self.promise(key, pages.start..end, protected)?;
                self.change_far(key, pages.start..end, protected);
                Ok((end - pages.start) * PAGE_LEN as u64)
            }
            Call::Inherit { start, len, inherited } => {
                let pages = self.range(key, start, len)?;
                self.leave_to_children(key, pages, inherited).map(|()| 0)
            }
            Call::Resize { start, len, new_len, how } => self.resize(key, (start, len), new_len, how),
            Call::Replace { start, len } => {
                let pages = self.range(key, start, len)?;
                self.drop_pages(key, pages.clone());
                self.end_plain(key, pages.clone(), false);
                self.set_span(key, pages, Some(Kind::Elsewhere));
                Ok(0)
            }
            Call::Mapped { start, len } => {
                let pages = self.range(key, start, len)?;
                Ok((self.used(key, pages.clone()) - pages.start) * PAGE_LEN as u64)
            }
            Call::Unpin { pin } => {
                self.pins.unpin(key, pin);
                Ok(0)
            }
            Call::Fork => self.snapshot(key, thread),
            Call::Forked => {
                self.forked(key);
                Ok(0)
            }
            Call::Pin { .. }
            | Call::Open { .. }
            | Call::Hold { .. }
            | Call::Truncate { .. }
            | Call::Unlink { .. } => unreachable!("a call with more values"),
        }
    }

    fn map(&mut self, key: u32, len: u64, hint: u64, kind: Kind) -> Answer {
        let count = len.div_ceil(PAGE_LEN as u64).max(1);
        self.may_promise(if kind.is_promised() { count } else { 0 })?;
        let first = self.place(key, count, hint).ok_or(errno::NOMEM)?;
        let address = self.processes[&key].remote.address(first);
        self.set_span(key, first..first + count, Some(kind));
        Ok(address)
    }

    /// Chooses free pages for a mapping: at the hint, if that is free far memory, else with the hint's
    /// alignment. Programs like mimalloc request an alignment in this way, and would give an unaligned mapping
    /// back.
    fn place(&self, key: u32, count: u64, hint: u64) -> Option<u64> {
        let process = &self.processes[&key];
        let (spans, page) = (&process.spans, PAGE_LEN as u64);
        if hint == 0 {
            return spans.gap(count);
        }
        // A longer range than the address space fits nowhere, and its length in bytes overflows.
        let (len, room) = (count.checked_mul(page)?, count.checked_next_power_of_two()?);
        let wanted = process.remote.range(hint, len).filter(|_| hint.is_multiple_of(page));
        if let Some(wanted) = wanted.filter(|wanted| spans.is_free(wanted.clone())) {
            return Some(wanted.start);
        }
        // The base of far memory is a multiple of the largest alignment. A mapping is never aligned to more
        // than its length.
        let bits = hint.trailing_zeros().min((room.checked_mul(page)?).trailing_zeros());
        let align = (1 << bits.min(ALIGNMENT_MAX)) / page;
        spans.aligned_gap(count, |at| at.next_multiple_of(align.max(1))).or_else(|| spans.gap(count))
    }

    /// Checks that the pages can become what `becomes` returns, with committed room for each.
    fn promise(&self, key: u32, pages: Range<u64>, becomes: impl Fn(Kind) -> Kind) -> Result<(), u64> {
        let spans = self.processes[&key].spans.within(pages);
        let more = spans.filter(|(_, kind)| !kind.is_promised() && becomes(*kind).is_promised());
        self.may_promise(more.map(|(span, _)| span.end - span.start).sum())
    }

    /// Checks that far memory has room for further committed pages. So the program gets ENOMEM when it requests
    /// memory, instead of SIGBUS when it accesses the memory. Pages that a fork's child shares with its parent
    /// count once.
    fn may_promise(&self, pages: u64) -> Result<(), u64> {
        if pages == 0 {
            return Ok(());
        }
        let Some(most) = self.options.far_limit else {
            // Other users share this rack. After a refusal by the rack, only free slots of this pager are
            // available.
            let free = self.private.free_slots();
            return if self.far.no_more.is_some() && pages > free { Err(NO_MORE) } else { Ok(()) };
        };
        let own = |process: &super::Process| process.spans.promised().saturating_sub(process.inherited);
        let promised: u64 = self.processes.values().map(own).sum();
        if promised + pages > most / PAGE_LEN as u64 { Err(NO_MORE) } else { Ok(()) }
    }

    /// Ends the unwatched state of pages that are no longer far memory. The pages are dropped, and something
    /// else may be mapped there already.
    pub(super) fn end_plain(&mut self, key: u32, pages: Range<u64>, is_ours: bool) {
        let (private, mut outside) = self.parts();
        private.unmap(key, pages, is_ours, &mut outside);
    }

    /// Watches pages again, before a change that the kernel alone cannot handle. Returns false on failure.
    pub(super) fn take_over_plain(&mut self, key: u32, pages: Range<u64>) -> bool {
        let (private, mut outside) = self.parts();
        private.take_over(key, pages, &mut outside)
    }

    /// Moves or resizes a mapping. The low bits of the value are the access rights.
    fn resize(&mut self, key: u32, (start, len): (u64, u64), new_len: u64, how: u64) -> Answer {
        let old = self.range(key, start, len)?;
        let process = &self.processes[&key];
        let (span, kind, protection) = match process.spans.at(old.start) {
            Some((span, kind @ Kind::Far { protection, .. })) => (span, kind, protection),
            Some((_, Kind::Elsewhere)) => return Err(ELSEWHERE),
            Some((_, Kind::Moved)) | None => return Err(errno::FAULT),
        };
        if span.end < old.end || new_len == 0 {
            return Err(errno::FAULT);
        }
        let count = new_len.div_ceil(PAGE_LEN as u64);
        let end = old.start + count;
        let value = |pager: &Self, page: u64| Ok(pager.processes[&key].remote.address(page) | protection);
        if how < resize::FIXED_MIN {
            if end <= old.end {
                return value(self, old.start);
            }
            let fits = end <= process.remote.pages() && process.spans.within(old.end..end).next().is_none();
            if fits {
                self.may_promise(if kind.is_promised() { end - old.end } else { 0 })?;
                self.set_span(key, old.end..end, Some(kind));
                return value(self, old.start);
            }
            if how == resize::IN_PLACE {
                return Err(errno::NOMEM);
            }
        }
        if self.pins.has_any(key, &old) {
            return Err(errno::AGAIN);
        }
        let process = &self.processes[&key];
        // Both ranges exist for a moment, but the old one needs no room any more.
        self.may_promise(if kind.is_promised() { count.saturating_sub(old.end - old.start) } else { 0 })?;
        let first = if how < resize::FIXED_MIN {
            process.spans.gap(count).ok_or(errno::NOMEM)?
        } else {
            let new = self.range(key, how, new_len)?;
            if new.start < old.end && old.start < new.end {
                return Err(errno::INVAL);
            }
            if self.is_elsewhere(key, new.clone()) {
                return Err(TARGET_ELSEWHERE);
            }
            new.start
        };
        if !self.take_over_plain(key, old.clone()) || !self.take_over_plain(key, first..first + count) {
            return Err(errno::NOMEM);
        }
        // From here on, a writing thread waits until the old addresses are unmapped.
        let (private, mut outside) = self.parts();
        private.write_protect(key, old.clone(), &mut outside);
        if self.gone.contains(&key) {
            return Err(errno::FAULT);
        }
        if how >= resize::FIXED_MIN {
            self.drop_pages(key, first..first + count);
        }
        self.set_span(key, first..first + count, Some(kind));
        let (private, mut outside) = self.parts();
        private.rename(key, old.start..old.end.min(old.start + count), first, &mut outside);
        self.set_span(key, old.clone(), Some(Kind::Moved));
        // The old addresses become free when the process reports that none of its threads can access them.
        self.drop_pages(key, old);
        value(self, first)
    }

    /// Discards the pages' bytes.
    pub(super) fn drop_pages(&mut self, key: u32, pages: Range<u64>) {
        if self.private.is_anywhere(key, pages.clone()) {
            self.forget(key, pages.clone());
            self.processes[&key].remote.discard(pages.clone());
        }
        // A thread that waits for one of the pages retries its access, and finds the new state.
        self.parts().1.wake(key, pages);
    }

    fn range(&self, key: u32, start: u64, len: u64) -> Result<Range<u64>, u64> {
        let range = self.processes[&key].remote.range(start, len);
        range.filter(|range| !range.is_empty()).ok_or(errno::INVAL)
    }

    pub(super) fn set_span(&mut self, key: u32, pages: Range<u64>, kind: Option<Kind>) {
        self.processes.get_mut(&key).expect("it called a moment ago").spans.set(pages, kind);
    }

    /// Applies `change` to the kind of all far memory among the pages.
    pub(super) fn change_far(&mut self, key: u32, pages: Range<u64>, change: impl Fn(Kind) -> Kind) {
        let far = self.processes[&key].spans.within(pages).filter_map(|(span, kind)| match kind {
            Kind::Far { .. } => Some((span, change(kind))),
            _ => None,
        });
        for (span, kind) in far.collect::<Vec<_>>() {
            self.set_span(key, span, Some(kind));
        }
    }

    /// Returns the first of the pages that is not in use, or the page behind them.
    pub(super) fn used(&self, key: u32, pages: Range<u64>) -> u64 {
        let spans = self.processes[&key].spans.within(pages.clone());
        spans.fold(pages.start, |end, (span, _)| if span.start == end { span.end } else { end })
    }

    pub(super) fn is_elsewhere(&self, key: u32, pages: Range<u64>) -> bool {
        self.processes[&key].spans.within(pages).any(|(_, kind)| kind == Kind::Elsewhere)
    }

    pub(super) fn is_all_elsewhere(&self, key: u32, pages: Range<u64>) -> bool {
        let spans = self.processes[&key].spans.within(pages.clone());
        let elsewhere = spans.filter(|(_, kind)| *kind == Kind::Elsewhere);
        elsewhere.map(|(span, _)| span.end - span.start).sum::<u64>() == pages.end - pages.start
    }
}
