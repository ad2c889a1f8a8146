//! Wrapper of `parse_records` for cargo-fuzz: `cargo fuzz run parse_records --features libfuzzer`
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| farmem_fuzz::parse_records(data, &mut farmem_fuzz::Run::new()));
