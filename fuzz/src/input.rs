//! Decoder of fuzz inputs: numbers and choices come from the front of the bytes. Past the end, every byte is
//! zero.
//!
//! Zero always selects the plain choice: no damage, the right port, the next packet. A short input therefore
//! is a calm one. A mutation that truncates an input adds no noise.

/// Maximum number of events in an input. The decoder ignores the bytes after the last event.
pub(crate) const EVENTS_MAX: u32 = 64;

/// Unread rest of an input.
#[derive(Clone, Debug)]
pub(crate) struct Input<'a> {
    rest: &'a [u8],
    events: u32,
}

impl<'a> Input<'a> {
    pub(crate) fn new(data: &'a [u8]) -> Self {
        Self { rest: data, events: 0 }
    }

    /// Returns the number of the next event, below `bound`. Returns `None` at the end of the sequence.
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

    /// Returns a number below `bound`.
    pub(crate) fn below(&mut self, bound: u8) -> u8 {
        self.u8() % bound
    }

    /// Returns true for one in `of` byte values. A zero byte returns false.
    pub(crate) fn one_in(&mut self, of: u8) -> bool {
        self.below(of) == of - 1
    }

    /// Returns one of at most 256 elements. The first element is the plain choice.
    pub(crate) fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[usize::from(self.u8()) % of.len()]
    }

    /// Returns up to 255 bytes: the input holds a length, then the bytes.
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
