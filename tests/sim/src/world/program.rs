//! The random programs: which request comes next.

use rocebud_fabric::Rng;
use rocebud_objects::{
    Access, AtomicOp, FlushPlacement, FlushRange, Payload, QpType, Remote, SendFlags, SendOp,
    UdAddress, WcOpcode,
};
use rocebud_wire::{QKey, RKey};

use super::alarm::Alarm;
use super::request::{Request, sges};
use super::window::close_request;
use super::{World, pd, pool::GRH_BYTES};
use crate::check::receives::{Datagram, Message};
use crate::check::sends::Action;
use crate::setup::{self, Link};
use crate::violation::Verdict;

/// Operations and their weights.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Send,
    SendImm,
    SendInv,
    Write,
    WriteImm,
    Read,
    CmpSwap,
    FetchAdd,
    AtomicWrite,
    Flush,
    LocalInv,
    Bind,
}

const RC_MIX: &[(u32, Kind)] = &[
    (18, Kind::Send),
    (8, Kind::SendImm),
    (5, Kind::SendInv),
    (18, Kind::Write),
    (8, Kind::WriteImm),
    (18, Kind::Read),
    (7, Kind::CmpSwap),
    (8, Kind::FetchAdd),
    (5, Kind::AtomicWrite),
    (4, Kind::Flush),
    (3, Kind::LocalInv),
];

/// RC's, less what has no opcode.
const XRC_MIX: &[(u32, Kind)] = &[
    (18, Kind::Send),
    (8, Kind::SendImm),
    (5, Kind::SendInv),
    (18, Kind::Write),
    (8, Kind::WriteImm),
    (18, Kind::Read),
    (7, Kind::CmpSwap),
    (8, Kind::FetchAdd),
    (4, Kind::Flush),
    (3, Kind::LocalInv),
];

/// Of a hundred requests of an end with windows, so many are about them.
const WINDOW_PERCENT: u32 = 12;

const UC_MIX: &[(u32, Kind)] = &[
    (3, Kind::Send),
    (2, Kind::SendImm),
    (3, Kind::Write),
    (2, Kind::WriteImm),
];

const UD_MIX: &[(u32, Kind)] = &[(2, Kind::Send), (1, Kind::SendImm)];

/// When a queue is full the program looks again after this time.
const RETRY_NS: u64 = 20_000;

impl World {
    /// Posts a burst, and asks to be called again while there is more.
    pub(crate) fn send_alarm(&mut self, index: usize) -> Verdict {
        if !self.has_more(&self.ends[index]) || !self.may_post(index) {
            return Ok(());
        }
        let end = &mut self.ends[index];
        let burst = end.rng.range_u32(1, end.plan.burst_max);
        let mut delay = end.rng.below(end.plan.gap_ns_max + 1) + 1;
        for _ in 0..burst {
            let end = &mut self.ends[index];
            if end.incidents.front().is_some_and(|i| i.0 <= end.posted) {
                if let Some((_, incident)) = end.incidents.pop_front() {
                    self.incident(index, incident)?;
                }
                if !self.may_post(index) {
                    return Ok(());
                }
            }
            let end = &self.ends[index];
            if end.posted == end.plan.budget {
                break;
            }
            let full = end.sends.outstanding().len() >= end.plan.send_depth as usize;
            if full || !self.post_next(index)? {
                delay += RETRY_NS;
                break;
            }
        }
        if self.has_more(&self.ends[index]) {
            self.set_alarm(delay, Alarm::Send(index));
        }
        Ok(())
    }

    /// Draws and posts one request; false if its buffers do not fit now.
    fn post_next(&mut self, index: usize) -> Verdict<bool> {
        let end = &mut self.ends[index];
        let kind = match end.kind {
            QpType::Rc => draw(RC_MIX, &mut end.rng),
            QpType::XrcSend | QpType::XrcRecv | QpType::RawPacket => draw(XRC_MIX, &mut end.rng),
            QpType::Uc => draw(UC_MIX, &mut end.rng),
            QpType::Ud => draw(UD_MIX, &mut end.rng),
        };
        let windows = !end.windows.is_empty() && end.rng.percent(WINDOW_PERCENT);
        let kind = if windows { Kind::Bind } else { kind };
        let fence = end.kind.is_reliable() && end.rng.percent(15);
        let request = match kind {
            _ if end.kind == QpType::Ud => self.datagram(index, kind),
            Kind::Send | Kind::SendImm | Kind::SendInv => self.send(index, kind),
            Kind::Write | Kind::WriteImm => self.write(index, kind),
            Kind::Read => self.read(index),
            Kind::CmpSwap | Kind::FetchAdd => self.atomic(index, kind),
            Kind::AtomicWrite => self.atomic_write(index),
            Kind::Flush => Some(self.flush(index)),
            Kind::LocalInv => match self.local_inv(index) {
                Some(request) => Some(request),
                None => self.read(index),
            },
            Kind::Bind => match self.bind(index) {
                Some(request) => Some(request),
                None => self.send(index, Kind::SendInv),
            },
        };
        let Some(mut request) = request else {
            return Ok(false);
        };
        let fence = fence || request.fence;
        request.flags.set(SendFlags::FENCE, fence);
        self.post(index, request)?;
        self.ends[index].posted += 1;
        Ok(true)
    }

    fn next_message(&mut self, index: usize, len: u32) -> Message {
        let end = &mut self.ends[index];
        let wr_id = Self::wr_id(index, end.seq);
        let solicited = end.rng.percent(30);
        Message {
            wr_id,
            stream: self.stream(wr_id),
            len,
            imm: None,
            inv: None,
            solicited,
            write: false,
            datagram: None,
        }
    }

    fn send(&mut self, index: usize, kind: Kind) -> Option<Request> {
        let peer = self.ends[index].peer;
        let room = self.pools[self.ends[peer].pool].capacity;
        let end = &mut self.ends[index];
        let len = size(&mut end.rng, end.plan.message_max.min(room));
        let imm = end.rng.next_u32().to_be_bytes();
        let pieces = end.plan.sge_max;
        let local = self.source(index, len, pieces)?;
        let mut message = self.next_message(index, len);
        let mut fence = false;
        let op = match kind {
            Kind::SendImm => {
                message.imm = Some(imm);
                SendOp::SendImm { imm }
            }
            Kind::SendInv => {
                // A READ that must be asked for again still needs its window: the fence.
                let lent = self.give_back_key(index);
                fence = lent.is_some();
                let rkey = lent.unwrap_or_else(|| self.peer_window(peer));
                message.inv = Some(rkey);
                SendOp::SendInv { rkey }
            }
            _ => SendOp::Send,
        };
        let mut request = Request::new(op, WcOpcode::Send, Action::Send, local);
        request.flags.set(SendFlags::SOLICITED, message.solicited);
        request.message = Some((peer, message));
        request.fence = fence;
        Some(request)
    }

    /// A key at the peer that this connection may invalidate.
    fn peer_window(&mut self, peer: usize) -> RKey {
        let (host, span) = (self.ends[peer].host, self.ends[peer].target.span);
        let qpn = Some(self.ends[peer].qpn);
        let memory = &mut self.fabric.host_mut(host).env.memory;
        RKey(memory.register_window(pd(host), span, Access::REMOTE_READ, qpn))
    }

    /// A place in the peer's target region for `len` bytes, often at its very end, or behind one
    /// of its windows: offset, what to name, and the window.
    fn place(
        &mut self,
        index: usize,
        len: u64,
        align: u64,
        need: Access,
    ) -> (u64, Remote, Option<RKey>) {
        if let Some((offset, remote)) = self.lent_place(index, len, align, need) {
            return (offset, remote, Some(remote.rkey));
        }
        let peer = self.ends[index].peer;
        let (span, rkey) = (self.ends[peer].target.span, self.ends[peer].target_key);
        let room = span.len - len;
        let rng = &mut self.ends[index].rng;
        let offset = match rng.below(4) {
            0 => room,
            1 => 0,
            _ => rng.below(room + 1),
        };
        let offset = offset / align * align;
        let remote = Remote {
            addr: span.addr + offset,
            rkey: RKey(rkey),
        };
        (offset, remote, None)
    }

    fn write(&mut self, index: usize, kind: Kind) -> Option<Request> {
        let end = &mut self.ends[index];
        let peer = end.peer;
        let pieces = end.plan.sge_max;
        let max = end.plan.message_max.min(self.ends[peer].plan.target);
        let len = size(&mut self.ends[index].rng, max);
        let local = self.source(index, len, pieces)?;
        let need = Access::REMOTE_WRITE;
        let (offset, mut remote, window) = self.place(index, u64::from(len), 1, need);
        if len == 0 && self.ends[index].rng.percent(50) {
            // Neither key nor address of an empty write are checked.
            remote.rkey = RKey(self.ends[index].rng.next_u32());
            remote.addr = self.ends[index].rng.next_u64();
        }
        let with_imm = kind == Kind::WriteImm;
        let action = Action::Write {
            offset,
            len: u64::from(len),
            message: with_imm,
        };
        let imm = self.ends[index].rng.next_u32().to_be_bytes();
        let op = if with_imm {
            SendOp::WriteImm { remote, imm }
        } else {
            SendOp::Write { remote }
        };
        let mut request = Request::new(op, WcOpcode::RdmaWrite, action, local);
        request.window = window;
        if with_imm {
            let mut message = self.next_message(index, len);
            message.imm = Some(imm);
            message.write = true;
            request.flags.set(SendFlags::SOLICITED, message.solicited);
            request.message = Some((peer, message));
        }
        Some(request)
    }

    fn read(&mut self, index: usize) -> Option<Request> {
        let end = &self.ends[index];
        let pieces = end.plan.sge_max;
        let max = end.plan.message_max.min(self.ends[end.peer].plan.target);
        let len = size(&mut self.ends[index].rng, max);
        let mut local = self.sink(index, len, pieces)?;
        let need = Access::REMOTE_READ;
        let (offset, remote, window) = self.place(index, u64::from(len), 1, need);
        let end = &mut self.ends[index];
        if len > 0 && end.sink_keys.len() < 4 && end.rng.percent(20) {
            // A key of its own for this sink, so that LOCAL_INV has something to take.
            let memory = &mut self.fabric.host_mut(end.host).env.memory;
            let span = end.local.span;
            let key = memory.register_window(pd(end.host), span, Access::LOCAL_WRITE, None);
            end.sink_keys.push_back(key);
            local.payload = Payload::Sges(sges(&local.pieces, key));
        }
        let action = Action::Read {
            offset,
            len: u64::from(len),
        };
        let mut request = Request::new(SendOp::Read { remote }, WcOpcode::RdmaRead, action, local);
        request.byte_len = Some(len);
        request.window = window;
        Some(request)
    }

    fn atomic(&mut self, index: usize, kind: Kind) -> Option<Request> {
        let host = self.ends[self.ends[index].peer].host;
        let words: Vec<usize> = (0..self.words.len())
            .filter(|&w| self.words[w].host == host)
            .collect();
        let end = &mut self.ends[index];
        let word = end.rng.pick(&words);
        let (operand, known) = (end.rng.next_u64(), end.rng.percent(50));
        let compare = if known {
            end.last_word
        } else {
            end.rng.next_u64()
        };
        let local = self.sink(index, 8, 1)?;
        let remote = Remote {
            addr: self.words[word].addr,
            rkey: RKey(self.words[word].key),
        };
        let (op, opcode, atomic) = if kind == Kind::CmpSwap {
            let swap = operand;
            let op = SendOp::CmpSwap {
                remote,
                compare,
                swap,
            };
            (op, WcOpcode::CompSwap, AtomicOp::CmpSwap { compare, swap })
        } else {
            let add = operand;
            let op = SendOp::FetchAdd { remote, add };
            (op, WcOpcode::FetchAdd, AtomicOp::FetchAdd { add })
        };
        let mut request = Request::new(op, opcode, Action::Atomic { word }, local);
        request.byte_len = Some(8);
        request.atomic = Some(atomic);
        Some(request)
    }

    fn atomic_write(&mut self, index: usize) -> Option<Request> {
        let local = self.source(index, 8, 1)?;
        let (offset, remote, window) = self.place(index, 8, 8, Access::REMOTE_WRITE);
        let op = SendOp::AtomicWrite { remote };
        let action = Action::AtomicWrite { offset };
        let mut request = Request::new(op, WcOpcode::AtomicWrite, action, local);
        request.window = window;
        Some(request)
    }

    fn flush(&mut self, index: usize) -> Request {
        let peer = self.ends[index].peer;
        let max = u64::from(self.ends[peer].plan.target);
        let rng = &mut self.ends[index].rng;
        let length = rng.range(1, max) as u32;
        let whole_region = rng.percent(30);
        let placement = rng.pick(&[1, 2, 3]);
        let need = Access::FLUSH_GLOBAL;
        let (_, remote, _) = self.place(index, u64::from(length), 1, need);
        let op = SendOp::Flush {
            remote,
            length,
            range: if whole_region {
                FlushRange::Region
            } else {
                FlushRange::Range
            },
            placement: FlushPlacement(placement),
        };
        let action = Action::Flush {
            rkey: remote.rkey,
            va: remote.addr,
            len: u64::from(length),
            whole_region,
            placement,
        };
        Request::new(op, WcOpcode::Flush, action, super::request::Local::none())
    }

    fn local_inv(&mut self, index: usize) -> Option<Request> {
        if let Some(rkey) = self.take_back(index) {
            return Some(close_request(rkey));
        }
        let key = self.ends[index].sink_keys.pop_front()?;
        let op = SendOp::LocalInv { rkey: RKey(key) };
        let action = Action::LocalInv { key };
        let local = super::request::Local::none();
        Some(Request::new(op, WcOpcode::LocalInv, action, local))
    }

    fn datagram(&mut self, index: usize, kind: Kind) -> Option<Request> {
        let all: Vec<usize> = (0..self.ends.len())
            .filter(|&e| self.ends[e].kind == QpType::Ud)
            .collect();
        let to = self.ends[index].rng.pick(&all);
        let room = self.pools[self.ends[to].pool].capacity - GRH_BYTES;
        let end = &mut self.ends[index];
        let len = size(&mut end.rng, end.plan.message_max.min(room));
        let link = Link {
            kind: QpType::Ud,
            v6: end.rng.percent(40),
            traffic_class: end.rng.pick(&[0, 2, 0x6a]),
            ..Link::default()
        };
        let wrong_key = end.rng.percent(10);
        let imm = end.rng.next_u32().to_be_bytes();
        let (from, src_qp, pieces) = (end.host, end.qpn, end.plan.sge_max);
        let local = self.source(index, len, pieces)?;
        let path = setup::path(&self.fabric, from, self.ends[to].host, &link);
        let mut message = self.next_message(index, len);
        message.datagram = Some(Datagram { src_qp, path });
        let op = if kind == Kind::SendImm {
            message.imm = Some(imm);
            SendOp::SendImm { imm }
        } else {
            SendOp::Send
        };
        let qkey = QKey(self.ends[to].qkey.0 ^ u32::from(wrong_key));
        let action = Action::Datagram { to, qkey };
        let mut request = Request::new(op, WcOpcode::Send, action, local);
        request.flags.set(SendFlags::SOLICITED, message.solicited);
        request.ud = Some(UdAddress {
            path,
            remote_qpn: self.ends[to].qpn,
            remote_qkey: qkey,
        });
        request.message = (!wrong_key).then_some((to, message));
        Some(request)
    }
}

fn draw(mix: &[(u32, Kind)], rng: &mut Rng) -> Kind {
    let all: u32 = mix.iter().map(|m| m.0).sum();
    let mut at = rng.range_u32(0, all - 1);
    for (weight, kind) in mix {
        if at < *weight {
            return *kind;
        }
        at -= weight;
    }
    Kind::Send
}

/// A length up to `max`: often tiny, often around a multiple of a path MTU, at times the most.
fn size(rng: &mut Rng, max: u32) -> u32 {
    let len = match rng.below(10) {
        0 => 0,
        1..=3 => rng.range_u32(1, 64),
        4..=6 => {
            let unit = rng.pick(&[256, 512, 1024, 2048, 4096]);
            (unit * rng.range_u32(1, 4) + rng.range_u32(0, 2)).saturating_sub(1)
        }
        7 => max,
        _ => rng.range_u32(0, max),
    };
    len.min(max)
}
