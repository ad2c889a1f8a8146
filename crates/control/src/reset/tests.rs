use super::*;
use farmem_wire::message::Page;
use farmem_wire::{HostId, VirtAddr};

fn region() -> Region {
    Region::around(Page::of(VirtAddr(0x4000)), 2)
}

const DEAD: HostSet = HostSet::only(HostId(1));

/// Order of the steps: no node is swept before all hosts have given up the region, and nothing is free before
/// all nodes are swept.
#[test]
fn hosts_then_nodes_then_the_region_is_free() {
    let mut reset = Reset::new(region(), 2);
    assert_eq!(reset.step(Event::Begin, DEAD), Some(Order::Reset(region())));
    assert_eq!(reset.step(Event::Timer, DEAD), Some(Order::Repeat(region())));
    assert_eq!(reset.step(Event::Swept(Seq(4)), DEAD), None, "no node was to be swept yet");
    assert_eq!(reset.step(Event::Report(Seq(5)), DEAD), Some(Order::Sweep(region(), Seq(5), DEAD)));
    assert_eq!(reset.step(Event::Report(Seq(5)), DEAD), None, "said twice");
    assert_eq!(reset.step(Event::Timer, DEAD), None, "all hosts have answered");
    assert_eq!(reset.step(Event::Swept(Seq(5)), DEAD), None, "one node is left");
    assert_eq!(reset.step(Event::Swept(Seq(5)), DEAD), Some(Order::End(region(), Seq(5))));
    assert_eq!(reset.stage(), Stage::Ended(Seq(5)));
}

/// The switch restarts while nodes are swept. Under the older number a host may have written since.
#[test]
fn a_reset_that_began_anew_sweeps_again() {
    let mut reset = Reset::new(region(), 1);
    assert_eq!(
        reset.step(Event::Report(Seq(5)), HostSet::EMPTY),
        Some(Order::Sweep(region(), Seq(5), HostSet::EMPTY))
    );
    assert_eq!(reset.step(Event::Begin, DEAD), Some(Order::Reset(region())));
    assert_eq!(reset.step(Event::Swept(Seq(5)), DEAD), None, "an answer to the sweep before");
    assert_eq!(reset.step(Event::Report(Seq(7)), DEAD), Some(Order::Sweep(region(), Seq(7), DEAD)));
    assert_eq!(
        reset.step(Event::Report(Seq(9)), DEAD),
        Some(Order::Sweep(region(), Seq(9), DEAD)),
        "anew at the switch"
    );
    assert_eq!(reset.step(Event::Swept(Seq(7)), DEAD), None);
    assert_eq!(reset.step(Event::Swept(Seq(9)), DEAD), Some(Order::End(region(), Seq(9))));
}
