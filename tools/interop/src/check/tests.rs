//! A conversation made by hand, right first, then wrong in one way after the other: each must be seen.

use std::time::Duration;

use rocebud_wire::frame::{Ethernet, Frame, Ipv4, Net, Outer, Udp};
use rocebud_wire::{Aeth, Bth, Ext, Header, Opcode, Psn, Qpn, RKey, Reth, Syndrome};

use super::{Findings, Qp, judge};
use crate::matrix::{Cell, Connect, Family, Type, Who};
use crate::wire::{End, Seen};

const ASKS: Qp = Qp {
    qpn: 0x11,
    psn: Some(0xff_fffe),
};
const ANSWERS: Qp = Qp {
    qpn: 0x22,
    psn: Some(5),
};

fn cell() -> Cell {
    Cell {
        group: String::new(),
        short: true,
        kind: Type::Rc,
        op: "write".into(),
        size: 513,
        mtu: 256,
        family: Family::V4,
        requester: Who::Ours,
        connect: Connect::Hand,
        fault: None,
        count: 1,
        srq: false,
        late: false,
    }
}

/// A frame with a right ICRC.
fn frame(from: End, header: Header, payload: &[u8], sport: u16) -> Seen {
    let mut ib = vec![0; header.frame_len(payload.len())];
    let at = header.emit(payload.len(), &mut ib);
    ib[at..at + payload.len()].copy_from_slice(payload);
    let ip = Ipv4 {
        tos: 2,
        id: 9,
        flags_frag: 0x4000,
        ttl: 64,
        src: [10, 0, 0, 1],
        dst: [10, 0, 0, 2],
    };
    let outer = Outer {
        ethernet: Some(Ethernet::default()),
        net: Net::V4(ip, Udp { sport, checksum: 0 }),
    };
    outer.seal(&mut ib);
    let mut bytes = vec![0; 2048];
    let whole = Frame {
        outer,
        ib: &ib,
        trailer: &[],
    };
    let length = whole.emit(&mut bytes).expect("fits");
    bytes.truncate(length);
    Seen {
        at: Duration::ZERO,
        from,
        bytes,
        fault: None,
    }
}

fn ask(opcode: Opcode, psn: u32, bytes: usize, ack: bool) -> Seen {
    let mut header = Header::new(Bth::new(opcode, Qpn::new(ANSWERS.qpn), Psn::new(psn)));
    header.bth.ack_req = ack;
    if opcode == Opcode::RC_WRITE_FIRST {
        header.ext = Ext {
            reth: Some(Reth {
                va: 0,
                rkey: RKey(1),
                dma_len: 513,
            }),
            ..Ext::NONE
        };
    }
    frame(End::Ours, header, &vec![7; bytes], 0xc001)
}

fn ack(psn: u32, syndrome: u8) -> Seen {
    let mut header = Header::new(Bth::new(
        Opcode::RC_ACKNOWLEDGE,
        Qpn::new(ASKS.qpn),
        Psn::new(psn),
    ));
    let aeth = Aeth {
        syndrome: Syndrome::decode(syndrome),
        msn: 1,
    };
    header.ext = Ext {
        aeth: Some(aeth),
        ..Ext::NONE
    };
    frame(End::Theirs, header, &[], 0xc002)
}

/// First, Middle, Last, ACK; the PSN wraps.
fn right() -> Vec<Seen> {
    vec![
        ask(Opcode::RC_WRITE_FIRST, 0xff_fffe, 256, false),
        ask(Opcode::RC_WRITE_MIDDLE, 0xff_ffff, 256, false),
        ask(Opcode::RC_WRITE_LAST, 0, 1, true),
        ack(0, 0x1f),
    ]
}

fn found(frames: &[Seen]) -> Findings {
    judge(&cell(), ASKS, ANSWERS, frames)
}

fn says(frames: &[Seen], text: &str) {
    let wrong = found(frames).wrong;
    assert!(wrong.iter().any(|w| w.contains(text)), "{text}: {wrong:?}");
}

#[test]
fn a_right_conversation_is_right() {
    let found = found(&right());
    assert_eq!(found.wrong, Vec::<String>::new());
    assert_eq!((found.packets, found.resent, found.naks), (4, 0, 0));
}

#[test]
fn every_wrong_packet_is_seen() {
    let mut frames = right();
    let last = frames[2].bytes.len() - 1;
    frames[2].bytes[last] ^= 1;
    says(&frames, "wrong ICRC");
    let mut frames = right();
    frames[1] = ask(Opcode::RC_WRITE_MIDDLE, 1, 256, false);
    says(&frames, "a gap");
    let mut frames = right();
    frames[1] = ask(Opcode::RC_SEND_MIDDLE, 0xff_ffff, 256, false);
    says(&frames, "out of order");
    let mut frames = right();
    frames[2] = ask(Opcode::RC_WRITE_LAST, 0, 2, true);
    says(&frames, "514 bytes");
    let mut frames = right();
    frames[2] = ask(Opcode::RC_WRITE_LAST, 0, 1, false);
    says(&frames, "without AckReq");
}

#[test]
fn what_is_sent_again_or_refused_needs_a_reason() {
    let mut frames = right();
    frames.insert(3, ask(Opcode::RC_WRITE_LAST, 0, 1, true));
    says(&frames, "sent again");
    let mut frames = right();
    frames.insert(3, ack(0, 0x60));
    says(&frames, "NAKs");
    let lossy = Cell {
        late: true,
        ..cell()
    };
    assert_eq!(
        judge(&lossy, ASKS, ANSWERS, &frames).wrong,
        Vec::<String>::new()
    );
}

#[test]
fn a_conversation_that_does_not_end_is_not_right() {
    says(&right()[..3], "acknowledged");
    says(&right()[..2], "0 whole messages");
    let mut frames = right();
    frames[3] = ack(3, 0x1f);
    says(&frames, "not asked for");
}

#[test]
fn pads_and_ports_are_looked_at() {
    let mut frames = right();
    frames[1] = frame(
        End::Ours,
        Header::new(Bth::new(
            Opcode::RC_WRITE_MIDDLE,
            Qpn::new(ANSWERS.qpn),
            Psn::new(0xff_ffff),
        )),
        &[7; 256],
        0xc0ff,
    );
    says(&frames, "source port");
    let mut frames = right();
    let at = frames[2].bytes.len() - 5;
    frames[2].bytes[at] = 1;
    says(&frames, "pad bytes");
}
