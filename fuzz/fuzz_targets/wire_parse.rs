//! Wrapper of `wire_parse` for cargo-fuzz: `cargo fuzz run wire_parse --features libfuzzer`
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| farmem_fuzz::wire_parse(data, &mut farmem_fuzz::Run::new()));
