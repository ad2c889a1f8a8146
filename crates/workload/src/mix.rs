//! YCSB's workloads that need no order of keys, and how often keys are wanted, as commands are told them.

use crate::ycsb::{self, Workload};

/// YCSB's workload.
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
    /// What YCSB says of it.
    #[must_use]
    pub const fn workload(self) -> Workload {
        match self {
            Self::A => Workload::A,
            Self::B => Workload::B,
            Self::C => Workload::C,
        }
    }
}

/// How often each key is wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, clap::ValueEnum)]
pub enum Keys {
    /// YCSB's scrambled zipfian distribution: few keys are popular.
    #[default]
    Zipfian,
    /// All alike.
    Uniform,
}

impl Keys {
    /// What YCSB says of it.
    #[must_use]
    pub const fn distribution(self) -> ycsb::Keys {
        match self {
            Self::Zipfian => ycsb::Keys::Zipfian,
            Self::Uniform => ycsb::Keys::Uniform,
        }
    }

    /// As people write it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Zipfian => "zipfian keys",
            Self::Uniform => "uniform keys",
        }
    }
}
