//! Objects that a client has open (PROTOCOL 8.53), which the handles of each share.

use crate::error::Error;
use farmem_control::api::{ApiError, ErrorCode, OpenMode};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// Objects that a client has open, which its handles share.
pub(crate) type Opened = Rc<RefCell<BTreeMap<u64, Uses>>>;

/// How a client uses an object that it has open.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Uses {
    pub(crate) mode: OpenMode,
    /// `OpenNamed`s of it.
    pub(crate) handles: u32,
    /// The object was opened as `Named`, which stays open until its name goes.
    pub(crate) stays: bool,
}

/// Why a client goes no further: something that it had open is not its any more.
pub(crate) fn lost_open(error: &Error) -> ApiError {
    ApiError {
        code: error.code().unwrap_or(ErrorCode::Unavailable),
        message: format!("this client joined the rack again and lost what it had open: {error}"),
        remedy: "end this client, and open what it had with another one".into(),
    }
}
