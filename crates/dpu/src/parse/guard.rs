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

/// A connection's parser.
#[derive(Debug)]
pub struct Guard<P> {
    parser: P,
    cut: Option<Cut>,
    /// Bytes, and accesses said of them.
    bytes: u64,
    said: u64,
    /// Called each time that a wild parser says one more: a driver that can unwinds from there.
    stop: fn(),
}

impl<P: Parser> Guard<P> {
    /// Guards a parser. `stop` is called from within a parser that has run wild, each time it says something, and may unwind.
    pub const fn new(parser: P, stop: fn()) -> Self {
        Self { parser, cut: None, bytes: 0, said: 0, stop }
    }

    /// The next bytes of the connection.
    pub fn feed(&mut self, bytes: &[u8], position: Position, into: &mut Accesses) -> Seen {
        let mut seen = Seen::default();
        if self.cut.is_some() {
            seen.passed_over = bytes.len() as u64;
            return seen;
        }
        self.bytes += bytes.len() as u64;
        let Self { parser, said, stop, .. } = self;
        let most = self.bytes;
        let mut each = |access: Access<'_>| {
            *said += 1;
            if *said > most {
                return stop();
            }
            seen.accesses += 1;
            seen.left_out += u64::from(!into.push(access, position));
        };
        let fed = parser.feed(bytes, &mut each);
        seen.cut = match fed {
            _ if self.said > self.bytes => Some(Cut::Wild),
            Err(broken) => Some(Cut::Broken(broken.reason)),
            Ok(()) => None,
        };
        self.cut = seen.cut;
        seen
    }

    /// Bytes of the connection were lost.
    pub fn lost(&mut self, bytes: u64) -> Option<Cut> {
        if self.cut.is_none() && !self.parser.lost(bytes) {
            self.cut = Some(Cut::Lost);
            return self.cut;
        }
        None
    }

    /// The parser panicked, or was stopped because it ran wild.
    pub fn panicked(&mut self) -> Cut {
        let cut = if self.said > self.bytes { Cut::Wild } else { Cut::Panicked };
        *self.cut.insert(cut)
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
}
