//! Messages to the user on standard error, each at most once per process.

use crate::area;
use std::sync::atomic::{AtomicBool, Ordering};

static NO_MORE: AtomicBool = AtomicBool::new(false);
static NO_ADDRESSES: AtomicBool = AtomicBool::new(false);

/// Reports that far memory is exhausted, when a mapping or a block is refused.
pub(crate) fn no_more() {
    once(
        &NO_MORE,
        "farmem: out of far memory: the program is told so (ENOMEM); without --rack, --far says how much there is\n",
    );
}

/// Reports that no addresses are left, so memory stays local.
pub(crate) fn no_addresses() {
    once(
        &NO_ADDRESSES,
        "farmem: the addresses for far memory are used up: further mappings stay local, and --local does not limit them\n",
    );
}

fn once(told: &AtomicBool, what: &str) {
    if !told.swap(true, Ordering::Relaxed) {
        area::say(&[what]);
    }
}
