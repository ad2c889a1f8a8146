//! The state of one client between its requests.

use crate::acl::User;
use crate::activity::Activity;
use crate::failure::Failure;
use crate::guesses::GuessSource;
use crate::store::Name;
use farmem_protocols::resp::Protocol;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

/// Limits of a transaction: its requests, and their bytes.
const QUEUED_MAX: usize = 100_000;
const QUEUED_BYTES_MAX: usize = 64 << 20;

/// Bytes of one watched key, in the session and in the table of watchers together.
const WATCH_BYTES: usize = 128;

/// A transaction that a client is putting together.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    pub(crate) requests: Vec<Vec<Vec<u8>>>,
    pub(crate) bytes: usize,
    /// The flags of all commands in the transaction.
    flags: u32,
    /// The server refused a request, so `EXEC` executes nothing.
    pub(crate) is_spoilt: bool,
}

/// The action of a blocking command whose keys have nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Patience {
    /// The client waits.
    Waits,
    /// The command replies at once that the keys are empty. Transactions and the replay of the log use this.
    None,
    /// The client waits already, and its command is tried again with the key that became ready, which is in
    /// [`Session::ready_key`].
    Served,
}

/// The keys that a command waits for.
#[derive(Clone, Debug)]
pub(crate) struct Wait {
    pub(crate) keys: Vec<Vec<u8>>,
    /// The end of the wait; `None` to wait without end.
    pub(crate) until: Option<Instant>,
}

/// Whether a client gets replies (`CLIENT REPLY`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Replies {
    On,
    Off,
    /// The reply of the command that runs, or that waits, is left out.
    Skip,
    /// The reply of the next command is left out.
    SkipNext,
}

/// One client.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) id: u64,
    pub(crate) db: u8,
    pub(crate) protocol: Protocol,
    pub(crate) authenticated: bool,
    /// The client's user and its rights, as of this version of the users.
    pub(crate) user: String,
    pub(crate) rights: Arc<User>,
    pub(crate) users_version: u64,
    pub(crate) name: String,
    pub(crate) address: String,
    /// The network address of the client, to which wrong passwords are charged.
    pub(crate) origin: GuessSource,
    pub(crate) queue: Option<Queue>,
    pub(crate) watches: BTreeSet<(u8, Name)>,
    pub(crate) replies: Replies,
    pub(crate) activity: Arc<Activity>,
    pub(crate) patience: Patience,
    pub(crate) ready_key: Option<Vec<u8>>,
    /// The keys that the last command wants to wait for.
    pub(crate) waits: Option<Wait>,
    /// Bytes of the blocking request while the client waits. The server executes nothing more of the client
    /// meanwhile.
    pub(crate) waiting_bytes: Option<usize>,
    /// The client sent `QUIT`, or the server ends the connection.
    pub(crate) ends: bool,
    /// The end of the delay for passwords from the client's address. The server executes nothing more of the
    /// client before.
    pub(crate) held_until: Option<Instant>,
}

impl Session {
    /// Returns the session of a new client. The client is this user if the user needs no password.
    pub(crate) fn new(id: u64, address: String, origin: GuessSource, user: &Arc<User>) -> Self {
        Self {
            id,
            db: 0,
            protocol: Protocol::Resp2,
            authenticated: user.is_open(),
            user: user.name.clone(),
            rights: Arc::clone(user),
            users_version: 0,
            name: String::new(),
            address,
            origin,
            queue: None,
            watches: BTreeSet::new(),
            replies: Replies::On,
            activity: Arc::default(),
            patience: Patience::Waits,
            ready_key: None,
            waits: None,
            waiting_bytes: None,
            ends: false,
            held_until: None,
        }
    }

    /// Resets the session (`RESET`), except for a delay for wrong passwords.
    pub(crate) fn reset(&mut self, user: &Arc<User>) {
        let (patience, held_until) = (self.patience, self.held_until);
        let (address, activity) = (std::mem::take(&mut self.address), Arc::clone(&self.activity));
        *self = Self { patience, held_until, activity, ..Self::new(self.id, address, self.origin, user) };
    }

    /// Returns the bytes of the queued transaction, of the waiting request, and of the watched keys.
    pub(crate) fn bytes(&self) -> usize {
        let queued = self.queue.as_ref().map_or(0, |queue| queue.bytes);
        queued + self.waiting_bytes.unwrap_or(0) + self.watches.len() * WATCH_BYTES
    }

    /// Notes the state after a request for `CLIENT LIST`.
    pub(crate) fn note_request(&self) {
        let queued = self.queue.as_ref().map(|queue| (queue.requests.len(), queue.bytes));
        self.activity.end(self.db, self.protocol, queued);
    }

    /// Returns whether a delay for wrong passwords holds the client's requests back.
    pub(crate) const fn is_held(&self) -> bool {
        self.held_until.is_some()
    }

    /// Returns a session for the client's waiting request.
    pub(crate) fn stand_in(&self) -> Self {
        let mut other = Self::new(self.id, self.address.clone(), self.origin, &self.rights);
        (other.db, other.protocol, other.authenticated) = (self.db, self.protocol, self.authenticated);
        (other.user, other.users_version) = (self.user.clone(), self.users_version);
        other
    }

    /// Makes the client this user, after it proved to be.
    pub(crate) fn become_user(&mut self, user: Arc<User>, version: u64) {
        self.authenticated = true;
        self.user.clone_from(&user.name);
        (self.rights, self.users_version) = (user, version);
    }

    /// Returns whether the client's requests are queued for a transaction.
    pub(crate) const fn queues(&self) -> bool {
        self.queue.is_some()
    }

    pub(crate) fn spoil(&mut self) {
        if let Some(queue) = &mut self.queue {
            queue.is_spoilt = true;
        }
    }

    /// Returns the flags of all commands of the transaction.
    pub(crate) fn queued_flags(&self) -> u32 {
        self.queue.as_ref().map_or(0, |queue| queue.flags)
    }

    pub(crate) fn queue(&mut self, args: &[&[u8]], flags: u32) -> Result<(), Failure> {
        let queue = self.queue.as_mut().expect("a transaction is put together");
        queue.flags |= flags;
        queue.bytes += args.iter().map(|arg| arg.len() + size_of::<Vec<u8>>()).sum::<usize>();
        if queue.requests.len() >= QUEUED_MAX || queue.bytes > QUEUED_BYTES_MAX {
            queue.is_spoilt = true;
            return Err(Failure::text(
                "ERR the transaction is too long: at most 100000 commands of 64 MiB in all",
            ));
        }
        queue.requests.push(args.iter().map(|arg| arg.to_vec()).collect());
        Ok(())
    }
}
