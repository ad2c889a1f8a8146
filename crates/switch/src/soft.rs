//! The switch's soft state: the active image and the loading one (PROTOCOL 13.4 to 13.7).
//!
//! ```text
//!                Load, in order             Flip: whole, digest right, an image
//!   nothing ------------------> loading ----------------------------------------> active
//!                                  | Flip: damaged, or no image                     | the next Flip
//!                                  `-> dropped                                      `-> dropped
//! ```
//!
//! Parts are accepted in order only: the buffer is a prefix of the image. The digest and the tables of trees
//! are computed as parts arrive, so a flip has little left to check. The control plane retransmits parts
//! behind a gap.

mod indexing;

use crate::note::Outbox;
use crate::{Note, Reason, Switch};
use alloc::vec::Vec;
use farmem_index::{Descent, IndexTables, ROUTES_KIND, RouteSection, Routes, SECTION_KIND};
use farmem_machine::Port;
use farmem_transport::image::{Hasher, Image, SectionKey};
use farmem_transport::ud::Peer;
use farmem_wire::message::{
    Count, Counts, ImageFault, ImageId, ImageRule, ImageStatus, Load, Loading, SOFT_COUNTS_MAX, SoftBody,
    SoftMessage, Verdict,
};
use farmem_wire::{Domain, VirtAddr};
use indexing::Indexing;

/// The soft state of a switch, whose readers find sections by kind and id.
#[derive(Clone, Debug)]
pub struct Soft {
    /// Epoch of the active image; 0 if none is active.
    epoch: u64,
    /// The active image; without sections if none is active.
    image: Image,
    /// Tables made of the active image's tree sections.
    index: IndexTables,
    /// Next hops to other switches, from the active image.
    routes: Routes,
    loading: Option<LoadingImage>,
    /// Most bytes of an image.
    budget: u32,
}

/// A loading image: the bytes that have arrived.
#[derive(Clone, Debug)]
struct LoadingImage {
    epoch: u64,
    len: u32,
    bytes: Vec<u8>,
    hasher: Hasher,
    indexing: Indexing,
}

impl LoadingImage {
    fn begin(epoch: u64, len: u32) -> Self {
        let (bytes, hasher, indexing) = (Vec::new(), Hasher::default(), Indexing::default());
        Self { epoch, len, bytes, hasher, indexing }
    }

    fn next(&self) -> u32 {
        u32::try_from(self.bytes.len()).expect("no more than the image has")
    }

    /// Appends bytes. The buffer has at most twice the size of the received bytes, and never more than the
    /// image (PROTOCOL 13.4).
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

/// Memory of the soft state, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SoftMemory {
    pub(crate) images: usize,
    pub(crate) tables: usize,
}

/// Counters of a section, for a response.
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
            routes: Routes::default(),
            loading: None,
            budget,
        }
    }

    /// Returns the epoch of the active image; 0 if none is active.
    #[must_use]
    pub const fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Returns the bytes of a section of the active image.
    #[must_use]
    pub fn section(&self, key: SectionKey) -> Option<&[u8]> {
        self.image.section(key)
    }

    /// Returns the active image; an image without sections if none is active.
    #[must_use]
    pub const fn image(&self) -> &Image {
        &self.image
    }

    /// Returns the index tables of the active image.
    #[must_use]
    pub const fn index(&self) -> &IndexTables {
        &self.index
    }

    /// Returns the next hops to other switches, from the active image.
    #[must_use]
    pub const fn routes(&self) -> &Routes {
        &self.routes
    }

    /// Counts a traversal whose start the index moved (PROTOCOL 13.17).
    pub(crate) fn count(&mut self, descent: &Descent) {
        self.index.count(descent);
    }

    /// Returns the active and the loading image.
    #[must_use]
    pub fn shown(&self) -> ImageStatus {
        let active = match self.epoch {
            0 => ImageId::default(),
            epoch => ImageId { epoch, len: self.image.len(), digest: self.image.digest() },
        };
        let loading = self.loading.as_ref();
        let loading = loading.map(|f| Loading { epoch: f.epoch, len: f.len, next: f.next() });
        ImageStatus { active, loading: loading.unwrap_or_default() }
    }

    /// Returns the most bytes of an image.
    pub(crate) const fn budget(&self) -> u32 {
        self.budget
    }

    /// Returns the memory of images, and of the tables made of them.
    pub(crate) fn memory(&self) -> SoftMemory {
        let loading = self.loading.as_ref();
        SoftMemory {
            images: self.shown().active.len as usize + loading.map_or(0, |loading| loading.bytes.capacity()),
            tables: self.index.memory()
                + self.routes.memory()
                + loading.map_or(0, |loading| loading.indexing.memory()),
        }
    }

    /// Appends a part of an image (PROTOCOL 13.4); returns true if its bytes were accepted.
    fn load(&mut self, load: &Load<'_>) -> (SoftBody<'static>, bool) {
        let &Load { epoch, len, offset, bytes } = load;
        if len > self.budget {
            return (self.too_long(epoch), false);
        }
        let newest = self.loading.as_ref().map_or(0, |loading| loading.epoch);
        if epoch <= self.epoch || epoch < newest {
            return (SoftBody::Shown(self.shown()), false);
        }
        let begun = self.loading.take().filter(|loading| (loading.epoch, loading.len) == (epoch, len));
        let loading = self.loading.insert(begun.unwrap_or_else(|| LoadingImage::begin(epoch, len)));
        let fits = loading.next() == offset;
        if fits {
            loading.take(bytes);
        }
        (SoftBody::Loaded { epoch, next: loading.next() }, fits)
    }

    /// Makes an image active (PROTOCOL 13.5).
    fn flip(&mut self, id: &ImageId) -> SoftBody<'static> {
        let &ImageId { epoch, len, digest } = id;
        if len > self.budget {
            return self.too_long(epoch);
        }
        if *id == self.shown().active {
            return SoftBody::Flipped { epoch, verdict: Verdict::Active };
        }
        let newest = self.loading.as_ref().map_or(0, |loading| loading.epoch);
        if epoch <= self.epoch || epoch < newest {
            return SoftBody::Shown(self.shown());
        }
        let begun = self.loading.as_ref().filter(|loading| loading.epoch == epoch);
        if begun.is_none_or(|loading| loading.next() < loading.len) {
            return SoftBody::Loaded { epoch, next: begun.map_or(0, LoadingImage::next) };
        }
        let LoadingImage { bytes, hasher, indexing, .. } =
            self.loading.take().unwrap_or_else(|| LoadingImage::begin(epoch, 0));
        let verdict = if (bytes.len(), hasher.digest()) != (len as usize, digest) {
            Verdict::Damaged
        } else {
            let parsed = Image::parse_hashed(bytes, &hasher);
            let tables = parsed.and_then(|image| {
                let index = indexing.finish(image.keys().count())?;
                routes_of(&image).map(|routes| (image, index, routes))
            });
            match tables {
                Ok((image, index, routes)) => {
                    (self.epoch, self.image, self.index, self.routes) = (epoch, image, index, routes);
                    Verdict::Active
                }
                Err(fault) => Verdict::Fault(fault),
            }
        };
        SoftBody::Flipped { epoch, verdict }
    }

    /// Returns a part of a section's counters (PROTOCOL 13.17); empty if another image is active, or if it has
    /// no such section.
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
        assert!(self.shown().active.len <= self.budget, "the active image is within its budget");
        assert!(self.epoch > 0 || self.image.is_empty(), "an active image has an epoch");
        if let Some(loading) = &self.loading {
            assert!(loading.epoch > self.epoch, "what is loading is newer than the active image");
            assert!(
                loading.next() <= loading.len && loading.len <= self.budget,
                "within its length and budget"
            );
        }
    }
}

/// Parses the next hops of an image (PROTOCOL 16.4).
fn routes_of(image: &Image) -> Result<Routes, ImageFault> {
    let mut routes = Routes::default();
    for (key, row) in image.keys().zip(0..).filter(|(key, _)| key.kind == ROUTES_KIND) {
        let parsed =
            image.section(key).filter(|_| (key.domain, key.id) == (Domain(0), 0)).map(RouteSection::parse);
        match parsed {
            Some(Ok(section)) => routes = Routes::new(section),
            _ => return Err(ImageFault { rule: ImageRule::Content, row }),
        }
    }
    Ok(routes)
}

impl Switch {
    /// Returns the soft state; readers see the active image (PROTOCOL 13.1).
    #[must_use]
    pub const fn soft(&self) -> &Soft {
        &self.soft
    }

    /// Handles a message of the control plane about the image.
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
                    SoftBody::Flipped { verdict: Verdict::Active, epoch } if epoch > before => {
                        Note::SoftFlipped
                    }
                    SoftBody::Flipped { verdict: Verdict::Active, .. } => Note::SoftShown,
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
            // These are responses of a switch, which the control plane does not send.
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
