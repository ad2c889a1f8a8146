//! The protocols whose parsers a DPU has, with the code of each in the records of a tap.
//!
//! Key type: [`ParserKind`].

use farmem_dpu::parse::Parser;
use serde::{Deserialize, Serialize};

/// A parser of any kind.
pub type AnyParser = Box<dyn Parser + Send>;

/// A protocol with a built-in parser. A DPU process has exactly these.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ParserKind {
    /// Redis clients ([`farmem_dpu::parse::resp`]).
    Resp,
    /// memcached, text and meta protocol.
    Memcached,
    /// HTTP/1.1.
    Http,
    /// Records of the hash map (PROTOCOL 19.14).
    HashMap,
    /// Records of the page server.
    Pages,
}

impl ParserKind {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Resp, Self::Memcached, Self::Http, Self::HashMap, Self::Pages];

    pub(super) const fn code(self) -> u8 {
        match self {
            Self::Resp => 1,
            Self::Memcached => 2,
            Self::Http => 3,
            Self::HashMap => 4,
            Self::Pages => 5,
        }
    }

    pub(super) fn of(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.code() == code)
    }

    /// Creates a parser of this protocol for one connection.
    #[must_use]
    pub fn parser(self) -> AnyParser {
        use farmem_dpu::parse::{http, memcached, records, resp};
        match self {
            Self::Resp => Box::new(resp::Resp::new()),
            Self::Memcached => Box::new(memcached::Memcached::new()),
            Self::Http => Box::new(http::Http::new()),
            Self::HashMap => Box::new(records::Records::hash_map()),
            Self::Pages => Box::new(records::Records::pages()),
        }
    }
}
