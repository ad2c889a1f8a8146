//! `rack.toml`: a valid file gives the rack it describes. Each broken rule is reported with file, line and
//! the expected value.

use farmem_client::config::CardsConfig;
use farmem_client::{Error, Execution, Placement, Prefetch, RackConfig, Transport, Waiting};
use farmem_machine::Duration;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};

/// A valid description; the cases below change one line of it.
const RIGHT: &str = r#"# name = "a comment with a key in it, on line 1"
name = "rack-1"
transport = "udp"
waiting = "block"
placement = "same-cpu"
cpu = 0

[control]
address = "127.71.0.1"
http = "127.0.0.1:7471"
state = "rack-state"

[switch]
address = "127.71.0.2"

[[node]]
name = "node1"
address = "127.71.0.11"
memory = "256 MiB"

[[node]]
name = "node2"
address = "127.71.0.12"
memory = 8192

[hosts]
first = "127.71.1.1"
count = 3
"#;

const FILE: &str = "somewhere/rack.toml";

fn parse(text: &str) -> Result<RackConfig, Error> {
    RackConfig::parse(text, Path::new(FILE))
}

/// Returns the complaint, after checking that the error is about this file and has a remedy.
fn complaint(text: &str) -> String {
    let error = parse(text).expect_err("it is wrong");
    assert!(matches!(error, Error::Config { .. }), "{error:?}");
    assert!(error.remedy().contains("farmem up --example"), "{}", error.remedy());
    let said = error.to_string();
    said.strip_prefix(&format!("{FILE}: "))
        .unwrap_or_else(|| panic!("{said:?} does not name the file"))
        .to_owned()
}

#[test]
fn a_description_becomes_a_rack() {
    let rack = parse(RIGHT).unwrap();
    let address = |third, fourth| IpAddr::V4(Ipv4Addr::new(127, 71, third, fourth));
    assert_eq!(
        (rack.name.as_str(), rack.transport, rack.waiting),
        ("rack-1", Transport::Udp, Waiting::Block)
    );
    assert_eq!((rack.placement, rack.cpu), (Placement::SameCpu, Some(0)));
    assert_eq!((rack.control.address, rack.switch.address), (address(0, 1), address(0, 2)));
    assert_eq!((rack.control.http, rack.control.listen), ("127.0.0.1:7471".parse().ok(), None));
    assert_eq!(rack.api_socket(), Path::new("somewhere/rack-state/api.sock"));
    let nodes: Vec<_> = rack.nodes.iter().map(|n| (n.name.as_str(), n.address, n.memory)).collect();
    assert_eq!(nodes, [("node1", address(0, 11), 256 << 20), ("node2", address(0, 12), 8192)]);
    assert_eq!(rack.hosts, [address(1, 1), address(1, 2), address(1, 3)]);
    assert_eq!(rack.control.state, Path::new("somewhere/rack-state"), "paths count from the file");
    assert_eq!(rack.token_file(), Path::new("somewhere/rack-state/token"));
    assert_eq!(rack.rings(), Path::new("/dev/shm/farmem-rack-1"));
    assert_eq!(rack.file, Path::new(FILE));
}

/// Each node runs machine code unless its section says otherwise.
#[test]
fn a_node_says_what_it_runs_programs_with() {
    let with = |line: &str| RIGHT.replace("memory = 8192\n", &format!("memory = 8192\n{line}\n"));
    let compile = |text: &str| -> Vec<_> { parse(text).unwrap().nodes.iter().map(|n| n.compile).collect() };
    assert_eq!(compile(RIGHT), [Execution::Jit; 2]);
    assert_eq!(compile(&with("compile = \"jit\"")), [Execution::Jit; 2]);
    assert_eq!(compile(&with("compile = \"interpreter\"")), [Execution::Jit, Execution::Interpreter]);
    let said = complaint(&with("compile = \"gcc\""));
    assert!(said.contains("`jit`") && said.contains("`interpreter`"), "{said}");
}

/// Each node probes how to prefetch cache lines unless its section says so.
#[test]
fn a_node_says_how_it_asks_the_caches() {
    let with = |line: &str| RIGHT.replace("memory = 8192\n", &format!("memory = 8192\n{line}\n"));
    let prefetch = |text: &str| -> Vec<_> { parse(text).unwrap().nodes.iter().map(|n| n.prefetch).collect() };
    assert_eq!(prefetch(RIGHT), [Prefetch::Auto; 2]);
    assert_eq!(prefetch(&with("prefetch = \"bursts\"")), [Prefetch::Auto, Prefetch::Bursts]);
    assert_eq!(prefetch(&with("prefetch = \"one-by-one\"")), [Prefetch::Auto, Prefetch::OneByOne]);
    let said = complaint(&with("prefetch = \"often\""));
    assert!(said.contains("`bursts`") && said.contains("`one-by-one`"), "{said}");
}

/// The settings of coherent memory, as written or by default.
#[test]
fn leases_epochs_and_slots() {
    let ms = Duration::from_millis;
    let told = |text: &str| {
        let rack = parse(text).unwrap();
        (rack.control.lease, rack.control.epoch, rack.switch.slots)
    };
    assert_eq!(told(RIGHT), (ms(10_000), ms(100), 30_000));
    let written = RIGHT
        .replace("state =", "lease_ms = 500\nepoch_ms = 20\nstate =")
        .replace("address = \"127.71.0.2\"", "address = \"127.71.0.2\"\nslots = 64");
    assert_eq!(told(&written), (ms(500), ms(20), 64));
}

/// The defaults of optional keys: sleeping, on one CPU, the first one.
#[test]
fn the_defaults() {
    let lines =
        RIGHT.lines().filter(|line| !["waiting", "placement", "cpu"].iter().any(|k| line.starts_with(k)));
    let rack = parse(&lines.collect::<Vec<_>>().join("\n")).unwrap();
    assert_eq!((rack.waiting, rack.placement, rack.cpu), (Waiting::Block, Placement::SameCpu, None));
    let absolute = parse(&RIGHT.replace("rack-state", "/var/lib/rack")).unwrap();
    assert_eq!(absolute.control.state, Path::new("/var/lib/rack"));
    let v6 = RIGHT.replace("\"127.71.", "\"fd00::").replace("::0.", "::0:").replace("::1.1", "::1:1");
    assert!(parse(&v6).unwrap().hosts.iter().all(IpAddr::is_ipv6), "a rack may be all IPv6");
}

/// The datagram length: as written, or the largest where no Ethernet link is involved.
#[test]
fn the_path_mtu() {
    let pmtu = |text: &str| parse(text).unwrap().pmtu.bytes();
    assert_eq!(pmtu(RIGHT), 4096, "loopback alone");
    let rings = RIGHT.replace("\"udp\"", "\"shm\"");
    assert_eq!(pmtu(&rings), 4096, "rings");
    for (role, address) in [("switch", "127.71.0.2"), ("node", "127.71.0.12"), ("client", "127.71.1.1")] {
        let elsewhere = RIGHT.replace(address, "192.0.2.7");
        assert_eq!(pmtu(&elsewhere), 1024, "a {role} that a link of 1500 bytes may lead to");
    }
    assert_eq!(pmtu(&rings.replace("127.71.0.2", "192.0.2.7")), 4096, "rings, whatever the addresses");
    for bytes in [256, 512, 1024, 2048, 4096] {
        assert_eq!(pmtu(&RIGHT.replace("cpu = 0", &format!("pmtu = {bytes}"))), bytes, "as written");
    }
}

/// The profile of the rack's links, by name or by values; unmodified links by default.
#[test]
fn a_link_has_a_profile() {
    let link = |value: &str| {
        parse(&RIGHT.replace("cpu = 0", &format!("link = \"{value}\""))).unwrap().link.to_string()
    };
    assert_eq!(parse(RIGHT).unwrap().link.to_string(), "none");
    assert_eq!(link("none"), "none");
    assert_eq!(link("rate=100gbit,delay=2us"), "100g-2us");
    assert_eq!(link("delay=5us"), "delay=5us");
}

/// (Line number, replacement, words of the complaint): every rule, with the line that breaks it, not a
/// similar one.
const BROKEN: &[(usize, &str, &[&str])] = &[
    (2, r#"name = """#, &["\"\" is no name for the rack", "1 to 64 of A-Z"]),
    (2, r#"name = "a/b""#, &["\"a/b\" is no name", "expected"]),
    (2, r#"name = "räck""#, &["is no name", "expected"]),
    (2, "name = 7", &["integer `7`", "expected a string"]),
    (3, r#"transport = "tcp""#, &["`tcp`", "expected `udp` or `shm`"]),
    (4, r#"waiting = "nap""#, &["`nap`", "expected `block` or `spin`"]),
    (5, r#"placement = "there""#, &["`there`", "expected `same-cpu` or `free`"]),
    (6, "cpu = -1", &["-1", "expected"]),
    (6, "pmtu = 1500", &["pmtu is 1500", "expected 256, 512, 1024", "4096 (jumbo links)"]),
    (6, "pmtu = -1", &["-1", "expected"]),
    (
        6,
        r#"link = "fast""#,
        &["link: no link profile is called \"fast\"", "100g-2us", "rate=25Gbit/s,delay=5us"],
    ),
    (6, r#"link = "rate=0bit/s""#, &["link: rate=0bit/s", "expected 1Mbit/s to 10Tbit/s"]),
    (
        6,
        r#"link = "rate=99999999999999999999Gbit/s""#,
        &["link: rate=99999999999999999999Gbit/s", "expected"],
    ),
    (6, r#"link = "delay=1s""#, &["link: delay=1s", "0us to 10ms"]),
    (6, "link = 5", &["integer `5`", "expected a string"]),
    (6, "colour = 1", &["unknown field `colour`", "expected one of"]),
    (6, "cpu = ", &["string values must be quoted"]),
    (9, r#"address = "localhost""#, &["the control plane", "\"localhost\"", "expected the IP address"]),
    (9, r#"address = "127.71.0.1:4791""#, &["the control plane", "expected the IP address"]),
    (9, r#"address = "0.0.0.0""#, &["0.0.0.0", "of one machine"]),
    (9, r#"address = "224.0.0.1""#, &["224.0.0.1", "of one machine"]),
    (9, r#"address = "255.255.255.255""#, &["255.255.255.255", "of one machine"]),
    (9, r#"address = "::""#, &["of one machine"]),
    (
        9,
        r#"adress = "127.71.0.1""#,
        &[
            "unknown field `adress`",
            "expected one of `address`, `listen`, `http`, `state`, `join`, `ca`, `certificate`, `key`, `lease_ms`, `host_lease_ms`, `domain_memory`, `epoch_ms`",
        ],
    ),
    (10, r#"http = "127.0.0.1""#, &["\"127.0.0.1\"", "expected an address and a port"]),
    (10, r#"http = "127.0.0.1:0""#, &["\"127.0.0.1:0\"", "1 to 65535"]),
    (10, r#"http = "127.0.0.1:70000""#, &["70000", "1 to 65535"]),
    (10, r#"http = "10.0.0.1:7471""#, &["\"10.0.0.1:7471\"", "expected a loopback address", "`listen`"]),
    (10, r#"listen = "0.0.0.0:7471""#, &["\"0.0.0.0:7471\"", "the certificate names it"]),
    (
        10,
        "ca = \"ca.pem\"\nlisten = \"127.0.0.1:7471\"",
        &["ca, certificate and key together", "none of them"],
    ),
    (10, "certificate = \"b\"\nca = \"a\"\nkey = \"c\"", &["certificates are for TLS", "`listen ="]),
    (11, r#"state = """#, &["state is empty", "expected a directory"]),
    (11, "lease_ms = 99\nstate = \"s\"", &["lease_ms is 99", "expected 100 to 600000"]),
    (11, "lease_ms = 600001\nstate = \"s\"", &["lease_ms is 600001", "expected 100 to 600000"]),
    (11, "lease_ms = -1\nstate = \"s\"", &["-1", "expected"]),
    (11, "epoch_ms = 0\nstate = \"s\"", &["epoch_ms is 0", "expected 1 to 60000"]),
    (14, "slots = 0\naddress = \"127.71.0.2\"", &["slots is 0", "expected 1 to 16777216"]),
    (14, "slots = 16777217\naddress = \"127.71.0.2\"", &["slots is 16777217", "expected 1 to 16777216"]),
    (14, r#"address = "127.71.0.1""#, &["the switch", "127.71.0.1", "taken", "its own"]),
    (14, r#"address = "::ffff:127.71.0.1""#, &["the switch", "127.71.0.1", "taken"]),
    (14, r#"address = "fd00::2""#, &["the switch", "fd00::2", "127.71.0.1", "all IPv6"]),
    (17, r#"name = "no de""#, &["\"no de\" is no name for a node", "expected"]),
    (19, r#"memory = "0 B""#, &["node \"node1\"", r#"memory = "0 B""#, "multiple of 4096"]),
    (19, r#"memory = "5000 B""#, &[r#"memory = "5000 B""#, "multiple of 4096"]),
    (19, r#"memory = "a lot""#, &["\"a lot\"", "expected a multiple of 4096"]),
    (19, "memory = 4096.5", &["4096.5", "expected a multiple of 4096"]),
    (19, r#"memory = "1 XiB""#, &["1 XiB", "such as \"256 MiB\""]),
    (19, "memory = -4096", &["-4096", "expected"]),
    (22, r#"name = "node1""#, &["\"node1\"", "a name of its own"]),
    (23, r#"address = "127.71.0.11""#, &["node \"node2\"", "127.71.0.11", "taken"]),
    (23, r#"address = "127.71.0.1""#, &["node \"node2\"", "127.71.0.1,", "taken"]),
    (24, r#"memory = "1000 B""#, &["node \"node2\"", "1000 B"]),
    (27, r#"first = "127.71.0""#, &["the first client", "\"127.71.0\"", "expected the IP address"]),
    (27, r#"first = "fd00::1""#, &["the first client", "all IPv6"]),
    (27, r#"first = "127.71.0.10""#, &["127.71.0.11", "none that a role has"]),
    (27, r#"first = "127.71.0.2""#, &["127.71.0.2", "none that a role has"]),
    (28, "count = 0", &["count is 0", "expected 1 to 4096"]),
    (28, "count = 4097", &["count is 4097", "expected 1 to 4096"]),
    (28, "count = -1", &["-1", "expected"]),
];

#[test]
fn each_broken_rule_is_named_with_its_line() {
    for (number, line, expected) in BROKEN {
        let mut lines: Vec<&str> = RIGHT.lines().collect();
        lines[number - 1] = line;
        let said = complaint(&lines.join("\n"));
        assert!(said.starts_with(&format!("line {number}: ")), "{line}: {said}");
        for words in *expected {
            assert!(said.contains(words), "{line}: {said:?} does not say {words:?}");
        }
    }
}

/// A list of client addresses that ends after the last IPv4 address.
#[test]
fn clients_stay_inside_the_address_space() {
    for first in ["255.255.255.253", "223.255.255.254"] {
        let said = complaint(&RIGHT.replace("127.71.1.1", first));
        assert!(said.starts_with("line 28: 3 clients' addresses"), "{said}");
    }
}

/// The description says whether cards are peers of the rack, and farmem reports the cost (PROTOCOL 14.9).
/// Settings without any effect are errors: cards over rings, and identifications, which IPv6 lacks.
#[test]
fn cards_are_peers_when_the_description_says_so() {
    let with = |cards: &str| RIGHT.replace("[control]", &format!("{cards}\n[control]"));
    assert_eq!(parse(RIGHT).unwrap().cards, None);
    assert_eq!(parse(RIGHT).unwrap().cards_cost(), None);
    let ports = parse(&with("[cards]")).unwrap();
    assert_eq!(ports.cards, Some(CardsConfig { unknown_ip_id: false }));
    // Traffic to cards is paced unless the description says otherwise (PROTOCOL 14.11).
    assert_eq!(ports.link, "rate=10Gbit/s,burst=64KiB".parse().unwrap());
    assert!(parse(&with("link = \"none\"\n[cards]")).unwrap().link.is_none());
    assert!(parse(RIGHT).unwrap().link.is_none());
    let (cost, _) = ports.cards_cost().unwrap();
    assert!(cost.contains("any UDP port") && !cost.contains("ICRC"), "{cost}");
    let ids = parse(&with("[cards]\nunknown_ip_id = true")).unwrap();
    let (cost, remedy) = ids.cards_cost().unwrap();
    assert!(cost.contains("ICRC") && cost.contains("65536") && remedy.contains("IPv6"), "{cost}: {remedy}");
    let v6 = ["127.71.0.11", "127.71.0.12", "127.71.0.1\"", "127.71.0.2", "127.71.1.1"].into_iter().zip(3..);
    let v6 = v6.fold(with("[cards]\nunknown_ip_id = true"), |text, (v4, n)| {
        let quote = if v4.ends_with('"') { "\"" } else { "" };
        text.replace(v4, &format!("fd00::{n}{quote}"))
    });
    let said = complaint(&v6);
    assert!(said.starts_with("line 8: unknown_ip_id") && said.contains("IPv6"), "{said}");
    assert!(parse(&v6.replace("unknown_ip_id = true", "")).is_ok());
    let said = complaint(&with("[cards]").replace("\"udp\"", "\"shm\""));
    assert!(said.starts_with("line 8: [cards]") && said.contains("udp"), "{said}");
    let said = complaint(&with("[cards]\ncolour = 1"));
    assert!(said.starts_with("line 9: ") && said.contains("colour"), "{said}");
}

/// Each missing mandatory line is reported, with its table.
#[test]
fn a_missing_value_is_named() {
    let cases = [
        ("name", 2, 1),
        ("transport", 3, 1),
        ("address", 9, 8),
        ("state", 11, 8),
        ("address", 14, 13),
        ("name", 17, 16),
        ("address", 18, 16),
        ("memory", 19, 16),
        ("memory", 24, 21),
        ("first", 27, 26),
        ("count", 28, 26),
    ];
    for (key, number, table) in cases {
        let lines = RIGHT.lines().enumerate().filter(|(n, _)| n + 1 != number);
        let said = complaint(&lines.map(|(_, line)| line).collect::<Vec<_>>().join("\n"));
        assert_eq!(said, format!("line {table}: missing field `{key}`"));
    }
    let without_nodes = RIGHT.split("[[node]]").next().unwrap();
    let said = complaint(&format!("{without_nodes}[hosts]\nfirst = \"127.71.1.1\"\ncount = 1\n"));
    assert!(said.contains("missing field `node`"), "{said}");
    let empty = without_nodes.replace("cpu = 0", "node = []");
    let said = complaint(&format!("{empty}[hosts]\nfirst = \"127.71.1.1\"\ncount = 1\n"));
    assert_eq!(said, "line 6: expected at least one [[node]]");
    assert!(complaint("").contains("missing field"));
}

/// A missing file, a directory, and a file that is not text.
#[test]
fn a_file_that_cannot_be_read_is_named() {
    let missing = RackConfig::load(Path::new("/no/such/rack.toml")).unwrap_err();
    assert!(missing.to_string().starts_with("/no/such/rack.toml: cannot be read: No such file"), "{missing}");
    assert!(missing.remedy().contains("farmem up --example"));
    let directory = RackConfig::load(Path::new("/tmp")).unwrap_err().to_string();
    assert!(directory.contains("/tmp: cannot be read") && directory.contains("directory"), "{directory}");
    let file: PathBuf = std::env::temp_dir().join(format!("farmem-config-{}", std::process::id()));
    std::fs::write(&file, [0xff; 64]).unwrap();
    let binary = RackConfig::load(&file).unwrap_err().to_string();
    std::fs::remove_file(&file).unwrap();
    assert!(binary.contains("cannot be read") && binary.contains("UTF-8"), "{binary}");
}

/// A program loads `rack.toml` by a relative path and changes its directory: the paths in the file still
/// resolve.
#[test]
fn a_program_may_go_elsewhere() {
    let folder = tempfile::tempdir().unwrap();
    let text = RIGHT
        .replace("memory = 8192", "memory = 8192\nfiles = \"files\"")
        .replace("[hosts]", "[dpu]\nsocket = \"socket\"\n[hosts]");
    std::fs::write(folder.path().join("rack.toml"), text).unwrap();
    let here = std::env::current_dir().unwrap();
    let up: PathBuf = here.components().skip(1).map(|_| "..").collect();
    let relative = up.join(folder.path().strip_prefix("/").unwrap()).join("rack.toml");
    assert!(relative.is_relative());
    let rack = RackConfig::load(&relative).unwrap();
    let files = rack.nodes[1].files.clone().unwrap();
    let socket = rack.dpu.clone().unwrap().socket;
    for path in [rack.api_socket(), rack.token_file(), rack.operator_file(), files, socket, rack.file] {
        assert!(path.is_absolute(), "{}", path.display());
    }
}

/// Returns the positions of the numbers in a text.
fn numbers(text: &str) -> Vec<(usize, usize)> {
    let bytes = text.as_bytes();
    let is_first = |at: &usize| bytes[*at].is_ascii_digit() && (*at == 0 || !bytes[at - 1].is_ascii_digit());
    let starts = (0..bytes.len()).filter(is_first);
    let len = |start: usize| bytes[start..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    starts.map(|start| (start, start + len(start))).collect()
}

/// Numbers at the edges of types and of a rack's bounds, and invalid ones.
const EDGES: [&str; 22] = [
    "",
    "-1",
    "0",
    "1",
    "2",
    "62",
    "63",
    "64",
    "99",
    "100",
    "4095",
    "4096",
    "4097",
    "65535",
    "65536",
    "600001",
    "86400001",
    "4294967295",
    "4294967296",
    "9223372036854775807",
    "18446744073709551615",
    "1e999",
];

/// Each number of a description is replaced by edge values: the error names the line, or the rack is within
/// its bounds.
#[test]
fn each_number_of_a_description_may_be_wrong() {
    let full = RIGHT
        .replace("cpu = 0\n", "cpu = 0\npmtu = 1024\nlink = \"rate=10Gbit/s,delay=5us,burst=64KiB\"\n")
        .replace("state = ", "lease_ms = 10000\nhost_lease_ms = 60000\nepoch_ms = 100\nlisten = \"127.0.0.1:7472\"\nstate = ")
        .replace("[[node]]\nname = \"node1\"", "slots = 30000\n\n[[node]]\nname = \"node1\"")
        .replace(
            "[hosts]",
            "[dpu]\ncache = 1073741824\nstatic = \"64 MiB\"\npage = 65536\nentry = 1048576\nbatch = 64\nthreads = 2\nconnections = 3\n\
             link = \"rate=10Gbit/s\"\ncpu = 1\nslowdown = 2.5\nmirror = [\"eth0 10.0.0.5:6379\", \"lo [fd08::1]:80\"]\n\n[hosts]",
        );
    let right = parse(&full).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(right.dpu.as_ref().map(|dpu| (dpu.threads, dpu.connections.get())), Some((2, 3)));
    // The default is one connection, however long the path to the memory nodes.
    let unsaid = full.replace("connections = 3\n", "");
    for text in [unsaid.replace("delay=5us", "delay=500us"), unsaid] {
        let rack = parse(&text).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(rack.dpu.as_ref().map(|dpu| dpu.connections.get()), Some(1));
    }
    let mut wrong = 0;
    for (start, end) in numbers(&full) {
        for edge in EDGES {
            let text = format!("{}{edge}{}", &full[..start], &full[end..]);
            let rack = match parse(&text) {
                Ok(rack) => rack,
                Err(error) => {
                    let said = error.to_string();
                    let line =
                        said.strip_prefix(&format!("{FILE}: line ")).and_then(|said| said.split(':').next());
                    let line: usize =
                        line.and_then(|line| line.parse().ok()).unwrap_or_else(|| panic!("{said}"));
                    assert!((1..=text.lines().count()).contains(&line), "{said}");
                    wrong += 1;
                    continue;
                }
            };
            let ms = |span: Duration| span.as_nanos() / 1_000_000;
            assert!((100..=600_000).contains(&ms(rack.control.lease)));
            assert!((ms(rack.control.lease)..=86_400_000).contains(&ms(rack.control.host_lease)));
            assert!((1..=4096).contains(&rack.hosts.len()));
            assert!(rack.nodes.iter().all(|node| node.memory > 0 && node.memory % 4096 == 0));
            assert!((1..=1 << 24).contains(&rack.switch.slots));
            let dpu = rack.dpu.as_ref().expect("it has one");
            assert!(dpu.page > 0 && dpu.entry % u64::from(dpu.page) == 0 && dpu.cache >= dpu.entry);
            assert!(dpu.mirror.iter().all(|one| one.server.port() > 0 && one.interface.len() < 16));
            assert!(!format!("{rack:?} {dpu}").is_empty());
        }
    }
    assert!(wrong > 300, "{wrong} wrong numbers were named");
}

/// A damaged join file: each number replaced, each line removed, doubled or cut. The error states the fault,
/// or the file yields the right authority. An invalid token is not sent.
#[test]
fn each_number_of_a_join_file_may_be_wrong() {
    use farmem_client::config::Join;
    use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state");
    std::fs::DirBuilder::new().mode(0o700).create(&state).unwrap();
    let write = |path: &Path, text: &str| {
        use std::io::Write as _;
        let file = std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path);
        file.unwrap().write_all(text.as_bytes()).unwrap();
    };
    write(&state.join("token"), &"0123456789abcdef".repeat(2));
    let with_state = RIGHT.replace("rack-state", state.to_str().unwrap());
    let rack = parse(&with_state.replace("state =", "listen = \"127.0.0.1:7472\"\nstate =")).unwrap();
    let right = rack.join().unwrap();
    let (text, file) = (right.text("rack-1"), folder.path().join("join"));
    let mut wrong = 0;
    let mut read = |text: &str| {
        write(&file, text);
        match Join::read(&file) {
            Ok(join) => {
                // The fingerprint is that of the certificate in the file; text around the certificate may be
                // damaged.
                assert_eq!(join.sha256, right.sha256);
                assert!(join.address.port() > 0 && join.token.bytes().all(|byte| byte.is_ascii_graphic()));
            }
            Err(Error::Join { file: named, why }) => {
                assert!(named == file && !why.is_empty());
                wrong += 1;
            }
            Err(error) => panic!("{error:?}"),
        }
    };
    read(&text);
    for (start, end) in numbers(&text) {
        for edge in EDGES {
            read(&format!("{}{edge}{}", &text[..start], &text[end..]));
        }
    }
    let lines: Vec<&str> = text.lines().collect();
    for at in 0..lines.len() {
        let mut fewer = lines.clone();
        fewer.remove(at);
        read(&fewer.join("\n"));
        let mut doubled = lines.clone();
        doubled.insert(at, lines[at]);
        read(&doubled.join("\n"));
        read(&lines[..at].join("\n"));
    }
    for token in ["", " ", "a b", "a\\nb", "a\\u0000b", "ä"] {
        read(&text.replace(&right.token, token));
    }
    assert!(wrong > 100, "{wrong} damaged files were named");
}

/// A description that is cut anywhere, or has any byte replaced, gives a rack or a complaint, never a panic.
#[test]
fn no_text_panics() {
    for cut in 0..RIGHT.len() {
        let text = &RIGHT[..cut];
        drop(parse(text));
        for strange in ["\0", "\"", "[", "9", "\n", "="] {
            drop(parse(&format!("{text}{strange}{}", &RIGHT[cut + 1..])));
        }
    }
}

/// The example of a FatTree of k = 4 (Fat-B+Tree IV-A), and each of its rules, broken.
#[test]
fn a_fat_tree_is_described() {
    let example = include_str!("../../../../docs/fat-tree-rack.toml");
    let rack = parse(example).unwrap();
    let tiers: Vec<&str> = rack.index.iter().map(|switch| switch.tier.name()).collect();
    assert_eq!(tiers, [&["core"][..], &["aggregation"; 4], &["edge"; 8]].concat());
    let below: Vec<&String> = rack.index.iter().flat_map(|switch| &switch.below).collect();
    assert_eq!(
        (below.len(), rack.nodes.len()),
        (4 + 8 + 8, 8),
        "all but the core, and all nodes, are below one"
    );
    assert!(parse(RIGHT).unwrap().index.is_empty(), "a rack needs none");

    let core = "name = \"core\"\naddress = \"127.71.0.21\"\ntier = \"core\"\n";
    let edge = "[[index-switch]]\nname = \"edge\"\naddress = \"127.71.0.31\"\ntier = \"edge\"\nbelow = [\"node1\"]\n";
    let with = |more: &str| format!("{RIGHT}\n[[index-switch]]\n{more}");
    assert_eq!(parse(&with(&format!("{core}below = [\"edge\"]\n{edge}"))).unwrap().index.len(), 2);
    for (more, said) in [
        (format!("{core}below = []"), "index-switch \"core\" has nothing below it: expected names"),
        (
            format!("{core}below = [\"pod1\"]"),
            "\"pod1\" is below it: expected a node, or an index-switch of a lower tier",
        ),
        (
            format!("{core}below = [\"node1\", \"node1\"]"),
            "\"node1\" is below it: expected each name below one switch",
        ),
        (
            format!("{core}below = [\"edge\", \"node1\"]\n{edge}"),
            "\"node1\" is below it: expected each name below one switch",
        ),
        (
            format!("{core}below = [\"node1\"]\n{}", edge.replace("\"node1\"", "\"core\"")),
            "\"core\" is below it: expected a node, or an index-switch of a lower tier",
        ),
        (
            format!(
                "{core}below = [\"node1\"]\n[[index-switch]]\nname = \"other\"\naddress = \"127.71.0.22\"\ntier = \"core\"\nbelow = [\"node2\"]"
            ),
            "\"other\" is a second core: expected one core that leads to all servers",
        ),
        (
            format!("{core}below = [\"node1\"]").replace("\"core\"\na", "\"node2\"\na"),
            "\"node2\" is the name of another one, or of a node: expected a name of its own",
        ),
        (
            format!("{core}below = [\"node1\"]").replace("0.21", "0.11"),
            "index-switch \"core\" has the address 127.71.0.11, which is taken",
        ),
        (
            format!("{core}below = [\"node1\"]").replace("tier = \"core\"", "tier = \"leaf\""),
            "expected one of `core`, `aggregation`, `edge`",
        ),
    ] {
        let complained = complaint(&with(&more));
        assert!(complained.contains(said), "{complained}");
    }
}
