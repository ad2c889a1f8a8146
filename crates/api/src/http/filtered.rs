//! The stream of one connection to which the HTTP library writes.
//!
//! The library itself answers bytes that are not a request, without a body. The filter drops such an answer,
//! and the server sends its own with an error in JSON (PROTOCOL 8.52). The filter also ignores the library's
//! shutdown, because the server may have more to send. The library accepts a request whose lines end with a
//! bare LF; the filter rejects it.

use super::line_ends::LineEnds;
use super::status_of;
use super::stream::Stream;
use farmem_control::api::ErrorCode;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A stream that drops the library's own answers.
#[derive(Debug)]
pub(super) struct FilteredStream {
    stream: Stream,
    dropped: Option<u16>,
    line_ends: LineEnds,
}

impl FilteredStream {
    pub(super) fn new(stream: Stream) -> Self {
        Self { stream, dropped: None, line_ends: LineEnds::default() }
    }

    /// Returns the stream, and the status of the dropped answer, or of a request with a bare LF.
    pub(super) fn into_parts(self) -> (Stream, Option<u16>) {
        (self.stream, self.dropped)
    }
}

impl AsyncRead for FilteredStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buf))?;
        if self.line_ends.are_right(&buf.filled()[before..]) {
            return Poll::Ready(Ok(()));
        }
        self.dropped = Some(status_of(ErrorCode::BadRequest));
        Poll::Ready(Err(io::ErrorKind::InvalidData.into()))
    }
}

impl AsyncWrite for FilteredStream {
    /// Writes the server's bytes, and drops the library's own answer. This stream is not vectored, so `buf`
    /// has all pending output: answers of the server, and possibly, as the last, one of the library.
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let own = own_answer(buf);
        let ours = &buf[..own.map_or(buf.len(), |(at, _)| at)];
        if let (true, Some((_, status))) = (ours.is_empty(), own) {
            self.dropped = Some(status);
            return Poll::Ready(Ok(buf.len()));
        }
        let written = ready!(Pin::new(&mut self.stream).poll_write(cx, ours))?;
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// The beginning of every answer.
const BEGIN: &[u8] = b"HTTP/1.1 ";

/// Returns position and status of the library's own answer. The server's answers have a body with a length.
fn own_answer(bytes: &[u8]) -> Option<(usize, u16)> {
    if !bytes.ends_with(b"\r\n\r\n") {
        return None;
    }
    let at = bytes.windows(BEGIN.len()).rposition(|window| window == BEGIN)?;
    let head = std::str::from_utf8(&bytes[at..]).ok()?;
    let is_empty = head.lines().any(|line| line.eq_ignore_ascii_case("content-length: 0"));
    let status = head[BEGIN.len()..].get(..3)?.parse().ok()?;
    (is_empty && status >= 400).then_some((at, status))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The filter finds the library's answer after others. The filter drops none of the server's answers,
    /// with a body or (to HEAD) without.
    #[test]
    fn the_librarys_own_answers_are_told_apart() {
        let own =
            "HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
        let ours = "HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nok\n";
        let cases = [
            (own.to_owned(), Some((0, 431))),
            (format!("{ours}{own}"), Some((ours.len(), 431))),
            (format!("{ours}{own}").trim_end().to_owned(), None),
            (ours.to_owned(), None),
            ("HTTP/1.1 404 Not Found\r\ncontent-length: 70\r\n\r\n".to_owned(), None),
            ("HTTP/1.1 100 Continue\r\n\r\n".to_owned(), None),
            (String::new(), None),
        ];
        for (bytes, expected) in cases {
            assert_eq!(own_answer(bytes.as_bytes()), expected, "{bytes:?}");
        }
    }
}
