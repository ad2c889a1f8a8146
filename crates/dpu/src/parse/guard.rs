//! A parser under guard: one that is broken or runs wild is cut off, and costs speed only (PROTOCOL 19.12).
//!
//! Key types: [`Guard`], [`Seen`]. What a parser says goes into [`Accesses`]; what does not fit there is counted as not seen. A driver with an unwinding runtime catches
//! panics around [`Guard::feed`] and says [`Guard::panicked`] (`crates/memory`).
//!
//! What it does not do: stop a parser that says nothing and does not return. A driver that runs parsers it does not trust has them on a thread of their own.

use super::{Access, Parser};
use crate::accesses::{Accesses, Position};

/// Why a connection is not parsed any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cut {
    /// The parser could read no more, and says why.
    Broken(&'static str),
    /// It said more accesses than the connection had bytes.
    Wild,
    /// It panicked.
    Panicked,
    /// Bytes were lost, and it cannot find the begin of a request behind them.
    Lost,
    /// The parsers of a program kept too much together, and it kept most.
    Crowded,
}

impl Cut {
    /// What it is counted under.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Broken(_) => "broken",
            Self::Wild => "wild",
            Self::Panicked => "panicked",
            Self::Lost => "lost",
            Self::Crowded => "crowded",
        }
    }
}

/// What came of a piece.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Seen {
    /// Accesses that were said.
    pub accesses: u64,
    /// Of those, what did not fit.
    pub left_out: u64,
    /// Bytes that were not parsed, because the connection was cut off before.
    pub passed_over: u64,
    /// It was cut off now.
    pub cut: Option<Cut>,
}

/// A parser keeps at most so much, whatever it says that it keeps: sums of many have room.
const KEPT_MAX: usize = u32::MAX as usize;

/// A connection's parser.
#[derive(Debug)]
pub struct Guard<P> {
    /// None of a connection that was cut off: what its parser kept is gone with it.
    parser: Option<P>,
    cut: Option<Cut>,
    kept: usize,
    /// Bytes, and accesses said of them.
    bytes: u64,
    said: u64,
    /// Called each time that a wild parser says one more: a driver that can unwinds from there.
    stop: fn(),
}

impl<P: Parser> Guard<P> {
    /// Guards a parser. `stop` is called from within a parser that has run wild, each time it says something, and may unwind.
    pub const fn new(parser: P, stop: fn()) -> Self {
        Self { parser: Some(parser), cut: None, kept: 0, bytes: 0, said: 0, stop }
    }

    /// The next bytes of the connection.
    pub fn feed(&mut self, bytes: &[u8], position: Position, into: &mut Accesses) -> Seen {
        let mut seen = Seen::default();
        let Self { parser: Some(parser), said, stop, bytes: all, kept, .. } = self else {
            seen.passed_over = bytes.len() as u64;
            return seen;
        };
        *all += bytes.len() as u64;
        let most = *all;
        let mut each = |access: Access<'_>| {
            *said += 1;
            if *said > most {
                return stop();
            }
            seen.accesses += 1;
            seen.left_out += u64::from(!into.push(access, position));
        };
        let fed = parser.feed(bytes, &mut each);
        *kept = parser.kept().min(KEPT_MAX);
        seen.cut = match fed {
            _ if self.said > self.bytes => Some(Cut::Wild),
            Err(broken) => Some(Cut::Broken(broken.reason)),
            Ok(()) => None,
        };
        if let Some(cut) = seen.cut {
            self.end(cut);
        }
        seen
    }

    /// Bytes of the connection were lost.
    pub fn lost(&mut self, bytes: u64) -> Option<Cut> {
        let parser = self.parser.as_mut()?;
        if parser.lost(bytes) {
            self.kept = parser.kept().min(KEPT_MAX);
            return None;
        }
        Some(self.end(Cut::Lost))
    }

    /// The parser panicked, or was stopped because it ran wild.
    pub fn panicked(&mut self) -> Cut {
        let cut = if self.said > self.bytes { Cut::Wild } else { Cut::Panicked };
        self.end(cut)
    }

    /// It keeps most of all that the parsers of a program keep, which is too much.
    pub fn crowded(&mut self) -> Cut {
        self.end(Cut::Crowded)
    }

    fn end(&mut self, cut: Cut) -> Cut {
        (self.parser, self.kept) = (None, 0);
        *self.cut.insert(cut)
    }

    /// Bytes of memory that its parser keeps; none of a connection that was cut off.
    #[must_use]
    pub const fn kept(&self) -> usize {
        self.kept
    }

    /// Why it is not parsed any more.
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

    /// Says an access for each byte, as many as the byte says.
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

    /// A parser that says more than there are bytes is cut off: what it says from then on counts no more, nor does what comes.
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

    /// A loss that the parser bears changes nothing; one that it does not ends it, once.
    #[test]
    fn a_loss_may_end_it() {
        let mut guard = Guard::new(Counting, || {});
        assert_eq!([9, 10, 11].map(|bytes| guard.lost(bytes)), [None, Some(Cut::Lost), None]);
        assert_eq!(guard.cut(), Some(Cut::Lost));
    }

    /// What a parser keeps is told, and gone with it when its connection is cut off, whatever for. Before, half a line stayed as long as the connection.
    #[test]
    fn what_is_cut_off_keeps_nothing() {
        use crate::parse::memcached::Memcached;
        type Ends = fn(&mut Guard<Memcached>, &mut Accesses) -> Option<Cut>;
        let ends: [Ends; 4] = [
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
