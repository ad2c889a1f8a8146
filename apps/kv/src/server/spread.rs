//! The phases of a turn that all threads share: reading from sockets, and writing to them.

use super::EventLoop;
use crate::connection::{CHUNK, Outcome};
use crate::io_threads::Task;
use crate::store::Store;
use crate::world::World;
use std::time::Instant;

impl EventLoop {
    /// Reads from many clients on all threads. The bytes of one turn are bounded.
    pub(super) fn read_by_all(
        &mut self,
        ready: &[usize],
        store: &mut Store,
        world: &mut World,
        now: Instant,
    ) {
        const LEAST: usize = 4 << 10;
        let room = world.settings.buffers_max.saturating_sub(world.buffers) / 4 / ready.len();
        if room < LEAST {
            return;
        }
        let task = Task::Read { most: room.min(CHUNK), now };
        let jobs: Vec<_> = ready.iter().filter_map(|&number| self.connections.lend(number, task)).collect();
        for job in self.io_threads.spread(jobs) {
            let (number, outcome) = (job.number, job.outcome);
            self.connections.give_back(job);
            world.io_reads += 1;
            if let Some(connection) = self.connections.get_mut(number) {
                connection.count(world);
            }
            if outcome == Outcome::Close {
                self.remove(number, store, world);
            }
        }
    }

    /// Sends the replies of many clients on all threads, and returns how each connection continues.
    pub(super) fn send_by_all(&mut self, ready: &[usize], world: &mut World) -> Vec<(usize, Outcome)> {
        let task = Task::Send { pause: world.out_pause(), kept: world.kept() };
        let jobs: Vec<_> = ready.iter().filter_map(|&number| self.connections.lend(number, task)).collect();
        let sent = self.io_threads.spread(jobs).into_iter().map(|job| {
            let told = (job.number, job.outcome);
            self.connections.give_back(job);
            told
        });
        let sent: Vec<_> = sent.collect();
        world.io_writes += sent.len() as u64;
        sent
    }
}
