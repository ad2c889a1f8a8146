//! The clients' requests: reads of one length, in the protocol of the application (PROTOCOL 19.14, or RESP).

use super::store::{KEY, Kind};
use super::{Draw, Size};
use farmem::Rng;
use farmem::prefetch::parse::records::{HEADER_LEN, Header, Request};
use farmem::prefetch::tap::{ParserKind, Tap, TapConnection};
use farmem_workload::ycsb::{self, Zipfian};

/// The bytes before and after a key.
const GET: (&[u8], &[u8]) = (b"*2\r\n$3\r\nGET\r\n$8\r\n", b"\r\n");

impl Kind {
    /// Returns the bytes of a request.
    pub(super) const fn request_len(self) -> usize {
        KEY + match self {
            Self::Hash | Self::Pages => HEADER_LEN,
            Self::Kv => GET.0.len() + GET.1.len(),
        }
    }

    /// Returns the key of a request, parsed like the application does.
    pub(super) fn key_in(self, request: &[u8]) -> &[u8] {
        match self {
            Self::Hash | Self::Pages => {
                let header = Header::parse(*request.first_chunk().expect("a header's length"));
                debug_assert_eq!(header.map(|header| header.request), Ok(Request::Read));
                &request[HEADER_LEN..]
            }
            Self::Kv => {
                debug_assert!(request.starts_with(GET.0) && request.ends_with(GET.1));
                &request[GET.0.len()..][..KEY]
            }
        }
    }

    /// Returns the keys of a piece of requests.
    pub(super) fn keys_in(self, piece: &[u8]) -> impl Iterator<Item = &[u8]> {
        piece.chunks_exact(self.request_len()).map(move |request| self.key_in(request))
    }

    /// Opens a connection whose requests a tap parses, for every kind of DPU.
    pub(super) fn connection(self, tap: &Tap) -> TapConnection {
        let protocol = match self {
            Self::Hash => ParserKind::HashMap,
            Self::Pages => ParserKind::Pages,
            Self::Kv => ParserKind::Resp,
        };
        tap.connection_of(protocol).expect("the only connection")
    }
}

impl Size {
    /// Returns the bytes of all requests of a measurement.
    pub(super) fn draw(&self, draw: Draw, seed: u64) -> Vec<u8> {
        let mut rng = Rng::from_number(seed);
        let mut zipfian = (draw == Draw::Zipf).then(|| Zipfian::new(self.items));
        self.ask((0..self.requests()).map(|_| match &mut zipfian {
            Some(zipfian) => ycsb::hash(zipfian.next(&mut rng)) % self.items,
            None => rng.next_u64() % self.items,
        }))
    }

    /// Returns the bytes of requests for these items.
    pub(super) fn ask(&self, items: impl Iterator<Item = u64>) -> Vec<u8> {
        let header = Header { request: Request::Read, key_len: 8, value_len: 0 }.emit();
        let (before, behind) = match self.kind {
            Kind::Hash | Kind::Pages => (&header[..], &[][..]),
            Kind::Kv => GET,
        };
        let mut bytes = Vec::with_capacity(self.piece * self.pieces * self.kind.request_len());
        for item in items {
            bytes.extend_from_slice(before);
            bytes.extend_from_slice(&self.kind.key(item));
            bytes.extend_from_slice(behind);
        }
        bytes
    }
}
