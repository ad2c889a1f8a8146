//! Memory registered by a RoCE card, used from a farmem host: READ, WRITE and atomics, and every unsupported
//! operation with its error.
//!
//! `cargo run --example card_memory rack.toml` on a rack that a card's agent has joined for the domain
//! `cards` (docs/roce-peers.md). `make interop` runs the example with Soft-RoCE. The program prints one line
//! per attempt. Exit code 1 means that a result was wrong.

use farmem::{Client, Error, NodeId, Program, Rack, VirtAddr};
use std::process::ExitCode;

const LIST_SUM: &str = include_str!("../../../testdata/programs/list_sum.pulse");
const MIB: usize = 1 << 20;

fn main() -> ExitCode {
    let Some(file) = std::env::args().nth(1) else {
        say("usage: card_memory RACK.TOML");
        return ExitCode::from(2);
    };
    match tried(&file) {
        Ok(failed) => ExitCode::from(u8::from(failed > 0)),
        Err(error) => {
            say(&format!("FAILED  card_memory ended early: {error}; {}", error.remedy()));
            ExitCode::from(1)
        }
    }
}

/// Runs all attempts. Returns the number of failures.
fn tried(file: &str) -> Result<u32, Error> {
    let rack = Rack::open(file)?;
    let mut client = rack.client("cards")?;
    let Some(node) = client.cards().first().map(|card| NodeId(card.node)) else {
        say("FAILED  no card has joined the rack");
        return Ok(1);
    };
    let (mut passed, mut failed) = (0, 0);
    let mut result = |good: bool, what: &str| {
        say(&format!("{} {what}", if good { "ok     " } else { "FAILED " }));
        *(if good { &mut passed } else { &mut failed }) += 1;
    };
    let vma = client.allocate_on(2 * MIB as u64, node)?;
    let mut bytes = vec![1; MIB];
    client.read(vma.base, &mut bytes)?;
    result(bytes.iter().all(|&byte| byte == 0), "a card's memory that was just allocated is zero");
    let lens = [1, 3, 8, 255, 1021, 1024, 1025, 4096, 4097, 60_000, 65_537, MIB - 3, MIB];
    let back = lens
        .into_iter()
        .zip(1..)
        .filter(|&(len, n)| !there_and_back(&mut client, vma.base, len, n).unwrap_or(false));
    let lost: Vec<usize> = back.map(|(len, _)| len).collect();
    result(
        lost.is_empty(),
        &format!("WRITE and READ of 1 byte to 1 MiB against a card's memory, not back: {lost:?}"),
    );
    result(atomics(&mut client, vma.base)?, "FETCH_ADD and CMP_SWAP on a card's memory");
    client.write(vma.base, &[0xff; 4096])?;
    client.free(vma.base)?;
    let again = client.allocate_on(2 * MIB as u64, node)?;
    let mut bytes = vec![1; 4096];
    client.read(again.base, &mut bytes)?;
    let zero = bytes.iter().all(|&byte| byte == 0);
    result(again.base == vma.base && zero, "memory that was freed is zero when it is handed out again");
    let program = Program::assemble(LIST_SUM).expect("it is right");
    let walked = client.traverse(&program, again.base, vec![0; 16], 10);
    result(is_of_card(&walked), &format!("a traversal on it is refused: {}", shown(&walked)));
    let read = client.region_read(again.base, &mut [0; 8]);
    result(is_of_card(&read), &format!("a region read of it is refused: {}", shown(&read)));
    let plain = client.nodes().first().map(|node| NodeId(node.node));
    let moved = client.migrate(again.base, 4096, plain.expect("a rack has memory nodes"));
    result(says_card(&moved), &format!("its migration is refused: {}", shown(&moved)));
    let granted = client.grant(again.base, 4096, "others", farmem::api::PermName::Read);
    result(says_card(&granted), &format!("a grant of it is refused: {}", shown(&granted)));
    let other = rack.client("others")?.allocate_on(4096, node);
    result(says_card(&other), &format!("another domain's allocation is refused: {}", shown(&other)));
    let elsewhere = client.allocate(4096)?;
    result(elsewhere.node != node, "what names no node does not come to a card");
    say(&format!("card_memory: {passed} passed, {failed} failed"));
    Ok(failed)
}

fn there_and_back(client: &mut Client, base: VirtAddr, len: usize, n: u64) -> Result<bool, Error> {
    let at = VirtAddr(base.0 + 3 * n);
    let shift = usize::try_from(n).expect("small");
    let sent: Vec<u8> = (0..=250).cycle().skip(shift).take(len).collect();
    client.write(at, &sent)?;
    let mut came = vec![0; len];
    client.read(at, &mut came)?;
    Ok(came == sent)
}

fn atomics(client: &mut Client, base: VirtAddr) -> Result<bool, Error> {
    client.write(base, &[0; 8])?;
    let mut good = true;
    for n in 0..50 {
        good &= client.fetch_add(base, 7)? == 7 * n;
    }
    good &= client.compare_swap(base, 1, 2)? == 350;
    good &= client.compare_swap(base, 350, u64::MAX)? == 350;
    Ok(good && client.fetch_add(base, 1)? == u64::MAX)
}

fn is_of_card<T>(result: &Result<T, Error>) -> bool {
    matches!(result, Err(Error::CardMemory { .. }))
}

fn says_card<T>(result: &Result<T, Error>) -> bool {
    result.as_ref().err().is_some_and(|error| error.to_string().contains("a card's memory"))
}

fn shown<T>(result: &Result<T, Error>) -> String {
    result.as_ref().err().map_or_else(|| "it was not".into(), |error| format!("{error}; {}", error.remedy()))
}

#[expect(clippy::print_stdout, reason = "an example prints to the terminal")]
fn say(line: &str) {
    println!("{line}");
}
