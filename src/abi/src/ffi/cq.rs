//! Completion queues and channels. The iterator over an extended queue is in `cq_ex`.

use core::ffi::{c_int, c_uint, c_void};

use rocebud_objects::{Errno, Misuse, Wc, WcFlags};

use super::boundary::{Arg, Outcome};
use super::context::Context;
use super::cq_ex::{Batch, with_functions};
use super::handle::{Handle, Head, Object, give};
use super::memory::next_handle;
use super::room::{Housed, Room, give_in, retire};
use super::sleep::keep;
use super::types::{Plain, ibv_comp_channel, ibv_cq, ibv_cq_ex, ibv_wc};

/// A completion queue of ours. Its C structure is the extended one, which begins like the other.
#[repr(C)]
pub(crate) struct Cq {
    head: Head<ibv_cq_ex>,
    pub(crate) verbs: rocebud_verbs::Cq,
    pub(crate) batch: Batch,
    home: Option<Room>,
}

impl Housed for Cq {
    const RESOURCE: u64 = 2;
    fn home(&mut self) -> &mut Option<Room> {
        &mut self.home
    }
}

impl Object for Cq {
    const DEPTH: usize = 2;
}

impl Cq {
    /// The address that C knows the CQ by.
    pub(crate) const fn as_ptr(&self) -> *mut ibv_cq {
        self.head.as_ptr().cast()
    }

    /// Takes what has completed into the front of `out`, and runs no engine.
    pub(crate) fn take(&self, out: &mut [ibv_wc]) -> usize {
        let take = |batch: &mut [Wc]| self.verbs.take(batch);
        in_batches::<BATCH>(out.len(), take, |at, wc| out[at] = wc).unwrap_or(0)
    }

    /// Writes the field of the C structure that lies at `offset`.
    pub(crate) fn show<F: Copy>(&self, offset: usize, value: F) {
        self.head.set_field(offset, value);
    }
}

/// A completion channel of ours.
#[repr(C)]
pub(crate) struct CompChannel {
    head: Head<ibv_comp_channel>,
    pub(crate) verbs: rocebud_verbs::CompChannel,
}

impl Object for CompChannel {
    const DEPTH: usize = 2;
}

c_api! {
    /// `ibv_create_comp_channel`
    fn ibv_create_comp_channel(context: Context) -> Pointer, *mut ibv_comp_channel {
        let verbs = context.verbs.create_comp_channel()?;
        let head = ibv_comp_channel { context: context.as_ptr(), fd: verbs.fd(), refcnt: 0 };
        Ok(give(Box::new(CompChannel { head: Head::new(head), verbs })))
    }

    /// `ibv_destroy_comp_channel`: EBUSY while a CQ uses it.
    fn ibv_destroy_comp_channel(channel: CompChannel) -> ErrnoCode, () {
        channel.verbs.destroy()?;
        drop(Handle::<CompChannel>::from_raw(channel.head.as_ptr()).reclaim());
        Ok(())
    }

    /// `ibv_create_cq`
    fn ibv_create_cq(
        context: Context, cqe: c_int, cq_context: *mut c_void, channel: Handle<CompChannel>,
        comp_vector: c_int,
    ) -> Pointer, *mut ibv_cq {
        let entries = u32::try_from(cqe).map_err(|_| ENTRIES)?;
        let vector = u32::try_from(comp_vector)
            .map_err(|_| Misuse::invalid("ibv_create_cq: comp_vector is negative"))?;
        if entries == 0 {
            return Err(ENTRIES);
        }
        let with = if channel.is_null() { None } else { Some(channel.mine()?) };
        let verbs = context.verbs.create_cq(entries, with.map(|c| &c.verbs), vector, 0)?;
        Ok(make(context, verbs, with, cq_context, false, None)?.cast())
    }

    /// `ibv_resize_cq`: EINVAL below what the queue holds now.
    fn ibv_resize_cq(cq: Cq, cqe: c_int) -> ErrnoCode, () {
        cq.verbs.resize(u32::try_from(cqe).map_err(|_| ENTRIES)?)?;
        let now = c_int::try_from(cq.verbs.cqe()).unwrap_or(c_int::MAX);
        cq.head.update(|h| h.cqe = now);
        Ok(())
    }

    /// `ibv_destroy_cq`: EBUSY while a QP uses it; waits until every event that was taken is
    /// acknowledged.
    fn ibv_destroy_cq(cq: Cq) -> ErrnoCode, () {
        cq.verbs.destroy()?;
        let channel = Handle::<CompChannel>::from_raw(cq.head.get().channel);
        if !channel.is_null() {
            channel.ours().head.update(|h| h.refcnt -= 1);
        }
        retire(Handle::<Cq>::from_raw(cq.as_ptr()));
        Ok(())
    }

    /// `ibv_ack_cq_events`
    fn ibv_ack_cq_events(cq: Cq, count: c_uint) -> Silent, () {
        cq.verbs.ack_events(count);
        Ok(())
    }
}

waiting_c_api! {
    /// `ibv_get_cq_event`: blocks, unless the channel's descriptor says otherwise (EAGAIN).
    fn ibv_get_cq_event(
        channel: CompChannel, read, cq: Arg<*mut ibv_cq>, cq_context: Arg<*mut c_void>,
    ) -> c_int {
        let Some(found) = channel.verbs.event(read)? else {
            keep((channel.verbs.sleep(), channel.verbs.clone()));
            return Ok(Turn::Read(channel.verbs.fd()));
        };
        let p: *mut ibv_cq = core::ptr::with_exposed_provenance_mut(found.user as usize);
        if p.is_null() {
            return Err(Misuse::new(Errno::EIO, "the event's CQ has gone"));
        }
        cq.set(p)?;
        cq_context.set_if_wanted(Handle::<Cq>::from_raw(p).ours().head.get().cq_context);
        Ok(Turn::Over(0))
    }
}

/// Hands a new queue to C. `alone`: the program polls it from one thread at a time.
pub(crate) fn make(
    context: &Context,
    verbs: rocebud_verbs::Cq,
    channel: Option<&CompChannel>,
    cq_context: *mut c_void,
    alone: bool,
    room: Option<Room>,
) -> Outcome<*mut ibv_cq_ex> {
    let head = with_functions(ibv_cq_ex {
        context: context.as_ptr(),
        channel: channel.map_or(core::ptr::null_mut(), |c| c.head.as_ptr()),
        cq_context,
        handle: next_handle(),
        cqe: c_int::try_from(verbs.cqe()).unwrap_or(c_int::MAX),
        ..ibv_cq_ex::zeroed()
    });
    let cq = Box::new(Cq {
        head: Head::new(head),
        verbs,
        batch: Batch::new(alone),
        home: None,
    });
    let cq: *mut ibv_cq_ex = give_in(cq, room)?;
    if let Some(channel) = channel {
        channel.head.update(|h| h.refcnt += 1);
    }
    // Events name the CQ by this word; none can come before the program armed the CQ.
    let object = Handle::<Cq>::from_raw(cq).ours();
    object.verbs.set_user(cq.expose_provenance() as u64);
    Ok(cq)
}

const ENTRIES: Misuse = Misuse::invalid("a completion queue needs at least one entry");

/// Completions moved per call of the layer below; lives on the stack.
const BATCH: usize = 16;

/// `ibv_context.ops.poll_cq`: the number of completions, or a negative errno.
pub(crate) extern "C" fn poll_cq(cq: Handle<Cq>, max: c_int, out: Arg<ibv_wc>) -> c_int {
    use super::boundary::{CountOrNegative, enter_fast};
    enter_fast::<CountOrNegative, usize>(|| {
        let cq = cq.ours();
        let max = usize::try_from(max)
            .map_err(|_| Misuse::invalid("ibv_poll_cq: num_entries is negative"))?;
        if out.is_null() && max > 0 {
            return Err(Misuse::invalid("ibv_poll_cq: wc is NULL"));
        }
        let take = |batch: &mut [Wc]| cq.verbs.poll(batch);
        // SAFETY: the place is below max, and the caller's array has max entries.
        let put = |at, wc| unsafe { out.set_at(at, wc) };
        // Who polls for one at a time waits for it.
        if max == 1 {
            return in_batches::<1>(max, take, put);
        }
        in_batches::<BATCH>(max, take, put)
    })
}

/// Moves completions from `take` to their places, as many as there are, at most `max`, up to `N` at a
/// time. An error behind some of them is told by the next call.
#[inline]
fn in_batches<const N: usize>(
    max: usize,
    mut take: impl FnMut(&mut [Wc]) -> Outcome<usize>,
    mut put: impl FnMut(usize, ibv_wc),
) -> Outcome<usize> {
    let mut done = 0;
    let mut batch = [Wc::default(); N];
    while done < max {
        let want = N.min(max - done);
        let n = match take(&mut batch[..want]) {
            Ok(n) => n,
            Err(_) if done > 0 => break,
            Err(e) => return Err(e),
        };
        for (i, wc) in batch[..n].iter().enumerate() {
            put(done + i, c_wc(wc));
        }
        done += n;
        if n < want {
            break;
        }
    }
    Ok(done)
}

/// `ibv_context.ops.req_notify_cq`
pub(crate) extern "C" fn req_notify_cq(cq: Handle<Cq>, solicited_only: c_int) -> c_int {
    use super::boundary::{ErrnoCode, enter_fast};
    enter_fast::<ErrnoCode, ()>(|| cq.ours().verbs.req_notify(solicited_only != 0))
}

/// The union of immediate and invalidated key.
#[inline]
pub(crate) fn c_imm(wc: &Wc) -> [u8; 4] {
    if wc.wc_flags.contains(WcFlags::WITH_INV) {
        wc.invalidated_rkey.0.to_ne_bytes()
    } else {
        wc.imm
    }
}

#[inline]
fn c_wc(wc: &Wc) -> ibv_wc {
    ibv_wc {
        wr_id: wc.wr_id,
        status: wc.status as c_uint,
        opcode: wc.opcode as c_uint,
        vendor_err: wc.vendor_err,
        byte_len: wc.byte_len,
        imm_data: c_imm(wc),
        qp_num: wc.qp_num.value(),
        src_qp: wc.src_qp.value(),
        wc_flags: wc.wc_flags.bits(),
        pkey_index: wc.pkey_index,
        slid: 0,
        sl: wc.sl,
        dlid_path_bits: 0,
    }
}
