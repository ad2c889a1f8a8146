//! Memory that is freed with its last user, with the real switch, nodes and hosts, over a network that loses,
//! duplicates and delays packets, and with crashing roles. A grantee reads the written bytes or is refused,
//! and nothing else; the next owner of the addresses reads zeros; nothing stays (PROTOCOL 8.60 to 8.62).

use farmem_control::PAGE;
use farmem_control::api::{
    Allocate, Call, CreateDomain, Grant, OpenSession, Overview, PermName, Stay, VmaInfo,
};
use farmem_host::{Failure, HostRequest, Op};
use farmem_machine::Duration;
use farmem_sim::{Layout, Plan, RoleId, World};
use farmem_wire::{Domain, VirtAddr};

const HOST_LEASE: Duration = Duration::from_millis(200);
const LEASE: Duration = Duration::from_millis(50);
/// The owner's value.
const WRITTEN: u64 = 0x5eed_5eed_5eed_5eed;

/// A rack in which host 1 has memory that host 2 may read, and crashes.
struct Bench {
    world: World,
    reader: u32,
    vma: VmaInfo,
    tickets: u64,
}

impl Bench {
    fn new(seed: u64, plan: Plan) -> Self {
        let layout = Layout { lease: LEASE, host_lease: Some(HOST_LEASE), ..Layout::small() };
        let mut world = World::new(layout, plan, seed, 0);
        world.bring_up();
        let owner = call(&mut world, 1, CreateDomain { name: "owner".into() }).domain;
        let reader = call(&mut world, 2, CreateDomain { name: "reader".into() }).domain;
        call(&mut world, 1, OpenSession { host: 1, domain: owner });
        call(&mut world, 2, OpenSession { host: 2, domain: reader });
        let vma = call(&mut world, 1, Allocate { node: Some(1), ..Allocate::new(owner, PAGE) });
        let grant = Grant { domain: owner, base: vma.base, len: PAGE, to: reader, perm: PermName::Read };
        call(&mut world, 1, grant);
        let mut bench = Self { world, reader, vma, tickets: 0 };
        let buf = WRITTEN.to_le_bytes().to_vec();
        // A write without an answer is repeated: the bytes are the same.
        while bench.carry_out(1, owner, Op::RegionWrite { addr: bench.addr(), buf: buf.clone() }).is_err() {}
        bench
    }

    const fn addr(&self) -> VirtAddr {
        VirtAddr(self.vma.base)
    }

    fn carry_out(&mut self, host: u16, domain: u32, op: Op) -> Result<Vec<u8>, Failure> {
        self.tickets += 1;
        let ask = HostRequest::Submit { ticket: self.tickets, domain: Domain(domain), op };
        assert!(self.world.tell_host(host, ask), "the host is up");
        loop {
            while let Some((_, done)) = self.world.take_done() {
                if done.ticket == self.tickets {
                    return done.result.map(|_| done.buf);
                }
            }
            assert!(self.world.step(), "an operation ends");
        }
    }

    /// Returns the word as host 2 reads it, or `None` if the read is refused. Without an answer it repeats
    /// the read.
    fn read(&mut self) -> Option<u64> {
        loop {
            let op = Op::RegionRead { addr: self.addr(), buf: vec![0; 8] };
            match self.carry_out(2, self.reader, op) {
                Ok(bytes) => return Some(u64::from_le_bytes(bytes.try_into().expect("a word"))),
                Err(Failure::NoAnswer) => {}
                Err(_) => return None,
            }
        }
    }

    /// Host 2 reports that it is alive. If the control plane is down, the next report counts.
    fn stay(&mut self) {
        let ticket = self.world.ask(RoleId::Host(2), Stay { host: 2, generation: 1 });
        self.pass(Duration::from_millis(5));
        drop(self.world.take_reply(ticket));
    }

    fn pass(&mut self, span: Duration) {
        let until = self.world.now() + span;
        self.world.alarm(until);
        while self.world.now() < until && self.world.step() {}
    }

    fn overview(&mut self) -> (Vec<u16>, Vec<String>, usize) {
        let overview = call(&mut self.world, 2, Overview {});
        let hosts = overview.hosts.iter().map(|host| host.host).collect();
        let domains = overview.domains.into_iter().map(|(_, name)| name).collect();
        (hosts, domains, overview.vmas.len())
    }
}

fn call<C: Call>(world: &mut World, host: u16, call: C) -> C::Answer {
    world.call(RoleId::Host(host), call).expect("granted")
}

/// In each world host 1 crashes silently, and one of the roles crashes and restarts during the detection.
#[test]
fn who_reads_memory_of_the_dead_reads_what_was_written_or_is_refused() {
    let roles = [None, Some(RoleId::Control), Some(RoleId::Switch), Some(RoleId::Node(2))];
    for plan in [Plan::CALM, Plan::LOSS, Plan::DUPLICATE, Plan::STORM] {
        for (seed, role) in (0..12).zip(roles.into_iter().cycle()) {
            let mut bench = Bench::new(seed, plan);
            assert_eq!(bench.read(), Some(WRITTEN));
            bench.world.crash(RoleId::Host(1));
            let (mut reads, mut refused) = (0, 0);
            for turn in 0..200 {
                if turn == 20 {
                    role.into_iter().for_each(|role| bench.world.crash_for(role, Duration::from_millis(3)));
                }
                bench.stay();
                match bench.read() {
                    Some(word) => {
                        assert_eq!(word, WRITTEN, "{} {seed}: other bytes without a word", plan.name);
                        assert_eq!(refused, 0, "{} {seed}: it was refused before", plan.name);
                        reads += 1;
                    }
                    None => refused += 1,
                }
            }
            assert!(reads > 20 && refused > 0, "{} {seed}: {reads} reads, {refused} refused", plan.name);
            assert_eq!(bench.overview(), (vec![2], vec!["reader".to_string()], 0), "{} {seed}", plan.name);
            let next = Allocate { node: Some(1), ..Allocate::new(bench.reader, PAGE) };
            assert_eq!(call(&mut bench.world, 2, next).base, bench.vma.base);
            assert_eq!(bench.read(), Some(0), "{} {seed}: the next owner reads zeros", plan.name);
            bench.world.check();
        }
    }
}
