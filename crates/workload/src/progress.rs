//! Progress of work that takes more than a second, on stderr: a bar on a terminal, nothing in a log.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::time::{Duration, Instant};

/// The bar of one piece of work; it shows itself after a second.
#[derive(Debug)]
pub struct Progress {
    what: &'static str,
    started: Instant,
    bar: Option<ProgressBar>,
}

/// Work shorter than this shows no bar.
const QUIET: Duration = Duration::from_secs(1);

impl Progress {
    /// The progress of work called `what`, which begins now.
    #[must_use]
    pub fn new(what: &'static str) -> Self {
        Self { what, started: Instant::now(), bar: None }
    }

    /// `done` of `total` steps are done.
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
