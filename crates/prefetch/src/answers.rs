//! The buffers that answers of far memory come in: how many bytes of them a driver has at once.
//!
//! Key type: [`Answers`]. A buffer counts from when its operation is submitted until the message is over that it belongs to: until then its items are where they came. Those that are kept to be used
//! again count, too, and make room. What counts is a buffer's capacity, which may be more than its operation asks for.
//!
//! Operations that wait are not kept here.

use farmem_client::Op;

/// Bytes of the buffers that answers of far memory come in, of all operations that are under way for a program. A single message always goes, whatever it needs: no structure that has a form needs more
/// for one of as many keys as may be.
pub const ANSWERS_BYTES_MAX: usize = 16 << 20;
/// Buffers that are kept to be used again.
const KEPT_MAX: usize = 64;

/// A driver's account of answer buffers.
#[derive(Debug, Default)]
pub(super) struct Answers {
    under_way: usize,
    most: usize,
    kept: Vec<Vec<u8>>,
    kept_bytes: usize,
}

impl Answers {
    /// Any buffer, of an earlier answer where there is one; its content is arbitrary.
    pub(super) fn buffer(&mut self) -> Vec<u8> {
        let buf = self.kept.pop().unwrap_or_default();
        self.kept_bytes -= buf.capacity();
        buf
    }

    /// True when an operation with a buffer of so many bytes may be submitted, and it counts then. One of the oldest message always may: nothing else makes room.
    pub(super) fn may_go(&mut self, bytes: usize, is_oldest: bool) -> bool {
        if !is_oldest && self.under_way + bytes > ANSWERS_BYTES_MAX {
            return false;
        }
        self.under_way += bytes;
        self.most = self.most.max(self.under_way);
        while self.under_way + self.kept_bytes > ANSWERS_BYTES_MAX && !self.kept.is_empty() {
            drop(self.buffer());
        }
        true
    }

    /// The operations that had so many bytes are over.
    pub(super) const fn ended(&mut self, bytes: usize) {
        self.under_way -= bytes;
    }

    /// Keeps a buffer of one that is over, where there is room.
    pub(super) fn keep(&mut self, buf: Vec<u8>) {
        let bytes = self.kept_bytes + buf.capacity();
        let has_room = self.kept.len() < KEPT_MAX && self.under_way + bytes <= ANSWERS_BYTES_MAX;
        if has_room && buf.capacity() > 0 {
            self.kept_bytes = bytes;
            self.kept.push(buf);
        }
    }

    /// Bytes under way, and the most that ever were.
    pub(super) const fn bytes(&self) -> (usize, usize) {
        (self.under_way, self.most)
    }
}

/// Bytes of the buffer that an operation's answer comes in.
pub(super) fn room_of(op: &Op) -> usize {
    match op {
        Op::Read { buf, .. } | Op::Gather { buf, .. } | Op::RegionRead { buf, .. } => buf.capacity(),
        Op::Traverse { scratch, .. } => scratch.capacity(),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PART: usize = ANSWERS_BYTES_MAX / 8;

    /// So many bytes are under way and kept together, and no more; but the oldest message always goes on.
    #[test]
    fn so_many_bytes_and_no_more() {
        let mut answers = Answers::default();
        (0..8).for_each(|_| assert!(answers.may_go(PART, false)));
        assert!(!answers.may_go(1, false));
        assert!(answers.may_go(PART, true));
        assert_eq!(answers.bytes(), (9 * PART, 9 * PART));
        answers.ended(2 * PART);
        assert!(answers.may_go(PART, false) && !answers.may_go(PART, false));
        // Nothing is kept beside what is under way; what is kept makes room.
        answers.keep(vec![0; PART]);
        assert_eq!(answers.buffer().capacity(), 0);
        answers.ended(8 * PART);
        (0..9).for_each(|_| answers.keep(vec![0; PART]));
        assert_eq!((answers.kept.len(), answers.kept_bytes), (8, 8 * PART));
        let buf = answers.buffer();
        assert!(buf.capacity() >= PART && answers.may_go(3 * PART, false));
        assert_eq!((answers.kept.len(), answers.kept_bytes, answers.bytes().0), (5, 5 * PART, 3 * PART));
        answers.ended(3 * PART);
        (0..100).for_each(|_| answers.keep(vec![0; 1]));
        assert_eq!(answers.kept.len(), KEPT_MAX);
        answers.keep(Vec::new());
        assert_eq!(answers.bytes(), (0, 9 * PART));
    }
}
