//! What a stream and its owner say to each other.

use rocebud_objects::Errno;

use crate::connect::Region;
use crate::entry::IOMAP_LEN;
use crate::ring::Span;

/// Memory of ours that the peer may write.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Local {
    /// The receive ring.
    pub ring: Region,
    /// The block of [`crate::Config::block_len`] bytes.
    pub block: Region,
}

/// The block that the peer writes, as its owner reads it. Bytes beyond it read as 0.
pub trait SharedBlock {
    /// Copies from `offset` on.
    fn read(&self, offset: usize, into: &mut [u8]);
}

impl SharedBlock for [u8] {
    fn read(&self, offset: usize, into: &mut [u8]) {
        let from = self.get(offset..).unwrap_or_default();
        into.fill(0);
        into.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
    }
}

/// What to post.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Work {
    /// So many receives without any entry for data.
    Receives(u32),
    /// An RDMA Write.
    Write(Write),
}

/// An RDMA Write, with immediate unless it says none. All are signaled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Write {
    /// Comes back with the completion.
    pub id: WorkId,
    /// Bytes.
    pub len: u32,
    /// Where the bytes are.
    pub source: Source,
    /// Where they go. Both are 0 when there are none: nobody checks them then.
    pub remote: Region,
    /// The immediate, as a number.
    pub immediate: Option<u32>,
}

/// Where the bytes of a WRITE are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// There are none.
    Nothing,
    /// The caller's next bytes, inside the work request.
    Caller,
    /// The send ring, after the caller's next bytes have been copied there.
    Ring([Span; 2]),
    /// The first [`Write::len`] of these, inside the work request.
    Entry([u8; IOMAP_LEN]),
}

/// A work request's identity: its kind, and what its completion gives back.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct WorkId(pub u64);

impl WorkId {
    /// Any receive.
    pub const RECEIVE: Self = Self(1 << 62);
    pub(super) const CONTROL: Self = Self(1 << 63);

    pub(super) const fn data(ring_bytes: u32) -> Self {
        Self(ring_bytes as u64)
    }

    pub(super) const fn ring_bytes(self) -> u32 {
        self.0 as u32
    }
}

/// A completed receive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Received {
    /// The immediate, as a number.
    pub immediate: u32,
    /// Bytes that the WRITE wrote.
    pub len: u32,
}

/// Why nothing can be sent or read now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stopped {
    /// Wait for completions, or answer EAGAIN.
    Wait,
    /// Reading: nothing more will come.
    End,
    /// Fails with this.
    Failed(Errno),
}

/// What `rpoll` sees.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Ready {
    /// Data, or the end of data.
    pub readable: bool,
    /// A message would go.
    pub writable: bool,
    /// Both ends are done, and everything is read.
    pub hung_up: bool,
    /// The connection is broken, or never came about.
    pub failed: bool,
}
