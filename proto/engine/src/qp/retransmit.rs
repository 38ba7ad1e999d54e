//! Going back: timers, NAKs and the two retry counts.

use rocebud_objects::{Counter, Instant, NoteKind};
use rocebud_wire::rnr_timer_ns;

use super::Qp;
use super::sq::Timer;
use crate::cx::Cx;
use crate::env::Env;
use crate::limits;
use crate::reasons::Reason;

impl Qp {
    pub(crate) fn set_timer<E: Env>(&mut self, timer: Timer, cx: &mut Cx<'_, E>) {
        if self.sq.timer == timer {
            return;
        }
        self.sq.timer = timer;
        let at = match timer {
            Timer::Off => None,
            Timer::Ack { deadline } => Some(deadline),
            Timer::Rnr { until } | Timer::Line { until } => Some(until),
        };
        cx.core.timers.set(self.index, at);
    }

    /// Starts (or restarts) the wait for an answer, if the queue pair has a timeout at all. Where
    /// nothing is under way and the rate limit holds the next packet back, from when that may leave.
    pub(crate) fn arm_ack_timer<E: Env>(&mut self, cx: &mut Cx<'_, E>) {
        self.sq.excuses = 0;
        let timer = match self.ack_timeout_ns(cx) {
            0 => Timer::Off,
            nominal => {
                let backoff = self.sq.timeouts.min(limits::TIMEOUT_BACKOFF_SHIFT_MAX);
                let held = self
                    .pace
                    .wait(cx.now)
                    .filter(|_| self.sq.nothing_in_flight());
                Timer::Ack {
                    deadline: held.unwrap_or(cx.now) + (nominal << backoff),
                }
            }
        };
        self.set_timer(timer, cx);
    }

    /// Nothing is outstanding. A turn at a budget is waited for, but not for ever: those that hold
    /// it may be dead, and who holds nothing may always send one packet.
    pub(crate) fn wait_in_line<E: Env>(&mut self, cx: &mut Cx<'_, E>) {
        let timer = if self.sq.waits && self.sq.has_work() {
            Timer::Line {
                until: cx.now + limits::LINE_WAIT_NS,
            }
        } else {
            Timer::Off
        };
        self.set_timer(timer, cx);
    }

    /// The nominal local ACK timeout; 0 = never.
    fn ack_timeout_ns<E: Env>(&self, cx: &Cx<'_, E>) -> u64 {
        match self.attr.timeout {
            0 => 0,
            exponent => {
                let nominal = limits::ACK_TIMEOUT_UNIT_NS << exponent.min(31);
                nominal.max(cx.core.cfg.ack_timeout_min_ns)
            }
        }
    }

    pub(crate) fn on_timer<E: Env>(&mut self, cx: &mut Cx<'_, E>) {
        if !self.init.qp_type.is_reliable() {
            return self.on_parked_timeout(cx);
        }
        let timer = core::mem::take(&mut self.sq.timer);
        match timer {
            Timer::Off => {}
            Timer::Rnr { .. } | Timer::Line { .. } => cx.core.ready.push(self.index),
            Timer::Ack { deadline } if self.excuses(deadline, cx) => {}
            Timer::Ack { .. } => self.on_ack_timeout(cx),
        }
    }

    /// A timer that runs much too late says that this process had no turn for as long; on the same
    /// machine its peer may have had none either. It waits as long again, once, and one nominal
    /// timeout at most. A peer that is known not to have read what it got is waited for as well, up
    /// to the four nominal timeouts that the specification allows.
    fn excuses<E: Env>(&mut self, deadline: Instant, cx: &mut Cx<'_, E>) -> bool {
        let nominal = self.ack_timeout_ns(cx);
        let late = cx.now.ns_since(deadline);
        let backoff = self.sq.timeouts.min(limits::TIMEOUT_BACKOFF_SHIFT_MAX);
        let spare = (1 << limits::TIMEOUT_BACKOFF_SHIFT_MAX) - (1 << backoff);
        let wait = if self.sq.excuses == 0 && late > nominal / limits::TIMER_LATE_PARTS {
            late.min(nominal)
        } else if self.sq.excuses < spare
            && cx
                .env
                .is_behind(self.path.dgid, self.attr.dest_qp_num.slot())
        {
            nominal
        } else {
            return false;
        };
        self.sq.excuses += 1;
        let deadline = cx.now + wait;
        self.set_timer(Timer::Ack { deadline }, cx);
        true
    }

    fn on_ack_timeout<E: Env>(&mut self, cx: &mut Cx<'_, E>) {
        if !self.sq.outstanding() {
            return;
        }
        if self.sq.is_unheard() {
            // No answer is missing where none was asked for: the next packet is late, by lack of room
            // at the peer or of a turn.
            self.sq.overdue = true;
            self.arm_ack_timer(cx);
            return cx.core.ready.push(self.index);
        }
        #[cfg(feature = "planted")]
        if cx.planted(crate::config::Planted::LostLastAckNeverRecovered)
            && self.sq.cursor == self.sq.nxt
            && !self.sq.has_work()
        {
            return;
        }
        cx.count(Counter::LocalAckTimeoutErr);
        let left = u32::from(self.sq.retries_left);
        self.note(cx, NoteKind::Timeout, self.sq.psn(self.sq.una), left);
        self.sq.timeouts = self.sq.timeouts.saturating_add(1);
        self.sq.nak_acted = None;
        self.retry(Reason::RetryExceeded, cx);
    }

    /// Back to the first unacknowledged packet, for the price of one retry.
    fn retry<E: Env>(&mut self, why: Reason, cx: &mut Cx<'_, E>) {
        let Some(left) = self.sq.retries_left.checked_sub(1) else {
            cx.count(Counter::RetryExceededErr);
            return self.fail_front(why, cx);
        };
        self.sq.retries_left = left;
        self.sq.unready = false;
        self.go_back(cx);
    }

    fn go_back<E: Env>(&mut self, cx: &mut Cx<'_, E>) {
        let flight = self.sq.rewind();
        self.give_back(flight, cx);
        self.set_timer(Timer::Off, cx);
        if self.sq.outstanding() {
            // The resend itself may be held up (by another queue pair's turn); the clock runs on.
            self.arm_ack_timer(cx);
        }
        cx.core.ready.push(self.index);
    }

    /// Something new was acknowledged: the peer is alive.
    pub(crate) fn reload_retries(&mut self) {
        self.sq.retries_left = self.attr.retry_cnt;
        self.sq.rnr_left = self.attr.rnr_retry;
        self.sq.timeouts = 0;
    }

    /// An answer to a later request came while a READ or atomic is unanswered.
    pub(crate) fn implied_nak<E: Env>(&mut self, cx: &mut Cx<'_, E>) {
        cx.count(Counter::ImpliedNakSeqErr);
        if self.sq.nak_acted == Some(self.sq.una) || matches!(self.sq.timer, Timer::Rnr { .. }) {
            return;
        }
        self.sq.nak_acted = Some(self.sq.una);
        let left = u32::from(self.sq.retries_left);
        self.note(cx, NoteKind::ImpliedNak, self.sq.psn(self.sq.una), left);
        self.retry(Reason::RetryExceededImplied, cx);
    }

    /// The peer misses the packet at `una`. A repeated NAK for the same place costs nothing: the
    /// resend is on its way.
    pub(crate) fn sequence_nak<E: Env>(&mut self, cx: &mut Cx<'_, E>) {
        cx.count(Counter::PacketSeqErr);
        if self.sq.nak_acted == Some(self.sq.una) || matches!(self.sq.timer, Timer::Rnr { .. }) {
            return;
        }
        self.sq.nak_acted = Some(self.sq.una);
        let left = u32::from(self.sq.retries_left);
        self.note(cx, NoteKind::SeqNakReceived, self.sq.psn(self.sq.una), left);
        self.retry(Reason::RetryExceededNak, cx);
    }

    /// The peer has no receive for the packet at `una`.
    pub(crate) fn rnr_nak<E: Env>(&mut self, code: u8, cx: &mut Cx<'_, E>) {
        if matches!(self.sq.timer, Timer::Rnr { .. }) {
            return;
        }
        cx.count(Counter::RcvdRnrErr);
        self.note(
            cx,
            NoteKind::RnrNakReceived,
            self.sq.psn(self.sq.una),
            u32::from(code),
        );
        if self.attr.rnr_retry != limits::RNR_RETRY_INFINITE {
            let Some(left) = self.sq.rnr_left.checked_sub(1) else {
                cx.count(Counter::RetryRnrExceededErr);
                return self.fail_front(Reason::RnrRetryExceeded, cx);
            };
            self.sq.rnr_left = left;
        }
        self.sq.unready = true;
        self.go_back(cx);
        self.set_timer(
            Timer::Rnr {
                until: cx.now + rnr_timer_ns(code),
            },
            cx,
        );
    }
}
