//! Tests of `farmem compile`: programs, cost reports and rejections, and the compiled programs on a rack.

#[path = "../../compiler/tests/searches/mod.rs"]
mod searches;

use farmem::iterator::{Code, Cursor, Executed, FarIterator, Scratch};
use farmem::{Program, Rack, VirtAddr};
use proptest::strategy::{Strategy as _, ValueTree as _};
use proptest::test_runner::TestRunner;
use searches::{TYPES, case};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn iterators() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/iterators")
}

/// Returns the path of an output file. Each file belongs to one test.
fn output(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}

fn compile(args: &[&str]) -> Output {
    let farmem = env!("CARGO_BIN_EXE_farmem");
    Command::new(farmem).current_dir(iterators()).arg("compile").args(args).output().expect("it starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("text")
}

/// The text on standard output, the text file, the binary file and the hexadecimal JSON field hold the same
/// program.
#[test]
fn all_forms_are_one_program() {
    let (pulse, bytes) = (output("find.pulse"), output("find.bin"));
    let shown = compile(&["hash_find.o"]);
    assert!(shown.status.success());
    let program = Program::assemble(&text(&shown.stdout)).expect("it assembles");
    for file in [&pulse, &bytes] {
        let written = compile(&["hash_find.o", "-o", file.to_str().expect("a name")]);
        assert!(written.status.success() && written.stdout.is_empty(), "{written:?}");
    }
    let from_text = Program::assemble(&std::fs::read_to_string(&pulse).expect("written"));
    assert_eq!(from_text.as_ref(), Ok(&program));
    assert_eq!(std::fs::read(&bytes).expect("written"), program.encoded());
    let account: Value = serde_json::from_slice(&compile(&["hash_find.o", "--json"]).stdout).expect("JSON");
    let hex: String = program.encoded().iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(account["code"], hex);
    assert_eq!((&account["window_bytes"], &account["scratch_bytes"]), (&64.into(), &56.into()));
    assert_eq!((&account["stores"], &account["searches"]), (&Value::Null, &0.into()));
}

/// The report states window, path, times, verdict, stores and searches. Other accelerator times produce
/// another verdict.
#[test]
fn the_account_has_what_an_author_asks() {
    let told = text(&compile(&["list_add.o", "--explain"]).stdout);
    for row in [
        "load window",
        "16 B",
        "on the longest path (N)",
        "dearest line of it",
        "list_add.c:",
        "loads and stores of spills",
        "slots left",
        "t_c / t_d",
        "offload",
        "yes",
        "stores to the node",
    ] {
        assert!(told.contains(row), "{row} in\n{told}");
    }
    let account = |args: &[&str]| -> Value {
        serde_json::from_slice(&compile(&[args, &["--json"]].concat()).stdout).expect("JSON")
    };
    assert_eq!(account(&["list_add.o"])["stores"], 1);
    assert_eq!(account(&["btree_rank.o"])["searches"], 2);
    assert_eq!(account(&["list_add.o", "--instruction-ps", "100000"])["offload"], false);
    assert_eq!(
        account(&["list_add.o", "--instruction-ps", "100000", "--eta", "1", "--load-ps", "1000000"])["offload"],
        true
    );
}

/// A rejected iterator ends with 1, and standard error names the file, the line and the remedy. A missing
/// file ends with 2.
#[test]
fn refusals_name_the_line() {
    for (file, said) in [
        ("refused/window_store.o", "window_store.c:15: visit: stores to the node"),
        ("refused/loop.o", "loop.c:"),
        (
            "refused/search_scratch.o",
            "search_scratch.c:14: pick: searches something else than an array of the node",
        ),
    ] {
        let refused = compile(&[file]);
        assert_eq!(refused.status.code(), Some(1), "{file}");
        assert!(refused.stdout.is_empty() && text(&refused.stderr).contains(said), "{file}: {refused:?}");
    }
    let missing = compile(&["nothing.o"]);
    assert_eq!(missing.status.code(), Some(2));
    assert!(text(&missing.stderr).contains("nothing.o"), "{missing:?}");
    let folder = tempfile::tempdir().expect("a folder");
    let source = folder.path().join("folder.c");
    std::fs::create_dir(&source).expect("a folder that is named as a source");
    let no_file = compile(&[source.to_str().expect("a name")]);
    assert_eq!(no_file.status.code(), Some(2), "{no_file:?}");
    assert!(text(&no_file.stderr).contains("is a directory"), "{no_file:?}");
    let several = compile(&["hash_find.o", "--iterator", "other"]);
    assert_eq!(several.status.code(), Some(1));
    assert!(
        text(&several.stderr).contains("no iterator other in this object, only hash_find"),
        "{several:?}"
    );
}

/// A read past the node's end may be intended, or an index may be too large. The command warns, and prints
/// the program.
#[test]
fn loads_behind_the_node_are_reported() {
    let told = compile(&["tail_sum.o", "--explain"]);
    assert_eq!(told.status.code(), Some(0), "{told:?}");
    assert!(
        text(&told.stderr).contains("tail_sum loads 40 bytes of a node that is declared with 8"),
        "{told:?}"
    );
    assert_eq!(text(&compile(&["list_add.o"]).stderr), "");
}

/// The output cannot overwrite the source file.
#[test]
fn a_source_is_not_written_over() {
    let folder = tempfile::tempdir().expect("a folder");
    let object = folder.path().join("list.o");
    let before = std::fs::read(iterators().join("list_find.o")).expect("testdata is there");
    std::fs::write(&object, &before).expect("a copy");
    let name = object.to_str().expect("a name");
    let refused = compile(&[name, "-o", name]);
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    assert!(text(&refused.stderr).contains("would be written over its source"), "{refused:?}");
    assert_eq!(std::fs::read(&object).expect("it is still there"), before);
}

/// Arguments of list_add.c, with the content of a file as code.
struct Add {
    head: VirtAddr,
    code: Vec<u8>,
}

impl FarIterator for Add {
    type Output = u64;

    fn next(&self) -> Code<'_> {
        Code::Encoded(&self.code)
    }

    fn init(&self, scratch: &mut Scratch) -> VirtAddr {
        scratch.set_word(0, 1000);
        self.head
    }

    fn end(&self, _last: VirtAddr, scratch: &Scratch) -> u64 {
        scratch.word(8)
    }
}

/// A list over two memory nodes, traversed by a program that the command compiled from C.
#[test]
fn a_compiled_program_runs_over_a_rack() {
    let file = output("add.bin");
    assert!(compile(&["list_add.o", "-o", file.to_str().expect("a name")]).status.success());
    let code = std::fs::read(&file).expect("written");
    let rack = Rack::embedded_with(2, 1 << 20).expect("a rack");
    let mut client = rack.client("compiled").expect("a client");
    let rooms: Vec<u64> =
        (1..=2).map(|node| client.allocate_on(4096, farmem::NodeId(node)).expect("room").base.0).collect();
    let at = |n: u64| VirtAddr(rooms[usize::try_from(n % 2).expect("small")] + 16 * n);
    for n in 0..9 {
        let next = if n < 8 { at(n + 1).0 } else { 0 };
        client.write(at(n), &[n.to_le_bytes(), next.to_le_bytes()].concat()).expect("written");
    }
    let cursor = Cursor::new(Add { head: at(0), code }).expect("a program");
    let Executed::Paused(rest) = cursor.execute(&mut client, 4).expect("it runs") else {
        panic!("nine nodes")
    };
    assert_eq!(rest.cur_ptr(), at(4));
    let Executed::Ended(count) = rest.execute(&mut client, 100).expect("it runs") else {
        panic!("five nodes")
    };
    assert_eq!(count, 9);
    for n in 0..9 {
        let mut word = [0; 8];
        client.read(at(n), &mut word).expect("read");
        assert_eq!(u64::from_le_bytes(word), 1000 + n);
    }
}

/// Arguments of signed_search.c for one node and one key.
struct Search<'a> {
    node: VirtAddr,
    code: &'a [u8],
    scratch: Vec<u8>,
}

impl FarIterator for Search<'_> {
    type Output = Vec<u8>;

    fn next(&self) -> Code<'_> {
        Code::Encoded(self.code)
    }

    fn init(&self, scratch: &mut Scratch) -> VirtAddr {
        scratch.bytes_mut().copy_from_slice(&self.scratch);
        self.node
    }

    fn end(&self, _last: VirtAddr, scratch: &Scratch) -> Vec<u8> {
        scratch.bytes()[8..].to_vec()
    }
}

/// RANK and MATCH of signed and unsigned numbers in the machine code of a memory node return the results of C
/// and of the interpreter (crates/compiler/tests/searches.rs; PROTOCOL 10.22).
#[test]
fn a_memory_node_searches_signed_arrays_as_c_compares() {
    let programs = TYPES.map(|of| {
        let (name, file) = (format!("search_{}", of.name), output(&format!("search_{}.bin", of.name)));
        let file = file.to_str().expect("a name");
        let made = compile(&["signed_search.o", "--iterator", &name, "-o", file]);
        assert!(made.status.success(), "{made:?}");
        std::fs::read(file).expect("written")
    });
    let rack = Rack::embedded_with(1, 1 << 20).expect("a rack");
    let mut client = rack.client("searching").expect("a client");
    let node = client.allocate(4096).expect("room").base;
    let mut runner = TestRunner::deterministic();
    for _ in 0..2000 {
        let case = case().new_tree(&mut runner).expect("a case").current();
        client.write(node, &case.node()).expect("written");
        let search = Search { node, code: &programs[case.numbers], scratch: case.scratch() };
        let cursor = Cursor::new(search).expect("a program");
        let Executed::Ended(found) = cursor.execute(&mut client, 1).expect("it runs") else {
            panic!("one node")
        };
        assert_eq!(found, case.expected(), "numbers of {:?}: {case:?}", TYPES[case.numbers]);
    }
}

/// An author's own headers, macros and C library headers work in any order. farmem/iterator.h forbids names
/// only after the first iterator.
#[test]
fn headers_and_macros_of_the_author_are_taken() {
    if farmem_compiler::clang::Clang::find().is_err() {
        eprintln!("skipped: clang absent: -I and -D are not tested");
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let (headers, source) = (folder.path().join("headers"), folder.path().join("own.c"));
    std::fs::create_dir(&headers).expect("a folder");
    std::fs::write(headers.join("layout.h"), "struct node { struct node *next; uint64_t key; };\n")
        .expect("written");
    let body = "#include \"layout.h\"\nstruct found { uint64_t key; bool found; };\n\
        FARMEM_ITERATOR(own, struct node, struct found) {\n\
        \u{20}   sp->found |= win->key == KEY && win->key < INT_MAX;\n    return FARMEM_NEXT(win->next);\n}\n";
    let before = "#include <farmem/iterator.h>\n#include <stdbool.h>\n#include <limits.h>\n";
    std::fs::write(&source, format!("{before}{body}")).expect("written");
    let name = source.to_str().expect("a name");
    let missing = compile(&[name]);
    assert_eq!(missing.status.code(), Some(1), "{missing:?}");
    assert!(text(&missing.stderr).contains("-I names further folders with headers"), "{missing:?}");
    let headers = headers.to_str().expect("a name");
    let taken = compile(&[name, "-I", headers, "-D", "KEY=77"]);
    assert!(taken.status.success() && taken.stderr.is_empty(), "{taken:?}");
    assert!(text(&taken.stdout).contains("77"), "{taken:?}");
    if !Path::new("/usr/include/string.h").exists() {
        eprintln!("skipped: libc6-dev absent: the system's headers are not tested");
        return;
    }
    let system = "#include <string.h>\n#include <sys/types.h>\n#include <stdlib.h>\n#include <linux/types.h>\n#include <netinet/in.h>\n";
    for order in [format!("{before}{system}"), format!("{system}{before}")] {
        std::fs::write(&source, format!("{order}{body}")).expect("written");
        let taken = compile(&[name, "-I", headers, "-DKEY=77"]);
        assert!(taken.status.success() && taken.stderr.is_empty(), "{taken:?}");
    }
}
