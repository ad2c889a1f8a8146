//! The steps by which a process becomes a host that shares memory: its link, its session, its window, its
//! threads.

use super::ShareOptions;
use super::fault_source::{FaultSource, HostHandle};
use super::lease::{LeaseKeeper, Life, Objects};
use super::pager::Pager;
use super::shared_pager::{Inbox, SharedPager};
use crate::window::cache_config;
use farmem_api::ApiClient;
use farmem_client::ClientOptions;
use farmem_client::Error;
use farmem_client::host_parts::gid;
use farmem_client::host_parts::{WithLink, api_client, join_host, place, with_link};
use farmem_client::host_parts::{endpoint, host_settings, require_running};
use farmem_client::{RackConfig, Waiting};
use farmem_control::api::{
    CreateDomain, GIVEN_UP, HostJoined, JoinHost, Leave, NodeInfo, OpenSession, Renew,
};
use farmem_host::agent::Bounds;
use farmem_host::caching::{CacheConfig, CacheRequest, CachingHost};
use farmem_host::paged::Paged;
use farmem_host::{Config as HostConfig, HostRequest};
use farmem_link::{Clock, Driver, Link, OpenError, os_seed};
use farmem_machine::{Port, Rng};
use farmem_paging::Cache;
use farmem_transport::ud;
use farmem_uffd::{FaultMode, Mapped};
use farmem_wire::message::{CACHING_HOSTS_MAX, Page};
use farmem_wire::{Domain, VirtAddr};
use std::net::IpAddr;
use std::ops::Range;
use std::sync::mpsc::{SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::{Builder, JoinHandle};

/// Joins at a free address of the rack. Each process starts its search at another address, because the
/// control plane may still reclaim the cached pages of a host that has just left.
///
/// The search covers few addresses, because the number of caching hosts is limited. The control plane keeps a
/// host for each used address, even after its process died.
pub(super) fn join<G: FaultSource>(
    config: &RackConfig,
    domain: &str,
    options: ShareOptions,
) -> Result<HostHandle<G>, Error>
where
    for<'a> &'a G: Mapped,
{
    options.frames_max()?;
    place(config)?;
    require_running(config)?;
    let few = config.hosts.len().clamp(1, usize::from(CACHING_HOSTS_MAX) / 2);
    let begin = usize::try_from(std::process::id()).unwrap_or(0) % few;
    for &address in config.hosts[begin..].iter().chain(&config.hosts[..begin]) {
        match join_at(config, address, domain, options) {
            Err(Error::Open(OpenError::InUse { .. })) => {}
            other => return other,
        }
    }
    let (file, count) = (config.file.display(), config.hosts.len());
    Err(Error::Full { what: format!("the list of client addresses, {count} by [hosts] of {file},") })
}

/// The results of the pager's thread when it begins to serve.
struct Ready<G> {
    fault_source: Arc<G>,
    domain: u32,
    host: u16,
}

fn join_at<G: FaultSource>(
    config: &RackConfig,
    address: IpAddr,
    domain: &str,
    options: ShareOptions,
) -> Result<HostHandle<G>, Error>
where
    for<'a> &'a G: Mapped,
{
    let (say, said) = sync_channel(1);
    let inbox = Arc::<Inbox>::default();
    let failed = Arc::<Mutex<Option<String>>>::default();
    let objects = Objects::default();
    let mut config = config.clone();
    if options.window.faults == FaultMode::Signal {
        // Threads that fault poll for their pages themselves. Another thread that polled too would take CPU
        // time from them.
        config.waiting = Waiting::Block;
    }
    let joining = HostBuilder {
        config,
        address,
        domain: domain.to_owned(),
        options,
        inbox: Arc::clone(&inbox),
        failed: Arc::clone(&failed),
        objects: Arc::clone(&objects),
        say: say.clone(),
    };
    let pager = start("farmem-pager", move || {
        let config = joining.config.clone();
        if let Err(error) = with_link(&config, address, joining) {
            // After the start, the caller no longer receives; then the space reports the failure.
            let _begun = say.send(Err(error));
        }
    })?;
    let gone = || Error::Unreachable { what: "the pager's thread, which ended".into() };
    let Ready { fault_source, domain, host } = said.recv().map_err(|_| gone())??;
    Ok(HostHandle { fault_source, inbox, failed, domain, host, objects, pager: Some(pager) })
}

pub(super) fn start(name: &str, run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, Error> {
    let started = Builder::new().name(name.into()).spawn(run);
    started.map_err(|source| Error::System { what: format!("cannot start the thread {name}"), source })
}

/// A host that is joining, on the thread that will own it.
struct HostBuilder<G> {
    config: RackConfig,
    address: IpAddr,
    domain: String,
    options: ShareOptions,
    inbox: Arc<Inbox>,
    failed: Arc<Mutex<Option<String>>>,
    objects: Objects,
    say: SyncSender<Result<Ready<G>, Error>>,
}

impl<G: FaultSource> WithLink for HostBuilder<G>
where
    for<'a> &'a G: Mapped,
{
    type Output = ();

    /// Joins, serves, and leaves.
    fn with<L: Link + Send + 'static>(self, mut link: L) -> Result<(), Error> {
        let mut api = api_client(&self.config)?;
        let name = format!("host-{}", self.address).replace(':', "-");
        let request = JoinHost { caches: Some(true), ..JoinHost::new(name, self.address.to_string()) };
        let joined = join_host(&self.config, &mut api, &mut link, request)?;
        let HostJoined { host, generation, home, nodes, .. } = joined;
        let options = ClientOptions { patience: Some(self.config.patience), ..ClientOptions::default() };
        let settings = host_settings(host, generation, &home, self.config.pmtu, options);
        let served = self.serve(link, &mut api, settings, &nodes);
        // A stopped rack has no state of this host. Without the generation, the number could name another
        // host.
        let _gone = api.call(Leave { port: Port::host(host).0, generation: Some(generation) });
        served
    }
}

impl<G: FaultSource> HostBuilder<G>
where
    for<'a> &'a G: Mapped,
{
    fn serve<L: Link + Send>(
        self,
        mut link: L,
        api: &mut ApiClient,
        settings: HostConfig,
        nodes: &[NodeInfo],
    ) -> Result<(), Error> {
        let lost = |source| Error::System { what: "the link to the rack failed".into(), source };
        let domain = api.call(CreateDomain { name: self.domain.clone() })?.domain;
        let host = settings.id.0;
        let switch = api.call(OpenSession { host, domain })?.switch;
        link.set_peer(Port(switch.port), Some(gid(&switch.gid)?)).map_err(lost)?;
        for node in nodes {
            link.set_peer(Port(node.port), Some(gid(&node.gid)?)).map_err(lost)?;
        }
        let span = span_of(nodes)?;
        let frames_max = self.options.frames_max()?;
        let fault_source = Arc::new(G::open(&self.options, &span, frames_max)?);
        self.inbox.set_waker(link.waker().map_err(lost)?);
        let sleeper = link.sleeper().map_err(lost)?;

        let seed = os_seed().map_err(|source| Error::System { what: "no random numbers".into(), source })?;
        let bounds = Bounds { pages: frames_max, ..Bounds::default() };
        let cache = CacheConfig { bounds, timeout: self.options.timeout, ..CacheConfig::default() };
        let (base, len) = (VirtAddr(span.start), span.end - span.start);
        let pages = len / farmem_wire::message::PAGE_LEN as u64;
        let decides = Cache::coherent(cache_config(frames_max, &self.options.window), bounds.requests);
        let paged = Paged::new(&*fault_source, decides, Page::of(base), pages);
        let role = CachingHost::new(settings, cache, paged, Rng::from_seed(seed));
        let mut driver = Driver::new(role, link, Clock::start());
        let switch = ud::Peer { port: Port(switch.port), endpoint: endpoint(&switch) };
        let domain_number = Domain(domain);
        driver.submit(
            CacheRequest::Host(HostRequest::Session { domain: domain_number, switch }),
            &mut |_, _| {},
        );
        driver.submit(CacheRequest::Map { base, len, domain: domain_number }, &mut |_, _| {});

        let (tell, told) = channel();
        let life = Life { host, generation: settings.generation, qkey: settings.home.qkey.0 };
        let lease = Arc::clone(fault_source.lease());
        let lease_keeper = LeaseKeeper::begin(
            &self.config,
            life,
            driver.clock(),
            &self.inbox,
            Arc::clone(&lease),
            self.objects,
        )?;
        let pager = Pager::new(driver, (self.options.timeout, self.config.silence_max()), tell, self.failed);
        let shared_pager = SharedPager::new(pager, Arc::clone(&self.inbox));
        let lease_keeper = lease_keeper.start(told)?;
        let begun = self.say.send(Ok(Ready { fault_source: Arc::clone(&fault_source), domain, host }));
        let given_up =
            begun.is_ok() && fault_source.serve(self.options.window.handler, &shared_pager, sleeper);
        drop(shared_pager);
        lease.stop();
        // The lease thread ends when the last sender of its channel is dropped.
        let _panicked = lease_keeper.join();
        if given_up {
            // Without this message, the control plane waits until the lease expires.
            let (generation, qkey) = (settings.generation, settings.home.qkey.0);
            let _unheard = api.call(Renew { host, generation, flushed: GIVEN_UP, qkey });
        }
        Ok(())
    }
}

/// Returns the addresses of all memory nodes, including gaps.
fn span_of(nodes: &[NodeInfo]) -> Result<Range<u64>, Error> {
    let start = nodes.iter().map(|node| node.base).min();
    let end = nodes.iter().map(|node| node.base + node.capacity).max();
    let span = start.zip(end).map(|(start, end)| start..end);
    span.ok_or_else(|| Error::Unreachable { what: "any memory node: none has joined".into() })
}
