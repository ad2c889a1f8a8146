//! Which frame goes first: least recently used, as far as a page cache can see.
//!
//! Key type: [`Recency`], pure. The cache does not see how a mapped page is read and written, so the order in which pages came is
//! all that is known of them. To learn more, the oldest go to the *inactive list*: they keep their frame and lose their mapping. One that
//! is touched again costs a fault and no fetch, and is young again; one that is not is the next to go.
//!
//! ```text
//!   insert, touch --> [ young ... old ] --deactivate--> [ young ... old ] --> victim
//!                        active                           inactive
//!                          '---------------- touch ---------------'
//! ```

use alloc::boxed::Box;
use alloc::vec;

/// A frame's number, below the number of frames.
pub type Frame = u32;

/// Frames in the order of their last known use. Frames that must not go now are simply not in it.
#[derive(Clone, Debug)]
pub struct Recency {
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
    #[must_use]
    pub fn new(frames: usize) -> Self {
        assert!(frames < NONE as usize, "as many frames as numbers");
        let link = Link { younger: NONE, older: NONE, place: ListId::Out };
        let list = List { youngest: NONE, oldest: NONE, len: 0 };
        Self { links: vec![link; frames].into(), lists: [list; 2] }
    }

    /// The frame was used just now: the youngest.
    pub fn touch(&mut self, frame: Frame) {
        self.remove(frame);
        self.push(frame, ListId::Active);
    }

    /// Takes the frame out; without effect when it is not in.
    pub fn remove(&mut self, frame: Frame) {
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

    /// Moves the oldest active frame to the inactive list, and names it: its page is to be unmapped. `None` when all are inactive.
    pub fn deactivate(&mut self) -> Option<Frame> {
        let frame = self.oldest(ListId::Active)?;
        self.remove(frame);
        self.push(frame, ListId::Inactive);
        Some(frame)
    }

    /// The frame to go first: the oldest inactive one, else the oldest active one. It stays in the order.
    #[must_use]
    pub fn victim(&self) -> Option<Frame> {
        self.oldest(ListId::Inactive).or_else(|| self.oldest(ListId::Active))
    }

    /// True when the frame's page is unmapped.
    #[must_use]
    pub fn is_inactive(&self, frame: Frame) -> bool {
        self.links[frame as usize].place == ListId::Inactive
    }

    /// Puts a frame where it belongs from now on, as the youngest there.
    pub(crate) fn put(&mut self, frame: Frame, place: ListId) {
        self.remove(frame);
        if place != ListId::Out {
            self.push(frame, place);
        }
    }

    pub(crate) fn place(&self, frame: Frame) -> ListId {
        self.links[frame as usize].place
    }

    /// Inactive frames.
    #[must_use]
    pub const fn inactive(&self) -> usize {
        self.lists[1].len
    }

    /// Frames in the order, active and inactive.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.lists[0].len + self.lists[1].len
    }

    /// True when there is none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn oldest(&self, place: ListId) -> Option<Frame> {
        let list = self.lists[usize::from(place == ListId::Inactive)];
        (list.len > 0).then_some(list.oldest)
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

    #[derive(Clone, Copy, Debug)]
    enum Act {
        Touch(Frame),
        Remove(Frame),
        Deactivate,
    }

    const FRAMES: Frame = 6;

    fn act() -> impl Strategy<Value = Act> {
        prop_oneof![
            3 => (0..FRAMES).prop_map(Act::Touch),
            1 => (0..FRAMES).prop_map(Act::Remove),
            2 => Just(Act::Deactivate),
        ]
    }

    /// The plain form: two vectors, the oldest in front.
    #[derive(Default)]
    struct Plain {
        active: Vec<Frame>,
        inactive: Vec<Frame>,
    }

    impl Plain {
        fn remove(&mut self, frame: Frame) {
            self.active.retain(|&f| f != frame);
            self.inactive.retain(|&f| f != frame);
        }

        fn deactivate(&mut self) -> Option<Frame> {
            let frame = (!self.active.is_empty()).then(|| self.active.remove(0))?;
            self.inactive.push(frame);
            Some(frame)
        }
    }

    proptest! {
        /// Linked and plain lists agree on every answer.
        #[test]
        fn as_plain_lists(acts in proptest::collection::vec(act(), 0..60)) {
            let mut recency = Recency::new(FRAMES as usize);
            let mut plain = Plain::default();
            for act in acts {
                match act {
                    Act::Touch(frame) => {
                        recency.touch(frame);
                        plain.remove(frame);
                        plain.active.push(frame);
                    }
                    Act::Remove(frame) => {
                        recency.remove(frame);
                        plain.remove(frame);
                    }
                    Act::Deactivate => prop_assert_eq!(recency.deactivate(), plain.deactivate()),
                }
                prop_assert_eq!(recency.victim(), plain.inactive.iter().chain(&plain.active).next().copied());
                prop_assert_eq!(recency.inactive(), plain.inactive.len());
                prop_assert_eq!(recency.len(), plain.active.len() + plain.inactive.len());
                prop_assert_eq!(recency.is_empty(), plain.active.is_empty() && plain.inactive.is_empty());
                for frame in 0..FRAMES {
                    prop_assert_eq!(recency.is_inactive(frame), plain.inactive.contains(&frame));
                }
            }
        }
    }
}
