//! Keys in the order of the index: `SCAN`, `KEYS`, `RANDOMKEY`, and the key of an entry.

use super::index::{Entry, Flag, Name};
use super::place::{At, HEADER_LEN, Header, LocationWord};
use super::{Kind, Store, kind_of};
use crate::failure::Failure;

/// The part of local memory that the keys of one scan take at most, approximately.
const KEYS_SHARE: usize = 16;

impl Store {
    /// Returns the key of an entry, which its record has.
    pub(crate) fn key_of(&mut self, db: u8, name: Name) -> Result<Vec<u8>, Failure> {
        let entry = *self.space(db).index.get(name).ok_or(Failure::NO_KEY)?;
        let key_in = |record: &[u8]| {
            let header = Header::parse(record).filter(|header| header.end() <= record.len());
            let header = header.ok_or(Failure::text("FARMEMORY the record of a key is damaged"))?;
            Ok(record[HEADER_LEN..header.value_from()].to_vec())
        };
        match LocationWord(entry.place).at() {
            At::Live(number) => Ok(self.live_key(number).to_vec()),
            At::Log(spot) | At::Cache(spot) => match self.log.here(spot) {
                Some(record) => key_in(record),
                None => {
                    let read = self.log.fetch(spot);
                    let record = read.map_err(|error| Failure::far("a key cannot be read", &error))?;
                    let key = key_in(&record);
                    self.log.far().recycle(record);
                    key
                }
            },
        }
    }

    /// Returns keys from a cursor on, and the next cursor, which is 0 at the end. There are at least `count`
    /// keys unless they are long or the last. Keys of one hash come together.
    pub(crate) fn scan(
        &mut self,
        db: u8,
        cursor: u64,
        count: usize,
        kind: Option<Kind>,
    ) -> Result<(u64, Vec<Vec<u8>>), Failure> {
        let mut found: Vec<Entry> = Vec::new();
        let mut next = 0;
        for entry in self.space(db).index.from(cursor) {
            if found.len() >= count && found.last().is_some_and(|last| last.name().hash != entry.name().hash)
            {
                next = entry.name().hash;
                break;
            }
            found.push(*entry);
        }
        let (mut keys, mut bytes, mut wanted, mut done) = (Vec::new(), 0, 0, found.len());
        for (number, entry) in found.iter().enumerate() {
            if number == wanted {
                let more = found[number..].iter().take_while(|entry| match LocationWord(entry.place).at() {
                    At::Log(spot) => self.want_spot(spot),
                    At::Cache(_) | At::Live(_) => true,
                });
                // The last noted record is wanted, too.
                wanted = (number + more.count() + 1).min(found.len());
                self.fetch_wanted();
            }
            let ended = entry.has(Flag::EXPIRES)
                && self.space(db).ends.get(entry.name()).is_some_and(|end| end <= self.now);
            if !ended && kind.is_none_or(|kind| kind == kind_of(entry).for_redis()) {
                // A key that cannot be read hides no other.
                match self.key_of(db, entry.name()) {
                    Ok(key) => {
                        bytes += key.len();
                        keys.push(key);
                    }
                    Err(_) => self.stats.unreadable += 1,
                }
            }
            let behind = found.get(number + 1).map(|entry| entry.name().hash);
            if bytes > self.memory.local / KEYS_SHARE
                && let Some(hash) = behind.filter(|&hash| hash != entry.name().hash)
            {
                (next, done) = (hash, number + 1);
                break;
            }
        }
        for entry in found.get(done..wanted).unwrap_or_default() {
            if let At::Log(spot) = LocationWord(entry.place).at() {
                self.log.drop_ahead_of(spot);
            }
        }
        Ok((next, keys))
    }

    /// Drops all keys whose records cannot be read, because their memory nodes are gone. Returns how many.
    pub(crate) fn drop_lost(&mut self) -> usize {
        let lost = self.log.lost_chunks();
        let mut dropped = 0;
        for db in 0..u8::try_from(super::SPACES).expect("few") {
            let in_lost = |store: &Self, entry: &Entry| match LocationWord(entry.place).at() {
                At::Log(spot) => lost.contains(&spot.chunk),
                At::Cache(_) => false,
                At::Live(number) => store.is_lost(number, &lost),
            };
            let names: Vec<Name> =
                self.space(db).index.from(0).filter(|entry| in_lost(self, entry)).map(Entry::name).collect();
            for name in names {
                self.take_out(db, name);
                self.touch(db, name);
                dropped += 1;
            }
        }
        dropped
    }

    /// Returns a random key.
    pub(crate) fn random_key(&mut self, db: u8) -> Result<Option<Vec<u8>>, Failure> {
        const TRIES: usize = 100;
        for _ in 0..TRIES {
            let chance = self.rng.next_u64();
            let Some(name) = self.space(db).index.near(chance).map(Entry::name) else { return Ok(None) };
            let Ok(key) = self.key_of(db, name) else { continue };
            if self.find(db, &key).is_some() {
                return Ok(Some(key));
            }
        }
        Ok(None)
    }
}
