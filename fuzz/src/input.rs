//! Bytes as a story: numbers and choices taken from the front, zeros behind the end.
//!
//! Zero is always the plain choice (no damage, the right port, the packet in its turn), so that a short input is a calm one and a
//! mutation that cuts an input off does not make noise of what was not cut.

/// Events in one input. An input that goes on after that is not read to its end.
pub(crate) const EVENTS_MAX: u32 = 64;

/// An input, as far as it was not read.
#[derive(Clone, Debug)]
pub(crate) struct Input<'a> {
    rest: &'a [u8],
    events: u32,
}

impl<'a> Input<'a> {
    pub(crate) fn new(data: &'a [u8]) -> Self {
        Self { rest: data, events: 0 }
    }

    /// The byte that says which event is next, below `bound`; `None` when the story is over.
    pub(crate) fn event(&mut self, bound: u8) -> Option<u8> {
        self.events += 1;
        (!self.rest.is_empty() && self.events <= EVENTS_MAX).then(|| self.below(bound))
    }

    pub(crate) fn u8(&mut self) -> u8 {
        let [byte] = self.array();
        byte
    }

    pub(crate) fn u16(&mut self) -> u16 {
        u16::from_be_bytes(self.array())
    }

    pub(crate) fn u32(&mut self) -> u32 {
        u32::from_be_bytes(self.array())
    }

    pub(crate) fn u64(&mut self) -> u64 {
        u64::from_be_bytes(self.array())
    }

    /// A number below `bound`.
    pub(crate) fn below(&mut self, bound: u8) -> u8 {
        self.u8() % bound
    }

    /// True for one byte value in `of`, which is not zero.
    pub(crate) fn one_in(&mut self, of: u8) -> bool {
        self.below(of) == of - 1
    }

    /// One of these, of which there are at most 256; the first one is the plain choice.
    pub(crate) fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[usize::from(self.u8()) % of.len()]
    }

    /// Up to 255 bytes: a length, and as many of them as are there.
    pub(crate) fn bytes(&mut self) -> &'a [u8] {
        let len = usize::from(self.u8()).min(self.rest.len());
        let (bytes, rest) = self.rest.split_at(len);
        self.rest = rest;
        bytes
    }

    fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut array = [0; N];
        let len = N.min(self.rest.len());
        let (bytes, rest) = self.rest.split_at(len);
        array[..len].copy_from_slice(bytes);
        self.rest = rest;
        array
    }
}
