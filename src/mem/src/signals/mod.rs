//! SIGSEGV and SIGBUS: ours in front, everybody else behind, in the order in which they came.
//!
//! A program may install a handler after us and keep ours as the one to pass faults on to. When
//! ours then goes back in front, the two would pass a fault to each other for ever; so each of our
//! handlers remembers all that it replaced, notices when it is called again for the same fault
//! from further down the stack, and goes one step further back each time.

mod sys;

pub(crate) use sys::{blocked_here, installed, let_in};
pub use sys::{ensure_in_front, install};
