//! The objects: their contents and their placement.

use farmem::{Error, FarMemory, NodeId, VirtAddr, Vma};
use std::collections::VecDeque;

/// Bytes of an object.
pub const OBJECT_LEN: usize = 8192;

/// Words of which objects consist: text as in real services, so that it compresses like such text.
const WORDS: [&[u8; 8]; 16] = [
    b"balance:",
    b"\"name\": ",
    b"customer",
    b"2026-11-",
    b"\"city\": ",
    b" street ",
    b"invoice ",
    b"0.00 EUR",
    b"pending,",
    b"shipped,",
    b"\"notes\":",
    b"reminder",
    b"address ",
    b"account ",
    b"\"items\":",
    b"history ",
];
/// This many of eight words are incompressible digits.
const DIGITS: u64 = 2;

/// Computes a step of splitmix64: each state gives another word.
const fn mix(state: u64) -> u64 {
    let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Returns the words of an object's version: both numbers, then words derived from them.
fn words(object: u64, version: u64) -> impl Iterator<Item = [u8; 8]> {
    let mut state = mix(object ^ version.rotate_left(32));
    let further = core::iter::repeat_with(move || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let random = mix(state);
        let [.., low] = random.to_be_bytes();
        if random % 8 < DIGITS { random.to_le_bytes() } else { *WORDS[usize::from(low >> 4)] }
    });
    [object, version].map(u64::to_le_bytes).into_iter().chain(further).take(OBJECT_LEN / 8)
}

/// Writes a version of an object into `into`.
pub(crate) fn compose(object: u64, version: u64, into: &mut Vec<u8>) {
    into.clear();
    into.reserve(OBJECT_LEN);
    words(object, version).for_each(|word| into.extend_from_slice(&word));
}

/// Returns true when the bytes are those of [`compose`].
pub(crate) fn is_composed(bytes: &[u8], object: u64, version: u64) -> bool {
    let (have, rest) = bytes.as_chunks();
    rest.is_empty() && have.iter().copied().eq(words(object, version))
}

/// Returns the number and version in an object.
pub(crate) fn title(bytes: &[u8]) -> (u64, u64) {
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("the range has 8 bytes"));
    (word(0), word(8))
}

/// Returns the extra places for replaced objects on each memory node, with `in_flight` concurrent requests.
pub(crate) const fn spare(in_flight: usize) -> u64 {
    2 * in_flight as u64 + 16
}

/// Objects per WRITE of the load.
const BULK: usize = 8;
/// WRITEs sent together.
const BULKS_MAX: usize = 16;

/// The places of objects. All places of one object are on one memory node.
pub(crate) struct Objects {
    regions: Vec<Vma>,
    /// Free places, by memory node.
    free: Vec<Vec<VirtAddr>>,
    /// Places of replaced objects, each with the number of requests begun by then.
    retired: VecDeque<(u64, VirtAddr)>,
    requests: UnderWay,
}

impl Objects {
    pub(crate) fn create(
        memory: &mut (impl FarMemory + ?Sized),
        count: u64,
        in_flight: usize,
    ) -> Result<Self, Error> {
        let nodes: Vec<NodeId> = memory.nodes().iter().map(|node| NodeId(node.node)).collect();
        let each = count.div_ceil(nodes.len() as u64) + spare(in_flight);
        let mut regions = Vec::with_capacity(nodes.len());
        for node in nodes {
            regions.push(memory.allocate_on(each * OBJECT_LEN as u64, node)?);
        }
        let place = |region: &Vma, n: u64| VirtAddr(region.base.0 + n * OBJECT_LEN as u64);
        // The first place is taken first.
        let free = regions.iter().map(|region| (0..each).rev().map(|n| place(region, n)).collect()).collect();
        Ok(Self { regions, free, retired: VecDeque::new(), requests: UnderWay::default() })
    }

    /// Writes the first version of each object. Returns their places.
    pub(crate) fn load(
        &mut self,
        memory: &mut (impl FarMemory + ?Sized),
        count: u64,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Vec<VirtAddr>, Error> {
        let places: Vec<VirtAddr> =
            (0..count).map(|object| self.take(object).expect("there is room for each")).collect();
        let nodes = self.regions.len() as u64;
        let mut bytes = Vec::new();
        for node in 0..nodes {
            // A node's objects are adjacent, in the order of allocation.
            let objects: Vec<u64> = (node..count).step_by(self.regions.len()).collect();
            for together in objects.chunks(BULK * BULKS_MAX) {
                let mut images: Vec<(VirtAddr, Vec<u8>)> = Vec::with_capacity(BULKS_MAX);
                for bulk in together.chunks(BULK) {
                    let mut image = Vec::with_capacity(BULK * OBJECT_LEN);
                    for &object in bulk {
                        compose(object, 0, &mut bytes);
                        image.extend_from_slice(&bytes);
                    }
                    images.push((places[index(bulk[0])], image));
                }
                let writes: Vec<(VirtAddr, &[u8])> =
                    images.iter().map(|(place, image)| (*place, image.as_slice())).collect();
                memory.write_many(&writes)?;
                progress(together[0], count);
            }
        }
        Ok(places)
    }

    pub(crate) fn destroy(self, memory: &mut (impl FarMemory + ?Sized)) -> Result<(), Error> {
        self.regions.iter().try_for_each(|region| memory.free(region.base))
    }

    /// Takes a free place for a version of `object`; `None` when all are still in use by requests.
    pub(crate) fn take(&mut self, object: u64) -> Option<VirtAddr> {
        while let Some(&(began, place)) = self.retired.front() {
            if self.requests.oldest() < began {
                break;
            }
            self.retired.pop_front();
            self.put_back(place);
        }
        let node = index(object % self.regions.len() as u64);
        self.free[node].pop()
    }

    /// Retires a replaced object's place, which requests in flight may still read.
    pub(crate) fn retire(&mut self, place: VirtAddr) {
        self.retired.push_back((self.requests.begun, place));
    }

    /// Frees all retired places, because no request reads them any more.
    pub(crate) fn reclaim(&mut self) {
        while let Some((_, place)) = self.retired.pop_front() {
            self.put_back(place);
        }
    }

    /// Begins a request. Returns its number.
    pub(crate) fn begin(&mut self) -> u64 {
        self.requests.begin()
    }

    /// Ends a request.
    pub(crate) fn end(&mut self, number: u64) {
        self.requests.end(number);
    }

    fn put_back(&mut self, place: VirtAddr) {
        let home = self.regions.iter().position(|r| place.0.wrapping_sub(r.base.0) < r.size);
        self.free[home.expect("it was taken from one of them")].push(place);
    }
}

/// The requests in flight: those begun, without the ended ones.
#[derive(Debug, Default)]
struct UnderWay {
    begun: u64,
    /// The ended flag of each request, from the oldest one in flight on.
    ended: VecDeque<bool>,
}

impl UnderWay {
    fn begin(&mut self) -> u64 {
        self.ended.push_back(false);
        self.begun += 1;
        self.begun - 1
    }

    fn end(&mut self, number: u64) {
        let place = index(number - self.oldest());
        self.ended[place] = true;
        while self.ended.front() == Some(&true) {
            self.ended.pop_front();
        }
    }

    /// Returns the number of the oldest request in flight, or of the next one.
    fn oldest(&self) -> u64 {
        self.begun - self.ended.len() as u64
    }
}

pub(crate) fn index(n: u64) -> usize {
    usize::try_from(n).expect("farmem runs on 64-bit machines")
}

#[cfg(test)]
mod tests {
    use super::*;
    use farmem::Rack;

    #[test]
    fn an_object_says_which_it_is() {
        let (mut one, mut other) = (Vec::new(), Vec::new());
        compose(7, 3, &mut one);
        assert_eq!((one.len(), title(&one)), (OBJECT_LEN, (7, 3)));
        assert!(is_composed(&one, 7, 3) && !is_composed(&one, 7, 4) && !is_composed(&one[8..], 7, 3));
        compose(7, 4, &mut other);
        one[OBJECT_LEN - 1] ^= 1;
        assert!(!is_composed(&one, 7, 3), "its last byte counts");
        assert_ne!(one[16..], other[16..], "another version has other words");
    }

    /// A place is free again exactly when the last request that may read it has ended.
    #[test]
    fn a_place_waits_for_its_readers() {
        let mut client = Rack::embedded_with(1, 16 << 20).unwrap().client("places").unwrap();
        let mut objects = Objects::create(&mut client, 1, 1).unwrap();
        let mut taken = Vec::new();
        while let Some(place) = objects.take(0) {
            taken.push(place);
        }
        let (first, second) = (objects.begin(), objects.begin());
        objects.retire(taken[0]);
        let third = objects.begin();
        objects.end(second);
        assert_eq!(objects.take(0), None, "the first may look at it");
        objects.end(first);
        assert_eq!(objects.take(0), Some(taken[0]), "the third began too late to see it");
        objects.end(third);
        objects.retire(taken[1]);
        objects.reclaim();
        assert_eq!(objects.take(0), Some(taken[1]));
    }
}
