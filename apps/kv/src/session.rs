//! What the server knows of one client between its requests.

use crate::acl::User;
use crate::command::Activity;
use crate::failure::Failure;
use crate::guesses::Origin;
use crate::store::Name;
use crate::waiting::Wait;
use farmem_resp::Protocol;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

/// Requests of a transaction, and their bytes, at most.
const QUEUED_MAX: usize = 100_000;
const QUEUED_BYTES_MAX: usize = 64 << 20;

/// Bytes that a watched key takes: among the session's, and with its watchers among all.
const WATCH_BYTES: usize = 128;

/// A transaction that is being put together.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    pub(crate) requests: Vec<Vec<Vec<u8>>>,
    pub(crate) bytes: usize,
    /// The flags of all commands in it.
    flags: u32,
    /// A request was refused: `EXEC` carries nothing out.
    pub(crate) is_spoilt: bool,
}

/// What a command does that finds nothing and may wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Patience {
    /// It waits.
    Waits,
    /// It says that there is nothing: in a transaction, and where the log is carried out.
    None,
    /// The client waits already, and its command is tried again with the key that became ready, which is in
    /// [`Session::ready_key`].
    Served,
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
    /// Who it is, and what it may do: as it was when the users had this version.
    pub(crate) user: String,
    pub(crate) rights: Arc<User>,
    pub(crate) users_version: u64,
    pub(crate) name: String,
    pub(crate) address: String,
    /// Where it comes from, as far as wrong passwords count together.
    pub(crate) origin: Origin,
    pub(crate) queue: Option<Queue>,
    pub(crate) watches: BTreeSet<(u8, Name)>,
    pub(crate) replies: Replies,
    pub(crate) activity: Arc<Activity>,
    pub(crate) patience: Patience,
    pub(crate) ready_key: Option<Vec<u8>>,
    /// What the command that was carried out last waits for.
    pub(crate) waits: Option<Wait>,
    /// Bytes of the request that waits, while one does: nothing more of the client is carried out.
    pub(crate) waiting_bytes: Option<usize>,
    /// It has said `QUIT`, or was told to go.
    pub(crate) ends: bool,
    /// Too many wrong passwords came from where it is: until then nothing more of it is carried out.
    pub(crate) held_until: Option<Instant>,
}

impl Session {
    /// A client that has said nothing yet: it is this user, if that one needs no password.
    pub(crate) fn new(id: u64, address: String, origin: Origin, user: &Arc<User>) -> Self {
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

    /// It begins anew (`RESET`), but for being held up.
    pub(crate) fn reset(&mut self, user: &Arc<User>) {
        let (patience, held_until) = (self.patience, self.held_until);
        let (address, activity) = (std::mem::take(&mut self.address), Arc::clone(&self.activity));
        *self = Self { patience, held_until, activity, ..Self::new(self.id, address, self.origin, user) };
    }

    /// Bytes of the transaction that it puts together, of the request that waits, and of the keys that it watches, which others know too.
    pub(crate) fn bytes(&self) -> usize {
        let queued = self.queue.as_ref().map_or(0, |queue| queue.bytes);
        queued + self.waiting_bytes.unwrap_or(0) + self.watches.len() * WATCH_BYTES
    }

    /// True while nothing of it is carried out because of wrong passwords.
    pub(crate) const fn is_held(&self) -> bool {
        self.held_until.is_some()
    }

    /// The client as its waiting request knows it.
    pub(crate) fn stand_in(&self) -> Self {
        let mut other = Self::new(self.id, self.address.clone(), self.origin, &self.rights);
        (other.db, other.protocol, other.authenticated) = (self.db, self.protocol, self.authenticated);
        (other.user, other.users_version) = (self.user.clone(), self.users_version);
        other
    }

    /// It has said that it is this user, with its password.
    pub(crate) fn become_user(&mut self, user: Arc<User>, version: u64) {
        self.authenticated = true;
        self.user.clone_from(&user.name);
        (self.rights, self.users_version) = (user, version);
    }

    /// True while requests are put into a transaction.
    pub(crate) const fn queues(&self) -> bool {
        self.queue.is_some()
    }

    pub(crate) fn spoil(&mut self) {
        if let Some(queue) = &mut self.queue {
            queue.is_spoilt = true;
        }
    }

    /// The flags of all commands of the transaction together.
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
