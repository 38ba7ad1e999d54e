//! The way in: lengths and opcode, then the ICRC, then the engine. Unverified bytes never reach
//! application memory.

use rocebud_ctl::forward::{Header, Outbox};
use rocebud_ctl::page::QpCount;
use rocebud_engine::{Node, RxMeta};
use rocebud_nic::RxFrame;
use rocebud_objects::Counter;
use rocebud_wire::icrc::{self, RecoveredId, Sums};
use rocebud_wire::{Gid, Packet, ParseError, Qpn};

use crate::env::World;
use crate::hooks::{Direction, Hooks, Verdict};
use crate::hosts::{Fit, Hosts};
use crate::qpn::QpnPool;

/// What receiving needs besides the world.
pub(crate) struct Rx<'a> {
    pub(crate) node: &'a mut Node,
    pub(crate) hooks: &'a mut Hooks,
    pub(crate) qpns: &'a QpnPool,
    pub(crate) hosts: &'a mut Hosts,
    pub(crate) sums: &'a mut Sums,
    /// To the daemon, for frames of other processes; not there for frames that it gave us.
    pub(crate) outbox: Option<&'a mut Outbox>,
}

impl Rx<'_> {
    /// One UDP payload.
    pub(crate) fn frame(&mut self, frame: &RxFrame<'_>, world: &mut World<'_>) {
        if frame.seg_index == 0 {
            world.add(Counter::RcvdBatches, 1);
        }
        let packet = match Packet::parse(frame.data) {
            Ok(packet) => packet,
            Err(ParseError::UnknownOpcode(_)) => return world.add(Counter::DropUnknownOpcode, 1),
            Err(_) => return world.add(Counter::DropMalformed, 1),
        };
        let qpn = packet.bth.dest_qp;
        if qpn != Qpn::MULTICAST && !self.qpns.owns(qpn) {
            return self.pass_on(frame, qpn.slot(), world);
        }
        world
            .flow
            .received(qpn, frame.data.len(), frame.seg_index != 0);
        let ends = (frame.src.ip(), frame.dst);
        let sealed = self
            .sums
            .verify_udp(ends, frame.src.port(), frame.seg_index, frame.data);
        let Some(found) = sealed else {
            self.hosts.spoiled(frame.src.ip(), world.now.0);
            return world.add(Counter::DropIcrc, 1);
        };
        let RecoveredId { id, flags_frag } = found;
        let expected = id == frame.seg_index && flags_frag == icrc::DF;
        if !expected && frame.dst.is_ipv4() && !self.may_be(frame, &found, world) {
            return world.add(Counter::DropIcrc, 1);
        }
        if self.hooks.packet(Direction::Rx, frame.data) == Verdict::Drop {
            return world.add(Counter::DropFault, 1);
        }
        world.add_to_qp(qpn, QpCount::RcvdPkts);
        let meta = RxMeta {
            src: Gid::from_ip(frame.src.ip()),
            dst: Gid::from_ip(frame.dst),
            traffic_class: frame.traffic_class,
            hop_limit: frame.hop_limit,
            ipv4_id: id,
            ipv4_flags: flags_frag,
            ifindex: frame.ifindex,
            sport: frame.src.port(),
        };
        let now = world.now;
        self.node.on_frame(now, &meta, &packet, world);
    }

    /// A packet has another identification than expected, as those of the standard do. May it?
    fn may_be(&mut self, frame: &RxFrame<'_>, found: &RecoveredId, world: &World<'_>) -> bool {
        let fit = self.hosts.fits(frame, found, world.now.0);
        if fit != Fit::Good {
            world.add(Counter::IdBeyondBound, 1);
        }
        fit != Fit::Spoiled
    }

    /// Steering looks at the first segment of a merged batch only; others may be somebody else's.
    fn pass_on(&mut self, frame: &RxFrame<'_>, slot: u16, world: &World<'_>) {
        let header = Header {
            src: frame.src,
            dst: frame.dst,
            ifindex: frame.ifindex,
            traffic_class: frame.traffic_class,
            hop_limit: frame.hop_limit,
            batch_len: frame.batch_len,
        };
        match &mut self.outbox {
            // What the daemon gave us and is not ours is nobody's.
            None => world.add(Counter::DropNoQp, 1),
            Some(outbox) => {
                if !outbox.add(slot, &header, frame.seg_index, frame.data) {
                    world.add(Counter::DropForward, 1);
                }
            }
        }
    }
}
