//! The operations of a connection's client, and the answers that the model predicts.

use farmem_machine::Rng;
use farmem_transport::rc::{Completion, Failure, Work};
use farmem_wire::{Pmtu, VirtAddr};
use std::collections::BTreeMap;

/// First address of the far memory of a pair.
pub(super) const BASE: u64 = 0x0000_1000_0000_0000;
/// Its length in bytes: small, so that operations overlap.
pub(super) const LEN: usize = 32 * 1024;
/// Number of its bytes that are writable.
pub(super) const WRITABLE: usize = LEN - 4096;

/// The expected result.
#[derive(Debug)]
enum Expected {
    /// Exactly these bytes, however often the READ was repeated (PROTOCOL 4.16).
    Read(Vec<u8>),
    /// Success without a value.
    Write,
    /// The old value.
    Atomic(u64),
    /// This failure.
    Refused(Failure),
}

/// A client: generates operations from a seed, and checks their results.
#[derive(Debug)]
pub(super) struct Client {
    rng: Rng,
    pmtu: usize,
    model: Vec<u8>,
    outstanding: BTreeMap<u64, Expected>,
    posted: u64,
    ended: u64,
}

impl Client {
    pub(super) fn new(rng: Rng, pmtu: Pmtu) -> Self {
        Self {
            rng,
            pmtu: pmtu.bytes(),
            model: vec![0; LEN],
            outstanding: BTreeMap::new(),
            posted: 0,
            ended: 0,
        }
    }

    pub(super) const fn posted(&self) -> u64 {
        self.posted
    }

    pub(super) const fn ended(&self) -> u64 {
        self.ended
    }

    pub(super) fn outstanding(&self) -> usize {
        self.outstanding.len()
    }

    pub(super) fn model(&self) -> &[u8] {
        &self.model
    }

    /// Returns the next operation and its id.
    pub(super) fn next(&mut self) -> (u64, Work) {
        let (work, expected) = match self.rng.below(20) {
            0..=6 => self.read(),
            7..=13 => self.write(),
            14..=16 => self.cmp_swap(),
            _ => self.fetch_add(),
        };
        (self.post(expected), work)
    }

    /// Returns an operation that must be refused and break the connection.
    pub(super) fn bad(&mut self) -> (u64, Work) {
        let past = VirtAddr(BASE + LEN as u64);
        let (work, failure) = match self.rng.below(5) {
            0 => (Work::Read { addr: past, buf: vec![0; 8] }, Failure::RemoteAccess),
            1 => (Work::Read { addr: VirtAddr(past.0 - 8), buf: vec![0; 16] }, Failure::RemoteAccess),
            2 => (Work::Write { addr: VirtAddr(past.0 - 8), buf: vec![1; 8] }, Failure::RemoteAccess),
            3 => (Work::FetchAdd { addr: VirtAddr(past.0 - 8), add: 1 }, Failure::RemoteAccess),
            _ => (Work::FetchAdd { addr: VirtAddr(BASE + 4), add: 1 }, Failure::InvalidRequest),
        };
        (self.post(Expected::Refused(failure)), work)
    }

    /// Returns an operation behind a bad one: it must be flushed, and not executed.
    pub(super) fn flushed(&mut self) -> (u64, Work) {
        let work = match self.rng.below(3) {
            0 => Work::Read { addr: VirtAddr(BASE), buf: vec![0; 64] },
            1 => Work::Write { addr: VirtAddr(BASE), buf: vec![0xee; 64] },
            _ => Work::FetchAdd { addr: VirtAddr(BASE), add: 1 },
        };
        (self.post(Expected::Refused(Failure::Flushed)), work)
    }

    /// Checks the result of an operation.
    pub(super) fn end(&mut self, completion: &Completion) -> Result<(), String> {
        let id = completion.id;
        let Some(expected) = self.outstanding.remove(&id) else {
            return Err(format!("operation {id} ended, but it was not outstanding"));
        };
        self.ended += 1;
        match (expected, completion.result) {
            (Expected::Read(bytes), Ok(_)) => check_read(id, &bytes, completion.work.buf()),
            (Expected::Write, Ok(_)) => Ok(()),
            (Expected::Atomic(old), Ok(got)) if got == old => Ok(()),
            (Expected::Refused(failure), Err(got)) if got == failure => Ok(()),
            (expected, got) => Err(format!("operation {id}: {got:?}, but the model says {expected:?}")),
        }
    }

    fn post(&mut self, expected: Expected) -> u64 {
        let id = self.posted;
        self.posted += 1;
        self.outstanding.insert(id, expected);
        id
    }

    fn read(&mut self) -> (Work, Expected) {
        let len = self.size();
        let at = self.rng.below(u32::try_from(LEN - len).expect("small")) as usize;
        let bytes = self.model[at..at + len].to_vec();
        let work = Work::Read { addr: addr(at), buf: vec![0xa5; len] };
        (work, Expected::Read(bytes))
    }

    fn write(&mut self) -> (Work, Expected) {
        let len = self.size();
        let at = self.rng.below(u32::try_from(WRITABLE - len).expect("small")) as usize;
        let buf = noise(&mut self.rng, len);
        self.store(at, &buf);
        (Work::Write { addr: addr(at), buf }, Expected::Write)
    }

    fn cmp_swap(&mut self) -> (Work, Expected) {
        let at = self.word();
        let old = self.load(at);
        let compare = if self.rng.chance(2, 3) { old } else { self.rng.next_u64() };
        let swap = self.rng.next_u64();
        if compare == old {
            self.store(at, &swap.to_le_bytes());
        }
        (Work::CmpSwap { addr: addr(at), compare, swap }, Expected::Atomic(old))
    }

    fn fetch_add(&mut self) -> (Work, Expected) {
        let at = self.word();
        let (old, add) = (self.load(at), self.rng.next_u64());
        self.store(at, &old.wrapping_add(add).to_le_bytes());
        (Work::FetchAdd { addr: addr(at), add }, Expected::Atomic(old))
    }

    /// Returns a relevant length: zero, about a word, up to a packet, whole packets, up to four packets.
    fn size(&mut self) -> usize {
        let pmtu = u32::try_from(self.pmtu).expect("small");
        let len = match self.rng.below(20) {
            0 => 0,
            1..=8 => 1 + self.rng.below(64),
            9..=13 => 1 + self.rng.below(pmtu),
            14..=15 => pmtu * (1 + self.rng.below(4)),
            _ => 1 + self.rng.below(4 * pmtu),
        };
        len as usize
    }

    /// Returns a writable word; one in two is among the first eight, so that atomics overlap.
    fn word(&mut self) -> usize {
        let words = if self.rng.chance(1, 2) { 8 } else { u32::try_from(WRITABLE / 8).expect("small") };
        self.rng.below(words) as usize * 8
    }

    fn load(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.model[at..at + 8].try_into().expect("eight bytes"))
    }

    fn store(&mut self, at: usize, data: &[u8]) {
        self.model[at..at + data.len()].copy_from_slice(data);
    }
}

/// Returns `len` random bytes.
pub(crate) fn noise(rng: &mut Rng, len: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..len.div_ceil(8)).flat_map(|_| rng.next_u64().to_le_bytes()).collect();
    bytes.truncate(len);
    bytes
}

fn addr(at: usize) -> VirtAddr {
    VirtAddr(BASE + at as u64)
}

fn check_read(id: u64, want: &[u8], got: &[u8]) -> Result<(), String> {
    if want.len() != got.len() {
        return Err(format!("read {id}: {} bytes instead of {}", got.len(), want.len()));
    }
    match want.iter().zip(got).position(|(want, got)| want != got) {
        Some(at) => Err(format!("read {id}: byte {at} is {:#04x} instead of {:#04x}", got[at], want[at])),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::{BASE, Client, check_read};
    use farmem_machine::Rng;
    use farmem_transport::rc::{Completion, Work};
    use farmem_wire::Pmtu;

    /// The checker must be able to fail: one wrong byte, one byte too few.
    #[test]
    fn a_wrong_read_is_found() {
        assert_eq!(check_read(1, &[1, 2, 3, 4], &[1, 2, 3, 4]), Ok(()));
        assert!(check_read(1, &[1, 2, 3, 4], &[1, 2, 3, 5]).is_err());
        assert!(check_read(1, &[1, 2, 3, 4], &[1, 2, 3]).is_err());
    }

    /// An operation that ends twice, and an atomic that executed twice, are detected.
    #[test]
    fn a_doubled_operation_is_found() {
        let mut client = Client::new(Rng::from_number(1), Pmtu::B256);
        let (id, work) = std::iter::repeat_with(|| client.next())
            .find(|(_, work)| matches!(work, Work::FetchAdd { .. }))
            .expect("one in ten");
        let Work::FetchAdd { addr, add } = work.clone() else { unreachable!() };
        assert!(addr.0 >= BASE && add != 0);
        let end = |result| Completion { id, result: Ok(result), work: work.clone() };
        let old = client.load(usize::try_from(addr.0 - BASE).expect("small")).wrapping_sub(add);
        assert!(client.end(&end(old.wrapping_add(add))).is_err(), "the atomic found its own addition");
        assert!(client.end(&end(old)).is_err(), "it ended already");
    }
}
