//! The cost of an iteration, and the decision to offload it (PROTOCOL 10.16; PULSE 4.1, "Bounding complexity
//! of offloaded code").
//!
//! Pure functions of the program and of measured numbers of the accelerator. Times are in picoseconds,
//! because an instruction of a compiled program takes less than a nanosecond.

use crate::Program;

/// The speed of a memory node's traversals.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Accelerator {
    /// t_i: one instruction, in picoseconds.
    pub instruction_ps: u64,
    /// The first line of a load, translation included, in picoseconds.
    pub load_ps: u64,
    /// Each further line of a load, in picoseconds.
    pub line_ps: u64,
}

/// PULSE's threshold as a fraction: logic pipelines over memory pipelines, at most 1 (PULSE 4.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Eta {
    logic: u32,
    memory: u32,
}

/// The cost of the longest iteration on an accelerator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cost {
    /// N: instructions on the longest path.
    pub instructions: u64,
    /// Lines of the load window.
    pub lines: u64,
    /// t_c = t_i * N: the logic, in picoseconds.
    pub logic_ps: u64,
    /// t_d: the load, in picoseconds.
    pub load_ps: u64,
}

impl Eta {
    /// The paper's accelerator: three logic and four memory pipelines (PULSE 4.2).
    pub const PULSE: Self = Self { logic: 3, memory: 4 };

    /// Creates the threshold `logic / memory`; none if it is 0, more than 1, or undefined.
    #[must_use]
    pub const fn new(logic: u32, memory: u32) -> Option<Self> {
        if logic == 0 || logic > memory { None } else { Some(Self { logic, memory }) }
    }
}

impl Cost {
    /// Computes the cost of `instructions` over `lines`. Saturates instead of wrapping.
    #[must_use]
    pub const fn new(instructions: u64, lines: u64, on: &Accelerator) -> Self {
        let further = on.line_ps.saturating_mul(lines.saturating_sub(1));
        Self {
            instructions,
            lines,
            logic_ps: on.instruction_ps.saturating_mul(instructions),
            load_ps: on.load_ps.saturating_add(further),
        }
    }

    /// Decides whether to offload: if t_c <= eta * t_d. Computed exactly, without rounding.
    #[must_use]
    pub const fn offload(&self, eta: Eta) -> bool {
        self.logic_ps as u128 * eta.memory as u128 <= self.load_ps as u128 * eta.logic as u128
    }
}

impl Program {
    /// Returns the most that one iteration costs on `accelerator`.
    #[must_use]
    pub fn cost(&self, accelerator: &Accelerator) -> Cost {
        Cost::new(self.longest_path() as u64, self.lines() as u64, accelerator)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ACCELERATOR: Accelerator = Accelerator { instruction_ps: 4_000, load_ps: 200_000, line_ps: 10_000 };

    #[test]
    fn time_is_per_instruction_and_per_line() {
        let cost = Cost::new(20, 4, &ACCELERATOR);
        assert_eq!((cost.logic_ps, cost.load_ps), (80_000, 230_000));
    }

    /// PULSE 4.1: offload only if t_c <= eta * t_d. The threshold itself is offloaded, one instruction more
    /// is not.
    #[test]
    fn the_threshold_itself_is_offloaded() {
        // eta * t_d = 3/4 * 200 ns = 150 ns; 37 instructions are 148 ns, 38 are 152.
        assert!(Cost::new(37, 1, &ACCELERATOR).offload(Eta::PULSE));
        assert!(!Cost::new(38, 1, &ACCELERATOR).offload(Eta::PULSE));
        let even = Accelerator { instruction_ps: 5_000, ..ACCELERATOR };
        assert!(Cost::new(30, 1, &even).offload(Eta::PULSE), "150 ns against 150 ns");
    }

    #[test]
    fn eta_is_a_fraction_of_at_most_one() {
        assert_eq!(Eta::new(3, 4), Some(Eta::PULSE));
        assert!(Eta::new(1, 1).is_some());
        for (logic, memory) in [(0, 1), (0, 0), (2, 1)] {
            assert_eq!(Eta::new(logic, memory), None, "{logic}/{memory}");
        }
    }

    #[test]
    fn absurd_numbers_saturate() {
        let slow = Accelerator { instruction_ps: u64::MAX, load_ps: u64::MAX, line_ps: u64::MAX };
        let cost = Cost::new(u64::MAX, u64::MAX, &slow);
        assert_eq!((cost.logic_ps, cost.load_ps), (u64::MAX, u64::MAX));
        assert!(!cost.offload(Eta::PULSE) && cost.offload(Eta::new(1, 1).expect("one")));
    }

    #[test]
    fn a_programs_cost_comes_from_its_longest_path_and_its_window() {
        let text = ".window 65\n ld8 r2, window[0]\n jeq r2, 0, end\n add r2, 1\n next r2\nend: ret\n";
        let program = Program::assemble(text).expect("assembles");
        let cost = program.cost(&ACCELERATOR);
        assert_eq!((cost.instructions, cost.lines), (4, 2));
        assert_eq!((cost.logic_ps, cost.load_ps), (16_000, 210_000));
    }
}
