//! Tests that acknowledged changes survive a kill of the process at any moment.

use crate::common::{Client, Process, Reply, Service, request};
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
    let mut logs: Vec<PathBuf> = names
        .filter(|path| path.extension().is_none())
        .filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with("log-"))
        .collect();
    logs.sort();
    logs
}

/// A writer that knows each key's last acknowledged value, and the value that was sent and not acknowledged.
#[derive(Default)]
struct Writer {
    acknowledged: BTreeMap<u32, u64>,
    sent: BTreeMap<u32, u64>,
}

impl Writer {
    /// Counts keys up until the server is gone. Every hundredth request is for a snapshot.
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

    /// Asserts that each key has the last acknowledged value, or the one that was sent after it.
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

/// Eight rounds: a writer, snapshots, and SIGKILL in the middle.
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

/// A log that ends in the middle of a frame is cut there, with a message. Everything before the cut is kept.
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
    assert_eq!(std::fs::read(log.with_extension("cut")).unwrap().len(), 13, "nothing is thrown away");
    assert_eq!(std::fs::metadata(&log).unwrap().len(), len);
}

/// Returns the message of a server that does not start on this directory.
fn refused(dir: &Path) -> String {
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_farmem-kv"))
        .args(["--port", "0", "--appendonly", "--far", "64MiB", "--dir", dir.to_str().unwrap()])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{said}");
    said
}

/// A directory has one server. Another one is refused, and touches nothing of the first.
#[test]
fn a_directory_has_one_server() {
    let dir = tempfile::tempdir().unwrap();
    let process = start(dir.path(), &[]);
    let mut client = Client::connect(process.address);
    assert_eq!(client.says("SET a 1"), Reply::ok());
    assert!(refused(dir.path()).contains("another server has this directory"));
    assert_eq!(client.says("SET b 1"), Reply::ok());
    process.kill();
    let process = start(dir.path(), &[]);
    assert_eq!(Client::connect(process.address).says("DBSIZE"), Reply::Integer(2));
    process.kill();
}

/// The log has the outcome of random decisions. A random command on a set that is missing or has expired logs
/// nothing, alone and in a transaction.
#[test]
fn the_log_has_what_chance_decided() {
    let dir = tempfile::tempdir().unwrap();
    let process = start(dir.path(), &["--appendfsync", "always"]);
    let mut client = Client::connect(process.address);
    for line in ["SADD ended a", "PEXPIRE ended 1", "SADD set a b c d", "SADD other m", "DEBUG SLEEP 0.02"] {
        assert!(!matches!(client.says(line), Reply::Error(_)), "{line}");
    }
    assert_eq!(client.says("SPOP ended"), Reply::Null);
    for line in ["MULTI", "SPOP nothing", "SET a 1", "SPOP other 0", "SET b 2", "SPOP set", "INCR b", "EXEC"]
    {
        assert!(!matches!(client.says(line), Reply::Error(_)), "{line}");
    }
    let left = client.says("SMEMBERS set");
    process.kill();
    let process = start(dir.path(), &[]);
    let mut client = Client::connect(process.address);
    assert_eq!(client.says("MGET a b"), Reply::Array(vec![Reply::bulk("1"), Reply::bulk("3")]));
    assert_eq!(client.says("SCARD other"), Reply::Integer(1));
    let sorted = |reply: Reply| {
        let Reply::Array(mut members) = reply else { panic!("{reply:?}") };
        members.sort_by_key(Reply::text);
        members
    };
    assert_eq!(sorted(client.says("SMEMBERS set")), sorted(left));
    process.kill();
}

/// A snapshot at the end has the last state, also if an earlier snapshot is under way.
#[test]
fn the_last_snapshot_has_the_last_writes() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_str().unwrap();
    for (end, marker) in [("SHUTDOWN SAVE", "one"), ("", "two")] {
        let words = ["--dir", path, "--local", "16MiB", "--far", "128MiB", "--save", ""];
        let mut process = Process::start(&words);
        let mut client = Client::connect(process.address);
        for number in 0..500 {
            assert_eq!(
                client.asks(&[b"SET", format!("key:{number}").as_bytes(), &[b'v'; 100_000]]),
                Reply::ok()
            );
        }
        client.send(&[b"BGSAVE"]);
        client.send(&[b"SET", b"marker", marker.as_bytes()]);
        assert_eq!(client.reply(), Some(Reply::Simple("Background saving started".into())));
        assert_eq!(client.reply(), Some(Reply::ok()));
        if end.is_empty() {
            let pid = rustix::process::Pid::from_child(&process.child);
            rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        } else {
            assert_eq!(client.says(end), Reply::ok());
        }
        assert!(process.child.wait().unwrap().success());
        let process = Process::start(&words);
        assert_eq!(Client::connect(process.address).says("GET marker"), Reply::bulk(marker));
        process.kill();
    }
}

/// A log that is several times as long as its data takes no more far memory at a start than before. Local
/// memory stays within its limit meanwhile.
#[test]
fn a_start_compacts_as_it_reads() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_str().unwrap();
    let words = ["--dir", path, "--appendonly", "--appendfsync", "no", "--local", "16MiB", "--far", "64MiB"];
    let process = Process::start(&words);
    let mut client = Client::connect(process.address);
    let (keys, mut rng) = (30_000_u32, Rng::from_number(12));
    let value = |number: u32, step: u32| {
        let mut value = format!("{number}:{step}:").into_bytes();
        value.resize(1_000, b'v');
        value
    };
    let mut last = vec![0; keys as usize];
    for step in 0..170_u32 {
        let numbers: Vec<u32> =
            (0..1_000).map(|at| if step < 30 { 1_000 * step + at } else { rng.below(keys) }).collect();
        let mut bytes = Vec::new();
        for &number in &numbers {
            bytes.extend(request(&[b"SET", format!("key:{number}").as_bytes(), &value(number, step)]));
            last[number as usize] = step;
        }
        client.stream.write_all(&bytes).unwrap();
        numbers.iter().for_each(|_| assert_eq!(client.reply(), Some(Reply::ok()), "step {step}"));
    }
    // Frames of two requests, so that a start does not meet a round number of them.
    for number in 0..40 {
        let field = vec![b'h'; 500_000];
        let hash = format!("hash:{}", number % 8);
        client.says("MULTI");
        client.asks(&[b"HSET", hash.as_bytes(), b"a", &field]);
        client.asks(&[b"HSET", hash.as_bytes(), b"b", &field]);
        assert!(matches!(client.says("EXEC"), Reply::Array(_)));
    }
    process.kill();
    let process = Process::start(&words);
    let mut client = Client::connect(process.address);
    let info = client.says("INFO").text();
    let number = |name: &str| {
        info.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().parse::<usize>().unwrap()
    };
    assert!(number("local_used:") <= (16 << 20) * 102 / 100 && number("chunks_compacted:") > 100, "{info}");
    for number in (0..keys).step_by(7) {
        let found = client.asks(&[b"GET", format!("key:{number}").as_bytes()]);
        assert!(found == Reply::Bulk(value(number, last[number as usize])), "key:{number}");
    }
    process.kill();
}

/// A log that was changed in the middle is refused, with the file and the place. No change is left out
/// silently.
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
    let whole = std::fs::read(&log).unwrap();
    // The changed byte is in a value, in the length of the first frame, or in that of the third: a longer
    // frame would swallow all that follow.
    for (at, bit) in [(60, 1), (8, 0x10), (8 + 2, 0x10), (8 + 2 * ((whole.len() - 8) / 10) + 2, 0x10)] {
        let mut bytes = whole.clone();
        bytes[at] ^= bit;
        std::fs::write(&log, &bytes).unwrap();
        let said = refused(dir.path());
        assert!(
            said.contains("log-0000000000000000") && said.contains("was changed, and others follow it"),
            "byte {at}: {said}"
        );
        assert!(std::fs::read(&log).unwrap() == bytes, "it is left as it was");
    }
    std::fs::write(&log, whole).unwrap();
    let process = start(dir.path(), &[]);
    assert_eq!(Client::connect(process.address).says("DBSIZE"), Reply::Integer(10));
    process.kill();
}

/// Values of all kinds, expiry times and databases come back: from the log, from a snapshot alone, and after
/// a clean end.
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

/// A file system of its own that can be full. Where this user may not mount one, this returns `None` and
/// prints a line.
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

/// The disk fills up: writes are refused as Redis refuses them, and change nothing, while reads continue. With room
/// again writes succeed, and a restart has exactly the acknowledged changes.
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

/// A snapshot requested in a transaction begins after the transaction, and has all of its changes.
#[test]
fn a_transaction_schedules_a_snapshot() {
    let dir = tempfile::tempdir().unwrap();
    let service =
        Service::start(&["--far", "64MiB", "--local", "64MiB", "--dir", dir.path().to_str().unwrap()]);
    let mut client = service.client();
    assert_eq!(client.says("BGSAVE x").text(), "ERR syntax error");
    for line in ["MULTI", "SET a 1", "BGREWRITEAOF", "BGSAVE", "SET b 2"] {
        client.says(line);
    }
    let Reply::Array(replies) = client.says("EXEC") else { panic!("a reply for each") };
    let replies: Vec<String> = replies.iter().map(Reply::text).collect();
    let scheduled = ["Background append only file rewriting scheduled", "Background saving scheduled"];
    assert_eq!(replies, ["OK", scheduled[0], scheduled[1], "OK"]);
    let saved = (0..2_000).any(|_| {
        std::thread::sleep(Duration::from_millis(5));
        client.says("INFO persistence").text().contains("rdb_changes_since_last_save:0\r")
    });
    assert!(saved, "the snapshot ends");
    service.end();
}
