//! The cache: one compilation per program, a bound, and code that lives as long as it runs.
//! `tests/differential.rs` compares the code with the interpreter.

use super::*;
use procfs_core::FromRead as _;
use procfs_core::process::{MMPermissions, MMapPath, MemoryMap, MemoryMaps};

/// Returns a program whose number is its result.
fn numbered(number: u64) -> Program {
    Program::assemble(&format!(".scratch 8\n lddw r2, {number}\n st8 scratch[0], r2\n ret")).unwrap()
}

fn result(compiled: &Compiled) -> u64 {
    let mut scratch = [0; 8];
    assert_eq!(compiled.step(&[0], &mut VirtAddr(7), &mut scratch), Step::Return);
    u64::from_le_bytes(scratch)
}

fn mappings() -> MemoryMaps {
    MemoryMaps::from_file("/proc/self/maps").unwrap()
}

#[test]
fn a_program_is_compiled_once() {
    let mut jit = Jit::new(4).unwrap();
    assert!(jit.is_empty());
    let first = jit.compile(&numbered(1)).unwrap();
    let again = jit.compile(&Program::decode(numbered(1).encoded()).unwrap()).unwrap();
    assert!(Arc::ptr_eq(&first, &again));
    assert_eq!(jit.len(), 1);
    assert_eq!(result(&first), 1);
    assert!(first.code_len() > 0 && first.code_len() < 200, "{} bytes", first.code_len());
}

/// Two programs fit. The third evicts the least recently used one, which a traversal in flight still runs:
/// its code stays until the traversal has ended. The other one was used since, and stays in the cache.
#[test]
fn a_forgotten_program_lives_as_long_as_it_is_run() {
    let mut jit = Jit::new(2).unwrap();
    let (one, two) = (jit.compile(&numbered(1)).unwrap(), jit.compile(&numbered(2)).unwrap());
    let one_in_cache = jit.compile(&numbered(1)).unwrap();
    jit.compile(&numbered(3)).unwrap();
    assert_eq!(jit.len(), 2);
    assert_eq!(Arc::strong_count(&two), 1, "only this test has it");
    assert_eq!(result(&two), 2);
    assert!(Arc::ptr_eq(&one, &jit.compile(&numbered(1)).unwrap()), "it was used since");
    drop((one, one_in_cache));
    let two_again = jit.compile(&numbered(2)).unwrap();
    assert!(!Arc::ptr_eq(&two, &two_again), "it was forgotten");
    drop(jit);
    assert_eq!((result(&two), result(&two_again)), (2, 2), "code outlives the compiler");
}

/// Many more programs than fit: evicted ones are freed. Otherwise each would leave mapped pages.
#[test]
fn the_pages_of_forgotten_programs_are_given_back() {
    let is_code = |map: &&MemoryMap| {
        map.pathname == MMapPath::Anonymous
            && map.perms.contains(MMPermissions::READ | MMPermissions::EXECUTE)
    };
    let executable = || mappings().iter().filter(is_code).count();
    let mut jit = Jit::new(2).unwrap();
    let before = executable();
    for number in 0..50 {
        assert_eq!(result(&jit.compile(&numbered(number)).unwrap()), number);
        let mapped = executable().saturating_sub(before);
        // Other tests of the process compile too, a few at a time.
        assert!(mapped <= 20, "{mapped} mappings after {number} programs");
    }
}

/// No page with code is writable.
#[test]
fn no_page_is_writable_and_executable() {
    let mut jit = Jit::new(1).unwrap();
    let compiled = jit.compile(&numbered(1)).unwrap();
    let at = compiled.code as usize as u64;
    let maps = mappings();
    let map =
        maps.iter().find(|map| (map.address.0..map.address.1).contains(&at)).expect("the code is mapped");
    assert_eq!(map.perms, MMPermissions::READ | MMPermissions::EXECUTE | MMPermissions::PRIVATE, "{map:?}");
    let both = MMPermissions::WRITE | MMPermissions::EXECUTE;
    assert!(!maps.iter().any(|map| map.perms.contains(both)), "{maps:?}");
}

/// Two programs of the same name cannot be constructed, so the test manipulates the cache: it must compare
/// the bytes too.
#[test]
fn a_name_is_not_enough() {
    let mut jit = Jit::new(4).unwrap();
    let (one, two) = (jit.compile(&numbered(1)).unwrap(), jit.compile(&numbered(2)).unwrap());
    drop(one);
    let kept = jit.kept.get_mut(&numbered(1).hash()).unwrap();
    kept.compiled = Arc::clone(&two);
    assert_eq!(result(&jit.compile(&numbered(1)).unwrap()), 1);
}

#[test]
#[should_panic(expected = "the window is the program's")]
fn a_window_of_another_length_is_a_broken_promise() {
    let compiled = Jit::new(1).unwrap().compile(&numbered(1)).unwrap();
    compiled.step(&[0; 2], &mut VirtAddr(0), &mut [0; 8]);
}

#[test]
#[should_panic(expected = "the scratch pad is the program's")]
fn a_scratch_pad_of_another_length_is_a_broken_promise() {
    let compiled = Jit::new(1).unwrap().compile(&numbered(1)).unwrap();
    compiled.step(&[0; 1], &mut VirtAddr(0), &mut [0; 7]);
}
