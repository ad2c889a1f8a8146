//! BPF as in RFC 9669: registers, addresses, loops and all. Window, scratch pad and stack are far apart.

const WINDOW: u64 = 0x1000_0000_0000;
const SCRATCH: u64 = 0x2000_0000_0000;
/// The first byte of the stack, which grows down from its end.
const STACK: u64 = 0x3000_0000_0000;
const STACK_LEN: usize = 128;
/// Bound on steps; generated functions have no loops.
const STEPS_MAX: usize = 10_000;

/// The end of a function.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum End {
    Returned(u64),
    /// An access outside all areas.
    Outside,
}

pub(super) struct Machine {
    registers: [u64; 11],
    /// Start and bytes of each area, and whether it is writable.
    areas: [(u64, Vec<u8>, bool); 3],
}

impl Machine {
    pub(super) fn new(window: &[u8], scratch: &[u8], cur_ptr: u64) -> Self {
        let mut registers = [0; 11];
        registers[1] = WINDOW;
        registers[2] = SCRATCH;
        registers[3] = cur_ptr;
        registers[10] = STACK + STACK_LEN as u64;
        let areas = [
            (WINDOW, window.to_vec(), false),
            (SCRATCH, scratch.to_vec(), true),
            (STACK, vec![0; STACK_LEN], true),
        ];
        Self { registers, areas }
    }

    pub(super) fn scratch(&self) -> &[u8] {
        &self.areas[1].1
    }

    pub(super) fn run(&mut self, code: &[[u8; 8]]) -> End {
        let mut at = 0;
        for _ in 0..STEPS_MAX {
            let [opcode, registers, o0, o1, i0, i1, i2, i3] = code[at];
            let (dst, src) = (usize::from(registers & 15), usize::from(registers >> 4));
            let offset = i16::from_le_bytes([o0, o1]);
            let imm = i64::from(i32::from_le_bytes([i0, i1, i2, i3])).cast_unsigned();
            let operand = if opcode & 8 == 0 { imm } else { self.registers[src] };
            at += 1;
            match opcode & 7 {
                1 => {
                    let from = self.registers[src].wrapping_add_signed(i64::from(offset));
                    let Some(bytes) = self.bytes(from, size(opcode), false) else { return End::Outside };
                    let mut word = [0; 8];
                    word[..bytes.len()].copy_from_slice(bytes);
                    self.registers[dst] = u64::from_le_bytes(word);
                }
                class @ (2 | 3) => {
                    let value = if class == 2 { imm } else { self.registers[src] };
                    let to = self.registers[dst].wrapping_add_signed(i64::from(offset));
                    let Some(bytes) = self.bytes(to, size(opcode), true) else { return End::Outside };
                    bytes.copy_from_slice(&value.to_le_bytes()[..size(opcode)]);
                }
                4 | 7 if opcode >> 4 == 0xd => {
                    let bits = u32::try_from(imm_of(code[at - 1])).expect("16, 32 or 64");
                    self.registers[dst] = self.registers[dst].swap_bytes() >> (64 - bits);
                }
                4 => {
                    let result = alu(opcode, low(self.registers[dst]), low(operand), 32);
                    self.registers[dst] = low(result);
                }
                7 => self.registers[dst] = alu(opcode, self.registers[dst], operand, 64),
                5 if opcode == 0x95 => return End::Returned(self.registers[0]),
                class => {
                    let taken = if class == 5 {
                        holds(opcode, self.registers[dst], operand, 64)
                    } else {
                        holds(opcode, low(self.registers[dst]), low(operand), 32)
                    };
                    if taken {
                        at = at.checked_add_signed(isize::from(offset)).expect("inside the function");
                    }
                }
            }
        }
        panic!("the function does not end");
    }

    fn bytes(&mut self, at: u64, size: usize, write: bool) -> Option<&mut [u8]> {
        self.areas.iter_mut().filter(|(_, _, writable)| *writable || !write).find_map(|(base, bytes, _)| {
            let from = usize::try_from(at.checked_sub(*base)?).ok()?;
            bytes.get_mut(from..from.checked_add(size)?)
        })
    }
}

const fn imm_of([_, _, _, _, i0, i1, i2, i3]: [u8; 8]) -> i32 {
    i32::from_le_bytes([i0, i1, i2, i3])
}

const fn size(opcode: u8) -> usize {
    match opcode & 0x18 {
        0x00 => 4,
        0x08 => 2,
        0x10 => 1,
        _ => 8,
    }
}

const fn low(value: u64) -> u64 {
    value & 0xffff_ffff
}

fn signed(value: u64, bits: u32) -> i64 {
    (value << (64 - bits)).cast_signed() >> (64 - bits)
}

fn alu(opcode: u8, a: u64, b: u64, bits: u32) -> u64 {
    let shift = b & u64::from(bits - 1);
    match opcode >> 4 {
        0x0 => a.wrapping_add(b),
        0x1 => a.wrapping_sub(b),
        0x2 => a.wrapping_mul(b),
        0x3 => a.checked_div(b).unwrap_or(0),
        0x4 => a | b,
        0x5 => a & b,
        0x6 => a << shift,
        0x7 => a >> shift,
        0x8 => a.wrapping_neg(),
        0x9 => a.checked_rem(b).unwrap_or(a),
        0xa => a ^ b,
        0xb => b,
        0xc => (signed(a, bits) >> shift).cast_unsigned(),
        other => panic!("operation {other:x} was not generated"),
    }
}

fn holds(opcode: u8, a: u64, b: u64, bits: u32) -> bool {
    let (sa, sb) = (signed(a, bits), signed(b, bits));
    match opcode >> 4 {
        0x0 => true,
        0x1 => a == b,
        0x2 => a > b,
        0x3 => a >= b,
        0x4 => a & b != 0,
        0x5 => a != b,
        0x6 => sa > sb,
        0x7 => sa >= sb,
        0xa => a < b,
        0xb => a <= b,
        0xc => sa < sb,
        0xd => sa <= sb,
        other => panic!("condition {other:x} was not generated"),
    }
}
