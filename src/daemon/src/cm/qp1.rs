//! Datagrams of QP1: UD SEND Only, 256 bytes, with the well-known Q_Key.

use std::net::IpAddr;

use rocebud_cm::ip::{is_ip_service, port_of};
use rocebud_cm::{MAD_LEN, Transmit};
use rocebud_nic::RxFrame;
use rocebud_wire::{Bth, Deth, Ext, Header, Opcode, Packet, Psn, QKey, Qpn, icrc, ud_source_port};

/// The general services' queue pair.
pub(crate) const QP1: Qpn = Qpn::new(1);
/// Its Q_Key.
const QKEY: QKey = QKey(0x8001_0000);

/// A datagram that came for QP1.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Datagram {
    pub(crate) source: IpAddr,
    pub(crate) destination: IpAddr,
    /// Interface by which it came.
    pub(crate) ifindex: u32,
    pub(crate) mad: Box<[u8; MAD_LEN]>,
}

/// Why a frame to QP1 is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Bad {
    /// Its ICRC is wrong.
    Icrc,
    /// It is no datagram of the general services, or its Q_Key is wrong.
    Malformed,
}

/// The frame is for QP1.
pub(crate) fn is_for_qp1(frame: &[u8]) -> bool {
    frame.get(5..8) == Some(&[0, 0, 1])
}

/// Reads a frame that is for QP1.
pub(crate) fn read(frame: &RxFrame<'_>) -> Result<Datagram, Bad> {
    let packet = Packet::parse(frame.data).map_err(|_| Bad::Malformed)?;
    let right = packet.bth.opcode == Opcode::UD_SEND_ONLY
        && packet.ext.deth.is_some_and(|deth| deth.qkey == QKEY);
    if !right || packet.bth.dest_qp != QP1 {
        return Err(Bad::Malformed);
    }
    let mad: &[u8; MAD_LEN] = packet.payload.try_into().map_err(|_| Bad::Malformed)?;
    let ends = (frame.src.ip(), frame.dst);
    if icrc::verify_udp(ends, frame.src.port(), frame.seg_index, frame.data).is_none() {
        return Err(Bad::Icrc);
    }
    Ok(Datagram {
        source: frame.src.ip(),
        destination: frame.dst,
        ifindex: frame.ifindex,
        mad: Box::new(*mad),
    })
}

/// The port that a REQ or SIDR_REQ of the IP service asks at.
pub(crate) fn port_asked(mad: &[u8; MAD_LEN]) -> Option<u16> {
    const REQ: [u8; 2] = [0, 0x10];
    const SIDR_REQ: [u8; 2] = [0, 0x17];
    let attribute = mad.get(16..18)?;
    let asks = attribute == REQ || attribute == SIDR_REQ;
    let service = u64::from_be_bytes(*mad.get(32..)?.first_chunk::<8>()?);
    (asks && is_ip_service(service)).then(|| port_of(service))
}

/// UDP source port of QP1's datagrams.
pub(crate) const fn source_port() -> u16 {
    ud_source_port(QP1)
}

/// The frame of a message, sealed for the addresses of its path and UDP source port `sport`.
/// `None`: its addresses are of two families.
pub(crate) fn write(transmit: &Transmit, psn: Psn, sport: u16) -> Option<Vec<u8>> {
    let mut header = Header {
        bth: Bth::new(Opcode::UD_SEND_ONLY, QP1, psn),
        ext: Ext::NONE,
    };
    header.ext.deth = Some(Deth {
        qkey: QKEY,
        src_qp: QP1,
    });
    let mut frame = vec![0; header.frame_len(MAD_LEN)];
    let start = header.emit(MAD_LEN, &mut frame);
    frame
        .get_mut(start..start + MAD_LEN)?
        .copy_from_slice(&*transmit.mad);
    let ends = &transmit.path.ends;
    let value = match (ends.local.ip(), ends.remote.ip()) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let header = icrc::V4 {
                src: src.octets(),
                dst: dst.octets(),
                sport,
                ..Default::default()
            };
            icrc::v4(&header, icrc::covered(&frame))
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            let header = icrc::V6 {
                src: src.octets(),
                dst: dst.octets(),
                sport,
                ..Default::default()
            };
            icrc::v6(&header, icrc::covered(&frame))
        }
        _ => return None,
    };
    icrc::seal(value, &mut frame);
    Some(frame)
}

#[cfg(test)]
mod tests;
