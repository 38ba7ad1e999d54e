//! The engine from outside: two nodes, a scripted wire, named behaviours and cases.

#![allow(clippy::needless_range_loop, reason = "sides are numbers")]
#![allow(unreachable_pub, reason = "a test binary has no outside")]

mod cases;
mod chaos;
mod congestion;
mod dice;
mod errors;
mod liveness;
mod moves;
mod operations;
mod pacing;
mod pair;
mod parked;
mod recovery;
mod sharing;
mod shifting;
mod unreliable;
mod windows;
mod world;
mod xrc;
