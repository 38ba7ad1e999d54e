//! Programs of verbs operations on two engines, with faults, forged frames and lies.
//!
//! The bytes decode to a set-up and a program: work requests, moves of queue pairs at any time,
//! frames lost, doubled, damaged, held back, forged or sent again, regions taken away, hosts that
//! stand still. Judged from outside:
//!
//! * always: no panic; nothing written beside a region; a completion for each request at most
//!   once, in order, in the right queue; none after RESET or destroy; after ERR nothing is left
//!   outstanding; a refused call changes nothing; no queue pair waits for what cannot come (the
//!   network asks after every step); when faults have ended everything ends; no window stays
//!   charged.
//! * between two queue pairs that nobody has lied to: the bytes are right, each message arrives
//!   once and in order, atomics happen once, and an error needs a reason.
//!
//! Read `world.rs` first, then `program.rs`, then `judge.rs`.

mod books;
mod finale;
mod forge;
mod judge;
mod lifecycle;
mod net;
mod post;
mod program;
mod requests;
mod world;

use crate::input::Input;
use world::World;

/// Input bytes that are read: some hundred operations.
const BYTES_MAX: usize = 4096;

/// See the module.
pub fn run(data: &[u8]) {
    play(data, false);
}

/// As [`run`], printing every operation and frame.
pub fn explain(data: &[u8]) {
    play(data, true);
}

fn play(data: &[u8], verbose: bool) {
    let data = data.get(..BYTES_MAX).unwrap_or(data);
    let mut input = Input::new(data);
    let mut world = World::new(&mut input, verbose);
    while !input.is_empty() && !world.exhausted() {
        world.operation(&mut input);
    }
    world.finale();
}
