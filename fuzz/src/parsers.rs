//! Fuzz targets of the DPU's parsers (PROTOCOL 19.11 to 19.13). Each target compares a whole input with the
//! same input in pieces. The Redis target also compares the parser with the server's own reader.

use crate::Run;
use farmem_dpu::accesses::{Accesses, KEY_LEN_MAX, Position};
use farmem_dpu::parse::guard::{Cut, Guard};
use farmem_dpu::parse::http::Http;
use farmem_dpu::parse::memcached::Memcached;
use farmem_dpu::parse::records::Records;
use farmem_dpu::parse::resp::Resp;
use farmem_dpu::parse::{Access, Op, Parser};
use farmem_dpu::view::KeySecret;
use farmem_protocols::resp::{Limits, Parsed, Requests};

/// Runs `data` through the parser of Redis requests.
///
/// # Panics
/// Panics when pieces produce another result than the whole input, or when the parser misses a key that the
/// server reads.
pub fn parse_resp(data: &[u8], run: &mut Run) {
    let said = any(Resp::new, data, run);
    let server = by_the_server(data.get(1..).unwrap_or_default());
    // Parser and reader both know the keys of GET and MGET. Keys of other commands may stand between them.
    let reads: Vec<&[u8]> = server.iter().map(Vec::as_slice).collect();
    let mut rest = said.iter().filter(|(_, op)| *op == Op::Read).map(|(key, _)| key.as_slice());
    for key in reads {
        assert!(rest.any(|other| other == key), "the server reads {key:?}, and the parser does not say it");
    }
}

/// Runs `data` through the parser of memcached requests.
///
/// # Panics
/// As [`parse_resp`].
pub fn parse_memcached(data: &[u8], run: &mut Run) {
    any(Memcached::new, data, run);
}

/// Runs `data` through the parser of HTTP requests.
///
/// # Panics
/// As [`parse_resp`].
pub fn parse_http(data: &[u8], run: &mut Run) {
    any(Http::new, data, run);
}

/// Runs `data` through the parsers of hash map records and page server records.
///
/// # Panics
/// As [`parse_resp`].
pub fn parse_records(data: &[u8], run: &mut Run) {
    any(Records::hash_map, data, run);
    any(Records::pages, data, run);
}

/// Accesses that a parser reported.
type ReportedAccesses = Vec<(Vec<u8>, Op)>;

/// Runs an input through a parser, whole and in pieces. The first byte selects the length of the pieces.
fn any<P: Parser>(make: impl Fn() -> P, data: &[u8], run: &mut Run) -> ReportedAccesses {
    run.cases += 1;
    let (piece, bytes) = data.split_first().map_or((1, data), |(&len, rest)| (usize::from(len), rest));
    let whole = said(make(), [bytes]);
    let pieces = said(make(), bytes.chunks(piece.max(1)));
    assert_eq!(pieces, whole, "in pieces of {piece}");
    assert!(whole.0.len() <= bytes.len(), "more accesses than bytes");
    for (_, op) in &whole.0 {
        run.mark(match op {
            Op::Read => "read",
            Op::Write => "write",
            Op::Delete => "delete",
        });
    }
    run.mark(whole.1.unwrap_or("to its end"));
    guarded(make(), bytes, piece.max(1));
    lost(make(), bytes, piece, run);
    whole.0
}

fn said<'a, P: Parser>(
    mut parser: P,
    pieces: impl IntoIterator<Item = &'a [u8]>,
) -> (ReportedAccesses, Option<&'static str>) {
    let mut said = Vec::new();
    for piece in pieces {
        let each = &mut |Access { key, op }: Access<'_>| said.push((key.to_vec(), op));
        if let Err(broken) = parser.feed(piece, each) {
            return (said, Some(broken.reason));
        }
    }
    (said, None)
}

/// Checks that a guard stores only keys of permitted length, and reports no fault in farmem's own parsers.
fn guarded<P: Parser>(parser: P, bytes: &[u8], piece: usize) {
    let mut guard = Guard::new(parser, || {});
    let mut accesses = Accesses::new(KeySecret([1, 2]));
    for piece in bytes.chunks(piece) {
        let seen = guard.feed(piece, Position(1), &mut accesses);
        assert_ne!(seen.cut, Some(Cut::Wild), "a parser of ours");
    }
    assert!(accesses.iter().all(|one| one.key.len() <= KEY_LEN_MAX));
}

/// Checks that lost bytes cause no more than wrong bytes.
fn lost<P: Parser>(mut parser: P, bytes: &[u8], piece: usize, run: &mut Run) {
    let (front, rest) = bytes.split_at(bytes.len() / 2);
    let gone = piece.min(rest.len());
    if parser.feed(front, &mut |_| {}).is_ok() && parser.lost(gone as u64) {
        run.mark("goes on behind a loss");
        let _ = parser.feed(&rest[gone..], &mut |_| {});
    }
}

/// Returns the keys of GET and MGET that the server's reader finds, up to the first invalid request.
fn by_the_server(mut bytes: &[u8]) -> Vec<Vec<u8>> {
    let (mut requests, mut keys) = (Requests::new(), Vec::new());
    while let Parsed::Whole { len } = requests.parse(bytes, &Limits::REDIS) {
        let mut words = requests.words(bytes);
        let name = words.next().unwrap_or_default().to_ascii_uppercase();
        let count = match name.as_slice() {
            b"GET" => 1,
            b"MGET" => usize::MAX,
            _ => 0,
        };
        keys.extend(words.take(count).filter(|key| key.len() <= KEY_LEN_MAX).map(<[u8]>::to_vec));
        bytes = &bytes[len..];
    }
    keys
}
