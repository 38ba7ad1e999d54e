//! Extended posting: requests are built by calls, one by one, and posted together at the end.
//!
//! A builder begins a request with the `wr_id` and `wr_flags` that the program left in the queue
//! pair, setters complete it. Nothing fails on the way: the first mistake is kept, and
//! `ibv_wr_complete` answers it and posts nothing.

use core::cell::UnsafeCell;
use core::ffi::{c_int, c_uint, c_void};
use core::mem::offset_of;

use rocebud_objects::{
    Errno, FlushPlacement, FlushRange, Misuse, Payload, QpType, Remote, SendFlags, SendOp, SendWr,
    Sge, SgeList, UdAddress,
};
use rocebud_wire::{LKey, QKey, Qpn, RKey};

use super::ah::Ah;
use super::boundary::{Arg, ErrnoCode, Outcome, enter_fast, guard_fast};
use super::handle::Handle;
use super::post::sge_list;
use super::qp::Qp;
use super::types::{ibv_ah, ibv_data_buf, ibv_mw, ibv_mw_bind_info, ibv_qp_ex, ibv_sge};
use super::window::bind_operation;
use crate::turn::Turn;

/// `enum ibv_qp_create_send_ops_flags`
mod with {
    pub(super) const RDMA_WRITE: u64 = 1;
    pub(super) const RDMA_WRITE_WITH_IMM: u64 = 1 << 1;
    pub(super) const SEND: u64 = 1 << 2;
    pub(super) const SEND_WITH_IMM: u64 = 1 << 3;
    pub(super) const RDMA_READ: u64 = 1 << 4;
    pub(super) const ATOMIC_CMP_AND_SWP: u64 = 1 << 5;
    pub(super) const ATOMIC_FETCH_AND_ADD: u64 = 1 << 6;
    pub(super) const LOCAL_INV: u64 = 1 << 7;
    pub(super) const BIND_MW: u64 = 1 << 8;
    pub(super) const SEND_WITH_INV: u64 = 1 << 9;
    pub(super) const FLUSH: u64 = 1 << 11;
    pub(super) const ATOMIC_WRITE: u64 = 1 << 12;
}

/// What a transport service can be asked to post.
const fn offered(qp_type: QpType) -> u64 {
    let datagrams = with::SEND | with::SEND_WITH_IMM;
    let windows = with::BIND_MW | with::LOCAL_INV;
    let unreliable = datagrams | windows | with::RDMA_WRITE | with::RDMA_WRITE_WITH_IMM;
    match qp_type {
        QpType::Ud => datagrams,
        QpType::RawPacket => with::SEND,
        QpType::Uc => unreliable,
        QpType::XrcRecv => 0,
        QpType::XrcSend => offered(QpType::Rc) & !with::ATOMIC_WRITE,
        QpType::Rc => {
            unreliable
                | with::RDMA_READ
                | with::ATOMIC_CMP_AND_SWP
                | with::ATOMIC_FETCH_AND_ADD
                | with::SEND_WITH_INV
                | with::FLUSH
                | with::ATOMIC_WRITE
        }
    }
}

/// Refuses operations that the transport service does not have.
pub(crate) fn check_operations(qp_type: QpType, asked: u64) -> Outcome<()> {
    if asked & !offered(qp_type) == 0 {
        return Ok(());
    }
    Err(Misuse::new(
        Errno::EOPNOTSUPP,
        "ibv_create_qp_ex: send_ops_flags has operations that this queue pair type cannot post",
    ))
}

/// The requests between `ibv_wr_start` and `ibv_wr_complete`.
pub(crate) struct Posting {
    turn: Turn,
    /// Operations that the program said it would use.
    allowed: u64,
    draft: UnsafeCell<Draft>,
}

#[derive(Default)]
struct Draft {
    wrs: Vec<SendWr>,
    mistake: Option<Misuse>,
}

// SAFETY: `draft` is touched between start and complete or abort alone, where `turn` lets one
// thread in (or the program promised to be one thread).
unsafe impl Sync for Posting {}

impl Posting {
    /// `alone`: the program posts from one thread at a time.
    pub(crate) fn new(allowed: u64, alone: bool) -> Self {
        Self {
            turn: Turn::new(alone),
            allowed,
            draft: UnsafeCell::default(),
        }
    }
}

impl Draft {
    fn fail(&mut self, mistake: Misuse) {
        self.mistake.get_or_insert(mistake);
    }

    fn clear(&mut self) {
        self.wrs.clear();
        self.mistake = None;
    }
}

const NOT_STARTED: Misuse = Misuse::invalid("ibv_wr_set_*: no request was begun");
const NOT_ASKED_FOR: Misuse =
    Misuse::invalid("ibv_wr_*: this operation is not in the queue pair's send_ops_flags");
const NO_SUCH_PLACE: Misuse = Misuse::invalid("ibv_wr_flush: unknown placement type or level");

/// What `wr_flags` may say; inline data has setters of its own.
const FLAGS: SendFlags = SendFlags::FENCE
    .union(SendFlags::SIGNALED)
    .union(SendFlags::SOLICITED)
    .union(SendFlags::IP_CSUM);

/// Changes the draft of a queue pair. A panic of ours becomes the draft's mistake.
fn draft(qp: Handle<Qp>, change: impl FnOnce(&Qp, &mut Draft) -> Outcome<()>) {
    let qp = qp.ours();
    let Some(posting) = &qp.posting else { return };
    // SAFETY: see the Sync promise; verbs.h lets builders and setters be called inside the critical
    // section alone.
    let draft = unsafe { &mut *posting.draft.get() };
    if let Err(mistake) = guard_fast(|| change(qp, draft)) {
        draft.fail(mistake);
    }
}

/// Begins a request.
fn begin(qp: Handle<Qp>, operation: u64, op: SendOp) {
    draft(qp, |qp, draft| {
        if qp
            .posting
            .as_ref()
            .is_none_or(|p| p.allowed & operation == 0)
        {
            return Err(NOT_ASKED_FOR);
        }
        let flags: c_uint = qp.field(offset_of!(ibv_qp_ex, wr_flags));
        draft.wrs.push(SendWr {
            wr_id: qp.field(offset_of!(ibv_qp_ex, wr_id)),
            op,
            flags: SendFlags::from_bits_truncate(flags) & FLAGS,
            payload: Payload::Sges(SgeList::new()),
            ud: None,
            xrc_srqn: 0,
        });
        Ok(())
    });
}

/// Completes the request that was begun last.
fn set(qp: Handle<Qp>, change: impl FnOnce(&Qp, &mut SendWr) -> Outcome<()>) {
    draft(qp, |qp, draft| {
        change(qp, draft.wrs.last_mut().ok_or(NOT_STARTED)?)
    });
}

const fn remote(rkey: u32, addr: u64) -> Remote {
    Remote {
        addr,
        rkey: RKey(rkey),
    }
}

// ---- the critical section

extern "C" fn wr_start(qp: Handle<Qp>) {
    if let Some(posting) = &qp.ours().posting
        && qp.ours().verbs.check_process().is_ok()
    {
        posting.turn.take();
    }
}

extern "C" fn wr_complete(qp: Handle<Qp>) -> c_int {
    enter_fast::<ErrnoCode, ()>(|| {
        let mut outcome = Ok(());
        qp.ours().verbs.check_process()?;
        draft(qp, |qp, draft| {
            outcome = match draft.mistake {
                Some(mistake) => Err(mistake),
                None => qp.verbs.post_sends(&mut draft.wrs),
            };
            Ok(())
        });
        finish(qp);
        outcome
    })
}

extern "C" fn wr_abort(qp: Handle<Qp>) {
    if qp.ours().verbs.check_process().is_ok() {
        finish(qp);
    }
}

/// Forgets the draft and ends the critical section.
fn finish(qp: Handle<Qp>) {
    draft(qp, |_, draft| {
        draft.clear();
        Ok(())
    });
    if let Some(posting) = &qp.ours().posting {
        posting.turn.give();
    }
}

// ---- builders

extern "C" fn wr_send(qp: Handle<Qp>) {
    begin(qp, with::SEND, SendOp::Send);
}

extern "C" fn wr_send_imm(qp: Handle<Qp>, imm: u32) {
    let imm = imm.to_ne_bytes();
    begin(qp, with::SEND_WITH_IMM, SendOp::SendImm { imm });
}

extern "C" fn wr_send_inv(qp: Handle<Qp>, rkey: u32) {
    let rkey = RKey(rkey);
    begin(qp, with::SEND_WITH_INV, SendOp::SendInv { rkey });
}

extern "C" fn wr_rdma_write(qp: Handle<Qp>, rkey: u32, addr: u64) {
    let remote = remote(rkey, addr);
    begin(qp, with::RDMA_WRITE, SendOp::Write { remote });
}

extern "C" fn wr_rdma_write_imm(qp: Handle<Qp>, rkey: u32, addr: u64, imm: u32) {
    let (remote, imm) = (remote(rkey, addr), imm.to_ne_bytes());
    let op = SendOp::WriteImm { remote, imm };
    begin(qp, with::RDMA_WRITE_WITH_IMM, op);
}

extern "C" fn wr_rdma_read(qp: Handle<Qp>, rkey: u32, addr: u64) {
    let remote = remote(rkey, addr);
    begin(qp, with::RDMA_READ, SendOp::Read { remote });
}

extern "C" fn wr_atomic_cmp_swp(qp: Handle<Qp>, rkey: u32, addr: u64, compare: u64, swap: u64) {
    let op = SendOp::CmpSwap {
        remote: remote(rkey, addr),
        compare,
        swap,
    };
    begin(qp, with::ATOMIC_CMP_AND_SWP, op);
}

extern "C" fn wr_atomic_fetch_add(qp: Handle<Qp>, rkey: u32, addr: u64, add: u64) {
    let remote = remote(rkey, addr);
    begin(
        qp,
        with::ATOMIC_FETCH_AND_ADD,
        SendOp::FetchAdd { remote, add },
    );
}

/// The eight bytes are copied now.
extern "C" fn wr_atomic_write(qp: Handle<Qp>, rkey: u32, addr: u64, value: *const c_void) {
    let remote = remote(rkey, addr);
    begin(qp, with::ATOMIC_WRITE, SendOp::AtomicWrite { remote });
    set_inline(qp, &[buffer(value, 8)]);
}

extern "C" fn wr_flush(qp: Handle<Qp>, rkey: u32, addr: u64, len: usize, kind: u8, level: u8) {
    const EVERY_PLACE: u8 = FlushPlacement::GLOBAL | FlushPlacement::PERSISTENT;
    let range = match level {
        0 => Some(FlushRange::Range),
        1 => Some(FlushRange::Region),
        _ => None,
    };
    let length = u32::try_from(len).ok();
    let (Some(range), Some(length)) = (range, length) else {
        return draft(qp, |_, _| Err(NO_SUCH_PLACE));
    };
    if kind == 0 || kind & !EVERY_PLACE != 0 {
        return draft(qp, |_, _| Err(NO_SUCH_PLACE));
    }
    let op = SendOp::Flush {
        remote: remote(rkey, addr),
        length,
        range,
        placement: FlushPlacement(kind),
    };
    begin(qp, with::FLUSH, op);
}

extern "C" fn wr_local_inv(qp: Handle<Qp>, rkey: u32) {
    let rkey = RKey(rkey);
    begin(qp, with::LOCAL_INV, SendOp::LocalInv { rkey });
}

extern "C" fn wr_bind_mw(qp: Handle<Qp>, mw: *mut ibv_mw, rkey: u32, info: Arg<ibv_mw_bind_info>) {
    let bind = guard_fast(|| bind_operation(Handle::from_raw(mw), rkey, &info.get()?));
    match bind {
        Ok(op) => begin(qp, with::BIND_MW, op),
        Err(mistake) => draft(qp, |_, _| Err(mistake)),
    }
}

/// Segmentation of TCP streams: no queue pair offers it.
extern "C" fn wr_send_tso(qp: Handle<Qp>, _header: *mut c_void, _len: u16, _mss: u16) {
    draft(qp, |_, _| Err(NOT_ASKED_FOR));
}

// ---- setters

extern "C" fn wr_set_ud_addr(qp: Handle<Qp>, ah: *mut ibv_ah, qpn: u32, qkey: u32) {
    set(qp, |_, wr| {
        let ah = Handle::<Ah>::from_raw(ah).mine()?;
        wr.ud = Some(UdAddress {
            path: ah.path,
            remote_qpn: Qpn::new(qpn),
            remote_qkey: QKey(qkey),
        });
        Ok(())
    });
}

extern "C" fn wr_set_xrc_srqn(qp: Handle<Qp>, srqn: u32) {
    set(qp, |qp, wr| {
        if qp.qp_type != QpType::XrcSend {
            return Err(Misuse::invalid(
                "ibv_wr_set_xrc_srqn: not an XRC_SEND queue pair",
            ));
        }
        wr.xrc_srqn = srqn;
        Ok(())
    });
}

extern "C" fn wr_set_sge(qp: Handle<Qp>, lkey: u32, addr: u64, length: u32) {
    let sge = Sge {
        addr,
        length,
        lkey: LKey(lkey),
    };
    set(qp, |_, wr| {
        wr.payload = Payload::Sges([sge].into_iter().collect());
        Ok(())
    });
}

extern "C" fn wr_set_sge_list(qp: Handle<Qp>, count: usize, list: *const ibv_sge) {
    set(qp, |qp, wr| {
        let list = caller_list(list, count, qp.cap.max_send_sge as usize)?;
        wr.payload = Payload::Sges(sge_list(list));
        Ok(())
    });
}

extern "C" fn wr_set_inline_data(qp: Handle<Qp>, addr: *mut c_void, length: usize) {
    set_inline(qp, &[buffer(addr, length)]);
}

extern "C" fn wr_set_inline_data_list(qp: Handle<Qp>, count: usize, list: *const ibv_data_buf) {
    // More buffers than bytes that fit would carry nothing.
    match caller_list(list, count, INLINE_BUFFERS_MAX) {
        Ok(list) => set_inline(qp, list),
        Err(mistake) => draft(qp, |_, _| Err(mistake)),
    }
}

/// Buffers of an inline list: as many as the longest inline message has bytes.
const INLINE_BUFFERS_MAX: usize = 4096;

const fn buffer(addr: *const c_void, length: usize) -> ibv_data_buf {
    ibv_data_buf {
        addr: addr.cast_mut(),
        length,
    }
}

/// Copies the buffers now; the sum is compared with the limit first.
fn set_inline(qp: Handle<Qp>, buffers: &[ibv_data_buf]) {
    set(qp, |qp, wr| {
        let mut sges = SgeList::new();
        for buffer in buffers {
            let length = u32::try_from(buffer.length).map_err(|_| {
                Misuse::invalid("ibv_wr_set_inline_data: more bytes than max_inline_data")
            })?;
            sges.push(Sge {
                addr: buffer.addr.expose_provenance() as u64,
                length,
                lkey: LKey(0),
            });
        }
        wr.payload = qp.verbs.gather_inline(&sges)?;
        wr.flags |= SendFlags::INLINE;
        Ok(())
    });
}

/// The caller's array.
fn caller_list<'a, T>(list: *const T, count: usize, max: usize) -> Outcome<&'a [T]> {
    if count > max {
        return Err(Misuse::invalid(
            "ibv_wr_set_*_list: more pieces than the queue pair takes",
        ));
    }
    if count == 0 {
        return Ok(&[]);
    }
    if list.is_null() {
        return Err(super::boundary::NULL);
    }
    // SAFETY: verbs.h: the list has `count` entries, which stay unchanged during the call.
    Ok(unsafe { core::slice::from_raw_parts(list, count) })
}

/// The functions, in the places where C looks for them.
pub(crate) fn with_functions(head: ibv_qp_ex) -> ibv_qp_ex {
    type H = Handle<Qp>;
    ibv_qp_ex {
        wr_start: slot!(wr_start, fn(H) -> ()),
        wr_complete: slot!(wr_complete, fn(H) -> c_int),
        wr_abort: slot!(wr_abort, fn(H) -> ()),
        wr_send: slot!(wr_send, fn(H) -> ()),
        wr_send_imm: slot!(wr_send_imm, fn(H, u32) -> ()),
        wr_send_inv: slot!(wr_send_inv, fn(H, u32) -> ()),
        wr_send_tso: slot!(wr_send_tso, fn(H, *mut c_void, u16, u16) -> ()),
        wr_rdma_write: slot!(wr_rdma_write, fn(H, u32, u64) -> ()),
        wr_rdma_write_imm: slot!(wr_rdma_write_imm, fn(H, u32, u64, u32) -> ()),
        wr_rdma_read: slot!(wr_rdma_read, fn(H, u32, u64) -> ()),
        wr_atomic_cmp_swp: slot!(wr_atomic_cmp_swp, fn(H, u32, u64, u64, u64) -> ()),
        wr_atomic_fetch_add: slot!(wr_atomic_fetch_add, fn(H, u32, u64, u64) -> ()),
        wr_atomic_write: slot!(wr_atomic_write, fn(H, u32, u64, *const c_void) -> ()),
        wr_flush: slot!(wr_flush, fn(H, u32, u64, usize, u8, u8) -> ()),
        wr_local_inv: slot!(wr_local_inv, fn(H, u32) -> ()),
        wr_bind_mw: slot!(
            wr_bind_mw,
            fn(H, *mut ibv_mw, u32, Arg<ibv_mw_bind_info>) -> ()
        ),
        wr_set_ud_addr: slot!(wr_set_ud_addr, fn(H, *mut ibv_ah, u32, u32) -> ()),
        wr_set_xrc_srqn: slot!(wr_set_xrc_srqn, fn(H, u32) -> ()),
        wr_set_sge: slot!(wr_set_sge, fn(H, u32, u64, u32) -> ()),
        wr_set_sge_list: slot!(wr_set_sge_list, fn(H, usize, *const ibv_sge) -> ()),
        wr_set_inline_data: slot!(wr_set_inline_data, fn(H, *mut c_void, usize) -> ()),
        wr_set_inline_data_list: slot!(
            wr_set_inline_data_list,
            fn(H, usize, *const ibv_data_buf) -> ()
        ),
        ..head
    }
}
