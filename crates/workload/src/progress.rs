//! Progress bars on stderr for work longer than a second: on a terminal, but not in a log.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::time::{Duration, Instant};

/// The progress bar of one task; it appears after a second.
#[derive(Debug)]
pub struct Progress {
    what: &'static str,
    started: Instant,
    bar: Option<ProgressBar>,
}

/// Shorter work shows no bar.
const QUIET: Duration = Duration::from_secs(1);

impl Progress {
    /// Creates the progress of a task called `what`, which begins now.
    #[must_use]
    pub fn new(what: &'static str) -> Self {
        Self { what, started: Instant::now(), bar: None }
    }

    /// Reports that `done` of `total` steps are done.
    pub fn set(&mut self, done: u64, total: u64) {
        if self.bar.is_none() && self.started.elapsed() >= QUIET {
            let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr_with_hz(10));
            let style =
                ProgressStyle::with_template("{msg:28} {wide_bar} {human_pos}/{human_len} {per_sec} {eta}")
                    .expect("the template is constant");
            bar.set_style(style);
            bar.set_message(self.what);
            self.bar = Some(bar);
        }
        if let Some(bar) = &self.bar {
            bar.set_length(total);
            bar.set_position(done);
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
