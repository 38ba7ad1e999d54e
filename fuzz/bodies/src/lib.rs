//! What each fuzz target does with its bytes.
//!
//! A body is a plain function over bytes that panics when a promise is broken. libFuzzer calls it
//! from `fuzz/fuzz_targets`, the replay test (`tests/replay.rs`) over every file of the corpora,
//! so that stable Rust runs what the fuzzers have found.
#![deny(unsafe_code)]

pub mod frame_parse;
pub mod frame_roundtrip;

/// A target: what libFuzzer calls, and the directory of its corpus.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Name of the binary and of the corpus.
    pub name: &'static str,
    /// The body.
    pub run: fn(&[u8]),
}

/// Every target.
pub const TARGETS: &[Target] = &[
    Target {
        name: "frame_parse",
        run: frame_parse::run,
    },
    Target {
        name: "frame_roundtrip",
        run: frame_roundtrip::run,
    },
];
