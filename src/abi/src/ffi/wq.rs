//! Receive queues and indirection tables, reached through `verbs_context`.

use core::ffi::{c_int, c_uint};

use rocebud_objects::{Errno, Misuse, RX_HASH_KEY_BYTES, RxHash, RxHashFields};
use rocebud_verbs::{WqCreate, WqState};

use super::boundary::{Arg, NULL, Outcome};
use super::context::Context;
use super::cq::Cq;
use super::handle::{Handle, Head, Object, give};
use super::memory::{Pd, next_handle};
use super::post;
use super::qp::publish_spreading;
use super::types::{
    Plain, Slot, ibv_qp, ibv_qp_init_attr_ex, ibv_recv_wr, ibv_rwq_ind_table,
    ibv_rwq_ind_table_init_attr, ibv_rx_hash_conf, ibv_wq, ibv_wq_attr, ibv_wq_init_attr,
};

/// A receive queue of ours.
#[repr(C)]
pub(crate) struct Wq {
    head: Head<ibv_wq>,
    pub(crate) verbs: rocebud_verbs::Wq,
    /// Granted entries of a receive's scatter list.
    pub(crate) max_sge: u32,
}

impl Object for Wq {
    const DEPTH: usize = 2;
}

/// An indirection table of ours.
#[repr(C)]
pub(crate) struct Table {
    head: Head<ibv_rwq_ind_table>,
    verbs: rocebud_verbs::IndTable,
}

impl Object for Table {
    const DEPTH: usize = 2;
}

/// `enum ibv_wq_init_attr_mask`
const MASK_FLAGS: u32 = 1;
/// `IBV_WQ_FLAGS_CVLAN_STRIPPING`
const CVLAN_STRIPPING: u32 = 1;
/// `enum ibv_wq_attr_mask`
const ATTR_STATE: u32 = 1;
const ATTR_CURR_STATE: u32 = 1 << 1;

/// Entries of a table, as a power of two.
const LOG_TABLE_MAX: u32 = 7;

own_entry! {
    /// `verbs_context.create_wq`: the sizes granted are written back.
    fn create_wq(context: Context, init: Arg<ibv_wq_init_attr>) -> Pointer, *mut ibv_wq {
        let mut wanted = init.get()?;
        let flags = if wanted.comp_mask & MASK_FLAGS != 0 { wanted.create_flags } else { 0 };
        if wanted.wq_type != 0 || wanted.comp_mask & !MASK_FLAGS != 0
            || flags & !CVLAN_STRIPPING != 0
        {
            return Err(Misuse::new(
                Errno::EOPNOTSUPP,
                "ibv_create_wq: queues receive, and of the flags there is CVLAN_STRIPPING",
            ));
        }
        let pd = Handle::<Pd>::from_raw(wanted.pd).mine()?;
        let cq = Handle::<Cq>::from_raw(wanted.cq).mine()?;
        let verbs = context.verbs.create_wq(&WqCreate {
            pd: pd.verbs.clone(),
            cq: cq.verbs.clone(),
            max_wr: wanted.max_wr,
            max_sge: wanted.max_sge,
            strips_vlan: flags & CVLAN_STRIPPING != 0,
        })?;
        wanted.max_sge = wanted.max_sge.max(1);
        init.set(wanted)?;
        type Wr = *mut ibv_recv_wr;
        let head = ibv_wq {
            context: context.as_ptr(),
            wq_context: wanted.wq_context,
            pd: wanted.pd,
            cq: wanted.cq,
            wq_num: verbs.number().value(),
            handle: next_handle(),
            state: WqState::Reset as c_uint,
            post_recv: slot!(post::post_wq_recv, fn(Handle<Wq>, Wr, Arg<Wr>) -> c_int),
            ..ibv_wq::zeroed()
        };
        let max_sge = wanted.max_sge;
        Ok(give(Box::new(Wq { head: Head::new(head), verbs, max_sge })))
    }

    /// `verbs_context.modify_wq`
    fn modify_wq(wq: Wq, attr: Arg<ibv_wq_attr>) -> ErrnoCode, () {
        let wanted = attr.get()?;
        if wanted.attr_mask & !(ATTR_STATE | ATTR_CURR_STATE) != 0 {
            return Err(Misuse::new(
                Errno::EOPNOTSUPP,
                "ibv_modify_wq: the state can be changed, and nothing else",
            ));
        }
        let state = |bit, value| match WqState::from_verbs(value) {
            _ if wanted.attr_mask & bit == 0 => Ok(None),
            Some(state) => Ok(Some(state)),
            None => Err(Misuse::invalid("ibv_modify_wq: no such state")),
        };
        let believed = state(ATTR_CURR_STATE, wanted.curr_wq_state)?;
        let now = wq.verbs.modify(believed, state(ATTR_STATE, wanted.wq_state)?)?;
        wq.head.update(|head| head.state = now as c_uint);
        Ok(())
    }

    /// `verbs_context.destroy_wq`: EBUSY while a table has it.
    fn destroy_wq(wq: Wq) -> ErrnoCode, () {
        wq.verbs.destroy()?;
        drop(Handle::<Wq>::from_raw(wq.head.as_ptr()).reclaim());
        Ok(())
    }

    /// `verbs_context.create_rwq_ind_table`
    fn create_rwq_ind_table(context: Context, init: Arg<ibv_rwq_ind_table_init_attr>)
        -> Pointer, *mut ibv_rwq_ind_table
    {
        let wanted = init.get()?;
        if wanted.comp_mask != 0 || wanted.log_ind_tbl_size > LOG_TABLE_MAX {
            return Err(Misuse::invalid(
                "ibv_create_rwq_ind_table: comp_mask must be 0, and the table has at most 128 queues",
            ));
        }
        if wanted.ind_tbl.is_null() {
            return Err(NULL);
        }
        let count = 1usize << wanted.log_ind_tbl_size;
        // SAFETY: verbs.h: the array has 2^log_ind_tbl_size queues, unchanged during the call.
        let wqs = unsafe { core::slice::from_raw_parts(wanted.ind_tbl, count) };
        let wqs: Outcome<Vec<_>> = wqs
            .iter()
            .map(|wq| Ok(Handle::<Wq>::from_raw(*wq).mine()?.verbs.clone()))
            .collect();
        let verbs = context.verbs.create_ind_table(wqs?)?;
        let handle = next_handle();
        let number = c_int::try_from(handle).unwrap_or(0);
        let head = ibv_rwq_ind_table {
            context: context.as_ptr(),
            ind_tbl_handle: number,
            ind_tbl_num: number,
            comp_mask: 0,
        };
        Ok(give(Box::new(Table { head: Head::new(head), verbs })))
    }

    /// `verbs_context.destroy_rwq_ind_table`: EBUSY while a queue pair has it.
    fn destroy_rwq_ind_table(table: Table) -> ErrnoCode, () {
        table.verbs.destroy()?;
        drop(Handle::<Table>::from_raw(table.head.as_ptr()).reclaim());
        Ok(())
    }
}

/// `ibv_create_qp_ex` with an indirection table.
pub(crate) fn create_spreading(wanted: &ibv_qp_init_attr_ex) -> Outcome<*mut ibv_qp> {
    let pd = Handle::<Pd>::from_raw(wanted.pd).mine()?;
    let table = Handle::<Table>::from_raw(wanted.rwq_ind_tbl).mine()?;
    let hash = hash_of(&wanted.rx_hash_conf)?;
    let verbs = pd.verbs.create_spreading_qp(&table.verbs, hash, 0)?;
    publish_spreading(pd, verbs, wanted.qp_context)
}

fn hash_of(conf: &ibv_rx_hash_conf) -> Outcome<RxHash> {
    const TOEPLITZ: u8 = 1;
    let fields = RxHashFields::from_bits(conf.rx_hash_fields_mask);
    let (Some(fields), TOEPLITZ) = (fields, conf.rx_hash_function) else {
        return Err(Misuse::new(
            Errno::EOPNOTSUPP,
            "ibv_create_qp_ex: the hash is Toeplitz, over addresses and ports of outer headers",
        ));
    };
    if usize::from(conf.rx_hash_key_len) != RX_HASH_KEY_BYTES || conf.rx_hash_key.is_null() {
        return Err(Misuse::invalid(
            "ibv_create_qp_ex: the hash key is 40 bytes",
        ));
    }
    let key = Arg::from_raw(conf.rx_hash_key.cast::<[u8; RX_HASH_KEY_BYTES]>()).get()?;
    Ok(RxHash { key, fields })
}

/// The slots of `verbs_context`: create_wq, modify_wq, destroy_wq, create_rwq_ind_table,
/// destroy_rwq_ind_table.
pub(crate) fn slots() -> [Slot; 5] {
    type TableInit = Arg<ibv_rwq_ind_table_init_attr>;
    [
        slot!(
            create_wq,
            fn(Handle<Context>, Arg<ibv_wq_init_attr>) -> *mut ibv_wq
        ),
        slot!(modify_wq, fn(Handle<Wq>, Arg<ibv_wq_attr>) -> c_int),
        slot!(destroy_wq, fn(Handle<Wq>) -> c_int),
        slot!(
            create_rwq_ind_table,
            fn(Handle<Context>, TableInit) -> *mut ibv_rwq_ind_table
        ),
        slot!(destroy_rwq_ind_table, fn(Handle<Table>) -> c_int),
    ]
}
