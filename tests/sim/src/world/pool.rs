//! Receive buffers: of a queue pair, or of a shared receive queue.

use rocebud_engine::SrqMask;
use rocebud_fabric::{Completed, HostId, Rng, Span, fill, mix};
use rocebud_objects::{AsyncEvent, CqId, RecvWr, Sge, SrqAttr, SrqId, Wc};
use rocebud_wire::LKey;

use super::alarm::Alarm;
use super::ring::cut;
use super::{World, refused};
use crate::check::bytes::LocalModel;
use crate::check::receives::{Message, PostedReceive, ReceiveLedger, check_grh};
use crate::plan::ReceivePlan;
use crate::violation::{Checker, Verdict, Violation};

/// Bytes between two buffers: they belong to the region, and nobody may write them.
const SEAM_BYTES: u64 = 16;

/// Room for a global route header.
pub(crate) const GRH_BYTES: u32 = 40;

#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) host: HostId,
    pub(crate) srq: Option<SrqId>,
    /// Where its receives complete, if it is of the type XRC.
    pub(crate) xrc_cq: Option<CqId>,
    /// Queue pair that it serves alone.
    pub(crate) owner: Option<usize>,
    pub(crate) plan: ReceivePlan,
    pub(crate) ledger: ReceiveLedger,
    /// Bytes that one receive takes.
    pub(crate) capacity: u32,
    /// Receives of the shared queue that a queue pair may have taken with it into RESET.
    pub(crate) lost_max: u32,
    /// Limit that is armed; 0 = none.
    pub(crate) limit: u32,
    model: LocalModel,
    key: u32,
    free: Vec<usize>,
    next: u64,
    waiting: bool,
    rng: Rng,
}

/// What a pool is for.
pub(crate) struct PoolInit {
    pub(crate) host: HostId,
    pub(crate) srq: Option<SrqId>,
    pub(crate) owner: Option<usize>,
    pub(crate) plan: ReceivePlan,
    pub(crate) datagrams: bool,
}

/// Shared receives that may vanish with queue pairs are replaced up to this many.
pub(crate) const SPARE: u32 = 32;

impl World {
    pub(crate) fn add_pool(&mut self, init: PoolInit) -> usize {
        let PoolInit { plan, host, .. } = init;
        let capacity = plan.buffer + if init.datagrams { GRH_BYTES } else { 0 };
        let slots = plan.depth + SPARE + 1;
        let len = (u64::from(capacity) + SEAM_BYTES) * u64::from(slots);
        let (span, key) = self.region(host, len, 1, rocebud_objects::Access::LOCAL_WRITE);
        let bytes = self.fabric.host(host).env.memory.peek(span.addr, span.len);
        let pool = Pool {
            host,
            srq: init.srq,
            xrc_cq: None,
            owner: init.owner,
            plan,
            ledger: ReceiveLedger::new(init.srq.is_some()),
            capacity,
            lost_max: 0,
            limit: 0,
            model: LocalModel::new(span, bytes),
            key,
            free: (0..slots as usize).collect(),
            next: 0,
            waiting: false,
            rng: self.rng.fork(0x9001),
        };
        self.pools.push(pool);
        self.pools.len() - 1
    }

    /// Posts receives up to the pool's depth.
    pub(crate) fn fill_pool(&mut self, index: usize) -> Verdict {
        let pool = &self.pools[index];
        if pool.owner.is_some_and(|end| !self.ends[end].up) || self.closing {
            return Ok(());
        }
        let wanted = (pool.plan.depth + pool.lost_max.min(SPARE)) as usize;
        while self.pools[index].ledger.len() < wanted {
            self.post_receive(index)?;
        }
        Ok(())
    }

    /// A receive was used: post another, at once or late.
    pub(crate) fn refill_pool(&mut self, index: usize) -> Verdict {
        let pool = &mut self.pools[index];
        if pool.waiting {
            return Ok(());
        }
        if pool.rng.percent(5) {
            self.arm_limit(index)?;
        }
        let pool = &mut self.pools[index];
        if pool.rng.percent(pool.plan.late_percent) {
            pool.waiting = true;
            let delay = pool.rng.below(pool.plan.late_ns_max);
            self.set_alarm(delay, Alarm::Pool(index));
            return Ok(());
        }
        self.fill_pool(index)
    }

    /// Arms the limit of a shared queue.
    fn arm_limit(&mut self, index: usize) -> Verdict {
        let pool = &mut self.pools[index];
        let Some(srq) = pool.srq else { return Ok(()) };
        let srq_limit = pool.rng.range_u32(1, pool.plan.depth);
        // An event that waits to be read is of the limit before.
        let env = &self.fabric.host(pool.host).env;
        if env
            .events
            .iter()
            .any(|e| matches!(e, AsyncEvent::Srq { .. }))
        {
            return Ok(());
        }
        pool.limit = srq_limit;
        let attr = SrqAttr {
            srq_limit,
            ..SrqAttr::default()
        };
        let node = &mut self.fabric.host_mut(pool.host).node;
        node.modify_srq(srq, &attr, SrqMask(SrqMask::LIMIT))
            .map_err(refused)
    }

    pub(crate) fn pool_alarm(&mut self, index: usize) -> Verdict {
        self.pools[index].waiting = false;
        self.fill_pool(index)
    }

    /// Posts one receive. On a queue pair in error this is the marker of a drain.
    pub(crate) fn post_receive(&mut self, index: usize) -> Verdict {
        let pool = &mut self.pools[index];
        let Some(buffer) = pool.free.pop() else {
            return Err(Violation::new(
                Checker::Receives,
                "receives are never given back",
            ));
        };
        let area = pool.area(buffer);
        let wr_id = 1 << 63 | (index as u64) << 32 | pool.next;
        pool.next += 1;
        let mut pattern = vec![0; area.len as usize];
        fill(mix(wr_id), 0, &mut pattern);
        let memory = &mut self.fabric.host_mut(pool.host).env.memory;
        memory.poke(area.addr, area.len).copy_from_slice(&pattern);
        pool.model.note(area.addr, &pattern);
        let whole = Span {
            addr: area.addr,
            len: u64::from(pool.capacity),
        };
        let n = pool.rng.range_u32(1, pool.plan.sge_max);
        let mut pieces = cut(whole, n, &mut pool.rng);
        pool.rng.shuffle(&mut pieces);
        let sges = pieces.iter().map(|p| Sge {
            addr: p.addr,
            length: p.len as u32,
            lkey: LKey(pool.key),
        });
        let wr = RecvWr {
            wr_id,
            sges: sges.collect(),
        };
        pool.ledger.post(PostedReceive {
            wr_id,
            buffer,
            pieces,
        });
        let (host, srq, owner) = (pool.host, pool.srq, pool.owner);
        let now = self.fabric.now();
        let qpn = owner.map(|end| self.ends[end].qpn);
        let host = self.fabric.host_mut(host);
        let done = match (srq, qpn) {
            (Some(srq), _) => host.node.post_srq_recv(srq, wr),
            (None, Some(qpn)) => host.node.post_recv(now, qpn, wr, &mut host.env),
            (None, None) => Ok(()),
        };
        done.map_err(|why| Violation::new(Checker::Calls, format!("post_recv: {why}")))
    }

    /// The first `len` bytes of a receive, in order of its list.
    pub(crate) fn received(&self, index: usize, receive: &PostedReceive, len: u32) -> Vec<u8> {
        self.gather(self.pools[index].host, &receive.pieces, u64::from(len))
    }

    /// Judges what a message left in its receive.
    pub(crate) fn check_received(
        &mut self,
        index: usize,
        receive: &PostedReceive,
        done: &Completed,
        message: &Message,
    ) -> Verdict {
        let extra = if message.datagram.is_some() {
            GRH_BYTES
        } else {
            0
        };
        message.check(done, extra)?;
        if message.write {
            return Ok(());
        }
        let bytes = self.received(index, receive, done.wc.byte_len);
        let (area, payload) = bytes.split_at(extra as usize);
        if message.datagram.is_some() {
            check_grh(message, area)?;
        }
        check_payload(&done.wc, message, payload)?;
        let pool = &mut self.pools[index];
        let mut rest = bytes.as_slice();
        for piece in &receive.pieces {
            let (head, tail) = rest.split_at((piece.len as usize).min(rest.len()));
            pool.model.note(piece.addr, head);
            rest = tail;
        }
        Ok(())
    }

    /// Takes a buffer back. `dirty`: a broken-off message may have left anything in it.
    pub(crate) fn release(
        &mut self,
        index: usize,
        receive: &PostedReceive,
        dirty: bool,
    ) -> Verdict {
        let pool = &mut self.pools[index];
        let area = pool.area(receive.buffer);
        let memory = &self.fabric.host(pool.host).env.memory;
        // A queue pair that goes to RESET in mid-message may give its receive back, half filled.
        if dirty || pool.lost_max > 0 {
            let at = u64::from(pool.capacity);
            pool.model.note(area.addr, memory.peek(area.addr, at));
        }
        let bytes = memory.peek(area.addr, area.len);
        pool.model.check("receive buffer", area.addr, bytes)?;
        pool.free.insert(0, receive.buffer);
        Ok(())
    }

    /// Judges all buffers of a pool; outstanding ones may be half written.
    pub(crate) fn check_pool(&self, index: usize) -> Verdict {
        let pool = &self.pools[index];
        let memory = &self.fabric.host(pool.host).env.memory;
        for &buffer in &pool.free {
            let area = pool.area(buffer);
            let bytes = memory.peek(area.addr, area.len);
            pool.model
                .check("unused receive buffer", area.addr, bytes)?;
        }
        Ok(())
    }
}

impl Pool {
    fn area(&self, buffer: usize) -> Span {
        let len = u64::from(self.capacity) + SEAM_BYTES;
        Span {
            addr: self.model.span.addr + buffer as u64 * len,
            len,
        }
    }
}

fn check_payload(wc: &Wc, message: &Message, payload: &[u8]) -> Verdict {
    let mut expected = vec![0; message.len as usize];
    fill(message.stream, 0, &mut expected);
    if let Some(at) = (0..payload.len()).find(|&i| payload[i] != expected[i]) {
        let what = format!("{wc:?}: byte {at} of {message:?} is wrong");
        return Err(Violation::new(Checker::Bytes, what));
    }
    Ok(())
}
