//! Page states as the program sees them: whether there is a frame, and the way to it.
//!
//! Key type: [`State`], of the pages of a [`Window`](super::Window) and of a [`SharedMapping`](super::SharedMapping), which draw how one becomes another.

use super::Mapping;
use farmem_wire::message::Access;
use std::sync::atomic::AtomicU8;

/// States of all pages of a window, each as a number. They take no memory before they are used.
pub(super) type States = Box<[AtomicU8]>;

/// A page's frame, and the program's way to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(super) enum State {
    /// No frame; a touch waits.
    Gone = 0,
    /// A frame that the program may read.
    ReadOnly = 1,
    /// A frame that the program may write.
    Writable = 2,
    /// A frame that only we have; a touch waits.
    Unmapped = 3,
    /// No frame; a touch ends in SIGBUS. In a shared mapping: of threads that waited; others wait when they touch it.
    Poisoned = 4,
}

impl State {
    /// The state of a page with this access.
    pub(super) const fn shown(access: Access) -> Self {
        match access {
            Access::Shared => Self::ReadOnly,
            Access::Modified => Self::Writable,
        }
    }

    pub(super) const fn has_frame(self) -> bool {
        matches!(self, Self::ReadOnly | Self::Writable | Self::Unmapped)
    }

    /// The inverse of `as u8`.
    ///
    /// # Panics
    /// For every other number.
    pub(super) fn decode(state: u8) -> Self {
        match state {
            0 => Self::Gone,
            1 => Self::ReadOnly,
            2 => Self::Writable,
            3 => Self::Unmapped,
            4 => Self::Poisoned,
            other => unreachable!("{other} is no state of a page"),
        }
    }
}

/// How a page is mapped that may be used so. It is chosen by the page's state each time, never left to marks that the kernel may have dropped.
pub(super) const fn mapping(access: Access) -> Mapping {
    match access {
        Access::Shared => Mapping::ReadOnly,
        Access::Modified => Mapping::Writable,
    }
}
