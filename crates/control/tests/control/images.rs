//! What a switch says of an image, late and wrong (PROTOCOL 13.8). Faults of the network and restarts are in `crates/sim/tests/images.rs`.

use crate::rack::{Rack, text};
use farmem_control::api::{Base64, ErrorCode, JoinSwitch, OpenSession, SoftLoad, SoftLoaded, SoftSection};
use farmem_machine::{Event, Port};
use farmem_transport::ud::Endpoint;
use farmem_wire::message::{Load, Shown, SoftBody, SoftMessage, Verdict};
use farmem_wire::{Bth, Deth, Extension, Opcode, Packet, Psn, Qkey, Qpn, RequestId};

/// The control plane of a rack whose switch takes updates, and says of images what a test has it say.
struct Bench {
    rack: Rack,
    domain: u32,
    control: Endpoint,
}

impl Bench {
    fn new() -> Self {
        let mut rack = Rack::new(130);
        let joined = rack.call(JoinSwitch { gid: text(2) }).unwrap();
        rack.join_host(1);
        let domain = rack.domain("web");
        rack.call(OpenSession { host: 1, domain }).unwrap();
        let control = Endpoint { qpn: Qpn::new(joined.control.qpn), qkey: Qkey(joined.control.qkey) };
        Self { rack, domain, control }
    }

    /// Publishes a section of so many bytes, and lets the switch say that it has nothing: the request, and the first Load's token, epoch and length.
    fn publish(&mut self, len: usize) -> (u64, RequestId, u64, u32) {
        let bytes = Base64(vec![7; len]);
        let sections = vec![SoftSection { kind: 1, id: 1, bytes }];
        let load = SoftLoad { host: 1, domain: self.domain, sections, switch: None };
        let ticket = self.rack.ask(load);
        let (show, _) = self.asked(|body| matches!(body, SoftBody::Show));
        self.say(show, SoftBody::Shown(Shown::default()));
        let (token, part) = self.asked(|body| matches!(body, SoftBody::Load(_)));
        let SoftBody::Load(Load { epoch, len, .. }) = SoftMessage::parse(&part).unwrap().body else {
            unreachable!("a Load")
        };
        (ticket, token, epoch, len)
    }

    /// The next message of this kind that comes to the switch, and its token.
    fn asked(&mut self, is_meant: impl Fn(&SoftBody<'_>) -> bool) -> (RequestId, Vec<u8>) {
        loop {
            let peer = self.rack.peers.get_mut(&Port::SWITCH).expect("it has joined");
            for bytes in std::mem::take(&mut peer.soft) {
                let SoftMessage { token, body } = SoftMessage::parse(&bytes).unwrap();
                if is_meant(&body) {
                    return (token, bytes);
                }
            }
            assert!(self.rack.step(), "the control plane says something");
        }
    }

    fn say(&mut self, token: RequestId, body: SoftBody<'_>) {
        let mut payload = Vec::new();
        SoftMessage { token, body }.emit(&mut payload);
        let Endpoint { qpn, qkey } = self.control;
        let ext = Extension::Deth(Deth { qkey, src_qp: Qpn::new(1) });
        let mut frame = Vec::new();
        Packet { bth: Bth::new(Opcode::UdSendOnly, qpn, Psn::new(0)), ext, payload: &payload }
            .emit(&mut frame);
        self.rack.event(Event::Frame { port: Port::SWITCH, bytes: &frame });
    }

    /// The switch takes the image whose first part it was sent, and has it stand.
    fn stands(&mut self, token: RequestId, epoch: u64, len: u32) {
        self.say(token, SoftBody::Loaded { epoch, next: len });
        let (flip, _) = self.asked(|body| matches!(body, SoftBody::Flip(_)));
        self.say(flip, SoftBody::Flipped { epoch, verdict: Verdict::Stands });
    }
}

/// An image is too long, and the answer is on its way when the control plane starts again. The next image gets the same epoch, since the switch has
/// nothing of either: what comes then is not about it, and the room that it names does not count.
#[test]
fn an_answer_to_an_earlier_control_plane_is_none_to_this() {
    let mut bench = Bench::new();
    let (_, token, epoch, len) = bench.publish(2000);
    let late = (token, SoftBody::Flipped { epoch, verdict: Verdict::TooLong(len - 1) });
    bench.rack.restart();
    let (ticket, token, again, next) = bench.publish(3000);
    assert_eq!(again, epoch, "two images, one epoch");
    bench.say(late.0, late.1);
    assert_eq!(bench.rack.answer(ticket), None, "nobody said anything of this image");
    bench.say(late.0, SoftBody::Loaded { epoch, next });
    assert_eq!(bench.rack.answer(ticket), None);
    bench.stands(token, epoch, next);
    assert_eq!(bench.rack.answer(ticket), Some(&Ok(SoftLoaded { epoch }.into())));
}

/// A switch that has room for an image and says that it is too long is not believed; one that has a byte less is.
#[test]
fn what_has_room_is_not_too_long() {
    let mut bench = Bench::new();
    let (ticket, token, epoch, len) = bench.publish(100);
    for most in [len, len + 154] {
        bench.say(token, SoftBody::Flipped { epoch, verdict: Verdict::TooLong(most) });
        assert_eq!(bench.rack.answer(ticket), None, "{len} bytes have room in {most}");
    }
    bench.say(token, SoftBody::Flipped { epoch, verdict: Verdict::TooLong(len - 1) });
    let refused = bench.rack.answer(ticket).expect("it is answered").as_ref().expect_err("it is refused");
    assert_eq!(refused.code, ErrorCode::TableFull);
    assert!(refused.message.contains(&format!("room for one of {}", len - 1)), "{}", refused.message);
}
