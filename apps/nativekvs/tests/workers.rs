//! The store in real use: workers in separate processes, on a rack over rings and over UDP.

use farmem::serve::{self, Serving, Stop};
use farmem::{Rack, RackConfig, UDP_PORT};
use std::net::UdpSocket;
use std::path::PathBuf;
use std::process::Command;
use std::sync::mpsc::channel;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{JoinHandle, spawn};

/// Racks of these tests would take the same addresses: one at a time.
static TURN: Mutex<()> = Mutex::new(());

/// A rack whose roles are threads of this test.
struct Roles {
    _turn: MutexGuard<'static, ()>,
    dir: PathBuf,
    config: RackConfig,
    stop: Stop,
    threads: Vec<JoinHandle<()>>,
}

impl Roles {
    fn start(transport: &str) -> Self {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let name = format!("kvs-{transport}-{}", std::process::id());
        let dir = std::env::temp_dir().join(format!("farmem-{name}"));
        std::fs::create_dir_all(&dir).unwrap();
        let [_, _, b, c] = std::process::id().to_be_bytes();
        let nets = (1..255).map(|n| format!("127.{}.{}", 194 + b % 30, c ^ n));
        let is_free = |net: &String| UdpSocket::bind((format!("{net}.1"), UDP_PORT)).is_ok();
        let net = nets.into_iter().find(is_free).unwrap();
        let text = format!(
            "name = \"{name}\"\ntransport = \"{transport}\"\nplacement = \"free\"\n\
             [control]\naddress = \"{net}.1\"\nstate = \"state\"\n\
             [switch]\naddress = \"{net}.2\"\n[hosts]\nfirst = \"{net}.200\"\ncount = 20\n\
             [[node]]\nname = \"one\"\naddress = \"{net}.11\"\nmemory = \"32 MiB\"\n\
             [[node]]\nname = \"two\"\naddress = \"{net}.12\"\nmemory = \"32 MiB\"\n"
        );
        let file = dir.join("rack.toml");
        std::fs::write(&file, text).unwrap();
        let config = RackConfig::load(&file).unwrap();
        let mut roles = Self { _turn: turn, dir, config, stop: Stop::new(), threads: Vec::new() };
        roles.begin(|config, serving| serve::control(config, serving));
        roles.begin(|config, serving| serve::switch(config, serving));
        roles.begin(|config, serving| serve::node(config, &config.nodes[0], serving));
        roles.begin(|config, serving| serve::node(config, &config.nodes[1], serving));
        roles
    }

    fn begin(
        &mut self,
        serve: impl for<'a> FnOnce(&'a RackConfig, Serving<'a>) -> Result<(), farmem::Error> + Send + 'static,
    ) {
        let (config, stop) = (self.config.clone(), self.stop.clone());
        let (say, said) = channel();
        self.threads.push(spawn(move || {
            serve(&config, Serving::new(&stop, &mut || say.send(()).unwrap())).unwrap();
        }));
        said.recv().unwrap();
    }
}

impl Drop for Roles {
    fn drop(&mut self) {
        self.stop.set();
        self.threads.drain(..).for_each(|thread| thread.join().unwrap());
        let _none = serve::remove_rings(&self.config);
        let _left = std::fs::remove_dir_all(&self.dir);
    }
}

/// Three workers, each with a fifth of the table local, update and read everywhere. Every value is whole, and
/// at the end the table has exactly the updates made.
#[test]
fn workers_share_one_table() {
    for transport in ["shm", "udp"] {
        let roles = Roles::start(transport);
        for workload in ["a", "c"] {
            let ended = Command::new(env!("CARGO_BIN_EXE_farmem-nativekvs"))
                .args([
                    "--workers",
                    "3",
                    "--records",
                    "400",
                    "--operations",
                    "300",
                    "--local",
                    "131072",
                    "--json",
                ])
                .args(["--workload", workload])
                .arg("--rack")
                .arg(&roles.config.file)
                .output()
                .unwrap();
            let (said, why) =
                (String::from_utf8_lossy(&ended.stdout), String::from_utf8_lossy(&ended.stderr));
            if why.contains("userfaultfd") {
                return eprintln!("skipped: {why}");
            }
            assert!(ended.status.success(), "{transport} {workload}: {}: {said}{why}", ended.status);
            assert!(said.contains("\"wrong_answers\":0"), "{said}");
            assert!(said.contains("\"workers\":3,\"operations\":300"), "{said}");
            assert_eq!(said.contains("\"updates\":0,"), workload == "c", "{said}");
        }
    }
}

/// More workers than the rack has addresses: those that joined would wait for the others for ever. The
/// command ends with the failed worker's error, and leaves no table behind.
#[test]
fn workers_do_not_wait_for_one_that_failed() {
    let roles = Roles::start("shm");
    let ended = Command::new(env!("CARGO_BIN_EXE_farmem-nativekvs"))
        .args(["--workers", "24", "--records", "10", "--operations", "24", "--local", "128KiB"])
        .arg("--rack")
        .arg(&roles.config.file)
        .output()
        .unwrap();
    let why = String::from_utf8_lossy(&ended.stderr);
    if why.contains("userfaultfd") {
        return eprintln!("skipped: {why}");
    }
    assert_eq!(ended.status.code(), Some(2), "{why}");
    assert!(why.contains("the list of client addresses"), "{why}");
    assert!(why.contains("worker \"serve\", which ended without one"), "{why}");
    let mut client = Rack::running(roles.config.clone()).client("nativekvs").unwrap();
    let vmas = client.overview().unwrap().vmas;
    assert!(vmas.is_empty(), "{vmas:?}");
}
