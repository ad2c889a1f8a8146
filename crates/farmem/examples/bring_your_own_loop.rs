//! Far memory in a program's own loop: many operations in flight, without a hidden thread, callback or
//! runtime.
//!
//! The program counts the letters of a text in counters in far memory. Its loop takes the next letter, starts
//! operations with `submit`, collects completions with `poll`, and waits only when nothing else is left to
//! do.
//!
//! `cargo run --example bring_your_own_loop`.

use farmem::{Answer, Client, Error, Op, Rack, Ticket, VirtAddr};
use std::collections::BTreeMap;

/// Operations in flight at once.
const DEPTH: usize = 32;
/// Bytes from one counter to the next.
const STRIDE: u64 = 8;

fn main() -> Result<(), Error> {
    let rack = Rack::embedded()?;
    let mut client = rack.client("letters")?;
    let counters = client.allocate(26 * STRIDE)?.base;

    let text = "It was the best of times, it was the worst of times, it was the age of wisdom".repeat(50);
    let counted = count_letters(&mut client, counters, &text)?;

    say(&format!("{} letters, at most {} operations under way", counted.letters, counted.most_under_way));
    for letter in ['e', 't', 'z'] {
        say(&format!("{letter}: {}", client.fetch_add(counter_of(counters, letter), 0)?));
    }
    Ok(())
}

/// The result of the loop.
#[derive(Debug, Default)]
struct Counted {
    letters: u64,
    most_under_way: usize,
}

fn count_letters(client: &mut Client, counters: VirtAddr, text: &str) -> Result<Counted, Error> {
    let mut counted = Counted::default();
    let mut input = text.chars().map(|c| c.to_ascii_lowercase()).filter(char::is_ascii_lowercase);
    // The letter of each operation in flight.
    let mut under_way: BTreeMap<Ticket, char> = BTreeMap::new();
    let mut input_ended = false;
    while !input_ended || !under_way.is_empty() {
        // The program's own work comes first while operations may still start.
        if under_way.len() < DEPTH && !input_ended {
            match input.next() {
                Some(letter) => {
                    let add_one = Op::FetchAdd { addr: counter_of(counters, letter), add: 1 };
                    under_way.insert(client.submit(add_one)?, letter);
                    counted.most_under_way = counted.most_under_way.max(under_way.len());
                    continue;
                }
                None => input_ended = true,
            }
        }
        // Completions come next. With nothing else to do, the program lets the client wait instead of
        // polling.
        let ended = if input_ended { client.next_completed()? } else { client.poll()? };
        let Some(ended) = ended else { continue };
        let letter = under_way.remove(&ended.ticket).expect("each operation ends once");
        match ended.result? {
            Answer::Done { .. } => counted.letters += 1,
            Answer::Traversed(_) => unreachable!("{letter} was counted by an addition"),
        }
    }
    Ok(counted)
}

fn counter_of(counters: VirtAddr, letter: char) -> VirtAddr {
    let number = u64::from(u32::from(letter) - u32::from('a'));
    VirtAddr(counters.0 + number * STRIDE)
}

#[expect(clippy::print_stdout, reason = "an example talks to whoever runs it")]
fn say(line: &str) {
    println!("{line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_runs() {
        main().unwrap();
    }

    /// Every letter is counted once, and several operations are in flight at a time.
    #[test]
    fn the_counts_are_right() {
        let mut client = Rack::embedded_with(2, 1 << 20).unwrap().client("test").unwrap();
        let counters = client.allocate(26 * STRIDE).unwrap().base;
        let counted = count_letters(&mut client, counters, &"Abc, a!\n".repeat(100)).unwrap();
        assert_eq!((counted.letters, counted.most_under_way), (400, DEPTH));
        let count = |client: &mut Client, letter| client.fetch_add(counter_of(counters, letter), 0).unwrap();
        assert_eq!(['a', 'b', 'c', 'd'].map(|letter| count(&mut client, letter)), [200, 100, 100, 0]);
    }
}
