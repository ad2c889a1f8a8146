//! The byte stream of a connection: a socket, or TLS over a socket.
//!
//! Key type: [`Stream`]. An operation that would have to wait fails with `WouldBlock`, as that of a socket
//! does.

use mio::net::TcpStream;
use rustls::{ServerConfig, ServerConnection};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::sync::Arc;

/// Bytes of replies that TLS keeps while the socket takes none.
const OUT_MAX: usize = 64 << 10;
/// Bytes of a TLS connection besides its replies: keys, a record that is read, and a record that is written.
const TLS_BYTES: usize = 40 << 10;
/// Reads of the socket for one read of a TLS connection, so that one client does not hold the others up.
/// rustls itself refuses more than 32 consecutive records without content.
const ROUNDS: usize = 16;

/// A socket, with TLS or without.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) socket: TcpStream,
    tls: Option<Box<ServerConnection>>,
}

impl Stream {
    pub(crate) const fn plain(socket: TcpStream) -> Self {
        Self { socket, tls: None }
    }

    /// Returns TLS over a socket. The handshake continues as bytes arrive.
    pub(crate) fn tls(socket: TcpStream, config: &Arc<ServerConfig>) -> Result<Self, rustls::Error> {
        let mut tls = ServerConnection::new(Arc::clone(config))?;
        tls.set_buffer_limit(Some(OUT_MAX));
        Ok(Self { socket, tls: Some(Box::new(tls)) })
    }

    /// Returns the bytes that the stream takes besides the socket.
    pub(crate) const fn bytes(&self) -> usize {
        if self.tls.is_some() { TLS_BYTES } else { 0 }
    }

    /// Returns whether the TLS handshake is under way, so that the client has no identity yet.
    pub(crate) fn is_handshaking(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.is_handshaking())
    }

    /// Returns whether TLS has bytes that the socket has not taken.
    pub(crate) fn has_output(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.wants_write())
    }

    /// Returns whether a short read may have more bytes behind it.
    pub(crate) const fn reads_in_parts(&self) -> bool {
        self.tls.is_some()
    }

    /// Reads what has arrived. Fails with `Interrupted` when TLS read many records without content: there may
    /// be more.
    pub(crate) fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let Some(tls) = &mut self.tls else { return self.socket.read(into) };
        for _ in 0..ROUNDS {
            match tls.reader().read(into) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                // The client closed without a TLS alert. Requests state their lengths, so those that arrived
                // are whole.
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(0),
                other => return other,
            }
            match tls.read_tls(&mut self.socket) {
                Ok(0) => return Ok(0),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            }
            let processed = tls.process_new_packets();
            // Handshake messages, or the alert that ends the handshake.
            while tls.wants_write() && tls.write_tls(&mut self.socket).is_ok_and(|len| len > 0) {}
            processed.map_err(|error| io::Error::new(ErrorKind::InvalidData, error))?;
        }
        Err(ErrorKind::Interrupted.into())
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Some(tls) = &mut self.tls else { return self.socket.write(bytes) };
        let taken = tls.writer().write(bytes)?;
        match self.flush() {
            // TLS has taken the bytes, and sends them when the socket has room.
            Err(error) if error.kind() == ErrorKind::WouldBlock && taken > 0 => Ok(taken),
            Err(error) => Err(error),
            Ok(()) if taken == 0 => Err(ErrorKind::WouldBlock.into()),
            Ok(()) => Ok(taken),
        }
    }

    /// Sends the bytes that TLS has taken.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        let Some(tls) = &mut self.tls else { return Ok(()) };
        while tls.wants_write() {
            match tls.write_tls(&mut self.socket) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                other => drop(other?),
            }
        }
        Ok(())
    }

    /// Tells the peer that nothing more is sent.
    pub(crate) fn shut_down(&mut self) -> io::Result<()> {
        if let Some(tls) = &mut self.tls {
            tls.send_close_notify();
            let _it_may_take_nothing = self.flush();
        }
        self.socket.shutdown(std::net::Shutdown::Write)
    }
}
