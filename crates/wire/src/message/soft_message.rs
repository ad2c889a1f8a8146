//! What control plane and switch say to each other about the switch's image, its soft state (PROTOCOL 13.2).
//!
//! ```text
//!     control                              switch
//!        |------ Show ----------------------->|
//!        |<----- Shown -----------------------|   what stands, what is loading and from where on it is missing
//!        |------ Load 0 .. n ---------------->|
//!        |<----- Loaded, for each ------------|   the first byte that is missing
//!        |------ Flip ----------------------->|
//!        |<----- Flipped ---------------------|   it stands, or why it does not
//! ```
//!
//! They are no table updates: each may be lost, come twice and late. The asker asks again with [`SoftBody::Show`], and goes on from what it is told.
//! Beside that the control plane reads what the tables of a section counted, part by part, with [`SoftBody::Count`] (PROTOCOL 13.17).

use super::{Header, VERSION, put_numbered, read_numbered};
use crate::reader::{Put, Reader};
use crate::{Domain, RequestId, WireError};
use alloc::vec::Vec;
use core::fmt;

/// Most bytes of an image (PROTOCOL 13.1).
pub const SOFT_IMAGE_MAX: u32 = 8 << 20;
/// Most bytes of an image in a [`SoftBody::Load`]: what a PMTU of 1024 has room for, in whole lines of 16.
pub const SOFT_PART_MAX: usize = 960;

/// Most counters in a [`SoftBody::Counts`]: what a PMTU of 1024 has room for, in whole lines of 16.
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

/// What a message about the image says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SoftBody<'a> {
    /// Control to switch: a part of the image of this epoch.
    Load(Load<'a>),
    /// Switch to control: of the image of this epoch that is loading, the first byte that is missing.
    Loaded {
        /// The image's.
        epoch: u64,
        /// All bytes before it are there.
        next: u32,
    },
    /// Control to switch: the image of this epoch is to stand.
    Flip(ImageId),
    /// Switch to control: whether it does.
    Flipped {
        /// The image's.
        epoch: u64,
        /// Whether it stands.
        verdict: Verdict,
    },
    /// Control to switch: what stands, and what is loading?
    Show,
    /// Switch to control.
    Shown(Shown),
    /// Control to switch: what did the tables of this section count?
    Count(Count),
    /// Switch to control: that.
    Counts(Counts<'a>),
}

/// A question for counters.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Count {
    /// Of the image that is to stand; 0 asks whichever does.
    pub epoch: u64,
    /// Whose section it is.
    pub domain: Domain,
    /// Its kind.
    pub kind: u16,
    /// Which one of that domain and kind.
    pub id: u64,
    /// The first counter that is wanted.
    pub from: u32,
}

/// Counters of a section.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Counts<'a> {
    /// Of the image that stands; 0 when none does. When it is not the one that was asked for, the rest is 0.
    pub epoch: u64,
    /// Tells the bytes of the section from others.
    pub edition: u64,
    /// How many counters it has: 0 for a section that is not there or counts nothing, and then the rest is 0, too.
    pub total: u32,
    /// The first one here.
    pub from: u32,
    /// Counters of four bytes each, big-endian: at most [`SOFT_COUNTS_MAX`].
    pub counters: &'a [u8],
}

/// A part of an image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Load<'a> {
    /// The image's; not 0.
    pub epoch: u64,
    /// Bytes of the whole image, 1 to [`SOFT_IMAGE_MAX`].
    pub len: u32,
    /// Where in the image the part begins.
    pub offset: u32,
    /// The part: 1 to [`SOFT_PART_MAX`] bytes, inside of the image.
    pub bytes: &'a [u8],
}

/// Which image.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct ImageId {
    /// Its epoch; 0 says that there is none, and then the rest is 0.
    pub epoch: u64,
    /// Its bytes: 1 to [`SOFT_IMAGE_MAX`].
    pub len: u32,
    /// Its digest.
    pub digest: ImageDigest,
}

/// What became of a flip.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Verdict {
    /// The image stands.
    Stands,
    /// What had come was not the image: its bytes are gone, and it is to be loaded under another epoch.
    Damaged,
    /// The switch has room for an image of so many bytes, and not of more.
    TooLong(u32),
    /// The bytes are no image: what is wrong, and in which row of its directory.
    Fault(ImageFault),
}

/// Why bytes are no image (PROTOCOL 13.3).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ImageFault {
    /// The rule that is broken.
    pub rule: ImageRule,
    /// The row of the directory that breaks it; 0 when none does.
    pub row: u32,
}

/// The rules of an image (PROTOCOL 13.3). Numbers are frozen.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum ImageRule {
    /// It has a header of a known version, with reserved bytes that are zero.
    Head = 1,
    /// It has so many rows as the header says, and not more than there may be.
    Count = 2,
    /// Rows are in the order of their keys, and no key comes twice.
    Order = 3,
    /// Sections lie behind the rows, each where the one before ends, and the last ends with the image.
    Bounds = 4,
    /// It has at most [`SOFT_IMAGE_MAX`] bytes.
    Length = 5,
    /// A section of a kind that the switch reads is what it should be (PROTOCOL 13.13).
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

/// What a switch has.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Shown {
    /// What stands; epoch 0 when nothing does.
    pub standing: ImageId,
    /// What is loading; epoch 0 when nothing is. Else it is above that of what stands.
    pub loading: Loading,
}

/// What a switch has of the image that is loading.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Loading {
    /// Its epoch; 0 says that nothing is loading, and then the rest is 0.
    pub epoch: u64,
    /// Bytes of the whole image.
    pub len: u32,
    /// The first byte that is missing.
    pub next: u32,
}

/// A message about the image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SoftMessage<'a> {
    /// The question's number; an answer has the same.
    pub token: RequestId,
    /// The rest.
    pub body: SoftBody<'a>,
}

/// Kinds begin here (PROTOCOL 3.4).
const FIRST_KIND: u8 = 0x54;
/// And end here.
const LAST_KIND: u8 = 0x59;
/// Those about counters.
const FIRST_COUNT: u8 = 0x60;
/// To here.
const LAST_COUNT: u8 = 0x61;
/// Bytes of a Counts before the counters.
const COUNTS_LEN: usize = 24;
/// Bytes of a Load before the part.
const LOAD_LEN: usize = 16;

impl<'a> SoftMessage<'a> {
    /// True when the payload says that it is a message about the image, of this version.
    #[must_use]
    pub const fn is(payload: &[u8]) -> bool {
        matches!(payload, [VERSION, FIRST_KIND..=LAST_KIND | FIRST_COUNT..=LAST_COUNT, ..])
    }

    /// Reads a message: every length, number and reserved field is checked.
    ///
    /// # Errors
    /// [`WireError`] naming what is wrong.
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
                    Verdict::Stands => (0, 0, 0),
                    Verdict::Damaged => (1, 0, 0),
                    Verdict::TooLong(most) => (2, 0, most),
                    Verdict::Fault(fault) => (3, fault.rule as u8, fault.row),
                };
                out.put_u64(epoch);
                out.extend_from_slice(&[code, rule, 0, 0]);
                out.put_u32(detail);
            }
            SoftBody::Show => {}
            SoftBody::Shown(Shown { standing, loading }) => {
                put_id(out, &standing);
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

    /// Bytes that [`SoftMessage::emit`] appends.
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

    /// A message is never empty.
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
    // A part lies in its image: `len` is at most SOFT_IMAGE_MAX, so nothing here overflows.
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
        (0, None) if none => Ok(Verdict::Stands),
        (1, None) if none => Ok(Verdict::Damaged),
        (2, None) if rule == 0 => Ok(Verdict::TooLong(detail)),
        (3, Some(rule)) => Ok(Verdict::Fault(ImageFault { rule, row: detail })),
        _ => Err(WireError::Unknown { what: "verdict", value: u64::from(code) << 8 | u64::from(rule) }),
    }
}

fn shown(r: &mut Reader<'_>) -> Result<Shown, WireError> {
    let standing = image_id(r)?;
    let loading = Loading { epoch: r.u64()?, len: image_len(r)?, next: image_len(r)? };
    if standing.epoch == 0 && standing != ImageId::default() {
        return Err(WireError::Reserved { what: "shown.standing" });
    }
    if loading.epoch == 0 && loading != Loading::default() {
        return Err(WireError::Reserved { what: "shown.loading" });
    }
    let has_bytes = |epoch, len| epoch == 0 || len > 0;
    if !has_bytes(standing.epoch, standing.len) || !has_bytes(loading.epoch, loading.len) {
        return Err(WireError::Unknown { what: "image.len", value: 0 });
    }
    let above = loading.epoch == 0 || loading.epoch > standing.epoch;
    if !above || loading.next > loading.len {
        return Err(WireError::Unknown { what: "shown.loading", value: loading.epoch });
    }
    Ok(Shown { standing, loading })
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
