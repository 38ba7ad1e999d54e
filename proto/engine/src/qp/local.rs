//! Requests that need no packet: LOCAL_INV and binds of memory windows.
//!
//! They take their turn in the send queue. LOCAL_INV waits until everything before it is
//! complete, since that may still use the key. A bind happens when its turn to be sent comes, so
//! that it holds up nothing; its completion waits, as every other, for what is before it. Should
//! that fail, the bind is taken back: a flushed bind never happened.

use rocebud_objects::{BindFault, MwBind, SendOp};
use rocebud_wire::RKey;

use super::Qp;
use super::sq::Wqe;
use crate::cx::Cx;
use crate::env::Env;
use crate::reasons::Reason;

/// The reason that a refused bind gives.
const fn bind_reason(fault: BindFault) -> Reason {
    match fault {
        BindFault::Window => Reason::BindWindow,
        BindFault::State => Reason::BindState,
        BindFault::Region => Reason::BindRegion,
        BindFault::Pd => Reason::BindPd,
        BindFault::Bounds => Reason::BindBounds,
        BindFault::Access => Reason::BindAccess,
    }
}

impl Qp {
    /// Carries out the request at the cursor if it is one of these; `None` if it is not. `Some`
    /// tells whether to look again.
    pub(crate) fn start_local<E: Env>(&mut self, cx: &mut Cx<'_, E>) -> Option<bool> {
        let at_front = self.sq.cur == self.sq.base;
        match self.sq.current()?.wr.op {
            SendOp::LocalInv { rkey } => Some(at_front && self.invalidate_own(rkey, cx)),
            SendOp::BindMw { bind } => Some(self.bind_window(&bind, cx)),
            _ => None,
        }
    }

    /// LOCAL_INV, with everything before it complete.
    fn invalidate_own<E: Env>(&mut self, rkey: RKey, cx: &mut Cx<'_, E>) -> bool {
        if cx.env.invalidate(self.scope(), rkey).is_err() {
            self.fail_front(Reason::LocalInvFailed, cx);
            return false;
        }
        if let Some(wqe) = self.sq.pop_front() {
            self.complete_send(&wqe, cx);
        }
        true
    }

    fn bind_window<E: Env>(&mut self, bind: &MwBind, cx: &mut Cx<'_, E>) -> bool {
        if let Err(fault) = cx.env.bind_window(self.scope(), bind) {
            self.fail_current(bind_reason(fault), cx);
            return false;
        }
        let first = self.sq.cursor;
        if let Some(wqe) = self.sq.current() {
            wqe.first = first;
            wqe.packets = 0;
            wqe.started = true;
        }
        while let Some(wqe) = self.sq.pop_complete() {
            self.complete_send(&wqe, cx);
        }
        true
    }

    /// The planted fault of its name, at the request that the cursor is in.
    #[cfg(feature = "planted")]
    pub(crate) fn repeat_bind<E: Env>(&mut self, cx: &mut Cx<'_, E>) {
        let (scope, again) = (self.scope(), self.sq.cursor < self.sq.nxt);
        if let Some(wqe) = self.sq.current()
            && let SendOp::BindMw { bind } = wqe.wr.op
            && again
            && cx.planted(crate::config::Planted::BindRepeated)
        {
            cx.env.unbind_window(bind.rkey);
            let _ = cx.env.bind_window(scope, &bind);
        }
    }

    /// A request ends without success: what it did already is undone.
    pub(crate) fn undo_local<E: Env>(wqe: &Wqe, cx: &mut Cx<'_, E>) {
        #[cfg(feature = "planted")]
        if cx.planted(crate::config::Planted::FlushedBindStays) {
            return;
        }
        if let SendOp::BindMw { bind } = wqe.wr.op
            && wqe.started
        {
            cx.env.unbind_window(bind.rkey);
        }
    }
}
