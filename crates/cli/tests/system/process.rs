//! Processes of the command under test: their output, their end and their remains.

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

/// Maximum wait for an expected event. The time is far longer than needed, so that only a missing event fails
/// a test.
const PATIENCE: Duration = Duration::from_secs(60);

/// Returns the command under test.
pub(crate) fn farmem(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_farmem"));
    command.args(args).stdin(Stdio::null());
    command
}

/// Result of a command.
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
    /// Checks that the command succeeded and printed only one JSON object, and returns the object.
    pub(crate) fn json(&self) -> Value {
        assert_eq!(self.code, Some(0), "{self:?}");
        assert_eq!(self.stdout.lines().count(), 1, "one line: {self:?}");
        serde_json::from_str(&self.stdout).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }

    /// Checks that the command found something wrong and ended with 1, with nothing but one JSON object on its standard output.
    pub(crate) fn violation(&self) -> Value {
        assert_eq!(self.code, Some(1), "{self:?}");
        serde_json::from_str(&self.stdout).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }

    /// Returns the one JSON object on its standard output, whether it found something wrong or not.
    pub(crate) fn report(&self) -> Value {
        if self.code == Some(0) { self.json() } else { self.violation() }
    }

    /// Checks that the command ended with 2 without standard output. The message must contain all of `words`,
    /// and a line with a remedy must follow.
    pub(crate) fn refuses(&self, words: &[&str]) {
        assert_eq!(self.code, Some(2), "{self:?}");
        assert_eq!(self.stdout, "", "{self:?}");
        assert!(self.stderr.starts_with("farmem: ") || self.stderr.contains("\nfarmem: "), "{self:?}");
        for word in words {
            assert!(self.stderr.contains(word), "{word:?} is not in {}", self.stderr);
        }
    }
}

/// Command that runs concurrently with the test. It is killed when the value is dropped.
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

    /// Writes a line to the standard input, which is a pipe.
    pub(crate) fn say(&mut self, line: &str) {
        let pipe = self.child.stdin.as_mut().expect("it is piped");
        writeln!(pipe, "{line}").expect("it listens");
    }

    /// Returns the next line of the standard output. The line is empty after the end of the output.
    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).expect("the pipe works");
        line
    }

    pub(crate) fn is_alive(&mut self) -> bool {
        self.child.try_wait().expect("it is our child").is_none()
    }

    /// Returns the standard error, after the command and its children have ended. A second call returns an
    /// empty text.
    pub(crate) fn said(&mut self) -> String {
        self.stderr.take().map(|reader| reader.join().unwrap_or_default()).unwrap_or_default()
    }

    /// Kills the command, if it has not ended.
    pub(crate) fn kill(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }

    /// Waits for the end of the command.
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

/// Waits until a condition holds.
pub(crate) fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "not within {} s: {what}", PATIENCE.as_secs());
        sleep(Duration::from_millis(5));
    }
}

/// Returns true while the process runs. An ended process that was not waited for does not count.
pub(crate) fn runs(pid: u32) -> bool {
    Stat::from_file(format!("/proc/{pid}/stat")).is_ok_and(|stat| stat.state != 'Z')
}

/// Returns the running processes with `text` in their command line.
pub(crate) fn processes_with(text: &str) -> Vec<u32> {
    let processes = fs::read_dir("/proc").expect("there is a /proc").flatten();
    let numbers = processes.filter_map(|p| p.file_name().to_str()?.parse().ok());
    let has = |pid: &u32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(text) && runs(*pid)
    };
    numbers.filter(has).collect()
}

/// Directory that is removed at the end of the test.
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

    /// Writes a file with this text in the directory, and returns its path.
    pub(crate) fn file(&self, name: &str, text: &str) -> String {
        let path = self.0.join(name);
        fs::write(&path, text).expect("the temporary directory is writable");
        path.to_str().expect("it is ASCII").to_owned()
    }

    /// Returns the names of the entries in the directory.
    pub(crate) fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.0).expect("it is there").flatten();
        entries.map(|e| e.file_name().to_string_lossy().into_owned()).collect()
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        // A failed test may have left processes that still write into the directory.
        drop(fs::remove_dir_all(&self.0));
    }
}

/// Returns the command as an unprivileged user: the current user, or the user with the id [`UNPRIVILEGED_UID`] for
/// root. Returns `None`, with a note, when this user cannot run the command.
pub(crate) fn without_rights(mut command: Command, what: &str) -> Option<Command> {
    if !is_root() {
        return Some(command);
    }
    command.uid(UNPRIVILEGED_UID).gid(UNPRIVILEGED_UID);
    let mut probe = farmem(&["--version"]);
    let runs = probe
        .uid(UNPRIVILEGED_UID)
        .gid(UNPRIVILEGED_UID)
        .output()
        .is_ok_and(|output| output.status.success());
    if !runs {
        eprintln!("SKIPPED: {what}: the user with id 65534 may not run {}", env!("CARGO_BIN_EXE_farmem"));
    }
    runs.then_some(command)
}

/// Gives a file or directory to the user of [`without_rights`].
pub(crate) fn give_away(path: &Path) {
    if is_root() {
        std::os::unix::fs::chown(path, Some(UNPRIVILEGED_UID), Some(UNPRIVILEGED_UID)).expect("root may");
    }
}

/// User id without any rights.
const UNPRIVILEGED_UID: u32 = 65534;

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}
