//! The manual: how RC recovers, what error completions mean, defaults and why.
//!
//! * [`recovery`]: losses, NAKs, timers, duplicates.
//! * [`errors`]: reasons behind error completions (`vendor_err`).
//! * [`defaults`]: windows, chunks and timers, with their reasons.
//! * [`traps`]: behaviours of other stacks, and what stops them here.

#[doc = include_str!("recovery.md")]
pub mod recovery {}

#[doc = include_str!("errors.md")]
pub mod errors {}

#[doc = include_str!("defaults.md")]
pub mod defaults {}

#[doc = include_str!("traps.md")]
pub mod traps {}
