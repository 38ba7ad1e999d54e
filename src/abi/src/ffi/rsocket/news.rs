//! What the connection manager says to a socket.

use core::ffi::{c_int, c_uint};

use rocebud_objects::Errno;

use super::super::boundary::Outcome;
use super::super::cm::types::{rdma_cm_event, rdma_cm_id, rdma_event_channel};
use super::verbs;

/// `enum rdma_cm_event_type`
pub(super) mod kind {
    pub(in super::super) const ADDR_RESOLVED: u32 = 0;
    pub(in super::super) const ADDR_ERROR: u32 = 1;
    pub(in super::super) const ROUTE_RESOLVED: u32 = 2;
    pub(in super::super) const ROUTE_ERROR: u32 = 3;
    pub(in super::super) const CONNECT_REQUEST: u32 = 4;
    pub(in super::super) const CONNECT_ERROR: u32 = 6;
    pub(in super::super) const UNREACHABLE: u32 = 7;
    pub(in super::super) const REJECTED: u32 = 8;
    pub(in super::super) const ESTABLISHED: u32 = 9;
    pub(in super::super) const DISCONNECTED: u32 = 10;
    pub(in super::super) const DEVICE_REMOVAL: u32 = 11;
}

/// An event, copied out of what is acknowledged at once.
pub(super) struct News {
    pub(super) kind: c_uint,
    pub(super) status: c_int,
    pub(super) id: *mut rdma_cm_id,
    pub(super) private_data: Vec<u8>,
}

impl News {
    /// The errno of an event that tells of a failure.
    pub(super) fn why(&self) -> Errno {
        match self.kind {
            kind::REJECTED => Errno(libc::ECONNREFUSED),
            _ if self.status < 0 => Errno(self.status.saturating_neg()),
            kind::UNREACHABLE => Errno::ETIMEDOUT,
            _ => Errno(libc::ECONNABORTED),
        }
    }
}

/// Takes the next event of a channel; EAGAIN if it does not wait and there is none.
pub(super) fn next(channel: *mut rdma_event_channel) -> Outcome<News> {
    let mut event: *mut rdma_cm_event = core::ptr::null_mut();
    // SAFETY: a living channel, and room for the pointer.
    let code = unsafe { verbs::rdma_get_cm_event(channel, &raw mut event) };
    verbs::checked(code, "no event of the connection manager")?;
    // SAFETY: an event that was just given out.
    let copy = unsafe { event.read() };
    let mut news = News {
        kind: copy.event,
        status: copy.status,
        id: copy.id,
        private_data: Vec::new(),
    };
    if matches!(news.kind, kind::CONNECT_REQUEST | kind::ESTABLISHED) {
        // SAFETY: events of these kinds, of connected services, carry this parameter.
        let conn = unsafe { copy.param.conn };
        news.private_data = bytes(conn.private_data, conn.private_data_len);
    }
    // SAFETY: given out above, acknowledged once; what is needed of it is copied.
    unsafe { verbs::rdma_ack_cm_event(event) };
    Ok(news)
}

fn bytes(data: *const u8, length: u8) -> Vec<u8> {
    if data.is_null() {
        return Vec::new();
    }
    // SAFETY: an event's private data, which are as long as it says.
    unsafe { core::slice::from_raw_parts(data, usize::from(length)) }.to_vec()
}
