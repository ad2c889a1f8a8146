//! A compiler that cannot compile: the node serves all the same, and says so.

use super::traversals::{find, pad, request};
use super::*;
use crate::{Compile, Logic};
use farmem_traversal::{Program, Step};
use farmem_wire::message::{Kind, Traverse};

/// Gives up on every program.
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

/// A program comes that cannot be compiled. It is interpreted: its traversals are answered, and the node notes it once, when it learns
/// the program.
#[test]
fn what_cannot_be_compiled_is_interpreted() {
    let config = Config { home: HOME, pmtu: Pmtu::B1024, budget: Budget::default() };
    let mut store = VecStore::new(STORE_LEN);
    store.write(OFFSET, &pad(3, 30));
    let mut node = MemNode::compiling(config, store, Failing);
    let mut hear = |port, frame: &[u8]| {
        let mut out = Outbox::new();
        node.handle(Instant::ZERO, Event::Frame { port, bytes: frame }, &mut out);
        if node.next_wake().is_some() {
            node.handle(Instant::ZERO, Event::Wake, &mut out);
        }
        let mut notes = vec![];
        out.drain(|action| {
            if let Action::Note(note) = action {
                notes.push(note);
            }
        });
        notes
    };
    let updates = [
        peer(Port::SWITCH, 1),
        peer(Port::host(HOST.0), 3),
        Update::Range { base: BASE, len: LEN, offset: OFFSET },
        Update::Protect { domain: ALICE, base: addr(0), len: 0x1000, perm: Perm::Read, vma_log2: 64 },
    ];
    assert_eq!(hear(Port::CONTROL, &batch(1, &updates)), [Note::Updated]);

    let (program, scratch) = (find(), pad(3, 0));
    let asked = request(&program, &scratch);
    let message = |n, code| {
        datagram(&Message { header: header(ALICE, n), body: Body::Traverse(Traverse { code, ..asked }) })
    };
    let answered = Note::Answered(Kind::Traverse, Status::Ok);
    let first = hear(Port::SWITCH, &message(1, program.encoded()));
    assert_eq!(first, [Note::ProgramLearned, Note::ProgramInterpreted, answered]);
    assert_eq!(hear(Port::SWITCH, &message(2, &[])), [answered], "said once");
}
