//! The build of farmem of each member, as reported at its join and kept in the log, to detect incompatible
//! builds (PROTOCOL 8.71).
//!
//! The control plane does not interpret the text of a build. Members that report none, such as cards and
//! manual joins, are not listed.

/// Maximum length of a build in characters.
pub const BUILD_LEN_MAX: usize = 64;

/// Returns true if a text is a valid build: 1 to [`BUILD_LEN_MAX`] letters, digits and `.+_-`.
#[must_use]
pub fn is_build(text: &str) -> bool {
    let known = |letter: u8| letter.is_ascii_alphanumeric() || b".+_-".contains(&letter);
    (1..=BUILD_LEN_MAX).contains(&text.len()) && text.bytes().all(known)
}
