//! Page faults that are resolved with what is at hand: what a fault costs when nothing has to be fetched.

use farmem_host::agent::Pages as _;
use farmem_link::{OpenError, Stop};
use farmem_uffd::{
    Addressing, Fault, FaultMode, Faults, Handler, Memory, Next, Reach, Ring, Window, WindowConfig, serve,
    serve_shared,
};
use farmem_wire::VirtAddr;
use farmem_wire::message::{Access, PAGE_LEN, Page};
use std::thread;

/// The thread that installs the pages of [`faults`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Server {
    /// As in a shared space: by signals the thread that faults, else the thread that calls.
    Shared,
    /// The thread that calls, alone, as a pager that is not in the program's process has to: by signals the thread that faults leaves its touch in a
    /// slot, and looks or sleeps until its page is there.
    Alone(Handler),
}

/// Runs `program` on a thread of its own with `pages` pages none of which is here; each is installed when it is touched, to be read, by `server`.
///
/// # Errors
/// When this process may not serve faults, or the system reads no more of them.
///
/// # Panics
/// When `program` does, or there are no pages.
pub fn faults<R: Send>(
    mode: FaultMode,
    server: Server,
    pages: usize,
    program: impl FnOnce(Memory<'_>) -> R + Send,
) -> Result<R, OpenError> {
    let window = Window::open(&WindowConfig {
        base: VirtAddr(0),
        len: (pages * PAGE_LEN) as u64,
        frames_max: pages as u64,
        place: Addressing::Anywhere,
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
        let served = match server {
            Server::Shared => serve_shared(&window, Handler::default(), &stop, &mut at_hand),
            Server::Alone(handler) => serve(&window, handler, &stop, &mut at_hand),
        };
        if let Err(source) = served {
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
        let modes = [FaultMode::Handler, FaultMode::Signal];
        let servers = [Server::Shared, Server::Alone(Handler::default())];
        for (mode, server) in modes.into_iter().flat_map(|mode| servers.map(|server| (mode, server))) {
            let touched = faults(mode, server, 8, |memory| {
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
