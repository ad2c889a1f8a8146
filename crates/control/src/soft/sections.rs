//! Sections that domains have published, and the requests about them (PROTOCOL 13.10).

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use farmem_transport::image::{Image, SectionKey, image_len};
use farmem_wire::ProgramHash;

/// The event that a request about soft state waits for.
#[derive(Debug)]
pub(crate) enum SoftRequest {
    /// The published sections change, and the new image becomes active.
    Publish(Edit),
    /// The switch shows what it has.
    Show,
    /// The counters of the tables of this section.
    Counts(SectionKey),
}

/// The content that was published under a key.
#[derive(Clone, Debug)]
pub(super) struct Section {
    pub(super) bytes: Arc<[u8]>,
    /// The session over which the section was published: the switch's queue pair. None for a section of the
    /// control plane itself.
    pub(super) session: Option<u32>,
    /// For a tree: the traversals that its tables are for.
    pub(super) programs: Vec<ProgramHash>,
}

/// All published sections.
pub(super) type Sections = BTreeMap<SectionKey, Section>;

/// Change that one request makes to the published sections.
#[derive(Debug)]
pub(crate) struct Edit {
    pub(super) put: Vec<(SectionKey, Section)>,
    pub(super) drop: Vec<SectionKey>,
}

/// A caller that waits for its change to become active.
#[derive(Debug)]
pub(super) struct Caller {
    pub(super) ticket: u64,
    /// The first revision that contains the change.
    pub(super) revision: u64,
    /// The keys that were changed.
    pub(super) keys: Vec<SectionKey>,
    /// True if nothing was published, so that the answer names no epoch.
    pub(super) withdraws: bool,
}

/// Returns the length of the image that the sections make.
pub(super) fn len_of(sections: &Sections) -> usize {
    image_len(sections.values().map(|section| section.bytes.len())).unwrap_or(usize::MAX)
}

pub(super) fn image_of(sections: &Sections) -> Image {
    let parts: Vec<(SectionKey, &[u8])> =
        sections.iter().map(|(key, section)| (*key, &section.bytes[..])).collect();
    Image::of(&parts).expect("number and length of the sections were looked at")
}
