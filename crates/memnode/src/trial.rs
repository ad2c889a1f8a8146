//! A trial run of a node on its actual store, which a driver times to choose [`Budget::burst`].
//!
//! The benefit of prefetching many workspaces together depends on the processor and on the work between two
//! lines. It shows only in memory that no cache holds. So a trial is a whole node, from requests to answers.
//! Nothing here reads a clock: a trial is a number of requests, and its caller measures the time.

use crate::node::{Budget, Config, MemNode, Outbox};
use crate::programs::{Compile, Now};
use crate::store::Store;
use alloc::format;
use alloc::vec::Vec;
use farmem_machine::{Event, Instant, Machine as _, Port};
use farmem_transport::ud;
use farmem_traversal::Program;
use farmem_wire::message::{Traverse, Update, Updates};
use farmem_wire::{
    Body, Bth, Deth, Domain, Extension, Gid, Header, HostId, Message, Opcode, Packet, Perm, Pmtu, Psn, Qkey,
    Qpn, RequestId, VirtAddr,
};

const BASE: u64 = 1 << 30;
const LINE: u64 = farmem_traversal::LINE_LEN as u64;
const DOMAIN: Domain = Domain(1);
const HOST: HostId = HostId(1);
const ENDPOINT: ud::Endpoint = ud::Endpoint { qpn: Qpn::new(0x500), qkey: Qkey(1) };
/// Number of requests of a trial.
const REQUESTS: u32 = 8192;
/// Number of requests that arrive at once, as from a link.
const AT_ONCE: usize = 64;
/// Most hops of a request. The hop counts are equally distributed.
const HOPS_MAX: u32 = 4;

/// Requests that hop pseudo-randomly between the lines of a store's first bytes.
#[derive(Debug)]
pub struct Trial {
    len: u64,
    frames: Vec<Vec<u8>>,
}

impl Trial {
    /// Creates a trial over the first `len` bytes of a store, which are zero.
    ///
    /// # Panics
    /// If `len` is not a power of two between 64 bytes and 256 MiB.
    #[must_use]
    pub fn new(len: u64) -> Self {
        assert!(len.is_power_of_two() && (LINE..=1 << 28).contains(&len), "a trial of {len} bytes");
        // The generator's next number comes from the address and from the zero in the line, so that the load
        // is waited for.
        let program = Program::assemble(&format!(
            ".window 8\n.scratch 8\n mov r2, r1\n shr r2, 6\n mul r2, 1664525\n add r2, 1013904223\n ld8 r3, window[0]\n\
             add r2, r3\n and r2, {}\n shl r2, 6\n add r2, {BASE}\n ld8 r4, scratch[0]\n sub r4, 1\n st8 scratch[0], r4\n\
             jeq r4, 0, done\n next r2\n done: ret",
            len / LINE - 1
        ))
        .expect("assembles");
        let frame = |n: u32| {
            // The upper bits of the generator's numbers are random enough.
            let chance = u64::from(n).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let hops = (chance >> 40) % u64::from(HOPS_MAX) + 1;
            let traverse = Traverse {
                program: program.hash(),
                cur_ptr: VirtAddr(BASE + (chance >> 20) % (len / LINE) * LINE),
                iterations: 0,
                limit: HOPS_MAX,
                scratch: &hops.to_le_bytes(),
                code: if n == 0 { program.encoded() } else { &[] },
            };
            let header =
                Header { domain: DOMAIN, origin: HOST, ..Header::request(RequestId::new(HOST, 1, n), 1) };
            datagram(&Message { header, body: Body::Traverse(traverse) })
        };
        Self { len, frames: (0..REQUESTS).map(frame).collect() }
    }

    /// Serves all requests, with windows prefetched `burst` at a time. Returns the store and the number of
    /// hops.
    ///
    /// # Panics
    /// If the bytes are not in the store, or `burst` is 0.
    pub fn run<S: Store, C: Compile>(&self, store: S, compile: C, burst: usize) -> (S, u64) {
        let control = ud::Peer { port: Port::CONTROL, endpoint: ENDPOINT };
        let home = ud::RoleEndpoints { endpoint: ENDPOINT, control };
        let config = Config { home, pmtu: Pmtu::B4096, budget: Budget { burst, ..Budget::default() } };
        let mut node = MemNode::compiling(config, store, Now(compile));
        let mut out = Outbox::new();
        let (port, updates) = (Port::CONTROL, self.updates());
        node.handle(Instant::ZERO, Event::Frame { port, bytes: &updates }, &mut out);
        for frames in self.frames.chunks(AT_ONCE) {
            for bytes in frames {
                node.handle(Instant::ZERO, Event::Frame { port: Port::SWITCH, bytes }, &mut out);
            }
            while node.next_wake().is_some() {
                node.handle(Instant::ZERO, Event::Wake, &mut out);
            }
            out.drain(|_| {});
        }
        let hops = node.stats().iterations;
        (node.into_store(), hops)
    }

    /// Returns the updates for the host and its grant.
    fn updates(&self) -> Vec<u8> {
        let (base, len) = (VirtAddr(BASE), self.len);
        let peer = Update::Peer {
            port: Port::host(HOST.0).0,
            gid: Gid::default(),
            qpn: ENDPOINT.qpn,
            qkey: ENDPOINT.qkey,
        };
        let updates = [
            peer,
            Update::Range { base, len, offset: 0 },
            Update::Protect { domain: DOMAIN, base, len, perm: Perm::Read, vma_log2: 64 },
        ];
        let mut rows = Vec::new();
        updates.iter().for_each(|update| update.emit(&mut rows));
        let batch = Updates::request(1, 3, &rows).expect("three updates fit");
        datagram(&Message { header: Header::request(RequestId(1), 0), body: Body::Update(batch) })
    }
}

fn datagram(message: &Message<'_>) -> Vec<u8> {
    let bth = Bth::new(Opcode::UdSendOnly, ENDPOINT.qpn, Psn::new(0));
    let ext = Extension::Deth(Deth { qkey: ENDPOINT.qkey, src_qp: ENDPOINT.qpn });
    let mut frame = Vec::new();
    Packet::emit_with(&bth, &ext, message.len(), &mut frame, |bytes| message.emit(bytes));
    frame
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Interpreted, VecStore, WORKSPACES};

    /// Whatever the burst, the number of hops is the same and the store is unchanged.
    #[test]
    fn a_trial_is_a_number_of_hops() {
        let trial = Trial::new(1 << 16);
        let mut done = [1, 3, 16, WORKSPACES + 1].map(|burst| {
            let (store, hops) = trial.run(VecStore::new(1 << 16), Interpreted, burst);
            assert_eq!(store, VecStore::new(1 << 16));
            hops
        });
        done.sort_unstable();
        assert_eq!(done[0], done[3]);
        let mean = done[0] as f64 / f64::from(REQUESTS);
        assert!((2.4..2.6).contains(&mean), "{mean} hops of a request");
    }
}
