//! The buffers for answers of far memory: the bytes that a driver has at once.
//!
//! Key type: [`Answers`]. A buffer counts from the submission of its operation to the end of its message, because
//! items stay in the buffer until then. Buffers kept for reuse count, too, and are freed when room is necessary. The
//! capacity of a buffer counts, which may exceed the length of the answer.
//!
//! Waiting operations are the driver's.

use farmem_client::Op;

/// Maximum number of bytes of the buffers for answers, over all pending operations of a program. A single message
/// always proceeds, whatever it needs. No structure with a form needs more for a message with the maximum number of
/// keys.
pub const ANSWERS_BYTES_MAX: usize = 16 << 20;
/// Maximum number of buffers kept for reuse.
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
    /// Returns a buffer, if possible of an earlier answer; its content is arbitrary.
    pub(super) fn buffer(&mut self) -> Vec<u8> {
        let buf = self.kept.pop().unwrap_or_default();
        self.kept_bytes -= buf.capacity();
        buf
    }

    /// Returns true if an operation with a buffer of `bytes` bytes may be submitted, and counts the buffer. An
    /// operation of the oldest message always may, because nothing else makes room.
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

    /// Subtracts the bytes of operations that have ended.
    pub(super) const fn ended(&mut self, bytes: usize) {
        self.under_way -= bytes;
    }

    /// Keeps a buffer for reuse if there is room.
    pub(super) fn keep(&mut self, buf: Vec<u8>) {
        let bytes = self.kept_bytes + buf.capacity();
        let has_room = self.kept.len() < KEPT_MAX && self.under_way + bytes <= ANSWERS_BYTES_MAX;
        if has_room && buf.capacity() > 0 {
            self.kept_bytes = bytes;
            self.kept.push(buf);
        }
    }

    /// Returns the pending bytes, and their maximum so far.
    pub(super) const fn bytes(&self) -> (usize, usize) {
        (self.under_way, self.most)
    }
}

/// Returns the capacity of an operation's buffer for its answer.
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

    /// Pending and kept bytes together are bounded, but the oldest message always proceeds.
    #[test]
    fn answer_buffers_are_bounded() {
        let mut answers = Answers::default();
        (0..8).for_each(|_| assert!(answers.may_go(PART, false)));
        assert!(!answers.may_go(1, false));
        assert!(answers.may_go(PART, true));
        assert_eq!(answers.bytes(), (9 * PART, 9 * PART));
        answers.ended(2 * PART);
        assert!(answers.may_go(PART, false) && !answers.may_go(PART, false));
        // No buffer is kept without room; kept buffers make room.
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
