//! Work requests out of the input, sound and unsound.

use rocebud_fabric::{HostId, Span, fill};
use rocebud_objects::{
    Access, FlushPlacement, FlushRange, KEY_BYTE, MwBind, MwType, Payload, QpType, Remote, SendOp,
    Sge, SgeList, WcOpcode,
};
use rocebud_wire::{LKey, RKey};

use super::books::{Action, WORDS};
use super::world::{OTHER_PD, PD, TARGET_BYTES, World, stream};
use crate::input::Input;

/// A request before it is posted.
#[derive(Debug)]
pub(super) struct Draft {
    pub(super) op: SendOp,
    pub(super) opcode: WcOpcode,
    pub(super) action: Action,
    pub(super) payload: Payload,
    pub(super) pieces: Vec<Span>,
    pub(super) len: u32,
    /// It must not succeed.
    pub(super) must_fail: bool,
    /// It may fail.
    pub(super) may_fail: bool,
    /// The new value of a word, should the request be executed.
    pub(super) atomic: Option<(usize, u64)>,
}

impl Draft {
    /// What an atomic finds is not known.
    pub(super) fn forget_atomic(&mut self) {
        self.atomic = None;
        if let Action::Atomic { before } = &mut self.action {
            *before = None;
        }
    }
}

/// How the remote side of a request is named.
struct Far {
    remote: Remote,
    /// Where it is in the peer's target region.
    offset: u64,
    /// Access will be refused (if any byte is accessed).
    bad: bool,
    /// It may be refused.
    unsure: bool,
}

const LENGTHS: [u32; 16] = [
    0, 1, 8, 63, 256, 257, 512, 1000, 1024, 1025, 2048, 2500, 4096, 4097, 5000, 6000,
];

impl World {
    /// The next request of queue pair `at`; `wr_id` names its content.
    pub(super) fn draft(&mut self, input: &mut Input<'_>, at: usize, wr_id: u64) -> Draft {
        let kind = self.qps[at].kind;
        let what = input.below(18);
        if kind == QpType::Ud {
            // Datagram queue pairs send; anything else is refused.
            let len = input.pick(&[64, 0, 1, 1000, 4096, 4097]);
            return match what {
                0..=11 => self.message(input, at, wr_id, what % 2, len),
                _ => self.write(input, at, wr_id, false, 100),
            };
        }
        let len = input.pick(&LENGTHS);
        match what {
            0..=3 => self.message(input, at, wr_id, what, len),
            4..=6 => self.write(input, at, wr_id, false, len),
            7 => self.write(input, at, wr_id, true, len),
            8..=10 => self.read(input, at, len),
            11 | 12 => self.atomic(input, at),
            13 => self.atomic_write(input, at, wr_id),
            14 => self.flush(input, at, len),
            15 => self.local_invalidate(input, at),
            _ => self.bind(input, at, len),
        }
    }

    /// 0 SEND, 1 with immediate, 2 with invalidate, else SEND again.
    fn message(
        &mut self,
        input: &mut Input<'_>,
        at: usize,
        wr_id: u64,
        what: usize,
        len: u32,
    ) -> Draft {
        let mut may_fail = false;
        let op = match what {
            1 => SendOp::SendImm {
                imm: (wr_id as u32).to_be_bytes(),
            },
            2 => {
                let (rkey, sound) = self.key_to_invalidate(input, at);
                may_fail = !sound;
                SendOp::SendInv { rkey }
            }
            _ => SendOp::Send,
        };
        let mut draft = self.source(input, at, wr_id, len);
        draft.op = op;
        draft.opcode = WcOpcode::Send;
        draft.action = Action::Message;
        draft.may_fail |= may_fail;
        draft
    }

    /// A key of the peer's, sometimes one that cannot be invalidated.
    fn key_to_invalidate(&mut self, input: &mut Input<'_>, at: usize) -> (RKey, bool) {
        let Some((peer, _)) = self.qps[at].peer else {
            return (RKey(input.word()), false);
        };
        let (host, qpn) = (self.qps[peer].host, self.qps[peer].qpn);
        if input.rarely(60) {
            return (RKey(self.qps[peer].target_key), false);
        }
        let span = self.room(host, 16, 1);
        let memory = &mut self.fabric.host_mut(host).env.memory;
        let key = memory.register_window(PD, span, Access::REMOTE_READ, Some(qpn));
        (RKey(key), true)
    }

    fn write(
        &mut self,
        input: &mut Input<'_>,
        at: usize,
        wr_id: u64,
        imm: bool,
        len: u32,
    ) -> Draft {
        let mut draft = self.source(input, at, wr_id, len);
        let far = self.far(input, at, len, 1, Access::REMOTE_WRITE);
        draft.op = match imm {
            true => SendOp::WriteImm {
                remote: far.remote,
                imm: (wr_id as u32).to_be_bytes(),
            },
            false => SendOp::Write { remote: far.remote },
        };
        draft.opcode = WcOpcode::RdmaWrite;
        draft.action = Action::Write {
            offset: far.offset,
            len: u64::from(len),
            message: imm,
        };
        self.refuse(at, &mut draft, &far, len);
        draft
    }

    fn read(&mut self, input: &mut Input<'_>, at: usize, len: u32) -> Draft {
        let mut draft = self.sink(input, at, len);
        let far = self.far(input, at, len, 1, Access::REMOTE_READ);
        draft.op = SendOp::Read { remote: far.remote };
        draft.opcode = WcOpcode::RdmaRead;
        draft.action = Action::Read {
            offset: far.offset,
            len: u64::from(len),
        };
        draft.may_fail |= self.qps[at].max_rd_atomic == 0;
        self.refuse(at, &mut draft, &far, len);
        draft
    }

    fn atomic(&mut self, input: &mut Input<'_>, at: usize) -> Draft {
        let mut draft = self.sink(input, at, 8);
        let word = input.below(WORDS);
        let add = u64::from(input.byte());
        let shape = input.byte();
        let peer = self.qps[at].peer.map_or(at, |p| p.0);
        let (span, key) = (self.qps[peer].words, self.qps[peer].words_key);
        let mut addr = span.addr + 8 * word as u64;
        let bad = shape > 0xf0;
        if bad {
            addr += u64::from(shape % 7) + 1;
        }
        let remote = Remote {
            addr,
            rkey: RKey(key),
        };
        let before = self.qps[peer].values.map(|v| v[word]);
        let compare = before.unwrap_or(0) ^ u64::from(shape & 2);
        let value = |before: u64| match shape & 1 {
            0 => before.wrapping_add(add),
            _ if before == compare => add,
            _ => before,
        };
        draft.op = match shape & 1 {
            0 => SendOp::FetchAdd { remote, add },
            _ => SendOp::CmpSwap {
                remote,
                compare,
                swap: add,
            },
        };
        draft.opcode = match shape & 1 {
            0 => WcOpcode::FetchAdd,
            _ => WcOpcode::CompSwap,
        };
        draft.action = Action::Atomic { before };
        draft.atomic = before.map(|b| (word, value(b)));
        draft.must_fail |= bad;
        draft.may_fail |= self.qps[at].max_rd_atomic == 0
            || !self.qps[peer].access.contains(Access::REMOTE_ATOMIC);
        draft
    }

    fn atomic_write(&mut self, input: &mut Input<'_>, at: usize, wr_id: u64) -> Draft {
        let len = if input.rarely(20) { 7 } else { 8 };
        let mut draft = self.source(input, at, wr_id, len);
        let far = self.far(input, at, 8, 8, Access::REMOTE_WRITE);
        draft.op = SendOp::AtomicWrite { remote: far.remote };
        draft.opcode = WcOpcode::AtomicWrite;
        draft.action = Action::Write {
            offset: far.offset,
            len: 8,
            message: false,
        };
        draft.may_fail |= self.qps[at].max_rd_atomic == 0;
        self.refuse(at, &mut draft, &far, 8);
        draft
    }

    fn flush(&mut self, input: &mut Input<'_>, at: usize, len: u32) -> Draft {
        let far = self.far(input, at, len, 1, Access::FLUSH_GLOBAL);
        let shape = input.byte();
        let mut draft = self.nothing();
        draft.op = SendOp::Flush {
            remote: far.remote,
            length: len,
            range: if shape & 1 == 0 {
                FlushRange::Range
            } else {
                FlushRange::Region
            },
            placement: FlushPlacement(shape >> 6),
        };
        draft.opcode = WcOpcode::Flush;
        draft.may_fail =
            shape >> 6 == 0 || self.qps[at].max_rd_atomic == 0 || far.bad || far.unsure;
        draft
    }

    fn local_invalidate(&mut self, input: &mut Input<'_>, at: usize) -> Draft {
        let host = self.qps[at].host;
        let mut draft = self.nothing();
        let key = if input.rarely(60) {
            draft.must_fail = true;
            self.qps[at].target_key
        } else {
            let span = self.room(host, 16, 1);
            let memory = &mut self.fabric.host_mut(host).env.memory;
            memory.register_window(PD, span, Access::REMOTE_READ, None)
        };
        draft.op = SendOp::LocalInv { rkey: RKey(key) };
        draft.opcode = WcOpcode::LocalInv;
        draft
    }

    /// A window onto the own target region: a fresh one, or a used one, which may be refused.
    fn bind(&mut self, input: &mut Input<'_>, at: usize, len: u32) -> Draft {
        let shape = input.byte();
        let mw_type = if shape & 1 == 0 {
            MwType::Two
        } else {
            MwType::One
        };
        let (host, span) = (self.qps[at].host, self.qps[at].target.span);
        let mut draft = self.nothing();
        let used = self.qps[at].window.filter(|_| shape & 6 == 6);
        draft.may_fail = used.is_some();
        let memory = &mut self.fabric.host_mut(host).env.memory;
        let window = used.unwrap_or_else(|| memory.add_window(PD, mw_type));
        let rkey = RKey(window.0 & !KEY_BYTE | u32::from(input.byte()));
        let mut bind = MwBind {
            window,
            rkey,
            lkey: LKey(self.qps[at].target_key),
            addr: span.addr,
            len: u64::from(len).clamp(1, TARGET_BYTES),
            access: ALL_KINDS,
        };
        if input.rarely(40) {
            draft.may_fail = true;
            match input.below(5) {
                0 => bind.len = 0,
                1 => bind.len = TARGET_BYTES + 1,
                2 => bind.lkey = LKey(input.word()),
                3 => bind.rkey = RKey(!window.0),
                _ => bind.access = Access::all(),
            }
        }
        self.qps[at].window = Some(bind.rkey);
        self.stations[host.0].keys.push(bind.rkey.0);
        draft.op = SendOp::BindMw { bind };
        draft.opcode = WcOpcode::BindMw;
        draft
    }

    /// Books of a request whose remote access will be refused.
    fn refuse(&self, at: usize, draft: &mut Draft, far: &Far, len: u32) {
        let qp = &self.qps[at];
        let granted = qp
            .peer
            .is_none_or(|(peer, _)| self.qps[peer].access.contains(ALL_KINDS));
        draft.may_fail |= far.bad || far.unsure || !granted;
        draft.must_fail |= far.bad && len != 0 && qp.kind == QpType::Rc;
        if far.bad {
            draft.action = match draft.action {
                Action::Write { message: true, .. } => Action::Message,
                _ => Action::Other,
            };
        }
    }

    /// A place at the peer, sometimes one where nobody may go.
    fn far(&mut self, input: &mut Input<'_>, at: usize, len: u32, align: u64, need: Access) -> Far {
        let peer = self.qps[at].peer.map_or(at, |p| p.0);
        let (span, key) = (self.qps[peer].target.span, self.qps[peer].target_key);
        let host = self.qps[peer].host;
        let room = TARGET_BYTES - u64::from(len).min(TARGET_BYTES);
        let offset = (u64::from(input.byte()) * 23).min(room) / align * align;
        let mut sound = Far {
            remote: Remote {
                addr: span.addr + offset,
                rkey: RKey(key),
            },
            offset,
            bad: u64::from(len) > TARGET_BYTES,
            unsure: false,
        };
        let shape = input.byte();
        if let (Some(window), 0xd0..) = (self.qps[peer].window, shape) {
            // Perhaps it shows this part, perhaps not any more or not yet.
            sound.remote.rkey = window;
            sound.unsure = true;
            return sound;
        }
        if !(242..0xfe).contains(&shape) {
            return sound;
        }
        let remote = |addr, key| Remote {
            addr,
            rkey: RKey(key),
        };
        let station = &self.stations[host.0];
        let bad = match input.below(6) {
            0 => remote(span.addr, 0xdead_0001),
            1 if need != Access::REMOTE_READ => remote(station.readonly.addr, station.readonly_key),
            2 => remote(span.addr + TARGET_BYTES + 1 - u64::from(len.min(1)), key),
            3 => remote(u64::MAX - 7, key),
            4 => remote(span.addr.wrapping_sub(1), key),
            _ => {
                let memory = &mut self.fabric.host_mut(host).env.memory;
                let key = memory.register(OTHER_PD, span, span.addr, Access::all());
                remote(span.addr, key)
            }
        };
        Far {
            remote: bad,
            offset: 0,
            bad: true,
            unsure: true,
        }
    }

    // ---- local sides

    pub(super) fn nothing(&self) -> Draft {
        Draft {
            op: SendOp::Send,
            opcode: WcOpcode::Send,
            action: Action::Other,
            payload: Payload::Sges(SgeList::new()),
            pieces: Vec::new(),
            len: 0,
            must_fail: false,
            may_fail: false,
            atomic: None,
        }
    }

    /// Bytes to send: in registered memory, inline, or where they cannot be read.
    fn source(&mut self, input: &mut Input<'_>, at: usize, wr_id: u64, len: u32) -> Draft {
        let shape = input.byte();
        let host = self.qps[at].host;
        let mut draft = self.nothing();
        draft.len = len;
        if shape & 7 == 7 {
            let mut bytes = vec![0; len as usize];
            fill(stream(wr_id), 0, &mut bytes);
            draft.payload = Payload::Inline(bytes.into());
            return draft;
        }
        let span = self.fresh(host, u64::from(len), 1, stream(wr_id));
        let bytes = self.peek(host, span).to_vec();
        self.stations[host.0].sources.push((span.addr, bytes));
        self.list(input, host, span, shape, Access::empty(), &mut draft);
        draft
    }

    /// Room for bytes that come back.
    fn sink(&mut self, input: &mut Input<'_>, at: usize, len: u32) -> Draft {
        let shape = input.byte();
        let host = self.qps[at].host;
        let mut draft = self.nothing();
        draft.len = len;
        let span = self.room(host, u64::from(len), 1);
        self.list(input, host, span, shape, Access::LOCAL_WRITE, &mut draft);
        draft
    }

    /// A scatter/gather list over `span`.
    fn list(
        &mut self,
        input: &mut Input<'_>,
        host: HostId,
        span: Span,
        shape: u8,
        access: Access,
        draft: &mut Draft,
    ) {
        let key = self.local_key(host, span, access, shape > 0xf4, draft);
        let cuts = usize::from(shape >> 3 & 3).min(2);
        let mut pieces = cut(input, span, cuts);
        if shape & 0x40 != 0 {
            pieces.reverse();
        }
        draft.payload = Payload::Sges(sges(&pieces, key));
        if access.is_empty() {
            // The order of the list is the order of the bytes.
            let bytes = self.gather(host, &[span], span.len);
            let mut at = 0;
            let memory = &mut self.fabric.host_mut(host).env.memory;
            for piece in &pieces {
                let n = piece.len as usize;
                memory
                    .poke(piece.addr, piece.len)
                    .copy_from_slice(&bytes[at..at + n]);
                at += n;
            }
            let now = self.peek(host, span).to_vec();
            if let Some(source) = self.stations[host.0].sources.last_mut() {
                source.1 = now;
            }
        }
        draft.pieces = pieces;
    }

    /// A key for `span`; an unsound one fails when a byte is touched.
    fn local_key(
        &mut self,
        host: HostId,
        span: Span,
        access: Access,
        bad: bool,
        draft: &mut Draft,
    ) -> u32 {
        let memory = &mut self.fabric.host_mut(host).env.memory;
        let touched = span.len != 0;
        draft.must_fail |= bad && touched;
        if !bad {
            return memory.register(PD, span, span.addr, access);
        }
        match span.len % 3 {
            0 => memory.register(OTHER_PD, span, span.addr, Access::all()),
            1 => memory.unused_key(),
            _ if access.is_empty() || span.len < 2 => memory.unused_key(),
            _ => memory.register(PD, span, span.addr, Access::empty()),
        }
    }
}

const ALL_KINDS: Access = Access::REMOTE_READ
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_ATOMIC);

/// Cuts a span into pieces that follow each other, some of them empty.
pub(super) fn cut(input: &mut Input<'_>, span: Span, cuts: usize) -> Vec<Span> {
    let mut at: Vec<u64> = (0..cuts)
        .map(|_| u64::from(input.byte()) * span.len / 255)
        .collect();
    at.sort_unstable();
    at.push(span.len);
    let mut from = 0;
    let mut pieces = Vec::new();
    for to in at {
        pieces.push(Span {
            addr: span.addr + from,
            len: to - from,
        });
        from = to;
    }
    pieces
}

pub(super) fn sges(pieces: &[Span], key: u32) -> SgeList {
    pieces
        .iter()
        .map(|p| Sge {
            addr: p.addr,
            length: p.len as u32,
            lkey: LKey(key),
        })
        .collect()
}
