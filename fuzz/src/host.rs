//! A host: two sessions, connections to two memory nodes, and every role around it sends arbitrary frames.
//!
//! Real responders answer what it asks, and so do a switch and a control plane that the input plays; the answers come late, twice, damaged, from
//! the wrong place or never. Beside it stands a list of what was asked: each operation ends exactly once, nothing that is no answer to a
//! request under way ends one, and in the end all of them do.

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

/// Reads `data` as a story of what a host is asked and told.
///
/// # Panics
/// When an operation ends twice or never, or by something that does not answer it.
pub fn host_events(data: &[u8], run: &mut Run) {
    let mut world = World::new();
    let mut link = FaultyLink::default();
    let mut input = Input::new(data);
    while let Some(event) = input.event(16) {
        match event {
            0 => world.pass(Duration::from_micros(u64::from(input.u16()) * 8), run),
            1 if world.wants() => world.fulfil(&mut input, run),
            1 => world.set_up(&mut input, run),
            2..=6 => {
                let domain = input.pick(&DOMAINS);
                world.submit(domain, op(&mut input), run);
            }
            7 => world.hear(&noise(&mut input), run),
            8 => world.hear(&link.again(&mut input), run),
            // What an honest rack would have sent by now, as it arrives.
            _ => {
                if let Some(answer) = world.answer(&mut input) {
                    world.hear(&link.arrival(answer, &mut input), run);
                }
            }
        }
    }
    world.end(run);
}

/// An operation that a program may ask for, sensible or not.
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

/// A domain without session and connection.
const STRANGER: Domain = Domain(9);
