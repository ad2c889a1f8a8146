use super::*;

#[test]
fn the_program_is_assembled() {
    assert!(!crate::assembled(FREED_PROGRAM).stores());
}
