//! The data path from C: work requests of verbs.h become those of the layers below, one by one;
//! the first bad one ends the list, and `bad_wr` names it. What was posted before stays posted.

use core::ffi::{c_int, c_uint};

use rocebud_objects::{
    Misuse, Payload, QpType, RecvWr, Remote, SendFlags, SendOp, SendWr, Sge, SgeList, UdAddress,
};
use rocebud_wire::{LKey, QKey, Qpn, RKey};

use super::ah::Ah;
use super::boundary::{Arg, ErrnoCode, Outcome, enter};
use super::handle::Handle;
use super::qp::Qp;
use super::srq::Srq;
use super::types::{ibv_recv_wr, ibv_send_wr, ibv_sge};

/// `ibv_context.ops.post_send`
pub(crate) extern "C" fn post_send(
    qp: Handle<Qp>,
    wr: *mut ibv_send_wr,
    bad: Arg<*mut ibv_send_wr>,
) -> c_int {
    post_list(
        wr,
        bad,
        |w: &ibv_send_wr| w.next,
        |w| {
            let qp = qp.ours();
            qp.verbs.post_send(send_wr(qp, w)?)
        },
    )
}

/// `ibv_context.ops.post_recv`
pub(crate) extern "C" fn post_recv(
    qp: Handle<Qp>,
    wr: *mut ibv_recv_wr,
    bad: Arg<*mut ibv_recv_wr>,
) -> c_int {
    post_list(
        wr,
        bad,
        |w: &ibv_recv_wr| w.next,
        |w| {
            let qp = qp.ours();
            qp.verbs.post_recv(recv_wr(w, qp.cap.max_recv_sge)?)
        },
    )
}

/// `ibv_context.ops.post_srq_recv`
pub(crate) extern "C" fn post_srq_recv(
    srq: Handle<Srq>,
    wr: *mut ibv_recv_wr,
    bad: Arg<*mut ibv_recv_wr>,
) -> c_int {
    post_list(
        wr,
        bad,
        |w: &ibv_recv_wr| w.next,
        |w| {
            let srq = srq.ours();
            srq.verbs.post_recv(recv_wr(w, srq.max_sge)?)
        },
    )
}

/// Walks a list of work requests. On a failure, a panic of ours included, `bad` gets the request
/// that was being posted. EINVAL for an empty list or no place for `bad_wr`.
#[inline]
fn post_list<W: Copy>(
    first: *mut W,
    bad: Arg<*mut W>,
    next: impl Fn(&W) -> *mut W,
    post: impl Fn(&W) -> Outcome<()>,
) -> c_int {
    let at = core::cell::Cell::new(first);
    let code = enter::<ErrnoCode, ()>(|| {
        if first.is_null() || bad.is_null() {
            return Err(Misuse::invalid("posting: wr and bad_wr must not be NULL"));
        }
        while !at.get().is_null() {
            let wr = Arg::from_raw(at.get()).get()?;
            post(&wr)?;
            at.set(next(&wr));
        }
        Ok(())
    });
    if code != 0 {
        bad.set_if_wanted(at.get());
    }
    code
}

const TOO_MANY_SGES: Misuse =
    Misuse::invalid("num_sge is negative or above what the queue was created with");
const OPCODE: Misuse = Misuse::invalid("this opcode cannot be posted");

/// The caller's scatter/gather list.
fn sges<'a>(list: *mut ibv_sge, num: c_int, max: u32) -> Outcome<&'a [ibv_sge]> {
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
fn sge_list(list: &[ibv_sge]) -> SgeList {
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
        inline(list, &op, qp.cap.max_inline_data)?
    } else {
        Payload::Sges(sge_list(list))
    };
    let ud = match qp.qp_type {
        QpType::Ud => Some(datagram_address(wr)?),
        QpType::Rc | QpType::Uc => None,
    };
    Ok(SendWr {
        wr_id: wr.wr_id,
        op,
        flags,
        payload,
        ud,
    })
}

fn datagram_address(wr: &ibv_send_wr) -> Outcome<UdAddress> {
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

/// Copies the pieces at once: the caller may reuse them when the post returns. Keys are ignored.
/// The sum is taken in 64 bits and compared before anything is copied.
fn inline(list: &[ibv_sge], op: &SendOp, max: u32) -> Outcome<Payload> {
    if matches!(
        op,
        SendOp::Read { .. } | SendOp::CmpSwap { .. } | SendOp::FetchAdd { .. }
    ) {
        return Err(Misuse::invalid(
            "READ and atomics fetch data: they cannot be inline",
        ));
    }
    let total: u64 = list.iter().map(|s| u64::from(s.length)).sum();
    if total > u64::from(max) {
        return Err(Misuse::invalid(
            "inline data is longer than the queue's max_inline_data",
        ));
    }
    let mut data = Vec::with_capacity(usize::try_from(total).unwrap_or(0));
    for piece in list.iter().filter(|s| s.length > 0) {
        let from: *const u8 = core::ptr::with_exposed_provenance(piece.addr as usize);
        // SAFETY: verbs.h: inline pieces are readable memory of the caller during the call.
        let bytes = unsafe { core::slice::from_raw_parts(from, piece.length as usize) };
        data.extend_from_slice(bytes);
    }
    Ok(Payload::Inline(data.into_boxed_slice()))
}

/// `enum ibv_wr_opcode`. Windows, TSO and drivers' own opcodes are not posted this way yet.
fn operation(wr: &ibv_send_wr) -> Outcome<SendOp> {
    const WRITE: c_uint = 0;
    const WRITE_IMM: c_uint = 1;
    const SEND: c_uint = 2;
    const SEND_IMM: c_uint = 3;
    const READ: c_uint = 4;
    const CMP_SWAP: c_uint = 5;
    const FETCH_ADD: c_uint = 6;
    const LOCAL_INV: c_uint = 7;
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
        SEND_INV => SendOp::SendInv { rkey: invalidate },
        ATOMIC_WRITE => SendOp::AtomicWrite {
            remote: remote(wr.rdma()),
        },
        _ => return Err(OPCODE),
    })
}
