//! The kernel copies for us, and reports what is not there.

mod sys;

pub(crate) use sys::{Refused, populate, read, write};
