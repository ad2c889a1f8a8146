//! Pages that are here and that the cache does not see: they count, and may become its own.

use crate::cache::Cache;
use crate::frames::Busy;
use crate::{Config, Key};
use farmem_wire::message::Access;

impl Cache {
    /// How it works.
    #[must_use]
    pub const fn config(&self) -> &Config {
        &self.config
    }

    /// Frames that pages which become visible may take without another one going, before it is seen to that some are free.
    #[must_use]
    pub fn room(&self) -> usize {
        self.free()
    }

    /// So many frames are for pages that the cache does not see, from now on.
    ///
    /// # Panics
    /// When there is not so much room.
    pub fn set_aside(&mut self, frames: usize) {
        self.frames.set_aside(0);
        assert!(frames <= self.free(), "{frames} frames fit beside the others");
        self.frames.set_aside(frames);
        self.stats.frames_max = self.stats.frames_max.max(self.frames.taken() as u64);
    }

    /// A page that a program has, and may have written, is the cache's from now on. There is room for it.
    pub fn adopt(&mut self, key: Key) {
        assert!(self.free() > 0, "{key:?} was counted before");
        self.insert(key, Some(Access::Modified), false, Busy::No);
    }
}
