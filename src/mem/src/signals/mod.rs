//! SIGSEGV and SIGBUS: ours in front, everybody else behind, in the order in which they came.
//!
//! A program may install a handler after us and keep ours as the one to pass faults on to. When
//! ours then goes back in front, the two would pass a fault to each other for ever; so each of our
//! handlers remembers all that it replaced, notices when it is called again for the same fault
//! from further down the stack, and goes one step further back each time.

//!
//! Under `rocebud run` the preload shim hands us the program's calls of `sigaction` and `signal` for
//! these two. They then change only what stands behind ours: no moment is left in which a fault of
//! ours would reach the program, and a program that saves and restores its action sees its own.

mod chain;
mod sys;

pub(crate) use sys::{blocked_here, installed, let_in, look_now_and_then};
pub use sys::{ensure_in_front, install};
