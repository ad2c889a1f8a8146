//! Values in far memory, and which of them are read together.

use crate::common::{Client, Reply, Service, request};
use std::io::Write as _;
use std::time::Duration;

/// Keys with values of 9,000 bytes: twice as much as local memory.
const KEYS: usize = 8_000;

fn value(number: usize) -> Vec<u8> {
    let mut value = format!("{number}:").into_bytes();
    value.resize(9_000, b'v');
    value
}

fn key(number: usize) -> Vec<u8> {
    format!("key:{number}").into_bytes()
}

fn filled() -> Service {
    let service = Service::start(&["--far", "256MiB", "--local", "40MiB"]);
    let mut client = service.client();
    for first in (0..KEYS).step_by(50) {
        (first..first + 50).for_each(|number| client.send(&[b"SET", &key(number), &value(number)]));
        (0..50).for_each(|_| assert_eq!(client.reply(), Some(Reply::ok())));
    }
    service
}

/// Returns the number of READs of far memory, and of waits for them.
fn counts(client: &mut Client) -> (usize, usize) {
    let info = client.says("INFO farmem").text();
    let line = |name: &str| {
        info.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().parse::<usize>().unwrap()
    };
    (line("far_reads:"), line("far_rounds:"))
}

/// The far values of a pipeline, of one command and of a transaction are read together.
#[test]
fn values_of_a_pipeline_come_together() {
    let service = filled();
    let mut client = service.client();
    let before = counts(&mut client);
    let bytes: Vec<u8> = (0..100).flat_map(|number| request(&[b"GET", &key(number)])).collect();
    client.stream.write_all(&bytes).unwrap();
    (0..100).for_each(|number| assert_eq!(client.reply(), Some(Reply::Bulk(value(number)))));
    let pipeline = counts(&mut client);
    assert_eq!(pipeline.0 - before.0, 100, "each is read once");
    assert!(pipeline.1 - before.1 <= 20, "{pipeline:?} {before:?}");

    let keys: Vec<Vec<u8>> = (100..300).map(key).collect();
    let words: Vec<&[u8]> = std::iter::once(&b"MGET"[..]).chain(keys.iter().map(Vec::as_slice)).collect();
    assert_eq!(
        client.asks(&words),
        Reply::Array((100..300).map(|number| Reply::Bulk(value(number))).collect())
    );
    let one = counts(&mut client);
    assert_eq!(one.0 - pipeline.0, 200);
    assert!(one.1 - pipeline.1 <= 10, "{one:?} {pipeline:?}");

    client.says("MULTI");
    (300..340).for_each(|number| drop(client.asks(&[b"GET", &key(number)])));
    assert_eq!(
        client.says("EXEC"),
        Reply::Array((300..340).map(|number| Reply::Bulk(value(number))).collect())
    );
    let transaction = counts(&mut client);
    assert_eq!(transaction.0 - one.0, 40);
    assert!(transaction.1 - one.1 <= 3, "{transaction:?} {one:?}");
    service.end();
}

/// Each value that was read ahead is used or wasted, and a value that a command waited for alone counts as
/// late.
#[test]
fn values_read_ahead_are_accounted_for() {
    let service = filled();
    let mut client = service.client();
    let counts = |client: &mut Client| {
        let info = client.says("INFO farmem").text();
        ["wanted", "used", "wasted", "late"].map(|name| {
            let line = info.lines().find_map(|line| line.strip_prefix(&format!("ahead_{name}:"))).unwrap();
            line.trim().parse::<usize>().unwrap()
        })
    };
    let before = counts(&mut client);
    let requests = [
        request(&[b"DEL", &key(5)]),
        request(&[b"GET", &key(5)]),
        request(&[b"GET", &key(6)]),
        request(&[b"GET", &key(7)]),
    ];
    client.stream.write_all(&requests.concat()).unwrap();
    assert_eq!(client.reply(), Some(Reply::Integer(1)));
    assert_eq!(client.reply(), Some(Reply::Null));
    assert_eq!(client.reply(), Some(Reply::Bulk(value(6))));
    assert_eq!(client.reply(), Some(Reply::Bulk(value(7))));
    let pipeline = counts(&mut client);
    assert_eq!([0, 1, 2, 3].map(|at: usize| pipeline[at] - before[at]), [3, 2, 1, 0]);
    assert_eq!(client.asks(&[b"GET", &key(8)]), Reply::Bulk(value(8)));
    let alone = counts(&mut client);
    assert_eq!([0, 1, 2, 3].map(|at: usize| alone[at] - pipeline[at]), [0, 0, 0, 1]);
    service.end();
}

/// Values of several connections are read together while the server is busy. Without reading ahead each is
/// waited for, with the same replies.
#[test]
fn values_of_several_connections_come_together() {
    const CLIENTS: usize = 40;
    let service = filled();
    let mut beside = service.client();
    let mut clients: Vec<Client> = (0..CLIENTS).map(|_| service.client()).collect();
    clients.iter_mut().for_each(|client| assert_eq!(client.says("PING"), Reply::Simple("PONG".into())));
    for (number, (ahead, most)) in [("yes", 4), ("no", CLIENTS), ("yes", 4)].into_iter().enumerate() {
        assert_eq!(beside.says(&format!("CONFIG SET read-ahead {ahead}")), Reply::ok());
        let before = counts(&mut beside);
        beside.send(&[b"DEBUG", b"SLEEP", b"1"]);
        std::thread::sleep(Duration::from_millis(300));
        let keys = CLIENTS * number..;
        clients.iter_mut().zip(keys.clone()).for_each(|(client, at)| client.send(&[b"GET", &key(at)]));
        assert_eq!(beside.reply(), Some(Reply::ok()));
        for (client, at) in clients.iter_mut().zip(keys) {
            assert_eq!(client.reply(), Some(Reply::Bulk(value(at))));
        }
        let after = counts(&mut beside);
        assert_eq!(after.0 - before.0, CLIENTS);
        let rounds = after.1 - before.1;
        assert!(rounds <= most && (ahead == "yes" || rounds == CLIENTS), "{ahead}: {after:?} {before:?}");
    }
    assert!(beside.says("CONFIG SET read-ahead x").text().contains("'yes' or 'no'"));
    service.end();
}

/// A client waits for a key, and has sent much behind that request. Nothing of it is executed before the
/// client has the key, also if far values make the server read ahead.
#[test]
fn requests_behind_a_waiting_command_wait() {
    const PINGS: usize = 40_000;
    let service = filled();
    let (mut client, mut beside) = (service.client(), service.client());
    assert_eq!(client.says("PING"), Reply::Simple("PONG".into()));
    // While the server sleeps, more arrives than it reads at once.
    beside.send(&[b"DEBUG", b"SLEEP", b"0.5"]);
    std::thread::sleep(Duration::from_millis(200));
    let bytes = [request(&[b"BLPOP", b"nothing", b"0"]), b"PING\r\n".repeat(PINGS)].concat();
    client.stream.write_all(&bytes).unwrap();
    assert_eq!(beside.reply(), Some(Reply::ok()));
    assert_eq!(beside.says("RPUSH nothing now"), Reply::Integer(1));
    assert_eq!(client.reply(), Some(Reply::Array(vec![Reply::bulk("nothing"), Reply::bulk("now")])));
    (0..PINGS).for_each(|_| assert_eq!(client.reply(), Some(Reply::Simple("PONG".into()))));
    service.end();
}
