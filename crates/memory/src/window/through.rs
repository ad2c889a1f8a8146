//! The path of a window's READs and WRITEs through a DPU within the window's own process (SODA).

use super::buffer::Laid;
use super::dpu_path::DpuSettings;
use super::options::PolicyMaker;
use super::parts::{Ended, Parts};
use farmem_client::{Client, Completed, Error, Op};
use farmem_dpu::{Asker, Config, PageId, Policy, Stats};
use farmem_dpu_server::Foresight;
use farmem_dpu_server::carrier::{Carrier, Extent, Failed, Memory};
use farmem_link::OpenError;
use farmem_machine::Rng;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

/// The DPU's number of the window.
const WINDOW: Asker = Asker(0);

/// Returns the DPU's number of an object of the window.
fn number_of(object: usize) -> u32 {
    u32::try_from(object).expect("a window has a few thousand")
}

/// The path through the DPU.
#[derive(Debug)]
pub(super) struct Through<'a> {
    carrier: Carrier<'a>,
    parts: Parts,
    /// The number of the part that each of the DPU's tickets belongs to.
    tickets: BTreeMap<u64, u64>,
    ended: VecDeque<Ended>,
    /// Number of refused hints.
    refused: u64,
    /// The program's own policy.
    own: Option<PolicyMaker>,
}

/// Returns the policy of an object, or of a part of it: the program's own policy if there is one and `said`
/// is the default.
fn policy_of(own: Option<PolicyMaker>, said: Foresight, object: u32) -> Box<dyn Policy> {
    match own {
        Some(PolicyMaker(make)) if said == Foresight::default() => make(object as usize),
        _ => said.policy(),
    }
}

impl<'a> Through<'a> {
    /// Opens the window's objects at the DPU, and caches the static part.
    ///
    /// # Errors
    /// [`Error`] if the static part exceeds the DPU's memory or cannot be read.
    pub(super) fn open(
        client: &'a mut Client,
        laid: &Laid,
        config: Config,
        wishes: DpuSettings,
    ) -> Result<Self, Error> {
        // Evictions need no randomness against other processes, because the window is alone. A fixed seed
        // makes the traffic of a program reproducible.
        let memory = Memory::new(config, Rng::from_number(0));
        for (number, object) in (0..).zip(laid.extents()) {
            let extent = Extent { base: object.base, bytes: object.bytes };
            let writer = (!object.read_only).then_some(WINDOW);
            let policy = policy_of(wishes.policy, wishes.foresight, number);
            memory.open(number, extent, writer, policy);
        }
        let parts = Parts::new(laid.clone(), memory.page_len());
        let carrier = Carrier::new(client, memory, None);
        let own = wishes.policy;
        let mut through =
            Self { carrier, parts, tickets: BTreeMap::new(), ended: VecDeque::new(), refused: 0, own };
        if let Some((first, len)) = wishes.fixed {
            through.fix(first, len, config)?;
        }
        Ok(through)
    }

    /// Reads the bytes for static caching, and waits for them.
    fn fix(&mut self, first: u64, len: u64, config: Config) -> Result<(), Error> {
        let page = u64::from(config.page_len.get());
        let mut wanted = Vec::new();
        for (object, first, len) in self.parts.laid().of_objects((first, len)) {
            wanted.push((number_of(object), first / page..(first + len).div_ceil(page)));
        }
        for (object, pages) in &wanted {
            if !self.carrier.fix(WINDOW, *object, pages.clone()) {
                let value = format!("{} pages of {page} bytes", pages.end - pages.start);
                let remedy =
                    format!("this DPU has room for {}: see `fixed_pages_max`", config.fixed_pages_max);
                return Err(OpenError::Setting { setting: "static caching", value, remedy }.into());
            }
        }
        while self.carrier.is_busy()
            && let Some(completed) = self.carrier.client.next_completed()?
        {
            self.took(completed);
        }
        let memory = self.carrier.memory();
        let are_there = |(object, pages): &(u32, Range<u64>)| {
            memory.fixed_pages(*object, pages.clone()) == pages.end - pages.start
        };
        if wanted.iter().all(are_there) {
            return Ok(());
        }
        Err(Error::Unreachable { what: "far memory, for the static cache".into() })
    }

    pub(super) const fn client(&mut self) -> &mut Client {
        self.carrier.client
    }

    pub(super) fn stats(&self) -> Stats {
        self.carrier.memory().stats()
    }

    /// Sets the prefetch policy for a part of the window, given as offset and length.
    pub(super) fn advise(&mut self, part: (u64, u64), said: Foresight) {
        for (object, first, len) in self.parts.laid().of_objects(part) {
            let (memory, object) = (self.carrier.memory(), number_of(object));
            let policy = policy_of(self.own, said, object);
            self.refused += u64::from(!memory.advise(object, first..first + len, policy));
        }
    }

    /// Returns the number of refused hints.
    pub(super) const fn refused(&self) -> u64 {
        self.refused
    }

    /// Starts a READ or WRITE of the window; there are no other operations.
    pub(super) fn submit(&mut self, op: Op) -> u64 {
        let Self { carrier, parts, tickets, .. } = self;
        let request = parts.begin(op, |number, part, write, buf| {
            let page = PageId { object: number_of(part.object), page: part.page };
            let ticket = if write {
                carrier.write(WINDOW, page, part.at.start, buf)
            } else {
                carrier.read(WINDOW, page, part.at.clone(), true, buf)
            };
            tickets.insert(ticket, number);
        });
        self.take_ended();
        request
    }

    pub(super) fn poll(&mut self) -> Result<Option<Ended>, Error> {
        if self.ended.is_empty()
            && let Some(completed) = self.carrier.client.poll()?
        {
            self.took(completed);
        }
        Ok(self.ended.pop_front())
    }

    pub(super) fn poll_ended(&mut self) -> Option<Ended> {
        while self.ended.is_empty() {
            let completed = self.carrier.client.poll_ended()?;
            self.took(completed);
        }
        self.ended.pop_front()
    }

    pub(super) fn next_completed(&mut self) -> Result<Option<Ended>, Error> {
        while self.ended.is_empty() {
            let Some(completed) = self.carrier.client.next_completed()? else { break };
            self.took(completed);
        }
        Ok(self.ended.pop_front())
    }

    pub(super) fn settle(&mut self) -> Vec<Ended> {
        while self.carrier.is_busy() {
            match self.carrier.client.next_completed() {
                Ok(Some(completed)) => self.took(completed),
                // Without a link no answer arrives any more, and none would be used.
                Ok(None) | Err(_) => break,
            }
        }
        self.ended.drain(..).collect()
    }

    /// Handles a completion of the client: of this path, or of another operation.
    fn took(&mut self, completed: Completed) {
        if let Some(other) = self.carrier.took(completed) {
            self.ended.push_back(other.into());
        }
        self.take_ended();
    }

    fn take_ended(&mut self) {
        while let Some(mut ended) = self.carrier.next_ended() {
            let number = self.tickets.remove(&ended.ticket).expect("a part of a request");
            let result = std::mem::replace(&mut ended.result, Ok(())).map_err(|Failed { cause, error }| {
                error.unwrap_or_else(|| unreachable!("the window may read and write all of it: {cause:?}"))
            });
            let len = self.parts.part(number).at.len();
            let buf = self.carrier.collect(ended, len);
            let (ended, rest) = self.parts.ended(number, result, buf);
            self.carrier.client.recycle(rest);
            self.ended.extend(ended);
        }
    }
}
