//! Compilers: one that always fails, so that the node interprets and notes it; and one that counts the
//! programs that are kept.

use super::traversals::{find, pad, request};
use super::*;
use crate::{Compile, Interpreted, Logic, NEW_PROGRAMS, PROGRAMS_MAX};
use alloc::format;
use alloc::sync::Arc;
use farmem_traversal::{Program, Step};
use farmem_wire::message::{Kind, Traverse};

/// A compiler that fails for every program.
struct Failing;

#[derive(Debug)]
struct Fallback(Program);

impl Compile for Failing {
    type Logic = Fallback;

    fn compile(&mut self, program: &Program) -> Fallback {
        Fallback(program.clone())
    }
}

impl Logic for Fallback {
    fn step(&self, window: &[u8], cur_ptr: &mut VirtAddr, scratch: &mut [u8]) -> Step {
        self.0.step(window, cur_ptr, scratch)
    }

    fn fell_back(&self) -> bool {
        true
    }

    fn step_storing(&self, window: &mut [u8], cur_ptr: &mut VirtAddr, scratch: &mut [u8]) -> Step {
        self.0.step_storing(window, cur_ptr, scratch)
    }
}

/// An interpreter whose programs each hold a copy of the token.
struct Counting(Arc<()>);

#[derive(Debug)]
struct Counted(Program, #[expect(dead_code, reason = "it is counted")] Arc<()>);

impl Compile for Counting {
    type Logic = Counted;

    fn compile(&mut self, program: &Program) -> Counted {
        Counted(program.clone(), Arc::clone(&self.0))
    }
}

impl Logic for Counted {
    fn step(&self, window: &[u8], cur_ptr: &mut VirtAddr, scratch: &mut [u8]) -> Step {
        self.0.step(window, cur_ptr, scratch)
    }

    fn step_storing(&self, window: &mut [u8], cur_ptr: &mut VirtAddr, scratch: &mut [u8]) -> Step {
        self.0.step_storing(window, cur_ptr, scratch)
    }
}

/// Creates a node at which Alice may read a page.
fn ready<C: Compile>(compile: C) -> MemNode<VecStore, C> {
    let config = Config { home: HOME, pmtu: Pmtu::B1024, budget: Budget::default() };
    let mut store = VecStore::new(STORE_LEN);
    store.write(OFFSET, &pad(3, 30));
    let mut node = MemNode::compiling(config, store, compile);
    let updates = [
        peer(Port::SWITCH, 1),
        peer(Port::host(HOST.0), 3),
        Update::Range { base: BASE, len: LEN, offset: OFFSET },
        Update::Protect { domain: ALICE, base: addr(0), len: 0x1000, perm: Perm::Read, vma_log2: 64 },
    ];
    assert_eq!(hear(&mut node, Port::CONTROL, &[batch(1, &updates)]), [Note::Updated]);
    node
}

fn hear<C: Compile>(node: &mut MemNode<VecStore, C>, port: Port, frames: &[Vec<u8>]) -> Vec<Note> {
    hear_at(node, Instant::ZERO, port, frames)
}

fn hear_at<C: Compile>(
    node: &mut MemNode<VecStore, C>,
    now: Instant,
    port: Port,
    frames: &[Vec<u8>],
) -> Vec<Note> {
    let mut out = Outbox::new();
    for bytes in frames {
        node.handle(now, Event::Frame { port, bytes }, &mut out);
    }
    if node.next_wake().is_some() {
        node.handle(now, Event::Wake, &mut out);
    }
    node.check();
    let mut notes = vec![];
    out.drain(|action| {
        if let Action::Note(note) = action {
            notes.push(note);
        }
    });
    notes
}

/// A program cannot be compiled. The node interprets it and answers its traversals, and notes this once, when
/// it learns the program.
#[test]
fn what_cannot_be_compiled_is_interpreted() {
    let mut node = ready(Failing);
    let (program, scratch) = (find(), pad(3, 0));
    let asked = request(&program, &scratch);
    let message = |n, code| {
        datagram(&Message { header: header(ALICE, n), body: Body::Traverse(Traverse { code, ..asked }) })
    };
    let answered = Note::Answered(Kind::Traverse, Status::Ok);
    let first = hear(&mut node, Port::SWITCH, &[message(1, program.encoded())]);
    assert_eq!(first, [Note::ProgramLearned, Note::ProgramInterpreted, answered]);
    assert_eq!(hear(&mut node, Port::SWITCH, &[message(2, &[])]), [answered], "said once");
}

/// Three traversals of a program run side by side. Then as many other programs as the node keeps run one
/// after the other in one workspace. The first program is evicted, and the workspaces that ran it do not keep
/// its code.
#[test]
fn what_was_forgotten_is_not_kept_by_workspaces() {
    let token = Arc::new(());
    let mut node = ready(Counting(Arc::clone(&token)));
    let kept = || Arc::strong_count(&token) - 2;
    let message = |n, program: &Program| {
        datagram(&Message { header: header(ALICE, n), body: Body::Traverse(request(program, &[])) })
    };
    let program = |window| Program::assemble(&format!(".window {window}\n ret")).unwrap();
    let first = program(1);
    hear(&mut node, Port::SWITCH, &[0, 1, 2].map(|n| message(n, &first)));
    assert_eq!((node.stats().iterations, kept()), (3, 1));
    for window in 2..=PROGRAMS_MAX {
        hear(&mut node, Port::SWITCH, &[message(9, &program(window))]);
    }
    assert_eq!(kept(), PROGRAMS_MAX);
    let last = hear(&mut node, Port::SWITCH, &[message(9, &program(PROGRAMS_MAX + 1))]);
    assert!(last.contains(&Note::ProgramForgotten), "{last:?}");
    assert_eq!(kept(), PROGRAMS_MAX, "and not the first one's code as well");
}

/// A domain brings a new program with each request, as fast as possible. After 128 it gets `Busy`, and one
/// more program each millisecond is verified. So verification costs the others a bounded time (PROTOCOL
/// 7.49). Known programs, and other domains, are served meanwhile. Code that is no program costs the same as
/// a valid one.
#[test]
fn hundreds_of_new_programs_are_told_to_come_later() {
    let mut node = ready(Interpreted);
    let message = |domain, n, code: &[u8], hash| {
        let program = find();
        let asked = Traverse { program: hash, code, ..request(&program, &[]) };
        datagram(&Message { header: header(domain, n), body: Body::Traverse(asked) })
    };
    let answers = |notes: &[Note], status| {
        notes.iter().filter(|&&note| note == Note::Answered(Kind::Traverse, status)).count() as u64
    };
    let mut n = 0;
    let mut bring = |node: &mut MemNode<VecStore, Interpreted>, millis: u64, count: u32, good: bool| {
        let frames = (0..count).map(|_| {
            n += 1;
            let source = format!(".window {}\n.scratch {}\n ret", 1 + n % 256, n / 256);
            let program = Program::assemble(&source).unwrap();
            let end = if good { program.encoded().len() } else { program.encoded().len() - 1 };
            message(ALICE, n, &program.encoded()[..end], program.hash())
        });
        let frames: Vec<Vec<u8>> = frames.collect();
        hear_at(node, Instant::from_nanos(millis * 1_000_000), Port::SWITCH, &frames)
    };
    let first = bring(&mut node, 1, 50, false);
    assert_eq!(answers(&first, Status::BadProgram), 50);
    let burst = bring(&mut node, 1, 500, true);
    assert_eq!(answers(&burst, Status::Ok), NEW_PROGRAMS.at_once - 50);
    assert_eq!(answers(&burst, Status::Busy), 500 - (NEW_PROGRAMS.at_once - 50));
    let later = bring(&mut node, 11, 100, true);
    assert_eq!((answers(&later, Status::Ok), answers(&later, Status::Busy)), (10, 90));

    let program = find();
    let bobs = message(BOB, 9001, program.encoded(), program.hash());
    let bobs = hear_at(&mut node, Instant::from_nanos(11_000_000), Port::SWITCH, &[bobs]);
    assert!(bobs.contains(&Note::ProgramLearned), "{bobs:?}");
    let known = message(ALICE, 9002, program.encoded(), program.hash());
    let known = hear_at(&mut node, Instant::from_nanos(11_000_000), Port::SWITCH, &[known]);
    assert_eq!(known, [Note::Continued], "it runs, and goes on elsewhere");
}
