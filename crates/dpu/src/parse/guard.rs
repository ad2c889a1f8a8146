//! A guard around a parser: a parser that fails or misbehaves is cut off and costs time only (PROTOCOL
//! 19.12).
//!
//! Key types: [`Guard`], [`FeedResult`]. Accesses go into [`Accesses`]; those that do not fit are counted as
//! unseen. A driver with an unwinding runtime catches panics around [`Guard::feed`] and calls
//! [`Guard::panicked`] (`crates/memory`). The guard cannot stop a parser that reports nothing and does not
//! return: a driver runs untrusted parsers on a thread of their own.

use super::{Access, Parser};
use crate::accesses::{Accesses, Position};

/// The reason for which a connection is not parsed any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cut {
    /// The parser returned an error, with this reason.
    Broken(&'static str),
    /// The parser reported more accesses than the connection had bytes.
    Wild,
    /// The parser panicked.
    Panicked,
    /// Bytes were lost, and the parser cannot find the beginning of the next request.
    Lost,
    /// All parsers of a program kept too much memory, and this one kept most.
    Crowded,
}

/// The result of feeding a piece.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct FeedResult {
    /// Accesses reported.
    pub accesses: u64,
    /// Accesses that did not fit.
    pub left_out: u64,
    /// Bytes not parsed, because the connection was cut off before.
    pub passed_over: u64,
    /// The cut, if the connection was cut off now.
    pub cut: Option<Cut>,
}

/// Limit of the memory that a parser may claim to keep, so that sums of many do not overflow.
const KEPT_MAX: usize = u32::MAX as usize;

/// The guarded parser of a connection.
#[derive(Debug)]
pub struct Guard<P> {
    /// `None` once the connection is cut off: the parser's memory is freed.
    parser: Option<P>,
    cut: Option<Cut>,
    kept: usize,
    /// Bytes fed, and accesses reported.
    bytes: u64,
    reported: u64,
    /// Called for each access of a parser that runs wild. A driver that can unwinds from here.
    stop: fn(),
}

impl<P: Parser> Guard<P> {
    /// Returns a guard. `stop` is called from within a parser that runs wild, for each access, and may
    /// unwind.
    pub const fn new(parser: P, stop: fn()) -> Self {
        Self { parser: Some(parser), cut: None, kept: 0, bytes: 0, reported: 0, stop }
    }

    /// Feeds the next bytes of the connection.
    pub fn feed(&mut self, bytes: &[u8], position: Position, into: &mut Accesses) -> FeedResult {
        let mut seen = FeedResult::default();
        let Self { parser: Some(parser), reported, stop, bytes: all, kept, .. } = self else {
            seen.passed_over = bytes.len() as u64;
            return seen;
        };
        *all += bytes.len() as u64;
        let most = *all;
        let mut each = |access: Access<'_>| {
            *reported += 1;
            if *reported > most {
                return stop();
            }
            seen.accesses += 1;
            seen.left_out += u64::from(!into.push(access, position));
        };
        let fed = parser.feed(bytes, &mut each);
        *kept = parser.kept().min(KEPT_MAX);
        seen.cut = match fed {
            _ if self.reported > self.bytes => Some(Cut::Wild),
            Err(broken) => Some(Cut::Broken(broken.reason)),
            Ok(()) => None,
        };
        if let Some(cut) = seen.cut {
            self.end(cut);
        }
        seen
    }

    /// Reports that bytes of the connection were lost.
    pub fn lost(&mut self, bytes: u64) -> Option<Cut> {
        let parser = self.parser.as_mut()?;
        if parser.lost(bytes) {
            self.kept = parser.kept().min(KEPT_MAX);
            return None;
        }
        Some(self.end(Cut::Lost))
    }

    /// Records that the parser panicked, or was stopped because it ran wild.
    pub fn panicked(&mut self) -> Cut {
        let cut = if self.reported > self.bytes { Cut::Wild } else { Cut::Panicked };
        self.end(cut)
    }

    /// Cuts the connection off, because all parsers of a program keep too much memory and this one keeps
    /// most.
    pub fn crowded(&mut self) -> Cut {
        self.end(Cut::Crowded)
    }

    fn end(&mut self, cut: Cut) -> Cut {
        (self.parser, self.kept) = (None, 0);
        *self.cut.insert(cut)
    }

    /// Returns the memory in bytes that the parser keeps; 0 once the connection is cut off.
    #[must_use]
    pub const fn kept(&self) -> usize {
        self.kept
    }

    /// Returns the reason of the cut, if any.
    #[must_use]
    pub const fn cut(&self) -> Option<Cut> {
        self.cut
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse::{Broken, Op};
    use crate::view::KeySecret;

    /// A parser that reports as many accesses for each byte as the byte's value.
    struct Counting;

    impl Parser for Counting {
        fn feed(&mut self, bytes: &[u8], each: &mut dyn FnMut(Access<'_>)) -> Result<(), Broken> {
            for &byte in bytes {
                if byte == 255 {
                    return Err(Broken { reason: "255" });
                }
                (0..byte).for_each(|_| each(Access { key: b"k", op: Op::Read }));
            }
            Ok(())
        }

        fn lost(&mut self, bytes: u64) -> bool {
            bytes < 10
        }

        fn kept(&self) -> usize {
            0
        }
    }

    /// A parser that reports more accesses than bytes is cut off: later accesses do not count, and later
    /// bytes are not parsed.
    #[test]
    fn a_wild_parser_is_cut_off() {
        let mut guard = Guard::new(Counting, || {});
        let mut into = Accesses::new(KeySecret([0; 2]));
        let seen = guard.feed(&[0, 2, 1], Position(1), &mut into);
        assert_eq!((seen.accesses, seen.cut), (3, None));
        let seen = guard.feed(&[200], Position(2), &mut into);
        assert_eq!((seen.accesses, seen.cut, into.len()), (1, Some(Cut::Wild), 4));
        let seen = guard.feed(&[1, 1], Position(3), &mut into);
        assert_eq!((seen.accesses, seen.passed_over, seen.cut), (0, 2, None));
    }

    #[test]
    fn a_broken_connection_is_passed_over() {
        let mut guard = Guard::new(Counting, || {});
        let mut into = Accesses::new(KeySecret([0; 2]));
        assert_eq!(guard.feed(&[1, 255, 1], Position(1), &mut into).cut, Some(Cut::Broken("255")));
        assert_eq!(guard.feed(&[1], Position(1), &mut into).passed_over, 1);
        assert_eq!(into.len(), 1);
    }

    /// A tolerable loss changes nothing; an intolerable one cuts the connection off, once.
    #[test]
    fn a_loss_may_end_it() {
        let mut guard = Guard::new(Counting, || {});
        assert_eq!([9, 10, 11].map(|bytes| guard.lost(bytes)), [None, Some(Cut::Lost), None]);
        assert_eq!(guard.cut(), Some(Cut::Lost));
    }

    /// A parser's memory is reported, and freed when its connection is cut off for any reason. Regression:
    /// half a line stayed as long as the connection.
    #[test]
    fn cut_off_connections_keep_no_memory() {
        use crate::parse::memcached::Memcached;
        type CutFn = fn(&mut Guard<Memcached>, &mut Accesses) -> Option<Cut>;
        let ends: [CutFn; 4] = [
            |guard, into| guard.feed(b"\n\x80\n", Position(2), into).cut,
            |guard, _| guard.lost(1),
            |guard, _| Some(guard.panicked()),
            |guard, _| Some(guard.crowded()),
        ];
        for end in ends {
            let mut guard = Guard::new(Memcached::new(), || {});
            let mut into = Accesses::new(KeySecret([0; 2]));
            guard.feed(&[b'k'; 10_000], Position(1), &mut into);
            assert!(guard.kept() >= 10_000 && guard.cut().is_none());
            assert_eq!(end(&mut guard, &mut into), guard.cut());
            assert!(guard.cut().is_some() && guard.parser.is_none() && guard.kept() == 0, "{guard:?}");
        }
    }
}
