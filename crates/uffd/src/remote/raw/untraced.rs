//! The stub of `tracee` for architectures that the injection code does not support. [`Tracee`] has no values, so its
//! methods cannot be called.

use super::injection::{Outcome, Stop};
use std::io;

/// A seized thread, which does not exist on this architecture.
#[derive(Debug)]
pub enum Tracee {}

impl Tracee {
    /// Fails, because no thread can be seized.
    ///
    /// # Errors
    /// Always.
    pub fn seize(_thread: u32) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Fails, because no thread can be seized.
    ///
    /// # Errors
    /// Always.
    pub fn forked(_thread: u32) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Returns number and arguments of the notified call; never called.
    #[must_use]
    pub const fn asked(&self) -> (i64, [u64; 6]) {
        match *self {}
    }

    /// Sets the instruction that makes further calls; never called.
    pub const fn call_from(&mut self, _instruction: u64) {
        match *self {}
    }

    /// Lets a fork's child return from its parent's call; never called.
    pub const fn returns_as_child(&mut self, _parent: &Self, _has_own_stack: bool) {
        match *self {}
    }

    /// Begins a call; never called.
    ///
    /// # Errors
    /// Never.
    pub const fn call(&mut self, _number: i64, _arguments: [u64; 6]) -> io::Result<()> {
        match *self {}
    }

    /// Continues a call; never called.
    ///
    /// # Errors
    /// Never.
    pub const fn go_on(&mut self) -> io::Result<()> {
        match *self {}
    }

    /// Returns the next stop; never called.
    ///
    /// # Errors
    /// Never.
    pub const fn poll(&mut self) -> io::Result<Option<Stop>> {
        match *self {}
    }

    /// Writes to the program's memory; never called.
    ///
    /// # Errors
    /// Never.
    pub const fn write(&self, _address: u64, _bytes: &[u8]) -> io::Result<()> {
        match *self {}
    }

    /// Releases the thread; never called.
    ///
    /// # Errors
    /// Never.
    pub const fn release(self, _outcome: Outcome) -> io::Result<()> {
        match self {}
    }

    /// Kills the thread's process; never called.
    pub const fn kill(&mut self) {
        match *self {}
    }

    /// Returns processes that the thread has made; never called.
    ///
    /// # Errors
    /// Never.
    pub const fn unreported_children(&self) -> io::Result<Vec<u32>> {
        match *self {}
    }
}
