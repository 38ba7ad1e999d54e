//! A line of text for each frame, for people who replay a seed.

use core::fmt::Write as _;

use rocebud_objects::Instant;
use rocebud_wire::Packet;

use crate::frame::Frame;
use crate::net::HostId;
use crate::rule::Verdict;

/// `  12.345678 h0 qp 0x1001 -> h1 qp 0x2001 RC SEND First psn 0x12 A 1024 B` and the fate.
#[must_use]
pub fn line(
    now: Instant,
    from: HostId,
    to: HostId,
    frame: &Frame,
    packet: &Packet<'_>,
    fate: Verdict,
) -> String {
    let bth = &packet.bth;
    let mut text = format!(
        "{:>5}.{:06} h{} {} -> h{} {} {} psn {}",
        now.0 / 1_000_000,
        now.0 % 1_000_000,
        from.0,
        frame.src_qp,
        to.0,
        bth.dest_qp,
        bth.opcode,
        bth.psn,
    );
    let ext = &packet.ext;
    // Writing to a String cannot fail.
    if bth.ack_req {
        text.push_str(" A");
    }
    if bth.solicited {
        text.push_str(" SE");
    }
    if let Some(aeth) = &ext.aeth {
        let _ = write!(text, " {:?}", aeth);
    }
    if let Some(reth) = &ext.reth {
        let _ = write!(text, " {:?}", reth);
    }
    if let Some(atomic) = &ext.atomic_eth {
        let _ = write!(text, " {:?}", atomic);
    }
    if let Some(ack) = &ext.atomic_ack_eth {
        let _ = write!(text, " {:?}", ack);
    }
    if !packet.payload.is_empty() {
        let _ = write!(text, " {} B", packet.payload.len());
    }
    if frame.retransmit {
        text.push_str(" again");
    }
    if fate != Verdict::Pass {
        let _ = write!(text, " => {fate:?}");
    }
    text
}
