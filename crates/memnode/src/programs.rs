//! The programs that a node knows, and the interface to a compiler.

use crate::program_limiter::ProgramLimiter;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use farmem_machine::Instant;
use farmem_traversal::{Program, Step};
use farmem_wire::{Domain, ProgramHash, Status, VirtAddr};

/// Most programs of a node. A new one evicts the least recently used one of the domain with the most
/// programs.
pub const PROGRAMS_MAX: usize = 64;

/// A compiler that turns each verified program that the node learns into runnable logic.
///
/// Two implementations: [`Interpreted`] here, pure, and the engine's compiler to machine code. If a program
/// cannot be compiled, the compiler returns logic that interprets it, so no verified program is refused.
pub trait Compile {
    /// The runnable form of one program.
    type Logic: Logic;

    /// Compiles `program`. The logic must do exactly what [`Program::step`] does. The node waits for this
    /// call.
    fn compile(&mut self, program: &Program) -> Self::Logic;

    /// Compiles `program` at its final speed, for measurements: [`Compile::compile`] may improve the logic
    /// later instead.
    fn compile_now(&mut self, program: &Program) -> Self::Logic {
        self.compile(program)
    }
}

impl<C: Compile> Compile for &mut C {
    type Logic = C::Logic;

    fn compile(&mut self, program: &Program) -> C::Logic {
        (**self).compile(program)
    }

    fn compile_now(&mut self, program: &Program) -> C::Logic {
        (**self).compile_now(program)
    }
}

/// A compiler that compiles every program before it runs.
#[derive(Debug)]
pub(crate) struct Now<C>(pub(crate) C);

impl<C: Compile> Compile for Now<C> {
    type Logic = C::Logic;

    fn compile(&mut self, program: &Program) -> C::Logic {
        self.0.compile_now(program)
    }
}

/// The iterations of one program.
pub trait Logic: fmt::Debug {
    /// Runs one iteration over the loaded window, as [`Program::step`].
    ///
    /// # Panics
    /// If `window` or `scratch` does not have the program's lengths, or the program stores.
    fn step(&self, window: &[u8], cur_ptr: &mut VirtAddr, scratch: &mut [u8]) -> Step;

    /// Returns true if the program could not be compiled and is interpreted: right, but several times slower.
    fn fell_back(&self) -> bool {
        false
    }

    /// Runs one iteration over a copy of the window that the program may store to, as
    /// [`Program::step_storing`].
    ///
    /// # Panics
    /// If `window` or `scratch` does not have the program's lengths.
    fn step_storing(&self, window: &mut [u8], cur_ptr: &mut VirtAddr, scratch: &mut [u8]) -> Step;
}

/// Interprets programs: the reference, and the fallback where no machine code can be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Interpreted;

impl Compile for Interpreted {
    type Logic = Program;

    fn compile(&mut self, program: &Program) -> Program {
        program.clone()
    }
}

impl Logic for Program {
    fn step(&self, window: &[u8], cur_ptr: &mut VirtAddr, scratch: &mut [u8]) -> Step {
        Self::step(self, window, cur_ptr, scratch)
    }

    fn step_storing(&self, window: &mut [u8], cur_ptr: &mut VirtAddr, scratch: &mut [u8]) -> Step {
        Self::step_storing(self, window, cur_ptr, scratch)
    }
}

/// A program with its logic. Traversals in progress share it with the cache, which may evict it meanwhile.
#[derive(Debug)]
pub(crate) struct CachedProgram<L> {
    pub(crate) program: Program,
    pub(crate) logic: L,
}

/// A reference shared by the cache and the traversals in progress.
pub(crate) type Shared<L> = Arc<CachedProgram<L>>;

/// Verified programs.
#[derive(Debug)]
pub(crate) struct Programs<C: Compile> {
    compile: C,
    /// Programs in order of use, the last used one first.
    rows: Vec<CacheRow<C::Logic>>,
    limiter: ProgramLimiter,
}

/// A program in the cache.
#[derive(Debug)]
struct CacheRow<L> {
    known: Shared<L>,
    /// The domain that brought the program, or looked it up last.
    domain: Domain,
}

/// The effect of a lookup on the cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CacheLookup {
    /// The program was in the cache.
    Hit,
    /// The program came with the request and was added.
    Added,
    /// The program was added, and another one was evicted.
    Replaced,
}

impl<C: Compile> Programs<C> {
    /// Creates an empty cache.
    pub(crate) fn new(compile: C) -> Self {
        Self { compile, rows: Vec::new(), limiter: ProgramLimiter::default() }
    }

    /// Looks up the program named `hash`; verifies and adds `code` if there is some (PROTOCOL 7.22, 7.23).
    /// `Busy` if the domain exceeds its rate of new programs (7.49).
    #[inline]
    pub(crate) fn find(
        &mut self,
        now: Instant,
        domain: Domain,
        hash: ProgramHash,
        code: &[u8],
    ) -> Result<(&Shared<C::Logic>, CacheLookup), Status> {
        let used_last = self.rows.first().is_some_and(|row| row.known.program.hash() == hash);
        let lookup = if used_last { CacheLookup::Hit } else { self.bring_forward(now, domain, hash, code)? };
        let known = &self.rows[0].known;
        if !code.is_empty() && known.program.encoded() != code {
            return Err(Status::BadProgram);
        }
        Ok((known, lookup))
    }

    /// Asserts that the cache is within its bound and that every program has the right name.
    pub(crate) fn check(&self) {
        assert!(self.rows.len() <= PROGRAMS_MAX, "more programs than the bound");
        for (n, row) in self.rows.iter().enumerate() {
            let hash = row.known.program.hash();
            let twice = self.rows[..n].iter().any(|other| other.known.program.hash() == hash);
            assert!(!twice, "a program is kept once");
        }
        self.limiter.check();
    }

    /// Moves the program named `hash` to the front.
    #[cold]
    fn bring_forward(
        &mut self,
        now: Instant,
        domain: Domain,
        hash: ProgramHash,
        code: &[u8],
    ) -> Result<CacheLookup, Status> {
        let Some(at) = self.rows.iter().position(|row| row.known.program.hash() == hash) else {
            return self.learn(now, domain, hash, code);
        };
        self.rows[..=at].rotate_right(1);
        self.rows[0].domain = domain;
        Ok(CacheLookup::Hit)
    }

    fn learn(
        &mut self,
        now: Instant,
        domain: Domain,
        hash: ProgramHash,
        code: &[u8],
    ) -> Result<CacheLookup, Status> {
        if code.is_empty() {
            return Err(Status::UnknownProgram);
        }
        // Refused code below costs as much as accepted code.
        if !self.limiter.admit(now, domain) {
            return Err(Status::Busy);
        }
        let program = Program::decode(code).map_err(|_| Status::BadProgram)?;
        if program.hash() != hash {
            return Err(Status::BadProgram);
        }
        let lookup = if self.rows.len() < PROGRAMS_MAX { CacheLookup::Added } else { CacheLookup::Replaced };
        if lookup == CacheLookup::Replaced {
            self.rows.remove(self.eviction_candidate(domain));
        }
        let logic = self.compile.compile(&program);
        self.rows.insert(0, CacheRow { known: Arc::new(CachedProgram { program, logic }), domain });
        Ok(lookup)
    }

    /// Returns the row to evict for a new program of a domain: the last row of the domain with the most
    /// programs; on a tie, the newcomer's. So a domain with many programs does not evict those of others
    /// (PROTOCOL 7.22).
    fn eviction_candidate(&self, newcomer: Domain) -> usize {
        let of = |domain: Domain| {
            let rows = self.rows.iter().filter(|row| row.domain == domain).count();
            (rows + usize::from(domain == newcomer), domain == newcomer)
        };
        let last_of_each = self.rows.iter().enumerate().rev();
        // The first of equals from behind: the least recently used one.
        let worst = last_of_each.fold(None, |worst: Option<(usize, (usize, bool))>, (at, row)| {
            let share = of(row.domain);
            if worst.is_some_and(|(_, most)| most >= share) { worst } else { Some((at, share)) }
        });
        worst.map_or(0, |(at, _)| at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;
    use alloc::vec::Vec;

    const ALICE: Domain = Domain(1);
    const BOB: Domain = Domain(2);
    const LATER: Instant = Instant::from_nanos(10_000_000_000);

    /// An interpreter that records which programs it compiled.
    #[derive(Debug, Default)]
    struct Counting(Vec<ProgramHash>);

    impl Compile for Counting {
        type Logic = Program;

        fn compile(&mut self, program: &Program) -> Program {
            self.0.push(program.hash());
            Interpreted.compile(program)
        }
    }

    /// Compiling takes up to a millisecond, so each learned program is compiled once. A known or refused
    /// program is not compiled; an evicted one is compiled again.
    #[test]
    fn a_program_is_compiled_when_it_is_learned() {
        let mut programs = Programs::new(Counting::default());
        let all: Vec<Program> = (1..=PROGRAMS_MAX + 1)
            .map(|window| Program::assemble(&format!(".window {window}\n ret")).unwrap())
            .collect();
        let (first, last) = (&all[0], &all[PROGRAMS_MAX]);
        assert_eq!(
            programs.find(Instant::ZERO, ALICE, first.hash(), &[]).unwrap_err(),
            Status::UnknownProgram
        );
        assert_eq!(
            programs.find(Instant::ZERO, ALICE, first.hash(), last.encoded()).unwrap_err(),
            Status::BadProgram
        );
        assert_eq!(programs.compile.0, []);

        for program in &all {
            let (known, lookup) =
                programs.find(Instant::ZERO, ALICE, program.hash(), program.encoded()).unwrap();
            assert_eq!(&known.program, program);
            assert_eq!(lookup == CacheLookup::Replaced, program == last);
            assert_eq!(programs.find(Instant::ZERO, ALICE, program.hash(), &[]).unwrap().1, CacheLookup::Hit);
            programs.check();
        }
        assert_eq!(programs.compile.0, all.iter().map(Program::hash).collect::<Vec<_>>(), "each once");

        assert_eq!(
            programs.find(Instant::ZERO, ALICE, first.hash(), first.encoded()).unwrap().1,
            CacheLookup::Replaced
        );
        assert_eq!(programs.compile.0.len(), PROGRAMS_MAX + 2);
    }

    /// A domain that brings a new program with each request may fill an idle cache. Afterwards it evicts only
    /// its own programs, also when others had none at first.
    #[test]
    fn a_domain_with_many_programs_pays_for_them_itself() {
        let mut programs = Programs::new(Interpreted);
        let mut number = 0;
        let mut bring = |programs: &mut Programs<Interpreted>, domain: Domain| {
            number += 1;
            let program =
                Program::assemble(&format!(".window {}\n.scratch {}\n ret", 1 + number % 256, number / 256))
                    .unwrap();
            let now = Instant::from_nanos(number * 1_000_000);
            programs.find(now, domain, program.hash(), program.encoded()).unwrap();
            program.hash()
        };
        let count = |programs: &Programs<Interpreted>, domain| {
            programs.rows.iter().filter(|row| row.domain == domain).count()
        };
        for _ in 0..1000 {
            bring(&mut programs, ALICE);
        }
        assert_eq!(count(&programs, ALICE), PROGRAMS_MAX);
        let bobs: Vec<ProgramHash> = (0..PROGRAMS_MAX / 2).map(|_| bring(&mut programs, BOB)).collect();
        for _ in 0..1000 {
            bring(&mut programs, ALICE);
        }
        for hash in &bobs {
            assert_eq!(
                programs.find(LATER, BOB, *hash, &[]).unwrap().1,
                CacheLookup::Hit,
                "Bob's half is his"
            );
        }
        // Beyond half of the cache, Bob's own oldest program is evicted.
        bring(&mut programs, BOB);
        assert_eq!(programs.find(LATER, BOB, bobs[0], &[]).unwrap_err(), Status::UnknownProgram);
        assert_eq!([ALICE, BOB].map(|domain| count(&programs, domain)), [PROGRAMS_MAX / 2; 2]);
        programs.check();
    }
}
