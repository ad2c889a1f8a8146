//! Objects by file: the loads and saves that the control plane orders, and the stage of each object meanwhile
//! (PROTOCOL 20.12 to 20.20).

use crate::rack::Rack;
use farmem_control::PAGE;
use farmem_control::api::*;
use farmem_machine::{Duration, Port};
use farmem_wire::Perm;

const MIB: u64 = 1 << 20;
const ONE: Port = Port::node(1);
const LENGTH: u64 = 2 * PAGE + 100;
const FILE: &str = "graphs/own.fmg";

/// Creates two nodes, three hosts and a domain. The first node has a file.
fn rack(seed: u64) -> (Rack, u32) {
    let mut rack = Rack::new(seed);
    rack.join_switch().unwrap();
    (1..=2).for_each(|node| _ = rack.join_node(node, MIB));
    (1..=3).for_each(|host| _ = rack.join_host(host));
    let domain = rack.domain("graphs");
    put(&mut rack, FILE, LENGTH, 5);
    (rack, domain)
}

fn put(rack: &mut Rack, file: &str, length: u64, stamp: u64) {
    rack.peers.get_mut(&ONE).unwrap().files.insert(file.into(), (length, stamp));
}

/// Restarts the first node, with this file or without one.
fn restart(rack: &mut Rack, stamp: Option<u64>) {
    let saved = rack.peers[&ONE].saved.clone();
    let ticket = rack.ask(JoinNode::new("n1".into(), "127.0.0.11".into(), MIB));
    rack.wait(ticket).unwrap();
    rack.peers.get_mut(&ONE).unwrap().saved = saved;
    if let Some(stamp) = stamp {
        put(rack, FILE, LENGTH, stamp);
    }
    rack.settle();
    rack.pass(Duration::from_secs(2));
}

fn open(host: u16, domain: u32, mode: OpenMode) -> OpenObject {
    OpenObject { create: true, mode, ..OpenObject::new(host, domain, "own".into()) }
}

fn load(host: u16, object: u64) -> LoadObject {
    LoadObject::new(host, object, 1, FILE.into(), LENGTH)
}

/// Creates an object by file, open at the first host to read.
fn by_file(rack: &mut Rack, domain: u32) -> u64 {
    let object = rack.call(open(1, domain, OpenMode::Read)).unwrap().object;
    rack.call(load(1, object)).unwrap();
    object
}

fn shown(rack: &mut Rack, object: u64) -> ObjectListed {
    let all = rack.call(ListObjects { domain: None }).unwrap().objects;
    all.into_iter().find(|row| row.object == object).expect("it is listed")
}

fn stage(rack: &mut Rack, object: u64) -> FileStage {
    shown(rack, object).file.expect("it is by file").stage
}

/// Returns the owner's permissions for the pages of an object, as its node was told.
fn perms(rack: &mut Rack, domain: u32, object: u64) -> Vec<Option<Perm>> {
    let ObjectListed { base, size, .. } = shown(rack, object);
    let perms = &rack.tables(ONE).perms;
    let blocks = (base..base + size).step_by(usize::try_from(PAGE).unwrap());
    blocks.map(|at| perms.get(&(domain, at / crate::rack::peer::BLOCK)).copied()).collect()
}

fn lost(rack: &mut Rack, object: u64) -> bool {
    let ObjectListed { base, size, .. } = shown(rack, object);
    let lost = rack.call(Locate { addr: base }).unwrap().lost;
    let told = rack.peers[&ONE].lost.contains(&(base / PAGE));
    assert_eq!(!lost.is_empty(), told, "node and control plane agree");
    assert!(lost.is_empty() || lost == [LostInfo { base, len: size }], "all of it or nothing");
    told
}

/// Checks that the tables of all roles are what joining roles would be told, except for a node with an object
/// that is written, which its next incarnation would not have.
fn agree(rack: &mut Rack) {
    rack.check_log();
    let files =
        rack.call(ListObjects { domain: None }).unwrap().objects.into_iter().filter_map(|row| row.file);
    let writes = files.into_iter().any(|file| file.stage == FileStage::Writing);
    let others = rack.peers.keys().filter(|&&port| port != ONE || !writes);
    others.for_each(|&port| rack.check_tables(port));
}

/// PROTOCOL 20.12: a file is inspected, and its faults are reported.
#[test]
fn a_file_is_looked_at() {
    let (mut rack, _) = rack(200);
    let look = |file: &str| LookFile { node: 1, file: file.into() };
    assert_eq!(rack.call(look(FILE)).unwrap().length, LENGTH);
    let missing = rack.refused(look("other"));
    assert_eq!(missing.code, ErrorCode::NotFound);
    assert!(missing.message.contains("\"other\" of node 1 (n1)"), "{}", missing.message);
    for name in ["", "/etc/passwd", "a/../b", "./a", "a//b"] {
        assert_eq!(rack.refused(look(name)).code, ErrorCode::BadRequest, "{name:?}");
    }
    assert_eq!(rack.refused(LookFile { node: 9, file: FILE.into() }).code, ErrorCode::NotFound);
    // The request is abandoned if the node does not answer.
    rack.cut.insert(ONE);
    assert_eq!(rack.refused(look(FILE)).code, ErrorCode::Unavailable);
}

/// PROTOCOL 20.13: an object gets memory of the file's node, lost until the node has loaded it, and its owner
/// only reads.
#[test]
fn an_object_is_loaded_by_its_node() {
    let (mut rack, domain) = rack(201);
    rack.peers.get_mut(&ONE).unwrap().works = false;
    let object = rack.call(open(1, domain, OpenMode::Read)).unwrap().object;
    let shown_first = rack.call(load(1, object)).unwrap();
    assert_eq!((shown_first.length, shown_first.size, shown_first.node), (LENGTH, 4 * PAGE, 1));
    let half = || shown_first.file.clone();
    assert_eq!(half().map(|file| (file.stage, file.unsaved)), Some((FileStage::Loading, false)));
    rack.pass(Duration::from_millis(200));
    assert_eq!(shown(&mut rack, object).file.map(|file| file.done), Some(LENGTH / 2), "progress");
    assert!(lost(&mut rack, object));
    assert_eq!(perms(&mut rack, domain, object), [Some(Perm::Read); 4]);
    agree(&mut rack);
    // Other hosts may open the object to read meanwhile, and no host to write.
    rack.call(open(2, domain, OpenMode::Read)).unwrap();
    rack.call(DropObject { host: 2, object }).unwrap();
    assert_eq!(rack.refused(open(1, domain, OpenMode::Write)).code, ErrorCode::Unavailable);
    assert_eq!(rack.refused(open(1, domain, OpenMode::Shared)).code, ErrorCode::Conflict);
    // The control plane restarts: the node is asked for the same task.
    rack.restart();
    rack.peers.get_mut(&ONE).unwrap().works = true;
    rack.pass(Duration::from_secs(1));
    assert_eq!(stage(&mut rack, object), FileStage::Loaded);
    assert!(!lost(&mut rack, object));
    assert_eq!(rack.peers[&ONE].over.len(), 1, "one task");
    assert_eq!(
        rack.call(load(1, object)).unwrap().file.unwrap().stage,
        FileStage::Loaded,
        "as it is already"
    );
    agree(&mut rack);
}

/// PROTOCOL 20.14 to 20.16: an object opened to write counts as different from its file before any role hears
/// of it. A save ends the right to write, and the saved content is loaded in the node's next incarnation.
#[test]
fn written_bytes_are_saved_and_loaded_again() {
    let (mut rack, domain) = rack(202);
    let object = by_file(&mut rack, domain);
    rack.pass(Duration::from_secs(1));
    // The change is in the log, and no frame has reached a role.
    let ticket = rack.ask(open(1, domain, OpenMode::Write));
    assert!(rack.answer(ticket).is_none());
    let kept = rack.log.iter().rposition(|line| line.contains("TurnFile")).expect("it stands in the log");
    assert_eq!(kept, rack.log.len() - 1);
    assert_eq!(rack.tables(ONE).perms.values().filter(|&&perm| perm == Perm::ReadWrite).count(), 0);
    rack.wait(ticket).unwrap();
    rack.settle();
    let (rw, read) = (Some(Perm::ReadWrite), Some(Perm::Read));
    assert_eq!(perms(&mut rack, domain, object), [rw, rw, rw, read], "whole pages of the file");
    let row = shown(&mut rack, object);
    assert_eq!(
        (row.mode, row.file.as_ref().map(|file| (file.stage, file.unsaved))),
        (OpenMode::Write, Some((FileStage::Writing, true)))
    );
    assert_eq!(rack.refused(open(2, domain, OpenMode::Read)).code, ErrorCode::Conflict);
    agree(&mut rack);

    rack.peers.get_mut(&ONE).unwrap().works = false;
    let saving = rack.call(SaveObject { host: 1, object }).unwrap();
    assert_eq!((saving.mode, saving.file.unwrap().stage), (OpenMode::Read, FileStage::Saving));
    assert_eq!(perms(&mut rack, domain, object), [read; 4]);
    assert_eq!(rack.refused(open(1, domain, OpenMode::Write)).code, ErrorCode::Unavailable);
    rack.peers.get_mut(&ONE).unwrap().works = true;
    rack.pass(Duration::from_secs(1));
    assert_eq!(stage(&mut rack, object), FileStage::Loaded);
    assert_eq!(rack.peers[&ONE].saved, [FILE]);
    assert_eq!(
        rack.call(SaveObject { host: 1, object }).unwrap().file.unwrap().stage,
        FileStage::Loaded,
        "nothing to save"
    );
    agree(&mut rack);

    restart(&mut rack, Some(6));
    assert_eq!((stage(&mut rack, object), lost(&mut rack, object)), (FileStage::Loaded, false));
    agree(&mut rack);
}

/// PROTOCOL 20.17, 20.18: unsaved content is lost with its node, and stays lost until its owner alone accepts
/// the file's bytes for it.
#[test]
fn unsaved_bytes_are_lost_with_their_node() {
    let (mut rack, domain) = rack(203);
    let object = by_file(&mut rack, domain);
    rack.pass(Duration::from_secs(1));
    rack.call(open(1, domain, OpenMode::Write)).unwrap();
    rack.call(DropObject { host: 1, object }).unwrap();
    assert_eq!(stage(&mut rack, object), FileStage::Writing, "what was written is not saved by closing it");
    restart(&mut rack, Some(5));
    assert_eq!((stage(&mut rack, object), lost(&mut rack, object)), (FileStage::Lost, true));
    agree(&mut rack);
    let none_open = rack.refused(load(1, object));
    assert_eq!(none_open.code, ErrorCode::NotFound);
    (1..=2).for_each(|host| _ = rack.call(open(host, domain, OpenMode::Read)).unwrap());
    assert_eq!(rack.refused(load(1, object)).code, ErrorCode::Conflict, "not unless it is accepted");
    let accept = LoadObject { accept: true, ..load(1, object) };
    let alone = rack.refused(accept.clone());
    assert!(alone.message.contains("host 2"), "{}", alone.message);
    assert_eq!(rack.refused(SaveObject { host: 1, object }).code, ErrorCode::Conflict);
    rack.call(DropObject { host: 2, object }).unwrap();
    assert_eq!(rack.refused(open(1, domain, OpenMode::Write)).code, ErrorCode::Conflict);
    put(&mut rack, FILE, LENGTH, 99); // any stamp will do
    rack.call(accept).unwrap();
    rack.pass(Duration::from_secs(1));
    assert_eq!((stage(&mut rack, object), lost(&mut rack, object)), (FileStage::Loaded, false));
    agree(&mut rack);
}

/// A file that changed, is gone or has another length is not loaded again in silence. The reason is reported,
/// and the file is loaded anew on request.
#[test]
fn a_file_that_changed_is_not_loaded_again() {
    let (mut rack, domain) = rack(204);
    let object = by_file(&mut rack, domain);
    rack.pass(Duration::from_secs(1));
    for (stamp, named) in [(Some(6), "changed"), (None, "is not there")] {
        restart(&mut rack, stamp);
        let file = shown(&mut rack, object).file.unwrap();
        assert_eq!((file.stage, file.done), (FileStage::Failed, 0));
        let error = file.error.expect("a reason");
        assert!(error.contains(named) && error.contains(FILE), "{error}");
        assert!(lost(&mut rack, object));
        agree(&mut rack);
    }
    put(&mut rack, FILE, LENGTH, 7);
    let file = rack.call(load(1, object)).unwrap().file.unwrap();
    assert_eq!((file.stage, file.error), (FileStage::Loading, None));
    rack.pass(Duration::from_secs(1));
    assert_eq!((stage(&mut rack, object), lost(&mut rack, object)), (FileStage::Loaded, false));
    put(&mut rack, FILE, LENGTH - 1, 7);
    restart(&mut rack, None);
    put(&mut rack, FILE, LENGTH - 1, 7);
    rack.call(load(1, object)).unwrap();
    rack.pass(Duration::from_secs(1));
    let error = shown(&mut rack, object).file.unwrap().error.unwrap();
    assert!(error.contains(&format!("has {} bytes, not {LENGTH}", LENGTH - 1)), "{error}");
    agree(&mut rack);
}

/// PROTOCOL 20.19 and other impossible requests: the error names what was wrong.
#[test]
fn refusals_name_what_was_wrong() {
    let (mut rack, domain) = rack(205);
    let object = by_file(&mut rack, domain);
    rack.pass(Duration::from_secs(1));
    let other = rack.domain("other");
    let base = shown(&mut rack, object).base;
    let plain =
        rack.call(OpenObject { create: true, ..OpenObject::new(1, domain, "plain".into()) }).unwrap().object;
    rack.call(ResizeObject { host: 1, object: plain, length: LENGTH }).unwrap();
    let young =
        rack.call(OpenObject { create: true, ..OpenObject::new(1, domain, "young".into()) }).unwrap().object;
    let grant = |perm| Grant { domain, base, len: PAGE, to: other, perm };
    use ErrorCode as E;
    let cases: [(Request, E, &str); 13] = [
        (AcceptLost { domain, base, len: PAGE }.into(), E::Conflict, FILE),
        (Migrate { domain: None, base, len: PAGE, node: 2 }.into(), E::Conflict, FILE),
        (ResizeObject { host: 1, object, length: LENGTH + 1 }.into(), E::Conflict, FILE),
        (grant(PermName::ReadWrite).into(), E::Conflict, FILE),
        (LoadObject { file: "another".into(), ..load(1, object) }.into(), E::Conflict, "another"),
        (LoadObject { length: LENGTH + 1, ..load(1, object) }.into(), E::Conflict, "8293"),
        (LoadObject { node: 2, ..load(1, object) }.into(), E::Conflict, "node 2"),
        (load(2, object).into(), E::NotFound, "open"),
        (load(1, plain).into(), E::Conflict, "other memory"),
        (load(1, young).into(), E::Conflict, "shared"),
        (SaveObject { host: 1, object: plain }.into(), E::Conflict, "not by file"),
        (SaveObject { host: 2, object }.into(), E::NotFound, "open"),
        (ListObjects { domain: Some(77) }.into(), E::NotFound, "77"),
    ];
    let rows = rack.control.compact();
    for (request, code, named) in cases {
        let refusal = rack.refused(request.clone());
        assert_eq!(refusal.code, code, "{request:?}: {}", refusal.message);
        let said = format!("{} {}", refusal.message, refusal.remedy);
        assert!(said.contains(named), "{request:?}: {said}");
    }
    assert_eq!(rack.control.compact(), rows);
    rack.call(grant(PermName::Read)).unwrap();
    agree(&mut rack);
}

/// PROTOCOL 20.20: an object that is being saved is not freed before the save is over. One that is loading is
/// freed at once.
#[test]
fn an_object_is_freed_after_its_save() {
    let (mut rack, domain) = rack(206);
    let object = by_file(&mut rack, domain);
    rack.pass(Duration::from_secs(1));
    rack.call(open(1, domain, OpenMode::Write)).unwrap();
    rack.peers.get_mut(&ONE).unwrap().works = false;
    rack.call(SaveObject { host: 1, object }).unwrap();
    rack.call(UnlinkObject { domain, name: "own".into() }).unwrap();
    rack.call(DropObject { host: 1, object }).unwrap();
    rack.pass(Duration::from_secs(1));
    assert_eq!(rack.vmas().len(), 1);
    rack.peers.get_mut(&ONE).unwrap().works = true;
    rack.pass(Duration::from_secs(1));
    rack.call(Overview {}).unwrap();
    assert_eq!(rack.vmas(), []);
    assert_eq!(rack.peers[&ONE].saved, [FILE]);
    assert_eq!(rack.call(ListObjects { domain: None }).unwrap().objects, []);

    rack.peers.get_mut(&ONE).unwrap().works = false;
    let object = by_file(&mut rack, domain);
    rack.call(UnlinkObject { domain, name: "own".into() }).unwrap();
    rack.call(DropObject { host: 1, object }).unwrap();
    assert_eq!(rack.vmas(), []);
    agree(&mut rack);
}

/// A host that opens an object to write dies before the answer: the object counts as written, and another
/// host may have it.
#[test]
fn a_host_may_leave_while_it_opens_to_write() {
    let (mut rack, domain) = rack(207);
    let object = by_file(&mut rack, domain);
    rack.pass(Duration::from_secs(1));
    rack.cut.insert(ONE);
    let ticket = rack.ask(open(1, domain, OpenMode::Write));
    let again = rack.ask(JoinHost::new("h1".into(), "127.0.0.101".into()));
    rack.cut.clear();
    rack.wait(again).unwrap();
    assert!(rack.wait(ticket).is_err());
    rack.settle();
    assert_eq!(stage(&mut rack, object), FileStage::Unsaved);
    rack.call(open(2, domain, OpenMode::Write)).unwrap();
    assert_eq!(shown(&mut rack, object).hosts, [2]);
    agree(&mut rack);
}
