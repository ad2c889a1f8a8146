//! The tables of PROTOCOL 8.51 against the code: each request takes exactly the fields of its row, with their
//! types.

use crate::http::server;
use farmem_control::api::*;
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;

const PROTOCOL: &str = include_str!("../../../../../docs/protocol/08-the-control-plane.md");

/// Returns the rows of the table of paragraph 8.51 whose first column has this title: its cells, without the
/// title.
fn table(title: &str) -> Vec<Vec<String>> {
    let paragraph = PROTOCOL.split("\n8.51 ").nth(1).expect("it is there").split("\n8.52 ").next().unwrap();
    let lines = paragraph.lines().skip_while(|line| !line.starts_with(&format!("| {title} |"))).skip(2);
    let cells = |line: &str| line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect();
    lines.take_while(|line| line.starts_with('|')).map(cells).collect()
}

/// Returns the texts between backticks.
fn quoted(text: &str) -> Vec<String> {
    text.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

#[derive(Debug)]
struct Field {
    name: String,
    kind: String,
    is_optional: bool,
}

/// A row of the table of requests.
struct Row {
    name: String,
    fields: Vec<Field>,
}

fn rows() -> Vec<Row> {
    let field = |text: &str| {
        let (name, kind) = text.split_once(' ').unwrap_or_else(|| panic!("{text:?} has no type"));
        let name = name.trim_matches('`').to_owned();
        Field { name, kind: kind.trim_end_matches('?').to_owned(), is_optional: kind.ends_with('?') }
    };
    let row = |cells: Vec<String>| {
        let fields = cells[1].split(", ").filter(|text| !text.is_empty()).map(field).collect();
        Row { name: quoted(&cells[0]).remove(0), fields }
    };
    table("request").into_iter().map(row).collect()
}

/// Returns values that a type accepts, including its extremes, and values that it does not accept.
fn values_of(kind: &str) -> (Vec<Value>, Vec<Value>) {
    match kind {
        "u16" => (vec![json!(0), json!(u16::MAX)], vec![json!(1 << 16), json!(-1), json!("1")]),
        "u32" => (vec![json!(0), json!(u32::MAX)], vec![json!(1_u64 << 32), json!(-1), json!("1")]),
        "u64" => (vec![json!(0), json!(u64::MAX)], vec![json!(-1), json!(0.5), json!("1")]),
        "text" => (vec![json!("a")], vec![json!(1), Value::Null]),
        "bool" => (vec![json!(false), json!(true)], vec![json!(1), json!("true")]),
        "perm" => (
            ["none", "read", "read_write"].map(Value::from).to_vec(),
            vec![json!("write"), json!(1), Value::Null],
        ),
        "tier" => (
            ["core", "aggregation", "edge"].map(Value::from).to_vec(),
            vec![json!("leaf"), json!(1), Value::Null],
        ),
        "mode" => (
            ["shared", "read", "write"].map(Value::from).to_vec(),
            vec![json!("read_write"), json!(1), Value::Null],
        ),
        "texts" => (vec![json!([]), json!(["a", "b"])], vec![json!("a"), json!([1])]),
        "sections" => (
            vec![
                json!([]),
                json!([{"kind": 0, "id": 0, "bytes": ""}, {"kind": u16::MAX, "id": u64::MAX, "bytes": "AP8="}]),
            ],
            vec![
                json!([{"kind": 0, "id": 0, "bytes": "A"}]),
                json!([{"kind": 0, "id": 0}]),
                json!([{"kind": 0, "id": 0, "bytes": "", "colour": 1}]),
                json!(""),
            ],
        ),
        "names" => (
            vec![json!([]), json!([{"kind": 0, "id": 0}, {"kind": u16::MAX, "id": u64::MAX}])],
            vec![json!([{"kind": 0}]), json!([{"kind": 0, "id": 0, "bytes": ""}]), json!("")],
        ),
        "card" => {
            let card = |qpns: Value| json!({"domain": 1, "base": 4096, "rkey": 1, "queue_pairs": qpns});
            let mut lacks = card(json!([]));
            lacks.as_object_mut().unwrap().remove("rkey");
            (
                vec![card(json!([])), card(json!([0, u32::MAX]))],
                vec![card(json!(1)), lacks, json!({}), json!(1)],
            )
        }
        other => panic!("the table has the type {other:?}, which the text does not explain"),
    }
}

fn parse(name: &str, body: &Map<String, Value>) -> Result<(), ApiError> {
    server::parse(name, &serde_json::to_vec(body).unwrap()).map(drop)
}

/// The table and the enum have each request of the API, in the API's order.
#[test]
fn the_table_has_every_request() {
    let names: Vec<String> = rows().into_iter().map(|row| row.name).collect();
    assert_eq!(names, Request::NAMES);
    let error = serde_json::from_value::<Request>(json!({"op": "fly"})).unwrap_err();
    assert_eq!(quoted(&error.to_string())[1..], *Request::NAMES, "{error}");
}

/// Each request is accepted with the fields of its row, each at the extremes of its type, without the
/// optional ones. A request is refused without a mandatory field, with a value of another type, and with an
/// additional field. The refusal of the last lists the valid fields.
#[test]
fn each_request_takes_the_fields_of_its_row() {
    for Row { name, fields } in rows() {
        let whole: Map<String, Value> =
            fields.iter().map(|field| (field.name.clone(), values_of(&field.kind).0.remove(0))).collect();
        assert_eq!(parse(&name, &whole), Ok(()), "{name}");
        for field in &fields {
            let with = |value: Value| {
                let mut body = whole.clone();
                body.insert(field.name.clone(), value);
                parse(&name, &body)
            };
            let (good, bad) = values_of(&field.kind);
            for value in good {
                assert_eq!(with(value.clone()), Ok(()), "{name}: {field:?} is {value}");
            }
            for value in bad {
                assert!(with(value.clone()).is_err(), "{name}: {field:?} is {value}");
            }
            let mut body = whole.clone();
            body.remove(&field.name);
            let without = parse(&name, &body);
            assert_eq!(without.is_ok(), field.is_optional, "{name} without {field:?}: {without:?}");
            let is_named = without.err().is_none_or(|error| error.message.contains(&field.name));
            assert!(is_named, "{name} without {field:?} does not name it");
        }
        let mut more = whole;
        more.insert("colour".into(), json!(1));
        let message = parse(&name, &more).expect_err(&name).message;
        let listed: BTreeSet<String> = quoted(&message).into_iter().skip(1).collect();
        assert_eq!(listed, fields.into_iter().map(|field| field.name).collect(), "{name}: {message}");
    }
}

fn keys(value: &impl Serialize) -> Vec<String> {
    let value = serde_json::to_value(value).unwrap();
    value.as_object().unwrap().keys().filter(|key| *key != "is").cloned().collect()
}

const LIMITS: ConnectionLimits =
    ConnectionLimits { read_len_max: 0, write_len_max: 0, depth: 0, timeout: 0, retries: 0, rnr_retries: 0 };

/// Returns one of each answer.
fn answers() -> Vec<Response> {
    let home = endpoint();
    let key = "0".repeat(32).parse().ok();
    let overview = RackOverview {
        nodes: Vec::new(),
        hosts: Vec::new(),
        vmas: Vec::new(),
        moved: Vec::new(),
        domains: Vec::new(),
        balance_ppm: 0,
        index: vec![index()],
        switch: false,
        switch_answers: false,
        directory: DirectoryInfo::default(),
    };
    vec![
        SwitchJoined { home: home.clone(), control: home.clone(), key }.into(),
        NodeJoined { node: 0, home: home.clone(), control: home.clone(), base: 0, capacity: 0, key }.into(),
        IndexJoined { index: 0, home: home.clone(), control: home.clone(), key }.into(),
        HostJoined { host: 0, generation: 0, home: home.clone(), nodes: Vec::new(), cards: Vec::new(), key }
            .into(),
        SessionInfo { switch: home, domain: 0 }.into(),
        connection(),
        VMA.into(),
        LocatedVma { vma: VMA, moved: Vec::new(), lost: Vec::new() }.into(),
        overview.into(),
        RackUsage {
            hosts: vec![],
            domains: vec![],
            vmas: vec![],
            processes: vec![],
            builds: vec![],
            losses: LossCounts::default(),
            proofs: ProofCounts::default(),
        }
        .into(),
        ProcessInfo { process: 0, heap: 0 }.into(),
        Returned { value: 0 }.into(),
        LeaseInfo { lease_ms: 0, flush: 0 }.into(),
        ObjectInfo { object: 0, length: 0, base: 0, size: 0 }.into(),
        ObjectShown { object: 0, mode: OpenMode::Shared, hosts: Vec::new() }.into(),
        FileLooked { length: 0 }.into(),
        listed().into(),
        ObjectsListed { objects: vec![listed()] }.into(),
        DomainInfo { domain: 0, key }.into(),
        SoftLoaded { epoch: 0 }.into(),
        SoftShown::default().into(),
        SoftSection { kind: 0, id: 0, bytes: Base64(Vec::new()) }.into(),
        SoftCounted { epoch: 0, life: 0, edition: 0, counts: Base64(Vec::new()) }.into(),
        Response::Done {},
    ]
}

fn file() -> FileInfo {
    FileInfo { file: String::new(), stage: FileStage::Loaded, unsaved: false, done: 0, error: None }
}

fn listed() -> ObjectListed {
    ObjectListed {
        object: 0,
        domain: 0,
        name: None,
        length: 0,
        base: 0,
        size: 0,
        node: 0,
        mode: OpenMode::Read,
        hosts: Vec::new(),
        file: Some(file()),
    }
}

const VMA: VmaInfo = VmaInfo { id: 0, base: 0, size: 0, node: 0, domain: 0 };

/// Returns a connection through the switch, which has all fields.
fn connection() -> Response {
    let through = Some(place());
    ConnectionInfo {
        node: node(),
        qpn: 0,
        peer_qpn: 0,
        first_psn: 0,
        rkey: 0,
        pmtu: 0,
        limits: LIMITS,
        through,
    }
    .into()
}

fn place() -> RoleAddress {
    RoleAddress { port: 0, gid: String::new() }
}

fn endpoint() -> Endpoint {
    Endpoint { port: 0, gid: String::new(), qpn: 0, qkey: 0 }
}

fn index() -> IndexInfo {
    IndexInfo {
        index: 0,
        name: String::new(),
        gid: String::new(),
        tier: Tier::Core,
        below: Vec::new(),
        servers: Vec::new(),
        answers: false,
        epoch: 0,
    }
}

fn node() -> NodeInfo {
    let (name, gid) = (String::new(), String::new());
    NodeInfo {
        node: 0,
        name,
        port: 0,
        gid,
        base: 0,
        capacity: 0,
        allocated: 0,
        generation: 0,
        answers: true,
        lost: 0,
        card: 0,
    }
}

fn host_use() -> HostUse {
    let (name, domains) = (String::new(), Vec::new());
    let (host, generation, caches, lease_left_ms, connections, objects) = (0, 0, false, None, 0, 0);
    HostUse { host, name, generation, caches, lease_left_ms, domains, connections, objects }
}

fn domain_use() -> DomainUse {
    let (domain, name, hosts, idle_left_ms) = (0, String::new(), Vec::new(), None);
    let (processes, vmas, bytes, durable_bytes, objects, granted, lost) = (0, 0, 0, 0, 0, 0, 0);
    DomainUse {
        domain,
        name,
        hosts,
        idle_left_ms,
        processes,
        vmas,
        bytes,
        durable_bytes,
        objects,
        granted,
        lost,
    }
}

fn vma_use() -> VmaUse {
    VmaUse { id: 0, base: 0, size: 0, domain: 0, durable: false, granted_to: Vec::new() }
}

/// Each answer has the fields of its row, and so do the parts of answers. Every answer that a request names
/// has a row.
#[test]
fn each_answer_has_the_fields_of_its_row() {
    let host =
        HostInfo { host: 0, name: String::new(), gid: String::new(), generation: 0, acts_for: vec![(0, 0)] };
    let mut has = vec![
        ("(endpoint)".to_owned(), keys(&endpoint())),
        ("(node)".to_owned(), keys(&node())),
        ("(host)".to_owned(), keys(&host)),
        ("(index)".to_owned(), keys(&index())),
        ("(vma)".to_owned(), keys(&VMA)),
        ("(limits)".to_owned(), keys(&LIMITS)),
        ("(moved)".to_owned(), keys(&MovedInfo { base: 0, size: 0, node: 0 })),
        ("(lost)".to_owned(), keys(&LostInfo { base: 0, len: 0 })),
        ("(place)".to_owned(), keys(&place())),
        ("(directory)".to_owned(), keys(&DirectoryInfo::default())),
        ("(file)".to_owned(), keys(&file())),
        ("(host use)".to_owned(), keys(&host_use())),
        ("(build use)".to_owned(), keys(&BuildUse { build: String::new(), members: Vec::new() })),
        ("(losses)".to_owned(), keys(&LossCounts::default())),
        ("(proofs)".to_owned(), keys(&ProofCounts::default())),
        ("(domain use)".to_owned(), keys(&domain_use())),
        ("(vma use)".to_owned(), keys(&vma_use())),
    ];
    for answer in answers() {
        let name = serde_json::to_value(&answer).unwrap()["is"].as_str().map(|name| format!("`{name}`"));
        has.push((name.expect("an answer says which it is"), keys(&answer)));
    }
    let rows = table("answer");
    let sorted = |mut names: Vec<String>| {
        names.sort_unstable();
        names
    };
    assert_eq!(rows.len(), has.len());
    for (row, (name, keys)) in rows.iter().zip(has) {
        assert_eq!(row[0], name);
        assert_eq!(sorted(quoted(&row[1])), sorted(keys), "{name}");
    }
    for request in table("request") {
        assert!(rows.iter().any(|row| row[0] == request[2]), "{request:?}");
    }
    for mode in [OpenMode::Shared, OpenMode::Read, OpenMode::Write] {
        assert!(values_of("mode").0.contains(&serde_json::to_value(mode).unwrap()));
    }
    for perm in [PermName::None, PermName::Read, PermName::ReadWrite] {
        assert!(values_of("perm").0.contains(&serde_json::to_value(perm).unwrap()));
    }
}

/// The table names the answer of each request that the list of requests names.
#[test]
fn each_request_names_its_answer() {
    let answers = include_str!("../../../../control/src/api.rs").split("\nanswers! {\n").nth(1).unwrap();
    let variants = answers.split("\n}").next().unwrap().lines();
    let variants = variants.map(|line| line.trim_end_matches("),").trim().split_once('(').unwrap());
    let variants: Vec<(&str, &str)> = variants.chain([("Done", ")")]).collect();
    let calls = include_str!("../../../../control/src/api/calls.rs").split("\ncalls! {\n").nth(1).unwrap();
    let named = calls.lines().filter_map(|line| line.split_once(" -> ")).map(|(_, answer)| {
        let answer = answer.trim_end_matches(" {").trim_start_matches('(');
        let (variant, _) = variants.iter().find(|(_, kind)| *kind == answer).expect(answer);
        let mut snake = String::new();
        for letter in variant.chars() {
            if letter.is_ascii_uppercase() && !snake.is_empty() {
                snake.push('_');
            }
            snake.push(letter.to_ascii_lowercase());
        }
        format!("`{snake}`")
    });
    let table: Vec<String> = table("request").into_iter().map(|mut cells| cells.remove(2)).collect();
    assert_eq!(table, named.collect::<Vec<_>>());
}
