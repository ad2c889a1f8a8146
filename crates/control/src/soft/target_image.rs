//! An image that is to become active at a switch, and the progress of its load.

use crate::soft::sections::Sections;
use farmem_transport::image::Image;
use farmem_wire::message::ImageId;

/// An image that is to become active.
#[derive(Debug)]
pub(super) struct TargetImage {
    pub(super) image: Image,
    /// The sections from which the image was built.
    pub(super) sections: Sections,
    pub(super) revision: u64,
    pub(super) was_active: bool,
    /// 0 until the switch has reported what it has.
    pub(super) epoch: u64,
    pub(super) stage: Stage,
    /// How often the image was found damaged.
    pub(super) damaged: u32,
}

/// Progress of an image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stage {
    /// The state of the switch is unknown.
    Asking,
    /// The bytes of the image are being sent.
    Loading(Progress),
    /// The switch was asked to activate the image.
    Flipping,
    /// The image is active.
    Active,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Progress {
    /// The first byte that the switch misses.
    pub(super) next: u32,
    /// The first byte that was not sent, or is to be sent again.
    pub(super) sent: u32,
    /// Answers that named `next` since it became the first missing byte.
    pub(super) named: u32,
}

impl TargetImage {
    pub(super) const fn new(image: Image, sections: Sections, revision: u64) -> Self {
        Self { image, sections, revision, was_active: false, epoch: 0, stage: Stage::Asking, damaged: 0 }
    }

    pub(super) fn id(&self) -> ImageId {
        ImageId { epoch: self.epoch, len: self.image.len(), digest: self.image.digest() }
    }
}
