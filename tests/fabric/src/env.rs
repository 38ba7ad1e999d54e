//! The engine's world on a simulated host: model memory, completion queues, logs.

use std::collections::{BTreeMap, VecDeque};

use rocebud_engine::{CqOverrun, Env, LocalFault, RemoteFault, Scope};
use rocebud_objects::{
    Access, AsyncEvent, AtomicOp, BindFault, Counter, CqId, FlushPlacement, InvalidateFault,
    MwBind, Note, PdId, Wc,
};
use rocebud_wire::{Gid, LKey, Qpn, RKey};

use crate::memory::Memory;

/// Lines of queue pairs' stories that are kept for a failure report.
const NOTES_MAX: usize = 64;

/// A completion and whether it counts for a solicited-only arm.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completed {
    /// As the application polls it.
    pub wc: Wc,
    /// Message carried the solicited-event bit.
    pub solicited: bool,
}

#[derive(Debug)]
struct Cq {
    cqe: usize,
    queue: VecDeque<Completed>,
}

/// A FLUSH that was executed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Flushed {
    /// Queue pair that served it.
    pub qpn: Qpn,
    /// Region.
    pub rkey: RKey,
    /// First address; meaningless when the whole region was named.
    pub va: u64,
    /// Bytes; meaningless when the whole region was named.
    pub len: u64,
    /// The whole region.
    pub whole_region: bool,
    /// FETH.PLT.
    pub placement: u8,
}

/// Everything that an engine reaches on its host.
#[derive(Debug)]
pub struct HostEnv {
    /// Bytes and keys.
    pub memory: Memory,
    /// Executed flushes, oldest first.
    pub flushes: Vec<Flushed>,
    /// Asynchronous events, oldest first; the application takes them.
    pub events: VecDeque<AsyncEvent>,
    /// So many times from now the world says that a peer's buffer has no room.
    pub refuse_room: u32,
    /// So many times from now it says that a peer has not read what it got.
    pub behind: u32,
    /// The last lines of all queue pairs' stories.
    pub notes: VecDeque<(Qpn, Note)>,
    /// Planted bug: a write that ends with its region goes one byte further.
    #[cfg(feature = "planted")]
    pub write_past_region: bool,
    cqs: BTreeMap<CqId, Cq>,
    counters: Vec<u64>,
}

impl HostEnv {
    /// A host with the given memory and nothing else.
    #[must_use]
    pub fn new(memory: Memory) -> Self {
        Self {
            memory,
            flushes: Vec::new(),
            events: VecDeque::new(),
            refuse_room: 0,
            behind: 0,
            notes: VecDeque::new(),
            #[cfg(feature = "planted")]
            write_past_region: false,
            cqs: BTreeMap::new(),
            counters: vec![0; Counter::ALL.len()],
        }
    }

    /// Makes a completion queue of `cqe` entries.
    pub fn create_cq(&mut self, cq: CqId, cqe: usize) {
        let queue = VecDeque::new();
        self.cqs.insert(cq, Cq { cqe, queue });
    }

    /// Takes the oldest completion.
    pub fn poll_cq(&mut self, cq: CqId) -> Option<Completed> {
        self.cqs.get_mut(&cq)?.queue.pop_front()
    }

    /// Forgets the unpolled completions of a queue pair, as a move to RESET does.
    pub fn purge(&mut self, qpn: Qpn) {
        for cq in self.cqs.values_mut() {
            cq.queue.retain(|c| c.wc.qp_num != qpn);
        }
    }

    /// Value of a counter.
    #[must_use]
    pub fn counter(&self, counter: Counter) -> u64 {
        self.counters[counter as usize]
    }

    /// A local range that is about to be touched.
    fn touch_local(
        &self,
        pd: PdId,
        lkey: LKey,
        addr: u64,
        len: u64,
        write: bool,
    ) -> Result<u64, LocalFault> {
        let at = self.memory.local(pd, lkey.0, addr, len, write)?;
        if self.is_unmapped(lkey.0) {
            return Err(LocalFault::Page);
        }
        Ok(at)
    }

    /// A remote range that is about to be touched.
    fn touch_remote(
        &self,
        scope: Scope,
        rkey: RKey,
        va: u64,
        len: u64,
        need: Access,
    ) -> Result<u64, RemoteFault> {
        let at = self.memory.remote(scope, rkey.0, va, len, need)?;
        if self.is_unmapped(rkey.0) {
            return Err(RemoteFault::Page);
        }
        Ok(at)
    }

    fn is_unmapped(&self, key: u32) -> bool {
        let window = self.memory.window(RKey(key)).and_then(|w| w.binding);
        let key = window.map_or(key, |b| b.lkey.0);
        self.memory.region(key).is_some_and(|r| r.unmapped)
    }

    /// Copies to the arena. `key` is known to cover the range.
    fn store(&mut self, key: u32, at: u64, src: &[u8]) {
        self.memory.poke(at, src.len() as u64).copy_from_slice(src);
        #[cfg(feature = "planted")]
        self.store_past_region(key, at + src.len() as u64);
        #[cfg(not(feature = "planted"))]
        let _ = key;
    }

    #[cfg(feature = "planted")]
    fn store_past_region(&mut self, key: u32, end: u64) {
        let at_end = self
            .memory
            .region(key)
            .is_some_and(|r| r.span.addr + r.span.len == end);
        if self.write_past_region && at_end {
            self.memory.poke(end, 1)[0] ^= 0x55;
        }
    }
}

impl Env for HostEnv {
    fn check_local(
        &self,
        pd: PdId,
        lkey: LKey,
        addr: u64,
        len: u64,
        write: bool,
    ) -> Result<(), LocalFault> {
        self.memory.local(pd, lkey.0, addr, len, write).map(|_| ())
    }

    fn check_remote(
        &self,
        scope: Scope,
        rkey: RKey,
        va: u64,
        len: u64,
        need: Access,
    ) -> Result<(), RemoteFault> {
        self.memory.remote(scope, rkey.0, va, len, need).map(|_| ())
    }

    fn read_local(
        &mut self,
        pd: PdId,
        lkey: LKey,
        addr: u64,
        dst: &mut [u8],
    ) -> Result<(), LocalFault> {
        let len = dst.len() as u64;
        let at = self.touch_local(pd, lkey, addr, len, false)?;
        dst.copy_from_slice(self.memory.peek(at, len));
        Ok(())
    }

    fn write_local(
        &mut self,
        pd: PdId,
        lkey: LKey,
        addr: u64,
        src: &[u8],
    ) -> Result<(), LocalFault> {
        let at = self.touch_local(pd, lkey, addr, src.len() as u64, true)?;
        self.store(lkey.0, at, src);
        Ok(())
    }

    fn read_remote(
        &mut self,
        scope: Scope,
        rkey: RKey,
        va: u64,
        dst: &mut [u8],
    ) -> Result<(), RemoteFault> {
        let len = dst.len() as u64;
        let at = self.touch_remote(scope, rkey, va, len, Access::REMOTE_READ)?;
        dst.copy_from_slice(self.memory.peek(at, len));
        Ok(())
    }

    fn write_remote(
        &mut self,
        scope: Scope,
        rkey: RKey,
        va: u64,
        src: &[u8],
    ) -> Result<(), RemoteFault> {
        let need = Access::REMOTE_WRITE;
        let at = self.touch_remote(scope, rkey, va, src.len() as u64, need)?;
        self.store(rkey.0, at, src);
        Ok(())
    }

    fn atomic_remote(
        &mut self,
        scope: Scope,
        rkey: RKey,
        va: u64,
        op: AtomicOp,
    ) -> Result<u64, RemoteFault> {
        let at = self.touch_remote(scope, rkey, va, 8, Access::REMOTE_ATOMIC)?;
        let mut word = [0; 8];
        word.copy_from_slice(self.memory.peek(at, 8));
        let old = u64::from_ne_bytes(word);
        let new = match op {
            AtomicOp::CmpSwap { compare, swap } if old == compare => swap,
            AtomicOp::CmpSwap { .. } => old,
            AtomicOp::FetchAdd { add } => old.wrapping_add(add),
        };
        self.store(rkey.0, at, &new.to_ne_bytes());
        Ok(old)
    }

    fn atomic_write_remote(
        &mut self,
        scope: Scope,
        rkey: RKey,
        va: u64,
        value: [u8; 8],
    ) -> Result<(), RemoteFault> {
        self.write_remote(scope, rkey, va, &value)
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
        let need = FlushPlacement(placement).needs();
        let iova = self.memory.region(rkey.0).map_or(0, |r| r.iova);
        let (from, bytes) = if whole_region { (iova, 0) } else { (va, len) };
        self.touch_remote(scope, rkey, from, bytes, need)?;
        self.flushes.push(Flushed {
            qpn: scope.qpn,
            rkey,
            va,
            len,
            whole_region,
            placement,
        });
        Ok(())
    }

    fn invalidate(&mut self, scope: Scope, rkey: RKey) -> Result<(), InvalidateFault> {
        self.memory.invalidate(scope, rkey)
    }

    fn bind_window(&mut self, scope: Scope, bind: &MwBind) -> Result<(), BindFault> {
        self.memory.bind(scope, bind)
    }

    fn unbind_window(&mut self, rkey: RKey) {
        self.memory.unbind(rkey);
    }

    fn release_windows(&mut self, qpn: Qpn) {
        self.memory.release(qpn);
    }

    fn complete(&mut self, cq: CqId, wc: Wc, solicited: bool) -> Result<(), CqOverrun> {
        let cq = self.cqs.get_mut(&cq).ok_or(CqOverrun)?;
        if cq.queue.len() == cq.cqe {
            return Err(CqOverrun);
        }
        cq.queue.push_back(Completed { wc, solicited });
        Ok(())
    }

    fn has_room(&mut self, _to: Gid, _slot: u16, _bytes: u64) -> bool {
        let refused = self.refuse_room != 0;
        self.refuse_room = self.refuse_room.saturating_sub(1);
        !refused
    }

    fn is_behind(&mut self, _to: Gid, _slot: u16) -> bool {
        let behind = self.behind != 0;
        self.behind = self.behind.saturating_sub(1);
        behind
    }

    fn event(&mut self, event: AsyncEvent) {
        self.events.push_back(event);
    }

    fn count(&mut self, counter: Counter, n: u64) {
        self.counters[counter as usize] += n;
    }

    fn note(&mut self, qpn: Qpn, note: Note) {
        if self.notes.len() == NOTES_MAX {
            self.notes.pop_front();
        }
        self.notes.push_back((qpn, note));
    }
}
