//! What applications ask for.

use alloc::vec::Vec;

use rocebud_objects::{Errno, Instant, Misuse};
use rocebud_wire::Psn;

use super::conn::Given;
use super::{Manager, make};
use crate::msg::{Message, Rtu, SidrRep};
use crate::reason::RejReason;
use crate::state::{Input, State, step};
use crate::types::{Accept, ConnId, Connect, Listen, ListenerId, SidrReply, SidrRequest};

/// The id is over, or never was.
const NO_CONN: Misuse = Misuse::invalid("there is no such connection (any more)");

/// The table has no step for it.
const WRONG_STATE: Misuse = Misuse::invalid("the connection is in no state in which that can be");

const NO_ROOM: Misuse = Misuse::new(Errno::ENOMEM, "too many connections on this host");

impl Manager {
    /// Offers a service. Requests come as [`Event::Request`](crate::Event::Request) and
    /// [`Event::SidrRequest`](crate::Event::SidrRequest).
    ///
    /// # Errors
    /// EADDRINUSE if the very same service is offered at the very same address already; ENOMEM
    /// beyond [`crate::limits::LISTENERS_MAX`].
    pub fn listen(&mut self, what: Listen) -> Result<ListenerId, Misuse> {
        self.listeners.add(what)
    }

    /// Ends an offer. Requests that wait for the application are refused (28), connections stay.
    pub fn unlisten(&mut self, now: Instant, listener: ListenerId) {
        if !self.listeners.remove(listener) {
            return;
        }
        let waiting =
            |(&id, conn): (&ConnId, &super::Conn)| (conn.place == Some(listener)).then_some(id);
        let waiting: Vec<ConnId> = self.conns.iter().filter_map(waiting).collect();
        for id in waiting {
            self.forget(now, id);
        }
    }

    /// The application has taken a request out of its queue, so that the place in the backlog is
    /// free, as it is on Linux. Without this call it is free when the request is answered.
    pub fn taken(&mut self, conn: ConnId) {
        self.give_place(conn);
    }

    /// Asks for a connection. [`Event::Reply`](crate::Event::Reply), `Rejected` or `Unreachable`
    /// follow.
    ///
    /// # Errors
    /// EINVAL for more private data than there is room for, ENOMEM beyond
    /// [`crate::limits::CONNECTIONS_MAX`].
    pub fn connect(&mut self, now: Instant, ask: &Connect) -> Result<ConnId, Misuse> {
        if !self.make_room(now) {
            return Err(NO_ROOM);
        }
        let id = self.free_id();
        let (tid, psn) = (self.tid(id), Psn::new((self.random)()));
        let conn = make::asking(id, tid, psn, ask);
        let req = Message::from(make::req(&conn, ask)?);
        self.insert(conn);
        self.begin(now, id, req.emit(tid, ask.ece.options));
        Ok(id)
    }

    /// Asks for the queue pair behind a datagram service. `SidrReply` or `Unreachable` follow.
    ///
    /// # Errors
    /// As [`Manager::connect`].
    pub fn sidr_request(&mut self, now: Instant, ask: &SidrRequest) -> Result<ConnId, Misuse> {
        if !self.make_room(now) {
            return Err(NO_ROOM);
        }
        let id = self.free_id();
        let tid = self.tid(id);
        let req = Message::from(make::sidr_req(id, ask)?);
        self.insert(make::blank(id, State::SidrReqSent, ask.path, tid));
        self.begin(now, id, req.emit(tid, 0));
        Ok(id)
    }

    /// Sends the first message of a connection, and from then on again.
    fn begin(&mut self, now: Instant, id: ConnId, mad: alloc::boxed::Box<[u8; 256]>) {
        let mut deadline = now;
        if let Some(conn) = self.conns.get_mut(&id) {
            conn.sent = 1;
            conn.began = now;
            deadline = now + self.config.interval_ns(1, conn.sends);
            conn.last = Some(mad.clone());
            self.out.send(conn.path, mad);
        }
        self.set_deadline(id, Some(deadline));
    }

    /// Accepts a request: the queue pair is in RTS (or RTR) already, for the peer may send at
    /// once. `Established` follows when the peer is ready.
    ///
    /// # Errors
    /// EINVAL if the connection is over or not asked for, or for too much private data.
    pub fn accept(&mut self, now: Instant, conn: ConnId, answer: &Accept) -> Result<(), Misuse> {
        self.check(conn, Input::Accept)?;
        let Some(entry) = self.conns.get_mut(&conn) else {
            return Err(NO_CONN);
        };
        let rep = make::rep(entry, answer)?;
        entry.local_guid = answer.ca_guid;
        entry.local_qpn = answer.qpn;
        entry.qp.max_rd_atomic = answer.initiator_depth;
        entry.qp.max_dest_rd_atomic = answer.responder_resources;
        let mad = Message::from(rep).emit(entry.tid, answer.ece.options);
        self.call(now, conn, Input::Accept, &mut Given::Message(mad))
    }

    /// Active side, after [`Event::Reply`](crate::Event::Reply): the queue pair is in RTS, the
    /// connection in use.
    ///
    /// # Errors
    /// EINVAL if the connection is over or there was no reply, or for more than 224 bytes of
    /// private data.
    pub fn establish(&mut self, now: Instant, conn: ConnId, data: &[u8]) -> Result<(), Misuse> {
        self.check(conn, Input::Establish)?;
        let private_data = make::private(None, data)?;
        let Some(entry) = self.conns.get(&conn) else {
            return Err(NO_CONN);
        };
        let mad = Message::from(Rtu {
            local_id: conn.0,
            remote_id: entry.remote_id,
            private_data,
        })
        .emit(entry.tid, 0);
        self.call(now, conn, Input::Establish, &mut Given::Message(mad))
    }

    /// Data came on the queue pair of the connection, so the peer is ready even if its message
    /// was lost (rdma_notify).
    ///
    /// # Errors
    /// EINVAL if the connection is over, or was not accepted.
    pub fn comm_established(&mut self, now: Instant, conn: ConnId) -> Result<(), Misuse> {
        self.call(now, conn, Input::CommEstablished, &mut Given::Nothing)
    }

    /// Refuses a request or a reply. `Gone` follows at once, or after time-wait if the request
    /// had been accepted.
    ///
    /// # Errors
    /// EINVAL if there is nothing to refuse, or for more than 148 bytes of private data or 72 of
    /// additional information.
    pub fn reject(
        &mut self,
        now: Instant,
        conn: ConnId,
        reason: RejReason,
        ari: &[u8],
        data: &[u8],
    ) -> Result<(), Misuse> {
        make::private::<148>(None, data)?;
        make::private::<72>(None, ari)?;
        let mut given = Given::Refusal(reason, ari, data);
        self.call(now, conn, Input::Reject, &mut given)
    }

    /// Ends a connection. `Disconnected` follows when the peer agrees or is silent for too long.
    /// Does nothing if it is ending already.
    ///
    /// # Errors
    /// EINVAL if the connection is over or was never in use.
    pub fn disconnect(&mut self, now: Instant, conn: ConnId) -> Result<(), Misuse> {
        self.new_dreq_tid(conn);
        self.call(now, conn, Input::Disconnect, &mut Given::Nothing)
    }

    /// Nobody wants to hear of the connection or question any more: its owner is dead, or has
    /// destroyed its id. The peer is told what its state needs (REJ, DREQ until it is answered,
    /// a refusing SIDR_REP); no event comes any more.
    pub fn forget(&mut self, now: Instant, conn: ConnId) {
        self.new_dreq_tid(conn);
        self.run(now, conn, Input::Forget, &mut Given::Nothing);
    }

    /// Answers a question for a datagram service; `Gone` follows.
    ///
    /// # Errors
    /// EINVAL if there is no such question, or for more than 136 bytes of private data.
    pub fn sidr_reply(
        &mut self,
        now: Instant,
        conn: ConnId,
        answer: &SidrReply,
    ) -> Result<(), Misuse> {
        self.check(conn, Input::SidrReply)?;
        let Some(entry) = self.conns.get(&conn) else {
            return Err(NO_CONN);
        };
        let rep = SidrRep {
            request_id: entry.remote_id,
            status: answer.status,
            vendor_id: answer.ece.vendor_id,
            qpn: answer.qpn,
            service_id: entry.service_id,
            qkey: answer.qkey,
            private_data: make::private(None, &answer.private_data)?,
            ..SidrRep::default()
        };
        let mad = Message::from(rep).emit(entry.tid, answer.ece.options);
        self.call(now, conn, Input::SidrReply, &mut Given::Message(mad))
    }

    /// A DREQ of the passive side begins a transaction of its own.
    pub(crate) fn new_dreq_tid(&mut self, id: ConnId) {
        let tid = self.tid(id);
        if let Some(conn) = self.conns.get_mut(&id)
            && conn.passive
            && conn.state == State::Established
        {
            conn.dreq_tid = tid;
        }
    }

    fn check(&self, id: ConnId, input: Input) -> Result<(), Misuse> {
        let conn = self.conns.get(&id).ok_or(NO_CONN)?;
        step(conn.state, input).map(|_| ()).ok_or(WRONG_STATE)
    }

    fn call(
        &mut self,
        now: Instant,
        id: ConnId,
        input: Input,
        given: &mut Given<'_>,
    ) -> Result<(), Misuse> {
        self.check(id, input)?;
        self.run(now, id, input, given);
        Ok(())
    }
}
