//! Ctrl-C: a command that uses a rack of others ends early, so that what it has in far memory is given back.
//!
//! The first signal (SIGINT, SIGTERM or SIGHUP) asks; [`crate::measure()`] and [`crate::load_or_free()`] listen. The second ends the process at once.

use crate::Failure;
use std::sync::atomic::{AtomicBool, Ordering};

/// The exit code of a command that was asked to stop: what a shell says of one that SIGINT ended.
pub const STOPPED: u8 = 130;

static ASKED: AtomicBool = AtomicBool::new(false);

/// Has signals ask from here on. What goes on meanwhile must look at [`asked`].
pub(crate) fn listen() -> Result<(), Failure> {
    let caught = ctrlc::set_handler(|| {
        if ASKED.swap(true, Ordering::Relaxed) {
            leave();
        }
    });
    match caught {
        // This is the second run of the process, or its own handler is there.
        Ok(()) | Err(ctrlc::Error::MultipleHandlers) => Ok(()),
        Err(error) => Err(Failure::new(format!("cannot catch Ctrl-C: {error}"), "")),
    }
}

/// Whether the process was asked to stop, after [`crate::on_rack`] began to work on a rack that others use.
#[must_use]
pub fn asked() -> bool {
    ASKED.load(Ordering::Relaxed)
}

#[expect(clippy::exit, reason = "asked twice: the user wants no more of what the program does in the end")]
fn leave() {
    std::process::exit(STOPPED.into());
}
