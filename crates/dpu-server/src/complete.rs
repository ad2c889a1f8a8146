//! The stage that completes requests, on threads of its own (SODA IV-B: receive and completion stages are pipelined over threads).
//!
//! Key type: [`Stage`], of one domain's thread. That thread takes requests and speaks with memory nodes; what a node has brought goes to a thread of the stage, which puts it where the process wants it
//! and answers, while the first one goes on: out of the slots of the link, which lends them ([`Landed`]), or out of the cache. Small ones are not worth the way there.

use super::answering::lock;
use super::carrier::Moving;
use super::landed::Landed;
use super::slow::Slow;
use farmem_client::Origin;
use farmem_dpu::Asker;
use farmem_link::dpu::Registered;
use farmem_wire::soda::{Answer, Ended, Span};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};

const PANICKED: &str = "a thread of the DPU panicked while it completed a request";

/// Bytes of a request from which on it pays to have another thread complete it.
pub(super) const PASSED_MIN: u32 = 16 << 10;

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
    /// Where it goes, and what has come for it.
    pub(super) landed: Arc<Landed>,
}

/// Requests that a thread of the stage completed.
#[derive(Debug)]
pub(super) struct Completed {
    pub(super) asker: Asker,
    pub(super) bytes: usize,
    /// For the client.
    pub(super) buf: Vec<u8>,
}

/// The threads.
#[derive(Debug)]
pub(super) struct Stage {
    /// To each of them.
    jobs: Vec<Sender<Job>>,
    /// Which is next.
    next: usize,
    done: Receiver<Completed>,
    /// The domain's thread sleeps, and waits for what is completed.
    awaited: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Stage {
    /// So many threads, which take `slowdown` times as long as here; `wake` wakes the domain's thread.
    ///
    /// # Errors
    /// When the system has no more threads.
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
    ///
    /// # Panics
    /// When one of its threads has panicked: its requests are never answered, and their processes would wait beside a DPU that seems to serve.
    pub(super) fn take(&self) -> Option<Completed> {
        // Threads end when they are told to, and never before.
        assert!(!self.threads.iter().any(JoinHandle::is_finished), "{PANICKED}");
        self.done.try_recv().ok()
    }
}

impl Drop for Stage {
    /// Ends the threads when they have done what they were told: from then on none of them writes anything.
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
        // First the send, then the look whether the result is awaited.
        fence(Ordering::SeqCst);
        if awaited.load(Ordering::SeqCst) {
            wake();
        }
    }
}
