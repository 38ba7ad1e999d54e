//! Shared receive queues; those of XRC are made in `xrc`.

use core::ffi::{c_int, c_void};

use rocebud_objects::{Misuse, SrqAttr};
use rocebud_verbs::SrqMask;

use super::boundary::{Arg, Outcome};
use super::handle::{Handle, Head, Object};
use super::memory::{Pd, next_handle};
use super::room::{Housed, Room, give_in, retire};
use super::types::{Plain, ibv_srq, ibv_srq_attr, ibv_srq_init_attr};

/// A shared receive queue of ours.
#[repr(C)]
pub(crate) struct Srq {
    head: Head<ibv_srq>,
    pub(crate) verbs: rocebud_verbs::Srq,
    /// Granted entries of a receive's scatter list.
    pub(crate) max_sge: u32,
    home: Option<Room>,
}

impl Housed for Srq {
    const RESOURCE: u64 = 3;
    fn home(&mut self) -> &mut Option<Room> {
        &mut self.home
    }
}

impl Object for Srq {
    const DEPTH: usize = 2;
}

impl Srq {
    /// The address that C knows the SRQ by.
    pub(crate) const fn as_ptr(&self) -> *mut ibv_srq {
        self.head.as_ptr()
    }
}

c_api! {
    /// `ibv_create_srq`: the sizes granted are written back.
    fn ibv_create_srq(pd: Pd, init: Arg<ibv_srq_init_attr>) -> Pointer, *mut ibv_srq {
        let mut wanted = init.get()?;
        let verbs = pd.verbs.create_srq(&attr_of(&wanted.attr), 0)?;
        let granted = verbs.query()?;
        wanted.attr.max_wr = granted.max_wr;
        wanted.attr.max_sge = granted.max_sge;
        init.set(wanted)?;
        publish_srq(pd, verbs, wanted.srq_context)
    }

    /// `ibv_modify_srq`
    fn ibv_modify_srq(srq: Srq, attr: Arg<ibv_srq_attr>, mask: c_int) -> ErrnoCode, () {
        let mask = mask.cast_unsigned();
        if mask & !(SrqMask::MAX_WR | SrqMask::LIMIT) != 0 {
            return Err(Misuse::invalid("ibv_modify_srq: unknown bits in the attribute mask"));
        }
        srq.verbs.modify(&attr_of(&attr.get()?), SrqMask(mask))
    }

    /// `ibv_query_srq`
    fn ibv_query_srq(srq: Srq, attr: Arg<ibv_srq_attr>) -> ErrnoCode, () {
        let now = srq.verbs.query()?;
        attr.set(ibv_srq_attr {
            max_wr: now.max_wr,
            max_sge: now.max_sge,
            srq_limit: now.srq_limit,
        })
    }

    /// `ibv_destroy_srq`: EBUSY while a QP uses it; waits until every event that was taken is
    /// acknowledged.
    fn ibv_destroy_srq(srq: Srq) -> ErrnoCode, () {
        srq.verbs.destroy()?;
        retire(Handle::<Srq>::from_raw(srq.as_ptr()));
        Ok(())
    }
}

own_entry! {
    /// `verbs_context.get_srq_num`
    fn get_srq_num(srq: Srq, number: Arg<u32>) -> ErrnoCode, () {
        number.set(srq.verbs.number())
    }
}

/// Hands a queue to C and lets events name it.
pub(crate) fn publish_srq(
    pd: &Pd,
    verbs: rocebud_verbs::Srq,
    srq_context: *mut c_void,
) -> Outcome<*mut ibv_srq> {
    let head = ibv_srq {
        context: pd.context(),
        srq_context,
        pd: pd.as_ptr(),
        handle: next_handle(),
        ..ibv_srq::zeroed()
    };
    let max_sge = verbs.query()?.max_sge;
    let srq = Box::new(Srq {
        head: Head::new(head),
        verbs,
        max_sge,
        home: None,
    });
    let srq: *mut ibv_srq = give_in(srq, pd.room)?;
    let object = Handle::<Srq>::from_raw(srq).ours();
    object.verbs.set_user(srq.expose_provenance() as u64);
    Ok(srq)
}

pub(crate) const fn attr_of(attr: &ibv_srq_attr) -> SrqAttr {
    SrqAttr {
        max_wr: attr.max_wr,
        max_sge: attr.max_sge,
        srq_limit: attr.srq_limit,
    }
}
