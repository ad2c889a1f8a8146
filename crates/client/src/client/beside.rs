//! A client that serves others beside its own calls: the DPU's (SODA).

use crate::client::Client;
use crate::config::DpuSection;
use crate::error::Error;
use crate::host_settings::machine;
use crate::operation::{Completed, Ticket};
use farmem_control::api::Overview;
use farmem_link::{Clock, WakeAt, Waker};
use farmem_machine::{Duration, Instant};

/// The longest sleep between two looks at the clock while an operation is waited for.
const TURN: Duration = Duration::from_millis(20);

impl Client {
    /// Sends what was submitted, and waits for anything to arrive: at most so long, or until a waker of [`Client::wakers`] calls.
    ///
    /// # Errors
    /// [`Error::System`] when the link failed, and within one process, where nothing arrives by itself.
    pub fn rest(&mut self, most: Duration) -> Result<(), Error> {
        self.path.rest(most).unwrap_or_else(|| Err(in_process()))
    }

    /// As [`Client::wait`], but for at most so long: `None` when the operation is still under way then. Within one process it waits until the operation ends.
    ///
    /// # Errors
    /// [`Error::System`] when the link failed.
    ///
    /// # Panics
    /// As [`Client::wait`].
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

    /// Wakers that end [`Client::rest`]: from another thread, and from another process of this machine.
    ///
    /// # Errors
    /// [`Error::System`] when the system has no more descriptors, and within one process.
    pub fn wakers(&self) -> Result<(Waker, WakeAt), Error> {
        self.path.wakers().unwrap_or_else(|| Err(in_process()))
    }

    /// True while its host, in this life of it, is in the rack; false when it was fenced ([`Client::fence`]), or its address has joined again.
    ///
    /// # Errors
    /// [`Error::Api`] when the control plane cannot be reached.
    pub fn is_member(&mut self) -> Result<bool, Error> {
        let own = self.life();
        Ok(self.path.call(Overview {})?.hosts.iter().any(|host| (host.host, host.generation) == own))
    }

    /// The number of its domain.
    #[must_use]
    pub const fn domain(&self) -> u32 {
        self.domain_number()
    }

    /// The description of the DPU beside each host (`[dpu]` of `rack.toml`); `None` of a rack without.
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
        what: "the client's rack is in its own process, and no process is beside that".into(),
        source,
    }
}
