//! The programs a node knows, and what runs them: the seam between the node and a compiler.

use crate::newcomers::Newcomers;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use farmem_machine::Instant;
use farmem_traversal::{Program, Step};
use farmem_wire::{Domain, ProgramHash, Status, VirtAddr};

/// Programs a node knows by hash. One makes room for a new one: of the domain that has the most, the one that was not used for longest.
pub const PROGRAMS_MAX: usize = 64;

/// Makes something that runs out of a verified program, once for each program that the node learns.
///
/// Two implementers: [`Interpreted`] here, pure, and the compiler to machine code of the engine. One that cannot compile a program
/// gives a logic that interprets it: a verified program is never refused for want of a compiler.
pub trait Compile {
    /// What runs one program.
    type Logic: Logic;

    /// The logic of `program`. It must do what [`Program::step`] does, to the byte. The node waits for it.
    fn compile(&mut self, program: &Program) -> Self::Logic;

    /// The same as fast as it will ever be, for those who measure: a compiler may make it faster later otherwise.
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

/// Has every program compiled before it runs.
#[derive(Debug)]
pub(crate) struct Now<C>(pub(crate) C);

impl<C: Compile> Compile for Now<C> {
    type Logic = C::Logic;

    fn compile(&mut self, program: &Program) -> C::Logic {
        self.0.compile_now(program)
    }
}

/// Runs the iterations of one program.
pub trait Logic: fmt::Debug {
    /// One iteration over the loaded window, as [`Program::step`].
    ///
    /// # Panics
    /// When `window` or `scratch` does not have the program's lengths, or the program stores.
    fn step(&self, window: &[u8], cur_ptr: &mut VirtAddr, scratch: &mut [u8]) -> Step;

    /// True when the program was to be compiled, could not be, and is interpreted instead: right, but several times slower.
    fn fell_back(&self) -> bool {
        false
    }

    /// One iteration over a copy of the window that it may store to, as [`Program::step_storing`].
    ///
    /// # Panics
    /// When `window` or `scratch` does not have the program's lengths.
    fn step_storing(&self, window: &mut [u8], cur_ptr: &mut VirtAddr, scratch: &mut [u8]) -> Step;
}

/// Programs run as they are: the reference, and all there is where no machine code can be made.
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

/// A program and what runs it. Traversals under way share it with the cache, which may forget it meanwhile.
#[derive(Debug)]
pub(crate) struct Known<L> {
    pub(crate) program: Program,
    pub(crate) logic: L,
}

/// As the cache and the traversals under way share it.
pub(crate) type Shared<L> = Arc<Known<L>>;

/// Verified programs.
#[derive(Debug)]
pub(crate) struct Programs<C: Compile> {
    compile: C,
    /// The one that was used last comes first: nearly always it is used again.
    rows: Vec<Row<C::Logic>>,
    newcomers: Newcomers,
}

/// A program in the cache.
#[derive(Debug)]
struct Row<L> {
    known: Shared<L>,
    /// The domain that brought it, or that looked for it last.
    domain: Domain,
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

impl<C: Compile> Programs<C> {
    /// Knows none.
    pub(crate) fn new(compile: C) -> Self {
        Self { compile, rows: Vec::new(), newcomers: Newcomers::default() }
    }

    /// The program named `hash`: from `code` when there is some, else from memory (PROTOCOL 7.22, 7.23). `Busy` when the domain brought too many new
    /// ones of late (7.49).
    #[inline]
    pub(crate) fn find(
        &mut self,
        now: Instant,
        domain: Domain,
        hash: ProgramHash,
        code: &[u8],
    ) -> Result<(&Shared<C::Logic>, Learned), Status> {
        let used_last = self.rows.first().is_some_and(|row| row.known.program.hash() == hash);
        let learned = if used_last { Learned::Known } else { self.bring_forward(now, domain, hash, code)? };
        let known = &self.rows[0].known;
        if !code.is_empty() && known.program.encoded() != code {
            return Err(Status::BadProgram);
        }
        Ok((known, learned))
    }

    /// Asserts that the cache is within its bound and every program has the name it is kept under.
    pub(crate) fn check(&self) {
        assert!(self.rows.len() <= PROGRAMS_MAX, "more programs than the bound");
        for (n, row) in self.rows.iter().enumerate() {
            let hash = row.known.program.hash();
            let twice = self.rows[..n].iter().any(|other| other.known.program.hash() == hash);
            assert!(!twice, "a program is kept once");
        }
        self.newcomers.check();
    }

    /// Makes the program named `hash` the first.
    #[cold]
    fn bring_forward(
        &mut self,
        now: Instant,
        domain: Domain,
        hash: ProgramHash,
        code: &[u8],
    ) -> Result<Learned, Status> {
        let Some(at) = self.rows.iter().position(|row| row.known.program.hash() == hash) else {
            return self.learn(now, domain, hash, code);
        };
        self.rows[..=at].rotate_right(1);
        self.rows[0].domain = domain;
        Ok(Learned::Known)
    }

    fn learn(
        &mut self,
        now: Instant,
        domain: Domain,
        hash: ProgramHash,
        code: &[u8],
    ) -> Result<Learned, Status> {
        if code.is_empty() {
            return Err(Status::UnknownProgram);
        }
        // What is refused below cost as much.
        if !self.newcomers.admit(now, domain) {
            return Err(Status::Busy);
        }
        let program = Program::decode(code).map_err(|_| Status::BadProgram)?;
        if program.hash() != hash {
            return Err(Status::BadProgram);
        }
        let learned = if self.rows.len() < PROGRAMS_MAX { Learned::Added } else { Learned::Replaced };
        if learned == Learned::Replaced {
            self.rows.remove(self.in_the_way(domain));
        }
        let logic = self.compile.compile(&program);
        self.rows.insert(0, Row { known: Arc::new(Known { program, logic }), domain });
        Ok(learned)
    }

    /// Which row makes room for one more of a domain: the last one of the domain that has the most then, and of several such the newcomer's, so
    /// that a domain with many programs does not cost others theirs (PROTOCOL 7.22).
    fn in_the_way(&self, newcomer: Domain) -> usize {
        let of = |domain: Domain| {
            let rows = self.rows.iter().filter(|row| row.domain == domain).count();
            (rows + usize::from(domain == newcomer), domain == newcomer)
        };
        let last_of_each = self.rows.iter().enumerate().rev();
        // The first of equals from behind: the one that was not used for longest.
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

    /// An interpreter that remembers what it was asked to compile.
    #[derive(Debug, Default)]
    struct Counting(Vec<ProgramHash>);

    impl Compile for Counting {
        type Logic = Program;

        fn compile(&mut self, program: &Program) -> Program {
            self.0.push(program.hash());
            Interpreted.compile(program)
        }
    }

    /// Compiling takes up to a millisecond, so it is done once for each program that is learned: not for one that is known, not for one
    /// that is refused, and again only for one that was forgotten.
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
            let (known, learned) =
                programs.find(Instant::ZERO, ALICE, program.hash(), program.encoded()).unwrap();
            assert_eq!(&known.program, program);
            assert_eq!(learned == Learned::Replaced, program == last);
            assert_eq!(programs.find(Instant::ZERO, ALICE, program.hash(), &[]).unwrap().1, Learned::Known);
            programs.check();
        }
        assert_eq!(programs.compile.0, all.iter().map(Program::hash).collect::<Vec<_>>(), "each once");

        assert_eq!(
            programs.find(Instant::ZERO, ALICE, first.hash(), first.encoded()).unwrap().1,
            Learned::Replaced
        );
        assert_eq!(programs.compile.0.len(), PROGRAMS_MAX + 2);
    }

    /// A domain that brings a new program with each request has the cache to itself while nobody else is there, and then costs others none of
    /// theirs: its own make room, also where the others had none when it began.
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
            assert_eq!(programs.find(LATER, BOB, *hash, &[]).unwrap().1, Learned::Known, "Bob's half is his");
        }
        // With more than his half, his own oldest one makes room.
        bring(&mut programs, BOB);
        assert_eq!(programs.find(LATER, BOB, bobs[0], &[]).unwrap_err(), Status::UnknownProgram);
        assert_eq!([ALICE, BOB].map(|domain| count(&programs, domain)), [PROGRAMS_MAX / 2; 2]);
        programs.check();
    }
}
