//! The place of a record, in one word, and the header of a record.

/// Bytes of a chunk: the unit that one WRITE moves to far memory.
pub(crate) const CHUNK: usize = 256 << 10;
/// The alignment of records.
pub(crate) const UNIT: usize = 8;

/// The room of a record: a count of units with five significant bits. The count fits one byte, and a READ fetches at
/// most a sixteenth too much.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Class(pub(crate) u8);

impl Class {
    /// Returns the smallest class with room for `len` bytes.
    ///
    /// # Panics
    ///
    /// When that is more than a chunk.
    pub(crate) fn of(len: usize) -> Self {
        assert!(len <= CHUNK, "a record fits a chunk");
        let units = len.div_ceil(UNIT);
        if units < 16 {
            return Self(u8::try_from(units).expect("less than 16"));
        }
        let mut power = units.ilog2() - 4;
        let mut significant = units.div_ceil(1 << power);
        if significant == 32 {
            (significant, power) = (16, power + 1);
        }
        let class = (power as usize + 1) * 16 + significant - 16;
        Self(u8::try_from(class).expect("a chunk has fewer units than the last class"))
    }

    /// Returns the bytes of the room.
    pub(crate) const fn len(self) -> usize {
        let (power, significant) = (self.0 as usize >> 4, self.0 as usize & 15);
        UNIT * if power == 0 { significant } else { (16 + significant) << (power - 1) }
    }
}

/// The place of a key's value, in one word.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct LocationWord(pub(crate) u64);

/// The place of a key's value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum At {
    /// A record of the log, local or far.
    Log(RecordSpan),
    /// A record of the read cache.
    Cache(RecordSpan),
    /// The number of a collection in use, or of a value in pieces.
    Live(usize),
}

/// A record in a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) struct RecordSpan {
    /// The chunk's number.
    pub(crate) chunk: usize,
    /// The offset of the record's first byte.
    pub(crate) offset: usize,
    /// Bytes of the record's room.
    pub(crate) len: usize,
}

const KIND_AT: u32 = 62;
const CLASS_AT: u32 = 54;
const CHUNK_AT: u32 = 15;

impl LocationWord {
    pub(crate) fn log(chunk: usize, offset: usize, class: Class) -> Self {
        Self::spot(0, chunk, offset, class)
    }

    pub(crate) fn cache(chunk: usize, offset: usize, class: Class) -> Self {
        Self::spot(1, chunk, offset, class)
    }

    pub(crate) fn live(number: usize) -> Self {
        Self(2 << KIND_AT | number as u64)
    }

    fn spot(kind: u64, chunk: usize, offset: usize, class: Class) -> Self {
        assert!(offset < CHUNK && offset.is_multiple_of(UNIT), "a record begins at a unit of its chunk");
        assert!((chunk as u64) < 1 << (CLASS_AT - CHUNK_AT), "chunks have numbers of 39 bits");
        let units = (offset / UNIT) as u64;
        Self(kind << KIND_AT | u64::from(class.0) << CLASS_AT | (chunk as u64) << CHUNK_AT | units)
    }

    pub(crate) fn at(self) -> At {
        let field =
            |from: u32, to: u32| usize::try_from(self.0 << (64 - to) >> (64 - to + from)).expect("64 bits");
        let class = Class(u8::try_from(field(CLASS_AT, KIND_AT)).expect("eight bits"));
        let spot = RecordSpan {
            chunk: field(CHUNK_AT, CLASS_AT),
            offset: field(0, CHUNK_AT) * UNIT,
            len: class.len(),
        };
        match self.0 >> KIND_AT {
            0 => At::Log(spot),
            1 => At::Cache(spot),
            _ => At::Live(field(0, KIND_AT)),
        }
    }
}

/// The header of a record: eight bytes, before key and value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Header {
    /// The kind of the value.
    pub(crate) kind: u8,
    /// The value lies in pieces, whose numbers the record has.
    pub(crate) large: bool,
    /// The space of the key.
    pub(crate) space: u8,
    /// The room of the record.
    pub(crate) class: Class,
    /// Bytes of the key.
    pub(crate) key_len: u16,
    /// Bytes of the value.
    pub(crate) value_len: u32,
}

/// Bytes of a header.
pub(crate) const HEADER_LEN: usize = 8;

impl Header {
    pub(crate) fn emit(self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        bytes[0] = self.kind | u8::from(self.large) << 3 | self.space << 4;
        bytes[1] = self.class.0;
        bytes[2..4].copy_from_slice(&self.key_len.to_le_bytes());
        bytes[4..].copy_from_slice(&self.value_len.to_le_bytes());
        bytes
    }

    /// Parses a header; `None` if the record would leave its own room.
    pub(crate) fn parse(record: &[u8]) -> Option<Self> {
        let bytes = record.get(..HEADER_LEN)?;
        let header = Self {
            kind: bytes[0] & 7,
            large: bytes[0] & 8 != 0,
            space: bytes[0] >> 4,
            class: Class(bytes[1]),
            key_len: u16::from_le_bytes([bytes[2], bytes[3]]),
            value_len: u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]),
        };
        (header.end() <= header.class.len()).then_some(header)
    }

    /// Returns the offset of the value.
    pub(crate) fn value_from(self) -> usize {
        HEADER_LEN + usize::from(self.key_len)
    }

    /// Returns the end of the value.
    pub(crate) fn end(self) -> usize {
        self.value_from() + self.value_len as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_has_at_most_a_sixteenth_too_much() {
        for len in 1..=CHUNK {
            let class = Class::of(len);
            assert!(class.len() >= len && class.len() <= len + UNIT + len / 16, "{len}: {}", class.len());
            assert_eq!(Class::of(class.len()), class, "{len}");
        }
    }

    #[test]
    fn a_place_is_read_back() {
        let class = Class::of(1000);
        let spot = RecordSpan { chunk: (1 << 39) - 1, offset: CHUNK - 8, len: class.len() };
        assert_eq!(LocationWord::log(spot.chunk, spot.offset, class).at(), At::Log(spot));
        assert_eq!(
            LocationWord::cache(3, 8, class).at(),
            At::Cache(RecordSpan { chunk: 3, offset: 8, ..spot })
        );
        assert_eq!(LocationWord::live(12_345).at(), At::Live(12_345));
    }

    #[test]
    fn a_header_is_read_back_or_refused() {
        let header =
            Header { kind: 5, large: true, space: 15, class: Class::of(108), key_len: 50, value_len: 50 };
        assert_eq!(Header::parse(&header.emit()), Some(header));
        assert_eq!(Header::parse(&Header { value_len: 60, ..header }.emit()), None);
        assert_eq!(Header::parse(&[0; 7]), None);
    }
}
