//! Wrapper of `parse_memcached` for cargo-fuzz: `cargo fuzz run parse_memcached --features libfuzzer`
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| farmem_fuzz::parse_memcached(data, &mut farmem_fuzz::Run::new()));
