//! The clangs of this machine, and what is said when there is none.

use farmem_compiler::clang::Clang;

/// Every clang there is. Says so when no source can be compiled here, never silently.
pub(super) fn all() -> Vec<Clang> {
    let clangs = Clang::all();
    if clangs.is_empty() {
        eprintln!("skipped: clang absent: iterators are tested from the objects in testdata only");
    }
    clangs
}
