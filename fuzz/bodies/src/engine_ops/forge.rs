//! Frames of liars, and of a network that delivers what is long gone; regions that vanish.

use rocebud_fabric::{Frame, HostId};
use rocebud_objects::QpType;
use rocebud_sim::setup::{self, Link};
use rocebud_wire::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Deth, Ext, Feth, Header, ICRC_LEN, Opcode, PKey, QKey, Qpn,
    RKey, Reth, Syndrome,
};

use super::lifecycle::{QKEY, group};
use super::world::{TARGET_BYTES, World};
use crate::input::Input;

/// Opcodes a liar likes best: those of the three services, then everything.
const OPCODES: [Opcode; 30] = [
    Opcode::RC_SEND_FIRST,
    Opcode::RC_SEND_MIDDLE,
    Opcode::RC_SEND_LAST,
    Opcode::RC_SEND_LAST_IMM,
    Opcode::RC_SEND_ONLY,
    Opcode::RC_WRITE_FIRST,
    Opcode::RC_WRITE_MIDDLE,
    Opcode::RC_WRITE_LAST,
    Opcode::RC_WRITE_LAST_IMM,
    Opcode::RC_WRITE_ONLY,
    Opcode::RC_READ_REQUEST,
    Opcode::RC_READ_RESPONSE_FIRST,
    Opcode::RC_READ_RESPONSE_MIDDLE,
    Opcode::RC_READ_RESPONSE_LAST,
    Opcode::RC_READ_RESPONSE_ONLY,
    Opcode::RC_ACKNOWLEDGE,
    Opcode::RC_ACKNOWLEDGE,
    Opcode::RC_ACKNOWLEDGE,
    Opcode::RC_ATOMIC_ACKNOWLEDGE,
    Opcode::RC_CMP_SWAP,
    Opcode::RC_FETCH_ADD,
    Opcode::RC_SEND_ONLY_INV,
    Opcode::RC_FLUSH,
    Opcode::RC_ATOMIC_WRITE,
    Opcode::UC_SEND_FIRST,
    Opcode::UC_SEND_LAST,
    Opcode::UC_WRITE_FIRST,
    Opcode::UC_WRITE_ONLY,
    Opcode::UD_SEND_ONLY,
    Opcode::CNP,
];

impl World {
    /// A well-sealed frame that no engine sent, as if it came from the queue pair's peer.
    pub(super) fn forge(&mut self, input: &mut Input<'_>) {
        let at = self.any(input);
        let which = input.byte();
        let opcode = match usize::from(which) {
            n if n < 240 => OPCODES[n % OPCODES.len()],
            _ => Opcode(input.byte()),
        };
        let (host, mut dest) = (self.qps[at].host, self.qps[at].qpn);
        let flags = input.byte();
        let mut bth = Bth::new(opcode, dest, self.forged_psn(input, at, opcode));
        bth.ack_req = flags & 1 != 0;
        bth.solicited = flags & 2 != 0;
        let peer = self.qps[at]
            .peer
            .map_or(HostId(1 - host.0), |(p, _)| self.qps[p].host);
        let link = Link {
            v6: self.qps[at].path.sgid.v4().is_none() && self.qps[at].peer.is_some(),
            ..Link::default()
        };
        let mut path = setup::path(&self.fabric, peer, host, &link);
        match flags >> 4 {
            0xf => bth.pkey = PKey(input.half()),
            0xe => path.sgid = rocebud_wire::Gid::from_v4([10, 9, 9, 9]),
            0xd => {
                dest = Qpn::MULTICAST;
                path.dgid = group();
            }
            _ => {}
        }
        bth.dest_qp = dest;
        let ext = self.forged_ext(input, at);
        let payload = input.pick(&[self.qps[at].pmtu, 0, 1, 8, 16, 100, 256, 1024, 4096, 5000]);
        let bytes = sealed(&Header { bth, ext }, payload as usize, input);
        self.tell(|| format!("forge {bth:?} {ext:?} {payload} B for {}", self.qps[at].qpn));
        self.lie_to_whom_it_reaches(at, dest, host);
        self.fabric.inject(host, Frame::forge(path, 0xc000, &bytes));
    }

    fn lie_to_whom_it_reaches(&mut self, at: usize, dest: Qpn, host: HostId) {
        if dest != Qpn::MULTICAST {
            return self.lie_to(at);
        }
        self.stations[host.0].group_lied = true;
        for one in 0..self.qps.len() {
            if self.qps[one].host == host && self.qps[one].groups != 0 {
                self.lie_to(one);
            }
        }
    }

    /// Near what the queue pair expects: there it hurts.
    fn forged_psn(&self, input: &mut Input<'_>, at: usize, opcode: Opcode) -> rocebud_wire::Psn {
        let node = &self.fabric.host(self.qps[at].host).node;
        let Ok((attr, _)) = node.query_qp(self.qps[at].qpn) else {
            return rocebud_wire::Psn::new(input.word());
        };
        let answers = opcode.info().is_some_and(|i| i.operation.is_response());
        let distance = input.byte();
        let (base, distance) = if answers {
            // The next to be sent: what is outstanding lies before it.
            (attr.sq_psn, distance.wrapping_sub(250))
        } else {
            (attr.rq_psn, distance)
        };
        match distance {
            0..=127 => base.add(u32::from(distance) & 7),
            128..=239 => base.sub(u32::from(distance) & 31),
            _ => base.add(u32::from(distance) << 16),
        }
    }

    fn forged_ext(&mut self, input: &mut Input<'_>, at: usize) -> Ext {
        let qp = &self.qps[at];
        let station = &self.stations[qp.host.0];
        let key = match input.byte() {
            n if n < 160 => qp.target_key,
            n => station.keys[usize::from(n) % station.keys.len()],
        };
        let offset = u64::from(input.half()) % (TARGET_BYTES + 64);
        let va = qp.target.span.addr + if offset & 7 < 6 { offset & !7 } else { offset };
        let dma_len = input.pick(&[qp.pmtu, 0, 8, 1, 2 * qp.pmtu, 600, 6000, 1 << 31, u32::MAX]);
        let shape = input.byte();
        Ext {
            rdeth: None,
            deth: Some(Deth {
                qkey: if shape & 1 == 0 { QKEY } else { QKey(1) },
                src_qp: Qpn::new(shape.into()),
            }),
            xrceth: None,
            feth: Some(Feth {
                sel: shape & 3,
                plt: shape >> 4,
            }),
            reth: Some(Reth {
                va,
                rkey: RKey(key),
                dma_len,
            }),
            atomic_eth: Some(AtomicEth {
                va,
                rkey: RKey(key),
                swap_add: shape.into(),
                compare: 0,
            }),
            aeth: Some(Aeth {
                syndrome: Syndrome::decode(input.pick(&[
                    0x1f, 0x00, 0x60, 0x61, 0x62, 0x63, 0x64, 0x21, 0x20, 0x3f, 0x41, 0xff,
                ])),
                msn: shape.into(),
            }),
            atomic_ack_eth: Some(AtomicAckEth { orig: 7 }),
            imm_dt: Some([shape; 4]),
            ieth: Some(RKey(key)),
        }
    }

    /// Something that was sent before arrives once more, much too late.
    pub(super) fn send_again(&mut self, input: &mut Input<'_>) {
        let count = self.watch.recorded.len();
        if count == 0 {
            return;
        }
        let old = self.watch.recorded[input.below(count)].clone();
        let alive = |(qpn, life): (u32, u32)| {
            let named = |qp: &super::books::Qp| qp.qpn.value() == qpn;
            let at = self.qps.iter().position(named)?;
            Some((at, self.qps[at].alive && self.qps[at].life == life))
        };
        let (src, dst) = (alive(old.src), alive(old.dst));
        self.tell(|| {
            format!(
                "again {:?} {:?} -> {:?}",
                old.frame.bytes.first(),
                old.src,
                old.dst
            )
        });
        for (at, same) in [src, dst].into_iter().flatten() {
            self.qps[at].disordered = true;
            // A late answer costs a retry, a late request an answer.
            self.qps[at].harmed = true;
            self.qps[at].rnr_retry = self.qps[at].rnr_retry.min(6);
            let both = src.is_some_and(|s| s.1) && dst.is_some_and(|d| d.1);
            if !(same && both) && self.qps[at].kind != QpType::Ud {
                self.lie_to(at);
            }
        }
        let mut frame = old.frame;
        frame.pristine = None;
        self.fabric.inject(old.to, frame);
    }

    /// A region goes, or its pages do.
    pub(super) fn regions(&mut self, input: &mut Input<'_>) {
        let host = input.below(2);
        let keys = &self.stations[host].keys;
        let key = keys[input.below(keys.len())];
        let memory = &mut self.fabric.host_mut(HostId(host)).env.memory;
        match input.below(4) {
            0 => {
                memory.deregister(key);
            }
            1 | 2 => memory.set_unmapped(key, true),
            _ => memory.set_unmapped(key, false),
        }
        self.tell(|| format!("region {key:#x} of h{host} changes"));
        self.all_troubled = true;
    }
}

/// The frame, or (rarely) one whose lengths do not add up.
fn sealed(header: &Header, payload: usize, input: &mut Input<'_>) -> Vec<u8> {
    let mut bytes = vec![0x5a; header.frame_len(payload)];
    header.emit(payload, &mut bytes);
    if input.rarely(12) {
        let n = bytes.len();
        bytes.truncate(n - usize::from(input.byte()) % (n - ICRC_LEN));
        bytes.resize(bytes.len().max(16), 0);
    }
    bytes
}
