//! Decisions out of bytes. When the bytes run out every decision is the first one.

use arbitrary::Unstructured;

/// A supply of decisions.
#[derive(Debug)]
pub(crate) struct Input<'a>(Unstructured<'a>);

impl<'a> Input<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self(Unstructured::new(bytes))
    }

    /// Nothing is left.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn byte(&mut self) -> u8 {
        self.0.arbitrary().unwrap_or(0)
    }

    pub(crate) fn half(&mut self) -> u16 {
        self.0.arbitrary().unwrap_or(0)
    }

    pub(crate) fn word(&mut self) -> u32 {
        self.0.arbitrary().unwrap_or(0)
    }

    /// A number below `n` (at most 256).
    pub(crate) fn below(&mut self, n: usize) -> usize {
        usize::from(self.byte()) % n.max(1)
    }

    /// One of `items`.
    pub(crate) fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(items.len())]
    }

    /// True in one of `n` byte values out of 256, and not for the value 0.
    pub(crate) fn rarely(&mut self, n: u8) -> bool {
        self.byte() > u8::MAX - n
    }
}
