//! What peers say.

use alloc::boxed::Box;

use rocebud_objects::Instant;
use rocebud_wire::{Mtu, Psn};

use super::conn::{Given, rej};
use super::out::kind;
use super::{Manager, make};
use crate::ip::{self, IpCm};
use crate::limits::{BUSY_CODE, EVENTS_MAX, HALF_OPEN_MAX};
use crate::msg::{Drep, Dreq, Message, Mra, Rej, Rep, Req, SidrRep, SidrReq};
use crate::reason::{RejReason, sidr_status};
use crate::state::{Input, State};
use crate::types::{CmQpType, ConnId, Ends, Event, ListenerId, Path, Peer, SidrAsk};

/// A message's header as far as answers need it.
#[derive(Clone, Copy)]
struct From {
    ends: Ends,
    tid: u64,
    attr_mod: u32,
}

impl From {
    const fn peer(&self) -> Peer {
        Peer::of(&self.ends)
    }

    /// Back to where it came from.
    const fn path(&self) -> Path {
        Path {
            ends: self.ends,
            flow_label: 0,
            traffic_class: 0,
            hop_limit: 64,
            sl: 0,
        }
    }
}

/// What a REQ turns out to be.
struct Asked {
    listener: ListenerId,
    qp_type: CmQpType,
    mtu: Mtu,
    ip: Option<IpCm>,
}

impl Manager {
    /// Takes in a datagram that came to queue pair 1: the payload of a UD SEND. What is none of
    /// this class is counted and nothing else.
    pub fn handle_mad(&mut self, now: Instant, ends: Ends, payload: &[u8]) {
        let Ok((header, message)) = Message::parse(payload) else {
            self.out.counters.malformed += 1;
            return;
        };
        if let Some(count) = self.out.counters.rx.get_mut(kind(header.attr_id)) {
            *count += 1;
        }
        let from = From {
            ends,
            tid: header.tid,
            attr_mod: header.attr_mod,
        };
        let tid = Given::Tid(from.tid);
        match &message {
            Message::Req(m) => self.on_req(now, from, m),
            Message::Rep(m) => self.on_rep(now, from, m),
            Message::Rej(m) => self.on_rej(now, from, m),
            Message::Dreq(m) => self.on_dreq(now, from, m),
            Message::SidrReq(m) => self.on_sidr_req(now, from, m),
            Message::SidrRep(m) => self.on_sidr_rep(now, from, m),
            Message::Mra(m) => {
                let input = match m.message {
                    0 => Input::MraReq,
                    1 => Input::MraRep,
                    _ => return self.out.counters.out_of_place += 1,
                };
                self.note_remote_id(from, m.remote_id, m.local_id);
                let given = Given::MraCode(m.service_timeout);
                self.on_pair(now, from, (m.remote_id, m.local_id), input, given);
            }
            Message::Rtu(m) => {
                self.on_pair(now, from, (m.remote_id, m.local_id), Input::Rtu, tid);
            }
            Message::Drep(m) => {
                self.on_pair(now, from, (m.remote_id, m.local_id), Input::Drep, tid);
            }
            Message::Lap(m) => {
                self.on_pair(now, from, (m.remote_id, m.local_id), Input::Lap, tid);
            }
            Message::Apr(_) => self.out.counters.out_of_place += 1,
        }
    }

    /// Our connection of this id, if the message comes from its peer.
    fn of_peer(&mut self, from: From, local_id: u32) -> Option<ConnId> {
        let id = ConnId(local_id);
        let Some(conn) = self.conns.get(&id) else {
            self.out.counters.unknown_id += 1;
            return None;
        };
        if conn.peer() != from.peer() {
            self.out.counters.stranger += 1;
            return None;
        }
        Some(id)
    }

    /// A message about the connection that both sides' ids name.
    fn on_pair(
        &mut self,
        now: Instant,
        from: From,
        (ours, theirs): (u32, u32),
        input: Input,
        mut given: Given<'_>,
    ) {
        let Some(id) = self.of_peer(from, ours) else {
            return;
        };
        if self.conns.get(&id).is_none_or(|c| c.remote_id != theirs) {
            self.out.counters.unknown_id += 1;
        } else if !self.run(now, id, input, &mut given) {
            self.out.counters.out_of_place += 1;
        }
    }

    /// An MRA is the first to say what the peer calls the connection.
    fn note_remote_id(&mut self, from: From, ours: u32, theirs: u32) {
        if let Some(conn) = self.conns.get_mut(&ConnId(ours))
            && matches!(conn.state, State::ReqSent | State::MraReqRcvd)
            && conn.peer() == from.peer()
        {
            conn.remote_id = theirs;
        }
    }

    fn on_req(&mut self, now: Instant, from: From, req: &Req) {
        let key = (from.peer(), req.local_ca_guid, req.local_id);
        if let Some(&id) = self.by_remote.get(&key) {
            self.out.counters.duplicate += 1;
            self.run(now, id, Input::Req, &mut Given::Nothing);
            return;
        }
        let asked = match self.check_req(now, from, req) {
            Ok(asked) => asked,
            Err(Some((reason, ari))) => {
                let rej = rej(0, req.local_id, 0, reason, &ari, &[]);
                return self.out.answer(from.path(), rej.emit(from.tid, 0));
            }
            Err(None) => return self.put_off(now, from, req),
        };
        let id = self.free_id();
        let mut path = make::way_back(from.ends, &req.primary);
        path.hop_limit = path.hop_limit.max(1);
        let blank = make::blank(id, State::ReqRcvd, path, from.tid);
        let psn = Psn::new((self.random)());
        let mut conn = make::asked(blank, psn, req, asked.qp_type, asked.mtu);
        conn.place = Some(asked.listener);
        if let Some(request) = make::request(&conn, req, asked.ip, from.attr_mod) {
            self.insert(conn);
            self.out.raise(Event::Request(Box::new(request)));
        }
    }

    /// Asks a peer to come again, without keeping anything. (Linux is silent, and so looks dead.)
    fn put_off(&mut self, now: Instant, from: From, req: &Req) {
        if !self.put_offs.take(now) {
            self.out.counters.answers_dropped += 1;
            return;
        }
        let mra = Message::from(Mra {
            remote_id: req.local_id,
            service_timeout: BUSY_CODE,
            ..Mra::default()
        });
        self.out.answer(from.path(), mra.emit(from.tid, 0));
    }

    /// Whether a REQ is welcome; else what to answer, if anything.
    fn check_req(
        &mut self,
        now: Instant,
        from: From,
        req: &Req,
    ) -> Result<Asked, Option<(RejReason, [u8; 1])>> {
        let no = |reason| Err(Some((reason, [0])));
        let qpn = (from.peer(), req.local_ca_guid, req.local_qpn.value());
        if let Some(&old) = self.by_qpn.get(&qpn) {
            self.out.counters.stale += 1;
            self.new_dreq_tid(old);
            self.run(now, old, Input::Stale, &mut Given::Nothing);
            return no(RejReason::STALE_CONN);
        }
        if !self.listeners.offered(req.service_id) {
            self.out.counters.no_listener += 1;
            return no(RejReason::INVALID_SERVICE_ID);
        }
        let Some(qp_type) = make::kind(req) else {
            self.out.counters.bad_request += 1;
            return no(RejReason::INVALID_TRANSPORT_TYPE);
        };
        let Some(mtu) = Mtu::from_verbs(req.mtu.into()) else {
            self.out.counters.bad_request += 1;
            return Err(Some((RejReason::INVALID_MTU, [Mtu::M1024 as u8])));
        };
        let Some((listener, ip)) = self.who(from.ends, req.service_id, &req.private_data) else {
            return no(RejReason::CONSUMER);
        };
        if !self.make_room(now) {
            self.out.counters.no_resources += 1;
            return no(RejReason::NO_RESOURCES);
        }
        if self.half_open.get(&from.peer()) >= Some(&HALF_OPEN_MAX) {
            self.out.counters.half_open_full += 1;
            return Err(None);
        }
        if !self.place(from, listener) {
            return Err(None);
        }
        Ok(Asked {
            listener,
            qp_type,
            mtu,
            ip,
        })
    }

    /// A place in the backlog.
    fn place(&mut self, from: From, listener: ListenerId) -> bool {
        let free = self.out.events_waiting() < EVENTS_MAX
            && self.listeners.take_place(listener, from.peer());
        self.out.counters.backlog_full += u64::from(!free);
        free
    }

    /// Who serves a request, by its service id and the addresses that it names.
    fn who(
        &mut self,
        ends: Ends,
        service_id: u64,
        data: &[u8],
    ) -> Option<(ListenerId, Option<IpCm>)> {
        let ip = if ip::is_ip_service(service_id) {
            let named = IpCm::parse(data).ok();
            let named = named.filter(|ip| ip.gids() == (ends.remote, ends.local));
            let Some(ip) = named else {
                self.out.counters.bad_address += 1;
                return None;
            };
            Some(ip)
        } else {
            None
        };
        let found = self.listeners.find(service_id, ends.local, ends.port);
        if found.is_none() {
            self.out.counters.bad_address += 1;
        }
        Some((found?, ip))
    }

    fn on_rep(&mut self, now: Instant, from: From, rep: &Rep) {
        let Some(id) = self.of_peer(from, rep.remote_id) else {
            // Linux is silent, and its peer asks for a minute. This tells it at once.
            if !self.conns.contains_key(&ConnId(rep.remote_id)) {
                let reason = RejReason::INVALID_COMM_ID;
                let rej = rej(0, rep.local_id, 1, reason, &[], &[]);
                self.out.answer(from.path(), rej.emit(from.tid, 0));
            }
            return;
        };
        let Some(conn) = self.conns.get_mut(&id) else {
            return;
        };
        if conn.passive {
            self.out.counters.out_of_place += 1;
            return;
        }
        if !matches!(conn.state, State::ReqSent | State::MraReqRcvd) {
            self.out.counters.duplicate += 1;
            let pair = (rep.remote_id, rep.local_id);
            return self.on_pair(now, from, pair, Input::Rep, Given::Nothing);
        }
        let qpn = make::rep_qpn(conn, rep).value();
        let key = (from.peer(), rep.local_ca_guid, qpn);
        if let Some(&old) = self.by_qpn.get(&key) {
            self.out.counters.stale += 1;
            self.new_dreq_tid(old);
            self.run(now, old, Input::Stale, &mut Given::Nothing);
            let rej = rej(id.0, rep.local_id, 1, RejReason::STALE_CONN, &[], &[]);
            return self.out.answer(from.path(), rej.emit(from.tid, 0));
        }
        make::take_reply(conn, rep);
        let reply = make::reply(conn, rep, from.attr_mod);
        self.by_qpn.insert(key, id);
        self.run(now, id, Input::Rep, &mut Given::Reply(reply));
    }

    fn on_rej(&mut self, now: Instant, from: From, rej: &Rej) {
        let Some(id) = self.rejected_conn(from, rej) else {
            return;
        };
        let input = if rej.reason == RejReason::STALE_CONN.code() {
            Input::RejStale
        } else {
            Input::Rej
        };
        if !self.run(now, id, input, &mut Given::Rej(rej)) {
            self.out.counters.out_of_place += 1;
        }
    }

    /// Which connection a REJ is about.
    fn rejected_conn(&mut self, from: From, rej: &Rej) -> Option<ConnId> {
        // A peer that never got an answer knows no id of ours, but its own and its device.
        if rej.remote_id == 0 {
            let guid = rej.ari.first_chunk::<8>().copied().unwrap_or_default();
            let key = (from.peer(), u64::from_be_bytes(guid), rej.local_id);
            let timed_out = rej.reason == RejReason::TIMEOUT.code() && rej.ari_len >= 8;
            let found = self.by_remote.get(&key).filter(|_| timed_out).copied();
            self.out.counters.unknown_id += u64::from(found.is_none());
            return found;
        }
        let id = self.of_peer(from, rej.remote_id)?;
        let conn = self.conns.get(&id)?;
        // One that kept no state for our REQ has no id, or puts something else there.
        let unnamed = matches!(conn.state, State::ReqSent | State::MraReqRcvd) && rej.message == 0;
        if !unnamed && rej.local_id != conn.remote_id && rej.local_id != 0 {
            self.out.counters.unknown_id += 1;
            return None;
        }
        Some(id)
    }

    fn on_dreq(&mut self, now: Instant, from: From, dreq: &Dreq) {
        let conn = self.conns.get(&ConnId(dreq.remote_id));
        let Some(conn) = conn.filter(|c| c.remote_id == dreq.local_id) else {
            // We have forgotten it, and the peer may do so too.
            self.out.counters.unknown_id += 1;
            let drep = Message::from(Drep {
                local_id: dreq.remote_id,
                remote_id: dreq.local_id,
                ..Drep::default()
            });
            return self.out.answer(from.path(), drep.emit(from.tid, 0));
        };
        let (id, qpn) = (conn.id, conn.local_qpn);
        if self.of_peer(from, dreq.remote_id).is_none() {
            return;
        }
        let known = qpn == dreq.remote_qpn;
        if !known || !self.run(now, id, Input::Dreq, &mut Given::Tid(from.tid)) {
            self.out.counters.out_of_place += 1;
        }
    }

    fn on_sidr_req(&mut self, now: Instant, from: From, req: &SidrReq) {
        if self.questions.contains_key(&(from.peer(), req.request_id)) {
            self.out.counters.duplicate += 1;
            return;
        }
        if !self.listeners.offered(req.service_id) {
            self.out.counters.no_listener += 1;
            return self.refuse_question(from, req, sidr_status::UNSUPPORTED);
        }
        let Some((listener, ip)) = self.who(from.ends, req.service_id, &req.private_data) else {
            return self.refuse_question(from, req, sidr_status::REJECT);
        };
        if !self.make_room(now) {
            self.out.counters.no_resources += 1;
            return self.refuse_question(from, req, sidr_status::REJECT);
        }
        if !self.place(from, listener) {
            return;
        }
        let id = self.free_id();
        let mut conn = make::blank(id, State::SidrReqRcvd, from.path(), from.tid);
        conn.passive = true;
        conn.remote_id = req.request_id;
        conn.service_id = req.service_id;
        conn.place = Some(listener);
        let ask = SidrAsk {
            conn: id,
            listener,
            path: conn.path,
            service_id: req.service_id,
            ip,
            pkey: req.pkey,
            private_data: make::after_header(ip.as_ref(), &req.private_data),
        };
        self.insert(conn);
        self.out.raise(Event::SidrRequest(Box::new(ask)));
    }

    fn refuse_question(&mut self, from: From, req: &SidrReq, status: u8) {
        let rep = Message::from(SidrRep {
            request_id: req.request_id,
            status,
            service_id: req.service_id,
            ..SidrRep::default()
        });
        self.out.answer(from.path(), rep.emit(from.tid, 0));
    }

    fn on_sidr_rep(&mut self, now: Instant, from: From, rep: &SidrRep) {
        let Some(id) = self.of_peer(from, rep.request_id) else {
            return;
        };
        let ece = make::ece(rep.vendor_id, from.attr_mod);
        if !self.run(now, id, Input::SidrRep, &mut Given::SidrRep(rep, ece)) {
            self.out.counters.out_of_place += 1;
        }
    }
}
