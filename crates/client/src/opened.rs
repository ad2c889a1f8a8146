//! Objects that a client has open (PROTOCOL 8.53), which the handles of each share.

use crate::error::Error;
use farmem_control::api::{ApiError, ErrorCode, OpenMode};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// Objects that a client has open, which its handles share.
pub(crate) type Opened = Rc<RefCell<BTreeMap<u64, Uses>>>;

/// A client's uses of an object that it has open.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Uses {
    pub(crate) mode: OpenMode,
    /// Number of `OpenNamed` handles.
    pub(crate) handles: u32,
    /// True if the object was opened as `Named`, which stays open until its name is removed.
    pub(crate) stays: bool,
}

/// Returns the error of a client that cannot continue, because other hosts have opened or freed an object
/// that it had open.
pub(crate) fn lost_open(error: &Error) -> ApiError {
    ApiError {
        code: error.code().unwrap_or(ErrorCode::Unavailable),
        message: format!("this client joined the rack again and lost what it had open: {error}"),
        remedy: "end this client, and open the objects with another one".into(),
    }
}
