//! Thread domains: the program's promise to use what stands on one from one thread at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use rocebud_objects::{Errno, Misuse};

use crate::Context;

/// A thread domain.
#[derive(Clone, Debug)]
pub struct Td {
    inner: Arc<TdInner>,
}

#[derive(Debug)]
struct TdInner {
    context: Context,
    users: AtomicU32,
    gone: AtomicBool,
}

/// Keeps a thread domain from being deallocated.
#[derive(Debug)]
pub(crate) struct TdUse {
    td: Td,
    released: AtomicBool,
}

impl TdUse {
    pub(crate) fn release(&self) {
        if !self.released.swap(true, Ordering::AcqRel) {
            self.td.inner.users.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

impl Drop for TdUse {
    fn drop(&mut self) {
        self.release();
    }
}

impl Td {
    pub(crate) fn new(context: Context) -> Self {
        Self {
            inner: Arc::new(TdInner {
                context,
                users: AtomicU32::new(0),
                gone: AtomicBool::new(false),
            }),
        }
    }

    /// For a parent domain of the open device `context`.
    pub(crate) fn hold(&self, context: &Context) -> Result<TdUse, Misuse> {
        if self.inner.gone.load(Ordering::Acquire) || !self.inner.context.is_same(context) {
            return Err(Misuse::invalid(
                "parent domain: the thread domain was deallocated or belongs to another open device",
            ));
        }
        self.inner.users.fetch_add(1, Ordering::AcqRel);
        Ok(TdUse {
            td: self.clone(),
            released: AtomicBool::new(false),
        })
    }

    /// `ibv_dealloc_td`.
    ///
    /// # Errors
    /// EBUSY: parent domains stand on it. EINVAL: done already.
    pub fn dealloc(&self) -> Result<(), Misuse> {
        if self.inner.context.runtime().is_inherited() {
            return self.inner.context.check();
        }
        if self.inner.users.load(Ordering::Acquire) != 0 && self.inner.context.is_open() {
            return Err(Misuse::new(
                Errno::EBUSY,
                "dealloc_td: parent domains stand on it; deallocate them first",
            ));
        }
        if self.inner.gone.swap(true, Ordering::AcqRel) {
            return Err(Misuse::invalid("dealloc_td: done already"));
        }
        Ok(())
    }
}
