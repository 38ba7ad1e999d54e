//! The base transport header and its extensions, as plain data.

use crate::bytes::{Reader, Writer};
use crate::{ExtSet, Opcode, PKey, Psn, QKey, Qpn, RKey, Syndrome};

/// Base transport header, 12 bytes. Reserved bits are ignored on receive and 0 on transmit.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Bth {
    /// What the packet is.
    pub opcode: Opcode,
    /// SE: the receiver's completion counts as solicited.
    pub solicited: bool,
    /// M: path migration state "migrated"; ignored on receive.
    pub migreq: bool,
    /// Zero bytes between payload and ICRC, 0..=3. [`Header::emit`](crate::Header::emit) sets it.
    pub pad: u8,
    /// Partition.
    pub pkey: PKey,
    /// F: a switch marked congestion (not used by RoCE v2, which marks IP).
    pub fecn: bool,
    /// B: congestion is reported back; set in CNPs.
    pub becn: bool,
    /// Queue pair at the destination.
    pub dest_qp: Qpn,
    /// A: the requester wants an acknowledgement.
    pub ack_req: bool,
    /// Sequence number.
    pub psn: Psn,
}

impl Bth {
    /// All flags off, default partition.
    #[must_use]
    pub const fn new(opcode: Opcode, dest_qp: Qpn, psn: Psn) -> Self {
        Self {
            opcode,
            solicited: false,
            migreq: false,
            pad: 0,
            pkey: PKey::DEFAULT,
            fecn: false,
            becn: false,
            dest_qp,
            ack_req: false,
            psn,
        }
    }

    /// Reads the twelve bytes; the transport version is the caller's to check.
    #[inline]
    pub(crate) const fn decode(b: &[u8; 12]) -> Self {
        Self {
            opcode: Opcode(b[0]),
            solicited: b[1] & 0x80 != 0,
            migreq: b[1] & 0x40 != 0,
            pad: b[1] >> 4 & 3,
            pkey: PKey(u16::from_be_bytes([b[2], b[3]])),
            fecn: b[4] & 0x80 != 0,
            becn: b[4] & 0x40 != 0,
            dest_qp: Qpn::new(u32::from_be_bytes([0, b[5], b[6], b[7]])),
            ack_req: b[8] & 0x80 != 0,
            psn: Psn::new(u32::from_be_bytes([0, b[9], b[10], b[11]])),
        }
    }

    #[inline]
    pub(crate) fn encode(&self) -> [u8; 12] {
        let pkey = self.pkey.0.to_be_bytes();
        let qp = self.dest_qp.value().to_be_bytes();
        let psn = self.psn.value().to_be_bytes();
        let flag = |on: bool, bit: u8| u8::from(on) << bit;
        [
            self.opcode.0,
            flag(self.solicited, 7) | flag(self.migreq, 6) | (self.pad & 3) << 4,
            pkey[0],
            pkey[1],
            flag(self.fecn, 7) | flag(self.becn, 6),
            qp[1],
            qp[2],
            qp[3],
            flag(self.ack_req, 7),
            psn[1],
            psn[2],
            psn[3],
        ]
    }
}

/// RDMA extended transport header, 16 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Reth {
    /// Virtual address at the responder.
    pub va: u64,
    /// Key of the region or window.
    pub rkey: RKey,
    /// Bytes of the whole message; more than 2^31 is an invalid request.
    pub dma_len: u32,
}

/// ACK extended transport header, 4 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Aeth {
    /// ACK, RNR NAK or NAK.
    pub syndrome: Syndrome,
    /// Message sequence number, 24 bits.
    pub msn: u32,
}

/// Atomic extended transport header, 28 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct AtomicEth {
    /// Virtual address at the responder, a multiple of 8.
    pub va: u64,
    /// Key of the region or window.
    pub rkey: RKey,
    /// CmpSwap: the new value. FetchAdd: what is added.
    pub swap_add: u64,
    /// CmpSwap: the value that must be there. FetchAdd: reserved.
    pub compare: u64,
}

/// Atomic acknowledge header, 8 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct AtomicAckEth {
    /// The value before the operation.
    pub orig: u64,
}

/// Datagram extended transport header, 8 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Deth {
    /// Queue key.
    pub qkey: QKey,
    /// Queue pair that sent it.
    pub src_qp: Qpn,
}

/// Reliable datagram header, 4 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Rdeth {
    /// End-to-end context, 24 bits.
    pub ee_context: u32,
}

/// XRC header, 4 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct XrcEth {
    /// Number of the shared receive queue, 24 bits.
    pub srqn: u32,
}

/// FLUSH header, 4 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Feth {
    /// Selectivity, 2 bits: 0 = the range of the RETH, 1 = the whole region.
    pub sel: u8,
    /// Placement, 4 bits: 1 = global visibility, 2 = persistence.
    pub plt: u8,
}

/// The extension headers of one packet.
///
/// A parsed packet has exactly those that its opcode names. On emission the opcode decides too:
/// a header that it names and that is `None` here goes out as zeros, others are not sent.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[allow(missing_docs, reason = "each field is named after its header")]
pub struct Ext {
    pub rdeth: Option<Rdeth>,
    pub deth: Option<Deth>,
    pub xrceth: Option<XrcEth>,
    pub feth: Option<Feth>,
    pub reth: Option<Reth>,
    pub atomic_eth: Option<AtomicEth>,
    pub aeth: Option<Aeth>,
    pub atomic_ack_eth: Option<AtomicAckEth>,
    /// Four opaque bytes, as they travel.
    pub imm_dt: Option<[u8; 4]>,
    /// Key to invalidate.
    pub ieth: Option<RKey>,
}

impl Ext {
    /// No extension header.
    pub const NONE: Self = Self {
        rdeth: None,
        deth: None,
        xrceth: None,
        feth: None,
        reth: None,
        atomic_eth: None,
        aeth: None,
        atomic_ack_eth: None,
        imm_dt: None,
        ieth: None,
    };

    /// Reads the headers of `set`; `r` holds at least `set.byte_len()` bytes.
    #[inline]
    pub(crate) fn decode(set: ExtSet, r: &mut Reader<'_>) -> Self {
        let mut ext = Self::NONE;
        if set.is_empty() {
            return ext;
        }
        let has = |one: ExtSet| set.contains(one);
        if set.intersects(ExtSet::RDETH.union(ExtSet::DETH).union(ExtSet::XRCETH)) {
            ext.rdeth = has(ExtSet::RDETH).then(|| Rdeth::decode(r.take()));
            ext.deth = has(ExtSet::DETH).then(|| Deth::decode(r.take()));
            ext.xrceth = has(ExtSet::XRCETH).then(|| XrcEth::decode(r.take()));
        }
        ext.feth = has(ExtSet::FETH).then(|| Feth::decode(r.take()));
        ext.reth = has(ExtSet::RETH).then(|| Reth::decode(r));
        ext.atomic_eth = has(ExtSet::ATOMIC_ETH).then(|| AtomicEth::decode(r));
        ext.aeth = has(ExtSet::AETH).then(|| Aeth::decode(r.take()));
        ext.atomic_ack_eth = has(ExtSet::ATOMIC_ACK_ETH).then(|| AtomicAckEth { orig: r.u64() });
        ext.imm_dt = has(ExtSet::IMM_DT).then(|| r.take());
        ext.ieth = has(ExtSet::IETH).then(|| RKey(r.u32()));
        ext
    }

    /// Writes the headers of `set`.
    pub(crate) fn encode(&self, set: ExtSet, w: &mut Writer<'_>) {
        if set.is_empty() {
            return;
        }
        let has = |one: ExtSet| set.contains(one);
        if set.intersects(ExtSet::RDETH.union(ExtSet::DETH).union(ExtSet::XRCETH)) {
            if has(ExtSet::RDETH) {
                w.put(&self.rdeth.unwrap_or_default().encode());
            }
            if has(ExtSet::DETH) {
                w.put(&self.deth.unwrap_or_default().encode());
            }
            if has(ExtSet::XRCETH) {
                w.put(&self.xrceth.unwrap_or_default().encode());
            }
        }
        if has(ExtSet::FETH) {
            w.put(&self.feth.unwrap_or_default().encode());
        }
        if has(ExtSet::RETH) {
            self.reth.unwrap_or_default().encode(w);
        }
        if has(ExtSet::ATOMIC_ETH) {
            self.atomic_eth.unwrap_or_default().encode(w);
        }
        if has(ExtSet::AETH) {
            w.put(&self.aeth.unwrap_or_default().encode());
        }
        if has(ExtSet::ATOMIC_ACK_ETH) {
            w.put(&self.atomic_ack_eth.unwrap_or_default().orig.to_be_bytes());
        }
        if has(ExtSet::IMM_DT) {
            w.put(&self.imm_dt.unwrap_or_default());
        }
        if has(ExtSet::IETH) {
            w.put(&self.ieth.unwrap_or_default().0.to_be_bytes());
        }
    }
}

impl Reth {
    #[inline]
    fn decode(r: &mut Reader<'_>) -> Self {
        Self {
            va: r.u64(),
            rkey: RKey(r.u32()),
            dma_len: r.u32(),
        }
    }

    fn encode(&self, w: &mut Writer<'_>) {
        w.put(&self.va.to_be_bytes());
        w.put(&self.rkey.0.to_be_bytes());
        w.put(&self.dma_len.to_be_bytes());
    }
}

impl AtomicEth {
    #[inline]
    fn decode(r: &mut Reader<'_>) -> Self {
        Self {
            va: r.u64(),
            rkey: RKey(r.u32()),
            swap_add: r.u64(),
            compare: r.u64(),
        }
    }

    fn encode(&self, w: &mut Writer<'_>) {
        w.put(&self.va.to_be_bytes());
        w.put(&self.rkey.0.to_be_bytes());
        w.put(&self.swap_add.to_be_bytes());
        w.put(&self.compare.to_be_bytes());
    }
}

impl Aeth {
    #[inline]
    const fn decode(b: [u8; 4]) -> Self {
        Self {
            syndrome: Syndrome::decode(b[0]),
            msn: u32::from_be_bytes([0, b[1], b[2], b[3]]),
        }
    }

    const fn encode(&self) -> [u8; 4] {
        with_top(self.syndrome.encode(), self.msn)
    }
}

impl Default for Aeth {
    /// An ACK without a credit count.
    fn default() -> Self {
        Self {
            syndrome: Syndrome::Ack {
                credits: Syndrome::CREDITS_UNLIMITED,
            },
            msn: 0,
        }
    }
}

impl Deth {
    #[inline]
    const fn decode(b: [u8; 8]) -> Self {
        Self {
            qkey: QKey(u32::from_be_bytes([b[0], b[1], b[2], b[3]])),
            src_qp: Qpn::new(u32::from_be_bytes([0, b[5], b[6], b[7]])),
        }
    }

    const fn encode(&self) -> [u8; 8] {
        let [q0, q1, q2, q3] = self.qkey.0.to_be_bytes();
        let [_, s1, s2, s3] = self.src_qp.value().to_be_bytes();
        [q0, q1, q2, q3, 0, s1, s2, s3]
    }
}

impl Rdeth {
    const fn decode(b: [u8; 4]) -> Self {
        Self {
            ee_context: u32::from_be_bytes([0, b[1], b[2], b[3]]),
        }
    }

    const fn encode(&self) -> [u8; 4] {
        with_top(0, self.ee_context)
    }
}

impl XrcEth {
    const fn decode(b: [u8; 4]) -> Self {
        Self {
            srqn: u32::from_be_bytes([0, b[1], b[2], b[3]]),
        }
    }

    const fn encode(&self) -> [u8; 4] {
        with_top(0, self.srqn)
    }
}

impl Feth {
    const fn decode(b: [u8; 4]) -> Self {
        Self {
            sel: b[3] >> 4 & 3,
            plt: b[3] & 0xf,
        }
    }

    const fn encode(&self) -> [u8; 4] {
        [0, 0, 0, (self.sel & 3) << 4 | self.plt & 0xf]
    }
}

/// A byte, then the low 24 bits of `value`.
const fn with_top(top: u8, value: u32) -> [u8; 4] {
    let [_, b1, b2, b3] = value.to_be_bytes();
    [top, b1, b2, b3]
}
