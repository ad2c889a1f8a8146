//! RoCEv2 frames and farmem messages, built by hand from docs/protocol.md, sections 2 and 3: the frames that
//! any process with a socket can send.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};

/// xorshift64 generator, which produces the same sequence each time.
pub(crate) struct Chance(pub(crate) u64);

impl Chance {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Returns a number below `bound`.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % bound as u64).expect("it is below a usize")
    }

    pub(crate) fn word(&mut self) -> u32 {
        u32::try_from(self.next() >> 32).expect("it has 32 bits")
    }

    pub(crate) fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next().to_le_bytes()[0]).collect()
    }

    pub(crate) fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }
}

/// Returns a frame: BTH, the following bytes, and the pad (PROTOCOL 2.2, 2.6).
pub(crate) fn frame(opcode: u8, qpn: u32, psn: u32, rest: &[u8], payload: &[u8]) -> Vec<u8> {
    let pad = (4 - payload.len() % 4) % 4;
    let mut frame = vec![opcode, 0x40 | pad.to_le_bytes()[0] << 4, 0xff, 0xff];
    frame.extend((qpn & 0xff_ffff).to_be_bytes());
    frame.extend((0x8000_0000 | psn & 0xff_ffff).to_be_bytes());
    frame.extend_from_slice(rest);
    frame.extend_from_slice(payload);
    frame.resize(frame.len() + pad, 0);
    frame
}

/// Returns an RETH (PROTOCOL 2.4).
pub(crate) fn reth(addr: u64, rkey: u32, len: u32) -> Vec<u8> {
    [&addr.to_be_bytes()[..], &rkey.to_be_bytes(), &len.to_be_bytes()].concat()
}

/// Returns an AtomicETH (PROTOCOL 2.4).
pub(crate) fn atomic(addr: u64, rkey: u32, swap_or_add: u64, compare: u64) -> Vec<u8> {
    [&addr.to_be_bytes()[..], &rkey.to_be_bytes(), &swap_or_add.to_be_bytes(), &compare.to_be_bytes()]
        .concat()
}

/// Returns a datagram with a message (PROTOCOL 2.4, 3.2). The header may name any domain and origin.
pub(crate) fn message(
    to: (u32, u32),
    kind: u8,
    response: bool,
    domain: u32,
    request: u64,
    origin: u16,
    body: &[u8],
) -> Vec<u8> {
    let (qpn, qkey) = to;
    let mut payload = vec![1, kind, 0, u8::from(response)];
    payload.extend(domain.to_be_bytes());
    payload.extend(request.to_be_bytes());
    payload.extend(origin.to_be_bytes());
    payload.extend([64, 0, 0, 0, 0, 0]);
    payload.extend_from_slice(body);
    frame(0x64, qpn, 0, &[&qkey.to_be_bytes()[..], &[0, 0, 0, 77]].concat(), &payload)
}

/// Socket at an address of the rack's network. Other sockets may use the same address with another port.
pub(crate) struct Stranger {
    socket: UdpSocket,
    from: SocketAddr,
}

impl Stranger {
    pub(crate) fn new(address: Ipv4Addr, port: u16) -> Self {
        let socket = UdpSocket::bind((address, port)).expect("the address is in our subnet");
        let from = socket.local_addr().expect("it is bound");
        Self { socket, from }
    }

    pub(crate) fn address(&self) -> Ipv4Addr {
        let SocketAddr::V4(from) = self.from else { panic!("tests use IPv4") };
        *from.ip()
    }

    /// Sends these bytes unchanged.
    pub(crate) fn send(&self, to: Ipv4Addr, bytes: &[u8]) {
        // A full socket buffer drops the packet, as networks may.
        drop(self.socket.send_to(bytes, (to, farmem::UDP_PORT)));
    }

    /// Sends a frame with its ICRC, so that the receiver accepts it.
    pub(crate) fn send_sealed(&self, to: Ipv4Addr, frame: &[u8]) {
        self.send_identified(to, frame, 0);
    }

    /// Sends a frame with the ICRC of a packet with this IPv4 identification. The receiving socket cannot see
    /// the identification.
    pub(crate) fn send_identified(&self, to: Ipv4Addr, frame: &[u8], ip_id: u16) {
        let icrc = self.icrc(to, frame, ip_id);
        self.send(to, &[frame, &icrc.to_le_bytes()].concat());
    }

    /// Returns the next received datagram.
    pub(crate) fn receive(&self) -> Vec<u8> {
        let mut bytes = vec![0; 8192];
        self.socket.set_read_timeout(Some(std::time::Duration::from_secs(30))).expect("it is a socket");
        let len = self.socket.recv(&mut bytes).expect("an answer comes");
        bytes.truncate(len);
        bytes
    }

    /// Receives until nothing arrives for this time. Returns the number of bytes.
    pub(crate) fn drain(&self, silence: std::time::Duration) -> usize {
        let (mut bytes, mut received) = (vec![0; 8192], 0);
        self.socket.set_read_timeout(Some(silence)).expect("it is a socket");
        while let Ok(len) = self.socket.recv(&mut bytes) {
            received += len;
        }
        received
    }

    /// Returns the ICRC (PROTOCOL 2.7), in which fields that the network may change count as ones.
    fn icrc(&self, to: Ipv4Addr, frame: &[u8], ip_id: u16) -> u32 {
        let udp_len = u16::try_from(8 + frame.len() + 4).expect("it fits a packet");
        let mut covered = vec![0xff; 8];
        covered.extend([0x45, 0xff]);
        covered.extend((udp_len + 20).to_be_bytes());
        covered.extend(ip_id.to_be_bytes());
        covered.extend([0x40, 0, 0xff, 17, 0xff, 0xff]);
        covered.extend(self.address().octets());
        covered.extend(to.octets());
        covered.extend(self.from.port().to_be_bytes());
        covered.extend(farmem::UDP_PORT.to_be_bytes());
        covered.extend(udp_len.to_be_bytes());
        covered.extend([0xff, 0xff]);
        let bth = covered.len();
        covered.extend_from_slice(frame);
        if let Some(congestion) = covered.get_mut(bth + 4) {
            *congestion = 0xff;
        }
        !covered.iter().fold(!0, |crc, &byte| {
            (0..8).fold(crc ^ u32::from(byte), |crc, _| (crc >> 1) ^ ((crc & 1) * 0xedb8_8320))
        })
    }
}
