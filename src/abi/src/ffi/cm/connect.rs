//! Connecting, accepting, rejecting, disconnecting.

use core::ffi::{c_int, c_uint};

use rocebud_objects::{Errno, Misuse};
use rocebud_verbs::cm::{CmEce, CmParam, CmRequest, PRIVATE_DATA_MAX};

use super::super::boundary::{Arg, MinusOne, Outcome, enter};
use super::super::sleep::{Turn, enter_waiting};
use super::super::types::ibv_qp;
use super::device;
use super::event::completing;
use super::id::Id;
use super::qp::chosen;
use super::types::{PS_TCP, UD, ibv_ece, rdma_cm_id, rdma_conn_param};

/// `CM_REJ_VENDOR_OPTION_NOT_SUPPORTED`
const VENDOR_OPTION: u8 = 35;

/// Times that an unanswered or refused request is sent again when the program does not say.
const RETRIES: u8 = 7;

fn bytes(data: *const u8, length: u8) -> Vec<u8> {
    if data.is_null() || length == 0 {
        return Vec::new();
    }
    // SAFETY: rdma_cma.h: `length` bytes of private data.
    unsafe { core::slice::from_raw_parts(data, usize::from(length)) }.to_vec()
}

fn param(of: *const rdma_conn_param) -> Option<rdma_conn_param> {
    // SAFETY: rdma_cma.h: NULL, or initialised parameters.
    (!of.is_null()).then(|| unsafe { of.read() })
}

impl Id {
    /// What the program may not ask of a connected service.
    fn check(&self, wanted: Option<&rdma_conn_param>) -> Outcome<()> {
        if self.ps() != PS_TCP {
            return Ok(());
        }
        let Some(wanted) = wanted else {
            return match self.qp().is_null() {
                true => Err(Misuse::invalid(
                    "without a queue pair on the identifier the parameters must name one",
                )),
                false => Ok(()),
            };
        };
        let (resources, depth) = device::depths(self.verbs()?);
        let above = |n: u8, most: u8| chosen(n).is_some_and(|n| n > most);
        if above(wanted.responder_resources, resources) || above(wanted.initiator_depth, depth) {
            return Err(Misuse::invalid(
                "more READs and atomics at a time than the device does (see ibv_devinfo -v)",
            ));
        }
        Ok(())
    }

    /// Its queue pair's number and use of a shared receive queue, or the program's word on them.
    fn own_qp(&self, wanted: Option<&rdma_conn_param>) -> (u32, bool) {
        let qp: *mut ibv_qp = self.qp();
        if qp.is_null() {
            return wanted.map_or((0, false), |w| (w.qp_num, w.srq != 0));
        }
        // SAFETY: the identifier's queue pair.
        let qp = unsafe { qp.read() };
        (qp.qp_num, !qp.srq.is_null())
    }

    fn param(&self, wanted: Option<&rdma_conn_param>, ece: CmEce) -> Outcome<CmParam> {
        let (qpn, srq) = self.own_qp(wanted);
        let state = self.state();
        let mut private_data = state.connect.clone();
        if let Some(wanted) = wanted {
            private_data.extend(bytes(wanted.private_data, wanted.private_data_len));
        }
        if private_data.len() > PRIVATE_DATA_MAX {
            return Err(Misuse::invalid(
                "private data is longer than any message holds",
            ));
        }
        Ok(CmParam {
            qpn,
            srq,
            responder_resources: state.responder_resources,
            initiator_depth: state.initiator_depth,
            flow_control: wanted.is_some_and(|w| w.flow_control != 0),
            retry_count: wanted.map_or(RETRIES, |w| w.retry_count.min(RETRIES)),
            rnr_retry_count: wanted.map_or(RETRIES, |w| w.rnr_retry_count.min(RETRIES)),
            qkey: 0,
            private_data,
            ece,
        })
    }

    fn connect(&self, wanted: Option<&rdma_conn_param>) -> Outcome<()> {
        self.check(wanted)?;
        let (resources, depth) = device::depths(self.verbs()?);
        let ece = {
            let mut state = self.state();
            let own = |n: Option<u8>, most: u8| n.unwrap_or(most);
            state.responder_resources = own(
                wanted.and_then(|w| chosen(w.responder_resources)),
                resources,
            );
            state.initiator_depth = own(wanted.and_then(|w| chosen(w.initiator_depth)), depth);
            state.local_ece
        };
        let param = self.param(wanted, ece)?;
        self.manager.tell(CmRequest::Connect {
            id: self.number,
            param,
        })?;
        self.state().connect = Vec::new();
        Ok(())
    }

    fn accept(&self, wanted: Option<&rdma_conn_param>) -> Outcome<()> {
        self.check(wanted)?;
        let (resources, depth) = device::depths(self.verbs()?);
        let (resources, depth, ece) = {
            let mut state = self.state();
            let offered = (state.responder_resources, state.initiator_depth);
            state.responder_resources = wanted
                .and_then(|w| chosen(w.responder_resources))
                .unwrap_or_else(|| offered.0.min(resources));
            state.initiator_depth = wanted
                .and_then(|w| chosen(w.initiator_depth))
                .unwrap_or_else(|| offered.1.min(depth));
            let ece = CmEce {
                vendor_id: state.remote_ece.vendor_id,
                options: state.local_ece.options,
            };
            (state.responder_resources, state.initiator_depth, ece)
        };
        let datagram = self.qp_type() == UD;
        if !datagram {
            self.make_ready(Some(resources), Some(depth))?;
        }
        let param = self.param(wanted, ece)?;
        let told = self.manager.tell(CmRequest::Accept {
            id: self.number,
            param,
        });
        if let Err(e) = told {
            let _ = self.make_error();
            return Err(e);
        }
        Ok(())
    }

    /// The peer has answered: moves the queue pair and says that it is ready.
    pub(super) fn establish(&self) -> Outcome<()> {
        let told = self
            .make_ready(None, None)
            .and_then(|()| self.manager.tell(CmRequest::Establish { id: self.number }));
        if told.is_err() {
            let _ = self.make_error();
        }
        told
    }

    fn reject(&self, reason: u8, data: *const u8, length: u8) -> Outcome<()> {
        self.manager.tell(CmRequest::Reject {
            id: self.number,
            reason,
            private_data: bytes(data, length),
        })
    }

    fn disconnect(&self) -> Outcome<()> {
        self.verbs()?;
        self.make_error()?;
        self.manager.tell(CmRequest::Disconnect { id: self.number })
    }
}

/// `rdma_connect`
#[unsafe(no_mangle)]
extern "C-unwind" fn rdma_connect(id: *mut rdma_cm_id, wanted: *const rdma_conn_param) -> c_int {
    enter_waiting::<MinusOne, c_int>(|read| {
        let this = Id::of(id)?;
        completing(this, read, || this.connect(param(wanted).as_ref()))
    })
}

/// `rdma_accept`
#[unsafe(no_mangle)]
extern "C-unwind" fn rdma_accept(id: *mut rdma_cm_id, wanted: *const rdma_conn_param) -> c_int {
    enter_waiting::<MinusOne, c_int>(|read| {
        let this = Id::of(id)?;
        if this.qp_type() == UD {
            // There is nothing more to wait for.
            this.accept(param(wanted).as_ref())?;
            if this.is_sync() {
                this.drop_event();
            }
            return Ok(Turn::Over(0));
        }
        completing(this, read, || this.accept(param(wanted).as_ref()))
    })
}

/// `rdma_establish`: for an identifier without a queue pair, after CONNECT_RESPONSE.
#[unsafe(no_mangle)]
extern "C" fn rdma_establish(id: *mut rdma_cm_id) -> c_int {
    enter::<MinusOne, c_int>(|| {
        let this = Id::of(id)?;
        if !this.qp().is_null() {
            return Err(Misuse::invalid(
                "rdma_establish: with a queue pair on the identifier the library does it",
            ));
        }
        this.establish()?;
        Ok(0)
    })
}

/// `rdma_reject`
#[unsafe(no_mangle)]
extern "C" fn rdma_reject(id: *mut rdma_cm_id, data: *const u8, length: u8) -> c_int {
    enter::<MinusOne, c_int>(|| Id::of(id)?.reject(0, data, length).map(|()| 0))
}

/// `rdma_reject_ece`: because of the peer's options for enhanced connections.
#[unsafe(no_mangle)]
extern "C" fn rdma_reject_ece(id: *mut rdma_cm_id, data: *const u8, length: u8) -> c_int {
    enter::<MinusOne, c_int>(|| {
        let this = Id::of(id)?;
        this.reject(VENDOR_OPTION, data, length).map(|()| 0)
    })
}

/// `rdma_disconnect`
#[unsafe(no_mangle)]
extern "C-unwind" fn rdma_disconnect(id: *mut rdma_cm_id) -> c_int {
    enter_waiting::<MinusOne, c_int>(|read| {
        let this = Id::of(id)?;
        completing(this, read, || this.disconnect())
    })
}

/// `rdma_notify`: the queue pair has seen a packet of the peer before the connection was complete (then it is
/// complete now; EISCONN if it was), or has gone over to its other path, which none of ours has. As with the
/// kernel EINVAL for any other event, and where no connection is being made.
#[unsafe(no_mangle)]
extern "C" fn rdma_notify(id: *mut rdma_cm_id, event: c_uint) -> c_int {
    /// `IBV_EVENT_COMM_EST`
    const COMM_EST: c_uint = 4;
    /// `IBV_EVENT_PATH_MIG`
    const PATH_MIG: c_uint = 6;
    enter::<MinusOne, c_int>(|| {
        let this = Id::of(id)?;
        if event != COMM_EST && event != PATH_MIG {
            return Err(Misuse::invalid(
                "rdma_notify: IBV_EVENT_COMM_EST and IBV_EVENT_PATH_MIG are a connection's concern",
            ));
        }
        this.manager.tell(CmRequest::Notify {
            id: this.number,
            migrated: event == PATH_MIG,
        })?;
        Ok(0)
    })
}

/// `rdma_set_local_ece`
#[unsafe(no_mangle)]
extern "C" fn rdma_set_local_ece(id: *mut rdma_cm_id, ece: Arg<ibv_ece>) -> c_int {
    enter::<MinusOne, c_int>(|| {
        let (this, ece) = (Id::of(id)?, ece.get()?);
        if !this.qp().is_null() || ece.vendor_id == 0 || ece.comp_mask != 0 {
            return Err(ECE);
        }
        this.state().local_ece = CmEce {
            vendor_id: ece.vendor_id,
            options: ece.options,
        };
        Ok(0)
    })
}

/// `rdma_get_remote_ece`
#[unsafe(no_mangle)]
extern "C" fn rdma_get_remote_ece(id: *mut rdma_cm_id, ece: Arg<ibv_ece>) -> c_int {
    enter::<MinusOne, c_int>(|| {
        let this = Id::of(id)?;
        if !this.qp().is_null() {
            return Err(ECE);
        }
        let remote = this.state().remote_ece;
        ece.set(ibv_ece {
            vendor_id: remote.vendor_id,
            options: remote.options,
            comp_mask: 0,
        })?;
        Ok(0)
    })
}

const ECE: Misuse = Misuse::new(
    Errno::EINVAL,
    "options for enhanced connections are for identifiers without a queue pair, and need a vendor",
);
