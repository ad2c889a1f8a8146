//! What threads do: a trace, or accesses drawn by lot.

use crate::trace::Visit;
use farmem_machine::Rng;

/// The visits of all threads, and the pages they are about.
#[derive(Clone, Debug)]
pub struct Workload {
    /// In the order of the recording.
    pub(super) steps: Vec<Step>,
    /// The numbers of all pages, ascending.
    pub(super) pages: Vec<u64>,
    threads: u16,
}

/// A visit, its page by its place in the list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Step {
    pub(super) page: u32,
    pub(super) thread: u16,
    pub(super) write: bool,
    /// Accesses of the thread since its last visit, to pages it had at hand, and this one.
    pub(super) accesses: u64,
}

impl Workload {
    /// A trace's, from the first visit of any thread but the first to the last one: what a program does alone before and after is left out. All of
    /// it when it has one thread.
    ///
    /// # Panics
    /// When it has 2^32 pages or more.
    #[must_use]
    pub fn new(visits: &[Visit]) -> Self {
        let from = visits.iter().position(|visit| visit.thread > 0).unwrap_or(0);
        let to = visits.iter().rposition(|visit| visit.thread > 0).map_or(visits.len(), |last| last + 1);
        let visits = &visits[from..to];
        let mut pages: Vec<u64> = visits.iter().map(|visit| visit.page).collect();
        pages.sort_unstable();
        pages.dedup();
        let place = |page: u64| {
            let place = pages.binary_search(&page).expect("the page was listed");
            u32::try_from(place).expect("fewer than 2^32 pages")
        };
        let step = |visit: &Visit| {
            let Visit { thread, page, write, accesses, .. } = *visit;
            Step { page: place(page), thread, write, accesses: accesses + 1 }
        };
        let steps: Vec<Step> = visits.iter().map(step).collect();
        let threads = steps.iter().map(|step| step.thread + 1).max().unwrap_or(0);
        Self { steps, pages, threads }
    }

    /// One thread for each of `hosts` blades, which accesses pages at random: out of `reads_percent` percent reads and else writes,
    /// `shared_percent` percent to pages that all use, the others to its own; of the `pages` pages as large a part is shared (MIND 7.2, figure 6
    /// right).
    ///
    /// # Panics
    /// When there are fewer pages than hosts, or a part is more than 100 percent.
    #[must_use]
    pub fn uniform(
        hosts: u16,
        pages: u32,
        reads_percent: u32,
        shared_percent: u32,
        accesses: usize,
        seed: u64,
    ) -> Self {
        let mut rng = Rng::from_number(seed);
        let shared =
            u32::try_from(u64::from(pages) * u64::from(shared_percent) / 100).expect("a part of the pages");
        let own = (pages - shared) / u32::from(hosts);
        assert!(pages >= u32::from(hosts) && shared_percent <= 100, "every host has pages");
        let steps = (0..accesses).map(|at| {
            let host = u16::try_from(at % usize::from(hosts)).expect("below the hosts");
            let page = if own == 0 || rng.chance(shared_percent, 100) {
                rng.below(shared)
            } else {
                shared + own * u32::from(host) + rng.below(own)
            };
            let write = !rng.chance(reads_percent, 100);
            // Thread 0 starts the others.
            Step { page, thread: host + 1, write, accesses: 1 }
        });
        Self { steps: steps.collect(), pages: (0..u64::from(pages)).collect(), threads: hosts + 1 }
    }

    /// Pages.
    #[must_use]
    pub fn pages(&self) -> usize {
        self.pages.len()
    }

    /// Regions of 2^order pages that it touches.
    #[must_use]
    pub fn regions(&self, order: u8) -> usize {
        self.pages.chunk_by(|a, b| a >> order == b >> order).count()
    }

    /// Threads, the one that starts the others among them.
    #[must_use]
    pub const fn threads(&self) -> u16 {
        self.threads
    }

    /// Visits.
    #[must_use]
    pub fn visits(&self) -> usize {
        self.steps.len()
    }

    /// The visits of each core, by their places. Threads are dealt to the hosts in turn (MIND 6.1), then to the host's cores; what one core has to do is
    /// done in the order of the recording.
    pub(super) fn deal(&self, hosts: u16, cores: u16) -> Vec<Vec<u32>> {
        let mut dealt = vec![Vec::new(); usize::from(hosts) * usize::from(cores)];
        for (step, at) in self.steps.iter().zip(0..) {
            // The first worker is thread 1; the one that started it works beside it.
            let thread = step.thread.saturating_sub(1);
            let (host, core) = (thread % hosts, thread / hosts % cores);
            dealt[usize::from(host) * usize::from(cores) + usize::from(core)].push(at);
        }
        dealt
    }
}
