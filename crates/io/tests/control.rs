//! A whole control plane: HTTP client, server, the role, its log in a file; stopped and started again.

use farmem_control::api::{ErrorCode, PermName, Request, Response};
use farmem_control::{Config, Control};
use farmem_io::{
    ApiCallError, ApiClient, ApiServer, Clock, ControlStore, Driver, Link as _, Stop, UdpConfig, UdpLink,
    os_seed, parse_gid, run_control,
};
use farmem_machine::Rng;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

const TOKEN: &str = "the rack's token";

/// A control plane in a thread, until it is dropped.
struct Plane {
    server: Option<ApiServer>,
    thread: Option<JoinHandle<()>>,
    stop: Stop,
    url: String,
}

impl Plane {
    fn start(state: &Path) -> Self {
        let gid = parse_gid("127.71.210.1").unwrap();
        let (store, records) = ControlStore::open(state).unwrap();
        let control =
            Control::restore(Config::new(gid), Rng::from_seed(os_seed().unwrap()), records).unwrap();
        let link = UdpLink::open(&UdpConfig::new(gid)).unwrap();
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let (server, calls) = ApiServer::start(any, TOKEN, link.waker().unwrap()).unwrap();
        let url = format!("http://{}", server.address());
        let stop = Stop::new();
        let theirs = stop.clone();
        let thread = std::thread::spawn(move || {
            let mut driver = Driver::new(control, link, Clock::start());
            run_control(&mut driver, &calls, store, &theirs).unwrap();
        });
        Self { server: Some(server), thread: Some(thread), stop, url }
    }

    fn client(&self) -> ApiClient {
        ApiClient::new(&self.url, TOKEN)
    }
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
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Two domains are made, the control plane is stopped and started again from its log: both are there under their numbers, and a third gets a
/// new one. What is wrong is refused in between with a code and a remedy, and changes nothing.
#[test]
fn what_was_answered_survives_a_restart() {
    let state = State(std::env::temp_dir().join(format!("farmem-test-control-{}", std::process::id())));
    let domain =
        |client: &mut ApiClient, name: &str| match client.ask(&Request::CreateDomain { name: name.into() }) {
            Ok(Response::Domain { domain }) => domain,
            other => panic!("{other:?}"),
        };
    let refused = |client: &mut ApiClient, request| match client.ask(&request) {
        Err(ApiCallError::Refused(error)) if !error.remedy.is_empty() => error.code,
        other => panic!("{other:?}"),
    };
    let plane = Plane::start(&state.0);
    let mut client = plane.client();
    let (red, blue) = (domain(&mut client, "red"), domain(&mut client, "blue"));
    assert_ne!(red, blue);
    assert_eq!(domain(&mut client, "red"), red, "found, not made");

    let grant = Request::Grant { domain: red, base: 0x1000, len: 1, to: blue, perm: PermName::Read };
    assert_eq!(refused(&mut client, grant), ErrorCode::NotFound);
    assert_eq!(
        refused(&mut client, Request::Allocate { domain: 999, size: 1, node: None }),
        ErrorCode::NotFound
    );
    let mut stranger = ApiClient::new(&plane.url, "a guess");
    assert_eq!(refused(&mut stranger, Request::Overview), ErrorCode::Unauthorized);
    let second = ControlStore::open(&state.0).unwrap_err().to_string();
    assert!(second.contains("another instance is running on the state in"), "{second}");

    drop(plane);
    assert!(matches!(client.ask(&Request::Overview), Err(ApiCallError::Unreachable { .. })));
    let plane = Plane::start(&state.0);
    let mut client = plane.client();
    let Ok(Response::Overview { domains, nodes, .. }) = client.ask(&Request::Overview) else {
        panic!("no overview")
    };
    assert_eq!((domains, nodes), (vec![(red, "red".into()), (blue, "blue".into())], vec![]));
    let green = domain(&mut client, "green");
    assert!(![red, blue].contains(&green));
}
