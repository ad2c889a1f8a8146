//! Tests of the tree itself: dependency arrows, pages, prose and habits.

mod arrows;
mod docs;
mod prose;
mod source;
mod tree;
