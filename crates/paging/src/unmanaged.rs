//! Pages that are resident and outside the cache's control: they count against the limit, and may become the
//! cache's own.

use crate::cache::Cache;
use crate::frames::Busy;
use crate::{Config, Key};
use farmem_wire::message::Access;

impl Cache {
    /// Returns the configuration.
    #[must_use]
    pub const fn config(&self) -> &Config {
        &self.config
    }

    /// Returns the number of frames that new pages may take without an eviction.
    #[must_use]
    pub fn room(&self) -> usize {
        self.free()
    }

    /// Sets `frames` frames aside for pages outside the cache's control.
    ///
    /// # Panics
    ///
    /// If there is not that much room.
    pub fn set_aside(&mut self, frames: usize) {
        self.frames.set_aside(0);
        assert!(frames <= self.free(), "{frames} frames fit beside the others");
        self.frames.set_aside(frames);
        self.stats.frames_max = self.stats.frames_max.max(self.frames.taken() as u64);
    }

    /// Adopts a page that a program has mapped and may have written. The caller guarantees room for it.
    pub fn adopt(&mut self, key: Key) {
        assert!(self.free() > 0, "{key:?} was counted before");
        self.insert(key, Some(Access::Modified), false, Busy::No);
    }
}
