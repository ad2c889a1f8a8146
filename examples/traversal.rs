//! Follow a linked list over three memory nodes with one request: a traversal (PULSE).
//!
//! `cargo run --example traversal`. docs/tutorials/first-traversal.md explains the program.

use farmem::{Error, NodeId, Program, Rack, VirtAddr};

/// Adds up the values of a list. A node has a value and the address of the next node; the last node's is 0.
const LIST_SUM: &str = include_str!("../testdata/programs/list_sum.pulse");

fn main() -> Result<(), Error> {
    let rack = Rack::embedded()?;
    let mut client = rack.client("example")?;

    let mut next = 0_u64;
    for (node, value) in [(3, 3_u64), (2, 20), (1, 100)] {
        let block = client.allocate_on(4096, NodeId(node))?.base;
        client.write(block, &[value.to_le_bytes(), next.to_le_bytes()].concat())?;
        next = block.0;
    }

    // A node that meets a program for the first time asks for its code; later traversals take one request in all.
    // READs would take a round trip per node: here the switch forwards the traversal between nodes.
    let program = Program::assemble(LIST_SUM).expect("the program is well-formed");
    let scratch = || vec![0; program.scratch_len()];
    client.traverse(&program, VirtAddr(next), scratch(), 1000)?;
    let reply = client.traverse(&program, VirtAddr(next), scratch(), 1000)?;
    let sum = u64::from_le_bytes(reply.scratch[..8].try_into().expect("the scratch pad begins with the sum"));
    assert_eq!((sum, reply.end.iterations, reply.end.requests), (123, 3, 1));
    print(&format!("sum of {} nodes in {} request: {sum}", reply.end.iterations, reply.end.requests));
    Ok(())
}

#[expect(clippy::print_stdout, reason = "an example prints its result")]
fn print(line: &str) {
    println!("{line}");
}

#[test]
fn it_runs() {
    main().unwrap();
}
