//! Verbs and rdma_cm as a C program calls them: a socket is a program like any other.

use core::ffi::{c_int, c_void};

use rocebud_objects::{Errno, Misuse};

use super::super::boundary::{Outcome, last_errno};
use super::super::cm::types::{rdma_cm_event, rdma_cm_id, rdma_conn_param, rdma_event_channel};
pub(super) use super::super::cm::verbs::{
    ibv_create_comp_channel, ibv_create_cq, ibv_destroy_comp_channel, ibv_destroy_cq,
};
use super::super::types::{
    ibv_ah, ibv_ah_attr, ibv_comp_channel, ibv_context, ibv_cq, ibv_gid, ibv_mr, ibv_pd,
    ibv_port_attr, ibv_qp, ibv_qp_init_attr, ibv_recv_wr, ibv_send_wr, ibv_wc,
};

// Channels, and the events in them.
unsafe extern "C" {
    pub(super) fn rdma_create_event_channel() -> *mut rdma_event_channel;
    pub(super) fn rdma_destroy_event_channel(channel: *mut rdma_event_channel);
    pub(super) fn rdma_get_cm_event(
        channel: *mut rdma_event_channel,
        event: *mut *mut rdma_cm_event,
    ) -> c_int;
    pub(super) fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> c_int;
}

// Identifiers: made, set, moved.
unsafe extern "C" {
    pub(super) fn rdma_create_id(
        channel: *mut rdma_event_channel,
        id: *mut *mut rdma_cm_id,
        context: *mut c_void,
        ps: c_int,
    ) -> c_int;
    pub(super) fn rdma_destroy_id(id: *mut rdma_cm_id) -> c_int;
    pub(super) fn rdma_migrate_id(id: *mut rdma_cm_id, channel: *mut rdma_event_channel) -> c_int;
    pub(super) fn rdma_set_option(
        id: *mut rdma_cm_id,
        level: c_int,
        name: c_int,
        value: *const c_void,
        length: usize,
    ) -> c_int;
    pub(super) fn rdma_create_qp(
        id: *mut rdma_cm_id,
        pd: *mut ibv_pd,
        init: *mut ibv_qp_init_attr,
    ) -> c_int;
    pub(super) fn rdma_destroy_qp(id: *mut rdma_cm_id);
}

// The way to a peer.
unsafe extern "C" {
    pub(super) fn rdma_bind_addr(id: *mut rdma_cm_id, address: *const u8) -> c_int;
    pub(super) fn rdma_resolve_addr(
        id: *mut rdma_cm_id,
        source: *const u8,
        destination: *const u8,
        timeout_ms: c_int,
    ) -> c_int;
    pub(super) fn rdma_resolve_route(id: *mut rdma_cm_id, timeout_ms: c_int) -> c_int;
}

// Connections: asked for, accepted, ended.
unsafe extern "C" {
    pub(super) fn rdma_listen(id: *mut rdma_cm_id, backlog: c_int) -> c_int;
    pub(super) fn rdma_connect(id: *mut rdma_cm_id, param: *const rdma_conn_param) -> c_int;
    pub(super) fn rdma_accept(id: *mut rdma_cm_id, param: *const rdma_conn_param) -> c_int;
    pub(super) fn rdma_reject(id: *mut rdma_cm_id, data: *const u8, length: u8) -> c_int;
    pub(super) fn rdma_disconnect(id: *mut rdma_cm_id) -> c_int;
}

// Memory.
unsafe extern "C" {
    pub(super) fn ibv_reg_mr(
        pd: *mut ibv_pd,
        address: *mut c_void,
        length: usize,
        access: c_int,
    ) -> *mut ibv_mr;
    pub(super) fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int;
}

// Events of completion queues.
unsafe extern "C" {
    pub(super) fn ibv_get_cq_event(
        channel: *mut ibv_comp_channel,
        cq: *mut *mut ibv_cq,
        context: *mut *mut c_void,
    ) -> c_int;
    pub(super) fn ibv_ack_cq_events(cq: *mut ibv_cq, events: u32);
}

// Where a port is, and ways from it for datagrams.
unsafe extern "C" {
    pub(super) fn ibv_query_port(
        context: *mut ibv_context,
        port: u8,
        attr: *mut ibv_port_attr,
    ) -> c_int;
    fn ibv_query_gid(context: *mut ibv_context, port: u8, index: c_int, gid: *mut ibv_gid)
    -> c_int;
    pub(super) fn ibv_create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah;
    pub(super) fn ibv_destroy_ah(ah: *mut ibv_ah) -> c_int;
}

/// `IBV_ACCESS_LOCAL_WRITE`, `_REMOTE_WRITE`
pub(super) const LOCAL_WRITE: c_int = 1;
pub(super) const REMOTE_WRITE: c_int = 2;

/// What a call that answers 0 or −1 says.
pub(super) fn checked(code: c_int, why: &'static str) -> Outcome<()> {
    if code == 0 {
        return Ok(());
    }
    Err(Misuse::new(last_errno(), why))
}

/// What a call that answers with a pointer says.
pub(super) fn made<T>(pointer: *mut T, why: &'static str) -> Outcome<*mut T> {
    if pointer.is_null() {
        return Err(Misuse::new(last_errno(), why));
    }
    Ok(pointer)
}

type PollCq = unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int;
type ReqNotifyCq = unsafe extern "C" fn(*mut ibv_cq, c_int) -> c_int;
type PostSend = unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int;
type PostRecv = unsafe extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int;

/// The data path of a device, as the headers reach it: its own functions.
#[derive(Clone, Copy)]
pub(super) struct Ops {
    poll_cq: PollCq,
    req_notify_cq: ReqNotifyCq,
    post_send: PostSend,
    post_recv: PostRecv,
}

impl Ops {
    /// Those of a living context.
    pub(super) fn of(context: *mut ibv_context) -> Outcome<Self> {
        const MISSING: Misuse = Misuse::new(Errno::EOPNOTSUPP, "the device has no data path");
        // SAFETY: a living context of an open identifier.
        let ops = unsafe { (*context).ops };
        let (Some(poll), Some(notify), Some(send), Some(recv)) =
            (ops.poll_cq, ops.req_notify_cq, ops.post_send, ops.post_recv)
        else {
            return Err(MISSING);
        };
        type Any = unsafe extern "C" fn();
        Ok(Self {
            // SAFETY: verbs.h gives this slot this type.
            poll_cq: unsafe { core::mem::transmute::<Any, PollCq>(poll) },
            // SAFETY: verbs.h gives this slot this type.
            req_notify_cq: unsafe { core::mem::transmute::<Any, ReqNotifyCq>(notify) },
            // SAFETY: verbs.h gives this slot this type.
            post_send: unsafe { core::mem::transmute::<Any, PostSend>(send) },
            // SAFETY: verbs.h gives this slot this type.
            post_recv: unsafe { core::mem::transmute::<Any, PostRecv>(recv) },
        })
    }

    /// Completions, into the front of `into`.
    pub(super) fn poll(&self, cq: *mut ibv_cq, into: &mut [ibv_wc]) -> usize {
        let room = c_int::try_from(into.len()).unwrap_or(c_int::MAX);
        // SAFETY: a living queue, and room for as many completions as said.
        let n = unsafe { (self.poll_cq)(cq, room, into.as_mut_ptr()) };
        usize::try_from(n).unwrap_or(0).min(into.len())
    }

    pub(super) fn arm(&self, cq: *mut ibv_cq) {
        // SAFETY: a living queue.
        unsafe { (self.req_notify_cq)(cq, 0) };
    }

    pub(super) fn send(&self, qp: *mut ibv_qp, wr: &mut ibv_send_wr) -> bool {
        let mut bad = core::ptr::null_mut();
        // SAFETY: a living queue pair and one request that lives through the call.
        unsafe { (self.post_send)(qp, wr, &raw mut bad) == 0 }
    }

    pub(super) fn receive(&self, qp: *mut ibv_qp, wr: *mut ibv_recv_wr) -> bool {
        let mut bad = core::ptr::null_mut();
        // SAFETY: a living queue pair and a list of requests that lives through the call.
        unsafe { (self.post_recv)(qp, wr, &raw mut bad) == 0 }
    }
}

/// Makes a descriptor answer at once.
pub(super) fn never_wait(fd: c_int) {
    // SAFETY: takes no pointers.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    // SAFETY: takes no pointers.
    unsafe { libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) };
}

/// Takes the events that made a completion channel readable.
pub(super) fn take_cq_events(channel: *mut ibv_comp_channel) {
    let mut cq = core::ptr::null_mut();
    let mut context = core::ptr::null_mut();
    loop {
        // SAFETY: a living channel, and room for both.
        let code = unsafe { ibv_get_cq_event(channel, &raw mut cq, &raw mut context) };
        if code != 0 {
            return;
        }
        // SAFETY: the queue that the event names.
        unsafe { ibv_ack_cq_events(cq, 1) };
    }
}

/// Lets an identifier share its address with others that allow it too.
pub(super) fn reuse_address(id: *mut rdma_cm_id) {
    /// `RDMA_OPTION_ID`, `RDMA_OPTION_ID_REUSEADDR`
    const OPTION: (c_int, c_int) = (0, 1);
    let on: c_int = 1;
    let value: *const c_void = (&raw const on).cast();
    // SAFETY: a living identifier, and an int.
    unsafe { rdma_set_option(id, OPTION.0, OPTION.1, value, size_of_val(&on)) };
}

/// Where an address stands in the table of an identifier's device.
pub(super) fn gid_index(id: *mut rdma_cm_id, gid: &ibv_gid) -> Outcome<u8> {
    // SAFETY: a living identifier bound to a device.
    let rdma_cm_id {
        verbs: context,
        port_num,
        ..
    } = unsafe { id.read() };
    for index in 0..=u8::MAX {
        let mut found = ibv_gid([0; 16]);
        // SAFETY: a living context, and room for a GID.
        let code = unsafe { ibv_query_gid(context, port_num, c_int::from(index), &raw mut found) };
        if code != 0 {
            break;
        }
        if found.0 == gid.0 {
            return Ok(index);
        }
    }
    Err(Misuse::new(
        Errno(libc::EADDRNOTAVAIL),
        "the address has left the device's table",
    ))
}
