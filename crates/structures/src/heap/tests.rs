use super::*;

#[test]
fn the_program_is_assembled() {
    assert!(!Heap::program(FREED_PROGRAM).stores());
}
