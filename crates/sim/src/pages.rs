//! Hosts that share pages under faults: each load of their programs must see the latest store of any host.
//!
//! The whole rack takes part: programs fault, the cache behind them asks the switch, the switch's directory
//! recalls and grants, and the memory node serves pages and accepts write-backs, over faulty links. The
//! control plane leases, fences, resets and sweeps, splits and merges. Under plans with crashes any machine
//! crashes and restarts. The checker knows every word of far memory: each word that a program may read is
//! compared with the last store of any host at that instant. Bytes that died with a host or a node may be
//! old, but only after the program got an error.
//!
//! Key types: `Rack`, the roles and their drivers; `WordChecker`, the checker.

mod calls;
mod memory;
mod rack;
#[cfg(test)]
mod tests;
mod word_checker;

use crate::Plan;
use crate::campaign::{self, Campaign, Outcome, Report, Verdict};
use farmem_host::caching::CacheRequest;
use farmem_machine::{Duration, Instant};
use farmem_wire::message::{Access, Page};
use rack::Rack;
use word_checker::WORDS;

/// Runs loads and stores of programs on several hosts, on the same pages.
pub fn campaign(campaign: &Campaign, progress: &mut dyn FnMut(u64)) -> Report {
    campaign::run("pages", campaign, world, progress)
}

/// Threads of each program.
const THREADS: usize = 3;
/// Maximum number of accesses to resident pages in one turn of a thread.
const BURST_MAX: u32 = 16;
/// Virtual time without a completed access after which a world is stuck.
const PATIENCE: Duration = Duration::from_secs(5);

type End = (Verdict, String);

/// Runs one world.
fn world(seed: u64, operations: u64, plan: Plan, trace: bool) -> Outcome {
    let mut rack = Rack::new(seed, plan, trace);
    let result = rack.run(operations);
    let notes = rack.notes();
    let count = |part: &str| notes.iter().filter(|(note, _)| note.contains(part)).map(|(_, n)| n).sum();
    let mut outcome = Outcome {
        operations: rack.ended,
        network: rack.counters(),
        retransmissions: count("Page(Retry"),
        naks: count("Page(Refusal"),
        crashes: rack.world.crashes(),
        time: rack.now().since(Instant::ZERO),
        digest: rack.world.journal().digest(),
        trace: rack.world.journal_mut().take_lines(),
        ..Outcome::default()
    };
    outcome.notes = notes;
    if let Err((verdict, why)) = result {
        (outcome.verdict, outcome.why) = (verdict, why);
    }
    outcome
}

/// The next access of a thread.
#[derive(Clone, Copy, Debug)]
struct Step {
    page: Page,
    word: usize,
    access: Access,
    /// True if the thread has faulted and waits to be woken.
    waits: bool,
}

impl Rack {
    fn run(&mut self, operations: u64) -> Result<(), End> {
        while self.ended < operations {
            self.step()?;
        }
        // The safety phase is over; now everything must end, and memory must hold the programs' stores.
        self.heal();
        while self.is_busy() {
            self.step()?;
        }
        self.read_everything()
    }

    /// Has the first host read every word, which recalls all pages from all others.
    fn read_everything(&mut self) -> Result<(), End> {
        let pages: Vec<Page> = self.words.pages().collect();
        for page in pages {
            self.slots[0].threads[0] = Some(Step { page, word: 0, access: Access::Shared, waits: false });
            while self.is_busy() {
                self.step()?;
            }
        }
        Ok(())
    }

    fn is_busy(&self) -> bool {
        self.is_recovering() || self.slots.iter().any(|slot| slot.threads.iter().any(Option::is_some))
    }

    /// Handles the next event.
    fn step(&mut self) -> Result<(), End> {
        if self.now().since(self.progress) > PATIENCE {
            let open: Vec<_> = self.slots.iter().map(|slot| slot.threads).collect();
            return Err((Verdict::Stuck, format!("no access ended for {PATIENCE:?}: {open:?}")));
        }
        if self.advance() {
            let pause = self.rng.below(20_000);
            self.next_thread = self.now() + Duration::from_nanos(u64::from(1 + pause));
            let host = self.rng.below(u32::try_from(self.slots.len()).expect("few")) as usize;
            self.turn(host)?;
        }
        self.run_woken()
    }

    /// Runs a turn of a thread of this host: it uses resident pages, begins an access that may fault, or
    /// retries; or the host evicts a page.
    fn turn(&mut self, host: usize) -> Result<(), End> {
        if !self.is_leased(host) {
            return Ok(());
        }
        let usable: Vec<(Page, Access)> = self.role(host).pages().usable().collect();
        self.burst(host, &usable)?;
        let full = self.role(host).agent().frames() >= self.slots[host].limit;
        if !usable.is_empty() && (full || self.rng.chance(1, 50)) {
            let (victim, _) = usable[self.rng.below(u32::try_from(usable.len()).expect("few")) as usize];
            self.tell(host, CacheRequest::Evict(victim));
        }
        let thread = self.rng.below(u32::try_from(THREADS).expect("few")) as usize;
        if self.slots[host].threads[thread].is_none() && !self.ending {
            let step = self.draw();
            // No host requests memory that a node lost before all have noticed the loss.
            if !self.words.wiped().any(|page| page == step.page) {
                self.slots[host].threads[thread] = Some(step);
            }
        }
        self.execute(host, thread)
    }

    /// Draws an access. Half of those that may fault go to few words, which all hosts use.
    fn draw(&mut self) -> Step {
        let hot = self.rng.chance(1, 2);
        let pages = if hot { 3 } else { u32::try_from(rack::PAGES).expect("few") };
        let writes = self.rng.chance(1, 3);
        let page = self.rng.below(pages);
        Step {
            page: self.page(page.into()),
            word: self.rng.below(if hot { 1 } else { u32::try_from(WORDS).expect("few") }) as usize,
            access: if writes { Access::Modified } else { Access::Shared },
            waits: false,
        }
    }

    /// Makes accesses to resident pages; only the checker observes them.
    fn burst(&mut self, host: usize, usable: &[(Page, Access)]) -> Result<(), End> {
        if usable.is_empty() || self.ending {
            return Ok(());
        }
        for _ in 0..self.rng.below(BURST_MAX) {
            let draw = self.rng.next_u32() as usize;
            let (page, access) = usable[draw % usable.len()];
            let word = draw >> 16 & (WORDS - 1);
            let access = if (draw >> 18).is_multiple_of(4) { access } else { Access::Shared };
            self.make(host, Step { page, word, access, waits: false })?;
        }
        Ok(())
    }

    /// Executes the thread's access if the host may, otherwise faults.
    fn execute(&mut self, host: usize, thread: usize) -> Result<(), End> {
        let Some(step) = self.slots[host].threads[thread].filter(|_| self.is_leased(host)) else {
            return Ok(());
        };
        let memory = self.role(host).pages();
        if memory.is_poisoned(step.page) {
            return self.refused(host, thread, step);
        }
        if memory.access(step.page) < Some(step.access) {
            if !step.waits {
                self.tell(host, CacheRequest::Fault(step.page, step.access));
                // If there was no room, the fault is lost and repeated.
                let waits = self.is_asked_for(host, step.page);
                self.slots[host].threads[thread] = Some(Step { waits, ..step });
            }
            return Ok(());
        }
        self.slots[host].threads[thread] = None;
        self.make(host, step)
    }

    /// Returns true if the host's cache will wake the threads that wait for the page.
    fn is_asked_for(&self, host: usize, page: Page) -> bool {
        let agent = self.role(host).agent();
        agent.requests().any(|(asked, _)| asked == page)
            || agent.writing().any(|(going, writing)| going == page && writing.next_access.is_some())
    }

    /// Makes the access and checks the result.
    fn make(&mut self, host: usize, step: Step) -> Result<(), End> {
        let found = self.role(host).pages().words(step.page);
        if let Err(why) = self.words.look(step.page, &found) {
            return Err((Verdict::Unsafe, format!("host {}: {why}", host + 1)));
        }
        if step.access == Access::Modified {
            let place = (step.page, step.word);
            let value = self.words.next(place);
            self.words.store(place, value);
            let memory = self.memory_mut(host).expect("the host is up");
            memory.store(step.page, step.word, value);
            self.line(|| {
                format!("host {} stores {value:#x} in word {} of {:?}", host + 1, step.word, step.page)
            });
        }
        self.ended += 1;
        self.progress = self.now();
        Ok(())
    }

    /// Handles an error on a page. After a crash this is expected: the owner accepts the old bytes.
    fn refused(&mut self, host: usize, thread: usize, step: Step) -> Result<(), End> {
        if !self.has_lost {
            return Err((Verdict::Unsafe, format!("{:?} is refused to host {}", step.page, host + 1)));
        }
        self.slots[host].threads[thread] = Some(Step { waits: false, ..step });
        self.accept_lost(step.page);
        Ok(())
    }

    /// Continues threads whose page arrived at once, before another host can recall it.
    fn run_woken(&mut self) -> Result<(), End> {
        for host in 0..self.slots.len() {
            let Some(memory) = self.memory_mut(host) else { continue };
            for page in memory.take_woken() {
                for thread in 0..THREADS {
                    if let Some(step) = &mut self.slots[host].threads[thread]
                        && step.page == page
                    {
                        step.waits = false;
                        self.execute(host, thread)?;
                    }
                }
            }
        }
        Ok(())
    }
}
