//! An application beside a DPU: it hands over what comes, and looks into the zone before it asks far memory.

use super::here::Here;
use super::store::{Far, KEY, Kind};
use super::{LEAD, REQUEST, Taken, keys_of, wait_until};
use crate::rates::cpu_time;
use crate::to_f64;
use farmem::prefetch::parse::records::Records;
use farmem::prefetch::tap::{Tap, TapConnection};
use farmem::prefetch::{Beside, Taker, ZoneReader};
use farmem::{Client, Error};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// What the application has of its DPU.
pub(super) struct Parts {
    pub(super) tap: Tap,
    pub(super) beside: Beside,
    pub(super) reader: ZoneReader,
}

impl Parts {
    pub(super) fn connection(&self, kind: Kind) -> TapConnection {
        let parser = match kind {
            Kind::Hash => Records::hash_map(),
            Kind::Pages => Records::pages(),
        };
        self.tap.connection(Box::new(parser)).expect("the only connection")
    }
}

/// An application beside a DPU.
pub(super) struct Program<'b> {
    pub(super) kind: Kind,
    pub(super) here: Here,
    pub(super) far: &'b Far,
    pub(super) client: &'b mut Client,
    pub(super) taker: Taker,
    pub(super) connection: TapConnection,
    pub(super) parts: &'b Parts,
    /// Keys of items that were dropped for those of this piece.
    pub(super) dropped: Vec<[u8; KEY]>,
    pub(super) answer: Vec<u8>,
    pub(super) wrong: u64,
}

impl Program<'_> {
    /// Pieces come at a pace; each is carried out when [`LEAD`] more have come.
    pub(super) fn run(&mut self, requests: &[u8], piece: usize, pace: Duration) -> Result<Taken, Error> {
        let pieces: Vec<&[u8]> = requests.chunks(piece * REQUEST).collect();
        let mut waiting = VecDeque::new();
        let (begin, mut cpu, mut missed) = (Instant::now(), Duration::ZERO, 0);
        for at in 0..pieces.len() + LEAD {
            wait_until(begin + pace.mul_f64(to_f64(at as u64)));
            let from = cpu_time();
            if let Some(piece) = pieces.get(at) {
                waiting.push_back((*piece, self.connection.received(piece)));
            }
            if at >= LEAD
                && let Some((piece, position)) = waiting.pop_front()
            {
                missed += self.carry_out(piece)?;
                self.parts.tap.executed(position);
            }
            cpu += cpu_time() - from;
        }
        let requests = (requests.len() / REQUEST) as u64;
        Ok(Taken { wall: begin.elapsed(), cpu, missed, requests })
    }

    fn carry_out(&mut self, piece: &[u8]) -> Result<u64, Error> {
        let mut missed = 0;
        // The other core has just written what is taken: all of a piece's lines are asked for together.
        let far = keys_of(piece).filter(|key| !self.here.has(self.kind.item(key)));
        self.taker.look_ahead(far);
        for key in keys_of(piece) {
            let item = self.kind.item(key);
            if !self.here.get(item, &mut self.answer) {
                if self.taker.take(key, &mut self.answer).is_none() {
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
