//! Calls through the C ABI, in a network namespace that `fuzz.sh` makes.
#![no_main]

use rocebud_abi as _;

unsafe extern "C" {
    /// fuzz/verbs_args/verbs_args.c
    fn verbs_args(data: *const u8, len: usize);
}

// SAFETY: it reads `len` bytes.
libfuzzer_sys::fuzz_target!(|data: &[u8]| unsafe { verbs_args(data.as_ptr(), data.len()) });
