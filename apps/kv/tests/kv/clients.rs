//! Real clients: redis-cli, redis-benchmark, redis-py.

use crate::common::Service;
use std::path::Path;
use std::process::Command;

fn output(program: &str, args: &[&str]) -> Option<String> {
    let Ok(output) = Command::new(program).args(args).output() else {
        eprintln!("skipped: {program} absent (scripts/setup installs it)");
        return None;
    };
    let said = String::from_utf8_lossy(&output.stdout).replace('\r', "\n")
        + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {args:?}: {said}");
    Some(said)
}

#[test]
fn redis_cli_and_redis_benchmark() {
    // Twenty clients with eight replies of half a megabyte each under way: the buffers may take a quarter of
    // local memory.
    let service = Service::start(&["--far", "256MiB", "--local", "512MiB"]);
    let port = service.address.port().to_string();
    let cli = |args: &[&str]| output("redis-cli", &[&["-p", &port], args].concat());
    let Some(said) = cli(&["SET", "a", "1"]) else { return };
    assert_eq!(said, "OK\n");
    assert_eq!(cli(&["-3", "HGETALL", "none"]).unwrap(), "\n");
    assert_eq!(cli(&["--scan", "--pattern", "a*"]).unwrap(), "a\n");
    assert!(cli(&["INFO"]).unwrap().contains("redis_version:7"));
    assert!(cli(&["--bigkeys"]).unwrap().contains("Biggest string"));
    let tests =
        "ping_inline,ping_mbulk,set,get,incr,lpush,rpush,lpop,rpop,sadd,hset,spop,zadd,zpopmin,lrange,mset";
    let said = output(
        "redis-benchmark",
        &["-p", &port, "-t", tests, "-n", "5000", "-r", "100000", "-P", "8", "-c", "20", "-d", "800", "-q"],
    );
    let Some(said) = said else { return };
    for kind in [
        "PING_INLINE",
        "SET",
        "GET",
        "INCR",
        "LPUSH",
        "SADD",
        "HSET",
        "SPOP",
        "ZADD",
        "ZPOPMIN",
        "LRANGE_600",
        "MSET (10 keys)",
    ] {
        assert!(
            said.lines().any(|line| line.starts_with(kind) && line.contains("requests per second")),
            "{kind}: {said}"
        );
    }
    assert!(!said.contains("ERR") && !said.contains("rror from server"), "{said}");
    service.end();
}

/// redis-py in its usual modes: pipelines, transactions, scans, both protocols.
#[test]
fn redis_py() {
    let python = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.venv/bin/python");
    let has = Command::new(&python).args(["-c", "import redis"]).status();
    if !has.is_ok_and(|status| status.success()) {
        eprintln!("skipped: redis-py absent in .venv (scripts/setup installs it)");
        return;
    }
    let service = Service::start(&["--far", "256MiB", "--local", "64MiB"]);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kv/redis_py.py");
    let said =
        output(python.to_str().unwrap(), &[script.to_str().unwrap(), &service.address.port().to_string()]);
    assert_eq!(said.unwrap().trim(), "all as expected");
    service.end();
}
