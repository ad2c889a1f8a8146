//! A hash table for who looks keys up ahead: in this process, or by its form in another one.
//!
//! What it does not do: write. Who has the table by its form only reads it, beside its writer.

use super::{FIND_PROGRAM, HashTable, Key, NODE_LEN, Shard, Spread, at, found_in, offset};
use crate::assembled;
use crate::form::{self, Form};
use farmem_client::{
    Answer, Client, Completed, Error, FarMemory, LockWord, LookUp, LookedUp, Op, Policy, Vma,
};

/// Buckets of a table that somebody says lies somewhere: what they take is a number of bytes still.
const BUCKETS_MAX: u64 = 1 << 50;

impl HashTable {
    /// What another process makes this table of, to look keys up ahead ([`crate::form`]). Each value is then one that a program's `Beside` made: the number of its change and 32 bytes behind it (PROTOCOL 19.2); of others no item is what it
    /// seems. It is no writer: what it looks up is there as for any reader beside one.
    #[must_use]
    pub fn form(&self) -> Form {
        let shards = self.shards.iter().map(|shard| form::Shard::from(shard.vma)).collect();
        Form::HashTable { shards, buckets: self.buckets }
    }

    /// The table that somebody says lies there, for look-ups alone: it has no room, and counts as full of entries.
    pub(crate) fn of(
        memory: &(impl FarMemory + ?Sized),
        shards: &[form::Shard],
        buckets: u64,
    ) -> Result<Self, Error> {
        form::within("buckets", buckets, 1, BUCKETS_MAX)?;
        if !buckets.is_power_of_two() {
            return Err(form::refused(format!("buckets is {buckets}, and must be a power of two")));
        }
        let per_shard = buckets.div_ceil(shards.len().max(1) as u64);
        let known = form::allocations(shards, (per_shard + 1) * NODE_LEN as u64, memory)?;
        let lock = LockWord::new(at(known[0].base, offset(per_shard) * NODE_LEN));
        let free = vec![Vec::new(); known.len()];
        let full = |vma: Vma| Shard { node: vma.node, vma, next: vma.base.0 + vma.size };
        Ok(Self {
            program: assembled(FIND_PROGRAM),
            shards: known.into_iter().map(full).collect(),
            buckets,
            spread: Spread::Partitioned,
            turn: 0,
            policy: Policy::default(),
            lock,
            retired: Vec::new(),
            free,
            entries: u64::MAX,
        })
    }
}

impl LookUp for HashTable {
    /// Nothing: nodes of removed keys are used again when the writer says so ([`HashTable::reclaim`]).
    fn begin(&mut self, _: &mut Client) -> Result<(), Error> {
        Ok(())
    }

    fn op(&self, key: &[u8], scratch: Vec<u8>) -> Option<Op> {
        Some(self.find_op(Key::of(key), scratch))
    }

    fn looked_up(&self, _: usize, _: &[u8], completed: &Completed, into: &mut Vec<u8>) -> LookedUp {
        // A program that came to its limit has found nothing out.
        let returned = matches!(&completed.result, Ok(Answer::Traversed(end)) if end.returned);
        if !returned {
            return LookedUp::Elsewhere;
        }
        let Some(value) = found_in(&completed.buf) else { return LookedUp::Absent };
        into.extend_from_slice(&value);
        LookedUp::Value
    }

    fn end(&mut self, _: &mut Client) -> Result<(), Error> {
        Ok(())
    }
}
