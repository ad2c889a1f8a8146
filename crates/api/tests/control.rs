//! A complete control plane: HTTP client, server, role, and log in a file. The tests restart it, let its disk
//! fail, grow its log, and connect a switch that loads an image.

use farmem_api::{ApiCallError, ApiClient, ApiServer, ControlStore, run_control};
use farmem_control::api::*;
use farmem_control::{COMPACT_LINES_MIN, Config, Control, Log as _, Record, Submitted};
use farmem_link::{Clock, Driver, Link as _, Stop, UdpConfig, UdpLink, os_seed, parse_gid, run};
use farmem_machine::{Event, Instant, Machine as _, Outbox, Port, Rng};
use farmem_switch::{Budgets, Note, Switch};
use farmem_transport::image::{Image, SectionKey};
use farmem_transport::ud;
use farmem_wire::message::SOFT_PART_MAX;
use farmem_wire::{Domain, Gid, Qkey, Qpn};
use redb::backends::FileBackend;
use redb::{Database, DatabaseError, StorageBackend};
use std::fs::{self, OpenOptions};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::thread::JoinHandle;

const TOKEN: &str = "the rack's token";

/// A control plane in a thread, until its drop.
struct Plane {
    server: Option<ApiServer>,
    thread: Option<JoinHandle<()>>,
    stop: Stop,
    address: SocketAddr,
}

impl Plane {
    fn start(state: &Path) -> Self {
        Self::start_on(ControlStore::open(state).unwrap())
    }

    fn start_on((store, records): (ControlStore, Vec<Record>)) -> Self {
        let gid = free_gid();
        let control =
            Control::restore(Config::new(gid), Rng::from_seed(os_seed().unwrap()), records).unwrap();
        let control = control.with_log(Box::new(store));
        let link = UdpLink::open(&UdpConfig::new(gid)).unwrap();
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let (server, calls) = ApiServer::start(any, TOKEN, link.waker().unwrap()).unwrap();
        let address = server.address();
        let stop = Stop::new();
        let theirs = stop.clone();
        let thread = std::thread::spawn(move || {
            let mut driver = Driver::new(control, link, Clock::start());
            run_control(&mut driver, &calls, &theirs).unwrap();
        });
        Self { server: Some(server), thread: Some(thread), stop, address }
    }

    fn client(&self) -> ApiClient {
        ApiClient::new(self.address, TOKEN)
    }
}

/// Returns an address of this process, because tests run concurrently.
fn free_gid() -> Gid {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    parse_gid(&format!("127.71.210.{}", NEXT.fetch_add(1, Ordering::Relaxed))).unwrap()
}

impl Drop for Plane {
    fn drop(&mut self) {
        self.stop.set();
        self.thread.take().unwrap().join().unwrap();
        drop(self.server.take());
    }
}

struct State(PathBuf);

impl Drop for State {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Two domains are created, and the control plane is restarted from its log. Both domains exist under their
/// numbers, and a third gets a new one. Invalid requests in between are refused with a code and a remedy, and
/// change nothing.
#[test]
fn answered_changes_survive_a_restart() {
    let state = State(std::env::temp_dir().join(format!("farmem-test-control-{}", std::process::id())));
    let domain = |client: &mut ApiClient, name: &str| create(client, name).unwrap();
    let refused = |client: &mut ApiClient, request: Request| match client.call(request) {
        Err(ApiCallError::Refused(error)) if !error.remedy.is_empty() => error.code,
        other => panic!("{other:?}"),
    };
    let plane = Plane::start(&state.0);
    let mut client = plane.client();
    let (red, blue) = (domain(&mut client, "red"), domain(&mut client, "blue"));
    assert_ne!(red, blue);
    assert_eq!(domain(&mut client, "red"), red, "found, not made");

    let grant = Grant { domain: red, base: 0x1000, len: 1, to: blue, perm: PermName::Read };
    assert_eq!(refused(&mut client, grant.into()), ErrorCode::NotFound);
    let allocate = Allocate { domain: 999, size: 1, node: None, durable: false };
    assert_eq!(refused(&mut client, allocate.into()), ErrorCode::NotFound);
    let mut stranger = ApiClient::new(plane.address, "a guess");
    assert_eq!(refused(&mut stranger, Overview {}.into()), ErrorCode::Unauthorized);
    let second = ControlStore::open(&state.0).unwrap_err().to_string();
    assert!(second.contains("another instance is running on the state in"), "{second}");

    drop(plane);
    assert!(matches!(client.call(Overview {}), Err(ApiCallError::Unreachable { .. })));
    let plane = Plane::start(&state.0);
    let mut client = plane.client();
    let RackOverview { domains, nodes, .. } = client.call(Overview {}).unwrap();
    assert_eq!((domains, nodes), (vec![(red, "red".into()), (blue, "blue".into())], vec![]));
    let green = domain(&mut client, "green");
    assert!(![red, blue].contains(&green));
}

/// The state of a disk.
const WELL: u8 = 0;
const NO_ROOM: u8 = 1;
const NO_SYNC: u8 = 2;
const NO_GROWTH: u8 = 3;

/// A file on a disk that fails on the test's command, at redb's interface for storage.
#[derive(Debug)]
struct Failing {
    file: FileBackend,
    disk: Arc<AtomicU8>,
}

impl Failing {
    fn fails(&self, at: u8, with: i32) -> io::Result<()> {
        let broken = self.disk.load(Ordering::Relaxed) == at;
        if broken { Err(io::Error::from_raw_os_error(with)) } else { Ok(()) }
    }
}

/// Maximum number of attempts, far more than fit in the control plane's pause.
const TRIES_MAX: u32 = 100_000;
/// Error numbers ENOSPC and EIO.
const FULL: i32 = 28;
const BROKEN: i32 = 5;

impl StorageBackend for Failing {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.fails(NO_GROWTH, FULL)?;
        self.file.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.fails(NO_SYNC, BROKEN)?;
        self.file.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.fails(NO_ROOM, FULL)?;
        self.file.write(offset, data)
    }
}

fn open_failing(state: &Path, disk: &Arc<AtomicU8>) -> (ControlStore, Vec<Record>) {
    let disk = Arc::clone(disk);
    let open = move |file: &Path| -> Result<Database, DatabaseError> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(file);
        let file = FileBackend::new(file.map_err(redb::StorageError::from)?)?;
        Database::builder().create_with_backend(Failing { file, disk: Arc::clone(&disk) })
    };
    ControlStore::open_by(state, open).unwrap()
}

fn state_of(test: &str) -> State {
    State(std::env::temp_dir().join(format!("farmem-test-control-{test}-{}", std::process::id())))
}

/// Creates a domain, or returns the error.
fn create(client: &mut ApiClient, name: &str) -> Result<u32, ApiError> {
    match client.call(CreateDomain { name: name.into() }) {
        Ok(made) => Ok(made.domain),
        Err(ApiCallError::Refused(error)) => Err(error),
        other => panic!("{other:?}"),
    }
}

fn domains(client: &mut ApiClient) -> Vec<String> {
    client.call(Overview {}).unwrap().domains.into_iter().map(|(_, name)| name).collect()
}

/// The disk accepts no bytes, cannot be synced, or its file cannot grow. A change is refused with `storage`,
/// the file and a remedy, and has no effect; reads are answered. When the disk works again, the same control
/// plane accepts changes. After a restart, exactly the answered changes exist, although a failed line may
/// have reached the file (PROTOCOL 8.48).
#[test]
fn a_disk_that_fails_costs_changes_and_nothing_else() {
    for fault in [NO_ROOM, NO_SYNC, NO_GROWTH] {
        let state = state_of(&format!("failing-{fault}"));
        let disk = Arc::new(AtomicU8::new(WELL));
        let plane = Plane::start_on(open_failing(&state.0, &disk));
        let mut client = plane.client();
        let mut made = vec!["first".to_owned()];
        create(&mut client, "first").unwrap();
        for round in 0..3 {
            disk.store(fault, Ordering::Relaxed);
            // A file that cannot grow still has space for some lines.
            let error = loop {
                let name = format!("r{round}d{}", made.len());
                match create(&mut client, &name) {
                    Ok(_) => made.push(name),
                    Err(error) => break error,
                }
                assert!(made.len() < 60_000, "a file that cannot grow takes this much?");
            };
            assert_eq!(error.code, ErrorCode::Storage, "{error:?}");
            let file = state.0.join("control.redb").display().to_string();
            assert!(error.message.contains(&file) && error.message.contains("bytes free"), "{error:?}");
            assert!(error.message.ends_with("nothing was changed"), "{error:?}");
            assert!(error.remedy.contains(&file), "{error:?}");
            assert_eq!(domains(&mut client), made);
            disk.store(WELL, Ordering::Relaxed);
            let name = format!("again{round}");
            // The control plane tries the disk again after a pause.
            let taken = (0..TRIES_MAX).any(|_| create(&mut client, &name).is_ok());
            assert!(taken, "changes are taken again");
            made.push(name);
            assert_eq!(domains(&mut client), made);
        }
        drop(plane);
        let plane = Plane::start(&state.0);
        assert_eq!(domains(&mut plane.client()), made, "fault {fault}");
    }
}

/// A host joins and leaves repeatedly. The log is rewritten while it grows, and its file stays as small as
/// after a few rewrites (PROTOCOL 8.50).
#[test]
fn a_log_that_grows_stays_a_small_file() {
    // The files are in memory, because a disk makes this slow without a difference.
    let memory = PathBuf::from("/dev/shm");
    let directory = if memory.is_dir() { memory } else { std::env::temp_dir() };
    let state = State(directory.join(format!("farmem-test-log-{}", std::process::id())));
    let (store, records) = ControlStore::open(&state.0).unwrap();
    let gid = parse_gid("127.71.210.200").unwrap();
    let mut control =
        Control::restore(Config::new(gid), Rng::from_number(1), records).unwrap().with_log(Box::new(store));
    let mut out = Outbox::new();
    let mut sizes = Vec::new();
    for _ in 0..12 {
        for _ in 0..COMPACT_LINES_MIN / 2 {
            let join = JoinHost::new("h".into(), "127.71.210.201".into());
            for request in [join.into(), Leave::new(0x1_0001).into()] {
                control.handle(Instant::ZERO, Event::Local(Submitted::new(1, request)), &mut out);
            }
            out.drain(|_| ());
        }
        sizes.push(fs::metadata(state.0.join("control.redb")).unwrap().len());
    }
    let rows = control.compact();
    drop(control);
    let (store, records) = ControlStore::open(&state.0).unwrap();
    assert!(store.lines() <= COMPACT_LINES_MIN, "{} lines", store.lines());
    let again = Control::restore(Config::new(gid), Rng::from_number(2), records).unwrap();
    assert_eq!(again.compact(), rows);
    // The store allocates space in large steps, and frees it later. The size in one round is random; the
    // maximum is not.
    let (first, later) = sizes.split_at(6);
    assert!(later.iter().max() <= first.iter().max(), "the file grows: {sizes:?}");
}

/// Numbers of image parts that a switch accepted and refused, and of active images.
#[derive(Debug, Default)]
struct Counts {
    loaded: AtomicU64,
    not_taken: AtomicU64,
    flipped: AtomicU64,
}

/// A switch over sockets, in a thread, until its end.
struct SwitchThread {
    thread: JoinHandle<Switch>,
    stop: Stop,
    counts: Arc<Counts>,
}

impl SwitchThread {
    fn join(client: &mut ApiClient, gid: Gid) -> Self {
        let mut link = UdpLink::open(&UdpConfig::new(gid)).unwrap();
        let text = gid.as_v4().map(|v4| Ipv4Addr::from(v4).to_string()).unwrap();
        let SwitchJoined { home, control, .. } = client.call(JoinSwitch { gid: text }).unwrap();
        let key = |of: &Endpoint| ud::Endpoint { qpn: Qpn::new(of.qpn), qkey: Qkey(of.qkey) };
        link.set_peer(Port::CONTROL, Some(parse_gid(&control.gid).unwrap())).unwrap();
        let control = ud::Peer { port: Port::CONTROL, endpoint: key(&control) };
        let switch = Switch::new(ud::RoleEndpoints { endpoint: key(&home), control }, Budgets::default());
        let (stop, counts) = (Stop::new(), Arc::new(Counts::default()));
        let (theirs, seen) = (stop.clone(), Arc::clone(&counts));
        let thread = std::thread::spawn(move || {
            let mut driver = Driver::new(switch, link, Clock::start());
            driver.watch_notes(move |_, note| {
                let count = match note {
                    Note::SoftLoaded => &seen.loaded,
                    Note::SoftNotTaken => &seen.not_taken,
                    Note::SoftFlipped => &seen.flipped,
                    _ => return,
                };
                count.fetch_add(1, Ordering::Relaxed);
            });
            run(&mut driver, &theirs, &mut |_, _| {}).unwrap();
            driver.into_parts().0
        });
        Self { thread, stop, counts }
    }

    fn end(self) -> Switch {
        self.stop.set();
        self.thread.join().unwrap()
    }
}

/// A host that has joined with a session in a domain, so that it may publish. The host runs no program.
struct JoinedHost {
    host: u16,
    domain: u32,
}

impl JoinedHost {
    fn with_session(client: &mut ApiClient) -> Self {
        let gid = free_gid().as_v4().map(|v4| Ipv4Addr::from(v4).to_string()).unwrap();
        let HostJoined { host, .. } = client.call(JoinHost::new("publisher".into(), gid)).unwrap();
        let DomainInfo { domain, .. } = client.call(CreateDomain { name: "index".into() }).unwrap();
        client.call(OpenSession { host, domain }).unwrap();
        Self { host, domain }
    }
}

/// PROTOCOL 13.8: 600 ranges and three sets of 3,600 nodes of 256 bytes reach a switch over HTTP and sockets,
/// and become active unchanged. Each part is accepted once. A restarted switch is empty, and receives the
/// image again.
#[test]
fn an_image_goes_to_a_switch_over_sockets() {
    let state = State(std::env::temp_dir().join(format!("farmem-test-image-{}", std::process::id())));
    let plane = Plane::start(&state.0);
    let mut client = plane.client();
    let gid = free_gid();
    let switch = SwitchThread::join(&mut client, gid);
    let JoinedHost { host, domain } = JoinedHost::with_session(&mut client);
    let key = |kind, id| SectionKey { domain: Domain(domain), kind, id };
    let bytes =
        |n: usize, with: u8| (0..n).map(|at| with.wrapping_add(at.to_le_bytes()[1])).collect::<Vec<u8>>();
    let mut sections = vec![(key(1, 0), bytes(600 * 24, 1))];
    sections.extend((0..3).map(|id: u8| (key(2, id.into()), bytes(3600 * 256, 50 + id))));
    let image =
        Image::of(&sections.iter().map(|(key, bytes)| (*key, &bytes[..])).collect::<Vec<_>>()).unwrap();
    let section = |(key, bytes): &(SectionKey, Vec<u8>)| SoftSection {
        kind: key.kind,
        id: key.id,
        bytes: Base64(bytes.clone()),
    };
    let load = SoftLoad { host, domain, sections: sections.iter().map(section).collect(), switch: None };
    let SoftLoaded { epoch } = client.call(load.clone()).unwrap();
    let (len, digest) = (image.len(), image.digest().to_string());
    let stands = SoftShown { epoch, bytes: len, digest, ..SoftShown::default() };
    assert_eq!(client.call(SoftShow { switch: None }).unwrap(), stands);
    assert_eq!(client.call(load).unwrap(), SoftLoaded { epoch }, "again: it stands already");
    let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
    let parts = u64::from(len).div_ceil(SOFT_PART_MAX as u64);
    assert_eq!((count(&switch.counts.loaded), count(&switch.counts.flipped)), (parts, 1));
    let again = count(&switch.counts.not_taken);
    assert!(again <= parts, "{again} of {parts} parts came again");
    let switch = switch.end();
    assert_eq!(switch.soft().image().bytes(), image.bytes());

    let switch = SwitchThread::join(&mut client, gid);
    let mut shown = client.call(SoftShow { switch: None }).unwrap();
    while shown != stands {
        assert_eq!((shown.epoch, shown.bytes), (0, 0), "empty, or the image: {shown:?}");
        shown = client.call(SoftShow { switch: None }).unwrap();
    }
    client.call(SoftClear { domain, sections: Vec::new(), switch: None }).unwrap();
    let shown = client.call(SoftShow { switch: None }).unwrap();
    assert!(shown.epoch > epoch && shown.bytes == 8, "{shown:?}");
    assert!(switch.end().soft().image().is_empty());
}
