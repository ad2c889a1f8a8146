//! What a connection reads from and writes to: a socket, or TLS over one.
//!
//! Key type: [`Stream`]. What it would have to wait for is `WouldBlock`, as of a socket.

use mio::net::TcpStream;
use rustls::{ServerConfig, ServerConnection};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::sync::Arc;

/// Bytes of replies that TLS keeps while the socket takes none.
const OUT_MAX: usize = 64 << 10;
/// Bytes that a TLS connection takes beside its replies: its keys, a record that is read and one that is written.
const TLS_BYTES: usize = 40 << 10;
/// How often the socket is read for one read of a TLS connection, so that one client does not hold the others up. More than 32 records without bytes, one behind the other, rustls refuses by itself.
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

    /// TLS over a socket; its handshake goes on as bytes come.
    pub(crate) fn tls(socket: TcpStream, config: &Arc<ServerConfig>) -> Result<Self, rustls::Error> {
        let mut tls = ServerConnection::new(Arc::clone(config))?;
        tls.set_buffer_limit(Some(OUT_MAX));
        Ok(Self { socket, tls: Some(Box::new(tls)) })
    }

    /// Bytes that it takes beside the socket.
    pub(crate) const fn bytes(&self) -> usize {
        if self.tls.is_some() { TLS_BYTES } else { 0 }
    }

    /// True while nobody knows who the client is, nor what it wants.
    pub(crate) fn is_handshaking(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.is_handshaking())
    }

    /// Returns whether TLS has bytes that the socket has not taken.
    pub(crate) fn has_output(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.wants_write())
    }

    /// True when a short read does not say that there is no more.
    pub(crate) const fn reads_in_parts(&self) -> bool {
        self.tls.is_some()
    }

    /// Reads what is there. Where TLS has read much that has no bytes for the server, it is `Interrupted`, and there may be more.
    pub(crate) fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let Some(tls) = &mut self.tls else { return self.socket.read(into) };
        for _ in 0..ROUNDS {
            match tls.reader().read(into) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                // Cut off without a word: what came before it is whole all the same, as requests say their lengths.
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
            // Parts of the handshake, or why there is none.
            while tls.wants_write() && tls.write_tls(&mut self.socket).is_ok_and(|len| len > 0) {}
            processed.map_err(|error| io::Error::new(ErrorKind::InvalidData, error))?;
        }
        Err(ErrorKind::Interrupted.into())
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Some(tls) = &mut self.tls else { return self.socket.write(bytes) };
        let taken = tls.writer().write(bytes)?;
        match self.flush() {
            // It is taken, and goes when the socket takes some.
            Err(error) if error.kind() == ErrorKind::WouldBlock && taken > 0 => Ok(taken),
            Err(error) => Err(error),
            Ok(()) if taken == 0 => Err(ErrorKind::WouldBlock.into()),
            Ok(()) => Ok(taken),
        }
    }

    /// Sends what was taken and not sent yet.
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

    /// Says that nothing more is sent.
    pub(crate) fn shut_down(&mut self) -> io::Result<()> {
        if let Some(tls) = &mut self.tls {
            tls.send_close_notify();
            let _it_may_take_nothing = self.flush();
        }
        self.socket.shutdown(std::net::Shutdown::Write)
    }
}
