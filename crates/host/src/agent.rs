//! The host's half of the coherence protocol: which pages it caches, with which access, and what it owes.

mod pages;

pub use pages::Pages;
