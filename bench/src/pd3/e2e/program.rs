//! An application beside a DPU: it reports received requests, and looks into the zone before it reads far
//! memory.

use super::local_items::LocalItems;
use super::store::{Far, KEY, Kind};
use super::variants::wait_until;
use super::{LEAD, VariantCosts};
use crate::rates::cpu_time;
use crate::{Samples, to_f64};
use farmem::prefetch::tap::{Tap, TapConnection};
use farmem::prefetch::{Position, Reporter, Taker};
use farmem::{Client, Error};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// The application's ends of its DPU.
pub(super) struct Parts {
    pub(super) tap: Tap,
    pub(super) beside: Reporter,
    pub(super) taker: Taker,
}

/// An application beside a DPU.
pub(super) struct Program<'b> {
    pub(super) kind: Kind,
    pub(super) here: LocalItems,
    pub(super) far: &'b Far,
    pub(super) client: &'b mut Client,
    pub(super) connection: TapConnection,
    pub(super) parts: Parts,
    /// True when the DPU sees the requests.
    pub(super) hands_over: bool,
    /// Keys of items evicted by items of this piece.
    pub(super) dropped: Vec<[u8; KEY]>,
    pub(super) answer: Vec<u8>,
    pub(super) wrong: u64,
}

/// Items reported to a DPU together.
const TOLD: usize = 4096;

impl Program<'_> {
    /// Fills the local storage with `here` of the items and reports them to the DPU in portions, because the
    /// DPU's report buffer is bounded.
    pub(super) fn fill(&mut self, items: u64, here: usize) {
        let stride = usize::try_from(items).expect("they fit memory") / here;
        let mut value = vec![0; self.kind.value_len()];
        let all: Vec<u64> = (0..items).step_by(stride).collect();
        for some in all.chunks(TOLD) {
            for &item in some {
                Kind::fill(item, &mut value);
                self.parts.beside.reads(&self.kind.key(item), true);
                if let Some(evicted) = self.here.put(item, &value) {
                    self.dropped.push(self.kind.key(evicted));
                }
            }
            self.parts.beside.drops_all(self.dropped.iter().map(|key| &key[..]));
            self.dropped.clear();
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Receives pieces at a pace. Each piece is executed when [`LEAD`] more have arrived.
    pub(super) fn run(
        &mut self,
        requests: &[u8],
        piece: usize,
        pace: Duration,
    ) -> Result<VariantCosts, Error> {
        let pieces: Vec<&[u8]> = requests.chunks(piece * self.kind.request_len()).collect();
        let mut waiting = VecDeque::new();
        let (begin, mut cpu, mut missed) = (Instant::now(), Duration::ZERO, 0);
        let mut each = Samples::new();
        for at in 0..pieces.len() + LEAD {
            wait_until(begin + pace.mul_f64(to_f64(at as u64)));
            let from = cpu_time();
            if let Some(piece) = pieces.get(at) {
                let position =
                    if self.hands_over { self.connection.received(piece) } else { Position::UNKNOWN };
                waiting.push_back((*piece, position));
            }
            if at >= LEAD
                && let Some((piece, position)) = waiting.pop_front()
            {
                let begin = Instant::now();
                missed += self.carry_out(piece)?;
                self.parts.tap.executed(position);
                let count = piece.len() / self.kind.request_len();
                each.record(begin.elapsed() / u32::try_from(count).unwrap_or(u32::MAX).max(1));
            }
            cpu += cpu_time() - from;
        }
        let requests = (requests.len() / self.kind.request_len()) as u64;
        Ok(VariantCosts { wall: begin.elapsed(), cpu, missed, requests, each })
    }

    fn carry_out(&mut self, piece: &[u8]) -> Result<u64, Error> {
        let mut missed = 0;
        // The other core has just written these lines: all lines of a piece are prefetched together.
        let far = self.kind.keys_in(piece).filter(|key| !self.here.has(self.kind.item(key)));
        self.parts.taker.look_ahead(far);
        for key in self.kind.keys_in(piece) {
            let item = self.kind.item(key);
            if !self.here.get(item, &mut self.answer) {
                if self.parts.taker.take(key, &mut self.answer).is_none() {
                    missed += 1;
                    self.parts.beside.asks(key);
                    self.far.get(self.client, key, &mut self.answer)?;
                    self.parts.beside.reads(key, true);
                }
                if let Some(evicted) = self.here.put(item, &self.answer) {
                    self.dropped.push(self.kind.key(evicted));
                }
            }
            self.wrong += u64::from(!self.kind.is_right(key, &self.answer));
        }
        self.parts.beside.drops_all(self.dropped.iter().map(|key| &key[..]));
        self.dropped.clear();
        Ok(missed)
    }
}
