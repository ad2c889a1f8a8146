//! Random valid programs and memory for them, to compare all ways to run programs. Included by the tests of
//! other crates.

use farmem_traversal::{
    AluOp, Area, Cond, Insn, MemOperand, Operand, Program, Reg, SCRATCH_LEN_MAX, SPILL_LEN, Search, SearchOp,
    Size, UnaryOp, Width,
};
use proptest::prelude::*;
use proptest::sample::select;

/// An instruction before it is fitted into a program: its target and offset are arbitrary.
#[derive(Clone, Debug)]
struct Draft {
    insn: Insn,
    ahead: u16,
}

fn reg() -> impl Strategy<Value = Reg> {
    select(&Reg::ALL[..])
}

/// Generates numbers near the edges, where wrapping, signs and masks matter.
fn imm() -> impl Strategy<Value = i32> {
    prop_oneof![any::<i32>(), -3..4, 28..68, select(&[i32::MIN, i32::MAX][..])]
}

fn operand() -> impl Strategy<Value = Operand> {
    prop_oneof![reg().prop_map(Operand::Reg), imm().prop_map(Operand::Imm)]
}

fn width() -> impl Strategy<Value = Width> {
    select(&[Width::W64, Width::W32][..])
}

fn size() -> impl Strategy<Value = Size> {
    select(&[Size::B1, Size::B2, Size::B4, Size::B8][..])
}

fn place() -> impl Strategy<Value = MemOperand> {
    let area = select(&[Area::Window, Area::Scratch, Area::Spill][..]);
    let offset = prop_oneof![0..256_i16, 0..4032_i16, -9..9_i16, any::<i16>()];
    (area, proptest::option::weighted(0.3, reg()), offset).prop_map(|(area, index, offset)| MemOperand {
        area,
        index,
        offset,
    })
}

fn search() -> impl Strategy<Value = Search> {
    let op = select(&[SearchOp::Rank, SearchOp::Match][..]);
    (op, size(), 0..256_i16, 1..=64_u8, reg()).prop_map(|(op, size, offset, count, key)| Search {
        op,
        size,
        offset,
        count,
        key,
    })
}

fn draft() -> impl Strategy<Value = Draft> {
    use AluOp::{Add, And, Div, Mod, Mov, Mul, Or, Sar, Shl, Shr, Sub, Xor};
    use Cond::{Eq, Ge, Gt, Le, Lt, Ne, Set, Sge, Sgt, Sle, Slt};
    let alu = select(&[Add, Sub, Mul, Div, Mod, And, Or, Xor, Shl, Shr, Sar, Mov][..]);
    let cond = select(&[Eq, Ne, Lt, Le, Gt, Ge, Set, Slt, Sle, Sgt, Sge][..]);
    let insn = prop_oneof![
        6 => (width(), alu, reg(), operand()).prop_map(|(width, op, dst, src)| Insn::Alu { width, op, dst, src }),
        1 => (width(), select(&[UnaryOp::Neg, UnaryOp::Not][..]), reg())
            .prop_map(|(width, op, dst)| Insn::Unary { width, op, dst }),
        1 => (reg(), any::<u64>()).prop_map(|(dst, imm)| Insn::Imm64 { dst, imm }),
        4 => (size(), reg(), place()).prop_map(|(size, dst, from)| Insn::Load { size, dst, from }),
        3 => (size(), place(), operand()).prop_map(|(size, to, src)| Insn::Store { size, to, src }),
        1 => (reg(), search()).prop_map(|(dst, search)| Insn::Search { dst, search }),
        1 => Just(Insn::Jump { target: 0 }),
        4 => (width(), cond, reg(), operand())
            .prop_map(|(width, cond, left, right)| Insn::Branch { width, cond, left, right, target: 0 }),
        1 => reg().prop_map(|ptr| Insn::Next { ptr }),
        1 => Just(Insn::Return),
    ];
    let ahead = prop_oneof![0..4_u16, any::<u16>()];
    (insn, ahead).prop_map(|(insn, ahead)| Draft { insn, ahead })
}

/// Makes a draft valid at its position: jumps ahead and inside, constant accesses and arrays inside, stores
/// to the window only if the program may.
fn fit(
    draft: &Draft,
    number: usize,
    count: usize,
    (window_len, scratch_len): (usize, usize),
    stores: bool,
) -> Insn {
    let left = count - number - 1;
    let ahead = number + 1 + usize::from(draft.ahead) % left;
    let target = u16::try_from(ahead).expect("few instructions");
    let fit_place = |size: Size, place: MemOperand, store: bool| {
        let area = if store && !stores && place.area == Area::Window { Area::Spill } else { place.area };
        let len = match area {
            Area::Window => window_len,
            Area::Scratch => scratch_len,
            Area::Spill => SPILL_LEN,
        };
        let Some(last) = len.checked_sub(size.bytes()) else {
            return MemOperand { area, index: Some(place.index.unwrap_or(Reg::R3)), ..place };
        };
        if place.index.is_some() {
            return MemOperand { area, ..place };
        }
        let offset = usize::from(place.offset.unsigned_abs()) % (last + 1);
        MemOperand { area, index: None, offset: i16::try_from(offset).expect("inside an area") }
    };
    match draft.insn {
        Insn::Jump { .. } => Insn::Jump { target },
        Insn::Branch { width, cond, left, right, .. } => Insn::Branch { width, cond, left, right, target },
        Insn::Load { size, dst, from } => Insn::Load { size, dst, from: fit_place(size, from, false) },
        Insn::Store { size, to, src } => Insn::Store { size, to: fit_place(size, to, true), src },
        Insn::Search { dst, search } => match fit_search(search, window_len) {
            Some(search) => Insn::Search { dst, search },
            None => Insn::Unary { width: Width::W64, op: UnaryOp::Not, dst },
        },
        insn => insn,
    }
}

/// Returns the search with as many elements as fit the window; `None` if none fits.
fn fit_search(search: Search, window_len: usize) -> Option<Search> {
    let room = window_len / search.size.bytes();
    let count = usize::from(search.count).min(room).max(usize::from(room > 0));
    let last = window_len - count * search.size.bytes();
    let offset = usize::from(search.offset.unsigned_abs()) % (last + 1);
    let (count, offset) = (u8::try_from(count).expect("at most 64"), i16::try_from(offset).expect("small"));
    (count > 0).then_some(Search { count, offset, ..search })
}

/// Generates any valid program of up to 255 instructions that does not store.
pub(crate) fn program() -> impl Strategy<Value = Program> {
    drafted(false)
}

/// Generates programs as [`program`], with stores to the window.
pub(crate) fn storing_program() -> impl Strategy<Value = Program> {
    drafted(true)
}

fn drafted(stores: bool) -> impl Strategy<Value = Program> {
    let last = prop_oneof![reg().prop_map(|ptr| Insn::Next { ptr }), Just(Insn::Return)];
    let drafts = prop_oneof![
        9 => proptest::collection::vec(draft(), 0..40),
        1 => proptest::collection::vec(draft(), 200..255),
    ];
    (1..=256_usize, prop_oneof![0..=256_usize, 0..=SCRATCH_LEN_MAX], drafts, last).prop_map(
        move |(window_len, scratch_len, drafts, last)| {
            let lens = (window_len, scratch_len);
            let count = drafts.len() + 1;
            let fitted = drafts.iter().enumerate();
            let mut insns: Vec<_> =
                fitted.map(|(number, draft)| fit(draft, number, count, lens, stores)).collect();
            insns.push(last);
            let make = if stores { Program::storing_from_instructions } else { Program::from_instructions };
            make(window_len, scratch_len, insns).expect("valid by construction")
        },
    )
}

/// Generates small words and words near the edges, so that comparisons and indexes vary.
pub(crate) fn memory(len: usize) -> impl Strategy<Value = Vec<u8>> {
    let word = prop_oneof![any::<u64>(), 0..300_u64, select(&[u64::MAX, 1 << 63, 0xffff_ffff, 1 << 31][..])];
    proptest::collection::vec(word, len.div_ceil(8))
        .prop_map(move |words| words.iter().flat_map(|word| word.to_le_bytes()).take(len).collect())
}
