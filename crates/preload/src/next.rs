//! libc's versions of the functions that this library interposes.

use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

/// The next definition of an interposed function.
pub(crate) struct Next {
    name: &'static CStr,
    function: AtomicPtr<c_void>,
}

impl Next {
    pub(crate) const fn new(name: &'static CStr) -> Self {
        Self { name, function: AtomicPtr::new(std::ptr::null_mut()) }
    }

    /// Returns the function's address, with one look-up. `None` when this libc is older than the function.
    pub(crate) fn find(&self) -> Option<*mut c_void> {
        let known = self.function.load(Ordering::Relaxed);
        if !known.is_null() {
            return Some(known);
        }
        // SAFETY: the name is a C string.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.function.store(found, Ordering::Relaxed);
        (!found.is_null()).then_some(found)
    }

    /// Looks the function up now, where a later look-up would be unsafe.
    pub(crate) fn prepare(&self) {
        let _known_from_now_on = self.find();
    }

    /// Returns the address of a function that every libc has.
    pub(crate) fn known(&self) -> *mut c_void {
        self.find().expect("libc has what this library stands before")
    }
}
