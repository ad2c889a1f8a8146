//! The service: a store behind a TCP port, for clients that speak RESP2 or RESP3.
//!
//! Key type: [`Server`]. A thread per connection reads requests and writes replies. One thread owns the store
//! and executes requests; pipelined requests of a client run one after the other. Connections, requests in
//! flight and their bytes are bounded. An invalid request ends only its own connection.
//!
//! A far-memory error is the reply to its request, and the service continues, because memory nodes come back.
//! The service ends when its host was removed from the rack, as by a program that took over the store: its
//! later operations would not count.

use crate::command::{Done, carry_out, hello};
use crate::store::{Store, StoreError};
use farmem::{Client, Error};
use farmem_protocols::resp::{Limits, Parsed, Protocol, Reply, Requests, Writer};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::mem::{Discriminant, discriminant};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

/// Bound on the concurrent connections.
pub const CONNECTIONS_MAX: usize = 256;
/// Bounds of a request: a value in a word plus some room, and a line that a person types.
const LIMITS: Limits = Limits {
    words_max: 1_024,
    word_len_max: (64 << 10) + 512,
    request_len_max: 1 << 20,
    line_len_max: 4 << 10,
};
/// Bound on the requests of one connection that are executed together.
const TOGETHER_MAX: usize = 1_024;
/// Bound on the bytes still read from an ended connection.
const LEFT_MAX: usize = 16 << 20;
/// Bytes read at once.
const CHUNK: usize = 64 << 10;
/// Polling interval of a connection for the end of the service.
const LOOK: Duration = Duration::from_millis(200);
/// Bound on the wait for a client that reads no reply.
const PATIENCE: Duration = Duration::from_secs(10);
/// Longest time between two renewals of the store's heap lease.
const KEEP: Duration = Duration::from_secs(2);

/// Requests of a connection, as words, and the channel of their replies.
struct RequestBatch {
    requests: Vec<Vec<Vec<u8>>>,
    session: Session,
    replies: SyncSender<(Vec<u8>, Session)>,
}

/// The number of a connection, and the protocol version that its client selected.
#[derive(Clone, Copy)]
struct Session {
    id: u64,
    protocol: Protocol,
}

/// A listening service.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    stop: Arc<AtomicBool>,
}

/// A handle that ends a service from another thread.
#[derive(Clone, Debug)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Ends the service after it has answered the requests already read.
    pub fn stop(&self) {
        self.0.store(true, Ordering::Release);
    }
}

impl Server {
    /// Listens at an address.
    ///
    /// # Errors
    /// The system's error.
    pub fn listen(at: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind(at)?;
        listener.set_nonblocking(true)?;
        Ok(Self { listener, stop: Arc::default() })
    }

    /// Returns the listening address, with the port that the system chose.
    ///
    /// # Errors
    /// The system's error.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Returns a handle that ends the service.
    #[must_use]
    pub fn stopper(&self) -> Stop {
        Stop(Arc::clone(&self.stop))
    }

    /// Serves until stopped. A reply means that its request was executed. `tell` receives messages for the
    /// store's owner: far-memory failures, and recoveries.
    ///
    /// # Errors
    /// [`StoreError::Fenced`] when the client's host was removed from the rack; its requests were answered
    /// with errors by then. Other errors are replies to their requests.
    pub fn serve(
        self,
        store: &mut Store,
        client: &mut Client,
        tell: &mut dyn FnMut(&str),
    ) -> Result<u64, StoreError> {
        let (work, take) = sync_channel(CONNECTIONS_MAX);
        let stop = Arc::clone(&self.stop);
        let accepting = thread::spawn(move || self.accept(&work));
        let worked = carry_out_all(store, client, &take, tell);
        stop.store(true, Ordering::Release);
        drop(take);
        accepting.join().expect("the thread that accepts does not panic");
        worked
    }

    /// Accepts connections until the service ends, and waits for their threads.
    fn accept(&self, work: &SyncSender<RequestBatch>) {
        let open = Arc::new(AtomicUsize::new(0));
        let mut ids = 1..;
        let mut threads: Vec<thread::JoinHandle<()>> = Vec::new();
        while !self.stop.load(Ordering::Acquire) {
            threads.retain(|thread| !thread.is_finished());
            match self.listener.accept() {
                Ok((stream, _)) if open.load(Ordering::Acquire) >= CONNECTIONS_MAX => refuse(stream),
                Ok((stream, _)) => {
                    open.fetch_add(1, Ordering::AcqRel);
                    let (work, stop, open) = (work.clone(), Arc::clone(&self.stop), Arc::clone(&open));
                    let id = ids.next().expect("fewer connections than 2^64");
                    let session = Session { id, protocol: Protocol::Resp2 };
                    threads.push(thread::spawn(move || {
                        // The client left or reads nothing; this affects only the client.
                        let _client_is_gone = connection(stream, session, &work, &stop);
                        open.fetch_sub(1, Ordering::AcqRel);
                    }));
                }
                // No pending connection, or the system has no room for more: retry.
                Err(_) => thread::sleep(Duration::from_millis(5)),
            }
        }
        threads.into_iter().for_each(|thread| thread.join().expect("a connection's thread does not panic"));
    }
}

/// Encodes a reply that is the same in both protocol versions.
fn emitted(reply: &Reply) -> Vec<u8> {
    let mut bytes = Vec::new();
    reply.emit(&mut Writer::new(&mut bytes, Protocol::Resp2));
    bytes
}

/// Refuses a connection beyond the bound.
fn refuse(mut stream: TcpStream) {
    let refusal = Reply::Error(format!("ERR {CONNECTIONS_MAX} clients are connected, which is the limit"));
    let bytes = emitted(&refusal);
    let _client_is_gone = stream.set_write_timeout(Some(LOOK)).and_then(|()| stream.write_all(&bytes));
}

/// Executes the requests of connections until the last of them is gone.
fn carry_out_all(
    store: &mut Store,
    client: &mut Client,
    work: &Receiver<RequestBatch>,
    tell: &mut dyn FnMut(&str),
) -> Result<u64, StoreError> {
    let (mut done, mut health) = (Done::default(), Health::default());
    loop {
        match work.recv_timeout(KEEP) {
            Ok(RequestBatch { requests, mut session, replies }) => {
                let mut bytes = Vec::new();
                let mut into = Writer::new(&mut bytes, session.protocol);
                for request in &requests {
                    let args: Vec<&[u8]> = request.iter().map(Vec::as_slice).collect();
                    match args[..] {
                        [name, ref options @ ..] if name.eq_ignore_ascii_case(b"HELLO") => {
                            hello(&mut done, options, session.id, &mut into);
                        }
                        _ => carry_out(store, client, &mut done, &args).emit(&mut into),
                    }
                }
                session.protocol = into.protocol();
                // The connection may have ended meanwhile.
                let _nobody_waits = replies.send((bytes, session));
                if let Some(error) = done.far.take() {
                    health.fails(client, &error, tell)?;
                }
            }
            Err(RecvTimeoutError::Timeout) => match store.keep(client) {
                Ok(()) => health.answers(tell),
                Err(error) => {
                    health.is_kept_out = true;
                    health.fails(client, &error, tell)?;
                }
            },
            Err(RecvTimeoutError::Disconnected) => return Ok(done.commands),
        }
    }
}

/// The health of the store's far memory.
#[derive(Default)]
struct Health {
    /// The kinds of errors already reported.
    told: Vec<Discriminant<Error>>,
    /// True when a lease renewal failed.
    is_kept_out: bool,
}

impl Health {
    /// Reports the first error of each kind, unless this program's host was removed from the rack.
    fn fails(
        &mut self,
        client: &mut Client,
        error: &Error,
        tell: &mut dyn FnMut(&str),
    ) -> Result<(), StoreError> {
        // An unreachable control plane does not prove a removal.
        if client.is_member().is_ok_and(|is_member| !is_member) {
            return Err(StoreError::Fenced);
        }
        let kind = discriminant(error);
        if !self.told.contains(&kind) {
            self.told.push(kind);
            tell(&format!(
                "{error}; {}; what needs that is answered with an error until then",
                error.remedy()
            ));
        }
        Ok(())
    }

    /// Records a successful renewal.
    fn answers(&mut self, tell: &mut dyn FnMut(&str)) {
        if self.is_kept_out {
            *self = Self::default();
            tell("the store answers again");
        }
    }
}

/// Ends a connection so that its last reply arrives: closing a socket with unread bytes would discard the
/// reply.
fn leave(stream: &mut TcpStream, chunk: &mut [u8]) -> io::Result<()> {
    stream.shutdown(Shutdown::Write)?;
    for _ in 0..LEFT_MAX / CHUNK {
        if stream.read(chunk)? == 0 {
            break;
        }
    }
    Ok(())
}

/// Reads requests and writes replies until the client leaves, sends an invalid request, or the service ends.
fn connection(
    mut stream: TcpStream,
    mut session: Session,
    work: &SyncSender<RequestBatch>,
    stop: &AtomicBool,
) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(LOOK))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let (mut bytes, mut chunk, mut reader) = (Vec::new(), vec![0; CHUNK], Requests::new());
    loop {
        let mut at = 0;
        let (mut requests, mut end) = (Vec::new(), None);
        while end.is_none() && requests.len() < TOGETHER_MAX {
            match reader.parse(&bytes[at..], &LIMITS) {
                Parsed::More { .. } => break,
                Parsed::Broken(what) => end = Some(Reply::Error(format!("ERR Protocol error: {what}"))),
                Parsed::Whole { len } => {
                    let args = reader.words(&bytes[at..]);
                    if args.clone().next().is_some_and(|name| name.eq_ignore_ascii_case(b"QUIT")) {
                        end = Some(Reply::Simple("OK"));
                    } else if !reader.is_empty() {
                        requests.push(args.map(<[u8]>::to_vec).collect());
                    }
                    at += len;
                }
            }
        }
        bytes.drain(..at);
        let had_some = !requests.is_empty();
        if had_some {
            let (replies, answer) = sync_channel(1);
            // The service is ending: no further request is executed.
            if work.send(RequestBatch { requests, session, replies }).is_err() {
                return Ok(());
            }
            let Ok((answer, selected)) = answer.recv() else { return Ok(()) };
            session = selected;
            stream.write_all(&answer)?;
        }
        if let Some(last) = end {
            stream.write_all(&emitted(&last))?;
            return leave(&mut stream, &mut chunk);
        }
        if had_some {
            continue; // there may be more in what was read
        }
        // Checked here too: a client that is never silent would keep the service from ending.
        if stop.load(Ordering::Acquire) {
            return Ok(());
        }
        assert!(bytes.len() <= LIMITS.request_len_max + CHUNK, "no more is kept than a request has");
        match stream.read(&mut chunk) {
            Ok(0) => return Ok(()),
            Ok(len) => bytes.extend_from_slice(&chunk[..len]),
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
                ) => {}
            Err(error) => return Err(error),
        }
    }
}
