//! Fuzz target of the control plane, with a switch, two memory nodes and a host.
//!
//! Every role may send arbitrary frames at any time, also while the control plane restarts. A model keeps the
//! batches of updates that the control plane sent, and its open requests. The target checks three promises:
//!
//! - A frame that answers no open batch changes nothing.
//! - The control plane answers each request once.
//! - A replay of the log produces the current state.

mod rack;
mod soft;

use crate::Run;
use crate::frames::{FaultyLink, noise};
use crate::input::Input;
use farmem_control::PAGE;
use farmem_control::api::{
    Allocate, CardMemory, Connect, CreateDomain, Disconnect, Free, Grant, JoinHost, JoinNode, JoinSwitch,
    Leave, OpenSession, PermName, Request,
};
use farmem_machine::{Duration, Port};
use rack::Rack;

/// Runs `data` as a sequence of requests to the control plane and frames that reach it.
///
/// # Panics
/// Panics when a frame changes state without permission, when a request has no answer or two answers, or when
/// the log produces another state.
pub fn control_events(data: &[u8], run: &mut Run) {
    let mut rack = Rack::joined();
    let mut link = FaultyLink::default();
    let mut input = Input::new(data);
    while let Some(event) = input.event(16) {
        match event {
            0 => rack.pass(Duration::from_millis(u64::from(input.u16() % 1_000)), run),
            1 => rack.hear(&noise(&mut input), run),
            2 => rack.hear(&link.again(&mut input), run),
            3 if input.one_in(4) => rack.restart(input.one_in(2)),
            3..=7 => {
                let request = request(&rack, &mut input);
                rack.ask(request, run);
            }
            _ => {
                // With no open batch of updates, an open question about images is answered.
                if let Some(answer) = rack.answer(&mut input).or_else(|| rack.soft_answer(&mut input)) {
                    rack.hear(&link.arrival(answer, &mut input), run);
                }
            }
        }
    }
    rack.end(run);
}

/// Returns a request that an operator, a program or a role may make, sensible or not.
fn request(rack: &Rack, input: &mut Input<'_>) -> Request {
    let (node, host) = (u16::from(1 + input.below(3)), u16::from(1 + input.below(2)));
    let domain = u32::from(1 + input.below(3));
    match input.below(16) {
        0 => JoinSwitch { gid: gid(2, input) }.into(),
        1 => {
            let (name, gid) = (name('n', node, input), gid(10 + node, input));
            let join = JoinNode::new(name, gid, PAGE * u64::from(1 + input.below(32)));
            let (qpn, qkey, card) = card(domain, &mut input.clone());
            JoinNode { qpn, qkey, card, ..join }.into()
        }
        2 => {
            let join = JoinHost::new(name('h', host, input), gid(100 + host, input));
            let (qpn, qkey, _) = card(domain, &mut input.clone());
            JoinHost { qpn, qkey, ..join }.into()
        }
        3 => Leave {
            port: if input.one_in(2) {
                Port::host(host).0
            } else {
                input.pick(&[Port::node(node).0, 0, 1, 7])
            },
            generation: input.clone().one_in(4).then_some(host),
        }
        .into(),
        4 => CreateDomain { name: name('d', u16::from(input.below(4)), input) }.into(),
        5..=6 => OpenSession { host, domain }.into(),
        7..=8 => {
            let (qpn, first_psn, _) = card(domain, &mut input.clone());
            Connect { qpn, first_psn, ..Connect::new(host, node, domain) }.into()
        }
        9 => Disconnect { host, qpn: input.pick(rack.queue_pairs()) }.into(),
        10..=11 => {
            let size = u64::from(input.u16()) * if input.one_in(16) { 1 << 48 } else { 1 };
            Allocate { domain, size, node: input.one_in(4).then_some(node), durable: false }.into()
        }
        12 => Free {
            domain,
            base: input.pick(rack.vmas()).wrapping_add(u64::from(input.below(2))),
            // Changes, and therefore allocations, are few in an input. Most ids name existing allocations.
            id: u64::from(input.below(24)),
        }
        .into(),
        13..=14 => Grant {
            domain,
            base: input.pick(rack.vmas()) + 256 * u64::from(input.below(20)),
            len: if input.one_in(16) { input.u64() } else { 256 * u64::from(input.below(20)) },
            to: u32::from(1 + input.below(4)),
            perm: input.pick(&[PermName::Read, PermName::ReadWrite, PermName::None]),
        }
        .into(),
        // Takes the bytes of the next events without consuming them.
        _ => soft::request(host, domain, &mut input.clone()),
    }
}

/// Returns the identifiers that a network card brings: a queue pair, a key or PSN, and memory. The values
/// come from the bytes of the next events, without consuming those bytes.
fn card(domain: u32, input: &mut Input<'_>) -> (Option<u32>, Option<u32>, Option<CardMemory>) {
    if !input.one_in(3) {
        return (None, None, None);
    }
    let qpn =
        |input: &mut Input<'_>| if input.one_in(4) { input.u32() } else { 16 + u32::from(input.below(4)) };
    let memory = input.one_in(2).then(|| CardMemory {
        domain,
        base: if input.one_in(4) { input.u64() } else { 1 << 46 },
        rkey: u32::from(input.below(3)),
        queue_pairs: (0..input.below(4)).map(|_| qpn(input)).collect(),
    });
    (Some(qpn(input)), (!input.one_in(8)).then(|| input.u32() >> input.below(16)), memory)
}

fn name(kind: char, number: u16, input: &mut Input<'_>) -> String {
    if input.one_in(16) {
        String::from_utf8_lossy(input.bytes()).into_owned()
    } else {
        format!("{kind}{number}")
    }
}

fn gid(octet: u16, input: &mut Input<'_>) -> String {
    if input.one_in(16) {
        String::from_utf8_lossy(input.bytes()).into_owned()
    } else {
        format!("127.0.0.{octet}")
    }
}
