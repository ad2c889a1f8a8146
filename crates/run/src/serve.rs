//! The pager's loop: it waits for events, serves them, and moves to the CPU of the faulting thread and back.

use super::beside::serve_beside;
use super::placement::{PlacementChange, ThreadId};
use super::sharing::Sharing;
use super::{CpuPlacement, Notice, PAST_LIBC, Pager, SAMPLE_TIME, STRAGGLE_MAX};
use farmem_client::Error;
use farmem_link::affinity::{cpu_of, has_idle_cpu, pin_to_cpu};
use farmem_uffd::remote::raw::thread_here;
use farmem_uffd::remote::{Event, Watch};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A move of the pager.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum PagerMove {
    /// To this CPU, in the idle class.
    JoinCpu(usize),
    /// To the CPUs and the class from before.
    Back,
}

/// The reason why [`Pager::turns`] returned.
enum Turned {
    /// The program and its processes have ended.
    Over,
    /// The pager has a [`PagerMove`] to make.
    Moves,
}

/// The state of the loop, which outlives moves of the pager.
struct Loop<'a> {
    program: BorrowedFd<'a>,
    notify: &'a mut dyn FnMut(Notice<'_>),
    ended: bool,
    busy: bool,
}

/// Time after which a call that waits for another thread is judged again.
const ASK_AGAIN_TIME: Duration = Duration::from_millis(5);

/// Identifiers for [`Watch::Other`].
const PROGRAM: u32 = 0;
const SIGNALS: u32 = 1;

impl Pager {
    /// Serves until `program` is readable, which means that the program has ended, and none of its processes is
    /// left. Calls `notify` when `signals` is readable, and when the program thrashes.
    ///
    /// Where one CPU serves faults faster than two ([`CpuPlacement::Auto`](super::CpuPlacement)), another thread
    /// serves in place of the caller, and calls `notify`, while the caller waits for it.
    ///
    /// # Errors
    /// - The reason of a failed fetch or write-back, or [`Error::MemoryLost`]: programs that accessed the
    ///   memory got SIGBUS.
    /// - [`Error::System`] when system calls fail; the caller should then kill the processes.
    pub fn serve_program(
        &mut self,
        program: impl AsFd,
        signals: impl AsFd,
        notify: &mut dyn FnMut(Notice<'_>),
    ) -> Result<(), Error> {
        self.acceptor.watch(&program, Watch::Other(PROGRAM)).map_err(|e| system(e.into()))?;
        self.acceptor.watch(&signals, Watch::Other(SIGNALS)).map_err(|e| system(e.into()))?;
        let mut state = Loop { program: program.as_fd(), notify, ended: false, busy: false };
        while let Turned::Moves = self.turns(&mut state, None)? {
            let Some(PagerMove::JoinCpu(cpu)) = self.next_move.take() else { continue };
            let beside = serve_beside(cpu, |come_back: &AtomicBool| {
                self.acceptor.let_poll(false);
                let turned = self.turns(&mut state, Some(come_back));
                self.acceptor.let_poll(true);
                self.next_move = None;
                turned
            });
            match beside {
                Ok(turned) => {
                    if let Turned::Over = turned? {
                        break;
                    }
                }
                Err(_) => self.placement.disable(),
            }
        }
        self.broken = self.far.failed.is_some();
        let shared = self.sharing.as_ref().map_or(Ok(()), Sharing::finish);
        self.far.failed.take().or_else(|| self.far.lost.take()).map_or(shared, Err)
    }

    /// Serves until the program and its processes have ended, or the pager moves. `come_back` is there while the
    /// pager is beside the faulting thread, and true when it must leave that CPU.
    fn turns(&mut self, state: &mut Loop<'_>, come_back: Option<&AtomicBool>) -> Result<Turned, Error> {
        let mut events = Vec::new();
        let faults = self.stats.faults;
        let turned = loop {
            if state.ended && self.processes.is_empty() && self.snapshots.is_empty() {
                break Turned::Over;
            }
            let over = state.ended && self.processes.is_empty();
            let patience = if over { STRAGGLE_MAX } else { SAMPLE_TIME };
            let patience = if self.has_waiting_calls() { ASK_AGAIN_TIME } else { patience };
            let patience = Some(if state.busy { Duration::ZERO } else { patience });
            self.acceptor.events(patience, &mut events).map_err(system)?;
            if events.is_empty() && over && !state.busy {
                break Turned::Over; // forks that failed
            }
            for &event in &events {
                match event {
                    Event::Connections => self.receive(),
                    Event::Faults(key) => self.faulted(key),
                    Event::Ended(key) => self.holder_left(key),
                    Event::Other(SIGNALS) => (state.notify)(Notice::Signals),
                    Event::Other(PAST_LIBC) => self.asked(),
                    Event::Other(_) => {
                        self.acceptor.forget(state.program);
                        state.ended = true;
                    }
                }
            }
            self.sample(state.notify);
            state.busy = self.turn();
            self.kill_spoiled_processes();
            while let Some(key) = self.gone.pop() {
                self.remove_process(key);
            }
            self.asked_again();
            if come_back.is_some_and(|come_back| come_back.load(Ordering::Relaxed)) {
                self.advised(PlacementChange::Leave);
                let _left = self.placement.starved();
            }
            match self.next_move {
                Some(PagerMove::JoinCpu(cpu)) if come_back.is_some() => {
                    self.next_move = None;
                    // A CPU that the pager may not use: the present one serves as well.
                    let _ = pin_to_cpu(cpu);
                }
                Some(PagerMove::Back) if come_back.is_none() => self.next_move = None,
                Some(_) => break Turned::Moves,
                None => {}
            }
        };
        if come_back.is_some() {
            self.stats.beside += self.stats.faults - faults;
        }
        Ok(turned)
    }

    /// Tells the placement policy of a fault.
    pub(super) fn note_thread(&mut self, thread: ThreadId) {
        if self.placement.is_enabled() {
            let advice = self.placement.fault(self.clock.now().as_nanos(), thread);
            self.advised(advice);
        }
    }

    fn advised(&mut self, advice: PlacementChange) {
        match advice {
            PlacementChange::Stay => {}
            PlacementChange::Join(_) if self.options.placement == CpuPlacement::Auto && !has_idle_cpu() => {
                self.placement.postpone()
            }
            PlacementChange::Join(thread) => match self.cpu_of(thread) {
                Some(cpu) => self.next_move = Some(PagerMove::JoinCpu(cpu)),
                // The thread has ended.
                None => {
                    let _left = self.placement.starved();
                }
            },
            PlacementChange::Follow(thread) => {
                if let Some(cpu) = self.cpu_of(thread) {
                    self.next_move = Some(PagerMove::JoinCpu(cpu));
                }
            }
            PlacementChange::Leave => self.next_move = Some(PagerMove::Back),
        }
    }

    /// Returns the CPU of a thread. `None` when the thread has ended.
    fn cpu_of(&self, thread: ThreadId) -> Option<usize> {
        let process = self.processes.get(&thread.process)?;
        cpu_of(thread_here(process.pid, thread.own)?)
    }
}

fn system(source: io::Error) -> Error {
    Error::System { what: "faults cannot be waited for".into(), source }
}
