//! Where the iterators of testdata are, and what is said when there is no clang for them.

use farmem_compiler::clang::Clang;
use std::path::{Path, PathBuf};

/// testdata/iterators
pub(super) fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/iterators")
}

/// Says so when no source can be compiled here. Never silently.
pub(super) fn skip_without_clang(clangs: &[Clang]) {
    if clangs.is_empty() {
        eprintln!("skipped: clang absent: iterators are tested from the objects in testdata only");
    }
}
