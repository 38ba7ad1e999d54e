//! Work requests.

use alloc::boxed::Box;
use bitflags::bitflags;
use rocebud_wire::{LKey, QKey, Qpn, RKey};
use smallvec::SmallVec;

use crate::{Access, MwBind, Path};

/// A piece of registered local memory; `struct ibv_sge`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sge {
    /// Virtual address (or offset, in zero-based regions).
    pub addr: u64,
    /// Bytes; 0 means none.
    pub length: u32,
    /// Key of the region.
    pub lkey: LKey,
}

/// A scatter/gather list; most have one or two entries.
pub type SgeList = SmallVec<[Sge; 2]>;

bitflags! {
    /// `enum ibv_send_flags`.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    #[allow(missing_docs, reason = "the names are those of verbs.h")]
    pub struct SendFlags: u32 {
        const FENCE = 1;
        const SIGNALED = 1 << 1;
        const SOLICITED = 1 << 2;
        const INLINE = 1 << 3;
        const IP_CSUM = 1 << 4;
    }
}

/// Remote memory that a request names.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Remote {
    /// Virtual address at the peer.
    pub addr: u64,
    /// Key of the peer's region.
    pub rkey: RKey,
}

/// How far FLUSH pushes; FETH.PLT.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FlushPlacement(pub u8);

impl FlushPlacement {
    /// Visible to every observer at the peer.
    pub const GLOBAL: u8 = 1;
    /// On persistent media.
    pub const PERSISTENT: u8 = 2;

    /// The rights that it needs.
    #[must_use]
    pub fn needs(self) -> Access {
        let mut need = Access::empty();
        need.set(Access::FLUSH_GLOBAL, self.0 & Self::GLOBAL != 0);
        need.set(Access::FLUSH_PERSISTENT, self.0 & Self::PERSISTENT != 0);
        need
    }
}

/// What FLUSH covers; FETH.SEL.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FlushRange {
    /// The range of the RETH.
    Range,
    /// The whole region; address and length are ignored.
    Region,
}

/// The operation of a send work request. Immediates are the four bytes as they travel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "variants and fields are the verbs' own words")]
pub enum SendOp {
    Send,
    SendImm {
        imm: [u8; 4],
    },
    SendInv {
        rkey: RKey,
    },
    Write {
        remote: Remote,
    },
    WriteImm {
        remote: Remote,
        imm: [u8; 4],
    },
    Read {
        remote: Remote,
    },
    CmpSwap {
        remote: Remote,
        compare: u64,
        swap: u64,
    },
    FetchAdd {
        remote: Remote,
        add: u64,
    },
    /// Eight bytes of payload, written in one piece.
    AtomicWrite {
        remote: Remote,
    },
    /// `length` bytes at `remote`; carries no payload.
    Flush {
        remote: Remote,
        length: u32,
        range: FlushRange,
        placement: FlushPlacement,
    },
    LocalInv {
        rkey: RKey,
    },
    /// Binds a memory window, or takes a type 1 window away.
    BindMw {
        bind: MwBind,
    },
}

/// Where the bytes of a send request are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Payload {
    /// In registered memory, read when a packet leaves.
    Sges(SgeList),
    /// Copied when the request was posted.
    Inline(Box<[u8]>),
}

impl Payload {
    /// Total bytes; 64-bit, so that lists over 4 GiB do not wrap.
    #[must_use]
    pub fn len(&self) -> u64 {
        match self {
            Self::Sges(list) => list.iter().map(|s| u64::from(s.length)).sum(),
            Self::Inline(bytes) => bytes.len() as u64,
        }
    }

    /// No byte at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Destination of a datagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UdAddress {
    /// From the address handle.
    pub path: Path,
    /// Queue pair at the destination.
    pub remote_qpn: Qpn,
    /// Q_Key to send; with bit 31 set the sender's own is sent instead.
    pub remote_qkey: QKey,
}

/// A send work request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SendWr {
    /// Returned in the completion.
    pub wr_id: u64,
    /// What to do.
    pub op: SendOp,
    /// Modifiers.
    pub flags: SendFlags,
    /// The bytes: source of sends and writes, target of reads and atomics.
    pub payload: Payload,
    /// Destination, for UD only.
    pub ud: Option<UdAddress>,
    /// Shared receive queue at the peer, for XRC only; 24 bits.
    pub xrc_srqn: u32,
}

/// A receive work request.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RecvWr {
    /// Returned in the completion.
    pub wr_id: u64,
    /// Where the bytes go.
    pub sges: SgeList,
}

/// What an atomic does to the eight bytes at its address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "fields are the verbs' own words")]
pub enum AtomicOp {
    CmpSwap { compare: u64, swap: u64 },
    FetchAdd { add: u64 },
}
