//! The actions of threads: a trace, or random accesses.

use crate::trace::Visit;
use farmem_machine::Rng;

/// The visits of all threads, and their pages.
#[derive(Clone, Debug)]
pub struct Workload {
    /// The visits in the order of the recording.
    pub(super) steps: Vec<Step>,
    /// The numbers of all pages, ascending.
    pub(super) pages: Vec<u64>,
    threads: u16,
}

/// A visit, with its page as an index into the list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Step {
    pub(super) page: u32,
    pub(super) thread: u16,
    pub(super) write: bool,
    /// Accesses of the thread since its last visit, to pages at hand, and this one.
    pub(super) accesses: u64,
}

impl Workload {
    /// Returns the workload of a trace, from the first visit of any thread but the first to the last one: the
    /// program's serial parts before and after are omitted. A trace of one thread is complete.
    ///
    /// # Panics
    ///
    /// If the trace has 2^32 pages or more.
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

    /// Returns a workload of one thread for each of `hosts` blades, with random accesses (MIND 7.2, figure 6
    /// right). `reads_percent` of them are reads, and `shared_percent` of them go to pages that all use, the
    /// others to the thread's own. The same percentage of `pages` is shared.
    ///
    /// # Panics
    ///
    /// If there are fewer pages than hosts, or a percentage exceeds 100.
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

    /// Returns the number of pages.
    #[must_use]
    pub fn pages(&self) -> usize {
        self.pages.len()
    }

    /// Returns the number of touched regions of 2^order pages.
    #[must_use]
    pub fn regions(&self, order: u8) -> usize {
        self.pages.chunk_by(|a, b| a >> order == b >> order).count()
    }

    /// Returns the number of threads, including the one that starts the others.
    #[must_use]
    pub const fn threads(&self) -> u16 {
        self.threads
    }

    /// Returns the number of visits.
    #[must_use]
    pub fn visits(&self) -> usize {
        self.steps.len()
    }

    /// Returns the indexes of each core's visits. Threads are assigned to the hosts in turn (MIND 6.1), then
    /// to the host's cores; one core's visits run in the order of the recording.
    pub(super) fn deal(&self, hosts: u16, cores: u16) -> Vec<Vec<u32>> {
        let mut dealt = vec![Vec::new(); usize::from(hosts) * usize::from(cores)];
        for (step, at) in self.steps.iter().zip(0..) {
            // The first worker is thread 1; the thread that started it runs beside it.
            let thread = step.thread.saturating_sub(1);
            let (host, core) = (thread % hosts, thread / hosts % cores);
            dealt[usize::from(host) * usize::from(cores) + usize::from(core)].push(at);
        }
        dealt
    }
}
