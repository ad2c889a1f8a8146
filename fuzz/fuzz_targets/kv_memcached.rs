//! Wrapper of `kv_memcached` for cargo-fuzz: `cargo fuzz run kv_memcached --features libfuzzer`
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| farmem_fuzz::kv_memcached(data, &mut farmem_fuzz::Run::new()));
