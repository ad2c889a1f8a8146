//! A client that serves other programs in addition to its own calls: the DPU's (SODA).

use crate::client::Client;
use crate::config::DpuSection;
use crate::error::Error;
use crate::host_settings::machine;
use crate::operation::{Completed, Ticket};
use farmem_control::api::Overview;
use farmem_link::{Clock, WakeAt, Waker};
use farmem_machine::{Duration, Instant};

/// The longest sleep between two checks of the clock while the caller waits for an operation.
const TURN: Duration = Duration::from_millis(20);

impl Client {
    /// Sends all submitted operations, and waits until something arrives, a waker of [`Client::wakers`]
    /// calls, or `most` has passed.
    ///
    /// # Errors
    /// [`Error::System`] if the link failed; also for a rack within this process, where nothing arrives by
    /// itself.
    pub fn rest(&mut self, most: Duration) -> Result<(), Error> {
        self.path.rest(most).unwrap_or_else(|| Err(in_process()))
    }

    /// Waits as [`Client::wait`] does, but at most for `most`. Returns `None` if the operation is still
    /// pending. For a rack within this process, this method waits until the operation completes.
    ///
    /// # Errors
    /// [`Error::System`] if the link failed.
    ///
    /// # Panics
    /// Panics as [`Client::wait`] does.
    pub fn wait_for(
        &mut self,
        ticket: Ticket,
        most: std::time::Duration,
    ) -> Result<Option<Completed>, Error> {
        let clock = Clock::start();
        while !self.ready.iter().any(|completed| completed.ticket == ticket) {
            assert!(self.slots.holds(ticket.0), "{ticket:?} is not outstanding");
            match self.path.rest(TURN) {
                None => break,
                Some(rested) => rested?,
            }
            while let Some(completed) = self.pop_ended() {
                if completed.ticket == ticket {
                    return Ok(Some(completed));
                }
                self.ready.push_back(completed);
            }
            if clock.now().since(Instant::ZERO) >= machine(most) {
                return Ok(None);
            }
        }
        self.wait(ticket).map(Some)
    }

    /// Returns the wakers that end [`Client::rest`]: one for other threads, and one for other processes of
    /// this machine.
    ///
    /// # Errors
    /// [`Error::System`] if the system has no free file descriptors; also for a rack within this process.
    pub fn wakers(&self) -> Result<(Waker, WakeAt), Error> {
        self.path.wakers().unwrap_or_else(|| Err(in_process()))
    }

    /// Returns true while this generation of the client's host is in the rack; false after a fence
    /// ([`Client::fence`]) or another join of its address.
    ///
    /// # Errors
    /// [`Error::Api`] if the control plane cannot be reached.
    pub fn is_member(&mut self) -> Result<bool, Error> {
        let own = self.life();
        Ok(self.path.call(Overview {})?.hosts.iter().any(|host| (host.host, host.generation) == own))
    }

    /// Returns the number of the client's domain.
    #[must_use]
    pub const fn domain(&self) -> u32 {
        self.domain_number()
    }

    /// Returns the description of each host's DPU (`[dpu]` of `rack.toml`); `None` for a rack without DPUs.
    #[must_use]
    pub const fn dpu(&self) -> Option<&DpuSection> {
        self.dpu.as_ref()
    }

    pub(crate) fn set_dpu(&mut self, dpu: Option<DpuSection>) {
        self.dpu = dpu;
    }
}

fn in_process() -> Error {
    let source = std::io::ErrorKind::Unsupported.into();
    Error::System {
        what: "the client's rack is within its own process and has no other processes".into(),
        source,
    }
}
