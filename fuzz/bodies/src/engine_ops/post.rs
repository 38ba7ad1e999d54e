//! Posting: to the engine, and into the books of both sides.

use rocebud_fabric::{HostId, Span};
use rocebud_objects::{
    Misuse, Payload, QpState, QpType, RecvWr, SendFlags, SendOp, SendWr, UdAddress, WcOpcode,
};
use rocebud_sim::setup::{self, Link};
use rocebud_wire::{QKey, Qpn};

use super::books::{Action, Message, Receive, Sent};
use super::lifecycle::QKEY;
use super::requests::{Draft, cut, sges};
use super::world::{PD, SRQ, World, XRC_SRQ};
use crate::input::Input;

/// Receive requests have this bit in their `wr_id`.
pub(super) const RECEIVE: u64 = 1 << 63;
/// Room in front of a datagram.
pub(super) const GRH_BYTES: u32 = 40;

impl World {
    /// Posts some requests in a row to one queue pair, one by one or all or none.
    pub(super) fn post_sends(&mut self, input: &mut Input<'_>) {
        let at = self.any(input);
        let shape = input.byte();
        if shape >= 0xe0 {
            return self.post_all_or_none(input, at, shape & 3);
        }
        for _ in 0..=shape & 3 {
            let (draft, wr, to) = self.request(input, at);
            self.post_draft(at, draft, wr, to);
        }
    }

    fn request(&mut self, input: &mut Input<'_>, at: usize) -> (Draft, SendWr, Option<usize>) {
        let wr_id = self.next_wr;
        self.next_wr += 1;
        let draft = self.draft(input, at, wr_id);
        let shape = input.byte();
        let mut flags = SendFlags::empty();
        flags.set(SendFlags::SIGNALED, shape & 3 != 3);
        flags.set(SendFlags::FENCE, shape & 0x0c == 0x0c);
        flags.set(SendFlags::SOLICITED, shape & 0x10 != 0);
        flags.set(
            SendFlags::INLINE,
            matches!(draft.payload, Payload::Inline(_)) != (shape > 0xfa),
        );
        let (ud, to) = self.address(input, at);
        let wr = SendWr {
            wr_id,
            op: draft.op,
            flags,
            payload: draft.payload.clone(),
            ud,
            xrc_srqn: match self.qps[at].kind {
                QpType::XrcSend => input.pick(&[XRC_SRQ.0, XRC_SRQ.0, XRC_SRQ.0, SRQ.0, 77]),
                _ => 0,
            },
        };
        (draft, wr, to)
    }

    fn post_all_or_none(&mut self, input: &mut Input<'_>, at: usize, more: u8) {
        let mut drafts: Vec<_> = (0..=more).map(|_| self.request(input, at)).collect();
        // Drafts do not know of each other: what two atomics find is left open.
        let atomic = |d: &&(Draft, _, _)| matches!(d.0.action, Action::Atomic { .. });
        let open = drafts.iter().filter(atomic).count() > 1;
        if open {
            drafts.iter_mut().for_each(|d| d.0.forget_atomic());
        }
        self.collect(self.qps[at].uses_tiny());
        let flushed = matches!(self.state(at), Some(QpState::Err | QpState::Sqe));
        let mut wrs: Vec<SendWr> = drafts.iter().map(|(_, wr, _)| wr.clone()).collect();
        let before = self.qps[at].sends.len();
        for (draft, wr, _) in &drafts {
            self.expect(at, draft, wr);
        }
        let (host, qpn, now) = (self.qps[at].host, self.qps[at].qpn, self.fabric.now());
        let node = self.fabric.host_mut(host);
        let done = node.node.post_sends(now, qpn, &mut wrs, &mut node.env);
        self.tell(|| format!("post {qpn} {} at once -> {done:?}", drafts.len()));
        if done.is_err() {
            assert_eq!(wrs.len(), drafts.len(), "refused, and some were taken");
            self.qps[at].sends.truncate(before);
        } else {
            assert!(wrs.is_empty());
            for (draft, wr, to) in drafts {
                self.qps[at].seq += 1;
                if !flushed {
                    self.enter(at, &draft, &wr, to);
                }
            }
            if open {
                self.forget_words(at);
            }
        }
        self.collect(self.qps[at].uses_tiny());
    }

    /// Where a datagram goes, and to which queue pair if it is to arrive.
    fn address(&mut self, input: &mut Input<'_>, at: usize) -> (Option<UdAddress>, Option<usize>) {
        if self.qps[at].kind != QpType::Ud {
            // An address that nobody looks at.
            return (None, None);
        }
        let to = self.any(input);
        let shape = input.byte();
        let link = Link {
            v6: shape & 1 != 0,
            ..Link::default()
        };
        let path = setup::path(&self.fabric, self.qps[at].host, self.qps[to].host, &link);
        let right = shape & 0x0e != 0x0e;
        let qkey = match shape & 0xc0 {
            0xc0 => QKey(1 << 31),
            _ if right => QKEY,
            _ => QKey(7),
        };
        let remote_qpn = if shape & 0x30 == 0x30 {
            Qpn::MULTICAST
        } else {
            self.qps[to].qpn
        };
        let address = UdAddress {
            path,
            remote_qpn,
            remote_qkey: qkey,
        };
        let arrives = self.qps[to].kind == QpType::Ud && remote_qpn != Qpn::MULTICAST;
        ((shape != 0xff).then_some(address), arrives.then_some(to))
    }

    /// Enters a request into the send queue's book.
    fn expect(&mut self, at: usize, draft: &Draft, wr: &SendWr) {
        let qp = &mut self.qps[at];
        let ahead = qp.sends.back().map_or(qp.seq, |s| (s.seq + 1).max(qp.seq));
        qp.sends.push_back(Sent {
            wr_id: wr.wr_id,
            seq: ahead,
            signaled: qp.sig_all || wr.flags.contains(SendFlags::SIGNALED),
            fence: wr.flags.contains(SendFlags::FENCE) || matches!(wr.op, SendOp::LocalInv { .. }),
            opcode: draft.opcode,
            byte_len: draft.len,
            action: draft.action,
            pieces: draft.pieces.clone(),
            must_fail: draft.must_fail,
        });
    }

    fn post_draft(&mut self, at: usize, draft: Draft, wr: SendWr, to: Option<usize>) {
        self.collect(self.qps[at].uses_tiny());
        let flushed = matches!(self.state(at), Some(QpState::Err | QpState::Sqe));
        self.expect(at, &draft, &wr);
        let (host, qpn, now) = (self.qps[at].host, self.qps[at].qpn, self.fabric.now());
        let node = self.fabric.host_mut(host);
        let done = node.node.post_send(now, qpn, wr.clone(), &mut node.env);
        self.tell(|| {
            let SendWr {
                wr_id, op, flags, ..
            } = &wr;
            format!(
                "post {qpn} {wr_id:#x} {op:?} {} B {flags:?} -> {done:?}",
                draft.len
            )
        });
        match done {
            Ok(()) => {
                self.qps[at].seq += 1;
                if !flushed {
                    self.enter(at, &draft, &wr, to);
                }
            }
            Err(why) => {
                self.qps[at].sends.pop_back();
                self.check_refusal(at, why);
            }
        }
        self.collect(self.qps[at].uses_tiny());
    }

    fn check_refusal(&self, at: usize, why: Misuse) {
        let qp = &self.qps[at];
        let full = qp.sends.len() >= qp.cap.max_send_wr as usize;
        assert!(
            full || why.errno.0 == 22,
            "{}: {why} with {} of {} outstanding",
            qp.qpn,
            qp.sends.len(),
            qp.cap.max_send_wr
        );
    }

    /// What the peer is to see, if both sides may be believed.
    fn enter(&mut self, at: usize, draft: &Draft, wr: &SendWr, to: Option<usize>) {
        let (wr_id, op) = (wr.wr_id, wr.op);
        let solicited = wr.flags.contains(SendFlags::SOLICITED);
        let message = message_of(draft, wr_id, op, solicited);
        if self.qps[at].kind == QpType::Ud {
            if let (Some(to), Some(message)) = (to, message) {
                self.qps[to].inbox.push_back(message);
            }
            return;
        }
        if draft.may_fail || draft.must_fail {
            self.trouble(at);
        }
        let Some(peer) = self.honest_peer(at) else {
            return;
        };
        let reliable = self.qps[at].kind == QpType::Rc;
        if reliable && self.qps[at].doomed {
            return;
        }
        if reliable && draft.must_fail {
            self.qps[at].doomed = true;
            self.qps[peer].values = None;
        }
        if let Some(message) = message {
            self.qps[peer].inbox.push_back(message);
        }
        let seq = self.qps[at].seq - 1;
        if let Action::Write { offset, len, .. } = draft.action {
            let content = super::world::stream(wr_id);
            self.qps[peer].target.post(seq, offset, len, content);
        }
        let words = self.qps[peer].values.as_mut();
        if let (Some((word, value)), Some(words)) =
            (draft.atomic.filter(|_| !draft.must_fail), words)
        {
            words[word] = value;
        }
    }

    // ---- receives

    pub(super) fn post_receives(&mut self, input: &mut Input<'_>) {
        let at = self.any(input);
        let shape = input.byte();
        for _ in 0..=shape & 7 {
            self.post_receive(input, at, shape >> 4);
        }
    }

    /// `shape` 0 to 11: roomy; 12: small; 13: bad key; 14: too many pieces; 15: nothing at all.
    fn post_receive(&mut self, input: &mut Input<'_>, at: usize, shape: u8) {
        let room = match shape {
            12 => 300,
            15 => 0,
            _ => 6000 + u64::from(GRH_BYTES),
        };
        let host = self.qps[at].host;
        let span = self.room(host, room, 1);
        let cuts = if shape == 14 {
            3
        } else {
            usize::from(shape & 1)
        };
        let pieces = cut(input, span, cuts);
        let memory = &mut self.fabric.host_mut(host).env.memory;
        let key = if shape == 13 {
            memory.unused_key()
        } else {
            memory.register(PD, span, span.addr, rocebud_objects::Access::LOCAL_WRITE)
        };
        self.hand_receive(at, pieces, key, shape >= 12);
    }

    pub(super) fn hand_receive(&mut self, at: usize, pieces: Vec<Span>, key: u32, odd: bool) {
        let wr_id = RECEIVE | self.next_wr;
        self.next_wr += 1;
        let wr = RecvWr {
            wr_id,
            sges: sges(&pieces, key),
        };
        let receive = Receive { wr_id, pieces };
        let (host, qpn, shared) = (self.qps[at].host, self.qps[at].qpn, self.qps[at].shared);
        let now = self.fabric.now();
        let extended = self.qps[at].kind == QpType::XrcRecv;
        let done = if extended {
            self.fabric.host_mut(host).node.post_srq_recv(XRC_SRQ, wr)
        } else if shared {
            self.fabric.host_mut(host).node.post_srq_recv(SRQ, wr)
        } else {
            self.qps[at].receives.push_back(receive.clone());
            let host = self.fabric.host_mut(host);
            host.node.post_recv(now, qpn, wr, &mut host.env)
        };
        self.tell(|| format!("receive {qpn} {wr_id:#x} odd {odd} -> {done:?}"));
        if extended {
            if done.is_ok() {
                self.stations[host.0].extended.push_back(receive);
            }
            return;
        }
        match (done, shared) {
            (Ok(()), true) => self.stations[host.0].shared.push_back(receive),
            (Ok(()), false) => {}
            (Err(_), true) => return,
            (Err(_), false) => {
                self.qps[at].receives.pop_back();
                return;
            }
        }
        if odd {
            self.small_receives(host, at, shared);
        }
        self.collect(self.qps[at].uses_tiny());
    }

    /// Whoever takes this receive may fail with it, and his peer too.
    fn small_receives(&mut self, host: HostId, at: usize, shared: bool) {
        self.stations[host.0].small_receives |= shared;
        for one in 0..self.qps.len() {
            let takes = if shared {
                self.qps[one].host == host && self.qps[one].shared
            } else {
                one == at
            };
            if takes {
                self.qps[one].small_receives = true;
                self.trouble(one);
            }
        }
    }
}

fn message_of(draft: &Draft, wr_id: u64, op: SendOp, solicited: bool) -> Option<Message> {
    let write = match draft.action {
        Action::Message => matches!(op, SendOp::WriteImm { .. }),
        Action::Write { message: true, .. } => true,
        _ => return None,
    };
    Some(Message {
        wr_id,
        len: draft.len,
        imm: match op {
            SendOp::SendImm { imm } | SendOp::WriteImm { imm, .. } => Some(imm),
            _ => None,
        },
        inv: match op {
            SendOp::SendInv { rkey } => Some(rkey.0),
            _ => None,
        },
        solicited,
        write,
        must_fail: draft.must_fail,
        arrived: false,
    })
}

/// Opcode of a request's completion says what it was; receives have two.
pub(super) const fn receive_opcode(message: &Message) -> WcOpcode {
    if message.write {
        WcOpcode::RecvRdmaWithImm
    } else {
        WcOpcode::Recv
    }
}
