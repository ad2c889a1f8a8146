//! The image of a switch's soft state: sections of bytes, found by domain, kind and id (PROTOCOL 13.3).
//!
//! ```text
//!   version 2 | reserved 2 | rows 4 | row, row, ... | section | section | ...
//!   row:  domain 4 | kind 2 | reserved 2 | id 8 | offset 4 | len 4
//! ```
//!
//! Key type: [`Image`], validated bytes. The control plane builds an image from sections. The switch parses
//! the bytes that it received, and looks sections up. This module checks bounds only; the reader of a section
//! interprets its bytes. [`Hasher`] computes the digest while parts arrive.

use alloc::vec::Vec;
use core::fmt;
use core::ops::Range;
use farmem_wire::Domain;
use farmem_wire::message::{ImageDigest, ImageFault, ImageRule, SOFT_IMAGE_MAX};
use sha2::{Digest as _, Sha256};

/// Most sections of an image.
pub const SECTIONS_MAX: usize = 4096;
/// Version of the format.
const VERSION: u16 = 2;
/// Bytes before the rows.
const HEAD_LEN: usize = 8;
/// Bytes of a row.
const ROW_LEN: usize = 24;

/// The key of a section.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SectionKey {
    /// Domain that owns the section.
    pub domain: Domain,
    /// Kind of the section's bytes.
    pub kind: u16,
    /// Id of the section within domain and kind.
    pub id: u64,
}

/// Returns the length of an image whose sections have these lengths; none on overflow.
#[must_use]
pub fn image_len(mut sections: impl Iterator<Item = usize>) -> Option<usize> {
    sections.try_fold(HEAD_LEN, |sum: usize, section| {
        sum.checked_add(ROW_LEN).and_then(|sum| sum.checked_add(section))
    })
}

/// A digest of bytes that arrive part by part.
#[derive(Clone, Default)]
pub struct Hasher(Sha256);

impl Hasher {
    /// Adds the next bytes.
    pub fn take(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Returns the digest of all bytes added so far.
    #[must_use]
    pub fn digest(&self) -> ImageDigest {
        let whole: [u8; 32] = self.0.clone().finalize().into();
        let (head, _) = whole.split_first_chunk().expect("128 of 256 bits");
        ImageDigest(*head)
    }
}

impl fmt::Debug for Hasher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hasher").finish_non_exhaustive()
    }
}

/// An image: sections, sorted by key.
#[derive(Clone, PartialEq, Eq)]
pub struct Image {
    bytes: Vec<u8>,
    digest: ImageDigest,
}

impl Image {
    /// Creates an image without sections.
    ///
    /// # Panics
    /// Never: an empty image breaks no rule.
    #[must_use]
    pub fn empty() -> Self {
        Self::of(&[]).expect("no section breaks a rule")
    }

    /// Creates an image of these sections, in any order.
    ///
    /// # Errors
    /// [`ImageFault`] if there are too many sections, two have the same key, or their total is too long. The
    /// row is that of the sorted sections.
    pub fn of(sections: &[(SectionKey, &[u8])]) -> Result<Self, ImageFault> {
        let fault = |rule| Err(ImageFault { rule, row: 0 });
        if sections.len() > SECTIONS_MAX {
            return fault(ImageRule::Count);
        }
        let len = image_len(sections.iter().map(|(_, bytes)| bytes.len()));
        let Some(len) = len.filter(|&len| len <= SOFT_IMAGE_MAX as usize) else {
            return fault(ImageRule::Length);
        };
        let number = |n: usize| u32::try_from(n).expect("an image is shorter than that");
        let mut sorted = sections.to_vec();
        sorted.sort_by_key(|(key, _)| *key);
        let mut bytes = Vec::with_capacity(len);
        bytes.extend_from_slice(&VERSION.to_be_bytes());
        bytes.extend_from_slice(&[0; 2]);
        bytes.extend_from_slice(&number(sections.len()).to_be_bytes());
        let mut offset = HEAD_LEN + ROW_LEN * sections.len();
        for (SectionKey { domain, kind, id }, section) in &sorted {
            bytes.extend_from_slice(&domain.0.to_be_bytes());
            bytes.extend_from_slice(&kind.to_be_bytes());
            bytes.extend_from_slice(&[0; 2]);
            bytes.extend_from_slice(&id.to_be_bytes());
            bytes.extend_from_slice(&number(offset).to_be_bytes());
            bytes.extend_from_slice(&number(section.len()).to_be_bytes());
            offset += section.len();
        }
        sorted.iter().for_each(|(_, section)| bytes.extend_from_slice(section));
        Self::parse(bytes)
    }

    /// Parses an image.
    ///
    /// # Errors
    /// [`ImageFault`] if the bytes are not a valid image.
    pub fn parse(bytes: Vec<u8>) -> Result<Self, ImageFault> {
        let mut hasher = Hasher::default();
        hasher.take(&bytes);
        Self::parse_hashed(bytes, &hasher)
    }

    /// Parses bytes that were already added to `hasher`.
    ///
    /// # Errors
    /// The errors of [`Image::parse`].
    pub fn parse_hashed(bytes: Vec<u8>, hasher: &Hasher) -> Result<Self, ImageFault> {
        check(&bytes)?;
        Ok(Self { bytes, digest: hasher.digest() })
    }

    /// Returns the bytes of the image.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the length of the image in bytes.
    ///
    /// # Panics
    /// Never: the length is at most [`SOFT_IMAGE_MAX`].
    #[must_use]
    pub fn len(&self) -> u32 {
        u32::try_from(self.bytes.len()).expect("it was checked")
    }

    /// Returns true if the image has no sections.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        rows(&self.bytes).is_empty()
    }

    /// Returns the digest of the image.
    #[must_use]
    pub const fn digest(&self) -> ImageDigest {
        self.digest
    }

    /// Returns the bytes of a section.
    #[must_use]
    pub fn section(&self, key: SectionKey) -> Option<&[u8]> {
        let rows = rows(&self.bytes);
        let index = rows.binary_search_by_key(&key, |row| SectionRow::read(row).key).ok()?;
        let SectionRow { offset, len, .. } = SectionRow::read(&rows[index]);
        self.bytes.get(offset..)?.get(..len)
    }

    /// Returns the keys of all sections, in order.
    pub fn keys(&self) -> impl Iterator<Item = SectionKey> + '_ {
        rows(&self.bytes).iter().map(|row| SectionRow::read(row).key)
    }
}

impl fmt::Debug for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Image({} bytes, {})", self.bytes.len(), self.digest)
    }
}

/// A row of the directory.
struct SectionRow {
    key: SectionKey,
    reserved: [u8; 2],
    offset: usize,
    len: usize,
}

impl SectionRow {
    fn read(row: &[u8; ROW_LEN]) -> Self {
        let [d0, d1, d2, d3, k0, k1, r0, r1, rest @ ..] = *row;
        let [i0, i1, i2, i3, i4, i5, i6, i7, o0, o1, o2, o3, l0, l1, l2, l3] = rest;
        Self {
            key: SectionKey {
                domain: Domain(u32::from_be_bytes([d0, d1, d2, d3])),
                kind: u16::from_be_bytes([k0, k1]),
                id: u64::from_be_bytes([i0, i1, i2, i3, i4, i5, i6, i7]),
            },
            reserved: [r0, r1],
            offset: u32::from_be_bytes([o0, o1, o2, o3]) as usize,
            len: u32::from_be_bytes([l0, l1, l2, l3]) as usize,
        }
    }
}

/// Returns the rows of a validated image.
fn rows(bytes: &[u8]) -> &[[u8; ROW_LEN]] {
    let Some((head, rest)) = bytes.split_first_chunk::<HEAD_LEN>() else { return &[] };
    let [.., a, b, c, d] = *head;
    let count = u32::from_be_bytes([a, b, c, d]) as usize;
    let (rows, _) = rest.as_chunks();
    rows.get(..count).unwrap_or(&[])
}

/// Reads row `row` of an image that is still arriving, once all rows are there: the section's key, and the
/// range of its bytes in the image. Validates nothing: [`Image::parse_hashed`] does so when the image is
/// complete.
#[must_use]
pub fn arriving(bytes: &[u8], row: usize) -> Option<(SectionKey, Range<usize>)> {
    let SectionRow { key, offset, len, .. } = SectionRow::read(rows(bytes).get(row)?);
    Some((key, offset..offset.saturating_add(len)))
}

fn check(bytes: &[u8]) -> Result<(), ImageFault> {
    let fault = |rule, row: usize| Err(ImageFault { rule, row: u32::try_from(row).unwrap_or(u32::MAX) });
    if bytes.len() > SOFT_IMAGE_MAX as usize {
        return fault(ImageRule::Length, 0);
    }
    let Some((&[v0, v1, r0, r1, c0, c1, c2, c3], rest)) = bytes.split_first_chunk::<HEAD_LEN>() else {
        return fault(ImageRule::Head, 0);
    };
    if (u16::from_be_bytes([v0, v1]), [r0, r1]) != (VERSION, [0; 2]) {
        return fault(ImageRule::Head, 0);
    }
    let count = u32::from_be_bytes([c0, c1, c2, c3]) as usize;
    if count > SECTIONS_MAX || rest.len() < ROW_LEN * count {
        return fault(ImageRule::Count, 0);
    }
    let (mut end, mut before) = (HEAD_LEN + ROW_LEN * count, None);
    for (index, row) in rows(bytes).iter().map(SectionRow::read).enumerate() {
        if row.reserved != [0; 2] {
            return fault(ImageRule::Head, index);
        }
        if before.is_some_and(|before| before >= row.key) {
            return fault(ImageRule::Order, index);
        }
        let next = end.checked_add(row.len).filter(|&next| row.offset == end && next <= bytes.len());
        let Some(next) = next else { return fault(ImageRule::Bounds, index) };
        (end, before) = (next, Some(row.key));
    }
    if end != bytes.len() {
        return fault(ImageRule::Bounds, count.saturating_sub(1));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeMap;
    use alloc::vec;
    use proptest::prelude::*;

    fn key(kind: u16, id: u64) -> SectionKey {
        SectionKey { domain: Domain(7), kind, id }
    }

    fn rule(bytes: &[u8]) -> ImageRule {
        Image::parse(bytes.to_vec()).expect_err("no image").rule
    }

    proptest! {
        /// Every section is found with its bytes, a missing one is not, and the bytes parse to the same
        /// image.
        #[test]
        fn an_image_holds_its_sections(
            sections in prop::collection::btree_map((0..4_u16, 0..40_u64), prop::collection::vec(any::<u8>(), 0..50), 0..20)
        ) {
            let list: Vec<(SectionKey, &[u8])> =
                sections.iter().rev().map(|(&(kind, id), bytes)| (key(kind, id), &bytes[..])).collect();
            let image = Image::of(&list).unwrap();
            prop_assert_eq!(Image::parse(image.bytes().to_vec()).unwrap(), image.clone());
            let found: BTreeMap<_, _> =
                image.keys().map(|key| ((key.kind, key.id), image.section(key).unwrap().to_vec())).collect();
            prop_assert_eq!(&found, &sections);
            for kind in 0..5 {
                for id in 0..41 {
                    prop_assert_eq!(image.section(key(kind, id)).is_some(), sections.contains_key(&(kind, id)));
                }
            }
        }

        /// A damaged image is refused, or its sections lie within it.
        #[test]
        fn a_damaged_image_is_refused_or_sound(at in 0..150_usize, with in any::<u8>(), cut in 0..160_usize) {
            let list = [(key(1, 1), &[1; 20][..]), (key(1, 2), &[2; 0]), (key(2, 0), &[3; 30])];
            let mut bytes = Image::of(&list).unwrap().bytes().to_vec();
            if let Some(byte) = bytes.get_mut(at) {
                *byte = with;
            }
            bytes.truncate(cut);
            if let Ok(image) = Image::parse(bytes) {
                let sum: usize = image.keys().map(|key| image.section(key).expect("it is there").len()).sum();
                let rows = HEAD_LEN + ROW_LEN * image.keys().count();
                prop_assert_eq!(rows + sum, image.bytes().len());
            }
        }
    }

    /// PROTOCOL 13.3: the parser refuses an image that breaks a rule, for each rule.
    #[test]
    fn what_is_no_image_is_refused() {
        let good = Image::of(&[(key(1, 1), &[5; 3]), (key(1, 2), &[6; 4])]).unwrap().bytes().to_vec();
        let with = |at: usize, byte: u8| {
            let mut bytes = good.clone();
            bytes[at] = byte;
            bytes
        };
        assert_eq!((rule(&good[..7]), rule(&[])), (ImageRule::Head, ImageRule::Head));
        assert!(Image::empty().is_empty() && Image::empty().len() == 8);
        assert_eq!(rule(&with(1, 1)), ImageRule::Head, "another version");
        assert_eq!(rule(&with(15, 1)), ImageRule::Head, "reserved bytes of a row");
        assert_eq!(rule(&with(4, 1)), ImageRule::Count, "millions of rows");
        assert_eq!(rule(&good[..55]), ImageRule::Count, "half a row");
        assert_eq!(rule(&with(47, 1)), ImageRule::Order, "two sections of one key");
        assert_eq!(rule(&with(11, 8)), ImageRule::Order, "the first behind the second, by its domain");
        assert_eq!(rule(&with(51, 58)), ImageRule::Bounds, "two sections that overlap");
        assert_eq!(rule(&with(55, 5)), ImageRule::Bounds, "one that leaves the image");
        assert_eq!(rule(&[&good[..], &[0]].concat()), ImageRule::Bounds, "bytes behind the last");
        assert_eq!(rule(&vec![0; SOFT_IMAGE_MAX as usize + 1]), ImageRule::Length);
        let twice = Image::of(&[(key(1, 1), &[]), (key(1, 1), &[])]).unwrap_err();
        assert_eq!(twice, ImageFault { rule: ImageRule::Order, row: 1 });
        let many = vec![(key(1, 1), &[][..]); SECTIONS_MAX + 1];
        assert_eq!(Image::of(&many).unwrap_err().rule, ImageRule::Count);
        let long = vec![0; SOFT_IMAGE_MAX as usize];
        assert_eq!(Image::of(&[(key(1, 1), &long)]).unwrap_err().rule, ImageRule::Length);
    }

    /// The digest is the first half of SHA-256, whatever the sizes of the parts (FIPS 180-4, the message
    /// "abc").
    #[test]
    fn the_digest_is_that_of_sha256() {
        let mut hasher = Hasher::default();
        hasher.take(b"a");
        hasher.take(b"bc");
        assert_eq!(hasher.digest().0[..4], [0xba, 0x78, 0x16, 0xbf]);
        assert_eq!(Hasher::default().digest().0[..4], [0xe3, 0xb0, 0xc4, 0x42], "of no bytes");
    }
}
