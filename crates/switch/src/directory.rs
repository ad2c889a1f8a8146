//! The directory: who caches what, region by region, and whose turn it is (MIND 4.3, 6.3).
//!
//! Pure: an [`Entry`] takes an [`Event`] and says what to send, by the rows of a [`table`]. The switch around it knows sessions,
//! ports and time; an entry knows none of these. [`Slots`] is the memory the entries lie in.
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
