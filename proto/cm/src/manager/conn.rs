//! One connection: what is known of it, and what each act of the table does.

use alloc::boxed::Box;
use alloc::vec::Vec;

use rocebud_objects::Instant;
use rocebud_wire::Qpn;

use super::Key;
use super::out::Out;
use crate::limits::{MRA_CODE_MAX, MRAS_MAX, PATIENCE_NS_MAX, TIME_WAIT_CODE_MAX};
use crate::mad::MAD_LEN;
use crate::msg::{Apr, Drep, Dreq, Message, Mra, Rej, SidrRep};
use crate::reason::{RejReason, sidr_status};
use crate::state::{Act, State};
use crate::timing::{Config, code_ns};
use crate::types::{
    CmQpType, ConnId, Ece, Event, ListenerId, Path, Peer, QpParams, Rejected, Reply, SidrAnswer,
};

#[derive(Debug)]
pub(crate) struct Conn {
    pub(crate) id: ConnId,
    pub(crate) state: State,
    /// Somebody wants to hear of it.
    pub(crate) owned: bool,
    pub(crate) passive: bool,
    pub(crate) path: Path,
    /// Transaction id of the REQ or SIDR_REQ.
    pub(crate) tid: u64,
    /// Of a DREQ of ours.
    pub(crate) dreq_tid: u64,
    /// The peer's communication id (or its question's); 0 = not known yet.
    pub(crate) remote_id: u32,
    pub(crate) remote_guid: u64,
    pub(crate) local_guid: u64,
    pub(crate) local_qpn: Qpn,
    pub(crate) service_id: u64,
    pub(crate) qp_type: CmQpType,
    /// `dest_qpn` and `sq_psn` are the peer's only from its REQ or REP on.
    pub(crate) qp: QpParams,
    /// Active: code, for the `timeout` that follows from the REP.
    pub(crate) packet_life: u8,
    /// The message that is repeated until it is answered, or whenever it is asked for again.
    pub(crate) last: Option<Box<[u8; MAD_LEN]>>,
    /// How often it was sent, and how often it may be.
    pub(crate) sent: u8,
    pub(crate) sends: u8,
    /// How often the peer has asked for patience about it, and when it was first sent.
    pub(crate) mras: u8,
    pub(crate) began: Instant,
    pub(crate) deadline: Option<Instant>,
    /// Where it takes a place in the backlog.
    pub(crate) place: Option<ListenerId>,
    /// It counts among those that its peer has asked for and is not ready for.
    pub(crate) half_open: bool,
    /// A newer connection has taken over the peer's queue pair.
    pub(crate) overtaken: bool,
}

/// What an input brings with it.
#[derive(Debug)]
pub(crate) enum Given<'a> {
    Nothing,
    /// The message that a call has made.
    Message(Box<[u8; MAD_LEN]>),
    /// How the application refuses.
    Refusal(RejReason, &'a [u8], &'a [u8]),
    Rej(&'a Rej),
    Reply(Box<Reply>),
    SidrRep(&'a SidrRep, Ece),
    /// Service timeout of an MRA.
    MraCode(u8),
    /// Transaction id of what is answered.
    Tid(u64),
}

impl Conn {
    /// The peer's address.
    pub(crate) const fn peer(&self) -> Peer {
        Peer::of(&self.path.ends)
    }

    /// How the peer names the connection.
    pub(crate) const fn remote_key(&self) -> Key<u32> {
        (self.peer(), self.remote_guid, self.remote_id)
    }

    /// The peer's queue pair.
    pub(crate) const fn qpn_key(&self) -> Key<u32> {
        (self.peer(), self.remote_guid, self.qp.dest_qpn.value())
    }

    /// Does one thing.
    pub(crate) fn act(
        &mut self,
        now: Instant,
        act: Act,
        given: &mut Given<'_>,
        config: &Config,
        out: &mut Out,
    ) {
        match act {
            Act::Send | Act::SendOnce => {
                if let Given::Message(mad) = core::mem::replace(given, Given::Nothing) {
                    self.send(now, act == Act::Send, mad, config, out);
                }
            }
            Act::Again => {
                if let Some(mad) = &self.last {
                    out.answer(self.path, mad.clone());
                }
            }
            Act::SendMra => out.answer(self.path, self.mra(config.service_timeout)),
            Act::SendRej => {
                let (reason, ari, data) = match *given {
                    Given::Refusal(reason, ari, data) => (reason, ari, data),
                    _ => (RejReason::CONSUMER, &[][..], &[][..]),
                };
                out.send(self.path, self.rej(reason, ari, data));
            }
            // A busy listener has no id for what it put off.
            Act::SendRejTimeout if self.remote_id == 0 => {}
            Act::SendRejTimeout => {
                let guid = self.local_guid.to_be_bytes();
                out.send(self.path, self.rej(RejReason::TIMEOUT, &guid, &[]));
            }
            Act::SendRejStale => {
                out.answer(self.path, self.rej(RejReason::STALE_CONN, &[], &[]));
            }
            Act::SendDreq => {
                let mad = self.dreq().emit(self.dreq_tid, 0);
                self.send(now, true, mad, config, out);
            }
            Act::SendDrep | Act::SendApr | Act::SendSidrReject => self.answer(act, given, out),
            Act::Wait => {
                if let Given::MraCode(code) = *given {
                    self.wait(now, code);
                }
            }
            _ => self.raise(act, given, out),
        }
    }

    /// Sends a message, and remembers it.
    fn send(
        &mut self,
        now: Instant,
        repeat: bool,
        mad: Box<[u8; MAD_LEN]>,
        config: &Config,
        out: &mut Out,
    ) {
        self.last = Some(mad.clone());
        self.sent = 1;
        self.mras = 0;
        self.began = now;
        self.deadline = repeat.then(|| now + config.interval_ns(1, self.sends));
        out.send(self.path, mad);
    }

    /// The peer is alive and asks for patience, so the tries begin anew after it.
    fn wait(&mut self, now: Instant, code: u8) {
        if self.mras < MRAS_MAX && now - self.began < PATIENCE_NS_MAX {
            let ns = code_ns(code.min(MRA_CODE_MAX)) + code_ns(self.qp.timeout.min(22));
            self.deadline = Some(now + ns);
            self.mras += 1;
            self.sent = 1;
        }
    }

    fn answer(&self, act: Act, given: &Given<'_>, out: &mut Out) {
        let tid = match *given {
            Given::Tid(tid) => tid,
            _ => self.tid,
        };
        let mad = match act {
            Act::SendDrep => Message::from(Drep {
                local_id: self.id.0,
                remote_id: self.remote_id,
                ..Drep::default()
            })
            .emit(tid, 0),
            Act::SendApr => Message::from(Apr {
                local_id: self.id.0,
                remote_id: self.remote_id,
                status: 2,
                ..Apr::default()
            })
            .emit(tid, 0),
            _ => Message::from(SidrRep {
                request_id: self.remote_id,
                status: sidr_status::REJECT,
                service_id: self.service_id,
                ..SidrRep::default()
            })
            .emit(tid, 0),
        };
        out.answer(self.path, mad);
    }

    fn mra(&self, service_timeout: u8) -> Box<[u8; MAD_LEN]> {
        Message::from(Mra {
            local_id: self.id.0,
            remote_id: self.remote_id,
            message: u8::from(!self.passive),
            service_timeout,
            ..Mra::default()
        })
        .emit(self.tid, 0)
    }

    fn rej(&self, reason: RejReason, ari: &[u8], data: &[u8]) -> Box<[u8; MAD_LEN]> {
        let message = match self.state {
            State::ReqRcvd | State::MraReqSent | State::TimeWait => 0,
            State::RepRcvd | State::MraRepSent => 1,
            _ => 2,
        };
        rej(self.id.0, self.remote_id, message, reason, ari, data).emit(self.tid, 0)
    }

    fn dreq(&self) -> Message {
        Message::from(Dreq {
            local_id: self.id.0,
            remote_id: self.remote_id,
            remote_qpn: self.qp.dest_qpn,
            ..Dreq::default()
        })
    }

    /// Tells the owner, if there is one.
    fn raise(&self, act: Act, given: &mut Given<'_>, out: &mut Out) {
        if !self.owned {
            return;
        }
        let conn = self.id;
        let event = match act {
            Act::RaiseReply => match core::mem::replace(given, Given::Nothing) {
                Given::Reply(reply) => Event::Reply(reply),
                _ => return,
            },
            Act::RaiseEstablished => Event::Established { conn },
            Act::RaiseUnreachable => Event::Unreachable { conn },
            Act::RaiseDisconnected => Event::Disconnected {
                conn,
                timed_out: false,
            },
            Act::RaiseDisconnectTimeout => Event::Disconnected {
                conn,
                timed_out: true,
            },
            Act::RaiseRejected => match *given {
                Given::Rej(rej) => Event::Rejected(Box::new(rejected(conn, rej))),
                _ => return,
            },
            Act::RaiseStale => Event::Rejected(Box::new(Rejected {
                conn,
                reason: RejReason::STALE_CONN,
                ari: Vec::new(),
                private_data: alloc::vec![0; 148],
            })),
            Act::RaiseSidrReply => match *given {
                Given::SidrRep(rep, ece) => Event::SidrReply(Box::new(sidr_answer(conn, rep, ece))),
                _ => return,
            },
            Act::Leave => Event::Gone {
                conn,
                time_wait: self.state == State::TimeWait,
            },
            _ => return,
        };
        out.raise(event);
    }

    /// What comes with a new state.
    pub(crate) fn enter(&mut self, now: Instant, to: State) {
        if self.state == to {
            return;
        }
        self.state = to;
        match to {
            // What is being repeated has just been set.
            State::RepSent | State::DreqSent | State::MraReqRcvd | State::MraRepRcvd => {}
            State::TimeWait => {
                self.last = None;
                let code = self.qp.timeout.min(TIME_WAIT_CODE_MAX);
                self.deadline = Some(now + code_ns(code));
            }
            State::Established => {
                self.deadline = None;
                if self.passive {
                    self.last = None;
                }
            }
            _ => {
                self.deadline = None;
                self.last = None;
            }
        }
    }
}

/// A REJ. What does not fit is cut.
pub(crate) fn rej(
    local_id: u32,
    remote_id: u32,
    message: u8,
    reason: RejReason,
    ari: &[u8],
    data: &[u8],
) -> Message {
    let mut rej = Rej {
        local_id,
        remote_id,
        message,
        reason: reason.code(),
        ..Rej::default()
    };
    fill(&mut rej.ari, ari);
    rej.ari_len = ari.len().min(rej.ari.len()) as u8;
    fill(&mut rej.private_data, data);
    Message::from(rej)
}

/// Copies what fits to the front.
pub(crate) fn fill(to: &mut [u8], from: &[u8]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to = *from;
    }
}

fn rejected(conn: ConnId, rej: &Rej) -> Rejected {
    Rejected {
        conn,
        reason: RejReason(rej.reason),
        ari: rej.ari.iter().copied().take(rej.ari_len.into()).collect(),
        private_data: rej.private_data.to_vec(),
    }
}

fn sidr_answer(conn: ConnId, rep: &SidrRep, ece: Ece) -> SidrAnswer {
    SidrAnswer {
        conn,
        status: rep.status,
        qpn: rep.qpn,
        qkey: rep.qkey,
        ece,
        private_data: rep.private_data.to_vec(),
    }
}
