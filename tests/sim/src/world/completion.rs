//! What applications find in their completion queues and event queues.

use rocebud_fabric::{Completed, HostId};
use rocebud_objects::{AsyncEvent, CqId, EventKind, QpState, QpType, SrqId, WcStatus};
use rocebud_wire::RKey;

use super::World;
use super::request::stream_of;
use crate::check::receives::{PostedReceive, check_grh, wrong};
use crate::check::sends::{Action, Outcome, Posted, Tolerance};
use crate::violation::{Checker, Verdict, Violation};

/// Receive requests have this bit in their `wr_id`.
const RECEIVE: u64 = 1 << 63;

impl World {
    pub(crate) fn poll_all(&mut self) -> Verdict {
        (0..self.plan.hosts.len()).try_for_each(|h| self.poll_host(HostId(h)))
    }

    /// Takes all completions and events of a host.
    pub(crate) fn poll_host(&mut self, host: HostId) -> Verdict {
        for cq in 0..super::CQS {
            while let Some(done) = self.fabric.host_mut(host).env.poll_cq(CqId(cq)) {
                self.tell(|| format!("wc {done:?}"));
                self.completion(&done, CqId(cq))?;
            }
        }
        while let Some(event) = self.fabric.host_mut(host).env.events.pop_front() {
            self.tell(|| format!("event {event:?}"));
            self.event(host, event)?;
        }
        Ok(())
    }

    fn completion(&mut self, done: &Completed, cq: CqId) -> Verdict {
        self.last_progress = self.fabric.now();
        let index = self.by_qpn.get(&done.wc.qp_num.value()).copied();
        let Some(index) = index.filter(|&i| self.ends[i].alive) else {
            return Err(wrong(&done.wc, "names no queue pair that lives"));
        };
        let receive = done.wc.wr_id & RECEIVE != 0;
        if cq != self.ends[index].cqs[usize::from(receive)] {
            return Err(wrong(&done.wc, "is in the wrong completion queue"));
        }
        if receive {
            self.receive_completion(index, done)
        } else {
            self.send_completion(index, done)
        }
    }

    // ---- sends

    fn send_completion(&mut self, index: usize, done: &Completed) -> Verdict {
        let tolerance = self.tolerance(index);
        let ended = self.ends[index].sends.complete(&done.wc, tolerance)?;
        for (posted, outcome) in ended {
            self.ended(index, &posted, outcome)?;
        }
        if done.wc.status != WcStatus::Success {
            self.break_link_of(index);
        }
        Ok(())
    }

    /// Errors that may befall an end now.
    fn tolerance(&self, index: usize) -> Tolerance {
        let troubled = self.closing || self.troubled(index);
        let alive = |s: QpState| matches!(s, QpState::Rtr | QpState::Rts | QpState::Sqd);
        let peer = self.ends[index].peer;
        let peer_alive = self.ends[peer].alive && self.state(peer).is_some_and(alive);
        let revoked = self.ends[index].link.and_then(|l| self.links[l].revoked);
        let bind = revoked.is_some_and(|r| r.0 == index);
        let revoked = revoked.filter(|r| r.0 == peer).map(|r| r.1);
        Tolerance {
            // A repeated READ of a region that is gone is dropped without an answer.
            retry_exceeded: troubled && (!peer_alive || revoked.is_some()),
            access: revoked,
            bind,
            flush: troubled && matches!(self.state(index), Some(QpState::Err | QpState::Sqe)),
        }
    }

    /// A request has ended: judge what it did.
    pub(crate) fn ended(&mut self, index: usize, posted: &Posted, outcome: Outcome) -> Verdict {
        match outcome {
            Outcome::Done => {
                self.report.done += 1;
                self.succeeded(index, posted)?;
            }
            Outcome::Failed(_) => {
                self.report.failed += 1;
                self.failed(index, posted)?;
            }
        }
        let end = &mut self.ends[index];
        if !posted.pieces.is_empty() {
            end.ring.give_back();
        }
        Ok(())
    }

    fn succeeded(&mut self, index: usize, posted: &Posted) -> Verdict {
        let (peer, reliable) = (self.ends[index].peer, self.ends[index].kind.is_reliable());
        match posted.action {
            Action::Send => self.check_consumed(index, posted)?,
            Action::Write {
                offset,
                len,
                message,
            } if reliable => {
                self.check_written(peer, posted, offset, len)?;
                if message {
                    self.check_consumed(index, posted)?;
                }
            }
            Action::AtomicWrite { offset } => self.check_written(peer, posted, offset, 8)?,
            Action::Read { offset, len } => self.check_read(index, posted, offset, len)?,
            Action::Atomic { word } => self.check_atomic(index, posted, word),
            Action::Flush { .. } => self.check_flushed(index, posted)?,
            Action::LocalInv { key } => self.invalidated(index, RKey(key))?,
            Action::Bind { window, shown } => self.bound(index, window, shown)?,
            Action::Write { .. } | Action::Datagram { .. } | Action::Marker => {}
        }
        Ok(())
    }

    /// A reliable message that was acknowledged has been received.
    fn check_consumed(&self, index: usize, posted: &Posted) -> Verdict {
        let end = &self.ends[index];
        let waits = |m: &(crate::check::receives::Message, bool)| m.0.wr_id == posted.wr_id;
        if end.kind.is_reliable() && self.ends[end.peer].inbox.iter().any(waits) {
            let what = format!("{posted:?} succeeded but was not received");
            return Err(Violation::new(Checker::Receives, what));
        }
        Ok(())
    }

    fn check_written(&mut self, peer: usize, posted: &Posted, offset: u64, len: u64) -> Verdict {
        let end = &mut self.ends[peer];
        end.target.retire(posted.seq);
        let memory = &self.fabric.host(end.host).env.memory;
        let bytes = memory.peek(end.target.span.addr + offset, len);
        let what = format!("after {:#x}", posted.wr_id);
        end.target.check(&what, offset, bytes, u64::MAX)
    }

    fn check_read(&mut self, index: usize, posted: &Posted, offset: u64, len: u64) -> Verdict {
        let end = &self.ends[index];
        let bytes = self.gather(end.host, &posted.pieces, len);
        // A later request may have overtaken the fetching of the data, unless a fence holds it.
        let holds = |p: &&Posted| p.fence || matches!(p.action, Action::LocalInv { .. });
        let limit = end.sends.outstanding().iter().find(holds);
        let limit = limit.map_or(u64::MAX, |p| p.seq);
        let what = format!("READ {:#x}", posted.wr_id);
        self.ends[end.peer]
            .target
            .check(&what, offset, &bytes, limit)?;
        self.note_sink(index, posted);
        Ok(())
    }

    fn check_atomic(&mut self, index: usize, posted: &Posted, word: usize) {
        let end = &self.ends[index];
        let mut old = [0; 8];
        old.copy_from_slice(&self.gather(end.host, &posted.pieces, 8));
        let old = u64::from_ne_bytes(old);
        let stream = stream_of(index, end.life);
        let new = self.words[word].ledger.answered(stream, posted.seq, old);
        self.ends[index].last_word = new.unwrap_or(old);
        self.note_sink(index, posted);
    }

    fn check_flushed(&self, index: usize, posted: &Posted) -> Verdict {
        let Action::Flush {
            rkey,
            va,
            len,
            whole_region,
            placement,
        } = posted.action
        else {
            return Ok(());
        };
        let peer = &self.ends[self.ends[index].peer];
        let flushes = &self.fabric.host(peer.host).env.flushes;
        let done = flushes.iter().any(|f| {
            let range = whole_region || (f.va == va && f.len == len);
            let same = f.whole_region == whole_region && f.placement == placement;
            range && same && f.rkey == rkey && f.qpn == peer.qpn
        });
        if done {
            return Ok(());
        }
        let what = format!("{posted:?} succeeded and nothing was flushed");
        Err(Violation::new(Checker::Sends, what))
    }

    fn failed(&mut self, index: usize, posted: &Posted) -> Verdict {
        match posted.action {
            Action::Atomic { word } => {
                let stream = stream_of(index, self.ends[index].life);
                self.words[word].ledger.lost(stream, posted.seq);
                self.note_sink(index, posted);
            }
            Action::Read { .. } => self.note_sink(index, posted),
            Action::Bind { window, shown } => self.not_bound(index, window, shown)?,
            _ => {}
        }
        Ok(())
    }

    /// What is in a sink now is what stays there.
    pub(crate) fn note_sink(&mut self, index: usize, posted: &Posted) {
        let end = &mut self.ends[index];
        let memory = &self.fabric.host(end.host).env.memory;
        for piece in &posted.pieces {
            end.local
                .note(piece.addr, memory.peek(piece.addr, piece.len));
        }
    }

    // ---- receives

    fn receive_completion(&mut self, index: usize, done: &Completed) -> Verdict {
        let pool = self.ends[index].pool;
        let receive = self.pools[pool].ledger.complete(&done.wc)?;
        if done.wc.status == WcStatus::Success {
            if self.ends[index].receive_flushed {
                return Err(wrong(&done.wc, "succeeds after a flush"));
            }
            self.message_arrived(index, pool, &receive, done)?;
            self.report.received += 1;
            return self.refill_pool(pool);
        }
        self.receive_failed(index, done)?;
        self.release(pool, &receive, true)?;
        if self.pools[pool].srq.is_some() {
            return self.refill_pool(pool);
        }
        Ok(())
    }

    fn receive_failed(&mut self, index: usize, done: &Completed) -> Verdict {
        let state = self.state(index);
        let troubled = self.closing || self.troubled(index);
        let shared = self.pools[self.ends[index].pool].srq.is_some();
        let end = &mut self.ends[index];
        let allowed = match done.wc.status {
            // Of a shared queue only the receive of a message in progress is flushed.
            WcStatus::WrFlushErr => {
                troubled && state == Some(QpState::Err) && !(shared && end.receive_flushed)
            }
            status => !end.receive_flushed && end.receive_error.take() == Some(status),
        };
        end.receive_flushed = true;
        self.break_link_of(index);
        if allowed {
            return Ok(());
        }
        Err(wrong(&done.wc, "is an error that nothing explains"))
    }

    fn message_arrived(
        &mut self,
        index: usize,
        pool: usize,
        receive: &PostedReceive,
        done: &Completed,
    ) -> Verdict {
        if self.ends[index].kind.is_reliable() {
            let Some((message, _)) = self.ends[index].inbox.pop_front() else {
                return Err(wrong(&done.wc, "receives what nobody sent"));
            };
            self.check_received(pool, receive, done, &message)?;
            if let Some(rkey) = message.inv {
                self.invalidated(index, rkey)?;
            }
            return self.release(pool, receive, false);
        }
        let at = self.find_message(index, pool, receive, done)?;
        let (message, _) = self.ends[index].inbox[at].clone();
        self.ends[index].inbox[at].1 = true;
        self.check_received(pool, receive, done, &message)?;
        // A message broken off in the middle leaves bytes in the receive that the next one uses.
        let dirty = !self.plan.faults.is_quiet() || self.troubled(index);
        self.release(pool, receive, dirty)
    }

    /// Which unreliable message this is. Without disorder in the network they come in order.
    fn find_message(
        &self,
        index: usize,
        pool: usize,
        receive: &PostedReceive,
        done: &Completed,
    ) -> Verdict<usize> {
        let end = &self.ends[index];
        let orderly = !self.plan.faults.disorders() && end.kind == QpType::Uc;
        let twice = self.plan.faults.duplicate.num != 0;
        let newest = end.inbox.iter().rposition(|m| m.1);
        let extra = if end.kind == QpType::Ud {
            super::pool::GRH_BYTES
        } else {
            0
        };
        let bytes = self.received(pool, receive, done.wc.byte_len);
        let payload = bytes.get(extra as usize..).unwrap_or(&[]);
        let fits = |at: usize| {
            let (message, arrived) = &end.inbox[at];
            if *arrived && !twice || orderly && newest.is_some_and(|n| at <= n) {
                return false;
            }
            if message.check(done, extra).is_err() {
                return false;
            }
            let mut expected = vec![0; message.len as usize];
            rocebud_fabric::fill(message.stream, 0, &mut expected);
            let area = bytes.get(..extra as usize).unwrap_or(&[]);
            let header = extra == 0 || check_grh(message, area).is_ok();
            header && (message.write || payload == expected)
        };
        // One that has not arrived is the better explanation.
        let fresh = (0..end.inbox.len()).find(|&at| !end.inbox[at].1 && fits(at));
        fresh
            .or_else(|| (0..end.inbox.len()).find(|&at| fits(at)))
            .ok_or_else(|| {
                wrong(
                    &done.wc,
                    "receives what nobody sent (or twice, or too late)",
                )
            })
    }

    // ---- events

    fn event(&mut self, host: HostId, event: AsyncEvent) -> Verdict {
        let odd = || Violation::new(Checker::Events, format!("h{}: {event:?}", host.0));
        let (qpn, kind) = match event {
            AsyncEvent::Qp { qpn, kind } => (qpn, kind),
            AsyncEvent::Srq {
                kind: EventKind::SrqLimitReached,
                srq,
            } => return self.limit_reached(host, srq),
            AsyncEvent::Srq { .. } | AsyncEvent::Cq { .. } => return Err(odd()),
        };
        let index = self.by_qpn.get(&qpn.value()).copied().ok_or_else(odd)?;
        match kind {
            EventKind::CommEst => Ok(()),
            EventKind::SqDrained => self.drained(index),
            EventKind::QpReqErr | EventKind::QpAccessErr if self.troubled(index) => {
                self.break_link_of(index);
                Ok(())
            }
            EventKind::QpLastWqeReached => {
                let shared = self.pools[self.ends[index].pool].srq.is_some();
                self.ends[index].last_wqe += 1;
                if shared && self.ends[index].last_wqe == 1 {
                    return Ok(());
                }
                Err(odd())
            }
            _ => Err(odd()),
        }
    }

    fn limit_reached(&mut self, host: HostId, srq: SrqId) -> Verdict {
        let shared = |p: &&mut super::Pool| p.host == host && p.srq == Some(srq);
        match self.pools.iter_mut().find(shared) {
            Some(pool) if pool.limit != 0 => {
                pool.limit = 0;
                Ok(())
            }
            _ => {
                let what = format!("h{}: SRQ limit event that was not armed", host.0);
                Err(Violation::new(Checker::Events, what))
            }
        }
    }
}
