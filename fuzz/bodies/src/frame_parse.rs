//! Any bytes as a frame, as an IP packet and as a packet: they are refused, or what was read comes
//! out again as it went in.

use rocebud_wire::frame::{Frame, FrameError, Net};
use rocebud_wire::icrc::{self, DF, Id};
use rocebud_wire::{Bth, Packet, Syndrome};

/// Longest frame that the codec's users hand in: an IP packet behind two tags.
const BYTES_MAX: usize = 65_535 + 14 + 8;

/// See the module.
pub fn run(data: &[u8]) {
    let data = data.get(..BYTES_MAX).unwrap_or(data);
    for ethernet in [true, false] {
        match read(ethernet, data) {
            Ok(frame) => check_frame(data, &frame),
            // A fuzzer does not guess a checksum: it is made right, and what lies behind it is read.
            Err(FrameError::Ipv4Checksum) => {
                let data = with_checksum(ethernet, data);
                if let Ok(frame) = read(ethernet, &data) {
                    check_frame(&data, &frame);
                }
            }
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
    check_packet(data);
}

/// The bytes with a right checksum in their IPv4 header.
fn with_checksum(ethernet: bool, data: &[u8]) -> Vec<u8> {
    let mut data = data.to_vec();
    let tag = |at: usize| {
        data.get(at..at + 2)
            .is_some_and(|t| t == [0x81, 0] || t == [0x88, 0xa8])
    };
    let at = match ethernet {
        true if tag(12) && tag(16) => 22,
        true if tag(12) => 18,
        true => 14,
        false => 0,
    };
    let header = data.get_mut(at..at + 20).expect("the checksum was read");
    header[10..12].fill(0);
    let mut sum: u32 = header
        .chunks(2)
        .map(|w| u32::from(u16::from_be_bytes([w[0], w[1]])))
        .sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    header[10..12].copy_from_slice(&(!(sum as u16)).to_be_bytes());
    data
}

/// Reads from the Ethernet header, or from the IP header.
pub(crate) fn read(ethernet: bool, bytes: &[u8]) -> Result<Frame<'_>, FrameError> {
    if ethernet {
        Frame::parse(bytes)
    } else {
        Frame::parse_ip(bytes)
    }
}

fn check_frame(data: &[u8], frame: &Frame<'_>) {
    let headers = frame.outer.header_len();
    assert_eq!(
        headers + frame.ib.len() + frame.trailer.len(),
        data.len(),
        "every byte belongs somewhere"
    );
    let mut again = vec![0xa5; data.len()];
    assert_eq!(frame.emit(&mut again), Some(data.len()));
    assert_eq!(
        read(frame.outer.ethernet.is_some(), &again).as_ref(),
        Ok(frame),
        "what we emit reads the same"
    );
    // Two checksums stand for the same sum: 0 and 0xffff.
    let checksum = match frame.outer.net {
        Net::V4(..) => headers - 28 + 10..headers - 28 + 12,
        Net::V6(..) | Net::Grh(_) => 0..0,
    };
    again[checksum.clone()].copy_from_slice(&data[checksum]);
    assert_eq!(again, data, "byte for byte");
    check_icrc(frame);
    check_packet(frame.ib);
}

/// Every way to check the ICRC comes to the same end.
fn check_icrc(frame: &Frame<'_>) {
    let good = frame.icrc_ok();
    match &frame.outer.net {
        Net::V4(ip, udp) => {
            let view = ip.icrc_view(udp);
            let known = Id::Known {
                id: ip.id,
                flags_frag: ip.flags_frag,
            };
            let verified = icrc::verify_v4(&view, known, frame.ib);
            assert_eq!(verified.is_some(), good && frame.ib.len() >= 16);
            let unknown = |guess| Id::Unknown {
                guess,
                max: u16::MAX,
            };
            if verified.is_some() && (ip.flags_frag == DF || ip.flags_frag == 0) {
                for guess in [0, ip.id] {
                    let found = icrc::verify_v4(&view, unknown(guess), frame.ib);
                    assert_eq!(found, verified, "the identification is found again");
                }
            } else {
                let _ = icrc::verify_v4(&view, unknown(0), frame.ib);
            }
        }
        Net::V6(ip, udp) => {
            let verified = icrc::verify_v6(&ip.icrc_view(udp), frame.ib);
            assert_eq!(verified, good && frame.ib.len() >= 16);
        }
        Net::Grh(_) => {}
    }
    // Sealing makes it good.
    let mut ib = frame.ib.to_vec();
    if ib.len() >= 16 {
        frame.outer.seal(&mut ib);
        let sealed = Frame { ib: &ib, ..*frame };
        assert!(sealed.icrc_ok());
    }
}

fn check_packet(bytes: &[u8]) {
    let packet = match Packet::parse(bytes) {
        Ok(packet) => packet,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return;
        }
    };
    let header = packet.header();
    let (at, n) = (header.len(), packet.payload.len());
    assert_eq!(at, usize::from(packet.info.header_len));
    assert_eq!(header.frame_len(n), bytes.len(), "lengths add up");
    assert_eq!(packet.payload, &bytes[at..at + n]);
    let mut again = vec![0xa5; bytes.len()];
    assert_eq!(header.emit(n, &mut again), at);
    again[at..at + n].copy_from_slice(packet.payload);
    assert_eq!(
        Packet::parse(&again),
        Ok(packet),
        "what we emit reads the same"
    );
    assert_eq!(header.emit(n, &mut again[..bytes.len() - 1]), 0, "no room");
    if let Some(aeth) = packet.ext.aeth {
        assert_eq!(Syndrome::decode(aeth.syndrome.encode()), aeth.syndrome);
        assert!(aeth.msn < 1 << 24);
    }
    let Bth { pad, .. } = packet.bth;
    assert!(pad < 4 && (n + usize::from(pad)).is_multiple_of(4));
}
