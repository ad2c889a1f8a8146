//! A description of the machine on which a figure was measured.

use procfs_core::{CpuInfo, FromRead as _, LoadAverage};
use serde::Serialize;
use std::fmt;
use std::fs::read_to_string;

/// The relevant properties of the machine.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    cpu: String,
    cpus: usize,
    kernel: String,
    /// The load average over the last minute, at the benchmark's begin and end.
    load: [Option<f32>; 2],
}

impl Machine {
    /// Reads the machine's properties. Call [`Machine::end`] when the work is done.
    #[must_use]
    pub fn begin() -> Self {
        let info = CpuInfo::from_file("/proc/cpuinfo").ok();
        let kernel = read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let model = info.as_ref().and_then(|info| info.model_name(0)).unwrap_or("unknown");
        Self {
            cpu: model.to_owned(),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            kernel: kernel.trim().to_owned(),
            load: [load(), None],
        }
    }

    /// Records the load at the end and returns it as text.
    pub fn end(&mut self) -> String {
        self.load[1] = load();
        let show = |load: Option<f32>| load.map_or_else(|| "?".to_owned(), |l| format!("{l:.2}"));
        let [begin, end] = self.load.map(show);
        format!("load {begin} to {end}")
    }
}

fn load() -> Option<f32> {
    Some(LoadAverage::from_file("/proc/loadavg").ok()?.one)
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} CPUs ({}), Linux {}", self.cpus, self.cpu, self.kernel)
    }
}
