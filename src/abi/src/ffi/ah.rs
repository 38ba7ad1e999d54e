//! Address handles, also from a received datagram.

use core::ffi::c_int;

use rocebud_objects::{AhAttr, Errno, Misuse, Path, WcFlags};
use rocebud_wire::Gid;

use super::boundary::{Arg, Outcome};
use super::context::Context;
use super::handle::{Handle, Head, Object, give};
use super::memory::{Pd, next_handle};
use super::types::{Plain, ibv_ah, ibv_ah_attr, ibv_gid, ibv_grh, ibv_wc};

/// An address handle of ours.
#[repr(C)]
pub(crate) struct Ah {
    head: Head<ibv_ah>,
    verbs: rocebud_verbs::Ah,
    /// Where its datagrams go, copied into each request.
    pub(crate) path: Path,
}

impl Object for Ah {
    const DEPTH: usize = 2;
}

c_api! {
    /// `ibv_create_ah`
    fn ibv_create_ah(pd: Pd, attr: Arg<ibv_ah_attr>) -> Pointer, *mut ibv_ah {
        create(pd, &attr.get()?)
    }

    /// `ibv_init_ah_from_wc`: the way back to a datagram's sender. `grh` is the 40-byte area in
    /// front of the payload.
    fn ibv_init_ah_from_wc(
        context: Context, port: u8, wc: Arg<ibv_wc>, grh: Arg<ibv_grh>, attr: Arg<ibv_ah_attr>,
    ) -> MinusOne, c_int {
        attr.set(way_back(&context.verbs, port, &wc.get()?, grh)?)?;
        Ok(0)
    }

    /// `ibv_create_ah_from_wc`
    fn ibv_create_ah_from_wc(pd: Pd, wc: Arg<ibv_wc>, grh: Arg<ibv_grh>, port: u8)
        -> Pointer, *mut ibv_ah
    {
        let context = Handle::<Context>::from_raw(pd.context()).ours();
        create(pd, &way_back(&context.verbs, port, &wc.get()?, grh)?)
    }

    /// `ibv_destroy_ah`
    fn ibv_destroy_ah(ah: Ah) -> ErrnoCode, () {
        ah.verbs.destroy()?;
        drop(Handle::<Ah>::from_raw(ah.head.as_ptr()).reclaim());
        Ok(())
    }
}

fn create(pd: &Pd, attr: &ibv_ah_attr) -> Outcome<*mut ibv_ah> {
    let verbs = pd.verbs.create_ah(&ah_attr_of(attr))?;
    let path = verbs.path();
    let head = ibv_ah {
        context: pd.context(),
        pd: pd.as_ptr(),
        handle: next_handle(),
    };
    Ok(give(Box::new(Ah {
        head: Head::new(head),
        verbs,
        path,
    })))
}

/// `struct ibv_ah_attr` in the words of the layers below.
pub(crate) const fn ah_attr_of(a: &ibv_ah_attr) -> AhAttr {
    AhAttr {
        dgid: Gid(a.grh.dgid.0),
        flow_label: a.grh.flow_label,
        sgid_index: a.grh.sgid_index,
        hop_limit: a.grh.hop_limit,
        traffic_class: a.grh.traffic_class,
        dlid: a.dlid,
        sl: a.sl,
        src_path_bits: a.src_path_bits,
        static_rate: a.static_rate,
        is_global: a.is_global != 0,
        port_num: a.port_num,
    }
}

/// The other way round, for queries.
pub(crate) fn c_ah_attr(a: &AhAttr) -> ibv_ah_attr {
    let mut out = ibv_ah_attr::zeroed();
    out.grh.dgid = ibv_gid(a.dgid.0);
    out.grh.flow_label = a.flow_label;
    out.grh.sgid_index = a.sgid_index;
    out.grh.hop_limit = a.hop_limit;
    out.grh.traffic_class = a.traffic_class;
    out.dlid = a.dlid;
    out.sl = a.sl;
    out.src_path_bits = a.src_path_bits;
    out.static_rate = a.static_rate;
    out.is_global = u8::from(a.is_global);
    out.port_num = a.port_num;
    out
}

/// What a datagram's network header says about its way.
struct Header {
    source: Gid,
    destination: Gid,
    traffic_class: u8,
    flow_label: u32,
}

fn way_back(
    context: &rocebud_verbs::Context,
    port: u8,
    wc: &ibv_wc,
    grh: Arg<ibv_grh>,
) -> Outcome<ibv_ah_attr> {
    let mut attr = ibv_ah_attr::zeroed();
    attr.dlid = wc.slid;
    attr.sl = wc.sl;
    attr.src_path_bits = wc.dlid_path_bits;
    attr.port_num = port;
    if wc.wc_flags & WcFlags::GRH.bits() == 0 {
        return Ok(attr);
    }
    let header = parse_area(&grh.get()?)?;
    if header.destination.is_multicast() {
        return Err(Misuse::invalid(
            "the datagram came by multicast: its destination is no address to answer from",
        ));
    }
    let table = context.gid_table();
    let own = table
        .iter()
        .find(|e| e.port_num == u32::from(port) && e.gid == header.destination)
        .ok_or(Misuse::new(
            Errno::ENODATA,
            "the datagram's destination address has left the GID table",
        ))?;
    attr.is_global = 1;
    attr.grh.dgid = ibv_gid(header.source.0);
    attr.grh.sgid_index = u8::try_from(own.gid_index)
        .map_err(|_| Misuse::invalid("the GID index does not fit an address handle"))?;
    attr.grh.flow_label = header.flow_label;
    attr.grh.traffic_class = header.traffic_class;
    attr.grh.hop_limit = u8::MAX;
    Ok(attr)
}

/// Reads the 40-byte area: an IPv4 header in its last 20 bytes (the first 20 are not defined), or
/// an IPv6 header. An IPv4 header is known by version, length and checksum.
fn parse_area(grh: &ibv_grh) -> Outcome<Header> {
    let mut tail = [0u8; 20];
    tail[..4].copy_from_slice(&grh.sgid.0[12..]);
    tail[4..].copy_from_slice(&grh.dgid.0);
    if tail[0] == 0x45 && checksum_is_right(&tail) {
        let address = |i: usize| Gid::from_v4([tail[i], tail[i + 1], tail[i + 2], tail[i + 3]]);
        return Ok(Header {
            source: address(12),
            destination: address(16),
            traffic_class: tail[1],
            flow_label: 0,
        });
    }
    let word = u32::from_be_bytes(grh.version_tclass_flow);
    if word >> 28 != 6 {
        return Err(Misuse::new(
            Errno::EPROTONOSUPPORT,
            "the bytes in front of the payload are neither an IPv4 nor an IPv6 header",
        ));
    }
    let traffic_class = ((word >> 20) & 0xff) as u8;
    Ok(Header {
        source: Gid(grh.sgid.0),
        destination: Gid(grh.dgid.0),
        traffic_class,
        flow_label: word & 0x000f_ffff,
    })
}

/// The ones' complement sum over a header with its checksum in it is all ones.
fn checksum_is_right(header: &[u8; 20]) -> bool {
    let sum: u32 = header
        .chunks_exact(2)
        .map(|w| u32::from(u16::from_be_bytes([w[0], w[1]])))
        .sum();
    (sum & 0xffff) + (sum >> 16) == 0xffff
}
