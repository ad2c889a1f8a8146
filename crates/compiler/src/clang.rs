//! Runs clang: the choice of the command, its flags, and the relevant part of its messages.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use thiserror::Error;

/// The header for authors, which every compilation finds as `farmem/iterator.h`.
pub const HEADER: &str = include_str!("../../../cpp/include/farmem/iterator.h");

/// The commands to try, best first.
pub const NAMES: [&str; 4] = ["clang-19", "clang-16", "clang-14", "clang"];

/// The reason why there is no object.
#[derive(Debug, Error)]
pub enum ClangError {
    /// No clang is installed, or the named one cannot be started.
    #[error("no clang: {} {} not found. Install one: apt-get install clang-19 (Debian), or any clang from 14 on with the BPF target", .0.join(", "), if .0.len() == 1 { "was" } else { "were" })]
    Absent(Vec<String>),
    /// clang refused the source. The text has clang's messages, without repetitions and internal dumps, and
    /// hints.
    #[error("{0}")]
    Refused(String),
    /// The source is neither C nor C++ by its name.
    #[error("{}: neither .c nor .cpp, .cc or .cxx", .0.display())]
    Language(PathBuf),
    /// A temporary file could not be written or read.
    #[error("temporary files of the compilation: {0}")]
    Temporary(#[from] io::Error),
}

/// An installed clang.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Clang {
    /// The command.
    pub command: String,
}

/// The result of a compilation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Object {
    /// The BPF object.
    pub bytes: Vec<u8>,
    /// The warnings with hints; empty if there are none.
    pub warnings: String,
}

/// Options of the author for clang.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Options {
    /// Folders to search for headers, before the system's.
    pub include: Vec<PathBuf>,
    /// Macros: `NAME`, or `NAME=VALUE`.
    pub define: Vec<String>,
}

/// Compiles a source with the best clang.
///
/// # Errors
/// [`ClangError`]
pub fn compile(source: &Path, options: &Options) -> Result<Object, ClangError> {
    Clang::find()?.compile_with(source, options)
}

impl Clang {
    /// Returns the best clang.
    ///
    /// # Errors
    /// [`ClangError::Absent`]
    pub fn find() -> Result<Self, ClangError> {
        let found = Self::all().into_iter().next();
        found.ok_or_else(|| ClangError::Absent(NAMES.map(str::to_owned).into()))
    }

    /// Returns every installed clang, best first.
    #[must_use]
    pub fn all() -> Vec<Self> {
        NAMES.iter().map(|&name| Self { command: name.to_owned() }).filter(Self::starts).collect()
    }

    fn starts(&self) -> bool {
        Command::new(&self.command).arg("--version").output().is_ok_and(|output| output.status.success())
    }

    /// Compiles a C or C++ source to a BPF object.
    ///
    /// # Errors
    /// [`ClangError`]
    pub fn compile(&self, source: &Path) -> Result<Object, ClangError> {
        self.compile_with(source, &Options::default())
    }

    /// Compiles a C or C++ source with options of the author.
    ///
    /// # Errors
    /// [`ClangError`]
    pub fn compile_with(&self, source: &Path, options: &Options) -> Result<Object, ClangError> {
        let language: &[&str] = match source.extension().and_then(OsStr::to_str) {
            Some("c") => &["-x", "c", "-std=gnu11"],
            Some("cpp" | "cc" | "cxx") => &["-x", "c++", "-std=c++17", "-fno-exceptions", "-fno-rtti"],
            _ => return Err(ClangError::Language(source.to_owned())),
        };
        let folder = tempfile::tempdir()?;
        let include = folder.path().join("include");
        std::fs::create_dir_all(include.join("farmem"))?;
        std::fs::write(include.join("farmem/iterator.h"), HEADER)?;
        let object = folder.path().join("iterator.o");
        let output = Command::new(&self.command)
            .args(FLAGS)
            .arg("-I")
            .arg(&include)
            .args(options.include.iter().flat_map(|folder| [OsStr::new("-I"), folder.as_os_str()]))
            .args(options.define.iter().map(|define| format!("-D{define}")))
            .args(system())
            .args(language)
            .arg("-c")
            .arg(source)
            .arg("-o")
            .arg(&object)
            .output()
            .map_err(|_| ClangError::Absent(vec![self.command.clone()]))?;
        let folder = format!("{}/", include.display());
        let said = readable(&String::from_utf8_lossy(&output.stderr).replace(&folder, ""));
        if !output.status.success() {
            return Err(ClangError::Refused(said));
        }
        Ok(Object { bytes: std::fs::read(&object)?, warnings: said })
    }
}

/// Flags for BPF v3: 32-bit comparisons and arithmetic, no signed division. Line tables are for the
/// compiler's messages; no path of this machine enters them.
///
/// Three transformations of clang are disabled, because they hide a loop's number of rounds before it is
/// unrolled. Two serve the kernel's verifier: comparisons that are kept apart, and sums that are not moved.
/// The third merges the end of a loop and a `break` into one condition.
const FLAGS: [&str; 18] = [
    "-target",
    "bpfel",
    "-mcpu=v3",
    "-O2",
    "-ffreestanding",
    "-mllvm",
    "-bpf-disable-serialize-icmp",
    "-mllvm",
    "-bpf-disable-avoid-speculation",
    "-mllvm",
    "-simplifycfg-branch-fold-threshold=0",
    "-gline-tables-only",
    "-fdebug-compilation-dir=.",
    "-fno-crash-diagnostics",
    "-fno-color-diagnostics",
    "-Wall",
    "-Wextra",
    "-Wno-unused-function",
];

/// Returns the flags for the C library's headers of this machine. They select sizes of types by processor,
/// and these are BPF's too. They come behind all other folders, and a machine without them works as well.
fn system() -> Vec<String> {
    let processor = std::env::consts::ARCH;
    vec!["-idirafter".into(), format!("/usr/include/{processor}-linux-gnu"), format!("-D__{processor}__")]
}

/// Substrings of clang's messages, and the hint for the author of an iterator.
const HINTS: [(&str, &str); 7] = [
    (
        "poisoned identifier",
        "an iterator has no library and no floating point; use FARMEM_EQUAL for memcmp, FARMEM_COPY for large copies",
    ),
    (
        "built-in function",
        "clang would call its library here, and there is none: no floating point; no product of 128 bits, which the sum over a loop becomes \
         whose rounds are data; memory is set and copied in loops (FARMEM_LOOP)",
    ),
    ("signed division", "signed division: divide uint64_t or uint32_t, or shift"),
    (
        "stack limit",
        "local variables take more than the stack: 128 bytes are there; keep large arrays in the scratch pad",
    ),
    (
        "loop not unrolled",
        "write FARMEM_LOOP(i, rounds) for FARMEM_UNROLL and `for`: it keeps the end of the loop and a `break` apart, which clang makes one \
         condition otherwise; the number of rounds is a constant",
    ),
    (
        "atomic operation",
        "nothing else can touch node or scratch pad within an iteration: read and write them plainly, declare no member _Atomic, leave \
         fences out",
    ),
    (
        "file not found",
        "-I names further folders with headers; those of C are there when the system has them (libc6-dev), those of C++ are not: declare \
         the node's layout yourself",
    ),
];

/// The start of clang's crash report.
const CRASH: &str = "PLEASE submit a bug report";

/// Returns clang's messages without repetitions and backend dumps, followed by hints.
fn readable(stderr: &str) -> String {
    let mut seen = BTreeSet::new();
    let mut text = String::new();
    // A message begins with `file:line:column: error:` and continues with the source line and a marker.
    let mut shown = true;
    for line in stderr.lines() {
        if let Some(place) = line.strip_prefix("Error at line ") {
            // The backend of clang 14 and 16 prints this before its selection graph.
            text += &format!(
                "line {}: error: unsupported signed division\n",
                place.split(':').next().unwrap_or_default()
            );
            break;
        }
        if let Some((_, node)) = line.split_once("Cannot select: ") {
            text += &not_selected(node);
            break;
        }
        if line.starts_with(CRASH) {
            text += &crash(stderr);
            break;
        }
        if line.contains("error: ") || line.contains("warning: ") || line.contains("note: ") {
            shown = seen.insert(line.to_owned());
        }
        if shown && !line.trim().is_empty() && !is_noise(line) {
            text += line;
            text.push('\n');
        }
    }
    let hints = HINTS.iter().filter(|(said, _)| text.contains(said));
    let hints: String = hints.map(|(_, hint)| format!("farmem: {hint}\n")).collect();
    text + &hints
}

/// Returns the operation that BPF lacks: `0x1: i64,ch = AtomicLoad<(load seq_cst (s64) from %ir.0)> 0x2, 0x3,
/// a.c:5:18`.
fn not_selected(node: &str) -> String {
    let operation = node.split_once(" = ").map_or(node, |(_, operation)| operation);
    let operation =
        operation.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next().unwrap_or_default();
    let is_place =
        |word: &&str| word.rsplit(':').take(2).filter(|part| part.parse::<u32>().is_ok()).count() == 2;
    let place =
        node.rsplit(", ").find(is_place).map_or_else(String::new, |place| format!("{}: ", place.trim()));
    let what =
        if operation.starts_with("Atomic") { "an atomic operation" } else { "BPF has nothing for this" };
    format!("{place}error: {what} (clang calls it {operation})\n")
}

/// Summarizes a crash of clang, with the function that its dump names.
fn crash(stderr: &str) -> String {
    let at = stderr.split_once("on function '@").and_then(|(_, rest)| rest.split_once('\''));
    let at = at.map_or_else(String::new, |(function, _)| format!(" at {function}"));
    format!("error: clang itself failed{at}: it has no BPF for something in there; clang-19 says what\n")
}

fn is_noise(line: &str) -> bool {
    line.ends_with("generated.") || line.contains("too many errors emitted")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_complaint_is_shown_once_with_what_to_do() {
        let complaint = "a.c:6:31: error: Looks like the BPF stack limit is exceeded.\n\n    6 |  t[i] = 1;\n      |  ^\n";
        let said = readable(&format!(
            "{}fatal error: too many errors emitted, stopping now\n20 errors generated.\n",
            complaint.repeat(20)
        ));
        let expected = "a.c:6:31: error: Looks like the BPF stack limit is exceeded.\n    6 |  t[i] = 1;\n      |  ^\n\
            farmem: local variables take more than the stack: 128 bytes are there; keep large arrays in the scratch pad\n";
        assert_eq!(said, expected);
    }

    #[test]
    fn a_backend_that_gives_up_is_put_in_one_line() {
        let dump = "Error at line 4: Unsupport signed division for DAG: 0x1: i64 = sdiv 0x2, 0x3\n\
            fatal error: error in backend: Cannot select: 0x1\nPLEASE submit a bug report\nStack dump:\n";
        let expected = "line 4: error: unsupported signed division\n\
            farmem: signed division: divide uint64_t or uint32_t, or shift\n";
        assert_eq!(readable(dump), expected);
    }

    #[test]
    fn what_clang_cannot_select_is_put_in_one_line() {
        let dump = "fatal error: error in backend: Cannot select: 0x5: i64,ch = AtomicLoad<(load seq_cst (s64) from %ir.0)> 0x6, 0x7, a.c:5:18\n  \
            0x7: i64,ch = CopyFromReg 0x6, Register:i64 %0\nIn function: it\nPLEASE submit a bug report\n";
        let said = readable(dump);
        assert!(
            said.starts_with(
                "a.c:5:18: error: an atomic operation (clang calls it AtomicLoad)\nfarmem: nothing else"
            ),
            "{said}"
        );
        assert_eq!(
            readable("Cannot select: t1: f64 = fsqrt t2"),
            "error: BPF has nothing for this (clang calls it fsqrt)\n"
        );
    }

    #[test]
    fn a_crash_is_put_in_one_line() {
        let dump = "a.c:3:1: warning: unused\nPLEASE submit a bug report to\nStack dump:\n0.\tProgram arguments: clang-14\n\
            4.\tRunning pass 'BPF DAG->DAG Pattern Instruction Selection' on function '@find'\n/lib/libLLVM-14.so.1(+0x31)[0x7f]\n";
        assert_eq!(
            readable(dump),
            "a.c:3:1: warning: unused\nerror: clang itself failed at find: it has no BPF for something in there; clang-19 says what\n"
        );
    }

    #[test]
    fn who_has_no_clang_is_told_which_package_to_install() {
        let clang = Clang { command: "clang-of-nowhere".into() };
        let error = clang.compile(Path::new("a.c")).expect_err("it is not there").to_string();
        assert!(
            error.contains("clang-of-nowhere was not found") && error.contains("apt-get install clang-19"),
            "{error}"
        );
    }

    #[test]
    fn a_source_says_its_language_by_its_name() {
        let clang = Clang { command: "clang".into() };
        assert!(matches!(clang.compile(Path::new("a.rs")), Err(ClangError::Language(_))));
    }
}
