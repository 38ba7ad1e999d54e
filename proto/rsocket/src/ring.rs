//! Places in a ring of bytes.

/// Bytes of a ring: they never run over its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Span {
    /// Offset from the ring's beginning.
    pub at: u32,
    /// Bytes.
    pub len: u32,
}

/// The places of `len` bytes from `at` in a ring of `size` bytes; the second is empty unless the
/// ring's end lies between. `at` < `size` and `len` ≤ `size`, else what does not fit is left out.
pub(crate) fn spans(at: u32, len: u32, size: u32) -> [Span; 2] {
    let first = len.min(size.saturating_sub(at));
    [
        Span { at, len: first },
        Span {
            at: 0,
            len: (len - first).min(at),
        },
    ]
}

/// The place `n` bytes behind `at`. `at` < `size` and `n` ≤ `size`.
pub(crate) const fn advance(at: u32, n: u32, size: u32) -> u32 {
    let to = at as u64 + n as u64;
    let size = size as u64;
    if to >= size {
        (to - size) as u32
    } else {
        to as u32
    }
}
