//! An ordered index of numbers with many writers and no locks: insert, look up, scan a range.
//!
//! `cargo run --example ordered_index`.

use farmem::{BLinkTree, Error, Layout, Rack};

fn main() -> Result<(), Error> {
    let rack = Rack::embedded()?;
    let mut client = rack.client("example")?;

    let mut tree = BLinkTree::create(&mut client, Layout::Partitioned)?; // others: BLinkTree::open
    for year in (1800..1900).step_by(5) {
        tree.insert(&mut client, year, year * 10)?;
    }
    assert_eq!(tree.get(&mut client, 1815)?, Some(18150));
    let found = tree.scan(&mut client, 1801..=1812, 10)?;
    assert_eq!(found, [(1805, 18050), (1810, 18100)]);
    print(&format!("found {found:?}"));
    tree.destroy(&mut client)
}

#[expect(clippy::print_stdout, reason = "an example prints its result")]
fn print(line: &str) {
    println!("{line}");
}

#[test]
fn it_runs() {
    main().unwrap();
}
