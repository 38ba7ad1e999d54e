//! All connections and listeners of a host.

mod calls;
mod check;
mod conn;
mod listeners;
mod make;
mod out;
mod receive;

use alloc::boxed::Box;
use alloc::collections::btree_map::Entry;
use alloc::collections::{BTreeMap, BTreeSet};

use rocebud_objects::Instant;

use conn::{Conn, Given};
use listeners::Listeners;
use out::{Out, PutOffs};

pub use out::Counters;

use crate::limits::CONNECTIONS_MAX;
use crate::state::{Act, Input, State, step};
use crate::timing::Config;
use crate::types::{ConnId, Event, Peer, QpParams, Transmit};

/// Where randomness comes from: the operating system, or a seed in tests. Communication ids and
/// starting PSNs are made of it, and that nobody can guess them is the whole defence of a
/// protocol without authentication.
pub type Random = Box<dyn FnMut() -> u32 + Send>;

/// A name that a peer uses for one of its things: its address, its device, the name. The address
/// is part of it, so that nobody can speak for another.
pub(crate) type Key<T> = (Peer, u64, T);

/// The connection manager of a host. See the crate's page for its shape.
pub struct Manager {
    config: Config,
    random: Random,
    conns: BTreeMap<ConnId, Conn>,
    /// Passive connections by what the peer calls them.
    by_remote: BTreeMap<Key<u32>, ConnId>,
    /// Live connections by the peer's queue pair.
    by_qpn: BTreeMap<Key<u32>, ConnId>,
    /// Unanswered questions for datagram services.
    questions: BTreeMap<(Peer, u32), ConnId>,
    deadlines: BTreeSet<(Instant, ConnId)>,
    /// Those in time-wait, the first to end first.
    resting: BTreeSet<(Instant, ConnId)>,
    listeners: Listeners,
    /// Passive connections that their peers are not ready for yet.
    half_open: BTreeMap<Peer, u32>,
    put_offs: PutOffs,
    out: Out,
}

impl core::fmt::Debug for Manager {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Manager")
            .field("conns", &self.conns)
            .field("listeners", &self.listeners)
            .field("counters", &self.out.counters)
            .finish_non_exhaustive()
    }
}

impl Manager {
    /// A manager without connections.
    #[must_use]
    pub fn new(config: Config, random: Random) -> Self {
        Self {
            config,
            random,
            conns: BTreeMap::new(),
            by_remote: BTreeMap::new(),
            by_qpn: BTreeMap::new(),
            questions: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            put_offs: PutOffs::new(),
            resting: BTreeSet::new(),
            listeners: Listeners::default(),
            half_open: BTreeMap::new(),
            out: Out::default(),
        }
    }

    /// The next message to send. Ask until there is none, after every input and call.
    pub fn poll_transmit(&mut self) -> Option<Transmit> {
        self.out.poll_transmit()
    }

    /// The next piece of news. Ask until there is none, after every input and call.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.out.poll_event()
    }

    /// When [`Manager::handle_timeout`] wants to be called; None = not at all.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.deadlines.first().map(|&(at, _)| at)
    }

    /// Does what is due.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some(&(at, id)) = self.deadlines.first() {
            if at > now {
                return;
            }
            let Some(conn) = self.conns.get_mut(&id) else {
                self.deadlines.remove(&(at, id));
                continue;
            };
            let input = if conn.sent >= conn.sends {
                Input::GiveUp
            } else {
                conn.sent += 1;
                Input::Timer
            };
            self.set_deadline(id, None);
            let left = self.run(now, id, input, &mut Given::Nothing);
            if let (true, Some(conn)) = (left && input == Input::Timer, self.conns.get(&id)) {
                let next = now + self.config.interval_ns(conn.sent, conn.sends);
                self.set_deadline(id, Some(next));
                self.out.counters.resent += 1;
            }
        }
    }

    /// Attributes for the queue pair of a connection: on the passive side from the request on,
    /// on the active side from the reply on.
    #[must_use]
    pub fn qp_params(&self, conn: ConnId) -> Option<QpParams> {
        let conn = self.conns.get(&conn)?;
        let unknown = matches!(
            conn.state,
            State::ReqSent | State::MraReqRcvd | State::SidrReqSent | State::SidrReqRcvd
        );
        (!unknown).then_some(conn.qp)
    }

    /// Where a connection is; None if it is over.
    #[must_use]
    pub fn state(&self, conn: ConnId) -> Option<State> {
        self.conns.get(&conn).map(|conn| conn.state)
    }

    /// Connections and questions, time-wait included.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.conns.len()
    }

    /// Those of them that are in time-wait.
    #[must_use]
    pub fn resting(&self) -> usize {
        self.resting.len()
    }

    /// What happened, in numbers.
    #[must_use]
    pub const fn counters(&self) -> &Counters {
        &self.out.counters
    }

    /// Takes the table's step for an input. False if there is none.
    fn run(&mut self, now: Instant, id: ConnId, input: Input, given: &mut Given<'_>) -> bool {
        let Some(conn) = self.conns.get_mut(&id) else {
            return false;
        };
        let Some(step) = step(conn.state, input) else {
            return false;
        };
        let before = (conn.state, conn.deadline);
        conn.overtaken |= input == Input::Stale;
        conn.owned &= input != Input::Forget;
        for &act in step.acts {
            conn.act(now, act, given, &self.config, &mut self.out);
        }
        conn.enter(now, step.to);
        let (left, deadline) = (step.acts.contains(&Act::Leave), conn.deadline);
        conn.deadline = before.1;
        self.set_deadline(id, deadline);
        self.settle(id, before.0);
        if left {
            self.remove(id);
        }
        true
    }

    /// Keeps the indexes true after a step.
    fn settle(&mut self, id: ConnId, before: State) {
        let Some(conn) = self.conns.get_mut(&id) else {
            return;
        };
        let asking = matches!(
            conn.state,
            State::ReqRcvd | State::MraReqSent | State::SidrReqRcvd
        );
        let (resting, overtaken) = (conn.state == State::TimeWait, conn.overtaken);
        if resting
            && before != State::TimeWait
            && let Some(at) = conn.deadline
        {
            self.resting.insert((at, id));
        }
        if resting || overtaken {
            let key = conn.qpn_key();
            if self.by_qpn.get(&key) == Some(&id) {
                self.by_qpn.remove(&key);
            }
        }
        let closed = !asking && !matches!(conn.state, State::RepSent | State::MraRepRcvd);
        if !asking {
            self.give_place(id);
        }
        if closed {
            self.no_longer_half_open(id);
        }
    }

    /// The peer of a passive connection is ready for it, or never will be.
    fn no_longer_half_open(&mut self, id: ConnId) {
        let Some(conn) = self.conns.get_mut(&id) else {
            return;
        };
        if !core::mem::take(&mut conn.half_open) {
            return;
        }
        if let Entry::Occupied(mut count) = self.half_open.entry(conn.peer()) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }

    /// Gives the connection's place in a backlog back, if it has one.
    fn give_place(&mut self, id: ConnId) {
        let Some(conn) = self.conns.get_mut(&id) else {
            return;
        };
        if let Some(listener) = conn.place.take() {
            self.listeners.give_place(listener, conn.peer());
        }
    }

    fn set_deadline(&mut self, id: ConnId, deadline: Option<Instant>) {
        let Some(conn) = self.conns.get_mut(&id) else {
            return;
        };
        if conn.deadline == deadline {
            return;
        }
        if let Some(at) = conn.deadline {
            self.deadlines.remove(&(at, id));
            self.resting.remove(&(at, id));
        }
        if let Some(at) = deadline {
            self.deadlines.insert((at, id));
        }
        conn.deadline = deadline;
    }

    fn remove(&mut self, id: ConnId) {
        self.give_place(id);
        self.no_longer_half_open(id);
        self.set_deadline(id, None);
        let Some(conn) = self.conns.remove(&id) else {
            return;
        };
        for (index, key) in [
            (&mut self.by_remote, conn.remote_key()),
            (&mut self.by_qpn, conn.qpn_key()),
        ] {
            if index.get(&key) == Some(&id) {
                index.remove(&key);
            }
        }
        let key = (conn.peer(), conn.remote_id);
        if self.questions.get(&key) == Some(&id) {
            self.questions.remove(&key);
        }
    }

    /// Makes room for one more. The time-wait that ends first ends now, if it must. False if
    /// there is no room.
    fn make_room(&mut self, now: Instant) -> bool {
        if self.conns.len() < CONNECTIONS_MAX {
            return true;
        }
        let Some(&(_, id)) = self.resting.first() else {
            return false;
        };
        self.run(now, id, Input::GiveUp, &mut Given::Nothing)
    }

    /// A communication id that nobody has, and that nobody can guess.
    fn free_id(&mut self) -> ConnId {
        loop {
            let id = ConnId((self.random)());
            if id.0 != 0 && !self.conns.contains_key(&id) {
                return id;
            }
        }
    }

    /// A transaction id for a connection.
    fn tid(&mut self, id: ConnId) -> u64 {
        u64::from((self.random)()) << 32 | u64::from(id.0)
    }

    /// Puts a new connection into the tables.
    fn insert(&mut self, mut conn: Conn) {
        conn.sends = conn.sends.min(self.config.sends).max(1);
        let id = conn.id;
        match conn.state {
            State::SidrReqRcvd => {
                self.questions.insert((conn.peer(), conn.remote_id), id);
            }
            _ if conn.passive => {
                self.by_remote.insert(conn.remote_key(), id);
                self.by_qpn.insert(conn.qpn_key(), id);
                *self.half_open.entry(conn.peer()).or_default() += 1;
            }
            _ => {}
        }
        self.conns.insert(id, conn);
    }
}
