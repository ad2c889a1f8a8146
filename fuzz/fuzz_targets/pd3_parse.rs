//! Wrapper of `pd3_parse` for cargo-fuzz: `cargo fuzz run pd3_parse --features libfuzzer`
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| farmem_fuzz::pd3_parse(data, &mut farmem_fuzz::Run::new()));
