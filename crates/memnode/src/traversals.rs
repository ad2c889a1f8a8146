//! Traversals at the node: the programs it knows, and one visit of a traversal from its arrival to where it ends or leaves.
//!
//! A visit runs to completion within the event that brought it (PULSE 4.2 has many in flight; the bound per visit keeps one from
//! holding up the others for long, PULSE 3). What runs it is [`visit`]: a program, a state and a view of memory go in, an
//! [`Outcome`] comes out, and nothing here knows of frames.

use crate::regions::View;
use crate::store::Store;
use alloc::collections::BTreeMap;
use farmem_transport::{Access, Memory, Refusal};
use farmem_traversal::{Outcome, Program, State, run};
use farmem_wire::{Domain, Perm, ProgramHash, Status, VirtAddr};

/// Iterations a traversal may do at one node before it must go back to its host, whatever its own limit says.
///
/// At about 100 ns an iteration this is less than half a millisecond. PULSE's workloads need 25 to 227 in all (PULSE 6, table 3).
pub const ITERATIONS_PER_VISIT_MAX: u32 = 4096;

/// Programs a node knows by hash. The one that was not used for longest makes room for a new one.
pub const PROGRAMS_MAX: usize = 64;

/// Verified programs by hash.
#[derive(Debug, Default)]
pub(crate) struct Programs {
    known: BTreeMap<ProgramHash, Known>,
    /// Counts uses; the order of the last ones.
    clock: u64,
}

#[derive(Debug)]
struct Known {
    program: Program,
    used: u64,
}

/// What happened to the cache when a program was looked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Learned {
    /// It was there.
    Known,
    /// It came with the request and was added.
    Added,
    /// It was added, and another one forgotten for it.
    Replaced,
}

impl Programs {
    /// The program named `hash`: from `code` when there is some, else from memory (PROTOCOL 7.22, 7.23).
    pub(crate) fn find(&mut self, hash: ProgramHash, code: &[u8]) -> Result<(&Program, Learned), Status> {
        let mut learned = Learned::Known;
        if !self.known.contains_key(&hash) {
            learned = self.learn(hash, code)?;
        }
        self.clock += 1;
        let known = self.known.get_mut(&hash).ok_or(Status::UnknownProgram)?;
        if !code.is_empty() && known.program.encoded() != code {
            return Err(Status::BadProgram);
        }
        known.used = self.clock;
        Ok((&known.program, learned))
    }

    /// Asserts that the cache is within its bound and every program has the name it is kept under.
    pub(crate) fn check(&self) {
        assert!(self.known.len() <= PROGRAMS_MAX, "more programs than the bound");
        for (hash, known) in &self.known {
            assert_eq!(*hash, known.program.hash(), "a program is kept under its own name");
            assert!(known.used <= self.clock, "a program was used in the future");
        }
    }

    fn learn(&mut self, hash: ProgramHash, code: &[u8]) -> Result<Learned, Status> {
        if code.is_empty() {
            return Err(Status::UnknownProgram);
        }
        let program = Program::decode(code).map_err(|_| Status::BadProgram)?;
        if program.hash() != hash {
            return Err(Status::BadProgram);
        }
        let mut learned = Learned::Added;
        if self.known.len() >= PROGRAMS_MAX {
            let oldest = self.known.iter().min_by_key(|(_, known)| known.used).map(|(hash, _)| *hash);
            if let Some(oldest) = oldest {
                self.known.remove(&oldest);
                learned = Learned::Replaced;
            }
        }
        self.known.insert(hash, Known { program, used: self.clock });
        Ok(learned)
    }
}

/// Why the next pointer's window cannot be loaded here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stop {
    /// No range of this node holds the pointer.
    Elsewhere,
    /// The pointer is here, and the window may not be read.
    Refused(Refusal),
}

/// Runs `program` from `state` on, for at most `left` iterations and [`ITERATIONS_PER_VISIT_MAX`] (PROTOCOL 7.25, 7.27).
///
/// # Panics
/// When the scratch pad does not have the program's length.
pub(crate) fn visit<S: Store>(
    program: &Program,
    state: &mut State,
    left: u32,
    domain: Domain,
    view: &View<'_, S>,
) -> Outcome<Stop> {
    let mut fetch = |addr: VirtAddr, window: &mut [u8]| load(addr, domain, view, window);
    run(program, &mut fetch, state, left.min(ITERATIONS_PER_VISIT_MAX))
}

/// The one LOAD of an iteration: translation, protection, bytes (PULSE 4.2, memory pipeline).
fn load<S: Store>(addr: VirtAddr, domain: Domain, view: &View<'_, S>, window: &mut [u8]) -> Result<(), Stop> {
    let len = u32::try_from(window.len()).expect("a window has at most 256 bytes");
    match view.check(&Access { domain, addr, len, perm: Perm::Read }) {
        Ok(()) => {
            view.load(addr, window);
            Ok(())
        }
        Err(Refusal::NotMapped) if !view.regions.is_local(addr) => Err(Stop::Elsewhere),
        Err(refusal) => Err(Stop::Refused(refusal)),
    }
}
