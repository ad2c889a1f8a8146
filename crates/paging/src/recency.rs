//! The eviction order of frames: least recently used, as far as a page cache can observe.
//!
//! Key type: [`Recency`], pure. The cache does not see accesses to a mapped page, so only the order of arrival is known. To learn
//! more, the oldest frames move to the *inactive list*: they keep their contents and lose their mapping. An inactive page that is
//! touched costs a fault and no fetch, and becomes the youngest; an untouched one is evicted next.
//!
//! ```text
//!   first use --> [ young ... old ] --oldest--> [ young ... old ] --oldest--> goes
//!                      active                        inactive
//!                        '-------------- touch -------------'
//! ```

use alloc::boxed::Box;
use alloc::vec;

/// A frame's number, below the number of frames.
pub type Frame = u32;

/// Frames in the order of their last known use. Frames that must not be evicted now are not in any list.
#[derive(Clone, Debug)]
pub(crate) struct Recency {
    links: Box<[Link]>,
    lists: [List; 2],
}

/// The list of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ListId {
    /// No list: the frame must not be evicted now.
    Out,
    /// The list of mapped pages.
    Active,
    /// The list of unmapped pages.
    Inactive,
}

#[derive(Clone, Copy, Debug)]
struct Link {
    younger: Frame,
    older: Frame,
    place: ListId,
}

/// No frame.
const NONE: Frame = Frame::MAX;

#[derive(Clone, Copy, Debug)]
struct List {
    youngest: Frame,
    oldest: Frame,
    len: usize,
}

impl Recency {
    /// Returns an empty order for `frames` frames.
    ///
    /// # Panics
    ///
    /// If there are more frames than numbers.
    pub(crate) fn new(frames: usize) -> Self {
        assert!(frames < NONE as usize, "as many frames as numbers");
        let link = Link { younger: NONE, older: NONE, place: ListId::Out };
        let list = List { youngest: NONE, oldest: NONE, len: 0 };
        Self { links: vec![link; frames].into(), lists: [list; 2] }
    }

    /// Removes the frame from its list, if any.
    fn remove(&mut self, frame: Frame) {
        let Link { younger, older, place } = self.links[frame as usize];
        let Some(list) = self.list_mut(place) else { return };
        list.len -= 1;
        if list.youngest == frame {
            list.youngest = older;
        }
        if list.oldest == frame {
            list.oldest = younger;
        }
        if let Some(link) = self.links.get_mut(younger as usize) {
            link.older = older;
        }
        if let Some(link) = self.links.get_mut(older as usize) {
            link.younger = younger;
        }
        self.links[frame as usize] = Link { younger: NONE, older: NONE, place: ListId::Out };
    }

    /// Moves a frame to a list, as the youngest.
    pub(crate) fn put(&mut self, frame: Frame, place: ListId) {
        self.remove(frame);
        if place != ListId::Out {
            self.push(frame, place);
        }
    }

    /// Makes an active frame the oldest.
    pub(crate) fn retire(&mut self, frame: Frame) {
        if self.place(frame) != ListId::Active {
            return;
        }
        self.remove(frame);
        let list = &mut self.lists[0];
        let second = core::mem::replace(&mut list.oldest, frame);
        list.len += 1;
        if second == NONE {
            list.youngest = frame;
        }
        if let Some(link) = self.links.get_mut(second as usize) {
            link.older = frame;
        }
        self.links[frame as usize] = Link { younger: second, older: NONE, place: ListId::Active };
    }

    /// Returns the frame's list.
    pub(crate) fn place(&self, frame: Frame) -> ListId {
        self.links[frame as usize].place
    }

    /// Returns the number of inactive frames.
    pub(crate) const fn inactive(&self) -> usize {
        self.lists[1].len
    }

    /// Returns the number of frames in both lists.
    pub(crate) const fn len(&self) -> usize {
        self.lists[0].len + self.lists[1].len
    }

    /// Returns the least recently used frame of a list.
    pub(crate) fn oldest(&self, place: ListId) -> Option<Frame> {
        let list = self.lists[usize::from(place == ListId::Inactive)];
        (list.len > 0).then_some(list.oldest)
    }

    /// Returns the frames of a list, least recently used first.
    pub(crate) fn oldest_first(&self, place: ListId) -> impl Iterator<Item = Frame> {
        let next = |&frame: &Frame| Some(self.links[frame as usize].younger).filter(|&frame| frame != NONE);
        core::iter::successors(self.oldest(place), next)
    }

    fn push(&mut self, frame: Frame, place: ListId) {
        let Some(list) = self.list_mut(place) else { unreachable!("frames are pushed into a list") };
        let second = list.youngest;
        list.youngest = frame;
        list.len += 1;
        if second == NONE {
            list.oldest = frame;
        }
        if let Some(link) = self.links.get_mut(second as usize) {
            link.younger = frame;
        }
        self.links[frame as usize] = Link { younger: NONE, older: second, place };
    }

    const fn list_mut(&mut self, place: ListId) -> Option<&mut List> {
        match place {
            ListId::Out => None,
            ListId::Active => Some(&mut self.lists[0]),
            ListId::Inactive => Some(&mut self.lists[1]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    const FRAMES: Frame = 6;

    /// Generates a list for the frame, or `None` to make it the oldest active one.
    fn list() -> impl Strategy<Value = Option<ListId>> {
        let list =
            prop_oneof![1 => Just(ListId::Out), 3 => Just(ListId::Active), 2 => Just(ListId::Inactive)];
        proptest::option::weighted(0.8, list)
    }

    proptest! {
        /// Linked and plain lists agree on every answer. A plain list has its oldest frame in front.
        #[test]
        fn as_plain_lists(puts in proptest::collection::vec((0..FRAMES, list()), 0..60)) {
            let mut recency = Recency::new(FRAMES as usize);
            let mut plain = [Vec::new(), Vec::new()];
            for (frame, list) in puts {
                let Some(list) = list else {
                    recency.retire(frame);
                    if let Some(at) = plain[0].iter().position(|&f| f == frame) {
                        plain[0].remove(at);
                        plain[0].insert(0, frame);
                    }
                    continue;
                };
                recency.put(frame, list);
                plain.iter_mut().for_each(|list| list.retain(|&f| f != frame));
                match list {
                    ListId::Out => {}
                    ListId::Active => plain[0].push(frame),
                    ListId::Inactive => plain[1].push(frame),
                }
                let [active, inactive] = &plain;
                prop_assert_eq!(recency.oldest(ListId::Active), active.first().copied());
                prop_assert_eq!(recency.oldest(ListId::Inactive), inactive.first().copied());
                prop_assert_eq!(recency.inactive(), inactive.len());
                prop_assert_eq!(recency.len(), active.len() + inactive.len());
                prop_assert!(recency.oldest_first(ListId::Active).eq(active.iter().copied()));
                prop_assert!(recency.oldest_first(ListId::Inactive).eq(inactive.iter().copied()));
                for frame in 0..FRAMES {
                    let place = match (active.contains(&frame), inactive.contains(&frame)) {
                        (true, _) => ListId::Active,
                        (_, true) => ListId::Inactive,
                        _ => ListId::Out,
                    };
                    prop_assert_eq!(recency.place(frame), place);
                }
            }
        }
    }
}
