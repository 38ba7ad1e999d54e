//! Seeded simulations of production engines.
#![forbid(unsafe_code)]

pub mod check;
mod violation;

pub use violation::{Checker, Verdict, Violation};
