//! Objects by file at the node: its requests for files, and when bytes may be used (PROTOCOL 20.6 to 20.11).

use super::moves::region_read;
use super::*;
use crate::{FILE_PART, FileOp, FileOutcome, FileReply, TASKS_KEPT, TASKS_MAX};
use farmem_wire::message::{FileBody, FileCause, FileFault, FileMessage, FileState, FileTask};

/// Size of the vma: four pages, of which Alice may read the first two, with some bytes in the store.
const SIZE: u64 = 0x4000;
const LENGTH: u64 = 0x1801;
const TASK: FileTask<'static> = FileTask {
    task: 9,
    saves: false,
    base: BASE,
    length: LENGTH,
    size: SIZE,
    stamp: 0,
    name: "dir/graph.fmg",
};

fn message(token: u64, body: FileBody<'_>) -> Vec<u8> {
    let message = FileMessage { token: RequestId(token), body };
    let bth = Bth::new(Opcode::UdSendOnly, HOME.endpoint.qpn, Psn::new(0));
    let ext = Extension::Deth(Deth { qkey: HOME.endpoint.qkey, src_qp: Qpn::new(0x77) });
    let mut frame = vec![];
    Packet::emit_with(&bth, &ext, message.len(), &mut frame, |bytes| message.emit(bytes));
    frame
}

impl Bench {
    fn with_files() -> Self {
        let bench = Self::ready();
        Self { node: bench.node.with_files(), ..bench }
    }

    /// Creates a node whose vma is lost, with other bytes in the store.
    fn lost() -> Self {
        let mut bench = Self::with_files();
        bench.put(BASE, &[0xee; 0x4000]);
        assert_eq!(bench.update(&[Update::Lose { base: BASE, len: SIZE }]), (Status::Ok, 0));
        bench
    }

    /// Sends a request of the control plane; returns the node's immediate answer.
    fn task(&mut self, token: u64, body: FileBody<'_>) -> Option<(u64, FileState)> {
        self.hear(Port::CONTROL, &message(token, body));
        self.said().map(|(answered, number, state)| {
            assert_eq!(answered, token, "the answer to the latest question");
            (number, state)
        })
    }

    /// Returns the last answer to the control plane: token, task number, state.
    fn said(&self) -> Option<(u64, u64, FileState)> {
        let [(Port::CONTROL, frame)] = &self.sent[..] else {
            assert_eq!(self.sent, [], "nothing else is said");
            return None;
        };
        let payload = Packet::parse(frame).unwrap().payload;
        let FileMessage { token, body } = FileMessage::parse(payload).unwrap();
        let FileBody::Report(number, state) = body else { panic!("what is said, not {body:?}") };
        Some((token.0, number, state))
    }

    /// Delivers the driver's answer.
    fn done(&mut self, id: u64, outcome: FileOutcome) {
        let done = FileReply { id, outcome };
        self.node.handle(Instant::ZERO, Event::Local(done), &mut self.out);
        self.node.check();
        self.collect();
    }

    /// Returns the only request to the driver.
    fn wants(&self) -> (u64, &FileOp) {
        let [FileRequest { id, op }] = &self.asked[..] else { panic!("one thing, not {:?}", self.asked) };
        (*id, op)
    }

    fn read_status(&mut self, counter: u32) -> Status {
        self.ask(header(ALICE, counter), region_read(8, 64)).header.status
    }

    /// Begins a load and opens its file with this length; returns the file's number at the driver.
    fn opens(&mut self, task: FileTask<'_>, length: u64, stamp: u64) -> u64 {
        let busy = FileState::Busy { done: 0, length: task.length };
        assert_eq!(self.task(1, FileBody::Task(task)), Some((task.task, busy)));
        let id = self.wants().0;
        self.done(id, FileOutcome::Opened { length, stamp });
        id
    }

    fn fails_with(&self, cause: FileCause, at: u64) {
        let fault = FileFault { cause, errno: 0, at };
        assert_eq!(self.said().map(|(_, _, state)| state), Some(FileState::Failed(fault)));
    }
}

/// PROTOCOL 20.7, 20.9: a load reads the file part by part. No byte may be read before the file is complete
/// and unchanged.
#[test]
fn a_file_is_loaded_and_usable_all_at_once() {
    let mut bench = Bench::lost();
    let busy = FileState::Busy { done: 0, length: LENGTH };
    assert_eq!(bench.task(1, FileBody::Task(TASK)), Some((9, busy)));
    let (id, op) = bench.wants();
    assert_eq!(*op, FileOp::Load("dir/graph.fmg".into()));
    bench.done(id, FileOutcome::Opened { length: LENGTH, stamp: 77 });
    let len = u32::try_from(LENGTH).unwrap();
    assert_eq!(bench.wants(), (id, &FileOp::Read { offset: 0, len }));
    assert_eq!(bench.task(2, FileBody::Task(TASK)), Some((9, busy)), "asked again, not begun again");
    assert_eq!(bench.asked, []);
    bench.done(id, FileOutcome::Read { offset: 0, bytes: vec![0xab; len as usize] });
    assert_eq!(bench.wants(), (id, &FileOp::Finish));
    assert_eq!(bench.read_status(1), Status::Lost, "all is read, but the file may have changed");
    bench.done(id, FileOutcome::Finished { stamp: 77 });
    let over = FileState::Done { length: LENGTH, stamp: 77 };
    assert_eq!(bench.said(), Some((2, 9, over)), "said unasked, as an answer to the latest question");
    assert_eq!(bench.read_status(2), Status::Ok);
    assert_eq!(bench.bytes(BASE, 0x1801), vec![0xab; 0x1801]);
    assert_eq!(bench.bytes(addr(LENGTH), 0x27ff), vec![0; 0x27ff], "zeros behind the file");
    assert_eq!(bench.task(3, FileBody::Task(TASK)), Some((9, over)), "it stays over");
    assert_eq!(bench.asked, []);
}

/// PROTOCOL 20.11: a long file is read in parts, two in progress at a time; the state reports the progress.
#[test]
fn a_long_file_comes_in_parts() {
    const PART: u64 = FILE_PART as u64;
    const LONG: u64 = 3 * PART + 5;
    let size = 4 * PART;
    let config = Config { home: HOME, pmtu: Pmtu::B1024, budget: Budget::default() };
    let mut bench = Bench::empty(Budget::default());
    bench.node = MemNode::new(config, VecStore::new(usize::try_from(size).unwrap())).with_files();
    let range = Update::Range { base: BASE, len: size, offset: 0 };
    assert_eq!(bench.update(&[range, Update::Lose { base: BASE, len: size }]), (Status::Ok, 0));
    let task = FileTask { length: LONG, size, ..TASK };
    let id = bench.opens(task, LONG, 1);
    let read = |offset, len| FileRequest { id, op: FileOp::Read { offset, len } };
    assert_eq!(bench.asked, [read(0, FILE_PART), read(PART, FILE_PART)]);
    let bytes = |len: u32, byte| vec![byte; len as usize];
    bench.done(id, FileOutcome::Read { offset: 0, bytes: bytes(FILE_PART, 1) });
    assert_eq!(bench.asked, [read(2 * PART, FILE_PART)]);
    let busy = FileState::Busy { done: PART, length: LONG };
    assert_eq!(bench.task(2, FileBody::Task(task)), Some((9, busy)));
    bench.done(id, FileOutcome::Read { offset: PART, bytes: bytes(FILE_PART, 2) });
    assert_eq!(bench.asked, [read(3 * PART, 5)]);
    bench.done(id, FileOutcome::Read { offset: 2 * PART, bytes: bytes(FILE_PART, 3) });
    assert_eq!(bench.asked, [], "the last part is under way");
    bench.done(id, FileOutcome::Read { offset: 3 * PART, bytes: bytes(5, 4) });
    assert_eq!(bench.wants(), (id, &FileOp::Finish));
    bench.done(id, FileOutcome::Finished { stamp: 1 });
    let store = bench.node.store().bytes();
    let part = usize::try_from(PART).unwrap();
    for n in 0..3 {
        assert!(store[n * part..][..part].iter().all(|&byte| usize::from(byte) == n + 1), "part {n}");
    }
    assert_eq!(store[3 * part..][..6], [4, 4, 4, 4, 4, 0]);
}

/// PROTOCOL 20.11: a slow disk delays each part of a file of nine. Meanwhile the node serves fifty reads of
/// other memory per part, and answers `Lost` for the memory that is being loaded. The load then continues.
#[test]
fn reads_are_answered_while_a_load_stands_still() {
    const PART: u64 = FILE_PART as u64;
    const LONG: u64 = 9 * PART;
    let size = 16 * PART;
    let config = Config { home: HOME, pmtu: Pmtu::B1024, budget: Budget::default() };
    let mut bench = Bench::empty(Budget::default());
    let mut store = VecStore::new(usize::try_from(2 * size).unwrap());
    store.write(size, &[0x77; 64]);
    bench.node = MemNode::new(config, store).with_files();
    let read = |base, len| Update::Protect { domain: ALICE, base, len, perm: Perm::Read, vma_log2: 64 };
    let updates = [
        peer(Port::SWITCH, 1),
        peer(Port::host(HOST.0), 3),
        Update::Range { base: BASE, len: 2 * size, offset: 0 },
        Update::Lose { base: BASE, len: size },
        read(BASE, 2 * size),
    ];
    assert_eq!(bench.update(&updates), (Status::Ok, 0));
    let id = bench.opens(FileTask { length: LONG, size, ..TASK }, LONG, 1);
    let (mut asked, mut answered, mut lost) = (bench.asked.clone(), 0, 0);
    for part in 0..9 {
        for counter in 0..50 {
            let header = header(ALICE, part * 100 + counter);
            let message = bench.ask(header, region_read(size, 64));
            let Body::RegionRead { data, .. } = message.body else { panic!("{:?}", message.body) };
            answered += u64::from(message.header.status == Status::Ok && data == [0x77; 64]);
        }
        lost += u64::from(bench.read_status(part * 100 + 50) == Status::Lost);
        assert_eq!(bench.asked, [], "nothing more is asked of the disk");
        // The disk delivers the next part.
        let FileRequest { op: FileOp::Read { offset, len }, .. } = asked.remove(0) else { panic!("a part") };
        bench.done(id, FileOutcome::Read { offset, bytes: vec![0xab; len as usize] });
        asked.append(&mut bench.asked);
    }
    assert_eq!((answered, lost), (450, 9));
    assert_eq!(asked, [FileRequest { id, op: FileOp::Finish }]);
    bench.done(id, FileOutcome::Finished { stamp: 1 });
    assert_eq!(bench.read_status(999), Status::Ok);
}

/// PROTOCOL 20.8: a fault of the file is reported, the task ends, and every byte stays lost.
#[test]
fn a_load_that_fails_leaves_all_lost() {
    let fault = |cause, at| FileFault { cause, errno: 0, at };
    // Another length, and another stamp, than requested.
    for (task, length, stamp, cause, at) in [
        (TASK, LENGTH - 1, 5, FileCause::Length, LENGTH - 1),
        (FileTask { stamp: 4, ..TASK }, LENGTH, 5, FileCause::Changed, 0),
    ] {
        let mut bench = Bench::lost();
        let id = bench.opens(task, length, stamp);
        bench.fails_with(cause, at);
        assert_eq!(bench.wants(), (id, &FileOp::Drop));
        assert_eq!(bench.read_status(1), Status::Lost);
    }
    // The driver finds the fault while it opens, reads or checks the file.
    for step in 0..3 {
        let mut bench = Bench::lost();
        bench.task(1, FileBody::Task(TASK));
        let id = bench.wants().0;
        let bytes = vec![1; usize::try_from(LENGTH).unwrap()];
        let steps =
            [FileOutcome::Opened { length: LENGTH, stamp: 5 }, FileOutcome::Read { offset: 0, bytes }];
        steps.into_iter().take(step).for_each(|outcome| bench.done(id, outcome));
        bench.done(id, FileOutcome::Failed(fault(FileCause::Short, 700)));
        bench.fails_with(FileCause::Short, 700);
        assert_eq!(bench.asked, [], "the driver has closed it");
        assert_eq!(bench.read_status(1), Status::Lost, "step {step}");
        let state = FileState::Failed(fault(FileCause::Short, 700));
        assert_eq!(bench.task(2, FileBody::Task(TASK)), Some((9, state)));
        assert!(bench.notes.contains(&Note::FileFailed));
    }
}

/// The driver gets no request if it has no files, for a name that leads elsewhere, or for memory that is not
/// lost or not here (PROTOCOL 20.1, 20.9).
#[test]
fn what_cannot_be_is_refused_before_a_file_is_touched() {
    let failed = |cause| FileState::Failed(FileFault { cause, errno: 0, at: 0 });
    let mut bench = Bench::ready();
    let look = FileBody::Lookup("a");
    assert_eq!(bench.task(1, look), Some((0, failed(FileCause::NoDirectory))));
    assert_eq!(bench.task(1, FileBody::Task(TASK)), Some((9, failed(FileCause::NoDirectory))));
    let mut bench = Bench::with_files();
    assert_eq!(bench.task(1, FileBody::Lookup("../a")), Some((0, failed(FileCause::Name))));
    let cases = [
        (FileTask { name: "/etc/passwd", ..TASK }, FileCause::Name),
        (FileTask { task: 10, ..TASK }, FileCause::Memory),
        (FileTask { task: 11, base: VirtAddr(BASE.0 + SIZE), ..TASK }, FileCause::Memory),
    ];
    for (task, cause) in cases {
        assert_eq!(bench.task(1, FileBody::Task(task)), Some((task.task, failed(cause))), "{task:?}");
        assert_eq!(bench.asked, []);
    }
    // One page that is not lost is enough.
    let lose = Update::Lose { base: BASE, len: SIZE };
    let clear = Update::Clear { base: addr(0x3000), len: 0x1000 };
    assert_eq!(bench.update(&[lose, clear]), (Status::Ok, 0));
    let task = FileTask { task: 12, ..TASK };
    assert_eq!(bench.task(1, FileBody::Task(task)), Some((12, failed(FileCause::Memory))));
    // Saving lost bytes would write arbitrary contents.
    let task = FileTask { task: 13, saves: true, ..TASK };
    assert_eq!(bench.task(1, FileBody::Task(task)), Some((13, failed(FileCause::Memory))));
    // Requests of other ports are ignored.
    let other = message(1, FileBody::Task(FileTask { task: 14, ..TASK }));
    bench.hear_nothing(Port::SWITCH, &other, DropReason::WrongPort);
    bench.hear_nothing(Port::host(HOST.0), &other, DropReason::WrongPort);
    let said = message(1, FileBody::Report(9, FileState::Busy { done: 0, length: 1 }));
    bench.hear_nothing(Port::CONTROL, &said, DropReason::WrongPort);
}

/// PROTOCOL 20.10: cleared memory has another owner: a running load writes nothing more there, and a running
/// save reads nothing more.
#[test]
fn cleared_memory_ends_tasks() {
    let clear = Update::Clear { base: BASE, len: 0x1000 };
    for saves in [false, true] {
        let mut bench = if saves { Bench::with_files() } else { Bench::lost() };
        let id = bench.opens(FileTask { saves, ..TASK }, if saves { 0 } else { LENGTH }, 1);
        bench.hear(Port::CONTROL, &batch(bench.seq + 1, &[clear]));
        assert_eq!(bench.wants(), (id, &FileOp::Drop));
        let before = bench.node.store().clone();
        let bytes = vec![7; usize::try_from(LENGTH).unwrap()];
        let late =
            if saves { FileOutcome::Written { offset: 0 } } else { FileOutcome::Read { offset: 0, bytes } };
        bench.done(id, late);
        assert_eq!((bench.asked.len(), bench.sent.len()), (0, 0));
        assert_eq!(*bench.node.store(), before);
        let state = FileState::Failed(FileFault { cause: FileCause::Memory, errno: 0, at: 0 });
        assert_eq!(bench.task(5, FileBody::Task(FileTask { saves, ..TASK })), Some((9, state)));
    }
}

/// A save writes the bytes in memory, and ends when the driver has the file on disk.
#[test]
fn a_save_writes_what_is_there() {
    let mut bench = Bench::with_files();
    let bytes: Vec<u8> = (0..LENGTH).map(|n| n.to_le_bytes()[0] ^ 0x5a).collect();
    bench.put(BASE, &bytes);
    let task = FileTask { saves: true, ..TASK };
    bench.task(1, FileBody::Task(task));
    let (id, op) = bench.wants();
    assert_eq!(*op, FileOp::Save("dir/graph.fmg".into()));
    bench.done(id, FileOutcome::Opened { length: 0, stamp: 0 });
    assert_eq!(bench.wants(), (id, &FileOp::Write { offset: 0, bytes }));
    bench.done(id, FileOutcome::Written { offset: 0 });
    assert_eq!(bench.wants(), (id, &FileOp::Finish));
    bench.done(id, FileOutcome::Finished { stamp: 31 });
    assert_eq!(bench.said(), Some((1, 9, FileState::Done { length: LENGTH, stamp: 31 })));
    assert!(bench.notes.contains(&Note::FileSaved));
}

/// A lookup returns the file's length; a copy of it asks the driver once. Lookups and tasks are bounded, and
/// finished tasks are remembered (PROTOCOL 20.7).
#[test]
fn looks_and_tasks_are_bounded() {
    let mut bench = Bench::lost();
    assert_eq!(bench.task(1, FileBody::Lookup("a")), None);
    let (id, op) = bench.wants();
    assert_eq!(*op, FileOp::Look("a".into()));
    assert_eq!(bench.task(1, FileBody::Lookup("a")), None);
    assert_eq!(bench.asked, [], "the same question");
    bench.done(id, FileOutcome::Opened { length: 10, stamp: 3 });
    assert_eq!(bench.said(), Some((1, 0, FileState::Done { length: 10, stamp: 3 })));
    let most = u64::try_from(TASKS_MAX).unwrap();
    (0..most).for_each(|n| assert_eq!(bench.task(100 + n, FileBody::Lookup("a")), None));
    bench.hear_nothing(Port::CONTROL, &message(999, FileBody::Lookup("a")), DropReason::Busy);
    for task in 1..=most {
        let busy = FileState::Busy { done: 0, length: LENGTH };
        assert_eq!(bench.task(1, FileBody::Task(FileTask { task, ..TASK })), Some((task, busy)));
    }
    let one_more = FileTask { task: most + 1, ..TASK };
    bench.hear_nothing(Port::CONTROL, &message(1, FileBody::Task(one_more)), DropReason::Busy);
    // One more failed task than are remembered: the first one is forgotten, and not begun again.
    let mut bench = Bench::with_files();
    let kept = u64::try_from(TASKS_KEPT).unwrap();
    let failed = |cause| FileState::Failed(FileFault { cause, errno: 0, at: 0 });
    for task in 1..=kept + 1 {
        let state = bench.task(1, FileBody::Task(FileTask { task, ..TASK }));
        assert_eq!(state, Some((task, failed(FileCause::Memory))));
    }
    assert_eq!(
        bench.task(1, FileBody::Task(FileTask { task: 1, ..TASK })),
        Some((1, failed(FileCause::Forgotten)))
    );
    assert_eq!(
        bench.task(1, FileBody::Task(FileTask { task: 2, ..TASK })),
        Some((2, failed(FileCause::Memory)))
    );
}
