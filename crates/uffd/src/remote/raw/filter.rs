//! The filter: a program in classic BPF, which the kernel runs at each system call and which decides whether the
//! pager is notified.
//!
//! For numbers whose verdict does not depend on arguments, the kernel evaluates the program once and never runs it
//! again. So the program checks the number first, and arguments only for the few numbers of the table.

use super::{AUDIT_ARCH, COMPAT, Condition, Part, RULES, Rule, STATIC_RULES, Watched};
use libc::sock_filter;
use std::mem::offset_of;
use std::ops::Range;

const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;
/// Bit of a call number of the x32 ABI of x86-64, whose calls are otherwise the same.
pub(super) const X32: u32 = 0x4000_0000;

const LOAD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
const LOAD_NUMBER: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_IMM;
const LOAD_KEPT: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_MEM;
const KEEP: u32 = libc::BPF_ST;
const TO_X: u32 = libc::BPF_MISC | libc::BPF_TAX;
const ADD_X: u32 = libc::BPF_ALU | libc::BPF_ADD | libc::BPF_X;
const AND: u32 = libc::BPF_ALU | libc::BPF_AND | libc::BPF_K;
const EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
const MORE: u32 = libc::BPF_JMP | libc::BPF_JGT | libc::BPF_K;
const NOT_LESS: u32 = libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K;
const NOT_LESS_THAN_X: u32 = libc::BPF_JMP | libc::BPF_JGE | libc::BPF_X;
const JUMP: u32 = libc::BPF_JMP | libc::BPF_JA;
const RETURN: u32 = libc::BPF_RET | libc::BPF_K;

const NUMBER: usize = offset_of!(libc::seccomp_data, nr);
const ARCH: usize = offset_of!(libc::seccomp_data, arch);
const POINTER: usize = offset_of!(libc::seccomp_data, instruction_pointer);
const ARGUMENTS: usize = offset_of!(libc::seccomp_data, args);

/// Builds the program for the addresses of a run.
pub(super) fn program(watched: &Watched) -> Vec<sock_filter> {
    let rules =
        if watched.static_from.is_some() { [&STATIC_RULES[..], &RULES].concat() } else { RULES.into() };
    build(watched, &rules, &COMPAT, libc::SECCOMP_RET_USER_NOTIF)
}

/// Builds a program with these rules, and with this verdict where they hold.
pub(super) fn build(watched: &Watched, rules: &[Rule], compat: &[Rule], verdict: u32) -> Vec<sock_filter> {
    let mut code = Code::default();
    let (native, far_on, other) = (code.label(), code.label(), code.label());
    code.load(ARCH);
    code.when(EQUAL, AUDIT_ARCH, native, far_on);
    code.here(far_on);
    code.go(other);
    code.here(native);
    code.load(NUMBER);
    if cfg!(target_arch = "x86_64") {
        code.plain(AND, !X32);
    }
    code.rules(watched, rules, verdict);
    code.here(other);
    if cfg!(target_arch = "x86_64") {
        let (compatible, foreign) = (code.label(), code.label());
        code.when(EQUAL, super::AUDIT_ARCH_I386, compatible, foreign);
        code.here(foreign);
        code.plain(RETURN, ALLOW);
        code.here(compatible);
        code.load(NUMBER);
        code.rules(watched, compat, verdict);
    } else {
        code.plain(RETURN, ALLOW);
    }
    code.finish()
}

/// Instructions whose jumps name labels; all jumps go forward.
#[derive(Default)]
struct Code {
    all: Vec<(u16, u32, Option<[Label; 2]>)>,
    /// The position of each label.
    labels: Vec<Option<usize>>,
}

#[derive(Clone, Copy)]
struct Label(usize);

impl Code {
    /// Appends the rules and ends the program. The accumulator has the number of the call.
    fn rules(&mut self, watched: &Watched, rules: &[Rule], verdict: u32) {
        for rule in rules {
            let (this, next) = (self.label(), self.label());
            let number = u32::try_from(rule.number).expect("numbers of system calls are small");
            self.when(EQUAL, number, this, next);
            self.here(this);
            self.rule(watched, rule, verdict);
            self.here(next);
        }
        self.plain(RETURN, ALLOW);
    }

    /// Appends a rule, which notifies the pager if all conditions of one line hold.
    fn rule(&mut self, watched: &Watched, rule: &Rule, verdict: u32) {
        let (asked, free) = (self.label(), self.label());
        if rule
            .when
            .iter()
            .flat_map(|line| line.iter())
            .any(|condition| matches!(condition, Condition::Far(_) | Condition::PastLibrary))
        {
            self.unless_from(watched.gate, free);
        }
        for line in rule.when {
            let next_line = self.label();
            for &condition in *line {
                let holds = self.label();
                match condition {
                    Condition::Bits { argument, mask, value } => {
                        self.load(low(argument));
                        self.plain(AND, mask);
                        self.when(EQUAL, value, holds, next_line);
                    }
                    Condition::Not { argument, value } => {
                        self.load(low(argument));
                        self.when(EQUAL, value, next_line, holds);
                    }
                    Condition::Long { argument } => {
                        let low_half = self.label();
                        self.load(high(argument));
                        self.when(MORE, 0, holds, low_half);
                        self.here(low_half);
                        self.load(low(argument));
                        let least = watched.static_from.unwrap_or(0);
                        self.when(NOT_LESS, u32::try_from(least).unwrap_or(u32::MAX), holds, next_line);
                    }
                    // Calls of the library have left the rule above.
                    Condition::PastLibrary => self.go(holds),
                    Condition::Far(part) => {
                        for range in watched.far.iter().chain(&watched.shared) {
                            let next_range = self.label();
                            self.overlap(part, range, holds, next_range);
                            self.here(next_range);
                        }
                        self.go(next_line);
                    }
                }
                self.here(holds);
            }
            self.go(asked);
            self.here(next_line);
        }
        self.here(free);
        self.plain(RETURN, ALLOW);
        self.here(asked);
        self.plain(RETURN, verdict);
    }

    fn unless_from(&mut self, gate: u64, free: Label) {
        let (maybe, other) = (self.label(), self.label());
        self.load(POINTER);
        self.when(EQUAL, low_half(gate), maybe, other);
        self.here(maybe);
        self.load(POINTER + 4);
        self.when(EQUAL, high_half(gate), free, other);
        self.here(other);
    }

    /// Appends the test `first < end && first + len > start`, in halves. A sum that does not fit counts as larger
    /// than all addresses.
    ///
    /// A length of 0 overlaps behind the range's start. Whether such a call has an effect is decided where the call
    /// is handled.
    fn overlap(&mut self, part: Part, range: &Range<u64>, yes: Label, no: Label) {
        let Part { first, len } = part;
        let (equal, less, small) = (self.label(), self.label(), self.label());
        let not_more = self.label();
        self.load(high(first));
        self.when(MORE, high_half(range.end), no, not_more);
        self.here(not_more);
        self.when(EQUAL, high_half(range.end), equal, less);
        self.here(equal);
        self.load(low(first));
        self.when(NOT_LESS, low_half(range.end), no, less);
        self.here(less);
        // Keep the low half of the sum; then add the carry and the high half.
        let (carried, plain, halves) = (self.label(), self.label(), self.label());
        self.load(low(first));
        self.plain(TO_X, 0);
        self.load(low(len));
        self.plain(ADD_X, 0);
        self.plain(KEEP, 0);
        self.when(NOT_LESS_THAN_X, 0, plain, carried);
        self.here(plain);
        self.plain(LOAD_NUMBER, 0);
        self.go(halves);
        self.here(carried);
        self.plain(LOAD_NUMBER, 1);
        self.here(halves);
        self.plain(KEEP, 1);
        let (first_fits, both_fit) = (self.label(), self.label());
        self.load(high(first));
        self.plain(TO_X, 0);
        self.load(high(len));
        self.plain(ADD_X, 0);
        self.when(NOT_LESS_THAN_X, 0, first_fits, yes);
        self.here(first_fits);
        self.plain(TO_X, 0);
        self.plain(LOAD_KEPT, 1);
        self.plain(ADD_X, 0);
        self.when(NOT_LESS_THAN_X, 0, both_fit, yes);
        self.here(both_fit);
        self.when(MORE, high_half(range.start), yes, small);
        self.here(small);
        let last = self.label();
        self.when(EQUAL, high_half(range.start), last, no);
        self.here(last);
        self.plain(LOAD_KEPT, 0);
        self.when(MORE, low_half(range.start), yes, no);
    }

    fn label(&mut self) -> Label {
        self.labels.push(None);
        Label(self.labels.len() - 1)
    }

    fn here(&mut self, Label(n): Label) {
        self.labels[n] = Some(self.all.len());
    }

    fn load(&mut self, offset: usize) {
        self.plain(LOAD, u32::try_from(offset).expect("a small record"));
    }

    fn plain(&mut self, code: u32, number: u32) {
        self.all.push((u16::try_from(code).expect("codes have 16 bits"), number, None));
    }

    fn when(&mut self, code: u32, number: u32, yes: Label, no: Label) {
        self.all.push((u16::try_from(code).expect("codes have 16 bits"), number, Some([yes, no])));
    }

    fn go(&mut self, to: Label) {
        self.when(JUMP, 0, to, to);
    }

    fn finish(self) -> Vec<sock_filter> {
        let offset = |from: usize, Label(n): Label| {
            self.labels[n].and_then(|to| to.checked_sub(from + 1)).expect("a label further on")
        };
        let instruction = |(at, &(code, number, to)): (usize, &(u16, u32, Option<[Label; 2]>))| match to {
            Some([to, _]) if u32::from(code) == JUMP => {
                let k = u32::try_from(offset(at, to)).expect("a short program");
                sock_filter { code, jt: 0, jf: 0, k }
            }
            Some([yes, no]) => {
                let short = |label| u8::try_from(offset(at, label)).expect("a jump within a rule");
                sock_filter { code, jt: short(yes), jf: short(no), k: number }
            }
            None => sock_filter { code, jt: 0, jf: 0, k: number },
        };
        self.all.iter().enumerate().map(instruction).collect()
    }
}

/// Returns the offset of an argument's low half, which comes first on both machines that have a gate.
const fn low(argument: usize) -> usize {
    ARGUMENTS + 8 * argument
}

const fn high(argument: usize) -> usize {
    low(argument) + 4
}

fn low_half(n: u64) -> u32 {
    u32::try_from(n & u64::from(u32::MAX)).expect("masked")
}

fn high_half(n: u64) -> u32 {
    u32::try_from(n >> 32).expect("half of it")
}
