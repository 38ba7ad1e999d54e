//! A packet from BTH to ICRC: parse and emit.

use core::fmt;

use crate::bytes::{Reader, Writer};
use crate::{BTH_LEN, Bth, Ext, ICRC_LEN, Opcode, OpcodeInfo, PayloadRule, Qpn};

/// Why bytes are not a packet. The sender is at fault, or the network; a receiver drops and counts.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ParseError {
    /// Fewer bytes than headers, pad and ICRC take.
    Short {
        /// Bytes needed at least.
        needed: usize,
        /// Bytes there.
        had: usize,
    },
    /// Transport header version other than 0.
    Version(u8),
    /// An opcode that no specification defines.
    UnknownOpcode(Opcode),
    /// Payload and pad do not end on a multiple of four bytes.
    Pad {
        /// The header's pad count.
        pad: u8,
        /// Payload bytes that it leaves.
        payload: usize,
    },
    /// A payload length that this opcode never has.
    Length {
        /// The opcode.
        opcode: Opcode,
        /// Payload bytes.
        payload: usize,
        /// What is allowed.
        rule: PayloadRule,
    },
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Short { needed, had } => {
                write!(f, "malformed: {had} bytes where {needed} are needed")
            }
            Self::Version(v) => write!(f, "malformed: transport header version {v}, not 0"),
            Self::UnknownOpcode(op) => write!(f, "undefined {op}"),
            Self::Pad { pad, payload } => {
                write!(f, "malformed: pad count {pad} after {payload} bytes")
            }
            Self::Length {
                opcode,
                payload,
                rule,
            } => write!(f, "malformed: {opcode} with {payload} bytes ({rule:?})"),
        }
    }
}

impl core::error::Error for ParseError {}

/// A packet read from a UDP payload (or from what follows a GRH).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Packet<'a> {
    /// Base header.
    pub bth: Bth,
    /// Exactly the extension headers that the opcode names.
    pub ext: Ext,
    /// Without pad and ICRC.
    pub payload: &'a [u8],
    /// The table's line of the opcode.
    pub info: &'static OpcodeInfo,
}

impl<'a> Packet<'a> {
    /// Reads BTH to ICRC. Every length is checked here, once, before anything subtracts; the ICRC
    /// itself is [`icrc`](crate::icrc)'s to verify, and payload against path MTU is the queue
    /// pair's ([`PayloadRule::allows`]).
    ///
    /// # Errors
    /// Bytes that no sender of RoCE sends.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, ParseError> {
        let had = bytes.len();
        let short = |needed| ParseError::Short { needed, had };
        let Some((bth, rest)) = bytes.split_first_chunk::<BTH_LEN>() else {
            return Err(short(BTH_LEN + ICRC_LEN));
        };
        if bth[1] & 0xf != 0 {
            return Err(ParseError::Version(bth[1] & 0xf));
        }
        let bth = Bth::decode(bth);
        let Some(info) = bth.opcode.info() else {
            return Err(ParseError::UnknownOpcode(bth.opcode));
        };
        let ext_len = usize::from(info.header_len) - BTH_LEN;
        let tail = usize::from(bth.pad) + ICRC_LEN;
        let needed = BTH_LEN + ext_len + tail;
        let Some(payload_len) = had.checked_sub(needed) else {
            return Err(short(needed));
        };
        let Some((ext, rest)) = rest.split_at_checked(ext_len) else {
            return Err(short(needed));
        };
        let Some(payload) = rest.get(..payload_len) else {
            return Err(short(needed));
        };
        if pad_for(payload_len) != bth.pad {
            return Err(ParseError::Pad {
                pad: bth.pad,
                payload: payload_len,
            });
        }
        if !info.payload.possible(payload_len) {
            return Err(ParseError::Length {
                opcode: bth.opcode,
                payload: payload_len,
                rule: info.payload,
            });
        }
        Ok(Self {
            bth,
            ext: Ext::decode(info.ext, &mut Reader(ext)),
            payload,
            info,
        })
    }

    /// The headers alone, ready to be emitted again.
    #[must_use]
    pub const fn header(&self) -> Header {
        Header {
            bth: self.bth,
            ext: self.ext,
        }
    }
}

/// The headers of a packet that is to be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// Base header; its pad count is set by [`Header::emit`].
    pub bth: Bth,
    /// The headers that the opcode names.
    pub ext: Ext,
}

impl Header {
    /// A BTH and nothing else.
    #[must_use]
    pub const fn new(bth: Bth) -> Self {
        Self {
            bth,
            ext: Ext::NONE,
        }
    }

    /// Bytes of BTH and extension headers: where the payload starts.
    #[inline]
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "a header is never empty")]
    pub fn len(&self) -> usize {
        self.bth
            .opcode
            .info()
            .map_or(BTH_LEN, |info| usize::from(info.header_len))
    }

    /// Bytes of the whole packet, pad and ICRC included.
    #[inline]
    #[must_use]
    pub fn frame_len(&self, payload_len: usize) -> usize {
        self.len() + payload_len + usize::from(pad_for(payload_len)) + ICRC_LEN
    }

    /// Writes headers and pad bytes into `buf` and returns the length of the headers: the payload
    /// belongs at `buf[len..len + payload_len]`, the ICRC in the last four bytes of
    /// `buf[..self.frame_len(payload_len)]` ([`icrc::seal`](crate::icrc::seal)); neither is
    /// touched here. Of an undefined opcode only the BTH is written.
    ///
    /// Returns 0 and writes nothing if `buf` is shorter than the frame.
    #[inline]
    pub fn emit(&self, payload_len: usize, buf: &mut [u8]) -> usize {
        let pad = pad_for(payload_len);
        let Some(frame) = buf.get_mut(..self.frame_len(payload_len)) else {
            return 0;
        };
        let bth = Bth { pad, ..self.bth };
        let mut w = Writer::new(frame);
        w.put(&bth.encode());
        if let Some(info) = bth.opcode.info() {
            self.ext.encode(info.ext, &mut w);
        }
        let len = w.written();
        let end = len + payload_len;
        if pad != 0
            && let Some(gap) = frame.get_mut(end..end + usize::from(pad))
        {
            gap.fill(0);
        }
        len
    }
}

/// Bytes that bring `payload_len` to a multiple of four.
#[inline]
const fn pad_for(payload_len: usize) -> u8 {
    (payload_len.wrapping_neg() & 3) as u8
}

/// A congestion notification for the queue pair `dest_qp` at the sender of marked packets:
/// 32 bytes, the last four left for the ICRC.
#[must_use]
pub fn cnp(dest_qp: Qpn) -> [u8; 32] {
    let mut frame = [0; 32];
    let mut header = Header::new(Bth::new(Opcode::CNP, dest_qp, crate::Psn::new(0)));
    header.bth.becn = true;
    header.emit(16, &mut frame);
    frame
}

#[cfg(test)]
mod tests;
