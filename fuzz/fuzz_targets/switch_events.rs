//! Wrapper of `switch_events` for cargo-fuzz: `cargo fuzz run switch_events --features libfuzzer`
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| farmem_fuzz::switch_events(data, &mut farmem_fuzz::Run::new()));
