//! Events: taken from the channel, completed with what the library does by itself, acknowledged.

use core::ffi::{c_int, c_uint, c_void};

use rocebud_objects::{Errno, Misuse};
use rocebud_verbs::cm::{CmAnswer, CmDatagram, CmDetails, CmEvent, CmParam, CmRequest, Manager};

use super::super::boundary::{MinusOne, NULL, Outcome, enter};
use super::super::sleep::{Read, Turn, enter_waiting};
use super::super::types::Plain;
use super::channel::{Channel, Taken};
use super::id::{Id, Make, find, find_for_event, find_orphan, see, show};
use super::qp::c_ah;
use super::types::{
    event, rdma_cm_event, rdma_cm_id, rdma_cm_param, rdma_conn_param, rdma_event_channel,
    rdma_ud_param,
};

/// `struct rdma_cm_event`, and what is ours behind it.
#[repr(C)]
struct Event {
    head: rdma_cm_event,
    /// What `private_data` points to.
    private_data: Vec<u8>,
    /// Whose count it is, by number: it may be gone when the daemon is. For CONNECT_REQUEST who
    /// listens.
    subject: (Manager, u32),
    membership: Option<u32>,
}

/// An event on its way to the program.
struct Draft {
    kind: c_uint,
    status: c_int,
    id: *mut rdma_cm_id,
    listener: *mut rdma_cm_id,
    param: Param,
    membership: Option<u32>,
}

enum Param {
    None,
    Conn(CmParam),
    Ud(CmDatagram),
    /// With the context that the program gave at its join.
    Joined(CmDatagram, *mut c_void),
    Argument(u64),
}

/// It is none of the program's business: complete it, and go on.
struct Skip;

impl Draft {
    fn of(id: &Id, event: &CmEvent) -> Self {
        Self {
            kind: event.kind,
            status: event.status,
            id: id.as_ptr(),
            listener: core::ptr::null_mut(),
            param: Param::None,
            membership: None,
        }
    }

    /// Hands it to C.
    fn publish(self, subject: &Id) -> *mut rdma_cm_event {
        let private_data = match &self.param {
            Param::Conn(param) => param.private_data.clone(),
            Param::Ud(param) | Param::Joined(param, _) => param.private_data.clone(),
            Param::None | Param::Argument(_) => Vec::new(),
        };
        let data = match private_data.is_empty() {
            true => core::ptr::null(),
            false => private_data.as_ptr(),
        };
        let length = u8::try_from(private_data.len()).unwrap_or(u8::MAX);
        let ud = |d: &CmDatagram, private_data: *const c_void| rdma_ud_param {
            private_data,
            private_data_len: length,
            ah_attr: c_ah(&d.ah),
            qp_num: d.qpn,
            qkey: d.qkey,
        };
        let mut param = rdma_cm_param {
            ud: rdma_ud_param::zeroed(),
        };
        match &self.param {
            Param::None => {}
            Param::Argument(argument) => param.arg = *argument,
            Param::Ud(datagram) => param.ud = ud(datagram, data.cast()),
            Param::Joined(datagram, context) => param.ud = ud(datagram, *context),
            Param::Conn(p) => {
                param.conn = rdma_conn_param {
                    private_data: data,
                    private_data_len: length,
                    responder_resources: p.responder_resources,
                    initiator_depth: p.initiator_depth,
                    flow_control: u8::from(p.flow_control),
                    retry_count: p.retry_count,
                    rnr_retry_count: p.rnr_retry_count,
                    srq: u8::from(p.srq),
                    qp_num: p.qpn,
                };
            }
        }
        let event = Box::new(Event {
            head: rdma_cm_event {
                id: self.id,
                listen_id: self.listener,
                event: self.kind,
                status: self.status,
                param,
            },
            private_data,
            subject: (subject.manager.clone(), subject.number),
            membership: self.membership,
        });
        Box::into_raw(event).cast()
    }
}

/// What the library does by itself when an event comes.
fn prepare(subject: &Id, event: CmEvent) -> Result<Draft, Skip> {
    let mut draft = Draft::of(subject, &event);
    match event.details {
        CmDetails::Route(route) => {
            let failed = match draft.kind {
                event::ROUTE_RESOLVED => {
                    subject.show_path(&route.path);
                    Ok(())
                }
                _ => subject.show_addresses(&route),
            };
            if let Err(e) = failed {
                draft.kind = event::ADDR_ERROR;
                draft.status = -e.errno.0;
            }
        }
        CmDetails::Request(ref route, ref param) => {
            let child = child(subject, event.id, route, Some(param))?;
            draft.id = child;
            draft.listener = subject.as_ptr();
            draft.param = Param::Conn(param.clone());
        }
        CmDetails::DatagramRequest(ref route, ref param) => {
            draft.id = child(subject, event.id, route, None)?;
            draft.listener = subject.as_ptr();
            draft.param = Param::Ud(param.clone());
        }
        CmDetails::Peer(param) => {
            answered(subject, &mut draft, &param)?;
            draft.param = Param::Conn(param);
        }
        CmDetails::Datagram(param) => draft.param = Param::Ud(param),
        CmDetails::Multicast(membership, param) => {
            draft.membership = Some(membership);
            let (outcome, context) = subject.joined(membership, draft.kind, &param);
            if let Err(e) = outcome {
                draft.kind = event::MULTICAST_ERROR;
                draft.status = -e.errno.0;
            }
            draft.param = Param::Joined(param, context);
        }
        CmDetails::Argument(argument) => draft.param = Param::Argument(argument),
        CmDetails::None => gone(subject, &draft)?,
    }
    Ok(draft)
}

/// An event of a connection whose queue pair could not be moved says nothing new.
fn gone(subject: &Id, draft: &Draft) -> Result<(), Skip> {
    if draft.kind == event::DEVICE_REMOVAL {
        subject.state().removed = true;
    }
    let ends = matches!(draft.kind, event::REJECTED | event::DISCONNECTED);
    if ends && subject.state().connect_error {
        return Err(Skip);
    }
    if draft.kind == event::REJECTED {
        let _ = subject.make_error();
    }
    Ok(())
}

/// The peer said something.
fn answered(subject: &Id, draft: &mut Draft, param: &CmParam) -> Result<(), Skip> {
    gone(subject, draft)?;
    if draft.kind != event::CONNECT_RESPONSE {
        return Ok(());
    }
    subject.state().remote_ece = param.ece;
    if subject.qp().is_null() {
        return Ok(());
    }
    match subject.establish() {
        Ok(()) => draft.kind = event::ESTABLISHED,
        Err(e) => {
            draft.kind = event::CONNECT_ERROR;
            draft.status = -e.errno.0;
            subject.state().connect_error = true;
        }
    }
    Ok(())
}

/// A new identifier for a peer that asks.
fn child(
    listener: &Id,
    number: u32,
    route: &rocebud_verbs::cm::CmRoute,
    param: Option<&CmParam>,
) -> Result<*mut rdma_cm_id, Skip> {
    let made = Id::publish(
        listener.manager.clone(),
        number,
        Make {
            channel: see!(listener, channel: *mut rdma_event_channel),
            context: see!(listener, context: *mut c_void),
            ps: listener.ps(),
            qp_type: listener.qp_type(),
        },
        false,
    );
    let furnished = Id::of(made).and_then(|id| {
        if let Some(param) = param {
            let mut state = id.state();
            state.initiator_depth = param.initiator_depth;
            state.responder_resources = param.responder_resources;
            state.remote_ece = param.ece;
        }
        if listener.is_sync() {
            id.migrate(core::ptr::null_mut())?;
        }
        id.show_path(&route.path);
        id.show_addresses(route)
    });
    furnished.map(|()| made).map_err(|_| {
        // The peer hears that it is rejected.
        let _ = Id::destroy(made);
        Skip
    })
}

const CLOSED: Misuse =
    Misuse::invalid("the channel was destroyed while a call waited for its event");

/// The next event of a channel that is the program's business; the wait is left to the boundary.
pub(super) fn turn(
    channel: *mut rdma_event_channel,
    read: Option<Read>,
) -> Outcome<Turn<*mut rdma_cm_event>> {
    let channel = Channel::of(channel)?;
    match read {
        Some(read) => after_read(channel, read),
        None => Ok(Turn::Read(channel.fd())),
    }
}

/// The event of a channel that was read, if there is one and it is the program's business.
fn after_read(channel: &Channel, read: Read) -> Outcome<Turn<*mut rdma_cm_event>> {
    let again = Ok(Turn::Read(channel.fd()));
    let event = match channel.take(read) {
        Ok(Taken::Event(event)) => *event,
        Ok(Taken::Nothing) => return again,
        Ok(Taken::Destroyed) => return Ok(Turn::Never),
        Err(e) => return orphan(channel).map(Turn::Over).ok_or(e),
    };
    let number = match event.listener {
        0 => event.id,
        listener => listener,
    };
    let Some(subject) = find_for_event(channel.manager(), number) else {
        abandon(channel.manager(), &event);
        return again;
    };
    match prepare(subject, event) {
        Ok(draft) => Ok(Turn::Over(draft.publish(subject))),
        Err(Skip) => {
            subject.complete();
            again
        }
    }
}

/// With the daemon gone every device is: each identifier that has one hears of it once, and then
/// the channel has nothing but its error to give.
fn orphan(channel: &Channel) -> Option<*mut rdma_cm_event> {
    if !channel.is_orphaned() {
        return None;
    }
    let subject = find_orphan(channel.manager(), channel.as_ptr())?;
    subject.state().removed = true;
    let event = CmEvent {
        kind: event::DEVICE_REMOVAL,
        id: subject.number,
        listener: 0,
        status: 0,
        details: CmDetails::None,
    };
    Some(Draft::of(subject, &event).publish(subject))
}

/// A request whose listener is gone is nobody's.
fn abandon(manager: &Manager, event: &CmEvent) {
    if event.listener != 0 {
        let _: Outcome<CmAnswer> = manager.ask(CmRequest::DestroyId { id: event.id });
    }
}

/// For identifiers whose calls wait: takes the event that the call brought about, and makes its status the
/// call's. The wait is left to the call's outermost frame; `begin` brings the event about.
pub(super) fn completing(
    id: &Id,
    read: Option<Read>,
    begin: impl FnOnce() -> Outcome<()>,
) -> Outcome<Turn<c_int>> {
    if read.is_none() {
        begin()?;
        if !id.is_sync() {
            return Ok(Turn::Over(0));
        }
        id.drop_event();
    }
    match turn(see!(id, channel: *mut rdma_event_channel), read)? {
        Turn::Over(taken) => conclude(id, taken).map(|()| Turn::Over(0)),
        Turn::Read(fd) => Ok(Turn::Read(fd)),
        Turn::Never => Err(CLOSED),
    }
}

/// The event that a call waited for: its status is the call's.
fn conclude(id: &Id, taken: *mut rdma_cm_event) -> Outcome<()> {
    show!(id, event: *mut rdma_cm_event = taken);
    // SAFETY: taken just now.
    let event = unsafe { taken.read() };
    let failed = |errno: c_int| {
        Err(Misuse::new(
            Errno(errno),
            "the event that this call waited for says that it failed",
        ))
    };
    match event.status {
        0 if event.event == event::DEVICE_REMOVAL => failed(libc::ENODEV),
        0 => Ok(()),
        _ if event.event == event::REJECTED => failed(libc::ECONNREFUSED),
        status => failed(status.saturating_abs()),
    }
}

/// `rdma_ack_cm_event` of an event that is not NULL.
pub(super) fn acknowledge(event: *mut rdma_cm_event) {
    // SAFETY: rdma_cma.h: made by `publish`, acknowledged once.
    let event = unsafe { Box::from_raw(event.cast::<Event>()) };
    let (manager, number) = &event.subject;
    if let Some(id) = find(manager, *number) {
        if let Some(membership) = event.membership {
            id.complete_membership(membership);
        }
        id.complete();
    }
    drop(event.private_data);
}

/// `rdma_get_cm_event`: waits, unless the channel's descriptor says otherwise (EAGAIN).
#[unsafe(no_mangle)]
extern "C-unwind" fn rdma_get_cm_event(
    channel: *mut rdma_event_channel,
    event: *mut *mut rdma_cm_event,
) -> c_int {
    enter_waiting::<MinusOne, c_int>(|read| {
        if event.is_null() {
            return Err(NULL);
        }
        match turn(channel, read)? {
            Turn::Read(fd) => Ok(Turn::Read(fd)),
            Turn::Never => Ok(Turn::Never),
            Turn::Over(taken) => {
                // SAFETY: rdma_cma.h: room for a pointer.
                unsafe { event.write(taken) };
                Ok(Turn::Over(0))
            }
        }
    })
}

/// `rdma_ack_cm_event`
#[unsafe(no_mangle)]
extern "C" fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> c_int {
    enter::<MinusOne, c_int>(|| {
        if event.is_null() {
            return Err(NULL);
        }
        acknowledge(event);
        Ok(0)
    })
}

/// `rdma_write_cm_event`: an event of the program's own.
#[unsafe(no_mangle)]
extern "C" fn rdma_write_cm_event(
    id: *mut rdma_cm_id,
    kind: c_uint,
    status: c_int,
    argument: u64,
) -> c_int {
    enter::<MinusOne, c_int>(|| {
        let this = Id::of(id)?;
        if kind != event::USER {
            return Err(Misuse::invalid(
                "rdma_write_cm_event: only RDMA_CM_EVENT_USER may be written",
            ));
        }
        this.manager.tell(CmRequest::WriteEvent {
            id: this.number,
            kind,
            status,
            argument,
        })?;
        Ok(0)
    })
}
