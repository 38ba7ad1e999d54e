//! Explicit congestion notification, both ways: the target's kernel marks what it sends, and we are sent CNPs.

use rocebud_wire::frame::{Frame, Ipv4, Ipv6, Net, Outer, Udp};
use rocebud_wire::{Class, Packet, Qpn};

use super::{Scene, cells};
use crate::cleanup;
use crate::error::{Error, Result, fail};
use crate::matrix::{Cell, Type};
use crate::shell::Place;
use crate::wire::{End, Seen, pcap};

const MARKED: &str = include_str!("../../matrix/marked.toml");

/// DSCP 48 and ECT(0), as NICs send CNPs.
const CNP_TRAFFIC_CLASS: u8 = 0xc2;

/// At most one CNP in so long for each queue pair.
const INTERVAL_US: u128 = 50;

/// As long as this holds, an end's kernel marks all RoCE packets that it sends as a switch would.
struct Marking<'a> {
    place: &'a Place,
}

impl<'a> Marking<'a> {
    fn begin(place: &'a Place) -> Result<Self> {
        let marking = Self { place };
        let _ = place.run("nft delete table inet interop", 30)?;
        let ended = place.run(
            "nft add table inet interop && \
             nft 'add chain inet interop out { type filter hook output priority 0; }' && \
             nft add rule inet interop out udp dport 4791 ip ecn set ce && \
             nft add rule inet interop out udp dport 4791 ip6 ecn set ce",
            30,
        )?;
        if ended.code == 0 {
            return Ok(marking);
        }
        fail(format!("nft at the target: {}", ended.output.trim()))
    }
}

impl Drop for Marking<'_> {
    fn drop(&mut self) {
        let _ = self.place.run("nft delete table inet interop", 30);
    }
}

/// Marked data, answers and datagrams: all are counted; those of connections draw CNPs, not too many, formed as
/// NICs form them; the transfers go on as if nothing was. Afterwards, without marks, no more come.
pub(super) fn marks(scene: &mut Scene<'_>) -> Result<()> {
    let cells = greeted(scene)?;
    let bench = scene.bench;
    {
        let _marking = Marking::begin(&bench.theirs.place)?;
        for cell in &cells {
            let before = scene.counter("np_cnp_sent")?;
            let frames = scene.cell(cell)?;
            let sent = scene.counter("np_cnp_sent")? - before;
            judge(&frames, sent, cell.kind != Type::Ud)
                .map_err(|why| Error(format!("{}: {why}", cell.name(scene.target.label()))))?;
        }
    }
    counted(scene, cells.len())?;
    for cell in &cells {
        if scene.cell(cell)?.iter().any(is_cnp) {
            return fail("a CNP, though nothing is marked any more");
        }
    }
    Ok(())
}

/// The cells to be played with marks, after those that are to be played without.
fn greeted(scene: &mut Scene<'_>) -> Result<Vec<Cell>> {
    let (greetings, marked): (Vec<Cell>, Vec<Cell>) = cells(MARKED)?
        .into_iter()
        .partition(|cell| cell.group == "greeting");
    for cell in &greetings {
        scene.cell(cell)?;
    }
    Ok(marked)
}

/// What `status` says must be what the wire saw, but for what came when a cell was over: a CNP for its last packet, a
/// late repetition.
fn counted(scene: &Scene<'_>, cells: usize) -> Result<()> {
    let of = |cnps: bool| {
        let ours = |f: &&Seen| f.from == End::Ours && is_cnp(f);
        let theirs = |f: &&Seen| f.from == End::Theirs && is_marked(f);
        let frames = scene.frames.iter();
        let n = if cnps {
            frames.filter(ours).count()
        } else {
            frames.filter(theirs).count()
        };
        u64::try_from(n).unwrap_or(u64::MAX)
    };
    for (name, seen) in [
        ("np_ecn_marked_roce_packets", of(false)),
        ("np_cnp_sent", of(true)),
    ] {
        let said = scene.counter(name)?;
        if said.abs_diff(seen) > u64::try_from(cells).unwrap_or(0) {
            return fail(format!("{name} is {said}, the wire saw {seen}"));
        }
    }
    Ok(())
}

/// The frames of one cell, and how many CNPs the counter says left for it. The last one may come too late to be seen.
fn judge(frames: &[Seen], sent: u64, answered: bool) -> Result<()> {
    let marked = |f: &&Seen| f.from == End::Theirs && is_marked(f);
    let marked: Vec<&Seen> = frames.iter().filter(marked).collect();
    let cnps: Vec<&Seen> = frames.iter().filter(|f| is_cnp(f)).collect();
    let Some(first) = marked.first() else {
        return fail("nothing arrived marked");
    };
    if answered && sent == 0 {
        return fail(format!("no CNP for {} marked packets", marked.len()));
    }
    if !answered && sent + u64::from(!cnps.is_empty()) > 0 {
        return fail("a CNP for datagrams");
    }
    if let Some(last) = cnps.last() {
        // the wire's clock is another than the sender's: a millisecond of grace
        let us = last.at.saturating_sub(first.at).as_micros() + 1000;
        if cnps.len() as u128 > 1 + us / INTERVAL_US {
            return fail(format!("{} CNPs in {us} µs", cnps.len()));
        }
    }
    cnps.iter().try_for_each(|cnp| well_formed(cnp))
}

/// As it must be, byte for byte.
fn well_formed(seen: &Seen) -> Result<()> {
    let Ok(frame) = Frame::parse(&seen.bytes) else {
        return fail("a CNP that is no frame");
    };
    let Ok(packet) = Packet::parse(frame.ib) else {
        return fail("a CNP that is no packet");
    };
    let mut wanted = rocebud_wire::cnp(packet.bth.dest_qp);
    frame.outer.seal(&mut wanted);
    if seen.from != End::Ours || frame.ib != wanted {
        return fail(format!("a CNP of {:?}: {:02x?}", seen.from, frame.ib));
    }
    let class = traffic_class(&frame.outer.net);
    if class != CNP_TRAFFIC_CLASS {
        return fail(format!("a CNP with traffic class {class:#04x}"));
    }
    Ok(())
}

/// Why the probe with tshark cannot run.
pub(super) fn no_tshark() -> Option<String> {
    let there = std::process::Command::new("tshark").arg("-v").output();
    there
        .is_err()
        .then(|| "tshark is missing: apt-get install tshark".into())
}

/// A decoder that is not ours reads the same queue pairs out of our CNPs.
pub(super) fn decoded(scene: &mut Scene<'_>) -> Result<()> {
    let bench = scene.bench;
    let mut frames = Vec::new();
    let cells = greeted(scene)?;
    {
        let _marking = Marking::begin(&bench.theirs.place)?;
        for cell in cells.iter().filter(|c| c.group == "marked requests") {
            frames.extend(scene.cell(cell)?);
        }
    }
    let qpn = |f: &Seen| parts(f).map(|(_, qpn, _)| format!("0x{qpn:06x}"));
    let ours: Vec<String> = frames
        .iter()
        .filter(|f| is_cnp(f))
        .filter_map(qpn)
        .collect();
    let file = cleanup::scratch()?.join("cnp.pcap");
    pcap::write(&file, &frames)?;
    // tshark 4.0 knows the opcode by its number only
    let command = format!(
        "tshark -r {} -Y 'infiniband.bth.opcode == 129 && infiniband.bth.p_key == 65535 && infiniband.bth.psn == 0' \
         -T fields -e infiniband.bth.destqp 2>/dev/null",
        file.display()
    );
    let ended = Place::Here(None).run(&command, 100)?;
    let said: Vec<String> = ended.output.lines().map(str::to_owned).collect();
    if ours.is_empty() || said != ours {
        return fail(format!("tshark reads {said:?}, we sent {ours:?}"));
    }
    Ok(())
}

/// CNPs that come to a queue pair in the middle of its work are counted; those of strangers and spoiled ones are not.
pub(super) fn notifications(scene: &mut Scene<'_>) -> Result<()> {
    const GOOD: u64 = 20;
    const BAD: u64 = 5;
    let bench = scene.bench;
    let Some(wire) = bench.wire() else {
        return Ok(());
    };
    let mut families = 0;
    for cell in greeted(scene)?
        .iter()
        .filter(|c| c.group == "marked answers" && c.op == "write")
    {
        let model = scene.cell(cell)?;
        let Some(outer) = model
            .iter()
            .filter(|f| f.from == End::Theirs)
            .find_map(outer)
        else {
            return fail("the target sent nothing");
        };
        scene.cell_with(cell, &mut |ours, _| {
            for _ in 0..GOOD {
                wire.inject(End::Theirs, &cnp_from(outer, ours.qpn, false));
            }
            for _ in 0..BAD {
                wire.inject(End::Theirs, &cnp_from(stranger(outer), ours.qpn, false));
                wire.inject(End::Theirs, &cnp_from(outer, ours.qpn, true));
            }
            Ok(())
        })?;
        families += 1;
        for (name, wanted) in [
            ("rp_cnp_handled", GOOD),
            ("drop_wrong_peer", BAD),
            ("rx_icrc_encapsulated", BAD),
            ("np_cnp_sent", 0),
        ] {
            let said = scene.counter(name)?;
            if said != wanted * families {
                return fail(format!("{name} is {said}, not {}", wanted * families));
            }
        }
    }
    Ok(())
}

/// A CNP as a NIC sends it.
fn cnp_from(outer: Outer, qpn: u32, spoiled: bool) -> Vec<u8> {
    let mut ib = rocebud_wire::cnp(Qpn::new(qpn));
    outer.seal(&mut ib);
    if spoiled {
        ib[20] ^= 1;
    }
    let frame = Frame {
        outer,
        ib: &ib,
        trailer: &[],
    };
    let mut bytes = vec![0; 200];
    let length = frame.emit(&mut bytes).unwrap_or(0);
    bytes.truncate(length);
    bytes
}

/// The headers of a target's packet, as a ConnectX would fill them for a CNP: source port and checksum 0.
fn outer(seen: &Seen) -> Option<Outer> {
    let mut outer = Frame::parse(&seen.bytes).ok()?.outer;
    let bare = Udp {
        sport: 0,
        checksum: 0,
    };
    outer.net = match outer.net {
        Net::V4(ip, _) => Net::V4(
            Ipv4 {
                tos: CNP_TRAFFIC_CLASS,
                id: 0x718c,
                ..ip
            },
            bare,
        ),
        Net::V6(ip, _) => Net::V6(
            Ipv6 {
                traffic_class: CNP_TRAFFIC_CLASS,
                ..ip
            },
            bare,
        ),
        Net::Grh(_) => return None,
    };
    Some(outer)
}

/// The same from another address of the network.
fn stranger(mut outer: Outer) -> Outer {
    match &mut outer.net {
        Net::V4(ip, _) => ip.src[3] ^= 0x40,
        Net::V6(ip, _) | Net::Grh(ip) => ip.src[15] ^= 0x40,
    }
    outer
}

fn traffic_class(net: &Net) -> u8 {
    match net {
        Net::V4(ip, _) => ip.tos,
        Net::V6(ip, _) | Net::Grh(ip) => ip.traffic_class,
    }
}

/// Class, destination and traffic class of a RoCE frame.
fn parts(seen: &Seen) -> Option<(Class, u32, u8)> {
    let frame = Frame::parse(&seen.bytes).ok()?;
    let packet = Packet::parse(frame.ib).ok()?;
    let class = traffic_class(&frame.outer.net);
    Some((packet.info.class, packet.bth.dest_qp.value(), class))
}

fn is_cnp(seen: &Seen) -> bool {
    parts(seen).is_some_and(|(class, ..)| class == Class::Cnp)
}

fn is_marked(seen: &Seen) -> bool {
    parts(seen).is_some_and(|(_, _, class)| class & 3 == 3)
}
