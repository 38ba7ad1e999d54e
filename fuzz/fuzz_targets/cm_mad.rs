#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| rocebud_fuzz_bodies::cm_mad::run(data));
