//! Multicast groups of an identifier. The daemon joins them on the interface, the queue pair is
//! attached here.

use core::ffi::{c_int, c_uint, c_void};

use rocebud_objects::{Errno, Misuse};
use rocebud_verbs::cm::{CmAnswer, CmDatagram, CmRequest, refusal};

use super::super::boundary::{Arg, MinusOne, Outcome, enter};
use super::super::sleep::enter_waiting;
use super::address;
use super::event::completing;
use super::id::Id;
use super::types::{event, rdma_cm_id, rdma_cm_join_mc_attr_ex, sockaddr_storage};
use super::verbs::{self, outcome};

/// A group that was joined, or is about to be.
pub(super) struct Membership {
    /// The daemon's number.
    number: u32,
    context: *mut c_void,
    address: sockaddr_storage,
    send_only: bool,
    /// Set when the queue pair was attached.
    attached: Option<[u8; 16]>,
    /// Events acknowledged.
    completed: u32,
}
// SAFETY: the context is the program's word, never followed.
unsafe impl Send for Membership {}
impl core::fmt::Debug for Membership {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "membership {}", self.number)
    }
}

const MISSING: Misuse = Misuse::new(
    Errno(libc::EADDRNOTAVAIL),
    "rdma_leave_multicast: the identifier is not in this group",
);

impl Id {
    /// The event says what came of it.
    fn join(&self, group: *const u8, send_only: bool, context: *mut c_void) -> Outcome<()> {
        let address = address::read(group)?;
        let answer = {
            // The event may be read before the answer is: whoever reads it waits for this lock.
            let mut state = self.state();
            let answer = self.manager.ask(CmRequest::Join {
                id: self.number,
                group: address::of(&address),
            })?;
            if let CmAnswer::Joined(number) = answer {
                state.memberships.push(Membership {
                    number,
                    context,
                    address,
                    send_only,
                    attached: None,
                    completed: 0,
                });
            }
            answer
        };
        match answer {
            CmAnswer::Joined(_) => Ok(()),
            answer => Err(refusal(&answer)),
        }
    }

    /// The daemon has joined, or failed to: attaches the queue pair. With the program's context.
    pub(super) fn joined(
        &self,
        number: u32,
        kind: c_uint,
        param: &CmDatagram,
    ) -> (Outcome<()>, *mut c_void) {
        let mut state = self.state();
        let mut all = state.memberships.iter_mut();
        let Some(membership) = all.find(|m| m.number == number) else {
            return (Err(MISSING), core::ptr::null_mut());
        };
        let context = membership.context;
        let qp = self.qp();
        if kind != event::MULTICAST_JOIN || qp.is_null() || membership.send_only {
            return (Ok(()), context);
        }
        // SAFETY: the identifier's queue pair, and sixteen bytes.
        let attached = outcome(unsafe { verbs::ibv_attach_mcast(qp, &raw const param.ah.dgid, 0) });
        if attached.is_ok() {
            membership.attached = Some(param.ah.dgid);
        }
        (attached, context)
    }

    /// An event of a membership was acknowledged.
    pub(super) fn complete_membership(&self, number: u32) {
        let mut state = self.state();
        let mut all = state.memberships.iter_mut();
        if let Some(membership) = all.find(|m| m.number == number) {
            membership.completed += 1;
        }
    }

    fn leave(&self, group: *const u8) -> Outcome<()> {
        let address = address::read(group)?;
        let (number, attached) = {
            let state = self.state();
            let mut all = state.memberships.iter().rev();
            let found = all.find(|m| m.address.0 == address.0).ok_or(MISSING)?;
            (found.number, found.attached)
        };
        let qp = self.qp();
        if let Some(group) = attached
            && !qp.is_null()
        {
            // SAFETY: the identifier's queue pair, and sixteen bytes.
            unsafe { verbs::ibv_detach_mcast(qp, &raw const group, 0) };
        }
        let answer = self.manager.ask(CmRequest::Leave {
            id: self.number,
            membership: number,
        });
        if let Ok(CmAnswer::Reported(reported)) = answer {
            // Of an identifier whose calls wait, the call before has it.
            if self.is_sync() {
                self.drop_event();
            }
            // Counted down to nothing when it is gone already.
            self.wait(reported, |state| {
                let mut all = state.memberships.iter();
                let of = all.find(|m| m.number == number);
                of.map_or(u32::MAX, |m| m.completed)
            });
        }
        self.state().memberships.retain(|m| m.number != number);
        match answer? {
            CmAnswer::Reported(_) => Ok(()),
            answer => Err(refusal(&answer)),
        }
    }
}

/// `rdma_join_multicast`
#[unsafe(no_mangle)]
extern "C-unwind" fn rdma_join_multicast(
    id: *mut rdma_cm_id,
    group: *const u8,
    context: *mut c_void,
) -> c_int {
    enter_waiting::<MinusOne, c_int>(|read| {
        let this = Id::of(id)?;
        completing(this, read, || this.join(group, false, context))
    })
}

/// `rdma_join_multicast_ex`
#[unsafe(no_mangle)]
extern "C-unwind" fn rdma_join_multicast_ex(
    id: *mut rdma_cm_id,
    attr: Arg<rdma_cm_join_mc_attr_ex>,
    context: *mut c_void,
) -> c_int {
    const ADDRESS_AND_FLAGS: u32 = 1 | 1 << 1;
    const SEND_ONLY: u32 = 1;
    enter_waiting::<MinusOne, c_int>(|read| {
        let (this, wanted) = (Id::of(id)?, attr.get()?);
        if wanted.comp_mask > ADDRESS_AND_FLAGS {
            return Err(Misuse::new(
                Errno::EOPNOTSUPP,
                "rdma_join_multicast_ex: comp_mask has bits of a later release",
            ));
        }
        if wanted.comp_mask != ADDRESS_AND_FLAGS || wanted.join_flags > SEND_ONLY {
            return Err(Misuse::invalid(
                "rdma_join_multicast_ex: address and flags must be there",
            ));
        }
        completing(this, read, || {
            this.join(wanted.addr, wanted.join_flags == SEND_ONLY, context)
        })
    })
}

/// `rdma_leave_multicast`
#[unsafe(no_mangle)]
extern "C" fn rdma_leave_multicast(id: *mut rdma_cm_id, group: *const u8) -> c_int {
    enter::<MinusOne, c_int>(|| Id::of(id)?.leave(group).map(|()| 0))
}
