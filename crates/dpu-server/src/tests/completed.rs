//! Tests of completed requests, and of their effect on the thread of the domain.

use super::super::domain_thread::{Order, Serving};
use super::{Bench, PAGE, Terms, USUAL, bench, memory, span};
use crate::carrier::Carrier;
use crate::complete::Stage;
use farmem_client::Rack;
use farmem_link::dpu::ProcessEnd;
use farmem_wire::Rkey;
use farmem_wire::soda::{Answer, Dest, Ended, Request};
use std::sync::mpsc::channel;

fn answered(process: &mut ProcessEnd) -> Vec<Ended> {
    let mut buf = vec![0; 1 << 16];
    let mut all = Vec::new();
    while let Some(len) = process.pop(&mut buf).unwrap() {
        all.push(Answer::parse(&buf[..len]).unwrap().ended);
    }
    all
}

/// A process under blocking forwarding (SODA III) sends a read that the stage completes, and then further requests.
/// In the next turn the first request no longer counts as pending. If the process leaves after the completion, the
/// control plane is not asked about a fence. Both would fail if the thread took orders before completed requests.
#[test]
fn completed_requests_are_taken_before_new_ones() {
    let rack = Rack::embedded_with(1, 1 << 20).unwrap();
    let mut client = rack.client("dpu").unwrap();
    let mut carrier = Carrier::new(&mut client, memory(), None);
    let mut bench = bench(&mut carrier);
    let ask = |page: u64, size, dest| Request::Read { span: span(2, page * u64::from(PAGE), size), dest };
    let warm = [0, 1, 2, 3].map(|page| ask(page, 4, Dest::Send));
    assert_eq!(bench.ask(&mut carrier, &warm).len(), 4, "they are in the cache from here on");
    let Bench { mut process, mut dpu_client, .. } = bench;
    dpu_client.set_terms(Terms { blocking: true, staged: Some(1), ..USUAL });
    let asker = dpu_client.asker();
    let (rings, rung) = channel();
    let stage = Stage::begin(1, 1.0, move || rings.send(()).unwrap()).unwrap();
    // The stage wakes the thread when a completed request is visible.
    stage.await_it(true);
    let mut lane = Serving::new(carrier, Some(stage), 8);
    lane.dpu_clients.push(dpu_client);
    let (door, orders) = channel();
    for round in 0..2 {
        // The second request is passed to the stage, because another is pending.
        let dest = Dest::Write { addr: 8, rkey: Rkey(1) };
        for request in [ask(round, 4, Dest::Send), ask(2 + round, PAGE, dest)] {
            let mut record = Vec::new();
            request.emit(&mut record);
            assert!(process.push(&record).unwrap());
        }
        process.publish();
        assert!(lane.begin_turn(&orders));
        lane.turn();
        let mut ended = answered(&mut process);
        assert!(!ended.is_empty(), "they are taken in round {round}");
        rung.recv().unwrap();
        ended.extend(answered(&mut process));
        assert_eq!(ended, [Ended::Done; 2]);
        assert!(!lane.dpu_clients[0].is_idle(), "what was completed was not heard of yet");
    }
    door.send(Order::Go(asker)).unwrap();
    assert!(lane.begin_turn(&orders));
    assert!(!lane.is_doubtful && lane.dpu_clients.is_empty());
}
