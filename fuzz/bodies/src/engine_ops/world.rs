//! Two hosts, their queue pairs, and the calls that drive them.

use rocebud_engine::NodeConfig;
use rocebud_fabric::{Fabric, HostConfig, HostId, IdRule, Rng, Span, Step, fill, mix};
use rocebud_objects::{
    Access, CqId, Instant, PdId, QpState, QpType, SrqAttr, SrqId, SrqInit, XrcSrq, XrcdId,
};
use rocebud_sim::setup;

use super::books::{Qp, Station};
use super::net::{Faults, Watch};
use crate::input::Input;

pub(super) const PD: PdId = PdId(1);
/// A second domain, whose keys fit no queue pair.
pub(super) const OTHER_PD: PdId = PdId(2);
pub(super) const SRQ: SrqId = SrqId(1);
/// The shared receive queue of extended reliable connections, its domain, and where it completes.
pub(super) const XRC_SRQ: SrqId = SrqId(2);
pub(super) const DOMAIN: XrcdId = XrcdId(1);
pub(super) const XRC_CQ: CqId = CqId(1);
/// Completion queues of a host: two that never overrun, and one that does.
pub(super) const CQS: u32 = 3;
pub(super) const TINY_CQ: CqId = CqId(2);
const CQE: usize = 1 << 14;
const TINY_CQE: usize = 6;

/// Queue pairs that a program may have alive or dead.
pub(super) const QPS_MAX: usize = 12;
/// Steps of the network after which a program is cut short.
const STEPS_MAX: u64 = 20_000;
/// Bytes of memory after which a program is cut short.
const ARENA_MAX: u64 = 1 << 20;
/// Length of a target region.
pub(super) const TARGET_BYTES: u64 = 2600;

#[derive(Debug)]
pub(super) struct World {
    pub(super) fabric: Fabric,
    pub(super) watch: Watch,
    pub(super) faults: Faults,
    pub(super) stations: [Station; 2],
    pub(super) qps: Vec<Qp>,
    pub(super) next_wr: u64,
    pub(super) arena: u64,
    pub(super) verbose: bool,
    /// Errors without a reason are not judged any more: a region or a whole host is gone.
    pub(super) all_troubled: bool,
    /// Some host stands still until then.
    pub(super) frozen_until: Instant,
    /// Token of the next alarm.
    pub(super) alarms: u64,
}

impl World {
    pub(super) fn new(input: &mut Input<'_>, verbose: bool) -> Self {
        let latency = input.pick(&[1_000, 5_000, 50_000]);
        let mut fabric = Fabric::new(&mut Rng::new(1), latency);
        fabric.set_verbose(verbose);
        let faults = Faults::default();
        fabric.add_rule(faults.rule());
        let stations = [0, 1].map(|n| station(&mut fabric, n, input));
        let mut world = Self {
            fabric,
            watch: Watch::default(),
            faults,
            stations,
            qps: Vec::new(),
            next_wr: 1,
            arena: 0,
            verbose,
            all_troubled: false,
            frozen_until: Instant(0),
            alarms: 0,
        };
        world.first_queue_pairs(input);
        world
    }

    /// Pairs to begin with, so that the shortest program has traffic.
    fn first_queue_pairs(&mut self, input: &mut Input<'_>) {
        let kinds = input.pick(&[
            [QpType::Rc, QpType::Rc],
            [QpType::Rc, QpType::Ud],
            [QpType::Rc, QpType::Uc],
            [QpType::Uc, QpType::Ud],
        ]);
        for kind in kinds {
            for host in 0..2 {
                self.create_qp(input, HostId(host), kind);
            }
            let at = self.qps.len() - 2;
            match kind {
                QpType::Ud => (at..at + 2).for_each(|i| self.bring_up_datagrams(input, i)),
                _ => self.connect(input, at, at + 1),
            }
        }
    }

    /// The program has had enough of everything.
    pub(super) fn exhausted(&self) -> bool {
        self.fabric.stats().steps > STEPS_MAX || self.arena > ARENA_MAX
    }

    pub(super) fn tell(&self, what: impl FnOnce() -> String) {
        if self.verbose {
            let now = self.fabric.now().0;
            println!("{:>5}.{:06} {}", now / 1_000_000, now % 1_000_000, what());
        }
    }

    // ---- memory

    /// Fresh bytes of a host, all 0.
    pub(super) fn room(&mut self, host: HostId, len: u64, align: u64) -> Span {
        self.arena += len + 64;
        let memory = &mut self.fabric.host_mut(host).env.memory;
        memory.allocate(len, align)
    }

    /// Fresh bytes of a host, filled from a stream.
    pub(super) fn fresh(&mut self, host: HostId, len: u64, align: u64, stream: u64) -> Span {
        let span = self.room(host, len, align);
        let memory = &mut self.fabric.host_mut(host).env.memory;
        fill(stream, 0, memory.poke(span.addr, len));
        span
    }

    pub(super) fn peek(&self, host: HostId, span: Span) -> &[u8] {
        self.fabric.host(host).env.memory.peek(span.addr, span.len)
    }

    /// The first `len` bytes of a list of pieces.
    pub(super) fn gather(&self, host: HostId, pieces: &[Span], len: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        for piece in pieces {
            let n = piece.len.min(len - bytes.len() as u64);
            bytes.extend_from_slice(self.peek(host, Span { len: n, ..*piece }));
        }
        bytes
    }

    // ---- driving

    /// Makes `n` steps of the network.
    pub(super) fn steps(&mut self, n: u64) {
        for _ in 0..n {
            if self.step() == Step::Idle {
                break;
            }
        }
    }

    /// Lets `ns` of virtual time pass, or as much as the steps allow.
    pub(super) fn pass(&mut self, ns: u64) {
        self.alarms += 1;
        let token = self.alarms;
        self.fabric.alarm(ns, token);
        for _ in 0..2_000 {
            if self.step() == Step::Alarm(token) {
                break;
            }
        }
    }

    pub(super) fn step(&mut self) -> Step {
        let step = self.fabric.step(&mut self.watch);
        self.watch.verdict();
        self.note_faults();
        self.collect(false);
        step
    }

    /// Takes what is in the queues; the tiny one only when asked.
    pub(super) fn collect(&mut self, tiny: bool) {
        for host in [HostId(0), HostId(1)] {
            for cq in 0..CQS {
                let cq = CqId(cq);
                if cq == TINY_CQ && !tiny {
                    continue;
                }
                while let Some(done) = self.fabric.host_mut(host).env.poll_cq(cq) {
                    self.completion(host, cq, &done);
                }
            }
            while let Some(event) = self.fabric.host_mut(host).env.events.pop_front() {
                self.event(host, event);
            }
        }
    }

    pub(super) fn state(&self, at: usize) -> Option<QpState> {
        let qp = &self.qps[at];
        self.fabric.host(qp.host).node.qp_state(qp.qpn)
    }

    /// The peer of a queue pair if both may be believed.
    pub(super) fn honest_peer(&self, at: usize) -> Option<usize> {
        let (peer, life) = self.qps[at].peer?;
        let (me, he) = (&self.qps[at], &self.qps[peer]);
        let mutual = he.peer == Some((at, me.life)) && he.life == life;
        (me.honest && he.honest && mutual).then_some(peer)
    }

    /// Somebody lied to a queue pair: nothing that it does or gets can be judged by its peer.
    pub(super) fn lie_to(&mut self, at: usize) {
        let peer = self.qps[at].peer.map(|(peer, _)| peer);
        for one in [Some(at), peer].into_iter().flatten() {
            self.qps[one].honest = false;
            self.qps[one].trouble = true;
            self.watch.forget(self.qps[one].qpn);
        }
    }

    /// From now on errors have a reason, here and at the peer.
    pub(super) fn trouble(&mut self, at: usize) {
        self.qps[at].trouble = true;
        if let Some((peer, _)) = self.qps[at].peer {
            self.qps[peer].trouble = true;
        }
    }

    /// Guard bytes and what nobody may write.
    pub(super) fn check_memory(&self) {
        for (id, host) in self.fabric.hosts() {
            let broken = host.env.memory.broken_guard();
            assert_eq!(broken, None, "h{}: a guard byte was overwritten", id.0);
        }
        for station in &self.stations {
            let mut expected = vec![0; station.readonly.len as usize];
            fill(READONLY_STREAM, 0, &mut expected);
            let actual = self.peek(station.host, station.readonly);
            assert_eq!(
                actual, expected,
                "a region that may only be read was written"
            );
            for (addr, bytes) in &station.sources {
                let span = Span {
                    addr: *addr,
                    len: bytes.len() as u64,
                };
                assert_eq!(
                    self.peek(station.host, span),
                    bytes,
                    "the source of a request was written"
                );
            }
        }
    }
}

const READONLY_STREAM: u64 = 0x0ead;

/// Content of what a request sends.
pub(super) const fn stream(wr_id: u64) -> u64 {
    mix(wr_id)
}

fn station(fabric: &mut Fabric, index: usize, input: &mut Input<'_>) -> Station {
    let [v4, v6] = setup::host_gids(index);
    let node = NodeConfig {
        window_packets: input.pick(&[128, 1, 2, 7]),
        peer_window_bytes: input.pick(&[106_496, 1, 3000]),
        read_chunk_packets: input.pick(&[16, 1, 3]),
        read_window_bytes: input.pick(&[106_496, 1, 3000]),
        ack_every_packets: input.pick(&[32, 1, 3]),
        ack_request_every_packets: input.pick(&[16, 1, 4]),
        quantum_packets: input.pick(&[64, 1, 3]),
        ack_timeout_min_ns: 0,
        park_bytes_max: input.pick(&[1 << 20, 0, 2000]),
        park_ns: input.pick(&[1_000_000_000, 10_000]),
        max_rd_atomic: 128,
    };
    let host = fabric.add_host(HostConfig {
        v4,
        v6,
        id_rule: input.pick(&[IdRule::BatchIndex, IdRule::Rising]),
        batch_max: input.pick(&[16, 1, 3]),
        byte_ns_per_1024: 80,
        node,
    });
    let Host { readonly, key } = furnish(fabric, host);
    Station {
        host,
        next_qpn: ((index as u32 + 1) << 12) + 17,
        shared: std::collections::VecDeque::new(),
        extended: std::collections::VecDeque::new(),
        limit: 0,
        overran: false,
        small_receives: false,
        group_lied: false,
        readonly,
        readonly_key: key,
        keys: vec![key],
        sources: Vec::new(),
    }
}

struct Host {
    readonly: Span,
    key: u32,
}

/// Completion queues, the shared receive queue, and a region that may only be read.
fn furnish(fabric: &mut Fabric, host: HostId) -> Host {
    let host = fabric.host_mut(host);
    for cq in 0..CQS {
        let cqe = if CqId(cq) == TINY_CQ { TINY_CQE } else { CQE };
        host.env.create_cq(CqId(cq), cqe);
    }
    let attr = SrqAttr {
        max_wr: 64,
        max_sge: 3,
        srq_limit: 0,
    };
    let init = SrqInit {
        pd: PD,
        attr,
        xrc: None,
    };
    let made = host.node.create_srq(SRQ, init);
    made.expect("a shared receive queue");
    let init = SrqInit {
        xrc: Some(XrcSrq {
            xrcd: DOMAIN,
            cq: XRC_CQ,
        }),
        ..init
    };
    let made = host.node.create_srq(XRC_SRQ, init);
    made.expect("a shared receive queue of XRC");
    let memory = &mut host.env.memory;
    let readonly = memory.allocate(TARGET_BYTES, 8);
    fill(READONLY_STREAM, 0, memory.poke(readonly.addr, readonly.len));
    let key = memory.register(PD, readonly, readonly.addr, Access::REMOTE_READ);
    Host { readonly, key }
}
