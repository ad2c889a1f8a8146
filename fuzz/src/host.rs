//! Fuzz target of a host with two sessions and connections to two memory nodes. Every role around the host
//! may send arbitrary frames.
//!
//! Real responders answer the host's packets. The input decides how the switch and the control plane answer.
//! Answers may be late, repeated, damaged, sent from another port, or missing. A model lists the requested
//! operations and checks three promises:
//!
//! - Each operation ends exactly once.
//! - A frame that answers no open request ends no operation.
//! - All operations have ended when the sequence ends.

mod world;

use crate::Run;
use crate::frames::{FaultyLink, noise};
use crate::input::Input;
use farmem_host::{Op, REGION_DATA_MAX};
use farmem_machine::Duration;
use farmem_traversal::Program;
use farmem_wire::{Domain, VirtAddr};
use std::sync::LazyLock;
use world::{DOMAINS, RANGES, World};

static PROGRAMS: LazyLock<[Program; 2]> = LazyLock::new(|| {
    [".scratch 16\n ret", ".scratch 0\n next r1"].map(|text| Program::assemble(text).expect("it assembles"))
});

/// Runs `data` as a sequence of operations and frames for a host.
///
/// # Panics
/// Panics when an operation ends twice or never, or when a frame ends an operation that it does not answer.
pub fn host_events(data: &[u8], run: &mut Run) {
    let mut world = World::new();
    let mut link = FaultyLink::default();
    let mut input = Input::new(data);
    while let Some(event) = input.event(16) {
        match event {
            0 => world.pass(Duration::from_micros(u64::from(input.u16()) * 8), run),
            1 if world.has_control_requests() => world.fulfil(&mut input, run),
            1 => world.set_up(&mut input, run),
            2..=6 => {
                let domain = input.pick(&DOMAINS);
                world.submit(domain, op(&mut input), run);
            }
            7 => world.hear(&noise(&mut input), run),
            8 => world.hear(&link.again(&mut input), run),
            // The frame that a correct rack sends next, after the faulty path.
            _ => {
                if let Some(answer) = world.answer(&mut input) {
                    world.hear(&link.arrival(answer, &mut input), run);
                }
            }
        }
    }
    world.end(run);
}

/// Returns an operation that a program may request, sensible or not.
fn op(input: &mut Input<'_>) -> Op {
    let addr = VirtAddr(input.pick(&RANGES) + u64::from(input.u16() % 0x1100));
    let len = match input.below(8) {
        7 => REGION_DATA_MAX + 1,
        6 => usize::from(input.u16() % 3000),
        _ => usize::from(input.u8()),
    };
    match input.below(8) {
        0 => Op::Read { addr, buf: vec![0; len] },
        1 => {
            let apart = u64::from(input.u16());
            let pieces = usize::from(input.below(5));
            let addrs = (0..pieces as u64).map(|n| VirtAddr(addr.0.wrapping_add(n * apart))).collect();
            Op::Gather { addrs, buf: vec![0; len * pieces] }
        }
        2 => Op::Write { addr, buf: vec![len.to_le_bytes()[0]; len] },
        3 => Op::CompareSwap { addr: VirtAddr(addr.0 & !7), compare: 0, swap: input.u64() },
        4 => Op::FetchAdd { addr: VirtAddr(addr.0 & !u64::from(7 * input.below(2))), add: 1 },
        5 => Op::RegionRead { addr, buf: vec![0; len] },
        6 => Op::RegionWrite { addr, buf: vec![1; len] },
        _ => {
            let program = PROGRAMS[usize::from(input.below(2))].clone();
            let scratch = vec![3; if input.one_in(16) { len } else { program.scratch_len() }];
            Op::Traverse { program, cur_ptr: addr, scratch, limit: u32::from(input.u8()) }
        }
    }
}

/// Domain without a session or a connection.
const STRANGER: Domain = Domain(9);
