//! The switch's soft state: the image that stands, and the one that is loading (PROTOCOL 13.4 to 13.7).
//!
//! ```text
//!                Load, in order             Flip: whole, digest right, an image
//!   nothing ------------------> loading ----------------------------------------> stands
//!                                  | Flip: damaged, or no image                     | the next Flip
//!                                  `-> dropped                                      `-> dropped
//! ```
//!
//! Bytes are taken in order only: the buffer is a prefix of the image, the digest and the tables of trees are made as they come, and a flip has little left
//! to check. What is behind a gap comes again.

mod indexing;

use crate::switch::Outbox;
use crate::{Note, Reason, Switch};
use alloc::vec::Vec;
use farmem_index::{Descent, IndexTables, SECTION_KIND, WAYS_KIND, Ways, WaysSection};
use farmem_machine::Port;
use farmem_transport::image::{Hasher, Image, SectionKey};
use farmem_transport::ud::Peer;
use farmem_wire::message::{
    Count, Counts, ImageFault, ImageId, ImageRule, Load, Loading, SOFT_COUNTS_MAX, Shown, SoftBody,
    SoftMessage, Verdict,
};
use farmem_wire::{Domain, VirtAddr};
use indexing::Indexing;

/// The soft state of a switch: what reads it finds sections by kind and id.
#[derive(Clone, Debug)]
pub struct Soft {
    /// Of what stands; 0 when nothing does.
    epoch: u64,
    /// Without sections when nothing stands.
    image: Image,
    /// What the image's sections of trees say.
    index: IndexTables,
    /// What it says of other switches.
    ways: Ways,
    filling: Option<Filling>,
    /// Most bytes of an image.
    budget: u32,
}

/// An image that is loading: as much of it as has come.
#[derive(Clone, Debug)]
struct Filling {
    epoch: u64,
    len: u32,
    bytes: Vec<u8>,
    hasher: Hasher,
    indexing: Indexing,
}

impl Filling {
    fn begin(epoch: u64, len: u32) -> Self {
        let (bytes, hasher, indexing) = (Vec::new(), Hasher::default(), Indexing::default());
        Self { epoch, len, bytes, hasher, indexing }
    }

    fn next(&self) -> u32 {
        u32::try_from(self.bytes.len()).expect("no more than the image has")
    }

    /// Takes the bytes behind those that are there. The buffer has at most twice what came, and never more than the image (PROTOCOL 13.4).
    fn take(&mut self, bytes: &[u8]) {
        let need = self.bytes.len() + bytes.len();
        if need > self.bytes.capacity() {
            let room = (2 * need).min(self.len as usize);
            self.bytes.reserve_exact(room - self.bytes.len());
        }
        self.bytes.extend_from_slice(bytes);
        self.hasher.take(bytes);
        self.indexing.go_on(&self.bytes);
    }
}

/// What soft state takes, in bytes of memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SoftMemory {
    pub(crate) images: usize,
    pub(crate) tables: usize,
}

/// Counters as they are answered.
struct Part {
    epoch: u64,
    edition: u64,
    total: u32,
    from: u32,
    bytes: Vec<u8>,
}

impl Part {
    fn body(&self) -> Counts<'_> {
        let &Self { epoch, edition, total, from, ref bytes } = self;
        Counts { epoch, edition, total, from, counters: bytes }
    }
}

impl Soft {
    pub(crate) fn new(budget: u32) -> Self {
        Self {
            epoch: 0,
            image: Image::empty(),
            index: IndexTables::default(),
            ways: Ways::default(),
            filling: None,
            budget,
        }
    }

    /// The epoch of the image that stands; 0 when none does.
    #[must_use]
    pub const fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The bytes of a section of the image that stands.
    #[must_use]
    pub fn section(&self, key: SectionKey) -> Option<&[u8]> {
        self.image.section(key)
    }

    /// The image that stands: one without sections when none does.
    #[must_use]
    pub const fn image(&self) -> &Image {
        &self.image
    }

    /// The trees that the image that stands has tables of.
    #[must_use]
    pub const fn index(&self) -> &IndexTables {
        &self.index
    }

    /// The ways to other switches that the image that stands has.
    #[must_use]
    pub const fn ways(&self) -> &Ways {
        &self.ways
    }

    /// Counts a traversal that went further down (PROTOCOL 13.17).
    pub(crate) fn count(&mut self, descent: &Descent) {
        self.index.count(descent);
    }

    /// What stands, and what is loading.
    #[must_use]
    pub fn shown(&self) -> Shown {
        let standing = match self.epoch {
            0 => ImageId::default(),
            epoch => ImageId { epoch, len: self.image.len(), digest: self.image.digest() },
        };
        let loading = self.filling.as_ref();
        let loading = loading.map(|f| Loading { epoch: f.epoch, len: f.len, next: f.next() });
        Shown { standing, loading: loading.unwrap_or_default() }
    }

    /// Most bytes of an image that there is room for.
    pub(crate) const fn budget(&self) -> u32 {
        self.budget
    }

    /// Bytes of memory that images take, and the tables that were made of them.
    pub(crate) fn memory(&self) -> SoftMemory {
        let filling = self.filling.as_ref();
        SoftMemory {
            images: self.shown().standing.len as usize
                + filling.map_or(0, |filling| filling.bytes.capacity()),
            tables: self.index.memory()
                + self.ways.memory()
                + filling.map_or(0, |filling| filling.indexing.memory()),
        }
    }

    /// Takes a part of an image (PROTOCOL 13.4); true when its bytes were taken.
    fn load(&mut self, load: &Load<'_>) -> (SoftBody<'static>, bool) {
        let &Load { epoch, len, offset, bytes } = load;
        if len > self.budget {
            return (self.too_long(epoch), false);
        }
        let newest = self.filling.as_ref().map_or(0, |filling| filling.epoch);
        if epoch <= self.epoch || epoch < newest {
            return (SoftBody::Shown(self.shown()), false);
        }
        let begun = self.filling.take().filter(|filling| (filling.epoch, filling.len) == (epoch, len));
        let filling = self.filling.insert(begun.unwrap_or_else(|| Filling::begin(epoch, len)));
        let fits = filling.next() == offset;
        if fits {
            filling.take(bytes);
        }
        (SoftBody::Loaded { epoch, next: filling.next() }, fits)
    }

    /// Has an image stand (PROTOCOL 13.5).
    fn flip(&mut self, id: &ImageId) -> SoftBody<'static> {
        let &ImageId { epoch, len, digest } = id;
        if len > self.budget {
            return self.too_long(epoch);
        }
        if *id == self.shown().standing {
            return SoftBody::Flipped { epoch, verdict: Verdict::Stands };
        }
        let newest = self.filling.as_ref().map_or(0, |filling| filling.epoch);
        if epoch <= self.epoch || epoch < newest {
            return SoftBody::Shown(self.shown());
        }
        let begun = self.filling.as_ref().filter(|filling| filling.epoch == epoch);
        if begun.is_none_or(|filling| filling.next() < filling.len) {
            return SoftBody::Loaded { epoch, next: begun.map_or(0, Filling::next) };
        }
        let Filling { bytes, hasher, indexing, .. } =
            self.filling.take().unwrap_or_else(|| Filling::begin(epoch, 0));
        let verdict = if (bytes.len(), hasher.digest()) != (len as usize, digest) {
            Verdict::Damaged
        } else {
            let parsed = Image::parse_hashed(bytes, &hasher);
            let tables = parsed.and_then(|image| {
                let index = indexing.finish(image.keys().count())?;
                ways_of(&image).map(|ways| (image, index, ways))
            });
            match tables {
                Ok((image, index, ways)) => {
                    (self.epoch, self.image, self.index, self.ways) = (epoch, image, index, ways);
                    Verdict::Stands
                }
                Err(fault) => Verdict::Fault(fault),
            }
        };
        SoftBody::Flipped { epoch, verdict }
    }

    /// A part of what the tables of a section counted (PROTOCOL 13.17): nothing when the image is another one, or has no such section.
    fn counters(&self, count: &Count) -> Part {
        let &Count { epoch, domain, kind, id, from } = count;
        let is_meant = (epoch == 0 || epoch == self.epoch) && kind == SECTION_KIND;
        let found = self.index.tables(domain, VirtAddr(id)).filter(|_| is_meant);
        let Some(tables) = found else {
            return Part { epoch: self.epoch, edition: 0, total: 0, from: 0, bytes: Vec::new() };
        };
        let total = u32::try_from(tables.counters_len()).expect("a section has few");
        let from = from.min(total);
        let part = tables.counters(from as usize).take(SOFT_COUNTS_MAX);
        let bytes = part.flat_map(u32::to_be_bytes).collect();
        Part { epoch: self.epoch, edition: tables.edition(), total, from, bytes }
    }

    fn too_long(&self, epoch: u64) -> SoftBody<'static> {
        SoftBody::Flipped { epoch, verdict: Verdict::TooLong(self.budget) }
    }

    pub(crate) fn assert_invariants(&self) {
        assert!(self.shown().standing.len <= self.budget, "what stands is within its budget");
        assert!(self.epoch > 0 || self.image.is_empty(), "an image that stands has an epoch");
        if let Some(filling) = &self.filling {
            assert!(filling.epoch > self.epoch, "what is loading is newer than what stands");
            assert!(
                filling.next() <= filling.len && filling.len <= self.budget,
                "within its length and budget"
            );
        }
    }
}

/// The ways of an image (PROTOCOL 16.4).
fn ways_of(image: &Image) -> Result<Ways, ImageFault> {
    let mut ways = Ways::default();
    for (key, row) in image.keys().zip(0..).filter(|(key, _)| key.kind == WAYS_KIND) {
        let parsed =
            image.section(key).filter(|_| (key.domain, key.id) == (Domain(0), 0)).map(WaysSection::parse);
        match parsed {
            Some(Ok(section)) => ways = Ways::new(section),
            _ => return Err(ImageFault { rule: ImageRule::Content, row }),
        }
    }
    Ok(ways)
}

impl Switch {
    /// The soft state: what reads it reads the image that stands (PROTOCOL 13.1).
    #[must_use]
    pub const fn soft(&self) -> &Soft {
        &self.soft
    }

    /// A message of the control plane about the image.
    pub(crate) fn soft_message(&mut self, payload: &[u8], out: &mut Outbox) -> Note {
        let Ok(SoftMessage { token, body }) = SoftMessage::parse(payload) else {
            return Note::Dropped(Reason::Message);
        };
        let counters;
        let (answer, note) = match body {
            SoftBody::Load(load) => match self.soft.load(&load) {
                (answer, true) => (answer, Note::SoftLoaded),
                (answer, false) => (answer, Note::SoftNotTaken),
            },
            SoftBody::Flip(id) => {
                let before = self.soft.epoch;
                let answer = self.soft.flip(&id);
                let note = match answer {
                    SoftBody::Flipped { verdict: Verdict::Stands, epoch } if epoch > before => {
                        Note::SoftFlipped
                    }
                    SoftBody::Flipped { verdict: Verdict::Stands, .. } => Note::SoftShown,
                    SoftBody::Flipped { verdict, .. } => Note::SoftRefused(verdict),
                    _ => Note::SoftNotTaken,
                };
                (answer, note)
            }
            SoftBody::Show => (SoftBody::Shown(self.soft.shown()), Note::SoftShown),
            SoftBody::Count(count) => {
                counters = self.soft.counters(&count);
                (SoftBody::Counts(counters.body()), Note::SoftCounted)
            }
            // The control plane answers nothing: these are a switch's.
            SoftBody::Loaded { .. } | SoftBody::Flipped { .. } | SoftBody::Shown(_) | SoftBody::Counts(_) => {
                return Note::Dropped(Reason::Message);
            }
        };
        let answer = SoftMessage { token, body: answer };
        let control = Peer { port: Port::CONTROL, endpoint: self.tables.control };
        self.send_bytes(control, answer.len(), |bytes| answer.emit(bytes), out);
        note
    }
}
