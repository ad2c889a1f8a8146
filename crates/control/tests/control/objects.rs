//! Named objects: look-up by name, when they have memory, and when it is free again (PROTOCOL 8.33 to 8.37),
//! and which hosts may have them open together (8.53, 8.54). Random histories are played beside a plain
//! model.

use crate::rack::Rack;
use crate::rack::peer::Budget;
use farmem_control::PAGE;
use farmem_control::api::*;
use farmem_machine::{Duration, Port};
use proptest::prelude::*;
use std::collections::BTreeMap;

const MIB: u64 = 1 << 20;

/// Creates a node, three hosts, and a domain.
fn rack(seed: u64) -> (Rack, u32) {
    let mut rack = Rack::new(seed);
    rack.join_switch().unwrap();
    rack.join_node(1, MIB);
    (1..=3).for_each(|host| _ = rack.join_host(host));
    let domain = rack.domain("shared");
    (rack, domain)
}

fn open(host: u16, domain: u32, name: &str) -> OpenObject {
    OpenObject { create: true, ..find(host, domain, name) }
}

fn find(host: u16, domain: u32, name: &str) -> OpenObject {
    OpenObject::new(host, domain, name.into())
}

/// Returns number, length, base and size of an object from an answer.
fn told(rack: &mut Rack, call: impl Call<Answer = ObjectInfo>) -> (u64, u64, u64, u64) {
    let ObjectInfo { object, length, base, size } = rack.call(call).unwrap();
    (object, length, base, size)
}

fn tables_agree(rack: &Rack) {
    rack.check_log();
    rack.peers.keys().for_each(|&port| rack.check_tables(port));
}

/// An object is created by one host, found by another, given memory by the first host that asks, kept without
/// a name, and freed when no host has it open.
#[test]
fn an_object_from_its_name_to_its_end() {
    let (mut rack, domain) = rack(90);
    let (object, ..) = told(&mut rack, open(1, domain, "table"));
    assert_eq!(told(&mut rack, find(2, domain, "table")), (object, 0, 0, 0));
    let resize = |host, length| ResizeObject { host, object, length };
    let (_, length, base, size) = told(&mut rack, resize(2, 3 * PAGE - 100));
    assert_eq!((length, size), (3 * PAGE - 100, 4 * PAGE));
    assert_eq!(told(&mut rack, resize(1, length)), (object, length, base, size), "as it is already");
    assert_eq!(told(&mut rack, resize(1, 4 * PAGE)), (object, 4 * PAGE, base, size), "grown in place");
    let id = rack.vmas()[0].id;
    assert_eq!(rack.refused(Free { domain, base, id }).code, ErrorCode::Conflict);
    tables_agree(&rack);
    rack.restart();
    rack.settle();
    rack.call(UnlinkObject { domain, name: "table".into() }).unwrap();
    assert_eq!(rack.refused(find(2, domain, "table")).code, ErrorCode::NotFound);
    assert_ne!(told(&mut rack, open(2, domain, "table")).0, object, "the name is free");
    rack.call(DropObject { host: 1, object }).unwrap();
    assert_eq!(told(&mut rack, HoldObject::new(2, object)), (object, 4 * PAGE, base, size));
    assert_eq!(rack.vmas().len(), 1);
    rack.call(DropObject { host: 2, object }).unwrap();
    assert_eq!(rack.vmas(), []);
    assert_eq!(rack.refused(HoldObject::new(2, object)).code, ErrorCode::NotFound);
    tables_agree(&rack);
}

/// Impossible requests: the error names what was wrong.
#[test]
fn refusals_name_what_was_wrong() {
    let (mut rack, domain) = rack(91);
    let (object, ..) = told(&mut rack, open(1, domain, "one"));
    told(&mut rack, ResizeObject { host: 1, object, length: 5 * PAGE });
    let exclusive = OpenObject { create: true, exclusive: true, ..OpenObject::new(2, domain, "one".into()) };
    let resize = |host, length| ResizeObject { host, object, length };
    let other = rack.domain("other");
    use ErrorCode as E;
    let cases: [(Request, E, &str); 14] = [
        (exclusive.into(), E::Conflict, "one"),
        (find(2, domain, "two").into(), E::NotFound, "two"),
        (find(2, other, "one").into(), E::NotFound, "one"),
        (UnlinkObject { domain, name: "two".into() }.into(), E::NotFound, "two"),
        (open(2, domain, "").into(), E::BadRequest, "\"\""),
        (open(2, domain, "a/b").into(), E::BadRequest, "a/b"),
        (open(2, domain, &"x".repeat(256)).into(), E::BadRequest, "xxx"),
        (open(9, domain, "three").into(), E::NotFound, "host 9"),
        (open(1, 99, "three").into(), E::NotFound, "domain 99"),
        (resize(2, PAGE).into(), E::NotFound, "open"),
        (resize(1, 4 * PAGE).into(), E::Conflict, "does not shrink"),
        (resize(1, 8 * PAGE + 1).into(), E::Conflict, "grow"),
        (DropObject { host: 2, object }.into(), E::NotFound, "open"),
        (HoldObject::new(2, object + 1).into(), E::NotFound, "open"),
    ];
    let rows = rack.control.compact();
    for (request, code, named) in cases {
        let refusal = rack.refused(request.clone());
        assert_eq!(refusal.code, code, "{request:?}");
        let said = format!("{} {}", refusal.message, refusal.remedy);
        assert!(said.contains(named), "{request:?}: {said}");
    }
    assert_eq!(rack.control.compact(), rows);
    let (two, ..) = told(&mut rack, open(1, domain, "two"));
    let much = ResizeObject { host: 1, object: two, length: 2 * MIB };
    assert_eq!(rack.refused(much).code, ErrorCode::OutOfMemory);
    let none = ResizeObject { host: 1, object: two, length: 0 };
    assert_eq!(told(&mut rack, none), (two, 0, 0, 0));
    rack.peers.get_mut(&Port::SWITCH).unwrap().budget = Budget { perms: 8, ..Budget::default() };
    let full = ResizeObject { host: 1, object: two, length: PAGE };
    assert_eq!(rack.refused(full).code, ErrorCode::TableFull);
    assert_eq!(told(&mut rack, find(2, domain, "two")), (two, 0, 0, 0), "as before");
}

/// A host that leaves or restarts has nothing open any more. A named object stays for others.
#[test]
fn hosts_that_go_let_go() {
    let (mut rack, domain) = rack(92);
    let (named, ..) = told(&mut rack, open(1, domain, "named"));
    let (nameless, ..) = told(&mut rack, open(1, domain, "nameless"));
    for object in [named, nameless] {
        told(&mut rack, ResizeObject { host: 1, object, length: PAGE });
    }
    rack.call(UnlinkObject { domain, name: "nameless".into() }).unwrap();
    assert_eq!(rack.vmas().len(), 2);
    rack.join_host(1);
    assert_eq!(rack.vmas().len(), 1);
    assert_eq!(told(&mut rack, find(1, domain, "named")).0, named);
    rack.call(UnlinkObject { domain, name: "named".into() }).unwrap();
    assert_eq!(rack.vmas().len(), 1);
    rack.call(Leave::new(Port::host(1).0)).unwrap();
    assert_eq!(rack.vmas(), []);
    tables_agree(&rack);
}

/// Two hosts set the length at once: it is allocated once. The control plane crashes meanwhile: no host was
/// told, and nothing is left.
#[test]
fn one_allocation_for_all_who_ask() {
    let (mut rack, domain) = rack(93);
    let (object, ..) = told(&mut rack, open(1, domain, "one"));
    told(&mut rack, open(2, domain, "one"));
    let resize = |host| ResizeObject { host, object, length: 2 * PAGE };
    rack.cut.insert(Port::node(1));
    rack.ask(resize(1));
    rack.pass(Duration::from_millis(20));
    rack.restart();
    rack.cut.clear();
    rack.settle();
    assert_eq!(rack.vmas(), []);
    let tickets = [1, 2].map(|host| rack.ask(resize(host)));
    let answers = tickets.map(|ticket| rack.wait(ticket).unwrap());
    assert_eq!(answers[0], answers[1]);
    assert_eq!(rack.vmas().len(), 1);
    tables_agree(&rack);
}

#[derive(Clone, Debug)]
enum Step {
    Open { host: u16, name: usize, create: bool, exclusive: bool, mode: OpenMode },
    Hold { host: u16, object: usize, mode: OpenMode },
    Resize { host: u16, object: usize, pages: u64 },
    Unlink(usize),
    Drop { host: u16, object: usize },
    Again(u16),
    Away(u16),
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    let (host, object) = (1_u16..4, 0_usize..8);
    let mode = prop_oneof![Just(OpenMode::Shared), Just(OpenMode::Read), Just(OpenMode::Write)];
    prop_oneof![
        6 => (host.clone(), 0_usize..3, any::<bool>(), prop::bool::weighted(0.2), mode.clone())
            .prop_map(|(host, name, create, exclusive, mode)| Step::Open { host, name, create, exclusive, mode }),
        4 => (host.clone(), object.clone(), mode).prop_map(|(host, object, mode)| Step::Hold { host, object, mode }),
        4 => (host.clone(), object.clone(), 0_u64..9).prop_map(|(host, object, pages)| Step::Resize { host, object, pages }),
        3 => (0_usize..3).prop_map(Step::Unlink),
        4 => (host.clone(), object).prop_map(|(host, object)| Step::Drop { host, object }),
        1 => host.clone().prop_map(Step::Again),
        1 => host.prop_map(Step::Away),
        1 => Just(Step::Restart),
    ]
}

/// An object as its users see it.
#[derive(Clone, Default, Debug)]
struct Plain {
    length: u64,
    hosts: BTreeMap<u16, OpenMode>,
}

impl Plain {
    /// Returns the mode in which a host that asks for `mode` then has the object, if that is allowed.
    fn opened(&self, host: u16, mode: OpenMode) -> Option<OpenMode> {
        use OpenMode::{Read, Shared, Write};
        let mode = match (self.hosts.get(&host), mode) {
            (None, mode) => mode,
            (Some(Read), Read) => Read,
            (Some(Read | Write), Read | Write) => Write,
            (Some(Shared), Shared) => Shared,
            _ => return None,
        };
        let beside = |others: &OpenMode| matches!((others, mode), (Read, Read) | (Shared, Shared));
        let may = self.hosts.iter().filter(|(other, _)| **other != host).all(|(_, its)| beside(its));
        may.then_some(mode)
    }
}

#[derive(Default)]
struct Model {
    names: BTreeMap<usize, u64>,
    objects: BTreeMap<u64, Plain>,
}

impl Model {
    fn settle(&mut self) {
        let Self { names, objects } = self;
        objects.retain(|object, plain| !plain.hosts.is_empty() || names.values().any(|its| its == object));
    }
}

const NAMES: [&str; 3] = ["a", "b b", "ü"];

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    /// After every step the objects, the hosts that have them open, their lengths and the allocated memory
    /// equal those of a plain list.
    #[test]
    fn objects_are_as_in_a_list(steps in prop::collection::vec(step(), 1..60), seed in any::<u64>()) {
        let (mut rack, domain) = rack(seed);
        let mut model = Model::default();
        let mut seen: Vec<u64> = Vec::new();
        for step in steps {
            let pick = |object: usize| seen.get(object % seen.len().max(1)).copied().unwrap_or(1);
            let (request, expected): (Request, bool) = match step.clone() {
                Step::Open { host, name, create, exclusive, mode } => {
                    let there = model.names.get(&name).map(|object| &model.objects[object]);
                    let expected = match there {
                        Some(plain) => !(create && exclusive) && plain.opened(host, mode).is_some(),
                        None => create,
                    };
                    (OpenObject { create, exclusive, mode, ..OpenObject::new(host, domain, NAMES[name].into()) }.into(), expected)
                }
                Step::Hold { host, object, mode } => {
                    let object = pick(object);
                    let plain = model.objects.get(&object);
                    let expected = plain.is_some_and(|plain| plain.opened(host, mode).is_some());
                    (HoldObject { mode, ..HoldObject::new(host, object) }.into(), expected)
                }
                Step::Resize { host, object, pages } => {
                    let (object, length) = (pick(object), pages * PAGE);
                    let plain = model.objects.get(&object).filter(|plain| plain.hosts.contains_key(&host));
                    let fits = |plain: &Plain| plain.length == length || plain.hosts[&host] != OpenMode::Read && (plain.length == 0 || (plain.length..=plain.length.next_power_of_two()).contains(&length));
                    (ResizeObject { host, object, length }.into(), plain.is_some_and(fits))
                }
                Step::Unlink(name) => (
                    UnlinkObject { domain, name: NAMES[name].into() }.into(),
                    model.names.contains_key(&name),
                ),
                Step::Drop { host, object } => {
                    let object = pick(object);
                    let open = model.objects.get(&object).is_some_and(|plain| plain.hosts.contains_key(&host));
                    (DropObject { host, object }.into(), open)
                }
                Step::Again(host) | Step::Away(host) => {
                    if matches!(step, Step::Away(_)) {
                        rack.call(Leave::new(Port::host(host).0)).unwrap();
                    }
                    rack.join_host(u8::try_from(host).unwrap());
                    model.objects.values_mut().for_each(|plain| _ = plain.hosts.remove(&host));
                    model.settle();
                    continue;
                }
                Step::Restart => {
                    rack.restart();
                    rack.settle();
                    continue;
                }
            };
            let answer = rack.call(request.clone());
            prop_assert_eq!(answer.is_ok(), expected, "{:?}: {:?}", request, answer);
            let Ok(answer) = answer else { continue };
            let told = ObjectInfo::try_from(answer).ok();
            let number = told.as_ref().map_or(0, |told| told.object);
            match step {
                Step::Open { host, name, mode, .. } => {
                    prop_assert_eq!(*model.names.entry(name).or_insert(number), number);
                    let plain = model.objects.entry(number).or_default();
                    let mode = plain.opened(host, mode).unwrap();
                    plain.hosts.insert(host, mode);
                    if !seen.contains(&number) {
                        seen.push(number);
                    }
                }
                Step::Hold { host, mode, .. } => {
                    let plain = model.objects.get_mut(&number).unwrap();
                    let mode = plain.opened(host, mode).unwrap();
                    plain.hosts.insert(host, mode);
                }
                Step::Resize { pages, .. } => model.objects.get_mut(&number).unwrap().length = pages * PAGE,
                Step::Unlink(name) => _ = model.names.remove(&name),
                Step::Drop { host, object } => {
                    let object = seen[object % seen.len()];
                    model.objects.get_mut(&object).unwrap().hosts.remove(&host);
                }
                Step::Again(_) | Step::Away(_) | Step::Restart => unreachable!("handled above"),
            }
            model.settle();
            rack.settle();
            if let Some(told) = told {
                prop_assert_eq!(told.length, model.objects[&told.object].length);
            }
            let allocated: u64 = rack.vmas().iter().map(|vma| vma.size).sum();
            let expected: u64 = model.objects.values().filter(|plain| plain.length > 0)
                .map(|plain| plain.length.next_power_of_two()).sum();
            prop_assert_eq!(allocated, expected);
        }
        tables_agree(&rack);
    }
}

/// The number of objects is bounded.
#[test]
fn objects_are_bounded() {
    let mut config = crate::rack::config();
    config.bounds.objects_max = 2;
    let mut rack = Rack::with(94, config);
    rack.join_host(1);
    let domain = rack.domain("shared");
    let (first, ..) = told(&mut rack, open(1, domain, "1"));
    told(&mut rack, open(1, domain, "2"));
    assert_eq!(rack.refused(open(1, domain, "3")).code, ErrorCode::TableFull);
    rack.call(UnlinkObject { domain, name: "1".into() }).unwrap();
    rack.call(DropObject { host: 1, object: first }).unwrap();
    told(&mut rack, open(1, domain, "3"));
}
