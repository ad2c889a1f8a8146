//! The linked list against `VecDeque`, with traversals at the memory, through the host at each crossing, and
//! at the host.

use farmem_client::{ClientOptions, Policy, Rack};
use farmem_structures::Layout;
use farmem_structures::list::{List, Sum};
use proptest::collection::vec;
use proptest::prelude::*;
use std::collections::VecDeque;
use std::num::NonZero;

#[derive(Clone, Debug)]
enum Act {
    Push(u64),
    Pop,
    Find(u64),
    Sum,
}

fn act() -> impl Strategy<Value = Act> {
    let value = || prop_oneof![4 => 0..20_u64, 1 => any::<u64>()];
    prop_oneof![
        4 => value().prop_map(Act::Push),
        2 => Just(Act::Pop),
        2 => value().prop_map(Act::Find),
        1 => Just(Act::Sum),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn the_list_is_a_list(
        nodes in prop_oneof![Just(1_u16), Just(2), Just(4)],
        layout in prop_oneof![Just(Layout::Partitioned), Just(Layout::Scattered { granularity: 4096 })],
        policy in prop_oneof![Just(Policy::Offload), Just(Policy::Host), Just(Policy::default())],
        hops_max in prop_oneof![Just(1_u8), Just(64)],
        pushed in 0..600_u64,
        acts in vec(act(), 1..80),
    ) {
        let rack = Rack::embedded_with(nodes, 16 << 20).unwrap();
        let options = ClientOptions { hops_max: NonZero::new(hops_max).unwrap(), ..ClientOptions::default() };
        let mut client = rack.client_with("list", options).unwrap();
        let mut list = List::create(&mut client, layout).unwrap();
        list.set_policy(policy);
        let mut model = VecDeque::new();
        for value in 0..pushed {
            list.push_front(&mut client, value).unwrap();
            model.push_front(value);
        }
        for act in acts {
            match act {
                Act::Push(value) => {
                    list.push_front(&mut client, value).unwrap();
                    model.push_front(value);
                }
                Act::Pop => prop_assert_eq!(list.pop_front(&mut client).unwrap(), model.pop_front()),
                Act::Find(value) => {
                    let expected = model.iter().position(|&v| v == value).map(|place| place as u64);
                    prop_assert_eq!(list.find(&mut client, value).unwrap(), expected);
                }
                Act::Sum => {
                    let sum = model.iter().fold(0_u64, |sum, &v| sum.wrapping_add(v));
                    let count = model.len() as u64;
                    prop_assert_eq!(list.sum(&mut client).unwrap(), Sum { sum, count });
                }
            }
        }
        let other = List::open(&client, list.address(), layout);
        prop_assert_eq!(other.sum(&mut client).unwrap().count, model.len() as u64);
        list.destroy(&mut client).unwrap();
    }
}

/// 1024 elements in pieces of 4096 bytes on four memory nodes. A sum is one request with PULSE, and a READ
/// per element at the host. PULSE-ACC takes one more request for each of the four crossings: from the head on
/// the first memory node to the newest piece on the fourth, and back through the pieces.
#[test]
fn requests_of_a_scattered_list() {
    let rack = Rack::embedded_with(4, 16 << 20).unwrap();
    let mut client = rack.client("scattered").unwrap();
    let mut list = List::create(&mut client, Layout::Scattered { granularity: 4096 }).unwrap();
    for value in 0..1024 {
        list.push_front(&mut client, value).unwrap();
    }
    let mut acc = rack
        .client_with(
            "scattered",
            ClientOptions { hops_max: NonZero::new(1).unwrap(), ..ClientOptions::default() },
        )
        .unwrap();
    let mut requests = |client: &mut farmem_client::Client, policy| {
        list.set_policy(policy);
        for _ in 0..5 {
            list.sum(client).unwrap(); // until every memory node knows the program
        }
        let before = client.tally().requests;
        assert_eq!(list.sum(client).unwrap(), Sum { sum: 1023 * 512, count: 1024 });
        client.tally().requests - before
    };
    assert_eq!(requests(&mut client, Policy::Offload), 1);
    assert_eq!(requests(&mut acc, Policy::Offload), 1 + 4);
    assert_eq!(requests(&mut client, Policy::Host), 1025, "the head as well");
}
