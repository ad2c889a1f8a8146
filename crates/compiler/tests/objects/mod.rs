//! The location of the iterators in testdata.

use std::path::{Path, PathBuf};

/// Returns the path of testdata/iterators.
pub(super) fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/iterators")
}
