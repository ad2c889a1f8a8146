//! Items of memcached clients under few rights, with too much data, and with full buffers.

use crate::common::{Reply, Service};
use crate::memcached::Line;

fn small() -> (Service, Line) {
    let service = Service::start(&["--far", "64MiB", "--local", "64MiB", "--memcached-port", "0"]);
    let client = Line::connect(service.memcached.unwrap());
    (service, client)
}

/// A changed value keeps its expiry time, also if the change itself evicts the value.
#[test]
fn self_evicting_changes_keep_the_expiry_time() {
    let (service, mut client) = small();
    let mut redis = service.client();
    assert_eq!(redis.says("CONFIG SET maxmemory-policy allkeys-lru"), Reply::ok());
    let evictions = |client: &mut Line| {
        let stats = client.says("stats\r\n");
        let line = stats.lines().find_map(|line| line.strip_prefix("STAT evictions ")).unwrap();
        line.trim().parse::<usize>().unwrap()
    };
    let mut admin = service.client();
    for (make, change, said) in [
        ("set k 0 1000 2\r\n10\r\n", "incr k 5\r\n", "15\r\n"),
        ("set k 0 1000 1\r\nx\r\n", "append k 0 0 1\r\ny\r\n", "STORED\r\n"),
        ("set k 0 1000 1\r\nx\r\n", "prepend k 0 0 1\r\ny\r\n", "STORED\r\n"),
        ("set k 0 1000 1\r\nx\r\n", "md k I\r\n", "HD\r\n"),
        ("set k 0 1000 1\r\nx\r\n", "ms k 1 C1 I\r\ny\r\n", "HD\r\n"),
        ("set k 0 1000 1\r\nx\r\n", "mg k R2000\r\n", "HD W\r\n"),
    ] {
        admin.says("CONFIG SET maxmemory 0");
        assert_eq!(client.says(make), "STORED\r\n");
        // One key is too many.
        admin.says("CONFIG SET maxmemory 1");
        let before = evictions(&mut client);
        assert_eq!(client.says(change), said, "{change}");
        assert!(evictions(&mut client) > before, "{change} has put its item out");
        let left = client.says("mg k t\r\n");
        assert!(left.starts_with("HD t1000") || left.starts_with("HD t9"), "{change}: {left}");
    }
    service.end();
}

/// A client with read rights only gets no request to write an item again. If no write is possible, a stale item is
/// still read.
#[test]
fn read_only_clients_are_not_told_to_recache() {
    let (service, mut client) = small();
    let mut admin = service.client();
    assert_eq!(client.says("set m 0 0 1\r\nx\r\nmd m I\r\n"), "STORED\r\nHD\r\n");
    assert_eq!(admin.says("ACL SETUSER reader on >p ~m* +get"), Reply::ok());
    assert_eq!(admin.says("CONFIG SET requirepass new"), Reply::ok());
    let mut reader = Line::connect(service.memcached.unwrap());
    // The client may not send `mn` before it has logged in.
    reader.send(b"set a 0 0 8\r\nreader p\r\n");
    assert_eq!(reader.line(), b"STORED\r\n");
    assert_eq!(reader.says("mg m v\r\n"), "VA 1 X\r\nx\r\n");
    assert_eq!(admin.says("ACL LOG"), Reply::Array(vec![]), "it has asked for nothing that it may not");
    assert_eq!(admin.says("CONFIG SET maxmemory 1"), Reply::ok());
    assert_eq!(client.says("mg m v\r\n"), "VA 1 X\r\nx\r\n", "there is no room for a write");
    assert_eq!(admin.says("CONFIG SET maxmemory 0"), Reply::ok());
    assert_eq!(client.says("mg m v\r\n"), "VA 1 X W\r\nx\r\n");
    assert_eq!(client.says("mg m v\r\n"), "VA 1 Z X\r\nx\r\n");
    service.end();
}

/// While other clients' buffers take much, a reply has the room that is left, and no client is disconnected
/// for it.
#[test]
fn replies_have_the_room_that_is_left() {
    const MIB: usize = 1 << 20;
    let (service, mut client) = small();
    let (mut queues, mut beside) = (service.client(), service.client());
    for (key, len) in [(&b"two"[..], 2 * MIB), (b"six", 6 * MIB)] {
        assert_eq!(beside.asks(&[b"SET", key, &vec![b'v'; len]]), Reply::ok());
    }
    assert_eq!(queues.says("MULTI"), Reply::ok());
    for _ in 0..3 {
        assert_eq!(queues.asks(&[b"SET", b"queued", &vec![b'q'; 4 * MIB]]).text(), "QUEUED");
    }
    // 4 of 16 MiB are left.
    for (line, said) in [
        (
            "get two two two\r\n",
            "SERVER_ERROR out of memory writing get response: ask for fewer keys at once\r\n",
        ),
        ("mg six v\r\n", "SERVER_ERROR out of memory writing get response\r\n"),
    ] {
        assert_eq!(client.says(line), said);
    }
    assert_eq!(client.says("get two\r\n").len(), "VALUE two 0 2097152\r\n\r\nEND\r\n".len() + 2 * MIB);
    let Reply::Array(said) = queues.says("EXEC") else { panic!("a reply for each") };
    assert_eq!(said, vec![Reply::ok(); 3]);
    assert!(beside.says("INFO clients").text().contains("clients_cut_off:0\r"));
    assert_eq!(client.says("mg six s\r\n"), "HD s6291456\r\n");
    assert_eq!(client.says("mg six v\r\n").len(), "VA 6291456\r\n\r\n".len() + 6 * MIB, "room comes back");
    service.end();
}
