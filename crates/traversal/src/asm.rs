//! The assembler: text form to program (PROTOCOL 10.18).
//!
//! One pass over the lines collects instructions, names and labels. Then jumps are resolved, the load window
//! is inferred if the text does not declare it, and the verifier checks the result. Every error has a line
//! and a column.

use crate::Program;
use crate::isa::{AluOp, Area, Cond, Insn, MemOperand, Operand, Reg, Search, SearchOp, Size, UnaryOp, Width};
use crate::isa::{SCRATCH_LEN_MAX, SEARCH_COUNT_MAX, SLOTS_MAX, WINDOW_LEN_MAX};
use crate::verify::{self, VerifyError};
use alloc::collections::BTreeMap;
use alloc::collections::btree_map::Entry;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;
use lexer::{Cursor, Token};

mod lexer;

/// An error in a text: its location and the expectation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AssembleError {
    /// Line, from 1.
    pub line: usize,
    /// Column, from 1, in characters.
    pub column: usize,
    /// Description of the error.
    pub reason: String,
}

impl fmt::Display for AssembleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}: {}", self.line, self.column, self.reason)
    }
}

impl core::error::Error for AssembleError {}

/// A location in the text.
#[derive(Clone, Copy)]
struct Location {
    line: usize,
    column: usize,
}

impl Location {
    fn error(self, reason: impl Into<String>) -> AssembleError {
        AssembleError { line: self.line, column: self.column, reason: reason.into() }
    }
}

pub(crate) fn assemble(text: &str) -> Result<Program, AssembleError> {
    let mut assembler = Assembler::default();
    let mut end = Location { line: 1, column: 1 };
    for (number, line) in text.lines().enumerate() {
        let mut cursor = Cursor::read(number + 1, line)?;
        assembler.line(&mut cursor)?;
        end = cursor.location();
    }
    assembler.finish(end)
}

#[derive(Default)]
struct Assembler<'t> {
    names: BTreeMap<&'t str, i128>,
    labels: BTreeMap<&'t str, Label>,
    window_len: Option<usize>,
    scratch_len: Option<usize>,
    stores: bool,
    slots: usize,
    items: Vec<SourceInsn<'t>>,
}

struct Label {
    line: usize,
    number: usize,
}

/// An instruction of the text; a jump's target is still a name.
struct SourceInsn<'t> {
    insn: Insn,
    location: Location,
    label: Option<LabelUse<'t>>,
}

/// The label of a jump, at its use.
type LabelUse<'t> = (&'t str, Location);

impl<'t> Assembler<'t> {
    fn line(&mut self, cursor: &mut Cursor<'t>) -> Result<(), AssembleError> {
        while let Some((name, location)) = cursor.label() {
            self.define_label(name, location)?;
        }
        let location = cursor.location();
        match cursor.next() {
            Token::End => return Ok(()),
            Token::Directive(name) => self.directive(name, location, cursor)?,
            Token::Name(mnemonic) => {
                let (insn, label) = self.instruction(mnemonic, location, cursor)?;
                self.slots += insn.slots();
                if self.slots > SLOTS_MAX {
                    return Err(location.error(format!("a program has at most {SLOTS_MAX} slots")));
                }
                self.items.push(SourceInsn { insn, location, label });
            }
            other => {
                return Err(location.error(format!("expected an instruction or a directive, found {other}")));
            }
        }
        cursor.expect_end()
    }

    fn define_label(&mut self, name: &'t str, location: Location) -> Result<(), AssembleError> {
        match self.labels.entry(name) {
            Entry::Vacant(entry) => {
                entry.insert(Label { line: location.line, number: self.items.len() });
                Ok(())
            }
            Entry::Occupied(entry) => {
                Err(location.error(format!("label `{name}` is already on line {}", entry.get().line)))
            }
        }
    }

    fn directive(
        &mut self,
        name: &str,
        location: Location,
        cursor: &mut Cursor<'t>,
    ) -> Result<(), AssembleError> {
        match name {
            ".window" => {
                let len = self.length(1, WINDOW_LEN_MAX, cursor)?;
                declare(&mut self.window_len, len, name, location)
            }
            ".scratch" => {
                let len = self.length(0, SCRATCH_LEN_MAX, cursor)?;
                declare(&mut self.scratch_len, len, name, location)
            }
            ".stores" if self.stores => Err(location.error("`.stores` is already declared")),
            ".stores" => {
                self.stores = true;
                Ok(())
            }
            ".def" => self.define_name(cursor),
            _ => Err(location
                .error(format!("expected `.window`, `.scratch`, `.stores` or `.def`, found `{name}`"))),
        }
    }

    fn length(&self, least: usize, most: usize, cursor: &mut Cursor<'t>) -> Result<usize, AssembleError> {
        let location = cursor.location();
        let value = self.expression(cursor)?;
        let len = usize::try_from(value).ok().filter(|len| (least..=most).contains(len));
        len.ok_or_else(|| location.error(format!("expected {least} to {most} bytes, found {value}")))
    }

    fn define_name(&mut self, cursor: &mut Cursor<'t>) -> Result<(), AssembleError> {
        let location = cursor.location();
        let name = match cursor.next() {
            Token::Name(name) if register(name).is_none() && area(name).is_none() => name,
            Token::Name(name) => {
                return Err(location.error(format!("`{name}` is a register or an area, not a new name")));
            }
            other => return Err(location.error(format!("expected a name, found {other}"))),
        };
        let value = self.expression(cursor)?;
        match self.names.entry(name) {
            Entry::Vacant(entry) => {
                entry.insert(value);
                Ok(())
            }
            Entry::Occupied(_) => Err(location.error(format!("`{name}` is already defined"))),
        }
    }

    fn instruction(
        &self,
        mnemonic: &str,
        location: Location,
        cursor: &mut Cursor<'t>,
    ) -> Result<(Insn, Option<LabelUse<'t>>), AssembleError> {
        let insn = match mnemonic {
            "ret" => Insn::Return,
            "next" => Insn::Next { ptr: cursor.register()? },
            "jmp" => return Ok((Insn::Jump { target: 0 }, Some(cursor.target()?))),
            "lddw" => {
                let dst = cursor.register()?;
                cursor.expect(',')?;
                Insn::Imm64 { dst, imm: self.constant64(cursor)? }
            }
            _ => return self.computing(mnemonic, location, cursor),
        };
        Ok((insn, None))
    }

    /// Parses instructions with composed mnemonics: operation and width, condition and width, access and
    /// size.
    fn computing(
        &self,
        mnemonic: &str,
        location: Location,
        cursor: &mut Cursor<'t>,
    ) -> Result<(Insn, Option<LabelUse<'t>>), AssembleError> {
        let (stem, width) = match mnemonic.strip_suffix("32") {
            Some(stem) => (stem, Width::W32),
            None => (mnemonic, Width::W64),
        };
        if let Some(op) = named(&AluOp::NAMES, stem) {
            let dst = cursor.register()?;
            cursor.expect(',')?;
            return Ok((Insn::Alu { width, op, dst, src: self.operand(width == Width::W32, cursor)? }, None));
        }
        if let Some(op) = named(&UnaryOp::NAMES, stem) {
            return Ok((Insn::Unary { width, op, dst: cursor.register()? }, None));
        }
        if let Some(cond) = stem.strip_prefix('j').and_then(|name| named(&Cond::NAMES, name)) {
            let left = cursor.register()?;
            cursor.expect(',')?;
            let right = self.operand(width == Width::W32, cursor)?;
            cursor.expect(',')?;
            return Ok((Insn::Branch { width, cond, left, right, target: 0 }, Some(cursor.target()?)));
        }
        if let Some((op, size)) = search(mnemonic) {
            return Ok((self.search(op, size, cursor)?, None));
        }
        if let Some(size) = mnemonic.strip_prefix("ld").and_then(access_size) {
            let dst = cursor.register()?;
            cursor.expect(',')?;
            return Ok((Insn::Load { size, dst, from: self.place(cursor)? }, None));
        }
        if let Some(size) = mnemonic.strip_prefix("st").and_then(access_size) {
            let to = self.place(cursor)?;
            cursor.expect(',')?;
            return Ok((Insn::Store { size, to, src: self.operand(size != Size::B8, cursor)? }, None));
        }
        Err(location.error(format!("there is no instruction `{mnemonic}`")))
    }

    /// Parses the operands of a search: result, first element, number of elements, key.
    fn search(&self, op: SearchOp, size: Size, cursor: &mut Cursor<'t>) -> Result<Insn, AssembleError> {
        let dst = cursor.register()?;
        cursor.expect(',')?;
        let location = cursor.location();
        let MemOperand { area: Area::Window, index: None, offset } = self.place(cursor)? else {
            return Err(location.error("an array that is searched lies at a constant place in the window"));
        };
        cursor.expect(',')?;
        let location = cursor.location();
        let value = self.expression(cursor)?;
        let count = u8::try_from(value).ok().filter(|n| (1..=SEARCH_COUNT_MAX).contains(&usize::from(*n)));
        let count = count.ok_or_else(|| {
            location.error(format!("expected 1 to {SEARCH_COUNT_MAX} elements, found {value}"))
        })?;
        cursor.expect(',')?;
        let key = cursor.register()?;
        Ok(Insn::Search { dst, search: Search { op, size, offset, count, key } })
    }

    /// Parses a register or an immediate of 32 bits. With `unsigned_too`, an unsigned immediate is allowed,
    /// because only the low bits count.
    fn operand(&self, unsigned_too: bool, cursor: &mut Cursor<'t>) -> Result<Operand, AssembleError> {
        if let Some(reg) = cursor.try_register() {
            return Ok(Operand::Reg(reg));
        }
        let location = cursor.location();
        let value = self.expression(cursor)?;
        let signed = i32::try_from(value).ok();
        let unsigned = u32::try_from(value).ok().filter(|_| unsigned_too).map(u32::cast_signed);
        signed.or(unsigned).map(Operand::Imm).ok_or_else(|| {
            location.error(format!("{value} does not fit an immediate of 32 bits; load it with `lddw` first"))
        })
    }

    fn constant64(&self, cursor: &mut Cursor<'t>) -> Result<u64, AssembleError> {
        let location = cursor.location();
        let value = self.expression(cursor)?;
        let signed = || i64::try_from(value).ok().map(i64::cast_unsigned);
        u64::try_from(value)
            .ok()
            .or_else(signed)
            .ok_or_else(|| location.error(format!("{value} does not fit 64 bits")))
    }

    fn place(&self, cursor: &mut Cursor<'t>) -> Result<MemOperand, AssembleError> {
        let location = cursor.location();
        let area = match cursor.next() {
            Token::Name(name) => area(name),
            _ => None,
        };
        let area =
            area.ok_or_else(|| location.error("expected `window[...]`, `scratch[...]` or `spill[...]`"))?;
        cursor.expect('[')?;
        let index = cursor.try_register();
        let location = cursor.location();
        let value = match (index, cursor.peek()) {
            (Some(_), Token::Mark(']')) => 0,
            (Some(_), Token::Mark('+' | '-')) => self.sum(0, cursor)?,
            (Some(_), other) => {
                return Err(location.error(format!("expected `+`, `-` or `]`, found {other}")));
            }
            (None, _) => self.expression(cursor)?,
        };
        cursor.expect(']')?;
        let offset = i16::try_from(value)
            .map_err(|_| location.error(format!("an offset of {value} does not fit 16 bits")))?;
        Ok(MemOperand { area, index, offset })
    }

    fn expression(&self, cursor: &mut Cursor<'t>) -> Result<i128, AssembleError> {
        let first = self.product(cursor)?;
        self.sum(first, cursor)
    }

    /// Parses terms that are added to and subtracted from `first`.
    fn sum(&self, first: i128, cursor: &mut Cursor<'t>) -> Result<i128, AssembleError> {
        let mut value = first;
        loop {
            let location = cursor.location();
            let combine = match cursor.peek() {
                Token::Mark('+') => i128::checked_add,
                Token::Mark('-') => i128::checked_sub,
                _ => return Ok(value),
            };
            cursor.next();
            value = combine(value, self.product(cursor)?)
                .ok_or_else(|| location.error("the number is too large"))?;
        }
    }

    fn product(&self, cursor: &mut Cursor<'t>) -> Result<i128, AssembleError> {
        let mut value = self.atom(cursor)?;
        while cursor.peek() == Token::Mark('*') {
            let location = cursor.location();
            cursor.next();
            value = value
                .checked_mul(self.atom(cursor)?)
                .ok_or_else(|| location.error("the number is too large"))?;
        }
        Ok(value)
    }

    fn atom(&self, cursor: &mut Cursor<'t>) -> Result<i128, AssembleError> {
        let location = cursor.location();
        if cursor.peek() != Token::Mark('-') {
            return self.value(cursor);
        }
        cursor.next();
        self.value(cursor)?.checked_neg().ok_or_else(|| location.error("the number is too large"))
    }

    fn value(&self, cursor: &mut Cursor<'t>) -> Result<i128, AssembleError> {
        let location = cursor.location();
        match cursor.next() {
            Token::Number(value) => Ok(value),
            Token::Name(name) => self.names.get(name).copied().ok_or_else(|| {
                location
                    .error(format!("`{name}` is not defined; `.def {name} VALUE` must stand above its use"))
            }),
            other => Err(location.error(format!("expected a number or a name, found {other}"))),
        }
    }

    fn finish(mut self, end: Location) -> Result<Program, AssembleError> {
        for number in 0..self.items.len() {
            let target = self.resolve(number)?;
            match &mut self.items[number].insn {
                Insn::Jump { target: t } | Insn::Branch { target: t, .. } => *t = target,
                _ => {}
            }
        }
        let insns: Vec<_> = self.items.iter().map(|item| item.insn).collect();
        let window_len = match self.window_len {
            Some(len) => len,
            None => self.infer_window(&insns)?,
        };
        let make = if self.stores { Program::storing_from_instructions } else { Program::from_instructions };
        make(window_len, self.scratch_len.unwrap_or(0), insns).map_err(|error| self.locate(error, end))
    }

    /// Returns the target of a jump as an instruction number; 0 if instruction `number` is no jump.
    fn resolve(&self, number: usize) -> Result<u16, AssembleError> {
        let Some((name, location)) = self.items[number].label else { return Ok(0) };
        let Some(label) = self.labels.get(name) else {
            return Err(location.error(format!("label `{name}` is not defined")));
        };
        if label.number <= number {
            let line = label.line;
            return Err(
                location.error(format!("jumps go forward only, and label `{name}` is on line {line}"))
            );
        }
        if label.number >= self.items.len() {
            return Err(location.error(format!("label `{name}` has no instruction behind it")));
        }
        Ok(u16::try_from(label.number).expect("at most 512 instructions"))
    }

    /// Returns the load window of a text without `.window`: up to the last byte of its constant accesses
    /// (PULSE 4.1).
    fn infer_window(&self, insns: &[Insn]) -> Result<usize, AssembleError> {
        let indexed = |insn: &Insn| {
            insn.access().is_some_and(|(_, place)| place.area == Area::Window && place.index.is_some())
        };
        if let Some(item) = self.items.iter().find(|item| indexed(&item.insn)) {
            return Err(item
                .location
                .error("the reach of an indexed access is not known; declare it with `.window`"));
        }
        match verify::window_reach(insns) {
            0 => Ok(1),
            reach if reach <= WINDOW_LEN_MAX => Ok(reach),
            _ => Ok(WINDOW_LEN_MAX),
        }
    }

    /// Converts a verifier error to one with a location in the text.
    fn locate(&self, error: VerifyError, end: Location) -> AssembleError {
        let VerifyError::At { slot, why } = error else { return end.error(error.to_string()) };
        let mut at = 0;
        for item in &self.items {
            if at == slot {
                return item.location.error(why.to_string());
            }
            at += item.insn.slots();
        }
        end.error(error.to_string())
    }
}

fn declare(
    slot: &mut Option<usize>,
    len: usize,
    name: &str,
    location: Location,
) -> Result<(), AssembleError> {
    match slot.replace(len) {
        None => Ok(()),
        Some(_) => Err(location.error(format!("`{name}` is already declared"))),
    }
}

fn register(name: &str) -> Option<Reg> {
    Reg::ALL.into_iter().find(|reg| reg.to_string() == name)
}

fn area(name: &str) -> Option<Area> {
    [Area::Window, Area::Scratch, Area::Spill].into_iter().find(|area| area.to_string() == name)
}

fn access_size(digits: &str) -> Option<Size> {
    Size::ALL.into_iter().find(|size| size.bytes().to_string() == digits)
}

/// Splits the mnemonic of a search into operation and element size.
fn search(mnemonic: &str) -> Option<(SearchOp, Size)> {
    SearchOp::NAMES.iter().find_map(|(op, name)| {
        let size = mnemonic.strip_prefix(name).and_then(access_size)?;
        Some((*op, size))
    })
}

fn named<T: Copy>(names: &[(T, &str)], wanted: &str) -> Option<T> {
    names.iter().find(|(_, name)| *name == wanted).map(|(value, _)| *value)
}

#[cfg(test)]
mod tests;
