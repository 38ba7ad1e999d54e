//! What goes back to the requester, in PSN order.
//!
//! ACKs wait here until somebody calls `poll_transmit`; consecutive ones melt into one. That is
//! all there is to coalescing: after a batch of packets one ACK leaves.

use alloc::collections::VecDeque;

use rocebud_objects::{Counter, EventKind, NoteKind, PdId};
use rocebud_wire::{Aeth, AtomicAckEth, Header, NakCode, Opcode, Psn, RKey, Syndrome};

use super::Qp;
use super::xrc::of_class;
use crate::cx::Cx;
use crate::env::{Env, RemoteFault, Scope};
use crate::node::Transmit;
use crate::reasons::Reason;

/// The rest of a READ that is being answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ReadJob {
    pub(crate) va: u64,
    pub(crate) rkey: RKey,
    /// Bytes to go.
    pub(crate) left: u32,
    /// Whose keys it names.
    pub(crate) pd: PdId,
    /// Nothing of it was sent yet.
    pub(crate) first: bool,
    /// The answer to a repeated request: failures are silent.
    pub(crate) again: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Body {
    /// Everything up to the PSN is done.
    Ack,
    Nak(Syndrome),
    Read(ReadJob),
    Atomic {
        orig: u64,
    },
    /// Answer to ATOMIC WRITE and FLUSH.
    Done,
}

/// One answer; a READ's PSN and body move on as it is sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Answer {
    pub(crate) psn: Psn,
    pub(crate) msn: u32,
    pub(crate) body: Body,
    /// To a repeated request: it does not count against what the peer may have outstanding.
    pub(crate) repeated: bool,
}

impl Answer {
    const fn is_own(&self) -> bool {
        matches!(self.body, Body::Read(_) | Body::Atomic { .. } | Body::Done)
    }
}

#[derive(Debug, Default)]
pub(crate) struct Answers {
    queue: VecDeque<Answer>,
}

impl Answers {
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        self.queue.clear();
    }

    /// New READs and atomics not fully answered yet. Repeated ones do not count: the peer sends
    /// them beside the new ones that their first answers have made room for.
    pub(crate) fn pending(&self) -> usize {
        let new = |a: &&Answer| a.is_own() && !a.repeated;
        self.queue.iter().filter(new).count()
    }

    /// An ACK for everything up to `psn`, merged with its neighbours.
    pub(crate) fn ack(&mut self, psn: Psn, msn: u32) {
        let at = self
            .queue
            .iter()
            .rposition(|a| !a.psn.after(psn))
            .map_or(0, |i| i + 1);
        if self
            .queue
            .get(at)
            .is_some_and(|next| next.body == Body::Ack)
        {
            return;
        }
        if let Some(before) = at.checked_sub(1).and_then(|i| self.queue.get_mut(i))
            && before.body == Body::Ack
        {
            before.psn = psn;
            before.msn = msn;
            return;
        }
        self.queue.insert(
            at,
            Answer {
                psn,
                msn,
                body: Body::Ack,
                repeated: false,
            },
        );
    }

    /// An answer to a new request: last.
    pub(crate) fn push(&mut self, answer: Answer) {
        self.queue.push_back(answer);
    }

    /// As [`Answers::push`], unless the last one says the same.
    pub(crate) fn push_once(&mut self, answer: Answer) {
        if self.queue.back() != Some(&answer) {
            self.queue.push_back(answer);
        }
    }

    /// An answer to a repeated request: in its place, instead of what was still to be sent of
    /// `first..first + packets`.
    pub(crate) fn replace(&mut self, first: Psn, packets: u32, answer: Answer) {
        self.queue.retain(|a| {
            let offset = a.psn.diff(first);
            !(a.is_own() && offset >= 0 && offset.cast_unsigned() < packets)
        });
        let at = self.queue.iter().position(|a| a.psn.after(answer.psn));
        self.queue.insert(at.unwrap_or(self.queue.len()), answer);
    }
}

impl Qp {
    /// The next answer is a plain acknowledgement.
    pub(crate) fn acknowledges(&self) -> bool {
        let next = self.resp.answers.queue.front();
        next.is_some_and(|answer| matches!(answer.body, Body::Ack))
    }

    /// The next answer packet.
    pub(crate) fn next_answer<E: Env>(
        &mut self,
        buf: &mut [u8],
        cx: &mut Cx<'_, E>,
    ) -> Option<Transmit> {
        loop {
            let answer = *self.resp.answers.queue.front()?;
            let aeth = |syndrome| {
                Some(Aeth {
                    syndrome,
                    msn: answer.msn,
                })
            };
            let mut header = Header::new(self.bth(Opcode::RC_ACKNOWLEDGE, answer.psn));
            header.ext.aeth = aeth(Syndrome::ACK);
            match answer.body {
                Body::Ack => {}
                Body::Nak(syndrome) => header.ext.aeth = aeth(syndrome),
                Body::Done => header.bth.opcode = Opcode::RC_READ_RESPONSE_ONLY,
                Body::Atomic { orig } => {
                    header.bth.opcode = Opcode::RC_ATOMIC_ACKNOWLEDGE;
                    header.ext.atomic_ack_eth = Some(AtomicAckEth { orig });
                }
                Body::Read(job) => match self.read_response(header, job, buf, cx) {
                    Some(transmit) => return Some(transmit),
                    None => continue,
                },
            }
            self.resp.answers.queue.pop_front();
            header.bth.opcode = of_class(header.bth.opcode, self.init.qp_type);
            header.emit(0, buf);
            return Some(self.transmit(header.frame_len(0), false));
        }
    }

    /// One packet of a READ. `None`: the region is gone; the queue was changed.
    fn read_response<E: Env>(
        &mut self,
        mut header: Header,
        job: ReadJob,
        buf: &mut [u8],
        cx: &mut Cx<'_, E>,
    ) -> Option<Transmit> {
        let n = (job.left as usize).min(self.pmtu);
        let last = job.left as usize <= self.pmtu;
        header.bth.opcode = match (job.first, last) {
            (true, true) => Opcode::RC_READ_RESPONSE_ONLY,
            (true, false) => Opcode::RC_READ_RESPONSE_FIRST,
            (false, false) => Opcode::RC_READ_RESPONSE_MIDDLE,
            (false, true) => Opcode::RC_READ_RESPONSE_LAST,
        };
        let scope = Scope {
            pd: job.pd,
            qpn: self.qpn,
        };
        header.bth.opcode = of_class(header.bth.opcode, self.init.qp_type);
        let at = header.emit(n, buf);
        let read = match buf.get_mut(at..at + n) {
            Some(room) if n != 0 => cx.env.read_remote(scope, job.rkey, job.va, room),
            Some(_) => Ok(()),
            None => Err(RemoteFault::Page),
        };
        if let Err(fault) = read {
            self.read_failed(header.bth.psn, fault, job.again, cx);
            return None;
        }
        cx.env.count(Counter::SentBytes, n as u64);
        if last {
            self.resp.answers.queue.pop_front();
        } else if let Some(front) = self.resp.answers.queue.front_mut() {
            front.psn = front.psn.add(1);
            front.body = Body::Read(ReadJob {
                va: job.va.wrapping_add(n as u64),
                left: job.left - u32::try_from(n).unwrap_or(job.left),
                first: false,
                ..job
            });
        }
        Some(self.transmit(header.frame_len(n), false))
    }

    /// The region vanished under a READ: a NAK takes the place of the response, and the
    /// connection ends. A repeated READ is given up in silence.
    fn read_failed<E: Env>(
        &mut self,
        psn: Psn,
        fault: RemoteFault,
        again: bool,
        cx: &mut Cx<'_, E>,
    ) {
        if again {
            self.resp.answers.queue.pop_front();
            return;
        }
        let code = match fault {
            RemoteFault::Page => NakCode::RemoteOperationalError,
            _ => NakCode::RemoteAccessError,
        };
        let msn = self
            .resp
            .answers
            .queue
            .front()
            .map_or(self.resp.msn, |a| a.msn);
        self.resp.answers.clear();
        self.resp.answers.push(Answer {
            psn,
            msn,
            body: Body::Nak(Syndrome::Nak(code)),
            repeated: false,
        });
        cx.count(Counter::RespRemoteAccessErrors);
        self.note(cx, NoteKind::FatalNakSent, psn, code as u32);
        self.raise(EventKind::QpAccessErr, cx);
        self.enter_error(Reason::FlushedByPeer, true, cx);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const JOB: ReadJob = ReadJob {
        va: 0,
        rkey: RKey(1),
        left: 9,
        pd: PdId(1),
        first: true,
        again: false,
    };

    fn psns(answers: &Answers) -> alloc::vec::Vec<(u32, bool)> {
        answers
            .queue
            .iter()
            .map(|a| (a.psn.value(), a.is_own()))
            .collect()
    }

    #[test]
    fn acks_melt_into_one_but_never_past_a_read() {
        let mut answers = Answers::default();
        answers.ack(Psn::new(0xff_ffff), 1);
        answers.ack(Psn::new(0), 2);
        answers.push(Answer {
            psn: Psn::new(1),
            msn: 3,
            body: Body::Read(JOB),
            repeated: false,
        });
        answers.ack(Psn::new(4), 4);
        answers.ack(Psn::new(6), 5);
        assert_eq!(psns(&answers), [(0, false), (1, true), (6, false)]);
        answers.ack(Psn::new(0xff_ffff), 5);
        assert_eq!(answers.queue.len(), 3, "covered by the ACK behind it");
    }

    #[test]
    fn a_repeated_read_takes_the_place_of_its_rest() {
        let mut answers = Answers::default();
        answers.push(Answer {
            psn: Psn::new(12),
            msn: 1,
            body: Body::Read(JOB),
            repeated: false,
        });
        answers.push(Answer {
            psn: Psn::new(20),
            msn: 2,
            body: Body::Read(JOB),
            repeated: false,
        });
        answers.ack(Psn::new(25), 3);
        let again = Answer {
            psn: Psn::new(10),
            msn: 1,
            body: Body::Read(JOB),
            repeated: true,
        };
        answers.replace(Psn::new(10), 8, again);
        assert_eq!(psns(&answers), [(10, true), (20, true), (25, false)]);
    }
}
