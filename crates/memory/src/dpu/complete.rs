//! The stage that completes requests, on threads of its own (SODA IV-B: receive and completion stages are pipelined over threads).
//!
//! Key type: [`Stage`], of one domain's thread. That thread takes requests and speaks with memory nodes; what a node has brought goes to a thread of the stage, which puts it where the process wants it
//! and answers, while the first one goes on. Small ones are not worth the way there.

use super::answering::Answering;
use super::carrier::Moving;
use super::slow::Slow;
use farmem_client::{Landing, Origin};
use farmem_dpu::Asker;
use farmem_io::dpu::Registered;
use farmem_wire::soda::{Answer, Ended, Span};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

/// Bytes of a request from which on it pays to have another thread complete it.
pub(super) const PASSED_MIN: u32 = 16 << 10;

/// Where the bytes of a read go.
#[derive(Clone, Debug)]
pub(super) enum Place {
    /// Into memory behind the rings.
    Shared(u64),
    /// Into registered memory.
    Registered(Arc<Registered>, u64),
}

impl Place {
    /// Puts bytes there, from the `offset`-th on, out of so many pieces; false when there is no room for them.
    pub(super) fn put(&self, offset: u64, answering: &Mutex<Answering>, pieces: &[&[u8]]) -> bool {
        let at = |addr: &u64| addr.checked_add(offset);
        match self {
            Self::Shared(addr) => at(addr).is_some_and(|addr| {
                let line = lock(answering);
                let mut next = addr;
                pieces.iter().all(|piece| {
                    let at = next;
                    next = next.saturating_add(piece.len() as u64);
                    line.answers.put(at, piece)
                })
            }),
            Self::Registered(memory, addr) => at(addr).is_some_and(|addr| memory.put(addr, pieces)),
        }
    }
}

/// A read whose bytes go to the process's memory from the very buffer that the link received them in: what SODA has of one buffer on the DPU for both (IV-B).
#[derive(Debug)]
pub(super) struct Landed {
    place: Place,
    answering: Arc<Mutex<Answering>>,
    /// Some had no room.
    is_refused: AtomicBool,
}

impl Landed {
    pub(super) fn new(place: Place, answering: &Arc<Mutex<Answering>>) -> Arc<Self> {
        Arc::new(Self { place, answering: Arc::clone(answering), is_refused: AtomicBool::new(false) })
    }

    /// All that came is there.
    pub(super) fn is_put(&self) -> bool {
        !self.is_refused.load(Ordering::Acquire)
    }
}

impl Landing for Landed {
    fn put(&self, offset: u64, pieces: &[&[u8]]) {
        if !self.place.put(offset, &self.answering, pieces) {
            self.is_refused.store(true, Ordering::Release);
        }
    }
}

/// Pages of a process's registered memory that are written back from where they are.
#[derive(Debug)]
pub(super) struct From(pub(super) Arc<Registered>, pub(super) u64);

impl Origin for From {
    fn take(&self, offset: u64, pieces: &mut [&mut [u8]]) -> bool {
        self.1.checked_add(offset).is_some_and(|addr| self.0.take(addr, pieces))
    }
}

/// A read that went well, and that is not yet where it goes.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) asker: Asker,
    pub(super) span: Span,
    pub(super) moving: Moving,
    pub(super) place: Place,
    pub(super) answering: Arc<Mutex<Answering>>,
}

/// What a thread of the stage did.
#[derive(Debug)]
pub(super) struct Completed {
    pub(super) asker: Asker,
    pub(super) bytes: usize,
    /// For the client.
    pub(super) buf: Vec<u8>,
}

/// Answers are values: whoever panicked with them ends the DPU.
pub(super) fn lock(answering: &Mutex<Answering>) -> MutexGuard<'_, Answering> {
    answering.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The threads.
#[derive(Debug)]
pub(super) struct Stage {
    /// To each of them.
    jobs: Vec<Sender<Job>>,
    /// Which is next.
    next: usize,
    /// Bytes of a request that is passed on, at least.
    least: u32,
    done: Receiver<Completed>,
    /// The domain's thread sleeps, and waits for what is completed.
    awaited: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Stage {
    /// So many threads, for requests of `least` bytes or more, which take `slowdown` times as long as here; `wake` wakes the domain's thread.
    ///
    /// # Errors
    /// When the system has no more threads.
    pub(super) fn begin(
        threads: u32,
        least: u32,
        slowdown: f64,
        wake: impl Fn() + Clone + Send + 'static,
    ) -> io::Result<Self> {
        let (to, done) = channel();
        let awaited: Arc<AtomicBool> = Arc::default();
        let mut stage = Self { jobs: Vec::new(), next: 0, least, done, awaited, threads: Vec::new() };
        for number in 0..threads {
            let (jobs, told) = channel();
            let (to, awaited, wake) = (to.clone(), Arc::clone(&stage.awaited), wake.clone());
            let thread = thread::Builder::new()
                .name(format!("dpu stage {number}"))
                .spawn(move || run(&told, &to, (&awaited, &wake), Slow::new(slowdown)))?;
            stage.jobs.push(jobs);
            stage.threads.push(thread);
        }
        Ok(stage)
    }

    /// It takes requests of so many bytes.
    pub(super) const fn takes(&self, bytes: u32) -> bool {
        bytes >= self.least
    }

    /// Has a job done, by the threads in turn.
    pub(super) fn pass(&mut self, job: Job) {
        let at = self.next % self.jobs.len();
        self.next += 1;
        self.jobs[at]
            .send(job)
            .expect("a thread of the stage takes jobs until it is told that there are no more");
    }

    /// Whether the domain's thread is to be woken when something is completed.
    pub(super) fn await_it(&self, awaited: bool) {
        self.awaited.store(awaited, Ordering::SeqCst);
        // The store, and then the look at what was completed: of this and its like in `run` one sees the other.
        fence(Ordering::SeqCst);
    }

    /// The next that was completed.
    pub(super) fn take(&self) -> Option<Completed> {
        self.done.try_recv().ok()
    }
}

impl Drop for Stage {
    /// Ends the threads when they have done what they were told: from then on none of them writes anything.
    fn drop(&mut self) {
        self.jobs.clear();
        for thread in self.threads.drain(..) {
            let panicked = thread.join().is_err();
            assert!(
                !panicked || thread::panicking(),
                "a thread of the DPU panicked while it completed a request"
            );
        }
    }
}

fn run(
    jobs: &Receiver<Job>,
    done: &Sender<Completed>,
    (awaited, wake): (&AtomicBool, &impl Fn()),
    mut slow: Slow,
) {
    while let Ok(Job { asker, span, moving, place, answering }) = jobs.recv() {
        let mut is_put = false;
        let buf = moving.finish(None, |bytes| is_put = place.put(0, &answering, &[bytes]));
        slow.down();
        let ended = if is_put { Ended::Done } else { Ended::Refused };
        let mut line = lock(&answering);
        line.push(Answer { span, write: false, ended, data: &[] });
        line.publish();
        drop(line);
        if done.send(Completed { asker, bytes: span.size as usize, buf }).is_err() {
            return;
        }
        // What was sent, and then the look whether it is awaited.
        fence(Ordering::SeqCst);
        if awaited.load(Ordering::SeqCst) {
            wake();
        }
    }
}
