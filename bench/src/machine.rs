//! The machine a figure was measured on, for the reader of the figure.

use serde::Serialize;
use std::fmt;
use std::fs::read_to_string;

/// What matters of it.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    cpu: String,
    cpus: usize,
    kernel: String,
    /// Runnable tasks over the last minute when the benchmark began, and when it ended.
    load: [Option<f64>; 2],
}

impl Machine {
    /// Looks at the machine; call [`Machine::end`] when the work is done.
    #[must_use]
    pub fn begin() -> Self {
        let info = read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = info.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or(": unknown");
        let kernel = read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        Self {
            cpu: model.trim_start_matches(['\t', ' ', ':']).to_owned(),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            kernel: kernel.trim().to_owned(),
            load: [load(), None],
        }
    }

    /// Notes the load at the end, and says what it was.
    pub fn end(&mut self) -> String {
        self.load[1] = load();
        let show = |load: Option<f64>| load.map_or_else(|| "?".to_owned(), |l| format!("{l:.2}"));
        let [begin, end] = self.load.map(show);
        format!("load {begin} to {end}")
    }
}

fn load() -> Option<f64> {
    read_to_string("/proc/loadavg").ok()?.split(' ').next()?.parse().ok()
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} CPUs ({}), Linux {}", self.cpus, self.cpu, self.kernel)
    }
}
