//! A traversal that finds the records of several keys. Per key, the request carries the slot's address and
//! the key, and the reply carries the record instead of a window of slots.
//!
//! Key type: [`SlotPrograms`]. The scratch pad has a head of eight bytes and an entry per key. The head holds the
//! offset of the current entry, the end of the entries, and the number of windows searched, two bytes each.
//! An entry starts as the address of the key's home and the key. Afterwards the entry holds the record's
//! version, 0 for none, and its value.
//!
//! If a key is in two slots (a writer died in the middle of a move), the first one counts. Both have one
//! version, because an insert empties the later slot before it writes the first.

use super::{FlatMap, HEAD, Key, WINDOW};
use farmem_client::{FarMemory, Op};
use farmem_traversal::{Program, SCRATCH_LEN_MAX, WINDOW_LEN_MAX};
use farmem_wire::VirtAddr;
use std::fmt::Write as _;
use std::ops::Range;

/// Bound on the keys of one traversal.
const KEYS_MAX: usize = 64;
/// Key counts of shorter pads: for small messages, and for a prefetcher's usual ones.
const KEYS_FEWER: [usize; 2] = [8, 32];
/// Bytes of the pad before its entries.
const PAD_HEAD: usize = 8;

/// The programs for a map's slots, with pads of several lengths. Empty where no datagram of the rack carries
/// them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct SlotPrograms {
    programs: Vec<(usize, Program)>,
    entry_len: usize,
    windows: usize,
}

impl SlotPrograms {
    pub(super) fn of(memory: &(impl FarMemory + ?Sized), slot_len: usize, value_len: usize) -> Self {
        let entry_len = 8 + value_len.next_multiple_of(8);
        let windows = (WINDOW * slot_len).div_ceil(WINDOW_LEN_MAX);
        let room = memory.scratch_len_max().min(SCRATCH_LEN_MAX);
        let most = (room.saturating_sub(PAD_HEAD) / entry_len).min(KEYS_MAX);
        let mut programs: Vec<(usize, Program)> = KEYS_FEWER
            .into_iter()
            .chain([KEYS_MAX])
            .map(|keys| keys.min(most))
            .filter(|keys| *keys > 1)
            .map(|keys| (keys, assembled(slot_len, value_len, PAD_HEAD + keys * entry_len)))
            .filter(|(_, program)| program.encoded().len() <= room)
            .collect();
        programs.dedup_by_key(|(keys, _)| *keys);
        Self { programs, entry_len, windows }
    }

    /// Returns the bound on the keys of one traversal; 1 where no program fits.
    pub(super) fn keys_max(&self) -> usize {
        self.programs.last().map_or(1, |(keys, _)| *keys)
    }

    /// Returns the traversal that finds these keys. All keys have one shard, and their number is within the
    /// bound.
    pub(super) fn op<'k>(
        &self,
        map: &FlatMap,
        keys: impl Iterator<Item = &'k Key>,
        mut pad: Vec<u8>,
    ) -> Option<Op> {
        pad.clear();
        pad.resize(PAD_HEAD, 0);
        let (mut first, mut count) = (None, 0);
        for key in keys {
            let (shard, home) = map.home(key);
            let addr = map.addr(shard, home);
            first.get_or_insert(addr);
            pad.extend_from_slice(&addr.0.to_le_bytes());
            pad.extend_from_slice(key);
            pad.resize(PAD_HEAD + (count + 1) * self.entry_len, 0);
            count += 1;
        }
        let (_, program) = self.programs.iter().find(|(keys, _)| count <= *keys)?;
        let end = u16::try_from(pad.len()).expect("a pad has a few thousand bytes");
        pad[..2].copy_from_slice(&[u8::try_from(PAD_HEAD).expect("small"), 0]);
        pad[2..4].copy_from_slice(&end.to_le_bytes());
        pad.resize(program.scratch_len(), 0);
        let limit = u32::try_from(count * self.windows).expect("a few hundred");
        Some(Op::Traverse { program: program.clone(), cur_ptr: first?, scratch: pad, limit })
    }

    /// Returns the record of key number `at`: its version, and the range of its value.
    pub(super) fn found(&self, at: usize, pad: &[u8], value_len: usize) -> Option<(u64, Range<usize>)> {
        let value = PAD_HEAD + at * self.entry_len + size_of::<u64>();
        let value = value..value + value_len;
        let version = u64::from_le_bytes(*pad.get(..value.end)?.get(value.start - 8..)?.first_chunk()?);
        (version != 0).then_some((version, value))
    }
}

/// Assembles the program. Each iteration searches one window of slots of one key, then continues with the
/// key's next window or with the next key.
fn assembled(slot_len: usize, value_len: usize, scratch_len: usize) -> Program {
    let window = WINDOW_LEN_MAX.min(WINDOW * slot_len);
    let entry_len = 8 + value_len.next_multiple_of(8);
    let mut text =
        format!(".window {window}\n.scratch {scratch_len}\n ld2 r2, scratch[0]\n ld8 r3, scratch[r2 + 8]\n");
    let mut line =
        |line: std::fmt::Arguments<'_>| text.write_fmt(line).expect("a string takes what is written");
    for slot in (0..window).step_by(slot_len) {
        line(format_args!(
            " ld8 r4, window[{slot} + 8]\n jne r4, r3, behind{slot}\n mov r7, {slot}\n ld8 r5, window[{slot}]\n \
             jne r5, 0, found\nbehind{slot}:\n"
        ));
    }
    line(format_args!(
        " ld2 r8, scratch[4]\n add r8, 1\n jeq r8, {}, absent\n st2 scratch[4], r8\n add r1, {window}\n next r1\n\
         absent:\n st8 scratch[r2], 0\n jmp on\nfound:\n st8 scratch[r2], r5\n",
        WINDOW * slot_len / window
    ));
    for at in (0..value_len).step_by(8) {
        line(format_args!(" ld8 r4, window[r7 + {}]\n st8 scratch[r2 + 8 + {at}], r4\n", HEAD + at));
    }
    line(format_args!(
        "on:\n add r2, {entry_len}\n st2 scratch[0], r2\n st2 scratch[4], 0\n ld2 r4, scratch[2]\n jge r2, r4, over\n \
         ld8 r1, scratch[r2]\n next r1\nover:\n ret\n"
    ));
    crate::assembled(&text)
}

/// An entry has room for the address of a home.
const _: () = assert!(size_of::<VirtAddr>() == 8 && HEAD == 16);

#[cfg(test)]
mod tests {
    use super::*;

    /// Slots and values of every length give a program that a memory node accepts and whose pads fit.
    #[test]
    fn every_length_has_a_program() {
        for value_len in 1..=super::super::VALUE_LEN_MAX {
            let slot_len = (HEAD + value_len).next_power_of_two().max(super::super::SLOT_LEN_MIN);
            let entry_len = 8 + value_len.next_multiple_of(8);
            let program = assembled(slot_len, value_len, PAD_HEAD + KEYS_FEWER[0] * entry_len);
            assert!(program.encoded().len() < 1024, "{value_len}: {} bytes", program.encoded().len());
        }
    }
}
