//! The ordered effects of a role's event. Does not allocate once warm.

use crate::Port;
use alloc::vec::Vec;
use core::ops::Range;

/// An effect of a role.
#[derive(Debug)]
pub enum Action<'a, Out, Note> {
    /// Send these bytes (BTH to pad; the driver adds the ICRC) to `port`.
    Send {
        /// The receiver.
        port: Port,
        /// The frame to send.
        frame: &'a [u8],
    },
    /// A result for the role's own user.
    Local(Out),
    /// A note for the observer.
    Note(Note),
}

#[derive(Debug)]
enum Queued<Out, Note> {
    Send { port: Port, range: Range<usize> },
    Local(Out),
    Note(Note),
}

/// The ordered list of one event's effects. Frames are in one arena that is reused.
#[derive(Debug)]
pub struct Outbox<Out, Note> {
    arena: Vec<u8>,
    slots: Vec<Queued<Out, Note>>,
}

impl<Out, Note> Default for Outbox<Out, Note> {
    fn default() -> Self {
        Self { arena: Vec::new(), slots: Vec::new() }
    }
}

impl<Out, Note> Outbox<Out, Note> {
    /// Creates an empty outbox.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Opens a frame for `port`; dropping the writer sends it with all appended bytes.
    #[inline]
    pub fn frame(&mut self, port: Port) -> FrameWriter<'_, Out, Note> {
        let start = self.arena.len();
        FrameWriter { outbox: self, port, start }
    }

    /// Returns the last `count` frames, each complete, to write into several of them at once.
    ///
    /// # Panics
    /// If the last entries are not that many frames.
    pub fn last_frames(&mut self, count: usize) -> impl Iterator<Item = &mut [u8]> {
        let slots = &self.slots[self.slots.len() - count..];
        let ranges = slots.iter().map(|slot| match slot {
            Queued::Send { range, .. } => range.clone(),
            Queued::Local(_) | Queued::Note(_) => panic!("frames came last"),
        });
        let start = self.arena.len() - ranges.clone().map(|range| range.len()).sum::<usize>();
        let mut rest = &mut self.arena[start..];
        ranges.map(move |range| rest.split_off_mut(..range.len()).expect("frames lie one behind the other"))
    }

    /// Removes the last `count` frames: they are not sent.
    ///
    /// # Panics
    /// If the last entries are not that many frames.
    pub fn take_back(&mut self, count: usize) {
        for _ in 0..count {
            let Some(Queued::Send { range, .. }) = self.slots.pop() else { panic!("frames came last") };
            self.arena.truncate(range.start);
        }
    }

    /// Sends a copy of `bytes` to `port`.
    pub fn send(&mut self, port: Port, bytes: &[u8]) {
        self.frame(port).bytes().extend_from_slice(bytes);
    }

    /// Sends a result to the role's own user.
    #[inline]
    pub fn local(&mut self, out: Out) {
        self.slots.push(Queued::Local(out));
    }

    /// Adds a note for the observer.
    #[inline]
    pub fn note(&mut self, note: Note) {
        self.slots.push(Queued::Note(note));
    }

    /// Returns the number of pending actions.
    #[must_use]
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Returns true if no action is pending.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Passes every action to `each`, in order, and empties the outbox; keeps its allocations.
    #[inline]
    pub fn drain(&mut self, mut each: impl FnMut(Action<'_, Out, Note>)) {
        for slot in self.slots.drain(..) {
            let action = match slot {
                Queued::Send { port, range } => Action::Send { port, frame: &self.arena[range] },
                Queued::Local(out) => Action::Local(out),
                Queued::Note(note) => Action::Note(note),
            };
            // Called in one place, so that it is inlined into the loop: every datagram passes here.
            each(action);
        }
        self.arena.clear();
    }
}

/// A frame being written into an [`Outbox`]. Append only: no byte of an earlier frame can show through.
#[derive(Debug)]
pub struct FrameWriter<'a, Out, Note> {
    outbox: &'a mut Outbox<Out, Note>,
    port: Port,
    start: usize,
}

impl<Out, Note> FrameWriter<'_, Out, Note> {
    /// Returns the frame's buffer to append to. It must not be shortened (dropping the writer asserts this).
    #[inline]
    pub fn bytes(&mut self) -> &mut Vec<u8> {
        &mut self.outbox.arena
    }

    /// Returns the number of bytes appended so far.
    #[must_use]
    pub fn written(&self) -> usize {
        self.outbox.arena.len() - self.start
    }
}

impl<Out, Note> Drop for FrameWriter<'_, Out, Note> {
    #[inline]
    fn drop(&mut self) {
        let end = self.outbox.arena.len();
        assert!(end >= self.start, "a frame writer only appends");
        self.outbox.slots.push(Queued::Send { port: self.port, range: self.start..end });
    }
}
