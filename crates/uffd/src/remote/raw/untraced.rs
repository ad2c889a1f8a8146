//! In place of `tracee`, on machines whose registers it does not know: no thread is seized.

use super::injection::{Outcome, Stop};
use std::io;

/// A seized thread, of which there is none here.
#[derive(Debug)]
pub enum Tracee {}

impl Tracee {
    /// Seizes no thread.
    ///
    /// # Errors
    /// Always.
    pub fn seize(_thread: u32) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Seizes no thread.
    ///
    /// # Errors
    /// Always.
    pub fn forked(_thread: u32) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// There is no thread.
    #[must_use]
    pub const fn asked(&self) -> (i64, [u64; 6]) {
        match *self {}
    }

    /// There is no thread.
    pub const fn call_from(&mut self, _instruction: u64) {
        match *self {}
    }

    /// There is no thread.
    pub const fn returns_as_child(&mut self, _parent: &Self, _has_own_stack: bool) {
        match *self {}
    }

    /// There is no thread.
    ///
    /// # Errors
    /// Never.
    pub const fn call(&mut self, _number: i64, _arguments: [u64; 6]) -> io::Result<()> {
        match *self {}
    }

    /// There is no thread.
    ///
    /// # Errors
    /// Never.
    pub const fn go_on(&mut self) -> io::Result<()> {
        match *self {}
    }

    /// There is no thread.
    ///
    /// # Errors
    /// Never.
    pub const fn poll(&mut self) -> io::Result<Option<Stop>> {
        match *self {}
    }

    /// There is no thread.
    ///
    /// # Errors
    /// Never.
    pub const fn write(&self, _address: u64, _bytes: &[u8]) -> io::Result<()> {
        match *self {}
    }

    /// There is no thread.
    ///
    /// # Errors
    /// Never.
    pub const fn release(self, _outcome: Outcome) -> io::Result<()> {
        match self {}
    }

    /// There is no thread.
    pub const fn kill(self) {
        match self {}
    }
}
