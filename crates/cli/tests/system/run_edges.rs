//! Tests of `farmem run` in special cases: programs with fixed addresses, `mincore`, AddressSanitizer, an
//! address space limit, or more memory than exists. Each case is a row of the table in docs/run.md.

use crate::process::{Dir, Ended, farmem, is_root, run_command};
use crate::rack::Description;
use crate::run::{MIB, PYTHON, assert_far, far, may_run, number, program, same, stats};
use std::process::Command;

/// Runs one case of `tests/programs/addresses.c` alone and with far memory, with the same result.
fn addresses(case: &str) -> Option<serde_json::Value> {
    if !may_run(case) {
        return None;
    }
    let dir = Dir::new(&format!("run-addresses-{case}"));
    Some(same(MIB, &[&program(&dir, "addresses", &[]), case]))
}

/// Bytes of private anonymous mappings that stayed local, for whatever reason.
fn mapped_local(stats: &serde_json::Value) -> u64 {
    let reasons = stats["mapped_local"].as_object().expect("reasons");
    reasons.values().filter_map(serde_json::Value::as_u64).sum()
}

/// A program that insists on its own addresses and unmaps all others succeeds after a bounded number of attempts.
/// ZGC needed 103,093 attempts.
#[test]
fn hints_of_a_program_that_insists_are_heard() {
    let Some(stats) = addresses("hints") else { return };
    assert!(number(&stats["mapped_local"], "chosen_address") >= 65 * MIB, "{stats}");
}

/// A hint that only serves the alignment gives far memory with the same alignment. The program does not
/// insist.
#[test]
fn hints_give_their_alignment() {
    let Some(stats) = addresses("aligned") else { return };
    assert_far(&stats);
    assert!(mapped_local(&stats) < MIB, "{stats}");
}

/// Java's ZGC starts.
#[test]
fn java_with_zgc() {
    let java = ["java", "-XX:+UseZGC", "-Xmx64m", "-XX:-UsePerfData", "-version"];
    let alone = Command::new(java[0]).args(&java[1..]).output();
    if !alone.is_ok_and(|ended| ended.status.success()) {
        return eprintln!("skipped: ZGC: no Java that has it is installed (scripts/setup)");
    }
    if !may_run("ZGC") {
        return;
    }
    let ended = run_command(far(16 * MIB, &java));
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let stats = stats(&ended, 16 * MIB);
    assert!(number(&stats, "calls") < 10_000, "{stats}");
}

/// Heaps of a JVM with compressed object pointers are far, whichever collector has them: eight times the local limit is touched, and no more than
/// the JVM's own memory is in RAM beside it.
#[test]
fn java_heaps_are_far() {
    if !may_run("Java's heaps") {
        return;
    }
    for collector in ["Serial", "Parallel", "G1", "Shenandoah"] {
        let collector = format!("-XX:+Use{collector}GC");
        let java = [
            "java",
            &collector,
            "-Xms128m",
            "-Xmx128m",
            "-XX:+AlwaysPreTouch",
            "-XX:-UsePerfData",
            "-version",
        ];
        let alone = Command::new(java[0]).args(&java[1..]).output();
        if !alone.is_ok_and(|ended| ended.status.success()) {
            eprintln!("skipped: {collector}: no Java that has it is installed (scripts/setup)");
            continue;
        }
        let ended = run_command(far(16 * MIB, &java));
        assert_eq!(ended.code, Some(0), "{collector}: {ended:?}");
        let stats = stats(&ended, 16 * MIB);
        // 28,672 pages of the heap cannot be here.
        assert!(number(&stats, "evictions") > 20_000, "{collector}: {stats}");
        assert!(number(&stats["mapped_local"], "chosen_address") < 32 * MIB, "{collector}: {stats}");
    }
}

/// A program that keeps more than the local limit where far memory does not reach is told of at the end, with the
/// reason; in the table, too. A stack is private; a file in memory is shared.
#[test]
fn memory_outside_far_memory_is_said() {
    if !may_run("memory outside") {
        return;
    }
    let stack = "mmap.mmap(-1, 64 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x20000)";
    let file = "mmap.mmap(memory_file(64 << 20), 64 << 20)";
    let cases =
        [(stack, "other_kind", "a stack, or of another kind"), (file, "shared", "shared mappings of memory")];
    for (mapping, key, reason) in cases {
        let script = format!(
            "import mmap, os, time\n\
             def memory_file(size):\n\
             \x20   file = os.memfd_create('test')\n\
             \x20   os.ftruncate(file, size)\n\
             \x20   return file\n\
             m = {mapping}\n\
             for i in range(0, len(m), 4096): m[i] = 1\n\
             time.sleep(2)\n"
        );
        let ended = run_command(far(MIB, &[PYTHON, "-c", &script]));
        assert_eq!(ended.code, Some(0), "{ended:?}");
        let stats = stats(&ended, MIB);
        assert!(number(&stats, "stayed_local") >= 64 * MIB, "{key}: {stats}");
        assert!(number(&stats["mapped_local"], key) >= 64 * MIB, "{stats}");
        let said =
            format!("outside far memory, which --local does not limit. Most that it mapped there: {reason}");
        assert_eq!(ended.stderr.matches(&said).count(), 1, "{ended:?}");
    }
}

/// The answers that differ from Linux are those of the table in docs/run.md, and no refused call changes a byte.
#[test]
fn answers_that_differ_from_linux() {
    if !may_run("answers that differ") {
        return;
    }
    let dir = Dir::new("run-differs");
    let (binary, file) = (program(&dir, "differs", &[]), dir.file("file", "bytes\n"));
    let ended = run_command(far(MIB, &[&binary, &file]));
    let expected = "mlock: success\n\
        mlock2: success\n\
        mlockall, current: success\n\
        mlockall, future: success\n\
        MADV_COLLAPSE: EINVAL\n\
        MADV_WIPEONFORK: EINVAL\n\
        MADV_REMOVE: EINVAL\n\
        MADV_GUARD_INSTALL: EINVAL\n\
        MREMAP_DONTUNMAP: EINVAL\n\
        mseal: ENOSYS\n\
        remap_file_pages: EINVAL\n\
        pkey_mprotect: EINVAL\n\
        its own userfaultfd: EBUSY\n\
        io_uring_setup: EPERM\n\
        O_DIRECT by libc: success\n\
        the file has it: 0\n\
        O_DIRECT past libc: EINVAL\n\
        0 bytes wrong\n";
    assert_eq!((ended.stdout.as_str(), ended.code), (expected, Some(0)), "{}", ended.stderr);
    assert_far(&stats(&ended, MIB));
}

/// Memory that is writable and executable is far, and code in it runs.
#[test]
fn executable_data_is_far() {
    let Some(stats) = addresses("code") else { return };
    assert_far(&stats);
    assert_eq!(number(&stats["mapped_local"], "executable"), 0, "{stats}");
}

/// LuaJIT searches for memory that its pointers can address. If all its mappings could be far, it would
/// search 30 times for each.
#[test]
fn luajit_with_a_small_threshold() {
    let script = "local t = {} for i = 1, 200000 do t[i] = {i, tostring(i)} end local s = 0 for i = 1, #t do s = s + t[i][1] + #t[i][2] end print(s)";
    let there = Command::new("luajit").args(["-e", script]).output();
    let Ok(alone) = there else { return eprintln!("skipped: LuaJIT is not installed (scripts/setup)") };
    if !may_run("LuaJIT") {
        return;
    }
    let local = MIB.to_string();
    let ended = run_command(farmem(&[
        "run",
        "--json",
        "--local",
        &local,
        "--far",
        "1GiB",
        "--threshold",
        "4KiB",
        "--",
        "luajit",
        "-e",
        script,
    ]));
    assert_eq!((ended.stdout.as_bytes(), ended.code), (&alone.stdout[..], Some(0)), "{ended:?}");
    let stats = stats(&ended, MIB);
    assert!(number(&stats, "calls") < 20_000, "{stats}");
}

/// Unmapped memory is unmapped for `mincore` too. The test asks about far memory.
#[test]
fn mincore_knows_what_is_mapped() {
    let Some(stats) = addresses("resident") else { return };
    assert!(number(&stats, "faults") > 0, "{stats}");
    assert_eq!(mapped_local(&stats), 0, "{stats}");
}

/// The table of `--stats` contains the local memory and the largest resident set, like the JSON.
#[test]
fn local_memory_is_in_the_table() {
    if !may_run("the table of statistics") {
        return;
    }
    let dir = Dir::new("run-table");
    let binary = program(&dir, "addresses", &[]);
    let run = ["run", "--stats", "--local", "1MiB", "--far", "1GiB", "--", &binary, "hints"];
    let ended = run_command(farmem(&run));
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let row = |name: &str| -> u64 {
        let mut lines = ended.stderr.lines().map(|line| line.trim_start_matches("| "));
        let line = lines.find_map(|line| line.strip_prefix(name));
        let digits =
            line.unwrap_or_else(|| panic!("{name}: {}", ended.stderr)).chars().filter(char::is_ascii_digit);
        digits.collect::<String>().parse().unwrap_or_else(|e| panic!("{name}: {e}: {}", ended.stderr))
    };
    assert!(row("  mapped: at an address of its choice") >= 65 * MIB, "{}", ended.stderr);
    assert!(row("largest resident set, bytes") >= MIB / 4, "{}", ended.stderr);
}

/// The program is refused memory when it asks for it. All granted memory can be used, without a later SIGBUS.
#[test]
fn out_of_far_memory_is_said_when_memory_is_asked_for() {
    if !may_run("out of far memory") {
        return;
    }
    let dir = Dir::new("run-promise");
    let binary = program(&dir, "addresses", &[]);
    let ended = run_command(farmem(&["run", "--local", "1MiB", "--far", "32MiB", "--", &binary, "promise"]));
    let expected = "malloc: most of it, Cannot allocate memory, all right: yes\n\
        realloc: Cannot allocate memory, and the block stays\n\
        calloc: Cannot allocate memory\n\
        mmap: Cannot allocate memory\n\
        mmap without a promise: given\n\
        mmap of what may not be touched: given\n\
        mprotect of it: Cannot allocate memory\n\
        after it was given back: given\n";
    assert_eq!((ended.stdout.as_str(), ended.code), (expected, Some(0)), "{}", ended.stderr);
    assert_eq!(ended.stderr.matches("out of far memory").count(), 1, "{}", ended.stderr);
}

/// A program wants twice the memory of a rack that others use too. Once the rack is full, the program is
/// refused more memory, or ends for lack of space with the reason. Its earlier memory stays intact. The rack
/// keeps nothing of the program afterwards.
#[test]
fn a_rack_that_is_full_is_told_of() {
    if !may_run("a full rack") {
        return;
    }
    let rack = Description::new("run-full", "udp");
    let (up, file) = (rack.up(), rack.file());
    let text = "blocks = []\n\
                def fill(block, n):\n\
                \x20   for at in range(0, 1 << 20, 4096): block[at:at + 4] = (n << 8 | at >> 12).to_bytes(4, 'little')\n\
                try:\n\
                \x20   for n in range(64):\n\
                \x20       block = bytearray(1 << 20)\n\
                \x20       fill(block, n)\n\
                \x20       blocks.append(block)\n\
                except MemoryError: pass\n\
                wrong = 0\n\
                for n, block in enumerate(blocks):\n\
                \x20   for at in range(0, 1 << 20, 4096):\n\
                \x20       wrong += block[at:at + 4] != (n << 8 | at >> 12).to_bytes(4, 'little')\n\
                print(wrong, len(blocks))\n";
    let ended = run_command(farmem(&["run", "--rack", &file, "--local", "1MiB", "--", PYTHON, "-c", text]));
    if ended.code == Some(0) {
        let (wrong, blocks) = ended.stdout.trim().split_once(' ').expect("two numbers");
        let blocks: u32 = blocks.parse().expect("a number");
        assert!(wrong == "0" && (8..32).contains(&blocks), "{ended:?}");
        assert!(ended.stderr.contains("out of far memory"), "{ended:?}");
    } else {
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(2), ""), "{ended:?}");
        assert!(ended.stderr.contains("far memory is full"), "{ended:?}");
    }
    let overview = rack.overview();
    assert_eq!(overview["vmas"], serde_json::json!([]), "{overview}");
    assert_eq!(up.stop().code, Some(0));
}

/// Memory beyond the reserved addresses stays local. The output reports this at once and in the statistics.
#[test]
fn a_mapping_beyond_the_reserved_addresses_is_reported() {
    if !may_run("addresses that are used up") {
        return;
    }
    let dir = Dir::new("run-beyond");
    let ended = run_command(far(MIB, &[&program(&dir, "addresses", &[]), "beyond"]));
    assert_eq!((ended.stdout.as_str(), ended.code), ("0 9\n", Some(0)), "{}", ended.stderr);
    assert_eq!(ended.stderr.matches("addresses for far memory are used up").count(), 1, "{}", ended.stderr);
    let stats = stats(&ended, MIB);
    assert!(number(&stats["mapped_local"], "no_room") >= 2 << 40, "{stats}");
    assert!(number(&stats, "resident_bytes") >= MIB / 4, "{stats}");
}

/// A mapping of 1 TiB without a promise is far.
#[test]
fn a_wide_mapping_is_far() {
    let Some(stats) = addresses("wide") else { return };
    assert_eq!(mapped_local(&stats), 0, "{stats}");
    assert!(number(&stats, "faults_zero") >= 2, "{stats}");
}

/// A program with AddressSanitizer's runtime starts with far mappings, and the runtime reports its faults.
#[test]
fn programs_under_address_sanitizer() {
    if !may_run("AddressSanitizer") {
        return;
    }
    let dir = Dir::new("run-checked");
    let probe = dir.file("probe.c", "int main(void) { return 0; }\n");
    let there = Command::new("cc").args(["-fsanitize=address", "-o", "/dev/null", &probe]).output();
    if !there.is_ok_and(|made| made.status.success()) {
        return eprintln!("skipped: AddressSanitizer: the C compiler has no runtime of it");
    }
    let binary = program(&dir, "checked", &["-fsanitize=address"]);
    assert_far(&same(MIB, &[&binary]));
    let ended = run_command(far(MIB, &[&binary, "beyond"]));
    assert!(ended.code != Some(0) && ended.stderr.contains("heap-buffer-overflow"), "{ended:?}");
}

/// An address space limit applies to the program, and not to the rack that holds its memory.
#[test]
fn a_limit_of_addresses_is_the_program_s() {
    if !may_run("a limit of addresses") {
        return;
    }
    let limited = |kind: &str, args: &[&str]| -> Ended {
        let mut shell = Command::new("sh");
        let script = format!("ulimit {kind} 4000000; exec \"$@\"");
        shell.args(["-c", &script, "sh", env!("CARGO_BIN_EXE_farmem"), "run", "--"]).args(args);
        run_command(shell)
    };
    for kind in ["-Sv", "-v"] {
        if kind == "-v" && !is_root() {
            eprintln!("skipped: a hard limit of addresses: only root may lift one");
            continue;
        }
        let ended = limited(kind, &["sh", "-c", "ulimit -v; seq 100000 | sort -n -S 4M | tail -1"]);
        assert_eq!((ended.stdout.as_str(), ended.code), ("4000000\n100000\n", Some(0)), "{}", ended.stderr);
    }
}
