//! Look keys up in a hash table whose chains cross memory nodes. Each look-up is one traversal.
//!
//! `cargo run --example hash_table`.

use farmem::hash_table::{HashTable, Key, Spread, VALUE_LEN};
use farmem::{Error, Rack};

fn main() -> Result<(), Error> {
    let rack = Rack::embedded()?;
    let mut client = rack.client("example")?;

    // 1,000 keys in 100 buckets: chains of ten nodes, scattered over all memory nodes.
    let mut table = HashTable::create(&mut client, 1000, 100, Spread::Scattered)?;
    for number in 0..1000_u32 {
        let key = Key::of(&number.to_be_bytes());
        table.insert(&mut client, key, &[number.to_be_bytes()[3]; VALUE_LEN])?;
    }
    let found = table.find(&mut client, Key::of(&42_u32.to_be_bytes()))?;
    assert_eq!(found.map(|value| value[0]), Some(42));
    assert_eq!(table.find(&mut client, Key::of(b"absent"))?, None);
    print("1000 keys inserted, one found, one absent");
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
