//! Far memory by plain loads and stores: a window with a quarter of an allocation local.
//!
//! `cargo run --example window`. Serving page faults needs a userfaultfd (`farmem doctor` says whether this user has one).

use farmem::window::{WindowOptions, with_window};
use farmem::{Error, Rack};

fn main() -> Result<(), Error> {
    let rack = Rack::embedded()?;
    let mut client = rack.client("example")?;
    let vma = client.allocate(1 << 20)?;

    let options = WindowOptions::new(256 << 10);
    let served = with_window(&mut client, &vma, options, |memory| {
        for offset in (0..1 << 20).step_by(4096) {
            memory.write(offset, &offset.to_le_bytes());
        }
        let mut bytes = [0; 8];
        (0..1 << 20).step_by(4096).all(|offset| {
            memory.read(offset, &mut bytes);
            usize::from_le_bytes(bytes) == offset
        })
    });
    match served {
        Ok((all_right, stats)) => {
            assert!(all_right);
            print(&format!("{} fetches, {} evictions", stats.fetches, stats.evictions));
            Ok(())
        }
        Err(Error::Open(refused)) => {
            print(&format!("skipped: a window: {refused}"));
            Ok(())
        }
        Err(error) => Err(error),
    }
}

#[expect(clippy::print_stdout, reason = "an example prints its result")]
fn print(line: &str) {
    println!("{line}");
}

#[test]
fn it_runs() {
    main().unwrap();
}
