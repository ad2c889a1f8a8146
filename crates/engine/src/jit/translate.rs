//! Translation of a program's instructions to Cranelift's intermediate form.
//!
//! Registers become variables of 64 bits, and jumps become edges. All edges lead ahead, so one pass in order
//! suffices: when a block is reached, all its predecessors are known. Unreachable instructions are omitted.

use super::Exit;
use cranelift_codegen::ir::Endianness;
use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{
    AliasRegionData, Block, Function, InstBuilder, MemFlagsData, StackSlotData, StackSlotKind, Type, Value,
    types,
};
use cranelift_codegen::isa::TargetFrontendConfig;
use cranelift_frontend::{FunctionBuilder, FunctionBuilderContext, Variable};
use farmem_traversal::{
    AluOp, Area, Cond, Insn, MemOperand, Operand, Program, Reg, SPILL_LEN, Search, SearchOp, Size, UnaryOp,
    Width,
};

/// Fills `function`, which has the signature of [`super::Code`].
pub(super) fn translate(
    program: &Program,
    function: &mut Function,
    context: &mut FunctionBuilderContext,
    target: TargetFrontendConfig,
) {
    let insns: Vec<Insn> = program.instructions().collect();
    let mut builder = FunctionBuilder::new(function, context);
    let entry = builder.create_block();
    builder.append_block_params_for_function_params(entry);
    builder.switch_to_block(entry);
    builder.seal_block(entry);
    let &[window, scratch, cur_ptr] = builder.block_params(entry) else {
        unreachable!("the signature has three parameters");
    };
    let spill = spill_area(&mut builder, &insns, target.pointer_type());
    let areas = [Area::Window, Area::Scratch, Area::Spill];
    let flags = areas.map(|area| access_flags(&mut builder, area));
    let zero = builder.ins().iconst(types::I64, 0);
    let regs = Reg::ALL.map(|reg| {
        let variable = builder.declare_var(types::I64);
        builder.def_var(variable, if reg == Reg::ENTRY { cur_ptr } else { zero });
        variable
    });
    let mut blocks = vec![None; insns.len()];
    for target in reached(&insns).into_iter().flatten() {
        blocks[usize::from(target)].get_or_insert_with(|| builder.create_block());
    }
    let mut body = Body {
        builder,
        blocks,
        regs,
        bases: [Some(window), Some(scratch), spill],
        lens: [program.window_len(), program.scratch_len(), SPILL_LEN],
        flags,
        cur_ptr,
        fault: None,
    };
    body.emit(&insns);
    body.emit_fault();
    body.builder.finalize(target);
}

/// Returns the jump target of each reachable instruction, by instruction.
fn reached(insns: &[Insn]) -> Vec<Option<u16>> {
    let mut live = vec![false; insns.len() + 1];
    live[0] = true;
    let mut targets = vec![None; insns.len()];
    for (number, insn) in insns.iter().enumerate() {
        if !live[number] {
            continue;
        }
        targets[number] = insn.target();
        if let Some(target) = insn.target() {
            live[usize::from(target)] = true;
        }
        if !insn.is_terminal() && !matches!(insn, Insn::Jump { .. }) {
            live[number + 1] = true;
        }
    }
    targets
}

/// Returns the address of the zeroed spill area, if the program accesses it.
fn spill_area(builder: &mut FunctionBuilder<'_>, insns: &[Insn], pointer: Type) -> Option<Value> {
    let used = |insn: &Insn| insn.access().is_some_and(|(_, place)| place.area == Area::Spill);
    if !insns.iter().any(used) {
        return None;
    }
    let len = u32::try_from(SPILL_LEN).expect("128");
    let slot = builder.create_sized_stack_slot(StackSlotData::new(StackSlotKind::ExplicitSlot, len, 4));
    let zeros = builder.ins().iconst(types::I64, 0);
    let start = builder.ins().stack_addr(pointer, slot, 0);
    let flags = access_flags(builder, Area::Spill);
    for word in 0..len / 8 {
        builder.ins().store(flags, zeros, start, i32::try_from(word * 8).expect("below 128"));
    }
    Some(start)
}

/// Returns the flags of an access: it cannot trap, alignment is unknown, areas do not alias, and bytes are
/// little-endian.
fn access_flags(builder: &mut FunctionBuilder<'_>, area: Area) -> MemFlagsData {
    let region = AliasRegionData { user_id: area as u32, description: format!("{area}").into() };
    let region = builder.func.dfg.alias_regions.insert(region);
    MemFlagsData::new().with_notrap().with_endianness(Endianness::Little).with_alias_region(Some(region))
}

struct Body<'a> {
    builder: FunctionBuilder<'a>,
    /// Blocks at jump targets, by instruction.
    blocks: Vec<Option<Block>>,
    regs: [Variable; Reg::ALL.len()],
    /// The first byte of each area, by area; then its length and access flags. A program that does not use
    /// the spill area has none.
    bases: [Option<Value>; 3],
    lens: [usize; 3],
    flags: [MemFlagsData; 3],
    cur_ptr: Value,
    /// The target of failed checks.
    fault: Option<Block>,
}

impl Body<'_> {
    fn emit(&mut self, insns: &[Insn]) {
        let mut open = true;
        for (number, insn) in insns.iter().enumerate() {
            if let Some(block) = self.blocks[number] {
                if open {
                    self.builder.ins().jump(block, &[]);
                }
                self.builder.switch_to_block(block);
                // All predecessors are above.
                self.builder.seal_block(block);
                open = true;
            }
            if open {
                open = self.instruction(insn);
            }
        }
        assert!(!open, "verified: the last instruction is terminal");
    }

    /// Translates an instruction; returns whether it falls through to the next one.
    fn instruction(&mut self, insn: &Insn) -> bool {
        match *insn {
            Insn::Alu { width, op, dst, src } => {
                let (a, b) = (self.reg(dst, width), self.operand(src, width));
                let result = self.alu(op, a, b, src);
                self.set(dst, result, width);
            }
            Insn::Unary { width, op, dst } => {
                let a = self.reg(dst, width);
                let result = match op {
                    UnaryOp::Neg => self.builder.ins().ineg(a),
                    UnaryOp::Not => self.builder.ins().bnot(a),
                };
                self.set(dst, result, width);
            }
            Insn::Imm64 { dst, imm } => {
                let result = self.builder.ins().iconst(types::I64, imm.cast_signed());
                self.set(dst, result, Width::W64);
            }
            Insn::Load { size, dst, from } => match self.place(size, from) {
                Some((base, offset)) => self.load(size, dst, base, offset, self.flags[from.area as usize]),
                None => return false,
            },
            Insn::Store { size, to, src } => match self.place(size, to) {
                Some((base, offset)) => self.store(size, src, base, offset, self.flags[to.area as usize]),
                None => return false,
            },
            Insn::Search { dst, search } => {
                let found = self.search(&search);
                self.set(dst, found, Width::W64);
            }
            Insn::Jump { target } => {
                let block = self.block(target);
                self.builder.ins().jump(block, &[]);
                return false;
            }
            Insn::Branch { width, cond, left, right, target } => {
                self.branch(width, cond, left, right, target);
            }
            Insn::Next { ptr } => {
                let next = self.reg(ptr, Width::W64);
                self.exit(next, Exit::NEXT);
                return false;
            }
            Insn::Return => {
                self.exit(self.cur_ptr, Exit::RETURN);
                return false;
            }
        }
        true
    }

    fn reg(&mut self, reg: Reg, width: Width) -> Value {
        let value = self.builder.use_var(self.regs[reg as usize]);
        match width {
            Width::W64 => value,
            Width::W32 => self.builder.ins().ireduce(types::I32, value),
        }
    }

    fn operand(&mut self, operand: Operand, width: Width) -> Value {
        match (operand, width) {
            (Operand::Reg(reg), _) => self.reg(reg, width),
            (Operand::Imm(imm), Width::W64) => self.builder.ins().iconst(types::I64, i64::from(imm)),
            // A constant of 32 bits is passed zero-extended.
            (Operand::Imm(imm), Width::W32) => {
                self.builder.ins().iconst(types::I32, i64::from(imm.cast_unsigned()))
            }
        }
    }

    fn set(&mut self, reg: Reg, value: Value, width: Width) {
        let value = match width {
            Width::W64 => value,
            Width::W32 => self.builder.ins().uextend(types::I64, value),
        };
        self.builder.def_var(self.regs[reg as usize], value);
    }

    /// Translates an operation. Shifts need no mask: Cranelift takes the count modulo the width, as the ISA
    /// does.
    fn alu(&mut self, op: AluOp, a: Value, b: Value, src: Operand) -> Value {
        match op {
            AluOp::Add => self.builder.ins().iadd(a, b),
            AluOp::Sub => self.builder.ins().isub(a, b),
            AluOp::Mul => self.builder.ins().imul(a, b),
            AluOp::Div | AluOp::Mod => self.divide(op, a, b, src),
            AluOp::And => self.builder.ins().band(a, b),
            AluOp::Or => self.builder.ins().bor(a, b),
            AluOp::Xor => self.builder.ins().bxor(a, b),
            AluOp::Shl => self.builder.ins().ishl(a, b),
            AluOp::Shr => self.builder.ins().ushr(a, b),
            AluOp::Sar => self.builder.ins().sshr(a, b),
            AluOp::Mov => b,
        }
    }

    /// Translates a division. The machine traps on a zero divisor, so it gets 1 instead; the quotient is then
    /// 0 and the remainder the dividend.
    fn divide(&mut self, op: AluOp, a: Value, b: Value, src: Operand) -> Value {
        let width = self.builder.func.dfg.value_type(a);
        let quotient = op == AluOp::Div;
        let zero = self.builder.ins().iconst(width, 0);
        let by_zero = if quotient { zero } else { a };
        match src {
            Operand::Imm(0) => by_zero,
            Operand::Imm(_) if quotient => self.builder.ins().udiv(a, b),
            Operand::Imm(_) => self.builder.ins().urem(a, b),
            Operand::Reg(_) => {
                let one = self.builder.ins().iconst(width, 1);
                let is_zero = self.builder.ins().icmp(IntCC::Equal, b, zero);
                let divisor = self.builder.ins().select(is_zero, one, b);
                let result = if quotient {
                    self.builder.ins().udiv(a, divisor)
                } else {
                    self.builder.ins().urem(a, divisor)
                };
                self.builder.ins().select(is_zero, by_zero, result)
            }
        }
    }

    /// Returns the location of an access: an address and a constant offset. `None` if it can never be inside,
    /// which ends the iteration.
    ///
    /// A processor that mispredicts the check must not read elsewhere either: it would use the area's first
    /// address.
    fn place(&mut self, size: Size, place: MemOperand) -> Option<(Value, i32)> {
        let area = place.area as usize;
        let base = self.bases[area].expect("an area that is accessed has an address");
        let Some(index) = place.index else { return Some((base, i32::from(place.offset))) };
        let Some(last) = self.lens[area].checked_sub(size.bytes()) else {
            let fault = self.fault();
            self.builder.ins().jump(fault, &[]);
            return None;
        };
        let index = self.reg(index, Width::W64);
        let start = self.builder.ins().iadd_imm_s(index, i64::from(place.offset));
        let last = i64::try_from(last).expect("at most 256");
        let outside = self.builder.ins().icmp_imm_u(IntCC::UnsignedGreaterThan, start, last);
        let (fault, inside) = (self.fault(), self.builder.create_block());
        self.builder.ins().brif(outside, fault, &[], inside, &[]);
        self.builder.switch_to_block(inside);
        self.builder.seal_block(inside);
        let zero = self.builder.ins().iconst(types::I64, 0);
        let start = self.builder.ins().select_spectre_guard(outside, zero, start);
        Some((self.builder.ins().iadd(base, start), 0))
    }

    fn load(&mut self, size: Size, dst: Reg, base: Value, offset: i32, flags: MemFlagsData) {
        let builder = self.builder.ins();
        let value = match size {
            Size::B1 => builder.uload8(types::I64, flags, base, offset),
            Size::B2 => builder.uload16(types::I64, flags, base, offset),
            Size::B4 => builder.uload32(flags, base, offset),
            Size::B8 => builder.load(types::I64, flags, base, offset),
        };
        self.set(dst, value, Width::W64);
    }

    fn store(&mut self, size: Size, src: Operand, base: Value, offset: i32, flags: MemFlagsData) {
        let value = self.operand(src, Width::W64);
        let builder = self.builder.ins();
        match size {
            Size::B1 => builder.istore8(flags, value, base, offset),
            Size::B2 => builder.istore16(flags, value, base, offset),
            Size::B4 => builder.istore32(flags, value, base, offset),
            Size::B8 => builder.store(flags, value, base, offset),
        };
    }

    /// Translates a search. All elements are compared at once, and the result is computed from the mask of
    /// the comparisons, without a branch.
    fn search(&mut self, search: &Search) -> Value {
        let key = self.reg(search.key, Width::W64);
        // A key above the largest element is equivalent to that one for RANK, and equals none for MATCH.
        let most = u64::MAX >> (64 - 8 * search.size.bytes());
        let most = self.builder.ins().iconst(types::I64, most.cast_signed());
        let fits = match search.size {
            Size::B8 => None,
            _ => Some(self.builder.ins().icmp(IntCC::UnsignedLessThanOrEqual, key, most)),
        };
        let key = fits.map_or(key, |fits| self.builder.ins().select(fits, key, most));
        let mask = self.comparisons(search, key);
        match (search.op, fits) {
            (SearchOp::Rank, _) => self.builder.ins().popcnt(mask),
            (SearchOp::Match, None) => self.first(mask, search.count),
            (SearchOp::Match, Some(fits)) => {
                let none = self.builder.ins().iconst(types::I64, 0);
                let mask = self.builder.ins().select(fits, mask, none);
                self.first(mask, search.count)
            }
        }
    }

    /// Returns the index of the first set bit; `count` if there is none.
    fn first(&mut self, mask: Value, count: u8) -> Value {
        let behind = 1_u64.checked_shl(u32::from(count)).unwrap_or(0);
        let mask = self.builder.ins().bor_imm_u(mask, behind.cast_signed());
        self.builder.ins().ctz(mask)
    }

    /// Returns a mask with a bit for each element, the first lowest: whether RANK counts it, or MATCH finds
    /// it.
    fn comparisons(&mut self, search: &Search, key: Value) -> Value {
        let size = search.size.bytes();
        let lane = Type::int(8 * u16::try_from(size).expect("at most 8")).expect("a size has a type");
        let lanes = 16 / size;
        let count = usize::from(search.count);
        if count < lanes {
            return self.comparisons_one_by_one(search, lane, key);
        }
        let vector = lane.by(16 / u32::try_from(size).expect("at most 8")).expect("16 bytes of lanes");
        let key = if lane == types::I64 { key } else { self.builder.ins().ireduce(lane, key) };
        let keys = self.builder.ins().splat(vector, key);
        let bias = (search.op == SearchOp::Rank).then(|| {
            // Vectors compare signed; with inverted top bits this is an unsigned comparison.
            let top = self.builder.ins().iconst(lane, (1_u64 << (8 * size - 1)).cast_signed());
            self.builder.ins().splat(vector, top)
        });
        let keys = bias.map_or(keys, |bias| self.builder.ins().bxor(keys, bias));
        let mut mask = None;
        for first in (0..count).step_by(lanes) {
            // The last vector overlaps the one before: an element compared twice has the same bit twice.
            let first = first.min(count - lanes);
            let bits = self.compare_lanes(search, vector, first, keys, bias);
            let bits = self.builder.ins().ishl_imm_u(bits, i64::try_from(first).expect("at most 64"));
            mask = Some(mask.map_or(bits, |mask| self.builder.ins().bor(mask, bits)));
        }
        mask.expect("verified: there is an element")
    }

    fn compare_lanes(
        &mut self,
        search: &Search,
        vector: Type,
        first: usize,
        keys: Value,
        bias: Option<Value>,
    ) -> Value {
        let loaded = self.element(search, vector, first);
        let holds = match bias {
            Some(bias) => {
                let elements = self.builder.ins().bxor(loaded, bias);
                self.builder.ins().icmp(IntCC::SignedLessThanOrEqual, elements, keys)
            }
            None => self.builder.ins().icmp(IntCC::Equal, loaded, keys),
        };
        self.builder.ins().vhigh_bits(types::I64, holds)
    }

    /// Returns the mask of [`Self::comparisons`] for fewer elements than a vector has.
    fn comparisons_one_by_one(&mut self, search: &Search, lane: Type, key: Value) -> Value {
        let mut mask = self.builder.ins().iconst(types::I64, 0);
        for number in 0..search.count {
            let element = self.element(search, lane, usize::from(number));
            let element =
                if lane == types::I64 { element } else { self.builder.ins().uextend(types::I64, element) };
            let how = match search.op {
                SearchOp::Rank => IntCC::UnsignedLessThanOrEqual,
                SearchOp::Match => IntCC::Equal,
            };
            let holds = self.builder.ins().icmp(how, element, key);
            let bit = self.builder.ins().uextend(types::I64, holds);
            let bit = self.builder.ins().ishl_imm_u(bit, i64::from(number));
            mask = self.builder.ins().bor(mask, bit);
        }
        mask
    }

    /// Loads one element, or a vector of them.
    fn element(&mut self, search: &Search, ty: Type, number: usize) -> Value {
        let base = self.bases[Area::Window as usize].expect("there is always a window");
        let skip = i32::try_from(number * search.size.bytes()).expect("at most 256");
        let flags = self.flags[Area::Window as usize];
        self.builder.ins().load(ty, flags, base, i32::from(search.offset) + skip)
    }

    fn branch(&mut self, width: Width, cond: Cond, left: Reg, right: Operand, target: u16) {
        let (a, b) = (self.reg(left, width), self.operand(right, width));
        let holds = match cond {
            Cond::Set => self.builder.ins().band(a, b),
            cond => self.builder.ins().icmp(comparison(cond), a, b),
        };
        let (taken, behind) = (self.block(target), self.builder.create_block());
        self.builder.ins().brif(holds, taken, &[], behind, &[]);
        self.builder.switch_to_block(behind);
        self.builder.seal_block(behind);
    }

    fn block(&self, target: u16) -> Block {
        self.blocks[usize::from(target)].expect("the target of an instruction that is reached has a block")
    }

    fn fault(&mut self) -> Block {
        *self.fault.get_or_insert_with(|| self.builder.create_block())
    }

    fn emit_fault(&mut self) {
        let Some(block) = self.fault else { return };
        self.builder.switch_to_block(block);
        self.builder.seal_block(block);
        self.builder.set_cold_block(block);
        self.exit(self.cur_ptr, Exit::FAULT);
    }

    fn exit(&mut self, cur_ptr: Value, how: u64) {
        let how = self.builder.ins().iconst(types::I64, how.cast_signed());
        self.builder.ins().return_(&[cur_ptr, how]);
    }
}

fn comparison(cond: Cond) -> IntCC {
    match cond {
        Cond::Eq => IntCC::Equal,
        Cond::Ne => IntCC::NotEqual,
        Cond::Lt => IntCC::UnsignedLessThan,
        Cond::Le => IntCC::UnsignedLessThanOrEqual,
        Cond::Gt => IntCC::UnsignedGreaterThan,
        Cond::Ge => IntCC::UnsignedGreaterThanOrEqual,
        Cond::Slt => IntCC::SignedLessThan,
        Cond::Sle => IntCC::SignedLessThanOrEqual,
        Cond::Sgt => IntCC::SignedGreaterThan,
        Cond::Sge => IntCC::SignedGreaterThanOrEqual,
        Cond::Set => unreachable!("it is no comparison"),
    }
}
