//! Typical programs that are unaware of far memory: their work and its time.
//!
//! Key function: [`work`], this program started again. It waits for a command before it allocates memory, so
//! that all of it counts for its cgroup. It prints its time and a result that is the same for every memory
//! location.

use crate::Samples;
use crate::child::{await_begin, send_report};
use farmem_link::pin_to_cpu;
use std::hint::black_box;
use std::io;
use std::time::Instant;

/// The first argument that makes this program run [`work`]; the kind of work and the bytes follow.
pub const WORK: &str = "work";

/// Numbers of threads of [`Kind::RandomReads`].
pub(super) const READERS: [u8; 3] = [1, 2, 4];

/// Bytes of a page.
const PAGE: usize = 4096;
/// Words of 8 bytes in a page.
const WORDS: usize = PAGE / 8;

/// A kind of work. Numbers in brackets are for the full size of 128 MiB.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// Blocks of 200 KB, allocated, written and freed, one after the other (20,000).
    Malloc,
    /// Blocks of 16 to 512 bytes, 1,000 of which exist at once (5 million).
    Small,
    /// A block that grows from 4 KiB, by half each time (to 128 MiB).
    Realloc,
    /// A new block, written once.
    Fill,
    /// A block read from end to end, three times.
    Scan,
    /// A block read from end to end, three times, where it does not fit.
    Seq,
    /// Words read at random (50,000).
    RandomRead,
    /// Words read at random by this many threads of [`READERS`] together (50,000 in all).
    RandomReads(u8),
    /// Words read at random, each timed alone: the time is the median.
    Fault,
    /// Words written at random (50,000).
    RandomWrite,
    /// Unordered numbers, sorted.
    Sort,
    /// Two rounds of `PageRank`: links in order, ranks at random.
    PageRank,
}

impl Kind {
    pub(super) const ALL: [Self; 14] = [
        Self::Malloc,
        Self::Small,
        Self::Realloc,
        Self::Fill,
        Self::Scan,
        Self::Seq,
        Self::RandomRead,
        Self::RandomReads(READERS[0]),
        Self::RandomReads(READERS[1]),
        Self::RandomReads(READERS[2]),
        Self::Fault,
        Self::RandomWrite,
        Self::Sort,
        Self::PageRank,
    ];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Malloc => "malloc",
            Self::Small => "small",
            Self::Realloc => "realloc",
            Self::Fill => "fill",
            Self::Scan => "scan",
            Self::Seq => "seq",
            Self::RandomRead => "random_read",
            Self::RandomReads(1) => "random_reads_1",
            Self::RandomReads(2) => "random_reads_2",
            Self::RandomReads(_) => "random_reads_4",
            Self::Fault => "fault",
            Self::RandomWrite => "random_write",
            Self::Sort => "sort",
            Self::PageRank => "pagerank",
        }
    }

    /// Returns the number of words that random reads of `bytes` touch.
    pub(super) const fn reads(self, bytes: u64) -> u64 {
        (bytes >> 17) * 50_000 / 1024
    }
}

/// Does the work called `name` with `bytes` of memory on a command on standard input, on `cpu` if given.
/// Prints the nanoseconds and a result number to standard output.
///
/// # Errors
/// An error when there is no such work or CPU, or the parent is gone.
pub fn work(name: &str, bytes: usize, cpu: Option<usize>) -> io::Result<()> {
    let wrong = |what: &str| io::Error::new(io::ErrorKind::InvalidInput, what.to_owned());
    let Some(kind) = Kind::ALL.into_iter().find(|kind| kind.name() == name) else {
        return Err(wrong(&format!("no work is called {name:?}")));
    };
    if bytes < 1 << 20 {
        return Err(wrong("at least 1048576 bytes are needed"));
    }
    cpu.map_or(Ok(()), pin_to_cpu)?;
    if !await_begin()? {
        return Ok(());
    }
    let (took, sum) = carry_out(kind, bytes);
    send_report(took, sum, None)
}

fn carry_out(kind: Kind, bytes: usize) -> (std::time::Duration, u64) {
    // 1,024 at 128 MiB.
    let scale = bytes >> 17;
    match kind {
        Kind::Malloc => timed(|| blocks(scale * 20_000 / 1024)),
        Kind::Small => timed(|| small(scale * 5_000_000 / 1024)),
        Kind::Realloc => timed(|| grown(bytes)),
        Kind::Fill => timed(|| filled(bytes)[WORDS]),
        Kind::Scan | Kind::Seq => {
            let words = filled(bytes);
            timed(|| (0..3).map(|round| round + black_box(&words).iter().sum::<u64>() % 1000).sum())
        }
        Kind::RandomRead => {
            let words = filled(bytes);
            timed(|| {
                let places = places(words.len(), scale * 50_000 / 1024);
                places.fold(0, |sum: u64, place| sum.wrapping_add(black_box(&words)[place]))
            })
        }
        Kind::RandomReads(threads) => {
            let words = filled(bytes);
            timed(|| read_together(&words, scale * 50_000 / 1024, threads.into()))
        }
        Kind::Fault => {
            let words = filled(bytes);
            let (mut times, mut sum) = (Samples::new(), 0_u64);
            for place in places(words.len(), scale * 50_000 / 1024) {
                let begin = Instant::now();
                sum = sum.wrapping_add(black_box(&words)[place]);
                times.record(begin.elapsed());
            }
            (times.median(), sum)
        }
        Kind::RandomWrite => {
            let mut words = filled(bytes);
            let (took, _) = timed(|| {
                for place in places(words.len(), scale * 50_000 / 1024) {
                    black_box(&mut words)[place] += 1;
                }
                0
            });
            (took, words.iter().fold(0, |sum, &word| sum.rotate_left(1) ^ word))
        }
        Kind::Sort => {
            let mut words: Vec<u64> = numbers().take(bytes / 8).collect();
            let (took, _) = timed(|| {
                words.sort_unstable();
                0
            });
            assert!(words.is_sorted(), "what was sorted is in order");
            (took, words[words.len() / 3])
        }
        Kind::PageRank => {
            let graph = Graph::new(bytes);
            timed(|| graph.rank(2))
        }
    }
}

fn timed(what: impl FnOnce() -> u64) -> (std::time::Duration, u64) {
    let begin = Instant::now();
    let sum = what();
    (begin.elapsed(), sum)
}

/// Returns pseudo-random numbers, the same each time (a linear congruential generator with Knuth's constants
/// for MMIX).
fn numbers() -> impl Iterator<Item = u64> {
    let next = |state: &u64| {
        Some(state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407))
    };
    std::iter::successors(Some(1), next).skip(1).map(|state: u64| state ^ (state >> 29))
}

/// Returns pseudo-random word positions in `len`.
fn places(len: usize, count: usize) -> impl Iterator<Item = usize> {
    let len = len as u64;
    numbers().take(count).map(move |number| usize::try_from((number >> 16) % len).expect("less than len"))
}

/// Reads `count` words by `threads` threads, each its own share of one sequence.
fn read_together(words: &[u64], count: usize, threads: usize) -> u64 {
    let share = |thread: usize| {
        let places = places(words.len(), count).skip(thread).step_by(threads);
        places.fold(0, |sum: u64, place| sum.wrapping_add(black_box(words)[place]))
    };
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..threads).map(|thread| scope.spawn(move || share(thread))).collect();
        readers.into_iter().fold(0, |sum: u64, reader| {
            sum.wrapping_add(reader.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        })
    })
}

fn filled(bytes: usize) -> Vec<u64> {
    let count = bytes as u64 / 8;
    let mut words = Vec::with_capacity(bytes / 8);
    words.extend(0..count);
    black_box(words)
}

fn blocks(count: usize) -> u64 {
    const LEN: usize = 200_000;
    let mut sum = 0;
    for n in 0..count {
        let byte = u8::try_from(n % 256).expect("less than 256");
        let mut block: Vec<u8> = Vec::with_capacity(LEN);
        block.resize(LEN, byte);
        sum += u64::from(black_box(&block)[n % LEN]);
    }
    sum
}

fn small(count: usize) -> u64 {
    let mut here: Vec<Box<[u8]>> = (0..1000).map(|_| Box::default()).collect();
    let mut sum = 0;
    for (n, number) in numbers().take(count).enumerate() {
        let len = 16 + usize::try_from(number % 497).expect("less than 497");
        let mut block = vec![0_u8; len];
        block[len - 1] = 1;
        let old = std::mem::replace(&mut here[n % 1000], block.into_boxed_slice());
        sum += u64::from(old.last().copied().unwrap_or(0));
    }
    sum
}

/// Grows a vector by half each time through its allocator's `realloc`, and writes its new bytes.
fn grown(bytes: usize) -> u64 {
    let mut block: Vec<u8> = Vec::new();
    let (mut len, mut sum) = (PAGE, 0);
    while len < bytes {
        block.reserve_exact(len - block.len());
        block.resize(len, 1);
        sum += u64::from(black_box(&block)[len / 2]);
        len += len / 2;
    }
    sum
}

/// Links between nodes, stored by target: half of the memory is for them.
struct Graph {
    /// The start of each node's links, and the end of the last.
    begins: Vec<u32>,
    /// The source nodes of the links.
    from: Vec<u32>,
    /// The out-degree of each node.
    out: Vec<u32>,
}

impl Graph {
    /// Creates a graph with 24 links per node: 100 bytes for a node, its links, and its ranks.
    fn new(bytes: usize) -> Self {
        const LINKS: usize = 24;
        let nodes = bytes / (LINKS * 4 + 4 + 4 + 8 + 8);
        let mut numbers = numbers();
        let from: Vec<u32> = (0..nodes * LINKS)
            .map(|_| {
                // Few nodes have many links.
                let (a, b) = (numbers.next().unwrap_or(0) >> 32, numbers.next().unwrap_or(0) >> 32);
                let at = (((a * b) >> 32) * nodes as u64) >> 32;
                u32::try_from(at).expect("fewer nodes than 2^32")
            })
            .collect();
        let mut out = vec![0; nodes];
        from.iter().for_each(|&node| out[node as usize] += 1);
        let begins = (0..=nodes).map(|node| u32::try_from(node * LINKS).expect("fewer than 2^32")).collect();
        Self { begins, from, out }
    }

    /// Runs rounds of `PageRank` with a damping of 0.85. Returns the largest rank in millionths of the total.
    #[expect(clippy::cast_precision_loss, reason = "ranks are fractions")]
    fn rank(&self, rounds: usize) -> u64 {
        let nodes = self.out.len();
        let mut ranks = vec![1.0 / nodes as f64; nodes];
        let mut given = vec![0.0; nodes];
        for _ in 0..rounds {
            for (given, (&rank, &out)) in given.iter_mut().zip(ranks.iter().zip(&self.out)) {
                *given = rank / f64::from(out.max(1));
            }
            for (rank, ends) in ranks.iter_mut().zip(self.begins.windows(2)) {
                let links = &self.from[ends[0] as usize..ends[1] as usize];
                let sum: f64 = links.iter().map(|&node| given[node as usize]).sum();
                *rank = 0.15 / nodes as f64 + 0.85 * sum;
            }
        }
        let most = ranks.iter().copied().fold(0.0, f64::max);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a fraction of a million"
        )]
        let millionths = (most * 1e6) as u64;
        millionths
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each kind of work ends with the same number each time.
    #[test]
    fn work_is_the_same_each_time() {
        for kind in Kind::ALL {
            let [(_, once), (_, again)] = [carry_out(kind, 2 << 20), carry_out(kind, 2 << 20)];
            assert_eq!(once, again, "{}", kind.name());
        }
    }

    #[test]
    fn what_is_no_work_is_refused() {
        assert!(work("nap", 1 << 20, None).unwrap_err().to_string().contains("nap"));
        work("fill", 100, None).unwrap_err();
    }
}
