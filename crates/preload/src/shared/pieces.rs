//! The parts of the rack's addresses that a process has mapped, with their access rights. Mappings of the same
//! bytes have the same addresses, so they overlap.

use crate::maps::system_mprotect;
use rustix::io::Errno;
use std::ffi::c_int;

/// Maximum number of mappings of objects in one process.
pub(super) const MAPPINGS_MAX: usize = 1024;

pub(super) struct List {
    pub(super) count: usize,
    pub(super) all: [Piece; MAPPINGS_MAX],
}

/// The mapping of one `mmap` call, or the rest of it.
#[derive(Clone, Copy)]
pub(super) struct Piece {
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) protection: c_int,
}

impl Piece {
    pub(super) const NONE: Self = Self { start: 0, end: 0, protection: 0 };
}

impl List {
    pub(super) fn add(&mut self, piece: Piece) -> Result<(), Errno> {
        self.push(piece)?;
        let done = self.protect(piece.start, piece.end);
        if done.is_err() {
            self.count -= 1;
        }
        done
    }

    fn push(&mut self, piece: Piece) -> Result<(), Errno> {
        let place = self.all.get_mut(self.count).ok_or(Errno::NOMEM)?;
        *place = piece;
        self.count += 1;
        Ok(())
    }

    /// Removes the part of a piece between two addresses, or changes its access rights.
    fn cut(&mut self, at: usize, start: usize, end: usize, protection: Option<c_int>) -> Result<(), Errno> {
        let piece = self.all[at];
        let (from, to) = (piece.start.max(start), piece.end.min(end));
        if from >= to {
            return Ok(());
        }
        let parts = [
            Piece { end: from, ..piece },
            Piece { start: to, ..piece },
            Piece { start: from, end: protection.map_or(from, |_| to), protection: protection.unwrap_or(0) },
        ];
        self.count -= 1;
        self.all[at] = self.all[self.count];
        for part in parts.into_iter().filter(|part| part.start < part.end) {
            self.push(part)?;
        }
        Ok(())
    }

    pub(super) fn cut_all(
        &mut self,
        start: usize,
        end: usize,
        protection: Option<c_int>,
    ) -> Result<(), Errno> {
        let other = |piece: &Piece| {
            let inside = piece.start < end && start < piece.end;
            inside && protection.is_none_or(|its| its != piece.protection)
        };
        while let Some(at) = self.all[..self.count].iter().position(other) {
            self.cut(at, start, end, protection)?;
        }
        Ok(())
    }

    /// Returns the combined rights of all mappings at `at`, and the address up to which they hold.
    fn allowed(&self, at: usize, end: usize) -> (usize, c_int) {
        let pieces = &self.all[..self.count];
        let ends = pieces.iter().flat_map(|piece| [piece.start, piece.end]);
        let next = ends.filter(|&edge| edge > at).min().unwrap_or(end).min(end);
        let there = pieces.iter().filter(|piece| piece.start <= at && at < piece.end);
        (next, there.fold(libc::PROT_NONE, |all, piece| all | piece.protection))
    }

    /// Sets the combined rights in the kernel.
    pub(super) fn protect(&self, start: usize, end: usize) -> Result<(), Errno> {
        let mut at = start;
        while at < end {
            let (next, protection) = self.allowed(at, end);
            // SAFETY: the range is in the mapping of `begin`; the rights are those that the program requested.
            unsafe { system_mprotect(at, next - at, protection) }?;
            at = next;
        }
        Ok(())
    }

    /// Removes one mapping of these addresses. Among several that contain the range, the latest goes; if none
    /// contains it, all mappings lose their part of the range.
    pub(super) fn remove(&mut self, start: usize, end: usize) -> Result<(), Errno> {
        let whole = (0..self.count).rev().find(|&at| self.all[at].start <= start && end <= self.all[at].end);
        match whole {
            Some(at) => self.cut(at, start, end, None),
            None => self.cut_all(start, end, None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PLACES: usize = 16;

    fn list() -> Box<List> {
        Box::new(List { count: 0, all: [Piece::NONE; MAPPINGS_MAX] })
    }

    /// Returns the access rights at each place.
    fn rights(list: &List) -> Vec<c_int> {
        let mut all = Vec::new();
        while all.len() < PLACES {
            let (next, protection) = list.allowed(all.len(), PLACES);
            assert!(next > all.len() && next <= PLACES);
            all.resize(next, protection);
        }
        all
    }

    proptest! {
        /// The model is a plain stack of layers: each place allows what its layers allow together.
        #[test]
        fn as_a_stack_of_layers(acts in prop::collection::vec((0..PLACES, 1..PLACES, 0..3_u8, 0..4_i32), 0..40)) {
            let mut list = list();
            let mut layers: Vec<Vec<Option<c_int>>> = Vec::new();
            for (start, len, act, protection) in acts {
                let end = (start + len).min(PLACES);
                match act {
                    0 => {
                        list.push(Piece { start, end, protection }).unwrap();
                        layers.push((0..PLACES).map(|at| (start..end).contains(&at).then_some(protection)).collect());
                    }
                    1 => {
                        // If no mapping contains the range, all mappings lose their part of it.
                        let whole = layers.iter().any(|layer| layer[start..end].iter().all(Option::is_some));
                        if whole {
                            continue;
                        }
                        list.remove(start, end).unwrap();
                        layers.iter_mut().for_each(|layer| layer[start..end].fill(None));
                    }
                    _ => {
                        list.cut_all(start, end, Some(protection)).unwrap();
                        for layer in &mut layers {
                            layer[start..end].iter_mut().flatten().for_each(|its| *its = protection);
                        }
                    }
                }
                let plain: Vec<c_int> = (0..PLACES)
                    .map(|at| layers.iter().filter_map(|layer| layer[at]).fold(0, |all, its| all | its))
                    .collect();
                prop_assert_eq!(rights(&list), plain);
            }
        }
    }

    /// `remove` takes the latest of two equal mappings.
    #[test]
    fn the_latest_of_two_goes() {
        let mut list = list();
        for protection in [libc::PROT_READ, libc::PROT_WRITE] {
            list.push(Piece { start: 2, end: 6, protection }).unwrap();
        }
        list.remove(2, 4).unwrap();
        let (read, both) = (libc::PROT_READ, libc::PROT_READ | libc::PROT_WRITE);
        assert_eq!(rights(&list)[..7], [0, 0, read, read, both, both, 0]);
        list.remove(2, 6).unwrap();
        assert_eq!(rights(&list)[..7], [0, 0, 0, 0, libc::PROT_WRITE, libc::PROT_WRITE, 0]);
    }
}
