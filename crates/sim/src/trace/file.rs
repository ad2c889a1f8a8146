//! Trace files: a magic number, then an LZ4 frame of entries in postcard's format. The last entry has the
//! totals, so that a truncated file can be detected.

use super::Visit;
use lz4_flex::frame::{FrameDecoder, FrameEncoder, FrameInfo};
use serde::{Deserialize, Serialize};
use std::io::{self, BufRead, BufReader, Read, Write};
use thiserror::Error;

/// The first bytes of a trace, including the format's version.
const MAGIC: &[u8; 8] = b"fmtrace1";
/// Maximum length in bytes of an entry; the longest has the command line.
const ENTRY_MAX: usize = 64 << 10;

/// The header of a trace.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Header {
    /// The program and its arguments.
    pub command: Vec<String>,
}

/// An entry in a file. Numbers are varints; pages are differences from the preceding page.
#[derive(Debug, Serialize, Deserialize)]
enum Entry {
    Header(Header),
    Visit { thread: u16, page: i64, write: bool, instructions: u64, accesses: u64 },
    End { visits: u64 },
}

/// The reason for which a trace could not be written or read.
#[derive(Debug, Error)]
pub enum TraceError {
    /// The file or stream failed.
    #[error("the trace could not be read or written: {0}")]
    Io(#[from] io::Error),
    /// The file is no trace.
    #[error("this is no trace: it does not begin with {:?}", MAGIC.escape_ascii().to_string())]
    NoTrace,
    /// The program's arguments exceed the maximum header length.
    #[error("a trace's header holds {ENTRY_MAX} bytes; this command line is longer")]
    HeaderTooLong,
    /// An entry is invalid.
    #[error("the trace is damaged after {visits} visits; record it again")]
    Damaged {
        /// Number of visits before it.
        visits: u64,
    },
    /// The end is missing.
    #[error("the trace ends after {visits} visits, in the middle; was its recording cut short?")]
    CutShort {
        /// Number of visits before it.
        visits: u64,
    },
}

/// A writer of traces.
pub struct Writer<W: Write> {
    to: FrameEncoder<W>,
    page: u64,
    visits: u64,
    buf: Vec<u8>,
}

impl<W: Write> Writer<W> {
    /// Begins a trace on `to`.
    ///
    /// # Errors
    /// [`TraceError::Io`], [`TraceError::HeaderTooLong`].
    pub fn new(mut to: W, header: &Header) -> Result<Self, TraceError> {
        to.write_all(MAGIC)?;
        let frame = FrameInfo::new().content_checksum(true);
        let mut writer =
            Self { to: FrameEncoder::with_frame_info(frame, to), page: 0, visits: 0, buf: Vec::new() };
        writer.entry(&Entry::Header(header.clone()))?;
        Ok(writer)
    }

    /// Writes one visit.
    ///
    /// # Errors
    /// [`TraceError::Io`].
    pub fn visit(&mut self, visit: Visit) -> Result<(), TraceError> {
        let Visit { thread, page, write, instructions, accesses } = visit;
        let difference = page.wrapping_sub(self.page).cast_signed();
        (self.page, self.visits) = (page, self.visits + 1);
        self.entry(&Entry::Visit { thread, page: difference, write, instructions, accesses })
    }

    /// Ends the trace and returns the number of visits.
    ///
    /// # Errors
    ///
    /// [`TraceError::Io`].
    pub fn finish(mut self) -> Result<u64, TraceError> {
        let visits = self.visits;
        self.entry(&Entry::End { visits })?;
        self.to.finish().map_err(io::Error::from)?.flush()?;
        Ok(visits)
    }

    /// Writes an entry, preceded by its length in two bytes.
    fn entry(&mut self, entry: &Entry) -> Result<(), TraceError> {
        self.buf.clear();
        self.buf = postcard::to_extend(entry, std::mem::take(&mut self.buf))
            .expect("a vector grows, and these types have a form");
        let len = u16::try_from(self.buf.len()).map_err(|_| TraceError::HeaderTooLong)?;
        self.to.write_all(&len.to_le_bytes())?;
        self.to.write_all(&self.buf)?;
        Ok(())
    }
}

/// A reader of traces: an iterator of visits, which ends after the first error.
pub struct Reader<R: Read> {
    from: BufReader<FrameDecoder<R>>,
    header: Header,
    page: u64,
    visits: u64,
    ended: bool,
    buf: Vec<u8>,
}

impl<R: Read> Reader<R> {
    /// Opens a trace and reads its header.
    ///
    /// # Errors
    ///
    /// [`TraceError`].
    pub fn new(mut from: R) -> Result<Self, TraceError> {
        let mut magic = [0; MAGIC.len()];
        match from.read_exact(&mut magic) {
            Ok(()) if magic == *MAGIC => {}
            Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => return Err(error.into()),
            _ => return Err(TraceError::NoTrace),
        }
        let header = Header { command: Vec::new() };
        let from = BufReader::new(FrameDecoder::new(from));
        let mut reader = Self { from, header, page: 0, visits: 0, ended: false, buf: Vec::new() };
        let Entry::Header(header) = reader.entry()? else { return Err(TraceError::Damaged { visits: 0 }) };
        reader.header = header;
        Ok(reader)
    }

    /// Returns the header.
    #[must_use]
    pub const fn header(&self) -> &Header {
        &self.header
    }

    fn visit(&mut self) -> Result<Option<Visit>, TraceError> {
        match self.entry()? {
            Entry::Visit { thread, page, write, instructions, accesses } => {
                self.page = self.page.wrapping_add(page.cast_unsigned());
                self.visits += 1;
                Ok(Some(Visit { thread, page: self.page, write, instructions, accesses }))
            }
            Entry::End { visits } if visits == self.visits && self.is_at_end()? => Ok(None),
            Entry::End { .. } | Entry::Header(_) => Err(TraceError::Damaged { visits: self.visits }),
        }
    }

    fn is_at_end(&mut self) -> Result<bool, TraceError> {
        let visits = self.visits;
        Ok(self.from.fill_buf().map_err(|error| in_frame(error, visits))?.is_empty())
    }

    fn entry(&mut self) -> Result<Entry, TraceError> {
        let visits = self.visits;
        let mut len = [0; 2];
        self.from.read_exact(&mut len).map_err(|error| in_frame(error, visits))?;
        self.buf.resize(usize::from(u16::from_le_bytes(len)), 0);
        self.from.read_exact(&mut self.buf).map_err(|error| in_frame(error, visits))?;
        match postcard::take_from_bytes(&self.buf) {
            Ok((entry, [])) => Ok(entry),
            _ => Err(TraceError::Damaged { visits }),
        }
    }
}

/// Maps an error inside the frame: its end is missing, it is no LZ4, or the file under it failed.
fn in_frame(error: io::Error, visits: u64) -> TraceError {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => TraceError::CutShort { visits },
        io::ErrorKind::Other | io::ErrorKind::InvalidData => TraceError::Damaged { visits },
        _ => TraceError::Io(error),
    }
}

impl<R: Read> Iterator for Reader<R> {
    type Item = Result<Visit, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let next = self.visit().transpose();
        self.ended = !matches!(next, Some(Ok(_)));
        next
    }
}
