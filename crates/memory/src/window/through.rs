//! The way of a window's READs and WRITEs by a DPU that is in the window's own process (SODA).

use super::beside::Wishes;
use super::parts::Parts;
use super::verbs::Ended;
use crate::dpu::Foresight;
use crate::dpu::carrier::{Carrier, Extent, Failed, Memory};
use farmem_client::{Client, Completed, Error, Op, Vma};
use farmem_dpu::{Asker, Config, PageId, Stats};
use farmem_io::OpenError;
use farmem_machine::Rng;
use farmem_wire::VirtAddr;
use std::collections::{BTreeMap, VecDeque};

/// The DPU's number of the window's allocation.
const OBJECT: u32 = 0;
/// The DPU's number of the window.
const WINDOW: Asker = Asker(0);

/// The way through the DPU.
#[derive(Debug)]
pub(super) struct Through<'a> {
    carrier: Carrier<'a>,
    parts: Parts,
    /// What the DPU calls a part.
    tickets: BTreeMap<u64, u64>,
    ended: VecDeque<Ended>,
    /// Advice that the DPU did not take.
    refused: u64,
}

impl<'a> Through<'a> {
    /// # Errors
    /// [`Error`] when what is to be cached statically has no room, or cannot be read.
    pub(super) fn open(
        client: &'a mut Client,
        vma: &Vma,
        config: Config,
        wishes: Wishes,
    ) -> Result<Self, Error> {
        // What is evicted need not be a secret: the window is alone. So the traffic of a program is the same each time.
        let memory = Memory::new(config, Rng::from_number(0));
        let extent = Extent { base: VirtAddr(vma.base.0), bytes: vma.size };
        memory.open(OBJECT, extent, (!wishes.read_only).then_some(WINDOW), wishes.foresight.policy());
        let parts = Parts::new(vma.base, memory.page_len());
        let carrier = Carrier::new(client, memory, None);
        let mut through =
            Self { carrier, parts, tickets: BTreeMap::new(), ended: VecDeque::new(), refused: 0 };
        if let Some((first, len)) = wishes.fixed {
            through.fix(first, len, config)?;
        }
        Ok(through)
    }

    /// Reads what is to be cached statically, and waits for it.
    fn fix(&mut self, first: u64, len: u64, config: Config) -> Result<(), Error> {
        let page = u64::from(config.page_len.get());
        let pages = first / page..(first + len).div_ceil(page);
        let count = pages.end - pages.start;
        if !self.carrier.fix(WINDOW, OBJECT, pages.clone()) {
            let value = format!("{count} pages of {page} bytes");
            let remedy = format!("this DPU has room for {}: see `fixed_pages_max`", config.fixed_pages_max);
            return Err(OpenError::Setting { setting: "static caching", value, remedy }.into());
        }
        while self.carrier.is_busy()
            && let Some(completed) = self.carrier.client.next_completed()?
        {
            self.took(completed);
        }
        if self.carrier.memory().fixed_pages(OBJECT, pages) == count {
            return Ok(());
        }
        Err(Error::Unreachable { what: "far memory, for what is to be cached statically".into() })
    }

    pub(super) const fn client(&mut self) -> &mut Client {
        self.carrier.client
    }

    pub(super) fn stats(&self) -> Stats {
        self.carrier.memory().stats()
    }

    /// Says how a part of the window is prefetched, as its first byte and how many.
    pub(super) fn advise(&mut self, (offset, len): (u64, u64), policy: Foresight) {
        let bytes = offset..offset + len; // the window's
        self.refused += u64::from(!self.carrier.memory().advise(OBJECT, bytes, policy.policy()));
    }

    /// Advice that the DPU did not take.
    pub(super) const fn refused(&self) -> u64 {
        self.refused
    }

    /// Begins a READ or WRITE of the window; nothing else comes from there.
    pub(super) fn submit(&mut self, op: Op) -> u64 {
        let Self { carrier, parts, tickets, .. } = self;
        let request = parts.begin(op, |number, part, write, buf| {
            let page = PageId { object: OBJECT, page: part.page };
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
                // Without a link nothing comes any more, and nothing that came would be used.
                Ok(None) | Err(_) => break,
            }
        }
        self.ended.drain(..).collect()
    }

    /// Takes what the client ended: a verb of this, or another's.
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
