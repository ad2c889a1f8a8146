//! Threads that read from sockets and write to them, beside the thread that executes commands
//! (`--io-threads`).
//!
//! Key types: [`IoThreads`], the threads; [`Connections`], which lends connections to them. In a turn with many
//! clients all threads read, then one thread executes all commands, then all threads send. A connection is in
//! one thread at a time, and returns before the next phase.

use crate::connection::{CHUNK, Connection, Outcome};
use slab::Slab;
use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Instant;

/// Connections for each thread that make waking it worthwhile.
const WORTH: usize = 4;

/// A task for a thread.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Task {
    /// Read from the client, up to `most` bytes.
    Read { most: usize, now: Instant },
    /// Send the replies.
    Send { pause: usize, kept: usize },
}

/// A connection that a thread works on, and the outcome.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) number: usize,
    connection: Box<Connection>,
    task: Task,
    pub(crate) outcome: Outcome,
}

impl Job {
    fn run(&mut self, chunk: &mut [u8]) {
        self.outcome = match self.task {
            Task::Read { most, now } => self.connection.read_in(chunk, most, now),
            Task::Send { pause, kept } => self.connection.send(pause, kept),
        };
    }
}

/// The threads.
#[derive(Debug)]
pub(crate) struct IoThreads {
    senders: Vec<Sender<Vec<Job>>>,
    done: Receiver<Vec<Job>>,
    chunk: Vec<u8>,
}

impl IoThreads {
    /// Starts threads, so that there are `threads` with the caller's.
    ///
    /// # Errors
    ///
    /// The system's, when it has no threads.
    pub(crate) fn new(threads: usize) -> io::Result<Self> {
        let (tell, done) = channel();
        let mut senders = Vec::new();
        for number in 1..threads {
            let (sender, jobs): (Sender<Vec<Job>>, Receiver<Vec<Job>>) = channel();
            let tell = tell.clone();
            std::thread::Builder::new().name(format!("kv-io-{number}")).spawn(move || {
                let mut chunk = vec![0; CHUNK];
                for mut some in jobs {
                    some.iter_mut().for_each(|job| job.run(&mut chunk));
                    // The server has ended.
                    if tell.send(some).is_err() {
                        return;
                    }
                }
            })?;
            senders.push(sender);
        }
        Ok(Self { senders, done, chunk: if threads > 1 { vec![0; CHUNK] } else { Vec::new() } })
    }

    /// Returns the number of threads, with the caller's.
    pub(crate) fn len(&self) -> usize {
        self.senders.len() + 1
    }

    /// Returns whether so many connections are worth waking the threads.
    pub(crate) fn helps(&self, connections: usize) -> bool {
        !self.senders.is_empty() && connections >= WORTH * self.len()
    }

    /// Runs the jobs on all threads, and returns when all are done.
    pub(crate) fn spread(&mut self, mut jobs: Vec<Job>) -> Vec<Job> {
        let share = jobs.len().div_ceil(self.len()).max(1);
        let mut given = 0;
        for sender in &self.senders {
            if jobs.len() <= share {
                break;
            }
            let some = jobs.split_off(jobs.len() - share);
            sender.send(some).expect("a thread of the server goes on as long as it");
            given += 1;
        }
        jobs.iter_mut().for_each(|job| job.run(&mut self.chunk));
        for _ in 0..given {
            jobs.extend(self.done.recv().expect("a thread of the server goes on as long as it"));
        }
        jobs
    }
}

/// All connections, by number.
#[derive(Default, Debug)]
pub(crate) struct Connections(Slab<Option<Box<Connection>>>);

impl Connections {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the number that the next connection gets.
    pub(crate) fn vacant(&self) -> usize {
        self.0.vacant_key()
    }

    pub(crate) fn insert(&mut self, connection: Connection) -> usize {
        self.0.insert(Some(Box::new(connection)))
    }

    pub(crate) fn get_mut(&mut self, number: usize) -> Option<&mut Connection> {
        self.0.get_mut(number)?.as_deref_mut()
    }

    pub(crate) fn remove(&mut self, number: usize) -> Option<Connection> {
        self.0.try_remove(number).flatten().map(|connection| *connection)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (usize, &Connection)> {
        self.0.iter().filter_map(|(number, connection)| Some((number, connection.as_deref()?)))
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (usize, &mut Connection)> {
        self.0.iter_mut().filter_map(|(number, connection)| Some((number, connection.as_deref_mut()?)))
    }

    /// Lends a connection to a thread, if there is something to do with it.
    pub(crate) fn lend(&mut self, number: usize, task: Task) -> Option<Job> {
        let place = self.0.get_mut(number)?;
        let has_some = match task {
            Task::Read { .. } => place.as_ref()?.wants_to_read(),
            Task::Send { .. } => place.as_ref()?.wants_to_send(),
        };
        let connection = if has_some { place.take()? } else { return None };
        Some(Job { number, connection, task, outcome: Outcome::Wait })
    }

    /// Takes a connection back.
    pub(crate) fn give_back(&mut self, job: Job) {
        if let Some(place) = self.0.get_mut(job.number) {
            *place = Some(job.connection);
        }
    }
}
