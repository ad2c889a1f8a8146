//! Which frame goes first: least recently used, as far as a page cache can see.
//!
//! Key type: [`Recency`], pure. The cache does not see how a mapped page is read and written, so the order in which pages came is
//! all that is known of them. To learn more, the oldest go to the *inactive list*: they keep their frame and lose their mapping. One that
//! is touched again costs a fault and no fetch, and is young again; one that is not is the next to go.
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

/// Frames in the order of their last known use. Frames that must not go now are simply not in it.
#[derive(Clone, Debug)]
pub(crate) struct Recency {
    links: Box<[Link]>,
    lists: [List; 2],
}

/// Where a frame is in the order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ListId {
    /// Not in it: it must not go now.
    Out,
    /// Among those whose pages are mapped.
    Active,
    /// Among those whose pages are unmapped.
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
    /// An order of none of `frames` frames.
    ///
    /// # Panics
    /// When there are more frames than numbers for them.
    pub(crate) fn new(frames: usize) -> Self {
        assert!(frames < NONE as usize, "as many frames as numbers");
        let link = Link { younger: NONE, older: NONE, place: ListId::Out };
        let list = List { youngest: NONE, oldest: NONE, len: 0 };
        Self { links: vec![link; frames].into(), lists: [list; 2] }
    }

    /// Takes the frame out; without effect when it is not in.
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

    /// Puts a frame where it belongs from now on, as the youngest there.
    pub(crate) fn put(&mut self, frame: Frame, place: ListId) {
        self.remove(frame);
        if place != ListId::Out {
            self.push(frame, place);
        }
    }

    /// An active frame is the oldest from now on.
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

    /// Where it is.
    pub(crate) fn place(&self, frame: Frame) -> ListId {
        self.links[frame as usize].place
    }

    /// Inactive frames.
    pub(crate) const fn inactive(&self) -> usize {
        self.lists[1].len
    }

    /// Frames in the order, active and inactive.
    pub(crate) const fn len(&self) -> usize {
        self.lists[0].len + self.lists[1].len
    }

    /// The one that was used longest ago of these.
    pub(crate) fn oldest(&self, place: ListId) -> Option<Frame> {
        let list = self.lists[usize::from(place == ListId::Inactive)];
        (list.len > 0).then_some(list.oldest)
    }

    /// These, the one that was used longest ago first.
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

    /// A frame is put somewhere, or is the oldest active one.
    fn list() -> impl Strategy<Value = Option<ListId>> {
        let list =
            prop_oneof![1 => Just(ListId::Out), 3 => Just(ListId::Active), 2 => Just(ListId::Inactive)];
        proptest::option::weighted(0.8, list)
    }

    proptest! {
        /// Linked and plain lists agree on every answer; of the plain ones the oldest is in front.
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
