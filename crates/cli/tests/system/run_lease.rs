//! Tests of `farmem run --share` with a stopped pager: the programs continue, their host's lease ends, and
//! other hosts write (PROTOCOL 12.35, 12.49).
//!
//! The tests compare values. A program reports each stored value past far memory, and from then on no program
//! may load an older value.

use crate::process::{Dir, Running, eventually, farmem, run_command, signal};
use crate::rack::Description;
use crate::run::{may_run, number, program};
use serde_json::Value;
use std::process::{Command, Stdio};

/// Rack with a short lease, and the program of `tests/programs/lease.c`.
struct Rig {
    description: Description,
    dir: Dir,
    program: String,
}

impl Rig {
    /// Returns `None`, with a note, when this user may not serve page faults.
    fn new(test: &str) -> Option<Self> {
        if !may_run(test) {
            return None;
        }
        let dir = Dir::new(test);
        let program = program(&dir, "lease", &["-D_GNU_SOURCE"]);
        let description = Description::new(test, "udp").with_lease("lease_ms = 1000");
        Some(Self { description, dir, program })
    }

    fn command(&self, args: &[&str]) -> Command {
        let file = self.description.file();
        let run =
            ["run", "--json", "--rack", &file, "--share", "leased", "--local", "24MiB", "--", &self.program];
        let mut command = farmem(&[&run[..], args].concat());
        command.stdin(Stdio::piped());
        command
    }

    fn start(&self, args: &[&str], line: &str) -> Running {
        let mut running = Running::start(self.command(args));
        let said = running.line();
        assert!(said == line, "{said:?} is not {line:?}: {:?}", running.ended());
        running
    }

    fn directory(&self) -> Value {
        self.description.ask("GET", "/v1/overview", "").1["directory"].clone()
    }

    /// Waits until the rack has counted this number of expired leases.
    fn await_lapses(&self, count: u64) {
        eventually("a lease ends", || number(&self.directory(), "lapses") >= count);
    }
}

/// The pager of a reader is stopped. A writer on another host continues once the reader's lease has ended.
/// From then on, the reader loads no value older than the writer's reports, and waits. After its pager
/// continues, the reader continues under another lease.
#[test]
fn a_reader_whose_pager_stands_still_loads_nothing_old() {
    let Some(rig) = Rig::new("lease-reader") else { return };
    let up = rig.description.up();
    let said = rig.dir.file("said", &"\0".repeat(4096));
    assert_eq!(run_command(rig.command(&["make", "/seen"])).code, Some(0));
    let mut reader = rig.start(&["see", "/seen", &said, "2000"], "sees 1\n");
    signal(reader.pid(), "STOP");
    let written = run_command(rig.command(&["write", "/seen", &said, "2000"]));
    signal(reader.pid(), "CONT");
    assert_eq!(written.code, Some(0), "{written:?}");
    let ended = reader.ended();
    assert_eq!((ended.stdout.as_str(), ended.code), ("0 old loads\n", Some(0)), "{ended:?}");
    assert!(ended.stderr.contains("the lease of host"), "{ended:?}");
    let line = ended.stderr.lines().rfind(|line| line.starts_with('{')).expect("statistics");
    let stats: Value = serde_json::from_str(line).expect("JSON");
    assert_eq!(number(&stats["shared"], "lease_lapses"), 1, "{stats}");
    // The creator and the writer released their leases, and the reader released its second one.
    eventually("all have left", || number(&rig.directory(), "leaves") == 3);
    assert_eq!(number(&rig.directory(), "lapses"), 1);
    up.stop();
}

/// The pager of a program that has written a page is stopped until its lease has ended. The program continues
/// with that page, or learns with the reason that it is lost. The program never reads the page's earlier
/// content.
#[test]
fn a_written_page_is_kept_or_told_to_be_lost() {
    let Some(rig) = Rig::new("lease-holder") else { return };
    let up = rig.description.up();
    assert_eq!(run_command(rig.command(&["make", "/held"])).code, Some(0));
    let mut holder = rig.start(&["hold", "/held"], "holds\n");
    signal(holder.pid(), "STOP");
    rig.await_lapses(1);
    signal(holder.pid(), "CONT");
    holder.say("");
    let ended = holder.ended();
    let is_told = ended.code == Some(2) && ended.stderr.contains("the lease of host");
    assert!(is_told || (ended.stdout == "42\n" && ended.code == Some(0)), "{ended:?}");
    up.stop();
}
