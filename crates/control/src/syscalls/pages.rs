//! Which pages of an address space are mapped, and how.

use super::Prot;
use crate::allocate::PAGE;
use alloc::collections::BTreeMap;
use rangemap::RangeMap;
use serde::{Deserialize, Serialize};

/// Disjoint areas of whole pages; neighbours of one protection are one area.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(try_from = "Areas", into = "Areas")]
pub(super) struct Pages(RangeMap<u64, Prot>);

/// The areas as a log has them: by first byte, the end and the protection.
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

    /// What is mapped in `base..end`: first byte, end, protection; ascending.
    pub(super) fn parts(&self, base: u64, end: u64) -> impl Iterator<Item = (u64, u64, Prot)> + '_ {
        let areas = (base < end).then(|| self.0.overlapping(base..end)).into_iter().flatten();
        areas.map(move |(area, &prot)| (area.start.max(base), area.end.min(end), prot))
    }

    /// The first address from `base` on that is not mapped, at most `end`.
    pub(super) fn mapped_until(&self, base: u64, end: u64) -> u64 {
        self.parts(base, end).fold(base, |at, (from, to, _)| if from == at { to } else { at })
    }

    /// Areas.
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

    /// A log that was tampered with may have any areas.
    fn try_from(areas: Areas) -> Result<Self, Self::Error> {
        if areas.iter().any(|(base, (end, _))| base >= end) {
            return Err("an area is empty or ends before it begins");
        }
        let pages = Self(areas.iter().map(|(&base, &(end, prot))| (base..end, prot)).collect());
        // What overlaps or should have been one area comes out otherwise than it went in.
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

    /// A log has the areas by first byte, as ever. Areas that [`Pages::set`] never makes are refused, by what is wrong with them.
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
