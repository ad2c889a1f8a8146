//! Allocate far memory; write, read, and change it atomically.
//!
//! `cargo run --example read_write`. `Rack::open("rack.toml")` uses a running rack in place of the one in this process.

use farmem::{Error, Rack, VirtAddr};

fn main() -> Result<(), Error> {
    let rack = Rack::embedded()?;
    let mut client = rack.client("example")?;

    // One allocation; its address means the same in every process of the rack.
    let vma = client.allocate(4096)?;
    client.write(vma.base, b"far away")?;
    let mut bytes = [0; 8];
    client.read(vma.base, &mut bytes)?;
    print(&format!("read back: {}", String::from_utf8_lossy(&bytes)));

    // Atomics run at the memory node, so any number of programs may use the same counter.
    let counter = VirtAddr(vma.base.0 + 64);
    for _ in 0..10 {
        client.fetch_add(counter, 4)?;
    }
    assert_eq!(client.fetch_add(counter, 0)?, 40);
    assert_eq!(client.compare_swap(counter, 40, 1)?, 40);

    // A request outside the allocation fails; the error says what to do.
    if let Err(error) = client.read(VirtAddr(vma.base.0 + 4090), &mut bytes) {
        print(&format!("refused: {error}; {}", error.remedy()));
    }
    client.free(vma.base)
}

#[expect(clippy::print_stdout, reason = "an example prints its result")]
fn print(line: &str) {
    println!("{line}");
}

#[test]
fn it_runs() {
    main().unwrap();
}
