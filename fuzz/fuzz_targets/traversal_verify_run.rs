//! Wrapper of `traversal_verify_run` for cargo-fuzz: `cargo fuzz run traversal_verify_run --features
//! libfuzzer`
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| farmem_fuzz::traversal_verify_run(
    data,
    &mut farmem_fuzz::Run::new()
));
