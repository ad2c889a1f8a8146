//! The installed clangs, with a message if there is none.

use farmem_compiler::clang::Clang;

/// Returns every installed clang. Prints a line if there is none.
pub(super) fn all() -> Vec<Clang> {
    let clangs = Clang::all();
    if clangs.is_empty() {
        eprintln!("skipped: clang absent: iterators are tested from the objects in testdata only");
    }
    clangs
}
