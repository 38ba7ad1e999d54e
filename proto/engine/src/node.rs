//! A node: all queue pairs of a process, and the calls that drive them.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use rocebud_objects::{
    AttrMask, Counter, CqId, Errno, Instant, Misuse, Path, QpAttr, QpInit, QpState, QpType,
    RateLimit, RecvWr, SendWr, SrqAttr, SrqId, SrqInit,
};
use rocebud_wire::{Gid, Mtu, Packet, Qpn};

use crate::config::NodeConfig;
use crate::cx::{Core, Cx};
use crate::env::Env;
use crate::limits;
use crate::qp::Qp;
use crate::ready::Index;
use crate::srq::{Srq, SrqMask};
use crate::table::QpTable;

/// What the link knows about a packet besides its bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RxMeta {
    /// Sender's address.
    pub src: Gid,
    /// Address that it was sent to.
    pub dst: Gid,
    /// DSCP and ECN bits as they arrived.
    pub traffic_class: u8,
    /// IP time to live as it arrived.
    pub hop_limit: u8,
    /// IPv4 identification, as recovered.
    pub ipv4_id: u16,
    /// IPv4 flags and fragment offset (DF = 0x4000), as recovered.
    pub ipv4_flags: u16,
    /// Interface that it came in by; 0 = not known.
    pub ifindex: u32,
    /// UDP source port.
    pub sport: u16,
}

/// A packet to send: `buf[..len]`, with the last four bytes left for the ICRC.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Transmit {
    /// Bytes in the buffer, the four of the ICRC included.
    pub len: usize,
    /// Where it goes, and how.
    pub path: Path,
    /// UDP source port.
    pub sport: u16,
    /// Queue pair at the destination.
    pub dest_qp: Qpn,
    /// Queue pair that sends.
    pub src_qp: Qpn,
    /// It was sent before.
    pub retransmit: bool,
    /// It was sent before and seems to be lost: the peer did not say that it only had no receive.
    pub lost: bool,
}

/// All queue pairs of a process. Sans-I/O: `on_*` go in, `poll_transmit` comes out.
#[derive(Debug, Default)]
pub struct Node {
    qps: QpTable,
    core: Core,
    mcast: BTreeMap<Gid, Vec<Qpn>>,
    /// Queue pair that has the turn, and packets left of it.
    turn: Option<(Index, u32)>,
}

const NO_QP: Misuse = Misuse::invalid("no such queue pair");
const NO_SRQ: Misuse = Misuse::invalid("no such shared receive queue");

impl Node {
    /// An empty node.
    #[must_use]
    pub fn new(cfg: NodeConfig) -> Self {
        let mut node = Self::default();
        node.core.cfg = cfg;
        node.set_read_window(cfg.read_window_bytes);
        node
    }

    /// The settings.
    #[must_use]
    pub fn config(&self) -> &NodeConfig {
        &self.core.cfg
    }

    /// The settings, to be changed. Queue pairs take changes up with their next packet;
    /// `peer_window_bytes` counts for peers not seen before.
    pub fn config_mut(&mut self) -> &mut NodeConfig {
        &mut self.core.cfg
    }

    /// Tells the receive buffer of a peer process (peer address, upper 12 bits of its QPNs).
    pub fn set_peer_window(&mut self, peer: Gid, slot: u16, bytes: u32) {
        self.core
            .peers
            .tell(peer, slot, bytes, &mut self.core.ready);
    }

    /// Tells how many bytes of READ responses our own receive buffer takes.
    pub fn set_read_window(&mut self, bytes: u32) {
        self.core.cfg.read_window_bytes = bytes;
        let limit = u64::from(bytes);
        self.core.reads.set_limit(limit, &mut self.core.ready);
    }

    /// Plants a fault, or takes it out.
    #[cfg(feature = "planted")]
    pub fn plant(&mut self, planted: Option<crate::config::Planted>) {
        self.core.planted = planted;
    }

    // ---- queue pairs

    /// Creates a queue pair under a number that the caller chose.
    ///
    /// # Errors
    /// EINVAL: number reserved or taken, SRQ unknown or not allowed for the type.
    pub fn create_qp(&mut self, qpn: Qpn, init: QpInit) -> Result<(), Misuse> {
        if matches!(qpn, Qpn::SMI | Qpn::MULTICAST) {
            return Err(Misuse::invalid("create_qp: reserved queue pair number"));
        }
        if self.qps.index(qpn).is_some() {
            return Err(Misuse::invalid("create_qp: queue pair number is taken"));
        }
        if init.qp_type == QpType::RawPacket {
            return Err(Misuse::new(
                Errno::EOPNOTSUPP,
                "create_qp: whole frames are no business of this engine",
            ));
        }
        if (init.qp_type == QpType::XrcRecv) != init.xrcd.is_some() {
            return Err(Misuse::invalid(
                "create_qp: XRC_RECV queue pairs, and no others, belong to an XRC domain",
            ));
        }
        if let Some(id) = init.srq {
            if !matches!(init.qp_type, QpType::Rc | QpType::Ud) {
                return Err(Misuse::invalid(
                    "create_qp: only RC and UD take a shared receive queue",
                ));
            }
            let srq = self.core.srqs.get_mut(&id).ok_or(NO_SRQ)?;
            if srq.xrc.is_some() {
                return Err(Misuse::invalid(
                    "create_qp: shared receive queues of the type XRC are named by packets",
                ));
            }
            srq.users += 1;
        }
        let index = self.qps.next_index();
        self.qps.insert(Qp::new(index, qpn, init));
        Ok(())
    }

    /// Destroys a queue pair without completions; the caller purges its CQEs.
    ///
    /// # Errors
    /// EINVAL: unknown. EBUSY: attached to a multicast group.
    pub fn destroy_qp<E: Env>(&mut self, qpn: Qpn, env: &mut E) -> Result<(), Misuse> {
        let index = self.qps.index(qpn).ok_or(NO_QP)?;
        if self.qps.at(index).is_some_and(|qp| qp.groups != 0) {
            return Err(Misuse::new(
                Errno::EBUSY,
                "destroy_qp: still attached to a multicast group; detach it first",
            ));
        }
        let mut cx = Cx {
            now: Instant::default(),
            env,
            core: &mut self.core,
        };
        if let Some(qp) = self.qps.at_mut(index) {
            qp.retire(&mut cx);
        }
        let Some(qp) = self.qps.remove(qpn) else {
            return Err(NO_QP);
        };
        if let Some(srq) = qp.init.srq.and_then(|id| self.core.srqs.get_mut(&id)) {
            srq.users = srq.users.saturating_sub(1);
        }
        let qps = &self.qps;
        let in_use = |cq: CqId| qps.iter().any(|q| q.uses_cq(cq));
        let dead = &mut self.core.dead_cqs;
        dead.retain(|cq| !qp.uses_cq(*cq) || in_use(*cq));
        Ok(())
    }

    /// `ibv_modify_qp`. `path` is the resolved address vector and must be there exactly when the
    /// mask has AV. On an error nothing has changed. A move to RESET leaves CQEs in the completion
    /// queues: the caller purges them.
    ///
    /// # Errors
    /// EINVAL, as the table of moves and the value checks say.
    pub fn modify_qp<E: Env>(
        &mut self,
        now: Instant,
        qpn: Qpn,
        attr: &QpAttr,
        mask: AttrMask,
        path: Option<Path>,
        env: &mut E,
    ) -> Result<(), Misuse> {
        self.act(now, qpn, env, |qp, cx| qp.modify(attr, mask, path, cx))
    }

    /// `ibv_query_qp`: state now, `sq_psn` = next to send, `rq_psn` = next expected.
    ///
    /// # Errors
    /// EINVAL: unknown.
    pub fn query_qp(&self, qpn: Qpn) -> Result<(QpAttr, QpInit), Misuse> {
        self.qps
            .get(qpn)
            .map(|qp| (qp.query(), qp.init))
            .ok_or(NO_QP)
    }

    /// `ibv_modify_qp_rate_limit`: limits the requests of a queue pair in RTS; RESET ends it.
    ///
    /// # Errors
    /// EINVAL: unknown, or not in RTS.
    pub fn set_rate_limit<E: Env>(
        &mut self,
        now: Instant,
        qpn: Qpn,
        limit: RateLimit,
        env: &mut E,
    ) -> Result<(), Misuse> {
        let qp = self.qps.get_mut(qpn).ok_or(NO_QP)?;
        let mut cx = Cx {
            now,
            env,
            core: &mut self.core,
        };
        qp.set_rate_limit(limit, &mut cx)
    }

    /// State of a queue pair, if it exists.
    #[must_use]
    pub fn qp_state(&self, qpn: Qpn) -> Option<QpState> {
        self.qps.get(qpn).map(|qp| qp.state)
    }

    /// The port's MTU: the longest datagram, and the largest `path_mtu` that is accepted. 4096
    /// until told.
    ///
    /// # Errors
    /// EINVAL: unknown.
    pub fn set_port_mtu(&mut self, qpn: Qpn, mtu: Mtu) -> Result<(), Misuse> {
        self.qps.get_mut(qpn).ok_or(NO_QP)?.port_mtu = mtu;
        Ok(())
    }

    /// `ibv_attach_mcast`: datagrams to `group` are delivered to the queue pair too. Joining the
    /// group on the network is the link's business.
    ///
    /// # Errors
    /// EINVAL: unknown, not UD, or not a multicast address. ENOMEM: too many.
    pub fn attach_mcast(&mut self, qpn: Qpn, group: Gid) -> Result<(), Misuse> {
        let qp = self.qps.get_mut(qpn).ok_or(NO_QP)?;
        if qp.init.qp_type != QpType::Ud || !group.is_multicast() {
            return Err(Misuse::invalid(
                "attach_mcast: needs a UD queue pair and a multicast GID",
            ));
        }
        let list = self.mcast.entry(group).or_default();
        if list.contains(&qpn) {
            return Ok(());
        }
        if list.len() >= limits::MCAST_ATTACH_MAX {
            return Err(Misuse::new(Errno::ENOMEM, "attach_mcast: group is full"));
        }
        list.push(qpn);
        qp.groups += 1;
        Ok(())
    }

    /// `ibv_detach_mcast`.
    ///
    /// # Errors
    /// EINVAL: not attached.
    pub fn detach_mcast(&mut self, qpn: Qpn, group: Gid) -> Result<(), Misuse> {
        const NOT_ATTACHED: Misuse = Misuse::invalid("detach_mcast: not attached to this group");
        let list = self.mcast.get_mut(&group).ok_or(NOT_ATTACHED)?;
        let at = list.iter().position(|q| *q == qpn).ok_or(NOT_ATTACHED)?;
        list.remove(at);
        if list.is_empty() {
            self.mcast.remove(&group);
        }
        if let Some(qp) = self.qps.get_mut(qpn) {
            qp.groups = qp.groups.saturating_sub(1);
        }
        Ok(())
    }

    // ---- shared receive queues

    /// Creates a shared receive queue.
    ///
    /// # Errors
    /// EINVAL: the id is taken, or a size is 0.
    pub fn create_srq(&mut self, id: SrqId, init: SrqInit) -> Result<(), Misuse> {
        if init.attr.max_wr == 0 || init.attr.max_sge == 0 || self.core.srqs.contains_key(&id) {
            return Err(Misuse::invalid(
                "create_srq: max_wr or max_sge is 0, or the id is taken",
            ));
        }
        self.core.srqs.insert(id, Srq::new(init));
        Ok(())
    }

    /// `ibv_modify_srq`: arms the limit, resizes.
    ///
    /// # Errors
    /// EINVAL; nothing has changed.
    pub fn modify_srq(&mut self, id: SrqId, attr: &SrqAttr, mask: SrqMask) -> Result<(), Misuse> {
        self.core
            .srqs
            .get_mut(&id)
            .ok_or(NO_SRQ)?
            .modify(attr, mask)
    }

    /// `ibv_query_srq`: real sizes, and the limit as it is armed now (0 after it fired).
    ///
    /// # Errors
    /// EINVAL: unknown.
    pub fn query_srq(&self, id: SrqId) -> Result<SrqAttr, Misuse> {
        self.core.srqs.get(&id).map(Srq::query).ok_or(NO_SRQ)
    }

    /// Destroys a shared receive queue without completions.
    ///
    /// # Errors
    /// EINVAL: unknown. EBUSY: queue pairs are attached.
    pub fn destroy_srq(&mut self, id: SrqId) -> Result<(), Misuse> {
        if self.core.srqs.get(&id).ok_or(NO_SRQ)?.users != 0 {
            return Err(Misuse::new(
                Errno::EBUSY,
                "destroy_srq: queue pairs still use it; destroy them first",
            ));
        }
        if let Some(xrc) = self.core.srqs.remove(&id).and_then(|srq| srq.xrc) {
            self.qps.iter_mut().for_each(|qp| qp.forget_srq(id));
            let of_others = self.core.srqs.values().filter_map(|srq| srq.xrc);
            if !of_others.map(|x| x.cq).any(|cq| cq == xrc.cq)
                && !self.qps.iter().any(|qp| qp.uses_cq(xrc.cq))
            {
                self.core.dead_cqs.retain(|cq| *cq != xrc.cq);
            }
        }
        Ok(())
    }

    /// `ibv_post_srq_recv`.
    ///
    /// # Errors
    /// EINVAL: unknown, or too many SGEs. ENOMEM: full.
    pub fn post_srq_recv(&mut self, id: SrqId, wr: RecvWr) -> Result<(), Misuse> {
        let srq = self.core.srqs.get_mut(&id).ok_or(NO_SRQ)?;
        srq.post(wr)?;
        srq.wake(&mut self.core.ready);
        Ok(())
    }

    // ---- work requests

    /// `ibv_post_send` of one request.
    ///
    /// # Errors
    /// EINVAL: state, opcode, sizes. ENOMEM: the send queue is full.
    pub fn post_send<E: Env>(
        &mut self,
        now: Instant,
        qpn: Qpn,
        wr: SendWr,
        env: &mut E,
    ) -> Result<(), Misuse> {
        self.act(now, qpn, env, |qp, cx| qp.post_send(wr, cx))
    }

    /// `ibv_wr_complete`: posts all requests, taking them out of `wrs`, or, when one is refused,
    /// none.
    ///
    /// # Errors
    /// As [`Node::post_send`].
    pub fn post_sends<E: Env>(
        &mut self,
        now: Instant,
        qpn: Qpn,
        wrs: &mut Vec<SendWr>,
        env: &mut E,
    ) -> Result<(), Misuse> {
        self.act(now, qpn, env, |qp, cx| qp.post_sends(wrs, cx))
    }

    /// `ibv_post_recv` of one request.
    ///
    /// # Errors
    /// EINVAL: state, sizes, or the queue pair has an SRQ. ENOMEM: the receive queue is full.
    pub fn post_recv<E: Env>(
        &mut self,
        now: Instant,
        qpn: Qpn,
        wr: RecvWr,
        env: &mut E,
    ) -> Result<(), Misuse> {
        self.act(now, qpn, env, |qp, cx| qp.post_recv(wr, cx))
    }

    // ---- inputs

    /// A packet with a verified ICRC. Malformed and undefined ones never get here: who parses
    /// counts them.
    pub fn on_frame<E: Env>(&mut self, now: Instant, rx: &RxMeta, pkt: &Packet<'_>, env: &mut E) {
        let mut cx = Cx {
            now,
            env,
            core: &mut self.core,
        };
        if pkt.bth.dest_qp == Qpn::MULTICAST {
            let Some(list) = self.mcast.get(&rx.dst) else {
                return cx.count(Counter::DropNoQp);
            };
            for &qpn in list {
                if let Some(qp) = self.qps.get_mut(qpn) {
                    qp.on_frame(rx, pkt, &mut cx);
                }
            }
        } else if let Some(qp) = self.qps.get_mut(pkt.bth.dest_qp) {
            qp.on_frame(rx, pkt, &mut cx);
        } else {
            cx.count(Counter::DropNoQp);
        }
        self.settle(now, env);
    }

    /// Runs every timer that has expired.
    pub fn on_timeout<E: Env>(&mut self, now: Instant, env: &mut E) {
        while let Some(index) = self.core.paced.pop_expired(now) {
            self.core.ready.push(index);
        }
        while let Some(index) = self.core.timers.pop_expired(now) {
            let mut cx = Cx {
                now,
                env,
                core: &mut self.core,
            };
            if let Some(qp) = self.qps.at_mut(index) {
                qp.on_timer(&mut cx);
            }
        }
        self.settle(now, env);
    }

    /// When to call [`Node::on_timeout`] at the latest. May come a little early for nothing.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Instant> {
        let (timers, paced) = (self.core.timers.next(), self.core.paced.next());
        [timers, paced].into_iter().flatten().min()
    }

    /// A completion queue is unusable: attached queue pairs go to ERR with QP_FATAL. The engine
    /// does this itself when [`Env::complete`] reports an overrun.
    pub fn cq_failed<E: Env>(&mut self, cq: CqId, env: &mut E) {
        if !self.core.dead_cqs.contains(&cq) {
            self.core.dead_cqs.push(cq);
        }
        self.core.failed_cqs.push(cq);
        self.settle(Instant::default(), env);
    }

    // ---- output

    /// Writes one packet into `buf` (at least [`limits::FRAME_BYTES_MAX`] bytes). Packets of one
    /// queue pair come out one after the other up to a quantum, so that they can be batched.
    /// ACKs wait here too: calling this after a batch of frames was handed in merges them.
    /// Also runs what needs no packet (LOCAL_INV), so `None` may follow real work.
    pub fn poll_transmit<E: Env>(
        &mut self,
        now: Instant,
        buf: &mut [u8],
        env: &mut E,
    ) -> Option<Transmit> {
        if buf.len() < limits::FRAME_BYTES_MAX {
            return None;
        }
        while let Some(index) = self.core.ready.front() {
            let left = match self.turn {
                Some((who, left)) if who == index => left,
                _ => self.core.cfg.quantum_packets.max(1),
            };
            let mut cx = Cx {
                now,
                env,
                core: &mut self.core,
            };
            let sent = self
                .qps
                .at_mut(index)
                .and_then(|qp| qp.poll_transmit(buf, &mut cx));
            if !self.core.failed_cqs.is_empty() {
                self.settle(now, env);
            }
            let Some(transmit) = sent else {
                self.turn = None;
                self.core.ready.pop();
                continue;
            };
            // One try in vain less, where a program waits for one packet.
            if self.qps.at(index).is_some_and(Qp::has_said_all) {
                self.turn = None;
                self.core.ready.pop();
            } else if left == 1 {
                self.turn = None;
                self.core.ready.rotate();
            } else {
                self.turn = Some((index, left - 1));
            }
            return Some(transmit);
        }
        None
    }

    /// Queue pairs wait for room that [`Env::has_room`] has refused.
    #[must_use]
    pub fn has_held(&self) -> bool {
        !self.core.held.is_empty()
    }

    /// Lets those who wait for room try again, some of them at a time. Call it when there may be
    /// some, and now and then.
    pub fn retry_held(&mut self) {
        for _ in 0..limits::HELD_RETRIES {
            let Some(index) = self.core.held.front() else {
                return;
            };
            self.core.held.pop();
            self.core.ready.push(index);
        }
    }

    /// [`Node::poll_transmit`] may have something.
    #[must_use]
    pub fn wants_transmit(&self) -> bool {
        !self.core.ready.is_empty()
    }

    /// The queue pair has nothing to send, nothing outstanding and no timer running.
    #[must_use]
    pub fn qp_idle(&self, qpn: Qpn) -> bool {
        self.qps.get(qpn).is_none_or(Qp::is_idle)
    }

    /// Every queue pair is idle.
    #[must_use]
    pub fn quiescent(&self) -> bool {
        self.core.ready.is_empty() && self.qps.iter().all(Qp::is_idle)
    }

    /// A queue pair that has something to send, or misses an answer, and that neither an answer it
    /// asked for, a timer of its own (but the ACK timer), nor its turn will bring on. There is none
    /// between two calls, whatever peers and windows do: for tests.
    #[must_use]
    pub fn forgotten(&self) -> Option<Qpn> {
        let mut qps = self.qps.iter();
        qps.find(|qp| qp.is_forgotten(&self.core)).map(|qp| qp.qpn)
    }

    /// Bytes that are charged against the receive buffers of all peers, and (for READ responses)
    /// against our own. Both are 0 when nothing is in flight; what stayed would be lost window.
    #[must_use]
    pub fn charged(&self) -> (u64, u64) {
        (self.core.peers.used(), self.core.reads.used())
    }

    /// A call of the program on one queue pair, and what follows from it.
    fn act<E: Env>(
        &mut self,
        now: Instant,
        qpn: Qpn,
        env: &mut E,
        call: impl FnOnce(&mut Qp, &mut Cx<'_, E>) -> Result<(), Misuse>,
    ) -> Result<(), Misuse> {
        let qp = self.qps.get_mut(qpn).ok_or(NO_QP)?;
        let mut cx = Cx {
            now,
            env,
            core: &mut self.core,
        };
        let done = call(qp, &mut cx);
        self.settle(now, env);
        done
    }

    /// Takes down the queue pairs of completion queues that overran during the call.
    fn settle<E: Env>(&mut self, now: Instant, env: &mut E) {
        while let Some(cq) = self.core.failed_cqs.pop() {
            for qp in self.qps.iter_mut() {
                if !qp.uses_cq(cq) && !qp.serves_into(cq, &self.core) {
                    continue;
                }
                let mut cx = Cx {
                    now,
                    env,
                    core: &mut self.core,
                };
                qp.cq_failed(&mut cx);
            }
        }
    }
}
