//! Wrapper of `parse_http` for cargo-fuzz: `cargo fuzz run parse_http --features libfuzzer`
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| farmem_fuzz::parse_http(data, &mut farmem_fuzz::Run::new()));
