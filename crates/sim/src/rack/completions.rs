//! Ends of operations, and whether they are valid.

use super::calls::AGAIN;
use super::tasks::{ExpectedFailure, Found, NOWHERE, Operation, Path, Task};
use super::{End, Rack};
use crate::campaign::Verdict;
use crate::checker::{Counter, Home, Loss, SlotId};
use farmem_control::api::{Overview, RackOverview};
use farmem_host::{Answer, Done, Failure};
use farmem_transport::rc;
use farmem_wire::{Status, VirtAddr};
use std::collections::BTreeSet;

/// Maximum number of rounds of final reads, and of reads in one round: enough for every possible slot,
/// several times.
const LOOKS_MAX: u32 = 200;
const LOOKS_AT_ONCE: usize = 128;
/// Length in bytes of one packet, and so of a write that executes as a whole or not at all.
const PMTU: usize = 1024;

impl Rack {
    /// Handles the operations that ended.
    pub(super) fn take_completions(&mut self) -> Result<(), End> {
        while let Some((host, done)) = self.world.take_done() {
            let Some(task) = self.tasks.remove(&done.ticket) else {
                return Err((
                    Verdict::Unsafe,
                    format!("operation {} ended at host {host}, again", done.ticket),
                ));
            };
            self.ended += 1;
            self.progress = self.world.now();
            let (ticket, result) = (done.ticket, done.result);
            self.world.journal_mut().line(|| format!("host {host} ends {ticket}: {result:?}"));
            self.judge(&task, &done).map_err(|why| {
                (Verdict::Unsafe, format!("operation {ticket}, {:?}: {result:?}: {why}", task.what))
            })?;
        }
        Ok(())
    }

    fn judge(&mut self, task: &Task, done: &Done) -> Result<(), String> {
        match task.what {
            Operation::Write { place, version, path, losses, list } => {
                let well = done.result.is_ok();
                if well && losses == self.model.home(place).losses {
                    if self.model.home(place).loss == Loss::Sure {
                        return Err("what was lost took it, and that was not told".to_owned());
                    }
                    self.model.holds(place, version);
                }
                if let Err(failure) = done.result
                    && path == Path::Line
                    && was_not_executed(failure)
                    && self.model.span(place).1 <= PMTU
                {
                    self.model.cannot_hold(place, version);
                }
                list.into_iter().for_each(|list| self.list_written(list, well));
                self.conclude(task, place, path, done.result)
            }
            Operation::Read { place, path, losses, last } => {
                // An answer may still describe memory that was lost meanwhile.
                let same = losses == self.model.home(place).losses;
                if done.result.is_ok() && same {
                    self.model.check(place, &done.buf)?;
                } else if done.result.is_ok() {
                    self.model.check_before(place, &done.buf)?;
                }
                if last && !(done.result.is_ok() && same) {
                    self.unread.insert((task.client, place));
                }
                self.conclude(task, place, path, done.result)
            }
            Operation::Count { counter, floor, compare, losses } => {
                self.counted(task, counter, floor, compare, losses, done.result)
            }
            Operation::ReadCounter { counter } => match done.result {
                Ok(_) => {
                    let bytes: [u8; 8] = done.buf.as_slice().try_into().map_err(|_| "no word")?;
                    self.counters[counter].check_end(u64::from_le_bytes(bytes))
                }
                Err(failure) => {
                    self.uncounted.insert(counter);
                    let Counter { addr, home, .. } = self.counters[counter];
                    let ended = self.may_fail(task, Path::Line, Some(home), failure);
                    self.note_loss(task, addr, Err(failure));
                    ended
                }
            },
            Operation::Rogue { place } => self.rogue_ended(place, done),
            Operation::Ping { node } => {
                self.clients[task.client].pinged.remove(&node);
                done.result.map_or_else(|failure| self.may_fail(task, Path::Line, None, failure), |_| Ok(()))
            }
            Operation::Find { list, expected } => self.found(task, list, expected, done),
            Operation::Add { ref way, limit } => self.added(task, way, limit, done),
            Operation::Forbidden { place, expected } => {
                place.into_iter().for_each(|place| self.release_forbidden(place));
                let home = place.map(|place| *self.model.home(place));
                self.refused_rightly(task, expected, home, done.result)
            }
        }
    }

    /// Ends an operation on a slot: the slot is free, unless a write of it may still execute.
    fn conclude(
        &mut self,
        task: &Task,
        place: SlotId,
        path: Path,
        result: Result<Answer, Failure>,
    ) -> Result<(), String> {
        let writes = matches!(task.what, Operation::Write { .. });
        match (result, path) {
            (Err(Failure::Connection(_) | Failure::Lost { .. }), Path::Line) if writes => {
                self.hold(task.client, place);
            }
            _ => self.model.release(place),
        }
        let home = *self.model.home(place);
        let addr = self.model.span(place).0;
        let ended = result.map_or_else(|failure| self.may_fail(task, path, Some(home), failure), |_| Ok(()));
        self.note_loss(task, addr, result);
        ended
    }

    /// Handles a refusal: if the bytes may be lost, their owner may accept the loss.
    fn note_loss(&mut self, task: &Task, addr: u64, result: Result<Answer, Failure>) {
        if let Err(Failure::Refused { status: Status::Lost, .. } | Failure::Lost { .. }) = result {
            self.told_lost += 1;
            self.accept_sometimes(
                addr,
                matches!(task.what, Operation::Read { last: true, .. } | Operation::ReadCounter { .. }),
            );
        }
    }

    /// Checks that a traversal may be refused at this pointer because of lost memory, whose owner may accept
    /// the loss.
    pub(super) fn stopped_at_loss(&mut self, task: &Task, addr: VirtAddr) -> Result<(), String> {
        if !self.home_of(addr.0).is_some_and(|home| home.lost_since(task.since)) {
            return Err(format!("{addr} is not lost"));
        }
        self.told_lost += 1;
        self.accept_sometimes(addr.0, false);
        Ok(())
    }

    /// Judges the failure of a permitted operation; `home` is the location of its memory.
    pub(super) fn may_fail(
        &mut self,
        task: &Task,
        path: Path,
        home: Option<Home>,
        failure: Failure,
    ) -> Result<(), String> {
        if path == Path::Line {
            return self.may_fail_on_line(task, home, failure);
        }
        match failure {
            Failure::NoAnswer if self.may_go_unanswered(task.since) => Ok(()),
            Failure::Refused { status: Status::Busy, .. } | Failure::QueueFull => Ok(()),
            Failure::Refused { status: Status::Lost, .. }
                if home.is_some_and(|home| home.lost_since(task.since)) =>
            {
                Ok(())
            }
            _ => Err("nothing explains this".to_owned()),
        }
    }

    /// Judges such a failure on a connection. A move of the bytes explains nothing, because the host follows
    /// them.
    fn may_fail_on_line(&mut self, task: &Task, home: Option<Home>, failure: Failure) -> Result<(), String> {
        let unanswered = self.may_go_unanswered(task.since);
        let moved = home.is_some_and(|home| home.moved_since(task.since));
        // A connection to a node that has restarted since is found to be broken on use.
        let (host, domain) = (self.clients[task.client].host, self.domain_of(task.client));
        let stale = self.nodes().any(|node| self.world.is_stale(host, domain, node));
        let spoiled = self.clients[task.client].orderly >= task.since;
        let right = match failure {
            Failure::QueueFull => true,
            Failure::Connection(rc::Failure::Flushed) => unanswered || stale || spoiled,
            Failure::Connection(rc::Failure::RetriesExceeded) => unanswered || stale,
            // Answered RNR for too long (PROTOCOL 7.38), or answered before and not there any more (PROTOCOL
            // 4.21).
            Failure::Connection(rc::Failure::RnrRetriesExceeded | rc::Failure::RemoteOperational) => {
                moved && unanswered
            }
            // The memory went and came back twice, or the control plane could not locate it.
            Failure::Connection(rc::Failure::RemoteAccess) => moved || self.was_out_of_control(task.since),
            Failure::Unreachable { .. } => {
                self.try_later(task.client);
                unanswered || self.was_out_of_control(task.since)
            }
            // Lost with its node (PROTOCOL 7.43).
            Failure::Lost { .. } => home.is_some_and(|home| home.lost_since(task.since)),
            _ => false,
        };
        if right { Ok(()) } else { Err(format!("nothing explains this, at {home:?}")) }
    }

    /// Handles an unreachable node: the program waits a little, and the operator checks the rack.
    fn try_later(&mut self, client: usize) {
        let client = &mut self.clients[client];
        client.not_before = self.world.now() + AGAIN;
        self.world.alarm(client.not_before);
        self.replace_gone();
    }

    fn counted(
        &mut self,
        task: &Task,
        counter: usize,
        floor: u64,
        compare: Option<u64>,
        losses: u32,
        result: Result<Answer, Failure>,
    ) -> Result<(), String> {
        let Counter { addr, home, .. } = self.counters[counter];
        let same = losses == home.losses;
        match result {
            // An answer of memory that was lost meanwhile says nothing about the new memory.
            Ok(_) if !same => Ok(()),
            Ok(Answer::Done { old }) => match compare {
                Some(compare) if compare != old => {
                    self.counters[counter].missed();
                    self.counters[counter].is_there()
                }
                _ => self.counters[counter].added(old, floor),
            },
            Ok(other) => Err(format!("an atomic answers {other:?}")),
            Err(failure) => {
                if was_not_executed(failure) && same {
                    self.counters[counter].missed();
                }
                let ended = self.may_fail(task, Path::Line, Some(home), failure);
                self.note_loss(task, addr, Err(failure));
                ended
            }
        }
    }

    fn found(&mut self, task: &Task, list: usize, expected: Found, done: &Done) -> Result<(), String> {
        self.release_list(list);
        let value = |from: usize| {
            done.buf.get(from..from + 8).and_then(|b| b.try_into().ok()).map(u64::from_le_bytes)
        };
        let right = match (done.result, expected) {
            // A traversal through memory whose loss was accepted may find anything in the zeros.
            _ if self.is_dead(list) => true,
            (Err(Failure::Refused { status: Status::Lost, addr }), _) if self.is_lost(list) => {
                return self.stopped_at_loss(task, addr);
            }
            (Ok(Answer::Traversed(t)), Found::Value(v, n)) => {
                t.returned && t.iterations == n && (value(8), value(16)) == (Some(1), Some(v))
            }
            (Ok(Answer::Traversed(t)), Found::Nothing(n)) => {
                t.returned && t.iterations == n && value(8) == Some(0)
            }
            (Ok(Answer::Traversed(t)), Found::Limit(at)) => !t.returned && t.cur_ptr == VirtAddr(at),
            // A domain that sends new programs too fast gets `Busy`, wherever the traversal was (PROTOCOL
            // 7.49).
            (Err(Failure::Refused { status, addr }), Found::Dangling) if status != Status::Busy => {
                (status, addr) == (Status::NotMapped, VirtAddr(NOWHERE))
            }
            (Err(failure), _) => return self.may_fail(task, Path::Switch, None, failure),
            (Ok(_), _) => false,
        };
        if right { Ok(()) } else { Err("the list says otherwise".to_owned()) }
    }

    fn refused_rightly(
        &mut self,
        task: &Task,
        expected: ExpectedFailure,
        home: Option<Home>,
        result: Result<Answer, Failure>,
    ) -> Result<(), String> {
        let Err(failure) = result else {
            return match expected {
                ExpectedFailure::Freed { base, allocations }
                    if self.unsure_allocation
                        || allocations != self.allocations
                        || !self.freed.contains(&base) =>
                {
                    Ok(())
                }
                _ => Err("it was allowed".to_owned()),
            };
        };
        match (expected, failure) {
            (ExpectedFailure::Refused(status), Failure::Refused { status: got, .. }) if got == status => {
                Ok(())
            }
            (ExpectedFailure::Refused(_), Failure::Refused { status: Status::Busy, .. }) => Ok(()),
            (
                ExpectedFailure::Freed { .. },
                Failure::Refused { status: Status::NotMapped | Status::NoPermission, .. },
            )
            | (
                ExpectedFailure::RefusedLocally,
                Failure::TooLong { .. } | Failure::NotConnected { .. } | Failure::Misaligned { .. },
            ) => Ok(()),
            (ExpectedFailure::BrokenByAccess, Failure::Connection(rc::Failure::RemoteAccess)) => Ok(()),
            (ExpectedFailure::BrokenByRequest, Failure::Connection(rc::Failure::InvalidRequest)) => {
                self.clients[task.client].orderly = self.world.now();
                Ok(())
            }
            (ExpectedFailure::BrokenByAccess | ExpectedFailure::BrokenByRequest, failure) => {
                self.may_fail(task, Path::Line, home, failure)
            }
            (ExpectedFailure::Refused(_) | ExpectedFailure::Freed { .. }, failure) => {
                self.may_fail(task, Path::Switch, None, failure)
            }
            (ExpectedFailure::RefusedLocally, _) => Err("the host should have known".to_owned()),
        }
    }

    /// Ends an operation whose host crashed: its outcome stays unknown.
    pub(super) fn abandon(&mut self, task: &Task) {
        self.ended += 1;
        match task.what {
            Operation::Write { place, path, list, .. } => {
                list.into_iter().for_each(|list| self.list_written(list, false));
                match path {
                    Path::Line => self.hold(task.client, place),
                    Path::Switch => self.model.release(place),
                }
            }
            Operation::Read { place, .. } => self.model.release(place),
            Operation::Forbidden { place: Some(place), .. } => self.release_forbidden(place),
            Operation::Find { list, .. } => self.release_list(list),
            Operation::Count { .. } | Operation::ReadCounter { .. } | Operation::Add { .. } => {}
            Operation::Ping { .. } | Operation::Rogue { .. } | Operation::Forbidden { place: None, .. } => {}
        }
    }

    fn release_forbidden(&mut self, place: SlotId) {
        let addr = self.model.span(place).0;
        self.world.network_mut().straighten(addr);
        self.model.release(place);
    }

    fn release_list(&mut self, list: usize) {
        self.lists[list].readers -= 1;
    }

    /// Reads every slot and every counter one last time, by the owner over its connection. A connection that
    /// died unnoticed is found by using it, so a read may fail and is repeated.
    pub(super) fn read_everything(&mut self) -> Result<(), End> {
        for (&base, vma) in &self.model.vmas {
            self.unread.extend((0..vma.slots()).map(|slot| (vma.owner, SlotId { base, slot })));
        }
        self.uncounted.extend(0..self.counters.len());
        let mut looks = 0;
        while !(self.unread.is_empty() && self.uncounted.is_empty()) {
            looks += 1;
            if looks > LOOKS_MAX {
                return Err((
                    Verdict::Stuck,
                    format!("{} slots cannot be read at the end", self.unread.len()),
                ));
            }
            self.look();
            if self.tasks.is_empty() {
                // A node that could not be reached is tried again a little later.
                self.wait(AGAIN);
            }
            while !self.is_at_rest() {
                self.step()?;
            }
        }
        Ok(())
    }

    /// Starts as many final reads as fit.
    fn look(&mut self) {
        let batch: Vec<(usize, SlotId)> = self.unread.iter().take(LOOKS_AT_ONCE).copied().collect();
        for (owner, place) in batch {
            if self.start_read(owner, place, false, true) {
                self.unread.remove(&(owner, place));
            }
        }
        for counter in std::mem::take(&mut self.uncounted) {
            let domain = counter / (self.counters.len() / super::DOMAINS);
            if !self.start_read_counter(domain, counter) {
                self.uncounted.insert(counter);
            }
        }
    }

    /// Checks that the control plane lists exactly the vmas of the programs (PROTOCOL 9.13).
    pub(super) fn compare_vmas(&mut self) -> Result<(), End> {
        let RackOverview { vmas, moved, .. } = self.call(Overview {})?;
        self.compare_homes(&moved).map_err(|why| (Verdict::Unsafe, why))?;
        let listed: BTreeSet<u64> = vmas.iter().map(|vma| vma.base).collect();
        let mut held: BTreeSet<u64> = self.model.vmas.keys().copied().collect();
        held.extend(self.rogue_vma);
        held.extend(self.counters.iter().map(|counter| counter.addr));
        if listed == held {
            return Ok(());
        }
        let difference: Vec<_> =
            listed.symmetric_difference(&held).map(|base| format!("{base:#x}")).collect();
        Err((Verdict::Unsafe, format!("the control plane and the programs disagree about {difference:?}")))
    }
}

/// Returns true if the failure means that nothing was executed, except for a part of a WRITE of several
/// packets.
const fn was_not_executed(failure: Failure) -> bool {
    matches!(
        failure,
        Failure::QueueFull | Failure::Unreachable { .. } | Failure::Connection(rc::Failure::RemoteAccess)
    )
}
