//! The cost of touching a page of far memory: a window's fault compared with its two parts.
//!
//! `cargo run --release -p farmem --example window_faults -- [shm|udp] [--json]`
//!
//! The program starts a rack of processes on one CPU and measures three operations in turn, page by page. The
//! first is a fault resolved with local bytes (no network). The second is a READ of 4 KiB over the same
//! connection (no fault). The third is the fault of a window, which needs both. The result compares the third
//! with the sum of the first two.
#![expect(clippy::print_stdout, reason = "a report for people and scripts")]

use farmem::window::{Addressing, Memory, WindowOptions, WindowStats, with_window};
use farmem::{Client, Rack, RackConfig, VirtAddr, Vma, serve};
use farmem_host::agent::Pages as _;
use farmem_link::{Clock, Stop};
use farmem_uffd::{Fault, FaultMode, Faults, Handler, Next, Reach, Ring, Window, WindowConfig, serve};
use farmem_wire::message::{Access, Page};
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::thread;

const PAGE: usize = 4096;
/// Pages of the allocation; each is touched once per round.
const PAGES: usize = 4096;
/// A stride that does not divide the number of pages.
const STRIDE: usize = 1789;
const ROUNDS: usize = 4;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [role, file, rest @ ..] = &args[..]
        && role == "--role"
    {
        return Ok(run_role(Path::new(file), rest)?);
    }
    let as_json = args.iter().any(|arg| arg == "--json");
    for transport in ["shm", "udp"] {
        if args.iter().all(|arg| arg.starts_with("--")) || args.iter().any(|arg| arg == transport) {
            measure(transport, as_json)?;
        }
    }
    Ok(())
}

/// A rack of processes that ends with this process.
struct Running {
    dir: PathBuf,
    config: RackConfig,
    roles: Vec<Child>,
}

impl Running {
    fn start(transport: &str) -> Result<Self, Box<dyn Error>> {
        let dir = std::env::temp_dir().join(format!("farmem-faults-{}", std::process::id()));
        std::fs::create_dir_all(&dir)?;
        let (file, number) = (dir.join("rack.toml"), std::process::id() % 250);
        let text = format!(
            "name = \"faults-{number}\"\ntransport = \"{transport}\"\nwaiting = \"block\"\nplacement = \"same-cpu\"\n\
             [control]\naddress = \"127.90.{number}.1\"\nstate = \"state\"\n\
             [switch]\naddress = \"127.90.{number}.2\"\n\
             [[node]]\nname = \"node1\"\naddress = \"127.90.{number}.11\"\nmemory = \"64 MiB\"\n\
             [hosts]\nfirst = \"127.91.{number}.1\"\ncount = 4\n"
        );
        std::fs::write(&file, text)?;
        let config = RackConfig::load(&file)?;
        let mut rack = Self { dir, config, roles: Vec::new() };
        for role in ["control", "switch", "node"] {
            let mut command = Command::new(std::env::current_exe()?);
            rack.roles.push(command.arg("--role").arg(&file).arg(role).spawn()?);
        }
        Ok(rack)
    }

    /// Retries until the roles have joined.
    fn client(&self) -> Result<(Client, Vma), Box<dyn Error>> {
        let clock = Clock::start();
        let begun = clock.now();
        loop {
            let client = Rack::running(self.config.clone()).client("faults");
            let attached = client.and_then(|mut client| {
                let vma = client.allocate((PAGES * PAGE) as u64)?;
                client.read(vma.base, &mut [0; 8])?;
                Ok((client, vma))
            });
            match attached {
                Ok(attached) => return Ok(attached),
                Err(error) if clock.now().since(begun).as_nanos() > 20_000_000_000 => {
                    return Err(error.into());
                }
                Err(_) => thread::yield_now(),
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        for role in &mut self.roles {
            let _gone = role.kill();
            let _gone = role.wait();
        }
        let _none = serve::remove_rings(&self.config);
        let _left = std::fs::remove_dir_all(&self.dir);
    }
}

fn run_role(file: &Path, role: &[String]) -> Result<(), farmem::Error> {
    let (stop, tries) = (Stop::new(), 1000);
    for _ in 0..tries {
        let config = RackConfig::load(file)?;
        let served = match role.first().map(String::as_str) {
            Some("control") => serve::control(&config, &stop),
            Some("switch") => serve::switch(&config, &stop),
            _ => serve::node(&config, &config.nodes[0], &stop),
        };
        match served {
            // The control plane has not started yet.
            Err(farmem::Error::Api { .. }) => thread::yield_now(),
            other => return other,
        }
    }
    Ok(())
}

fn scattered() -> impl Iterator<Item = usize> {
    (0..PAGES).map(|n| n * STRIDE % PAGES)
}

fn measure(transport: &str, as_json: bool) -> Result<(), Box<dyn Error>> {
    let rack = Running::start(transport)?;
    let (mut client, vma) = rack.client()?;
    let (mut resolve, mut exchange, mut fetch) = (Vec::new(), Vec::new(), Vec::new());
    let mut evicting = Vec::new();
    let mut stats = WindowStats::default();
    for _ in 0..ROUNDS {
        bare_resolve(&mut resolve)?;
        bare_exchange(&mut client, &vma, &mut exchange)?;
        let whole = WindowOptions { place: Addressing::Anywhere, ..WindowOptions::new(vma.size) };
        with_window(&mut client, &vma, whole, |memory| touch(memory, &mut fetch))?;
        let quarter = WindowOptions { local_limit: vma.size / 4, ..whole };
        stats = with_window(&mut client, &vma, quarter, |memory| touch(memory, &mut evicting))?.1;
    }
    let sum = at(&mut resolve, 50) + at(&mut exchange, 50);
    let ratio = at(&mut fetch, 50) as f64 / sum as f64;
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    if as_json {
        println!(
            "{{\"mind.fault.{transport}\": {{\"value_ns\": {}, \"p99_ns\": {}, \"baseline_ns\": {sum}, \"ratio\": {ratio:.3}, \
             \"resolve_ns\": {}, \"exchange_ns\": {}, \"evicting_ns\": {}, \"load\": \"{}\"}}}}",
            at(&mut fetch, 50),
            at(&mut fetch, 99),
            at(&mut resolve, 50),
            at(&mut exchange, 50),
            at(&mut evicting, 50),
            load.trim()
        );
        return Ok(());
    }
    println!("{transport}, one CPU, load {}", load.trim());
    let lines = [
        ("bare resolve", &mut resolve),
        ("bare READ of 4 KiB", &mut exchange),
        ("window's fault", &mut fetch),
        ("window's fault, evicting", &mut evicting),
    ];
    for (name, times) in lines {
        println!("  {name:26} p50 {:7} ns   p99 {:9} ns", at(times, 50), at(times, 99));
    }
    println!("  fault / (resolve + READ)   {ratio:.3}");
    println!("  last evicting round: {stats:?}");
    Ok(())
}

fn at(times: &mut [u64], hundredths: usize) -> u64 {
    times.sort_unstable();
    times[(times.len() - 1) * hundredths / 100]
}

fn touch(memory: Memory<'_>, times: &mut Vec<u64>) {
    let clock = Clock::start();
    let mut byte = [0];
    for index in scattered() {
        let before = clock.now();
        memory.read(index * PAGE, &mut byte);
        times.push(clock.now().since(before).as_nanos());
    }
}

fn bare_exchange(client: &mut Client, vma: &Vma, times: &mut Vec<u64>) -> Result<(), farmem::Error> {
    let clock = Clock::start();
    let mut bytes = [0; PAGE];
    for index in scattered() {
        let addr = VirtAddr(vma.base.0 + (index * PAGE) as u64);
        let before = clock.now();
        client.read(addr, &mut bytes)?;
        times.push(clock.now().since(before).as_nanos());
    }
    Ok(())
}

/// Resolves faults with local bytes.
struct AtHand<'w>(&'w Window, [u8; PAGE]);

impl Faults for AtHand<'_> {
    fn fault(&mut self, page: Page, _: Fault) {
        self.0.install(page, &self.1, Access::Shared);
    }

    fn turn(&mut self) -> Next {
        Next::Sleep
    }
}

fn bare_resolve(times: &mut Vec<u64>) -> Result<(), Box<dyn Error>> {
    let window = Window::open(&WindowConfig {
        base: VirtAddr(0),
        len: (PAGES * PAGE) as u64,
        frames_max: PAGES as u64,
        place: Addressing::Anywhere,
        reach: Reach::Full,
        faults: FaultMode::Handler,
    })?;
    let stop = Stop::new();
    let ring = Ring::new(&window, stop.clone());
    thread::scope(|scope| {
        let thread = scope.spawn(|| {
            touch(window.memory(), times);
            ring.end();
        });
        serve(&window, Handler::default(), &stop, &mut AtHand(&window, [7; PAGE]))?;
        thread.join().expect("the program does not panic");
        Ok(())
    })
}
