//! Two hosts and queue pairs between them, for scenarios written by hand.

use rocebud_engine::NodeConfig;
use rocebud_fabric::{
    Completed, Fabric, Frame, HostConfig, HostId, IdRule, Rng, Sight, Span, Step, Tap, fill,
};
use rocebud_objects::{
    Access, AsyncEvent, CqId, Instant, Misuse, Payload, PdId, QpCap, QpInit, QpType, RecvWr,
    Remote, SendFlags, SendOp, SendWr, Sge, SgeList, WcStatus,
};
use rocebud_wire::{Bth, Ext, Header, ICRC_LEN, LKey, Opcode, Psn, Qpn, RKey, Reth, Syndrome};

use crate::check::wire::WireChecker;
use crate::setup::{self, ALL_REMOTE, Link, Side};

/// How a pair is built.
#[derive(Clone, Debug)]
pub struct PairConfig {
    /// Attributes of every connection.
    pub link: Link,
    /// Connections.
    pub qps: usize,
    /// First PSN of both sides.
    pub sq_psn: u32,
    /// READs and atomics outstanding, as requester.
    pub max_rd_atomic: u8,
    /// READs and atomics served, as responder.
    pub max_dest_rd_atomic: u8,
    /// Remote access that the queue pairs of host 1 grant.
    pub access: Access,
    /// Send queue.
    pub send_depth: u32,
    /// Bytes of each region.
    pub region: u64,
    /// Entries of each host's completion queue.
    pub cqe: usize,
}

impl Default for PairConfig {
    fn default() -> Self {
        Self {
            link: Link::default(),
            qps: 1,
            sq_psn: 0x00ff_fff0,
            max_rd_atomic: 16,
            max_dest_rd_atomic: 16,
            access: ALL_REMOTE,
            send_depth: 128,
            region: 1 << 16,
            cqe: 1 << 20,
        }
    }
}

/// A frame that was seen to leave.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seen {
    /// When.
    pub at: Instant,
    /// Sender.
    pub from: HostId,
    /// Base header.
    pub bth: Bth,
    /// RETH, if it has one.
    pub reth: Option<Reth>,
    /// AETH's syndrome, if it has one.
    pub syndrome: Option<Syndrome>,
    /// Did not arrive.
    pub lost: bool,
}

/// The wire checker, and a record of what passed.
#[derive(Debug, Default)]
struct Recorder {
    wire: WireChecker,
    seen: Vec<Seen>,
}

impl Tap for Recorder {
    fn sent(&mut self, sight: &Sight<'_>, fate: rocebud_fabric::Verdict) {
        self.wire.sent(sight, fate);
        self.seen.push(Seen {
            at: sight.now,
            from: sight.from,
            bth: sight.packet.bth,
            reth: sight.packet.ext.reth,
            syndrome: sight.packet.ext.aeth.map(|a| a.syndrome),
            lost: fate == rocebud_fabric::Verdict::Drop,
        });
    }
}

/// One host's objects.
#[derive(Clone, Debug)]
pub struct Station {
    /// Where.
    pub host: HostId,
    /// Queue pairs, one for each connection.
    pub qpns: Vec<Qpn>,
    /// Region with all access; content from the seed.
    pub region: Span,
    /// Its key.
    pub key: u32,
    /// Completions in order of arrival.
    pub done: Vec<Completed>,
    /// Events in order of arrival.
    pub events: Vec<AsyncEvent>,
}

/// Two stations and a network.
#[derive(Debug)]
pub struct Pair {
    /// The network.
    pub fabric: Fabric,
    /// Host 0 and host 1.
    pub ends: [Station; 2],
    /// How it was built.
    pub config: PairConfig,
    recorder: Recorder,
}

const PD: PdId = PdId(1);
const CQ: CqId = CqId(1);
/// Steps that a scenario may take.
const STEPS_MAX: u64 = 20_000_000;

impl Pair {
    /// Two hosts, connected and ready to send.
    ///
    /// # Panics
    /// If the engine refuses anything.
    #[must_use]
    pub fn new(config: PairConfig) -> Self {
        let mut rng = Rng::new(0x9a12);
        let mut fabric = Fabric::new(&mut rng, 5_000);
        let ends = [0, 1].map(|n| station(&mut fabric, n, &config));
        let mut pair = Self {
            fabric,
            ends,
            config,
            recorder: Recorder::default(),
        };
        for qp in 0..pair.config.qps {
            pair.connect(qp);
        }
        pair
    }

    fn connect(&mut self, qp: usize) {
        let link = self.config.link;
        let sides = [0, 1].map(|n| Side {
            host: self.ends[n].host,
            qpn: self.ends[n].qpns[qp],
            sq_psn: Psn::new(self.config.sq_psn),
            max_rd_atomic: self.config.max_rd_atomic,
            max_dest_rd_atomic: self.config.max_dest_rd_atomic,
            min_rnr_timer: 1,
        });
        let [a, b] = sides;
        for (side, peer, access) in [(a, b, ALL_REMOTE), (b, a, self.config.access)] {
            must(setup::to_init(
                &mut self.fabric,
                side.host,
                side.qpn,
                access,
            ));
            let start = side.sq_psn;
            self.recorder
                .wire
                .connect(side.qpn, peer.qpn, link.kind, link.mtu, start);
        }
        must(setup::connect(&mut self.fabric, &a, &b, &link));
    }

    /// Runs until nothing is left to happen.
    ///
    /// # Panics
    /// On a violation on the wire, a broken guard, or too many steps.
    pub fn drive(&mut self) {
        self.drive_until(|_| false);
    }

    /// Runs until `stop` says so or nothing is left to happen.
    ///
    /// # Panics
    /// On a violation on the wire, a broken guard, or too many steps.
    pub fn drive_until(&mut self, mut stop: impl FnMut(&Self) -> bool) {
        self.collect();
        while !stop(self) {
            let step = self.fabric.step(&mut self.recorder);
            self.collect();
            let steps = self.fabric.stats().steps;
            assert!(steps < STEPS_MAX, "livelock: {:?}", self.fabric.stats());
            if step == Step::Idle {
                break;
            }
        }
        if let Err(violation) = self.recorder.wire.verdict() {
            panic!("{violation}");
        }
        for (id, host) in self.fabric.hosts() {
            let broken = host.env.memory.broken_guard();
            assert_eq!(broken, None, "guard byte of h{} overwritten", id.0);
        }
    }

    /// Takes completions and events.
    pub fn collect(&mut self) {
        for end in &mut self.ends {
            let env = &mut self.fabric.host_mut(end.host).env;
            while let Some(done) = env.poll_cq(CQ) {
                end.done.push(done);
            }
            end.events.extend(env.events.drain(..));
        }
    }

    /// Frames seen so far.
    #[must_use]
    pub fn seen(&self) -> &[Seen] {
        &self.recorder.seen
    }

    // ---- requests

    /// Posts a send request at queue pair `qp` of side `side`.
    ///
    /// # Errors
    /// What the engine refuses.
    pub fn try_post(
        &mut self,
        side: usize,
        qp: usize,
        wr_id: u64,
        op: SendOp,
        flags: SendFlags,
        payload: Payload,
    ) -> Result<(), Misuse> {
        let now = self.fabric.now();
        let end = &self.ends[side];
        let qpn = end.qpns[qp];
        let wr = SendWr {
            wr_id,
            op,
            flags,
            payload,
            ud: None,
            xrc_srqn: 0,
        };
        let host = self.fabric.host_mut(end.host);
        host.node.post_send(now, qpn, wr, &mut host.env)
    }

    /// Posts a signaled request of side 0, queue pair 0, over `len` bytes at `offset` of its
    /// region.
    ///
    /// # Panics
    /// If the engine refuses it.
    pub fn post(&mut self, wr_id: u64, op: SendOp, flags: SendFlags, offset: u64, len: u32) {
        let payload = self.local(0, offset, len);
        let flags = flags | SendFlags::SIGNALED;
        must(self.try_post(0, 0, wr_id, op, flags, payload));
    }

    /// Posts a receive at queue pair `qp` of side `side`.
    ///
    /// # Panics
    /// If the engine refuses it.
    pub fn post_recv(&mut self, side: usize, qp: usize, wr_id: u64, offset: u64, len: u32) {
        let Payload::Sges(sges) = self.local(side, offset, len) else {
            return;
        };
        let now = self.fabric.now();
        let end = &self.ends[side];
        let qpn = end.qpns[qp];
        let host = self.fabric.host_mut(end.host);
        let wr = RecvWr { wr_id, sges };
        must(host.node.post_recv(now, qpn, wr, &mut host.env));
    }

    /// A list with one piece of a side's region.
    #[must_use]
    pub fn local(&self, side: usize, offset: u64, len: u32) -> Payload {
        let end = &self.ends[side];
        let mut sges = SgeList::new();
        sges.push(Sge {
            addr: end.region.addr + offset,
            length: len,
            lkey: LKey(end.key),
        });
        Payload::Sges(sges)
    }

    /// A place in side 1's region, as side 0 names it.
    #[must_use]
    pub fn remote(&self, offset: u64) -> Remote {
        let end = &self.ends[1];
        Remote {
            addr: end.region.addr + offset,
            rkey: RKey(end.key),
        }
    }

    /// Bytes of a side's region.
    #[must_use]
    pub fn bytes(&self, side: usize, offset: u64, len: u64) -> &[u8] {
        let end = &self.ends[side];
        let memory = &self.fabric.host(end.host).env.memory;
        memory.peek(end.region.addr + offset, len)
    }

    /// Overwrites a word of side 1's region.
    pub fn set_word(&mut self, offset: u64, value: u64) {
        let end = &self.ends[1];
        let memory = &mut self.fabric.host_mut(end.host).env.memory;
        memory
            .poke(end.region.addr + offset, 8)
            .copy_from_slice(&value.to_ne_bytes());
    }

    /// A word of a side's region.
    #[must_use]
    pub fn word(&self, side: usize, offset: u64) -> u64 {
        let mut word = [0; 8];
        word.copy_from_slice(self.bytes(side, offset, 8));
        u64::from_ne_bytes(word)
    }

    /// `wr_id` and status of a side's completions.
    #[must_use]
    pub fn statuses(&self, side: usize) -> Vec<(u64, WcStatus)> {
        let pick = |c: &Completed| (c.wc.wr_id, c.wc.status);
        self.ends[side].done.iter().map(pick).collect()
    }

    /// Lets a packet arrive at side 1, queue pair 0, as if side 0 had sent it.
    ///
    /// # Panics
    /// If the packet does not fit a frame.
    pub fn inject(&mut self, opcode: Opcode, psn: Psn, ack_req: bool, ext: Ext, payload: &[u8]) {
        let (from, to) = (&self.ends[0], &self.ends[1]);
        // The answers are to nothing that side 0's engine asked.
        self.recorder.wire.disconnect(from.qpns[0]);
        let mut bth = Bth::new(opcode, to.qpns[0], psn);
        bth.ack_req = ack_req;
        let header = Header { bth, ext };
        let mut bytes = vec![0; 4096 + 128];
        let at = header.emit(payload.len(), &mut bytes);
        bytes[at..at + payload.len()].copy_from_slice(payload);
        bytes.truncate(header.frame_len(payload.len()));
        assert!(bytes.len() > ICRC_LEN);
        let path = setup::path(&self.fabric, from.host, to.host, &self.config.link);
        let frame = Frame::forge(path, 0xc000, &bytes);
        let to = to.host;
        self.fabric.inject(to, frame);
    }
}

fn station(fabric: &mut Fabric, n: usize, config: &PairConfig) -> Station {
    let [v4, v6] = setup::host_gids(n);
    let host = fabric.add_host(HostConfig {
        v4,
        v6,
        id_rule: IdRule::BatchIndex,
        batch_max: 16,
        byte_ns_per_1024: 80,
        node: NodeConfig {
            ack_timeout_min_ns: 0,
            ..NodeConfig::default()
        },
    });
    let it = fabric.host_mut(host);
    it.env.create_cq(CQ, config.cqe);
    let region = it.env.memory.allocate(config.region, 8);
    fill(n as u64, 0, it.env.memory.poke(region.addr, region.len));
    let access = ALL_REMOTE | Access::LOCAL_WRITE;
    let key = it.env.memory.register(PD, region, region.addr, access);
    let qpns: Vec<Qpn> = (0..config.qps)
        .map(|q| Qpn::new((n as u32 + 1) << 12 | (q as u32 + 0x11)))
        .collect();
    for &qpn in &qpns {
        must(it.node.create_qp(qpn, qp_init(config)));
    }
    Station {
        host,
        qpns,
        region,
        key,
        done: Vec::new(),
        events: Vec::new(),
    }
}

const fn qp_init(config: &PairConfig) -> QpInit {
    QpInit {
        qp_type: QpType::Rc,
        pd: PD,
        send_cq: CQ,
        recv_cq: CQ,
        srq: None,
        xrcd: None,
        cap: QpCap {
            max_send_wr: config.send_depth,
            max_recv_wr: 128,
            max_send_sge: 4,
            max_recv_sge: 4,
            max_inline_data: 256,
        },
        sq_sig_all: false,
    }
}

fn must(done: Result<(), Misuse>) {
    if let Err(why) = done {
        panic!("refused: {why}");
    }
}
