//! The programs that run in the tests' processes.

use crate::rig::{PAGE, Program, TestChannel};
use farmem::window::Memory;
use farmem::{SharedSpace, VirtAddr};
use std::os::unix::fs::FileExt as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{scope, yield_now};

pub(crate) const PROGRAMS: &[(&str, Program)] = &[
    ("count", count),
    ("count until", count_until),
    ("echo", echo),
    ("lock", lock),
    ("own words", own_words),
    ("versions", versions),
    ("hold", hold),
    ("hold all", hold_all),
    ("see", see),
    ("read", read),
    ("process", process),
    ("prefetched for", crate::ahead::prefetched_for),
];

fn word(space: &SharedSpace, at: u64) -> &AtomicU64 {
    space.word(VirtAddr(at))
}

/// Waits until all `others` have come to the word.
fn meet(space: &SharedSpace, at: u64, others: u64) {
    word(space, at).fetch_add(1, Ordering::AcqRel);
    while word(space, at).load(Ordering::Acquire) < others {
        yield_now();
    }
}

/// Adds one to a word this many times, together with all other processes. They meet every hundred rounds, so
/// that none finishes before another begins.
fn count(space: &SharedSpace, args: &[u64], _: &mut TestChannel) -> u64 {
    let &[at, rounds, all] = args else { panic!("a page, rounds, and how many count") };
    for round in 0..rounds {
        if round % 100 == 0 {
            meet(space, at, (round / 100 + 1) * all);
        }
        word(space, at + 2 * PAGE).fetch_add(1, Ordering::Relaxed);
    }
    rounds
}

/// Adds one to a word until told to stop. Returns the number of additions.
fn count_until(space: &SharedSpace, args: &[u64], _: &mut TestChannel) -> u64 {
    let &[counter, stop] = args else { panic!("two words") };
    let mut count = 0;
    while word(space, stop).load(Ordering::Relaxed) == 0 {
        word(space, counter).fetch_add(1, Ordering::Relaxed);
        count += 1;
    }
    count
}

/// Returns each message reversed, until one is empty. A message is words after a flag: its length plus one,
/// or 0.
fn echo(space: &SharedSpace, args: &[u64], _: &mut TestChannel) -> u64 {
    let &[from, to] = args else { panic!("two mailboxes") };
    let mut letters = 0;
    loop {
        let len = loop {
            match word(space, from).load(Ordering::Acquire) {
                0 => yield_now(),
                flag => break flag - 1,
            }
        };
        for n in 0..len {
            let read = word(space, from + 8 * (1 + n)).load(Ordering::Relaxed);
            word(space, to + 8 * (len - n)).store(read, Ordering::Relaxed);
        }
        word(space, from).store(0, Ordering::Release);
        word(space, to).store(len + 1, Ordering::Release);
        if len == 0 {
            return letters;
        }
        letters += 1;
    }
}

/// Adds to two distant words that change only together, under a ticket lock. Returns how often they
/// disagreed.
fn lock(space: &SharedSpace, args: &[u64], _: &mut TestChannel) -> u64 {
    let &[lock, one, other, rounds] = args else { panic!("three words and rounds") };
    let (next, serving) = (word(space, lock), word(space, lock + 8));
    let (one, other) = (word(space, one), word(space, other));
    let mut torn = 0;
    for _ in 0..rounds {
        let ticket = next.fetch_add(1, Ordering::Relaxed);
        while serving.load(Ordering::Acquire) != ticket {
            yield_now();
        }
        let (a, b) = (one.load(Ordering::Relaxed), other.load(Ordering::Relaxed));
        torn += u64::from(a != b);
        one.store(a + 1, Ordering::Relaxed);
        other.store(b + 1, Ordering::Relaxed);
        serving.store(ticket + 1, Ordering::Release);
    }
    torn
}

/// Writes its own words, in pages and regions that others write too, and reads them back. Returns the number
/// of mismatches.
fn own_words(space: &SharedSpace, args: &[u64], _: &mut TestChannel) -> u64 {
    let &[base, len, own, all, rounds] = args else { panic!("a range, a part of it, and rounds") };
    let mut wrong = 0;
    for round in 1..=rounds {
        for at in (base..base + len).step_by(512) {
            let own = word(space, at + 8 * own);
            wrong +=
                u64::from(own.load(Ordering::Relaxed) != if round == 1 { 0 } else { mark(at, round - 1) });
            own.store(mark(at, round), Ordering::Relaxed);
        }
        meet(space, base + len, round * all);
    }
    wrong
}

fn mark(at: u64, round: u64) -> u64 {
    at.rotate_left(20) ^ round
}

/// Stores ascending versions to random words of its own and loads other words. A version never goes back, and
/// an own word holds the last version written. Returns the number of violations. Local memory stays within
/// its limit all the while.
fn versions(space: &SharedSpace, args: &[u64], _: &mut TestChannel) -> u64 {
    let &[base, len, own, all, steps] = args else { panic!("a range, a part of it, and steps") };
    let (words, limit) = (len / 64, space.options().window.local_limit);
    let mut seen = vec![0_u64; usize::try_from(words).unwrap()];
    let (mut chance, mut wrong) = (farmem::Rng::from_number(own + 1), 0);
    meet(space, base + len, all);
    for step in 0..steps {
        let n = u64::from(chance.next_u32()) % words;
        let (at, seen) = (base + n * 64, &mut seen[usize::try_from(n).unwrap()]);
        let found = word(space, at).load(Ordering::Acquire);
        if n % all == own {
            wrong += u64::from(found != *seen);
            *seen += 1;
            word(space, at).store(*seen, Ordering::Release);
        } else {
            wrong += u64::from(found < *seen);
            *seen = found;
        }
        if step % 64 == 0 {
            wrong += u64::from(space.bytes_here() > limit);
        }
    }
    meet(space, base + len, 2 * all);
    // Every word has the value of its one writer.
    wrong += (own..words)
        .step_by(usize::try_from(all).unwrap())
        .filter(|&n| word(space, base + n * 64).load(Ordering::Acquire) != seen[usize::try_from(n).unwrap()])
        .count() as u64;
    wrong
}

/// Writes a page and writes it back, writes another page and keeps it, until killed.
fn hold(space: &SharedSpace, args: &[u64], talk: &mut TestChannel) -> u64 {
    let &[given_back, kept] = args else { panic!("two pages") };
    word(space, given_back).store(11, Ordering::Relaxed);
    word(space, kept).store(21, Ordering::Relaxed);
    space.write_back().unwrap();
    word(space, kept).store(22, Ordering::Relaxed);
    talk.say("holds");
    talk.await_word("never");
    0
}

/// Writes a word of each page and keeps the pages.
fn hold_all(space: &SharedSpace, args: &[u64], talk: &mut TestChannel) -> u64 {
    args.iter().for_each(|&at| word(space, at).store(22, Ordering::Relaxed));
    talk.say("holds");
    talk.await_word("never");
    0
}

/// Loads a word in several threads until it is `last`. Before each load, a thread reads the writer's published
/// progress from a shared file. Returns the number of loads that were older than that progress.
fn see(space: &SharedSpace, args: &[u64], talk: &mut TestChannel) -> u64 {
    let &[first, at, last] = args else { panic!("pages, a word behind them, and its last value") };
    let said = talk.said();
    let least = || {
        let mut word = [0; 8];
        said.read_exact_at(&mut word, 0).unwrap();
        u64::from_le_bytes(word)
    };
    let look = || {
        let (mut old, mut seen) = (0, 0);
        while seen < last {
            let least = least();
            seen = word(space, at).load(Ordering::Acquire);
            old += u64::from(seen < least);
        }
        old
    };
    // Many pages are to be taken before the word's page.
    for page in (first..=at).step_by(usize::try_from(PAGE).unwrap()) {
        assert!(word(space, page).load(Ordering::Acquire) < last);
    }
    talk.say("sees");
    // Many threads: after a stop, some of them run before the process's pager does.
    scope(|scope| {
        let threads = [(); 8].map(|()| scope.spawn(look));
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    })
}

/// Reads a word.
fn read(space: &SharedSpace, args: &[u64], _: &mut TestChannel) -> u64 {
    word(space, args[0]).load(Ordering::Relaxed)
}

/// Joins the address space as a process, reports that, then reads the words the test names. Returns the last
/// value read.
fn process(space: &SharedSpace, args: &[u64], talk: &mut TestChannel) -> u64 {
    let process = space.process(0).unwrap();
    talk.say("is there");
    let mut last = 0;
    for &at in args {
        talk.await_word("go on");
        last = word(space, at).load(Ordering::Relaxed);
        talk.say("has read");
        talk.await_word("go on");
        word(space, at).store(last + 1, Ordering::Relaxed);
        talk.say("has written");
    }
    process.exit().unwrap();
    last
}

/// Reads the word at `offset` through a system call; `None` when the kernel cannot read it (a program would
/// get a SIGBUS).
pub(crate) fn look(memory: Memory<'_>, offset: usize) -> Option<u64> {
    use std::io::{Read as _, Seek as _};
    let mut file = tempfile::tempfile().unwrap();
    memory.write_to(&file, offset, 8).ok()?;
    let mut word = [0; 8];
    file.rewind().unwrap();
    file.read_exact(&mut word).unwrap();
    Some(u64::from_le_bytes(word))
}
