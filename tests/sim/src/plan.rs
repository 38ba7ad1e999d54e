//! What a run consists of, drawn from its seed: hosts, queue pairs, programs, faults.

use rocebud_fabric::{FaultPlan, IdRule, Ratio, Rng};
use rocebud_objects::QpType;
use rocebud_wire::Mtu;

use crate::setup::Link;

/// What the caller of a run decides.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// Each fault is at most this likely, percent.
    pub faults_percent_max: u32,
    /// Prints every frame and every act of the applications.
    pub verbose: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            faults_percent_max: 5,
            verbose: false,
        }
    }
}

/// A run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Where it comes from.
    pub seed: u64,
    /// Hosts, at least two.
    pub hosts: Vec<HostPlan>,
    /// Connections.
    pub links: Vec<LinkPlan>,
    /// Datagram queue pairs.
    pub datagrams: Vec<EndPlan>,
    /// Faults of the network.
    pub faults: FaultPlan,
    /// The network heals when the last request has been posted.
    pub heals: bool,
    /// One way, nanoseconds.
    pub latency_ns: u64,
    /// Strangers send frames and hosts stand still, so often (mean pause, nanoseconds; 0 = never).
    pub weather_ns: u64,
    /// Hosts stand still at most so long.
    pub freeze_ns_max: u64,
    /// Programs of reliable connections lend each other memory windows.
    pub windows: bool,
}

/// A host.
#[derive(Clone, Debug, Default)]
pub struct HostPlan {
    /// IPv4 identification.
    pub id_rule: IdRule,
    /// Frames that leave at one moment.
    pub batch_max: u16,
    /// Packets in flight per queue pair.
    pub window_packets: u32,
    /// Packets of one READ request.
    pub read_chunk_packets: u32,
    /// An ACK at least so often.
    pub ack_every_packets: u32,
    /// Packets in a row of one queue pair.
    pub quantum_packets: u32,
    /// Bytes in flight per peer process, and of READ responses asked for.
    pub window_bytes: [u32; 2],
    /// Inside a message an ACK is asked for so often.
    pub ack_request_every_packets: u32,
    /// Nanoseconds that a byte takes on the link, times 1024.
    pub byte_ns_per_1024: u64,
    /// Shared receive queue.
    pub srq: Option<ReceivePlan>,
}

/// How receives are posted.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReceivePlan {
    /// Receives kept posted.
    pub depth: u32,
    /// Bytes of each buffer.
    pub buffer: u32,
    /// Longest scatter list.
    pub sge_max: u32,
    /// Percent of receives that are posted late.
    pub late_percent: u32,
    /// How late at most, nanoseconds.
    pub late_ns_max: u64,
}

/// A connection.
#[derive(Clone, Debug)]
pub struct LinkPlan {
    /// Shared attributes.
    pub link: Link,
    /// Both ends.
    pub ends: [EndPlan; 2],
}

/// A queue pair and the program that uses it.
#[derive(Clone, Debug, Default)]
pub struct EndPlan {
    /// Host.
    pub host: usize,
    /// Requests that the program posts.
    pub budget: u32,
    /// Send queue.
    pub send_depth: u32,
    /// Longest gather list.
    pub sge_max: u32,
    /// Bytes.
    pub inline_max: u32,
    /// READs and atomics outstanding, as requester and as responder.
    pub rd_atomic: u8,
    /// RNR timer code.
    pub min_rnr_timer: u8,
    /// Every request signaled.
    pub sq_sig_all: bool,
    /// Takes receives from the host's SRQ, if it has one.
    pub use_srq: bool,
    /// Own receive queue.
    pub receives: ReceivePlan,
    /// Longest message, bytes.
    pub message_max: u32,
    /// Region that the peer writes and reads, bytes.
    pub target: u32,
    /// Requests posted at one moment at most.
    pub burst_max: u32,
    /// Pause between bursts at most, nanoseconds.
    pub gap_ns_max: u64,
    /// First PSN of every life; drawn if not given.
    pub first_psn: Option<u32>,
    /// Trouble, and the number of requests posted before it.
    pub incidents: Vec<(u32, Incident)>,
}

/// What a program does to a connection in the middle of traffic.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Incident {
    /// WRITE or READ with a key that nobody has.
    BadRkey,
    /// WRITE that begins inside the peer's region and ends beyond it.
    OutOfBounds,
    /// WRITE into a region that only may be read.
    NoPermission,
    /// Atomic on an address that is no multiple of eight.
    Misaligned,
    /// SEND from, or READ to, a key that nobody has.
    BadLkey,
    /// LOCAL_INV of an ordinary region.
    BadLocalInv,
    /// SEND longer than the peer's receive.
    TooLong,
    /// Own queue pair to ERR.
    OwnError,
    /// Peer's queue pair to ERR.
    PeerError,
    /// Own queue pair to RESET.
    OwnReset,
    /// Own queue pair destroyed.
    Destroy,
    /// Send queue drained and resumed.
    Drain,
    /// Peer's region deregistered under the traffic.
    Revoke,
    /// Pages of the peer's region unmapped under the traffic.
    Unmap,
    /// SEND that invalidates a key which cannot be invalidated.
    BadInvalidate,
    /// Bind that breaks a rule.
    BadBind,
    /// WRITE that begins inside a window of the peer's and ends beyond it.
    PastWindow,
    /// WRITE through a key that a window of the peer's does not have now.
    StaleWindow,
    /// The peer's window closed under the traffic.
    CloseWindow,
}

/// Incidents about windows.
pub(crate) const WINDOW_INCIDENTS: [Incident; 4] = [
    Incident::BadBind,
    Incident::PastWindow,
    Incident::StaleWindow,
    Incident::CloseWindow,
];

const INCIDENTS: [Incident; 15] = [
    Incident::BadRkey,
    Incident::OutOfBounds,
    Incident::NoPermission,
    Incident::Misaligned,
    Incident::BadLkey,
    Incident::BadLocalInv,
    Incident::TooLong,
    Incident::OwnError,
    Incident::PeerError,
    Incident::OwnReset,
    Incident::Destroy,
    Incident::Drain,
    Incident::Revoke,
    Incident::Unmap,
    Incident::BadInvalidate,
];

impl Plan {
    /// Draws a run.
    #[must_use]
    pub fn draw(seed: u64, options: &Options) -> Self {
        let mut rng = Rng::new(seed).fork(0x91a);
        let hosts: Vec<HostPlan> = (0..rng.range(2, 4)).map(|_| host(&mut rng)).collect();
        let links = (0..rng.range(1, 6))
            .map(|_| link(&mut rng, hosts.len()))
            .collect();
        let datagrams = if rng.percent(50) {
            (0..hosts.len()).map(|h| datagram(&mut rng, h)).collect()
        } else {
            Vec::new()
        };
        let mut plan = Self {
            seed,
            windows: false,
            links,
            datagrams,
            faults: faults(&mut rng, options.faults_percent_max),
            heals: rng.percent(50),
            latency_ns: rng.pick(&[500, 5_000, 50_000]),
            weather_ns: rng.pick(&[0, 50_000, 5_000_000]),
            freeze_ns_max: rng.pick(&[0, 100_000, 8_000_000]),
            hosts,
        };
        plan.draw_windows();
        plan.draw_xrc();
        plan
    }

    /// Extended reliable connections, from a stream of their own: some links become such, with a
    /// requesting and a serving end.
    fn draw_xrc(&mut self) {
        let mut rng = Rng::new(self.seed).fork(0x42);
        if !rng.percent(40) {
            return;
        }
        for plan in &mut self.links {
            if plan.link.kind == QpType::Rc && rng.percent(40) {
                plan.link.kind = QpType::XrcSend;
                let [requests, serves] = &mut plan.ends;
                requests.use_srq = false;
                serves.budget = 0;
                serves.incidents.clear();
            }
        }
    }

    /// Windows, from a stream of their own.
    fn draw_windows(&mut self) {
        let mut rng = Rng::new(self.seed).fork(0x3d);
        self.windows = rng.percent(50);
        if !self.windows {
            return;
        }
        for end in self.links.iter_mut().flat_map(|link| &mut link.ends) {
            if rng.percent(40) {
                let when = rng.below(u64::from(end.budget) + 1) as u32;
                end.incidents.push((when, rng.pick(&WINDOW_INCIDENTS)));
            }
        }
    }

    /// The receives that end `end` of link `link` takes.
    #[must_use]
    pub fn receives(&self, end: &EndPlan) -> ReceivePlan {
        match &self.hosts[end.host].srq {
            Some(srq) if end.use_srq => *srq,
            _ => end.receives,
        }
    }
}

fn host(rng: &mut Rng) -> HostPlan {
    HostPlan {
        id_rule: rng.pick(&[IdRule::Rising, IdRule::BatchIndex]),
        batch_max: rng.pick(&[1, 4, 16, 64]),
        window_packets: rng.pick(&[1, 2, 7, 32, 128, 128]),
        read_chunk_packets: rng.pick(&[1, 3, 16, 64]),
        ack_every_packets: rng.pick(&[1, 16, 32]),
        quantum_packets: rng.pick(&[1, 8, 64]),
        window_bytes: [(); 2].map(|()| rng.pick(&[1, 10_000, 30_000, 106_496, 106_496])),
        ack_request_every_packets: rng.pick(&[1, 4, 16, 64]),
        // 100, 10 and 1 Gbit/s.
        byte_ns_per_1024: rng.pick(&[80, 80, 800, 8000]),
        srq: rng.percent(50).then(|| receives(rng, true)),
    }
}

fn receives(rng: &mut Rng, shared: bool) -> ReceivePlan {
    let late = rng.percent(50);
    ReceivePlan {
        depth: rng.range_u32(1, if shared { 32 } else { 16 }),
        buffer: rng.pick(&[300, 1500, 5000, 20_000]),
        sge_max: rng.range_u32(1, 4),
        late_percent: if late { rng.range_u32(10, 100) } else { 0 },
        late_ns_max: rng.pick(&[20_000, 1_000_000, 5_000_000]),
    }
}

fn link(rng: &mut Rng, hosts: usize) -> LinkPlan {
    let kind = if rng.percent(80) {
        QpType::Rc
    } else {
        QpType::Uc
    };
    let link = Link {
        kind,
        v6: rng.percent(40),
        mtu: rng.pick(&Mtu::ALL),
        timeout: rng.range_u32(10, 14) as u8,
        flow_label: rng.pick(&[0, 0, 0x12345]),
        traffic_class: rng.pick(&[0, 2, 0x6a]),
        ..Link::default()
    };
    let a = rng.range_usize(0, hosts - 1);
    // Sometimes both ends on one host: loopback is ordinary traffic.
    let b = if rng.percent(5) {
        a
    } else {
        (a + rng.range_usize(1, hosts - 1)) % hosts
    };
    let rd_atomic = rng.pick(&[1, 2, 4, 16]);
    let ends = [a, b].map(|h| {
        let mut end = end(rng, h, link.mtu);
        end.rd_atomic = rd_atomic;
        if kind == QpType::Uc {
            end.use_srq = false;
        }
        end
    });
    LinkPlan { link, ends }
}

fn end(rng: &mut Rng, host: usize, mtu: Mtu) -> EndPlan {
    let budget = rng.pick(&[0, 20, 60, 150]);
    let mtu = mtu.bytes();
    let count = rng.pick(&[0, 0, 1, 2, 4]);
    let incidents = (0..count)
        .map(|_| {
            (
                rng.below(u64::from(budget) + 1) as u32,
                rng.pick(&INCIDENTS),
            )
        })
        .collect();
    EndPlan {
        host,
        budget,
        send_depth: rng.range_u32(2, 32),
        sge_max: rng.range_u32(1, 4),
        inline_max: rng.pick(&[0, 64, 512]),
        rd_atomic: 1,
        min_rnr_timer: rng.range_u32(1, 14) as u8,
        sq_sig_all: rng.percent(30),
        use_srq: rng.percent(50),
        receives: receives(rng, false),
        message_max: rng.pick(&[mtu.min(300), mtu * 2, mtu * 20, mtu * 40]),
        target: rng.pick(&[64, 4096, 70_000]),
        burst_max: rng.range_u32(1, 16),
        gap_ns_max: rng.pick(&[0, 10_000, 1_000_000]),
        first_psn: None,
        incidents,
    }
}

fn datagram(rng: &mut Rng, host: usize) -> EndPlan {
    let mut end = end(rng, host, Mtu::M1024);
    end.incidents.clear();
    end.message_max = 1024;
    end
}

fn faults(rng: &mut Rng, percent_max: u32) -> FaultPlan {
    if rng.percent(15) || percent_max == 0 {
        return FaultPlan::QUIET;
    }
    // Each fault on or off, in steps of a quarter percent.
    let some = |rng: &mut Rng| {
        if rng.percent(60) {
            Ratio::new(rng.range_u32(1, percent_max * 4), 400)
        } else {
            Ratio::ZERO
        }
    };
    FaultPlan {
        drop: some(rng),
        duplicate: some(rng),
        corrupt: some(rng),
        reorder: some(rng),
        delay: some(rng),
        delay_ns_max: rng.pick(&[10_000, 200_000, 2_000_000, 60_000_000]),
        harm_max: 2,
    }
}
