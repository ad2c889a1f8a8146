//! Wrapper of `parse_resp` for cargo-fuzz: `cargo fuzz run parse_resp --features libfuzzer`
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| farmem_fuzz::parse_resp(data, &mut farmem_fuzz::Run::new()));
