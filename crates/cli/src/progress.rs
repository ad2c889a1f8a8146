//! Progress of long work, on stderr: a bar on a terminal, nothing in a log.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A line that says what is being done, and for how long the whole has been going on.
pub(crate) fn stages(what: &'static str) -> ProgressBar {
    let spinner = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(10));
    let style = ProgressStyle::with_template("{spinner} {elapsed} {msg}").expect("the template is constant");
    spinner.set_style(style);
    spinner.set_message(what);
    spinner
}

/// A bar of `total` steps called `what`.
pub(crate) fn bar(what: &'static str, total: u64) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr_with_hz(10));
    let style = ProgressStyle::with_template("{msg:28} {wide_bar} {human_pos}/{human_len} {per_sec} {eta}")
        .expect("the template is constant");
    bar.set_style(style);
    bar.set_message(what);
    bar
}

/// A count of what has no end in sight, called `what`.
pub(crate) fn spinner(what: &'static str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(10));
    let style = ProgressStyle::with_template("{spinner} {msg} {human_pos} {per_sec}")
        .expect("the template is constant");
    bar.set_style(style);
    bar.set_message(what);
    bar
}
