//! Verbs as a C program calls them, for the queue pairs that identifiers carry.

use core::ffi::{c_int, c_void};

use rocebud_objects::{Errno, Misuse};

use super::super::boundary::Outcome;
use super::super::types::{
    ibv_comp_channel, ibv_context, ibv_cq, ibv_pd, ibv_qp, ibv_qp_attr, ibv_qp_init_attr, ibv_srq,
};

unsafe extern "C" {
    pub(super) fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd;
    pub(in crate::ffi) fn ibv_create_comp_channel(
        context: *mut ibv_context,
    ) -> *mut ibv_comp_channel;
    pub(in crate::ffi) fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int;
    pub(in crate::ffi) fn ibv_create_cq(
        context: *mut ibv_context,
        cqe: c_int,
        cq_context: *mut c_void,
        channel: *mut ibv_comp_channel,
        comp_vector: c_int,
    ) -> *mut ibv_cq;
    pub(in crate::ffi) fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int;
    pub(super) fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int;
    pub(super) fn ibv_create_qp(pd: *mut ibv_pd, init: *mut ibv_qp_init_attr) -> *mut ibv_qp;
    pub(super) fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int;
    pub(super) fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int;
    pub(super) fn ibv_attach_mcast(qp: *mut ibv_qp, gid: *const [u8; 16], lid: u16) -> c_int;
    pub(super) fn ibv_detach_mcast(qp: *mut ibv_qp, gid: *const [u8; 16], lid: u16) -> c_int;
}

/// What a call that answers with an errno says.
pub(super) fn outcome(code: c_int) -> Outcome<()> {
    match code {
        0 => Ok(()),
        code => Err(Misuse::new(
            Errno(code),
            "a verbs call inside this one was refused",
        )),
    }
}
