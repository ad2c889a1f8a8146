//! Turns what a tap saw into traversals, and what they bring into items of a zone (PD3 6.2).
//!
//! Key type: [`Driver`]. All of a message's keys are submitted together: where the rack's link has batches, those that begin at one node and have small pads share a datagram.
//!
//! What it does not do: wait; ask again (a message that fails costs speed only).

use super::beside::{Beside, List, Told};
use super::tap::{TapStats, Watch};
use super::zone::{Placing, Zone};
use farmem_client::{Client, Error, LookUp, LookedUp, Ticket};
use farmem_dpu::accesses::Keys;
use farmem_dpu::changes::Change;
use farmem_dpu::prefetcher::{Action, Config, Fetched, Prefetcher};
use farmem_dpu::view::HostView;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Messages after which all that is under way must end before more begin: what a structure keeps for its readers can go then.
pub const MESSAGES_HELD_MAX: u64 = 256;

/// A message under way.
#[derive(Debug)]
struct Message {
    keys: Keys,
    each: Vec<Fetched>,
    values: Vec<Vec<u8>>,
    /// Look-ups that have not ended.
    left: usize,
}

/// The DPU of one program, in its process or beside it.
#[derive(Debug)]
pub struct Driver<V, L, Z> {
    prefetcher: Prefetcher<V>,
    watch: Watch,
    list: Arc<List>,
    client: Client,
    look_up: L,
    zone: Z,
    under_way: BTreeMap<Ticket, (u64, usize)>,
    messages: BTreeMap<u64, Message>,
    /// Messages since none was under way.
    held: u64,
    told: Vec<Told>,
    actions: Vec<Action>,
    unheard: u64,
}

impl<V: HostView, L: LookUp, Z: Zone> Driver<V, L, Z> {
    /// Beside a program that begins now, too, or whose changes up to `through` have all been acknowledged.
    #[must_use]
    pub fn new(
        config: Config,
        view: V,
        (watch, beside, through): (Watch, &Beside, Change),
        client: Client,
        look_up: L,
        zone: Z,
    ) -> Self {
        Self {
            prefetcher: Prefetcher::new(config, view, through),
            watch,
            list: beside.list(),
            client,
            look_up,
            zone,
            under_way: BTreeMap::new(),
            messages: BTreeMap::new(),
            held: 0,
            told: Vec::new(),
            actions: Vec::new(),
            unheard: 0,
        }
    }

    /// Does what there is to do, and waits for nothing. False when there was nothing.
    ///
    /// # Errors
    /// [`Error::System`] when the link failed: nothing is prefetched any more, and the program goes on without.
    pub fn turn(&mut self) -> Result<bool, Error> {
        let mut worked = self.hear();
        if self.held < MESSAGES_HELD_MAX {
            let (prefetcher, actions) = (&mut self.prefetcher, &mut self.actions);
            worked |= self.watch.drain(&mut |accesses, executed| {
                prefetcher.executed(executed);
                prefetcher.accesses(accesses, actions);
            });
            self.act()?;
        }
        while let Some(completed) = self.client.poll()? {
            worked = true;
            self.looked_up(&completed)?;
            self.client.recycle(completed.buf);
        }
        let prefetcher = &mut self.prefetcher;
        self.zone.clean(&mut |item, used| prefetcher.cleaned(item, used));
        Ok(worked)
    }

    /// Turns until nothing is left to do but what the program does. While nothing comes it leaves the CPU to others.
    ///
    /// # Errors
    /// As [`Driver::turn`].
    pub fn settle(&mut self) -> Result<(), Error> {
        loop {
            if self.turn()? {
                continue;
            }
            if self.messages.is_empty() {
                return Ok(());
            }
            std::thread::yield_now();
        }
    }

    /// The program has started again, with nothing, and numbers its changes from `through` on. Nothing of the old one is on its way to far memory any more.
    pub fn restarted(&mut self, beside: &Beside, watch: Watch, through: Change) {
        (self.list, self.watch) = (beside.list(), watch);
        self.zone.empty();
        self.prefetcher.host_restarted(through);
    }

    /// What decides, with its account.
    #[must_use]
    pub const fn prefetcher(&self) -> &Prefetcher<V> {
        &self.prefetcher
    }

    /// What the mirror saw.
    #[must_use]
    pub const fn seen(&self) -> TapStats {
        self.watch.stats()
    }

    /// What the program said and there was no room for.
    #[must_use]
    pub const fn unheard(&self) -> u64 {
        self.unheard
    }

    /// Gives back what it was made of.
    #[must_use]
    pub fn into_parts(self) -> (Client, L, Z) {
        (self.client, self.look_up, self.zone)
    }

    /// Hears what the program said. Its changes go to far memory by itself: nothing is passed on here.
    fn hear(&mut self) -> bool {
        self.unheard = self.list.take(&mut self.told);
        let worked = !self.told.is_empty();
        let mut passed = Vec::new();
        for told in self.told.drain(..) {
            match told {
                Told::Asks(key) => self.prefetcher.host_asks(key),
                Told::Reads { key, found } => self.prefetcher.host_reads(key, found),
                Told::Changes { key, copy, seen } => {
                    self.prefetcher.host_writes(0, &[key], copy, seen, &mut passed);
                }
                Told::Acknowledged(change) => self.prefetcher.acknowledged(change),
                Told::Drops { key, seen } => self.prefetcher.host_drops(&[key], seen),
            }
        }
        worked
    }

    /// Submits the messages that the prefetcher wants.
    fn act(&mut self) -> Result<(), Error> {
        for action in std::mem::take(&mut self.actions) {
            if let Action::Fetch { op, keys } = action {
                self.submit(op, keys)?;
            }
        }
        Ok(())
    }

    fn submit(&mut self, op: u64, keys: Keys) -> Result<(), Error> {
        if self.look_up.begin(&mut self.client).is_err() {
            self.prefetcher.failed(op);
            return Ok(());
        }
        self.held += 1;
        let (mut left, mut each) = (0, vec![Fetched::Failed; keys.len()]);
        for (at, key) in keys.iter().enumerate() {
            let scratch = self.client.buffer(0);
            let Some(wanted) = self.look_up.op(key, scratch) else {
                each[at] = Fetched::Absent;
                continue;
            };
            // What cannot be asked has failed.
            if let Ok(ticket) = self.client.submit(wanted) {
                self.under_way.insert(ticket, (op, at));
                left += 1;
            }
        }
        let values = vec![Vec::new(); keys.len()];
        self.messages.insert(op, Message { keys, each, values, left });
        if left == 0 { self.ended(op) } else { Ok(()) }
    }

    fn looked_up(&mut self, completed: &farmem_client::Completed) -> Result<(), Error> {
        let Some((op, at)) = self.under_way.remove(&completed.ticket) else { return Ok(()) };
        let message = self.messages.get_mut(&op).expect("its look-ups have not all ended");
        let key = message.keys.iter().nth(at).expect("it was asked for");
        message.each[at] = match self.look_up.looked_up(key, completed) {
            LookedUp::Absent if completed.result.is_ok() => Fetched::Absent,
            LookedUp::Absent | LookedUp::Elsewhere => Fetched::Failed,
            LookedUp::Value(value) => match Change::of(&value) {
                None => Fetched::Failed,
                Some((version, item)) => {
                    message.values[at] = item.to_vec();
                    Fetched::Item { version }
                }
            },
        };
        message.left -= 1;
        if message.left == 0 { self.ended(op) } else { Ok(()) }
    }

    /// All look-ups of a message ended.
    fn ended(&mut self, op: u64) -> Result<(), Error> {
        let mut message = self.messages.remove(&op).expect("a message under way");
        if self.look_up.end(&mut self.client).is_err() {
            message.each.fill(Fetched::Failed);
        }
        if self.messages.is_empty() {
            self.held = 0;
        }
        // What the program said meanwhile counts first.
        self.hear();
        let mut actions = Vec::new();
        self.prefetcher.fetched(op, &message.each, &mut actions);
        let keys: Vec<&[u8]> = message.keys.iter().collect();
        for action in actions {
            if let Action::Place { at, item, stamp, .. } = action {
                let at = at as usize;
                let placing = Placing { item, key: keys[at], stamp, value: &message.values[at] };
                let prefetcher = &mut self.prefetcher;
                if !self.zone.put(&placing, &mut |item, used| prefetcher.cleaned(item, used)) {
                    self.prefetcher.zone_full(item);
                }
            }
        }
        self.zone.publish();
        Ok(())
    }
}
