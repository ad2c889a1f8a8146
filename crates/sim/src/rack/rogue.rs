//! A rogue: a host of the rack with valid sessions, connections and keys, which sends arbitrary frames.
//!
//! Its network stack corrupts frames before it seals them ([`Network`](crate::Network)), and its program
//! accesses the memory of every domain. It can do harm in its own domain only: it must not change or read
//! bytes of other domains (PROTOCOL 9.17).

use super::tasks::{Operation, Task};
use super::{DOMAINS, HOSTS, Rack};
use crate::checker::SlotId;
use crate::pair::noise;
use crate::sim_node::RoleId;
use farmem_host::{Done, Op};
use farmem_wire::VirtAddr;
use farmem_wire::message::PAGE_SHIFT;

/// Maximum number of its concurrent operations.
const TASKS_MAX: usize = 16;

impl Rack {
    /// Starts an operation of the rogue from time to time.
    pub(super) fn start_rogue(&mut self) {
        let Some(own) = self.rogue_vma else { return };
        let index = usize::from(HOSTS) * DOMAINS;
        let open = self.tasks.values().filter(|task| task.client == index).count();
        if open >= TASKS_MAX || !self.world.is_up(RoleId::Host(HOSTS + 1)) || !self.rng.chance(1, 6) {
            return;
        }
        let foreign =
            if self.rng.chance(1, 2) { self.place_where(|vma| !vma.lent && !vma.changing) } else { None };
        let addr = VirtAddr(match foreign {
            Some(place) => self.model.span(place).0,
            None => own + u64::from(self.rng.below(1 << PAGE_SHIFT)),
        });
        let len = 1 + self.rng.below(2000) as usize;
        let data = noise(&mut self.rng, len);
        let aligned = VirtAddr(addr.0 & !7);
        let (op, reads) = match self.rng.below(7) {
            0 => (Op::Read { addr, buf: vec![0; len] }, true),
            1 => (Op::Write { addr, buf: data }, false),
            2 => (Op::FetchAdd { addr: aligned, add: 1 }, false),
            3 => (Op::RegionRead { addr, buf: vec![0; len % 900 + 1] }, true),
            4 => (Op::RegionWrite { addr, buf: data[..len % 900].to_vec() }, false),
            5 => (Op::CompareSwap { addr, compare: 0, swap: 1 }, false),
            _ => {
                let program = self.programs.any(&mut self.rng);
                let scratch = vec![0xff; program.scratch_len()];
                (Op::Traverse { program, cur_ptr: addr, scratch, limit: 10 }, false)
            }
        };
        let place = foreign.filter(|_| reads);
        self.submit(Task::new(index, self.world.now(), Operation::Rogue { place }), op);
        // The operation does not count towards the campaign.
        self.started -= 1;
    }

    /// Checks that the rogue's operation did not return bytes of another domain.
    pub(super) fn rogue_ended(&self, place: Option<SlotId>, done: &Done) -> Result<(), String> {
        let Some(place) =
            place.filter(|place| done.result.is_ok() && self.model.vmas.contains_key(&place.base))
        else {
            return Ok(());
        };
        let (_, len) = self.model.span(place);
        let seen = &done.buf[..done.buf.len().min(len) & !7];
        let leaked = seen.iter().any(|&byte| byte != 0) && self.model.check(place, seen).is_ok();
        if leaked { Err("it saw what is not its own".to_owned()) } else { Ok(()) }
    }
}
