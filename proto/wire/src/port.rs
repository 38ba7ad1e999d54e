//! UDP source ports: 0xC000..=0xFFFF, so that routers spread flows.

use crate::Qpn;

/// Source port of an RC or UC queue pair: from the path's 20-bit flow label, or, when that is 0,
/// from the two queue pair numbers. Symmetric in the numbers, so both ends choose the same port.
#[must_use]
pub const fn source_port(flow_label: u32, lqpn: Qpn, rqpn: Qpn) -> u16 {
    let mut label = flow_label & 0xf_ffff;
    if label == 0 {
        let mut v = lqpn.value() as u64 * rqpn.value() as u64;
        v ^= v >> 20;
        v ^= v >> 40;
        label = (v & 0xf_ffff) as u32;
    }
    (((label & 0x3fff) ^ (label >> 14)) | 0xc000) as u16
}

/// Source port of a UD or GSI queue pair.
#[must_use]
pub const fn ud_source_port(qpn: Qpn) -> u16 {
    0xc000 + (qpn.value().wrapping_mul(0x61c8_8647) >> 18) as u16
}

/// The flow label that rdma_cm derives from the two TCP-like ports of a connection.
#[must_use]
pub const fn cm_flow_label(sport: u16, dport: u16) -> u32 {
    (sport as u32 * 31 + dport as u32) & 0xf_ffff
}

#[cfg(test)]
mod tests;
