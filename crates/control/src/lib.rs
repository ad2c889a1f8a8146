//! The control role: membership, allocation, domains, connection set-up, table updates (MIND 4.1, 4.2, 6).
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod api;
