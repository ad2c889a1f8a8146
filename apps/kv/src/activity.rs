//! The part of a connection's state that `CLIENT LIST` shows.
//!
//! Key type: [`Activity`].

use farmem_protocols::commands::{Command, number_of};
use farmem_protocols::resp::Protocol;
use std::sync::atomic::{AtomicI64, AtomicU8, AtomicUsize, Ordering::Relaxed};

/// The state of a client that changes with each request. The connection writes the fields, `CLIENT LIST` reads them,
/// both in the thread that runs commands.
#[derive(Debug)]
pub(crate) struct Activity {
    /// The number of the last command in the table.
    pub(crate) command: AtomicUsize,
    /// The time of the last command, in milliseconds since 1970; 0 before the first one.
    pub(crate) at: AtomicI64,
    pub(crate) db: AtomicU8,
    pub(crate) protocol: AtomicU8,
    /// The number of requests of the transaction, or -1 outside of one, and their bytes.
    pub(crate) queued: AtomicI64,
    pub(crate) queued_bytes: AtomicUsize,
    pub(crate) input: (AtomicUsize, AtomicUsize),
    pub(crate) output: (AtomicUsize, AtomicUsize),
    /// The bytes of all buffers of the connection.
    pub(crate) bytes: AtomicUsize,
}

impl Default for Activity {
    fn default() -> Self {
        Self {
            command: AtomicUsize::new(usize::MAX),
            at: AtomicI64::new(0),
            db: AtomicU8::new(0),
            protocol: AtomicU8::new(2),
            queued: AtomicI64::new(-1),
            queued_bytes: AtomicUsize::new(0),
            input: Default::default(),
            output: Default::default(),
            bytes: AtomicUsize::new(0),
        }
    }
}

/// The length and the capacity of a buffer.
pub(crate) type Sizes = (usize, usize);

impl Activity {
    /// Notes the command that begins.
    pub(crate) fn begin(&self, command: &'static Command, now: i64) {
        self.command.store(number_of(command), Relaxed);
        self.note_time(now);
    }

    /// Notes the time of a request.
    pub(crate) fn note_time(&self, now: i64) {
        self.at.store(now, Relaxed);
    }

    /// Notes the database, the protocol and the transaction of the session after a command: the number of the queued
    /// requests, and their bytes.
    pub(crate) fn end(&self, db: u8, protocol: Protocol, queued: Option<(usize, usize)>) {
        self.db.store(db, Relaxed);
        self.protocol.store(if protocol == Protocol::Resp2 { 2 } else { 3 }, Relaxed);
        let len = queued.map(|(len, _)| i64::try_from(len).unwrap_or(i64::MAX));
        self.queued.store(len.unwrap_or(-1), Relaxed);
        self.queued_bytes.store(queued.map_or(0, |(_, bytes)| bytes), Relaxed);
    }

    pub(crate) fn input_room(&self) -> usize {
        self.input.1.load(Relaxed)
    }

    pub(crate) fn output_room(&self) -> usize {
        self.output.1.load(Relaxed)
    }

    /// Notes the sizes of the connection's buffers.
    pub(crate) fn set_buffers(&self, input: Sizes, output: Sizes, bytes: usize) {
        for (to, from) in [(&self.input, input), (&self.output, output)] {
            to.0.store(from.0, Relaxed);
            to.1.store(from.1, Relaxed);
        }
        self.bytes.store(bytes, Relaxed);
    }
}
