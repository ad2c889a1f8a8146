//! YCSB's workloads that need no order of keys, as commands are told them.

use farmem::ycsb::Workload;

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
