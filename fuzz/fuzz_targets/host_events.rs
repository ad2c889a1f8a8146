//! Wrapper of `host_events` for cargo-fuzz: `cargo fuzz run host_events --features libfuzzer`
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| farmem_fuzz::host_events(data, &mut farmem_fuzz::Run::new()));
