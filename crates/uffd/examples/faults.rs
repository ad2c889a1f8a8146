//! Costs of a page fault and of each step that resolves one: the baseline of the page cache's measurements.
//!
//! `cargo run --release -p farmem-uffd --example faults -- [--rounds N] [--json]`
//!
//! The output has medians and 99th percentiles, in nanoseconds. No page is touched directly after its neighbour.
//! Compared variants alternate page by page, so that a disturbance affects all of them.
#![expect(clippy::print_stdout, reason = "a report for people and scripts")]

use farmem_host::agent::Pages;
use farmem_link::{Clock, Stop, Waiting, affinity, pin_to_cpu};
use farmem_uffd::{
    Addressing, Cause, Fault, FaultMode, Faults, Handler, HandlerCpu, Next, Reach, Ring, Window,
    WindowConfig, serve,
};
use farmem_wire::VirtAddr;
use farmem_wire::message::{Access, PAGE_LEN, Page};
use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap};
use serde_json::{Map, json};
use std::collections::BTreeMap;
use std::error::Error;
use std::os::fd::OwnedFd;
use std::thread;

/// Pages of the measured window.
const PAGES: usize = 4096;
/// Steps between two touches: coprime to the number of pages.
const STRIDE: usize = 1789;
const GROUP: usize = 16;

fn main() -> Result<(), Box<dyn Error>> {
    let mut rounds = 4;
    let mut as_json = false;
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--json" => as_json = true,
            "--rounds" => rounds = args.next().ok_or("--rounds needs a number")?.parse()?,
            _ => {}
        }
    }
    let cpus = affinity::allowed_cpus()?;
    let (here, other) = (cpus[0], cpus[cpus.len() - 1]);
    pin_to_cpu(here)?;
    let mut samples = Samples::default();
    for _ in 0..rounds {
        operations(&mut samples)?;
        frames(&mut samples)?;
        let block = Waiting::Block;
        faults(&mut samples, "same_cpu", here, Handler { cpu: HandlerCpu::Fixed(here), waiting: block })?;
        faults(&mut samples, "follow", here, Handler { cpu: HandlerCpu::Follow, waiting: block })?;
        if other != here {
            faults(
                &mut samples,
                "other_cpu",
                here,
                Handler { cpu: HandlerCpu::Fixed(other), waiting: block },
            )?;
            let spin = Handler { cpu: HandlerCpu::Fixed(other), waiting: Waiting::Spin };
            faults(&mut samples, "other_cpu_spinning", here, spin)?;
        }
    }
    samples.print(as_json);
    Ok(())
}

/// Times by name.
#[derive(Default)]
struct Samples(BTreeMap<String, Vec<u64>>);

impl Samples {
    fn add(&mut self, name: &str, nanos: u64) {
        match self.0.get_mut(name) {
            Some(times) => times.push(nanos),
            None => drop(self.0.insert(name.to_owned(), vec![nanos])),
        }
    }

    fn print(&mut self, as_json: bool) {
        let mut lines = Map::new();
        for (name, times) in &mut self.0 {
            times.sort_unstable();
            let at = |hundredths: usize| times[(times.len() - 1) * hundredths / 100];
            lines.insert(name.clone(), json!({ "p50_ns": at(50), "p99_ns": at(99), "count": times.len() }));
            if !as_json {
                println!("{name:44} p50 {:7} ns   p99 {:8} ns   {:6} times", at(50), at(99), times.len());
            }
        }
        let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
        if as_json {
            lines.insert("load".into(), json!(load.trim()));
            println!("{:#}", serde_json::Value::Object(lines));
        } else {
            print!("load {load}");
        }
    }
}

/// Measures `act` and files it under `name`.
fn timed<R>(samples: &mut Samples, clock: Clock, name: &str, act: impl FnOnce() -> R) -> R {
    let before = clock.now();
    let result = act();
    samples.add(name, clock.now().since(before).as_nanos());
    result
}

fn open() -> Result<Window, Box<dyn Error>> {
    let len = (PAGES * PAGE_LEN) as u64;
    let config = WindowConfig {
        base: VirtAddr(0),
        len,
        frames_max: PAGES as u64,
        place: Addressing::Anywhere,
        reach: Reach::Full,
        faults: FaultMode::Handler,
    };
    Ok(Window::open(&config)?)
}

fn page(index: usize) -> Page {
    Page::of(VirtAddr((index * PAGE_LEN) as u64))
}

/// Yields each number below `end` once, far from the one before.
fn scattered(end: usize) -> impl Iterator<Item = usize> {
    (0..end).map(move |n| n * STRIDE % end)
}

/// Measures the window's methods, with no waiting thread.
fn operations(samples: &mut Samples) -> Result<(), Box<dyn Error>> {
    let clock = Clock::start();
    let opened = open()?;
    let mut window = &opened;
    let bytes = [7; PAGE_LEN];
    let mut read = Vec::with_capacity(PAGE_LEN);
    for index in scattered(PAGES) {
        let at = page(index);
        timed(samples, clock, "op.install_shared", || window.install(at, &bytes, Access::Shared));
        timed(samples, clock, "op.upgrade", || window.install(at, &bytes, Access::Modified));
        opened.memory().write(index * PAGE_LEN, &[1]);
        timed(samples, clock, "op.write_protect", || window.write_protect(at));
        read.clear();
        timed(samples, clock, "op.read", || Pages::read(&window, at, 0..PAGE_LEN, &mut read));
        timed(samples, clock, "op.unmap", || window.unmap(at));
        timed(samples, clock, "op.map_again", || window.remap(at, Access::Modified));
        window.write_protect(at);
        timed(samples, clock, "op.discard", || window.discard(at));
    }
    let group = vec![7; GROUP * PAGE_LEN];
    for index in scattered(PAGES / GROUP) {
        let first = page(index * GROUP);
        timed(samples, clock, "op.install_16_pages", || window.install_run(first, &group, Access::Shared));
    }
    Ok(())
}

/// Measures methods to fill and to read a frame, as plain system calls on a memfd: the basis of the page cache's
/// design.
fn frames(samples: &mut Samples) -> Result<(), Box<dyn Error>> {
    let clock = Clock::start();
    let file = memfd_create("faults", MemfdFlags::CLOEXEC)?;
    ftruncate(&file, (PAGES * PAGE_LEN) as u64)?;
    let own = map(&file)?;
    let bytes = [7_u8; PAGE_LEN];
    let mut out = [0_u8; PAGE_LEN];
    for index in scattered(PAGES) {
        let at = index * PAGE_LEN;
        timed(samples, clock, "frame.new_by_own_view", || own.write(at, &bytes));
        timed(samples, clock, "frame.kept_by_own_view", || own.write(at, &bytes));
        timed(samples, clock, "frame.read_by_own_view_mapped", || own.read(at, &mut out));
        timed(samples, clock, "frame.read_by_pread", || rustix::io::pread(&file, &mut out, at as u64))?;
        timed(samples, clock, "frame.punch_mapped", || punch(&file, at))?;
        timed(samples, clock, "frame.new_by_pwrite", || rustix::io::pwrite(&file, &bytes, at as u64))?;
        timed(samples, clock, "frame.kept_by_pwrite", || rustix::io::pwrite(&file, &bytes, at as u64))?;
        timed(samples, clock, "frame.read_by_own_view_first", || own.read(at, &mut out));
        punch(&file, at)?;
        rustix::io::pwrite(&file, &bytes, at as u64)?;
        timed(samples, clock, "frame.punch_unmapped", || punch(&file, at))?;
    }
    Ok(())
}

fn punch(file: &OwnedFd, at: usize) -> Result<(), rustix::io::Errno> {
    fallocate(file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, at as u64, PAGE_LEN as u64)
}

/// The whole file, mapped for the rest of the run.
struct Own(&'static mut [u8]);

impl Own {
    fn read(&self, at: usize, into: &mut [u8; PAGE_LEN]) {
        into.copy_from_slice(&self.0[at..at + PAGE_LEN]);
        std::hint::black_box(into);
    }

    fn write(&self, at: usize, bytes: &[u8; PAGE_LEN]) {
        let place = std::ptr::from_ref(&self.0[at]).cast_mut();
        // SAFETY: a page of the mapping, by the slice's check; one thread uses it.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), place, PAGE_LEN) }
    }
}

fn map(file: &OwnedFd) -> Result<Own, rustix::io::Errno> {
    let (len, protection) = (PAGES * PAGE_LEN, ProtFlags::READ | ProtFlags::WRITE);
    // SAFETY: a new mapping at an address of the kernel's choice.
    let start = unsafe { mmap(std::ptr::null_mut(), len, protection, MapFlags::SHARED, file, 0) }?;
    // SAFETY: mapped for `len` bytes, and never unmapped.
    Ok(Own(unsafe { std::slice::from_raw_parts_mut(start.cast::<u8>(), len) }))
}

/// A resolver that uses local bytes: no network.
struct AtHand<'w> {
    window: &'w Window,
    bytes: [u8; PAGE_LEN],
}

impl Faults for AtHand<'_> {
    fn fault(&mut self, at: Page, fault: Fault) {
        match fault.cause {
            Cause::Missing => self.window.install(at, &self.bytes, Access::Shared),
            Cause::Minor => self.window.remap(at, Access::Shared),
            Cause::WriteProtected => self.window.remap(at, Access::Modified),
        }
    }

    fn turn(&mut self) -> Next {
        Next::Sleep
    }
}

/// Measures a thread's touches of pages, from the instruction to its end.
fn faults(samples: &mut Samples, name: &str, cpu: usize, handler: Handler) -> Result<(), Box<dyn Error>> {
    let window = open()?;
    let stop = Stop::new();
    let ring = Ring::new(&window, stop.clone());
    let mut at_hand = AtHand { window: &window, bytes: [7; PAGE_LEN] };
    thread::scope(|scope| {
        let thread = scope.spawn(|| {
            pin_to_cpu(cpu).expect("a CPU that this thread ran on");
            let clock = Clock::start();
            let mut byte = [0];
            for index in scattered(PAGES) {
                let memory = window.memory();
                let mut time = |what: &str, act: &mut dyn FnMut()| {
                    timed(samples, clock, &format!("fault.{what}.{name}"), act);
                };
                time("missing", &mut || memory.read(index * PAGE_LEN, &mut byte));
                (&window).unmap(page(index));
                time("minor", &mut || memory.read(index * PAGE_LEN, &mut byte));
                time("upgrade", &mut || memory.write(index * PAGE_LEN, &[1]));
            }
            ring.end();
        });
        serve(&window, handler, &stop, &mut at_hand)?;
        thread.join().expect("the program does not panic");
        Ok(())
    })
}
