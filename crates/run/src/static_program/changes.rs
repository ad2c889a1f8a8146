//! Changes of a static program's mappings, each by calls of the thread that wants it.

use super::super::far::bytes;
use super::super::tracing::value_of;
use super::super::{Pager, errno, kill};
use super::{Change, SRCH, SYS_MPROTECT, StaticProgram, error_of, whole};
use farmem_uffd::remote::call::{Call, ELSEWHERE, NO_MORE, resize};
use farmem_uffd::remote::place;
use farmem_uffd::remote::raw::injection::{child_memory, copy_lists, pidfd_of};
use farmem_uffd::remote::raw::{Outcome, Stop, Touched, Tracee};
use farmem_wire::message::PAGE_LEN;
use std::io;

const NO_RIGHTS: u64 = 0;
const PROT_READ: u64 = 1;
const READ_WRITE: u64 = 3;
/// MAP_PRIVATE, MAP_FIXED and MAP_ANONYMOUS.
const FIXED: u64 = 0x32;
/// MAP_PRIVATE and MAP_ANONYMOUS.
const PRIVATE: u64 = 0x22;
/// MREMAP_MAYMOVE and MREMAP_FIXED.
const MAY_MOVE_TO: u64 = 3;
const SYS_MMAP: i64 = 9;
const SYS_MUNMAP: i64 = 11;
const SYS_MREMAP: i64 = 25;
const SYS_GETPID: i64 = 39;
const SYS_PROCESS_VM_READV: i64 = 310;
const CLONE_VFORK: u64 = 0x4000;
const CLONE_CHILD_SETTID: u64 = 0x0100_0000;
const CLONE_UNTRACED: u64 = 0x0080_0000;
const SYS_CLONE: i64 = 56;

/// Bytes that a move copies in one call: a stopped thread answers within a bounded time.
const PART_LEN: u64 = 4 << 20;

impl Pager {
    /// Makes a change; returns the call's value.
    pub(super) fn change(
        &mut self,
        tracee: &mut Tracee,
        (key, own): (u32, u32),
        change: Change,
    ) -> io::Result<u64> {
        match change {
            Change::Map { len, protection, hint, unreserved } => {
                self.map_static(tracee, (key, own), Call::Map { len, protection, hint, unreserved })
            }
            Change::Renew { start, len, protection, unreserved } => {
                let len = whole(len);
                self.ask(key, own, Call::Renew { start, len, protection, unreserved })?;
                self.protect_far(tracee, (start, len), protection)?;
                Ok(start)
            }
            Change::Unmap { start, len } => {
                if let Some(program) = self.program_of(key) {
                    let given_back = start == program.not_as_hinted;
                    program.not_as_hinted = 0;
                    program.given_back = if given_back { program.given_back + 1 } else { 0 };
                }
                self.unmap_static(tracee, (key, own), (start, whole(len)))?;
                Ok(0)
            }
            Change::Protect { start, len, protection } => {
                let len = whole(len);
                let used = self.ask(key, own, Call::Protect { start, len, protection })?;
                if used > 0 {
                    self.protect_far(tracee, (start, used), protection)?;
                }
                if used == len { Ok(0) } else { Err(error_of(errno::NOMEM)) }
            }
            Change::Remap { start, len, new_len, how } => {
                self.remap_static(tracee, (key, own), (start, whole(len), whole(new_len)), how)
            }
            Change::MoveOut { start, len, new_len, target } => {
                self.move_out(tracee, (key, own), (start, whole(len), whole(new_len)), target)
            }
            Change::Fork => self.fork_static(tracee, (key, own)),
            Change::Register { start, len } => {
                let made = self.make_local(tracee, (key, own), (start, len));
                // The other calls have no error for missing room.
                if made.is_err()
                    && tracee.asked().0 != SYS_CLONE
                    && let Some(process) = self.processes.get(&key)
                {
                    eprintln!("farmem: process {} has no room for a local page, and is killed", process.pid);
                    kill(&process.ended);
                }
                made.map(|()| 0)
            }
        }
    }

    /// Makes far memory local, with its bytes and rights. Stores of other threads wait, as during a fork.
    fn make_local(
        &mut self,
        tracee: &mut Tracee,
        (key, own): (u32, u32),
        (start, len): (u64, u64),
    ) -> io::Result<()> {
        let snapshot = self.snapshot(key, own).map_err(error_of)?;
        let made = self.copy_to_local(tracee, (key, own), (start, len));
        if let Some(unused) = self.snapshots.remove(&snapshot) {
            self.release(unused);
        }
        self.forked(key);
        made
    }

    fn copy_to_local(
        &mut self,
        tracee: &mut Tracee,
        (key, own): (u32, u32),
        (start, len): (u64, u64),
    ) -> io::Result<()> {
        let gone = || error_of(errno::SRCH);
        let pages = self.processes.get(&key).and_then(|process| process.remote.range(start, len));
        let pages = pages.ok_or_else(gone)?;
        let parts: Vec<_> = self.far_among(key, pages).collect();
        let program = self.inject(tracee, SYS_GETPID, [0; 6])?;
        for (pages, rights) in parts {
            let process = self.processes.get(&key).ok_or_else(gone)?;
            let (from, len) = (process.remote.address(pages.start), bytes(pages.end - pages.start));
            let copy = self.inject(tracee, SYS_MMAP, [0, len, READ_WRITE, PRIVATE, u64::MAX, 0])?;
            let moved = (|| {
                // Memory that nothing may read has no number, and no record, that the system could write.
                if rights & PROT_READ != 0 && self.copy_part(tracee, program, (copy, from, len))? < len {
                    return Err(error_of(errno::FAULT));
                }
                self.inject(tracee, SYS_MPROTECT, [copy, len, rights, 0, 0, 0])?;
                self.inject(tracee, SYS_MREMAP, [copy, len, len, MAY_MOVE_TO, from, 0])
            })();
            if let Err(error) = moved {
                self.inject(tracee, SYS_MUNMAP, [copy, len, 0, 0, 0, 0])?;
                return Err(error);
            }
            self.ask(key, own, Call::Replace { start: from, len })?;
        }
        Ok(())
    }

    /// Copies bytes within the program, by its own thread. The source may be far.
    fn copy_part(
        &mut self,
        tracee: &mut Tracee,
        program: u64,
        (to, from, len): (u64, u64, u64),
    ) -> io::Result<u64> {
        let lists = copy_lists(place::gate(self.base) as u64);
        let words = [to, len, from, len];
        tracee.write(lists[0], words.map(u64::to_le_bytes).as_flattened())?;
        match self.inject(tracee, SYS_PROCESS_VM_READV, [program, lists[0], 1, lists[1], 1, 0])? {
            0 => Err(error_of(errno::FAULT)),
            copied => Ok(copied),
        }
    }

    fn map_static(&mut self, tracee: &mut Tracee, (key, own): (u32, u32), call: Call) -> io::Result<u64> {
        let Call::Map { len, protection, hint, .. } = call else { unreachable!("a mapping") };
        let start = match self.carry_out(key, call, own) {
            Ok(start) => start,
            Err(NO_MORE) => return Err(self.no_more()),
            // Without free addresses the program gets local memory.
            Err(_) => {
                let (_, arguments) = tracee.asked();
                return self.inject(tracee, SYS_MMAP, arguments);
            }
        };
        let len = whole(len);
        if let Err(error) = self.protect_far(tracee, (start, len), protection) {
            self.ask(key, own, Call::Unmap { start, len })?;
            return Err(error);
        }
        if let Some(program) = self.program_of(key) {
            program.not_as_hinted = if hint != 0 && hint != start { start } else { 0 };
            if hint != 0 && hint == start {
                program.given_back = 0;
            }
        }
        Ok(start)
    }

    fn unmap_static(
        &mut self,
        tracee: &mut Tracee,
        (key, own): (u32, u32),
        (start, len): (u64, u64),
    ) -> io::Result<()> {
        // First no thread can access the range; then the pager may reuse the addresses.
        self.protect_far(tracee, (start, len), NO_RIGHTS)?;
        self.ask(key, own, Call::Unmap { start, len }).map(drop)
    }

    fn remap_static(
        &mut self,
        tracee: &mut Tracee,
        (key, own): (u32, u32),
        (start, len, new_len): (u64, u64, u64),
        how: u64,
    ) -> io::Result<u64> {
        if how < resize::FIXED_MIN && new_len <= len {
            if new_len < len {
                self.unmap_static(tracee, (key, own), (start + new_len, len - new_len))?;
            }
            return Ok(start);
        }
        let answer = self.ask(key, own, Call::Resize { start, len, new_len, how })?;
        let page = PAGE_LEN as u64;
        let (moved, rights) = (answer / page * page, answer % page);
        let made = (|| {
            if moved != start {
                self.unmap_static(tracee, (key, own), (start, len))?;
            }
            self.protect_far(tracee, (moved, new_len), rights)
        })();
        if made.is_err()
            && let Some(process) = self.processes.get(&key)
        {
            eprintln!(
                "farmem: process {} has no room for a mapping that has moved, and is killed",
                process.pid
            );
            kill(&process.ended);
        }
        made.map(|()| moved)
    }

    /// Moves a mapping to an address outside far memory, where its bytes are local. The thread copies them.
    fn move_out(
        &mut self,
        tracee: &mut Tracee,
        (key, own): (u32, u32),
        (start, len, new_len): (u64, u64, u64),
        target: u64,
    ) -> io::Result<u64> {
        let pages = self.processes[&key].remote.range(start, len).ok_or_else(|| error_of(errno::FAULT))?;
        let rights = match self.processes[&key].spans.at(pages.start) {
            Some((span, kind)) if span.end >= pages.end => kind.protection().unwrap_or(NO_RIGHTS),
            _ => return Err(error_of(errno::FAULT)),
        };
        // From now on no thread can write to bytes that have been copied.
        self.protect_far(tracee, (start, len), PROT_READ)?;
        let there = self.inject(tracee, SYS_MMAP, [target, new_len, READ_WRITE, FIXED, u64::MAX, 0]);
        let there = match there {
            Ok(there) => there,
            Err(error) => {
                self.protect_far(tracee, (start, len), rights)?;
                return Err(error);
            }
        };
        let process = self.inject(tracee, SYS_GETPID, [0; 6])?;
        let (count, mut done) = (len.min(new_len), 0);
        while done < count {
            let part = (count - done).min(PART_LEN);
            match self.copy_part(tracee, process, (there + done, start + done, part)) {
                Ok(copied) => done += copied,
                // The target is replaced already, as by a move that fails in its middle.
                Err(error) => {
                    self.protect_far(tracee, (start, len), rights)?;
                    return Err(error);
                }
            }
        }
        self.inject(tracee, SYS_MPROTECT, [there, new_len, rights, 0, 0, 0])?;
        self.unmap_static(tracee, (key, own), (start, len))?;
        Ok(there)
    }

    fn fork_static(&mut self, tracee: &mut Tracee, (key, own): (u32, u32)) -> io::Result<u64> {
        let (number, arguments) = tracee.asked();
        let [flags, stack, _, child_number, ..] = arguments;
        if number == SYS_CLONE {
            let writes_far = flags & CLONE_CHILD_SETTID != 0
                && match self.processes[&key].remote.touched(child_number, 4) {
                    Touched::Nothing => false,
                    Touched::Control => true,
                    Touched::Far { pages, .. } => self.far_among(key, pages).next().is_some(),
                };
            if writes_far || flags & (CLONE_VFORK | CLONE_UNTRACED) != 0 {
                let process = self.processes[&key].pid;
                eprintln!(
                    "farmem: refused: process {process} makes a child by clone with flags {flags:#x}, which cannot have its far memory"
                );
                return Err(error_of(errno::INVAL));
            }
        }
        let process = &self.processes[&key];
        let fork = Fork {
            number,
            arguments,
            has_own_stack: number == SYS_CLONE && stack != 0,
            addresses: (process.remote.address(0), process.remote.pages() * PAGE_LEN as u64),
            program: process.static_program,
            snapshot: self.snapshot(key, own).map_err(error_of)?,
        };
        let made = self.fork_by(tracee, &fork);
        if let Some(unused) = self.snapshots.remove(&fork.snapshot) {
            self.release(unused);
        }
        self.forked(key);
        made
    }

    fn fork_by(&mut self, tracee: &mut Tracee, fork: &Fork) -> io::Result<u64> {
        tracee.call(fork.number, fork.arguments)?;
        loop {
            match self.stop_of(tracee) {
                Ok(Stop::Returned(value)) => return value_of(value),
                Ok(Stop::Forked(child)) => {
                    self.bring_in_child(tracee, child, fork);
                    tracee.go_on()?;
                }
                Ok(Stop::Ready) => return Err(io::ErrorKind::InvalidData.into()),
                Err(error) => {
                    // The parent has ended, or does so now. The child that it may have made runs on, as any child of a parent that is killed.
                    tracee.kill();
                    for child in tracee.unreported_children()? {
                        self.bring_in_child(tracee, child, fork);
                    }
                    return Err(error);
                }
            }
        }
    }

    /// Gives a fork's child its parent's memory, or kills the child, with a message.
    fn bring_in_child(&mut self, parent: &Tracee, child: u32, fork: &Fork) {
        let made = Tracee::forked(child).and_then(|mut tracee| {
            match self.bring_in_child_by(&mut tracee, parent, child, fork) {
                Ok(()) => tracee.release(Outcome::Returns(0)),
                Err(error) => {
                    tracee.kill();
                    Err(error)
                }
            }
        });
        // A child that was killed needs no message.
        if let Err(error) = made
            && error.raw_os_error() != Some(SRCH)
        {
            eprintln!(
                "farmem: the child of a fork cannot have its far memory, and is killed: process {child}: {error}"
            );
        }
    }

    fn bring_in_child_by(
        &mut self,
        tracee: &mut Tracee,
        parent: &Tracee,
        child: u32,
        fork: &Fork,
    ) -> io::Result<()> {
        self.stop_of(tracee)?;
        tracee.returns_as_child(parent, fork.has_own_stack);
        let gone = || io::Error::from(io::ErrorKind::NotFound);
        let (base, len) = fork.addresses;
        let spans = &self.snapshots.get(&fork.snapshot).ok_or_else(gone)?.spans;
        let list: Vec<[u64; 3]> = spans
            .all()
            .map(|(pages, kind)| {
                let rights = kind.protection().unwrap_or(ELSEWHERE);
                [base + pages.start * PAGE_LEN as u64, (pages.end - pages.start) * PAGE_LEN as u64, rights]
            })
            .collect();
        let gate = place::gate(self.base) as u64;
        let remote = child_memory(child, gate, (base, len), &list, &mut |number, arguments| {
            self.inject(tracee, number, arguments)
        })?;
        let ended = pidfd_of(child)?;
        let snapshot = self.snapshots.remove(&fork.snapshot).ok_or_else(gone)?;
        self.stats.forks += 1;
        let child_key = self.next;
        self.add_static((child, remote, ended), (snapshot.spans, snapshot.table, snapshot.objects))?;
        if let Some(process) = self.processes.get_mut(&child_key) {
            process.static_program = fork.program;
        }
        Ok(())
    }
}

/// A fork that a thread makes.
struct Fork {
    /// Number and arguments of the call.
    number: i64,
    arguments: [u64; 6],
    /// True when the child does not run on a copy of its parent's stack.
    has_own_stack: bool,
    /// First address and length of far memory.
    addresses: (u64, u64),
    /// The parent's state.
    program: Option<StaticProgram>,
    /// Number of the snapshot that the child gets.
    snapshot: u64,
}
