//! The directory: which hosts cache pages of each region, and the transaction in progress (MIND 4.3, 6.3).
//!
//! Pure: an [`Entry`] handles an [`Event`] and returns actions, by the rows of a [`table`]. The switch around
//! it knows sessions, ports and time; an entry knows none of them. [`Slots`] is the memory of the entries.
//!
//! Rules: PROTOCOL 12.6 to 12.16.

mod entry;
mod slots;
pub mod table;
#[cfg(test)]
mod tests;

pub use entry::{ACTIONS_MAX, Action, Entry, Event, Outcome};
pub use slots::{SLOTS_DEFAULT, SlotError, Slots};
pub use table::{Phase, Trigger};
