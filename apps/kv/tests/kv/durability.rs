//! What was acknowledged is there after the process is killed, at whatever moment.

use crate::common::{Client, Process, Reply, request};
use farmem::Rng;
use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

fn start(dir: &Path, more: &[&str]) -> Process {
    let dir = dir.to_str().unwrap();
    Process::start(&[&["--dir", dir, "--appendonly", "--far", "64MiB", "--local", "64MiB"], more].concat())
}

fn logs(dir: &Path) -> Vec<PathBuf> {
    let names = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let mut logs: Vec<PathBuf> =
        names.filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with("log-")).collect();
    logs.sort();
    logs
}

/// One writer, who knows what was acknowledged: each key's last acknowledged value, and the one that was sent and not answered.
#[derive(Default)]
struct Writer {
    acknowledged: BTreeMap<u32, u64>,
    sent: BTreeMap<u32, u64>,
}

impl Writer {
    /// Counts keys up until the server is gone; every hundredth request asks for a snapshot.
    fn write(&mut self, mut client: Client, rng: &mut Rng) {
        client.stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        for step in 0.. {
            let numbers: Vec<u32> = (0..1 + rng.below(8)).map(|_| rng.below(200)).collect();
            let mut bytes = Vec::new();
            for number in &numbers {
                *self
                    .sent
                    .entry(*number)
                    .or_insert_with(|| self.acknowledged.get(number).copied().unwrap_or(0)) += 1;
                bytes.extend(request(&[b"INCR", format!("n{number}").as_bytes()]));
            }
            if step % 100 == 50 {
                bytes.extend(request(&[b"BGSAVE"]));
            }
            if client.stream.write_all(&bytes).is_err() {
                return;
            }
            for number in &numbers {
                match client.reply() {
                    Some(Reply::Integer(value)) => {
                        self.acknowledged.insert(*number, value.cast_unsigned());
                    }
                    Some(other) => panic!("{other:?}"),
                    None => return,
                }
            }
            self.sent.clear();
            if step % 100 == 50 && client.reply().is_none() {
                return;
            }
        }
    }

    /// Each key has what was acknowledged last, or what was sent behind it.
    fn check(&mut self, client: &mut Client, round: u32) {
        for number in 0..200_u32 {
            let found = client.says(&format!("GET n{number}"));
            let found = if found == Reply::Null { 0 } else { found.text().parse().unwrap() };
            let least = self.acknowledged.get(&number).copied().unwrap_or(0);
            let most = self.sent.get(&number).copied().unwrap_or(0).max(least);
            assert!(
                (least..=most).contains(&found),
                "round {round}: n{number} is {found}, acknowledged {least}, sent {most}"
            );
            self.acknowledged.insert(number, found);
        }
        self.sent.clear();
    }
}

/// Eight times: a writer, snapshots, and SIGKILL in the middle of it.
#[test]
fn nothing_acknowledged_is_lost_by_kill_9() {
    for fsync in ["always", "everysec"] {
        let dir = tempfile::tempdir().unwrap();
        let (mut rng, mut writer) = (Rng::from_number(9), Writer::default());
        for round in 0..8 {
            let process = start(dir.path(), &["--appendfsync", fsync]);
            let mut client = Client::connect(process.address);
            writer.check(&mut client, round);
            let after = Duration::from_millis(u64::from(rng.below(300)));
            let killer = std::thread::spawn(move || {
                std::thread::sleep(after);
                process.kill();
            });
            writer.write(client, &mut rng);
            killer.join().unwrap();
        }
        assert!(writer.acknowledged.values().sum::<u64>() > 100, "{fsync}: something was written");
    }
}

/// A log that ends in the middle of a frame is cut there, with a message; what was before is there.
#[test]
fn a_torn_end_is_cut_off() {
    let dir = tempfile::tempdir().unwrap();
    let process = start(dir.path(), &[]);
    let mut client = Client::connect(process.address);
    assert_eq!(client.says("SET whole 1"), Reply::ok());
    assert_eq!(client.says("RPUSH list a b c"), Reply::Integer(3));
    process.kill();
    let log = logs(dir.path()).pop().unwrap();
    let len = std::fs::metadata(&log).unwrap().len();
    let mut file = OpenOptions::new().append(true).open(&log).unwrap();
    file.write_all(&[40, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9]).unwrap();
    let mut process = start(dir.path(), &[]);
    let mut client = Client::connect(process.address);
    assert_eq!(client.says("GET whole"), Reply::bulk("1"));
    assert_eq!(client.says("LLEN list"), Reply::Integer(3));
    assert_eq!(client.says("SHUTDOWN"), Reply::ok());
    process.child.wait().unwrap();
    assert!(process.said().contains("13 bytes were cut off"));
    assert_eq!(std::fs::metadata(&log).unwrap().len(), len);
}

/// A log that was changed in the middle is refused, with the file and the place: nothing is left out silently.
#[test]
fn a_changed_log_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let process = start(dir.path(), &[]);
    let mut client = Client::connect(process.address);
    for number in 0..10 {
        client.says(&format!("SET key{number} value"));
    }
    process.kill();
    let log = logs(dir.path()).pop().unwrap();
    let mut bytes = std::fs::read(&log).unwrap();
    bytes[60] ^= 1;
    std::fs::write(&log, bytes).unwrap();
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_farmem-kv"))
        .args(["--port", "0", "--appendonly", "--far", "64MiB", "--dir", dir.path().to_str().unwrap()])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(
        said.contains("log-0000000000000000") && said.contains("was changed, and others follow it"),
        "{said}"
    );
}

/// All kinds of values, ends and databases come back: of the log, of a snapshot alone, and after a clean end.
#[test]
fn a_restart_has_all_kinds_of_values() {
    let dir = tempfile::tempdir().unwrap();
    let fill = [
        "SET s text",
        "SET ends soon EX 1000",
        "HSET h f 1 g 2",
        "RPUSH l a b c",
        "SADD t x y z",
        "SPOP t",
        "ZADD z 1.5 a -inf b",
        "LPOP l",
        "SELECT 3",
        "SET other db",
        "EXPIRE other 2000",
        "INCRBYFLOAT f 1.25",
        "RENAME f g",
        "COPY g copy",
        "DEL g",
    ];
    let ask = [
        "GET s",
        "EXPIRETIME ends",
        "HGETALL h",
        "LRANGE l 0 -1",
        "SCARD t",
        "ZRANGE z 0 -1 WITHSCORES",
        "SELECT 3",
        "GET other",
        "EXPIRETIME other",
        "GET copy",
        "EXISTS g",
        "DBSIZE",
        "SELECT 0",
        "DBSIZE",
        "SMEMBERS t",
    ];
    let answers = |process: &Process| {
        let mut client = Client::connect(process.address);
        ask.iter().map(|line| client.says(line)).collect::<Vec<_>>()
    };
    let process = start(dir.path(), &["--appendfsync", "always"]);
    let mut client = Client::connect(process.address);
    for line in fill {
        assert!(!matches!(client.says(line), Reply::Error(_)), "{line}");
    }
    let before = answers(&process);
    process.kill();
    let process = start(dir.path(), &[]);
    assert_eq!(answers(&process), before, "of the log");
    assert_eq!(Client::connect(process.address).says("SAVE"), Reply::ok());
    assert_eq!(logs(dir.path()).len(), 1, "older logs went");
    process.kill();
    logs(dir.path()).into_iter().for_each(|log| std::fs::remove_file(log).unwrap());
    let mut process = start(dir.path(), &[]);
    assert_eq!(answers(&process), before, "of the snapshot");
    assert_eq!(Client::connect(process.address).says("SHUTDOWN"), Reply::ok());
    assert!(process.child.wait().unwrap().success());
    let process = start(dir.path(), &[]);
    assert_eq!(answers(&process), before, "after a clean end");
    process.kill();
}

/// A file system of its own that can be full; `None`, and a line that says so, where this user may not mount one.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    fn mount(bytes: u32) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let size = format!("size={bytes},mode=0700");
        let mount = std::process::Command::new("mount")
            .args(["-t", "tmpfs", "-o", &size, "tmpfs"])
            .arg(dir.path())
            .output();
        if mount.is_ok_and(|mount| mount.status.success()) {
            return Some(Self(dir));
        }
        eprintln!("skipped: a full disk: this user may not mount a file system");
        None
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        drop(std::process::Command::new("umount").arg("-l").arg(self.0.path()).status());
    }
}

/// The disk fills up: writes are refused as Redis refuses them, and change nothing; reads go on. With room again writes go on, and a restart has what was acknowledged and nothing else.
#[test]
fn a_full_disk_refuses_writes() {
    let Some(disk) = SmallDisk::mount(3 << 20) else { return };
    let process = start(disk.0.path(), &["--appendfsync", "always"]);
    let mut client = Client::connect(process.address);
    let ballast = disk.0.path().join("ballast");
    std::fs::write(&ballast, vec![1; 1 << 20]).unwrap();
    let mut written = Vec::new();
    let refused = loop {
        let key = format!("key{}", written.len());
        match client.asks(&[b"SET", key.as_bytes(), &[b'v'; 10_000]]) {
            Reply::Simple(_) => written.push(key),
            Reply::Error(text) => break text,
            other => panic!("{other:?}"),
        }
        assert!(written.len() < 1_000, "a disk of 3 MiB takes this much?");
    };
    assert!(
        refused.starts_with("MISCONF Errors writing to the AOF file: No space left on device"),
        "{refused}"
    );
    assert!(written.len() > 50, "{}", written.len());
    assert_eq!(client.says("DBSIZE"), Reply::count(written.len()), "what was refused changed nothing");
    assert_eq!(client.says("STRLEN key7"), Reply::Integer(10_000), "reads go on");
    assert!(client.says("BGSAVE").text().starts_with("ERR") || client.says("PING").text() == "PONG");
    std::fs::remove_file(&ballast).unwrap();
    assert_eq!(client.says("SET more 1"), Reply::ok(), "there is room");
    process.kill();
    let process = start(disk.0.path(), &[]);
    let mut client = Client::connect(process.address);
    assert_eq!(client.says("DBSIZE"), Reply::count(written.len() + 1));
    assert_eq!(client.says("GET more"), Reply::bulk("1"));
    process.kill();
}
