//! Endpoints: an identifier with everything on it, from one `rdma_addrinfo`.

use core::ffi::{c_int, c_uint};
use std::os::fd::RawFd;

use rocebud_objects::{Errno, Misuse};

use super::super::boundary::{Arg, MinusOne, NULL, Outcome, Silent, enter};
use super::super::sleep::{Read, Turn, enter_keeping, enter_waiting, keep};
use super::super::types::{ibv_pd, ibv_qp_init_attr};
use super::event::{completing, turn};
use super::id::{Id, Init, Make, see, show};
use super::types::{event, rdma_addrinfo, rdma_cm_event, rdma_cm_id, rdma_event_channel};

/// `RAI_PASSIVE`
const PASSIVE: c_int = 1;

/// Milliseconds that an endpoint's address may take to resolve.
const TIMEOUT_MS: c_int = 2000;

impl Id {
    fn listen_as(
        &self,
        wanted: &rdma_addrinfo,
        pd: *mut ibv_pd,
        init: Arg<ibv_qp_init_attr>,
    ) -> Outcome<()> {
        self.bind(wanted.ai_src_addr)?;
        if !pd.is_null() {
            show!(self, pd: *mut ibv_pd = pd);
        }
        if !init.is_null() {
            let mut init = init.get()?;
            init.qp_type = wanted.ai_qp_type.cast_unsigned();
            self.state().qp_init = Some(Init(init));
        }
        Ok(())
    }

    /// With its address and its route resolved.
    fn furnish(
        &self,
        wanted: &rdma_addrinfo,
        pd: *mut ibv_pd,
        init: Arg<ibv_qp_init_attr>,
    ) -> Outcome<()> {
        if !init.is_null() {
            let mut full = init.get()?;
            full.qp_type = wanted.ai_qp_type.cast_unsigned();
            let made = self.create_plain_qp(pd, &mut full);
            init.set(full)?;
            made?;
        }
        if wanted.ai_connect_len != 0 && !wanted.ai_connect.is_null() {
            // SAFETY: rdma_cma.h: as many bytes as it says.
            let connect = unsafe {
                core::slice::from_raw_parts(wanted.ai_connect.cast_const(), wanted.ai_connect_len)
            };
            self.state().connect = connect.to_vec();
        }
        Ok(())
    }
}

fn destroy(id: *mut rdma_cm_id) -> Outcome<()> {
    let this = Id::of(id)?;
    this.destroy_qp();
    this.destroy_srq();
    Id::destroy(id)
}

/// An endpoint on its way to its peer. It goes with the call that makes it.
struct Making {
    id: *mut rdma_cm_id,
    /// The address is resolved; the route is being resolved.
    on_route: bool,
}

impl Making {
    fn begin(wanted: &rdma_addrinfo) -> Outcome<Self> {
        let id = Id::create(Make {
            channel: core::ptr::null_mut(),
            context: core::ptr::null_mut(),
            ps: wanted.ai_port_space,
            qp_type: wanted.ai_qp_type as c_uint,
        })?;
        Ok(Self {
            id,
            on_route: false,
        })
    }

    /// The next that is to be waited for, or nothing more.
    fn reach(&mut self, wanted: &rdma_addrinfo, mut read: Option<Read>) -> Outcome<Option<RawFd>> {
        let this = Id::of(self.id)?;
        loop {
            let turn = completing(this, read.take(), || {
                if self.on_route {
                    return this.resolve_route();
                }
                this.resolve_address(wanted.ai_src_addr, wanted.ai_dst_addr, TIMEOUT_MS)
            })?;
            match turn {
                Turn::Read(fd) => return Ok(Some(fd)),
                Turn::Over(_) | Turn::Never if self.on_route => return Ok(None),
                Turn::Over(_) | Turn::Never => self.on_route = true,
            }
        }
    }

    /// It is the program's.
    fn done(self) -> *mut rdma_cm_id {
        core::mem::ManuallyDrop::new(self).id
    }
}

impl Drop for Making {
    fn drop(&mut self) {
        let _: Outcome<()> = destroy(self.id);
    }
}

/// `rdma_create_ep`
#[unsafe(no_mangle)]
extern "C-unwind" fn rdma_create_ep(
    id: *mut *mut rdma_cm_id,
    wanted: Arg<rdma_addrinfo>,
    pd: *mut ibv_pd,
    init: Arg<ibv_qp_init_attr>,
) -> c_int {
    enter_keeping::<MinusOne, c_int, Making>(|read, kept| {
        if id.is_null() {
            return Err(NULL);
        }
        let wanted = wanted.get()?;
        let read = read.filter(|_| kept.is_some());
        let mut making = kept.map_or_else(|| Making::begin(&wanted), Ok)?;
        let this = Id::of(making.id)?;
        if wanted.ai_flags & PASSIVE != 0 {
            this.listen_as(&wanted, pd, init)?;
        } else if let Some(fd) = making.reach(&wanted, read)? {
            keep(making);
            return Ok(Turn::Read(fd));
        } else {
            this.furnish(&wanted, pd, init)?;
        }
        // SAFETY: rdma_cma.h: room for a pointer.
        unsafe { id.write(making.done()) };
        Ok(Turn::Over(0))
    })
}

/// `rdma_destroy_ep`
#[unsafe(no_mangle)]
extern "C" fn rdma_destroy_ep(id: *mut rdma_cm_id) {
    enter::<Silent, ()>(|| destroy(id));
}

/// The identifier of the next peer that asks; on failure the event that says so.
fn request(
    listener: &Id,
    taken: *mut rdma_cm_event,
) -> Outcome<Result<*mut rdma_cm_id, (Misuse, *mut rdma_cm_event)>> {
    const UNEXPECTED: Misuse = Misuse::invalid("rdma_get_request: the event is no request");
    // SAFETY: taken just now.
    let event = unsafe { taken.read() };
    let failed = match (event.event, event.status) {
        (event::REJECTED, _) => Some(Misuse::new(Errno(libc::ECONNREFUSED), "rejected")),
        (_, status) if status != 0 => Some(Misuse::new(Errno(status.saturating_abs()), "failed")),
        (event::CONNECT_REQUEST, _) => None,
        _ => Some(UNEXPECTED),
    };
    if let Some(e) = failed {
        return Ok(Err((e, taken)));
    }
    let child = Id::of(event.id)?;
    let init = listener.state().qp_init;
    if let Some(Init(mut init)) = init {
        let pd = see!(listener, pd: *mut ibv_pd);
        if let Err(e) = child.create_plain_qp(pd, &mut init) {
            return Ok(Err((e, taken)));
        }
    }
    show!(child, event: *mut rdma_cm_event = taken);
    Ok(Ok(event.id))
}

/// `rdma_get_request`
#[unsafe(no_mangle)]
extern "C-unwind" fn rdma_get_request(
    listener: *mut rdma_cm_id,
    id: *mut *mut rdma_cm_id,
) -> c_int {
    enter_waiting::<MinusOne, c_int>(|read| {
        let this = Id::of(listener)?;
        if id.is_null() {
            return Err(NULL);
        }
        if !this.is_sync() {
            return Err(Misuse::invalid(
                "rdma_get_request: the listener has a channel of the program's: take events there",
            ));
        }
        if read.is_none() {
            this.drop_event();
        }
        let taken = match turn(see!(this, channel: *mut rdma_event_channel), read)? {
            Turn::Read(fd) => return Ok(Turn::Read(fd)),
            Turn::Never => return Ok(Turn::Never),
            Turn::Over(taken) => taken,
        };
        match request(this, taken)? {
            Ok(child) => {
                // SAFETY: rdma_cma.h: room for a pointer.
                unsafe { id.write(child) };
                Ok(Turn::Over(0))
            }
            Err((e, taken)) => {
                show!(this, event: *mut rdma_cm_event = taken);
                Err(e)
            }
        }
    })
}
