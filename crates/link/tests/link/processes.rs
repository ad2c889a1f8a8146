//! Two real processes: frames between them, a kill of one of them, and its successor at the same address.
//!
//! The other process is this test program again, which its environment makes the echo.

use farmem_link::{Link, ShmConfig, ShmLink, UdpConfig, UdpLink, Wait, Waiting};
use farmem_machine::{Duration, Port};
use farmem_wire::Gid;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

const US: Gid = Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 71, 200, 1]);
const ECHO: Gid = Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 71, 200, 2]);
const PORT: Port = Port(5);
/// Environment variable with the echo's transport: `udp`, or the directory of the rings.
const OVER: &str = "FARMEM_TEST_ECHO_OVER";
/// The line that the echo prints when it listens.
const READY: &str = "the echo listens";
const PATIENCE: Wait = Wait::AtMost(Duration::from_secs(60));

/// The echo, which acts only in the other process, until it is killed.
#[test]
fn echo() {
    match std::env::var(OVER) {
        Err(_) => {}
        Ok(over) if over == "udp" => serve(UdpLink::open(&UdpConfig::new(ECHO)).unwrap()),
        Ok(dir) => serve(ShmLink::open(&ShmConfig::new(dir.into(), ECHO)).unwrap()),
    }
}

fn serve(mut link: impl Link) {
    link.set_peer(PORT, Some(US)).unwrap();
    eprintln!("{READY}");
    let mut heard = Vec::new();
    loop {
        link.receive(PATIENCE, &mut |_, bytes| heard.push(bytes.to_vec())).unwrap();
        for bytes in heard.drain(..) {
            link.send(PORT, &bytes);
        }
        link.flush().unwrap();
    }
}

/// The other process, killed by the drop.
struct Echo(Child);

impl Echo {
    fn start(over: &str) -> Self {
        let program = std::env::current_exe().unwrap();
        let mut command = Command::new(program);
        command
            .args(["--exact", "processes::echo", "--nocapture"])
            .env(OVER, over)
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let ready = lines.find(|line| line.as_ref().is_ok_and(|line| line.contains(READY)));
        assert!(ready.is_some(), "the echo ended before it listened");
        Self(child)
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

fn frame(n: u32, len: usize) -> Vec<u8> {
    let mut bytes = vec![0x5a; len];
    bytes[..4].copy_from_slice(&n.to_be_bytes());
    bytes
}

/// Frames of all lengths, a few at a time, return complete and in order.
fn exchange(link: &mut impl Link, rounds: u32) {
    for round in 0..rounds {
        let sent: Vec<_> = (0..4).map(|n| frame(round, 12 + (round * 4 + n) as usize * 37 % 4000)).collect();
        sent.iter().for_each(|bytes| link.send(PORT, bytes));
        link.flush().unwrap();
        let mut back = Vec::new();
        while back.len() < sent.len() {
            let got = link.receive(PATIENCE, &mut |port, bytes| back.push((port, bytes.to_vec()))).unwrap();
            assert!(got > 0, "{} of {} came back: {:?}", back.len(), sent.len(), link.counters());
        }
        assert!(back.iter().zip(&sent).all(|((port, back), sent)| *port == PORT && back == sent));
    }
    assert_eq!(link.counters().lost(), 0);
}

/// Receives frames that were in flight when the echo was killed, of which some may return.
fn settle(link: &mut impl Link) {
    while link.receive(Wait::No, &mut |_, _| ()).unwrap() > 0 {}
}

/// The echo is killed with frames in flight and restarts at its address. All exchanges work again, twice.
fn survive(mut link: impl Link, over: &str) {
    link.set_peer(PORT, Some(ECHO)).unwrap();
    for _ in 0..3 {
        let echo = Echo::start(over);
        settle(&mut link);
        exchange(&mut link, 300);
        drop(echo);
        link.flush().unwrap();
    }
}

#[test]
fn processes_talk_over_sockets() {
    survive(UdpLink::open(&UdpConfig::new(US)).unwrap(), "udp");
}

struct Rings(PathBuf);

impl Drop for Rings {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn processes_talk_through_rings() {
    for waiting in [Waiting::Block, Waiting::Spin] {
        let rings =
            Rings(Path::new("/dev/shm").join(format!("farmem-test-processes-{}", std::process::id())));
        let config = ShmConfig { waiting, ..ShmConfig::new(rings.0.clone(), US) };
        survive(ShmLink::open(&config).unwrap(), rings.0.to_str().unwrap());
        let text = farmem_link::shm::live_endpoints(&rings.0);
        assert_eq!(text, [""; 0], "killed and dropped ends hold no lock");
    }
}
