//! Copy routines with an exception table: a fault in them ends the copy, nothing else.

mod sys;

pub(crate) use sys::{cmp_swap, copy_in, copy_out, fetch_add, load, resume_at, store, touch};
