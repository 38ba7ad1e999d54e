//! Connections that are set up, broken and set up again.

use rocebud_objects::{AttrMask, QpAttr, QpState, QpType, WcOpcode, WcStatus};
use rocebud_objects::{Payload, Remote, SendOp};
use rocebud_wire::RKey;

use super::alarm::Alarm;
use super::request::{Local, Request, sges};
use super::{TARGET, World, pd, refused};
use crate::check::sends::{Action, Fatal, Outcome};
use crate::plan::{Incident, WINDOW_INCIDENTS};
use crate::setup::{self, ALL_REMOTE};
use crate::violation::{Checker, Verdict, Violation};

/// Where a connection is in its life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Phase {
    /// Traffic.
    Up,
    /// Something went wrong or is about to; nobody posts.
    Broken,
    /// Both ends are in error and must give everything back.
    Flushing,
    /// Old packets die out.
    Resting,
}

#[derive(Debug)]
pub(crate) struct LinkState {
    pub(crate) ends: [usize; 2],
    pub(crate) phase: Phase,
    /// Errors are to be expected in this life.
    pub(crate) troubled: bool,
    /// End whose target region was taken away in this life, and how its use ends.
    pub(crate) revoked: Option<(usize, WcStatus)>,
    /// Was troubled in any life: what unreliable writes left is anybody's guess.
    pub(crate) ever_troubled: bool,
}

impl LinkState {
    pub(crate) const fn new(ends: [usize; 2]) -> Self {
        Self {
            ends,
            phase: Phase::Resting,
            troubled: false,
            revoked: None,
            ever_troubled: false,
        }
    }
}

/// Longer than any frame can be under way.
const REST_NS: u64 = 200_000_000;
/// Time that a queue pair in error may take to give everything back.
const FLUSH_NS: u64 = 1_000_000;

const REM_ACCESS: Fatal = Fatal {
    requester: &[WcStatus::RemAccessErr],
    receiver: None,
};
const REM_INVALID: Fatal = Fatal {
    requester: &[WcStatus::RemInvReqErr],
    receiver: None,
};
const TOO_LONG: Fatal = Fatal {
    requester: &[WcStatus::RemInvReqErr],
    receiver: Some(WcStatus::LocLenErr),
};
const LOC_QP_OP: Fatal = Fatal {
    requester: &[WcStatus::LocQpOpErr],
    receiver: None,
};
const LOC_PROT: Fatal = Fatal {
    requester: &[WcStatus::LocProtErr],
    receiver: None,
};

impl World {
    pub(crate) fn may_post(&self, index: usize) -> bool {
        self.ends[index]
            .link
            .is_none_or(|l| self.links[l].phase == Phase::Up && !self.links[l].troubled)
    }

    pub(crate) fn troubled(&self, index: usize) -> bool {
        self.ends[index]
            .link
            .is_some_and(|l| self.links[l].troubled)
    }

    /// Errors are to be expected from now on.
    pub(crate) fn trouble(&mut self, index: usize) {
        if let Some(link) = self.ends[index].link {
            self.links[link].troubled = true;
            self.links[link].ever_troubled = true;
        }
        self.break_link_of(index);
    }

    /// An end has seen an error: the applications take the connection down after a while.
    pub(crate) fn break_link_of(&mut self, index: usize) {
        let Some(link) = self.ends[index].link else {
            return;
        };
        if self.links[link].phase == Phase::Up {
            self.links[link].phase = Phase::Broken;
            let patience = self.rng.pick(&[1, 300_000, 10_000_000, 5_000_000_000]);
            self.set_alarm(patience, Alarm::Link(link));
        }
    }

    pub(crate) fn link_alarm(&mut self, link: usize) -> Verdict {
        match self.links[link].phase {
            Phase::Up => Ok(()),
            Phase::Broken => self.flush_link(link),
            Phase::Flushing => self.rest_link(link),
            Phase::Resting => self.revive_link(link),
        }
    }

    /// Brings both queue pairs from RESET to RTS.
    pub(crate) fn connect_link(&mut self, link: usize) -> Verdict {
        let [a, b] = self.links[link].ends;
        let attr = self.plan.links[link].link;
        let (left, right) = (self.side(a), self.side(b));
        for (index, side, peer) in [(a, left, right), (b, right, left)] {
            setup::to_init(&mut self.fabric, side.host, side.qpn, ALL_REMOTE).map_err(refused)?;
            self.wire
                .connect(side.qpn, peer.qpn, attr.kind, attr.mtu, side.sq_psn);
            let end = &mut self.ends[index];
            end.up = true;
            end.life += 1;
            end.doomed = false;
            end.receive_flushed = false;
            end.receive_error = None;
            end.last_wqe = 0;
            end.unsignaled = 0;
            self.fill_pool(self.ends[index].pool)?;
        }
        self.tell(|| format!("connect {left:?} {right:?} {attr:?}"));
        setup::connect(&mut self.fabric, &left, &right, &attr).map_err(refused)?;
        self.links[link].phase = Phase::Up;
        self.links[link].troubled = false;
        self.links[link].revoked = None;
        Ok(())
    }

    /// Both ends go to ERR; markers show when everything has come back.
    fn flush_link(&mut self, link: usize) -> Verdict {
        self.links[link].troubled = true;
        self.links[link].ever_troubled = true;
        for index in self.links[link].ends {
            if !self.ends[index].up {
                continue;
            }
            let (host, qpn) = (self.ends[index].host, self.ends[index].qpn);
            if self.state(index) != Some(QpState::Err) {
                setup::go(&mut self.fabric, host, qpn, QpState::Err).map_err(refused)?;
                self.poll_host(host)?;
            }
            self.post_marker(index)?;
            if self.pools[self.ends[index].pool].srq.is_none() {
                self.post_receive(self.ends[index].pool)?;
            }
        }
        self.links[link].phase = Phase::Flushing;
        self.set_alarm(FLUSH_NS, Alarm::Link(link));
        Ok(())
    }

    /// Everything has come back: RESET, or away with the queue pair.
    fn rest_link(&mut self, link: usize) -> Verdict {
        self.check_canaries()?;
        for index in self.links[link].ends {
            if !self.ends[index].up {
                continue;
            }
            for posted in self.ends[index].sends.drain()? {
                self.ended(index, &posted, Outcome::Done)?;
            }
            self.check_flushed_end(index)?;
            if self.rng.percent(40) {
                self.destroy(index)?;
            } else {
                self.reset(index)?;
            }
        }
        self.links[link].phase = Phase::Resting;
        self.set_alarm(REST_NS, Alarm::Link(link));
        Ok(())
    }

    /// A queue pair in error has given all receives back and said so.
    pub(crate) fn check_flushed_end(&self, index: usize) -> Verdict {
        let end = &self.ends[index];
        let pool = &self.pools[end.pool];
        if pool.srq.is_none() && !pool.ledger.is_empty() {
            let what = format!(
                "{}: {} receives were not flushed",
                end.qpn,
                pool.ledger.len()
            );
            return Err(Violation::new(Checker::Receives, what));
        }
        // Queue pairs of XRC belong to no queue, and say nothing about their last receive.
        let attached = matches!(end.kind, QpType::Rc | QpType::Ud);
        if pool.srq.is_some() && attached && end.last_wqe != 1 {
            let what = format!("{}: {} LAST_WQE_REACHED events", end.qpn, end.last_wqe);
            return Err(Violation::new(Checker::Events, what));
        }
        Ok(())
    }

    /// Nothing of the old life is left: judge memory, then connect anew.
    fn revive_link(&mut self, link: usize) -> Verdict {
        for index in self.links[link].ends {
            self.settle_end(index)?;
            self.ends[index].inbox.clear();
            self.register_target(index);
            if !self.ends[index].alive {
                self.create_qp(index)?;
            }
        }
        self.connect_link(link)?;
        for index in self.links[link].ends {
            let delay = self.rng.below(50_000);
            self.set_alarm(delay, Alarm::Send(index));
        }
        Ok(())
    }

    /// Gives an end's target region a new key if the old one was taken away.
    fn register_target(&mut self, index: usize) {
        let end = &mut self.ends[index];
        let memory = &mut self.fabric.host_mut(end.host).env.memory;
        memory.set_unmapped(end.target_key, false);
        if memory.region(end.target_key).is_none() {
            let span = end.target.span;
            end.target_key = memory.register(pd(end.host), span, span.addr, TARGET);
        }
    }

    /// Judges the regions of an end that nobody can write any more.
    pub(crate) fn settle_end(&mut self, index: usize) -> Verdict {
        let end = &mut self.ends[index];
        let memory = &self.fabric.host(end.host).env.memory;
        let (local, target) = (end.local.span, end.target.span);
        let what = format!("{} at rest", end.qpn);
        let bytes = memory.peek(local.addr, local.len);
        end.local.check(&what, local.addr, bytes)?;
        let bytes = memory.peek(target.addr, target.len);
        end.target.settle(&what, bytes)
    }

    /// Takes a queue pair to RESET. Whatever is outstanding must never complete.
    fn reset(&mut self, index: usize) -> Verdict {
        let (host, qpn) = (self.ends[index].host, self.ends[index].qpn);
        setup::go(&mut self.fabric, host, qpn, QpState::Reset).map_err(refused)?;
        self.gone(index)
    }

    /// Destroys a queue pair; its number is never used again.
    fn destroy(&mut self, index: usize) -> Verdict {
        let (host, qpn) = (self.ends[index].host, self.ends[index].qpn);
        let host = self.fabric.host_mut(host);
        host.node.destroy_qp(qpn, &mut host.env).map_err(refused)?;
        self.ends[index].alive = false;
        self.gone(index)
    }

    fn gone(&mut self, index: usize) -> Verdict {
        let (host, qpn, pool) = {
            let end = &self.ends[index];
            (end.host, end.qpn, end.pool)
        };
        self.fabric.host_mut(host).env.purge(qpn);
        self.wire.disconnect(qpn);
        for posted in self.ends[index].sends.abandon() {
            self.ended(index, &posted, Outcome::Failed(WcStatus::WrFlushErr))?;
        }
        self.windows_gone(index)?;
        self.ends[index].up = false;
        // The event may have been raised already and wait to be read.
        let draining = std::mem::take(&mut self.ends[index].draining);
        self.ends[index].late_drained |= draining;
        if self.pools[pool].srq.is_some() {
            // A message in progress takes its receive with it.
            self.pools[pool].lost_max += 1;
            return self.refill_pool(pool);
        }
        for receive in self.pools[pool].ledger.abandon() {
            self.release(pool, &receive, true)?;
        }
        Ok(())
    }

    // ---- incidents

    pub(crate) fn incident(&mut self, index: usize, incident: Incident) -> Verdict {
        if self.ends[index].link.is_none() {
            return Ok(());
        }
        self.tell(|| format!("incident {incident:?} at {}", self.ends[index].qpn));
        let (host, qpn, peer) = {
            let end = &self.ends[index];
            (end.host, end.qpn, end.peer)
        };
        match incident {
            Incident::OwnError => {
                self.trouble(index);
                setup::go(&mut self.fabric, host, qpn, QpState::Err).map_err(refused)
            }
            Incident::PeerError => {
                self.trouble(index);
                let (host, qpn) = (self.ends[peer].host, self.ends[peer].qpn);
                setup::go(&mut self.fabric, host, qpn, QpState::Err).map_err(refused)
            }
            Incident::OwnReset => {
                self.trouble(index);
                self.reset(index)
            }
            Incident::Destroy => {
                self.trouble(index);
                self.destroy(index)
            }
            Incident::Drain => self.start_drain(index),
            Incident::Revoke | Incident::Unmap => {
                self.trouble(index);
                self.take_away(index, incident);
                Ok(())
            }
            Incident::BadInvalidate => self.bad_invalidate(index),
            Incident::CloseWindow => self.close_window(index),
            _ => self.bad_request(index, incident),
        }
    }

    /// Posts a request that must fail (reliable connections only).
    fn bad_request(&mut self, index: usize, incident: Incident) -> Verdict {
        let end = &self.ends[index];
        let full = end.sends.outstanding().len() >= end.plan.send_depth as usize;
        let possible = end.kind.is_reliable() || incident == Incident::BadLkey;
        if !possible || full {
            return Ok(());
        }
        let request = if WINDOW_INCIDENTS.contains(&incident) {
            self.bad_window_request(index, incident)
        } else {
            self.bad_request_of(index, incident)
        };
        let Some((mut request, fatal)) = request else {
            return Ok(());
        };
        request.fatal = Some(fatal);
        let peer = self.ends[index].peer;
        match self.try_post(index, request)? {
            Ok(()) => {
                self.ends[peer].receive_error = fatal.receiver;
                self.trouble(index);
                Ok(())
            }
            // The engine may see a misaligned atomic before the peer does.
            Err(_) if incident == Incident::Misaligned => Ok(()),
            Err(why) => Err(refused(why)),
        }
    }

    fn bad_request_of(&mut self, index: usize, incident: Incident) -> Option<(Request, Fatal)> {
        let end = &self.ends[index];
        let peer = &self.ends[end.peer];
        let (span, key, readonly) = (peer.target.span, peer.target_key, peer.readonly_key);
        let (peer_host, room) = (peer.host, self.pools[peer.pool].capacity);
        let (own_host, most, list) = (end.host, end.plan.message_max, end.plan.sge_max);
        let nothing = self.fabric.host_mut(peer_host).env.memory.unused_key();
        let write = Action::Write {
            offset: 0,
            len: 0,
            message: false,
        };
        let remote = |addr, key| Remote {
            addr,
            rkey: RKey(key),
        };
        match incident {
            Incident::BadRkey | Incident::NoPermission | Incident::OutOfBounds => {
                let len = self.ends[index].rng.range_u32(2, most);
                let local = self.source(index, len, list)?;
                let past = u64::from(self.ends[index].rng.range_u32(1, len.min(64) - 1));
                let end_of = span.addr + span.len;
                let remote = match incident {
                    Incident::BadRkey => remote(span.addr, nothing),
                    Incident::NoPermission => remote(span.addr, readonly),
                    _ => remote(end_of + past - u64::from(len), key),
                };
                let op = SendOp::Write { remote };
                let request = Request::new(op, WcOpcode::RdmaWrite, write, local);
                Some((request, REM_ACCESS))
            }
            Incident::Misaligned => {
                let local = self.sink(index, 8, 1)?;
                let remote = remote(span.addr + 4, key);
                let op = SendOp::FetchAdd { remote, add: 1 };
                let request = Request::new(op, WcOpcode::FetchAdd, write, local);
                Some((request, REM_INVALID))
            }
            Incident::BadLkey => {
                let key = self.fabric.host_mut(own_host).env.memory.unused_key();
                let len = self.ends[index].rng.range_u32(1, most);
                let mut local = self.source(index, len, 1)?;
                local.payload = Payload::Sges(sges(&local.pieces, key));
                let read = self.ends[index].kind.is_reliable() && self.ends[index].rng.percent(40);
                let request = if read {
                    let remote = remote(span.addr, key);
                    Request::new(SendOp::Read { remote }, WcOpcode::RdmaRead, write, local)
                } else {
                    Request::new(SendOp::Send, WcOpcode::Send, Action::Send, local)
                };
                Some((request, LOC_PROT))
            }
            Incident::BadLocalInv => {
                let key = self.ends[index].local_key;
                let op = SendOp::LocalInv { rkey: RKey(key) };
                let action = Action::LocalInv { key };
                let request = Request::new(op, WcOpcode::LocalInv, action, Local::none());
                Some((request, LOC_QP_OP))
            }
            _ => {
                let local = self.source(index, room + 1, list)?;
                let request = Request::new(SendOp::Send, WcOpcode::Send, Action::Send, local);
                Some((request, TOO_LONG))
            }
        }
    }

    /// The peer's region goes away under the traffic.
    fn take_away(&mut self, index: usize, incident: Incident) {
        let peer = self.ends[index].peer;
        let (host, key) = (self.ends[peer].host, self.ends[peer].target_key);
        let memory = &mut self.fabric.host_mut(host).env.memory;
        let status = if incident == Incident::Unmap {
            memory.set_unmapped(key, true);
            WcStatus::RemOpErr
        } else {
            memory.deregister(key);
            self.windows_revoked(peer);
            WcStatus::RemAccessErr
        };
        if let Some(link) = self.ends[index].link {
            self.links[link].revoked = Some((peer, status));
        }
    }

    /// SEND that invalidates the key of an ordinary region: the receiver's fault, by the rules, so
    /// the sender succeeds and learns of it from what comes after.
    fn bad_invalidate(&mut self, index: usize) -> Verdict {
        let end = &self.ends[index];
        let full = end.sends.outstanding().len() >= end.plan.send_depth as usize;
        if !end.kind.is_reliable() || full {
            return Ok(());
        }
        let (peer, list) = (end.peer, end.plan.sge_max);
        let Some(local) = self.source(index, 10, list) else {
            return Ok(());
        };
        let rkey = RKey(self.ends[peer].readonly_key);
        let op = SendOp::SendInv { rkey };
        self.post(index, Request::new(op, WcOpcode::Send, Action::Send, local))?;
        self.ends[index].doomed = true;
        self.ends[peer].receive_error = Some(WcStatus::RemInvReqErr);
        self.trouble(index);
        Ok(())
    }

    fn start_drain(&mut self, index: usize) -> Verdict {
        if self.ends[index].draining {
            return Ok(());
        }
        self.ends[index].draining = true;
        let attr = QpAttr {
            qp_state: QpState::Sqd,
            en_sqd_async_notify: true,
            ..QpAttr::default()
        };
        let mask = AttrMask::STATE | AttrMask::EN_SQD_ASYNC_NOTIFY;
        let (host, qpn) = (self.ends[index].host, self.ends[index].qpn);
        setup::modify(&mut self.fabric, host, qpn, &attr, mask, None).map_err(refused)
    }

    /// SQ_DRAINED arrived: traffic goes on.
    pub(crate) fn drained(&mut self, index: usize) -> Verdict {
        let end = &mut self.ends[index];
        if !end.draining && std::mem::take(&mut end.late_drained) {
            return Ok(());
        }
        if !end.draining {
            let what = format!("{}: SQ_DRAINED that nobody asked for", self.ends[index].qpn);
            return Err(Violation::new(Checker::Events, what));
        }
        self.ends[index].draining = false;
        let (host, qpn) = (self.ends[index].host, self.ends[index].qpn);
        if self.state(index) != Some(QpState::Sqd) {
            return Ok(());
        }
        let asked = self.fabric.host(host).node.query_qp(qpn).map_err(refused)?;
        if asked.0.sq_draining {
            let what = format!("{qpn}: SQ_DRAINED while sq_draining is set");
            return Err(Violation::new(Checker::Events, what));
        }
        setup::go(&mut self.fabric, host, qpn, QpState::Rts).map_err(refused)
    }
}
