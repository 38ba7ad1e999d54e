//! Frames of other implementations: parsed, verified, and emitted again byte for byte.

mod common;

use std::collections::{BTreeMap, BTreeSet};

use rocebud_wire::frame::{Frame, Net, Outer, ethertype};
use rocebud_wire::icrc::{self, Id};
use rocebud_wire::{Opcode, Packet, Psn, Syndrome};

/// How often each opcode occurs in the captures.
const KERNEL_OPCODES: &str = "RC_SEND_FIRST 66, RC_SEND_MIDDLE 155, RC_SEND_LAST 64, \
    RC_SEND_LAST_IMM 2, RC_SEND_ONLY 46, RC_SEND_ONLY_IMM 6, RC_WRITE_FIRST 9, \
    RC_WRITE_MIDDLE 44, RC_WRITE_LAST 6, RC_WRITE_LAST_IMM 3, RC_WRITE_ONLY 23, \
    RC_WRITE_ONLY_IMM 9, RC_READ_REQUEST 23, RC_READ_RESPONSE_FIRST 8, \
    RC_READ_RESPONSE_MIDDLE 43, RC_READ_RESPONSE_LAST 8, RC_READ_RESPONSE_ONLY 15, \
    RC_ACKNOWLEDGE 162, RC_ATOMIC_ACKNOWLEDGE 3, RC_CMP_SWAP 2, RC_FETCH_ADD 1, \
    UC_SEND_FIRST 10, UC_SEND_MIDDLE 20, UC_SEND_LAST 10, UD_SEND_ONLY 34, UD_SEND_ONLY_IMM 11";

/// Which opcodes the kernel sends to rocebud in the captures.
const KERNEL_OPCODES_TO_US: &str = "RC_SEND_FIRST, RC_SEND_MIDDLE, RC_SEND_LAST, \
    RC_SEND_LAST_IMM, RC_SEND_ONLY, RC_WRITE_FIRST, RC_WRITE_MIDDLE, RC_WRITE_LAST, \
    RC_WRITE_LAST_IMM, RC_WRITE_ONLY, RC_READ_REQUEST, RC_READ_RESPONSE_FIRST, \
    RC_READ_RESPONSE_MIDDLE, RC_READ_RESPONSE_LAST, RC_READ_RESPONSE_ONLY, RC_ACKNOWLEDGE, \
    RC_ATOMIC_ACKNOWLEDGE, RC_CMP_SWAP, RC_FETCH_ADD, UC_SEND_FIRST, UC_SEND_MIDDLE, \
    UC_SEND_LAST_IMM, UC_WRITE_FIRST, UC_WRITE_MIDDLE, UC_WRITE_LAST, UD_SEND_ONLY, \
    UD_SEND_ONLY_IMM";

/// Takes a frame apart, checks all of it, and puts it together again from typed headers alone.
fn round_trip(what: &str, bytes: &[u8], ethernet: bool) -> Opcode {
    let frame = if ethernet {
        Frame::parse(bytes)
    } else {
        Frame::parse_ip(bytes)
    }
    .unwrap_or_else(|e| panic!("{what}: {e}"));
    assert!(frame.icrc_ok(), "{what}: ICRC");

    let packet = Packet::parse(frame.ib).unwrap_or_else(|e| panic!("{what}: {e}"));
    let mut ib = vec![0xa5; frame.ib.len()];
    let header = packet.header();
    let at = header.emit(packet.payload.len(), &mut ib);
    assert_eq!(at, header.len(), "{what}");
    assert_eq!(
        header.frame_len(packet.payload.len()),
        ib.len(),
        "{what}: length"
    );
    ib[at..at + packet.payload.len()].copy_from_slice(packet.payload);
    frame.outer.seal(&mut ib);
    assert_eq!(ib, frame.ib, "{what}: BTH to ICRC");

    let mut again = vec![0xa5; bytes.len()];
    let len = Frame { ib: &ib, ..frame }.emit(&mut again);
    assert_eq!(len, Some(bytes.len()), "{what}");
    assert_eq!(again, bytes, "{what}: frame");
    id_is_found(what, &frame.outer, frame.ib);
    packet.bth.opcode
}

/// What a UDP socket hides is found again, from any guess.
fn id_is_found(what: &str, outer: &Outer, ib: &[u8]) {
    let Net::V4(ip, udp) = &outer.net else {
        return;
    };
    let view = ip.icrc_view(udp);
    for guess in [0, 1, ip.id, ip.id.wrapping_add(1), 0xffff] {
        let id = Id::Unknown {
            guess,
            max: u16::MAX,
        };
        let found = icrc::verify_v4(&view, id, ib).unwrap_or_else(|| panic!("{what}: no id"));
        assert_eq!(
            (found.id, found.flags_frag),
            (ip.id, ip.flags_frag),
            "{what}"
        );
    }
    let known = Id::Known {
        id: ip.id,
        flags_frag: ip.flags_frag,
    };
    assert!(icrc::verify_v4(&view, known, ib).is_some(), "{what}");
    let bounded = |max| Id::Unknown { guess: 0, max };
    assert!(icrc::verify_v4(&view, bounded(ip.id), ib).is_some());
    if let Some(below) = ip.id.checked_sub(1) {
        assert!(
            icrc::verify_v4(&view, bounded(below), ib).is_none(),
            "{what}"
        );
    }
}

#[test]
fn published_packets_come_out_as_they_went_in() {
    let mut good = 0;
    for p in common::published().iter().filter(|p| !p.bad()) {
        round_trip(&p.name, &p.bytes, p.ethernet);
        good += 1;
    }
    assert_eq!(good, 24);
}

#[test]
fn published_packets_with_a_wrong_icrc_are_refused() {
    let mut bad = 0;
    for p in common::published().iter().filter(|p| p.bad()) {
        let ip = if p.ethernet { 14 } else { 0 };
        let frame = if p.ethernet {
            Frame::parse(&p.bytes)
        } else {
            Frame::parse_ip(&p.bytes)
        };
        assert!(!frame.is_ok_and(|f| f.icrc_ok()), "{}", p.name);
        // One is sent to another port; its ICRC is looked at all the same.
        let dport = u16::from_be_bytes([p.bytes[ip + 22], p.bytes[ip + 23]]);
        let view = icrc::V4 {
            src: p.bytes[ip + 12..ip + 16].try_into().unwrap(),
            dst: p.bytes[ip + 16..ip + 20].try_into().unwrap(),
            id: 0,
            flags_frag: 0,
            sport: u16::from_be_bytes([p.bytes[ip + 20], p.bytes[ip + 21]]),
            dport,
        };
        let any = Id::Unknown {
            guess: 0,
            max: u16::MAX,
        };
        assert_eq!(
            icrc::verify_v4(&view, any, &p.bytes[ip + 28..]),
            None,
            "{}",
            p.name
        );
        bad += 1;
    }
    assert_eq!(bad, 4);
}

#[test]
fn frames_of_the_kernel_come_out_as_they_went_in() {
    let mut opcodes = BTreeMap::new();
    let mut frames = 0;
    for capture in common::captures() {
        assert!(!capture.frames.is_empty(), "{}", capture.name);
        for (n, bytes) in capture.frames.iter().enumerate() {
            let opcode = round_trip(&format!("{} frame {}", capture.name, n + 1), bytes, true);
            *opcodes.entry(opcode).or_insert(0) += 1;
            frames += 1;
        }
    }
    assert_eq!(frames, 783);
    let counts: Vec<String> = opcodes.iter().map(|(o, n)| format!("{o} {n}")).collect();
    assert_eq!(counts.join(", "), KERNEL_OPCODES);
}

#[test]
fn frames_between_the_kernel_and_rocebud_come_out_as_they_went_in() {
    let mut opcodes = BTreeSet::new();
    let mut frames = 0;
    let mut names = Vec::new();
    for capture in common::interop_captures() {
        assert!(!capture.frames.is_empty(), "{}", capture.name);
        for (n, bytes) in capture.frames.iter().enumerate() {
            let what = format!("{} frame {}", capture.name, n + 1);
            let opcode = round_trip(&what, bytes, true);
            // 10.98.0.2 or fd98:0:0:1::2 is the kernel's.
            if Frame::parse(bytes).expect("as before").outer.net.sgid().0[15] == 2 {
                opcodes.insert(opcode);
            }
            frames += 1;
        }
        names.push(capture.name);
    }
    names.sort();
    assert_eq!(names, common::interop_list(), "captures.tsv names each");
    assert!(frames > 700, "{frames}");
    let opcodes: Vec<String> = opcodes.iter().map(ToString::to_string).collect();
    assert_eq!(opcodes.join(", "), KERNEL_OPCODES_TO_US);
}

#[test]
fn every_bit_of_a_kernel_frame_is_under_the_icrc_or_known_not_to_be() {
    let bytes = &common::capture("ops-imm")[0];
    // TOS, TTL, UDP checksum, byte 4 of the BTH. The IPv4 checksum has its own check.
    let free = [15, 22, 40, 41, 46];
    for at in (14..bytes.len()).filter(|at| ![24, 25].contains(at)) {
        for bit in 0..8 {
            let mut changed = bytes.clone();
            changed[at] ^= 1 << bit;
            fix_ipv4_checksum(&mut changed);
            let accepted = Frame::parse(&changed).is_ok_and(|f| f.icrc_ok());
            assert_eq!(accepted, free.contains(&at), "byte {at} bit {bit}");
        }
    }
}

fn fix_ipv4_checksum(frame: &mut [u8]) {
    frame[24..26].fill(0);
    let mut sum: u32 = frame[14..34]
        .chunks(2)
        .map(|w| u32::from(u16::from_be_bytes([w[0], w[1]])))
        .sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    frame[24..26].copy_from_slice(&(!(sum as u16)).to_be_bytes());
}

#[test]
fn psns_of_a_kernel_requester_wrap_without_a_gap() {
    let mut requests: Vec<Psn> = common::capture("ops-send")
        .iter()
        .filter_map(|bytes| {
            let frame = Frame::parse(bytes).ok()?;
            let packet = Packet::parse(frame.ib).ok()?;
            let from_client = frame.outer.net.sgid().v4() == Some([10, 98, 0, 12]);
            (from_client && packet.info.operation.is_request()).then_some(packet.bth.psn)
        })
        .collect();
    requests.dedup();
    assert_eq!(requests[0], Psn::new(0xff_fffc));
    for pair in requests.windows(2) {
        assert_eq!(pair[1].diff(pair[0]), 1, "{pair:?}");
    }
    assert!(requests.iter().any(|p| p.value() < 16), "wrapped");
}

#[test]
fn an_rnr_nak_of_the_kernel_reads_as_one() {
    let syndromes: Vec<Syndrome> = common::capture("ops-rnr")
        .iter()
        .filter_map(|bytes| {
            let frame = Frame::parse(bytes).ok()?;
            Some(Packet::parse(frame.ib).ok()?.ext.aeth?.syndrome)
        })
        .collect();
    assert!(syndromes.contains(&Syndrome::RnrNak { timer: 14 }));
    assert!(syndromes.contains(&Syndrome::ACK));
}

#[test]
fn the_cnp_of_a_nic_is_what_we_send() {
    let cnp = common::published()
        .into_iter()
        .find(|p| p.name == "cx4lx-cnp")
        .expect("in packets.txt");
    let frame = Frame::parse(&cnp.bytes).unwrap();
    let mut ours = rocebud_wire::cnp(Packet::parse(frame.ib).unwrap().bth.dest_qp);
    frame.outer.seal(&mut ours);
    assert_eq!(ours, frame.ib);
}

#[test]
fn an_ethernet_type_that_lies_is_refused() {
    let mut bytes = common::capture("ops-imm")[0].clone();
    bytes[12..14].copy_from_slice(&ethertype::IPV6.to_be_bytes());
    assert!(Frame::parse(&bytes).is_err());
    bytes[12..14].copy_from_slice(&0x0806_u16.to_be_bytes());
    assert!(Frame::parse(&bytes).is_err());
}
