//! How a DPU that is a process of its own forwards (SODA IV-B): what is counted over real sockets.

use super::dpu::{check, client, rack, reading, run, written};
use farmem::window::{CHUNK, WindowOptions};

/// Pages of 64 KiB, each of which is sixteen packets, and nothing cached.
const CHUNKS: &str = "[dpu]\npage = \"64 KiB\"\nentry = \"256 KiB\"\ncache = \"1 MiB\"\ncaching = \"off\"\n";
/// Calls for a chunk at most: its packets come in two segmented datagrams, of which the first may have the end of the chunk before, and a receive may end between any two.
const CALLS_MAX: u64 = 3;

/// A window reads chunks of sixteen packets each. Their bytes land in its file by a call or two for each chunk and not by sixteen, and they are copied nowhere.
#[test]
fn chunks_land_by_few_calls() {
    let rack = rack("udp", CHUNKS);
    let mut client = client(&rack, "calls");
    let vma = written(&mut client, 5);
    let options = WindowOptions { chunk: CHUNK, local_limit: 1 << 20, ..reading() };
    let Some(((), stats)) = run(&mut client, &vma, options, |memory| check(&memory, 5)) else { return };
    let carried = stats.carried.expect("a DPU says what it did");
    assert_eq!(carried.requests, 2 << 20 >> 16, "{carried:?}");
    assert_eq!((carried.moves, carried.copies), (carried.requests, 0), "{carried:?}");
    assert!(carried.calls <= CALLS_MAX * carried.requests, "{carried:?}");
    eprintln!("{} chunks of 16 packets landed by {} calls", carried.requests, carried.calls);
}
