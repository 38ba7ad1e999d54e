//! Extended completion queues: an iterator over completions instead of an array of them.
//!
//! Every queue of ours has the fields and functions, whichever call made it; which fields may be
//! read is between the program and its `wc_flags`. Fields that were not asked for and cost a clock
//! are 0.

use core::cell::UnsafeCell;
use core::ffi::{c_int, c_uint};
use core::mem::offset_of;

use rocebud_objects::{Errno, Misuse};
use rocebud_verbs::{Completion, CqCreate, CqOptions, Moderation};

use super::boundary::{Arg, ErrnoCode, Outcome, enter_fast};
use super::context::Context;
use super::cq::{CompChannel, Cq, c_imm, make};
use super::handle::Handle;
use super::memory::Pd;
use super::types::{
    ibv_cq_ex, ibv_cq_init_attr_ex, ibv_modify_cq_attr, ibv_poll_cq_attr, ibv_wc_tm_info,
};
use crate::turn::Turn;

/// Where the iterator stands.
pub(crate) struct Batch {
    turn: Turn,
    /// The completion that the read functions speak of.
    current: UnsafeCell<Completion>,
}

// SAFETY: `current` is touched between start and end of a batch alone, where `turn` lets one thread
// in (or the program promised to be one thread).
unsafe impl Sync for Batch {}

impl Batch {
    /// `alone`: the program uses the queue from one thread at a time.
    pub(crate) fn new(alone: bool) -> Self {
        Self {
            turn: Turn::new(alone),
            current: UnsafeCell::new(Completion::default()),
        }
    }

    #[inline]
    fn current(&self) -> Completion {
        // SAFETY: see the Sync promise; verbs.h lets fields be read inside a batch alone.
        unsafe { *self.current.get() }
    }

    fn set_current(&self, completion: Completion) {
        // SAFETY: see the Sync promise.
        unsafe { *self.current.get() = completion };
    }
}

/// `enum ibv_create_cq_wc_flags`
mod wc_flags {
    pub(super) const COMPLETION_TIMESTAMP: u64 = 1 << 7;
    pub(super) const TM_INFO: u64 = 1 << 10;
    pub(super) const COMPLETION_TIMESTAMP_WALLCLOCK: u64 = 1 << 11;
    /// All that there are, less tag matching.
    pub(super) const OFFERED: u64 = 0xfff & !TM_INFO;
}

/// `enum ibv_cq_init_attr_mask`
const MASK_FLAGS: u32 = 1;
const MASK_PD: u32 = 1 << 1;

/// `enum ibv_create_cq_attr_flags`
const SINGLE_THREADED: u32 = 1;
const IGNORE_OVERRUN: u32 = 1 << 1;

/// `IBV_CQ_ATTR_MODERATE`
const ATTR_MODERATE: u32 = 1;

const NO_PARENT: Misuse = Misuse::invalid("ibv_create_cq_ex: parent_domain is not a parent domain");

const NOT_OFFERED: Misuse = Misuse::new(
    Errno::EOPNOTSUPP,
    "ibv_create_cq_ex: unknown wc_flags, comp_mask or flags, or tag matching",
);

own_entry! {
    /// `verbs_context.create_cq_ex`
    fn create_cq_ex(context: Context, init: Arg<ibv_cq_init_attr_ex>) -> Pointer, *mut ibv_cq_ex {
        let wanted = init.get()?;
        let flags = if wanted.comp_mask & MASK_FLAGS != 0 { wanted.flags } else { 0 };
        if wanted.wc_flags & !wc_flags::OFFERED != 0
            || wanted.comp_mask & !(MASK_FLAGS | MASK_PD) != 0
            || flags & !(SINGLE_THREADED | IGNORE_OVERRUN) != 0
        {
            return Err(NOT_OFFERED);
        }
        let channel = Handle::<CompChannel>::from_raw(wanted.channel);
        let channel = if channel.is_null() { None } else { Some(channel.mine()?) };
        let pd = if wanted.comp_mask & MASK_PD == 0 {
            None
        } else {
            let pd = Handle::<Pd>::from_raw(wanted.parent_domain).mine()?;
            Some(pd).filter(|pd| pd.verbs.is_parent()).ok_or(NO_PARENT).map(Some)?
        };
        let verbs = context.verbs.create_cq_ex(CqCreate {
            cqe: wanted.cqe,
            channel: channel.map(|c| c.verbs.clone()),
            comp_vector: wanted.comp_vector,
            user: 0,
            parent_domain: pd.map(|pd| pd.verbs.clone()),
            options: CqOptions {
                ignore_overrun: flags & IGNORE_OVERRUN != 0,
                timestamps: wanted.wc_flags & wc_flags::COMPLETION_TIMESTAMP != 0,
                wallclock: wanted.wc_flags & wc_flags::COMPLETION_TIMESTAMP_WALLCLOCK != 0,
            },
        })?;
        let alone = flags & SINGLE_THREADED != 0
            || pd.is_some_and(|pd| pd.verbs.is_single_threaded());
        let room = pd.and_then(|pd| pd.room);
        make(context, verbs, channel, wanted.cq_context, alone, room)
    }

    /// `verbs_context.modify_cq`
    fn modify_cq(cq: Cq, attr: Arg<ibv_modify_cq_attr>) -> ErrnoCode, () {
        let wanted = attr.get()?;
        if wanted.attr_mask & !ATTR_MODERATE != 0 {
            return Err(Misuse::new(
                Errno::EOPNOTSUPP,
                "ibv_modify_cq: unknown bits in the attribute mask",
            ));
        }
        if wanted.attr_mask & ATTR_MODERATE != 0 {
            let [count, period_us] = wanted.moderate;
            cq.verbs.moderate(Moderation { count, period_us })?;
        }
        Ok(())
    }
}

const NOTHING: Misuse = Misuse::new(Errno::ENOENT, "no completion waits");

/// Takes the next completion and shows it.
#[inline]
fn step(cq: &Cq) -> Outcome<()> {
    let completion = cq.verbs.poll_one()?.ok_or(NOTHING)?;
    cq.batch.set_current(completion);
    cq.show(
        offset_of!(ibv_cq_ex, status),
        completion.wc.status as c_uint,
    );
    cq.show(offset_of!(ibv_cq_ex, wr_id), completion.wc.wr_id);
    Ok(())
}

extern "C" fn start_poll(cq: Handle<Cq>, attr: Arg<ibv_poll_cq_attr>) -> c_int {
    enter_fast::<ErrnoCode, ()>(|| {
        let cq = cq.ours();
        if attr.get()?.comp_mask != 0 {
            return Err(Misuse::invalid("ibv_start_poll: comp_mask must be 0"));
        }
        cq.verbs.check_process()?;
        cq.batch.turn.take();
        step(cq).inspect_err(|_| cq.batch.turn.give())
    })
}

extern "C" fn next_poll(cq: Handle<Cq>) -> c_int {
    enter_fast::<ErrnoCode, ()>(|| step(cq.ours()))
}

extern "C" fn end_poll(cq: Handle<Cq>) {
    cq.ours().batch.turn.give();
}

extern "C" fn read_opcode(cq: Handle<Cq>) -> c_uint {
    cq.ours().batch.current().wc.opcode as c_uint
}

extern "C" fn read_vendor_err(cq: Handle<Cq>) -> u32 {
    cq.ours().batch.current().wc.vendor_err
}

extern "C" fn read_byte_len(cq: Handle<Cq>) -> u32 {
    cq.ours().batch.current().wc.byte_len
}

/// Four bytes as they travel; the invalidated key of a SEND with invalidate, in host order.
extern "C" fn read_imm_data(cq: Handle<Cq>) -> u32 {
    u32::from_ne_bytes(c_imm(&cq.ours().batch.current().wc))
}

extern "C" fn read_qp_num(cq: Handle<Cq>) -> u32 {
    cq.ours().batch.current().wc.qp_num.value()
}

extern "C" fn read_src_qp(cq: Handle<Cq>) -> u32 {
    cq.ours().batch.current().wc.src_qp.value()
}

extern "C" fn read_wc_flags(cq: Handle<Cq>) -> c_uint {
    cq.ours().batch.current().wc.wc_flags.bits()
}

/// RoCE has no LIDs.
extern "C" fn read_slid(_cq: Handle<Cq>) -> u32 {
    0
}

/// Of a datagram, which network header it came with; a VLAN's priority does not reach a UDP socket.
extern "C" fn read_sl(cq: Handle<Cq>) -> u8 {
    cq.ours().batch.current().wc.sl
}

extern "C" fn read_dlid_path_bits(_cq: Handle<Cq>) -> u8 {
    0
}

extern "C" fn read_completion_ts(cq: Handle<Cq>) -> u64 {
    cq.ours().batch.current().timestamp_ns
}

extern "C" fn read_cvlan(cq: Handle<Cq>) -> u16 {
    cq.ours().batch.current().wc.cvlan
}

extern "C" fn read_flow_tag(cq: Handle<Cq>) -> u32 {
    cq.ours().batch.current().wc.flow_tag
}

/// No queue offers it; a program that reads it all the same gets zeros.
extern "C" fn read_tm_info(_cq: Handle<Cq>, info: Arg<ibv_wc_tm_info>) {
    info.set_if_wanted(ibv_wc_tm_info { tag: 0, r#priv: 0 });
}

extern "C" fn read_completion_wallclock_ns(cq: Handle<Cq>) -> u64 {
    cq.ours().batch.current().wallclock_ns
}

/// The iterator's functions, in the place where C looks for them.
pub(crate) fn with_functions(head: ibv_cq_ex) -> ibv_cq_ex {
    type H = Handle<Cq>;
    ibv_cq_ex {
        start_poll: slot!(start_poll, fn(H, Arg<ibv_poll_cq_attr>) -> c_int),
        next_poll: slot!(next_poll, fn(H) -> c_int),
        end_poll: slot!(end_poll, fn(H) -> ()),
        read_opcode: slot!(read_opcode, fn(H) -> c_uint),
        read_vendor_err: slot!(read_vendor_err, fn(H) -> u32),
        read_byte_len: slot!(read_byte_len, fn(H) -> u32),
        read_imm_data: slot!(read_imm_data, fn(H) -> u32),
        read_qp_num: slot!(read_qp_num, fn(H) -> u32),
        read_src_qp: slot!(read_src_qp, fn(H) -> u32),
        read_wc_flags: slot!(read_wc_flags, fn(H) -> c_uint),
        read_slid: slot!(read_slid, fn(H) -> u32),
        read_sl: slot!(read_sl, fn(H) -> u8),
        read_dlid_path_bits: slot!(read_dlid_path_bits, fn(H) -> u8),
        read_completion_ts: slot!(read_completion_ts, fn(H) -> u64),
        read_cvlan: slot!(read_cvlan, fn(H) -> u16),
        read_flow_tag: slot!(read_flow_tag, fn(H) -> u32),
        read_tm_info: slot!(read_tm_info, fn(H, Arg<ibv_wc_tm_info>) -> ()),
        read_completion_wallclock_ns: slot!(read_completion_wallclock_ns, fn(H) -> u64),
        ..head
    }
}
