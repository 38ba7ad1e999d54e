//! Typed headers from the input: what is emitted reads the same, a damaged bit shows, and a buffer
//! that is too short stays as it was.

use crate::frame_parse::read;
use arbitrary::{Result, Unstructured};
use rocebud_wire::frame::{Ethernet, Frame, Ipv4, Ipv6, Net, Outer, Udp, Vlan, ethertype};
use rocebud_wire::icrc::{self, DF, Digest, Id};
use rocebud_wire::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Deth, Ext, ExtSet, Feth, Header, Opcode, PKey, Packet,
    PayloadRule, Psn, QKey, Qpn, RKey, Rdeth, Reth, Syndrome, XrcEth,
};

/// Longest payload: enough for every remainder and more than one step of a vector CRC.
const PAYLOAD_MAX: usize = 600;

/// See the module.
pub fn run(data: &[u8]) {
    // An input that ends early is padded with zeros by the decoder, so nothing is refused.
    let _ = play(&mut Unstructured::new(data));
}

fn play(u: &mut Unstructured<'_>) -> Result<()> {
    let (outer, header) = (outer(u)?, header(u)?);
    let payload = payload(u, header.bth.opcode)?;
    let ib = emitted(&header, &payload, &outer);
    let packet = Packet::parse(&ib).expect("our own packet");
    assert_eq!(packet.payload, payload);
    assert_eq!(packet.ext, header.ext);
    assert_eq!(
        Bth {
            pad: 0,
            ..packet.bth
        },
        header.bth
    );
    let trailer = vec![0xee; u.int_in_range(0..=4)?];
    let frame = Frame {
        outer,
        ib: &ib,
        trailer: &trailer,
    };
    let mut bytes = vec![0; outer.header_len() + ib.len() + trailer.len()];
    assert_eq!(frame.emit(&mut bytes), Some(bytes.len()));
    assert_eq!(read(outer.ethernet.is_some(), &bytes), Ok(frame));
    assert!(frame.icrc_ok());
    short_buffers(u, &header, &frame, payload.len())?;
    digests(u, &outer, &ib)?;
    hidden_id(u, &outer, &ib)?;
    damage(u, &outer, bytes)
}

/// BTH to ICRC, sealed. The pad bytes are zero although the buffer was not.
fn emitted(header: &Header, payload: &[u8], outer: &Outer) -> Vec<u8> {
    let mut ib = vec![0xa5; header.frame_len(payload.len())];
    let at = header.emit(payload.len(), &mut ib);
    assert_eq!(at, header.len());
    ib[at..at + payload.len()].copy_from_slice(payload);
    let end = ib.len() - 4;
    assert!(ib[at + payload.len()..end].iter().all(|&b| b == 0), "pad");
    assert_eq!(ib[end..], [0xa5; 4], "the ICRC's place is left alone");
    outer.seal(&mut ib);
    ib
}

fn short_buffers(
    u: &mut Unstructured<'_>,
    header: &Header,
    frame: &Frame<'_>,
    n: usize,
) -> Result<()> {
    let missing = u.int_in_range(1..=40)?;
    let mut buf = vec![0xa5; header.frame_len(n).saturating_sub(missing)];
    assert_eq!(header.emit(n, &mut buf), 0);
    assert!(buf.iter().all(|&b| b == 0xa5));
    let whole = frame.outer.header_len() + frame.ib.len();
    let mut buf = vec![0xa5; whole.saturating_sub(missing)];
    assert_eq!(frame.outer.emit(frame.ib, &mut buf), None);
    Ok(())
}

/// A sum in pieces is the sum of the whole.
fn digests(u: &mut Unstructured<'_>, outer: &Outer, ib: &[u8]) -> Result<()> {
    let covered = icrc::covered(ib);
    let Some(bth) = covered.first_chunk::<12>() else {
        return Ok(());
    };
    let cut = u.int_in_range(12..=covered.len())?;
    let mut digest = match &outer.net {
        Net::V4(ip, udp) => Digest::v4(&ip.icrc_view(udp), covered.len(), bth),
        Net::V6(ip, udp) => Digest::v6(&ip.icrc_view(udp), covered.len(), bth),
        Net::Grh(_) => return Ok(()),
    };
    digest.update(&covered[12..cut]);
    digest.update(&covered[cut..]);
    assert_eq!(digest.finish(), outer.icrc(covered));
    Ok(())
}

/// The identification that a socket hides is found from any guess, or refused above a bound.
fn hidden_id(u: &mut Unstructured<'_>, outer: &Outer, ib: &[u8]) -> Result<()> {
    let (guess, max) = (u.arbitrary()?, u.arbitrary::<u16>()?);
    let Net::V4(ip, udp) = &outer.net else {
        return Ok(());
    };
    let view = icrc::V4 {
        id: !ip.id,
        ..ip.icrc_view(udp)
    };
    let found = icrc::verify_v4(&view, Id::Unknown { guess, max }, ib);
    if ip.flags_frag != DF && ip.flags_frag != 0 {
        return Ok(());
    }
    assert_eq!(
        found.map(|f| (f.id, f.flags_frag)),
        (ip.id <= max).then_some((ip.id, ip.flags_frag))
    );
    Ok(())
}

/// One wrong bit behind the network headers shows, unless the ICRC masks its place.
fn damage(u: &mut Unstructured<'_>, outer: &Outer, mut bytes: Vec<u8>) -> Result<()> {
    let from = outer.header_len();
    let bit = u.int_in_range(0..=(bytes.len() - from) * 8 - 1)?;
    let at = from + bit / 8;
    bytes[at] ^= 1 << (bit % 8);
    if let Ok(frame) = read(outer.ethernet.is_some(), &bytes) {
        let masked = at == from + 4;
        let outside = at >= from + frame.ib.len();
        assert_eq!(frame.icrc_ok(), masked || outside, "byte {at}");
    }
    // And anywhere at all: refused or read, never a panic.
    let at = u.int_in_range(0..=bytes.len() - 1)?;
    bytes[at] ^= u.arbitrary::<u8>()?;
    crate::frame_parse::run(&bytes);
    Ok(())
}

fn outer(u: &mut Unstructured<'_>) -> Result<Outer> {
    let family = u.int_in_range(0..=2)?;
    let tags = u.int_in_range(0..=3)?;
    let net = if family == 0 {
        let ip = Ipv4 {
            tos: u.arbitrary()?,
            id: u.arbitrary()?,
            // Reserved bit and DF; a fragment is no frame of ours.
            flags_frag: u.arbitrary::<u16>()? & 0xc000,
            ttl: u.arbitrary()?,
            src: u.arbitrary()?,
            dst: u.arbitrary()?,
        };
        Net::V4(ip, udp(u)?)
    } else {
        let ip = Ipv6 {
            traffic_class: u.arbitrary()?,
            flow_label: u.arbitrary::<u32>()? & 0xf_ffff,
            hop_limit: u.arbitrary()?,
            src: u.arbitrary()?,
            dst: u.arbitrary()?,
        };
        if family == 1 {
            Net::V6(ip, udp(u)?)
        } else {
            Net::Grh(ip)
        }
    };
    // RoCE v1 is told by the Ethernet type alone.
    let ethernet = if tags == 3 && family != 2 {
        None
    } else {
        Some(ethernet(u, tags % 3)?)
    };
    Ok(Outer { ethernet, net })
}

fn udp(u: &mut Unstructured<'_>) -> Result<Udp> {
    Ok(Udp {
        sport: u.arbitrary()?,
        checksum: u.arbitrary()?,
    })
}

fn ethernet(u: &mut Unstructured<'_>, tags: usize) -> Result<Ethernet> {
    let mut vlans = [None; 2];
    for slot in vlans.iter_mut().take(tags) {
        let tpid = if u.arbitrary()? {
            ethertype::VLAN
        } else {
            ethertype::SERVICE_VLAN
        };
        *slot = Some(Vlan {
            tpid,
            tci: u.arbitrary()?,
        });
    }
    Ok(Ethernet {
        dst: u.arbitrary()?,
        src: u.arbitrary()?,
        vlans,
    })
}

fn header(u: &mut Unstructured<'_>) -> Result<Header> {
    let count = Opcode::defined().count();
    let which = u.int_in_range(0..=count - 1)?;
    let (opcode, info) = Opcode::defined().nth(which).expect("within the table");
    let flags = u.arbitrary::<u8>()?;
    let bth = Bth {
        solicited: flags & 1 != 0,
        migreq: flags & 2 != 0,
        fecn: flags & 4 != 0,
        becn: flags & 8 != 0,
        ack_req: flags & 16 != 0,
        pkey: PKey(u.arbitrary()?),
        ..Bth::new(opcode, Qpn::new(u.arbitrary()?), Psn::new(u.arbitrary()?))
    };
    Ok(Header {
        bth,
        ext: ext(u, info.ext)?,
    })
}

/// The headers of `set`, with any content.
fn ext(u: &mut Unstructured<'_>, set: ExtSet) -> Result<Ext> {
    let mut ext = Ext::NONE;
    for one in set.iter() {
        match one {
            ExtSet::RDETH => {
                let ee_context = u.arbitrary::<u32>()? >> 8;
                ext.rdeth = Some(Rdeth { ee_context });
            }
            ExtSet::DETH => {
                ext.deth = Some(Deth {
                    qkey: QKey(u.arbitrary()?),
                    src_qp: Qpn::new(u.arbitrary()?),
                });
            }
            ExtSet::XRCETH => {
                let srqn = u.arbitrary::<u32>()? >> 8;
                ext.xrceth = Some(XrcEth { srqn });
            }
            ExtSet::FETH => {
                ext.feth = Some(Feth {
                    sel: u.arbitrary::<u8>()? & 3,
                    plt: u.arbitrary::<u8>()? & 15,
                });
            }
            ExtSet::RETH => {
                ext.reth = Some(Reth {
                    va: u.arbitrary()?,
                    rkey: RKey(u.arbitrary()?),
                    dma_len: u.arbitrary()?,
                });
            }
            ExtSet::ATOMIC_ETH => {
                ext.atomic_eth = Some(AtomicEth {
                    va: u.arbitrary()?,
                    rkey: RKey(u.arbitrary()?),
                    swap_add: u.arbitrary()?,
                    compare: u.arbitrary()?,
                });
            }
            ExtSet::AETH => {
                ext.aeth = Some(Aeth {
                    syndrome: Syndrome::decode(u.arbitrary()?),
                    msn: u.arbitrary::<u32>()? >> 8,
                });
            }
            ExtSet::ATOMIC_ACK_ETH => {
                ext.atomic_ack_eth = Some(AtomicAckEth {
                    orig: u.arbitrary()?,
                });
            }
            ExtSet::IMM_DT => ext.imm_dt = Some(u.arbitrary()?),
            ExtSet::IETH => ext.ieth = Some(RKey(u.arbitrary()?)),
            _ => {}
        }
    }
    Ok(ext)
}

/// A payload whose length the opcode can have.
fn payload(u: &mut Unstructured<'_>, opcode: Opcode) -> Result<Vec<u8>> {
    let wanted = u.int_in_range(0..=PAYLOAD_MAX)?;
    let rule = opcode.info().map(|info| info.payload);
    let len = match rule {
        Some(PayloadRule::Empty) => 0,
        Some(PayloadRule::Exactly(n)) => usize::from(n),
        _ => wanted,
    };
    let byte = u.arbitrary::<u8>()?;
    Ok((0..len).map(|i| byte.wrapping_mul(i as u8 | 1)).collect())
}
