//! A rack of processes, and programs that share memory on it. The test program runs itself again, with its
//! task in environment variables.

use farmem::window::{Addressing, FaultMode, WindowOptions};
use farmem::{Rack, RackConfig, ShareOptions, SharedSpace, serve};
use farmem_link::Stop;
use farmem_testkit::signal;
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};
use std::fs::File;
use std::io::{BufRead as _, BufReader, Lines};
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};

/// The task of a process: a role's name, or a program's.
const BE: &str = "FARMEM_TEST_BE";
/// The rack's description.
const FILE: &str = "FARMEM_TEST_RACK";
/// The file in which a test publishes its progress to programs.
const SAID: &str = "said";
/// A program's numbers, separated by spaces.
const ARGS: &str = "FARMEM_TEST_ARGS";
/// Set when faults are signals.
const SIGNALS: &str = "FARMEM_TEST_SIGNALS";
/// The line by which a process reports that it serves, or is about to begin.
const READY: &str = "serves now";
/// The line by which a program reports its result, followed by the result.
const ANSWER: &str = "answer:";

pub(crate) const PAGE: u64 = 4096;
pub(crate) const DOMAIN: &str = "shared";
/// Bytes of each memory node: addresses; unused memory costs nothing.
const MEMORY: u64 = 256 << 20;

/// A program of a test, which runs in a process of its own.
pub(crate) type Program = fn(&SharedSpace, &[u64], &mut TestChannel) -> u64;

/// A running rack; its processes end on drop.
pub(crate) struct TestRack {
    dir: PathBuf,
    pub(crate) config: RackConfig,
    roles: Vec<(String, Child)>,
    pub(crate) faults: FaultMode,
}

impl TestRack {
    /// Starts a rack whose programs, this process included, serve faults in this mode.
    pub(crate) fn start_by((transport, faults): (&str, FaultMode), nodes: u8) -> Self {
        let mut rack = Self::start(transport, nodes);
        rack.faults = faults;
        rack
    }

    pub(crate) fn start(transport: &str, nodes: u8) -> Self {
        Self::start_with(transport, nodes, "")
    }

    /// Starts a rack with more lines in its description.
    pub(crate) fn start_with(transport: &str, nodes: u8, more: &str) -> Self {
        static COUNT: AtomicU8 = AtomicU8::new(0);
        let (id, count) = (std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let name = format!("share-{id}-{count}");
        let dir = std::env::temp_dir().join(format!("farmem-{name}"));
        std::fs::create_dir_all(&dir).unwrap();
        let file = dir.join("rack.toml");
        let [_, _, b, c] = id.to_be_bytes();
        // A number per attempt: tests of this process never try the same addresses.
        static NETS: AtomicU8 = AtomicU8::new(0);
        let mut nets = (0..=u8::MAX).map(|_| c ^ NETS.fetch_add(1, Ordering::Relaxed)).filter(|net| *net > 0);
        let is_free = |net: &String| UdpSocket::bind((format!("{net}.1"), farmem::UDP_PORT)).is_ok();
        let net = nets.find_map(|net| Some(format!("127.{}.{net}", 128 + b % 64)).filter(is_free)).unwrap();
        let mut text = format!(
            "name = \"{name}\"\ntransport = \"{transport}\"\nwaiting = \"block\"\nplacement = \"free\"\npatience = \"4s\"\n\
             [control]\naddress = \"{net}.1\"\nstate = \"state\"\nlease_ms = 2000\n\
             [switch]\naddress = \"{net}.2\"\n[hosts]\nfirst = \"{net}.200\"\ncount = 20\n"
        );
        for node in 1..=nodes {
            text += &format!(
                "[[node]]\nname = \"node{node}\"\naddress = \"{net}.{}\"\nmemory = \"{MEMORY} B\"\n",
                10 + node
            );
        }
        text += more;
        std::fs::write(&file, text).unwrap();
        let config = RackConfig::load(&file).unwrap();
        let mut rack = Self { dir, config, roles: Vec::new(), faults: FaultMode::Handler };
        rack.begin("control");
        rack.begin("switch");
        for node in 1..=nodes {
            rack.begin(&format!("node{node}"));
        }
        rack
    }

    /// Starts a role and waits until it serves.
    pub(crate) fn begin(&mut self, role: &str) {
        let mut child = again(role, &self.config.file, &[]).spawn().unwrap();
        let mut said = BufReader::new(child.stderr.take().unwrap()).lines();
        let ready = said.find(|line| line.as_ref().is_ok_and(|line| line.contains(READY)));
        assert!(ready.is_some(), "{role} ended before it served");
        // The role's further output goes to the test's output.
        std::thread::spawn(move || said.map_while(Result::ok).for_each(|line| eprintln!("{line}")));
        self.roles.push((role.to_owned(), child));
    }

    /// Sends a signal to a role, by its name, as [`signal`] does.
    pub(crate) fn send(&self, role: &str, name: &str) {
        signal(self.pid(role), name);
    }

    /// Returns the process id of a role.
    pub(crate) fn pid(&self, role: &str) -> u32 {
        let (_, child) = self.roles.iter().find(|(name, _)| name == role).unwrap();
        child.id()
    }

    /// Returns true when a role's process has ended.
    pub(crate) fn is_gone(&mut self, role: &str) -> bool {
        let (_, child) = self.roles.iter_mut().find(|(name, _)| name == role).unwrap();
        child.try_wait().unwrap().is_some()
    }

    /// Kills a role.
    pub(crate) fn kill(&mut self, role: &str) {
        let at = self.roles.iter().position(|(name, _)| name == role).unwrap();
        let (_, mut child) = self.roles.remove(at);
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Creates the file that [`TestChannel::said`] reads.
    pub(crate) fn said(&self) -> File {
        let file = File::create(self.dir.join(SAID)).unwrap();
        file.set_len(8).unwrap();
        file
    }

    /// Joins a space in this process, at any free address, because tests run in parallel. Returns `None`
    /// where faults may not be served.
    pub(crate) fn space(&self, options: ShareOptions) -> Option<SharedSpace> {
        let window = WindowOptions { place: Addressing::Anywhere, faults: self.faults, ..options.window };
        let options = ShareOptions { window, ..options };
        match SharedSpace::join(&Rack::running(self.config.clone()), DOMAIN, options) {
            Err(farmem::Error::Open(refused)) => {
                eprintln!("skipped: {refused}");
                None
            }
            other => Some(other.unwrap()),
        }
    }

    /// Runs a program in a process of its own.
    pub(crate) fn run(&self, program: &str, args: &[u64]) -> Worker {
        let mut command = again(program, &self.config.file, args);
        if self.faults == FaultMode::Signal {
            command.env(SIGNALS, "");
        }
        let mut child = command.spawn().unwrap();
        let said = BufReader::new(child.stderr.take().unwrap()).lines();
        let input = child.stdin.take();
        Worker { program: program.to_owned(), child, said, input }
    }
}

impl Drop for TestRack {
    fn drop(&mut self) {
        for (_, role) in &mut self.roles {
            let _gone = role.kill();
            let _gone = role.wait();
        }
        let _none = serve::remove_rings(&self.config);
        if let Some(directory) = self.config.dpu.as_ref().and_then(|dpu| dpu.socket.parent()) {
            let _none = std::fs::remove_dir_all(directory);
        }
        let _left = std::fs::remove_dir_all(&self.dir);
    }
}

fn again(be: &str, file: &Path, args: &[u64]) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let args: Vec<String> = args.iter().map(u64::to_string).collect();
    command
        .args(["--exact", "in_a_process_of_its_own", "--nocapture"])
        .env(BE, be)
        .env(FILE, file)
        .env(ARGS, args.join(" "))
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    command
}

/// A program that runs in a process of its own; killed on drop.
pub(crate) struct Worker {
    program: String,
    child: Child,
    said: Lines<BufReader<ChildStderr>>,
    input: Option<ChildStdin>,
}

impl Worker {
    /// Waits until the program prints this line.
    pub(crate) fn await_word(&mut self, word: &str) {
        let heard = self.said.by_ref().map_while(Result::ok).find(|line| {
            eprintln!("{}: {line}", self.program);
            line == word
        });
        assert!(heard.is_some(), "{} ended before it said {word:?}", self.program);
    }

    /// Sends this line to the program, which waits for it.
    pub(crate) fn say(&mut self, word: &str) {
        use std::io::Write as _;
        writeln!(self.input.as_mut().expect("it was not ended"), "{word}").unwrap();
    }

    /// Sends a signal, by its name, as [`signal`] does.
    pub(crate) fn send(&self, name: &str) {
        signal(self.child.id(), name);
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Returns the program's result. The program keeps sharing until [`Worker::end`].
    pub(crate) fn answer(&mut self) -> u64 {
        for line in self.said.by_ref().map_while(Result::ok) {
            match line.strip_prefix(ANSWER) {
                Some(number) => return number.trim().parse().unwrap(),
                None => eprintln!("{}: {line}", self.program),
            }
        }
        panic!("{} gave no answer: {:?}", self.program, self.child.wait());
    }

    /// Lets the program leave the rack in order.
    pub(crate) fn end(mut self) {
        drop(self.input.take());
        self.said.by_ref().map_while(Result::ok).for_each(|line| eprintln!("{}: {line}", self.program));
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{} ended with {status}", self.program);
    }

    /// Returns the signal that ended the program.
    pub(crate) fn signal(mut self) -> Option<i32> {
        use std::os::unix::process::ExitStatusExt as _;
        self.said.by_ref().map_while(Result::ok).for_each(|line| eprintln!("{}: {line}", self.program));
        self.child.wait().unwrap().signal()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _gone = self.child.wait();
    }
}

/// A program's channel to its test.
pub(crate) struct TestChannel;

impl TestChannel {
    /// Opens a file beside the rack's description: a path outside far memory.
    pub(crate) fn said(&mut self) -> File {
        File::open(Path::new(&std::env::var(FILE).unwrap()).with_file_name(SAID)).unwrap()
    }

    pub(crate) fn say(&mut self, word: &str) {
        eprintln!("{word}");
    }

    pub(crate) fn await_word(&mut self, word: &str) {
        let heard = std::io::stdin().lines().map_while(Result::ok).find(|line| line == word);
        assert!(heard.is_some(), "the test has ended");
    }
}

/// Returns the rack of a program that runs in a process of its own.
pub(crate) fn config() -> RackConfig {
    RackConfig::load(Path::new(&std::env::var(FILE).unwrap())).unwrap()
}

/// Runs this process's task, when it is not the test itself. Returns whether it was a task.
pub(crate) fn be(programs: &[(&str, Program)]) -> bool {
    let (Ok(be), Ok(file)) = (std::env::var(BE), std::env::var(FILE)) else { return false };
    let config = RackConfig::load(Path::new(&file)).unwrap();
    let stop = Stop::new();
    let mut begun = || eprintln!("{READY}");
    let serving = serve::Serving::new(&stop, &mut begun);
    match be.as_str() {
        "control" => serve::control(&config, serving).unwrap(),
        "switch" => serve::switch(&config, serving).unwrap(),
        "dpu" => farmem::dpu::serve_with(&config, serving, farmem::form::look_up).unwrap(),
        "dpu without privileges" => {
            // Threads started by this one have no capabilities either.
            let (effective, permitted, inheritable) =
                (CapabilitySet::empty(), CapabilitySet::empty(), CapabilitySet::empty());
            set_capabilities(None, CapabilitySets { effective, permitted, inheritable }).unwrap();
            farmem::dpu::serve_with(&config, serving, farmem::form::look_up).unwrap();
        }
        node if node.starts_with("node") => {
            let node = config.nodes.iter().find(|known| known.name == *node).unwrap();
            serve::node(&config, node, serving).unwrap();
        }
        program => {
            let (_, run) = programs.iter().find(|(name, _)| *name == program).unwrap();
            let args: Vec<u64> = std::env::var(ARGS)
                .unwrap()
                .split_ascii_whitespace()
                .map(|number| number.parse().unwrap())
                .collect();
            let limit = args.first().copied().unwrap_or(16 << 20);
            let mut options = ShareOptions::new(limit);
            if std::env::var_os(SIGNALS).is_some() {
                options.window.faults = FaultMode::Signal;
            }
            let space = SharedSpace::join(&Rack::running(config), DOMAIN, options).unwrap();
            let answer = run(&space, &args[1.min(args.len())..], &mut TestChannel);
            eprintln!("{:?}", space.stats());
            eprintln!("{ANSWER} {answer}");
            std::io::stdin().lines().for_each(drop);
        }
    }
    true
}
