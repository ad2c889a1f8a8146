//! Many operations in flight in the program's own loop, without threads, callbacks or a runtime.
//!
//! `cargo run --example many_in_flight`. The program counts letters in far counters: `submit` starts an operation, `poll` collects completions.

use farmem::{Error, Op, Rack, VirtAddr};

/// Operations in flight at once.
const DEPTH: usize = 32;

fn main() -> Result<(), Error> {
    let rack = Rack::embedded()?;
    let mut client = rack.client("example")?;
    let counters = client.allocate(26 * 8)?.base;
    let counter_of = |letter: char| VirtAddr(counters.0 + 8 * u64::from(u32::from(letter) - u32::from('a')));

    let text = "It was the best of times, it was the worst of times".to_lowercase().repeat(50);
    let mut letters = text.chars().filter(char::is_ascii_lowercase).peekable();
    let (mut in_flight, mut completed) = (0, 0_u64);
    while letters.peek().is_some() || in_flight > 0 {
        while in_flight < DEPTH
            && let Some(letter) = letters.next()
        {
            client.submit(Op::FetchAdd { addr: counter_of(letter), add: 1 })?;
            in_flight += 1;
        }
        // `poll` returns at once; `next_completed` waits. Here nothing else is left to do.
        if let Some(ended) = client.next_completed()? {
            ended.result?;
            in_flight -= 1;
            completed += 1;
        }
    }
    let count = |client: &mut farmem::Client, letter| client.fetch_add(counter_of(letter), 0);
    assert_eq!(completed, 50 * 39);
    assert_eq!(count(&mut client, 't')?, 50 * 8);
    print(&format!("{completed} letters counted"));
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
