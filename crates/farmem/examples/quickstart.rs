//! A tour of far memory: a rack in this process, bytes, a counter, a linked list and a hash table.
//!
//! Run `cargo run --example quickstart`. The program needs no sockets or privileges. With
//! `Rack::open("rack.toml")` in the first line, the same program works on the rack that `farmem up rack.toml`
//! runs.

use farmem::hash_table::{HashTable, Key, Spread, VALUE_LEN};
use farmem::{Error, NodeId, Program, Rack, VirtAddr};

/// Sums a list: each node is a value and the address of the next node, 0 for the last.
const LIST_SUM: &str = include_str!("../../../testdata/programs/list_sum.pulse");

fn main() -> Result<(), Error> {
    let rack = Rack::embedded()?;
    let mut client = rack.client("quickstart")?;

    // Bytes: allocate, write, read.
    let page = client.allocate(4096)?;
    client.write(page.base, b"far away")?;
    let mut bytes = [0; 8];
    client.read(page.base, &mut bytes)?;
    say(&format!("read back: {}", String::from_utf8_lossy(&bytes)));

    // A counter to which any number of programs may add at once.
    let counter = VirtAddr(page.base.0 + 64);
    for _ in 0..10 {
        client.fetch_add(counter, 4)?;
    }
    say(&format!("counted to: {}", client.fetch_add(counter, 0)?));

    // A list over three memory nodes. READs would take a round trip per element; a traversal takes one in
    // total.
    let mut next = 0_u64;
    for (node, value) in [(3, 3_u64), (2, 20), (1, 100)] {
        let place = client.allocate_on(4096, NodeId(node))?.base;
        client.write(place, &[value.to_le_bytes(), next.to_le_bytes()].concat())?;
        next = place.0;
    }
    let program = Program::assemble(LIST_SUM).expect("the program is right");
    let scratch = vec![0; program.scratch_len()];
    let walked = client.traverse(&program, VirtAddr(next), scratch, 1000)?;
    let sum = u64::from_le_bytes(walked.scratch[..8].try_into().expect("the pad begins with the sum"));
    say(&format!("sum of {} nodes in {} request: {sum}", walked.end.iterations, walked.end.requests));

    // A hash table whose chains cross memory nodes.
    let mut table = HashTable::create(&mut client, 1000, 100, Spread::Scattered)?;
    table.insert(&mut client, Key::of(b"answer"), &[42; VALUE_LEN])?;
    let found = table.find(&mut client, Key::of(b"answer"))?;
    say(&format!("found: {:?}", found.map(|value| value[0])));

    // Errors state the cause and a remedy.
    if let Err(error) = client.read(VirtAddr(page.base.0 + 4090), &mut bytes) {
        say(&format!("refused: {error}; {}", error.remedy()));
    }
    Ok(())
}

#[expect(clippy::print_stdout, reason = "an example talks to whoever runs it")]
fn say(line: &str) {
    println!("{line}");
}

#[cfg(test)]
mod tests {
    /// Every step of the example runs.
    #[test]
    fn it_runs() {
        super::main().unwrap();
    }
}
