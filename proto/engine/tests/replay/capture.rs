//! Captures of `tests/golden/interop`: who sent what, when, and whether it arrived.

use std::fs;
use std::path::{Path, PathBuf};

use rocebud_engine::RxMeta;
use rocebud_wire::frame::{Frame, Net};
use rocebud_wire::{AtomicEth, Opcode, Packet, Position, Psn, Qpn, Reth, Syndrome};

/// A packet of a capture or of the engine, without the names of the queue pairs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Shape {
    pub opcode: Opcode,
    pub psn: u32,
    /// Credits are each implementation's own and left out.
    pub syndrome: Option<Syndrome>,
    pub msn: Option<u32>,
    pub reth: Option<Reth>,
    pub atomic: Option<AtomicEth>,
    pub original: Option<u64>,
    pub imm: Option<[u8; 4]>,
    pub payload: Vec<u8>,
}

impl Shape {
    pub fn of(packet: &Packet<'_>) -> Self {
        let ext = &packet.ext;
        Self {
            opcode: packet.bth.opcode,
            psn: packet.bth.psn.value(),
            syndrome: ext.aeth.map(|a| match a.syndrome {
                Syndrome::Ack { .. } => Syndrome::ACK,
                other => other,
            }),
            msn: ext.aeth.map(|a| a.msn),
            reth: ext.reth,
            atomic: ext.atomic_eth,
            original: ext.atomic_ack_eth.map(|a| a.orig),
            imm: ext.imm_dt,
            payload: packet.payload.to_vec(),
        }
    }

    /// One line, for comparing and reading.
    pub fn line(&self) -> String {
        let Self { opcode, psn, .. } = self;
        let sum = self.payload.iter().fold(0_u32, |sum, byte| {
            sum.wrapping_mul(31).wrapping_add(u32::from(*byte))
        });
        let mut line = format!("{opcode} psn {psn:#x}");
        if let (Some(syndrome), Some(msn)) = (self.syndrome, self.msn) {
            line.push_str(&format!(" {syndrome:?} msn {msn}"));
        }
        if let Some(reth) = self.reth {
            line.push_str(&format!(" {reth:x?}"));
        }
        if let Some(atomic) = self.atomic {
            line.push_str(&format!(" {atomic:x?}"));
        }
        if let Some(original) = self.original {
            line.push_str(&format!(" was {original:#x}"));
        }
        line + &format!(
            " imm {:x?} {} bytes, sum {sum:08x}",
            self.imm,
            self.payload.len()
        )
    }

    pub fn position(&self) -> Position {
        self.opcode.info().expect("a defined opcode").position
    }

    /// PSNs that it takes.
    pub fn span(&self) -> u32 {
        match self.reth {
            Some(reth) if self.opcode == Opcode::RC_READ_REQUEST => {
                reth.dma_len.div_ceil(1024).max(1)
            }
            _ => 1,
        }
    }

    pub fn is_rnr(&self) -> bool {
        matches!(self.syndrome, Some(Syndrome::RnrNak { .. }))
    }
}

/// A packet of a capture.
pub struct Seen {
    pub asks: bool,
    /// It never arrived.
    pub lost: bool,
    /// Since the first one.
    pub ns: u64,
    pub meta: RxMeta,
    /// From the BTH on.
    pub ib: Vec<u8>,
    pub dest_qp: Qpn,
    pub shape: Shape,
}

impl Seen {
    pub fn packet(&self) -> Packet<'_> {
        Packet::parse(&self.ib).expect("as when it was read")
    }
}

pub struct Capture {
    pub name: String,
    pub packets: Vec<Seen>,
}

impl Capture {
    /// All captures of reliable connections.
    pub fn all() -> Vec<Self> {
        let text = fs::read_to_string(dir().join("captures.tsv")).expect("captures.tsv");
        let rows = text.lines().skip(1).filter(|row| row.starts_with("rc-"));
        rows.map(|row| {
            let mut columns = row.split('\t');
            let name = columns.next().expect("a name");
            let lost = columns.next().expect("lost frames").split_whitespace();
            let lost: Vec<usize> = lost.map(|n| n.parse().expect("a number")).collect();
            Self::read(name, &lost)
        })
        .collect()
    }

    fn read(name: &str, lost: &[usize]) -> Self {
        let bytes = fs::read(dir().join(format!("{name}.pcap"))).expect("a capture");
        // 10.98.0.1 or fd98:0:0:1::1 is rocebud's.
        let asking = if name.contains("rocebud-to-") { 1 } else { 2 };
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four"));
        let mut packets = Vec::new();
        let mut at = 24;
        while at < bytes.len() {
            let len = word(at + 8) as usize;
            let ns = u64::from(word(at)) * 1_000_000_000 + u64::from(word(at + 4)) * 1000;
            let frame = &bytes[at + 16..at + 16 + len];
            let lost = lost.contains(&(packets.len() + 1));
            packets.push(seen(frame, asking, ns, lost));
            at += 16 + len;
        }
        let name = name.to_owned();
        Self { name, packets }
    }

    /// Where the requests go, and where the answers.
    pub fn qpns(&self) -> (Qpn, Qpn) {
        let to = |asks| self.packets.iter().find(|p| p.asks == asks);
        let (asked, asking) = (to(true), to(false));
        (
            asked.expect("a request").dest_qp,
            asking.expect("an answer").dest_qp,
        )
    }

    /// The packets of a side.
    pub fn of(&self, asks: bool) -> impl Iterator<Item = &Seen> {
        self.packets.iter().filter(move |p| p.asks == asks)
    }

    /// The requests, each once.
    pub fn requests(&self) -> Vec<&Shape> {
        let mut next = self.first_psn();
        let mut once = Vec::new();
        for seen in self.of(true) {
            let psn = Psn::new(seen.shape.psn);
            if psn == next {
                next = psn.add(seen.shape.span());
                once.push(&seen.shape);
            }
        }
        once
    }

    pub fn first_psn(&self) -> Psn {
        Psn::new(self.of(true).next().expect("a request").shape.psn)
    }
}

fn seen(bytes: &[u8], asking: u8, ns: u64, lost: bool) -> Seen {
    let frame = Frame::parse(bytes).expect("a frame");
    let packet = Packet::parse(frame.ib).expect("a packet");
    let net = &frame.outer.net;
    let (ipv4_id, ipv4_flags, sport) = match net {
        Net::V4(ip, udp) => (ip.id, ip.flags_frag, udp.sport),
        Net::V6(_, udp) => (0, 0, udp.sport),
        Net::Grh(_) => (0, 0, 0),
    };
    let src = net.sgid();
    Seen {
        asks: src.0[15] == asking,
        lost,
        ns,
        meta: RxMeta {
            src,
            dst: net.dgid(),
            hop_limit: 64,
            traffic_class: 0,
            ipv4_id,
            ipv4_flags,
            ifindex: 0,
            sport,
        },
        dest_qp: packet.bth.dest_qp,
        shape: Shape::of(&packet),
        ib: frame.ib.to_vec(),
    }
}

fn dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/interop")
}
