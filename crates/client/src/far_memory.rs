//! Far memory as a structure in it sees it: words, bytes, traversals and room, whatever brings them.
//!
//! Key type: [`FarMemory`]. A [`Client`] is one: its accesses are one-sided verbs, its traversals run where a [`Policy`] says. A host
//! that caches pages is another, and so is one that counts. The structures of `farmem-structures` (hash table, list,
//! B+tree, series) take any of them, so that the same structure can be looked at through each.

use crate::error::{Error, TraversalStop};
use crate::operation::Vma;
use crate::policy::{Dispatched, Policy, Site};
use crate::window::Window;
use farmem_control::api::NodeInfo;
use farmem_host::Traversed;
use farmem_traversal::{Program, SCRATCH_LEN_MAX, Step, WINDOW_LEN_MAX};
use farmem_wire::{NodeId, VirtAddr};

/// Far memory. Every call waits for its end; [`crate::task`] is for many at once.
pub trait FarMemory {
    /// Reads `into.len()` bytes at `addr`.
    ///
    /// # Errors
    /// [`Error`] saying what was wrong with the address, or that the node does not answer.
    fn read(&mut self, addr: VirtAddr, into: &mut [u8]) -> Result<(), Error>;

    /// Writes `data` at `addr`.
    ///
    /// # Errors
    /// [`Error`] saying what was wrong with the address, or that the node does not answer.
    fn write(&mut self, addr: VirtAddr, data: &[u8]) -> Result<(), Error>;

    /// Atomically replaces the little-endian word at `addr` by `swap` if it equals `compare`; answers what was there.
    ///
    /// # Errors
    /// [`Error`] saying what was wrong with the address, or that the node does not answer.
    fn compare_swap(&mut self, addr: VirtAddr, compare: u64, swap: u64) -> Result<u64, Error>;

    /// Atomically adds to the little-endian word at `addr`, wrapping; answers what was there.
    ///
    /// # Errors
    /// [`Error`] saying what was wrong with the address, or that the node does not answer.
    fn fetch_add(&mut self, addr: VirtAddr, add: u64) -> Result<u64, Error>;

    /// Runs `program` from `start` on for at most `limit` iterations, where `policy` says.
    ///
    /// Far memory that cannot run programs runs them here, with a [`FarMemory::read`] for each iteration, whatever `policy` says; so
    /// does this method when it is not overridden.
    ///
    /// # Errors
    /// [`Error::Traversal`] with the pointer it stopped at, [`Error::ScratchLen`], or what [`FarMemory::read`] says.
    fn dispatch(
        &mut self,
        program: &Program,
        start: VirtAddr,
        scratch: Vec<u8>,
        limit: u32,
        policy: &Policy,
    ) -> Result<Dispatched, Error> {
        let _everything_runs_here = policy;
        run_over_reads(self, program, start, scratch, limit)
    }

    /// Allocates at least `size` bytes on the node with the least allocated; zeroed.
    ///
    /// # Errors
    /// [`Error::Refused`] when no node has room.
    fn allocate(&mut self, size: u64) -> Result<Vma, Error>;

    /// Allocates at least `size` bytes on `node`; zeroed.
    ///
    /// # Errors
    /// [`Error::Refused`] when the node does not exist or has no room.
    fn allocate_on(&mut self, size: u64, node: NodeId) -> Result<Vma, Error>;

    /// Frees an allocation.
    ///
    /// # Errors
    /// [`Error::Refused`] when there is none that starts at `base`.
    fn free(&mut self, base: VirtAddr) -> Result<(), Error>;

    /// The memory nodes.
    fn nodes(&self) -> &[NodeInfo];

    /// Bytes of the longest scratch pad of a program that can run at the memory nodes. Where programs run here it is the longest of all.
    fn scratch_len_max(&self) -> usize {
        SCRATCH_LEN_MAX
    }

    /// Carries out several writes, which may be under way at the same time and end in any order.
    ///
    /// # Errors
    /// As [`FarMemory::write`]; which of the writes were carried out is open then.
    fn write_many(&mut self, writes: &[(VirtAddr, &[u8])]) -> Result<(), Error> {
        writes.iter().try_for_each(|(addr, data)| self.write(*addr, data))
    }

    /// Carries out several reads, which may be under way at the same time and end in any order.
    ///
    /// # Errors
    /// As [`FarMemory::read`]; what the buffers have is open then.
    fn read_many(&mut self, reads: &mut [(VirtAddr, &mut [u8])]) -> Result<(), Error> {
        reads.iter_mut().try_for_each(|(addr, into)| self.read(*addr, into))
    }

    /// A buffer of `len` bytes; its content is arbitrary.
    fn buffer(&mut self, len: usize) -> Vec<u8> {
        vec![0; len]
    }

    /// Takes a buffer back for reuse.
    fn recycle(&mut self, buf: Vec<u8>) {
        drop(buf);
    }
}

/// Implements methods of [`FarMemory`] by a field that is far memory, too: far memory that differs from another one in some methods
/// names the others here.
///
/// ```
/// use farmem_client::{Client, Error, FarMemory, Rack, VirtAddr, forward_far_memory};
///
/// /// Far memory that counts its READs.
/// struct Counting<'a> {
///     client: &'a mut Client,
///     reads: u64,
/// }
///
/// impl FarMemory for Counting<'_> {
///     forward_far_memory!(client: write, compare_swap, fetch_add, dispatch, allocate, allocate_on, free);
///     forward_far_memory!(client: nodes, scratch_len_max, write_many, buffer, recycle);
///
///     fn read(&mut self, addr: VirtAddr, into: &mut [u8]) -> Result<(), Error> {
///         self.reads += 1;
///         self.client.read(addr, into)
///     }
///
///     fn read_many(&mut self, reads: &mut [(VirtAddr, &mut [u8])]) -> Result<(), Error> {
///         self.reads += reads.len() as u64;
///         self.client.read_many(reads)
///     }
/// }
///
/// let mut client = Rack::embedded()?.client("counting")?;
/// let mut memory = Counting { client: &mut client, reads: 0 };
/// let base = memory.allocate(4096)?.base;
/// memory.write(base, b"far away")?;
/// let (mut first, mut second) = ([0; 3], [0; 4]);
/// memory.read_many(&mut [(base, &mut first), (VirtAddr(base.0 + 4), &mut second)])?;
/// assert_eq!((&first, &second, memory.reads), (b"far", b"away", 2));
/// # Ok::<(), Error>(())
/// ```
#[macro_export]
macro_rules! forward_far_memory {
    ($field:ident: $($method:ident),+) => {
        $($crate::forward_far_memory!(@$method $field);)+
    };
    (@read $field:ident) => {
        fn read(&mut self, addr: $crate::VirtAddr, into: &mut [u8]) -> Result<(), $crate::Error> {
            self.$field.read(addr, into)
        }
    };
    (@write $field:ident) => {
        fn write(&mut self, addr: $crate::VirtAddr, data: &[u8]) -> Result<(), $crate::Error> {
            self.$field.write(addr, data)
        }
    };
    (@compare_swap $field:ident) => {
        fn compare_swap(&mut self, addr: $crate::VirtAddr, compare: u64, swap: u64) -> Result<u64, $crate::Error> {
            self.$field.compare_swap(addr, compare, swap)
        }
    };
    (@fetch_add $field:ident) => {
        fn fetch_add(&mut self, addr: $crate::VirtAddr, add: u64) -> Result<u64, $crate::Error> {
            self.$field.fetch_add(addr, add)
        }
    };
    (@dispatch $field:ident) => {
        fn dispatch(
            &mut self,
            program: &$crate::Program,
            start: $crate::VirtAddr,
            scratch: Vec<u8>,
            limit: u32,
            policy: &$crate::Policy,
        ) -> Result<$crate::Dispatched, $crate::Error> {
            self.$field.dispatch(program, start, scratch, limit, policy)
        }
    };
    (@allocate $field:ident) => {
        fn allocate(&mut self, size: u64) -> Result<$crate::Vma, $crate::Error> {
            self.$field.allocate(size)
        }
    };
    (@allocate_on $field:ident) => {
        fn allocate_on(&mut self, size: u64, node: $crate::NodeId) -> Result<$crate::Vma, $crate::Error> {
            self.$field.allocate_on(size, node)
        }
    };
    (@free $field:ident) => {
        fn free(&mut self, base: $crate::VirtAddr) -> Result<(), $crate::Error> {
            self.$field.free(base)
        }
    };
    (@nodes $field:ident) => {
        fn nodes(&self) -> &[$crate::api::NodeInfo] {
            self.$field.nodes()
        }
    };
    (@scratch_len_max $field:ident) => {
        fn scratch_len_max(&self) -> usize {
            self.$field.scratch_len_max()
        }
    };
    (@write_many $field:ident) => {
        fn write_many(&mut self, writes: &[($crate::VirtAddr, &[u8])]) -> Result<(), $crate::Error> {
            self.$field.write_many(writes)
        }
    };
    (@read_many $field:ident) => {
        fn read_many(&mut self, reads: &mut [($crate::VirtAddr, &mut [u8])]) -> Result<(), $crate::Error> {
            self.$field.read_many(reads)
        }
    };
    (@buffer $field:ident) => {
        fn buffer(&mut self, len: usize) -> Vec<u8> {
            self.$field.buffer(len)
        }
    };
    (@recycle $field:ident) => {
        fn recycle(&mut self, buf: Vec<u8>) {
            self.$field.recycle(buf);
        }
    };
}

/// Runs `program` here, with a [`FarMemory::read`] of its window for each iteration: the other half of [`Client::dispatch`], and all of it
/// for far memory that runs no programs.
///
/// # Errors
/// As [`Client::dispatch`].
pub fn run_over_reads(
    memory: &mut (impl FarMemory + ?Sized),
    program: &Program,
    start: VirtAddr,
    scratch: Vec<u8>,
    limit: u32,
) -> Result<Dispatched, Error> {
    let (have, need) = (scratch.len(), program.scratch_len());
    if have != need {
        return Err(Error::ScratchLen { have, need });
    }
    if program.stores() {
        return Err(Error::Traversal { addr: start, reason: TraversalStop::StoresAtHost });
    }
    let (mut cur_ptr, mut scratch, mut buffer) = (start, scratch, [0; WINDOW_LEN_MAX]);
    let (mut iterations, mut requests, mut returned) = (0, 0_u32, false);
    while iterations < limit && !returned {
        let mut window = Window::new(program);
        let step = loop {
            let bytes = &mut buffer[..window.len(cur_ptr, program)?];
            let read = memory.read(cur_ptr, bytes);
            requests = requests.saturating_add(1);
            if let Some(step) = window.step(program, bytes, read, &mut cur_ptr, &mut scratch)? {
                break step;
            }
        };
        iterations += 1;
        if step == Step::Fault {
            return Err(Error::Traversal { addr: cur_ptr, reason: TraversalStop::ProgramFault });
        }
        returned = step == Step::Return;
    }
    let end = Traversed { returned, cur_ptr, iterations, requests };
    Ok(Dispatched { site: Site::Host, end, scratch })
}
