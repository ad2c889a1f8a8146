//! What the server knows of one client between its requests.

use crate::acl::User;
use crate::failure::Failure;
use crate::store::Name;
use crate::waiting::Wait;
use farmem_resp::Protocol;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

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
    /// It waits already, and is tried again.
    Served,
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
    pub(crate) queue: Option<Queue>,
    pub(crate) watches: BTreeSet<(u8, Name)>,
    pub(crate) patience: Patience,
    /// What the command that was carried out last waits for.
    pub(crate) waits: Option<Wait>,
    /// Bytes of the request that waits, while one does: nothing more of the client is carried out.
    pub(crate) waiting_bytes: Option<usize>,
    /// It has said `QUIT`, or was told to go.
    pub(crate) ends: bool,
    /// Wrong passwords since the last right one.
    failures: u32,
    /// It has tried too many: for so long nothing more of it is carried out.
    pub(crate) hold: Option<Duration>,
}

/// Wrong passwords of one connection that are answered without more ado.
const FAILURES_FREE: u32 = 3;
/// How long the next one holds it up; each one behind that twice as long, up to so many times.
const HOLD: Duration = Duration::from_millis(250);
const HOLD_DOUBLINGS_MAX: u32 = 4;

impl Session {
    /// A client that has said nothing yet: it is this user, if that one needs no password.
    pub(crate) fn new(id: u64, address: String, user: &Arc<User>) -> Self {
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
            queue: None,
            watches: BTreeSet::new(),
            patience: Patience::Waits,
            waits: None,
            waiting_bytes: None,
            ends: false,
            failures: 0,
            hold: None,
        }
    }

    /// It begins anew (`RESET`). How often it has tried passwords stays.
    pub(crate) fn reset(&mut self, user: &Arc<User>) {
        let (patience, failures, hold) = (self.patience, self.failures, self.hold);
        let address = std::mem::take(&mut self.address);
        *self = Self { patience, failures, hold, ..Self::new(self.id, address, user) };
    }

    /// Bytes of the transaction that it puts together, of the request that waits, and of the keys that it watches, which others know too.
    pub(crate) fn bytes(&self) -> usize {
        let queued = self.queue.as_ref().map_or(0, |queue| queue.bytes);
        queued + self.waiting_bytes.unwrap_or(0) + self.watches.len() * WATCH_BYTES
    }

    /// It has given a wrong password. Each connection guesses slowly; how many connections there may be is `maxclients`.
    pub(crate) fn fail_to_log_in(&mut self) {
        self.failures = self.failures.saturating_add(1);
        let doublings = self.failures.checked_sub(FAILURES_FREE + 1);
        self.hold = doublings.map(|times| HOLD * (1 << times.min(HOLD_DOUBLINGS_MAX)));
    }

    /// True while nothing of it is carried out because of wrong passwords.
    pub(crate) const fn is_held(&self) -> bool {
        self.hold.is_some()
    }

    /// The client as its waiting request knows it.
    pub(crate) fn stand_in(&self) -> Self {
        let mut other = Self::new(self.id, self.address.clone(), &self.rights);
        (other.db, other.protocol, other.authenticated) = (self.db, self.protocol, self.authenticated);
        (other.user, other.users_version) = (self.user.clone(), self.users_version);
        other
    }

    /// It has said that it is this user, with its password.
    pub(crate) fn become_user(&mut self, user: Arc<User>, version: u64) {
        self.authenticated = true;
        (self.failures, self.hold) = (0, None);
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

    pub(crate) fn queue(&mut self, args: &[&[u8]]) -> Result<(), Failure> {
        let queue = self.queue.as_mut().expect("a transaction is put together");
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Guesses of a password: three are free, the next ones hold the connection up for longer and longer, to a bound; the right one ends that, and `RESET` does not.
    #[test]
    fn wrong_passwords_hold_a_connection_up() {
        let user = Arc::new(User::default_with(Some("right")));
        let mut session = Session::new(1, "here".into(), &user);
        let tries = |session: &mut Session| {
            session.fail_to_log_in();
            session.hold.map_or(0, |hold| hold.as_millis())
        };
        assert_eq!([(); 10].map(|()| tries(&mut session)), [0, 0, 0, 250, 500, 1000, 2000, 4000, 4000, 4000]);
        session.reset(&user);
        assert!(session.is_held());
        assert_eq!(tries(&mut session), 4000);
        session.become_user(user, 1);
        assert!(!session.is_held());
        assert_eq!(tries(&mut session), 0);
    }
}
