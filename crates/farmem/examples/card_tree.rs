//! A tree that RoCE cards look up by keyed READs (docs/roce-peers.md): the keys 0, 3, 6 and so on, each with
//! a third of itself as its value, and the last key with 7.
//!
//! Run `cargo run --example card_tree rack.toml DOMAIN KEYS` on a rack of one memory node. The program prints
//! the tree's address, root and levels. The tree stays when the program ends. `make interop` runs the example
//! with Soft-RoCE.

use farmem::{BLinkTree, Error, Layout, Rack};
use std::process::ExitCode;

/// Entries per node.
const FILL: usize = 7;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [file, domain, keys] = &args[..] else {
        return fail("usage: card_tree RACK.TOML DOMAIN KEYS");
    };
    let Ok(keys) = keys.parse::<u32>() else {
        return fail(&format!("{keys} is no number of keys"));
    };
    match made(file, domain, keys) {
        Ok(line) => {
            say(&line);
            ExitCode::SUCCESS
        }
        Err(error) => fail(&format!("card_tree: {error}; {}", error.remedy())),
    }
}

fn made(file: &str, domain: &str, keys: u32) -> Result<String, Error> {
    let mut client = Rack::open(file)?.client(domain)?;
    let mut tree = BLinkTree::create(&mut client, Layout::Partitioned)?;
    tree.load(&mut client, (0..keys).map(|n| (3 * u64::from(n), u64::from(n))), FILL)?;
    tree.insert(&mut client, u64::MAX, 7)?;
    let (address, root) = (tree.address(), tree.tree().root);
    Ok(format!("{:#x} {:#x} {}", address.0, root.0, tree.height(&mut client)?))
}

fn fail(why: &str) -> ExitCode {
    say(why);
    ExitCode::from(2)
}

#[expect(clippy::print_stdout, reason = "what it made is what it is for")]
fn say(line: &str) {
    println!("{line}");
}
