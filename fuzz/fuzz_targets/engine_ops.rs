#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| rocebud_fuzz_bodies::engine_ops::run(data));
