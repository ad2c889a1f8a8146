//! Forks. The child's far memory starts as a snapshot of the parent's, and is the child's own from then on.
//!
//! The library registers its handlers before any other that may touch far memory, because there is no far
//! memory before. So its handler is the last to run in the parent before the fork, and the first to run in the
//! child. Signals of the forking thread are blocked from the first handler to the last. A signal handler in the
//! child would find no far memory, and one that forks would start a fork inside this fork.
//!
//! libc's `fork` calls the handlers; its `_Fork` does not. The library's `_Fork` runs libc's between the same
//! handlers.
//!
//! A thread may fork in a signal handler that has interrupted it in the heap. Then it holds the heap's lock,
//! also in the child, where the interrupted code continues when the handler returns. Until then, libc serves
//! the handler's small blocks (`heap`).

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

/// Number of the current fork's snapshot; the heap's lock is held meanwhile.
static SNAPSHOT: AtomicU64 = AtomicU64::new(0);
static SIGNALS: OverFork = OverFork::new();

unsafe extern "C" {
    /// Registers handlers for `pthread_atfork`. Handlers that belong to no library stay registered for good.
    fn __register_atfork(
        prepare: extern "C" fn(),
        parent: extern "C" fn(),
        child: extern "C" fn(),
        library: *mut c_void,
    ) -> c_int;
}

pub(crate) fn register() {
    // SAFETY: the functions live as long as the program.
    let result = unsafe { __register_atfork(prepare, parent, child, ptr::null_mut()) };
    assert_eq!(result, 0, "the first handlers find room");
    // The look-up happens now, because a signal handler may not do it.
    let _without_it_there_is_no_question = NEXT.find();
}

/// `_Fork(3)`. libc's own `fork` does not call it.
///
/// # Safety
/// The contract of libc's function applies.
#[unsafe(export_name = "_Fork")]
pub(crate) unsafe extern "C" fn fork_without_handlers() -> pid_t {
    type Function = unsafe extern "C" fn() -> pid_t;
    let Some(function) = NEXT.find() else { return failed(Errno::NOSYS, -1) };
    // SAFETY: the symbol is libc's function of this name, which has this type.
    let function: Function = unsafe { transmute(function) };
    if !area::is_ready() {
        // SAFETY: guaranteed by the caller.
        return unsafe { function() };
    }
    prepare();
    // SAFETY: guaranteed by the caller.
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
    // SAFETY: the heap's lock is held until `forked`, after `restore`.
    unsafe { SIGNALS.keep(signals) };
    // Without a snapshot the child cannot get its memory; the child reports that.
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
    // SAFETY: `prepare` stored the signals.
    let signals = unsafe { SIGNALS.restore() };
    shared::LOCK.forked();
    heap::LOCK.forked();
    drop(signals);
}

/// A number that no snapshot has.
const NONE: u64 = u64::MAX;
