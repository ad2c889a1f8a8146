//! Forks: the child's far memory is the parent's as it was, and its own from then on.
//!
//! The handlers are registered before any other that may touch far memory, as there is none before: so in the parent ours is the last
//! to run before the fork, and in the child the first after it. The thread's signals wait from the first to the last: a handler in the
//! child would find no far memory, and one that forks would fork in the middle of this fork.
//!
//! libc's `fork` calls them, and its `_Fork` calls none: that one is called here, between the same handlers.
//!
//! A thread may fork in a signal handler that has interrupted it in the heap. Then it holds the heap's lock, in the child too, where it
//! goes on with what was interrupted when the handler returns. Until then the handler's small blocks are libc's (`heap`).

use crate::maps::failed;
use crate::next::Next;
use crate::signals::{Blocked, OverFork};
use crate::{area, heap, mailbox, shared};
use farmem_preload_abi::call::Call;
use libc::pid_t;
use rustix::io::Errno;
use std::ffi::{c_int, c_void};
use std::mem::transmute;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

/// The number of the fork under way; the heap's lock is held for as long.
static SNAPSHOT: AtomicU64 = AtomicU64::new(0);
static SIGNALS: OverFork = OverFork::new();

unsafe extern "C" {
    /// What `pthread_atfork` calls; without a library to belong to, the handlers stay for good.
    fn __register_atfork(
        prepare: extern "C" fn(),
        parent: extern "C" fn(),
        child: extern "C" fn(),
        library: *mut c_void,
    ) -> c_int;
}

pub(crate) fn register() {
    // SAFETY: functions that live as long as the program.
    let result = unsafe { __register_atfork(prepare, parent, child, ptr::null_mut()) };
    assert_eq!(result, 0, "the first handlers find room");
    // Now, as a handler of signals may not look for it.
    let _without_it_there_is_no_question = NEXT.find();
}

/// `_Fork(3)`. libc's own `fork` does not come by here.
///
/// # Safety
/// As libc's.
#[unsafe(export_name = "_Fork")]
pub(crate) unsafe extern "C" fn fork_without_handlers() -> pid_t {
    type Function = unsafe extern "C" fn() -> pid_t;
    let Some(function) = NEXT.find() else { return failed(Errno::NOSYS, -1) };
    // SAFETY: libc's function of this name, which has this type.
    let function: Function = unsafe { transmute(function) };
    if !area::is_ready() {
        // SAFETY: the caller's promise.
        return unsafe { function() };
    }
    prepare();
    // SAFETY: the caller's promise.
    let forked = unsafe { function() };
    if forked == 0 {
        child();
    } else {
        parent();
    }
    forked
}

static NEXT: Next = Next::new(c"_Fork");

extern "C" fn prepare() {
    let on_the_stack = 0_u8;
    if area::has((&raw const on_the_stack).addr()) {
        area::say(&["farmem: a thread forks whose stack is in far memory: its child ends with a SIGSEGV\n"]);
    }
    let signals = Blocked::new();
    heap::LOCK.take_to_fork();
    shared::LOCK.take_to_fork();
    // SAFETY: the heap's lock is held until `forked`, behind `restore`.
    unsafe { SIGNALS.keep(signals) };
    // Without a snapshot the child cannot have its memory; it will say so, if there is one.
    SNAPSHOT.store(mailbox::call(Call::Fork).unwrap_or(NONE), Ordering::Relaxed);
}

extern "C" fn parent() {
    let _always = mailbox::call(Call::Forked);
    forked();
}

extern "C" fn child() {
    area::attach_child(SNAPSHOT.load(Ordering::Relaxed));
    forked();
}

fn forked() {
    // SAFETY: `prepare` kept it.
    let signals = unsafe { SIGNALS.restore() };
    shared::LOCK.forked();
    heap::LOCK.forked();
    drop(signals);
}

/// No snapshot has this number.
const NONE: u64 = u64::MAX;
