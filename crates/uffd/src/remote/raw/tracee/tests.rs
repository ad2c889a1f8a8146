//! Threads of other programs that are stopped, continued and killed while they make calls for the pager.

use super::*;
use std::io::{Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};

/// Time within which an expected event comes.
const PATIENCE_NS: u64 = 30_000_000_000;

/// A program, started by another thread than the one that traces it, as a run's program is.
struct Program {
    child: Child,
    stdin: ChildStdin,
    stdout: ChildStdout,
    starter: Option<(mpsc::Sender<()>, JoinHandle<()>)>,
}

impl Program {
    fn start(mut command: Command) -> Self {
        let (say, hear) = mpsc::channel();
        let (end, until) = mpsc::channel::<()>();
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let starter = thread::spawn(move || {
            say.send(command.spawn().unwrap()).unwrap();
            let _ended = until.recv();
        });
        let mut child = hear.recv().unwrap();
        let (stdin, stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Self { child, stdin, stdout, starter: Some((end, starter)) }
    }

    /// `cat`, which has answered once, and waits for more.
    fn cat() -> Self {
        let mut cat = Self::start(Command::new("cat"));
        cat.answers();
        let waits = || fs::read_to_string(format!("/proc/{}/syscall", cat.pid())).unwrap().starts_with("0 ");
        eventually("cat reads", || waits().then_some(()));
        cat
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Checks that `cat` answers.
    fn answers(&mut self) {
        self.stdin.write_all(b"word").unwrap();
        let mut word = [0; 4];
        self.stdout.read_exact(&mut word).unwrap();
        assert_eq!(&word, b"word");
    }

    /// Reads what the program prints, up to this text.
    fn says(&mut self, text: &str) {
        let (mut seen, mut byte) = (Vec::new(), [0]);
        while !seen.ends_with(text.as_bytes()) {
            self.stdout.read_exact(&mut byte).unwrap();
            seen.push(byte[0]);
        }
    }

    fn signal(&self, signal: i32) {
        // SAFETY: plain numbers; the process is this test's own, and not waited for yet.
        assert_eq!(unsafe { libc::kill(self.pid().cast_signed(), signal) }, 0);
    }

    fn state(&self) -> char {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid())).unwrap();
        stat.rsplit_once(") ").unwrap().1.chars().next().unwrap()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
        if let Some((end, starter)) = self.starter.take() {
            drop(end);
            drop(starter.join());
        }
    }
}

fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let clock = Clock::start();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(clock.now().as_nanos() < PATIENCE_NS, "{what}");
        thread::yield_now();
    }
}

fn stop_of(tracee: &mut Tracee) -> io::Result<Stop> {
    eventually("a stop", || tracee.poll().transpose())
}

fn seized(program: &Program) -> Tracee {
    let mut tracee = Tracee::seize(program.pid()).unwrap();
    assert_eq!(stop_of(&mut tracee).unwrap(), Stop::Ready);
    tracee
}

/// Has the thread make a call without arguments.
fn call(tracee: &mut Tracee, number: i64) -> Stop {
    tracee.call(number, [0; 6]).unwrap();
    stop_of(tracee).unwrap()
}

/// A read that the release interrupts is made again, so that `cat` goes on.
fn interrupted() -> Outcome {
    Outcome::Returns(-i64::from(libc::EINTR))
}

/// A parent that is killed after its memory is copied, and before the fork is reported, leaves a child that is stopped. The child is found, and goes
/// on.
#[test]
fn a_child_of_a_killed_parent_is_found() {
    let mut cat = Program::cat();
    let mut parent = seized(&cat);
    assert!(parent.unreported_children().unwrap().is_empty());
    parent.call(libc::SYS_fork, [0; 6]).unwrap();
    eventually("the call begins", || {
        assert_eq!(parent.poll().unwrap(), None);
        (parent.step == Step::Leaving).then_some(())
    });
    let event = || wait(parent.thread, libc::WSTOPPED | libc::WNOWAIT).unwrap();
    let (_, status) = eventually("the fork", event);
    assert_eq!(status >> 8, libc::PTRACE_EVENT_FORK);
    cat.signal(libc::SIGKILL);
    eventually("the parent's end", || wait(parent.thread, libc::WEXITED | libc::WNOWAIT).unwrap());
    assert_eq!(parent.poll().unwrap_err().raw_os_error(), Some(libc::ESRCH));
    let children = parent.unreported_children().unwrap();
    assert_eq!(children.len(), 1, "{children:?}");
    let mut child = Tracee::forked(children[0]).unwrap();
    assert_eq!(stop_of(&mut child).unwrap(), Stop::Ready);
    child.returns_as_child(&parent, false);
    child.release(Outcome::Returns(0)).unwrap();
    // The child's `read` returned 0, so that it ends. No process has the pipe any more.
    assert_eq!(cat.stdout.read_to_end(&mut Vec::new()).unwrap(), 0);
}

/// A thread that is killed before its first stop needs no release.
#[test]
fn a_thread_that_never_stops_is_not_released() {
    let cat = Program::cat();
    let mut tracee = Tracee::seize(cat.pid()).unwrap();
    cat.signal(libc::SIGKILL);
    let error = eventually("its end", || tracee.poll().err());
    assert_eq!(error.raw_os_error(), Some(libc::ESRCH));
    if tracee.saved.is_none() {
        assert_eq!(tracee.release(interrupted()).unwrap_err().raw_os_error(), Some(libc::ESRCH));
    }
}

/// A thread that is killed in a call makes no other call, and the pager that asks for one goes on.
#[test]
fn a_thread_that_is_killed_in_a_call_makes_no_other() {
    let cat = Program::cat();
    let mut tracee = seized(&cat);
    tracee.call(libc::SYS_getpid, [0; 6]).unwrap();
    cat.signal(libc::SIGKILL);
    eventually("its end", || tracee.poll().err());
    assert_eq!(tracee.call(libc::SYS_getpid, [0; 6]).unwrap_err().raw_os_error(), Some(libc::ESRCH));
}

/// A SIGSTOP stops the process at the thread's release; a SIGCONT that came before the release ends that.
#[test]
fn a_continued_process_runs_on() {
    for is_continued in [true, false] {
        let mut cat = Program::cat();
        let mut tracee = seized(&cat);
        cat.signal(libc::SIGSTOP);
        assert_eq!(call(&mut tracee, libc::SYS_getpid), Stop::Returned(u64::from(cat.pid())));
        if is_continued {
            cat.signal(libc::SIGCONT);
            assert_eq!(call(&mut tracee, libc::SYS_getpid), Stop::Returned(u64::from(cat.pid())));
        }
        tracee.release(interrupted()).unwrap();
        let state = eventually("rest", || Some(cat.state()).filter(|state| matches!(state, 'S' | 'T' | 'Z')));
        assert_eq!(state, if is_continued { 'S' } else { 'T' });
        if !is_continued {
            cat.signal(libc::SIGCONT);
        }
        cat.answers();
    }
}

/// A fork before which the process is stopped is made again by the system. Its first result (ERESTARTNOINTR) is not the call's.
#[test]
fn a_stop_does_not_fail_a_fork() {
    let cat = Program::cat();
    let mut tracee = seized(&cat);
    tracee.call(libc::SYS_fork, [0; 6]).unwrap();
    // The thread stops at the entry of the call, and has the signal when it goes on.
    eventually("the entry", || wait(tracee.thread, libc::WSTOPPED | libc::WNOWAIT).unwrap());
    cat.signal(libc::SIGSTOP);
    let Stop::Forked(child) = stop_of(&mut tracee).unwrap() else { panic!("no child") };
    Tracee::forked(child).unwrap().kill();
    tracee.go_on().unwrap();
    assert_eq!(stop_of(&mut tracee).unwrap(), Stop::Returned(u64::from(child)));
    tracee.kill();
}

/// The variable by which a test knows that it is the program of another one.
const ROLE: &str = "FARMEM_TEST_PROGRAM";

/// Another thread than the first one runs a program, which takes the first one's number. A tracee that had stopped there leaves the program alone.
#[test]
fn another_threads_program_is_left_alone() {
    if std::env::var_os(ROLE).is_some() {
        let other = thread::spawn(|| {
            io::stdout().write_all(b"ready\n").unwrap();
            let mut word = [0; 4];
            io::stdin().read_exact(&mut word).unwrap();
            Command::new("cat").exec()
        });
        panic!("{}", other.join().unwrap());
    }
    let mut itself = Command::new(std::env::current_exe().unwrap());
    let name = thread::current().name().unwrap().to_owned();
    itself.args(["--exact", &name, "--nocapture"]).env(ROLE, "");
    let mut program = Program::start(itself);
    program.says("ready\n");
    let mut tracee = seized(&program);
    program.stdin.write_all(b"exec").unwrap();
    let error = eventually("the end of the first thread", || tracee.poll().err());
    assert_eq!(error.raw_os_error(), Some(libc::ESRCH));
    drop(tracee);
    program.answers();
}
