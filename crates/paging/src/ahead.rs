//! Prefetch policies.
//!
//! Key type: [`Prefetch`]; its account is [`crate::Account`]. An event lets a policy guess what will be
//! needed: a [`Fault`] in the page cache, elsewhere a key parsed from a packet. The proposal has the policy's
//! own type: pages here, records or traversals elsewhere. Policies only propose: the caller omits items that
//! are cached or do not exist, and keeps the account.

use alloc::boxed::Box;
use core::fmt::Debug;
use core::ops::Range;

/// The prefetch policy of a page cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ahead {
    /// No prefetch.
    None,
    /// The aligned group of this many pages.
    Group(u64),
    /// Up to this many pages of a stream: each fault that continues where the last fetch ended doubles the
    /// next fetch.
    Stream(u64),
    /// The aligned group of `pages` pages, and up to `most` pages of a stream of groups. A fetch grows like a
    /// stream's and is never smaller than a group.
    Groups {
        /// Pages of a group.
        pages: u64,
        /// Maximum number of pages.
        most: u64,
    },
}

impl Ahead {
    /// Returns the policy for one address space, limited to `most` pages.
    #[must_use]
    pub fn policy(self, most: u64) -> Box<dyn Prefetch<Fault, Proposal = Range<u64>>> {
        match self {
            Self::None => Box::new(Groups { pages: 1 }),
            Self::Group(pages) => Box::new(Groups { pages: pages.min(most) }),
            Self::Stream(pages) => Box::new(Streams::new(pages.min(most))),
            Self::Groups { pages, most: wanted } => {
                let pages = pages.clamp(1, most.max(1));
                Box::new(GroupStreams { pages, streams: Streams::new(wanted.min(most) / pages) })
            }
        }
    }
}

/// A thread waits for a page of an address space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fault {
    /// The page's number.
    pub page: u64,
}

/// A policy that proposes what to fetch after an event of type `E`.
///
/// ```
/// use farmem_paging::Prefetch;
///
/// /// Records of one size in the order of their keys: a caller that asks for one asks for the next.
/// #[derive(Debug)]
/// struct Sorted;
/// /// A request for a record came in.
/// struct Key(u64);
/// /// Bytes of far memory.
/// #[derive(Debug, PartialEq)]
/// struct Record {
///     addr: u64,
///     len: u32,
/// }
///
/// impl Prefetch<Key> for Sorted {
///     type Proposal = Record;
///     fn propose(&mut self, &Key(key): &Key) -> Record {
///         Record { addr: (key + 1) * 64, len: 64 }
///     }
/// }
/// assert_eq!(Sorted.propose(&Key(2)), Record { addr: 192, len: 64 });
/// ```
pub trait Prefetch<E>: Send + Debug {
    /// The type of a proposal.
    type Proposal;

    /// Returns what to fetch after the event. For pages: a run that contains the page that a thread waits
    /// for.
    fn propose(&mut self, event: &E) -> Self::Proposal;

    /// Reports the part of the latest proposal that is fetched. `here` also includes the adjacent items that
    /// were cached before.
    ///
    /// For pages: an empty range if there was no room even for the page that a thread waits for; that page
    /// will be proposed again.
    fn fetched(&mut self, what: &Self::Proposal, here: &Self::Proposal) {
        let _ = (what, here);
    }

    /// Reports a fetch for the latest proposal ahead of the event that would ask for it.
    fn fetched_early(&mut self, what: &Self::Proposal) {
        let _ = what;
    }

    /// Returns the items of an earlier fetch that the sequence has passed, and the total number passed.
    fn behind(&self) -> Option<(Self::Proposal, u64)> {
        None
    }
}

/// A policy that fetches the aligned group of `pages` pages around the page; 1 fetches the page alone.
#[derive(Clone, Copy, Debug)]
pub struct Groups {
    /// Pages of a group, at least 1.
    pub pages: u64,
}

impl Default for Groups {
    fn default() -> Self {
        Self { pages: 1 }
    }
}

impl Prefetch<Fault> for Groups {
    type Proposal = Range<u64>;

    fn propose(&mut self, &Fault { page }: &Fault) -> Range<u64> {
        let size = self.pages.max(1);
        let start = page - page % size;
        start..start.saturating_add(size)
    }
}

/// A policy that follows streams, upwards and downwards. A fault at the page behind the last proposal, or
/// before it, doubles the fetch, up to a limit; any other fault fetches one page. A stream keeps its
/// direction.
///
/// The policy follows [`STREAMS`] streams at once. Each isolated fault may begin a stream, and hardly any
/// does, so isolated faults share one half of the entries and never evict a stream that has continued.
#[derive(Clone, Debug)]
pub struct Streams {
    /// Maximum number of proposed pages, at least 1.
    pages_max: u64,
    streams: [Stream; STREAMS],
    /// Index of the stream that proposed last.
    latest: usize,
    /// Number of proposals so far.
    proposals: u64,
}

/// Number of streams followed at once.
pub const STREAMS: usize = 16;

#[derive(Clone, Copy, Default, Debug)]
struct Stream {
    /// The next page upwards, and downwards, if that direction is possible.
    up: Option<u64>,
    down: Option<u64>,
    pages: u64,
    /// The number of its latest proposal.
    proposal: u64,
    /// Pages from the first to the latest proposal; the fetches for the latest proposal and for the one
    /// before, as first page and end.
    through: u64,
    latest: (u64, u64),
    before: (u64, u64),
}

impl Stream {
    /// Returns true if the stream has continued at least once.
    const fn goes_on(&self) -> bool {
        self.pages > 1
    }
}

impl Streams {
    /// Returns a policy that proposes at most `pages_max` pages.
    #[must_use]
    pub fn new(pages_max: u64) -> Self {
        Self { pages_max: pages_max.max(1), streams: [Stream::default(); STREAMS], latest: 0, proposals: 0 }
    }

    /// Returns the index of the stream to replace. If more than half of the entries are continuing streams,
    /// it is the oldest of those, otherwise the oldest of the others.
    fn oldest(&self) -> usize {
        let many = self.streams.iter().filter(|stream| stream.goes_on()).count() > STREAMS / 2;
        let of_kind = self.streams.iter().enumerate().filter(|(_, stream)| stream.goes_on() == many);
        let oldest = of_kind.min_by_key(|(_, stream)| stream.proposal);
        oldest.expect("half of the streams, or more, are of the kind").0
    }
}

impl Prefetch<Fault> for Streams {
    type Proposal = Range<u64>;

    fn propose(&mut self, &Fault { page }: &Fault) -> Range<u64> {
        self.proposals += 1;
        let proposal = self.proposals;
        let goes_on = |stream: &Stream| stream.up == Some(page) || stream.down == Some(page);
        let Some(at) = self.streams.iter().position(goes_on) else {
            let end = page.saturating_add(1);
            self.latest = self.oldest();
            self.streams[self.latest] =
                Stream { up: Some(end), down: page.checked_sub(1), pages: 1, proposal, ..Stream::default() };
            self.streams[self.latest].latest = (page, end);
            return page..end;
        };
        self.latest = at;
        let stream = &mut self.streams[at];
        let pages = stream.pages.saturating_mul(2).min(self.pages_max);
        let (proposed, up, down) = if stream.up == Some(page) {
            let end = page.saturating_add(pages);
            (page..end, Some(end), None)
        } else {
            let start = (page + 1).saturating_sub(pages);
            (start..page + 1, None, start.checked_sub(1))
        };
        let Stream { through, latest: before, .. } = *stream;
        let far =
            if up.is_some() { page.saturating_sub(before.0) } else { before.1.saturating_sub(page + 1) };
        let (through, latest) = (through + far, (proposed.start, proposed.end));
        *stream = Stream { up, down, pages, proposal, through, latest, before };
        proposed
    }

    /// Moves the stream to the end of the cached pages, because no thread faults there.
    fn fetched(&mut self, pages: &Range<u64>, here: &Range<u64>) {
        let stream = &mut self.streams[self.latest];
        if pages.is_empty() {
            let goes_down = stream.up.is_none();
            let page = Some(pages.start);
            (stream.up, stream.down) = if goes_down { (None, page) } else { (page, None) };
            return;
        }
        stream.up = stream.up.map(|_| here.end);
        stream.down = stream.down.and_then(|_| here.start.checked_sub(1));
        stream.latest = (pages.start, pages.end);
    }

    /// Moves the stream to the page that was left out.
    fn fetched_early(&mut self, pages: &Range<u64>) {
        let latest = &mut self.streams[self.latest].latest;
        // A proposal for another stream may have come in between.
        if pages.start <= latest.1 && latest.0 <= pages.end {
            *latest = (latest.0.min(pages.start), latest.1.max(pages.end));
        }
    }

    /// Returns the fetch for the proposal before the latest, as far as the stream is past it.
    fn behind(&self) -> Option<(Range<u64>, u64)> {
        let Stream { up, before, latest, through, .. } = self.streams[self.latest];
        let pages =
            if up.is_some() { before.0..before.1.min(latest.0) } else { before.0.max(latest.1)..before.1 };
        Some((pages, through))
    }
}

/// Streams of aligned groups of `pages` pages.
#[derive(Clone, Debug)]
struct GroupStreams {
    pages: u64,
    /// The streams, counted in groups.
    streams: Streams,
}

impl GroupStreams {
    fn pages_of(&self, groups: &Range<u64>) -> Range<u64> {
        groups.start.saturating_mul(self.pages)..groups.end.saturating_mul(self.pages)
    }

    /// Returns the groups that lie entirely in a run. For an empty run: the empty range at the group of its
    /// page.
    const fn groups_of(&self, run: &Range<u64>) -> Range<u64> {
        let first = run.start / self.pages;
        if run.start == run.end {
            return first..first;
        }
        run.start.div_ceil(self.pages)..run.end / self.pages
    }
}

impl Prefetch<Fault> for GroupStreams {
    type Proposal = Range<u64>;

    fn propose(&mut self, &Fault { page }: &Fault) -> Range<u64> {
        let groups = self.streams.propose(&Fault { page: page / self.pages });
        self.pages_of(&groups)
    }

    /// Moves the stream to a group that is partly cached.
    fn fetched(&mut self, pages: &Range<u64>, here: &Range<u64>) {
        let (fetched, here) = (self.groups_of(pages), self.groups_of(here));
        self.streams.fetched(&fetched, &here);
    }

    fn fetched_early(&mut self, pages: &Range<u64>) {
        let groups = self.groups_of(pages);
        self.streams.fetched_early(&groups);
    }

    fn behind(&self) -> Option<(Range<u64>, u64)> {
        let (groups, through) = self.streams.behind()?;
        Some((self.pages_of(&groups), through.saturating_mul(self.pages)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    fn propose(policy: &mut impl Prefetch<Fault, Proposal = Range<u64>>, page: u64) -> Range<u64> {
        policy.propose(&Fault { page })
    }

    #[test]
    fn a_group_is_aligned_and_has_the_page() {
        let mut four = Groups { pages: 4 };
        assert_eq!([0, 3, 4, 9].map(|page| propose(&mut four, page)), [0..4, 0..4, 4..8, 8..12]);
        assert_eq!(propose(&mut Groups { pages: 0 }, 7), 7..8);
        assert_eq!(propose(&mut Groups::default(), 7), 7..8);
    }

    /// An early fetch of one stream, reported after a proposal for another one, does not join the two: the pages
    /// behind the stream would be all addresses in between.
    #[test]
    fn an_early_fetch_of_another_stream_is_not_this_one_s() {
        let mut streams = Streams::new(16);
        let far = 1 << 28;
        for page in [0, 1, far] {
            propose(&mut streams, page);
        }
        streams.fetched_early(&(3..5));
        propose(&mut streams, far + 1);
        let (behind, _) = streams.behind().expect("streams know it");
        assert_eq!(behind, far..far + 1);
    }

    /// Two interleaved streams grow as if alone, and jumps fetch single pages.
    #[test]
    fn streams_double_and_jumps_do_not() {
        let mut policy = Streams::new(8);
        let mut lens = Vec::new();
        let (mut a, mut b) = (10, 1000);
        for _ in 0..5 {
            let (ahead, other) = (propose(&mut policy, a), propose(&mut policy, b));
            assert_eq!((ahead.start, other.start), (a, b));
            assert_eq!(ahead.end - a, other.end - b);
            lens.push(ahead.end - a);
            (a, b) = (ahead.end, other.end);
        }
        assert_eq!(lens, [1, 2, 4, 8, 8]);
        for jump in [777, 555, 333] {
            assert_eq!(propose(&mut policy, jump), jump..jump + 1);
        }
    }

    /// A downward stream doubles like an upward one, ends at the first page, and does not turn round.
    #[test]
    fn streams_go_down_too() {
        let mut policy = Streams::new(8);
        let down = [30, 29, 27, 23, 15, 7].map(|page| propose(&mut policy, page));
        assert_eq!(down, [30..31, 28..30, 24..28, 16..24, 8..16, 0..8]);
        assert_eq!(propose(&mut policy, 8), 8..9, "not upwards again");
        let mut policy = Streams::new(4);
        assert_eq!([10, 11, 9].map(|page| propose(&mut policy, page)), [10..11, 11..13, 9..10]);
    }

    /// A stream whose fetch was cut short continues where the fetch ended, with its length.
    #[test]
    fn streams_go_on_where_they_were_cut() {
        let mut policy = Streams::new(16);
        assert_eq!([5, 6, 8].map(|page| propose(&mut policy, page)), [5..6, 6..8, 8..12]);
        policy.fetched(&(8..9), &(8..9));
        assert_eq!(propose(&mut policy, 9), 9..17);
        policy.fetched(&(9..9), &(9..9));
        assert_eq!(propose(&mut policy, 9), 9..25);
        let mut policy = Streams::new(16);
        assert_eq!([50, 49, 47].map(|page| propose(&mut policy, page)), [50..51, 48..50, 44..48]);
        policy.fetched(&(46..48), &(46..48));
        assert_eq!(propose(&mut policy, 45), 38..46);
        policy.fetched(&(45..45), &(45..45));
        assert_eq!(propose(&mut policy, 45), 30..46);
    }

    /// A stream continues behind cached pages, and reports the pages it has passed.
    #[test]
    fn streams_go_on_behind_what_is_here() {
        let mut policy = Streams::new(4);
        assert_eq!([5, 6].map(|page| propose(&mut policy, page)), [5..6, 6..8]);
        policy.fetched(&(6..7), &(6..20));
        assert_eq!(propose(&mut policy, 20), 20..24);
        assert_eq!(policy.behind(), Some((6..7, 15)));
        assert_eq!(propose(&mut policy, 24), 24..28);
        assert_eq!(policy.behind(), Some((20..24, 19)));
        propose(&mut policy, 90);
        assert_eq!(policy.behind(), Some((0..0, 0)));
        let mut policy = Streams::new(4);
        assert_eq!([50, 49].map(|page| propose(&mut policy, page)), [50..51, 48..50]);
        policy.fetched(&(49..50), &(30..50));
        assert_eq!(propose(&mut policy, 29), 26..30);
        assert_eq!(policy.behind(), Some((49..50, 21)));
    }

    /// A stream of groups begins with one group and doubles, in both directions, from any page of a group. An
    /// isolated fault fetches a group. A stream cut within a group continues with that group.
    #[test]
    fn streams_of_groups_double_and_are_never_less_than_one() {
        let ahead = Ahead::Groups { pages: 16, most: 64 };
        let mut policy = ahead.policy(1 << 20);
        let mut ask = |page| policy.propose(&Fault { page });
        assert_eq!([3, 16, 48, 112].map(&mut ask), [0..16, 16..48, 48..112, 112..176]);
        assert_eq!([1001, 991, 950].map(&mut ask), [992..1008, 960..992, 896..960]);
        assert_eq!([1600, 1599, 1567].map(&mut ask), [1600..1616, 1568..1600, 1504..1568]);
        let mut policy = ahead.policy(1 << 20);
        assert_eq!(policy.propose(&Fault { page: 0 }), 0..16);
        policy.fetched(&(0..8), &(0..8));
        assert_eq!(policy.propose(&Fault { page: 8 }), 0..32, "the rest of the group, and the next one");
        policy.fetched(&(8..32), &(0..32));
        assert_eq!(policy.propose(&Fault { page: 32 }), 32..96);
        policy.fetched(&(32..32), &(32..32));
        assert_eq!(policy.propose(&Fault { page: 40 }), 32..96, "there was no room");
        // A proposal is at most what the cache takes at once, and at least a page.
        assert_eq!(Ahead::Groups { pages: 16, most: 64 }.policy(8).propose(&Fault { page: 9 }), 8..16);
        assert_eq!(Ahead::Groups { pages: 0, most: 0 }.policy(0).propose(&Fault { page: 9 }), 9..10);
    }

    /// A stream is forgotten once enough other streams have begun.
    #[test]
    fn old_streams_are_forgotten() {
        let mut policy = Streams::new(8);
        assert_eq!(propose(&mut policy, 5), 5..6);
        for jump in 0..STREAMS as u64 {
            propose(&mut policy, 100 * (jump + 1));
        }
        assert_eq!(propose(&mut policy, 6), 6..7);
    }

    /// A continuing stream survives any number of isolated faults, and is replaced by younger continuing
    /// streams.
    #[test]
    fn faults_here_and_there_forget_no_stream() {
        let mut policy = Streams::new(8);
        assert_eq!([5, 6].map(|page| propose(&mut policy, page)), [5..6, 6..8]);
        for jump in 0..10 * STREAMS as u64 {
            propose(&mut policy, 100 * (jump + 1));
        }
        assert_eq!(propose(&mut policy, 8), 8..12);
        for stream in 0..STREAMS as u64 {
            let first = 1_000_000 + 100 * stream;
            propose(&mut policy, first);
            propose(&mut policy, first + 1);
        }
        assert_eq!(propose(&mut policy, 12), 12..13);
    }
}
