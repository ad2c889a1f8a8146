//! A far memory in this process, and a traversal over it.

use farmem_traversal::{End, Program, State, WindowAccess, run_storing};
use farmem_wire::VirtAddr;

/// Base address of the memory, so that no small number is an address.
const BASE: u64 = 0x7000_0000;
/// Iterations after which a traversal has failed.
const LIMIT: u32 = 10_000;

/// A memory that places structures one behind the other.
pub(super) struct Memory {
    bytes: Vec<u8>,
}

/// The end of a traversal.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Ended {
    pub(super) cur_ptr: u64,
    pub(super) scratch: Vec<u8>,
    pub(super) iterations: u32,
}

impl Memory {
    pub(super) fn new() -> Self {
        Self { bytes: Vec::new() }
    }

    /// Appends a structure of words; returns its address.
    pub(super) fn put(&mut self, node: &[u64]) -> u64 {
        let at = BASE + self.bytes.len() as u64;
        self.bytes.extend(words(node));
        at
    }

    pub(super) fn word(&self, at: u64) -> u64 {
        let at = self.place(at);
        u64::from_le_bytes(self.bytes[at..at + 8].try_into().expect("8 bytes"))
    }

    pub(super) fn set(&mut self, at: u64, value: u64) {
        let at = self.place(at);
        self.bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
    }

    fn place(&self, at: u64) -> usize {
        usize::try_from(at - BASE).expect("an address of this memory")
    }
}

pub(super) fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

pub(super) fn as_words<const N: usize>(bytes: &[u8]) -> [u64; N] {
    let words: Vec<_> = bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
    words.try_into().expect("as many words")
}

/// Runs a traversal to its RETURN, interrupted after each iteration as at a memory node.
pub(super) fn traverse(program: &Program, memory: &Memory, start: u64, scratch: &[u8]) -> Ended {
    assert!(!program.stores(), "it changes the memory");
    traverse_storing(program, &mut Memory { bytes: memory.bytes.clone() }, start, scratch)
}

/// Runs a traversal that stores, as [`traverse`].
pub(super) fn traverse_storing(program: &Program, memory: &mut Memory, start: u64, scratch: &[u8]) -> Ended {
    let mut serve = |at: VirtAddr, access: WindowAccess<'_>| -> Result<(), VirtAddr> {
        let from = at.0.checked_sub(BASE).and_then(|from| usize::try_from(from).ok()).ok_or(at)?;
        let bytes = memory.bytes.get_mut(from..from + program.window_len()).ok_or(at)?;
        match access {
            WindowAccess::Load(window) => window.copy_from_slice(bytes),
            WindowAccess::Store(window) => bytes.copy_from_slice(window),
        }
        Ok(())
    };
    let mut state = State { cur_ptr: VirtAddr(start), scratch: scratch.to_vec() };
    for iterations in 1..=LIMIT {
        match run_storing(program, &mut serve, &mut state, 1).end {
            End::IterationLimit => {}
            End::Return => return Ended { cur_ptr: state.cur_ptr.0, scratch: state.scratch, iterations },
            other => panic!("{other:?} after {iterations} iterations"),
        }
    }
    panic!("no end after {LIMIT} iterations");
}
