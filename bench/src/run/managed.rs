//! Programs whose runtimes manage their own heaps and choose the addresses: the JVM with four collectors, Go
//! with and without libc, and SBCL.
//!
//! Key function: [`measure`]. The heap is four times the local limit, and about half of it stays in use. The
//! baseline is the same program in a memory cgroup, which may have as much memory as the far program had
//! resident: so the runtime's own memory counts on both sides.

use super::{Group, MemoryLocation, Swap, median_of};
use crate::child::{ChildReport, run_child};
use crate::{CpuTime, Row, Sheet};
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;

/// A runtime, and how it gets its heap.
#[derive(Clone, Copy, Debug)]
enum Runtime {
    /// With this collector.
    Jvm(&'static str),
    /// With libc (cgo), or static.
    Go {
        cgo: bool,
    },
    Sbcl,
}

/// The rows.
const PROGRAMS: [(&str, Runtime); 7] = [
    ("run.jvm.serial", Runtime::Jvm("-XX:+UseSerialGC")),
    ("run.jvm.parallel", Runtime::Jvm("-XX:+UseParallelGC")),
    ("run.jvm.g1", Runtime::Jvm("-XX:+UseG1GC")),
    ("run.jvm.zgc", Runtime::Jvm("-XX:+UseZGC")),
    ("run.go.cgo", Runtime::Go { cgo: true }),
    ("run.sbcl", Runtime::Sbcl),
    ("run.static", Runtime::Go { cgo: false }),
];

/// Source files, which are built in a directory of their own.
const SOURCES: [(&str, &str); 4] = [
    ("Heap.java", include_str!("managed/Heap.java")),
    ("heap.go", include_str!("managed/heap.go")),
    ("cgo.go", include_str!("managed/cgo.go")),
    ("heap.lisp", include_str!("managed/heap.lisp")),
];

/// Measures the rows of heaps of eight times `bytes`.
pub(super) fn measure(bytes: u64, rounds: usize, has: impl Fn(&str) -> bool, sheet: &mut Sheet<'_>) {
    let heap = 8 * bytes;
    let mut swap: Option<Result<Swap, String>> = None;
    for (id, runtime) in PROGRAMS.into_iter().filter(|(id, _)| has(id)) {
        sheet.begins(id);
        let program = match built(runtime) {
            Ok(program) => program,
            Err(why) => {
                sheet.add([Row::absent(id, "ns", why)]);
                continue;
            }
        };
        // Both copies of a live set may be in the heap while it is collected.
        let swap = swap.get_or_insert_with(|| Swap::begin(false, 4 * heap));
        let program = |place: &MemoryLocation<'_>| start(runtime, program.path(), heap, place);
        let row = row(id, heap, rounds, swap.as_ref(), &program, sheet);
        sheet.add([row.unwrap_or_else(|why| Row::absent(id, "ns", why))]);
    }
}

/// Runs a program in rounds: native, far, and in the cgroup.
fn row(
    id: &str,
    heap: u64,
    rounds: usize,
    swap: Result<&Swap, &String>,
    program: &dyn Fn(&MemoryLocation<'_>) -> Result<ChildReport, String>,
    sheet: &mut Sheet<'_>,
) -> Result<Row, String> {
    let local = heap / 4;
    let (mut native, mut far, mut swapped) = (Vec::new(), Vec::new(), Vec::new());
    let (mut resident, mut outside, mut cpu) = (0, 0, CpuTime::default());
    // The first failure under swap, or its absence; the far figures remain.
    let mut no_swap = swap.err().cloned();
    for _ in 0..rounds {
        let right = program(&MemoryLocation::Native)?;
        native.push(right.nanos);
        let report = program(&MemoryLocation::far(local))?;
        sheet.add_wrong(u64::from(report.sum != right.sum));
        far.push(report.nanos);
        cpu.add(report.cpu, 1);
        resident = resident.max(figure(&report, "resident_bytes")?);
        outside = outside.max(figure(&report, "stayed_local")?);
        if no_swap.is_none() {
            let limited = Group::begin(resident).and_then(|group| program(&MemoryLocation::Limited(&group)));
            match limited {
                Ok(report) => {
                    sheet.add_wrong(u64::from(report.sum != right.sum));
                    swapped.push(report.nanos);
                }
                Err(why) => no_swap = Some(why),
            }
        }
    }
    let n = far.len() as u64;
    let native = median_of(native);
    let (baseline, name) = match (no_swap, swap) {
        (None, Ok(swap)) => (median_of(swapped), format!("{} with as much resident", swap.name())),
        (why, _) => (native, format!("native, because swap has no figure: {}", why.unwrap_or_default())),
    };
    let [heap, local, resident, outside] = [heap, local, resident, outside].map(|bytes| bytes >> 20);
    let why = format!(
        "heap of {heap} MiB, --local {local} MiB; resident {resident} MiB, outside far memory {outside} MiB; native {:.2} s; beside {name}",
        native / 1e9
    );
    let row = Row::figure(id, "ns", median_of(far), n).beside(Some(baseline));
    Ok(Row { why: Some(why), ..row.with_cpu(cpu.per_operation()) })
}

/// Returns a number of the statistics that `farmem run --json` prints last.
fn figure(report: &ChildReport, name: &str) -> Result<u64, String> {
    let key = format!("\"{name}\":");
    let digits =
        report.last_line.split(&key).nth(1).map(|rest| rest.split([',', '}']).next().unwrap_or(rest));
    digits
        .and_then(|digits| digits.parse().ok())
        .ok_or_else(|| format!("no {name} in {:?}", report.last_line))
}

/// Builds a runtime's program in a directory.
fn built(runtime: Runtime) -> Result<TempDir, String> {
    let named = |error: std::io::Error| format!("the program's source: {error}");
    let dir = tempfile::Builder::new().prefix("farmem-managed-").tempdir().map_err(named)?;
    for (name, text) in SOURCES {
        std::fs::write(dir.path().join(name), text).map_err(named)?;
    }
    let build = |tool: &str, arguments: &[&str], cgo: &str| {
        let mut command = Command::new(tool);
        command.args(arguments).current_dir(dir.path());
        command.env("CGO_ENABLED", cgo).env("GOTOOLCHAIN", "local").env("GO111MODULE", "off");
        let ended = command.output().map_err(|error| format!("{tool} is not installed ({error})"))?;
        if ended.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&ended.stderr);
        Err(format!("{tool}: {}", said.lines().last().unwrap_or("it said nothing")))
    };
    match runtime {
        Runtime::Jvm(collector) => {
            build("javac", &["Heap.java"], "0")?;
            // A build may lack a collector.
            build("java", &[collector, "-version"], "0")?;
        }
        Runtime::Go { cgo: true } => build("go", &["build", "-o", "heap", "heap.go", "cgo.go"], "1")?,
        Runtime::Go { cgo: false } => build("go", &["build", "-o", "heap", "heap.go"], "0")?,
        Runtime::Sbcl => build("sbcl", &["--version"], "0")?,
    }
    Ok(dir)
}

/// Runs a program with a heap of this size, half of it in use.
fn start(runtime: Runtime, dir: &Path, heap: u64, place: &MemoryLocation<'_>) -> Result<ChildReport, String> {
    let mib = heap >> 20;
    let in_dir = |name: &str| dir.join(name).into_os_string();
    let mut words = match runtime {
        Runtime::Jvm(collector) => {
            let sizes = [format!("-Xms{mib}m"), format!("-Xmx{mib}m")].map(Into::into);
            let [least, most] = sizes;
            let rest = ["-XX:-UsePerfData", "-cp"].map(Into::into);
            let [perf, path] = rest;
            vec!["java".into(), collector.into(), least, most, perf, path, dir.into(), "Heap".into()]
        }
        Runtime::Go { .. } => vec![in_dir("heap")],
        Runtime::Sbcl => {
            // The collector copies, so what is in use may be there twice.
            let space = format!("{}MB", 2 * mib);
            vec![
                "sbcl".into(),
                "--dynamic-space-size".into(),
                space.into(),
                "--script".into(),
                in_dir("heap.lisp"),
            ]
        }
    };
    words.push((heap / 2).to_string().into());
    let mut command = match place {
        MemoryLocation::Far { local, placement } => {
            let itself = std::env::current_exe().map_err(|error| format!("this program itself: {error}"))?;
            let mut command = Command::new(itself);
            let (local, far) = (local.to_string(), (4 * heap).to_string());
            command.args(["run", "--json", "--placement", placement, "--local", &local, "--far", &far]);
            if matches!(runtime, Runtime::Sbcl) {
                // SBCL maps its heap past libc.
                command.args(["--intercept", "syscalls"]);
            }
            command.arg("--").args(words);
            command
        }
        MemoryLocation::Native | MemoryLocation::Limited(_) => {
            let mut command = Command::new(words.remove(0));
            command.args(words);
            command
        }
    };
    command.env_remove("JAVA_TOOL_OPTIONS").env_remove("GOGC");
    let group = if let MemoryLocation::Limited(group) = place { Some(*group) } else { None };
    run_child(command, group)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers are found in the statistics by name, not by a part of one.
    #[test]
    fn figures_are_found_by_name() {
        let report = |last_line: &str| ChildReport {
            nanos: 1,
            sum: 1,
            major_faults: None,
            cpu: None,
            last_line: last_line.to_owned(),
        };
        let stats = report(r#"{"far_bytes":5,"mapped":{"fixed":1},"resident_bytes":70}"#);
        assert_eq!((figure(&stats, "resident_bytes"), figure(&stats, "far_bytes")), (Ok(70), Ok(5)));
        assert!(figure(&stats, "bytes").unwrap_err().contains("no bytes in"));
        assert!(figure(&report("it died"), "far_bytes").is_err());
    }

    /// The programs of all installed runtimes print the same number natively.
    #[test]
    fn runtimes_agree() {
        let mut sums = Vec::new();
        for (id, runtime) in PROGRAMS {
            match built(runtime) {
                Ok(dir) => {
                    let report = start(runtime, dir.path(), 64 << 20, &MemoryLocation::Native).unwrap();
                    sums.push((id, report.sum));
                }
                Err(why) => eprintln!("skipped: {id}: {why}"),
            }
        }
        assert!(sums.iter().all(|(_, sum)| *sum == sums[0].1), "{sums:?}");
    }
}
