//! The management datagrams among the golden frames.

use rocebud_wire::frame::{Frame, Net};
use rocebud_wire::{Gid, Packet, Qpn};

#[path = "../../../wire/tests/common/mod.rs"]
mod data;

/// A datagram and between whom it went.
pub(crate) struct Golden {
    pub(crate) what: String,
    pub(crate) src: Gid,
    pub(crate) dst: Gid,
    pub(crate) mad: Vec<u8>,
}

/// All of them: published ones, then captures in their order.
pub(crate) fn all() -> Vec<Golden> {
    let published = data::published().into_iter().filter(|p| !p.bad());
    let published = published.map(|p| (p.name.clone(), p.ethernet, p.bytes));
    let captured = data::captures().into_iter().flat_map(|capture| {
        let frames = capture.frames.into_iter().enumerate();
        frames.map(move |(i, bytes)| (format!("{} frame {i}", capture.name), true, bytes))
    });
    let mads = published.chain(captured);
    mads.filter_map(|(what, ethernet, bytes)| mad(what, ethernet, &bytes))
        .collect()
}

/// Those of one capture.
pub(crate) fn of(name: &str) -> Vec<Golden> {
    let frames = data::capture(name).into_iter().enumerate();
    frames
        .filter_map(|(i, bytes)| mad(format!("{name} frame {i}"), true, &bytes))
        .collect()
}

fn mad(what: String, ethernet: bool, bytes: &[u8]) -> Option<Golden> {
    let frame = if ethernet {
        Frame::parse(bytes)
    } else {
        Frame::parse_ip(bytes)
    };
    let frame = frame.ok()?;
    let packet = Packet::parse(frame.ib).ok()?;
    if packet.bth.dest_qp != Qpn::GSI {
        return None;
    }
    let (src, dst) = match frame.outer.net {
        Net::V4(ip, _) => (Gid::from_v4(ip.src), Gid::from_v4(ip.dst)),
        Net::V6(ip, _) => (Gid(ip.src), Gid(ip.dst)),
        _ => return None,
    };
    let mad = packet.payload.to_vec();
    Some(Golden {
        what,
        src,
        dst,
        mad,
    })
}
