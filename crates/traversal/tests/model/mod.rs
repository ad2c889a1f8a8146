//! An independent implementation of PROTOCOL 10: runs the encoded form slot by slot, in 128-bit arithmetic,
//! without decoding it first.
//!
//! The model shares no code with the crate, and is written for comparison with the document, not for speed.

/// The end of the model's iteration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ending {
    Next(u64),
    Return,
    Fault,
    /// The iteration accessed bytes of the window that are not accessible.
    Behind,
}

/// One iteration of a verified program.
pub(crate) struct Model<'a> {
    encoded: &'a [u8],
    /// A copy.
    pub(crate) window: Vec<u8>,
    /// Accessible bytes of the window.
    there: usize,
    scratch: &'a mut [u8],
    spill: [u8; 128],
    regs: [u64; 11],
    /// Number of executed instructions.
    pub(crate) executed: u32,
}

impl<'a> Model<'a> {
    pub(crate) fn new(encoded: &'a [u8], window: &'a [u8], scratch: &'a mut [u8], cur_ptr: u64) -> Self {
        let mut regs = [0; 11];
        regs[1] = cur_ptr;
        let there = window.len();
        Self { encoded, window: window.to_vec(), there, scratch, spill: [0; 128], regs, executed: 0 }
    }

    /// Limits the accessible bytes of the window.
    pub(crate) fn cut(self, there: usize) -> Self {
        Self { there, ..self }
    }

    pub(crate) fn run(&mut self) -> Ending {
        let mut slot = 0;
        loop {
            self.executed += 1;
            let at = 8 + 8 * slot;
            let s: [u8; 8] = self.encoded[at..at + 8].try_into().expect("inside");
            let (opcode, dst, src) = (s[0], usize::from(s[1] % 16), usize::from(s[1] / 16));
            let offset = i64::from(i16::from_le_bytes([s[2], s[3]]));
            let imm = i64::from(i32::from_le_bytes([s[4], s[5], s[6], s[7]])).cast_unsigned();
            slot += 1;
            match opcode % 8 {
                0 => {
                    let high = u32::from_le_bytes(self.encoded[at + 12..at + 16].try_into().expect("inside"));
                    self.regs[dst] = u64::from(high) << 32 | imm & 0xffff_ffff;
                    slot += 1;
                }
                1 if opcode & 0x60 == 0x60 => {
                    let size = [4, 2, 1, 8][usize::from(opcode >> 3 & 3)];
                    let start = usize::try_from(offset).expect("verified");
                    let count = usize::try_from(imm).expect("verified");
                    let key = self.regs[src];
                    if start + count * size > self.there {
                        return Ending::Behind;
                    }
                    let elements = (0..count).map(|n| {
                        let bytes = &self.window[start + n * size..][..size];
                        (0..size).map(|byte| u64::from(bytes[byte]) << (8 * byte)).sum::<u64>()
                    });
                    let mut elements = elements.enumerate();
                    self.regs[dst] = if opcode & 0x80 == 0 {
                        u64::try_from(elements.filter(|(_, e)| *e <= key).count()).expect("few")
                    } else {
                        let found = elements.find(|(_, e)| *e == key);
                        found.map_or(imm, |(n, _)| u64::try_from(n).expect("few"))
                    };
                }
                1 => {
                    let index = if opcode >= 0x80 { self.regs[src] } else { 0 };
                    let there = self.there(opcode);
                    let (area, size) = self.area(opcode);
                    let Some(start) = inside(index, offset, size, area.len()) else { return Ending::Fault };
                    if start + size > there {
                        return Ending::Behind;
                    }
                    self.regs[dst] =
                        area[start..start + size].iter().rev().fold(0, |n, b| n << 8 | u64::from(*b));
                }
                2 | 3 => {
                    let index = if opcode >= 0x80 { self.regs[dst] } else { 0 };
                    let value = if opcode % 8 == 2 { imm } else { self.regs[src] };
                    let there = self.there(opcode);
                    let (area, size) = self.area(opcode);
                    let Some(start) = inside(index, offset, size, area.len()) else { return Ending::Fault };
                    if start + size > there {
                        return Ending::Behind;
                    }
                    for byte in 0..size {
                        area[start + byte] = u8::try_from(value >> (8 * byte) & 0xff).expect("masked");
                    }
                }
                4 | 7 => {
                    let b = if opcode & 8 == 0 { imm } else { self.regs[src] };
                    let bits = if opcode % 8 == 7 { 64 } else { 32 };
                    self.regs[dst] = alu(opcode / 16, self.regs[dst], b, bits);
                }
                _ if opcode == 0x95 => return Ending::Return,
                _ if opcode == 0xe5 => return Ending::Next(self.regs[dst]),
                class => {
                    let b = if opcode & 8 == 0 { imm } else { self.regs[src] };
                    let bits = if class == 5 { 64 } else { 32 };
                    if opcode == 0x05 || holds(opcode / 16, self.regs[dst], b, bits) {
                        slot += usize::try_from(offset).expect("forward");
                    }
                }
            }
        }
    }

    /// Returns the accessible bytes of an access's area.
    fn there(&self, opcode: u8) -> usize {
        if opcode >> 5 & 3 == 0 { self.there } else { usize::MAX }
    }

    fn area(&mut self, opcode: u8) -> (&mut [u8], usize) {
        let size = [4, 2, 1, 8][usize::from(opcode >> 3 & 3)];
        match opcode >> 5 & 3 {
            0 => (&mut self.window, size),
            1 => (self.scratch, size),
            2 => (&mut self.spill, size),
            _ => unreachable!("refused by the verifier"),
        }
    }
}

fn inside(index: u64, offset: i64, size: usize, len: usize) -> Option<usize> {
    let address = (i128::from(index) + i128::from(offset)).rem_euclid(1 << 64);
    let end = address + i128::try_from(size).expect("small");
    (end <= i128::try_from(len).expect("small")).then(|| usize::try_from(address).expect("small"))
}

fn cut(value: u64, bits: u32) -> u128 {
    u128::from(value) % (1 << bits)
}

/// Returns the low bits as a signed number.
fn signed(value: u64, bits: u32) -> i128 {
    let value = i128::try_from(cut(value, bits)).expect("64 bits");
    if value >= 1 << (bits - 1) { value - (1 << bits) } else { value }
}

fn alu(op: u8, a: u64, b: u64, bits: u32) -> u64 {
    let all = (1_u128 << bits) - 1;
    let (x, y, count) =
        (cut(a, bits), cut(b, bits), u32::try_from(cut(b, bits) % u128::from(bits)).expect("small"));
    let result = match op {
        0x0 => x + y,
        0x1 => x + (all + 1) - y,
        0x2 => x * y,
        0x3 => x.checked_div(y).unwrap_or(0),
        0x4 => x | y,
        0x5 => x & y,
        0x6 => x << count,
        0x7 => x >> count,
        0x8 => (all + 1) - x,
        0x9 => x.checked_rem(y).unwrap_or(x),
        0xa => x ^ y,
        0xb => y,
        0xc => (signed(a, bits) >> count).cast_unsigned(),
        0xe => all - x,
        _ => unreachable!("refused by the verifier"),
    };
    u64::try_from(result & all).expect("masked")
}

fn holds(cond: u8, a: u64, b: u64, bits: u32) -> bool {
    let (x, y) = (cut(a, bits), cut(b, bits));
    let (sx, sy) = (signed(a, bits), signed(b, bits));
    match cond {
        0x1 => x == y,
        0x2 => x > y,
        0x3 => x >= y,
        0x4 => x & y != 0,
        0x5 => x != y,
        0x6 => sx > sy,
        0x7 => sx >= sy,
        0xa => x < y,
        0xb => x <= y,
        0xc => sx < sy,
        0xd => sx <= sy,
        _ => unreachable!("refused by the verifier"),
    }
}
