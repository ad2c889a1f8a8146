//! farmem's packets against scapy, which decodes them and computes their ICRC independently.
//!
//! Needs python3 with scapy; prints a line if there is none.

use crate::vector_file;
use farmem_wire::message::{Traverse, Update, Updates};
use farmem_wire::{
    Aeth, AtomicEth, Body, Bth, Deth, Domain, Extension, Gid, Header, HostId, Message, Nak, Opcode, Packet,
    Perm, ProgramHash, Psn, Qkey, Qpn, RequestId, Reth, Rkey, Syndrome, VirtAddr, icrc,
};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns a Python that can import scapy: the project's own, else the system's.
fn python() -> Option<PathBuf> {
    let candidates = [root().join(".venv/bin/python3"), PathBuf::from("python3")];
    candidates.into_iter().find(|python| {
        let probe = Command::new(python).args(["-c", "import scapy.contrib.roce"]).output();
        probe.is_ok_and(|output| output.status.success())
    })
}

/// Prints past the test harness, which captures the output of passing tests.
fn skipped() {
    let told = writeln!(std::io::stderr(), "skipped: scapy absent (make setup installs it)");
    told.expect("standard error is open");
}

/// Runs the script on files. Returns the number of checked packets, or the script's complaint.
fn check(python: &Path, files: &[PathBuf]) -> Result<usize, String> {
    let output = Command::new(python).arg(root().join("scripts/check-scapy")).args(files).output().unwrap();
    let (told, found) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if !output.status.success() {
        return Err(found.into_owned());
    }
    let count = told.strip_prefix("checked ").and_then(|rest| rest.split(' ').next()).unwrap();
    Ok(count.parse().unwrap())
}

/// A small seeded generator of test numbers; not for secrets.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        self.0 ^ self.0 >> 32
    }

    fn word(&mut self) -> u32 {
        u32::try_from(self.next() >> 32).unwrap()
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next().to_le_bytes()[3]).collect()
    }
}

fn extension(opcode: Opcode, n: &mut Numbers) -> Extension {
    let reth = Reth { va: VirtAddr(n.next()), rkey: Rkey(n.word()), dma_len: n.word() >> 1 };
    let syndromes =
        [Syndrome::Ack, Syndrome::Rnr(14), Syndrome::Nak(Nak::PsnSequence), Syndrome::Nak(Nak::RemoteAccess)];
    let aeth = Aeth { syndrome: syndromes[n.word() as usize % 4], msn: Psn::new(n.word()) };
    let deth = Deth { qkey: Qkey(n.word()), src_qp: Qpn::new(n.word()) };
    let (va, rkey) = (VirtAddr(n.next()), Rkey(n.word()));
    let candidates = [
        Extension::None,
        Extension::Imm(n.word()),
        Extension::Reth(reth),
        Extension::RethImm(reth, n.word()),
        Extension::AtomicEth(AtomicEth { va, rkey, swap_or_add: n.next(), compare: n.next() }),
        Extension::Aeth(aeth),
        Extension::AtomicAck(aeth, n.next()),
        Extension::Deth(deth),
        Extension::DethImm(deth, n.word()),
    ];
    candidates.into_iter().find(|ext| ext.fits(opcode)).unwrap()
}

/// Appends five packets of each opcode, with random numbers in them.
fn packets(n: &mut Numbers, out: &mut Vec<(icrc::Route, Vec<u8>)>) {
    for opcode in (0..=u8::MAX).filter_map(Opcode::from_bits) {
        for round in 0..5 {
            let empty = matches!(opcode as u8, 0x0c | 0x11..=0x14);
            let len = if empty { 0 } else { n.word() as usize % 300 + 1 };
            let mut payload = n.bytes(len);
            if opcode == Opcode::UdSendOnly {
                payload[0] |= 0x80; // not a message
            }
            let bth = Bth {
                opcode,
                solicited: n.word() & 1 == 1,
                dest_qp: Qpn::new(n.word()),
                ack_req: n.word() & 1 == 1,
                psn: Psn::new(n.word()),
            };
            let mut frame = vec![];
            Packet { bth, ext: extension(opcode, n), payload: &payload }.emit(&mut frame);
            out.push((route(n, round % 2 == 0), frame));
        }
    }
}

fn messages(n: &mut Numbers, out: &mut Vec<(icrc::Route, Vec<u8>)>) {
    let (scratch, code, data) = (n.bytes(77), n.bytes(200), n.bytes(33));
    let request =
        Header { domain: Domain(n.word()), origin: HostId(7), ..Header::request(RequestId(n.next()), 16) };
    let mut list = vec![];
    Update::Protect {
        domain: Domain(9),
        base: VirtAddr(n.next() >> 1),
        len: 4096,
        perm: Perm::ReadWrite,
        vma_log2: 64,
    }
    .emit(&mut list);
    Update::PeerGone { port: n.word() }.emit(&mut list);
    let program = ProgramHash(n.bytes(16).try_into().unwrap());
    let walk = Traverse {
        program,
        cur_ptr: VirtAddr(n.next()),
        iterations: 1,
        limit: n.word(),
        scratch: &scratch,
        code: &code,
    };
    let bodies = [
        Body::RegionRead { addr: VirtAddr(n.next()), len: n.word(), data: &[] },
        Body::RegionWrite { addr: VirtAddr(n.next()), len: 33, data: &data },
        Body::Traverse(walk),
        Body::Update(Updates::request(n.next(), 2, &list).unwrap()),
    ];
    for body in bodies {
        let message = Message { header: request, body };
        let bth = Bth::new(Opcode::UdSendOnly, Qpn::new(n.word()), Psn::new(n.word()));
        let ext = extension(Opcode::UdSendOnly, n);
        let mut frame = vec![];
        Packet::emit_with(&bth, &ext, message.len(), &mut frame, |out| message.emit(out));
        out.push((route(n, true), frame));
    }
}

fn route(n: &mut Numbers, v4: bool) -> icrc::Route {
    let [a, b, c, d] = (n.word() & 0x00ff_ffff | 0x0a00_0000).to_be_bytes();
    let mut v6 = || {
        let mut bytes = [0xfd; 16];
        bytes[8..].copy_from_slice(&(n.next() | 0x8000_8000_8000_8000).to_be_bytes());
        Gid(bytes)
    };
    let (src, dst) = if v4 { (Gid::from_v4([a, b, c, d]), Gid::from_v4([a, d, c, b])) } else { (v6(), v6()) };
    icrc::Route {
        src,
        dst,
        src_port: 0xc000 | n.word().to_le_bytes()[0] as u16,
        ip_id: if v4 { n.word().to_le_bytes()[1].into() } else { 0 },
    }
}

#[test]
fn scapy_reads_what_farmem_writes() {
    let Some(python) = python() else { return skipped() };
    let (mut n, mut sent) = (Numbers(4791), vec![]);
    packets(&mut n, &mut sent);
    messages(&mut n, &mut sent);
    let mut text = String::new();
    for (route, frame) in &sent {
        let packet = Packet::parse(frame).unwrap();
        let fields = vector_file::fields(route, frame, &packet);
        let mut sealed = frame.clone();
        icrc::seal(route, &mut sealed, 0);
        text += &vector_file::write(&fields, &vector_file::wrap(route, &sealed));
    }
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("emitted.hex");
    std::fs::write(&file, &text).unwrap();
    assert_eq!(check(&python, &[file]), Ok(24 * 5 + 4));

    // The checker must be able to fail: one digit of the last ICRC is changed.
    let last = text.trim_end().len() - 1;
    let other = if text.as_bytes()[last] == b'0' { "1" } else { "0" };
    text.replace_range(last..=last, other);
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("spoiled.hex");
    std::fs::write(&file, &text).unwrap();
    assert!(check(&python, &[file]).unwrap_err().contains("does not agree about the ICRC"));
}

#[test]
fn scapy_agrees_with_the_vectors() {
    let Some(python) = python() else { return skipped() };
    let directory = std::fs::read_dir(root().join("testdata/vectors")).unwrap();
    let files: Vec<PathBuf> = directory.map(|entry| entry.unwrap().path()).collect();
    let count: usize =
        files.iter().map(|file| vector_file::read(&std::fs::read_to_string(file).unwrap()).len()).sum();
    assert_eq!(check(&python, &files), Ok(count));
}
