//! Work completions.

use bitflags::bitflags;
use rocebud_wire::{Qpn, RKey};

/// `enum ibv_wc_status`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(u32)]
#[allow(missing_docs, reason = "the names are those of verbs.h")]
pub enum WcStatus {
    #[default]
    Success = 0,
    LocLenErr = 1,
    LocQpOpErr = 2,
    LocEecOpErr = 3,
    LocProtErr = 4,
    WrFlushErr = 5,
    MwBindErr = 6,
    BadRespErr = 7,
    LocAccessErr = 8,
    RemInvReqErr = 9,
    RemAccessErr = 10,
    RemOpErr = 11,
    RetryExcErr = 12,
    RnrRetryExcErr = 13,
    FatalErr = 19,
    GeneralErr = 21,
}

/// `enum ibv_wc_opcode`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(u32)]
#[allow(missing_docs, reason = "the names are those of verbs.h")]
pub enum WcOpcode {
    #[default]
    Send = 0,
    RdmaWrite = 1,
    RdmaRead = 2,
    CompSwap = 3,
    FetchAdd = 4,
    BindMw = 5,
    LocalInv = 6,
    Flush = 8,
    AtomicWrite = 9,
    Recv = 128,
    RecvRdmaWithImm = 129,
}

bitflags! {
    /// `enum ibv_wc_flags`.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    #[allow(missing_docs, reason = "the names are those of verbs.h")]
    pub struct WcFlags: u32 {
        const GRH = 1;
        const WITH_IMM = 1 << 1;
        const IP_CSUM_OK = 1 << 2;
        const WITH_INV = 1 << 3;
    }
}

/// The service level says which network header a datagram came with, since Ethernet has no service
/// level of its own: bit 3 for UDP, bits 0 to 2 for the header (1 IPv6, 2 IPv4), as hardware does.
/// UCX asks it where in the 40 bytes before a datagram the destination is.
pub const SL_ROCE_V2_IPV4: u8 = 0b1010;
/// As [`SL_ROCE_V2_IPV4`], over IPv6.
pub const SL_ROCE_V2_IPV6: u8 = 0b1001;

/// One completion. On an error only `wr_id`, `status`, `qp_num` and `vendor_err` mean anything to
/// the application, but the rest is filled truthfully all the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[allow(missing_docs, reason = "the names are those of verbs.h")]
pub struct Wc {
    pub wr_id: u64,
    pub status: WcStatus,
    pub opcode: WcOpcode,
    /// A finer reason, see the manual of the engine; 0 on success.
    pub vendor_err: u32,
    pub byte_len: u32,
    /// Valid with `WcFlags::WITH_IMM`.
    pub imm: [u8; 4],
    /// Valid with `WcFlags::WITH_INV`.
    pub invalidated_rkey: RKey,
    pub qp_num: Qpn,
    pub src_qp: Qpn,
    pub wc_flags: WcFlags,
    pub pkey_index: u16,
    /// Of a received datagram: [`SL_ROCE_V2_IPV4`] or [`SL_ROCE_V2_IPV6`]; else 0.
    pub sl: u8,
    /// VLAN tag of a raw packet whose tag was taken off; 0 = none.
    pub cvlan: u16,
    /// Tag of the flow rule that steered a packet here; 0 = none.
    pub flow_tag: u32,
}
