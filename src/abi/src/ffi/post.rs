//! The data path from C: work requests of verbs.h become those of the layers below, one by one;
//! the first bad one ends the list, and `bad_wr` names it. What was posted before stays posted.

use core::cell::Cell;
use core::ffi::{c_int, c_uint};

use rocebud_objects::{
    Misuse, Payload, QpType, RecvWr, Remote, SendFlags, SendOp, SendWr, Sge, SgeList, UdAddress,
};
use rocebud_verbs::PostError;
use rocebud_wire::{LKey, QKey, Qpn, RKey};

use super::ah::Ah;
use super::boundary::{Arg, ErrnoCode, Outcome, enter_fast};
use super::handle::Handle;
use super::qp::Qp;
use super::srq::Srq;
use super::types::{ibv_recv_wr, ibv_send_wr, ibv_sge};
use super::window::bind_operation;
use super::wq::Wq;

/// `ibv_context.ops.post_send`
pub(crate) extern "C" fn post_send(
    qp: Handle<Qp>,
    wr: *mut ibv_send_wr,
    bad: Arg<*mut ibv_send_wr>,
) -> c_int {
    let walk = Walk::new(wr, |w| w.next);
    walk.post(bad, || {
        let qp = qp.ours();
        qp.verbs.post_send_list(walk.map(|w| send_wr(qp, w)))
    })
}

/// `ibv_context.ops.post_recv`
pub(crate) extern "C" fn post_recv(
    qp: Handle<Qp>,
    wr: *mut ibv_recv_wr,
    bad: Arg<*mut ibv_recv_wr>,
) -> c_int {
    let walk = Walk::new(wr, |w| w.next);
    walk.post(bad, || {
        let qp = qp.ours();
        qp.verbs
            .post_recv_list(walk.map(|w| recv_wr(w, qp.cap.max_recv_sge)))
    })
}

/// `ibv_context.ops.post_srq_recv`
pub(crate) extern "C" fn post_srq_recv(
    srq: Handle<Srq>,
    wr: *mut ibv_recv_wr,
    bad: Arg<*mut ibv_recv_wr>,
) -> c_int {
    let walk = Walk::new(wr, |w| w.next);
    walk.post(bad, || {
        let srq = srq.ours();
        srq.verbs
            .post_recv_list(walk.map(|w| recv_wr(w, srq.max_sge)))
    })
}

/// `ibv_wq.post_recv`
pub(crate) extern "C" fn post_wq_recv(
    wq: Handle<Wq>,
    wr: *mut ibv_recv_wr,
    bad: Arg<*mut ibv_recv_wr>,
) -> c_int {
    let walk = Walk::new(wr, |w| w.next);
    walk.post(bad, || {
        let wq = wq.ours();
        wq.verbs
            .post_recv_list(walk.map(|w| recv_wr(w, wq.max_sge)))
    })
}

/// A walk along a list of work requests.
struct Walk<W> {
    first: *mut W,
    next: fn(&W) -> *mut W,
    /// The request that was given out last.
    at: Cell<*mut W>,
}

impl<W: Copy> Walk<W> {
    const fn new(first: *mut W, next: fn(&W) -> *mut W) -> Self {
        Self {
            first,
            next,
            at: Cell::new(first),
        }
    }

    /// Posts by `post`; when it fails, `bad` gets the request that was refused, after a panic of
    /// ours the one that was looked at. EINVAL for an empty list or no place for `bad_wr`.
    #[inline]
    fn post(&self, bad: Arg<*mut W>, post: impl FnOnce() -> Result<(), PostError>) -> c_int {
        let code = enter_fast::<ErrnoCode, ()>(|| {
            if self.first.is_null() || bad.is_null() {
                return Err(Misuse::invalid("posting: wr and bad_wr must not be NULL"));
            }
            post().map_err(|e| {
                self.at.set(self.nth(e.posted));
                e.misuse
            })
        });
        if code != 0 {
            bad.set_if_wanted(self.at.get());
        }
        code
    }

    fn nth(&self, n: usize) -> *mut W {
        let mut at = self.first;
        for _ in 0..n {
            match Arg::from_raw(at).get() {
                Ok(wr) => at = (self.next)(&wr),
                Err(_) => break,
            }
        }
        at
    }

    /// The requests of the list, translated one by one as they are asked for.
    #[inline]
    fn map<'a, T>(
        &'a self,
        translate: impl Fn(&W) -> Outcome<T> + 'a,
    ) -> impl Iterator<Item = Outcome<T>> + 'a {
        let mut coming = self.first;
        core::iter::from_fn(move || {
            let wr = Arg::from_raw(coming).get().ok()?;
            self.at.set(coming);
            coming = (self.next)(&wr);
            Some(translate(&wr))
        })
    }
}

const TOO_MANY_SGES: Misuse =
    Misuse::invalid("num_sge is negative or above what the queue was created with");
const OPCODE: Misuse = Misuse::invalid("this opcode cannot be posted");

/// The caller's scatter/gather list.
pub(crate) fn sges<'a>(list: *mut ibv_sge, num: c_int, max: u32) -> Outcome<&'a [ibv_sge]> {
    let n = u32::try_from(num).map_err(|_| TOO_MANY_SGES)?;
    if n > max {
        return Err(TOO_MANY_SGES);
    }
    if n == 0 {
        return Ok(&[]);
    }
    if list.is_null() {
        return Err(Misuse::invalid("sg_list is NULL but num_sge is not 0"));
    }
    // SAFETY: verbs.h: sg_list has num_sge entries, which stay unchanged during the call.
    Ok(unsafe { core::slice::from_raw_parts(list, n as usize) })
}

#[inline]
pub(crate) fn sge_list(list: &[ibv_sge]) -> SgeList {
    list.iter()
        .map(|s| Sge {
            addr: s.addr,
            length: s.length,
            lkey: LKey(s.lkey),
        })
        .collect()
}

#[inline]
fn recv_wr(wr: &ibv_recv_wr, max_sge: u32) -> Outcome<RecvWr> {
    let list = sges(wr.sg_list, wr.num_sge, max_sge)?;
    Ok(RecvWr {
        wr_id: wr.wr_id,
        sges: sge_list(list),
    })
}

#[inline]
fn send_wr(qp: &Qp, wr: &ibv_send_wr) -> Outcome<SendWr> {
    let list = sges(wr.sg_list, wr.num_sge, qp.cap.max_send_sge)?;
    let flags = SendFlags::from_bits_truncate(wr.send_flags);
    let op = operation(wr)?;
    let payload = if flags.contains(SendFlags::INLINE) {
        inline(qp, list, &op)?
    } else {
        Payload::Sges(sge_list(list))
    };
    let ud = match qp.qp_type {
        QpType::Ud => Some(datagram_address(wr, &op)?),
        _ => None,
    };
    Ok(SendWr {
        wr_id: wr.wr_id,
        op,
        flags,
        payload,
        ud,
        xrc_srqn: wr.xrc_srqn(),
    })
}

/// Where a datagram goes. Only sends have an address: in other requests its place in the union
/// holds something else, which must not be followed as a pointer.
fn datagram_address(wr: &ibv_send_wr, op: &SendOp) -> Outcome<UdAddress> {
    if !matches!(op, SendOp::Send | SendOp::SendImm { .. }) {
        return Err(Misuse::invalid(
            "UD queue pairs send datagrams and do nothing else",
        ));
    }
    let (ah, qpn, qkey) = wr.ud();
    let ah = Handle::<Ah>::from_raw(ah)
        .mine()
        .map_err(|_| Misuse::invalid("a UD send needs an address handle of the same device"))?;
    Ok(UdAddress {
        path: ah.path,
        remote_qpn: Qpn::new(qpn),
        remote_qkey: QKey(qkey),
    })
}

/// Copies the pieces at once: the caller may reuse them when the post returns. Keys are ignored;
/// the sum is taken in 64 bits and compared before anything is copied.
fn inline(qp: &Qp, list: &[ibv_sge], op: &SendOp) -> Outcome<Payload> {
    if matches!(
        op,
        SendOp::Read { .. } | SendOp::CmpSwap { .. } | SendOp::FetchAdd { .. }
    ) {
        return Err(Misuse::invalid(
            "READ and atomics fetch data: they cannot be inline",
        ));
    }
    qp.verbs.gather_inline(&sge_list(list))
}

/// `enum ibv_wr_opcode`. TSO and drivers' own opcodes are not posted this way yet.
fn operation(wr: &ibv_send_wr) -> Outcome<SendOp> {
    const WRITE: c_uint = 0;
    const WRITE_IMM: c_uint = 1;
    const SEND: c_uint = 2;
    const SEND_IMM: c_uint = 3;
    const READ: c_uint = 4;
    const CMP_SWAP: c_uint = 5;
    const FETCH_ADD: c_uint = 6;
    const LOCAL_INV: c_uint = 7;
    const BIND_MW: c_uint = 8;
    const SEND_INV: c_uint = 9;
    const ATOMIC_WRITE: c_uint = 15;
    let remote = |(addr, rkey)| Remote {
        addr,
        rkey: RKey(rkey),
    };
    let imm = wr.imm_data;
    let invalidate = RKey(u32::from_ne_bytes(wr.imm_data));
    Ok(match wr.opcode {
        WRITE => SendOp::Write {
            remote: remote(wr.rdma()),
        },
        WRITE_IMM => SendOp::WriteImm {
            remote: remote(wr.rdma()),
            imm,
        },
        SEND => SendOp::Send,
        SEND_IMM => SendOp::SendImm { imm },
        READ => SendOp::Read {
            remote: remote(wr.rdma()),
        },
        CMP_SWAP => {
            let (addr, compare, swap, rkey) = wr.atomic();
            SendOp::CmpSwap {
                remote: remote((addr, rkey)),
                compare,
                swap,
            }
        }
        FETCH_ADD => {
            let (addr, add, _, rkey) = wr.atomic();
            SendOp::FetchAdd {
                remote: remote((addr, rkey)),
                add,
            }
        }
        LOCAL_INV => SendOp::LocalInv { rkey: invalidate },
        BIND_MW => {
            let (mw, rkey, info) = wr.bind_mw();
            bind_operation(Handle::from_raw(mw), rkey, &info)?
        }
        SEND_INV => SendOp::SendInv { rkey: invalidate },
        ATOMIC_WRITE => SendOp::AtomicWrite {
            remote: remote(wr.rdma()),
        },
        _ => return Err(OPCODE),
    })
}
