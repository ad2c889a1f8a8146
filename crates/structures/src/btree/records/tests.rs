use super::*;
use crate::Layout;
use farmem_client::Rack;

/// The program for every length assembles, copies the record and no byte after it, and stays inside its pad.
/// The pad may be smaller than the maximum.
#[test]
fn there_is_a_program_for_every_length() {
    for len in (8..=RECORD_LEN_MAX).step_by(8) {
        for scratch_len in [PAIRS + 16 + len, 960, SCRATCH_LEN_MAX] {
            let program = Program::assemble(&records_program(len, scratch_len)).unwrap();
            assert_eq!((program.window_len(), program.scratch_len()), (WINDOW_LEN_MAX, scratch_len));
            assert!(program.encoded().len() <= 1984, "it fits a PMTU of 2048");
        }
    }
}

#[test]
fn a_length_that_no_record_has_is_refused() {
    let mut client = Rack::embedded_with(1, 16 << 20).unwrap().client("lengths").unwrap();
    let tree = BTree::create(&mut client, Layout::Partitioned).unwrap();
    for len in [0, 4, 12, 264, usize::MAX] {
        let refused = tree.records(&client, len, Bring::Traversals).unwrap_err();
        assert!(matches!(refused, Error::TooLong { max: RECORD_LEN_MAX, .. }), "{len}: {refused}");
    }
    assert_eq!(tree.records(&client, 256, Bring::Reads).unwrap().record_len(), 256);
}
