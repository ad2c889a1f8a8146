//! Running the command: what it said, how it ended, what it left.

pub(crate) use farmem_testkit::signal;
use procfs_core::FromRead as _;
use procfs_core::process::Stat;
use serde_json::Value;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::{Duration, Instant};

/// Longest wait for something that must come. Far longer than it takes: a test fails by it only when nothing comes at all.
const PATIENCE: Duration = Duration::from_secs(60);

/// The command under test.
pub(crate) fn farmem(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_farmem"));
    command.args(args).stdin(Stdio::null());
    command
}

/// How a command ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// Runs the command to its end.
pub(crate) fn run(args: &[&str]) -> Ended {
    run_command(farmem(args))
}

pub(crate) fn run_command(mut command: Command) -> Ended {
    let output = command.output().expect("the command starts");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("it speaks UTF-8");
    Ended { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
}

impl Ended {
    /// It ended well, with nothing but one JSON object on its standard output.
    pub(crate) fn json(&self) -> Value {
        assert_eq!(self.code, Some(0), "{self:?}");
        assert_eq!(self.stdout.lines().count(), 1, "one line: {self:?}");
        serde_json::from_str(&self.stdout).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }

    /// It ended with 2 and nothing on its standard output; its message has all of `words`, and a line behind it says what to do.
    pub(crate) fn refuses(&self, words: &[&str]) {
        assert_eq!(self.code, Some(2), "{self:?}");
        assert_eq!(self.stdout, "", "{self:?}");
        assert!(self.stderr.starts_with("farmem: ") || self.stderr.contains("\nfarmem: "), "{self:?}");
        for word in words {
            assert!(self.stderr.contains(word), "{word:?} is not in {}", self.stderr);
        }
    }
}

/// A command that runs beside the test. It is killed when the test is done with it.
pub(crate) struct Running {
    child: Child,
    stdout: BufReader<std::process::ChildStdout>,
    stderr: Option<JoinHandle<String>>,
}

impl Running {
    pub(crate) fn start(mut command: Command) -> Self {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the command starts");
        let stdout = BufReader::new(child.stdout.take().expect("it is piped"));
        let mut pipe = child.stderr.take().expect("it is piped");
        let stderr = spawn(move || {
            let mut bytes = Vec::new();
            pipe.read_to_end(&mut bytes).expect("the pipe works");
            String::from_utf8_lossy(&bytes).into_owned()
        });
        Self { child, stdout, stderr: Some(stderr) }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Gives it a line on its standard input, which is a pipe.
    pub(crate) fn say(&mut self, line: &str) {
        let pipe = self.child.stdin.as_mut().expect("it is piped");
        writeln!(pipe, "{line}").expect("it listens");
    }

    /// The next line of its standard output; empty when it has closed it.
    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).expect("the pipe works");
        line
    }

    pub(crate) fn is_alive(&mut self) -> bool {
        self.child.try_wait().expect("it is our child").is_none()
    }

    /// All of its standard error, once it and what it started have ended; empty when somebody has taken it already.
    pub(crate) fn said(&mut self) -> String {
        self.stderr.take().map(|reader| reader.join().unwrap_or_default()).unwrap_or_default()
    }

    /// Ends it, if it has not ended.
    pub(crate) fn kill(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }

    /// Waits for its end.
    pub(crate) fn ended(&mut self) -> Ended {
        let mut status: Option<ExitStatus> = None;
        eventually("the command ends", || {
            status = self.child.try_wait().expect("it is our child");
            status.is_some()
        });
        let mut stdout = String::new();
        self.stdout.read_to_string(&mut stdout).expect("the pipe works");
        let stderr = self.stderr.take().expect("it is asked once").join().expect("the reader does not panic");
        Ended { code: status.and_then(|s| s.code()), stdout, stderr }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Waits until something is so.
pub(crate) fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "not within {} s: {what}", PATIENCE.as_secs());
        sleep(Duration::from_millis(5));
    }
}

/// True while the process runs: one that has ended and that nobody has waited for does not.
pub(crate) fn runs(pid: u32) -> bool {
    Stat::from_file(format!("/proc/{pid}/stat")).is_ok_and(|stat| stat.state != 'Z')
}

/// Running processes with `text` in their command line.
pub(crate) fn processes_with(text: &str) -> Vec<u32> {
    let processes = fs::read_dir("/proc").expect("there is a /proc").flatten();
    let numbers = processes.filter_map(|p| p.file_name().to_str()?.parse().ok());
    let has = |pid: &u32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(text) && runs(*pid)
    };
    numbers.filter(has).collect()
}

/// A directory that goes with the test.
pub(crate) struct Dir(PathBuf);

impl Dir {
    pub(crate) fn new(name: &str) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let (id, count) = (std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(format!("farmem-test-{name}-{id}-{count}"));
        fs::create_dir(&path).expect("the temporary directory is writable");
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// A file in it with this text; answers its path as text.
    pub(crate) fn file(&self, name: &str, text: &str) -> String {
        let path = self.0.join(name);
        fs::write(&path, text).expect("the temporary directory is writable");
        path.to_str().expect("it is ASCII").to_owned()
    }

    /// The names of what is in it.
    pub(crate) fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.0).expect("it is there").flatten();
        entries.map(|e| e.file_name().to_string_lossy().into_owned()).collect()
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        // A test that failed may have left processes that still write into it.
        drop(fs::remove_dir_all(&self.0));
    }
}

/// The command as a user without rights: as it is for such a user, as nobody for root. `None`, and said so, when nobody cannot run it.
pub(crate) fn without_rights(mut command: Command, what: &str) -> Option<Command> {
    if !is_root() {
        return Some(command);
    }
    command.uid(NOBODY).gid(NOBODY);
    let mut probe = farmem(&["--version"]);
    let runs = probe.uid(NOBODY).gid(NOBODY).output().is_ok_and(|output| output.status.success());
    if !runs {
        eprintln!("SKIPPED: {what}: nobody may not run {}", env!("CARGO_BIN_EXE_farmem"));
    }
    runs.then_some(command)
}

/// Gives a file or directory to the user whom [`without_rights`] runs commands as.
pub(crate) fn give_away(path: &Path) {
    if is_root() {
        std::os::unix::fs::chown(path, Some(NOBODY), Some(NOBODY)).expect("root may");
    }
}

/// A user with no rights at all.
const NOBODY: u32 = 65534;

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}
