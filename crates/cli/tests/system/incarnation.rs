//! Tests of a memory node that is killed and restarted while clients and programs use its memory. The lost
//! bytes are reported as lost and never read as zeros (PROTOCOL 9.19). The tests start the roles directly,
//! like an operator's own supervisor.

use crate::process::{Dir, Ended, Running, farmem, run_command, signal};
use crate::rack::Description;
use crate::run::{PYTHON, may_run, program};
use farmem::{Client, Error, NodeId, VirtAddr};
use std::process::Stdio;

const MIB: u64 = 1 << 20;

/// Roles of a rack with two memory nodes.
pub(crate) struct Roles {
    pub(crate) description: Description,
    nodes: Vec<Running>,
    _others: Vec<Running>,
}

impl Roles {
    fn start(test: &str) -> Self {
        Self::of(Description::new(test, "udp"))
    }

    pub(crate) fn of(description: Description) -> Self {
        let others = vec![role(&description, &["control"]), role(&description, &["switch"])];
        let nodes = [1, 2].map(|n| node(&description, n)).into();
        Self { description, nodes, _others: others }
    }

    /// Kills a memory node with SIGKILL and starts it again.
    pub(crate) fn restart_node(&mut self, number: usize) {
        self.kill_node(number);
        self.start_node(number);
    }

    pub(crate) fn kill_node(&mut self, number: usize) {
        self.nodes[number - 1].kill();
    }

    pub(crate) fn start_node(&mut self, number: usize) {
        self.nodes[number - 1] = node(&self.description, number);
    }

    /// Runs `farmem run` on this rack, with 1 MiB of local memory.
    fn run(&self, command: &[&str]) -> Running {
        let file = self.description.file();
        let mut args = vec!["run", "--rack", &file, "--local", "1MiB", "--"];
        args.extend_from_slice(command);
        Running::start(farmem(&args))
    }
}

fn role(description: &Description, which: &[&str]) -> Running {
    let file = description.file();
    let mut command = farmem(&[&["role", "--until-input-ends", "--rack", &file], which].concat());
    // The role ends when this pipe closes.
    command.stdin(Stdio::piped());
    let mut running = Running::start(command);
    assert_eq!(running.line(), "ready\n", "{which:?}");
    running
}

fn node(description: &Description, number: usize) -> Running {
    role(description, &["node", "--node", &format!("node{number}")])
}

/// Returns the lost range of a refused read. The first operation may time out instead, because the node no
/// longer has its connection.
fn lost(client: &mut Client, addr: VirtAddr, len: usize) -> (VirtAddr, u64) {
    match client.read(addr, &mut vec![0xa5; len]) {
        Err(Error::MemoryLost { base, len }) => (base, len),
        other => panic!("{other:?} of lost memory"),
    }
}

/// A client reads, writes and adds on a killed node. It learns the lost addresses until it accepts the loss.
#[test]
fn a_node_that_is_killed_and_started_again_reads_as_lost() {
    let mut roles = Roles::start("incarnation-client");
    let mut client = roles.description.client("d");
    let one = client.allocate_on(MIB, NodeId(1)).unwrap();
    let two = client.allocate_on(MIB, NodeId(2)).unwrap();
    for vma in [one, two] {
        client.write(vma.base, &[7; 8192]).unwrap();
    }
    roles.restart_node(1);
    assert_eq!(lost(&mut client, one.base, 8192), (one.base, 8192));
    assert!(matches!(client.fetch_add(one.base, 1), Err(Error::MemoryLost { .. })));
    assert!(matches!(client.write(one.base, &[1; 100]), Err(Error::MemoryLost { .. })));
    let mut bytes = [0; 8192];
    client.read(two.base, &mut bytes).unwrap();
    assert_eq!(bytes, [7; 8192]);
    client.accept_lost(one.base, 4096).unwrap();
    client.read(one.base, &mut bytes[..4096]).unwrap();
    assert_eq!(bytes[..4096], [0; 4096]);
    assert_eq!(lost(&mut client, one.base, 8192), (VirtAddr(one.base.0 + 4096), 4096));
}

/// Checks that the program ended with 2 and a reason: the node, the addresses and their fate. The program
/// printed nothing derived from zeros.
fn told(ended: &Ended) {
    assert_eq!((ended.stdout.as_str(), ended.code), ("", Some(2)), "{ended:?}");
    for word in ["are lost", "started again", "memory node node", "0x", "The program wanted "] {
        assert!(ended.stderr.contains(word), "{word:?} is not in {ended:?}");
    }
    assert!(
        !ended.stderr.contains("a host that had changed them stopped"),
        "its memory is its own: {ended:?}"
    );
}

/// A program checks its pages after both nodes were killed and restarted.
#[test]
fn a_program_whose_pages_are_lost_reads_no_zeros() {
    if !may_run("a node that is started again") {
        return;
    }
    let mut roles = Roles::start("incarnation-run");
    let dir = Dir::new("incarnation-reader");
    let mut running = roles.run(&[&program(&dir, "reader", &[])]);
    assert_eq!(running.line(), "written\n");
    roles.restart_node(1);
    roles.restart_node(2);
    signal(running.pid(), "USR1");
    told(&running.ended());
}

/// Python, whose heap is in far memory too, is reported the same way.
#[test]
fn python_whose_pages_are_lost_is_told_why() {
    if !may_run("a node that is started again, under Python") {
        return;
    }
    let mut roles = Roles::start("incarnation-python");
    let text = "import signal\n\
                signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])\n\
                pages = [bytearray([n % 251 + 1]) * 4096 for n in range(2048)]\n\
                block = bytearray(b'x') * (8 << 20)\n\
                print('up', flush=True)\n\
                signal.sigwait([signal.SIGUSR1])\n\
                wrong = sum(page[0] == 0 for page in pages) + block.count(0)\n\
                print('read', wrong)\n";
    let mut running = roles.run(&[PYTHON, "-c", text]);
    assert_eq!(running.line(), "up\n");
    roles.restart_node(1);
    roles.restart_node(2);
    signal(running.pid(), "USR1");
    told(&running.ended());
}

/// Programs share memory whose nodes are killed and restarted, with no host to write it back. Each access to
/// it is a SIGBUS.
#[test]
fn shared_pages_are_lost_with_their_node() {
    if !may_run("shared memory whose node is started again") {
        return;
    }
    let mut roles = Roles::start("incarnation-shared");
    let dir = Dir::new("incarnation-shared-program");
    let binary = program(&dir, "shared", &["-D_GNU_SOURCE"]);
    let file = roles.description.file();
    let command = |args: &[&str]| {
        let all = [
            "run",
            "--json",
            "--rack",
            &file,
            "--share",
            "table",
            "--local",
            "25MiB",
            "--share-local",
            "1MiB",
            "--",
        ];
        let mut command = farmem(&[&all[..], &[binary.as_str()], args].concat());
        command.stdin(Stdio::piped());
        command
    };
    let mut made = Running::start(command(&["make", "/lost"]));
    assert_eq!(made.line(), "made\n");
    let mut filled = Running::start(command(&["fill", "/lost", "9"]));
    assert_eq!(filled.line(), "filled\n");
    roles.restart_node(1);
    roles.restart_node(2);
    let ended = run_command(command(&["sum", "/lost"]));
    assert_eq!((ended.stdout.as_str(), ended.code), ("", Some(2)), "{ended:?}");
    assert!(ended.stderr.contains("shared pages are lost"), "{ended:?}");
    made.kill();
    filled.kill();
}
