//! Encodings of text files.

/// An encoding of text other than UTF-8.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OtherEncoding {
    /// The name.
    pub name: &'static str,
    /// A command that converts a file to UTF-8.
    pub remedy: &'static str,
}

/// Returns the encoding of a text that is not UTF-8, by the text's first four bytes: a byte order mark, or zeros
/// beside letters.
#[must_use]
pub const fn other_encoding(text: &[u8]) -> Option<OtherEncoding> {
    const UTF_16: OtherEncoding =
        OtherEncoding { name: "UTF-16", remedy: "convert it first: iconv -f UTF-16 -t UTF-8" };
    const UTF_32: OtherEncoding =
        OtherEncoding { name: "UTF-32", remedy: "convert it first: iconv -f UTF-32 -t UTF-8" };
    match text {
        [0xff, 0xfe, 0, 0, ..] | [0, 0, 0xfe, 0xff, ..] => Some(UTF_32),
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => Some(UTF_16),
        [1..=255, 0, 1..=255, 0, ..] => {
            Some(OtherEncoding { remedy: "convert it first: iconv -f UTF-16LE -t UTF-8", ..UTF_16 })
        }
        [0, 1..=255, 0, 1..=255, ..] => {
            Some(OtherEncoding { remedy: "convert it first: iconv -f UTF-16BE -t UTF-8", ..UTF_16 })
        }
        _ => None,
    }
}
