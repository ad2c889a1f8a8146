//! The load: requests of fixed length whose numbers are overwritten in place, so that generating and checking
//! requests costs little.

use farmem::Rng;
use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;

/// Bytes of a value.
pub(super) const VALUE_LEN: usize = 1_000;
/// Keys of one `MSET`.
pub(super) const MSET_KEYS: usize = 10;
/// Requests sent together when a server is filled.
const TOGETHER: u32 = 64;
/// Digits of a key's number, with which its value begins.
const DIGITS: usize = 12;

/// A kind of request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Get,
    Set,
    Mset,
}

/// The protocol of the servers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Protocol {
    Redis,
    Memcached,
}

/// Request or reply bytes with the positions of their numbers.
#[derive(Clone, Debug)]
struct Numbered {
    bytes: Vec<u8>,
    /// Positions of the digits, by number.
    places: Vec<Vec<usize>>,
}

impl Numbered {
    const fn new() -> Self {
        Self { bytes: Vec::new(), places: Vec::new() }
    }

    fn text(&mut self, text: &[u8]) {
        self.bytes.extend_from_slice(text);
    }

    /// Appends the digits of the current number.
    fn digits(&mut self) {
        let at = self.bytes.len();
        self.places.last_mut().expect("a number was begun").push(at);
        self.bytes.extend_from_slice(&[b'0'; DIGITS]);
    }

    fn key(&mut self) {
        self.text(b"key:");
        self.digits();
    }

    fn value(&mut self) {
        self.digits();
        self.bytes.resize(self.bytes.len() + VALUE_LEN - DIGITS, b'v');
    }

    fn set(&mut self, number: usize, to: u32) {
        let mut digits = [b'0'; DIGITS];
        let mut left = to;
        for digit in digits.iter_mut().rev() {
            *digit = b'0' + u8::try_from(left % 10).expect("a digit");
            left /= 10;
        }
        for &at in &self.places[number] {
            self.bytes[at..at + DIGITS].copy_from_slice(&digits);
        }
    }
}

/// Appends a word of a RESP request: its length, and the bytes that `write` adds.
fn word(into: &mut Numbered, len: usize, write: impl FnOnce(&mut Numbered)) {
    into.text(format!("${len}\r\n").as_bytes());
    write(into);
    into.text(b"\r\n");
}

/// Appends a request and its correct reply.
fn append(kind: Kind, protocol: Protocol, request: &mut Numbered, reply: &mut Numbered) {
    let keys = if kind == Kind::Mset { MSET_KEYS } else { 1 };
    if protocol == Protocol::Redis {
        let (name, words) = match kind {
            Kind::Get => ("GET", 2),
            Kind::Set => ("SET", 3),
            Kind::Mset => ("MSET", 1 + 2 * MSET_KEYS),
        };
        request.text(format!("*{words}\r\n").as_bytes());
        word(request, name.len(), |into| into.text(name.as_bytes()));
    }
    for _ in 0..keys {
        request.places.push(Vec::new());
        reply.places.push(Vec::new());
        match (protocol, kind) {
            (Protocol::Redis, _) => {
                word(request, 4 + DIGITS, Numbered::key);
                if kind != Kind::Get {
                    word(request, VALUE_LEN, Numbered::value);
                }
            }
            (Protocol::Memcached, Kind::Get) => {
                request.text(b"get ");
                request.key();
                request.text(b"\r\n");
            }
            (Protocol::Memcached, _) => {
                request.text(b"set ");
                request.key();
                request.text(format!(" 0 0 {VALUE_LEN}\r\n").as_bytes());
                request.value();
                request.text(b"\r\n");
            }
        }
    }
    match (protocol, kind) {
        (Protocol::Redis, Kind::Get) => word(reply, VALUE_LEN, Numbered::value),
        (Protocol::Redis, _) => reply.text(b"+OK\r\n"),
        (Protocol::Memcached, Kind::Get) => {
            reply.text(b"VALUE ");
            reply.key();
            reply.text(format!(" 0 {VALUE_LEN}\r\n").as_bytes());
            reply.value();
            reply.text(b"\r\nEND\r\n");
        }
        (Protocol::Memcached, _) => reply.text(b"STORED\r\n"),
    }
}

/// Pipelined requests of one connection, and their replies.
#[derive(Clone, Debug)]
pub(super) struct Batch {
    request: Numbered,
    reply: Numbered,
    said: Vec<u8>,
}

impl Batch {
    pub(super) fn new(kind: Kind, protocol: Protocol, ahead: usize) -> Self {
        let (mut request, mut reply) = (Numbered::new(), Numbered::new());
        (0..ahead).for_each(|_| append(kind, protocol, &mut request, &mut reply));
        let said = vec![0; reply.bytes.len()];
        Self { request, reply, said }
    }

    /// Sends the batch with a number for each key.
    pub(super) fn send(&mut self, stream: &mut TcpStream, mut number: impl FnMut() -> u32) -> io::Result<()> {
        for place in 0..self.request.places.len() {
            let to = number();
            self.request.set(place, to);
            self.reply.set(place, to);
        }
        stream.write_all(&self.request.bytes)
    }

    /// Waits for the replies and returns whether they are right. An error reply is shorter than the expected
    /// one, and the rest never comes; the function then returns the server's message.
    pub(super) fn receive(&mut self, stream: &mut TcpStream) -> io::Result<bool> {
        let mut have = 0;
        while have < self.said.len() {
            match stream.read(&mut self.said[have..]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(len) => have += len,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
            if have < self.said.len() && self.said[..have] != self.reply.bytes[..have] {
                return Err(io::Error::other(format!("a wrong reply: {}", self.wrong_line(have))));
            }
        }
        Ok(self.said == self.reply.bytes)
    }

    /// Returns the line in which the first `have` bytes differ from the expectation.
    fn wrong_line(&self, have: usize) -> String {
        let said = &self.said[..have];
        let at = said.iter().zip(&self.reply.bytes).take_while(|(said, right)| said == right).count();
        let from = said[..at].iter().rposition(|&byte| byte == b'\n').map_or(0, |end| end + 1);
        let line = said[from..].split(|&byte| byte == b'\n').next().unwrap_or_default();
        String::from_utf8_lossy(&line[..line.len().min(200)]).trim_end().to_owned()
    }

    /// Returns the beginning of a wrong reply.
    pub(super) fn said(&self) -> String {
        String::from_utf8_lossy(&self.said[..self.said.len().min(200)]).into_owned()
    }
}

/// Inserts all keys.
pub(super) fn fill(stream: &mut TcpStream, protocol: Protocol, keys: u32) -> io::Result<()> {
    let mut batch = Batch::new(Kind::Set, protocol, TOGETHER as usize);
    for first in (0..keys).step_by(TOGETHER as usize) {
        let mut next = first;
        // The last numbers may repeat.
        batch.send(stream, || {
            next += 1;
            (next - 1).min(keys - 1)
        })?;
        if !batch.receive(stream)? {
            return Err(io::Error::other(batch.said()));
        }
    }
    Ok(())
}

/// Overwrites as many random values as there are keys.
pub(super) fn write_over(
    stream: &mut TcpStream,
    protocol: Protocol,
    keys: u32,
    rng: &mut Rng,
) -> io::Result<()> {
    let mut batch = Batch::new(Kind::Set, protocol, TOGETHER as usize);
    for _ in 0..keys.div_ceil(TOGETHER) {
        batch.send(stream, || any(rng, keys))?;
        if !batch.receive(stream)? {
            return Err(io::Error::other(batch.said()));
        }
    }
    Ok(())
}

/// Returns a random number below `keys`.
pub(super) fn any(rng: &mut Rng, keys: u32) -> u32 {
    rng.below(keys)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    /// Each request and its reply are right to the byte, with the numbers in each place.
    #[test]
    fn requests_have_their_numbers() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut here = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut there, _) = listener.accept().unwrap();
        let value = format!("{:012}{}", 7, "v".repeat(VALUE_LEN - DIGITS));
        for (kind, protocol, asked, told) in [
            (
                Kind::Get,
                Protocol::Redis,
                "*2\r\n$3\r\nGET\r\n$16\r\nkey:000000000007\r\n".to_owned(),
                format!("$1000\r\n{value}\r\n"),
            ),
            (
                Kind::Set,
                Protocol::Redis,
                format!("*3\r\n$3\r\nSET\r\n$16\r\nkey:000000000007\r\n$1000\r\n{value}\r\n"),
                "+OK\r\n".to_owned(),
            ),
            (
                Kind::Get,
                Protocol::Memcached,
                "get key:000000000007\r\n".to_owned(),
                format!("VALUE key:000000000007 0 1000\r\n{value}\r\nEND\r\n"),
            ),
            (
                Kind::Set,
                Protocol::Memcached,
                format!("set key:000000000007 0 0 1000\r\n{value}\r\n"),
                "STORED\r\n".to_owned(),
            ),
        ] {
            let mut batch = Batch::new(kind, protocol, 2);
            batch.send(&mut here, || 7).unwrap();
            let mut said = vec![0; 2 * asked.len()];
            there.read_exact(&mut said).unwrap();
            assert_eq!(String::from_utf8(said).unwrap(), asked.repeat(2));
            there.write_all(told.repeat(2).as_bytes()).unwrap();
            assert!(batch.receive(&mut here).unwrap(), "{kind:?} {protocol:?}: {}", batch.said());
            batch.send(&mut here, || 7).unwrap();
            there.read_exact(&mut vec![0; 2 * asked.len()]).unwrap();
            let wrong = told
                .repeat(2)
                .replace("000000000007", "000000000008")
                .replace("OK", "NO")
                .replace("STORED", "EXISTS");
            there.write_all(wrong.as_bytes()).unwrap();
            assert!(!batch.receive(&mut here).unwrap(), "{kind:?} {protocol:?}");
        }
        // A full server reports an error after a right reply, and nothing follows.
        let mut batch = Batch::new(Kind::Get, Protocol::Redis, 2);
        batch.send(&mut here, || 7).unwrap();
        there.write_all(format!("$1000\r\n{value}\r\n-OOM no room\r\n").as_bytes()).unwrap();
        let error = batch.receive(&mut here).unwrap_err().to_string();
        assert_eq!(error, "a wrong reply: -OOM no room");
    }
}
