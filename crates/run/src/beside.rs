//! The pager on the CPU of the faulting thread: a thread of the idle scheduling class, and its supervision.
//!
//! A process without privileges cannot leave the idle class again. A thread of its own therefore serves while
//! the pager is beside the program, and the thread of the pager waits for its end. Meanwhile, the waiting
//! thread checks that other threads do not keep the idle one from its CPU.

use farmem_link::affinity::{self, CpuTime, enter_idle_class};
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

/// Time between two checks of the idle thread.
const CHECK: Duration = Duration::from_millis(10);
/// Longest time between two checks that the idle thread may wait for its CPU. The program's own threads keep the
/// idle one waiting while they run, so only a thread that hardly runs at all is starved.
const DELAY_MAX: Duration = Duration::from_micros(8_750);

/// A value that another thread uses while the owner only waits for that thread's end.
struct Lent<T>(T);

// SAFETY: `serve_beside` is the only user. It moves the value to one other thread, touches nothing that the
// value reaches until that thread has ended, and joins it before it returns. So no two threads use the value
// at the same time, and the join orders all accesses. What the value shares by `Rc` or `Cell` belongs to
// objects of the waiting thread.
unsafe impl<T> Send for Lent<T> {}

impl<T> Lent<T> {
    /// Takes the whole wrapper, so that closures capture it and not its field.
    fn into_inner(self) -> T {
        self.0
    }
}

/// Runs `serve` on a thread of the idle class on `cpu`, and returns its result. `serve` must return soon after
/// its argument becomes true. Gives `serve` back where no thread can be started or placed.
pub(super) fn serve_beside<T, F: FnOnce(&AtomicBool) -> T>(cpu: usize, serve: F) -> Result<T, F> {
    let come_back = &AtomicBool::new(false);
    let everywhere = affinity::allowed_cpus().unwrap_or_default();
    let (sender, ended) = mpsc::channel();
    let mut serve = Some(serve);
    let lent = Lent(&mut serve);
    let begin = move || {
        let serve = lent.into_inner();
        let is_counted = affinity::cpu_time_of(affinity::thread_id()).is_some();
        if !is_counted || enter_idle_class().is_err() || affinity::pin_to_cpu(cpu).is_err() {
            return None;
        }
        // The supervisor listens until this thread has ended.
        let _ = sender.send(affinity::thread_id());
        let serve = serve.take().expect("only this thread takes it");
        Some(Lent(serve(come_back)))
    };
    let served = thread::scope(|scope| {
        let spawned = thread::Builder::new().name("pager beside".into()).spawn_scoped(scope, begin).ok()?;
        supervise(&ended, come_back, &everywhere);
        spawned.join().unwrap_or_else(|panic| resume_unwind(panic))
    });
    match served {
        Some(served) => Ok(served.into_inner()),
        None => Err(serve.expect("the thread did not begin")),
    }
}

/// Waits for the end of the idle thread, which sends its number first. Calls the thread back when others keep
/// it from its CPU.
fn supervise(ended: &Receiver<u32>, come_back: &AtomicBool, everywhere: &[usize]) {
    let (mut thread, mut before) = (None, None);
    loop {
        match ended.recv_timeout(CHECK) {
            Ok(id) => thread = Some(id),
            Err(RecvTimeoutError::Disconnected) => return,
            Err(RecvTimeoutError::Timeout) => {
                let Some(id) = thread else { continue };
                let now = affinity::cpu_time_of(id);
                if before.zip(now).is_some_and(|(before, now)| is_starved(before, now)) {
                    come_back.store(true, Ordering::Relaxed);
                    // On an idle CPU, a thread of the idle class soon ends as well.
                    let _ = affinity::allow_thread(id, everywhere);
                }
                before = now;
            }
        }
    }
}

/// Returns true if a thread waited for its CPU nearly all the time between two checks, or since the first one.
fn is_starved(before: CpuTime, now: CpuTime) -> bool {
    let waits = before.ready && now.ready && now.used == before.used;
    waits || now.waited.saturating_sub(before.waited) > DELAY_MAX
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::hint::spin_loop;

    fn a_cpu() -> usize {
        affinity::allowed_cpus().unwrap()[0]
    }

    /// The result comes back, the caller keeps its CPUs and its class, and the other thread has one CPU.
    #[test]
    fn only_the_other_thread_moves() {
        let before = affinity::allowed_cpus().unwrap();
        let seen = serve_beside(a_cpu(), |_| affinity::allowed_cpus().unwrap());
        assert_eq!(seen.ok().unwrap(), [a_cpu()]);
        assert_eq!(affinity::allowed_cpus().unwrap(), before);
    }

    /// A CPU that does not exist gives the work back.
    #[test]
    fn an_absent_cpu_gives_the_work_back() {
        let serve = serve_beside(usize::MAX, |_| 7).err().unwrap();
        assert_eq!(serve(&AtomicBool::new(false)), 7);
    }

    /// A thread that busy threads of the same session keep from its CPU is called back.
    #[test]
    fn a_starved_thread_is_called_back() {
        let stop = AtomicBool::new(false);
        let cpu = a_cpu();
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    affinity::pin_to_cpu(cpu).unwrap();
                    while !stop.load(Ordering::Relaxed) {
                        spin_loop();
                    }
                });
            }
            let called = serve_beside(cpu, |come_back| {
                while !come_back.load(Ordering::Relaxed) {
                    spin_loop();
                }
            });
            stop.store(true, Ordering::Relaxed);
            assert!(called.is_ok());
        });
    }
}
