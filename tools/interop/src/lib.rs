//! Interoperability tests of RoCE v2: against Linux `rdma_rxe` in a guest, real RNICs, other machines and
//! rocebud itself.
//!
//! * [`peer`]: the kernel peer, its image and its agent; [`netns`], [`cleanup`]: where it lives and how it ends.
//! * [`wire`]: carries every frame between the two ends; keeps them, and spoils those that a rule names.
//! * [`endpoint`]: losses in our own end, where the wire is somebody else's.
//! * [`target`], [`session`]: the two ends of a test, and the conversation with their agents.
//! * [`matrix`], [`cell`], [`check`], [`known`]: what is tried, how, and how it is judged.
//! * [`programs`], [`shell`]: unmodified programs at both ends.
//! * [`inside`]: kernel rxe through its own libibverbs, with rocebud beside it.
//! * [`probes`]: what no cell shows by itself: congestion marks, the ICRC check.
//! * [`run`], [`lanes`], [`progress`], [`report`]: a whole run, side by side on several benches, and its result.

#![deny(unsafe_code)]

pub mod cache;
pub mod cell;
pub mod check;
pub mod cleanup;
pub mod differ;
pub mod endpoint;
pub mod error;
pub mod golden;
pub mod inside;
pub mod known;
pub mod lanes;
pub mod matrix;
pub mod netns;
pub mod peer;
pub mod probes;
pub mod programs;
pub mod progress;
pub mod report;
pub mod run;
pub mod session;
pub mod shell;
pub mod target;
pub mod wire;
