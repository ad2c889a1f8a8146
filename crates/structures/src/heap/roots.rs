//! Named roots of a heap. Each has a word with the address of a record that holds the name and the name's
//! target.
//!
//! A name is written once, and its word is then changed by compare-and-swap. Words are never cleared, so two
//! programs that create a name at once meet at the same word. A heap supports [`ROOTS_MAX`] names during its
//! whole life.

use super::layout::{ROOTS_AT, ROOTS_MAX, root_at};
use super::{Heap, Record};
use crate::words;
use farmem_client::{Error, FarMemory};
use farmem_wire::VirtAddr;
use siphasher::sip::SipHasher13;
use std::hash::Hasher as _;

/// The kind of a root's record.
const KIND: u8 = 1;
/// Bytes before the name: kind of structure, address.
const HEAD_LEN: usize = 16;
/// Largest name, in bytes: one READ of a line reads a root.
pub const ROOT_NAME_MAX: usize = 200;

/// A root's word and the parsed record.
struct Found {
    number: usize,
    /// The word; 0 for an unused one.
    word: u64,
    len: u32,
    kind: u64,
    value: u64,
}

impl Heap {
    /// Returns the record that `name` refers to, if it is of this kind of structure.
    ///
    /// # Errors
    /// [`Error::Missing`] when the name has no target; [`Error::Broken`] when the target is another kind of
    /// structure.
    pub fn root(
        &mut self,
        memory: &mut (impl FarMemory + ?Sized),
        name: &str,
        kind: [u8; 8],
    ) -> Result<VirtAddr, Error> {
        self.pin(memory)?;
        let found = self.look_up(memory, name);
        self.unpin();
        let found = found?;
        if found.word == 0 || found.value == 0 {
            let what = format!("structure called {name:?} in {}", self.title());
            return Err(Error::Missing { what });
        }
        if found.kind != u64::from_le_bytes(kind) {
            return Err(Error::Broken { addr: VirtAddr(found.word), what: "a structure of this kind" });
        }
        Ok(VirtAddr(found.value))
    }

    /// Sets the target of `name` to the record at `value`, if the name has no target.
    ///
    /// # Errors
    /// [`Error::Exists`] when the name has a target; [`Error::Full`] when the heap has [`ROOTS_MAX`] names;
    /// [`Error::Empty`] and [`Error::TooLong`] for an invalid name.
    pub fn set_root(
        &mut self,
        memory: &mut (impl FarMemory + ?Sized),
        name: &str,
        kind: [u8; 8],
        value: VirtAddr,
    ) -> Result<(), Error> {
        self.change_root(memory, name, u64::from_le_bytes(kind), value.0)
    }

    /// Removes the target of `name`. The caller frees the target.
    ///
    /// # Errors
    /// [`Error::Missing`] when the name has no target.
    pub fn remove_root(&mut self, memory: &mut (impl FarMemory + ?Sized), name: &str) -> Result<(), Error> {
        self.change_root(memory, name, 0, 0)
    }

    fn change_root(
        &mut self,
        memory: &mut (impl FarMemory + ?Sized),
        name: &str,
        kind: u64,
        value: u64,
    ) -> Result<(), Error> {
        if name.is_empty() {
            return Err(Error::Empty { what: "a root's name" });
        }
        if name.len() > ROOT_NAME_MAX {
            return Err(Error::TooLong { len: name.len(), max: ROOT_NAME_MAX });
        }
        let content = [&kind.to_le_bytes(), &value.to_le_bytes(), name.as_bytes()].concat();
        let fresh = self.put(memory, KIND, &content)?;
        self.pin(memory)?;
        let changed = self.swap_root(memory, name, value, fresh);
        self.unpin();
        match changed? {
            Ok(0) => Ok(()),
            Ok(old) => self.free(memory, Record { at: VirtAddr(old), len: fresh.len }),
            Err(refused) => {
                self.free(memory, fresh)?;
                Err(refused)
            }
        }
    }

    /// Swaps the name's record for `fresh`. Returns the old target, or the reason why not.
    fn swap_root(
        &mut self,
        memory: &mut (impl FarMemory + ?Sized),
        name: &str,
        value: u64,
        fresh: Record,
    ) -> Result<Result<u64, Error>, Error> {
        for _ in 0..ROOTS_MAX {
            let found = match self.look_up(memory, name) {
                Err(refused @ Error::Full { .. }) => return Ok(Err(refused)),
                other => other?,
            };
            let stands = found.word != 0 && found.value != 0;
            if stands && value != 0 {
                let what = format!("a structure called {name:?} in {}", self.title());
                return Ok(Err(Error::Exists { what }));
            }
            if !stands && value == 0 {
                let what = format!("structure called {name:?} in {}", self.title());
                return Ok(Err(Error::Missing { what }));
            }
            self.confirm_membership(memory)?;
            if memory.compare_swap(root_at(self.base, found.number), found.word, fresh.at.0)? == found.word {
                debug_assert!(
                    found.word == 0 || found.len == fresh.len,
                    "records of one name are of one length"
                );
                return Ok(Ok(found.word));
            }
        }
        let tries = u32::try_from(ROOTS_MAX).expect("a small number");
        Ok(Err(Error::Contended { what: format!("the root {name:?} of {}", self.title()), tries }))
    }

    /// Finds the word of a name, or the word that the name would get.
    fn look_up(&mut self, memory: &mut (impl FarMemory + ?Sized), name: &str) -> Result<Found, Error> {
        let mut bytes = vec![0; 8 * ROOTS_MAX];
        memory.read(VirtAddr(self.base.0 + ROOTS_AT), &mut bytes)?;
        let all = words(&bytes);
        let mut hasher = SipHasher13::new();
        hasher.write(name.as_bytes());
        let first = usize::try_from(hasher.finish() % ROOTS_MAX as u64).expect("a small number");
        for number in (first..ROOTS_MAX).chain(0..first) {
            let word = all[number];
            if word == 0 {
                return Ok(Found { number, word, len: 0, kind: 0, value: 0 });
            }
            let len = u32::try_from(HEAD_LEN + name.len()).unwrap_or(u32::MAX);
            let (kind, content) = self.read(memory, Record { at: VirtAddr(word), len })?;
            if kind != KIND || content.len() < HEAD_LEN {
                return Err(Error::Broken { addr: VirtAddr(word), what: "a root of a heap" });
            }
            if &content[HEAD_LEN..] == name.as_bytes() {
                let head = words(&content[..HEAD_LEN]);
                return Ok(Found { number, word, len, kind: head[0], value: head[1] });
            }
        }
        Err(Error::Full {
            what: format!("the list of names in {}, {ROOTS_MAX} in all its life,", self.title()),
        })
    }
}
