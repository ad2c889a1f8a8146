//! Waits that end when they should: by default a sleeping thread is woken up to 50 us late, so that the system can wake several at once.

use std::cell::Cell;
use std::num::NonZero;

thread_local! {
    static IS_FINE: Cell<bool> = const { Cell::new(false) };
}

/// The calling thread is woken by the finest timers from now on, for good.
pub(crate) fn wake_precisely() {
    if !IS_FINE.replace(true) {
        // Refused only where prctl is; then it wakes as late as any thread.
        let _ = rustix::thread::set_current_timer_slack(NonZero::new(1));
    }
}
