//! Wrapper of `control_events` for cargo-fuzz: `cargo fuzz run control_events --features libfuzzer`
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| farmem_fuzz::control_events(data, &mut farmem_fuzz::Run::new()));
