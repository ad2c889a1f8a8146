//! Where the iterators of testdata are.

use std::path::{Path, PathBuf};

/// testdata/iterators
pub(super) fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/iterators")
}
