//! The opcode table: what each of the 256 values means, which headers follow the BTH and how long
//! the payload may be.

use core::fmt;

use bitflags::bitflags;

use crate::BTH_LEN;

/// Transport service: the upper three bits of an opcode.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Class {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Reliable datagram; no known device speaks it.
    Rd,
    /// Unreliable datagram.
    Ud,
    /// Congestion notification.
    Cnp,
    /// Extended reliable connection.
    Xrc,
    /// Left to manufacturers.
    Vendor,
}

/// What a packet asks or answers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Operation {
    /// SEND; with immediate or invalidate when the header set has ImmDt or IETH.
    Send,
    /// RDMA WRITE; with immediate when the header set has ImmDt.
    Write,
    /// RDMA READ request.
    Read,
    /// RDMA READ response; also the answer to FLUSH and ATOMIC WRITE.
    ReadResponse,
    /// ACK, NAK or RNR NAK: the AETH tells.
    Acknowledge,
    /// Answer to CmpSwap and FetchAdd.
    AtomicAcknowledge,
    /// Compare and swap of eight bytes.
    CmpSwap,
    /// Fetch and add of eight bytes.
    FetchAdd,
    /// RD only.
    Resync,
    /// FLUSH.
    Flush,
    /// ATOMIC WRITE of eight bytes.
    AtomicWrite,
    /// Congestion notification.
    Cnp,
}

impl Operation {
    /// Travels from responder to requester.
    #[must_use]
    pub const fn is_response(self) -> bool {
        matches!(
            self,
            Self::ReadResponse | Self::Acknowledge | Self::AtomicAcknowledge
        )
    }

    /// Travels from requester to responder. A CNP is neither.
    #[must_use]
    pub const fn is_request(self) -> bool {
        !self.is_response() && !matches!(self, Self::Cnp)
    }
}

/// Place of a packet in its message.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Position {
    First,
    Middle,
    Last,
    Only,
}

impl Position {
    /// First or Only.
    #[must_use]
    pub const fn starts(self) -> bool {
        matches!(self, Self::First | Self::Only)
    }

    /// Last or Only.
    #[must_use]
    pub const fn ends(self) -> bool {
        matches!(self, Self::Last | Self::Only)
    }
}

bitflags! {
    /// Extension headers that follow the BTH. On the wire they come in the order of these bits.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct ExtSet: u16 {
        /// [`Rdeth`](crate::Rdeth).
        const RDETH = 1;
        /// [`Deth`](crate::Deth).
        const DETH = 1 << 1;
        /// [`XrcEth`](crate::XrcEth).
        const XRCETH = 1 << 2;
        /// [`Feth`](crate::Feth).
        const FETH = 1 << 3;
        /// [`Reth`](crate::Reth).
        const RETH = 1 << 4;
        /// [`AtomicEth`](crate::AtomicEth).
        const ATOMIC_ETH = 1 << 5;
        /// [`Aeth`](crate::Aeth).
        const AETH = 1 << 6;
        /// [`AtomicAckEth`](crate::AtomicAckEth).
        const ATOMIC_ACK_ETH = 1 << 7;
        /// Immediate data, four bytes.
        const IMM_DT = 1 << 8;
        /// R_Key to invalidate.
        const IETH = 1 << 9;
    }
}

impl ExtSet {
    /// Bytes on the wire.
    #[must_use]
    pub const fn byte_len(self) -> usize {
        const LENGTHS: [usize; 10] = [4, 8, 4, 4, 16, 28, 4, 8, 4, 4];
        let mut sum = 0;
        let mut bit = 0;
        while bit < LENGTHS.len() {
            if self.bits() >> bit & 1 == 1 {
                sum += LENGTHS[bit];
            }
            bit += 1;
        }
        sum
    }
}

/// How long the payload of a packet may be.
///
/// The codec enforces only what needs no path MTU ([`PayloadRule::Empty`] and
/// [`PayloadRule::Exactly`]); the rest is the queue pair's to check, because its answer is a NAK.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum PayloadRule {
    /// No byte.
    Empty,
    /// The path MTU.
    Full,
    /// 1 to the path MTU.
    NonEmpty,
    /// 0 to the path MTU.
    UpToPmtu,
    /// This many bytes.
    Exactly(u8),
}

impl PayloadRule {
    /// `len` is right for a queue pair with a path MTU of `pmtu` bytes.
    #[must_use]
    pub const fn allows(self, len: usize, pmtu: usize) -> bool {
        match self {
            Self::Empty => len == 0,
            Self::Full => len == pmtu,
            Self::NonEmpty => len > 0 && len <= pmtu,
            Self::UpToPmtu => len <= pmtu,
            Self::Exactly(n) => len == n as usize,
        }
    }

    /// `len` can be right for some path MTU; what the codec asks.
    #[inline]
    pub(crate) const fn possible(self, len: usize) -> bool {
        match self {
            Self::Empty => len == 0,
            Self::Exactly(n) => len == n as usize,
            Self::Full | Self::NonEmpty | Self::UpToPmtu => true,
        }
    }
}

/// A line of the opcode table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpcodeInfo {
    /// Name of the constant in [`Opcode`].
    pub name: &'static str,
    /// Transport service.
    pub class: Class,
    /// What it asks or answers.
    pub operation: Operation,
    /// Place in the message.
    pub position: Position,
    /// Headers after the BTH.
    pub ext: ExtSet,
    /// Bytes of BTH and extension headers together.
    pub header_len: u8,
    /// Allowed payload.
    pub payload: PayloadRule,
}

/// First byte of the BTH.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Opcode(pub u8);

impl Opcode {
    /// The table's line; `None` for values that no specification defines.
    #[inline]
    #[must_use]
    pub fn info(self) -> Option<&'static OpcodeInfo> {
        TABLE[usize::from(self.0)].as_ref()
    }

    /// Transport service, defined for every value.
    #[must_use]
    pub const fn class(self) -> Class {
        match self.0 >> 5 {
            0 => Class::Rc,
            1 => Class::Uc,
            2 => Class::Rd,
            3 => Class::Ud,
            4 => Class::Cnp,
            5 => Class::Xrc,
            _ => Class::Vendor,
        }
    }

    /// Every defined opcode with its line, ascending.
    pub fn defined() -> impl Iterator<Item = (Self, &'static OpcodeInfo)> {
        (0..=u8::MAX).filter_map(|v| Self(v).info().map(|info| (Self(v), info)))
    }
}

impl fmt::Debug for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.info() {
            Some(info) => f.write_str(info.name),
            None => write!(f, "opcode {:#04x}", self.0),
        }
    }
}

macro_rules! opcodes {
    ($($name:ident = $value:literal, $class:ident, $operation:ident, $position:ident,
       [$($ext:ident),*], $rule:ident $(($n:literal))?;)*) => {
        #[allow(missing_docs, reason = "class and operation, by their names")]
        impl Opcode {
            $(pub const $name: Self = Self($value);)*
        }

        const DEFINED: &[(u8, OpcodeInfo)] = &[$(($value, {
            let ext = ExtSet::empty()$(.union(ExtSet::$ext))*;
            OpcodeInfo {
                name: stringify!($name),
                class: Class::$class,
                operation: Operation::$operation,
                position: Position::$position,
                ext,
                header_len: (BTH_LEN + ext.byte_len()) as u8,
                payload: PayloadRule::$rule $(($n))?,
            }
        }),)*];
    };
}

// 0x80 is only the base of its class: every captured CNP carries 0x81.
#[rustfmt::skip]
opcodes! {
    RC_SEND_FIRST = 0x00, Rc, Send, First, [], Full;
    RC_SEND_MIDDLE = 0x01, Rc, Send, Middle, [], Full;
    RC_SEND_LAST = 0x02, Rc, Send, Last, [], NonEmpty;
    RC_SEND_LAST_IMM = 0x03, Rc, Send, Last, [IMM_DT], NonEmpty;
    RC_SEND_ONLY = 0x04, Rc, Send, Only, [], UpToPmtu;
    RC_SEND_ONLY_IMM = 0x05, Rc, Send, Only, [IMM_DT], UpToPmtu;
    RC_WRITE_FIRST = 0x06, Rc, Write, First, [RETH], Full;
    RC_WRITE_MIDDLE = 0x07, Rc, Write, Middle, [], Full;
    RC_WRITE_LAST = 0x08, Rc, Write, Last, [], NonEmpty;
    RC_WRITE_LAST_IMM = 0x09, Rc, Write, Last, [IMM_DT], NonEmpty;
    RC_WRITE_ONLY = 0x0a, Rc, Write, Only, [RETH], UpToPmtu;
    RC_WRITE_ONLY_IMM = 0x0b, Rc, Write, Only, [RETH, IMM_DT], UpToPmtu;
    RC_READ_REQUEST = 0x0c, Rc, Read, Only, [RETH], Empty;
    RC_READ_RESPONSE_FIRST = 0x0d, Rc, ReadResponse, First, [AETH], Full;
    RC_READ_RESPONSE_MIDDLE = 0x0e, Rc, ReadResponse, Middle, [], Full;
    RC_READ_RESPONSE_LAST = 0x0f, Rc, ReadResponse, Last, [AETH], NonEmpty;
    RC_READ_RESPONSE_ONLY = 0x10, Rc, ReadResponse, Only, [AETH], UpToPmtu;
    RC_ACKNOWLEDGE = 0x11, Rc, Acknowledge, Only, [AETH], Empty;
    RC_ATOMIC_ACKNOWLEDGE = 0x12, Rc, AtomicAcknowledge, Only, [AETH, ATOMIC_ACK_ETH], Empty;
    RC_CMP_SWAP = 0x13, Rc, CmpSwap, Only, [ATOMIC_ETH], Empty;
    RC_FETCH_ADD = 0x14, Rc, FetchAdd, Only, [ATOMIC_ETH], Empty;
    RC_SEND_LAST_INV = 0x16, Rc, Send, Last, [IETH], NonEmpty;
    RC_SEND_ONLY_INV = 0x17, Rc, Send, Only, [IETH], UpToPmtu;
    RC_FLUSH = 0x1c, Rc, Flush, Only, [FETH, RETH], Empty;
    RC_ATOMIC_WRITE = 0x1d, Rc, AtomicWrite, Only, [RETH], Exactly(8);
    UC_SEND_FIRST = 0x20, Uc, Send, First, [], Full;
    UC_SEND_MIDDLE = 0x21, Uc, Send, Middle, [], Full;
    UC_SEND_LAST = 0x22, Uc, Send, Last, [], NonEmpty;
    UC_SEND_LAST_IMM = 0x23, Uc, Send, Last, [IMM_DT], NonEmpty;
    UC_SEND_ONLY = 0x24, Uc, Send, Only, [], UpToPmtu;
    UC_SEND_ONLY_IMM = 0x25, Uc, Send, Only, [IMM_DT], UpToPmtu;
    UC_WRITE_FIRST = 0x26, Uc, Write, First, [RETH], Full;
    UC_WRITE_MIDDLE = 0x27, Uc, Write, Middle, [], Full;
    UC_WRITE_LAST = 0x28, Uc, Write, Last, [], NonEmpty;
    UC_WRITE_LAST_IMM = 0x29, Uc, Write, Last, [IMM_DT], NonEmpty;
    UC_WRITE_ONLY = 0x2a, Uc, Write, Only, [RETH], UpToPmtu;
    UC_WRITE_ONLY_IMM = 0x2b, Uc, Write, Only, [RETH, IMM_DT], UpToPmtu;
    RD_SEND_FIRST = 0x40, Rd, Send, First, [RDETH, DETH], Full;
    RD_SEND_MIDDLE = 0x41, Rd, Send, Middle, [RDETH, DETH], Full;
    RD_SEND_LAST = 0x42, Rd, Send, Last, [RDETH, DETH], NonEmpty;
    RD_SEND_LAST_IMM = 0x43, Rd, Send, Last, [RDETH, DETH, IMM_DT], NonEmpty;
    RD_SEND_ONLY = 0x44, Rd, Send, Only, [RDETH, DETH], UpToPmtu;
    RD_SEND_ONLY_IMM = 0x45, Rd, Send, Only, [RDETH, DETH, IMM_DT], UpToPmtu;
    RD_WRITE_FIRST = 0x46, Rd, Write, First, [RDETH, DETH, RETH], Full;
    RD_WRITE_MIDDLE = 0x47, Rd, Write, Middle, [RDETH, DETH], Full;
    RD_WRITE_LAST = 0x48, Rd, Write, Last, [RDETH, DETH], NonEmpty;
    RD_WRITE_LAST_IMM = 0x49, Rd, Write, Last, [RDETH, DETH, IMM_DT], NonEmpty;
    RD_WRITE_ONLY = 0x4a, Rd, Write, Only, [RDETH, DETH, RETH], UpToPmtu;
    RD_WRITE_ONLY_IMM = 0x4b, Rd, Write, Only, [RDETH, DETH, RETH, IMM_DT], UpToPmtu;
    RD_READ_REQUEST = 0x4c, Rd, Read, Only, [RDETH, DETH, RETH], Empty;
    RD_READ_RESPONSE_FIRST = 0x4d, Rd, ReadResponse, First, [RDETH, AETH], Full;
    RD_READ_RESPONSE_MIDDLE = 0x4e, Rd, ReadResponse, Middle, [RDETH], Full;
    RD_READ_RESPONSE_LAST = 0x4f, Rd, ReadResponse, Last, [RDETH, AETH], NonEmpty;
    RD_READ_RESPONSE_ONLY = 0x50, Rd, ReadResponse, Only, [RDETH, AETH], UpToPmtu;
    RD_ACKNOWLEDGE = 0x51, Rd, Acknowledge, Only, [RDETH, AETH], Empty;
    RD_ATOMIC_ACKNOWLEDGE = 0x52, Rd, AtomicAcknowledge, Only, [RDETH, AETH, ATOMIC_ACK_ETH], Empty;
    RD_CMP_SWAP = 0x53, Rd, CmpSwap, Only, [RDETH, DETH, ATOMIC_ETH], Empty;
    RD_FETCH_ADD = 0x54, Rd, FetchAdd, Only, [RDETH, DETH, ATOMIC_ETH], Empty;
    RD_RESYNC = 0x55, Rd, Resync, Only, [RDETH, DETH], Empty;
    RD_FLUSH = 0x5c, Rd, Flush, Only, [RDETH, FETH, RETH], Empty;
    UD_SEND_ONLY = 0x64, Ud, Send, Only, [DETH], UpToPmtu;
    UD_SEND_ONLY_IMM = 0x65, Ud, Send, Only, [DETH, IMM_DT], UpToPmtu;
    CNP = 0x81, Cnp, Cnp, Only, [], Exactly(16);
    XRC_SEND_FIRST = 0xa0, Xrc, Send, First, [XRCETH], Full;
    XRC_SEND_MIDDLE = 0xa1, Xrc, Send, Middle, [XRCETH], Full;
    XRC_SEND_LAST = 0xa2, Xrc, Send, Last, [XRCETH], NonEmpty;
    XRC_SEND_LAST_IMM = 0xa3, Xrc, Send, Last, [XRCETH, IMM_DT], NonEmpty;
    XRC_SEND_ONLY = 0xa4, Xrc, Send, Only, [XRCETH], UpToPmtu;
    XRC_SEND_ONLY_IMM = 0xa5, Xrc, Send, Only, [XRCETH, IMM_DT], UpToPmtu;
    XRC_WRITE_FIRST = 0xa6, Xrc, Write, First, [XRCETH, RETH], Full;
    XRC_WRITE_MIDDLE = 0xa7, Xrc, Write, Middle, [XRCETH], Full;
    XRC_WRITE_LAST = 0xa8, Xrc, Write, Last, [XRCETH], NonEmpty;
    XRC_WRITE_LAST_IMM = 0xa9, Xrc, Write, Last, [XRCETH, IMM_DT], NonEmpty;
    XRC_WRITE_ONLY = 0xaa, Xrc, Write, Only, [XRCETH, RETH], UpToPmtu;
    XRC_WRITE_ONLY_IMM = 0xab, Xrc, Write, Only, [XRCETH, RETH, IMM_DT], UpToPmtu;
    XRC_READ_REQUEST = 0xac, Xrc, Read, Only, [XRCETH, RETH], Empty;
    XRC_READ_RESPONSE_FIRST = 0xad, Xrc, ReadResponse, First, [AETH], Full;
    XRC_READ_RESPONSE_MIDDLE = 0xae, Xrc, ReadResponse, Middle, [], Full;
    XRC_READ_RESPONSE_LAST = 0xaf, Xrc, ReadResponse, Last, [AETH], NonEmpty;
    XRC_READ_RESPONSE_ONLY = 0xb0, Xrc, ReadResponse, Only, [AETH], UpToPmtu;
    XRC_ACKNOWLEDGE = 0xb1, Xrc, Acknowledge, Only, [AETH], Empty;
    XRC_ATOMIC_ACKNOWLEDGE = 0xb2, Xrc, AtomicAcknowledge, Only, [AETH, ATOMIC_ACK_ETH], Empty;
    XRC_CMP_SWAP = 0xb3, Xrc, CmpSwap, Only, [XRCETH, ATOMIC_ETH], Empty;
    XRC_FETCH_ADD = 0xb4, Xrc, FetchAdd, Only, [XRCETH, ATOMIC_ETH], Empty;
    XRC_SEND_LAST_INV = 0xb6, Xrc, Send, Last, [XRCETH, IETH], NonEmpty;
    XRC_SEND_ONLY_INV = 0xb7, Xrc, Send, Only, [XRCETH, IETH], UpToPmtu;
    XRC_FLUSH = 0xbc, Xrc, Flush, Only, [XRCETH, FETH, RETH], Empty;
}

static TABLE: [Option<OpcodeInfo>; 256] = {
    let mut table = [None; 256];
    let mut i = 0;
    while i < DEFINED.len() {
        let (value, info) = DEFINED[i];
        table[value as usize] = Some(info);
        i += 1;
    }
    table
};

#[cfg(test)]
mod tests;
