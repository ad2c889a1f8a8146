//! Look-ups of a hash table by a prefetcher: in this process, or in another process that has the table's
//! form.
//!
//! A table opened by its form is read-only; its writer is elsewhere.

use super::{FIND_PROGRAM, HashTable, Key, NODE_LEN, Shard, Spread, at, found_in, offset};
use crate::assembled;
use crate::form::{Form, Shard as FormShard, allocations, refused, within};
use farmem_client::{
    Answer, Client, Completed, Error, FarMemory, LockWord, LookUp, LookedUp, Op, Policy, Vma,
};

/// Bound on the buckets in a received form: the bytes of all buckets fit into a word.
const BUCKETS_MAX: u64 = 1 << 50;

impl HashTable {
    /// Returns the form from which another process opens this table for prefetching ([`crate::form`]). Each
    /// value must then come from a program's `ObservedMemory`: the number of its change and 32 bytes after it
    /// (PROTOCOL 19.2). Other values yield meaningless items. The other process only reads, with the
    /// guarantees of any reader beside a writer.
    #[must_use]
    pub fn form(&self) -> Form {
        let shards = self.shards.iter().map(|shard| FormShard::from(shard.vma)).collect();
        Form::HashTable { shards, buckets: self.buckets }
    }

    /// Opens the table of a received form, for look-ups alone. The handle has no free nodes and refuses a
    /// bulk load.
    pub(crate) fn of(
        memory: &(impl FarMemory + ?Sized),
        shards: &[FormShard],
        buckets: u64,
    ) -> Result<Self, Error> {
        within("buckets", buckets, 1, BUCKETS_MAX)?;
        if !buckets.is_power_of_two() {
            return Err(refused(format!("buckets is {buckets}, and must be a power of two")));
        }
        let per_shard = buckets.div_ceil(shards.len().max(1) as u64);
        let known = allocations(shards, (per_shard + 1) * NODE_LEN as u64, memory)?;
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
    /// Does nothing: the writer decides when nodes of removed keys are reused ([`HashTable::reclaim`]).
    fn begin(&mut self, _: &mut Client) -> Result<(), Error> {
        Ok(())
    }

    fn op(&self, key: &[u8], scratch: Vec<u8>) -> Option<Op> {
        Some(self.find_op(Key::of(key), scratch))
    }

    fn looked_up(&self, _: usize, _: &[u8], completed: &Completed, into: &mut Vec<u8>) -> LookedUp {
        // A program that reached its iteration limit has no result.
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
