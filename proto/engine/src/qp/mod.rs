//! A queue pair: its state, its two queues, and who handles what.
//!
//! * [`state`]: legal moves; `modify`: making them.
//! * `post`: checks at `post_send` and `post_recv`.
//! * `sq`: the send queue; `requester`: packets out of it; `completer`: answers to them;
//!   `retransmit`: going back; `local`: what needs no packet; `uc`, `ud`: the unreliable services.
//! * `pace`: the rate limit of requests; `notify`: congestion that the peer is told of.
//! * `responder`: order of the peer's requests; `execute`: carrying them out; `replay`:
//!   duplicates; `answers`: what goes back; `receive`: receive requests in use; `parked`:
//!   unreliable messages that wait for one.
//! * `flush`: errors and the end of a queue pair; `waits`: what keeps it going.

mod answers;
mod completer;
mod execute;
mod flush;
mod local;
mod modify;
mod notify;
mod pace;
mod parked;
mod post;
mod receive;
mod replay;
mod requester;
mod responder;
mod retransmit;
mod sge;
mod sq;
pub mod state;
mod uc;
mod ud;
mod waits;
mod xrc;

use alloc::collections::VecDeque;

use rocebud_objects::{
    Counter, CqId, Misuse, Note, NoteKind, Path, QpAttr, QpInit, QpState, QpType, RateLimit, RecvWr,
};
use rocebud_wire::{Class, Mtu, Opcode, Operation, Packet, Psn, Qpn};

use crate::cx::Cx;
use crate::env::{Env, Scope};
use crate::node::{RxMeta, Transmit};
use crate::peers::PeerId;
use crate::ready::Index;

use notify::Notify;
pub use pace::Pace;
use parked::Parked;
use receive::Held;
use responder::Responder;
use sq::SendQueue;
use xrc::Served;

/// Which half of the queue pair has the turn to send.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Half {
    #[default]
    Answers,
    Requests,
}

#[derive(Debug)]
pub(crate) struct Qp {
    index: Index,
    pub(crate) qpn: Qpn,
    pub(crate) init: QpInit,
    pub(crate) state: QpState,
    pub(crate) port_mtu: Mtu,
    /// As last set; PSNs and states in it are not kept up to date.
    attr: QpAttr,
    path: Path,
    sport: u16,
    /// Payload bytes of a full packet.
    pmtu: usize,
    peer: Option<PeerId>,
    /// Multicast groups that it is attached to.
    pub(crate) groups: u32,
    sq: SendQueue,
    rq: VecDeque<RecvWr>,
    /// The receive that a SEND is being written into.
    held: Option<Held>,
    /// The shared receive queue that the request in hand names (XRC).
    served: Option<Served>,
    /// Packets of an unreliable service that wait for a receive.
    parked: VecDeque<Parked>,
    resp: Responder,
    /// SQD was asked for and its event has not been raised.
    draining: bool,
    half: Half,
    /// Packets of this half's turn.
    burst: u32,
    pace: Pace,
    notify: Notify,
}

impl Qp {
    pub(crate) fn new(index: Index, qpn: Qpn, init: QpInit) -> Self {
        // Rings start small and grow once; a queue of 16k entries that is never filled is common.
        let ring = init.cap.max_recv_wr.min(256) as usize;
        let mut qp = Self {
            index,
            qpn,
            init,
            state: QpState::Reset,
            port_mtu: Mtu::M4096,
            attr: QpAttr::default(),
            path: Path::default(),
            sport: 0,
            pmtu: Mtu::M256.bytes() as usize,
            peer: None,
            groups: 0,
            sq: SendQueue::default(),
            rq: VecDeque::with_capacity(if init.srq.is_some() { 0 } else { ring }),
            held: None,
            served: None,
            parked: VecDeque::new(),
            resp: Responder::default(),
            draining: false,
            half: Half::default(),
            burst: 0,
            pace: Pace::default(),
            notify: Notify::default(),
        };
        qp.sq.ring.reserve(init.cap.max_send_wr.min(256) as usize);
        qp
    }

    pub(crate) fn uses_cq(&self, cq: CqId) -> bool {
        self.init.send_cq == cq || self.init.recv_cq == cq
    }

    /// Nothing to send, nothing outstanding, no timer.
    pub(crate) fn is_idle(&self) -> bool {
        let waiting = self.sq.fails_later() || self.state == QpState::Sqd && self.sq.drained();
        self.resp.answers.is_empty()
            && !self.notify.due
            && self.parked.is_empty()
            && !self.sq.outstanding()
            && (!self.sq.has_work() || waiting)
            && self.sq.timer == sq::Timer::Off
    }

    const fn scope(&self) -> Scope {
        Scope {
            pd: match self.served {
                Some(served) => served.pd,
                None => self.init.pd,
            },
            qpn: self.qpn,
        }
    }

    fn note<E: Env>(&self, cx: &mut Cx<'_, E>, kind: NoteKind, psn: Psn, arg: u32) {
        cx.env.note(self.qpn, Note { kind, psn, arg });
    }

    /// A packet for this queue pair: filters that cost the sender nothing but a counter here,
    /// then the half that it belongs to.
    pub(crate) fn on_frame<E: Env>(&mut self, rx: &RxMeta, pkt: &Packet<'_>, cx: &mut Cx<'_, E>) {
        if let Err(drop) = self.admit(rx, pkt) {
            return cx.count(drop);
        }
        cx.count(Counter::RcvdPkts);
        cx.env.count(Counter::RcvdBytes, pkt.payload.len() as u64);
        self.look_at_mark(rx, pkt, cx);
        if is_cnp(pkt) {
            return cx.count(Counter::RpCnpHandled);
        }
        match self.init.qp_type {
            QpType::Uc | QpType::Ud => self.on_unreliable(rx, pkt, cx),
            _ if pkt.info.operation.is_response() => self.on_response(pkt, cx),
            _ => self.on_request(pkt, cx),
        }
    }

    /// Check only: which counter a packet that is not for us goes to.
    fn admit(&self, rx: &RxMeta, pkt: &Packet<'_>) -> Result<(), Counter> {
        let class = match self.init.qp_type {
            QpType::Rc => Class::Rc,
            QpType::Uc => Class::Uc,
            QpType::Ud => Class::Ud,
            QpType::XrcSend | QpType::XrcRecv => Class::Xrc,
            // None was made here.
            QpType::RawPacket => return Err(Counter::DropWrongClass),
        };
        if pkt.info.class != class && !is_cnp(pkt) {
            return Err(Counter::DropWrongClass);
        }
        let duties = state::duties(self.state);
        let taken = match (pkt.info.operation.is_response(), self.init.qp_type) {
            (true, QpType::XrcRecv) | (false, QpType::XrcSend) => is_cnp(pkt),
            (true, _) => duties.accept_responses,
            (false, _) => duties.respond,
        };
        if !taken {
            return Err(Counter::DropBadState);
        }
        if class != Class::Ud && !self.is_peer(rx) {
            return Err(Counter::DropWrongPeer);
        }
        if !self.attr.pkey().matches(pkt.bth.pkey) {
            return Err(Counter::DropBadPkey);
        }
        Ok(())
    }

    /// From the connection's peer, to the connection's address, and, for link-local addresses,
    /// by the connection's interface.
    fn is_peer(&self, rx: &RxMeta) -> bool {
        let known = rx.ifindex != 0 && self.path.ifindex != 0;
        rx.src == self.path.dgid
            && rx.dst == self.path.sgid
            && (!known || !rx.src.is_link_local() || rx.ifindex == self.path.ifindex)
    }

    /// The next packet, if any: answers and requests in turns.
    pub(crate) fn poll_transmit<E: Env>(
        &mut self,
        buf: &mut [u8],
        cx: &mut Cx<'_, E>,
    ) -> Option<Transmit> {
        if !self.parked.is_empty() {
            self.unpark(cx);
        }
        if self.notify.due
            && let Some(cnp) = self.next_cnp(buf, cx)
        {
            return Some(cnp);
        }
        if self.burst >= cx.core.cfg.quantum_packets.max(1) {
            self.switch_half();
        }
        if self.acknowledges() {
            // One packet at most for each that came, so requests get their turn. A program that has
            // its answer before its own message is acknowledged may run ahead (`ib_send_lat -e`).
            self.half = Half::Answers;
        }
        for _ in 0..2 {
            let sent = match self.half {
                Half::Answers => self.next_answer(buf, cx),
                Half::Requests => self.paced_request(buf, cx),
            };
            if let Some(transmit) = sent {
                self.burst += 1;
                cx.count(Counter::SentPkts);
                if transmit.retransmit {
                    cx.count(Counter::Retransmits);
                }
                return Some(transmit);
            }
            self.switch_half();
        }
        None
    }

    /// The next request, if the rate limit lets it go now.
    fn paced_request<E: Env>(&mut self, buf: &mut [u8], cx: &mut Cx<'_, E>) -> Option<Transmit> {
        if let Some(at) = self.pace.wait(cx.now) {
            if self.sq.has_work() {
                cx.core.paced.set(self.index, Some(at));
            }
            return None;
        }
        let sent = self.next_request(buf, cx)?;
        self.pace.take(cx.now, sent.len as u64);
        Some(sent)
    }

    /// `ibv_modify_qp_rate_limit`.
    pub(crate) fn set_rate_limit<E: Env>(
        &mut self,
        limit: RateLimit,
        cx: &mut Cx<'_, E>,
    ) -> Result<(), Misuse> {
        if self.state != QpState::Rts {
            return Err(Misuse::invalid(
                "modify_qp_rate_limit: the queue pair is not in RTS",
            ));
        }
        self.pace = Pace::new(limit);
        if self.sq.nothing_in_flight() && matches!(self.sq.timer, sq::Timer::Ack { .. }) {
            self.arm_ack_timer(cx);
        }
        cx.core.ready.push(self.index);
        Ok(())
    }

    fn switch_half(&mut self) {
        self.burst = 0;
        self.half = match self.half {
            Half::Answers => Half::Requests,
            Half::Requests => Half::Answers,
        };
    }

    /// A packet of the connection.
    const fn transmit(&self, len: usize, retransmit: bool) -> Transmit {
        Transmit {
            len,
            path: self.path,
            sport: self.sport,
            dest_qp: self.attr.dest_qp_num,
            src_qp: self.qpn,
            retransmit,
            lost: retransmit && !self.sq.unready,
        }
    }

    /// Base header of a packet of the connection.
    const fn bth(&self, opcode: Opcode, psn: Psn) -> rocebud_wire::Bth {
        let mut bth = rocebud_wire::Bth::new(opcode, self.attr.dest_qp_num, psn);
        bth.pkey = self.attr.pkey();
        bth
    }
}

/// A congestion notification has a class of its own, but belongs to a connection: only its peer may
/// slow it down.
fn is_cnp(pkt: &Packet<'_>) -> bool {
    pkt.info.operation == Operation::Cnp
}
