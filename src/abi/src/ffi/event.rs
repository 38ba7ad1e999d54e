//! Asynchronous events.

use core::ffi::{c_int, c_uint, c_void};

use rocebud_objects::EventKind;
use rocebud_verbs::Element;

use super::boundary::{Arg, Silent, enter};
use super::context::Context;
use super::cq::Cq;
use super::handle::{Handle, Object, Owner};
use super::qp::Qp;
use super::srq::Srq;
use super::types::ibv_async_event;

c_api! {
    /// `ibv_get_async_event`: blocks, unless the context's descriptor says otherwise (EAGAIN).
    fn ibv_get_async_event(context: Context, event: Arg<ibv_async_event>) -> MinusOne, c_int {
        let out = context.verbs.next_async_event()?;
        let object = |user: u64| core::ptr::with_exposed_provenance_mut(user as usize);
        let element: *mut c_void = match out.element {
            Element::Cq(cq) => object(cq.user()),
            Element::Qp(qp) => object(qp.user()),
            Element::Srq(srq) => object(srq.user()),
            Element::Port(port) => core::ptr::without_provenance_mut(usize::from(port)),
            Element::Device => core::ptr::null_mut(),
        };
        event.set(ibv_async_event { element, event_type: out.kind as c_uint })?;
        Ok(0)
    }
}

/// `IBV_EVENT_PATH_MIG`, `IBV_EVENT_PATH_MIG_ERR` and `IBV_EVENT_WQ_FATAL`: only real devices
/// raise them.
const PATH_MIG: c_uint = 6;
const PATH_MIG_ERR: c_uint = 7;
const WQ_FATAL: c_uint = 19;

/// `ibv_ack_async_event`: who waits in a destroy call may go on. Events of ports and devices
/// need no acknowledgement.
#[unsafe(no_mangle)]
extern "C" fn ibv_ack_async_event(event: Arg<ibv_async_event>) {
    const CQ_ERR: c_uint = EventKind::CqErr as c_uint;
    const SRQ_ERR: c_uint = EventKind::SrqErr as c_uint;
    const SRQ_LIMIT: c_uint = EventKind::SrqLimitReached as c_uint;
    const QP_FATAL: c_uint = EventKind::QpFatal as c_uint;
    const SQ_DRAINED: c_uint = EventKind::SqDrained as c_uint;
    const LAST_WQE: c_uint = EventKind::QpLastWqeReached as c_uint;
    enter::<Silent, ()>(|| {
        let e = event.get()?;
        match e.event_type {
            CQ_ERR => ack::<Cq>(e.element, event, |cq| cq.verbs.ack_async_event()),
            SRQ_ERR | SRQ_LIMIT => ack::<Srq>(e.element, event, |s| s.verbs.ack_async_event()),
            QP_FATAL..=SQ_DRAINED | LAST_WQE => {
                ack::<Qp>(e.element, event, |qp| qp.verbs.ack_async_event());
            }
            PATH_MIG | PATH_MIG_ERR | WQ_FATAL => ack::<Qp>(e.element, event, |_| {}),
            _ => {}
        }
        Ok(())
    });
}

/// Acknowledges to the object's owner.
fn ack<T: Object>(element: *mut c_void, event: Arg<ibv_async_event>, ours: impl FnOnce(&T)) {
    match Handle::<T>::from_raw(element).owner() {
        Ok(Owner::Us(object)) => ours(object),
        Ok(Owner::Them(library)) => {
            if let Some(f) = library.symbol(c"ibv_ack_async_event") {
                // SAFETY: the real library's function has this type.
                let f: extern "C" fn(Arg<ibv_async_event>) = unsafe { core::mem::transmute(f) };
                f(event);
            }
        }
        Err(_) => {}
    }
}
