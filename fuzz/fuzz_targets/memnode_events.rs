//! Wrapper of `memnode_events` for cargo-fuzz: `cargo fuzz run memnode_events --features libfuzzer`
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| farmem_fuzz::memnode_events(data, &mut farmem_fuzz::Run::new()));
