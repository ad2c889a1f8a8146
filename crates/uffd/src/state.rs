//! Page states from the program's point of view: the frame, and the program's mapping.
//!
//! Key type: [`State`], of the pages of a [`Window`](super::Window) and of a [`SharedMapping`](super::SharedMapping).
//! Both draw the transitions.

use super::Mapping;
use farmem_wire::message::Access;
use std::sync::atomic::AtomicU8;

/// States of all pages of a window, each as a number. The numbers take no memory until they are used.
pub(super) type States = Box<[AtomicU8]>;

/// A page's frame, and the program's mapping of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(super) enum State {
    /// No frame; a touch waits.
    Gone = 0,
    /// A frame that the program may read.
    ReadOnly = 1,
    /// A frame that the program may write.
    Writable = 2,
    /// A frame that only the owner of the window accesses; a touch waits.
    Unmapped = 3,
    /// No frame; a touch ends in SIGBUS. In a shared mapping, only threads that waited get the SIGBUS; later ones
    /// wait.
    Poisoned = 4,
}

impl State {
    /// Returns the state of a page with this access.
    pub(super) const fn shown(access: Access) -> Self {
        match access {
            Access::Shared => Self::ReadOnly,
            Access::Modified => Self::Writable,
        }
    }

    pub(super) const fn has_frame(self) -> bool {
        matches!(self, Self::ReadOnly | Self::Writable | Self::Unmapped)
    }

    /// Decodes a number that `as u8` produced.
    ///
    /// # Panics
    /// Panics for every other number.
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

/// Returns the mapping for this access. The page's state selects it each time, because the kernel may have dropped
/// its own marks.
pub(super) const fn mapping(access: Access) -> Mapping {
    match access {
        Access::Shared => Mapping::ReadOnly,
        Access::Modified => Mapping::Writable,
    }
}
