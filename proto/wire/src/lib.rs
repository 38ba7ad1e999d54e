//! RoCE wire formats: headers, opcode table, ICRC. Knows no queue pair.
//!
//! A RoCE packet, from the BTH to the ICRC, is read by [`Packet::parse`] and written by
//! [`Header::emit`]; [`icrc`] seals and verifies it; [`frame`] has the Ethernet, IP and UDP
//! headers around it, which only tools, tests and raw links need.
//!
//! ```
//! use rocebud_wire::{icrc, Bth, Header, Opcode, Packet, Psn, Qpn};
//!
//! let header = Header::new(Bth::new(Opcode::RC_SEND_ONLY, Qpn::new(0x12), Psn::new(7)));
//! let mut buf = [0; 64];
//! let at = header.emit(5, &mut buf);
//! buf[at..at + 5].copy_from_slice(b"hello");
//! let frame = &mut buf[..header.frame_len(5)];
//!
//! let path = icrc::V4 { src: [10, 0, 0, 1], dst: [10, 0, 0, 2], sport: 0xc000, ..Default::default() };
//! icrc::seal(icrc::v4(&path, icrc::covered(frame)), frame);
//!
//! let unknown = icrc::Id::Unknown { guess: 0, max: u16::MAX };
//! assert!(icrc::verify_v4(&path, unknown, frame).is_some());
//! assert_eq!(Packet::parse(frame).unwrap().payload, b"hello");
//! ```
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

mod addr;
mod bytes;
pub mod frame;
mod headers;
pub mod icrc;
mod opcode;
mod packet;
mod port;
mod syndrome;
mod types;

pub use addr::guid_from_mac;
pub use headers::{Aeth, AtomicAckEth, AtomicEth, Bth, Deth, Ext, Feth, Rdeth, Reth, XrcEth};
pub use opcode::{Class, ExtSet, Opcode, OpcodeInfo, Operation, PayloadRule, Position};
pub use packet::{Header, Packet, ParseError, cnp};
pub use port::{cm_flow_label, source_port, ud_source_port};
pub use syndrome::{NakCode, Syndrome, credit_code, credits, rnr_timer_code, rnr_timer_ns};
pub use types::{Gid, LKey, Mtu, PKey, Psn, QKey, Qpn, RKey};

/// The UDP destination port of RoCE v2.
pub const UDP_PORT: u16 = 4791;

/// Bytes of the ICRC at the end of every packet.
pub const ICRC_LEN: usize = 4;

/// Bytes of the base transport header.
pub const BTH_LEN: usize = 12;

/// The longest header chain from BTH on (RD CmpSwap: BTH, RDETH, DETH, AtomicETH).
pub const HEADERS_MAX: usize = 12 + 4 + 8 + 28;
