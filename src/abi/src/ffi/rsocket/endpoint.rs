//! What a connection is made of: a queue pair with one completion queue, both rings, the block
//! that the peer writes, and the stream that says what to post.

use core::ffi::c_void;
use rocebud_objects::{Instant, Misuse};
use rocebud_rsocket::{
    Config, Local, Planned, Received, Source, Stopped, Stream, Work, WorkId, Write,
};

use super::super::boundary::Outcome;
use super::super::cm::types::rdma_cm_id;
use super::super::types::{
    Plain, ibv_pd, ibv_qp, ibv_qp_cap, ibv_qp_init_attr, ibv_recv_wr, ibv_send_wr, ibv_sge,
};
use super::completions::{Completions, Look};
use super::memory::{Mapping, Memory};
use super::verbs::{self, LOCAL_WRITE, REMOTE_WRITE};

/// `IBV_WR_RDMA_WRITE`, `IBV_WR_RDMA_WRITE_WITH_IMM`
const WRITE: u32 = 0;
const WRITE_WITH_IMM: u32 = 1;
/// `IBV_SEND_SIGNALED`, `IBV_SEND_INLINE`
const SIGNALED: u32 = 1 << 1;
const INLINE: u32 = 1 << 3;
/// `IBV_QPT_RC`
const RC: u32 = 2;

/// Inline room for an entry of the iomap table.
const ENTRY_LEN: u32 = 24;

/// Receives posted at a time.
const BATCH: usize = 32;

/// Which end one is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Active,
    Passive,
}

/// See the module.
pub(super) struct Endpoint {
    id: *mut rdma_cm_id,
    qp: *mut ibv_qp,
    completions: Completions,
    pd: *mut ibv_pd,
    memory: Option<Buffers>,
    pub(super) stream: Stream,
    mappings: Vec<Mapping>,
}

struct Buffers {
    send: Memory,
    receive: Memory,
    block: Memory,
}

impl Buffers {
    fn new(pd: *mut ibv_pd, config: &Config) -> Outcome<Self> {
        let remote = LOCAL_WRITE | REMOTE_WRITE;
        let send = Memory::new(pd, config.send_ring as usize, LOCAL_WRITE)?;
        let receive = match Memory::new(pd, config.receive_ring as usize, remote) {
            Ok(receive) => receive,
            Err(e) => {
                send.close();
                return Err(e);
            }
        };
        match Memory::new(pd, config.block_len(), remote) {
            Ok(block) => Ok(Self {
                send,
                receive,
                block,
            }),
            Err(e) => {
                send.close();
                receive.close();
                Err(e)
            }
        }
    }

    fn close(self) {
        self.send.close();
        self.receive.close();
        self.block.close();
    }
}

impl Endpoint {
    /// Makes everything for an identifier that is bound to a device, and posts all receives.
    pub(super) fn new(id: *mut rdma_cm_id, config: Config, role: Role) -> Outcome<Self> {
        // SAFETY: a living identifier of the socket.
        let rdma_cm_id {
            verbs: context, pd, ..
        } = unsafe { id.read() };
        if context.is_null() {
            return Err(Misuse::invalid("the socket is bound to no device"));
        }
        let mut config = config.clamped();
        let entries = u32::from(config.send_queue) + u32::from(config.receive_queue);
        let mut this = Self {
            id,
            qp: core::ptr::null_mut(),
            completions: Completions::new(context, entries)?,
            pd,
            memory: None,
            stream: Stream::connecting(config, Local::default()),
            mappings: Vec::new(),
        };
        let furnished = this
            .create_qp(&mut config)
            .and_then(|()| Buffers::new(this.pd, &config));
        match furnished {
            Ok(memory) => {
                this.begin(config, role, memory);
                Ok(this)
            }
            Err(e) => {
                this.close();
                Err(e)
            }
        }
    }

    fn begin(&mut self, config: Config, role: Role, memory: Buffers) {
        let local = Local {
            ring: memory.receive.region(),
            block: memory.block.region(),
        };
        self.memory = Some(memory);
        self.stream = match role {
            Role::Active => Stream::connecting(config, local),
            Role::Passive => Stream::accepting(config, local),
        };
        self.work();
    }

    fn create_qp(&mut self, config: &mut Config) -> Outcome<()> {
        let mut init = ibv_qp_init_attr::zeroed();
        init.send_cq = self.completions.cq();
        init.recv_cq = self.completions.cq();
        init.qp_type = RC;
        init.sq_sig_all = 1;
        init.cap = ibv_qp_cap {
            max_send_wr: u32::from(config.send_queue),
            max_recv_wr: u32::from(config.receive_queue),
            max_send_sge: 2,
            max_recv_sge: 1,
            max_inline_data: u32::from(config.inline).max(ENTRY_LEN),
        };
        // SAFETY: a living identifier, its protection domain, and an initialised structure.
        let code = unsafe { verbs::rdma_create_qp(self.id, self.pd, &raw mut init) };
        verbs::checked(code, "no queue pair for the socket")?;
        let inline = u16::try_from(init.cap.max_inline_data).unwrap_or(u16::MAX);
        config.inline = config.inline.min(inline);
        // SAFETY: made just now, and the identifier lives.
        self.qp = unsafe { (*self.id).qp };
        Ok(())
    }

    /// Destroys everything but the identifier.
    pub(super) fn close(self) {
        if !self.qp.is_null() {
            // SAFETY: the identifier's own queue pair.
            unsafe { verbs::rdma_destroy_qp(self.id) };
        }
        for mapping in self.mappings {
            mapping.close();
        }
        if let Some(memory) = self.memory {
            memory.close();
        }
        self.completions.close();
    }

    pub(super) const fn completions(&self) -> &Completions {
        &self.completions
    }

    /// Hands completions to the stream, and posts what it wants posted.
    pub(super) fn look(&mut self, how: Look) {
        let (stream, memory) = (&mut self.stream, self.memory.as_ref());
        self.completions.take(how, |wc| {
            let good = wc.status == 0;
            let id = WorkId(wc.wr_id);
            if id != WorkId::RECEIVE {
                stream.on_sent(id, good);
            } else if let Some(memory) = memory.filter(|_| good) {
                let received = Received {
                    immediate: u32::from_be_bytes(wc.imm_data),
                    len: wc.byte_len,
                };
                stream.on_received(received, &memory.block);
            }
        });
        self.work();
    }

    /// As [`Endpoint::look`], by a poll.
    pub(super) fn pump(&mut self) {
        self.look(Look::Pump);
    }

    /// Posts what the stream wants posted.
    pub(super) fn work(&mut self) {
        while let Some(work) = self.stream.poll_work() {
            match work {
                Work::Receives(n) => self.post_receives(n as usize),
                Work::Write(write) => self.post(&write, core::ptr::null()),
            }
        }
    }

    fn post_receives(&self, mut n: usize) {
        while n != 0 {
            let mut list = [ibv_recv_wr::zeroed(); BATCH];
            let now = n.min(BATCH);
            let mut next: *mut ibv_recv_wr = core::ptr::null_mut();
            for wr in list.iter_mut().take(now).rev() {
                wr.wr_id = WorkId::RECEIVE.0;
                wr.next = next;
                next = wr;
            }
            // A queue pair in Err takes them and flushes them; no other failure is left.
            self.completions.ops().receive(self.qp, next);
            n -= now;
        }
    }

    /// Posts one WRITE. `caller`: the bytes of the program that go with it.
    fn post(&mut self, write: &Write, caller: *const u8) {
        let mut entry = [0; ENTRY_LEN as usize];
        let mut list = [ibv_sge::zeroed(); 2];
        let mut sges = 0;
        let mut flags = SIGNALED;
        let [first, second] = &mut list;
        match write.source {
            Source::Nothing => {}
            Source::Caller => {
                (first.addr, first.length) = (caller as u64, write.len);
                (sges, flags) = (1, SIGNALED | INLINE);
            }
            Source::Entry(bytes) => {
                entry = bytes;
                (first.addr, first.length) = (entry.as_ptr() as u64, write.len);
                (sges, flags) = (1, SIGNALED | INLINE);
            }
            Source::Ring(spans) => {
                let Some(memory) = &self.memory else { return };
                let mut from = caller;
                for (sge, span) in [first, second].into_iter().zip(spans) {
                    if span.len == 0 {
                        continue;
                    }
                    memory.send.copy_in(span, from);
                    from = from.wrapping_add(span.len as usize);
                    sge.addr = memory.send.address(span.at);
                    sge.length = span.len;
                    sge.lkey = memory.send.lkey();
                    sges += 1;
                }
            }
        }
        let mut wr = ibv_send_wr::zeroed();
        wr.wr_id = write.id.0;
        wr.sg_list = list.as_mut_ptr();
        wr.num_sge = sges;
        wr.send_flags = flags;
        wr.opcode = WRITE;
        if let Some(immediate) = write.immediate {
            wr.opcode = WRITE_WITH_IMM;
            wr.imm_data = immediate.to_be_bytes();
        }
        let [k0, k1, k2, k3] = write.remote.key.to_ne_bytes();
        wr.wr[0] = write.remote.address;
        wr.wr[1] = u64::from_ne_bytes([k0, k1, k2, k3, 0, 0, 0, 0]);
        if !self.completions.ops().send(self.qp, &mut wr) {
            self.stream.on_sent(write.id, false);
        }
        // the entry was read by the call
        let _ = entry;
    }

    /// Sends of `len` bytes from `from` on what goes now.
    pub(super) fn send(
        &mut self,
        from: *const u8,
        len: usize,
        mut plan: impl FnMut(&mut Stream, usize, u32) -> Result<Planned, Stopped>,
    ) -> (usize, Option<Stopped>) {
        let mut done = 0;
        while done < len {
            let wanted = u32::try_from(len - done).unwrap_or(u32::MAX);
            match plan(&mut self.stream, done, wanted) {
                Ok(planned) => {
                    self.post(&planned.write, from.wrapping_add(done));
                    done += planned.taken as usize;
                }
                Err(stopped) => return (done, Some(stopped)),
            }
        }
        (done, None)
    }

    /// Copies of what came at most `len` bytes to `to`.
    pub(super) fn read(&mut self, to: *mut u8, len: usize, peek: bool) -> Result<usize, Stopped> {
        let wanted = u32::try_from(len).unwrap_or(u32::MAX);
        let spans = self.stream.peek(wanted)?;
        let mut done = 0;
        if let Some(memory) = &self.memory {
            for span in spans {
                memory.receive.copy_out(span, to.wrapping_add(done));
                done += span.len as usize;
            }
        }
        if !peek {
            self.stream.consume(u32::try_from(done).unwrap_or(u32::MAX));
            self.work();
        }
        Ok(done)
    }

    /// `riomap`
    pub(super) fn map(
        &mut self,
        at: *mut c_void,
        len: usize,
        remote: bool,
        offset: i64,
    ) -> Outcome<i64> {
        let mut mapping = Mapping::new(self.pd, at, len, remote)?;
        let told = match remote {
            true => self
                .stream
                .map(mapping.region(), mapping.len(), offset)
                .map(Some),
            false => Ok(None),
        };
        match told {
            Ok(known_as) => {
                mapping.offset = known_as;
                self.mappings.push(mapping);
                self.work();
                Ok(known_as.map_or(offset, u64::cast_signed))
            }
            Err(e) => {
                mapping.close();
                Err(e)
            }
        }
    }

    /// `riounmap`
    pub(super) fn unmap(&mut self, at: *mut c_void, len: usize) -> Outcome<()> {
        const NO_SUCH: Misuse = Misuse::invalid("riounmap: no such memory was given to riomap");
        let found = self.mappings.iter().position(|m| m.is(at, len));
        let mapping = self.mappings.swap_remove(found.ok_or(NO_SUCH)?);
        if let Some(offset) = mapping.offset {
            self.stream.unmap(offset, mapping.len())?;
        }
        mapping.close();
        Ok(())
    }

    /// It is `now`: a keepalive may be due.
    pub(super) fn tick(&mut self, now: Instant) {
        if self.stream.poll_timeout().is_some_and(|at| at <= now) {
            self.stream.on_timeout(now);
            self.pump();
        }
    }
}
