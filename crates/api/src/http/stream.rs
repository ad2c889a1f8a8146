//! A connection of the API server, at any of its endpoints: TCP, TLS over TCP, or a Unix socket.
//!
//! The HTTP library treats all of them alike. Only the timeout of a client that accepts nothing differs: the
//! system measures this time for TCP, and [`Stream`] measures it for a Unix socket.

use super::tls::Acceptor;
use socket2::SockRef;
use std::future::Future as _;
use std::io::{self, Read as _};
use std::mem::MaybeUninit;
use std::net::{IpAddr, Shutdown};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::time::{Sleep, sleep};
use tokio_rustls::server::TlsStream;

/// The source of a connection, for which the number of unauthenticated connections is limited.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Source {
    /// A process of this machine with access to the state directory.
    Local,
    /// An IP address.
    Ip(IpAddr),
}

/// A listener for connections.
#[derive(Debug)]
pub(super) enum Listener {
    /// A Unix socket.
    Unix(UnixListener),
    /// Plain TCP.
    Plain(TcpListener),
    /// TCP with TLS.
    Tls(TcpListener, Acceptor),
}

/// A connection of which nothing was read yet.
#[derive(Debug)]
pub(super) enum Incoming {
    /// A stream that is ready.
    Ready(Stream),
    /// A connection before its TLS handshake.
    Tls(TcpStream, Acceptor),
}

impl Listener {
    /// Waits for the next connection.
    pub(super) async fn accept(&self) -> io::Result<(Incoming, Source)> {
        Ok(match self {
            Self::Unix(listener) => {
                (Incoming::Ready(Stream::unix(listener.accept().await?.0)), Source::Local)
            }
            Self::Plain(listener) => {
                let (stream, from) = listener.accept().await?;
                (Incoming::Ready(Stream(Kind::Plain(stream))), Source::Ip(from.ip()))
            }
            Self::Tls(listener, acceptor) => {
                let (stream, from) = listener.accept().await?;
                (Incoming::Tls(stream, acceptor.clone()), Source::Ip(from.ip()))
            }
        })
    }
}

impl Incoming {
    /// Ends the connection when its client accepts no byte of an answer for this time. Returns false if the
    /// connection is already closed.
    pub(super) fn bound_answers(&mut self, most: Duration) -> bool {
        match self {
            Self::Ready(Stream(Kind::Unix { patience, .. })) => {
                *patience = most;
                true
            }
            Self::Tls(stream, _) | Self::Ready(Stream(Kind::Plain(stream))) => {
                SockRef::from(&*stream).set_tcp_user_timeout(Some(most)).is_ok()
            }
            Self::Ready(Stream(Kind::Tls(stream))) => {
                SockRef::from(stream.get_ref().0).set_tcp_user_timeout(Some(most)).is_ok()
            }
        }
    }

    /// Returns the stream, after the TLS handshake if there is one. The caller limits the time.
    pub(super) async fn ready(self) -> io::Result<Stream> {
        match self {
            Self::Ready(stream) => Ok(stream),
            Self::Tls(stream, acceptor) => Ok(Stream(Kind::Tls(Box::new(acceptor.0.accept(stream).await?)))),
        }
    }
}

/// A connection in the form for the HTTP library.
#[derive(Debug)]
pub(super) struct Stream(Kind);

#[derive(Debug)]
enum Kind {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
    Unix {
        stream: UnixStream,
        patience: Duration,
        /// Runs while the client accepts no bytes.
        stuck: Option<Pin<Box<Sleep>>>,
    },
}

impl Stream {
    const fn unix(stream: UnixStream) -> Self {
        Self(Kind::Unix { stream, patience: Duration::MAX, stuck: None })
    }

    fn socket(&self) -> SockRef<'_> {
        match &self.0 {
            Kind::Plain(stream) => SockRef::from(stream),
            Kind::Tls(stream) => SockRef::from(stream.get_ref().0),
            Kind::Unix { stream, .. } => SockRef::from(stream),
        }
    }

    /// Returns true if unread bytes have arrived. This method asks the system, because the runtime knows only
    /// the result of its last poll.
    pub(super) fn has_unread(&self) -> bool {
        let mut byte = [MaybeUninit::uninit(); 1];
        self.socket().peek(&mut byte).is_ok_and(|len| len > 0)
    }

    /// Sends a text as far as possible without waiting, and ends the connection. Reads and discards up to
    /// `leftover` bytes that the client still sends.
    pub(super) fn end_with(&mut self, text: &[u8], mut leftover: usize) {
        let mut now = Context::from_waker(Waker::noop());
        drop(Pin::new(&mut *self).poll_write(&mut now, text));
        drop(Pin::new(&mut *self).poll_flush(&mut now));
        let socket = self.socket();
        drop(socket.shutdown(Shutdown::Write));
        let mut bytes = [0; 4096];
        while let Ok(len) = (&*socket).read(&mut bytes) {
            leftover = leftover.saturating_sub(len);
            if len == 0 || leftover == 0 {
                return;
            }
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut self.0 {
            Kind::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Kind::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
            Kind::Unix { stream, .. } => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match &mut self.0 {
            Kind::Plain(stream) => Pin::new(stream).poll_write(cx, buf),
            Kind::Tls(stream) => Pin::new(stream).poll_write(cx, buf),
            Kind::Unix { stream, patience, stuck } => match Pin::new(stream).poll_write(cx, buf) {
                Poll::Pending if *patience < Duration::MAX => {
                    let timer = stuck.get_or_insert_with(|| Box::pin(sleep(*patience)));
                    timer.as_mut().poll(cx).map(|()| Err(io::ErrorKind::TimedOut.into()))
                }
                moved => {
                    *stuck = None;
                    moved
                }
            },
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.0 {
            Kind::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Kind::Tls(stream) => Pin::new(stream).poll_flush(cx),
            Kind::Unix { stream, .. } => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.0 {
            Kind::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Kind::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
            Kind::Unix { stream, .. } => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
