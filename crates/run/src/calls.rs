//! What a process asks for through a mailbox: addresses, and what is to become of those it has.

use super::spans::Kind;
use super::{Pager, errno};
use farmem_paging::private::Programs as _;
use farmem_uffd::remote::call::{Call, ELSEWHERE, NO_MORE, TARGET_ELSEWHERE, VALUES, doorbell, resize};
use farmem_wire::message::PAGE_LEN;
use std::ops::Range;

/// Two to the power of this is the largest alignment of a mapping that is not where the program would have it.
const ALIGNMENT_MAX: u32 = 30;

/// What a call answers: a value, or a status that is none.
type Answer = Result<u64, u64>;

impl Pager {
    /// A thread writes to a doorbell: answers its call, and lets the write pass.
    pub(super) fn rang(&mut self, key: u32, page: u64, thread: u32) {
        let Some(process) = self.processes.get(&key) else { return };
        let Ok(page_number) = usize::try_from(page) else { return };
        let Some(mailbox) = page_number.checked_sub(1).map(|doorbell| doorbell / 2) else { return };
        let (number, call) = process.remote.call(mailbox);
        // A signal makes a thread ring again; then it is answered already.
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

    fn carry_out(&mut self, key: u32, call: Call, thread: u32) -> Answer {
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

    /// Free pages for a mapping: where the program would have it, if that is far memory; else as aligned as that place is. A program that
    /// asks for an alignment in this way, as mimalloc does, would give up what is not aligned.
    fn place(&self, key: u32, count: u64, hint: u64) -> Option<u64> {
        let process = &self.processes[&key];
        let (spans, page) = (&process.spans, PAGE_LEN as u64);
        if hint == 0 {
            return spans.gap(count);
        }
        // More than there are addresses is nowhere, and its bytes have no number.
        let (len, room) = (count.checked_mul(page)?, count.checked_next_power_of_two()?);
        let wanted = process.remote.range(hint, len).filter(|_| hint.is_multiple_of(page));
        if let Some(wanted) = wanted.filter(|wanted| spans.is_free(wanted.clone())) {
            return Some(wanted.start);
        }
        // The base of far memory is a multiple of the largest alignment. Nothing is aligned more than it is long.
        let bits = hint.trailing_zeros().min((room.checked_mul(page)?).trailing_zeros());
        let align = (1 << bits.min(ALIGNMENT_MAX)) / page;
        spans.aligned_gap(count, |at| at.next_multiple_of(align.max(1))).or_else(|| spans.gap(count))
    }

    /// Whether pages of far memory may be what `becomes` makes of them, each with the room that they were promised.
    fn promise(&self, key: u32, pages: Range<u64>, becomes: impl Fn(Kind) -> Kind) -> Result<(), u64> {
        let spans = self.processes[&key].spans.within(pages);
        let more = spans.filter(|(_, kind)| !kind.is_promised() && becomes(*kind).is_promised());
        self.may_promise(more.map(|(span, _)| span.end - span.start).sum())
    }

    /// Refuses to promise more pages than there is far memory for: it is said when memory is asked for, and not by a SIGBUS when it is
    /// touched. What a fork's child has from its parent is not counted twice.
    fn may_promise(&self, pages: u64) -> Result<(), u64> {
        if pages == 0 {
            return Ok(());
        }
        let Some(most) = self.options.far_limit else {
            // A rack that others use, too: it has said that it has no more, and what it gave is in use.
            let free = self.private.free_slots();
            return if self.far.no_more.is_some() && pages > free { Err(NO_MORE) } else { Ok(()) };
        };
        let own = |process: &super::Process| process.spans.promised().saturating_sub(process.inherited);
        let promised: u64 = self.processes.values().map(own).sum();
        if promised + pages > most / PAGE_LEN as u64 { Err(NO_MORE) } else { Ok(()) }
    }

    /// The pages are not far memory any more. They were dropped; something else may be there by now.
    pub(super) fn end_plain(&mut self, key: u32, pages: Range<u64>, is_ours: bool) {
        let (private, mut outside) = self.parts();
        private.unmap(key, pages, is_ours, &mut outside);
    }

    /// What the pages are is about to change in a way that the system alone cannot be left with.
    pub(super) fn take_over_plain(&mut self, key: u32, pages: Range<u64>) -> bool {
        let (private, mut outside) = self.parts();
        private.take_over(key, pages, &mut outside)
    }

    /// Bytes at more, fewer or other addresses. The value's low bits are the protection.
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
        // Both places for a moment, of which the old one needs no room any more.
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
        // A thread that writes waits from here on, until the old addresses are unmapped.
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
        // The old addresses are free once the process has said that no thread of it reaches them.
        self.drop_pages(key, old);
        value(self, first)
    }

    /// The pages' bytes are not needed any more.
    pub(super) fn drop_pages(&mut self, key: u32, pages: Range<u64>) {
        if self.private.is_anywhere(key, pages.clone()) {
            self.forget(key, pages.clone());
            self.processes[&key].remote.discard(pages.clone());
        }
        // A thread that waited for one of them tries again, and finds what is there now.
        self.parts().1.wake(key, pages);
    }

    fn range(&self, key: u32, start: u64, len: u64) -> Result<Range<u64>, u64> {
        let range = self.processes[&key].remote.range(start, len);
        range.filter(|range| !range.is_empty()).ok_or(errno::INVAL)
    }

    pub(super) fn set_span(&mut self, key: u32, pages: Range<u64>, kind: Option<Kind>) {
        self.processes.get_mut(&key).expect("it called a moment ago").spans.set(pages, kind);
    }

    /// Has far memory among the pages be what `change` makes of its protection and of whether children have it.
    pub(super) fn change_far(&mut self, key: u32, pages: Range<u64>, change: impl Fn(Kind) -> Kind) {
        let far = self.processes[&key].spans.within(pages).filter_map(|(span, kind)| match kind {
            Kind::Far { .. } => Some((span, change(kind))),
            _ => None,
        });
        for (span, kind) in far.collect::<Vec<_>>() {
            self.set_span(key, span, Some(kind));
        }
    }

    /// The first of the pages that is not in use, or the one behind them.
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
