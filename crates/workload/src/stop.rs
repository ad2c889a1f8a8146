//! Ctrl-C: a command on a shared rack ends early and frees its far memory.
//!
//! The first signal (SIGINT, SIGTERM or SIGHUP) requests a stop, which [`crate::measure()`] and
//! [`crate::load_or_free()`] obey. The second one ends the process at once.

use crate::Failure;
use farmem::signals::{hangups_are_ignored, ignore_hangups};
use std::sync::atomic::{AtomicBool, Ordering};

/// The exit code of a stopped command: a shell's code for a process ended by SIGINT.
pub const STOPPED: u8 = 130;

static ASKED: AtomicBool = AtomicBool::new(false);

/// Installs the signal handler. Work from here on must poll [`asked`].
pub(crate) fn listen() -> Result<(), Failure> {
    let caught = on_interrupt(|| {
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

/// Runs `handler`, on a thread of its own, whenever SIGINT or SIGTERM arrives. SIGHUP counts as well, unless it was ignored before, as
/// for a command that `nohup` started.
///
/// # Errors
/// [`ctrlc::Error`] when the process has a handler already, or the system refuses one.
pub fn on_interrupt(handler: impl FnMut() + Send + 'static) -> Result<(), ctrlc::Error> {
    let ignored = hangups_are_ignored();
    ctrlc::set_handler(handler)?;
    if ignored {
        ignore_hangups();
    }
    Ok(())
}

/// Installs a handler as [`on_interrupt`] does, and ignores SIGHUP. Use it in a command whose memory others use.
///
/// # Errors
/// As [`on_interrupt`].
pub fn on_terminate(handler: impl FnMut() + Send + 'static) -> Result<(), ctrlc::Error> {
    ctrlc::set_handler(handler)?;
    ignore_hangups();
    Ok(())
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
