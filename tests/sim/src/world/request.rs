//! Requests: their buffers, their books, and the call that posts them.

use rocebud_fabric::{Span, fill};
use rocebud_objects::{
    AtomicOp, Misuse, Payload, QpType, SendFlags, SendOp, SendWr, Sge, SgeList, UdAddress, WcOpcode,
};
use rocebud_wire::{LKey, RKey};

use super::ring::cut;
use super::{World, refused};
use crate::check::receives::Message;
use crate::check::sends::{Action, Fatal, Posted};
use crate::violation::{Checker, Verdict, Violation};

/// A request that is ready to be posted.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) op: SendOp,
    pub(crate) opcode: WcOpcode,
    pub(crate) action: Action,
    pub(crate) payload: Payload,
    /// Local buffer, taken from the ring if not empty.
    pub(crate) pieces: Vec<Span>,
    pub(crate) byte_len: Option<u32>,
    pub(crate) flags: SendFlags,
    pub(crate) ud: Option<UdAddress>,
    /// What the receiver is to see, and who it is.
    pub(crate) message: Option<(usize, Message)>,
    pub(crate) atomic: Option<AtomicOp>,
    pub(crate) fatal: Option<Fatal>,
    /// Window of the peer's that it goes through.
    pub(crate) window: Option<RKey>,
    /// Must wait for the READs before it.
    pub(crate) fence: bool,
}

impl Request {
    pub(crate) fn new(op: SendOp, opcode: WcOpcode, action: Action, local: Local) -> Self {
        Self {
            op,
            opcode,
            action,
            payload: local.payload,
            pieces: local.pieces,
            byte_len: None,
            flags: SendFlags::empty(),
            ud: None,
            message: None,
            atomic: None,
            fatal: None,
            window: None,
            fence: false,
        }
    }
}

/// Local side of a request.
#[derive(Debug)]
pub(crate) struct Local {
    pub(crate) payload: Payload,
    pub(crate) pieces: Vec<Span>,
}

impl Local {
    pub(crate) fn none() -> Self {
        Self {
            payload: Payload::Sges(SgeList::new()),
            pieces: Vec::new(),
        }
    }
}

impl World {
    pub(crate) const fn wr_id(end: usize, seq: u64) -> u64 {
        (end as u64) << 32 | seq
    }

    /// Source of a send or write: `len` bytes of the next request's stream. `None`: no room now.
    pub(crate) fn source(&mut self, index: usize, len: u32, pieces_max: u32) -> Option<Local> {
        let end = &mut self.ends[index];
        let stream = Self::wr_id(index, end.seq);
        let inline = pieces_max > 1 && len <= end.plan.inline_max && end.rng.percent(40);
        let mut bytes = vec![0; len as usize];
        fill(self.stream(stream), 0, &mut bytes);
        if inline {
            return Some(Local {
                payload: Payload::Inline(bytes.into()),
                pieces: Vec::new(),
            });
        }
        self.buffer(index, &bytes, pieces_max)
    }

    /// Sink of a READ or atomic, filled with a pattern. `None`: no room now.
    pub(crate) fn sink(&mut self, index: usize, len: u32, pieces_max: u32) -> Option<Local> {
        let mut bytes = vec![0; len as usize];
        let pattern = self.ends[index].rng.next_u64();
        fill(pattern, 0, &mut bytes);
        self.buffer(index, &bytes, pieces_max)
    }

    /// Takes a local buffer and writes `bytes` into its pieces in order.
    fn buffer(&mut self, index: usize, bytes: &[u8], pieces_max: u32) -> Option<Local> {
        let end = &mut self.ends[index];
        if bytes.is_empty() {
            return Some(nothing(end.rng.percent(50)));
        }
        let span = end.ring.take(bytes.len() as u64, 1)?;
        let n = end.rng.range_u32(1, pieces_max);
        let mut pieces = cut(span, n, &mut end.rng);
        end.rng.shuffle(&mut pieces);
        let key = end.local_key;
        let memory = &mut self.fabric.host_mut(end.host).env.memory;
        let mut rest = bytes;
        for piece in &pieces {
            let (head, tail) = rest.split_at(piece.len as usize);
            memory.poke(piece.addr, piece.len).copy_from_slice(head);
            end.local.note(piece.addr, head);
            rest = tail;
        }
        Some(Local {
            payload: Payload::Sges(sges(&pieces, key)),
            pieces,
        })
    }

    /// Posts a request that the engine must take, and enters it into all books.
    pub(crate) fn post(&mut self, index: usize, request: Request) -> Verdict {
        self.try_post(index, request)?.map_err(refused)
    }

    /// Posts a request. If the engine refuses it, nothing has happened.
    pub(crate) fn try_post(
        &mut self,
        index: usize,
        request: Request,
    ) -> Verdict<Result<(), Misuse>> {
        let end = &mut self.ends[index];
        let seq = end.seq;
        let wr_id = Self::wr_id(index, seq);
        let last = end.posted + 1 >= end.plan.budget;
        let want = end.rng.percent(60) || last || end.unsignaled + 1 >= end.plan.send_depth / 2;
        let mut flags = request.flags;
        flags.set(SendFlags::SIGNALED, want);
        flags.set(
            SendFlags::INLINE,
            matches!(request.payload, Payload::Inline(_)),
        );
        let posted = Posted {
            wr_id,
            seq,
            signaled: want || end.plan.sq_sig_all,
            fence: flags.contains(SendFlags::FENCE),
            action: request.action.clone(),
            opcode: request.opcode,
            byte_len: request.byte_len,
            window: request.window,
            pieces: request.pieces.clone(),
            fatal: request.fatal,
        };
        let wr = SendWr {
            wr_id,
            op: request.op,
            flags,
            payload: request.payload.clone(),
            ud: request.ud,
            xrc_srqn: end.xrc_srqn(&self.pools),
        };
        let (host, qpn, now) = (end.host, end.qpn, self.fabric.now());
        self.last_progress = now;
        self.tell(|| format!("post {qpn} {wr_id:#x} {:?} {flags:?}", wr.op));
        let host = self.fabric.host_mut(host);
        if let Err(why) = host.node.post_send(now, qpn, wr, &mut host.env) {
            if !request.pieces.is_empty() {
                self.ends[index].ring.undo();
            }
            return Ok(Err(why));
        }
        self.enter(index, request, posted)?;
        Ok(Ok(()))
    }

    /// Enters a posted request into the books.
    fn enter(&mut self, index: usize, request: Request, posted: Posted) -> Verdict {
        let stream = self.stream(posted.wr_id);
        let end = &mut self.ends[index];
        let (peer, life, seq, doomed) = (end.peer, end.life, end.seq, end.doomed);
        end.seq += 1;
        end.unsignaled = if posted.signaled {
            0
        } else {
            end.unsignaled + 1
        };
        end.doomed |= request.fatal.is_some();
        if !end.doomed {
            match posted.action {
                Action::Write { offset, len, .. } => {
                    self.ends[peer].target.post(seq, offset, len, stream);
                }
                Action::AtomicWrite { offset } => {
                    self.ends[peer].target.post(seq, offset, 8, stream);
                }
                _ => {}
            }
            if let Some((to, message)) = request.message {
                self.ends[to].inbox.push_back((message, false));
            }
        }
        if let (Action::Atomic { word }, Some(op)) = (&posted.action, request.atomic) {
            // What is posted behind a request that must fail is never executed and has no entry.
            if !doomed && request.fatal.is_none() {
                self.words[*word]
                    .ledger
                    .post(stream_of(index, life), seq, op);
            }
        }
        self.ends[index].sends.post(posted);
        Ok(())
    }

    /// Posts a request to a queue pair in error: it and all before it must come back.
    pub(crate) fn post_marker(&mut self, index: usize) -> Verdict {
        let end = &mut self.ends[index];
        let full = end.sends.outstanding().len() >= end.plan.send_depth as usize;
        if full || end.kind == QpType::XrcRecv {
            return Ok(());
        }
        let mut request = Request::new(SendOp::Send, WcOpcode::Send, Action::Marker, Local::none());
        request.flags = SendFlags::SIGNALED;
        let posted = Posted {
            wr_id: Self::wr_id(index, end.seq),
            seq: end.seq,
            signaled: true,
            fence: false,
            action: Action::Marker,
            opcode: WcOpcode::Send,
            byte_len: None,
            window: None,
            pieces: Vec::new(),
            fatal: None,
        };
        let wr = SendWr {
            wr_id: posted.wr_id,
            op: request.op,
            flags: request.flags,
            payload: request.payload,
            ud: None,
            xrc_srqn: end.xrc_srqn(&self.pools),
        };
        end.seq += 1;
        end.sends.post(posted);
        let (host, qpn, now) = (end.host, end.qpn, self.fabric.now());
        let host = self.fabric.host_mut(host);
        let done = host.node.post_send(now, qpn, wr, &mut host.env);
        done.map_err(|why| Violation::new(Checker::Calls, format!("post_send in ERR: {why}")))
    }
}

/// Order in a word's history is kept within one life of one queue pair.
pub(crate) const fn stream_of(index: usize, life: u64) -> u64 {
    (index as u64) << 32 | life
}

/// An empty payload: no list at all, or an element of length 0 whose key nobody checks.
fn nothing(list: bool) -> Local {
    let mut sges = SgeList::new();
    if list {
        sges.push(Sge {
            addr: 0xdead_beef,
            length: 0,
            lkey: LKey(0xbad),
        });
    }
    Local {
        payload: Payload::Sges(sges),
        pieces: Vec::new(),
    }
}

pub(crate) fn sges(pieces: &[Span], key: u32) -> SgeList {
    let sge = |p: &Span| Sge {
        addr: p.addr,
        length: p.len as u32,
        lkey: LKey(key),
    };
    pieces.iter().map(sge).collect()
}
