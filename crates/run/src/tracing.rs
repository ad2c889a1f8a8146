//! System calls that a thread of a program makes on the pager's behalf ([`Tracee`]).
//!
//! The pager waits for each result, and serves page faults meanwhile: the thread, or another one that holds a lock of the kernel, may need a
//! page.

use super::Pager;
use farmem_uffd::remote::Event;
use farmem_uffd::remote::raw::{Stop, Tracee};
use std::io;
use std::time::{Duration, Instant};

/// Time within which a thread stops, or a call returns. The process is killed after it.
const STOP_TIME_MAX: Duration = Duration::from_secs(10);
/// Looks at the thread before the pager turns to page faults: most calls return in less time than these take.
const LOOKS: u32 = 64;
/// Time between two later looks.
const LOOK_TIME: Duration = Duration::from_micros(100);

impl Pager {
    /// Waits for a thread's next stop.
    pub(super) fn stop_of(&mut self, tracee: &mut Tracee) -> io::Result<Stop> {
        let until = Instant::now() + STOP_TIME_MAX;
        let mut looks = 0;
        loop {
            if let Some(stop) = tracee.poll()? {
                return Ok(stop);
            }
            if looks < LOOKS {
                looks += 1;
                std::thread::yield_now();
                continue;
            }
            if Instant::now() > until {
                return Err(io::ErrorKind::TimedOut.into());
            }
            self.serve_faults()?;
        }
    }

    /// Has the thread make a call, and returns its value.
    pub(super) fn inject(
        &mut self,
        tracee: &mut Tracee,
        number: i64,
        arguments: [u64; 6],
    ) -> io::Result<u64> {
        tracee.call(number, arguments)?;
        match self.stop_of(tracee)? {
            Stop::Returned(value) => value_of(value),
            Stop::Ready | Stop::Forked(_) => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// Serves page faults alone for a moment. Other events stay.
    fn serve_faults(&mut self) -> io::Result<()> {
        let mut events = Vec::new();
        self.acceptor.events(Some(LOOK_TIME), &mut events)?;
        for event in events {
            if let Event::Faults(key) = event {
                self.faulted(key);
            }
        }
        self.turn();
        Ok(())
    }
}

/// Converts a register that a call has returned.
pub(super) fn value_of(register: u64) -> io::Result<u64> {
    match i32::try_from(register.cast_signed()) {
        Ok(errno @ -4095..=-1) => Err(io::Error::from_raw_os_error(-errno)),
        _ => Ok(register),
    }
}
