//! A memory node's bytes in mapped memory, with huge pages if the system provides them, and with real
//! atomics.
//!
//! Every write uses atomic words (and atomic bytes at unaligned edges). So concurrent readers of this process
//! ([`MappedStore::reader`]) never see a torn aligned word, and an atomic operation from the network is
//! atomic for them too. Longer accesses are not atomic: a reader may see the first words of a WRITE and not
//! yet the last. The node's own reads are plain copies, because only the node writes.

mod ahead;

use crate::huge::{HugeMemory, PageSize, prefetch};
use ahead::Ahead;
use farmem_memnode::Store;
use farmem_traversal::LINE_LEN;
use farmem_wire::message::PAGE_LEN;
use std::fmt;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// Length of a word in bytes.
const WORD: usize = 8;

/// A mapping of zero bytes, shared by the store and its readers, and unmapped with the last of them. The
/// memory is accessed only through atomics (`words`, `bytes`), except that the one store with the right to
/// write may read and discard it.
struct Mapping {
    memory: HugeMemory,
    len: usize,
}

impl Mapping {
    fn new(len: usize) -> io::Result<Self> {
        Ok(Self { memory: HugeMemory::new(len, PageSize::Huge)?, len })
    }

    /// Returns a pointer to the first byte.
    #[inline]
    const fn start(&self) -> NonNull<u8> {
        self.memory.start()
    }

    fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(
            offset.is_multiple_of(WORD) && offset <= self.len.saturating_sub(WORD),
            "a word inside the store"
        );
        // SAFETY: the assertion keeps the word inside the mapping.
        let place = unsafe { self.start().add(offset) };
        // SAFETY: aligned, inside, mapped as long as `self`, and accessed only through atomics wherever a
        // write may race.
        unsafe { AtomicU64::from_ptr(place.as_ptr().cast()) }
    }

    fn byte(&self, offset: usize) -> &AtomicU8 {
        assert!(offset < self.len, "a byte inside the store");
        // SAFETY: the assertion keeps the byte inside the mapping.
        let place = unsafe { self.start().add(offset) };
        // SAFETY: inside, mapped as long as `self`, and accessed only through atomics wherever a write may
        // race.
        unsafe { AtomicU8::from_ptr(place.as_ptr()) }
    }

    /// Returns the bytes as a slice.
    ///
    /// # Safety
    /// No code may write to the bytes while the slice lives.
    #[inline]
    unsafe fn slice(&self, offset: usize, len: usize) -> &[u8] {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.len), "a range inside the store");
        // SAFETY: the assertion keeps the range inside the mapping.
        let place = unsafe { self.start().add(offset) };
        // SAFETY: inside, mapped as long as `self`, initialized by the kernel; the caller prevents writes.
        unsafe { std::slice::from_raw_parts(place.as_ptr(), len) }
    }

    fn store(&self, offset: usize, from: &[u8]) {
        assert!(
            offset.checked_add(from.len()).is_some_and(|end| end <= self.len),
            "a range inside the store"
        );
        let head = head_len(offset, from.len());
        let (edge, rest) = from.split_at(head);
        let (words, tail) = rest.as_chunks::<WORD>();
        for (at, byte) in (offset..).zip(edge) {
            self.byte(at).store(*byte, Ordering::Relaxed);
        }
        let first = offset + head;
        for (n, word) in words.iter().enumerate() {
            // Release ordering: a reader that acquires a pointer sees what was written before it.
            self.word(first + n * WORD).store(u64::from_le_bytes(*word), Ordering::Release);
        }
        let last = first + words.len() * WORD;
        for (at, byte) in (last..).zip(tail) {
            self.byte(at).store(*byte, Ordering::Relaxed);
        }
    }
}

/// Returns the number of bytes before the first aligned word, at most `len`.
fn head_len(offset: usize, len: usize) -> usize {
    (offset.next_multiple_of(WORD) - offset).min(len)
}

/// A [`Store`] in mapped memory.
pub struct MappedStore(Arc<Mapping>, Option<Ahead>);

impl fmt::Debug for MappedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MappedStore({} bytes)", self.0.len)
    }
}

impl MappedStore {
    /// Creates a store of `len` zero bytes. The system allocates memory at the first write.
    ///
    /// # Errors
    /// The system's error if it has too little address space.
    pub fn new(len: u64) -> io::Result<Self> {
        let len = usize::try_from(len).map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
        Ok(Self(Arc::new(Mapping::new(len)?), None))
    }

    /// Adds a thread that touches memory a little ahead of the writes, so that writes do not wait until the
    /// system has cleared it.
    #[must_use]
    pub fn populated_ahead(self) -> Self {
        let ahead = Ahead::new(self.0.memory.bytes());
        Self(self.0, Some(ahead))
    }

    /// Returns the number of bytes in huge pages, in the kernel's mapping that contains the store's first
    /// byte; `None` if unknown.
    #[must_use]
    pub fn huge_len(&self) -> Option<u64> {
        self.0.memory.huge_bytes()
    }

    /// Returns a handle by which other threads of this process read concurrently with the memory node.
    #[must_use]
    pub fn reader(&self) -> StoreReader {
        StoreReader(Arc::clone(&self.0))
    }
}

/// A reader of a [`MappedStore`] for another thread.
#[derive(Clone)]
pub struct StoreReader(Arc<Mapping>);

impl fmt::Debug for StoreReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StoreReader({} bytes)", self.0.len)
    }
}

impl StoreReader {
    /// Returns the word at `offset`, never torn. Bytes that were written before it are visible afterwards.
    ///
    /// # Panics
    /// Panics if the word is not within the store or is not aligned.
    #[must_use]
    pub fn word(&self, offset: u64) -> u64 {
        self.0.word(place(offset)).load(Ordering::Acquire)
    }
}

fn place(offset: u64) -> usize {
    usize::try_from(offset).expect("an offset inside the store fits the address space")
}

impl Store for MappedStore {
    fn len(&self) -> u64 {
        self.0.len as u64
    }

    fn read(&self, offset: u64, len: u32, out: &mut Vec<u8>) {
        out.extend_from_slice(self.bytes(offset, len as usize));
    }

    fn load(&self, offset: u64, window: &mut [u8]) {
        window.copy_from_slice(self.bytes(offset, window.len()));
    }

    #[inline]
    fn window(&self, offset: u64, len: u32) -> &[u8] {
        self.bytes(offset, len as usize)
    }

    #[inline]
    fn prefetch(&self, offset: u64, len: u32) {
        let end = place(offset).saturating_add(len as usize);
        let mut line = place(offset) / LINE_LEN * LINE_LEN;
        while line < end {
            prefetch(self.0.start().as_ptr().wrapping_add(line));
            line += LINE_LEN;
        }
    }

    fn write(&mut self, offset: u64, data: &[u8]) {
        if let Some(ahead) = &mut self.1 {
            ahead.writes(&self.0, place(offset).saturating_add(data.len()));
        }
        self.0.store(place(offset), data);
    }

    fn cmp_swap(&mut self, offset: u64, compare: u64, swap: u64) -> u64 {
        let word = self.0.word(place(offset));
        let exchanged = word.compare_exchange(compare, swap, Ordering::AcqRel, Ordering::Acquire);
        exchanged.unwrap_or_else(|found| found)
    }

    fn fetch_add(&mut self, offset: u64, add: u64) -> u64 {
        self.0.word(place(offset)).fetch_add(add, Ordering::AcqRel)
    }

    fn discard(&mut self, offset: u64, len: u64) {
        let (start, len) = (place(offset), place(len));
        assert!(start.checked_add(len).is_some_and(|end| end <= self.0.len), "a range inside the store");
        let end = start + len;
        let (first, last) = (start.next_multiple_of(PAGE_LEN), end / PAGE_LEN * PAGE_LEN);
        if first >= last {
            return self.zero(start, end);
        }
        self.zero(start, first);
        // SAFETY: whole pages inside the mapping; readers that race see old bytes or zeros, as with any
        // write.
        let begin = unsafe { self.0.start().add(first) };
        // SAFETY: as above.
        let result = unsafe { libc::madvise(begin.as_ptr().cast(), last - first, libc::MADV_DONTNEED) };
        if result != 0 {
            self.zero(first, last);
        }
        self.zero(last, end);
    }
}

impl MappedStore {
    #[inline]
    fn bytes(&self, offset: u64, len: usize) -> &[u8] {
        // SAFETY: only the one store writes, and only through `&mut self`; its readers do not.
        unsafe { self.0.slice(place(offset), len) }
    }

    fn zero(&self, start: usize, end: usize) {
        const ZEROS: [u8; PAGE_LEN] = [0; PAGE_LEN];
        let mut at = start;
        while at < end {
            let n = (end - at).min(PAGE_LEN);
            self.0.store(at, &ZEROS[..n]);
            at += n;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farmem_memnode::VecStore;
    use proptest::prelude::*;

    const LEN: u64 = 5 * PAGE_LEN as u64 + 24;

    #[derive(Clone, Debug)]
    enum Act {
        Write(u64, Vec<u8>),
        CmpSwap(u64, u64, u64),
        FetchAdd(u64, u64),
        Discard(u64, u64),
        Read(u64, u32),
    }

    fn act() -> impl Strategy<Value = Act> {
        let word = (0..LEN / 8).prop_map(|n| n * 8);
        prop_oneof![
            (0..LEN, proptest::collection::vec(any::<u8>(), 0..300)).prop_map(|(at, mut data)| {
                data.truncate(usize::try_from(LEN - at).unwrap());
                Act::Write(at, data)
            }),
            (word.clone(), 0..3_u64, any::<u64>())
                .prop_map(|(at, compare, swap)| Act::CmpSwap(at, compare, swap)),
            (word, any::<u64>()).prop_map(|(at, add)| Act::FetchAdd(at, add)),
            (0..LEN, 0..LEN).prop_map(|(at, len)| Act::Discard(at, len.min(LEN - at))),
            (0..=LEN, 0..LEN).prop_map(|(at, len)| Act::Read(at, u32::try_from(len.min(LEN - at)).unwrap())),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        /// The mapped store and the plain one agree on every answer and every byte, for any operations.
        #[test]
        fn mapped_and_plain_agree(acts in proptest::collection::vec(act(), 1..60)) {
            let mut mapped = MappedStore::new(LEN).unwrap();
            let mut plain = VecStore::new(usize::try_from(LEN).unwrap());
            for act in acts {
                match act {
                    Act::Write(at, data) => {
                        mapped.write(at, &data);
                        plain.write(at, &data);
                    }
                    Act::CmpSwap(at, compare, swap) => {
                        prop_assert_eq!(mapped.cmp_swap(at, compare, swap), plain.cmp_swap(at, compare, swap));
                    }
                    Act::FetchAdd(at, add) => prop_assert_eq!(mapped.fetch_add(at, add), plain.fetch_add(at, add)),
                    Act::Discard(at, len) => {
                        mapped.discard(at, len);
                        plain.discard(at, len);
                    }
                    Act::Read(at, len) => {
                        // The read appends to existing bytes.
                        let (mut ours, mut theirs) = (vec![7; 3], vec![7; 3]);
                        mapped.read(at, len, &mut ours);
                        plain.read(at, len, &mut theirs);
                        prop_assert_eq!(&ours, &theirs);
                        let mut window = vec![0; len as usize];
                        mapped.load(at, &mut window);
                        prop_assert_eq!(&window[..], &ours[3..]);
                        prop_assert_eq!(mapped.window(at, len), &window[..]);
                    }
                }
            }
            let mut bytes = Vec::new();
            mapped.read(0, u32::try_from(LEN).unwrap(), &mut bytes);
            prop_assert_eq!(&bytes[..], plain.bytes());
            for (offset, len) in [(3, 61), (0, 0), (LEN - 1, 1), (LEN, 256)] {
                mapped.prefetch(offset, len);
            }
        }
    }

    /// Any access beyond the store, or beyond the address space, is the caller's bug and panics.
    #[test]
    fn nothing_beyond_the_end_is_touched() {
        let touches: [fn(&mut MappedStore, u64); 5] = [
            |store, at| store.read(at, 9, &mut Vec::new()),
            |store, at| store.load(at, &mut [0; 9]),
            |store, at| store.write(at, &[1; 9]),
            |store, at| assert_eq!(store.fetch_add(at.next_multiple_of(8), 1), 0),
            |store, at| store.discard(at, 9),
        ];
        for (touch, at) in touches.iter().flat_map(|touch| [LEN - 7, LEN, u64::MAX - 7].map(|at| (touch, at)))
        {
            let mut store = MappedStore::new(LEN).unwrap();
            let touched = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| touch(&mut store, at)));
            assert!(touched.is_err(), "9 bytes at {at:#x} of {LEN:#x}");
        }
    }

    /// A local reader runs concurrently with the node: the node adds 2^32 + 1 to a word repeatedly, and the
    /// two halves never differ.
    #[test]
    fn a_local_reader_sees_whole_words() {
        const ADDS: u64 = 20_000;
        let mut store = MappedStore::new(4096).unwrap();
        let reader = store.reader();
        let watcher = std::thread::spawn(move || {
            let mut last = 0;
            while last < ADDS {
                let word = reader.word(8);
                assert_eq!(word >> 32, word & 0xffff_ffff, "a torn word");
                assert!(word >> 32 >= last, "a word that went back");
                last = word >> 32;
            }
        });
        for _ in 0..ADDS {
            store.fetch_add(8, (1 << 32) + 1);
        }
        watcher.join().unwrap();
    }
}
