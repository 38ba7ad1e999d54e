//! Making, using and destroying the engine's objects.

mod completions;
mod groups;
mod leftovers;
mod posts;
mod qps;
mod srqs;

use rocebud_objects::Misuse;

pub use completions::Asleep;
pub use srqs::SRQS_MAX;

/// A list of requests was refused in the middle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PostError {
    /// Requests posted before it; also the position of the bad one.
    pub posted: usize,
    /// Why.
    pub misuse: Misuse,
}
