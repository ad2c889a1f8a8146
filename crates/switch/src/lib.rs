//! The switch role.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
