//! Line ends of requests: only CR LF is valid (RFC 9112, 2.2).
//!
//! The HTTP library accepts a bare LF as well. A proxy that does not would see another request than the
//! server. So [`LineEnds`] follows the bytes and finds each LF without its CR, in heads and in the framing of
//! chunks. Bodies may contain any bytes.

/// A parser that follows the bytes of a connection from its first request on.
#[derive(Default, Debug)]
pub(super) struct LineEnds {
    part: Part,
    /// The current line, up to [`LINE_MAX`] bytes.
    line: Vec<u8>,
    /// The previous byte of the line.
    last: u8,
    /// The framing that the current head declares.
    framing: Framing,
}

/// The part of the message to which the next byte belongs.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
enum Part {
    /// A head, or the empty lines before it.
    #[default]
    Head,
    /// A body, with this number of remaining bytes.
    Body(u64),
    /// The line before a chunk.
    ChunkSize,
    /// A chunk and its line end, with this number of remaining bytes.
    Chunk(u64),
    /// The fields after the last chunk.
    Trailer,
}

/// The framing of the body that a head declares.
#[derive(Clone, Copy, Default, Debug)]
struct Framing {
    /// True after a line that is not empty.
    begun: bool,
    length: u64,
    chunked: bool,
}

/// Maximum number of bytes of a line to check: longer lines contain no framing of an API request.
const LINE_MAX: usize = 256;

impl LineEnds {
    /// Follows more bytes; returns false after an LF without its CR.
    pub(super) fn are_right(&mut self, mut bytes: &[u8]) -> bool {
        while let Some(&byte) = bytes.first() {
            if let Part::Body(left) | Part::Chunk(left) = self.part {
                let take = left.min(bytes.len() as u64);
                bytes = &bytes[usize::try_from(take).expect("no more than there are")..];
                self.part = match (self.part, left - take) {
                    (Part::Body(_), 0) => Part::Head,
                    (Part::Body(_), left) => Part::Body(left),
                    (_, 0) => Part::ChunkSize,
                    (_, left) => Part::Chunk(left),
                };
                continue;
            }
            bytes = &bytes[1..];
            let before = std::mem::replace(&mut self.last, byte);
            if byte != b'\n' {
                if self.line.len() < LINE_MAX {
                    self.line.push(byte);
                }
                continue;
            }
            if before != b'\r' {
                return false;
            }
            let line = std::mem::take(&mut self.line);
            self.end_line(line.strip_suffix(b"\r").unwrap_or(&line));
        }
        true
    }

    fn end_line(&mut self, line: &[u8]) {
        match self.part {
            Part::Head if line.is_empty() && self.framing.begun => {
                let Framing { length, chunked, .. } = std::mem::take(&mut self.framing);
                self.part = match (chunked, length) {
                    (true, _) => Part::ChunkSize,
                    (false, 0) => Part::Head,
                    (false, length) => Part::Body(length),
                };
            }
            Part::Head => self.framing.field(line),
            Part::ChunkSize => {
                let digits = line.split(|&byte| byte == b';').next().unwrap_or_default();
                let size = std::str::from_utf8(digits).ok();
                let size = size.and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok());
                self.part = match size {
                    Some(0) => Part::Trailer,
                    // The library refuses a chunk without a size.
                    size => Part::Chunk(size.unwrap_or(0).saturating_add(2)),
                };
            }
            Part::Trailer if line.is_empty() => self.part = Part::Head,
            Part::Trailer | Part::Body(_) | Part::Chunk(_) => {}
        }
    }
}

impl Framing {
    fn field(&mut self, line: &[u8]) {
        self.begun |= !line.is_empty();
        let mut halves = line.splitn(2, |&byte| byte == b':');
        let (Some(name), Some(value)) = (halves.next(), halves.next()) else { return };
        let value = String::from_utf8_lossy(value);
        if name.eq_ignore_ascii_case(b"content-length") {
            self.length = value.trim().parse().unwrap_or(0);
        } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
            self.chunked = value.to_ascii_lowercase().contains("chunked");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BODY: &str = "POST / HTTP/1.1\r\nContent-Length: 4\r\n\r\n\n\n\n\nGET / HTTP/1.1\r\n\r\n";
    const CHUNKS: &str = "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3;x\r\n\n\n\n\r\n0\r\nX: y\r\n\r\nGET / HTTP/1.1\r\n\r\n";

    fn right(text: &str, step: usize) -> bool {
        let mut ends = LineEnds::default();
        text.as_bytes().chunks(step).all(|bytes| ends.are_right(bytes))
    }

    /// However the bytes are split, bodies and chunks may contain bare LFs. Heads and the framing of chunks
    /// may not, neither in a first request nor in a later one.
    #[test]
    fn bare_line_feeds_are_found_outside_bodies() {
        for step in [1, 2, 3, 7, 1000] {
            for text in [BODY, CHUNKS] {
                assert!(right(text, step), "{text:?} by {step}");
                let ends: Vec<usize> = text.match_indices("\r\n").map(|(at, _)| at).collect();
                for at in ends {
                    // The library checks the line end after a chunk.
                    let behind_chunk = text[..at].ends_with("\n\n\n");
                    let bare = format!("{}{}", &text[..at], &text[at + 1..]);
                    assert_eq!(right(&bare, step), behind_chunk, "{bare:?} by {step}");
                }
            }
        }
    }

    /// A field of a megabyte takes no memory of its length.
    #[test]
    fn a_long_line_is_not_kept() {
        let mut ends = LineEnds::default();
        assert!(ends.are_right(&[b'a'; 1 << 20]) && ends.are_right(&[b'\r'; 1 << 20]));
        assert_eq!(ends.line.len(), LINE_MAX);
        assert!(ends.are_right(b"\r\n") && !ends.are_right(b"\n"));
    }
}
