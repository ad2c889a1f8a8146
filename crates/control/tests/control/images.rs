//! Messages of a switch about an image, late and wrong (PROTOCOL 13.8). `crates/sim/tests/sim/images.rs` covers
//! network faults and restarts.

use crate::rack::{Rack, text};
use farmem_control::api::{
    Base64, ErrorCode, JoinIndex, JoinSwitch, OpenSession, Overview, Response, SoftClear, SoftLoad,
    SoftLoaded, SoftSection, Tier,
};
use farmem_index::ROUTES_KIND;
use farmem_machine::{Duration, Event, Port};
use farmem_transport::image::{Image, SectionKey};
use farmem_transport::ud::Endpoint;
use farmem_wire::message::{ImageId, ImageStatus, Load, Loading, SoftBody, SoftMessage, Verdict};
use farmem_wire::{Bth, Deth, Domain, Extension, Opcode, Packet, Psn, Qkey, Qpn, RequestId};

/// The control plane of a rack whose switch applies updates, and answers about images as a test orders.
struct Bench {
    rack: Rack,
    domain: u32,
    control: Endpoint,
    /// The active image at the switch.
    active: ImageId,
    /// The loading image, and the bytes that have arrived.
    loading: (Loading, Vec<u8>),
}

impl Bench {
    fn new() -> Self {
        let mut rack = Rack::new(130);
        let joined = rack.call(JoinSwitch { gid: text(2) }).unwrap();
        rack.join_host(1);
        let domain = rack.domain("web");
        rack.call(OpenSession { host: 1, domain }).unwrap();
        let control = Endpoint { qpn: Qpn::new(joined.control.qpn), qkey: Qkey(joined.control.qkey) };
        Self { rack, domain, control, active: ImageId::default(), loading: <_>::default() }
    }

    /// Publishes a section of this many bytes, and lets the switch report that it has nothing. Returns the
    /// request, and the first Load's token, epoch and length.
    fn publish(&mut self, len: usize) -> (u64, RequestId, u64, u32) {
        let bytes = Base64(vec![7; len]);
        let sections = vec![SoftSection { kind: 1, id: 1, bytes }];
        let load = SoftLoad { host: 1, domain: self.domain, sections, switch: None };
        let ticket = self.rack.ask(load);
        let (show, _) = self.asked(|body| matches!(body, SoftBody::Show));
        self.say(show, SoftBody::Shown(self.shown()));
        let (token, part) = self.asked(|body| matches!(body, SoftBody::Load(_)));
        let SoftBody::Load(Load { epoch, len, .. }) = SoftMessage::parse(&part).unwrap().body else {
            unreachable!("a Load")
        };
        (ticket, token, epoch, len)
    }

    /// Returns the next message of this kind that arrives at the switch, and its token.
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
        self.say_as(Port::SWITCH, token, body);
    }

    fn say_as(&mut self, port: Port, token: RequestId, body: SoftBody<'_>) {
        let mut payload = Vec::new();
        SoftMessage { token, body }.emit(&mut payload);
        let Endpoint { qpn, qkey } = self.control;
        let ext = Extension::Deth(Deth { qkey, src_qp: Qpn::new(1) });
        let mut frame = Vec::new();
        Packet { bth: Bth::new(Opcode::UdSendOnly, qpn, Psn::new(0)), ext, payload: &payload }
            .emit(&mut frame);
        self.rack.event(Event::Frame { port, bytes: &frame });
    }

    fn shown(&self) -> ImageStatus {
        ImageStatus { active: self.active, loading: self.loading.0 }
    }

    /// Lets the switch accept what it is sent and activate it, until it gets no message for a while. Returns
    /// the images that became active.
    fn activate(&mut self) -> Vec<Image> {
        let mut activated = Vec::new();
        for _ in 0..1000 {
            let peer = self.rack.peers.get_mut(&Port::SWITCH).expect("it has joined");
            let asked = std::mem::take(&mut peer.soft);
            if asked.is_empty() {
                self.rack.pass(Duration::from_millis(5));
                if self.rack.peers[&Port::SWITCH].soft.is_empty() {
                    return activated;
                }
            }
            for payload in asked {
                let SoftMessage { token, body } = SoftMessage::parse(&payload).unwrap();
                let answer = self.right(&body, &mut activated);
                self.say(token, answer);
            }
        }
        panic!("images become active again and again: {} did", activated.len());
    }

    /// Returns the correct answer of a switch (PROTOCOL 13.4 to 13.6).
    fn right(&mut self, body: &SoftBody<'_>, activated: &mut Vec<Image>) -> SoftBody<'static> {
        let (loading, come) = &mut self.loading;
        match *body {
            SoftBody::Load(Load { epoch, len, offset, bytes }) => {
                if (loading.epoch, loading.len) != (epoch, len) {
                    (*loading, *come) = (Loading { epoch, len, next: 0 }, Vec::new());
                }
                if offset == loading.next {
                    come.extend_from_slice(bytes);
                    loading.next = u32::try_from(come.len()).unwrap();
                }
                SoftBody::Loaded { epoch, next: loading.next }
            }
            SoftBody::Flip(id) if (loading.epoch, loading.next) == (id.epoch, id.len) => {
                activated.push(Image::parse(std::mem::take(come)).expect("an image"));
                (self.active, *loading) = (id, Loading::default());
                SoftBody::Flipped { epoch: id.epoch, verdict: Verdict::Active }
            }
            SoftBody::Flip(ImageId { epoch, .. }) => SoftBody::Loaded { epoch, next: 0 },
            _ => SoftBody::Shown(self.shown()),
        }
    }
}

/// An image is too long, and the answer is in flight when the control plane restarts. The next image gets the
/// same epoch, since the switch has nothing of either. The late answer is not about it, and the room that it
/// names does not count.
#[test]
fn an_answer_to_an_earlier_control_plane_is_none_to_this() {
    let mut bench = Bench::new();
    let (_, token, epoch, len) = bench.publish(2000);
    let late = (token, SoftBody::Flipped { epoch, verdict: Verdict::TooLong(len - 1) });
    bench.rack.restart();
    let (ticket, token, again, next) = bench.publish(3000);
    assert_eq!(again, epoch, "two images, one epoch");
    bench.say(late.0, late.1);
    assert_eq!(bench.rack.answer(ticket), None, "the switch has not reported on this image");
    bench.say(late.0, SoftBody::Loaded { epoch, next });
    assert_eq!(bench.rack.answer(ticket), None);
    bench.say(token, SoftBody::Loaded { epoch, next: 0 }); // and this is
    bench.rack.pass(Duration::from_millis(200)); // the parts that `publish` looked at are sent again
    assert_eq!(bench.activate().iter().map(Image::len).collect::<Vec<_>>(), [next]);
    assert_eq!(bench.rack.answer(ticket), Some(&Ok(SoftLoaded { epoch }.into())));
}

/// A switch that has room for an image and claims that it is too long is not believed. One that has a byte
/// less is.
#[test]
fn a_false_report_of_a_long_image_is_ignored() {
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

/// The image fills the switch's room when the core of a FatTree joins: there is no room for the routes to it.
/// The domain's sections stay, nothing more is sent, and the routes come when the domain makes room.
#[test]
fn a_full_image_has_no_room_for_ways() {
    const ROOM: u32 = 600;
    let mut bench = Bench::new();
    let (ticket, token, epoch, _) = bench.publish(1000);
    bench.say(token, SoftBody::Flipped { epoch, verdict: Verdict::TooLong(ROOM) });
    assert!(bench.rack.answer(ticket).is_some_and(Result::is_err), "now the room is known");
    let (ticket, _, _, len) = bench.publish(ROOM as usize - 32);
    assert_eq!(len, ROOM);
    bench.rack.pass(Duration::from_millis(200)); // the parts that `publish` looked at are sent again
    assert_eq!(bench.activate().iter().map(Image::len).collect::<Vec<_>>(), [ROOM]);
    assert!(bench.rack.answer(ticket).is_some_and(Result::is_ok));

    let core = JoinIndex { name: "core".into(), gid: text(30), tier: Tier::Core, below: vec!["n1".into()] };
    let joined = bench.rack.ask(core);
    assert!(bench.rack.wait(joined).is_ok());
    bench.rack.pass(Duration::from_secs(2));
    assert_eq!(bench.activate().len(), 0, "the active image is as long as it may be");

    let cleared = bench.rack.ask(SoftClear { domain: bench.domain, sections: Vec::new(), switch: None });
    let ways = SectionKey { domain: Domain(0), kind: ROUTES_KIND, id: 0 };
    let activated = bench.activate();
    assert!(bench.rack.answer(cleared).is_some_and(Result::is_ok));
    assert_eq!(activated.last().map(|image| image.keys().collect::<Vec<_>>()), Some(vec![ways]));
    bench.rack.check_log();
}

/// An index switch's image has its own timer: while nothing else happens in the rack its switch is asked
/// again until it answers, and no more once the image is active.
#[test]
fn the_image_of_an_index_switch_goes_on_by_itself() {
    let core = Port::index(1);
    let mut bench = Bench::new();
    let join = JoinIndex { name: "core".into(), gid: text(30), tier: Tier::Core, below: vec!["n1".into()] };
    let joined = bench.rack.ask(join);
    assert!(bench.rack.wait(joined).is_ok());
    bench.activate(); // what the rack's switch is told of it
    bench.rack.peers.get_mut(&core).expect("it has joined").soft.clear();
    bench.rack.pass(Duration::from_secs(2));
    let soft = |bench: &mut Bench| std::mem::take(&mut bench.rack.peers.get_mut(&core).unwrap().soft);
    let asked = soft(&mut bench);
    assert!(asked.len() > 2, "asked again and again: {} times", asked.len());
    let mut next = asked.last().cloned();
    for _ in 0..10 {
        let Some(payload) = next.take() else { break };
        let SoftMessage { token, body } = SoftMessage::parse(&payload).unwrap();
        let answer = bench.right(&body, &mut Vec::new());
        bench.say_as(core, token, answer);
        bench.rack.pass(Duration::from_millis(5));
        next = soft(&mut bench).pop();
    }
    let seen = bench.rack.ask(Overview {});
    let Some(Ok(Response::Overview(overview))) = bench.rack.answer(seen) else { panic!("an overview") };
    assert_eq!(overview.index[0].epoch, bench.active.epoch);
    assert!(overview.index[0].epoch > 0, "it is active");
    bench.rack.pass(Duration::from_secs(2));
    assert_eq!(soft(&mut bench).len(), 0, "nothing is left to be said");
}
