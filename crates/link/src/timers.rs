//! Precise timers for waits. By default the system wakes a sleeping thread up to 50 us late, so that it can
//! wake several threads at once.

use std::cell::Cell;
use std::num::NonZero;

thread_local! {
    static IS_FINE: Cell<bool> = const { Cell::new(false) };
}

/// Sets the finest timers for the calling thread, permanently.
pub(crate) fn wake_precisely() {
    if !IS_FINE.replace(true) {
        // The call fails only if prctl is forbidden; then the thread wakes as late as others.
        let _ = rustix::thread::set_current_timer_slack(NonZero::new(1));
    }
}
