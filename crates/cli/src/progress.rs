//! Progress of long commands on standard error: a bar on a terminal, nothing otherwise.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Returns a line with the current work and the elapsed time.
pub(crate) fn stages(what: &'static str) -> ProgressBar {
    let spinner = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(10));
    let style = ProgressStyle::with_template("{spinner} {elapsed} {msg}").expect("the template is constant");
    spinner.set_style(style);
    spinner.set_message(what);
    spinner
}

/// Returns a bar of `total` steps with the label `what`.
pub(crate) fn bar(what: &'static str, total: u64) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr_with_hz(10));
    let style = ProgressStyle::with_template("{msg:28} {wide_bar} {human_pos}/{human_len} {per_sec} {eta}")
        .expect("the template is constant");
    bar.set_style(style);
    bar.set_message(what);
    bar
}

/// Returns a counter without a known total, with the label `what`.
pub(crate) fn spinner(what: &'static str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(10));
    let style = ProgressStyle::with_template("{spinner} {msg} {human_pos} {per_sec}")
        .expect("the template is constant");
    bar.set_style(style);
    bar.set_message(what);
    bar
}
