//! What all clients share, beside the data: settings, counts, who watches which key, the append log.

use crate::command::Settings;
use crate::durable::Durable;
use crate::failure::Failure;
use crate::session::Session;
use crate::store::{Name, Store};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

/// What was counted.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Counts {
    pub(crate) commands: u64,
    pub(crate) errors: u64,
    pub(crate) connections: u64,
    pub(crate) refused: u64,
    /// Clients that were cut off because they did not read.
    pub(crate) cut_off: u64,
}

/// A client, as `CLIENT LIST` shows it.
#[derive(Clone, Debug)]
pub(crate) struct Shown {
    pub(crate) address: String,
    pub(crate) name: String,
    pub(crate) db: u8,
    pub(crate) since: Instant,
    pub(crate) resp: u8,
}

/// What all clients share.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) settings: Settings,
    pub(crate) stats: Counts,
    pub(crate) clients: BTreeMap<u64, Shown>,
    /// Clients that are to go.
    pub(crate) kill: BTreeSet<u64>,
    watchers: BTreeMap<(u8, Name), Vec<u64>>,
    /// Clients of whose watched keys one was changed.
    changed_for: BTreeSet<u64>,
    /// Why no command may change anything now.
    pub(crate) no_writes: Option<String>,
    pub(crate) durable: Durable,
    pub(crate) started: Instant,
    pub(crate) ends: bool,
    /// The port, for `INFO`.
    pub(crate) port: u16,
    pub(crate) active_expiry: bool,
    /// Bytes of buffers of connections.
    pub(crate) buffers: usize,
    /// Resident bytes of this process, as measured last, without the memory of memory nodes in it.
    pub(crate) resident: usize,
    /// Those of them that nothing accounts for: the program, its stacks, what an allocator has beside.
    pub(crate) other: usize,
}

impl World {
    pub(crate) fn new(settings: Settings, durable: Durable) -> Self {
        Self {
            settings,
            stats: Counts::default(),
            clients: BTreeMap::new(),
            kill: BTreeSet::new(),
            watchers: BTreeMap::new(),
            changed_for: BTreeSet::new(),
            no_writes: None,
            durable,
            started: now(),
            ends: false,
            port: 0,
            active_expiry: true,
            buffers: 0,
            resident: 0,
            other: 0,
        }
    }

    /// The append log gets a request that changed something.
    pub(crate) fn log_request<'a>(&mut self, db: u8, args: impl ExactSizeIterator<Item = &'a [u8]>) {
        self.durable.append(db, args);
    }

    pub(crate) fn watch(&mut self, store: &mut Store, session: &mut Session, db: u8, name: Name) {
        if !session.watches.contains(&(db, name)) {
            session.watches.push((db, name));
            self.watchers.entry((db, name)).or_default().push(session.id);
        }
        store.set_watching(true);
    }

    pub(crate) fn unwatch(&mut self, store: &mut Store, session: &mut Session) {
        for key in std::mem::take(&mut session.watches) {
            if let Some(ids) = self.watchers.get_mut(&key) {
                ids.retain(|&id| id != session.id);
                if ids.is_empty() {
                    self.watchers.remove(&key);
                }
            }
        }
        self.changed_for.remove(&session.id);
        store.set_watching(!self.watchers.is_empty());
    }

    /// Tells watchers of the keys that were changed.
    pub(crate) fn tell_watchers(&mut self, store: &mut Store) {
        if self.watchers.is_empty() {
            return;
        }
        for key in store.take_touched() {
            self.changed_for.extend(self.watchers.get(&key).into_iter().flatten());
        }
    }

    /// True when a key that the client watches was changed.
    pub(crate) fn was_changed(&self, session: &Session) -> bool {
        self.changed_for.contains(&session.id)
    }

    /// The reason why nothing may be changed, for those who ask.
    pub(crate) fn refuse_writes(&mut self, why: Option<&Failure>) {
        self.no_writes = why.map(|failure| failure.reply().to_owned());
    }
}

/// This moment, for what is told of the server's age.
pub(crate) fn now() -> Instant {
    Instant::now()
}
