//! Packets out of the send queue.

use rocebud_objects::{Counter, FlushRange, QpState, QpType, SendFlags, SendOp};
use rocebud_wire::{AtomicEth, Feth, Gid, Header, Opcode, Qpn, Reth};

use super::flush::local_reason;
use super::sq::{Kind, Timer, Wqe};
use super::xrc::{of_class, xrceth};
use super::{Qp, sge};
use crate::cx::Cx;
use crate::env::Env;
use crate::limits::{PACKET_COST_BYTES, PSN_SPAN_MAX};
use crate::node::Transmit;
use crate::reasons::Reason;

/// How the next packet may leave.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Leave {
    /// Not before it is woken.
    NotNow,
    Freely,
    /// Beyond what there is room for, if it asks for an ACK.
    Asking,
}

impl Qp {
    /// The next request packet. Also carries out LOCAL_INV and binds, which need none.
    pub(crate) fn next_request<E: Env>(
        &mut self,
        buf: &mut [u8],
        cx: &mut Cx<'_, E>,
    ) -> Option<Transmit> {
        if !matches!(self.state, QpState::Rts | QpState::Sqd)
            || matches!(self.sq.timer, Timer::Rnr { .. })
        {
            return None;
        }
        self.sq.waits = false;
        loop {
            let cursor = self.sq.cursor;
            let wqe = self.sq.current()?;
            if wqe.fail.is_some() {
                return None;
            }
            if wqe.started && cursor >= wqe.end() {
                #[cfg(feature = "planted")]
                self.repeat_bind(cx);
                self.sq.cur += 1;
                continue;
            }
            if !wqe.started {
                if !self.start_request(cx) {
                    return None;
                }
                continue;
            }
            return match (self.init.qp_type, wqe.kind) {
                (QpType::Ud, _) => self.send_datagram(buf, cx),
                (_, Kind::Forward) => self.send_forward(buf, cx),
                (_, Kind::Read) => self.send_read(buf, cx),
                (_, Kind::Single) => self.send_single(buf, cx),
                (_, Kind::Local) => None,
            };
        }
    }

    /// Begins the request at the cursor, unless it has to wait or fails. True = look again.
    fn start_request<E: Env>(&mut self, cx: &mut Cx<'_, E>) -> bool {
        let reads = self.sq.flight.reads;
        let first = self.sq.cursor;
        let pmtu = self.pmtu as u64;
        let Some(wqe) = self.sq.current() else {
            return false;
        };
        let fenced = wqe.wr.flags.contains(SendFlags::FENCE);
        if self.state != QpState::Rts || fenced && reads != 0 {
            return false;
        }
        if let Some(again) = self.start_local(cx) {
            return again;
        }
        if let Err(reason) = self.check_start(cx) {
            self.fail_current(reason, cx);
            return false;
        }
        let chunk = u64::from(cx.core.cfg.read_chunk());
        let datagram = self.init.qp_type == QpType::Ud;
        let Some(wqe) = self.sq.current() else {
            return false;
        };
        wqe.first = first;
        wqe.packets = match wqe.kind {
            _ if datagram => 1,
            Kind::Forward | Kind::Read => wqe.len.div_ceil(pmtu).max(1),
            Kind::Single => 1,
            Kind::Local => 0,
        };
        wqe.chunk = chunk;
        wqe.started = true;
        true
    }

    /// What can be known before the first packet leaves.
    fn check_start<E: Env>(&mut self, cx: &Cx<'_, E>) -> Result<(), Reason> {
        let (pd, pmtu) = (self.init.pd, self.pmtu as u64);
        let datagram = self.init.qp_type == QpType::Ud;
        let (port_mtu, reads_max) = (u64::from(self.port_mtu.bytes()), self.attr.max_rd_atomic);
        let Some(wqe) = self.sq.current() else {
            return Ok(());
        };
        if datagram && wqe.len > port_mtu {
            return Err(Reason::DatagramTooLong);
        }
        let reads = matches!(wqe.kind, Kind::Read | Kind::Single);
        if reads && reads_max == 0 {
            return Err(Reason::ReadsNotAllowed);
        }
        let rocebud_objects::Payload::Sges(sges) = &wqe.wr.payload else {
            return Ok(());
        };
        let is_target = match wqe.wr.op {
            SendOp::Read { .. } | SendOp::CmpSwap { .. } | SendOp::FetchAdd { .. } => true,
            SendOp::AtomicWrite { .. } | SendOp::Flush { .. } => false,
            // One packet is checked by reading it.
            _ if wqe.len <= pmtu => return Ok(()),
            _ => false,
        };
        sge::check(cx.env, pd, sges, is_target).map_err(local_reason)
    }

    /// May one more packet of `cost` leave? A wake-up is arranged if not.
    ///
    /// The only packet of a reliable queue pair always goes: its timer watches over the peer. Behind
    /// packets of which none asks for an ACK one more goes whatever the windows are, and asks: they may
    /// have shrunk since those left, neighbours may have filled them, and nothing else would draw the
    /// ACK that opens them again. Room at the peer comes by itself, and is waited for until the timer
    /// runs out.
    fn admit_forward<E: Env>(&mut self, cost: u64, cx: &mut Cx<'_, E>) -> Leave {
        let reliable = self.init.qp_type.is_reliable();
        if reliable && self.sq.flight.packets == 0 {
            return Leave::Freely;
        }
        let (to, dest) = (self.path.dgid, self.attr.dest_qp_num);
        let fits = !reliable || self.fits_windows(cost, cx);
        if fits && has_room(to, dest, cost, cx) {
            return Leave::Freely;
        }
        if reliable && self.sq.is_unheard() && (!fits || self.sq.overdue) {
            return Leave::Asking;
        }
        if fits {
            cx.core.held.push(self.index);
        } else {
            self.wait_for_window(cost, cx);
        }
        Leave::NotNow
    }

    /// Is there room at the peer's process? If not, this queue pair is held.
    pub(crate) fn find_room<E: Env>(
        &self,
        to: Gid,
        dest: Qpn,
        cost: u64,
        cx: &mut Cx<'_, E>,
    ) -> bool {
        let room = has_room(to, dest, cost, cx);
        if !room {
            cx.core.held.push(self.index);
        }
        room
    }

    /// One more packet may be in flight, whatever it costs.
    fn fits_packets<E: Env>(&self, cx: &Cx<'_, E>) -> bool {
        self.sq.flight.packets < u64::from(cx.core.cfg.window_packets.max(1))
    }

    /// Room for one more packet of `cost` in the windows?
    fn fits_windows<E: Env>(&self, cost: u64, cx: &mut Cx<'_, E>) -> bool {
        self.fits_packets(cx)
            && self
                .peer
                .and_then(|id| cx.core.peers.window(id))
                .is_none_or(|window| window.has_room(cost))
    }

    /// The windows have no room for `cost`: ours is reopened by our own ACKs, for the peer's we stand
    /// in line.
    fn wait_for_window<E: Env>(&mut self, cost: u64, cx: &mut Cx<'_, E>) {
        if self.fits_packets(cx)
            && let Some(window) = self.peer.and_then(|id| cx.core.peers.window(id))
        {
            window.wait(self.index, cost, core::mem::take(&mut self.sq.served));
            self.sq.waits = true;
        }
    }

    /// After a packet of `cost`, the window would hold up a full one: ask for an ACK now, and it
    /// reopens soonest.
    fn last_in_window<E: Env>(&mut self, cost: u64, cx: &mut Cx<'_, E>) -> bool {
        let flight = self.sq.flight;
        let next = cost + self.pmtu as u64 + PACKET_COST_BYTES;
        flight.packets + 1 >= u64::from(cx.core.cfg.window_packets.max(1))
            || self
                .peer
                .and_then(|id| cx.core.peers.window(id))
                .is_some_and(|window| !window.has_room(next))
    }

    /// A packet of a SEND or WRITE, RC or UC.
    fn send_forward<E: Env>(&mut self, buf: &mut [u8], cx: &mut Cx<'_, E>) -> Option<Transmit> {
        let (cursor, pmtu, pd) = (self.sq.cursor, self.pmtu as u64, self.init.pd);
        let qp_type = self.init.qp_type;
        let reliable = qp_type.is_reliable();
        let wqe = self.sq.current()?;
        let k = cursor - wqe.first;
        let (cost, last) = (wqe.cost(k, k + 1, pmtu), k + 1 == wqe.packets);
        let leave = self.admit_forward(cost, cx);
        if leave == Leave::NotNow {
            return None;
        }
        let every = cx.core.cfg.ack_request_every_packets;
        let ask = reliable
            && (last || leave == Leave::Asking || self.sq.overdue
                || self.sq.unasked + 1 >= every || self.last_in_window(cost, cx)
                // What comes next may come late, and the timer would not wait for it.
                || self.pace.is_on());
        let psn = self.sq.psn(cursor);
        let mut bth = self.bth(Opcode(0), psn);
        let wqe = self.sq.current()?;
        let n = usize::try_from(wqe.len.saturating_sub(k * pmtu).min(pmtu)).ok()?;
        let mut header = forward_header(wqe, k == 0, last);
        header.ext.xrceth = xrceth(qp_type, wqe);
        bth.opcode = of_class(header.bth.opcode, qp_type);
        bth.solicited = header.bth.solicited;
        bth.ack_req = ask;
        header.bth = bth;
        let at = header.emit(n, buf);
        let room = buf.get_mut(at..at + n)?;
        if let Err(fault) = sge::gather(cx.env, pd, &wqe.wr.payload, k * pmtu, room) {
            self.fail_current(local_reason(fault), cx);
            return None;
        }
        cx.env.count(Counter::SentBytes, n as u64);
        let again = self.sent(1, cx);
        if ask && self.sq.is_unheard() {
            // The first to ask: no answer was missing so far.
            self.arm_ack_timer(cx);
        }
        if reliable {
            self.sq.unasked = if ask { 0 } else { self.sq.unasked + 1 };
            self.sq.overdue = false;
            self.sq.flight.packets += 1;
            self.sq.flight.bytes += cost;
            if let Some(window) = self.peer.and_then(|id| cx.core.peers.window(id)) {
                self.sq.served |= window.has_room(cost);
                window.take(cost);
            }
        } else {
            self.finish_unreliable(cx);
        }
        Some(self.transmit(header.frame_len(n), again))
    }

    /// Moves the cursor over `packets` numbers; true if they were sent before.
    pub(crate) fn sent<E: Env>(&mut self, packets: u64, cx: &mut Cx<'_, E>) -> bool {
        let again = self.sq.cursor < self.sq.nxt;
        self.sq.cursor += packets;
        self.sq.nxt = self.sq.nxt.max(self.sq.cursor);
        if self.init.qp_type.is_reliable()
            && matches!(self.sq.timer, Timer::Off | Timer::Line { .. })
        {
            self.arm_ack_timer(cx);
        }
        again
    }

    /// READs and atomics that may be outstanding. What was begun has to end, even if there may be none
    /// from now on.
    fn reads_max(&self) -> u64 {
        u64::from(self.attr.max_rd_atomic.max(1))
    }

    /// A READ request, for the rest of the chunk that the cursor is in.
    fn send_read<E: Env>(&mut self, buf: &mut [u8], cx: &mut Cx<'_, E>) -> Option<Transmit> {
        let (cursor, una, pmtu) = (self.sq.cursor, self.sq.una, self.pmtu as u64);
        let flight = self.sq.flight;
        let qp_type = self.init.qp_type;
        let wqe = self.sq.current()?;
        let named = xrceth(qp_type, wqe);
        let k = cursor - wqe.first;
        let end = wqe.chunk_end(k);
        let cost = wqe.cost(k, end, pmtu);
        let (from, to) = (k * pmtu, (end * pmtu).min(wqe.len));
        let SendOp::Read { remote } = wqe.wr.op else {
            return None;
        };
        let resumed = k % wqe.chunk.max(1) != 0;
        if flight.reads >= self.reads_max() || cursor + (end - k) > una + PSN_SPAN_MAX {
            return None;
        }
        if !cx.core.reads.admits(flight.read_bytes, cost) {
            let got = core::mem::take(&mut self.sq.served);
            cx.core.reads.wait(self.index, cost, got);
            self.sq.waits = true;
            return None;
        }
        let opcode = of_class(Opcode::RC_READ_REQUEST, qp_type);
        let mut header = Header::new(self.bth(opcode, self.sq.psn(cursor)));
        header.ext.xrceth = named;
        header.bth.ack_req = true;
        header.ext.reth = Some(Reth {
            va: remote.addr.wrapping_add(from),
            rkey: remote.rkey,
            dma_len: u32::try_from(to - from).ok()?,
        });
        header.emit(0, buf);
        if resumed {
            self.sq.resumed_at = Some(cursor);
        }
        let again = self.sent(end - k, cx);
        self.sq.flight.reads += 1;
        self.sq.flight.read_bytes += cost;
        self.sq.served |= cx.core.reads.has_room(cost);
        cx.core.reads.take(cost);
        Some(self.transmit(header.frame_len(0), again))
    }

    /// An atomic, ATOMIC WRITE or FLUSH.
    fn send_single<E: Env>(&mut self, buf: &mut [u8], cx: &mut Cx<'_, E>) -> Option<Transmit> {
        let (pd, qp_type) = (self.init.pd, self.init.qp_type);
        if self.sq.flight.reads >= self.reads_max() {
            return None;
        }
        let bth = self.bth(Opcode(0), self.sq.psn(self.sq.cursor));
        let wqe = self.sq.current()?;
        let mut header = single_header(wqe);
        header.ext.xrceth = xrceth(qp_type, wqe);
        header.bth = rocebud_wire::Bth {
            opcode: of_class(header.bth.opcode, qp_type),
            ack_req: true,
            ..bth
        };
        let n = if matches!(wqe.wr.op, SendOp::AtomicWrite { .. }) {
            8
        } else {
            0
        };
        let at = header.emit(n, buf);
        let room = buf.get_mut(at..at + n)?;
        if let Err(fault) = sge::gather(cx.env, pd, &wqe.wr.payload, 0, room) {
            self.fail_current(local_reason(fault), cx);
            return None;
        }
        cx.env.count(Counter::SentBytes, n as u64);
        let again = self.sent(1, cx);
        self.sq.flight.reads += 1;
        self.sq.flight.read_bytes += PACKET_COST_BYTES;
        cx.core.reads.take(PACKET_COST_BYTES);
        Some(self.transmit(header.frame_len(n), again))
    }
}

/// Is there room for a packet of `cost` at the peer's process?
fn has_room<E: Env>(to: Gid, dest: Qpn, cost: u64, cx: &mut Cx<'_, E>) -> bool {
    let bytes = cost.saturating_sub(PACKET_COST_BYTES);
    cx.env.has_room(to, dest.slot(), bytes)
}

/// Opcodes (of RC) of a SEND or WRITE: First, Middle, Last, Only.
const fn forward_opcodes(op: &SendOp) -> [Opcode; 4] {
    use Opcode as O;
    match op {
        SendOp::SendImm { .. } => [
            O::RC_SEND_FIRST,
            O::RC_SEND_MIDDLE,
            O::RC_SEND_LAST_IMM,
            O::RC_SEND_ONLY_IMM,
        ],
        SendOp::SendInv { .. } => [
            O::RC_SEND_FIRST,
            O::RC_SEND_MIDDLE,
            O::RC_SEND_LAST_INV,
            O::RC_SEND_ONLY_INV,
        ],
        SendOp::Write { .. } => [
            O::RC_WRITE_FIRST,
            O::RC_WRITE_MIDDLE,
            O::RC_WRITE_LAST,
            O::RC_WRITE_ONLY,
        ],
        SendOp::WriteImm { .. } => [
            O::RC_WRITE_FIRST,
            O::RC_WRITE_MIDDLE,
            O::RC_WRITE_LAST_IMM,
            O::RC_WRITE_ONLY_IMM,
        ],
        _ => [
            O::RC_SEND_FIRST,
            O::RC_SEND_MIDDLE,
            O::RC_SEND_LAST,
            O::RC_SEND_ONLY,
        ],
    }
}

/// Opcode (of RC), extension headers and solicited bit of a packet of a SEND or WRITE. The
/// opcode decides which of the headers go out.
fn forward_header(wqe: &Wqe, first: bool, last: bool) -> Header {
    let [f, m, l, o] = forward_opcodes(&wqe.wr.op);
    let opcode = match (first, last) {
        (true, true) => o,
        (true, false) => f,
        (false, false) => m,
        (false, true) => l,
    };
    let (psn, qpn) = (rocebud_wire::Psn::new(0), Qpn::SMI);
    let mut header = Header::new(rocebud_wire::Bth::new(opcode, qpn, psn));
    if let SendOp::Write { remote } | SendOp::WriteImm { remote, .. } = wqe.wr.op {
        header.ext.reth = Some(Reth {
            va: remote.addr,
            rkey: remote.rkey,
            dma_len: u32::try_from(wqe.len).unwrap_or(u32::MAX),
        });
    }
    match wqe.wr.op {
        SendOp::SendImm { imm } | SendOp::WriteImm { imm, .. } => header.ext.imm_dt = Some(imm),
        SendOp::SendInv { rkey } => header.ext.ieth = Some(rkey),
        _ => {}
    }
    let takes_receive = !matches!(wqe.wr.op, SendOp::Write { .. });
    header.bth.solicited = last && takes_receive && wqe.wr.flags.contains(SendFlags::SOLICITED);
    header
}

fn single_header(wqe: &Wqe) -> Header {
    let (psn, qpn) = (rocebud_wire::Psn::new(0), Qpn::SMI);
    let mut header = Header::new(rocebud_wire::Bth::new(Opcode::RC_FLUSH, qpn, psn));
    match wqe.wr.op {
        SendOp::CmpSwap {
            remote,
            compare,
            swap,
        } => {
            header.bth.opcode = Opcode::RC_CMP_SWAP;
            header.ext.atomic_eth = Some(AtomicEth {
                va: remote.addr,
                rkey: remote.rkey,
                swap_add: swap,
                compare,
            });
        }
        SendOp::FetchAdd { remote, add } => {
            header.bth.opcode = Opcode::RC_FETCH_ADD;
            header.ext.atomic_eth = Some(AtomicEth {
                va: remote.addr,
                rkey: remote.rkey,
                swap_add: add,
                compare: 0,
            });
        }
        SendOp::AtomicWrite { remote } => {
            header.bth.opcode = Opcode::RC_ATOMIC_WRITE;
            header.ext.reth = Some(Reth {
                va: remote.addr,
                rkey: remote.rkey,
                dma_len: 8,
            });
        }
        SendOp::Flush {
            remote,
            length,
            range,
            placement,
        } => {
            let sel = u8::from(range == FlushRange::Region);
            header.ext.feth = Some(Feth {
                sel,
                plt: placement.0,
            });
            header.ext.reth = Some(Reth {
                va: remote.addr,
                rkey: remote.rkey,
                dma_len: length,
            });
        }
        _ => {}
    }
    header
}
