//! The stage that completes requests, on threads of its own (SODA IV-B: receive and completion stages are pipelined
//! over threads).
//!
//! Key type: [`Stage`], one per domain's thread. The domain's thread takes requests and communicates with memory
//! nodes. A thread of the stage writes the bytes of a read to their destination and answers, while the domain's
//! thread continues. The bytes come from the link's slots, which lend them ([`ReadDelivery`]), or from the cache. For short
//! reads the hand-over costs more than it saves.

use super::answering::lock;
use super::carrier::Moving;
use super::read_delivery::ReadDelivery;
use super::slow::Slow;
use farmem_client::PayloadSource;
use farmem_dpu::Asker;
use farmem_link::dpu::Registered;
use farmem_wire::soda::{Answer, Ended, Span};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};

const PANICKED: &str = "a thread of the DPU panicked while it completed a request";

/// Minimum length in bytes of a read that another thread completes.
pub(super) const PASSED_MIN: u32 = 16 << 10;

/// Pages of a process's registered memory, written back without a buffer.
#[derive(Debug)]
pub(super) struct From(pub(super) Arc<Registered>, pub(super) u64);

impl PayloadSource for From {
    fn fill(&self, offset: u64, pieces: &mut [&mut [u8]]) -> bool {
        self.1.checked_add(offset).is_some_and(|addr| self.0.take(addr, pieces))
    }
}

/// A successful read whose bytes are not at their destination yet.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) asker: Asker,
    pub(super) span: Span,
    pub(super) moving: Moving,
    /// The destination, and the loans that have arrived for it.
    pub(super) landed: Arc<ReadDelivery>,
}

/// A request that a thread of the stage completed.
#[derive(Debug)]
pub(super) struct Completed {
    pub(super) asker: Asker,
    pub(super) bytes: usize,
    /// The buffer, for the client to recycle.
    pub(super) buf: Vec<u8>,
}

/// The completion threads of a domain.
#[derive(Debug)]
pub(super) struct Stage {
    /// The queues of the threads.
    jobs: Vec<Sender<Job>>,
    /// Counts jobs, to select the next thread.
    next: usize,
    done: Receiver<Completed>,
    /// True while the domain's thread sleeps and must be woken for a completed request.
    awaited: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Stage {
    /// Starts `threads` threads, which take `slowdown` times as long as this machine. `wake` wakes the domain's
    /// thread.
    ///
    /// # Errors
    /// The system's error if it has no more threads.
    pub(super) fn begin(
        threads: u32,
        slowdown: f64,
        wake: impl Fn() + Clone + Send + 'static,
    ) -> io::Result<Self> {
        let (to, done) = channel();
        let awaited: Arc<AtomicBool> = Arc::default();
        let mut stage = Self { jobs: Vec::new(), next: 0, done, awaited, threads: Vec::new() };
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

    /// Passes a job to the next thread in turn.
    pub(super) fn pass(&mut self, job: Job) {
        let at = self.next % self.jobs.len();
        self.next += 1;
        self.jobs[at]
            .send(job)
            .expect("a thread of the stage takes jobs until it is told that there are no more");
    }

    /// Sets whether a completed request wakes the domain's thread.
    pub(super) fn await_it(&self, awaited: bool) {
        self.awaited.store(awaited, Ordering::SeqCst);
        // Store first, then check for completed requests. With the fence in `run`, one of the two threads sees the
        // other's store.
        fence(Ordering::SeqCst);
    }

    /// Returns the next completed request.
    ///
    /// # Panics
    /// Panics if a thread of the stage has panicked. Its requests are never answered, so their processes would wait
    /// for a DPU that seems to serve.
    pub(super) fn take(&self) -> Option<Completed> {
        // Threads end only when their queue is closed.
        assert!(!self.threads.iter().any(JoinHandle::is_finished), "{PANICKED}");
        self.done.try_recv().ok()
    }
}

impl Drop for Stage {
    /// Ends the threads when they have completed their jobs. From then on none of them writes anything.
    fn drop(&mut self) {
        self.jobs.clear();
        for thread in self.threads.drain(..) {
            let panicked = thread.join().is_err();
            assert!(!panicked || thread::panicking(), "{PANICKED}");
        }
    }
}

fn run(
    jobs: &Receiver<Job>,
    done: &Sender<Completed>,
    (awaited, wake): (&AtomicBool, &impl Fn()),
    mut slow: Slow,
) {
    while let Ok(Job { asker, span, moving, landed }) = jobs.recv() {
        let mut is_put = false;
        let buf = moving.finish(None, |bytes| is_put = landed.complete(bytes));
        slow.down();
        let ended = if is_put { Ended::Done } else { Ended::Refused };
        let mut line = lock(landed.answering());
        line.push(Answer { span, write: false, ended, data: &[] });
        line.publish();
        drop(line);
        if done.send(Completed { asker, bytes: span.size as usize, buf }).is_err() {
            return;
        }
        // Send first, then check whether the result is awaited.
        fence(Ordering::SeqCst);
        if awaited.load(Ordering::SeqCst) {
            wake();
        }
    }
}
