//! The interface of far memory for structures: words, bytes, traversals and allocations.
//!
//! Key type: [`FarMemory`]. A [`Client`] implements it with one-sided verbs, and traversals at the site that
//! a [`Policy`] selects. A host that caches pages implements it too, and so does a wrapper that counts
//! accesses. The structures of `farmem-structures` (hash table, list, B+tree, series) accept every
//! implementation, so measurements can compare them on the same structure.

use crate::error::{Error, TraversalStop};
use crate::operation::Vma;
use crate::policy::{Dispatched, Policy, Site};
use crate::window::Window;
use farmem_control::api::NodeInfo;
use farmem_host::Traversed;
use farmem_traversal::{Program, SCRATCH_LEN_MAX, Step, WINDOW_LEN_MAX};
use farmem_wire::{NodeId, VirtAddr};

/// Far memory. Every call waits for its completion; [`crate::task`] runs many operations concurrently.
pub trait FarMemory {
    /// Reads `into.len()` bytes at `addr`.
    ///
    /// # Errors
    /// [`Error`] if the address is invalid or the node does not answer.
    fn read(&mut self, addr: VirtAddr, into: &mut [u8]) -> Result<(), Error>;

    /// Writes `data` at `addr`.
    ///
    /// # Errors
    /// [`Error`] if the address is invalid or the node does not answer.
    fn write(&mut self, addr: VirtAddr, data: &[u8]) -> Result<(), Error>;

    /// Atomically replaces the little-endian word at `addr` by `swap` if the word equals `compare`. Returns
    /// the previous word.
    ///
    /// # Errors
    /// [`Error`] if the address is invalid or the node does not answer.
    fn compare_swap(&mut self, addr: VirtAddr, compare: u64, swap: u64) -> Result<u64, Error>;

    /// Atomically adds `add` to the little-endian word at `addr`, with wrap-around. Returns the previous
    /// word.
    ///
    /// # Errors
    /// [`Error`] if the address is invalid or the node does not answer.
    fn fetch_add(&mut self, addr: VirtAddr, add: u64) -> Result<u64, Error>;

    /// Runs `program` from `start` for at most `limit` iterations, at the site that `policy` selects.
    ///
    /// The default implementation ignores `policy` and runs the program at this host, with one
    /// [`FarMemory::read`] per iteration. Far memory without traversals uses it.
    ///
    /// # Errors
    /// [`Error::Traversal`] with the pointer at which the program stopped, [`Error::ScratchLen`], or an error
    /// of [`FarMemory::read`].
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

    /// Allocates at least `size` zeroed bytes on the node with the fewest allocated bytes.
    ///
    /// # Errors
    /// [`Error::Refused`] if no node has enough free memory.
    fn allocate(&mut self, size: u64) -> Result<Vma, Error>;

    /// Allocates at least `size` zeroed bytes on `node`.
    ///
    /// # Errors
    /// [`Error::Refused`] if the node does not exist or has too little free memory.
    fn allocate_on(&mut self, size: u64, node: NodeId) -> Result<Vma, Error>;

    /// Frees an allocation.
    ///
    /// # Errors
    /// [`Error::Refused`] if no allocation starts at `base`.
    fn free(&mut self, base: VirtAddr) -> Result<(), Error>;

    /// Returns the memory nodes.
    fn nodes(&self) -> &[NodeInfo];

    /// Returns the length in bytes of the longest scratch pad of a program that can run at the memory nodes.
    /// If all programs run at this host, this is the longest of all.
    fn scratch_len_max(&self) -> usize {
        SCRATCH_LEN_MAX
    }

    /// Executes several writes, which may run concurrently and complete in any order.
    ///
    /// # Errors
    /// The errors of [`FarMemory::write`]; after an error, any of the writes may have been executed.
    fn write_many(&mut self, writes: &[(VirtAddr, &[u8])]) -> Result<(), Error> {
        writes.iter().try_for_each(|(addr, data)| self.write(*addr, data))
    }

    /// Executes several reads, which may run concurrently and complete in any order.
    ///
    /// # Errors
    /// The errors of [`FarMemory::read`]; after an error, the content of the buffers is undefined.
    fn read_many(&mut self, reads: &mut [(VirtAddr, &mut [u8])]) -> Result<(), Error> {
        reads.iter_mut().try_for_each(|(addr, into)| self.read(*addr, into))
    }

    /// Returns a buffer of `len` bytes with arbitrary content.
    fn buffer(&mut self, len: usize) -> Vec<u8> {
        vec![0; len]
    }

    /// Takes a buffer back for reuse.
    fn recycle(&mut self, buf: Vec<u8>) {
        drop(buf);
    }
}

/// Implements methods of [`FarMemory`] by forwarding them to a field. Use this macro for a wrapper that
/// overrides only some methods: implement those by hand and list the others here. With a function behind the
/// field, each method first calls this function with the wrapper, and fails if the function fails.
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
    ($field:ident $(, $before:path)?: $($method:ident),+) => {
        $crate::forward_far_memory!(@all $field [$($before)?] $($method)+);
    };
    (@all $field:ident $before:tt $($method:ident)+) => {
        $($crate::forward_far_memory!(@$method $field $before);)+
    };
    (@read $field:ident [$($before:path)?]) => {
        fn read(&mut self, addr: $crate::VirtAddr, into: &mut [u8]) -> Result<(), $crate::Error> {
            $($before(self)?;)?
            self.$field.read(addr, into)
        }
    };
    (@write $field:ident [$($before:path)?]) => {
        fn write(&mut self, addr: $crate::VirtAddr, data: &[u8]) -> Result<(), $crate::Error> {
            $($before(self)?;)?
            self.$field.write(addr, data)
        }
    };
    (@compare_swap $field:ident [$($before:path)?]) => {
        fn compare_swap(&mut self, addr: $crate::VirtAddr, compare: u64, swap: u64) -> Result<u64, $crate::Error> {
            $($before(self)?;)?
            self.$field.compare_swap(addr, compare, swap)
        }
    };
    (@fetch_add $field:ident [$($before:path)?]) => {
        fn fetch_add(&mut self, addr: $crate::VirtAddr, add: u64) -> Result<u64, $crate::Error> {
            $($before(self)?;)?
            self.$field.fetch_add(addr, add)
        }
    };
    (@dispatch $field:ident [$($before:path)?]) => {
        fn dispatch(
            &mut self,
            program: &$crate::Program,
            start: $crate::VirtAddr,
            scratch: Vec<u8>,
            limit: u32,
            policy: &$crate::Policy,
        ) -> Result<$crate::Dispatched, $crate::Error> {
            $($before(self)?;)?
            self.$field.dispatch(program, start, scratch, limit, policy)
        }
    };
    (@allocate $field:ident [$($before:path)?]) => {
        fn allocate(&mut self, size: u64) -> Result<$crate::Vma, $crate::Error> {
            $($before(self)?;)?
            self.$field.allocate(size)
        }
    };
    (@allocate_on $field:ident [$($before:path)?]) => {
        fn allocate_on(&mut self, size: u64, node: $crate::NodeId) -> Result<$crate::Vma, $crate::Error> {
            $($before(self)?;)?
            self.$field.allocate_on(size, node)
        }
    };
    (@free $field:ident [$($before:path)?]) => {
        fn free(&mut self, base: $crate::VirtAddr) -> Result<(), $crate::Error> {
            $($before(self)?;)?
            self.$field.free(base)
        }
    };
    (@nodes $field:ident []) => {
        fn nodes(&self) -> &[$crate::api::NodeInfo] {
            self.$field.nodes()
        }
    };
    (@scratch_len_max $field:ident []) => {
        fn scratch_len_max(&self) -> usize {
            self.$field.scratch_len_max()
        }
    };
    (@write_many $field:ident [$($before:path)?]) => {
        fn write_many(&mut self, writes: &[($crate::VirtAddr, &[u8])]) -> Result<(), $crate::Error> {
            $($before(self)?;)?
            self.$field.write_many(writes)
        }
    };
    (@read_many $field:ident [$($before:path)?]) => {
        fn read_many(&mut self, reads: &mut [($crate::VirtAddr, &mut [u8])]) -> Result<(), $crate::Error> {
            $($before(self)?;)?
            self.$field.read_many(reads)
        }
    };
    (@buffer $field:ident []) => {
        fn buffer(&mut self, len: usize) -> Vec<u8> {
            self.$field.buffer(len)
        }
    };
    (@recycle $field:ident []) => {
        fn recycle(&mut self, buf: Vec<u8>) {
            self.$field.recycle(buf);
        }
    };
}

/// Runs `program` at this host: each iteration reads its window with [`FarMemory::read`].
/// [`Client::dispatch`](crate::Client::dispatch) uses this function for traversals that it does not offload.
/// Far memory without traversals implements `dispatch` by it.
///
/// # Errors
/// The errors of [`Client::dispatch`](crate::Client::dispatch).
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
