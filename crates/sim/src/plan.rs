//! Fault plans: the faults of a simulated network and its machines.

use farmem_machine::Duration;

/// Rates and sizes of faults. Rates are in parts per million of packets, each independent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Plan {
    /// The plan's name on the command line and in reports.
    pub name: &'static str,
    /// Rate of lost packets.
    pub loss_ppm: u32,
    /// Rate of duplicated packets; each copy has its own delay and its own bit flips.
    pub duplicate_ppm: u32,
    /// Rate of packets that are held back by up to [`Plan::held_max`] and so are overtaken.
    pub reorder_ppm: u32,
    /// Rate of packets with one to three flipped bits.
    pub flip_ppm: u32,
    /// The minimum latency of a packet.
    pub latency: Duration,
    /// The maximum of the uniform jitter added to the latency.
    pub jitter: Duration,
    /// The maximum wait of a held packet.
    pub held_max: Duration,
    /// Mean time between one-way partitions of a pair of machines; zero for none.
    pub partition_every: Duration,
    /// Length of a partition.
    pub partition_for: Duration,
    /// Mean time from all machines being up to the next crash; zero for none.
    pub crash_every: Duration,
    /// Rate of packets from a stranger, in parts per million of the steps of a rack.
    pub stranger_ppm: u32,
    /// Rate of frames that the rack's last host corrupts before its link adds the ICRC, so the ICRC is valid.
    pub rogue_ppm: u32,
    /// Latency added to every packet of one memory node, chosen by the seed, in both directions.
    pub slow_node: Duration,
}

/// 5 %, the required rate for loss and duplicates.
const FIVE_PERCENT: u32 = 50_000;

impl Plan {
    /// No faults; packets take 5 us and keep their order.
    pub const CALM: Self = Self {
        name: "calm",
        loss_ppm: 0,
        duplicate_ppm: 0,
        reorder_ppm: 0,
        flip_ppm: 0,
        latency: Duration::from_micros(5),
        jitter: Duration::ZERO,
        held_max: Duration::ZERO,
        partition_every: Duration::ZERO,
        partition_for: Duration::ZERO,
        crash_every: Duration::ZERO,
        stranger_ppm: 0,
        rogue_ppm: 0,
        slow_node: Duration::ZERO,
    };

    /// 5 % of the packets are lost.
    pub const LOSS: Self = Self { name: "loss", loss_ppm: FIVE_PERCENT, ..Self::CALM };

    /// 5 % of the packets arrive twice.
    pub const DUPLICATE: Self = Self { name: "duplicate", duplicate_ppm: FIVE_PERCENT, ..Self::REORDER };

    /// 10 % of the packets are overtaken.
    pub const REORDER: Self = Self {
        name: "reorder",
        reorder_ppm: 100_000,
        jitter: Duration::from_micros(2),
        held_max: Duration::from_micros(100),
        ..Self::CALM
    };

    /// 2 % of the packets arrive with flipped bits.
    pub const FLIP: Self = Self { name: "flip", flip_ppm: 20_000, ..Self::CALM };

    /// All network faults at once: 5 % loss, 5 % duplicates, 10 % overtaken, 2 % flipped.
    pub const STORM: Self = Self {
        name: "storm",
        loss_ppm: FIVE_PERCENT,
        duplicate_ppm: FIVE_PERCENT,
        flip_ppm: 20_000,
        held_max: Duration::from_micros(500),
        ..Self::REORDER
    };

    /// A storm with one-way partitions of pairs of machines.
    pub const PARTITION: Self = Self {
        name: "partition",
        partition_every: Duration::from_millis(5),
        partition_for: Duration::from_millis(2),
        ..Self::STORM
    };

    /// Reordering with one-way partitions that last longer than a connection's retries.
    pub const OUTAGE: Self = Self {
        name: "outage",
        partition_every: Duration::from_millis(20),
        partition_for: Duration::from_millis(30),
        held_max: Duration::from_micros(500),
        ..Self::REORDER
    };

    /// A light storm in which roles crash and restart without their state.
    pub const CRASH: Self = Self {
        name: "crash",
        loss_ppm: 10_000,
        duplicate_ppm: 10_000,
        flip_ppm: 2_000,
        crash_every: Duration::from_millis(3),
        ..Self::REORDER
    };

    /// A storm, partitions, and crashes of every role, for worlds whose drivers recover by themselves
    /// ([`crate::pages`]).
    pub const HAVOC: Self = Self { name: "havoc", crash_every: Duration::from_millis(3), ..Self::PARTITION };

    /// One memory node is a hundred times slower than its peers.
    pub const SLOW: Self = Self { name: "slow", slow_node: Duration::from_micros(500), ..Self::LOSS };

    /// A light storm with a stranger that repeats and forges packets.
    pub const STRANGER: Self =
        Self { name: "stranger", stranger_ppm: 200_000, crash_every: Duration::ZERO, ..Self::CRASH };

    /// A stranger, and a host that corrupts every third frame before sealing it with valid keys.
    pub const ROGUE: Self = Self { name: "rogue", rogue_ppm: 300_000, ..Self::STRANGER };

    /// Every plan for all worlds: all but [`Plan::HAVOC`].
    pub const ALL: [Self; 12] = [
        Self::CALM,
        Self::LOSS,
        Self::DUPLICATE,
        Self::REORDER,
        Self::FLIP,
        Self::STORM,
        Self::PARTITION,
        Self::OUTAGE,
        Self::CRASH,
        Self::SLOW,
        Self::STRANGER,
        Self::ROGUE,
    ];

    /// Returns the plan with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().chain([Self::HAVOC]).find(|plan| plan.name == name)
    }

    /// Returns the names that [`Plan::named`] accepts.
    pub fn names() -> impl Iterator<Item = &'static str> {
        Self::ALL.into_iter().chain([Self::HAVOC]).map(|plan| plan.name)
    }

    /// Returns the plan that equals this one in worlds without a slow node and a rogue host; `None` if this
    /// plan is about neither.
    #[must_use]
    pub fn without_roles(self) -> Option<Self> {
        let same =
            |plan: &Self| Self { slow_node: Duration::ZERO, rogue_ppm: 0, name: plan.name, ..self } == *plan;
        Self::ALL.into_iter().find(|plan| plan.name != self.name && same(plan))
    }

    /// Returns the plan with partitions of at most `most`, for worlds in which no role repairs a broken
    /// connection.
    #[must_use]
    pub fn with_short_partitions(self, most: Duration) -> Self {
        Self { partition_for: self.partition_for.min(most), ..self }
    }

    /// Returns the plan without faults, with the same machines and latencies.
    #[must_use]
    pub const fn healed(self) -> Self {
        Self { name: self.name, latency: self.latency, slow_node: self.slow_node, ..Self::CALM }
    }
}

#[cfg(test)]
mod tests {
    use super::Plan;

    /// A failing run reports its plan's name, so every plan must be found by its name.
    #[test]
    fn every_plan_is_found_by_its_name() {
        for plan in Plan::ALL.into_iter().chain([Plan::HAVOC]) {
            assert_eq!(Plan::named(plan.name), Some(plan));
            assert!(Plan::names().any(|name| name == plan.name), "{}", plan.name);
        }
        assert_eq!(Plan::named("sunshine"), None);
    }

    /// Two plans are about roles that not every world has; no other plan duplicates another.
    #[test]
    fn two_plans_are_others_without_roles() {
        let other = |plan: Plan| Some((plan.name, plan.without_roles()?.name));
        let others: Vec<_> = Plan::ALL.into_iter().chain([Plan::HAVOC]).filter_map(other).collect();
        assert_eq!(others, [("slow", "loss"), ("rogue", "stranger")]);
    }
}
