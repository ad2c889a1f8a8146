//! The words of requests that were parsed and are not executed yet.
//!
//! Key type: [`WordQueue`], by which a parser looks ahead and still parses each request once. Positions of words count from the
//! beginning of their request, so they hold while requests before it leave the input.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::ops::Range;

/// The position of a word's bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct WordRange {
    pub(crate) from: usize,
    pub(crate) to: usize,
}

/// A parsed request.
#[derive(Clone, Default, Debug)]
pub(crate) struct Request<T> {
    /// The length in bytes.
    pub(crate) len: usize,
    /// The request's words among those of the queue.
    pub(crate) words: Range<usize>,
    /// The form of the request, by its protocol.
    pub(crate) form: T,
}

/// The words of requests: of the last one taken, of those that wait, and of the one that is parsed now.
#[derive(Clone, Default, Debug)]
pub(crate) struct WordQueue<T> {
    words: Vec<WordRange>,
    /// The first word of the request that is parsed now.
    begin: usize,
    ahead: VecDeque<Request<T>>,
    /// Bytes of the requests that wait.
    ahead_len: usize,
    /// The request that was parsed or taken last.
    current: Request<T>,
}

/// Requests that wait at most.
const AHEAD_MAX: usize = 4 << 10;
/// Words of an empty queue, and its places for requests, that are kept for later ones.
const KEPT: (usize, usize) = (1 << 10, 1 << 6);

impl<T: Clone + Default> WordQueue<T> {
    /// Returns the bytes of the requests that wait.
    pub(crate) const fn ahead_len(&self) -> usize {
        self.ahead_len
    }

    /// Returns whether a request waits.
    pub(crate) fn has_ahead(&self) -> bool {
        !self.ahead.is_empty()
    }

    /// Returns whether no more requests may wait.
    pub(crate) fn is_full(&self) -> bool {
        self.ahead.len() >= AHEAD_MAX
    }

    /// Begins a request.
    pub(crate) fn begin(&mut self) {
        self.words.truncate(self.begin);
    }

    /// Drops the words of the requests before the one that is parsed now, none of which waits.
    pub(crate) fn drop_done(&mut self) {
        if self.begin > 0 {
            self.words.drain(..self.begin);
            self.words.shrink_to(KEPT.0);
            (self.begin, self.current) = (0, Request::default());
        }
    }

    /// Adds a word to the request that is parsed now.
    pub(crate) fn push(&mut self, from: usize, to: usize) {
        self.words.push(WordRange { from, to });
    }

    /// Ends the request that is parsed now. The request is the current one.
    pub(crate) fn end(&mut self, len: usize, form: T) {
        self.current = Request { len, words: self.begin..self.words.len(), form };
        self.begin = self.words.len();
    }

    /// Has the request that ended last wait.
    pub(crate) fn keep(&mut self) {
        self.ahead_len += self.current.len;
        self.ahead.push_back(self.current.clone());
    }

    /// Takes the first request that waits. The request is the current one.
    pub(crate) fn take(&mut self) -> Option<usize> {
        self.current = self.ahead.pop_front()?;
        self.ahead_len -= self.current.len;
        if self.ahead.is_empty() {
            self.ahead.shrink_to(KEPT.1);
        }
        Some(self.current.len)
    }

    /// Returns the words of the request that is parsed now.
    pub(crate) fn parsed(&self) -> &[WordRange] {
        &self.words[self.begin..]
    }

    /// Returns the current request.
    pub(crate) const fn current(&self) -> &Request<T> {
        &self.current
    }

    /// Returns the words of the current request.
    pub(crate) fn words(&self) -> &[WordRange] {
        &self.words[self.current.words.clone()]
    }

    /// Forgets all requests.
    pub(crate) fn clear(&mut self) {
        self.words.clear();
        self.words.shrink_to(KEPT.0);
        self.ahead.clear();
        (self.begin, self.ahead_len, self.current) = (0, 0, Request::default());
    }

    /// Returns the memory in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.words.capacity() * size_of::<WordRange>() + self.ahead.capacity() * size_of::<Request<T>>()
    }
}
