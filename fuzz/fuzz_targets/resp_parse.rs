//! Wrapper of `resp_parse` for cargo-fuzz: `cargo fuzz run resp_parse --features libfuzzer`
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| farmem_fuzz::resp_parse(data, &mut farmem_fuzz::Run::new()));
