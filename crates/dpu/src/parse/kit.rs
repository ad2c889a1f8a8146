//! Conformance tests for every [`Parser`]. Authors of parsers call them in their own `#[test]`;
//! docs/prefetching.md shows how.
//!
//! Key types: [`Example`], [`conforms`]. The kit does not check the examples: they are the author's
//! definition of the protocol.

use super::{Access, Op, Parser};
use alloc::vec::Vec;
use farmem_machine::Rng;

/// One or more complete requests and their accesses.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Example {
    /// The bytes as a client sends them.
    pub bytes: Vec<u8>,
    /// The accesses in the order of the bytes.
    pub accesses: Vec<(Vec<u8>, Op)>,
}

impl Example {
    /// Returns an example.
    #[must_use]
    pub fn of(bytes: &[u8], accesses: &[(&[u8], Op)]) -> Self {
        let accesses = accesses.iter().map(|&(key, op)| (key.to_vec(), op)).collect();
        Self { bytes: bytes.to_vec(), accesses }
    }
}

/// Number of tried connections with random bytes, and with randomly changed examples.
const HOSTILE: u32 = 2_000;
/// Maximum length in bytes of a connection of random bytes.
const HOSTILE_LEN_MAX: u32 = 400;
/// Length in bytes of an endless token: more than a parser may keep of a connection.
const ENDLESS_LEN: usize = 8 << 20;
/// Length in bytes of its pieces.
const ENDLESS_PIECE_LEN: usize = 64 << 10;
const SEED: u64 = 0x5044_3303;

/// Checks a parser:
///
/// 1. each example reports its accesses: whole, in two pieces split at every byte, and byte by byte;
/// 2. the accesses of a prefix of an example are the first accesses of the example;
/// 3. concatenated examples report the same as each alone;
/// 4. after lost bytes, if the parser says that it can continue, it reports no access that is in no example;
/// 5. for random bytes, and examples with bytes changed, dropped and doubled: the parser reports or refuses, in
///    pieces the same as at once, and never more accesses than bytes;
/// 6. it survives one token without an end.
///
/// # Panics
///
/// If the parser fails a check or panics.
pub fn conforms<P: Parser>(make: impl Fn() -> P, examples: &[Example]) {
    assert!(!examples.is_empty(), "a kit without examples tests nothing");
    examples.iter().for_each(|example| pieces(&make, example));
    together(&make, examples);
    lost(&make, examples);
    hostile(&make, examples);
    endless(&make, examples);
}

/// The accesses that a parser reported, and whether it reached the end.
type Parsed = (Vec<(Vec<u8>, Op)>, bool);

fn feed<P: Parser>(parser: &mut P, bytes: &[u8], parsed: &mut Vec<(Vec<u8>, Op)>) -> bool {
    parser.feed(bytes, &mut |Access { key, op }| parsed.push((key.to_vec(), op))).is_ok()
}

/// Returns the accesses of pieces; feeding stops at an error.
fn parsed<'a, P: Parser>(make: &impl Fn() -> P, pieces: impl IntoIterator<Item = &'a [u8]>) -> Parsed {
    let (mut parser, mut parsed) = (make(), Vec::new());
    let whole = pieces.into_iter().all(|piece| feed(&mut parser, piece, &mut parsed));
    (parsed, whole)
}

fn pieces<P: Parser>(make: &impl Fn() -> P, example: &Example) {
    let Example { bytes, accesses } = example;
    let expected = (accesses.clone(), true);
    assert_eq!(parsed(make, [&bytes[..]]), expected, "{example:?} at once");
    for at in 0..=bytes.len() {
        let (front, back) = bytes.split_at(at);
        let (early, whole) = parsed(make, [front]);
        assert!(whole, "{example:?}: its first {at} bytes are refused");
        assert!(accesses.starts_with(&early), "{example:?}: its first {at} bytes say {early:?}");
        assert_eq!(parsed(make, [front, back]), expected, "{example:?} split at {at}");
    }
    assert_eq!(parsed(make, bytes.chunks(1)), expected, "{example:?} byte by byte");
}

fn together<P: Parser>(make: &impl Fn() -> P, examples: &[Example]) {
    let twice = || examples.iter().chain(examples);
    let bytes: Vec<u8> = twice().flat_map(|example| example.bytes.clone()).collect();
    let accesses: Vec<_> = twice().flat_map(|example| example.accesses.clone()).collect();
    for len in [bytes.len().max(1), 1, 2, 3, 7, 1460] {
        assert_eq!(parsed(make, bytes.chunks(len)), (accesses.clone(), true), "all in pieces of {len}");
    }
}

fn lost<P: Parser>(make: &impl Fn() -> P, examples: &[Example]) {
    let known: Vec<_> = examples.iter().flat_map(|example| &example.accesses).collect();
    for example in examples {
        for at in 0..example.bytes.len() {
            let (mut parser, mut parsed) = (make(), Vec::new());
            assert!(feed(&mut parser, &example.bytes[..at], &mut parsed));
            // The rest of the example is lost; later examples are complete.
            if parser.lost((example.bytes.len() - at) as u64) {
                for other in examples {
                    if !feed(&mut parser, &other.bytes, &mut parsed) {
                        break;
                    }
                }
                let wrong = parsed.iter().find(|one| !known.contains(one));
                assert_eq!(
                    wrong, None,
                    "{example:?}: lost from {at} on, and then it says what no request did"
                );
            }
        }
    }
}

fn hostile<P: Parser>(make: &impl Fn() -> P, examples: &[Example]) {
    let mut rng = Rng::from_number(SEED);
    let count = u32::try_from(examples.len()).expect("not so many examples");
    for _ in 0..HOSTILE {
        let mut bytes = Vec::new();
        if rng.chance(1, 3) {
            bytes.extend((0..rng.below(HOSTILE_LEN_MAX)).map(|_| byte(&mut rng)));
        } else {
            for _ in 0..=rng.below(3) {
                bytes.extend_from_slice(&examples[rng.below(count) as usize].bytes);
            }
            for _ in 0..=rng.below(4) {
                damage(&mut bytes, &mut rng);
            }
        }
        let at_once = parsed(make, [&bytes[..]]);
        assert!(at_once.0.len() <= bytes.len(), "more accesses than bytes: {bytes:?}");
        let len = 1 + rng.below(8) as usize;
        let pieces = parsed(make, bytes.chunks(len));
        assert_eq!(pieces, at_once, "{bytes:?} in pieces of {len}");
    }
}

fn byte(rng: &mut Rng) -> u8 {
    rng.next_u32().to_le_bytes()[0]
}

/// Changes a byte, or drops or doubles some.
fn damage(bytes: &mut Vec<u8>, rng: &mut Rng) {
    let Ok(len) = u32::try_from(bytes.len()) else { return };
    if len == 0 {
        return;
    }
    let at = rng.below(len) as usize;
    let end = (at + 1 + rng.below(6) as usize).min(bytes.len());
    match rng.below(4) {
        0 => drop(bytes.drain(at..end)),
        1 => {
            let again = bytes[at..end].to_vec();
            bytes.splice(at..at, again);
        }
        // Digits occur in lengths.
        2 => bytes[at] = b'0' + byte(rng) % 10,
        _ => bytes[at] = byte(rng),
    }
}

fn endless<P: Parser>(make: &impl Fn() -> P, examples: &[Example]) {
    let piece = |byte| alloc::vec![byte; ENDLESS_PIECE_LEN];
    for example in examples {
        for (at, filler) in [(1, b'9'), (example.bytes.len() / 2, b'a'), (example.bytes.len(), b'x')] {
            let (mut parser, mut parsed) = (make(), Vec::new());
            let mut fed = feed(&mut parser, &example.bytes[..at], &mut parsed);
            let piece = piece(filler);
            for _ in 0..ENDLESS_LEN / ENDLESS_PIECE_LEN {
                fed = fed && feed(&mut parser, &piece, &mut parsed);
            }
            assert!(parsed.len() <= at + ENDLESS_LEN, "more accesses than bytes");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse::Broken;

    /// A parser of lines, each of them a key, with deliberate faults for the tests to find.
    #[derive(Default)]
    struct Lines {
        kept: Vec<u8>,
        forgets: bool,
        doubles: bool,
        panics: bool,
        resumes: bool,
        refuses: bool,
    }

    impl Parser for Lines {
        fn feed(&mut self, bytes: &[u8], each: &mut dyn FnMut(Access<'_>)) -> Result<(), Broken> {
            for &byte in bytes {
                assert!(!self.panics || byte < 250, "a byte it does not expect");
                if byte != b'\n' {
                    self.kept.push(byte);
                    continue;
                }
                for _ in 0..if self.doubles { 1_000 } else { 1 } {
                    each(Access { key: &self.kept, op: Op::Read });
                }
                self.kept.clear();
            }
            if self.forgets {
                self.kept.clear();
            }
            if self.refuses && !self.kept.is_empty() {
                return Err(Broken { reason: "half a line" });
            }
            Ok(())
        }

        fn lost(&mut self, _: u64) -> bool {
            self.resumes
        }

        fn kept(&self) -> usize {
            self.kept.capacity()
        }
    }

    fn examples() -> Vec<Example> {
        [&b"one\n"[..], b"two\n"]
            .map(|line| Example::of(line, &[(line.strip_suffix(b"\n").unwrap(), Op::Read)]))
            .to_vec()
    }

    #[test]
    fn a_right_parser_passes() {
        conforms(Lines::default, &examples());
    }

    #[test]
    #[should_panic(expected = "split at 1")]
    fn one_that_forgets_between_pieces_fails() {
        conforms(|| Lines { forgets: true, ..Lines::default() }, &examples());
    }

    #[test]
    #[should_panic(expected = "at once")]
    fn one_that_says_things_twice_fails() {
        conforms(|| Lines { doubles: true, ..Lines::default() }, &examples());
    }

    #[test]
    #[should_panic(expected = "a byte it does not expect")]
    fn one_that_panics_fails() {
        conforms(|| Lines { panics: true, ..Lines::default() }, &examples());
    }

    #[test]
    #[should_panic(expected = "what no request did")]
    fn one_that_reads_on_behind_a_loss_fails() {
        conforms(|| Lines { resumes: true, ..Lines::default() }, &examples());
    }

    #[test]
    #[should_panic(expected = "are refused")]
    fn one_that_refuses_half_a_request_fails() {
        conforms(|| Lines { refuses: true, ..Lines::default() }, &examples()[..1]);
    }
}
