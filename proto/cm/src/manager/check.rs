//! What must be true between two calls, for tests and fuzzing.

use super::Manager;
use crate::state::State;

impl Manager {
    /// Something in the tables that contradicts something else, in words; None = all is well.
    /// Looks at everything, so it is for tests.
    #[must_use]
    pub fn contradiction(&self) -> Option<&'static str> {
        let names = self.by_remote.values().chain(self.by_qpn.values());
        let mut names = names.chain(self.questions.values());
        if names.any(|id| !self.conns.contains_key(id)) {
            return Some("an index names a connection that is gone");
        }
        let timed = self.conns.values().filter(|c| c.deadline.is_some()).count();
        if timed != self.deadlines.len() {
            return Some("a deadline too many or too few");
        }
        let resting = |c: &&super::Conn| c.state == State::TimeWait;
        if self.conns.values().filter(resting).count() != self.resting.len() {
            return Some("a time-wait too many or too few");
        }
        let places = self.conns.values().filter(|c| c.place.is_some()).count();
        if places < self.listeners.waiting() {
            return Some("a place in a backlog is never given back");
        }
        let half_open = self.conns.values().filter(|c| c.half_open).count();
        if half_open != self.half_open.values().map(|&n| n as usize).sum() {
            return Some("a half-open connection too many or too few");
        }
        self.conns.values().find_map(wrong)
    }
}

/// What cannot be true of a connection.
fn wrong(conn: &super::Conn) -> Option<&'static str> {
    let waits = matches!(
        conn.state,
        State::ReqSent
            | State::MraReqRcvd
            | State::RepSent
            | State::MraRepRcvd
            | State::DreqSent
            | State::TimeWait
            | State::SidrReqSent
    );
    if waits != conn.deadline.is_some() {
        return Some("a connection waits without end, or for nothing");
    }
    let repeats = waits && conn.state != State::TimeWait;
    if repeats && conn.last.is_none() {
        return Some("a connection has nothing to repeat");
    }
    if !conn.owned && !matches!(conn.state, State::DreqSent | State::TimeWait) {
        return Some("a connection that nobody owns is not being ended");
    }
    None
}
