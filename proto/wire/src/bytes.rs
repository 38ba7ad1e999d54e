//! Cursors over byte slices that are total: callers check the length once, and a cursor that
//! would run out gives zeros or writes nothing instead of panicking.

/// Takes fixed-size fields from the front of a slice.
#[derive(Clone, Copy)]
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl Reader<'_> {
    /// The next `N` bytes; zeros, and an empty rest, if fewer are left.
    #[inline]
    pub(crate) fn take<const N: usize>(&mut self) -> [u8; N] {
        match self.0.split_first_chunk::<N>() {
            Some((head, rest)) => {
                self.0 = rest;
                *head
            }
            None => {
                self.0 = &[];
                [0; N]
            }
        }
    }

    #[inline]
    pub(crate) fn u16(&mut self) -> u16 {
        u16::from_be_bytes(self.take())
    }

    #[inline]
    pub(crate) fn u32(&mut self) -> u32 {
        u32::from_be_bytes(self.take())
    }

    #[inline]
    pub(crate) fn u64(&mut self) -> u64 {
        u64::from_be_bytes(self.take())
    }
}

/// Puts fixed-size fields at the front of a slice.
pub(crate) struct Writer<'a> {
    rest: &'a mut [u8],
    written: usize,
}

impl<'a> Writer<'a> {
    pub(crate) const fn new(buf: &'a mut [u8]) -> Self {
        Self {
            rest: buf,
            written: 0,
        }
    }

    /// Bytes put so far.
    pub(crate) const fn written(&self) -> usize {
        self.written
    }

    /// Puts `bytes`; nothing if they do not fit any more.
    #[inline]
    pub(crate) fn put(&mut self, bytes: &[u8]) {
        let buf = core::mem::take(&mut self.rest);
        if let Some((head, rest)) = buf.split_at_mut_checked(bytes.len()) {
            head.copy_from_slice(bytes);
            self.rest = rest;
            self.written += bytes.len();
        }
    }
}

/// One's complement sum over big-endian words, folded and complemented: the internet checksum.
pub(crate) fn internet_checksum(parts: &[&[u8]]) -> u16 {
    let mut sum = 0_u64;
    for part in parts {
        for pair in part.chunks(2) {
            let high = pair.first().copied().unwrap_or(0);
            let low = pair.get(1).copied().unwrap_or(0);
            sum += u64::from(u16::from_be_bytes([high, low]));
        }
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}
