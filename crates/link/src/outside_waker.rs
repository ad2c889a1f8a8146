//! Wake-ups of a link of another process.

use crate::link::WakeAt;
use crate::{OpenError, shm};
use farmem_wire::UDP_PORT;
use std::fmt;
use std::net::UdpSocket;

/// A waker for a link of another process, as [`Waker`](crate::Waker) is for one of this process.
pub struct OutsideWaker(Box<dyn Fn() + Send + Sync>);

impl OutsideWaker {
    /// Opens a waker for the link with this address.
    ///
    /// # Errors
    /// [`OpenError`] if the address is not an address of this machine, or the file is not a doorbell.
    pub fn open(at: &WakeAt) -> Result<Self, OpenError> {
        Ok(Self(match at {
            WakeAt::Datagram { address } => {
                let socket = UdpSocket::bind((*address, 0))
                    .map_err(OpenError::system(format!("send from {address}")))?;
                let to = (*address, UDP_PORT);
                // If the socket's buffer is full, the receiver was woken already, or wakes by itself after a
                // while.
                Box::new(move || drop(socket.send_to(&[], to)))
            }
            WakeAt::Doorbell { path } => Box::new(shm::bell_at(path)?),
        }))
    }

    /// Ends the wait.
    pub fn wake(&self) {
        (self.0)();
    }
}

impl fmt::Debug for OutsideWaker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OutsideWaker")
    }
}
