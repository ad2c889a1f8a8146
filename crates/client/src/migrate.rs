//! Migration of memory between nodes: the plan of requests, and the operator's command.

use crate::config::RackConfig;
use crate::error::Error;
use crate::link::operator_client;
use farmem_control::MIGRATE_LEN_MAX;
use farmem_control::api::{ApiError, ErrorCode, Locate, LocatedVma, Migrate, MovedInfo};
use farmem_wire::NodeId;
use farmem_wire::message::PAGE_LEN;

/// A migrated range, with its source and target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Moved {
    /// Address of the first byte.
    pub base: u64,
    /// Length in bytes, a power of two.
    pub size: u64,
    /// The node that had the bytes.
    pub from: NodeId,
    /// The node that has the bytes now.
    pub to: NodeId,
}

/// Moves `len` bytes at `base`, or the whole allocation that begins there, to `node` of a running rack, while
/// programs use them. `told` is called with each part that has moved.
///
/// # Errors
/// [`Error`] if the rack does not answer or refuses. The parts that `told` received have moved.
pub fn migrate(
    config: &RackConfig,
    base: u64,
    len: Option<u64>,
    node: NodeId,
    told: &mut dyn FnMut(Moved),
) -> Result<(), Error> {
    let mut api = operator_client(config)?;
    let located = api.call(Locate { addr: base })?;
    for (base, size) in plan(&located, base, len)? {
        let from = owner(&located, base);
        if from != node {
            api.call(Migrate { domain: Some(located.vma.domain), base, len: size, node: node.0 })?;
        }
        told(Moved { base, size, from, to: node });
    }
    Ok(())
}

/// Returns the node that has a byte of a vma.
fn owner(located: &LocatedVma, addr: u64) -> NodeId {
    let piece = located.moved.iter().find(|piece| addr.wrapping_sub(piece.base) < piece.size);
    NodeId(piece.map_or(located.vma.node, |piece| piece.node))
}

/// Returns the requests that move `len` bytes at `base`, or a whole vma. A part that moved before moves again
/// as a whole. The rest moves in the largest aligned powers of two.
pub(crate) fn plan(located: &LocatedVma, base: u64, len: Option<u64>) -> Result<Vec<(u64, u64)>, Error> {
    let LocatedVma { vma, moved, .. } = located;
    let len = len.unwrap_or(vma.base + vma.size - base);
    let end = base.checked_add(len).filter(|&end| len > 0 && end <= vma.base + vma.size);
    let (page, cut) =
        (PAGE_LEN as u64, |piece: &&MovedInfo, at: u64| piece.base < at && at < piece.base + piece.size);
    let end = end.filter(|end| base.is_multiple_of(page) && end.is_multiple_of(page));
    let Some(end) = end else {
        let (from, to) = (vma.base, vma.base + vma.size);
        let message =
            format!("{len} bytes from {base:#x} are no whole pages of the allocation {from:#x}..{to:#x}");
        let remedy = "give multiples of 4096 as first byte and as length".to_owned();
        return Err(Error::Refused(ApiError { code: ErrorCode::BadRequest, message, remedy }));
    };
    if let Some(piece) = moved.iter().find(|piece| cut(piece, base) || cut(piece, end)) {
        let message = format!(
            "the {} bytes from {:#x} moved together, and can only move together again",
            piece.size, piece.base
        );
        let remedy = "give a range that contains all or none of them".to_owned();
        return Err(Error::Refused(ApiError { code: ErrorCode::Conflict, message, remedy }));
    }
    let (mut parts, mut at) = (Vec::new(), base);
    while at < end {
        let piece = moved.iter().find(|piece| piece.base >= at).filter(|piece| piece.base < end);
        if let Some(piece) = piece.filter(|piece| piece.base == at) {
            parts.push((at, piece.size));
            at += piece.size;
            continue;
        }
        let room = piece.map_or(end, |piece| piece.base) - at;
        let largest = 1 << room.min(MIGRATE_LEN_MAX).ilog2();
        let size = if at == 0 { largest } else { largest.min(1 << at.trailing_zeros()) };
        parts.push((at, size));
        at += size;
    }
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use farmem_control::api::VmaInfo;

    const MIB: u64 = 1 << 20;

    fn located(size: u64, moved: &[(u64, u64)]) -> LocatedVma {
        let vma = VmaInfo { id: 1, base: 256 * MIB, size, node: 1, domain: 1 };
        let moved =
            moved.iter().map(|&(at, size)| MovedInfo { base: 256 * MIB + at, size, node: 2 }).collect();
        LocatedVma { vma, moved, lost: Vec::new() }
    }

    fn cut(located: &LocatedVma, at: u64, len: Option<u64>) -> Vec<(u64, u64)> {
        let parts = plan(located, 256 * MIB + at, len).expect("whole pages");
        parts.into_iter().map(|(base, size)| (base - 256 * MIB, size)).collect()
    }

    #[test]
    fn a_range_is_cut_into_aligned_powers_of_two() {
        let whole = located(MIB, &[]);
        assert_eq!(cut(&whole, 0, None), [(0, MIB)]);
        assert_eq!(cut(&whole, 0x1000, Some(0x5000)), [(0x1000, 0x1000), (0x2000, 0x2000), (0x4000, 0x2000)]);
        let large = located(256 * MIB, &[]);
        assert_eq!(cut(&large, 0, None), [0, 64, 128, 192].map(|at| (at * MIB, 64 * MIB)));
    }

    #[test]
    fn parts_move_as_they_moved_before() {
        let pieces = located(MIB, &[(0x4000, 0x4000), (0x8000, 0x1000)]);
        let parts = [(0, 0x4000), (0x4000, 0x4000), (0x8000, 0x1000), (0x9000, 0x1000), (0xa000, 0x2000)];
        assert_eq!(cut(&pieces, 0, Some(0xc000)), parts);
        for (at, len) in
            [(0x5000, 0x1000), (0, 0x6000), (0x6000, 0x2000), (1, 0x1000), (0, 2 * MIB), (0, 0), (0, 100)]
        {
            assert!(plan(&pieces, 256 * MIB + at, Some(len)).is_err(), "{len:#x} from {at:#x}");
        }
    }
}
