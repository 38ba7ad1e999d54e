//! A run: hosts with production engines, applications that post random programs, checkers.

mod alarm;
mod completion;
mod finish;
mod link;
mod pool;
mod program;
mod request;
mod ring;
mod weather;
mod window;

use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use rocebud_engine::NodeConfig;
use rocebud_fabric::{Chaos, Fabric, HostConfig, HostId, Rng, Span, Stats, Step, mix};
use rocebud_objects::{
    Access, CqId, Instant, PdId, QpCap, QpInit, QpState, QpType, SrqAttr, SrqId, SrqInit, WcStatus,
    XrcSrq, XrcdId,
};
use rocebud_wire::{Psn, QKey, Qpn};

use crate::check::atomics::WordLedger;
use crate::check::bytes::{LocalModel, TargetModel};
use crate::check::receives::Message;
use crate::check::sends::SendLedger;
use crate::check::wire::WireChecker;
use crate::plan::{EndPlan, Incident, Options, Plan};
use crate::setup::{self, ALL_REMOTE, Side};
use crate::violation::{Checker, Verdict, Violation};
use alarm::Alarm;
use link::LinkState;
use pool::{Pool, PoolInit, SPARE};
use ring::Ring;
use window::Lent;
pub use window::Shown;

/// Steps after which a run counts as a livelock.
const STEPS_MAX: u64 = 5_000_000;
/// Virtual time in which something must be posted or completed, or everything be quiet. The
/// longest wait of a sound run is for the last of seven retries, some seconds.
const QUIET_NS_MAX: u64 = 60_000_000_000;
/// Guard bytes are looked at so often.
const CANARY_STEPS: u64 = 256;
/// Completion queues of each host.
const CQS: u32 = 2;
/// Entries of each: more than ever are unpolled.
const CQE: usize = 1 << 16;

/// A queue pair and the application that uses it.
#[derive(Debug)]
pub(crate) struct End {
    pub(crate) plan: EndPlan,
    pub(crate) host: HostId,
    pub(crate) kind: QpType,
    pub(crate) qpn: Qpn,
    pub(crate) link: Option<usize>,
    pub(crate) peer: usize,
    pub(crate) pool: usize,
    pub(crate) cqs: [CqId; 2],
    pub(crate) sends: SendLedger,
    /// Messages under way to this end, and whether they have arrived (unreliable ones stay).
    pub(crate) inbox: VecDeque<(Message, bool)>,
    pub(crate) ring: Ring,
    pub(crate) local: LocalModel,
    pub(crate) local_key: u32,
    pub(crate) target: TargetModel,
    pub(crate) target_key: u32,
    pub(crate) readonly_key: u32,
    pub(crate) qkey: QKey,
    pub(crate) rng: Rng,
    pub(crate) posted: u32,
    pub(crate) seq: u64,
    pub(crate) unsignaled: u32,
    /// Receives may be posted.
    pub(crate) up: bool,
    /// The queue pair exists.
    pub(crate) alive: bool,
    /// Connected anew so often.
    pub(crate) life: u64,
    /// A request was posted that must fail: nothing behind it is ever executed.
    pub(crate) doomed: bool,
    pub(crate) draining: bool,
    /// SQ_DRAINED may still come although the queue pair is gone.
    pub(crate) late_drained: bool,
    pub(crate) receive_flushed: bool,
    pub(crate) receive_error: Option<WcStatus>,
    pub(crate) last_wqe: u32,
    pub(crate) incidents: VecDeque<(u32, Incident)>,
    /// Keys of sinks that LOCAL_INV may take.
    pub(crate) sink_keys: VecDeque<u32>,
    /// Memory windows.
    pub(crate) windows: Vec<Lent>,
    /// Last value seen of a shared word.
    pub(crate) last_word: u64,
}

/// A word that many queue pairs work on.
#[derive(Debug)]
pub(crate) struct Word {
    pub(crate) host: HostId,
    pub(crate) addr: u64,
    pub(crate) key: u32,
    pub(crate) ledger: WordLedger,
}

/// What a run did.
#[derive(Clone, Copy, Debug, Default)]
pub struct Report {
    /// Of the network.
    pub stats: Stats,
    /// Send requests that succeeded.
    pub done: u64,
    /// Send requests that ended in an error, all of them expected.
    pub failed: u64,
    /// Messages received.
    pub received: u64,
    /// Virtual nanoseconds.
    pub elapsed_ns: u64,
}

/// A run in progress.
#[derive(Debug)]
pub struct World {
    pub(crate) plan: Plan,
    pub(crate) options: Options,
    pub(crate) fabric: Fabric,
    pub(crate) wire: WireChecker,
    pub(crate) rng: Rng,
    pub(crate) ends: Vec<End>,
    pub(crate) pools: Vec<Pool>,
    pub(crate) links: Vec<LinkState>,
    pub(crate) words: Vec<Word>,
    pub(crate) by_qpn: BTreeMap<u32, usize>,
    pub(crate) next_qpn: Vec<u32>,
    pub(crate) chaos: Rc<Cell<bool>>,
    pub(crate) closing: bool,
    pub(crate) weathers: u32,
    pub(crate) report: Report,
    /// When a request was last posted or completed.
    pub(crate) last_progress: Instant,
}

impl World {
    /// Builds the hosts and queue pairs of a plan.
    pub fn new(plan: Plan, options: Options) -> Verdict<Self> {
        let mut rng = Rng::new(plan.seed);
        let mut fabric = Fabric::new(&mut rng, plan.latency_ns);
        fabric.set_verbose(options.verbose);
        let (rule, chaos) = Chaos::new(plan.faults);
        fabric.add_rule(rule);
        let mut world = Self {
            options,
            fabric,
            wire: WireChecker::default(),
            rng,
            ends: Vec::new(),
            pools: Vec::new(),
            links: Vec::new(),
            words: Vec::new(),
            by_qpn: BTreeMap::new(),
            next_qpn: Vec::new(),
            chaos,
            closing: false,
            weathers: 0,
            report: Report::default(),
            last_progress: Instant(0),
            plan,
        };
        world.add_hosts()?;
        for index in 0..world.plan.links.len() {
            world.add_link(index)?;
        }
        for index in 0..world.plan.datagrams.len() {
            world.add_datagram(index)?;
        }
        Ok(world)
    }

    /// The fabric, for a caller that plants faults.
    pub const fn fabric_mut(&mut self) -> &mut Fabric {
        &mut self.fabric
    }

    /// How many hosts there are.
    #[must_use]
    pub fn hosts(&self) -> usize {
        self.plan.hosts.len()
    }

    /// Lets everything happen and judges it.
    pub fn run(&mut self) -> Verdict<Report> {
        for end in 0..self.ends.len() {
            let delay = self.rng.below(20_000);
            self.set_alarm(delay, Alarm::Send(end));
        }
        self.next_weather();
        loop {
            match self.fabric.step(&mut self.wire) {
                Step::Host(host) => self.poll_host(host)?,
                Step::Alarm(token) => {
                    self.act(Alarm::from_token(token))?;
                    self.poll_all()?;
                }
                Step::Idle => break,
            }
            self.watch()?;
        }
        self.finish()
    }

    fn act(&mut self, alarm: Alarm) -> Verdict {
        match alarm {
            Alarm::Send(end) => self.send_alarm(end),
            Alarm::Pool(pool) => self.pool_alarm(pool),
            Alarm::Link(link) => self.link_alarm(link),
            Alarm::Weather => self.weather(),
        }
    }

    /// What is judged after every step.
    fn watch(&mut self) -> Verdict {
        self.wire.verdict()?;
        let stats = self.fabric.stats();
        if stats.steps.is_multiple_of(CANARY_STEPS) {
            self.check_canaries()?;
        }
        if stats.steps > STEPS_MAX {
            let what = format!("livelock: {stats:?} at {:?}", self.fabric.now());
            return Err(Violation::new(Checker::Quiet, what));
        }
        if self.plan.heals && !self.ends.iter().any(|e| self.has_more(e)) {
            self.chaos.set(false);
        }
        if self.fabric.now() - self.last_progress > QUIET_NS_MAX {
            let what = format!("no progress since {:?}, and not quiet", self.last_progress);
            return Err(Violation::new(Checker::Quiet, what));
        }
        Ok(())
    }

    fn has_more(&self, end: &End) -> bool {
        end.posted < end.plan.budget || !end.incidents.is_empty()
    }

    pub(crate) fn check_canaries(&self) -> Verdict {
        for (id, host) in self.fabric.hosts() {
            if let Some(addr) = host.env.memory.broken_guard() {
                let what = format!("h{}: guard byte at {addr:#x} was overwritten", id.0);
                return Err(Violation::new(Checker::Canaries, what));
            }
        }
        Ok(())
    }

    pub(crate) fn set_alarm(&mut self, delay_ns: u64, alarm: Alarm) {
        self.fabric.alarm(delay_ns, alarm.token());
    }

    /// Tells an act of an application, for people who replay a seed.
    pub(crate) fn tell(&self, what: impl FnOnce() -> String) {
        if self.options.verbose {
            let now = self.fabric.now().0;
            println!("{:>5}.{:06} {}", now / 1_000_000, now % 1_000_000, what());
        }
    }

    // ---- building

    fn add_hosts(&mut self) -> Verdict {
        for index in 0..self.plan.hosts.len() {
            let plan = self.plan.hosts[index].clone();
            let [v4, v6] = setup::host_gids(index);
            let node = NodeConfig {
                window_packets: plan.window_packets,
                read_chunk_packets: plan.read_chunk_packets,
                ack_every_packets: plan.ack_every_packets,
                quantum_packets: plan.quantum_packets,
                peer_window_bytes: plan.window_bytes[0],
                read_window_bytes: plan.window_bytes[1],
                ack_request_every_packets: plan.ack_request_every_packets,
                ack_timeout_min_ns: 0,
                ..NodeConfig::default()
            };
            let host = self.fabric.add_host(HostConfig {
                v4,
                v6,
                id_rule: plan.id_rule,
                batch_max: plan.batch_max,
                byte_ns_per_1024: plan.byte_ns_per_1024,
                node,
            });
            for cq in 0..CQS {
                self.fabric.host_mut(host).env.create_cq(CqId(cq), CQE);
            }
            let first = self.rng.range_u32(16, 2048);
            self.next_qpn.push((index as u32 + 1) << 12 | first);
            for _ in 0..self.rng.range(1, 3) {
                self.add_word(host);
            }
            if let Some(receives) = plan.srq {
                self.add_srq(host, receives)?;
            }
        }
        Ok(())
    }

    fn add_word(&mut self, host: HostId) {
        let (span, key) = self.region(host, 8, 8, ALL_REMOTE | Access::LOCAL_WRITE);
        let initial = self.rng.next_u64();
        let memory = &mut self.fabric.host_mut(host).env.memory;
        memory
            .poke(span.addr, 8)
            .copy_from_slice(&initial.to_ne_bytes());
        self.words.push(Word {
            host,
            addr: span.addr,
            key,
            ledger: WordLedger::new(initial),
        });
    }

    fn add_srq(&mut self, host: HostId, plan: crate::plan::ReceivePlan) -> Verdict {
        let srq = SrqId(1);
        let attr = SrqAttr {
            max_wr: plan.depth + SPARE,
            max_sge: plan.sge_max,
            srq_limit: 0,
        };
        let init = SrqInit {
            pd: pd(host),
            attr,
            xrc: None,
        };
        let made = self.fabric.host_mut(host).node.create_srq(srq, init);
        made.map_err(|why| Violation::new(Checker::Calls, format!("create_srq: {why}")))?;
        let pool = self.add_pool(PoolInit {
            host,
            srq: Some(srq),
            owner: None,
            plan,
            datagrams: true,
        });
        self.fill_pool(pool)
    }

    /// A region with random content; its span and key.
    pub(crate) fn region(
        &mut self,
        host: HostId,
        len: u64,
        align: u64,
        access: Access,
    ) -> (Span, u32) {
        let seed = self.rng.next_u64();
        let memory = &mut self.fabric.host_mut(host).env.memory;
        let span = memory.allocate(len, align);
        rocebud_fabric::fill(seed, 0, memory.poke(span.addr, len));
        let key = memory.register(pd(host), span, span.addr, access);
        (span, key)
    }

    fn add_link(&mut self, index: usize) -> Verdict {
        let plan = self.plan.links[index].clone();
        let first = self.ends.len();
        let xrc = plan.link.kind == QpType::XrcSend;
        if xrc {
            self.add_xrc_srq(HostId(plan.ends[1].host), index, plan.ends[1].receives)?;
        }
        for (side, end) in plan.ends.iter().enumerate() {
            let peer = first + 1 - side;
            let kind = match (xrc, side) {
                (true, 1) => QpType::XrcRecv,
                _ => plan.link.kind,
            };
            self.add_end(end.clone(), kind, Some(index), peer)?;
        }
        self.links.push(LinkState::new([first, first + 1]));
        self.connect_link(index)
    }

    /// The receive queue of an extended reliable connection, for both of its ends to know.
    fn add_xrc_srq(
        &mut self,
        host: HostId,
        link: usize,
        plan: crate::plan::ReceivePlan,
    ) -> Verdict {
        let srq = SrqId(0x00ff_0000 + link as u32);
        let cq = CqId(self.rng.range_u32(0, CQS - 1));
        let init = SrqInit {
            pd: pd(host),
            attr: SrqAttr {
                max_wr: plan.depth + SPARE,
                max_sge: plan.sge_max,
                srq_limit: 0,
            },
            xrc: Some(XrcSrq { xrcd: DOMAIN, cq }),
        };
        let made = self.fabric.host_mut(host).node.create_srq(srq, init);
        made.map_err(refused)?;
        let pool = self.add_pool(PoolInit {
            host,
            srq: Some(srq),
            owner: None,
            plan,
            datagrams: false,
        });
        self.pools[pool].xrc_cq = Some(cq);
        self.fill_pool(pool)
    }

    fn add_datagram(&mut self, index: usize) -> Verdict {
        let mut plan = self.plan.datagrams[index].clone();
        plan.receives.buffer = plan.receives.buffer.max(1024);
        let at = self.ends.len();
        self.add_end(plan, QpType::Ud, None, at)?;
        let psn = Psn::new(self.rng.next_u32());
        let (host, qpn, qkey) = (self.ends[at].host, self.ends[at].qpn, self.ends[at].qkey);
        setup::bring_up_ud(&mut self.fabric, host, qpn, qkey, psn).map_err(refused)?;
        self.ends[at].up = true;
        self.fill_pool(self.ends[at].pool)
    }

    fn add_end(
        &mut self,
        plan: EndPlan,
        kind: QpType,
        link: Option<usize>,
        peer: usize,
    ) -> Verdict {
        let index = self.ends.len();
        let host = HostId(plan.host);
        let srq = self.shared_pool(host, kind, plan.use_srq);
        let pool = srq.unwrap_or_else(|| {
            self.add_pool(PoolInit {
                host,
                srq: None,
                owner: Some(index),
                plan: plan.receives,
                datagrams: kind == QpType::Ud,
            })
        });
        let ring = u64::from(plan.message_max) * 4 + 4096;
        let (local, local_key) = self.region(host, ring, 1, Access::LOCAL_WRITE);
        let access = TARGET;
        let (target, target_key) = self.region(host, u64::from(plan.target), 8, access);
        let memory = &mut self.fabric.host_mut(host).env.memory;
        let readonly_key = memory.register(pd(host), target, target.addr, Access::REMOTE_READ);
        let end = End {
            cqs: [(); 2].map(|()| CqId(self.rng.range_u32(0, CQS - 1))),
            local: LocalModel::new(local, memory.peek(local.addr, local.len)),
            target: TargetModel::new(target, memory.peek(target.addr, target.len)),
            ring: Ring::new(local),
            sends: SendLedger::new(Qpn::new(0)),
            qkey: QKey(self.rng.next_u32() >> 1),
            rng: self.rng.fork(index as u64),
            incidents: sorted(&plan.incidents),
            host,
            kind,
            qpn: Qpn::new(0),
            link,
            peer,
            pool,
            inbox: VecDeque::new(),
            local_key,
            target_key,
            readonly_key,
            posted: 0,
            seq: 0,
            unsignaled: 0,
            up: false,
            alive: false,
            life: 0,
            doomed: false,
            draining: false,
            late_drained: false,
            receive_flushed: false,
            receive_error: None,
            last_wqe: 0,
            sink_keys: VecDeque::new(),
            windows: Vec::new(),
            last_word: 0,
            plan,
        };
        self.ends.push(end);
        if kind == QpType::XrcRecv {
            self.ends[index].cqs = [self.pools[pool].xrc_cq.unwrap_or(CqId::NONE); 2];
        }
        self.add_windows(index);
        self.create_qp(index)
    }

    /// The shared receive queue that an end of this kind takes receives from.
    fn shared_pool(&self, host: HostId, kind: QpType, use_srq: bool) -> Option<usize> {
        if matches!(kind, QpType::XrcSend | QpType::XrcRecv) {
            return self.pools.iter().rposition(|p| p.xrc_cq.is_some());
        }
        let shared = |p: &Pool| p.host == host && p.srq.is_some() && p.xrc_cq.is_none();
        self.pools.iter().position(shared).filter(|_| use_srq)
    }

    /// Makes the queue pair of an end, under a number never used before.
    pub(crate) fn create_qp(&mut self, index: usize) -> Verdict {
        let end = &mut self.ends[index];
        let next = &mut self.next_qpn[end.host.0];
        let qpn = Qpn::new(*next);
        *next += 1;
        end.qpn = qpn;
        end.alive = true;
        end.sends.restart(qpn);
        self.by_qpn.insert(qpn.value(), index);
        let pool = &self.pools[end.pool];
        let serves = end.kind == QpType::XrcRecv;
        let cqs = if serves { [CqId::NONE; 2] } else { end.cqs };
        let init = QpInit {
            qp_type: end.kind,
            pd: pd(end.host),
            send_cq: cqs[0],
            recv_cq: cqs[1],
            srq: pool.srq.filter(|_| pool.xrc_cq.is_none()),
            xrcd: serves.then_some(DOMAIN),
            cap: QpCap {
                max_send_wr: end.plan.send_depth,
                max_recv_wr: pool.plan.depth + 1,
                max_send_sge: end.plan.sge_max,
                max_recv_sge: pool.plan.sge_max,
                max_inline_data: end.plan.inline_max,
            },
            sq_sig_all: end.plan.sq_sig_all,
        };
        let made = self.fabric.host_mut(end.host).node.create_qp(qpn, init);
        made.map_err(refused)
    }

    /// State that the engine reports for an end's queue pair.
    pub(crate) fn state(&self, index: usize) -> Option<QpState> {
        let end = &self.ends[index];
        self.fabric.host(end.host).node.qp_state(end.qpn)
    }

    pub(crate) fn side(&mut self, index: usize) -> Side {
        let end = &mut self.ends[index];
        // Often near the wrap: start values are random in the field, so the wrap is ordinary.
        let psn = if let Some(psn) = end.plan.first_psn {
            psn
        } else if end.rng.percent(50) {
            0x00ff_fff0 + end.rng.range_u32(0, 15)
        } else {
            end.rng.next_u32()
        };
        Side {
            host: end.host,
            qpn: end.qpn,
            sq_psn: Psn::new(psn),
            max_rd_atomic: end.plan.rd_atomic,
            max_dest_rd_atomic: end.plan.rd_atomic,
            min_rnr_timer: end.plan.min_rnr_timer,
        }
    }

    /// Content stream of a request.
    pub(crate) fn stream(&self, wr_id: u64) -> u64 {
        mix(self.plan.seed ^ mix(wr_id))
    }

    /// The first `len` bytes of a list of pieces.
    pub(crate) fn gather(&self, host: HostId, pieces: &[Span], len: u64) -> Vec<u8> {
        let memory = &self.fabric.host(host).env.memory;
        let mut bytes = Vec::with_capacity(len as usize);
        for piece in pieces {
            let n = piece.len.min(len - bytes.len() as u64);
            bytes.extend_from_slice(memory.peek(piece.addr, n));
        }
        bytes
    }
}

/// XRC domain of every host.
const DOMAIN: XrcdId = XrcdId(1);

impl End {
    /// The peer's receive queue that requests name.
    pub(crate) fn xrc_srqn(&self, pools: &[Pool]) -> u32 {
        let queue = pools[self.pool]
            .srq
            .filter(|_| self.kind == QpType::XrcSend);
        queue.map_or(0, |srq| srq.0)
    }
}

/// What target regions are registered for.
pub(crate) const TARGET: Access = ALL_REMOTE.union(Access::LOCAL_WRITE).union(Access::MW_BIND);

/// Protection domain of a host.
pub(crate) const fn pd(host: HostId) -> PdId {
    PdId(host.0 as u32 + 1)
}

pub(crate) fn refused(why: rocebud_objects::Misuse) -> Violation {
    Violation::new(Checker::Calls, format!("refused: {why}"))
}

fn sorted(incidents: &[(u32, Incident)]) -> VecDeque<(u32, Incident)> {
    let mut list = incidents.to_vec();
    list.sort_by_key(|i| i.0);
    list.into()
}
