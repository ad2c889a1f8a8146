//! Mapped pages of an address space, with their protection.

use crate::addresses::PAGE;
use crate::syscalls::protection::Prot;
use alloc::collections::BTreeMap;
use rangemap::RangeMap;
use serde::{Deserialize, Serialize};

/// Disjoint areas of whole pages. Neighbours of the same protection are one area.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(try_from = "Areas", into = "Areas")]
pub(super) struct Pages(RangeMap<u64, Prot>);

/// The areas as they are in a log: by first byte, the end and the protection.
type Areas = BTreeMap<u64, (u64, Prot)>;

impl Pages {
    /// Maps `base..end` with this protection, or unmaps it, whatever was there.
    pub(super) fn set(&mut self, base: u64, end: u64, prot: Option<Prot>) {
        match prot {
            _ if base >= end => {}
            Some(prot) => self.0.insert(base..end, prot),
            None => self.0.remove(base..end),
        }
    }

    /// Iterates over the mapped areas in `base..end`: first byte, end, protection; ascending.
    pub(super) fn parts(&self, base: u64, end: u64) -> impl Iterator<Item = (u64, u64, Prot)> + '_ {
        let areas = (base < end).then(|| self.0.overlapping(base..end)).into_iter().flatten();
        areas.map(move |(area, &prot)| (area.start.max(base), area.end.min(end), prot))
    }

    /// Returns the first address from `base` on that is not mapped, at most `end`.
    pub(super) fn mapped_until(&self, base: u64, end: u64) -> u64 {
        self.parts(base, end).fold(base, |at, (from, to, _)| if from == at { to } else { at })
    }

    /// Returns the number of areas.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn is_sound(&self) -> bool {
        let whole = |at: u64| at.is_multiple_of(PAGE);
        self.0.iter().all(|(area, _)| whole(area.start) && whole(area.end))
    }
}

impl TryFrom<Areas> for Pages {
    type Error = &'static str;

    /// Checks the areas, because a log that was tampered with may have any.
    fn try_from(areas: Areas) -> Result<Self, Self::Error> {
        if areas.iter().any(|(base, (end, _))| base >= end) {
            return Err("an area is empty or ends before it begins");
        }
        let pages = Self(areas.iter().map(|(&base, &(end, prot))| (base..end, prot)).collect());
        // Areas that overlap, or should have been one area, come out otherwise than they went in.
        if Areas::from(pages.clone()) == areas {
            Ok(pages)
        } else {
            Err("areas overlap, or are two in place of one")
        }
    }
}

impl From<Pages> for Areas {
    fn from(pages: Pages) -> Self {
        pages.0.into_iter().map(|(area, prot)| (area.start, (area.end, prot))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString as _;

    /// A log has the areas by first byte. Areas that [`Pages::set`] never makes are refused with the reason.
    #[test]
    fn areas_in_a_log_are_as_they_were_made() {
        let mut pages = Pages::default();
        pages.set(0x1000, 0x4000, Some(Prot::Read));
        pages.set(0x3000, 0x5000, Some(Prot::ReadWrite));
        let text = r#"{"4096":[12288,"Read"],"12288":[20480,"ReadWrite"]}"#;
        assert_eq!(serde_json::to_string(&pages).unwrap(), text);
        assert_eq!(serde_json::from_str::<Pages>(text).unwrap(), pages);
        for (damaged, what) in [
            (r#"{"4096":[16384,"Read"],"12288":[20480,"ReadWrite"]}"#, "areas overlap"),
            (r#"{"4096":[12288,"Read"],"12288":[20480,"Read"]}"#, "two in place of one"),
            (r#"{"4096":[4096,"Read"]}"#, "an area is empty"),
        ] {
            let why = serde_json::from_str::<Pages>(damaged).unwrap_err().to_string();
            assert!(why.contains(what), "{why}");
        }
    }
}
