//! Packets in flight of which none asks for an ACK: whatever shuts behind them, their queue pair
//! goes on, without the help of a timer.

use rocebud_engine::{Node, NodeConfig};
use rocebud_objects::{AttrMask, QpAttr, QpState, SendOp, WcStatus};

use crate::pair::{Fate, Frame, LATENCY_NS, Pair, QPN, START, Setup, Side, gids, remote, sge, wr};
use crate::sharing::{many, post, qpn};

const FAR: u64 = START + 0x10_0000;
const PACKET: u32 = 1024;
/// Packets of the message: it asks for ACKs in its midst, too.
const PACKETS: u32 = 40;

/// What holds up the packet behind those that have left.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Shut {
    /// The peer's buffer turns out to be small.
    PeerWindow(u32),
    /// The program's packets in flight are bounded.
    WindowPackets(u32),
    /// A neighbour takes what is left of the window, and never gives it back.
    Neighbour,
}

const EVERY: [Shut; 6] = [
    Shut::PeerWindow(0),
    Shut::PeerWindow(PACKET),
    Shut::PeerWindow(6 * (PACKET + 512)),
    Shut::WindowPackets(0),
    Shut::WindowPackets(5),
    Shut::Neighbour,
];

/// Two queue pairs of side 0 towards one process; the second one's packets are all lost. `sent`
/// packets of the first one's message have left.
fn begun(sent: u32, timeout: u8) -> Pair {
    let cfg = NodeConfig {
        quantum_packets: sent,
        ..NodeConfig::default()
    };
    let mut pair = many(
        2,
        Setup {
            timeout,
            cfg,
            ..Setup::default()
        },
    );
    pair.rule(|frame| match frame.packet().bth.dest_qp {
        to if to == qpn(1, 1) => Fate::Drop,
        _ => Fate::Deliver,
    });
    let op = SendOp::Write {
        remote: remote(FAR),
    };
    post(&mut pair, 0, wr(0, op, &[sge(START, PACKETS * PACKET)]));
    post(&mut pair, 1, wr(1, op, &[sge(START, 4 << 20)]));
    assert_eq!(pair.transmit_some(0, sent as usize), sent as usize);
    pair
}

fn shut(pair: &mut Pair, how: Shut) {
    let side = &mut pair.side[0];
    let node: &mut Node = &mut side.node;
    // The turn is the neighbour's now: it takes all that it may have.
    node.config_mut().quantum_packets = 1000;
    match how {
        Shut::PeerWindow(bytes) => node.set_peer_window(gids()[1], QPN[1].slot(), bytes),
        Shut::WindowPackets(packets) => node.config_mut().window_packets = packets,
        Shut::Neighbour => {}
    }
}

/// The first queue pair's message is done.
fn is_done(pair: &mut Pair) -> bool {
    pair.results(0).contains(&(0, WcStatus::Success))
}

/// Packets of it were sent twice.
fn is_resent(pair: &Pair) -> bool {
    let ours = |f: &&Frame| f.from == 0 && f.packet().bth.dest_qp == qpn(1, 0);
    pair.log.iter().filter(ours).any(|f| f.retransmit)
}

/// Without a timeout nothing but an answer moves the queue pair; with one each vain wait costs a
/// retry, and eight of them the connection.
#[test]
fn whatever_shuts_behind_packets_that_asked_for_no_ack_does_not_stop_their_queue_pair() {
    let mut stopped = Vec::new();
    for (how, timeout) in EVERY.into_iter().flat_map(|how| [(how, 0), (how, 14)]) {
        for sent in 1..PACKETS {
            let mut pair = begun(sent, timeout);
            shut(&mut pair, how);
            pair.run();
            if !is_done(&mut pair) || is_resent(&pair) {
                stopped.push((how, timeout, sent));
            }
        }
    }
    assert_eq!(stopped, []);
}

/// However long it takes: the packet that would ask for an ACK is held back here, none is lost.
#[test]
fn a_peer_without_room_costs_no_retries() {
    for sent in 1..PACKETS {
        let mut pair = begun(sent, 14);
        pair.side[0].world.room = Some(0);
        pair.run();
        assert!(is_done(&mut pair), "behind {sent} packets");
        assert!(!is_resent(&pair), "behind {sent} packets");
    }
}

/// Room comes by itself, and timers are not needed for it.
#[test]
fn a_queue_pair_without_a_timeout_goes_on_when_there_is_room() {
    for sent in 1..PACKETS {
        let mut pair = begun(sent, 0);
        pair.side[0].world.room = Some(0);
        pair.run();
        assert!(!is_done(&mut pair), "there was no room");
        pair.side[0].world.room = None;
        pair.side[0].node.retry_held();
        pair.run();
        assert!(is_done(&mut pair), "behind {sent} packets");
    }
}

/// The timer counts from the first packet that asks: an ACK of one that left just before it runs out
/// is not late.
#[test]
fn the_wait_for_an_answer_begins_when_it_is_asked_for() {
    for sent in 1..16 {
        let mut pair = begun(sent, 14);
        pair.side[0].world.room = Some(0);
        pair.transmit(0);
        pair.now = pair.now + ((4096 << 14) - LATENCY_NS);
        pair.side[0].world.room = None;
        pair.side[0].node.retry_held();
        pair.run();
        assert!(is_done(&mut pair), "behind {sent} packets");
        assert!(!is_resent(&pair), "behind {sent} packets");
    }
}

/// The process had no turn for longer than a timeout.
#[test]
fn a_packet_that_comes_late_behind_those_costs_no_retry() {
    for sent in 1..16 {
        let mut pair = begun(sent, 14);
        for _ in 0..3 {
            pair.now = pair.now + (4096 << 14);
            let Side { node, world, .. } = &mut pair.side[0];
            node.on_timeout(pair.now, world);
        }
        pair.run();
        assert!(is_done(&mut pair), "behind {sent} packets");
        assert!(!is_resent(&pair), "behind {sent} packets");
    }
}

/// What a program may change of a queue pair that drains reaches requests that were begun.
#[test]
fn a_bound_of_reads_that_comes_down_under_way_does_not_stop_what_was_begun() {
    for timeout in [0, 14] {
        let mut pair = Pair::new(Setup {
            timeout,
            rd_atomic: 1,
            ..Setup::default()
        });
        let read = SendOp::Read {
            remote: remote(FAR),
        };
        pair.post(0, wr(0, read, &[sge(START, 100 * PACKET)]))
            .unwrap();
        pair.transmit(0);
        pair.set_state(0, QpState::Sqd).unwrap();
        pair.modify(0, &QpAttr::default(), AttrMask::MAX_QP_RD_ATOMIC)
            .unwrap();
        pair.run();
        assert_eq!(pair.results(0), [(0, WcStatus::Success)]);
    }
}

#[test]
fn a_timeout_that_is_given_under_way_watches_over_what_was_lost_before() {
    let mut pair = Pair::new(Setup {
        timeout: 0,
        ..Setup::default()
    });
    pair.rule(|_| Fate::Drop);
    pair.post(0, wr(0, SendOp::Send, &[])).unwrap();
    pair.recv(1, 9, &[]).unwrap();
    pair.transmit(0);
    pair.rule(|_| Fate::Deliver);
    pair.set_state(0, QpState::Sqd).unwrap();
    let timeout = 14;
    let attr = QpAttr {
        timeout,
        ..QpAttr::default()
    };
    pair.modify(0, &attr, AttrMask::TIMEOUT).unwrap();
    pair.run();
    assert_eq!(pair.results(0), [(0, WcStatus::Success)]);
}
