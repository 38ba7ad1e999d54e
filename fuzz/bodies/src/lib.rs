//! What each fuzz target does with its bytes.
//!
//! A body is a plain function over bytes that panics when a promise is broken. libFuzzer calls it
//! from `fuzz/fuzz_targets`, the replay test (`tests/replay.rs`) over every file of the corpora,
//! so that stable Rust runs what the fuzzers have found.
#![deny(unsafe_code)]

pub mod cm_mad;
pub mod ctl_message;
pub mod engine_ops;
pub mod frame_parse;
pub mod frame_roundtrip;
mod input;
pub mod place;
pub mod rsocket_stream;

/// A target: what libFuzzer calls, and the directory of its corpus.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Name of the binary and of the corpus.
    pub name: &'static str,
    /// The body.
    pub run: fn(&[u8]),
    /// Says nothing without a network namespace of its own.
    pub needs_place: bool,
}

/// Every target.
pub const TARGETS: &[Target] = &[
    Target {
        name: "frame_parse",
        run: frame_parse::run,
        needs_place: false,
    },
    Target {
        name: "frame_roundtrip",
        run: frame_roundtrip::run,
        needs_place: false,
    },
    Target {
        name: "engine_ops",
        run: engine_ops::run,
        needs_place: false,
    },
    Target {
        name: "cm_mad",
        run: cm_mad::run,
        needs_place: false,
    },
    Target {
        name: "ctl_message",
        run: ctl_message::run,
        needs_place: false,
    },
    Target {
        name: "rsocket_stream",
        run: rsocket_stream::run,
        needs_place: false,
    },
];
