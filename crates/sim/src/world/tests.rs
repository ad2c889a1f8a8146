//! Racks come up, and crashed machines restart.

use super::{Layout, RoleId, World};
use crate::Plan;
use farmem_control::api::{Allocate, CreateDomain, Overview, RackOverview};
use farmem_machine::Duration;

fn up(plan: Plan, seed: u64) -> World {
    let mut world = World::new(Layout::small(), plan, seed, 300);
    world.bring_up();
    world
}

fn run(world: &mut World, until: impl Fn(&World) -> bool) {
    let end = world.now() + Duration::from_secs(2);
    while !until(world) {
        assert!(world.step() && world.now() < end, "{}", world.journal_mut().take_lines().join("\n"));
    }
}

/// Every machine comes up under every plan, and one seed always brings them up in the same way.
#[test]
fn a_rack_comes_up() {
    for plan in Plan::ALL {
        let [one, again] = [up(plan, 3), up(plan, 3)];
        assert_eq!(one.journal().digest(), again.journal().digest(), "{}", plan.name);
    }
}

/// Crashed machines restart under their numbers; a vma survives all of them.
#[test]
fn machines_come_back() {
    let mut world = up(Plan::STORM, 5);
    let created = world.call(RoleId::Host(1), CreateDomain { name: "d".into() }).unwrap();
    let allocate = Allocate { domain: created.domain, size: 4096, node: None, durable: false };
    let vma = world.call(RoleId::Host(1), allocate).unwrap();
    for role_id in world.all_roles() {
        world.crash(role_id);
        assert!(!world.is_up(role_id));
        world.start_later(role_id, Duration::from_millis(2));
        run(&mut world, |world| world.is_up(role_id));
    }
    let RackOverview { vmas, nodes, hosts, .. } = world.call(RoleId::Host(1), Overview {}).unwrap();
    assert_eq!((vmas, nodes.len(), hosts.len()), (vec![vma], 4, 2));
    assert!(hosts.iter().all(|host| host.generation == 2));
}
