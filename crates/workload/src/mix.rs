//! Command-line forms of YCSB's unordered workloads and of key distributions.

use crate::ycsb::{self, Workload};

/// YCSB workload.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
#[value(rename_all = "UPPER")]
pub enum Mix {
    /// Half reads, half updates.
    A,
    /// 95 % reads, 5 % updates.
    B,
    /// Reads only.
    C,
}

impl Mix {
    /// Returns the YCSB workload.
    #[must_use]
    pub const fn workload(self) -> Workload {
        match self {
            Self::A => Workload::A,
            Self::B => Workload::B,
            Self::C => Workload::C,
        }
    }
}

/// Distribution of the requested keys.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, clap::ValueEnum)]
pub enum Keys {
    /// YCSB's scrambled zipfian distribution: few keys are popular.
    #[default]
    Zipfian,
    /// All keys equally often.
    Uniform,
}

impl Keys {
    /// Returns the YCSB distribution.
    #[must_use]
    pub const fn distribution(self) -> ycsb::Keys {
        match self {
            Self::Zipfian => ycsb::Keys::Zipfian,
            Self::Uniform => ycsb::Keys::Uniform,
        }
    }

    /// Returns the name for reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Zipfian => "zipfian keys",
            Self::Uniform => "uniform keys",
        }
    }
}
