//! Fuzz target of the wire formats. No bytes make a parser panic, and emitting a parsed value reproduces its
//! bytes.

use crate::Run;
use farmem_wire::headers::view;
use farmem_wire::message::{
    DirectoryMessage, FileMessage, Lead, MoveMessage, PageMessage, SoftMessage, Updates,
};
use farmem_wire::{
    Body, Extension, Gid, KeyedFrame, Message, Packet, Psn, Qkey, Qpn, Reth, Rkey, VirtAddr, bth, icrc,
};

/// Reads `data` as a frame, as a message and as a packet with ICRC.
///
/// # Panics
/// Panics when parse and emit, view and value, or seal and check disagree about the bytes.
pub fn wire_parse(data: &[u8], run: &mut Run) {
    run.cases += 1;
    if let Ok(packet) = Packet::parse(data) {
        emits_what_it_read(&packet, data);
        views_agree(&packet, data);
        message(packet.payload);
    }
    message(data);
    keyed(data);
    rewrite(data);
    icrc(data);
}

fn emits_what_it_read(packet: &Packet<'_>, frame: &[u8]) {
    let mut expected = frame.to_vec();
    // Receivers ignore these fields: MigReq, the congestion byte and an ACK's credits (PROTOCOL 2.2, 2.5).
    // The expected bytes have the values that farmem sends.
    expected[1] |= 0x40;
    expected[4] = 0;
    if let Extension::Aeth(aeth) | Extension::AtomicAck(aeth, _) = packet.ext {
        expected[bth::LEN] = aeth.syndrome.bits();
    }
    let mut emitted = Vec::new();
    packet.emit(&mut emitted);
    assert_eq!(emitted, expected);
}

fn views_agree(packet: &Packet<'_>, frame: &[u8]) {
    let head = bth::View::new_checked(frame).expect("a parsed frame has a good BTH");
    let value = &packet.bth;
    assert_eq!(head.opcode(), Ok(value.opcode));
    assert_eq!((head.solicited(), head.ack_req()), (value.solicited, value.ack_req));
    assert_eq!((head.dest_qp(), head.psn()), (value.dest_qp, value.psn));
    let after = head.after();
    match packet.ext {
        Extension::Reth(reth) | Extension::RethImm(reth, _) => {
            let view = view::Reth::new_checked(after).expect("a parsed RETH is a good view");
            assert_eq!(Reth { va: view.va(), rkey: view.rkey(), dma_len: view.dma_len() }, reth);
        }
        Extension::AtomicEth(atomic) => {
            let view = view::AtomicEth::new_checked(after).expect("a parsed AtomicETH is a good view");
            assert_eq!((view.va(), view.rkey()), (atomic.va, atomic.rkey));
            assert_eq!((view.swap_or_add(), view.compare()), (atomic.swap_or_add, atomic.compare));
        }
        Extension::Aeth(aeth) | Extension::AtomicAck(aeth, _) => {
            let view = view::Aeth::new_checked(after).expect("a parsed AETH is a good view");
            assert_eq!((view.syndrome(), view.msn()), (Ok(aeth.syndrome), aeth.msn));
        }
        Extension::Deth(deth) | Extension::DethImm(deth, _) => {
            let view = view::Deth::new_checked(after).expect("a parsed DETH is a good view");
            assert_eq!((view.qkey(), view.src_qp()), (deth.qkey, deth.src_qp));
        }
        Extension::None | Extension::Imm(_) => {}
    }
}

/// Checks a READ REQUEST with a temporary header (PROTOCOL 15.11). Only the BTH has ignored bits, and
/// emitting reproduces the frame. Endpoints reject such a frame.
fn keyed(frame: &[u8]) {
    let Ok(found) = KeyedFrame::parse(frame) else { return };
    assert!(KeyedFrame::is(frame) && Packet::parse(frame).is_err());
    let mut emitted = Vec::new();
    KeyedFrame::emit(found.read, &found.keyed, &mut emitted);
    assert_eq!(emitted, frame);
    let read = Packet::parse(found.read).expect("what is left of it is a READ REQUEST");
    assert_eq!((read.bth, read.ext), (found.bth, Extension::Reth(found.reth)));
}

/// Checks messages of kinds without ignored bits: emitting one reproduces its payload.
macro_rules! check_round_trips {
    ($payload:ident: $($kind:ident),+) => {
        $(if let Ok(message) = $kind::parse($payload) {
            assert!($kind::is($payload));
            let mut emitted = Vec::new();
            message.emit(&mut emitted);
            assert_eq!((&emitted[..], message.len()), ($payload, $payload.len()));
        })+
    };
}

/// Checks that emitting a message reproduces it byte for byte, because a message has no ignored bits.
fn message(payload: &[u8]) {
    check_round_trips!(payload: PageMessage, DirectoryMessage, MoveMessage, SoftMessage, FileMessage);
    lead(payload);
    let Ok(message) = Message::parse(payload) else { return };
    let mut emitted = Vec::new();
    message.emit(&mut emitted);
    assert_eq!(emitted, payload);
    assert_eq!(message.len(), payload.len());
    if let Body::Update(updates) = message.body {
        let (mut bytes, mut count) = (Vec::new(), 0);
        for update in updates.iter() {
            update.emit(&mut bytes);
            count += 1;
        }
        if !message.header.response {
            assert_eq!(
                Updates::request(updates.seq, count, &bytes),
                Ok(updates),
                "the iterator shows every update"
            );
        }
    }
}

fn lead(payload: &[u8]) {
    let Ok(lead) = Lead::parse(payload) else { return };
    let mut emitted = Vec::new();
    lead.emit(&mut emitted);
    assert!(Lead::is(payload) && Message::parse(payload).is_err(), "it is nothing else");
    assert_eq!((&emitted[..], lead.len()), (payload, payload.len()));
}

/// Calls every setter of every view that accepts the bytes. No setter panics, and each value can be read
/// back.
fn rewrite(data: &[u8]) {
    let mut frame = data.to_vec();
    let Ok(mut head) = bth::View::new_checked(&mut frame[..]) else { return };
    let (qpn, psn, va, rkey) = (Qpn::new(0x0055_aa55), Psn::new(0x00aa_55aa), VirtAddr(0x1234), Rkey(0x5678));
    head.set_dest_qp(qpn);
    head.set_psn(psn);
    assert_eq!((head.dest_qp(), head.psn()), (qpn, psn));
    let _ = (head.opcode(), head.pad());
    let after = head.after_mut();
    if let Ok(mut view) = view::Deth::new_checked(&mut *after) {
        view.set_qkey(Qkey(9));
        view.set_src_qp(qpn);
        assert_eq!((view.qkey(), view.src_qp()), (Qkey(9), qpn));
    }
    if let Ok(mut view) = view::Aeth::new_checked(&mut *after) {
        view.set_msn(psn);
        assert_eq!(view.msn(), psn);
        let _ = view.syndrome();
    }
    if let Ok(mut view) = view::AtomicEth::new_checked(&mut *after) {
        view.set_va(va);
        view.set_rkey(rkey);
        view.set_swap_or_add(1);
        view.set_compare(2);
        assert_eq!((view.va(), view.rkey(), view.swap_or_add(), view.compare()), (va, rkey, 1, 2));
    }
    if let Ok(mut view) = view::Reth::new_checked(after) {
        view.set_va(va);
        view.set_rkey(rkey);
        view.set_dma_len(64);
        assert_eq!((view.va(), view.rkey(), view.dma_len()), (va, rkey, 64));
    }
}

fn icrc(data: &[u8]) {
    let (src, dst) = (Gid::from_v4([10, 0, 0, 1]), Gid::from_v4([10, 0, 0, 2]));
    let route = icrc::Route { src, dst, src_port: 0xc000, ip_id: 0 };
    if let Ok(frame) = icrc::check(&route, data) {
        assert_eq!(frame, &data[..data.len() - icrc::LEN]);
    }
    if let Ok((frame, ip_id)) = icrc::check_any_id(&route, data) {
        let found = icrc::Route { ip_id, ..route };
        assert_eq!(
            icrc::check(&found, data),
            Ok(frame),
            "the identification that was solved for is the right one"
        );
    }
    if (bth::LEN..=icrc::FRAME_LEN_MAX).contains(&data.len()) {
        let sent = icrc::Route { ip_id: 0x1234, ..route };
        let mut sealed = data.to_vec();
        icrc::seal(&sent, &mut sealed, 0);
        assert_eq!(icrc::check(&sent, &sealed), Ok(data));
        assert_eq!(icrc::check_any_id(&route, &sealed), Ok((data, 0x1234)));
        assert!(icrc::check(&route, &sealed).is_err(), "another identification is another packet");
    }
}
