//! Tests of `farmem role` in operation: started directly, as a systemd unit, and on three machines as in
//! docs/operate.md.

use crate::pages::{Block, blocks};
use crate::process::{Dir, Running, farmem, is_root, signal};
use crate::rack::Description;
use farmem_testkit::Namespaces;
use std::fs;
use std::fs::DirBuilder;
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _, symlink};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A role without standard input serves until SIGTERM, notifies the service manager of its start and stop,
/// and ends with 0.
#[test]
fn a_role_alone_serves_until_sigterm() {
    let (description, dir) = (Description::new("alone", "udp"), Dir::new("notify"));
    let path = dir.path().join("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    let told = || {
        let mut bytes = [0; 64];
        let len = manager.recv(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes[..len]).trim().to_owned()
    };
    let mut command = farmem(&["role", "control", "--rack", &description.file(), "--log", "off"]);
    command.stdin(Stdio::null()).env("NOTIFY_SOCKET", &path);
    let mut control = Running::start(command);
    assert_eq!((control.line().as_str(), told().as_str()), ("ready\n", "READY=1"));
    assert_eq!(description.overview()["switch"], false, "it serves");
    signal(control.pid(), "TERM");
    assert_eq!(told(), "STOPPING=1");
    let ended = control.ended();
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
}

/// A log rotation or a closing terminal sends SIGHUP to every role. Every role survives it, and a program's
/// written bytes are still there.
#[test]
fn roles_ignore_sighup() {
    let description = Description::new("hangup", "udp");
    let mut up = description.up();
    let mut client = description.client("writer");
    let vma = client.allocate(4096).unwrap();
    client.write(vma.base, b"stays").unwrap();
    for (role, pid) in up.roles() {
        assert!(ignores_hangup(pid), "{role}");
        signal(pid, "HUP");
    }
    let mut bytes = [0; 5];
    client.read(vma.base, &mut bytes).unwrap();
    assert_eq!(&bytes, b"stays");
    assert!(up.is_whole());
    // Under nohup the test and all that it starts ignore the signal; `nohup_keeps_a_rack` is about that.
    if !ignores_hangup(std::process::id()) {
        assert!(!ignores_hangup(up.supervisor().pid()), "a terminal that closes ends `farmem up`");
    }
    drop(client);
    assert_eq!(up.stop().code, Some(0));
}

/// `nohup farmem up` outlives its terminal: SIGHUP was ignored when the command started, and stays ignored.
#[test]
fn nohup_keeps_a_rack() {
    let description = Description::new("nohup", "udp");
    let mut command = Command::new("sh");
    let script = "trap '' HUP; exec \"$0\" up \"$1\" --json";
    command.args(["-c", script, env!("CARGO_BIN_EXE_farmem"), &description.file()]).stdin(Stdio::null());
    let mut rack = Running::start(command);
    assert!(rack.line().starts_with('{'), "it is up");
    assert!(ignores_hangup(rack.pid()));
    signal(rack.pid(), "TERM");
    assert_eq!(rack.ended().code, Some(0));
}

/// Returns true when the process ignores SIGHUP. The signal has number 1, and the lowest bit of the mask.
fn ignores_hangup(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap().trim();
    u64::from_str_radix(mask, 16).unwrap() & 1 == 1
}

/// Every code block of docs/operate.md, in order: files are written, and commands run on the named machine
/// and must end with 0.
#[test]
fn the_page_for_operators() {
    if !is_root() {
        writeln!(std::io::stderr(), "SKIPPED: docs/operate.md on three machines: only root may make them")
            .unwrap();
        return;
    }
    let Some(machines) = Machines::new() else { return };
    for block in blocks(include_str!("../../../../docs/operate.md")) {
        match block.info.split_once(' ') {
            Some(("sh", machine)) => machines.run(machine, &block.text),
            Some(("toml" | "ini", path)) => machines.write(path, &block.text),
            _ => panic!("a block of {:?}: no machine and no file", block.info),
        }
        machines.bring_join();
        machines.bring_operator(&block.text);
    }
    // The backup was complete and was restored, with another secret. The roles that the page starts serve.
    let kept = |file: &str| {
        let [now, copy] =
            ["state", "state.copy"].map(|at| machines.path("one", &format!("/srv/farmem/{at}/{file}")));
        fs::read(now).unwrap() == fs::read(copy).unwrap()
    };
    assert_eq!(["token", "operator", "ca.key", "secret"].map(kept), [true, true, true, false]);
    for machine in ["two", "three"] {
        assert!(!machines.path(machine, "/srv/farmem/state/operator").exists(), "{machine}");
    }
    for (machine, units) in [("one", 2), ("two", 1), ("three", 1)] {
        assert_eq!(machines.serving(machine), units, "{machine}");
    }
}

const NAMES: [&str; 3] = ["one", "two", "three"];
/// Required lines of the units, with their sections. Without them, a role is not told to serve, or is given
/// up.
const WANTED: [(&str, &str); 3] =
    [("[Unit]", "StartLimitIntervalSec=0"), ("[Service]", "Type=notify"), ("[Service]", "Restart=always")];

/// The units of the page have the required lines, and systemd, where present, accepts them.
#[test]
fn the_units_are_as_systemd_wants_them() {
    let units: Vec<Block> = blocks(include_str!("../../../../docs/operate.md"))
        .into_iter()
        .filter(|block| block.info.starts_with("ini "))
        .collect();
    assert_eq!(units.len(), 2);
    let dir = Dir::new("units");
    for unit in &units {
        for (section, line) in WANTED {
            let its = unit.text.split("\n\n").find(|part| part.starts_with(section)).expect("the section");
            assert!(its.lines().any(|is| is == line), "{line} in {section} of {}", unit.info);
        }
        // A unit instance, with an existing command.
        let text = unit.text.replace("/usr/local/bin/farmem", env!("CARGO_BIN_EXE_farmem"));
        let name = unit.info.rsplit('/').next().expect("a path").replace('@', "@one");
        let file = dir.file(&name, &text);
        let Ok(said) = Command::new("systemd-analyze").args(["verify", "--man=no", &file]).output() else {
            writeln!(std::io::stderr(), "skipped: systemd-analyze verify: there is none").unwrap();
            continue;
        };
        let said = [said.stdout, said.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        let against: Vec<&str> = said.lines().filter(|line| line.contains(&name)).collect();
        assert!(against.is_empty(), "{against:?}");
    }
}

/// Replacement of systemctl with the features that the page needs: template units, start, stop and restart. A
/// unit of `Type=notify` has started with READY=1 at the socket of NOTIFY_SOCKET, any other unit at once.
/// With `Restart=always`, a failure is retried, at most five times unless `StartLimitIntervalSec=0`.
const SYSTEMCTL: &str = r#"#!/bin/sh
set -eu
verb=$1; shift
[ "$verb" = enable ] && { shift; verb=start; }   # enable --now
for unit; do
    dir=/srv/run/$unit
    mkdir -p "$dir"
    case $verb in stop | restart)
        kill -TERM "$(cat "$dir/pid")"
        while [ ! -e "$dir/status" ]; do sleep 0.05; done
        [ "$(cat "$dir/status")" = 0 ] || { echo "$unit ended with $(cat "$dir/status")"; cat "$dir/log"; exit 1; } ;;
    esac
    case $verb in start | restart)
        file=/srv/units/${unit%%@*}@.service
        line=$(sed -n 's/^ExecStart=//p' "$file" | sed "s/%i/${unit#*@}/g")
        has() { grep -qx "$1" "$file"; }
        tries=1 most=1
        if has Restart=always; then most=5; fi
        if has Restart=always && has StartLimitIntervalSec=0; then most=10; fi
        until
            rm -f "$dir/status" "$dir/notify" "$dir/told"
            socket=
            if has Type=notify; then
                socket=$dir/notify
                LISTEN
                while [ ! -e "$socket" ]; do sleep 0.02; done
            fi
            (set +e; NOTIFY_SOCKET=$socket setsid -w sh -c 'echo $$ > "$1/pid"; exec $2' unit "$dir" "$line" < /dev/null > "$dir/out" 2> "$dir/log"
                echo $? > "$dir/ended"; mv "$dir/ended" "$dir/status") > /dev/null 2>&1 &
            supervisor=$!
            if [ "$socket" ]; then
                while [ ! -e "$dir/told" ] && kill -0 $supervisor 2>/dev/null; do sleep 0.05; done
                [ -e "$dir/told" ] || kill $listener || :
            fi
            [ ! "$socket" ] || [ -e "$dir/told" ]
        do
            [ $tries -lt $most ] || { echo "$unit is given up after $tries starts"; cat "$dir/log"; exit 1; }
            tries=$((tries + 1))
            sleep 1
        done ;;
    esac
done
"#;

/// Receiver of a role's notifications: a socket, and a file that exists once READY=1 has arrived.
const LISTEN: &str = r#"python3 -c '
import socket, sys
manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
manager.bind(sys.argv[1])
while b"READY=1" not in manager.recv(4096).split(b"\n"): pass
open(sys.argv[2], "w").close()
' "$socket" "$dir/told" > /dev/null 2>&1 &
                listener=$!"#;

/// Three machines on one Ethernet, each with its own network, processes, /srv and /usr/local/bin.
struct Machines {
    /// Init processes of the machines, which run until their standard input ends.
    _running: Vec<Running>,
    inits: Vec<String>,
    dir: Dir,
    _namespaces: Namespaces,
}

impl Machines {
    fn new() -> Option<Self> {
        let namespaces = Namespaces::new("operate", &["ethernet", "one", "two", "three"])?;
        let dir = Dir::new("operate");
        namespaces.ip("ethernet", "link add br0 type bridge");
        namespaces.ip("ethernet", "link set br0 up");
        let mut running = Vec::new();
        for (machine, address) in NAMES.iter().zip(["10.71.0.1", "10.71.0.11", "10.71.0.12"]) {
            let there = namespaces.full("ethernet");
            let pair = format!("link add eth0 type veth peer name {machine} netns {there}");
            namespaces.ip(machine, &pair);
            namespaces.ip("ethernet", &format!("link set {machine} master br0 up"));
            for command in [
                format!("address add {address}/16 dev eth0"),
                "link set eth0 up".into(),
                "link set lo up".into(),
            ] {
                namespaces.ip(machine, &command);
            }
            let (srv, bin) = (dir.path().join(machine).join("srv"), dir.path().join(machine).join("bin"));
            for path in [&srv.join("farmem"), &srv.join("units"), &bin] {
                fs::create_dir_all(path).unwrap();
            }
            symlink(env!("CARGO_BIN_EXE_farmem"), bin.join("farmem")).unwrap();
            fs::write(bin.join("systemctl"), SYSTEMCTL.replace("LISTEN", LISTEN)).unwrap();
            fs::set_permissions(bin.join("systemctl"), fs::Permissions::from_mode(0o755)).unwrap();
            running.push(start(&namespaces.full(machine), &srv, &bin));
        }
        // The first process in a machine prints its id as the other machines see it.
        let inits = running.iter_mut().map(|machine| machine.line().trim().to_owned()).collect();
        Some(Self { _running: running, inits, dir, _namespaces: namespaces })
    }

    /// Returns the path outside the machine of a path inside.
    fn path(&self, machine: &str, path: &str) -> PathBuf {
        let inside = match path.rsplit_once('/') {
            Some(("/etc/systemd/system", unit)) => format!("srv/units/{unit}"),
            _ => path.trim_start_matches('/').to_owned(),
        };
        self.dir.path().join(machine).join(inside)
    }

    fn write(&self, path: &str, text: &str) {
        for machine in NAMES {
            fs::write(self.path(machine, path), text).unwrap();
        }
    }

    /// Copies the join file to the other machines as the page requires, once it exists.
    fn bring_join(&self) {
        let printed = self.path("one", "/srv/farmem/join");
        let join = |machine| self.path(machine, "/srv/farmem/state/join");
        if printed.exists() && !join("two").exists() {
            for machine in ["two", "three"] {
                DirBuilder::new().mode(0o700).create(join(machine).parent().unwrap()).unwrap();
                fs::copy(&printed, join(machine)).unwrap(); // with its mode
            }
        }
    }

    /// Copies the operator's secret as the page requires, once the restored directory is in place.
    fn bring_operator(&self, commands: &str) {
        if commands.contains("rm /srv/farmem/state/secret") {
            let operator = |machine| self.path(machine, "/srv/farmem/state/operator");
            for machine in ["two", "three"] {
                fs::copy(operator("one"), operator(machine)).unwrap(); // with its mode
            }
        }
    }

    fn run(&self, machine: &str, commands: &str) {
        let output = self.enter(machine, commands).output().unwrap();
        let text =
            [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
        assert!(output.status.success(), "on {machine}, {}:\n{commands}\n{text}", output.status);
    }

    fn enter(&self, machine: &str, commands: &str) -> Command {
        let number = NAMES
            .iter()
            .position(|name| *name == machine)
            .unwrap_or_else(|| panic!("no machine {machine:?}"));
        let mut command = Command::new("nsenter");
        command.args(["--net", "--mount", "--pid", "--target", &self.inits[number]]);
        command.args(["sh", "-euc", commands]).env("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin");
        command.stdin(Stdio::null());
        command
    }

    /// Returns the number of roles that run on a machine.
    fn serving(&self, machine: &str) -> usize {
        let output = self.enter(machine, "ps -e -o args= | grep -c '^[^ ]*farmem role'").output().unwrap();
        String::from_utf8_lossy(&output.stdout).trim().parse().unwrap_or_default()
    }
}

/// Starts the first process of a machine. It ends with its standard input, and all other processes of the
/// machine end with it.
fn start(namespace: &str, srv: &Path, bin: &Path) -> Running {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", namespace]);
    command.args(["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-euc"]);
    // Its process id in the outer namespace, before /proc is mounted again.
    let script = "read number rest < /proc/self/stat; mount --make-rprivate /; mount --bind \"$1\" /srv; \
                  mount --bind \"$2\" /usr/local/bin; mount -t proc proc /proc; echo $number; read end || :";
    command.args([script, "machine"]).args([srv, bin]).stdin(Stdio::piped());
    Running::start(command)
}
