//! The kinds of values, and the encoding of collections in the log.
//!
//! Key type: [`Value`]. A collection in use is a structure in local memory; otherwise it is bytes
//! ([`Value::encode`]).

pub(crate) use super::ranked::Text;

use super::ranked::Ranked;
use indexmap::{IndexMap, IndexSet};
use std::collections::VecDeque;

/// The kinds of values.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub(crate) enum Kind {
    String = 0,
    List = 1,
    Set = 2,
    Sorted = 3,
    Hash = 4,
    /// A string that a memcached client wrote. Redis clients see a string.
    Item = 5,
}

impl Kind {
    /// Returns the name that `TYPE` shows.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::String | Self::Item => "string",
            Self::List => "list",
            Self::Set => "set",
            Self::Sorted => "zset",
            Self::Hash => "hash",
        }
    }

    /// Returns whether values of this kind are plain bytes in the log.
    pub(crate) const fn is_string(self) -> bool {
        matches!(self, Self::String | Self::Item)
    }

    /// Returns the kind that Redis clients see.
    pub(crate) const fn for_redis(self) -> Self {
        if self.is_string() { Self::String } else { self }
    }

    pub(crate) const fn of(number: u8) -> Option<Self> {
        match number {
            0 => Some(Self::String),
            1 => Some(Self::List),
            2 => Some(Self::Set),
            3 => Some(Self::Sorted),
            4 => Some(Self::Hash),
            5 => Some(Self::Item),
            _ => None,
        }
    }
}

/// A collection in use.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Value {
    List(VecDeque<Text>),
    Set(IndexSet<Text>),
    Sorted(Ranked),
    Hash(IndexMap<Text, Text>),
}

/// Bytes of an element besides its text: pointers, hashes, and what the allocator adds.
pub(crate) const ELEMENT: usize = 56;

impl Value {
    pub(crate) fn new(kind: Kind) -> Self {
        match kind {
            Kind::List => Self::List(VecDeque::new()),
            Kind::Set => Self::Set(IndexSet::new()),
            Kind::Sorted => Self::Sorted(Ranked::default()),
            Kind::Hash => Self::Hash(IndexMap::new()),
            Kind::String | Kind::Item => unreachable!("strings lie in the log alone"),
        }
    }

    /// Returns the number of elements.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::List(list) => list.len(),
            Self::Set(set) => set.len(),
            Self::Sorted(sorted) => sorted.len(),
            Self::Hash(hash) => hash.len(),
        }
    }

    /// Returns the bytes in local memory, approximately. Looks at all elements.
    pub(crate) fn bytes(&self) -> usize {
        let texts: usize = match self {
            Self::List(list) => list.iter().map(|text| text.len()).sum(),
            Self::Set(set) => set.iter().map(|text| text.len()).sum(),
            Self::Sorted(sorted) => 2 * sorted.iter().map(|(_, text)| text.len() + 16).sum::<usize>(),
            Self::Hash(hash) => hash.iter().map(|(field, value)| field.len() + value.len() + 24).sum(),
        };
        texts + self.len() * ELEMENT + 128
    }

    /// Appends the encoding of the collection.
    pub(crate) fn encode(&self, into: &mut Vec<u8>) {
        let mut text = |bytes: &[u8]| {
            into.extend_from_slice(&len(bytes).to_le_bytes());
            into.extend_from_slice(bytes);
        };
        match self {
            Self::List(list) => list.iter().for_each(|element| text(element)),
            Self::Set(set) => set.iter().for_each(|member| text(member)),
            Self::Hash(hash) => hash.iter().for_each(|(field, value)| {
                text(field);
                text(value);
            }),
            Self::Sorted(sorted) => {
                for (score, member) in sorted.iter() {
                    into.extend_from_slice(&score.to_bits().to_le_bytes());
                    into.extend_from_slice(&len(member).to_le_bytes());
                    into.extend_from_slice(member);
                }
            }
        }
    }

    /// Decodes a collection; `None` if the bytes are not one of this kind.
    pub(crate) fn decode(kind: Kind, bytes: &[u8]) -> Option<Self> {
        let mut bytes = bytes;
        let mut value = Self::new(kind);
        while !bytes.is_empty() {
            match &mut value {
                Self::List(list) => list.push_back(take_text(&mut bytes)?.into()),
                Self::Set(set) => {
                    set.insert(take_text(&mut bytes)?.into());
                }
                Self::Hash(hash) => {
                    let field = take_text(&mut bytes)?.into();
                    hash.insert(field, take_text(&mut bytes)?.into());
                }
                Self::Sorted(sorted) => {
                    let (score, rest) = bytes.split_first_chunk()?;
                    bytes = rest;
                    sorted.insert(f64::from_bits(u64::from_le_bytes(*score)), take_text(&mut bytes)?);
                }
            }
        }
        Some(value)
    }
}

fn len(bytes: &[u8]) -> u32 {
    u32::try_from(bytes.len()).expect("a word is shorter than 4 GiB")
}

/// Splits off a text, which has its length in front.
fn take_text<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (len, rest) = bytes.split_first_chunk()?;
    let (text, rest) = rest.split_at_checked(u32::from_le_bytes(*len) as usize)?;
    *bytes = rest;
    Some(text)
}
