//! Programs without the preload library: static ones, and all of a run that intercepts system calls ([`InterceptedPrograms`]). The pager answers their
//! system calls in its place.
//!
//! Key types: [`Statics`], [`StaticProgram`]. A process gets far memory at the first mapping that becomes far: the thread that asks for it
//! makes the calls that the library makes (`injection`). From then on the thread of each call that changes mappings changes them itself, by
//! ptrace, after the pager has decided. A process that the pager cannot trace keeps its memory local, or has its call refused; it loses none.

mod changes;

use super::raw_calls::{Caller, Verdict};
use super::spans::{Kind, Spans};
use super::{Pager, Table, errno};
use farmem_client::Error;
use farmem_link::Clock;
use farmem_uffd::remote::call::{CONTROL_PAGES, Call, NO_MORE, resize};
use farmem_uffd::remote::raw::injection::{gate_page, is_static, new_memory, open_gate, pidfd_of};
use farmem_uffd::remote::raw::{
    Break, Listener, Notification, Outcome, RawCall, Touched, Tracee, break_of, is_pipe, opens_direct,
};
use farmem_uffd::remote::{Remote, place};
use farmem_wire::message::PAGE_LEN;
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;

/// The error number of a thread that has ended.
const SRCH: i32 = 3;

/// The static programs of a run.
#[derive(Debug)]
pub(super) struct Statics {
    served: InterceptedPrograms,
    /// Processes that have no far memory, because they could not be traced or had no room.
    local: BTreeSet<u32>,
    /// True once the user was told that far memory is used up.
    told_of_no_more: bool,
}

/// The state of a static program that has far memory.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct StaticProgram {
    /// The latest mapping that is not at its hint.
    not_as_hinted: u64,
    /// Number of such mappings that the program gave back at once, one after the other.
    given_back: u32,
    /// True while the pager cannot trace the program, as a line has said.
    is_untraceable: bool,
}

/// Number of mappings after which a program insists on its hints. Go gives 128 back, and then takes any address.
const INSISTS: u32 = 1024;
/// Bytes by which the break may grow. The memory is local, and holds what the kernel writes to in a fork's child.
const BREAK_MAX: u64 = 1 << 20;

/// Time that a fork waits for calls of other threads.
const FORK_DELAY_NS_MAX: u64 = 1_000_000_000;

/// A change of mappings that the thread makes itself.
#[derive(Clone, Copy, Debug)]
enum Change {
    Map {
        len: u64,
        protection: u64,
        hint: u64,
        unreserved: bool,
    },
    Renew {
        start: u64,
        len: u64,
        protection: u64,
        unreserved: bool,
    },
    Unmap {
        start: u64,
        len: u64,
    },
    Protect {
        start: u64,
        len: u64,
        protection: u64,
    },
    Remap {
        start: u64,
        len: u64,
        new_len: u64,
        how: u64,
    },
    MoveOut {
        start: u64,
        len: u64,
        new_len: u64,
        target: u64,
    },
    Fork,
    /// The memory becomes local.
    Register {
        start: u64,
        len: u64,
    },
}

/// The programs whose system calls the pager answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InterceptedPrograms {
    /// Static programs. The others have the preload library.
    Static,
    /// All programs. None has the preload library.
    All,
}

/// Access rights that `mprotect` accepts for anonymous memory, with PROT_SEM.
const KNOWN_RIGHTS: u64 = 0xf;
/// Pages of a thread's number, or of its record of restartable sequences.
const REGISTERED_MAX: u64 = 2;
const SYS_MPROTECT: i64 = 10;
const MREMAP_MAYMOVE: i32 = 1;
const MREMAP_FIXED: i32 = 2;
const MAP_NORESERVE: i32 = 0x4000;

impl Pager {
    /// Serves programs without the preload library, too, from the start of the program on.
    pub fn intercept_syscalls(&mut self, served: InterceptedPrograms) {
        self.statics = Some(Statics { served, local: BTreeSet::new(), told_of_no_more: false });
    }

    /// Returns true if the pager serves programs without the preload library.
    #[must_use]
    pub const fn intercepts_syscalls(&self) -> bool {
        self.statics.is_some()
    }

    /// Returns true for a process whose system calls the pager answers when its memory becomes far.
    fn may_serve(&self, process: u32) -> bool {
        // The thread of this process that starts the program is under the filter, too.
        self.statics.as_ref().is_some_and(|statics| match statics.served {
            InterceptedPrograms::Static => is_static(process),
            InterceptedPrograms::All => process != std::process::id(),
        })
    }

    /// Answers a call of a static program. Returns false for a call that is judged as any other.
    pub(super) fn answers_static(
        &mut self,
        (listener, asked): (&Listener, &Notification),
        memory: Option<u32>,
        (leader, caller): (u32, Caller),
        call: RawCall,
    ) -> bool {
        let is_served = memory.is_some_and(|key| self.processes[&key].static_program.is_some());
        if let RawCall::Break { to } = call
            && (is_served || (memory.is_none() && self.may_serve(leader)))
        {
            match break_of(leader) {
                Some(Break { start, end }) if to > start.saturating_add(BREAK_MAX) => {
                    listener.complete(asked, end.cast_signed());
                }
                _ => listener.let_proceed(asked),
            }
            return true;
        }
        match memory {
            Some(key) if is_served => {
                if call == RawCall::ForkByRecord {
                    self.give(listener, *asked, Verdict::Refused(errno::NOSYS));
                    return true;
                }
                if matches!(call, RawCall::Fork | RawCall::Remap { .. } | RawCall::Register { .. }) {
                    // The rights are copied.
                    self.check_doubts(key, caller.own);
                } else {
                    self.look_again(key, caller.own);
                }
                if self.advises_nothing(key, call) {
                    self.give(listener, *asked, Verdict::Refused(errno::NOMEM));
                    return true;
                }
                let Some(change) = self.change_of(key, call) else { return false };
                let verdict = match change {
                    Change::Fork => self.delay_fork(key, asked.arrival_ns),
                    Change::Protect { start, len, protection } => {
                        self.protect_at_once(key, caller, (start, len), protection)
                    }
                    _ => None,
                };
                match verdict {
                    Some(verdict) => self.give(listener, *asked, verdict),
                    None => self.make_change((listener, asked), (key, caller), change, call),
                }
                true
            }
            None if call.maps_far(self.options.threshold) => self.bring_in((listener, asked), leader),
            None => match self.judge_before_memory(leader, asked.thread, call) {
                Some(verdict) => {
                    self.give(listener, *asked, verdict);
                    true
                }
                None => false,
            },
            Some(_) => false,
        }
    }

    /// Decides what a static program may not have when its first mapping becomes far: rings, whose registered buffers are pinned, and files whose
    /// reads go past the page cache. `None` for other calls and programs.
    fn judge_before_memory(&self, leader: u32, thread: u32, call: RawCall) -> Option<Verdict> {
        let verdict = match call {
            RawCall::NotHere { errno } => Verdict::Refused(u64::from(errno.unsigned_abs())),
            RawCall::SetDirect { descriptor } if is_pipe(thread, descriptor) => return None,
            RawCall::SetDirect { .. } => Verdict::Refused(errno::INVAL),
            RawCall::OpenHow { first, .. } if opens_direct(thread, first) => Verdict::Refused(errno::INVAL),
            _ => return None,
        };
        let is_local = self.statics.as_ref().is_some_and(|statics| statics.local.contains(&leader));
        (!is_local && self.may_serve(leader)).then_some(verdict)
    }

    /// Gives a static program far memory. Returns false for a process that has none.
    fn bring_in(&mut self, (listener, asked): (&Listener, &Notification), leader: u32) -> bool {
        // A number may be another process's by now, which is tried again when the former one has far memory no more.
        let is_local = self.statics.as_ref().is_some_and(|statics| statics.local.contains(&leader));
        if is_local || !self.may_serve(leader) {
            return false;
        }
        // It runs another program now.
        let before = self.processes.iter().find(|(_, process)| process.pid == leader).map(|(&key, _)| key);
        if let Some(key) = before {
            self.holder_left(key);
        }
        self.reap_dead_processes();
        let tracee = match seize(listener, asked) {
            Ok(Some(tracee)) => tracee,
            Ok(None) => return true,
            Err(error) => {
                self.cannot_come_in(leader, &cannot_trace(asked.thread, &error), error);
                return false;
            }
        };
        // The thread stops before it sees this answer.
        listener.complete(asked, 0);
        if let Err(error) = self.bring_in_by(tracee, (leader, asked.thread)) {
            self.cannot_come_in(leader, &error.to_string(), error);
        }
        true
    }

    fn bring_in_by(&mut self, mut tracee: Tracee, (leader, thread): (u32, u32)) -> io::Result<()> {
        self.stop_of(&mut tracee)?;
        let gate = place::gate(self.base) as u64;
        let bases = [place::LOW, self.base];
        let made = (|| {
            open_gate(gate, &mut |number, arguments| self.inject(&mut tracee, number, arguments))?;
            tracee.write(gate, &gate_page())?;
            tracee.call_from(gate);
            let remote = new_memory(thread, gate, bases, &mut |number, arguments| {
                self.inject(&mut tracee, number, arguments)
            })?;
            let ended = pidfd_of(leader)?;
            let pages = remote.pages();
            let spans = Spans::new(CONTROL_PAGES as u64..pages, self.first_page(pages));
            self.add_static((leader, remote, ended), (spans, Table::new(pages), BTreeSet::new()))
        })();
        // The thread asks again, as a process with far memory or as one that stays local.
        tracee.release(Outcome::Again)?;
        made
    }

    fn add_static(
        &mut self,
        (process, remote, ended): (u32, Remote, OwnedFd),
        had: (Spans, Table, BTreeSet<u64>),
    ) -> io::Result<()> {
        let key = self.next;
        self.next += 1;
        let is_watched = self.watch_process(key, &remote, &ended);
        self.add_process(key, (process, remote, ended), had, Some(StaticProgram::default()));
        if is_watched { Ok(()) } else { Err(io::Error::other("the process cannot be watched")) }
    }

    /// Ends the run's program, whose memory cannot be far. The memory of another process stays local, as that of a program without far memory.
    fn cannot_come_in(&mut self, process: u32, why: &str, error: io::Error) {
        if error.raw_os_error() == Some(SRCH) {
            return; // it has ended
        }
        if let Some(statics) = &mut self.statics {
            statics.local.insert(process);
        }
        if !is_started_here(process) {
            return eprintln!("farmem: memory of process {process} stays local: {why}");
        }
        if let Ok(ended) = pidfd_of(process) {
            super::kill(&ended);
        }
        self.far.fail(Error::System {
            what: format!("the program cannot have far memory: {why}"),
            source: error,
        });
    }

    /// Returns the change that a call wants; `None` for a call that is judged as any other.
    fn change_of(&self, key: u32, call: RawCall) -> Option<Change> {
        let process = &self.processes[&key];
        let is_far = |first: u64, len: u64| match process.remote.touched(first, len) {
            Touched::Far { pages, whole } => {
                whole && !self.is_in_doubt(key, &pages) && !self.is_elsewhere(key, pages)
            }
            Touched::Nothing | Touched::Control => false,
        };
        match call {
            RawCall::Map { first, len, protection, flags } => {
                let unreserved = flags & MAP_NORESERVE != 0;
                let insists = process.static_program.is_some_and(|program| program.given_back >= INSISTS);
                if call.maps_far(self.options.threshold) && !(first != 0 && insists) {
                    Some(Change::Map { len, protection, hint: first, unreserved })
                } else if call.renews() && len > 0 && is_far(first, len) {
                    Some(Change::Renew { start: first, len, protection, unreserved })
                } else {
                    None
                }
            }
            RawCall::Replace { first, len } if len > 0 && is_far(first, len) => {
                Some(Change::Unmap { start: first, len })
            }
            RawCall::Protect { first, len, protection, keyed: false }
                if len > 0 && is_far(first, len) && protection & !KNOWN_RIGHTS == 0 =>
            {
                Some(Change::Protect { start: first, len, protection })
            }
            RawCall::Remap { first, len, new_len, flags, target, .. }
                if len > 0 && new_len > 0 && is_far(first, len) =>
            {
                let is_known = flags & !(MREMAP_MAYMOVE | MREMAP_FIXED) == 0;
                let may_move = flags & MREMAP_MAYMOVE != 0;
                let old = process.remote.range(first, len)?;
                let how = match target {
                    Some(target) if may_move && is_far(target, new_len) => target,
                    Some(target)
                        if may_move
                            && is_known
                            && target.is_multiple_of(PAGE_LEN as u64)
                            && process.remote.touched(target, new_len) == Touched::Nothing
                            && !self.pins.has_any(key, &old) =>
                    {
                        return Some(Change::MoveOut { start: first, len, new_len, target });
                    }
                    // Refused as any other.
                    Some(_) => return None,
                    None if may_move => resize::MAY_MOVE,
                    None => resize::IN_PLACE,
                };
                // While the kernel writes to the pages, the ordinary judgement refuses the call.
                let is_free = !self.pins.has_any(key, &old);
                (is_known && is_free).then_some(Change::Remap { start: first, len, new_len, how })
            }
            RawCall::Fork => Some(Change::Fork),
            RawCall::Register { first, len } => self.registration(key, (first, len)),
            _ => None,
        }
    }

    /// Returns the change of memory that the system is to write to when a thread cannot wait for a page; `None` for local memory, and for a call
    /// that the system refuses.
    fn registration(&self, key: u32, (first, len): (u64, u64)) -> Option<Change> {
        let Touched::Far { pages, .. } = self.processes[&key].remote.touched(first, len) else { return None };
        let is_small = pages.end - pages.start <= REGISTERED_MAX && !self.pins.has_any(key, &pages);
        let has_far = self.far_among(key, pages.clone()).next().is_some();
        let start = self.processes[&key].remote.address(pages.start);
        (is_small && has_far && !self.is_in_doubt(key, &pages))
            .then_some(Change::Register { start, len: (pages.end - pages.start) * PAGE_LEN as u64 })
    }

    /// Returns each part of far memory among the pages, and its rights.
    fn far_among(&self, key: u32, pages: Range<u64>) -> impl Iterator<Item = (Range<u64>, u64)> {
        self.processes[&key].spans.within(pages).filter_map(|(span, kind)| match kind {
            Kind::Far { protection, .. } => Some((span, protection)),
            Kind::Elsewhere | Kind::Moved => None,
        })
    }

    /// Returns true for advice about addresses of far memory that are not in use, which the system takes for mapped.
    fn advises_nothing(&self, key: u32, call: RawCall) -> bool {
        let RawCall::Advise { first, len, .. } = call else { return false };
        let process = &self.processes[&key];
        match process.remote.touched(first, len) {
            Touched::Far { pages, whole } => whole && len > 0 && process.spans.within(pages).next().is_none(),
            Touched::Nothing | Touched::Control => false,
        }
    }

    /// Lets a fork wait for the calls of other threads: a child must not get far memory where its parent has something else by now. Refuses
    /// the fork when a thread remains in its call. `None` lets the fork begin.
    fn delay_fork(&self, key: u32, arrival_ns: u64) -> Option<Verdict> {
        let process = &self.processes[&key];
        let doubt = process.doubts.iter().find(|doubt| doubt.is_of_contents())?;
        if Clock::boot_time_ns().saturating_sub(arrival_ns) < FORK_DELAY_NS_MAX {
            return Some(Verdict::Wait);
        }
        eprintln!(
            "farmem: refused: a fork of process {} (EAGAIN), because thread {} has begun a system call that changes far memory, and does not end it",
            process.pid,
            doubt.caller()
        );
        Some(Verdict::Refused(errno::AGAIN))
    }

    /// Has the system make an `mprotect` of memory that is all in use, after the pager has noted the rights: allocators make many.
    fn protect_at_once(
        &mut self,
        key: u32,
        caller: Caller,
        (start, len): (u64, u64),
        protection: u64,
    ) -> Option<Verdict> {
        let pages = self.processes[&key].remote.range(start, len)?;
        if self.used(key, pages.clone()) < pages.end {
            return None;
        }
        self.stats.past_libc += 1;
        match self.ask(key, caller.own, Call::Protect { start, len: whole(len), protection }) {
            Ok(_) => {
                self.doubt_noted_rights(key, caller, pages);
                Some(Verdict::GoOn)
            }
            Err(_) => Some(Verdict::Refused(errno::NOMEM)),
        }
    }

    fn make_change(
        &mut self,
        (listener, asked): (&Listener, &Notification),
        (key, caller): (u32, Caller),
        change: Change,
        call: RawCall,
    ) {
        self.stats.past_libc += 1;
        let mut tracee = match seize(listener, asked) {
            Ok(Some(tracee)) => tracee,
            Ok(None) => return,
            Err(error) => {
                let verdict = match change {
                    Change::Map { .. } => Verdict::GoOn,
                    Change::Fork => Verdict::Refused(errno::AGAIN),
                    _ => self.judge(key, caller, call),
                };
                if self.sets_untraceable(key, true) {
                    let process = self.processes[&key].pid;
                    let why = cannot_trace(asked.thread, &error);
                    eprintln!(
                        "farmem: process {process} has new mappings local, far ones do not grow (ENOMEM), and forks fail (EAGAIN), until it can be traced: {why}"
                    );
                }
                return self.give(listener, *asked, verdict);
            }
        };
        if self.sets_untraceable(key, false) {
            let process = self.processes[&key].pid;
            eprintln!(
                "farmem: process {process} can be traced again: its new mappings are far, and it may fork"
            );
        }
        listener.complete(asked, 0);
        let gate = place::gate(self.base) as u64;
        let made = self.stop_of(&mut tracee).and_then(|_| {
            // The filter lets calls from there pass.
            tracee.call_from(gate);
            self.change(&mut tracee, (key, caller.own), change)
        });
        let outcome = match made {
            // The system makes the call now.
            Ok(_) if matches!(change, Change::Register { .. }) => Outcome::Again,
            Ok(value) => Outcome::Returns(value.cast_signed()),
            Err(error) => match error.raw_os_error() {
                Some(errno) if error.kind() != io::ErrorKind::TimedOut => Outcome::Returns(-i64::from(errno)),
                _ => {
                    let process = self.processes.get(&key).map_or(asked.thread, |process| process.pid);
                    eprintln!(
                        "farmem: process {process} does not stop for a change of its far memory, and is killed"
                    );
                    return drop(tracee);
                }
            },
        };
        // A thread that has ended needs no answer.
        let _released = tracee.release(outcome);
    }

    /// Notes whether the pager can trace a program; returns true when that is new.
    fn sets_untraceable(&mut self, key: u32, is_untraceable: bool) -> bool {
        self.program_of(key).is_some_and(|program| {
            std::mem::replace(&mut program.is_untraceable, is_untraceable) != is_untraceable
        })
    }

    /// Changes the rights of a range of far memory in the program.
    fn protect_far(&mut self, tracee: &mut Tracee, (start, len): (u64, u64), rights: u64) -> io::Result<()> {
        self.inject(tracee, SYS_MPROTECT, [start, len, rights, 0, 0, 0]).map(drop)
    }

    /// Makes a call as the preload library would.
    fn ask(&mut self, key: u32, own: u32, call: Call) -> io::Result<u64> {
        // The process may end, and be removed, while its thread is stopped.
        if !self.processes.contains_key(&key) {
            return Err(error_of(errno::SRCH));
        }
        match self.carry_out(key, call, own) {
            Err(NO_MORE) => Err(self.no_more()),
            answer => answer.map_err(error_of),
        }
    }

    fn no_more(&mut self) -> io::Error {
        if let Some(statics) = &mut self.statics
            && !std::mem::replace(&mut statics.told_of_no_more, true)
        {
            eprintln!(
                "farmem: out of far memory: the program is told so (ENOMEM); without --rack, --far says how much there is"
            );
        }
        error_of(errno::NOMEM)
    }

    fn program_of(&mut self, key: u32) -> Option<&mut StaticProgram> {
        self.processes.get_mut(&key)?.static_program.as_mut()
    }
}

/// Rounds a length up to whole pages.
const fn whole(len: u64) -> u64 {
    len.saturating_add(PAGE_LEN as u64 - 1) / PAGE_LEN as u64 * PAGE_LEN as u64
}

fn error_of(status: u64) -> io::Error {
    let errno = i32::try_from(status).ok().filter(|errno| (1..4096).contains(errno));
    io::Error::from_raw_os_error(errno.unwrap_or(12))
}

/// Returns true for a process that this one has started.
fn is_started_here(process: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"));
    parent.and_then(|parent| parent.trim().parse().ok()) == Some(std::process::id())
}

/// Seizes a thread that waits for an answer; `None` if the thread has ended meanwhile, which needs none.
fn seize(listener: &Listener, asked: &Notification) -> io::Result<Option<Tracee>> {
    match Tracee::seize(asked.thread) {
        Ok(tracee) => Ok(Some(tracee)),
        // An end by another thread's `execve` is EPERM, too.
        Err(_) if !listener.is_waiting(asked) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns the reason why a thread cannot be traced, with the remedy.
fn cannot_trace(thread: u32, error: &io::Error) -> String {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let status = read(&format!("/proc/{thread}/status"));
    let tracer = status.lines().find_map(|line| line.strip_prefix("TracerPid:")).map_or("0", str::trim);
    if tracer != "0" {
        return format!(
            "process {tracer} traces it, and a program whose system calls farmem answers has far memory by being traced: run it without a debugger"
        );
    }
    let scope = read("/proc/sys/kernel/yama/ptrace_scope");
    match scope.trim() {
        "2" | "3" => format!(
            "this user may not trace it (kernel.yama.ptrace_scope is {}): `sysctl kernel.yama.ptrace_scope=1`, or run as root",
            scope.trim()
        ),
        _ => format!(
            "it cannot be traced ({error}): allow ptrace(2), in a container by CAP_SYS_PTRACE and a seccomp profile that lets it"
        ),
    }
}
