//! Functions of libc's that this library stands before, to be called themselves.

use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

/// A function of libc's that this library stands before.
pub(crate) struct Next {
    name: &'static CStr,
    function: AtomicPtr<c_void>,
}

impl Next {
    pub(crate) const fn new(name: &'static CStr) -> Self {
        Self { name, function: AtomicPtr::new(std::ptr::null_mut()) }
    }

    /// Where it is; looked for once. `None` when this libc is older than the function.
    pub(crate) fn find(&self) -> Option<*mut c_void> {
        let known = self.function.load(Ordering::Relaxed);
        if !known.is_null() {
            return Some(known);
        }
        // SAFETY: a text.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.function.store(found, Ordering::Relaxed);
        (!found.is_null()).then_some(found)
    }

    /// Looks for it now, where a later look-up could come at a wrong moment.
    pub(crate) fn prepare(&self) {
        let _known_from_now_on = self.find();
    }

    /// Where it is, of a function that every libc has.
    pub(crate) fn known(&self) -> *mut c_void {
        self.find().expect("libc has what this library stands before")
    }
}
