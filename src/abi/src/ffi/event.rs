//! Asynchronous events.

use core::ffi::{c_int, c_uint, c_void};

use rocebud_verbs::AsyncElement;

use super::boundary::{Arg, Silent, enter};
use super::context::Context;
use super::cq::Cq;
use super::handle::{Handle, Object, Owner};
use super::qp::Qp;
use super::sleep::keep;
use super::srq::Srq;
use super::types::ibv_async_event;

waiting_c_api! {
    /// `ibv_get_async_event`: blocks, unless the context's descriptor says otherwise (EAGAIN).
    fn ibv_get_async_event(context: Context, read, event: Arg<ibv_async_event>) -> c_int {
        let Some(out) = context.verbs.async_event(read)? else {
            keep(context.verbs.clone());
            return Ok(Turn::Read(context.verbs.async_fd()));
        };
        let object = |user: u64| core::ptr::with_exposed_provenance_mut(user as usize);
        let element: *mut c_void = match out.element {
            AsyncElement::Cq { user } | AsyncElement::Qp { user, .. } | AsyncElement::Srq { user } => {
                object(user)
            }
            AsyncElement::Port(port) => core::ptr::without_provenance_mut(usize::from(port)),
            AsyncElement::Device => core::ptr::null_mut(),
        };
        event.set(ibv_async_event { element, event_type: out.kind as c_uint })?;
        Ok(Turn::Over(0))
    }
}

/// Which object an event's element points to.
enum About {
    Cq,
    Qp,
    Srq,
    /// Ports and devices: nobody waits for an acknowledgement.
    Nobody,
}

/// By `enum ibv_event_type`; path migration and WQ events come from real devices alone.
fn about(event_type: c_uint) -> About {
    match event_type {
        0 => About::Cq,
        1..=7 | 16 | 19 => About::Qp,
        14 | 15 => About::Srq,
        _ => About::Nobody,
    }
}

/// `ibv_ack_async_event`: who waits in a destroy call may go on.
#[unsafe(no_mangle)]
extern "C" fn ibv_ack_async_event(event: Arg<ibv_async_event>) {
    enter::<Silent, ()>(|| {
        let e = event.get()?;
        match about(e.event_type) {
            About::Cq => ack::<Cq>(&e, event, |cq| cq.verbs.ack_async_events(1)),
            About::Qp => ack::<Qp>(&e, event, |qp| qp.verbs.ack_async_events(1)),
            About::Srq => ack::<Srq>(&e, event, |srq| srq.verbs.ack_async_events(1)),
            About::Nobody => {}
        }
        Ok(())
    });
}

/// Acknowledges to the object's owner.
fn ack<T: Object>(e: &ibv_async_event, event: Arg<ibv_async_event>, ours: impl FnOnce(&T)) {
    match Handle::<T>::from_raw(e.element).owner() {
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
