//! Page faults that are resolved with what is at hand: what a fault costs when nothing has to be fetched.

use crate::pages::{
    Fault, FaultMode, Faults, Handler, Memory, Next, Place, Reach, Ring, Window, WindowConfig, serve_shared,
};
use crate::{OpenError, Stop};
use farmem_host::agent::Pages as _;
use farmem_wire::VirtAddr;
use farmem_wire::message::{Access, PAGE_LEN, Page};
use std::thread;

/// Runs `program` on a thread of its own with `pages` pages none of which is here; each is installed when it is touched, to be read, by a thread that serves
/// or by the one that faults.
///
/// # Errors
/// When this process may not serve faults, or the system reads no more of them.
///
/// # Panics
/// When `program` does, or there are no pages.
pub fn faults<R: Send>(
    mode: FaultMode,
    pages: usize,
    program: impl FnOnce(Memory<'_>) -> R + Send,
) -> Result<R, OpenError> {
    let window = Window::open(&WindowConfig {
        base: VirtAddr(0),
        len: (pages * PAGE_LEN) as u64,
        frames_max: pages as u64,
        place: Place::Anywhere,
        reach: Reach::Full,
        faults: mode,
    })?;
    let stop = Stop::new();
    let ring = Ring::new(&window, stop.clone());
    let mut at_hand = AtHand(&window, [7; PAGE_LEN]);
    thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let _end = EndWhenDropped(&ring);
            program(window.memory())
        });
        if let Err(source) = serve_shared(&window, Handler::default(), &stop, &mut at_hand) {
            window.abandon(); // or the program would wait for ever
            return Err(OpenError::System { doing: "read page faults".into(), source });
        }
        Ok(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })
}

struct EndWhenDropped<'a>(&'a Ring<'a>);

impl Drop for EndWhenDropped<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// Installs what is at hand.
struct AtHand<'w>(&'w Window, [u8; PAGE_LEN]);

impl Faults for AtHand<'_> {
    fn fault(&mut self, page: Page, _: Fault) {
        if self.0.has(page) {
            self.0.wake(page);
        } else {
            self.0.install(page, &self.1, Access::Shared);
        }
    }

    fn turn(&mut self) -> Next {
        Next::Sleep
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_is_resolved() {
        for mode in [FaultMode::Handler, FaultMode::Signal] {
            let touched = faults(mode, 8, |memory| {
                let mut bytes = [0; 3];
                (0..8).all(|index| {
                    memory.read(index * PAGE_LEN + 9, &mut bytes);
                    bytes == [7; 3]
                })
            });
            match touched {
                Err(refused) => eprintln!("skipped: {refused}"),
                Ok(all) => assert!(all),
            }
        }
    }
}
