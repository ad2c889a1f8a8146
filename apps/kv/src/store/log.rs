//! The hybrid log (FASTER; PD3 8 has it from Garnet): a tail in local memory, to which records are appended
//! and in which they change, and chunks in far memory.
//!
//! Key type: [`Log`]. The log knows chunks and bytes, but no keys; the store knows the live records of a
//! chunk, and moves them out of chunks that are mostly dead. Local chunks are in a queue, the oldest first.
//! When another one has no room, one WRITE moves the oldest to far memory; the places of its records stay the
//! same.
//!
//! *Reading ahead* ([`Log::fetch_ahead`]): far records of known commands are read together before the first command
//! runs. READs are under way while commands run, and each command waits for its own. A far record does not change
//! while its chunk exists, so the bytes are those that a READ would return. The bytes are dropped with the chunk, or
//! after the turn that they were read for.

use super::dead::Dead;
use super::far::{Far, PendingRead};
use super::place::{CHUNK, Class, HEADER_LEN, Header, LocationWord, RecordSpan};
use farmem::{Error, VirtAddr};
use memmap2::MmapMut;
use slab::Slab;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};

/// A record of the read cache.
pub(crate) struct CachedRecord {
    /// Location in the cache.
    pub(crate) cached: LocationWord,
    /// Location in the log.
    pub(crate) from: LocationWord,
    pub(crate) key: Vec<u8>,
    pub(crate) space: u8,
}

/// The bytes of a chunk.
#[derive(Debug)]
enum Bytes {
    Local(MmapMut),
    Far(VirtAddr),
}

#[derive(Debug)]
struct Chunk {
    bytes: Bytes,
    /// Bytes that were appended.
    used: usize,
    /// Bytes of live records, with their free room.
    live: usize,
    /// Bytes of the shortest record.
    least: usize,
    /// Records that died since the chunk is far.
    dead: Dead,
    /// The chunk is one piece of a large value.
    piece: bool,
    /// The chunk could not be read when it was to be compacted.
    lost: bool,
}

impl Chunk {
    /// Returns whether this is a far chunk of records of which less than half is live.
    fn is_mostly_dead(&self) -> bool {
        matches!(self.bytes, Bytes::Far(_)) && !self.piece && !self.lost && self.live * 2 < CHUNK
    }
}

/// A record that is read ahead.
#[derive(Debug)]
struct Ahead {
    pending: PendingRead,
    /// The age when the READ began, as [`Log::age`] counts.
    age: u64,
}

/// Counts of records that were read ahead.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct AheadCounts {
    /// Records that were read ahead.
    pub(crate) wanted: u64,
    /// Records that a command used.
    pub(crate) used: u64,
    /// Records that no command used: their keys were deleted or written meanwhile.
    pub(crate) wasted: u64,
    /// Records whose READs left while commands of the last turn were still to run.
    pub(crate) early: u64,
    /// Records that were not read ahead, and for which a command waited.
    pub(crate) late: u64,
}

/// All chunks, local and far.
#[derive(Debug)]
pub(crate) struct Log {
    far: Far,
    chunks: Slab<Chunk>,
    /// The local chunks of records and pieces, the oldest first. The last is the tail.
    here: VecDeque<usize>,
    tail: Option<usize>,
    /// The chunks of the read cache, the oldest first. The last is being filled.
    cached: VecDeque<usize>,
    /// Memory of dropped chunks, for the next ones.
    spare: Vec<MmapMut>,
    /// Local chunks at most, with those of the cache.
    here_max: usize,
    /// Bytes of live records and pieces.
    live: usize,
    /// The emptiest far chunks of the last search, the emptiest one last.
    emptiest: Vec<usize>,
    /// Far records that were read ahead.
    ahead: BTreeMap<RecordSpan, Ahead>,
    /// The number of turns in which records were read ahead.
    age: u64,
    pub(crate) counts: AheadCounts,
}

/// The reason why a record has no room.
#[derive(Debug)]
pub(crate) enum Full {
    /// Local memory is full, and far memory refuses the oldest chunk.
    Far(Error),
    /// The system has no memory.
    System(std::io::Error),
}

impl Log {
    pub(crate) fn new(far: Far, here_max: usize) -> Self {
        Self {
            far,
            chunks: Slab::new(),
            here: VecDeque::new(),
            tail: None,
            cached: VecDeque::new(),
            spare: Vec::new(),
            here_max: here_max.max(HERE_MIN),
            live: 0,
            emptiest: Vec::new(),
            ahead: BTreeMap::new(),
            age: 0,
            counts: AheadCounts::default(),
        }
    }

    pub(crate) const fn far(&mut self) -> &mut Far {
        &mut self.far
    }

    pub(crate) const fn far_ref(&self) -> &Far {
        &self.far
    }

    /// Sets the number of local chunks, and moves the oldest of too many to far memory.
    pub(crate) fn set_here_max(&mut self, most: usize) -> Result<(), Full> {
        self.here_max = most.max(HERE_MIN);
        while self.here.len() + self.cached.len() > self.here_max && self.here.len() > 1 {
            self.oldest_goes()?;
        }
        let room = self.here_max - (self.here.len() + self.cached.len()).min(self.here_max);
        self.spare.truncate(room.min(SPARE_MAX));
        Ok(())
    }

    /// Returns how many chunks may be local.
    pub(crate) const fn here_max(&self) -> usize {
        self.here_max
    }

    /// Returns how many chunks of the log, and of the cache, are local.
    pub(crate) fn here_len(&self) -> (usize, usize) {
        (self.here.len(), self.cached.len())
    }

    /// Returns the bytes of local memory.
    pub(crate) fn here_bytes(&self) -> usize {
        (self.here.len() + self.cached.len() + self.spare.len()) * CHUNK
    }

    /// Returns how many chunks are far.
    pub(crate) fn far_len(&self) -> usize {
        self.chunks.len() - self.here.len() - self.cached.len()
    }

    /// Returns the bytes of live records and pieces.
    pub(crate) const fn live(&self) -> usize {
        self.live
    }

    /// Appends a record, and returns its place. The value is the concatenation of the parts.
    pub(crate) fn append(
        &mut self,
        header: Header,
        key: &[u8],
        value: &[&[u8]],
    ) -> Result<LocationWord, Full> {
        let len = header.class.len();
        let chunk = match self.tail {
            Some(chunk) if self.chunks[chunk].used + len <= CHUNK => chunk,
            _ => {
                let chunk = self.new_chunk(false)?;
                self.tail = Some(chunk);
                chunk
            }
        };
        let Chunk { bytes: Bytes::Local(bytes), used, live, least, .. } = &mut self.chunks[chunk] else {
            unreachable!("the tail is here")
        };
        *least = len.min(*least);
        let offset = *used;
        let mut into = &mut bytes[offset..offset + len];
        for part in [&header.emit()[..], key].iter().chain(value) {
            let (there, rest) = into.split_at_mut(part.len());
            there.copy_from_slice(part);
            into = rest;
        }
        *used += len;
        *live += len;
        self.live += len;
        Ok(LocationWord::log(chunk, offset, header.class))
    }

    /// Stores a piece of a large value, and returns the number of its chunk.
    pub(crate) fn put_piece(&mut self, piece: &[u8]) -> Result<usize, Full> {
        let number = self.new_chunk(true)?;
        let chunk = &mut self.chunks[number];
        let Bytes::Local(bytes) = &mut chunk.bytes else { unreachable!("a new chunk is here") };
        bytes[..piece.len()].copy_from_slice(piece);
        (chunk.used, chunk.live) = (piece.len(), CHUNK);
        self.live += CHUNK;
        Ok(number)
    }

    /// Appends the bytes of pieces, in order. Far ones are read some at a time.
    pub(crate) fn read_pieces(&mut self, numbers: &[usize], into: &mut Vec<u8>) -> Result<(), Error> {
        for some in numbers.chunks(PIECES_TOGETHER) {
            let far = some.iter().filter_map(|&number| match self.chunks[number].bytes {
                Bytes::Far(at) => Some((at, self.chunks[number].used)),
                Bytes::Local(_) => None,
            });
            let mut read = self.far.read_all(&far.collect::<Vec<_>>()).into_iter();
            for &number in some {
                let chunk = &self.chunks[number];
                if let Bytes::Local(bytes) = &chunk.bytes {
                    into.extend_from_slice(&bytes[..chunk.used]);
                } else {
                    let buf = read.next().expect("each far piece was read")?;
                    into.extend_from_slice(&buf);
                    self.far.recycle(buf);
                }
            }
        }
        Ok(())
    }

    /// Marks a record or a piece as dead. Drops a chunk that has no live ones.
    pub(crate) fn forget(&mut self, spot: RecordSpan) {
        let chunk = &mut self.chunks[spot.chunk];
        chunk.dead.note(spot.offset);
        chunk.live -= spot.len;
        self.live -= spot.len;
        if chunk.live == 0 && self.tail != Some(spot.chunk) {
            self.drop_chunk(spot.chunk);
        }
    }

    /// Returns false for a record that is known to be dead. For others the caller checks whether an entry leads to
    /// them.
    pub(crate) fn may_be_wanted(&self, number: usize, offset: usize) -> bool {
        self.chunks.get(number).is_some_and(|chunk| !chunk.dead.has(offset))
    }

    /// Marks a piece as dead.
    pub(crate) fn forget_piece(&mut self, number: usize) {
        self.forget(RecordSpan { chunk: number, offset: 0, len: CHUNK });
    }

    /// Returns a record in local memory.
    pub(crate) fn here(&self, spot: RecordSpan) -> Option<&[u8]> {
        match &self.chunks[spot.chunk].bytes {
            Bytes::Local(bytes) => Some(&bytes[spot.offset..spot.offset + spot.len]),
            Bytes::Far(_) => None,
        }
    }

    /// Returns a record in local memory, to change it in place.
    pub(crate) fn here_mut(&mut self, spot: RecordSpan) -> Option<&mut [u8]> {
        match &mut self.chunks[spot.chunk].bytes {
            Bytes::Local(bytes) => Some(&mut bytes[spot.offset..spot.offset + spot.len]),
            Bytes::Far(_) => None,
        }
    }

    /// Returns a far record: read ahead, or with a READ now.
    pub(crate) fn fetch(&mut self, spot: RecordSpan) -> Result<Vec<u8>, Error> {
        if let Some(ahead) = self.ahead.remove(&spot) {
            self.counts.used += 1;
            return self.far.end(ahead.pending);
        }
        self.counts.late += 1;
        let Bytes::Far(at) = self.chunks[spot.chunk].bytes else { unreachable!("it was looked for here") };
        self.far.read(VirtAddr(at.0 + spot.offset as u64), spot.len)
    }

    /// Returns whether [`Log::fetch`] of a record would wait for a new READ.
    pub(crate) fn would_wait(&self, spot: RecordSpan) -> bool {
        matches!(self.chunks[spot.chunk].bytes, Bytes::Far(_)) && !self.ahead.contains_key(&spot)
    }

    /// Begins to read far records.
    pub(crate) fn fetch_ahead(&mut self, spots: &[RecordSpan]) {
        let range = |spot: &RecordSpan| match self.chunks[spot.chunk].bytes {
            Bytes::Far(at) => (VirtAddr(at.0 + spot.offset as u64), spot.len),
            Bytes::Local(_) => unreachable!("what is here is not read ahead"),
        };
        let ranges: Vec<_> = spots.iter().map(range).collect();
        self.counts.wanted += spots.len() as u64;
        let begun = self.far.begin(&ranges);
        let age = self.age;
        let begun = begun.into_iter().map(|pending| Ahead { pending, age });
        self.ahead.extend(spots.iter().copied().zip(begun));
    }

    /// Drops records that were read ahead before the last call and not used. With `all`, drops all.
    pub(crate) fn drop_ahead(&mut self, all: bool) {
        let age = self.age;
        let gone = self.ahead.extract_if(.., |_, ahead| all || ahead.age < age);
        let gone: Vec<Ahead> = gone.map(|(_, ahead)| ahead).collect();
        gone.into_iter().for_each(|ahead| self.waste(ahead.pending));
        self.age += 1;
    }

    /// Drops one record that was read ahead.
    pub(crate) fn drop_ahead_of(&mut self, spot: RecordSpan) {
        if let Some(ahead) = self.ahead.remove(&spot) {
            self.waste(ahead.pending);
        }
    }

    /// Waits for a READ that no command needs, and recycles its buffer.
    fn waste(&mut self, pending: PendingRead) {
        self.counts.wasted += 1;
        if let Ok(buf) = self.far.end(pending) {
            self.far.recycle(buf);
        }
    }

    /// Copies a far record into the cache, with its place in the log in front. Returns `None` if the last
    /// chunk of the cache is full.
    pub(crate) fn cache(&mut self, from: LocationWord, record: &[u8]) -> Option<LocationWord> {
        let (number, class) = (*self.cached.back()?, Header::parse(record)?.class);
        let len = UNIT_OF_PLACE + class.len();
        let chunk = &mut self.chunks[number];
        let Bytes::Local(bytes) = &mut chunk.bytes else { unreachable!("the cache is here") };
        if chunk.used + len > CHUNK {
            return None;
        }
        let offset = chunk.used;
        bytes[offset..offset + UNIT_OF_PLACE].copy_from_slice(&from.0.to_le_bytes());
        bytes[offset + UNIT_OF_PLACE..offset + len].copy_from_slice(&record[..class.len()]);
        chunk.used += len;
        Some(LocationWord::cache(number, offset + UNIT_OF_PLACE, class))
    }

    /// Returns the place in the log of a cached record.
    pub(crate) fn behind_cache(&self, spot: RecordSpan) -> LocationWord {
        let Bytes::Local(bytes) = &self.chunks[spot.chunk].bytes else { unreachable!("the cache is here") };
        let word = &bytes[spot.offset - UNIT_OF_PLACE..spot.offset];
        LocationWord(u64::from_le_bytes(word.try_into().expect("eight bytes")))
    }

    /// Adds a chunk to the cache. Returns false if there is no room before an older one is dropped.
    pub(crate) fn grow_cache(&mut self) -> Result<bool, std::io::Error> {
        // The cache takes half of local memory at most, because the tail takes writes.
        if self.here.len() + self.cached.len() >= self.here_max || self.cached.len() * 2 >= self.here_max {
            return Ok(false);
        }
        let bytes = self.memory()?;
        let number = self.chunks.insert(Chunk {
            bytes: Bytes::Local(bytes),
            used: 0,
            live: 0,
            least: CHUNK,
            dead: Dead::default(),
            piece: false,
            lost: false,
        });
        self.cached.push_back(number);
        Ok(true)
    }

    /// Returns the oldest chunk of the cache.
    pub(crate) fn oldest_cached(&self) -> Option<usize> {
        self.cached.front().copied()
    }

    /// Returns the records of a cached chunk.
    pub(crate) fn cached_records(&self, number: usize) -> Vec<CachedRecord> {
        let chunk = &self.chunks[number];
        let Bytes::Local(bytes) = &chunk.bytes else { unreachable!("the cache is here") };
        let (mut at, mut records) = (0, Vec::new());
        while at + UNIT_OF_PLACE < chunk.used {
            let from = LocationWord(u64::from_le_bytes(
                bytes[at..at + UNIT_OF_PLACE].try_into().expect("eight bytes"),
            ));
            let record = at + UNIT_OF_PLACE;
            let header = Header::parse(&bytes[record..]).expect("the cache has records");
            let key = bytes[record + HEADER_LEN..record + header.value_from()].to_vec();
            let cached = LocationWord::cache(number, record, header.class);
            records.push(CachedRecord { cached, from, key, space: header.space });
            at = record + header.class.len();
        }
        records
    }

    /// Drops the oldest chunk of the cache, to which no entry leads any more.
    pub(crate) fn drop_cached(&mut self) {
        if let Some(number) = self.cached.pop_front() {
            let chunk = self.chunks.remove(number);
            self.keep_memory(chunk.bytes);
        }
    }

    /// Returns the emptiest far chunk, if less than half of it is live and less than `wanted` eighths of far
    /// memory are.
    pub(crate) fn worth_compaction(&mut self, wanted: usize) -> Option<usize> {
        let far = self.far_len() * CHUNK;
        let here: usize = self.here.iter().map(|&number| self.chunks[number].live).sum();
        if far == 0 || (self.live - here.min(self.live)) * 8 >= far * wanted {
            return None;
        }
        loop {
            while let Some(number) = self.emptiest.pop() {
                if self.chunks.get(number).is_some_and(Chunk::is_mostly_dead) {
                    return Some(number);
                }
            }
            self.find_emptiest();
            if self.emptiest.is_empty() {
                return None;
            }
        }
    }

    /// Finds the emptiest far chunks, several at a time. To look at all chunks for each one would take longer
    /// than to move its records.
    fn find_emptiest(&mut self) {
        let mut emptiest = BinaryHeap::with_capacity(EMPTIEST + 1);
        for (number, chunk) in self.chunks.iter().filter(|(_, chunk)| chunk.is_mostly_dead()) {
            if emptiest.len() < EMPTIEST || emptiest.peek().is_some_and(|&(live, _)| chunk.live < live) {
                emptiest.push((chunk.live, number));
            }
            if emptiest.len() > EMPTIEST {
                emptiest.pop();
            }
        }
        self.emptiest.extend(emptiest.into_sorted_vec().into_iter().rev().map(|(_, number)| number));
    }

    /// Returns the bytes of a far chunk of records. The caller gives the buffer back to [`Far::keep_chunk`].
    pub(crate) fn fetch_chunk(&mut self, number: usize) -> Result<Vec<u8>, Error> {
        let chunk = &mut self.chunks[number];
        let Bytes::Far(at) = chunk.bytes else { unreachable!("far chunks are compacted") };
        let read = self.far.read_chunk(at, chunk.used);
        chunk.lost = read.is_err();
        read
    }

    /// Returns the far chunks that cannot be read. Reads one word of each.
    pub(crate) fn lost_chunks(&mut self) -> BTreeSet<usize> {
        const TOGETHER: usize = 256;
        let far: Vec<(usize, VirtAddr)> = self
            .chunks
            .iter()
            .filter_map(|(number, chunk)| match chunk.bytes {
                Bytes::Far(at) => Some((number, at)),
                Bytes::Local(_) => None,
            })
            .collect();
        let mut lost = BTreeSet::new();
        for some in far.chunks(TOGETHER) {
            let ranges: Vec<_> = some.iter().map(|&(_, at)| (at, UNIT_OF_PLACE)).collect();
            for ((number, _), read) in some.iter().zip(self.far.read_all(&ranges)) {
                match read {
                    Ok(buf) => self.far.recycle(buf),
                    Err(_) => _ = lost.insert(*number),
                }
            }
        }
        lost
    }

    fn drop_chunk(&mut self, number: usize) {
        let chunk = self.chunks.remove(number);
        match chunk.bytes {
            Bytes::Far(at) => {
                // Another chunk may get its number and its address.
                let of_it = |spot: &RecordSpan, _: &mut Ahead| spot.chunk == number;
                let gone: Vec<PendingRead> =
                    self.ahead.extract_if(.., of_it).map(|(_, ahead)| ahead.pending).collect();
                gone.into_iter().for_each(|pending| self.waste(pending));
                self.far.give_back(at);
            }
            here @ Bytes::Local(_) => {
                self.here.retain(|&other| other != number);
                self.keep_memory(here);
            }
        }
    }

    /// Adds a local chunk at the end of the queue.
    fn new_chunk(&mut self, piece: bool) -> Result<usize, Full> {
        while self.here.len() + self.cached.len() >= self.here_max && !self.here.is_empty() {
            self.oldest_goes()?;
        }
        let bytes = Bytes::Local(self.memory().map_err(Full::System)?);
        let (least, dead) = (CHUNK, Dead::default());
        let number = self.chunks.insert(Chunk { bytes, used: 0, live: 0, least, dead, piece, lost: false });
        self.here.push_back(number);
        Ok(number)
    }

    /// Moves the oldest local chunk to far memory.
    fn oldest_goes(&mut self) -> Result<(), Full> {
        let number = *self.here.front().expect("a chunk is here");
        if self.chunks[number].live == 0 {
            self.tail = self.tail.filter(|&tail| tail != number);
            self.drop_chunk(number);
            return Ok(());
        }
        let chunk = &mut self.chunks[number];
        let Bytes::Local(bytes) = &chunk.bytes else { unreachable!("it is here") };
        let at = self.far.put(&bytes[..chunk.used]).map_err(Full::Far)?;
        let bytes = std::mem::replace(&mut chunk.bytes, Bytes::Far(at));
        if !chunk.piece {
            chunk.dead = Dead::new(chunk.used, chunk.least);
        }
        self.keep_memory(bytes);
        self.here.pop_front();
        self.tail = self.tail.filter(|&tail| tail != number);
        Ok(())
    }

    fn memory(&mut self) -> Result<MmapMut, std::io::Error> {
        self.spare.pop().map_or_else(|| MmapMut::map_anon(CHUNK), Ok)
    }

    fn keep_memory(&mut self, bytes: Bytes) {
        if let Bytes::Local(memory) = bytes
            && self.spare.len() < SPARE_MAX
        {
            self.spare.push(memory);
        }
    }
}

/// Chunks that one search for the emptiest ones finds.
const EMPTIEST: usize = 64;
/// Local chunks at least: a tail, one that is written, and two of the cache.
pub(crate) const HERE_MIN: usize = 4;
/// Pieces of a long value that are read together.
pub(super) const PIECES_TOGETHER: usize = 8;
/// Memory of dropped chunks that is kept.
const SPARE_MAX: usize = 4;
/// Bytes in front of a cached record.
const UNIT_OF_PLACE: usize = 8;

/// Returns the records of a chunk, with dead ones: the offset and the header of each.
pub(crate) fn records(bytes: &[u8]) -> impl Iterator<Item = (usize, Header)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let header = Header::parse(bytes.get(at..)?)?;
        let from = at;
        at += header.class.len();
        (at <= bytes.len() && header.class != Class(0)).then_some((from, header))
    })
}
