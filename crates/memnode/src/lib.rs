//! The memory node role: it holds bytes of far memory, serves one-sided verbs and runs traversals beside the data.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod store;

pub use store::{Store, VecStore, WORD_LEN};
