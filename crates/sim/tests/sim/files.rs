//! Objects in files under faults: a memory node loads and saves files while it crashes, messages are lost,
//! and files change. Every read returns the file's bytes or written ones; any other is refused (PROTOCOL
//! 20.9, 20.14 to 20.18).

use farmem_control::api::*;
use farmem_host::{Answer, Failure, Op};
use farmem_machine::{Duration, Rng};
use farmem_sim::{Layout, Plan, RoleId, World};
use farmem_wire::{Status, VirtAddr};

/// Three parts, the last one short, and no whole number of pages.
const WORDS: u64 = ((600 << 10) + 24) / 8;
const FILE: &str = "graphs/own";
const NODE: u16 = 1;
const READER: u16 = 2;
const WRITER: u16 = 1;
/// Length in bytes of a read.
const READ: usize = 256;

/// Returns a word of a version of the file. None is zero.
fn word(version: u64, index: u64) -> u64 {
    (index + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ version << 1 | 1
}

fn image(version: u64) -> Vec<u64> {
    (0..WORDS).map(|index| word(version, index)).collect()
}

fn bytes(image: &[u64]) -> Vec<u8> {
    image.iter().flat_map(|word| word.to_le_bytes()).collect()
}

struct Bench {
    world: World,
    rng: Rng,
    domain: u32,
    object: u64,
    base: u64,
    tickets: u64,
    versions: u64,
    /// The object's contents while it is not lost.
    has: Vec<u64>,
    /// Reads that succeeded, and reads refused as lost.
    read: u64,
    refused: u64,
}

impl Bench {
    fn new(seed: u64, plan: Plan) -> Self {
        let mut world = World::new(Layout { hosts: 2, ..Layout::small() }, plan, seed, 200);
        world.bring_up();
        let has = image(1);
        world.put_file(NODE, FILE, bytes(&has));
        let rng = Rng::from_number(seed);
        let mut bench = Self {
            world,
            rng,
            domain: 0,
            object: 0,
            base: 0,
            tickets: 0,
            versions: 1,
            has,
            read: 0,
            refused: 0,
        };
        bench.domain = bench.call(CreateDomain { name: "d".into() }).domain;
        let domain = bench.domain;
        let open = OpenObject {
            create: true,
            mode: OpenMode::Read,
            ..OpenObject::new(WRITER, domain, "own".into())
        };
        bench.object = bench.call(open).object;
        let length = bench.call(LookFile { node: NODE, file: FILE.into() }).length;
        assert_eq!(length, WORDS * 8);
        let load = bench.load(false);
        bench.base = bench.call(load).base;
        for host in [WRITER, READER] {
            bench.call_by(host, OpenSession { host, domain });
        }
        bench
    }

    fn load(&self, accept: bool) -> LoadObject {
        LoadObject { accept, ..LoadObject::new(WRITER, self.object, NODE, FILE.into(), WORDS * 8) }
    }

    /// Makes a call that succeeds in the end: an unavailable one is repeated.
    fn call<C: Call + Clone>(&mut self, call: C) -> C::Answer {
        self.call_by(WRITER, call)
    }

    fn call_by<C: Call + Clone>(&mut self, host: u16, call: C) -> C::Answer {
        for _ in 0..20 {
            match self.world.call(RoleId::Host(host), call.clone()) {
                Ok(answer) => return answer,
                Err(error) if error.code == ErrorCode::Unavailable => self.pass(20),
                Err(error) => panic!("{error:?}"),
            }
        }
        panic!("not served: {:?}", call.into());
    }

    fn pass(&mut self, millis: u64) {
        let until = self.world.now() + Duration::from_millis(millis);
        self.world.alarm(until);
        while self.world.now() < until && self.world.step() {
            self.world.check();
        }
    }

    fn stage(&mut self) -> FileStage {
        let objects = self.call(ListObjects { domain: Some(self.domain) }).objects;
        let [row] = &objects[..] else { panic!("one object: {objects:?}") };
        row.file.as_ref().expect("it is by file").stage
    }

    /// Runs one operation. Returns the bytes read, or the failure.
    fn once(&mut self, op: Op) -> Result<Vec<u8>, Failure> {
        self.tickets += 1;
        assert!(self.world.submit(READER, self.tickets, self.domain, op), "the host is up");
        loop {
            assert!(self.world.step(), "an operation ends");
            if let Some((_, done)) = self.world.take_done() {
                assert_eq!(done.ticket, self.tickets);
                return done.result.map(|answer| {
                    assert!(matches!(answer, Answer::Done { .. }), "{answer:?}");
                    done.buf
                });
            }
        }
    }

    /// Reads at a random place: the read finds the object's contents, or fails as lost. Never zeros, never
    /// older contents.
    fn look(&mut self) {
        let at = u64::from(self.rng.below(u32::try_from(WORDS - READ as u64 / 8).expect("few")));
        let addr = VirtAddr(self.base + at * 8);
        match self.once(Op::RegionRead { addr, buf: vec![0; READ] }) {
            Ok(found) => {
                let from = usize::try_from(at).expect("few");
                assert!(found == bytes(&self.has[from..from + READ / 8]), "other bytes at word {at}");
                self.read += 1;
            }
            Err(Failure::Lost { .. }) => self.refused += 1,
            Err(Failure::Refused { status: Status::Lost, .. }) => self.refused += 1,
            Err(Failure::NoAnswer) => {}
            Err(other) => panic!("{other:?}"),
        }
    }

    fn crash(&mut self) {
        let down = Duration::from_micros(u64::from(300 + self.rng.below(3000)));
        self.world.crash_for(RoleId::Node(NODE), down);
    }

    /// Reads while the node crashes now and then, also in the middle of a load.
    fn reads_under_crashes(&mut self) {
        for _ in 0..3 {
            for _ in 0..self.rng.below(30) {
                self.look();
            }
            self.crash();
            if self.rng.chance(1, 2) {
                // In the middle of the load.
                for _ in 0..self.rng.below(20) {
                    self.look();
                }
                self.crash();
            }
        }
        self.is_loaded();
    }

    /// Reads until the object is loaded again.
    fn is_loaded(&mut self) {
        for _ in 0..2000 {
            self.look();
            if self.stage() == FileStage::Loaded {
                let before = self.read;
                for _ in 0..200 {
                    self.look();
                    if self.read > before {
                        return;
                    }
                }
                panic!("it is loaded, and not read");
            }
        }
        panic!("it is not loaded: {:?}\n{}", self.stage(), self.world.journal_mut().take_lines().join("\n"));
    }

    /// The file changes while the node is down: the new version is not loaded silently.
    fn changes(&mut self) {
        self.crash();
        self.versions += 1;
        let new = image(self.versions);
        self.world.put_file(NODE, FILE, bytes(&new));
        let mut stage = FileStage::Loading;
        for _ in 0..500 {
            self.look();
            stage = self.stage();
            if stage == FileStage::Failed {
                break;
            }
        }
        assert_eq!(stage, FileStage::Failed);
        let before = self.read;
        (0..10).for_each(|_| self.look());
        assert_eq!(self.read, before, "nothing is read of a file that changed");
        let load = self.load(false);
        self.call(load);
        self.has = new;
        self.is_loaded();
    }

    /// Writes and saves words; the node may crash at any time meanwhile.
    fn writes(&mut self) {
        let hold = HoldObject { host: WRITER, object: self.object, mode: OpenMode::Write };
        self.call(hold);
        let crash_at = self.rng.below(12);
        let old = self.has.clone();
        let mut sure = true;
        for step in 0..8 {
            if step == crash_at {
                self.crash();
            }
            self.versions += 1;
            let index = u64::from(self.rng.below(u32::try_from(WORDS).expect("few")));
            let new = word(self.versions, index);
            let addr = VirtAddr(self.base + index * 8);
            match self.once(Op::RegionWrite { addr, buf: new.to_le_bytes().to_vec() }) {
                Ok(_) => self.has[usize::try_from(index).expect("few")] = new,
                Err(_) => sure = false,
            }
        }
        let save = SaveObject { host: WRITER, object: self.object };
        let ticket = self.world.ask(RoleId::Host(WRITER), save);
        if crash_at >= 8 && self.rng.chance(1, 2) {
            let steps = self.rng.below(200);
            let _left = (0..steps).find(|_| !self.world.step());
            self.crash();
        }
        let mut stage = FileStage::Saving;
        for _ in 0..200 {
            self.pass(5);
            stage = self.stage();
            if stage == FileStage::Writing || stage == FileStage::Unsaved {
                // The save did not begin, or its change was rolled back.
                let answer = self.world.take_reply(ticket);
                if !matches!(answer, None | Some(Ok(_))) {
                    let save = SaveObject { host: WRITER, object: self.object };
                    drop(self.world.call(RoleId::Host(WRITER), save));
                }
            }
            if matches!(stage, FileStage::Loaded | FileStage::Lost) {
                break;
            }
        }
        let file = self.world.file(NODE, FILE).expect("it is there").to_vec();
        match stage {
            FileStage::Loaded if sure => assert!(file == bytes(&self.has), "what was written is saved"),
            // A write without an answer may have executed: the file shows the result.
            FileStage::Loaded => {}
            FileStage::Lost => {
                let whole = file == bytes(&old) || file == bytes(&self.has) || !sure;
                assert!(whole, "the file has the old bytes or the new ones");
                let before = self.read;
                (0..5).for_each(|_| self.look());
                assert_eq!(self.read, before, "what is lost is not read");
                let refused =
                    self.world.call(RoleId::Host(WRITER), self.load(false)).expect_err("not accepted");
                assert!(matches!(refused.code, ErrorCode::Conflict | ErrorCode::Unavailable), "{refused:?}");
                let accept = self.load(true);
                self.call(accept);
            }
            other => panic!("{other:?}"),
        }
        self.has = file.as_chunks().0.iter().map(|&word| u64::from_le_bytes(word)).collect();
        self.is_loaded();
    }

    /// A save for which there is no room: the written words stay, and are saved when there is.
    fn full_disk(&mut self) {
        let hold = HoldObject { host: WRITER, object: self.object, mode: OpenMode::Write };
        self.call(hold);
        self.world.fill_disk(NODE, true);
        let old = self.world.file(NODE, FILE).expect("it is there").to_vec();
        self.call(SaveObject { host: WRITER, object: self.object });
        for _ in 0..100 {
            self.pass(5);
            if self.stage() != FileStage::Saving {
                break;
            }
        }
        assert_eq!(self.stage(), FileStage::Unsaved);
        assert!(self.world.file(NODE, FILE) == Some(&old[..]));
        self.world.fill_disk(NODE, false);
        self.call(SaveObject { host: WRITER, object: self.object });
        self.is_loaded();
    }
}

#[test]
fn what_is_read_is_what_the_file_has_or_was_written() {
    let (mut read, mut refused) = (0, 0);
    let mut notes = std::collections::BTreeMap::<String, u64>::new();
    for name in ["calm", "loss", "duplicate", "storm"] {
        for seed in 0..20 {
            let mut bench = Bench::new(seed, Plan::named(name).expect("a plan"));
            bench.is_loaded();
            bench.reads_under_crashes();
            bench.changes();
            (0..3).for_each(|_| bench.writes());
            bench.full_disk();
            (read, refused) = (read + bench.read, refused + bench.refused);
            for (note, count) in bench.world.journal().notes() {
                *notes.entry(note.clone()).or_default() += count;
            }
        }
    }
    assert!(read > 1000 && refused > 200, "{read} were read, {refused} refused");
    for wanted in ["node.FileLoaded", "node.FileSaved", "node.FileFailed", "control.FileEnded"] {
        assert!(notes.keys().any(|note| note.contains(wanted)), "no world reaches {wanted}: {notes:?}");
    }
}

/// One seed is one world, with files too.
#[test]
fn a_world_with_files_repeats() {
    let digest = || {
        let mut bench = Bench::new(3, Plan::STORM);
        bench.reads_under_crashes();
        bench.writes();
        (bench.world.journal().digest(), bench.read, bench.refused)
    };
    assert_eq!(digest(), digest());
}
