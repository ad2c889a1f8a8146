//! A thread that makes system calls for the pager, by ptrace.
//!
//! Key type: [`Tracee`]. The thread waits for the answer to a notification when the pager seizes it, so it stops
//! before it returns to the program's code. The thread then makes calls, one by one, with all signals blocked. Its
//! release restores its registers and signal mask, and sets the result of the notified call.
//!
//! No function here waits: the pager polls, and serves page faults meanwhile, because a call of the thread may touch
//! far memory.

use super::injection::{Outcome, Stop};
use farmem_link::Clock;
use rustix::io::Errno;
use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::ops::RangeInclusive;
use std::ptr;

/// A seized thread. If it cannot be released, its process is killed, because it would stay stopped for good.
#[derive(Debug)]
pub struct Tracee {
    thread: libc::pid_t,
    /// The program's registers, from the first stop on.
    saved: Option<libc::user_regs_struct>,
    /// The program's signal mask.
    mask: u64,
    /// Address of an instruction that makes a system call.
    instruction: u64,
    step: Step,
    /// True once the thread is released, has ended, or is killed.
    over: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    /// The thread runs to its first stop.
    Seized,
    /// The thread is stopped between two calls.
    Stopped,
    /// The thread runs to the entry of a call.
    Entering,
    /// The thread is in a call.
    Leaving,
}

/// The options of a seizure. No thread survives its tracer in the middle of a change: it would continue with other
/// registers.
const OPTIONS: i32 = libc::PTRACE_O_EXITKILL
    | libc::PTRACE_O_TRACESYSGOOD
    | libc::PTRACE_O_TRACEFORK
    | libc::PTRACE_O_TRACEVFORK
    | libc::PTRACE_O_TRACECLONE;
/// The signal of a stop at a system call (PTRACE_O_TRACESYSGOOD).
const AT_CALL: i32 = libc::SIGTRAP | 0x80;
const EVENT_STOP: i32 = 128;
/// Bytes of a signal mask of the kernel.
const MASK_LEN: usize = 8;
/// Time that a killed process has to end.
const END_NS_MAX: u64 = 1_000_000_000;
/// Results of a call that the system makes again: a stop of the process came first (ERESTARTSYS to ERESTART_RESTARTBLOCK).
const RESTARTS: RangeInclusive<i64> = -516..=-512;
/// Length of the instruction `syscall`.
const INSTRUCTION_LEN: u64 = 2;

impl Tracee {
    /// Seizes a thread, which stops when it next returns to the program's code.
    ///
    /// # Errors
    /// The system's error: EPERM if another process traces the thread, or this process may not.
    pub fn seize(thread: u32) -> io::Result<Self> {
        let thread = libc::pid_t::try_from(thread).map_err(|_| io::ErrorKind::InvalidInput)?;
        request(libc::PTRACE_SEIZE, thread, 0, word(OPTIONS))?;
        let tracee = Self::new(thread);
        request(libc::PTRACE_INTERRUPT, thread, 0, 0)?;
        Ok(tracee)
    }

    /// Returns the process that [`Stop::Forked`] names. The process stops before its first instruction.
    ///
    /// # Errors
    /// An error for a number that no thread has.
    pub fn forked(thread: u32) -> io::Result<Self> {
        libc::pid_t::try_from(thread).map(Self::new).map_err(|_| io::ErrorKind::InvalidInput.into())
    }

    const fn new(thread: libc::pid_t) -> Self {
        Self { thread, saved: None, mask: 0, instruction: 0, step: Step::Seized, over: false }
    }

    /// Returns number and arguments of the thread's notified call.
    #[must_use]
    pub fn asked(&self) -> (i64, [u64; 6]) {
        let regs = self.registers();
        (regs.orig_rax.cast_signed(), [regs.rdi, regs.rsi, regs.rdx, regs.r10, regs.r8, regs.r9])
    }

    /// Sets the instruction that makes further calls.
    pub const fn call_from(&mut self, instruction: u64) {
        self.instruction = instruction;
    }

    /// Lets a fork's child return 0 from its parent's call, with the parent's other registers and signal mask.
    pub fn returns_as_child(&mut self, parent: &Self, has_own_stack: bool) {
        let own = self.registers();
        let mut regs = parent.registers();
        (regs.fs_base, regs.gs_base) = (own.fs_base, own.gs_base);
        if has_own_stack {
            regs.rsp = own.rsp;
        }
        regs.rax = 0;
        (self.saved, self.mask, self.instruction) = (Some(regs), parent.mask, parent.instruction);
    }

    /// Begins a call; [`Tracee::poll`] reports its result.
    ///
    /// # Errors
    /// The system's error if the thread has ended. ESRCH if its latest call has not returned: the thread is killed in it, or will be.
    pub fn call(&mut self, number: i64, [a, b, c, d, e, f]: [u64; 6]) -> io::Result<()> {
        if self.step != Step::Stopped {
            return Err(Errno::SRCH.into());
        }
        let mut regs = self.registers();
        (regs.rip, regs.rax, regs.orig_rax) = (self.instruction, number.cast_unsigned(), u64::MAX);
        (regs.rdi, regs.rsi, regs.rdx, regs.r10, regs.r8, regs.r9) = (a, b, c, d, e, f);
        self.set_registers(&regs)?;
        self.step = Step::Entering;
        self.resume(0)
    }

    /// Continues a call that has made a process.
    ///
    /// # Errors
    /// The system's error if the thread has ended.
    pub fn go_on(&mut self) -> io::Result<()> {
        self.resume(0)
    }

    /// Returns the next stop; `None` while the thread runs.
    ///
    /// # Errors
    /// The system's error if the thread has ended.
    pub fn poll(&mut self) -> io::Result<Option<Stop>> {
        let change = match wait(self.thread, libc::WSTOPPED | libc::WEXITED | libc::WNOWAIT) {
            // Another thread has run a program. That ends the first thread of a process, and the other one takes its number.
            Err(error) if error.raw_os_error() == Some(libc::ECHILD) => {
                self.over = true;
                return Err(Errno::SRCH.into());
            }
            other => other?,
        };
        let Some((code, status)) = change else { return Ok(None) };
        if code != libc::CLD_TRAPPED && code != libc::CLD_STOPPED {
            self.over = true;
            // The end of a child of this process is reported to `std::process::Child`.
            if !is_own_child(self.thread) {
                let _reaped = wait(self.thread, libc::WEXITED);
            }
            return Err(Errno::SRCH.into());
        }
        wait(self.thread, libc::WSTOPPED)?;
        let (signal, event) = (status & 0xff, status >> 8);
        match (self.step, signal, event) {
            (Step::Seized, _, EVENT_STOP) => {
                self.first_stop()?;
                Ok(Some(Stop::Ready))
            }
            (Step::Entering, AT_CALL, _) => {
                self.step = Step::Leaving;
                self.resume(0)?;
                Ok(None)
            }
            (Step::Leaving, AT_CALL, _) => {
                let result = self.read_registers()?.rax;
                if RESTARTS.contains(&result.cast_signed()) {
                    self.step = Step::Entering;
                    return self.resume(0).map(|()| None);
                }
                self.step = Step::Stopped;
                Ok(Some(Stop::Returned(result)))
            }
            (
                Step::Leaving,
                _,
                libc::PTRACE_EVENT_FORK | libc::PTRACE_EVENT_VFORK | libc::PTRACE_EVENT_CLONE,
            ) => {
                let mut child = 0_u64;
                request(libc::PTRACE_GETEVENTMSG, self.thread, 0, (&raw mut child).expose_provenance())?;
                let child = u32::try_from(child).map_err(|_| io::ErrorKind::InvalidData)?;
                Ok(Some(Stop::Forked(child)))
            }
            // A stop of the whole process holds the program's other threads. This thread joins them at its release, unless a SIGCONT has come.
            (_, _, EVENT_STOP) => self.resume(0).map(|()| None),
            // A signal that no mask blocks: a SIGSTOP, which stops the process, or one that ends it.
            _ => self.resume(signal).map(|()| None),
        }
    }

    /// Writes to the program's memory, which must not be far.
    ///
    /// # Errors
    /// The system's error.
    pub fn write(&self, address: u64, bytes: &[u8]) -> io::Result<()> {
        for (at, word) in (address..).step_by(8).zip(bytes.chunks(8)) {
            let mut padded = [0; 8];
            padded[..word.len()].copy_from_slice(word);
            let at = usize::try_from(at).map_err(|_| io::ErrorKind::InvalidInput)?;
            let data = usize::try_from(u64::from_le_bytes(padded)).map_err(|_| io::ErrorKind::InvalidData)?;
            request(libc::PTRACE_POKEDATA, self.thread, at, data)?;
        }
        Ok(())
    }

    /// Releases the thread to the program.
    ///
    /// # Errors
    /// The system's error if the thread has ended.
    pub fn release(mut self, outcome: Outcome) -> io::Result<()> {
        self.let_go(outcome)
    }

    /// Kills the thread's process, and reaps the thread, because otherwise its parent would not learn of the end.
    pub fn kill(&mut self) {
        if std::mem::replace(&mut self.over, true) {
            return;
        }
        // A thread that is traced no more may have left its number to another program.
        if wait(self.thread, libc::WSTOPPED | libc::WEXITED | libc::WNOWAIT).is_err() {
            return;
        }
        // A thread that has ended needs no signal.
        // SAFETY: plain numbers.
        let _sent = unsafe { libc::syscall(libc::SYS_tkill, self.thread, libc::SIGKILL) };
        let clock = Clock::start();
        while !is_own_child(self.thread) && clock.now().as_nanos() < END_NS_MAX {
            match wait(self.thread, libc::WEXITED) {
                Ok(None) => std::thread::yield_now(),
                Ok(Some(_)) | Err(_) => break,
            }
        }
    }

    /// Returns the processes that a call of this thread has made, and that no [`Stop::Forked`] has named: the thread was killed in between.
    /// Each stops before its first instruction, as others do.
    ///
    /// # Errors
    /// When `/proc` cannot be read.
    pub fn unreported_children(&self) -> io::Result<Vec<u32>> {
        let here = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
        let number = |entry: fs::DirEntry| entry.file_name().to_str()?.parse::<u32>().ok();
        let processes = fs::read_dir("/proc")?.flatten().filter_map(number);
        Ok(processes
            .filter(|&process| process != self.thread.cast_unsigned())
            .filter(|&process| status_number(process, "TracerPid:") == Some(here))
            .collect())
    }

    fn let_go(&mut self, outcome: Outcome) -> io::Result<()> {
        // A thread that has not stopped has ended.
        let mut regs = self.saved.ok_or(Errno::SRCH)?;
        match outcome {
            Outcome::Returns(result) => regs.rax = result.cast_unsigned(),
            Outcome::Again => {
                regs.rax = regs.orig_rax;
                regs.rip -= INSTRUCTION_LEN;
            }
        }
        // The kernel must not restart a call of the thread.
        regs.orig_rax = u64::MAX;
        self.set_registers(&regs)?;
        self.set_mask(self.mask)?;
        request(libc::PTRACE_DETACH, self.thread, 0, 0)?;
        self.over = true;
        Ok(())
    }

    fn first_stop(&mut self) -> io::Result<()> {
        let regs = self.read_registers()?;
        self.instruction = regs.rip.wrapping_sub(INSTRUCTION_LEN);
        self.saved = Some(regs);
        request(libc::PTRACE_GETSIGMASK, self.thread, MASK_LEN, (&raw mut self.mask).expose_provenance())?;
        self.set_mask(u64::MAX)?;
        self.step = Step::Stopped;
        Ok(())
    }

    const fn registers(&self) -> libc::user_regs_struct {
        self.saved.expect("the thread has stopped once")
    }

    fn read_registers(&self) -> io::Result<libc::user_regs_struct> {
        let mut regs = MaybeUninit::<libc::user_regs_struct>::zeroed();
        request(libc::PTRACE_GETREGS, self.thread, 0, regs.as_mut_ptr().expose_provenance())?;
        // SAFETY: plain numbers, which the kernel filled.
        Ok(unsafe { regs.assume_init() })
    }

    fn set_registers(&self, regs: &libc::user_regs_struct) -> io::Result<()> {
        request(libc::PTRACE_SETREGS, self.thread, 0, ptr::from_ref(regs).expose_provenance())
    }

    fn set_mask(&self, mask: u64) -> io::Result<()> {
        request(libc::PTRACE_SETSIGMASK, self.thread, MASK_LEN, (&raw const mask).expose_provenance())
    }

    fn resume(&self, signal: i32) -> io::Result<()> {
        request(libc::PTRACE_SYSCALL, self.thread, 0, word(signal))
    }
}

impl Drop for Tracee {
    fn drop(&mut self) {
        if self.over {
            return;
        }
        let no_memory = Outcome::Returns(-i64::from(libc::ENOMEM));
        if self.step != Step::Stopped || self.let_go(no_memory).is_err() {
            self.kill();
        }
    }
}

fn word(number: i32) -> usize {
    usize::try_from(number).expect("a positive number")
}

/// Makes a request of ptrace.
///
/// `data` is a number, or the address of an object of the caller that the request reads or fills whole.
fn request(request: libc::c_uint, thread: libc::pid_t, address: usize, data: usize) -> io::Result<()> {
    // SAFETY: the callers in this module pass objects of the request's type, which outlive the call.
    let result = unsafe { libc::ptrace(request, thread, address, data) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Reads a change of a traced thread's state: its kind, and the signal with an event; `None` when there is none.
///
/// Fails with ECHILD for a thread that the calling thread does not trace. A child of another thread of this process is none of its own.
fn wait(thread: libc::pid_t, changes: i32) -> io::Result<Option<(i32, i32)>> {
    let flags = changes | libc::WNOHANG | libc::__WALL | libc::__WNOTHREAD;
    let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
    // SAFETY: room for one record.
    let result = unsafe { libc::waitid(libc::P_PID, thread.cast_unsigned(), info.as_mut_ptr(), flags) };
    if result == -1 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: zeros, or plain numbers that the kernel filled.
    let info = unsafe { info.assume_init() };
    // SAFETY: the record is of a change of state, or zeros.
    let pid = unsafe { info.si_pid() };
    // SAFETY: as above.
    let status = unsafe { info.si_status() };
    Ok((pid != 0).then_some((info.si_code, status)))
}

/// Returns true for a process that this one has started.
fn is_own_child(process: libc::pid_t) -> bool {
    let process = process.cast_unsigned();
    let number = |what| status_number(process, what);
    number("Tgid:") == Some(process) && number("PPid:") == Some(std::process::id())
}

/// Returns a number of the system's description of a process.
fn status_number(process: u32, what: &str) -> Option<u32> {
    // A name need not be UTF-8.
    let status = fs::read(format!("/proc/{process}/status")).ok()?;
    let status = String::from_utf8_lossy(&status);
    status.lines().find_map(|line| line.strip_prefix(what))?.trim().parse().ok()
}

#[cfg(test)]
mod tests;
