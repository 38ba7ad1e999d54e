//! What keeps a queue pair going. One that has something to send, or misses an answer, and that nothing
//! will move again has been forgotten: that must never be, and tests look for it after every step.

use rocebud_objects::QpState;

use super::Qp;
use super::sq::Timer;
use crate::cx::Core;

impl Qp {
    /// It owes something, and nothing will bring it on.
    pub(crate) fn is_forgotten(&self, core: &Core) -> bool {
        let owes = !self.resp.answers.is_empty() || self.notify.due;
        if core.ready.has(self.index) {
            return false;
        }
        owes || self.requests_wait() && !self.is_awaited(core)
    }

    /// Nothing is left to send, as far as is seen without trying.
    #[inline]
    pub(crate) fn has_said_all(&self) -> bool {
        self.resp.answers.is_empty()
            && !self.notify.due
            && self.parked.is_empty()
            && self.sq.has_sent_all()
    }

    /// Requests were not answered or not sent yet, and the queue pair's state lets them go on.
    fn requests_wait(&self) -> bool {
        let goes_on = match self.state {
            QpState::Rts => true,
            QpState::Sqd => !self.sq.drained(),
            _ => false,
        };
        goes_on && (self.sq.outstanding() || self.sq.has_work())
    }

    /// An answer was asked for, or a moment will come. An ACK timer does not count: where it has to help
    /// although no packet was lost it costs a retry, and a queue pair need not have one.
    fn is_awaited(&self, core: &Core) -> bool {
        let flight = self.sq.flight;
        flight.reads != 0
            || flight.packets != 0 && !self.sq.is_unheard()
            || matches!(self.sq.timer, Timer::Rnr { .. } | Timer::Line { .. })
            || core.paced.is_set(self.index)
            || core.held.has(self.index)
    }
}
