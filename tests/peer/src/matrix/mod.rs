//! The matrix of programs: every program × its options × addresses × places.
//!
//! * `tests/peer/matrix/*.toml`: programs, places and refusals, as data.
//! * [`data`]: the data, read and checked.
//! * [`cell`]: one run: its arguments, what it has to show or in which words it is refused.
//! * [`cover`]: few runs in which any two (or three) choices meet.
//! * [`plan`]: the cells of CI and those of the full matrix.
//! * [`lab`]: the places, set up when first needed.
//! * [`judge`]: what a run printed against what it has to show.
//! * [`sweep`]: running cells: progress, results in a file, resuming.

pub mod cell;
pub mod cover;
pub mod data;
pub mod judge;
pub mod lab;
pub mod plan;
pub mod sweep;
