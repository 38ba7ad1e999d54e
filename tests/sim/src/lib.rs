//! Seeded simulations of production engines.
//!
//! [`run_seed`] draws a plan from a seed (hosts, queue pairs, programs, faults), lets it happen on
//! the fabric and judges it with the checkers of [`check`]. The same seed always gives the same
//! run, so a failure is a number.
#![forbid(unsafe_code)]

pub mod check;
pub mod pair;
mod plan;
mod runner;
pub mod setup;
mod violation;
mod world;

pub use plan::{EndPlan, HostPlan, Incident, LinkPlan, Options, Plan, ReceivePlan};
pub use runner::{Failure, run_many, run_seed, run_with};
pub use violation::{Checker, Verdict, Violation};
pub use world::{Report, Shown, World};
