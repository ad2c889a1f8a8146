//! The decision of a serving loop between sleep and work.

/// The next step of the loop after a [`Faults::turn`](crate::Faults::turn).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    /// No work is pending: the loop sleeps until a thread faults.
    Sleep,
    /// Work is pending: the loop checks for new faults, and calls `Faults::turn` again at once.
    Look,
}
