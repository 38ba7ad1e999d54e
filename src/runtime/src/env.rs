//! The engine's world: real memory behind real keys, completion queues, events, counters.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use rocebud_ctl::PageSet;
use rocebud_ctl::page::{QpCount, QpRecord};
use rocebud_engine::{CqOverrun, Env, LocalFault, RemoteFault, Scope};
use rocebud_mem::Guard;
use rocebud_objects::{
    Access, AsyncEvent, AtomicOp, BindFault, Counter, CqId, FlushPlacement, Instant,
    InvalidateFault, MwBind, Note, NoteKind, PdId, QpState, SrqId, Wc,
};
use rocebud_wire::{Gid, LKey, Qpn, RKey};

use crate::context::{ContextShared, Element, QpShared, SrqShared};
use crate::cq::{Cq, Event};
use crate::flow::Flow;
use crate::keys::{KeyTable, Spot};
use crate::{sys, unanswered};

/// Who is behind the numbers that the engine knows.
#[derive(Debug, Default)]
pub(crate) struct Directory {
    cqs: Vec<Option<Arc<Cq>>>,
    /// Places in `cqs` that are empty.
    free_cqs: Vec<CqId>,
    pub(crate) qps: HashMap<Qpn, Arc<QpShared>>,
    pub(crate) srqs: HashMap<SrqId, Arc<SrqShared>>,
    /// Completion queues whose event is held back.
    held_back: RefCell<Vec<CqId>>,
    /// When the first of those events is due.
    due_ns: Cell<Option<u64>>,
    /// Events wait for the rest of what came together.
    gathers: Cell<bool>,
    gathered: RefCell<Vec<Arc<Cq>>>,
}

impl Directory {
    /// When [`Directory::fire_due`] must be called, if ever.
    #[inline]
    pub(crate) fn due_ns(&self) -> Option<u64> {
        self.due_ns.get()
    }

    /// Makes the completion events whose time has come.
    #[cold]
    pub(crate) fn fire_due(&self, now_ns: u64) {
        let mut next = None;
        self.held_back.borrow_mut().retain(|id| {
            let due = self.cq(*id).and_then(|cq| cq.fire_if_due(now_ns));
            next = [next, due].into_iter().flatten().min();
            due.is_some()
        });
        self.due_ns.set(next);
    }

    /// What comes from now on came together, until [`Directory::tell`]: a program that one of its
    /// completions wakes finds the others, too. A message and the acknowledgement that rides with it
    /// come in one batch, the shorter last; programs that wait for both on one channel
    /// (`ib_send_lat -e`) are used to the acknowledgement being first.
    #[inline]
    pub(crate) fn gather(&self) {
        self.gathers.set(true);
    }

    /// Makes the events of what came together.
    #[inline]
    pub(crate) fn tell(&self) {
        self.gathers.set(false);
        if !self.gathered.borrow().is_empty() {
            self.tell_gathered();
        }
    }

    #[cold]
    fn tell_gathered(&self) {
        self.gathered
            .borrow_mut()
            .drain(..)
            .for_each(|cq| cq.notify());
    }

    fn complete(&self, id: CqId, wc: Wc, solicited: bool) -> Result<(), CqOverrun> {
        // Destroying a queue is refused while queue pairs use it.
        let cq = self.cq(id).ok_or(CqOverrun)?;
        match cq.push(wc, solicited)? {
            Event::No => (),
            Event::At(due_ns) => self.hold_back(id, due_ns),
            Event::Now => self.notify(cq),
        }
        Ok(())
    }

    fn notify(&self, cq: &Arc<Cq>) {
        if self.gathers.get() {
            self.gathered.borrow_mut().push(Arc::clone(cq));
        } else {
            cq.notify();
        }
    }

    #[cold]
    fn hold_back(&self, cq: CqId, due_ns: u64) {
        let mut held_back = self.held_back.borrow_mut();
        if !held_back.contains(&cq) {
            held_back.push(cq);
        }
        let due = self.due_ns.get().map_or(due_ns, |first| first.min(due_ns));
        self.due_ns.set(Some(due));
    }

    /// The number that the next completion queue gets.
    pub(crate) fn next_cq(&self) -> CqId {
        let fresh = || CqId(u32::try_from(self.cqs.len()).unwrap_or(u32::MAX));
        self.free_cqs.last().copied().unwrap_or_else(fresh)
    }

    /// Adds a completion queue under [`Directory::next_cq`].
    pub(crate) fn add_cq(&mut self, cq: Arc<Cq>) {
        match self.free_cqs.pop() {
            Some(id) => self.cqs[id.0 as usize] = Some(cq),
            None => self.cqs.push(Some(cq)),
        }
    }

    pub(crate) fn remove_cq(&mut self, id: CqId) {
        if let Some(place) = self.cqs.get_mut(id.0 as usize)
            && place.take().is_some()
        {
            self.free_cqs.push(id);
        }
    }

    pub(crate) fn remove_cqs_of(&mut self, context: &Arc<ContextShared>) {
        let all = self.cqs.iter().flatten();
        let theirs = all.filter(|cq| Arc::ptr_eq(&cq.context, context));
        let ids: Vec<CqId> = theirs.map(|cq| cq.id).collect();
        ids.into_iter().for_each(|id| self.remove_cq(id));
    }

    pub(crate) fn cq(&self, id: CqId) -> Option<&Arc<Cq>> {
        self.cqs.get(id.0 as usize)?.as_ref()
    }

    pub(crate) fn cqs(&self) -> usize {
        self.cqs.len() - self.free_cqs.len()
    }
}

/// The world during one turn. Only the holder of the engine's lock has one.
pub(crate) struct World<'a> {
    pub(crate) keys: &'a KeyTable,
    pub(crate) pages: &'a PageSet,
    pub(crate) dir: &'a Directory,
    pub(crate) flow: &'a mut Flow,
    pub(crate) now: Instant,
    /// Made by the first access to memory: it costs a system call, and inline data, ACKs and polls
    /// in vain touch none.
    pub(crate) guard: Option<Guard>,
}

impl World<'_> {
    #[inline]
    fn guard(&mut self) {
        self.guard.get_or_insert_with(Guard::new);
    }

    /// Counters are written by the holder of the engine's lock alone, so no locked instruction is
    /// needed.
    #[inline]
    pub(crate) fn add(&self, counter: Counter, n: u64) {
        let cell = self.pages.counter(counter);
        cell.store(cell.load(Ordering::Relaxed) + n, Ordering::Relaxed);
    }
}

impl World<'_> {
    /// A count of one queue pair.
    #[inline]
    pub(crate) fn add_to_qp(&self, qpn: Qpn, count: QpCount) {
        if let Some(record) = self.pages.qp_record(qpn) {
            let cell = record.count(count);
            cell.store(cell.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        }
    }
}

impl Env for World<'_> {
    fn check_local(
        &self,
        pd: PdId,
        lkey: LKey,
        addr: u64,
        len: u64,
        write: bool,
    ) -> Result<(), LocalFault> {
        self.keys.local(pd, lkey, addr, len, write, |_| Ok(()))
    }

    fn check_remote(
        &self,
        scope: Scope,
        rkey: RKey,
        va: u64,
        len: u64,
        need: Access,
    ) -> Result<(), RemoteFault> {
        self.keys.remote(scope, rkey, va, len, need, |_| Ok(()))
    }

    fn read_local(
        &mut self,
        pd: PdId,
        lkey: LKey,
        addr: u64,
        dst: &mut [u8],
    ) -> Result<(), LocalFault> {
        self.guard();
        let len = dst.len() as u64;
        self.keys.local(pd, lkey, addr, len, false, |at| match at {
            Spot::At(at) => rocebud_mem::copy_in(dst, at).map_err(|_| LocalFault::Page),
            Spot::Nowhere => {
                dst.fill(0);
                Ok(())
            }
        })
    }

    fn write_local(
        &mut self,
        pd: PdId,
        lkey: LKey,
        addr: u64,
        src: &[u8],
    ) -> Result<(), LocalFault> {
        self.guard();
        let len = src.len() as u64;
        self.keys.local(pd, lkey, addr, len, true, |at| match at {
            Spot::At(at) => rocebud_mem::copy_out(at, src).map_err(|_| LocalFault::Page),
            Spot::Nowhere => Ok(()),
        })
    }

    fn read_remote(
        &mut self,
        scope: Scope,
        rkey: RKey,
        va: u64,
        dst: &mut [u8],
    ) -> Result<(), RemoteFault> {
        self.guard();
        let len = dst.len() as u64;
        let need = Access::REMOTE_READ;
        self.keys.remote(scope, rkey, va, len, need, |at| {
            rocebud_mem::copy_in(dst, at).map_err(|_| RemoteFault::Page)
        })
    }

    fn write_remote(
        &mut self,
        scope: Scope,
        rkey: RKey,
        va: u64,
        src: &[u8],
    ) -> Result<(), RemoteFault> {
        self.guard();
        let len = src.len() as u64;
        let need = Access::REMOTE_WRITE;
        self.keys.remote(scope, rkey, va, len, need, |at| {
            rocebud_mem::copy_out(at, src).map_err(|_| RemoteFault::Page)
        })
    }

    fn atomic_remote(
        &mut self,
        scope: Scope,
        rkey: RKey,
        va: u64,
        op: AtomicOp,
    ) -> Result<u64, RemoteFault> {
        self.guard();
        let need = Access::REMOTE_ATOMIC;
        self.keys.remote(scope, rkey, va, 8, need, |at| {
            match op {
                AtomicOp::CmpSwap { compare, swap } => {
                    rocebud_mem::atomic_cmp_swap(at, compare, swap)
                }
                AtomicOp::FetchAdd { add } => rocebud_mem::atomic_fetch_add(at, add),
            }
            .map_err(|_| RemoteFault::Page)
        })
    }

    fn atomic_write_remote(
        &mut self,
        scope: Scope,
        rkey: RKey,
        va: u64,
        value: [u8; 8],
    ) -> Result<(), RemoteFault> {
        self.guard();
        let need = Access::REMOTE_WRITE;
        self.keys.remote(scope, rkey, va, 8, need, |at| {
            rocebud_mem::store_u64(at, u64::from_ne_bytes(value))
                .map(|_| ())
                .map_err(|_| RemoteFault::Page)
        })
    }

    fn flush_remote(
        &mut self,
        scope: Scope,
        rkey: RKey,
        va: u64,
        len: u64,
        whole_region: bool,
        placement: u8,
    ) -> Result<(), RemoteFault> {
        self.guard();
        let persistent = placement & FlushPlacement::PERSISTENT != 0;
        let need = FlushPlacement(placement).needs();
        let act = |addr: u64, len: u64| {
            // Our stores are visible to every observer once this fence has passed.
            fence(Ordering::SeqCst);
            if persistent && !sys::persist(addr, len) {
                return Err(RemoteFault::Page);
            }
            Ok(())
        };
        if whole_region {
            self.keys.remote_whole(scope, rkey, need, act)
        } else {
            self.keys
                .remote(scope, rkey, va, len, need, |at| act(at as u64, len))
        }
    }

    fn invalidate(&mut self, scope: Scope, rkey: RKey) -> Result<(), InvalidateFault> {
        self.keys.invalidate(scope, rkey)
    }

    fn bind_window(&mut self, scope: Scope, bind: &MwBind) -> Result<(), BindFault> {
        self.keys.bind_window(scope, bind)
    }

    fn unbind_window(&mut self, rkey: RKey) {
        self.keys.unbind_window(rkey);
    }

    fn release_windows(&mut self, qpn: Qpn) {
        self.keys.release_windows(qpn);
    }

    fn complete(&mut self, cq: CqId, wc: Wc, solicited: bool) -> Result<(), CqOverrun> {
        self.dir.complete(cq, wc, solicited)
    }

    fn has_room(&mut self, to: Gid, slot: u16, bytes: u64) -> bool {
        self.flow.has_room(to, slot, bytes, self.now.0)
    }

    fn is_behind(&mut self, to: Gid, slot: u16) -> bool {
        self.flow.is_behind(to, slot)
    }

    fn event(&mut self, event: AsyncEvent) {
        match event {
            AsyncEvent::Qp { qpn, kind } => {
                if let Some(qp) = self.dir.qps.get(&qpn) {
                    qp.raise(kind);
                }
            }
            AsyncEvent::Cq { cq, kind } => {
                if let Some(cq) = self.dir.cq(cq) {
                    cq.context.raise(kind, Element::Cq(Arc::clone(cq)));
                }
            }
            AsyncEvent::Srq { srq, kind } => {
                if let Some(srq) = self.dir.srqs.get(&srq) {
                    srq.context.raise(kind, Element::Srq(Arc::clone(srq)));
                }
            }
        }
    }

    #[inline]
    fn count(&mut self, counter: Counter, n: u64) {
        self.add(counter, n);
    }

    fn note(&mut self, qpn: Qpn, note: Note) {
        self.pages.note(qpn, self.now, note);
        if note.kind == NoteKind::State
            && let Some(state) = QpState::from_verbs(note.arg)
            && let Some(record) = self.pages.qp_record(qpn)
        {
            record.set_state(state);
        }
        if unanswered::is_meant(&note)
            && let Some(peer) = self.pages.qp_record(qpn).and_then(QpRecord::identity)
        {
            unanswered::tell(qpn, peer.dgid.ip());
        }
    }
}

#[cfg(test)]
mod tests;
