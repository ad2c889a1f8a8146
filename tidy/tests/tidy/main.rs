//! Tests of the tree itself: dependency arrows, pages, prose and habits.

mod arrows;
mod circles;
mod docs;
mod prose;
mod source;
mod tree;
