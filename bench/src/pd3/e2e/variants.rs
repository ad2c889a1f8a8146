//! The variants without a DPU: the same requests with all items local, with READs in several ways, with an
//! LRU whose index is local, and with Leap's prefetching (PD3 8.1).

use super::local_items::LocalItems;
use super::store::{Far, Index, Kind};
use super::{Bench, VariantCosts};
use crate::rates::cpu_time;
use crate::{Samples, to_f64};
use farmem::{Client, Completed, Error, Ticket};
use farmem_dpu::{Leap, PageAccess, PageId, Policy, Recent};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::time::{Duration, Instant};

/// Bound on the positions that Leap reads ahead at once.
const AHEAD_MAX: usize = 32;

/// Bound on their distance: Leap's longest window of neighbours.
const REACH: u64 = 8;

/// READs of a piece in flight, with their keys.
struct Reads<'p> {
    under_way: Vec<(Ticket, &'p [u8])>,
    begun: Instant,
    /// Requests of the piece.
    requests: u32,
}

impl Bench {
    /// Answers all requests from local items.
    pub(super) fn local(
        &mut self,
        here: &mut LocalItems,
        requests: &[u8],
        pace: Option<Duration>,
    ) -> VariantCosts {
        let mut answer = Vec::new();
        let (kind, piece) = (self.ground.size.kind, self.ground.size.piece_len());
        let mut wrong = 0;
        let taken = paced(kind, requests.chunks(piece), pace, |piece| {
            for key in kind.keys_in(piece) {
                let found = here.get(kind.item(key), &mut answer);
                wrong += u64::from(!found || !kind.is_right(key, &answer));
            }
            Ok::<u64, Error>(0)
        });
        self.wrong += wrong;
        taken.unwrap_or_else(|_| unreachable!("nothing here fails"))
    }

    /// Reads one by one; only the record itself where an index gives its slot.
    pub(super) fn sync(
        &mut self,
        here: &mut LocalItems,
        index: Option<&Index>,
        requests: &[u8],
    ) -> Result<VariantCosts, Error> {
        let mut answer = Vec::new();
        let (kind, piece) = (self.ground.size.kind, self.ground.size.piece_len());
        let (far, client, mut wrong) = (&self.ground.far, &mut self.client, 0);
        let taken = paced(kind, requests.chunks(piece), None, |piece| {
            let mut missed = 0;
            for key in kind.keys_in(piece) {
                if !here.get(kind.item(key), &mut answer) {
                    missed += 1;
                    match index {
                        Some(index) => far.get_at(index, client, key, &mut answer)?,
                        None => far.get(client, key, &mut answer)?,
                    }
                    let _evicted = here.put(kind.item(key), &answer);
                }
                wrong += u64::from(!kind.is_right(key, &answer));
            }
            Ok(missed)
        });
        self.wrong += wrong;
        taken
    }

    /// Runs with the READs of `depth` pieces in flight together.
    pub(super) fn read_together(
        &mut self,
        here: &mut LocalItems,
        requests: &[u8],
        depth: usize,
    ) -> Result<VariantCosts, Error> {
        let mut answer = Vec::new();
        let (kind, piece) = (self.ground.size.kind, self.ground.size.piece_len());
        let (far, client, mut wrong) = (&self.ground.far, &mut self.client, 0);
        let mut under_way: VecDeque<Reads<'_>> = VecDeque::new();
        let mut each = Samples::new();
        let mut finish = |client: &mut Client, here: &mut LocalItems, reads: Reads<'_>| {
            let Reads { under_way, begun, requests } = reads;
            for (ticket, key) in under_way {
                let completed = client.wait(ticket)?;
                far.answer(key, &completed, &mut answer)?;
                client.recycle(completed.buf);
                wrong += u64::from(!kind.is_right(key, &answer));
                let _evicted = here.put(kind.item(key), &answer);
            }
            each.record(begun.elapsed() / requests.max(1));
            Ok::<(), Error>(())
        };
        let (begin, cpu, mut missed, mut local) = (Instant::now(), cpu_time(), 0, Vec::new());
        for piece in requests.chunks(piece) {
            let mut reads = Reads { under_way: Vec::new(), begun: Instant::now(), requests: 0 };
            for key in kind.keys_in(piece) {
                reads.requests += 1;
                if here.get(kind.item(key), &mut local) {
                    continue;
                }
                let buf = client.buffer(0);
                reads.under_way.push((client.submit(far.read_op(key, buf))?, key));
            }
            missed += reads.under_way.len() as u64;
            under_way.push_back(reads);
            if under_way.len() >= depth
                && let Some(oldest) = under_way.pop_front()
            {
                finish(client, here, oldest)?;
            }
        }
        for oldest in under_way {
            finish(client, here, oldest)?;
        }
        let taken = VariantCosts {
            wall: begin.elapsed(),
            cpu: cpu_time() - cpu,
            missed,
            requests: self.ground.size.requests(),
            each,
        };
        self.wrong += wrong;
        Ok(taken)
    }

    /// Reads one by one, and reads ahead along Leap's majority of distances between positions (Leap, ATC'20).
    /// Adds the number of positions read ahead to `ahead`.
    ///
    /// A position is a slot of the hash map, or a page. A requested position in flight is waited for. Without
    /// any majority this equals [`Bench::sync`].
    pub(super) fn leap(
        &mut self,
        here: &mut LocalItems,
        requests: &[u8],
        ahead: &mut u64,
    ) -> Result<VariantCosts, Error> {
        let (kind, piece) = (self.ground.size.kind, self.ground.size.piece_len());
        let (far, client) = (&self.ground.far, &mut self.client);
        let (mut answer, mut wrong, mut leap) = (Vec::new(), 0, Leap::default());
        let (policy, recent): (&mut dyn Policy, _) = (&mut leap, Recent::default());
        let mut under_way = UnderWay { far, places: BTreeMap::new() };
        let taken = paced(kind, requests.chunks(piece), None, |piece| {
            let mut missed = 0;
            for key in kind.keys_in(piece) {
                let (item, place) = (kind.item(key), far.place_of(key));
                let mut hit = here.get(item, &mut answer);
                if !hit && under_way.await_one(place, client, here)? {
                    hit = here.get(item, &mut answer);
                }
                if !hit {
                    missed += 1;
                    far.get(client, key, &mut answer)?;
                    let _evicted = here.put(item, &answer);
                }
                wrong += u64::from(!kind.is_right(key, &answer));
                let page = PageId { object: 0, page: place };
                let wanted = policy.propose(&PageAccess { page, entry_pages: REACH, hit, recent: &recent });
                *ahead += under_way.begin(wanted, client)?;
                under_way.take_ended(client, here)?;
            }
            Ok::<u64, Error>(missed)
        });
        under_way.end(client)?;
        self.wrong += wrong;
        taken
    }
}

/// Positions being read ahead.
struct UnderWay<'f> {
    far: &'f Far,
    places: BTreeMap<Ticket, u64>,
}

impl UnderWay<'_> {
    /// Starts reads of positions that exist, within the bound in flight. Returns their number.
    fn begin(&mut self, wanted: Range<u64>, client: &mut Client) -> Result<u64, Error> {
        let mut begun = 0;
        for place in wanted.take(AHEAD_MAX.saturating_sub(self.places.len())) {
            let Some(op) = self.far.place_op(place, client.buffer(0)) else { break };
            self.places.insert(client.submit(op)?, place);
            begun += 1;
        }
        Ok(begun)
    }

    /// Waits for a position in flight. Returns false when it is not in flight.
    fn await_one(&mut self, place: u64, client: &mut Client, here: &mut LocalItems) -> Result<bool, Error> {
        let its = self.places.iter().find(|(_, of)| **of == place).map(|(ticket, _)| *ticket);
        let Some(ticket) = its else { return Ok(false) };
        let completed = client.wait(ticket)?;
        self.came(completed, client, here)?;
        Ok(true)
    }

    /// Takes the completed reads.
    fn take_ended(&mut self, client: &mut Client, here: &mut LocalItems) -> Result<(), Error> {
        while !self.places.is_empty()
            && let Some(completed) = client.poll()?
        {
            self.came(completed, client, here)?;
        }
        Ok(())
    }

    fn came(
        &mut self,
        completed: Completed,
        client: &mut Client,
        here: &mut LocalItems,
    ) -> Result<(), Error> {
        let Some(place) = self.places.remove(&completed.ticket) else { return Ok(()) };
        completed.result?;
        self.far.items_of(place, &completed.buf, |item, value| {
            if !here.has(item) {
                let _evicted = here.put(item, value);
            }
        });
        client.recycle(completed.buf);
        Ok(())
    }

    /// Waits for all reads, and discards them.
    fn end(self, client: &mut Client) -> Result<(), Error> {
        for &ticket in self.places.keys() {
            let late = client.wait(ticket)?;
            client.recycle(late.buf);
        }
        Ok(())
    }
}

/// Runs pieces back to back, or each at its time. `carry_out` returns the look-ups that found nothing. CPU
/// time is that of the pieces.
pub(super) fn paced<'p, E>(
    kind: Kind,
    pieces: impl Iterator<Item = &'p [u8]>,
    pace: Option<Duration>,
    mut carry_out: impl FnMut(&'p [u8]) -> Result<u64, E>,
) -> Result<VariantCosts, E> {
    let (begin, mut cpu) = (Instant::now(), Duration::ZERO);
    let (mut missed, mut requests, mut each) = (0, 0, Samples::new());
    for (at, piece) in (0_u64..).zip(pieces) {
        if let Some(pace) = pace {
            wait_until(begin + pace.mul_f64(to_f64(at)));
        }
        let (from, its_begin) = (cpu_time(), Instant::now());
        missed += carry_out(piece)?;
        let count = kind.keys_in(piece).count();
        each.record(its_begin.elapsed() / u32::try_from(count).unwrap_or(u32::MAX).max(1));
        cpu += cpu_time() - from;
        requests += count as u64;
    }
    Ok(VariantCosts { wall: begin.elapsed(), cpu, missed, requests, each })
}

/// Busy-waits, like a thread that polls its network.
pub(super) fn wait_until(at: Instant) {
    while Instant::now() < at {
        std::hint::spin_loop();
    }
}
