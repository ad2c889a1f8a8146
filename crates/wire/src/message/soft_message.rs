//! Messages between control plane and switch about the switch's image, its soft state (PROTOCOL 13.2).
//!
//! ```text
//!     control                              switch
//!        |------ Show ----------------------->|
//!        |<----- Shown -----------------------|   the active image, and the first missing byte of the loading one
//!        |------ Load 0 .. n ---------------->|
//!        |<----- Loaded, for each ------------|   the first missing byte
//!        |------ Flip ----------------------->|
//!        |<----- Flipped ---------------------|   the image is active, or the reason why not
//! ```
//!
//! These messages are no table updates: each may be lost, duplicated and delayed. The control plane
//! retransmits [`SoftBody::Show`] and continues from the response. With [`SoftBody::Count`] the control plane
//! reads the counters of a section, part by part (PROTOCOL 13.17).

use super::{Header, VERSION, put_numbered, read_numbered};
use crate::reader::{Put, Reader};
use crate::{Domain, RequestId, WireError};
use alloc::vec::Vec;
use core::fmt;

/// Most bytes of an image (PROTOCOL 13.1).
pub const SOFT_IMAGE_MAX: u32 = 8 << 20;
/// Most bytes of an image in a [`SoftBody::Load`]: what fits a PMTU of 1024, in whole lines of 16.
pub const SOFT_PART_MAX: usize = 960;

/// Most counters in a [`SoftBody::Counts`]: what fits a PMTU of 1024, in whole lines of 16.
pub const SOFT_COUNTS_MAX: usize = 236;
/// Most counters of a section.
pub const SOFT_COUNTERS_MAX: u32 = 1 << 20;

/// The first 128 bits of the SHA-256 of an image.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct ImageDigest(pub [u8; 16]);

impl fmt::Display for ImageDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// The body of a message about the image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SoftBody<'a> {
    /// Control to switch: a part of an image.
    Load(Load<'a>),
    /// Switch to control: the first missing byte of the loading image.
    Loaded {
        /// Epoch of the image.
        epoch: u64,
        /// Offset of the first missing byte; all bytes before it arrived.
        next: u32,
    },
    /// Control to switch: make this image active.
    Flip(ImageId),
    /// Switch to control: the outcome of a flip.
    Flipped {
        /// Epoch of the image.
        epoch: u64,
        /// Outcome of the flip.
        verdict: Verdict,
    },
    /// Control to switch: report the active and the loading image.
    Show,
    /// Switch to control: both images.
    Shown(ImageStatus),
    /// Control to switch: report the counters of this section.
    Count(Count),
    /// Switch to control: the counters.
    Counts(Counts<'a>),
}

/// A request for the counters of a section.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Count {
    /// Epoch of the active image; 0 accepts any.
    pub epoch: u64,
    /// Domain of the section.
    pub domain: Domain,
    /// Kind of the section.
    pub kind: u16,
    /// Id of the section within domain and kind.
    pub id: u64,
    /// Index of the first counter.
    pub from: u32,
}

/// The counters of a section.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Counts<'a> {
    /// Epoch of the active image; 0 if none is active. If the epoch differs from the requested one, all other
    /// fields are 0.
    pub epoch: u64,
    /// Edition of the section: distinguishes its bytes from others.
    pub edition: u64,
    /// Number of counters of the section. 0 for a missing section or one without counters; all other fields
    /// are then 0.
    pub total: u32,
    /// Index of the first counter here.
    pub from: u32,
    /// Counters of four bytes each, big-endian; at most [`SOFT_COUNTS_MAX`].
    pub counters: &'a [u8],
}

/// A part of an image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Load<'a> {
    /// Epoch of the image; not 0.
    pub epoch: u64,
    /// Bytes of the whole image, 1 to [`SOFT_IMAGE_MAX`].
    pub len: u32,
    /// Offset of the part in the image.
    pub offset: u32,
    /// The part: 1 to [`SOFT_PART_MAX`] bytes, within the image.
    pub bytes: &'a [u8],
}

/// The identity of an image.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct ImageId {
    /// Epoch of the image; 0 for no image, and then all other fields are 0.
    pub epoch: u64,
    /// Length of the image in bytes: 1 to [`SOFT_IMAGE_MAX`].
    pub len: u32,
    /// Digest of the image.
    pub digest: ImageDigest,
}

/// The outcome of a flip.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Verdict {
    /// The image is active.
    Active,
    /// The received bytes do not match the image. The switch dropped them; the image must be loaded under
    /// another epoch.
    Damaged,
    /// The image is too long; the number is the most bytes that the switch has room for.
    TooLong(u32),
    /// The bytes are not a valid image.
    Fault(ImageFault),
}

/// The reason why bytes are not a valid image (PROTOCOL 13.3).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ImageFault {
    /// The broken rule.
    pub rule: ImageRule,
    /// The row of the directory that breaks the rule; 0 if none does.
    pub row: u32,
}

/// The rules of an image (PROTOCOL 13.3). Numbers are frozen.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum ImageRule {
    /// The image has a header of a known version, with reserved bytes that are zero.
    Head = 1,
    /// The image has as many rows as the header says, and no more than allowed.
    Count = 2,
    /// Rows are ordered by key, and keys are unique.
    Order = 3,
    /// Sections lie behind the rows, contiguous, and the last one ends with the image.
    Bounds = 4,
    /// The image has at most [`SOFT_IMAGE_MAX`] bytes.
    Length = 5,
    /// Sections of kinds that the switch reads are valid (PROTOCOL 13.13).
    Content = 6,
}

impl ImageRule {
    const fn from_bits(bits: u8) -> Option<Self> {
        Some(match bits {
            1 => Self::Head,
            2 => Self::Count,
            3 => Self::Order,
            4 => Self::Bounds,
            5 => Self::Length,
            6 => Self::Content,
            _ => return None,
        })
    }
}

impl fmt::Display for ImageFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let row = self.row;
        match self.rule {
            ImageRule::Head => write!(f, "its header is of another version, or not all there"),
            ImageRule::Count => {
                write!(f, "it has more sections than an image may have, or fewer rows than it says")
            }
            ImageRule::Order => {
                write!(f, "section {row} has the kind and id of the one before it, or lesser ones")
            }
            ImageRule::Bounds => {
                write!(f, "section {row} does not lie where the one before it ends, or leaves the image")
            }
            ImageRule::Length => write!(f, "it has more than {SOFT_IMAGE_MAX} bytes"),
            ImageRule::Content => write!(f, "section {row} is not what its kind says, or names a tree twice"),
        }
    }
}

/// The images of a switch.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct ImageStatus {
    /// The active image; epoch 0 if none is active.
    pub active: ImageId,
    /// The loading image; epoch 0 if none is loading. A loading epoch is above the active one.
    pub loading: Loading,
}

/// The progress of a loading image.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Loading {
    /// Epoch of the image; 0 if no image is loading, and then all other fields are 0.
    pub epoch: u64,
    /// Length of the whole image in bytes.
    pub len: u32,
    /// Offset of the first missing byte.
    pub next: u32,
}

/// A message about the image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SoftMessage<'a> {
    /// Number of the request; the response has the same.
    pub token: RequestId,
    /// The rest.
    pub body: SoftBody<'a>,
}

/// The first kind (PROTOCOL 3.4).
const FIRST_KIND: u8 = 0x54;
/// The last kind.
const LAST_KIND: u8 = 0x59;
/// The first kind about counters.
const FIRST_COUNT: u8 = 0x60;
/// The last kind about counters.
const LAST_COUNT: u8 = 0x61;
/// Bytes of a Counts before the counters.
const COUNTS_LEN: usize = 24;
/// Bytes of a Load before the part.
const LOAD_LEN: usize = 16;

impl<'a> SoftMessage<'a> {
    /// Returns true if the payload is a message about the image, of this version.
    #[must_use]
    pub const fn is(payload: &[u8]) -> bool {
        matches!(payload, [VERSION, FIRST_KIND..=LAST_KIND | FIRST_COUNT..=LAST_COUNT, ..])
    }

    /// Reads a message. Checks every length, number and reserved field.
    ///
    /// # Errors
    /// [`WireError`] naming the field.
    pub fn parse(payload: &'a [u8]) -> Result<Self, WireError> {
        let (kind, token, mut r) = read_numbered("soft-state message", payload)?;
        let body = match kind {
            0x54 => SoftBody::Load(load(&mut r)?),
            0x55 => SoftBody::Loaded { epoch: epoch(&mut r)?, next: image_len(&mut r)? },
            0x56 => SoftBody::Flip(flip(&mut r)?),
            0x57 => SoftBody::Flipped { epoch: epoch(&mut r)?, verdict: verdict(&mut r)? },
            0x58 => SoftBody::Show,
            0x59 => SoftBody::Shown(shown(&mut r)?),
            0x60 => SoftBody::Count(count(&mut r)?),
            0x61 => SoftBody::Counts(counts(&mut r)?),
            _ => return Err(WireError::Unknown { what: "message.kind", value: kind.into() }),
        };
        r.end()?;
        Ok(Self { token: RequestId(token), body })
    }

    /// Appends the message.
    pub fn emit(&self, out: &mut Vec<u8>) {
        put_numbered(out, self.kind(), self.token.0);
        match self.body {
            SoftBody::Load(Load { epoch, len, offset, bytes }) => {
                out.put_u64(epoch);
                out.put_u32(len);
                out.put_u32(offset);
                out.extend_from_slice(bytes);
            }
            SoftBody::Loaded { epoch, next } => {
                out.put_u64(epoch);
                out.put_u32(next);
            }
            SoftBody::Flip(id) => put_id(out, &id),
            SoftBody::Flipped { epoch, verdict } => {
                let (code, rule, detail) = match verdict {
                    Verdict::Active => (0, 0, 0),
                    Verdict::Damaged => (1, 0, 0),
                    Verdict::TooLong(most) => (2, 0, most),
                    Verdict::Fault(fault) => (3, fault.rule as u8, fault.row),
                };
                out.put_u64(epoch);
                out.extend_from_slice(&[code, rule, 0, 0]);
                out.put_u32(detail);
            }
            SoftBody::Show => {}
            SoftBody::Shown(ImageStatus { active, loading }) => {
                put_id(out, &active);
                out.put_u64(loading.epoch);
                out.put_u32(loading.len);
                out.put_u32(loading.next);
            }
            SoftBody::Count(Count { epoch, domain, kind, id, from }) => {
                out.put_u64(epoch);
                out.put_u32(domain.0);
                out.put_u16(kind);
                out.extend_from_slice(&[0, 0]);
                out.put_u64(id);
                out.put_u32(from);
            }
            SoftBody::Counts(Counts { epoch, edition, total, from, counters }) => {
                out.put_u64(epoch);
                out.put_u64(edition);
                out.put_u32(total);
                out.put_u32(from);
                out.extend_from_slice(counters);
            }
        }
    }

    /// Returns the number of bytes that [`SoftMessage::emit`] appends.
    #[must_use]
    pub const fn len(&self) -> usize {
        Header::LEN
            + match self.body {
                SoftBody::Load(load) => LOAD_LEN + load.bytes.len(),
                SoftBody::Loaded { .. } => 12,
                SoftBody::Flip(_) => 28,
                SoftBody::Flipped { .. } => 16,
                SoftBody::Show => 0,
                SoftBody::Shown(_) => 44,
                SoftBody::Count(_) => 28,
                SoftBody::Counts(counts) => COUNTS_LEN + counts.counters.len(),
            }
    }

    /// Returns false: a message is never empty.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        false
    }

    const fn kind(&self) -> u8 {
        match self.body {
            SoftBody::Load(_) => FIRST_KIND,
            SoftBody::Loaded { .. } => FIRST_KIND + 1,
            SoftBody::Flip(_) => FIRST_KIND + 2,
            SoftBody::Flipped { .. } => FIRST_KIND + 3,
            SoftBody::Show => FIRST_KIND + 4,
            SoftBody::Shown(_) => LAST_KIND,
            SoftBody::Count(_) => FIRST_COUNT,
            SoftBody::Counts(_) => LAST_COUNT,
        }
    }
}

fn epoch(r: &mut Reader<'_>) -> Result<u64, WireError> {
    match r.u64()? {
        0 => Err(WireError::Unknown { what: "image.epoch", value: 0 }),
        epoch => Ok(epoch),
    }
}

fn image_len(r: &mut Reader<'_>) -> Result<u32, WireError> {
    let len = r.u32()?;
    if len > SOFT_IMAGE_MAX {
        Err(WireError::Unknown { what: "image.len", value: len.into() })
    } else {
        Ok(len)
    }
}

fn load<'a>(r: &mut Reader<'a>) -> Result<Load<'a>, WireError> {
    let (epoch, len, offset) = (epoch(r)?, image_len(r)?, r.u32()?);
    let bytes = r.rest();
    if bytes.is_empty() {
        return Err(WireError::Short { what: "part of an image", need: 1, have: 0 });
    }
    // A part lies within its image: `len` is at most SOFT_IMAGE_MAX, so nothing here overflows.
    let room = (len.saturating_sub(offset) as usize).min(SOFT_PART_MAX);
    if bytes.len() > room {
        return Err(WireError::Long { what: "part of an image", most: room, have: bytes.len() });
    }
    Ok(Load { epoch, len, offset, bytes })
}

fn image_id(r: &mut Reader<'_>) -> Result<ImageId, WireError> {
    Ok(ImageId { epoch: r.u64()?, len: image_len(r)?, digest: ImageDigest(r.array()?) })
}

fn flip(r: &mut Reader<'_>) -> Result<ImageId, WireError> {
    match image_id(r)? {
        ImageId { epoch: 0, .. } => Err(WireError::Unknown { what: "image.epoch", value: 0 }),
        ImageId { len: 0, .. } => Err(WireError::Unknown { what: "image.len", value: 0 }),
        id => Ok(id),
    }
}

fn put_id(out: &mut Vec<u8>, id: &ImageId) {
    out.put_u64(id.epoch);
    out.put_u32(id.len);
    out.extend_from_slice(&id.digest.0);
}

fn verdict(r: &mut Reader<'_>) -> Result<Verdict, WireError> {
    let [code, rule] = r.array()?;
    r.zero::<2>("verdict.reserved")?;
    let detail = r.u32()?;
    let none = rule == 0 && detail == 0;
    match (code, ImageRule::from_bits(rule)) {
        (0, None) if none => Ok(Verdict::Active),
        (1, None) if none => Ok(Verdict::Damaged),
        (2, None) if rule == 0 => Ok(Verdict::TooLong(detail)),
        (3, Some(rule)) => Ok(Verdict::Fault(ImageFault { rule, row: detail })),
        _ => Err(WireError::Unknown { what: "verdict", value: u64::from(code) << 8 | u64::from(rule) }),
    }
}

fn shown(r: &mut Reader<'_>) -> Result<ImageStatus, WireError> {
    let active = image_id(r)?;
    let loading = Loading { epoch: r.u64()?, len: image_len(r)?, next: image_len(r)? };
    if active.epoch == 0 && active != ImageId::default() {
        return Err(WireError::Reserved { what: "shown.active" });
    }
    if loading.epoch == 0 && loading != Loading::default() {
        return Err(WireError::Reserved { what: "shown.loading" });
    }
    let has_bytes = |epoch, len| epoch == 0 || len > 0;
    if !has_bytes(active.epoch, active.len) || !has_bytes(loading.epoch, loading.len) {
        return Err(WireError::Unknown { what: "image.len", value: 0 });
    }
    let above = loading.epoch == 0 || loading.epoch > active.epoch;
    if !above || loading.next > loading.len {
        return Err(WireError::Unknown { what: "shown.loading", value: loading.epoch });
    }
    Ok(ImageStatus { active, loading })
}

fn count(r: &mut Reader<'_>) -> Result<Count, WireError> {
    let (epoch, domain, kind) = (r.u64()?, Domain(r.u32()?), r.u16()?);
    r.zero::<2>("count.reserved")?;
    Ok(Count { epoch, domain, kind, id: r.u64()?, from: r.u32()? })
}

fn counts<'a>(r: &mut Reader<'a>) -> Result<Counts<'a>, WireError> {
    let (epoch, edition, total, from) = (r.u64()?, r.u64()?, r.u32()?, r.u32()?);
    let counters = r.rest();
    if total > SOFT_COUNTERS_MAX {
        return Err(WireError::Unknown { what: "counts.total", value: total.into() });
    }
    if total == 0 && (edition, from) != (0, 0) || epoch == 0 && total > 0 {
        return Err(WireError::Reserved { what: "counts" });
    }
    // Counters lie in their section: `total` is small, so nothing here overflows.
    let room = 4 * (total.saturating_sub(from) as usize).min(SOFT_COUNTS_MAX);
    if from > total || counters.len() > room {
        return Err(WireError::Long { what: "counters", most: room, have: counters.len() });
    }
    if !counters.len().is_multiple_of(4) {
        let need = counters.len().next_multiple_of(4);
        return Err(WireError::Short { what: "counters", need, have: counters.len() });
    }
    Ok(Counts { epoch, edition, total, from, counters })
}

const _: () =
    assert!(super::OVERHEAD + COUNTS_LEN + 4 * SOFT_COUNTS_MAX <= 1024, "counters fit a PMTU of 1024");
const _: () = assert!(super::OVERHEAD + LOAD_LEN + SOFT_PART_MAX <= 1024, "a part fits a PMTU of 1024");

#[cfg(test)]
mod tests;
