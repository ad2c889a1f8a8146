//! The explored racks, and for each guard a rack that shows the guard's purpose.

use super::{Budget, Config, Guard, Guards, Remaining};

const NO: Budget = Budget::of(0);
const ONE: Budget = Budget::of(1);
const TWO: Budget = Budget::of(2);
const ANY: Budget = Budget::UNLIMITED;

/// Returns a rack with this number of requests per host, losses, copies, early timers, and messages in
/// flight.
const fn rack(number: u8, hosts: u8, pages: u8, requests: u8, faults: [u8; 3], flight_max: usize) -> Config {
    let [losses, copies, early] = faults;
    Config {
        number,
        hosts,
        pages,
        apart: false,
        left: Remaining {
            requests: [Budget::of(requests); 3],
            losses: Budget::of(losses),
            copies: Budget::of(copies),
            early: Budget::of(early),
            crashes: NO,
            restarts: NO,
            resets: NO,
            visits: NO,
            splits: NO,
            merges: NO,
        },
        flight_max,
        live: true,
        without: Guards::NONE_MISSING,
        states_max: u64::MAX,
    }
}

/// Returns a rack without limit on requests, losses, copies and early timers; copies stay in flight for ever.
const fn endless(number: u8, hosts: u8, flight_max: usize) -> Config {
    let config = rack(number, hosts, 1, 0, [0; 3], flight_max);
    let left = Remaining { requests: [ANY; 3], losses: ANY, copies: ANY, early: ANY, ..config.left };
    Config { left, ..config }
}

impl Config {
    const fn crashes(self, crashes: Budget) -> Self {
        Self { left: Remaining { crashes, ..self.left }, ..self }
    }
    const fn restarts(self, restarts: Budget) -> Self {
        Self { left: Remaining { restarts, ..self.left }, ..self }
    }
    const fn resets(self, resets: Budget) -> Self {
        Self { left: Remaining { resets, ..self.left }, ..self }
    }
    const fn visits(self, visits: Budget) -> Self {
        Self { left: Remaining { visits, ..self.left }, ..self }
    }
    const fn splits_and_merges(self, splits: Budget, merges: Budget) -> Self {
        Self { left: Remaining { splits, merges, ..self.left }, ..self }
    }
    const fn apart(self) -> Self {
        Self { apart: true, ..self }
    }
    const fn without(self, guard: Guard) -> Self {
        Self { without: self.without.without(guard), ..self }
    }
    /// Describes the budgets.
    #[must_use]
    pub fn describe(&self) -> String {
        let left = &self.left;
        let requests: Vec<String> =
            left.requests[..usize::from(self.hosts)].iter().map(|budget| times(*budget)).collect();
        let mut words = vec![format!("requests {}", requests.join("+"))];
        let kinds = [
            (left.losses, "losses"),
            (left.copies, "copies"),
            (left.early, "early timers"),
            (left.crashes, "crashes"),
            (left.restarts, "restarts"),
            (left.resets, "resets"),
            (left.visits, "traversals"),
            (left.splits, "splits"),
            (left.merges, "merges"),
        ];
        let some = kinds.iter().filter(|(budget, _)| budget.is_any());
        words.extend(some.map(|&(budget, kind)| format!("{kind} {}", times(budget))));
        words.push(format!("in flight {}", self.flight_max));
        let missing = Guard::ALL.iter().filter(|&&(guard, _)| self.without.lacks(guard));
        words.extend(missing.map(|(_, name)| format!("without {name}")));
        words.join(", ")
    }

    const fn last_asks_once(self) -> Self {
        let [first, second, _] = self.left.requests;
        Self { left: Remaining { requests: [first, second, ONE], ..self.left }, ..self }
    }
}

fn times(budget: Budget) -> String {
    if budget.is_unlimited() { "any".to_owned() } else { budget.left().to_string() }
}

/// All racks, by number.
pub const CONFIGS: [Config; 22] = [
    rack(1, 2, 1, 2, [1, 1, 0], 4),
    Config { live: false, ..endless(2, 2, 3) },
    endless(3, 2, 2),
    endless(4, 2, 2).crashes(ONE).visits(TWO),
    endless(5, 3, 2),
    rack(6, 2, 1, 2, [1, 1, 0], 4).crashes(ONE),
    rack(7, 2, 1, 2, [1, 1, 0], 4).restarts(ONE),
    rack(8, 2, 1, 2, [1, 1, 0], 4).visits(ONE),
    rack(9, 3, 1, 1, [1, 1, 0], 6),
    rack(10, 3, 1, 2, [0, 1, 0], 5).last_asks_once(),
    rack(11, 3, 1, 1, [1, 1, 0], 5).crashes(ONE),
    rack(12, 3, 1, 1, [0, 1, 0], 5).restarts(ONE),
    rack(13, 3, 1, 1, [1, 0, 0], 4).visits(ONE),
    rack(14, 2, 2, 2, [1, 0, 0], 5),
    rack(15, 2, 2, 1, [1, 1, 0], 4).splits_and_merges(ONE, ONE).crashes(ONE),
    rack(16, 2, 2, 2, [0, 1, 0], 4).apart(),
    rack(17, 2, 2, 1, [1, 1, 0], 5).apart().splits_and_merges(NO, ONE).visits(ONE),
    rack(18, 3, 2, 1, [0, 1, 0], 5),
    rack(19, 3, 2, 1, [0, 0, 0], 6).splits_and_merges(ONE, ONE),
    rack(20, 2, 1, 2, [1, 1, 0], 4).without(Guard::Done),
    rack(21, 2, 1, 1, [0, 0, 0], 4).crashes(ONE).restarts(ONE).resets(ONE).visits(ONE),
    rack(22, 2, 1, 2, [1, 0, 0], 4).resets(ONE),
];

/// The numbers of the racks that CI explores.
pub const GATE: [u8; 7] = [1, 3, 9, 13, 15, 17, 19];

/// Returns the smallest rack that shows the purpose of the guard: without the guard it must have a violation.
#[must_use]
pub const fn without(guard: Guard) -> Config {
    let small = Config { live: false, ..rack(0, 2, 1, 2, [0, 1, 0], 4) };
    let config = match guard {
        // With floors it is safe, but no host can ever write: each host voids the messages to the other.
        Guard::Done => small.without(Guard::Floors),
        Guard::AckCount => Config { live: false, ..rack(0, 3, 1, 1, [0, 0, 0], 6) },
        Guard::LentMark => small.visits(ONE),
        Guard::SplitIdle => {
            Config { live: false, ..rack(0, 2, 2, 2, [0, 0, 0], 6) }.splits_and_merges(ONE, NO)
        }
        Guard::PassingPage => Config { live: false, ..rack(0, 2, 2, 2, [0, 0, 0], 5) },
        Guard::SweepFloor => small.crashes(ONE),
        Guard::Poke => rack(0, 2, 1, 1, [1, 0, 0], 4),
        _ => small,
    };
    config.without(guard)
}
