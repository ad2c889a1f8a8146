//! Wrapper of `kv_commands` for cargo-fuzz: `cargo fuzz run kv_commands --features libfuzzer`
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| farmem_fuzz::kv_commands(data, &mut farmem_fuzz::Run::new()));
