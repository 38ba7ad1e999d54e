//! Completions and events against the books.

use rocebud_fabric::{Completed, HostId, Span, fill};
use rocebud_objects::{
    AsyncEvent, CqId, EventKind, QpState, QpType, Wc, WcFlags, WcOpcode, WcStatus,
};

use super::books::{Action, Message, Receive, Sent};
use super::post::{GRH_BYTES, RECEIVE, receive_opcode};
use super::world::{SRQ, TINY_CQ, World, stream};

impl World {
    pub(super) fn completion(&mut self, host: HostId, cq: CqId, done: &Completed) {
        let wc = &done.wc;
        self.tell(|| format!("h{} {wc:?}", host.0));
        let named = |qp: &super::books::Qp| qp.alive && qp.host == host && qp.qpn == wc.qp_num;
        let Some(at) = self.qps.iter().position(named) else {
            panic!("a completion of a queue pair that is not there: {wc:?}");
        };
        let receive = wc.wr_id & RECEIVE != 0;
        assert_eq!(
            self.qps[at].cqs[usize::from(receive)],
            cq,
            "in the wrong queue: {wc:?}"
        );
        if receive {
            self.receive_completion(at, done);
        } else {
            self.send_completion(at, wc);
        }
    }

    // ---- sends

    fn send_completion(&mut self, at: usize, wc: &Wc) {
        let qp = &self.qps[at];
        let Some(n) = qp.sends.iter().position(|s| s.wr_id == wc.wr_id) else {
            panic!("{}: completes nothing that is outstanding: {wc:?}", qp.qpn);
        };
        for skipped in qp.sends.iter().take(n) {
            let silent = !skipped.signaled && !qp.failed && !self.must_fail(at, skipped);
            assert!(
                silent || qp.overrun,
                "{}: {wc:?} overtakes {skipped:?}",
                qp.qpn
            );
        }
        let ended: Vec<Sent> = self.qps[at].sends.drain(..=n).collect();
        let lost = self.qps[at].overrun;
        for silent in ended[..n].iter().filter(|_| !lost) {
            self.succeeded(at, silent);
        }
        let sent = &ended[n];
        if wc.status == WcStatus::Success {
            self.check_success(at, sent, wc);
            self.succeeded(at, sent);
        } else {
            self.check_failure(at, sent, wc);
            self.qps[at].failed = true;
            // The peer may find nobody from now on.
            self.trouble(at);
            self.forget_words(at);
        }
    }

    fn must_fail(&self, at: usize, sent: &Sent) -> bool {
        // Only a request that was really executed has to fail: reliable ones in order.
        sent.must_fail && self.qps[at].kind == QpType::Rc && self.honest_peer(at).is_some()
    }

    fn check_success(&self, at: usize, sent: &Sent, wc: &Wc) {
        let qp = &self.qps[at];
        assert!(
            !qp.failed || qp.overrun,
            "{}: {wc:?} after an error",
            qp.qpn
        );
        assert!(!self.must_fail(at, sent), "{}: {wc:?} of {sent:?}", qp.qpn);
        let right = wc.opcode == sent.opcode
            && wc.byte_len == sent.byte_len
            && wc.vendor_err == 0
            && sent.signaled;
        assert!(right, "{}: {wc:?} of {sent:?}", qp.qpn);
    }

    fn check_failure(&self, at: usize, sent: &Sent, wc: &Wc) {
        let qp = &self.qps[at];
        let state = self.state(at);
        let broken = matches!(state, Some(QpState::Err | QpState::Sqe));
        assert!(wc.vendor_err != 0, "{wc:?} without a reason");
        assert!(
            broken || qp.kind != QpType::Rc,
            "{}: {wc:?} in {state:?}",
            qp.qpn
        );
        if wc.status == WcStatus::WrFlushErr {
            assert!(qp.failed || qp.trouble || qp.overrun || self.all_troubled || broken);
            return;
        }
        assert!(!qp.failed, "{}: {wc:?} after an error", qp.qpn);
        if self.has_reason(at, wc.status) {
            return;
        }
        panic!(
            "{}: {wc:?} of {sent:?} without a reason (harmed {}, peer {:?})",
            qp.qpn, qp.harmed, qp.peer
        );
    }

    /// Does anything explain this error?
    fn has_reason(&self, at: usize, status: WcStatus) -> bool {
        let qp = &self.qps[at];
        let Some(peer) = self.honest_peer(at) else {
            return true;
        };
        if qp.trouble || qp.overrun || self.all_troubled || qp.kind != QpType::Rc {
            return true;
        }
        let he = &self.qps[peer];
        let small = he.small_receives || he.shared && self.stations[he.host.0].small_receives;
        match status {
            // Why the peer is gone is judged where it tells.
            WcStatus::RetryExcErr => {
                let there = [QpState::Rtr, QpState::Rts, QpState::Sqd].map(Some);
                qp.harmed || he.harmed || !there.contains(&self.state(peer))
            }
            WcStatus::RnrRetryExcErr => qp.rnr_retry != 7,
            WcStatus::RemInvReqErr | WcStatus::RemOpErr => small,
            _ => false,
        }
    }

    /// A request has ended well: what did it leave?
    fn succeeded(&mut self, at: usize, sent: &Sent) {
        let Some(peer) = self.honest_peer(at) else {
            return;
        };
        if self.qps[at].kind != QpType::Rc || self.all_troubled {
            return;
        }
        let late = self.qps[peer].cqs[1] == TINY_CQ || self.qps[peer].overrun;
        match sent.action {
            Action::Message | Action::Write { message: true, .. } if !late => {
                let waits = self.qps[peer].inbox.iter().any(|m| m.wr_id == sent.wr_id);
                assert!(!waits, "{sent:?} was acknowledged and not received");
            }
            _ => {}
        }
        match sent.action {
            Action::Write { offset, len, .. } => {
                let model = &mut self.qps[peer].target;
                model.retire(sent.seq);
                let span = Span {
                    addr: model.span.addr + offset,
                    len,
                };
                let bytes = self.peek(self.qps[peer].host, span).to_vec();
                let what = format!("after {:#x}", sent.wr_id);
                let checked = self.qps[peer].target.check(&what, offset, &bytes, u64::MAX);
                checked.unwrap_or_else(|v| panic!("{v}"));
            }
            Action::Read { offset, len } => self.check_read(at, peer, sent, offset, len),
            Action::Atomic {
                before: Some(before),
            } if self.qps[peer].values.is_some() => {
                let host = self.qps[at].host;
                let got = self.gather(host, &sent.pieces, 8);
                assert_eq!(got, before.to_ne_bytes(), "{sent:?}: the value before");
            }
            _ => {}
        }
    }

    fn check_read(&mut self, at: usize, peer: usize, sent: &Sent, offset: u64, len: u64) {
        let bytes = self.gather(self.qps[at].host, &sent.pieces, len);
        // A later request may have overtaken the fetching, unless a fence holds it.
        let fence = self.qps[at].sends.iter().find(|s| s.fence);
        let limit = fence.map_or(u64::MAX, |s| s.seq);
        let what = format!("READ {:#x}", sent.wr_id);
        let checked = self.qps[peer].target.check(&what, offset, &bytes, limit);
        checked.unwrap_or_else(|v| panic!("{v}"));
    }

    /// A request has failed: nobody knows whether its atomics were executed.
    pub(super) fn forget_words(&mut self, at: usize) {
        if let Some((peer, _)) = self.qps[at].peer {
            self.qps[peer].values = None;
        }
    }

    // ---- receives

    fn receive_completion(&mut self, at: usize, done: &Completed) {
        let wc = &done.wc;
        let extended = self.qps[at].kind == QpType::XrcRecv;
        let (shared, host) = (self.qps[at].shared || extended, self.qps[at].host);
        let list = if extended {
            &mut self.stations[host.0].extended
        } else if shared {
            &mut self.stations[host.0].shared
        } else {
            &mut self.qps[at].receives
        };
        let Some(n) = list.iter().position(|r| r.wr_id == wc.wr_id) else {
            panic!("completes no receive that is outstanding: {wc:?}");
        };
        let receive = list.remove(n).expect("just found");
        let qp = &self.qps[at];
        assert!(
            n == 0 || shared || qp.overrun,
            "{}: {wc:?} overtakes",
            qp.qpn
        );
        if wc.status != WcStatus::Success {
            return self.receive_failed(at, wc);
        }
        assert!(
            !qp.receive_failed || qp.overrun || qp.kind != QpType::Rc,
            "{}: {wc:?} after an error",
            qp.qpn
        );
        match qp.kind {
            QpType::Rc => self.reliable_message(at, &receive, done),
            _ => self.unreliable_message(at, &receive, done),
        }
    }

    fn receive_failed(&mut self, at: usize, wc: &Wc) {
        let small = {
            let qp = &self.qps[at];
            qp.small_receives || qp.shared && self.stations[qp.host.0].small_receives
        };
        let honest = self.honest_peer(at).is_some();
        let state = self.state(at);
        let qp = &mut self.qps[at];
        assert_eq!(state, Some(QpState::Err), "{}: {wc:?}", qp.qpn);
        assert!(wc.vendor_err != 0, "{wc:?} without a reason");
        let excused = qp.trouble || qp.overrun || small || self.all_troubled || !honest;
        // A request of the peer that had to be refused is trouble at both ends; a flush may follow
        // an error of our own sends.
        assert!(
            excused || qp.failed || wc.status == WcStatus::WrFlushErr,
            "{}: {wc:?} without a reason",
            qp.qpn
        );
        assert!(
            !qp.receive_failed || wc.status == WcStatus::WrFlushErr,
            "{}: {wc:?} after an error",
            qp.qpn
        );
        qp.receive_failed = true;
        // A bad key to invalidate fails the receive, with the data in place: the sender succeeds.
        if wc.status == WcStatus::RemInvReqErr {
            qp.inbox.pop_front();
        }
        self.trouble(at);
    }

    fn reliable_message(&mut self, at: usize, receive: &Receive, done: &Completed) {
        if self.honest_peer(at).is_none() || self.qps[at].overrun {
            return;
        }
        let Some(message) = self.qps[at].inbox.pop_front() else {
            panic!("receives what nobody sent: {:?}", done.wc);
        };
        assert!(!message.must_fail, "{:?} of {message:?}", done.wc);
        self.check_message(at, receive, done, &message, 0)
            .unwrap_or_else(|why| panic!("{why}: {:?} of {message:?}", done.wc));
        if let Some(key) = message.inv {
            let memory = &self.fabric.host(self.qps[at].host).env.memory;
            assert!(memory.region(key).is_none(), "the key still works");
        }
    }

    /// It must be one that was sent, and one that has not come if nothing was doubled.
    fn unreliable_message(&mut self, at: usize, receive: &Receive, done: &Completed) {
        let qp = &self.qps[at];
        let datagram = qp.kind == QpType::Ud;
        let believed = qp.honest && (datagram || self.honest_peer(at).is_some());
        if !believed || qp.overrun {
            return;
        }
        let extra = if datagram { GRH_BYTES } else { 0 };
        let orderly = !qp.disordered;
        let fits = |m: &Message| {
            !(m.arrived && orderly) && self.check_message(at, receive, done, m, extra).is_ok()
        };
        let found = qp.inbox.iter().position(|m| !m.arrived && fits(m));
        let found = found.or_else(|| qp.inbox.iter().position(fits));
        let Some(found) = found else {
            panic!("{}: receives what nobody sent: {:?}", qp.qpn, done.wc);
        };
        self.qps[at].inbox[found].arrived = true;
    }

    fn check_message(
        &self,
        at: usize,
        receive: &Receive,
        done: &Completed,
        message: &Message,
        extra: u32,
    ) -> Result<(), &'static str> {
        let wc = &done.wc;
        let is = |right: bool, why| if right { Ok(()) } else { Err(why) };
        let opcode: WcOpcode = receive_opcode(message);
        is(wc.opcode == opcode, "opcode")?;
        is(wc.byte_len == message.len + extra, "length")?;
        is(done.solicited == message.solicited, "solicited bit")?;
        let mut flags = WcFlags::empty();
        flags.set(WcFlags::WITH_IMM, message.imm.is_some());
        flags.set(WcFlags::WITH_INV, message.inv.is_some());
        flags.set(WcFlags::GRH, extra != 0);
        is(wc.wc_flags == flags, "flags")?;
        is(message.imm.is_none_or(|imm| imm == wc.imm), "immediate")?;
        is(
            message.inv.is_none_or(|key| key == wc.invalidated_rkey.0),
            "invalidated key",
        )?;
        if message.write {
            return Ok(());
        }
        let host = self.qps[at].host;
        let bytes = self.gather(host, &receive.pieces, u64::from(wc.byte_len));
        let mut expected = vec![0; message.len as usize];
        fill(stream(message.wr_id), 0, &mut expected);
        is(bytes.get(extra as usize..) == Some(&expected[..]), "bytes")
    }

    // ---- events

    pub(super) fn event(&mut self, host: HostId, event: AsyncEvent) {
        self.tell(|| format!("h{} {event:?}", host.0));
        match event {
            AsyncEvent::Cq { cq, kind } => {
                assert_eq!((cq, kind), (TINY_CQ, EventKind::CqErr), "{event:?}");
                self.stations[host.0].overran = true;
                for at in 0..self.qps.len() {
                    if self.qps[at].host == host && self.qps[at].uses_tiny() {
                        self.qps[at].overrun = true;
                        self.trouble(at);
                    }
                }
            }
            AsyncEvent::Srq { srq, kind } => {
                assert_eq!(srq, SRQ);
                assert_eq!(kind, EventKind::SrqLimitReached);
                assert_ne!(self.stations[host.0].limit, 0, "the limit was not armed");
                self.stations[host.0].limit = 0;
            }
            AsyncEvent::Qp { qpn, kind } => {
                let named = |qp: &super::books::Qp| qp.host == host && qp.qpn == qpn;
                let at = self.qps.iter().position(named).expect("a known queue pair");
                self.qp_event(at, kind);
            }
        }
    }

    fn qp_event(&mut self, at: usize, kind: EventKind) {
        let honest = self.honest_peer(at).is_some();
        let troubled = self.all_troubled || !honest;
        let qp = &mut self.qps[at];
        match kind {
            EventKind::CommEst => {
                qp.established += 1;
                assert_eq!(qp.established, 1, "{}: established twice", qp.qpn);
            }
            EventKind::SqDrained => {
                assert!(std::mem::take(&mut qp.draining), "nobody asked for it");
            }
            EventKind::QpLastWqeReached => {
                qp.last_wqe += 1;
                assert!(qp.shared && qp.last_wqe == 1, "{}: last WQE", qp.qpn);
            }
            EventKind::QpReqErr | EventKind::QpAccessErr => {
                assert!(troubled || qp.trouble || qp.overrun, "{}: {kind:?}", qp.qpn);
                self.trouble(at);
            }
            EventKind::QpFatal => assert!(qp.uses_tiny(), "{}: fatal", qp.qpn),
            _ => panic!("{}: {kind:?}", qp.qpn),
        }
    }
}
