//! Ctrl-C: a command on a shared rack ends early and frees its far memory.
//!
//! The first signal (SIGINT, SIGTERM or SIGHUP) requests a stop, which [`crate::measure()`] and
//! [`crate::load_or_free()`] obey. The second one ends the process at once.

use crate::Failure;
use std::sync::atomic::{AtomicBool, Ordering};

/// The exit code of a stopped command: a shell's code for a process ended by SIGINT.
pub const STOPPED: u8 = 130;

static ASKED: AtomicBool = AtomicBool::new(false);

/// Installs the signal handler. Work from here on must poll [`asked`].
pub(crate) fn listen() -> Result<(), Failure> {
    let caught = ctrlc::set_handler(|| {
        if ASKED.swap(true, Ordering::Relaxed) {
            leave();
        }
    });
    match caught {
        // A repeated run in this process, or its own handler exists.
        Ok(()) | Err(ctrlc::Error::MultipleHandlers) => Ok(()),
        Err(error) => Err(Failure::new(format!("cannot catch Ctrl-C: {error}"), "")),
    }
}

/// Returns true when the process was asked to stop, after [`crate::on_rack`] began to work on a shared rack.
#[must_use]
pub fn asked() -> bool {
    ASKED.load(Ordering::Relaxed)
}

#[expect(clippy::exit, reason = "asked twice: the user wants no more of what the program does in the end")]
fn leave() {
    std::process::exit(STOPPED.into());
}
