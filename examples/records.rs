//! Records that programs on any host find by name: a heap, and a table in it.
//!
//! `cargo run --example records`. Another program opens the same table with `Heap::open` and `Table::open`.

use farmem::heap::{Heap, HeapOptions};
use farmem::{Error, Rack, Table};

fn main() -> Result<(), Error> {
    let rack = Rack::embedded()?;
    let mut client = rack.client("shop")?;

    let mut heap = Heap::create(&mut client, "shop", HeapOptions::default())?;
    let users = Table::create(&mut client, &mut heap, "users", 1000)?;
    users.insert(&mut client, &mut heap, b"ada", b"{\"born\": 1815}")?;
    let found = users.get(&mut client, &mut heap, b"ada")?;
    assert_eq!(found.as_deref(), Some(&b"{\"born\": 1815}"[..]));
    print(&format!("ada: {}", String::from_utf8_lossy(&found.unwrap_or_default())));
    heap.close(&mut client)
}

#[expect(clippy::print_stdout, reason = "an example prints its result")]
fn print(line: &str) {
    println!("{line}");
}

#[test]
fn it_runs() {
    main().unwrap();
}
