//! `farmem run`: runs an unmodified program whose large mappings and heap are in far memory. The exit code
//! and the output are the program's own.
//!
//! This process is the pager (docs/run.md). The pager starts the program and serves the page faults of all its
//! processes. The pager ends when the last of these processes has ended.

mod interception;
mod local;
mod program;
mod thrashing;

use crate::args::{self, Run};
use crate::outcome::{End, Failure};
use crate::output::{self, Report};
use farmem::window::Ahead;
use farmem::{Rack, RackConfig, ShareOptions, ShareStats, VirtAddr};
use farmem_run::{
    AddressLimit, CpuPlacement, Guard, Notice, Pager, PagerOptions, PagerStats, Signals, Started, call,
    free_domain, guard, largest_resident_set, own_domain, remove_socket, spawn,
};
use interception::Interception;
use rustix::process::{Pid, PidfdFlags, Signal, getppid, kill_process, pidfd_open};
use rustix::thread::{sched_getaffinity, sched_setaffinity};
use serde::Serialize;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use thrashing::Tense;

/// Number of memory nodes of the rack that the run starts.
const NODES: u16 = 2;
/// File name of the preload library. `LIBRARY_VARIABLE` holds its path when the library is not beside the
/// command.
const LIBRARY: &str = "libfarmem_preload.so";
const LIBRARY_VARIABLE: &str = "FARMEM_PRELOAD";

/// Statistics that are printed when the program has ended.
#[derive(Serialize)]
struct Stats {
    seconds: f64,
    local_limit: u64,
    largest_local_bytes: u64,
    far_bytes: u64,
    processes: u64,
    forks: u64,
    calls: u64,
    calls_past_libc: u64,
    faults: u64,
    /// Faults that were served on the CPU of the faulting thread.
    faults_beside: u64,
    faults_zero: u64,
    faults_far: u64,
    faults_near: u64,
    first_writes: u64,
    /// Number of pages that the system served alone. `taken_over` counts those pages that the pager took over
    /// later.
    plain: u64,
    taken_over: u64,
    fetches: u64,
    ahead: FetchedAhead,
    bytes_fetched: u64,
    refaults: u64,
    /// Local memory that would have kept most refetched pages, for a program that thrashed.
    local_wanted: Option<u64>,
    evictions: u64,
    write_backs: u64,
    bytes_written_back: u64,
    lost: u64,
    /// Memory outside far memory: the most that one process had in RAM, and what was mapped, by reason. `resident_bytes` is the largest resident set of a process.
    stayed_local: u64,
    mapped_local: local::MappedLocal,
    resident_bytes: u64,
    /// Statistics of memory that is shared with other hosts.
    #[serde(skip_serializing_if = "Option::is_none")]
    shared: Option<Shared>,
}

/// Counts of prefetched pages and of their use.
#[derive(Serialize)]
struct FetchedAhead {
    wanted: u64,
    used: u64,
    late: u64,
    wasted: u64,
}

impl FetchedAhead {
    const fn of(account: farmem::window::Account) -> Self {
        let farmem::window::Account { wanted, used, late, wasted, .. } = account;
        Self { wanted, used, late, wasted }
    }

    fn rows(&self) -> [Vec<String>; 4] {
        let row = |what: &str, n: u64| vec![what.to_owned(), output::count(n)];
        [
            row("    ahead of faults", self.wanted),
            row("      used", self.used),
            row("      late", self.late),
            row("      wasted", self.wasted),
        ]
    }
}

/// Statistics of the shared pages.
#[derive(Serialize)]
struct Shared {
    local_limit: u64,
    largest_local_bytes: u64,
    faults: u64,
    fetches: u64,
    ahead: FetchedAhead,
    bytes_fetched: u64,
    first_writes: u64,
    invalidations: u64,
    false_invalidations: u64,
    evictions: u64,
    write_backs: u64,
    bytes_written_back: u64,
    lost: u64,
    lease_lapses: u64,
    waited_seconds: f64,
}

impl Report for Stats {
    fn text(&self) -> String {
        let row = |what: &str, n: u64| vec![what.to_owned(), output::count(n)];
        let mut rows = vec![
            row("local limit, bytes", self.local_limit),
            row("  most that was here", self.largest_local_bytes),
            row("far memory allocated, bytes", self.far_bytes),
            row("processes", self.processes),
            row("  by fork", self.forks),
            row("calls", self.calls),
            row("system calls past libc", self.calls_past_libc),
            row("faults", self.faults),
            row("  served on the faulting CPU", self.faults_beside),
            row("  at zeros", self.faults_zero),
            row("  at far pages", self.faults_far),
            row("  at pages still here", self.faults_near),
            row("  first writes", self.first_writes),
            row("pages left to the system", self.plain),
            row("  taken over", self.taken_over),
            row("fetches", self.fetches),
        ];
        rows.extend(self.ahead.rows());
        rows.extend([
            row("  bytes", self.bytes_fetched),
            row("  pages that came again", self.refaults),
            row("evictions", self.evictions),
            row("write-backs", self.write_backs),
            row("  bytes", self.bytes_written_back),
            row("lost pages touched", self.lost),
            row("stayed local, bytes in RAM", self.stayed_local),
        ]);
        rows.extend(self.mapped_local.rows().map(|(why, bytes)| row(&format!("  mapped: {why}"), bytes)));
        rows.extend([row("largest resident set, bytes", self.resident_bytes)]);
        if let Some(shared) = &self.shared {
            rows.extend([
                row("shared memory: local limit, bytes", shared.local_limit),
                row("  most that was here", shared.largest_local_bytes),
                row("  faults handed on", shared.faults),
                row("  fetches", shared.fetches),
            ]);
            rows.extend(shared.ahead.rows());
            rows.extend([
                row("    bytes", shared.bytes_fetched),
                vec![
                    "    seconds waited, over all pages".to_owned(),
                    format!("{:.2}", shared.waited_seconds),
                ],
                row("  first writes", shared.first_writes),
                row("  invalidations", shared.invalidations),
                row("    false ones", shared.false_invalidations),
                row("  evictions", shared.evictions),
                row("  write-backs", shared.write_backs),
                row("    bytes", shared.bytes_written_back),
                row("  lost pages touched", shared.lost),
                row("  leases that lapsed", shared.lease_lapses),
            ]);
        }
        format!("{}{:.2} s\n", output::table(&["farmem run", "count"], &rows), self.seconds)
    }
}

/// Runs `farmem guard`, which `farmem run` starts. The guard holds resources that must stay open when the run
/// dies, and frees the run's remains. Its standard input is the connection to the run.
pub(crate) fn run_guard(args: &args::Guard) -> Result<End, Failure> {
    let pager = getppid();
    let guarded = guard(io::stdin());
    if let Some(path) = &args.remove {
        // The socket is already gone after a regular end of the run.
        remove_socket(path);
    }
    let killed = guarded.map_err(|error| {
        let message = format!(
            "pages whose lease has ended could not be taken away, so their program was killed: {error}"
        );
        Failure::environment(message, "")
    })?;
    if killed > 0 {
        let number = pager.map_or(0, Pid::as_raw_pid);
        output::note(&format!(
            "farmem: `farmem run` (process {number}) ended before its program: {killed} processes of it were killed, as their far memory went with it"
        ));
    }
    if let (Some(rack), Some(domain)) = (&args.rack, &args.domain) {
        free_domain(&RackConfig::load(rack)?, domain)?;
    }
    Ok(End::Fine)
}

pub(crate) fn run(args: &Run) -> Result<End, Failure> {
    // Opened before any other thread starts, because every signal to this process is meant for the program.
    let signals = Signals::open().map_err(farmem::Error::from)?;
    let (name, arguments) = args.command.split_first().expect("the parser wants a command");
    let file = program::find(name)?;
    let Interception { library: runtime, intercepted } =
        interception::choose(args, &file, program::check(&file)?)?;
    let preloaded = runtime.map(|runtime| preload(runtime.as_deref())).transpose()?;
    // The split is exact: neither part takes memory from the other.
    let for_sharing = for_sharing(args);
    let Some(private) = args.local.checked_sub(for_sharing) else {
        let message = format!("--share-local {for_sharing} is more than --local {}", args.local);
        return Err(Failure::environment(
            message,
            "it is a part of the local limit: give less, or more of that",
        ));
    };
    // The limit is meant for the program, but this process holds the program's memory.
    let limit = AddressLimit::lift();
    let far = far_within(args, limit.as_ref())?;
    let options = PagerOptions {
        ahead: args.ahead,
        far_limit: args.rack.is_none().then_some(far),
        threshold: args.threshold,
        user_mode_only: args.user_mode_only,
        placement: match args.placement {
            args::Placement::Auto => CpuPlacement::Auto,
            args::Placement::Free => CpuPlacement::Free,
            args::Placement::Beside => CpuPlacement::Beside,
        },
        ..PagerOptions::new(private)
    };
    if args.user_mode_only {
        output::note("farmem: faults of user code only: system calls on far memory fail with EFAULT");
    }
    let everywhere = sched_getaffinity(None).ok();
    let rack = match &args.rack {
        Some(file) => Rack::running(RackConfig::load(file)?),
        None => own_rack(far)?,
    };
    // Everything in the domain belongs to this run, and the guard frees the remains.
    let domain = own_domain()?;
    let client = rack.client(&domain)?;
    let mut pager = Pager::open(client, options).map_err(explain)?;
    if let Some(served) = intercepted {
        pager.intercept_syscalls(served);
    }
    if let Some(name) = &args.share {
        let mut options = ShareOptions::new(for_sharing);
        options.window.ahead = Ahead::Stream(args.ahead);
        pager.share(&rack, name, options)?;
    }
    let here = sched_getaffinity(None).ok();
    // The program runs on the CPUs of this process, not on the CPUs that the rack assigns to clients.
    let back = everywhere.as_ref().map(|cpus| sched_setaffinity(None, cpus));
    // The guard also uses these CPUs, because it must react in time when the rack has many clients.
    pager.guarded_by(start_guard(args.rack.as_deref(), &domain, pager.path())?)?;
    let start = Instant::now();
    let mut command = Command::new(&file);
    command.arg0(name).args(arguments);
    if let Some(preloaded) = preloaded {
        command.env(call::VARIABLE, pager.invitation()).env("LD_PRELOAD", preloaded);
    }
    signals.let_through(&mut command);
    if let Some(limit) = &limit {
        limit.restore(&mut command);
    }
    let mut started = start_program(command, &mut pager, !args.no_filter)
        .map_err(|e| Failure::environment(format!("cannot start {}: {e}", file.display()), ""))?;
    let there = here.as_ref().map(|cpus| sched_setaffinity(None, cpus));
    // The call fails only when the machine has lost these CPUs. The current CPUs then serve as well.
    let _ = (back, there);
    let served = serve(args, &mut pager, &started.child, &signals);
    if served.is_err() {
        // The page faults of the remaining processes would never be served.
        drop(started.child.kill());
    }
    let status =
        started.child.wait().map_err(|e| Failure::environment(format!("the program is lost: {e}"), ""))?;
    let shared = pager.share_stats();
    thrashing::report(args, &pager.stats(), Tense::Past);
    local::report(args.local, intercepted.is_none(), &pager.stats());
    if args.stats || args.json {
        report(args, (&pager.stats(), shared), start.elapsed());
    }
    drop(pager);
    served?;
    ended_by_loss(status, shared.map_or(0, |shared| shared.lost))?;
    Ok(End::Program(code(status)))
}

/// Starts the program, with a filter of system calls that bypass libc where wanted and permitted. Otherwise
/// prints the uncovered cases.
fn start_program(command: Command, pager: &mut Pager, filtered: bool) -> io::Result<Started> {
    let watched = filtered.then(|| pager.watched());
    let mut started = spawn(command, watched.as_ref())?;
    let why = match started.listener.take() {
        Some(Ok(listener)) => {
            if let Err(error) = pager.watch(listener) {
                drop(started.child.kill());
                return Err(io::Error::other(error));
            }
            if started.no_new_privileges {
                output::note(
                    "farmem: the filter takes setuid from what the program starts (--no-filter keeps it)",
                );
            }
            return Ok(started);
        }
        Some(Err(error)) if error.raw_os_error() == Some(EBUSY) => {
            "another program is asked about system calls here, as another farmem run is".to_owned()
        }
        Some(Err(error)) => error.to_string(),
        None => "--no-filter".to_owned(),
    };
    if pager.intercepts_syscalls() {
        drop(started.child.kill());
        drop(started.child.wait());
        let what = "the program has far memory by a filter of system calls";
        return Err(io::Error::other(format!("{what}, and there is none: {why}")));
    }
    let what =
        "system calls that pass libc by, and files opened with O_DIRECT there, can lose bytes of far memory";
    output::note(&format!("farmem: no filter ({why}): {what}"));
    Ok(started)
}

/// Error number of the system for a second listener.
const EBUSY: i32 = 16;

fn serve(args: &Run, pager: &mut Pager, child: &Child, signals: &Signals) -> Result<(), Failure> {
    let pid = Pid::from_child(child);
    let ended = pidfd_open(pid, PidfdFlags::empty())
        .map_err(|e| Failure::environment(format!("the program cannot be watched: {e}"), ""))?;
    let pass_on = || {
        while let Some(came) = signals.next() {
            // Signals of a terminal have reached the program directly.
            if came.by_process
                && let Some(signal) = Signal::from_named_raw(came.signal)
            {
                // A signal to an ended process has no effect.
                let _ = kill_process(pid, signal);
            }
        }
    };
    let served = pager.serve_program(ended, signals, &mut |notice| match notice {
        Notice::Signals => pass_on(),
        Notice::Thrashing(stats) => thrashing::report(args, stats, Tense::Present),
    });
    served.map_err(|error| match error {
        farmem::Error::MemoryLost { base, .. } => lost(base, pager),
        error => Failure::Farmem(error),
    })
}

/// Returns the failure of a program that accessed lost bytes of its own. Only the loss of their memory node
/// causes it.
fn lost(base: VirtAddr, pager: &Pager) -> Failure {
    let name = pager.name_of_node_at(base).map_or_else(String::new, |name| format!(" {name}"));
    let pages = pager.stats().lost;
    let message = format!(
        "pages of the program's far memory are lost: memory node{name}, which had them, was started again. The program wanted {pages} of them, the first \
         at {base} of the rack, and got a SIGBUS at each"
    );
    Failure::environment(message, "start the program again: what it had in far memory there is gone")
}

/// Returns an error when a SIGBUS ended the program after accesses to lost shared pages.
fn ended_by_loss(status: ExitStatus, pages: u64) -> Result<(), Failure> {
    if pages == 0 || status.signal() != Some(Signal::BUS.as_raw()) {
        return Ok(());
    }
    let message = format!(
        "shared pages are lost, or not this run's to use; the program wanted {pages} of them, and a SIGBUS ended it"
    );
    Err(Failure::environment(
        message,
        "the lines above say why; an object whose pages are lost can be unlinked and made anew",
    ))
}

/// Returns the exit code of the program, as shells do.
fn code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX)
}

fn report(args: &Run, (stats, shared): (&PagerStats, Option<ShareStats>), took: Duration) {
    let stats = Stats {
        seconds: took.as_secs_f64(),
        local_limit: args.local,
        largest_local_bytes: stats.bytes_here_max + shared.map_or(0, |shared| shared.bytes_here_max),
        far_bytes: stats.bytes_far,
        processes: stats.processes,
        forks: stats.forks,
        calls: stats.calls,
        calls_past_libc: stats.past_libc,
        faults: stats.faults,
        faults_beside: stats.beside,
        faults_zero: stats.zeros,
        faults_far: stats.missing,
        faults_near: stats.near,
        first_writes: stats.upgrades,
        plain: stats.plain,
        taken_over: stats.taken_over,
        fetches: stats.fetches,
        ahead: FetchedAhead::of(stats.ahead),
        bytes_fetched: stats.bytes_fetched,
        refaults: stats.refaults,
        local_wanted: thrashing::local_wanted(args, stats),
        evictions: stats.evictions,
        write_backs: stats.write_backs,
        bytes_written_back: stats.bytes_written_back,
        lost: stats.lost,
        stayed_local: stats.local_resident,
        mapped_local: local::MappedLocal::of(stats.mapped_local),
        resident_bytes: largest_resident_set(),
        shared: shared.map(|shared| of_shared(for_sharing(args), &shared)),
    };
    // Standard output belongs to the program.
    let text =
        if args.json { serde_json::to_string(&stats).expect("numbers and names") } else { stats.text() };
    output::note(text.trim_end());
}

/// Returns the part of the local limit that is reserved for shared memory.
fn for_sharing(args: &Run) -> u64 {
    if args.share.is_some() { args.share_local.unwrap_or(args.local / 2) } else { 0 }
}

fn of_shared(local_limit: u64, stats: &ShareStats) -> Shared {
    Shared {
        local_limit,
        largest_local_bytes: stats.bytes_here_max,
        faults: stats.faults,
        fetches: stats.fetches,
        ahead: FetchedAhead::of(stats.ahead),
        bytes_fetched: stats.bytes_fetched,
        first_writes: stats.upgrades,
        invalidations: stats.invalidations,
        false_invalidations: stats.false_invalidations,
        evictions: stats.evictions,
        write_backs: stats.write_backs,
        bytes_written_back: stats.bytes_written_back,
        lost: stats.lost,
        lease_lapses: stats.lapses,
        waited_seconds: Duration::from_nanos(stats.waited_ns).as_secs_f64(),
    }
}

/// Returns the requested far memory, or the largest amount that the address space limit of this process
/// permits.
fn far_within(args: &Run, limit: Option<&AddressLimit>) -> Result<u64, Failure> {
    let Some(left) = limit.and_then(AddressLimit::left).filter(|_| args.rack.is_none()) else {
        return Ok(args.far);
    };
    let room = left.saturating_sub(args.local + ADDRESSES_BESIDE) >> 21 << 21;
    if args.far <= room {
        return Ok(args.far);
    }
    if room < FAR_MIN {
        let message = format!(
            "{left} bytes of addresses are left to this process (`ulimit -v`): too few to keep far memory"
        );
        return Err(Failure::environment(
            message,
            "raise the hard limit, or keep far memory elsewhere with --rack",
        ));
    }
    let (wanted, room_mib) = (args.far >> 20, room >> 20);
    output::note(&format!(
        "farmem: the hard limit of addresses (`ulimit -v`) leaves room for --far {room_mib}MiB, not for {wanted}MiB"
    ));
    Ok(room)
}

/// Address space that this process maps beside far memory and local pages: stacks of threads and tables of
/// roles.
const ADDRESSES_BESIDE: u64 = 256 << 20;
/// Minimum far memory that is worth a start.
const FAR_MIN: u64 = 16 << 20;

/// Returns a rack for this run alone, in this process and on the pager's thread. A page arrives without
/// waking another process.
fn own_rack(far: u64) -> Result<Rack, Failure> {
    if far == 0 {
        return Err(Failure::environment("--far 0 is no memory", "give as much as the program is to use"));
    }
    // The rack also has the slots that the pager keeps for pages in transit.
    let memory = far.div_ceil(u64::from(NODES)).next_multiple_of(2 << 20) + (2 << 20);
    Ok(Rack::embedded_with(NODES, memory)?)
}

fn start_guard(rack: Option<&Path>, domain: &str, left: Option<&Path>) -> Result<Guard, Failure> {
    let (ours, theirs) = Guard::open().map_err(farmem::Error::from)?;
    let itself = std::env::current_exe()
        .map_err(|e| Failure::environment(format!("cannot find the farmem command itself: {e}"), ""))?;
    let mut command = Command::new(itself);
    command.arg("guard");
    if let Some(rack) = rack {
        command.arg("--rack").arg(rack).args(["--domain", domain]);
    }
    if let Some(left) = left {
        command.arg("--remove").arg(left);
    }
    // The own process group protects the guard from signals of a terminal.
    let spawned = command.stdin(Stdio::from(theirs)).stdout(Stdio::null()).process_group(0).spawn();
    spawned.map_err(|e| Failure::environment(format!("cannot start a guard: {e}"), ""))?;
    Ok(ours)
}

/// Returns the path of the preload library: from the variable, beside this command, or at the places of cargo
/// and packages.
fn library() -> Result<PathBuf, Failure> {
    if let Some(named) = std::env::var_os(LIBRARY_VARIABLE) {
        let path = PathBuf::from(named);
        return if path.is_file() {
            Ok(path)
        } else {
            Err(Failure::environment(
                format!("{LIBRARY_VARIABLE} names {}, which is no file", path.display()),
                "unset it, or name the library",
            ))
        };
    }
    let itself = std::env::current_exe().unwrap_or_default();
    let beside = itself.parent().unwrap_or_else(|| Path::new("."));
    // Cargo's copy comes first, because the copy beside the command may come from an earlier build.
    let places = ["deps", "", "../lib/farmem"].map(|place| beside.join(place).join(LIBRARY));
    places.iter().find(|path| path.is_file()).cloned().ok_or_else(|| {
        Failure::environment(
            format!("{LIBRARY} is neither in {} nor in ../lib/farmem beside it", beside.display()),
            format!("copy it beside the command from where that was built (target/release/deps, or `cargo build -p farmem-preload`), or say in {LIBRARY_VARIABLE} where it is"),
        )
    })
}

/// Returns an error for a path that the dynamic linker would split and that would leave the program without
/// far memory.
fn loadable(library: PathBuf) -> Result<PathBuf, Failure> {
    if library.as_os_str().as_bytes().iter().any(|&byte| byte == b':' || byte.is_ascii_whitespace()) {
        let message =
            format!("{}: the dynamic linker splits LD_PRELOAD at spaces and colons", library.display());
        let remedy = format!("say in {LIBRARY_VARIABLE} where a copy is whose path has none");
        return Err(Failure::environment(message, remedy));
    }
    Ok(library)
}

/// Returns the value of `LD_PRELOAD`. A runtime that must be first comes first, then the preload library,
/// then the user's libraries.
fn preload(runtime: Option<&OsStr>) -> Result<OsString, Failure> {
    let library = loadable(library()?)?;
    let mut value = runtime.map_or_else(OsString::new, OsStr::to_owned);
    if !value.is_empty() {
        value.push(":");
    }
    value.push(library);
    if let Some(theirs) = std::env::var_os("LD_PRELOAD").filter(|theirs| !theirs.is_empty()) {
        value.push(":");
        value.push(theirs);
    }
    Ok(value)
}

/// Adds a further remedy to that of the error.
fn explain(error: farmem::Error) -> Failure {
    let remedy = error.remedy();
    if error.to_string().contains("userfaultfd") {
        let more = "or `farmem run --user-mode-only`, for programs that hand no far memory to system calls";
        let remedy = if remedy.is_empty() { more.to_owned() } else { format!("{remedy}; {more}") };
        return Failure::environment(error.to_string(), remedy);
    }
    Failure::Farmem(error)
}
