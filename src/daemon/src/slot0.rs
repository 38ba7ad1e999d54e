//! Slot 0: frames that nobody owns, frames on their way to the right slot, and QP1's datagrams.

use std::collections::BTreeMap;
use std::io;

use rocebud_cm::Transmit;
use rocebud_ctl::forward::{Bundle, Header, MESSAGE_BYTES_MAX, unpack};
use rocebud_nic::udp::{SlotSockets, UdpLink};
use rocebud_nic::{PacketIo, RxFrame, TxBatch};
use rocebud_objects::Counter;
use rocebud_wire::Psn;
use rustix::io::Errno;

use crate::clients::{Client, ClientSlot};
use crate::cm::qp1::{self, Bad, Datagram};
use crate::group::Group;
use crate::limits::{FRAMES_PER_TURN, REST_ROUNDS_MAX};
use crate::slots::Slots;

/// The daemon's own sockets and what it counted.
#[derive(Debug)]
pub(crate) struct Slot0 {
    link: UdpLink,
    counts: BTreeMap<&'static str, u64>,
    buf: Vec<u8>,
    /// Sequence number of QP1's next datagram; nobody checks it.
    psn: Psn,
}

impl Slot0 {
    pub(crate) fn new(group: &Group) -> io::Result<Self> {
        let link = UdpLink::new(group.own_sockets(qp1::source_port())?)?;
        Ok(Self {
            link,
            counts: BTreeMap::new(),
            buf: vec![0; MESSAGE_BYTES_MAX],
            psn: Psn::new(0),
        })
    }

    /// Counters that are not 0.
    pub(crate) fn counters(&self) -> Vec<(String, u64)> {
        let mut counters: Vec<_> = self
            .counts
            .iter()
            .map(|(n, v)| ((*n).to_owned(), *v))
            .collect();
        match self.link.rx_lost() {
            0 => {}
            lost => counters.push((Counter::SocketOverflow.name().to_owned(), lost)),
        }
        counters
    }

    /// Adds to a counter.
    pub(crate) fn count(&mut self, counter: Counter, n: u64) {
        if n > 0 {
            *self.counts.entry(counter.name()).or_default() += n;
        }
    }

    /// Reads what came for slot 0. A frame that has an owner was merged behind another slot's or
    /// queued before the steering changed; it is handed on. Returns whose outboxes to flush, and
    /// what came for QP1.
    pub(crate) fn receive(
        &mut self,
        slots: &Slots,
        clients: &mut BTreeMap<u64, Client>,
    ) -> (Vec<Place>, Vec<Datagram>) {
        let mut found = Found::default();
        self.link.look_everywhere();
        let outcome = self.link.recv(FRAMES_PER_TURN, &mut |frame: RxFrame<'_>| {
            found.take(&frame, slots, clients);
        });
        if let Err(error) = outcome {
            crate::log::debug(&format!("receiving at slot 0: {error}"));
        }
        let datagrams = std::mem::take(&mut found.for_qp1);
        (self.settle(found), datagrams)
    }

    /// Sends a message of the connection manager. One that does not leave is one that was lost.
    pub(crate) fn send(&mut self, transmit: &Transmit) {
        let ends = &transmit.path.ends;
        let (src, dst) = (ends.local.ip(), ends.remote.ip());
        let sport = self.link.real_sport(src.is_ipv6(), qp1::source_port());
        let Some(frame) = qp1::write(transmit, self.psn, sport) else {
            return;
        };
        self.psn = self.psn.add(1);
        let scoped = ends.remote.is_link_local();
        let report = self.link.send(&[TxBatch {
            singly: false,
            src,
            dst,
            ifindex: if scoped { ends.port } else { 0 },
            sport,
            traffic_class: transmit.path.traffic_class,
            hop_limit: transmit.path.hop_limit,
            segment: u16::try_from(frame.len()).unwrap_or(u16::MAX),
            data: &frame,
        }]);
        if report.sent == 1 && report.failed == 0 {
            self.count(Counter::SentPkts, 1);
        }
    }

    /// Reads what a process that has gone left in its sockets: others' frames may be among its
    /// own. Returns whose outboxes to flush.
    pub(crate) fn receive_rest(
        &mut self,
        sockets: SlotSockets,
        slots: &Slots,
        clients: &mut BTreeMap<u64, Client>,
    ) -> Vec<Place> {
        let mut found = Found::default();
        let Ok(mut link) = UdpLink::new(sockets) else {
            return Vec::new();
        };
        for _ in 0..REST_ROUNDS_MAX {
            link.look_everywhere();
            let mut take = |frame: RxFrame<'_>| found.take(&frame, slots, clients);
            if !matches!(link.recv(FRAMES_PER_TURN, &mut take), Ok(1..)) {
                break;
            }
        }
        self.settle(found)
    }

    fn settle(&mut self, found: Found) -> Vec<Place> {
        self.count(Counter::RcvdPkts, found.received);
        self.count(Counter::DropMalformed, found.malformed);
        self.count(Counter::DropNoQp, found.nobodys);
        self.count(Counter::DropIcrc, found.unsealed);
        self.count(Counter::DropForward, found.lost);
        found.touched
    }

    /// Takes what a client wants handed on. Only to processes of the same user: the header's
    /// source address is the sender's word. Returns whose outboxes to flush; an error when the
    /// client has closed its end.
    pub(crate) fn hand_over(
        &mut self,
        (from, index): Place,
        slots: &Slots,
        clients: &mut BTreeMap<u64, Client>,
    ) -> (Vec<Place>, Result<(), Closed>) {
        let mut touched = Vec::new();
        for _ in 0..FRAMES_PER_TURN {
            let client = clients.get(&from);
            let Some((client, slot)) = client.and_then(|c| Some((c, c.slots.get(index)?))) else {
                return (touched, Err(Closed));
            };
            let got = match rocebud_ctl::channel::recv(&slot.forward, &mut self.buf) {
                Ok(got) if got.bytes > 0 => got,
                Err(Errno::AGAIN) => return (touched, Ok(())),
                Ok(_) | Err(_) => return (touched, Err(Closed)),
            };
            let uid = client.ids.uid;
            let message = self.buf.get(..got.bytes).unwrap_or_default();
            // Whoever gets the message looks at each frame again, so the first one decides.
            let first = unpack(message).and_then(|(_, mut frames)| frames.next());
            let number = first.and_then(|(_, frame)| destination_slot(frame));
            let bundle = number.and_then(|number| Bundle::from_message(number, message));
            let Some(bundle) = bundle else {
                self.count(Counter::DropMalformed, 1);
                continue;
            };
            let (number, frames) = (bundle.slot(), bundle.frames());
            let of_user = |key| clients.get(&key).is_some_and(|c| c.ids.uid == uid);
            if !slots.owner(number).is_some_and(of_user) {
                self.count(Counter::DropNoQp, frames);
                continue;
            }
            let taken = owner(number, slots, clients).is_some_and(|(place, slot)| {
                touch(&mut touched, place);
                slot.outbox.push(bundle)
            });
            if !taken {
                self.count(Counter::DropForward, frames);
            }
        }
        (touched, Ok(()))
    }
}

/// Frames read by the daemon, and what became of them.
#[derive(Debug, Default)]
struct Found {
    received: u64,
    malformed: u64,
    nobodys: u64,
    unsealed: u64,
    lost: u64,
    touched: Vec<Place>,
    for_qp1: Vec<Datagram>,
}

impl Found {
    fn take(&mut self, frame: &RxFrame<'_>, slots: &Slots, clients: &mut BTreeMap<u64, Client>) {
        self.received += 1;
        let Some(number) = destination_slot(frame.data) else {
            self.malformed += 1;
            return;
        };
        if qp1::is_for_qp1(frame.data) {
            match qp1::read(frame) {
                Ok(datagram) => self.for_qp1.push(datagram),
                Err(Bad::Icrc) => self.unsealed += 1,
                Err(Bad::Malformed) => self.malformed += 1,
            }
            return;
        }
        if number == GROUP_SLOT && frame.dst.is_multicast() {
            return self.take_for_group(frame, clients);
        }
        let Some((place, slot)) = owner(number, slots, clients) else {
            self.nobodys += 1;
            return;
        };
        let header = header_of(frame);
        let taken = slot
            .outbox
            .add(number, &header, frame.seg_index, frame.data);
        self.lost += u64::from(!taken);
        touch(&mut self.touched, place);
    }
}

impl Found {
    /// A datagram to an IPv4 group that one socket only is a member of: Linux finds that socket
    /// early, then lets the steering program choose another of its kind, which by the queue pair
    /// number of groups is this one. Who the member is only its process knows, so each gets it.
    fn take_for_group(&mut self, frame: &RxFrame<'_>, clients: &mut BTreeMap<u64, Client>) {
        let header = header_of(frame);
        let mut nobody = true;
        for (&key, client) in clients {
            let Some(slot) = client.slots.first_mut() else {
                continue;
            };
            nobody = false;
            let taken = slot
                .outbox
                .add(slot.number, &header, frame.seg_index, frame.data);
            self.lost += u64::from(!taken);
            touch(&mut self.touched, (key, 0));
        }
        self.nobodys += u64::from(nobody);
    }
}

/// The slot that the queue pair number of groups, 0xffffff, falls into.
const GROUP_SLOT: u16 = 0xfff;

/// A client's key, and which of its slots.
pub(crate) type Place = (u64, usize);

/// The client has closed its end of a forwarding socket.
#[derive(Debug)]
pub(crate) struct Closed;

fn owner<'a>(
    number: u16,
    slots: &Slots,
    clients: &'a mut BTreeMap<u64, Client>,
) -> Option<(Place, &'a mut ClientSlot)> {
    let key = slots.owner(number)?;
    let (index, slot) = clients.get_mut(&key)?.slot_mut(number)?;
    Some(((key, index), slot))
}

fn touch(touched: &mut Vec<Place>, place: Place) {
    if !touched.contains(&place) {
        touched.push(place);
    }
}

fn header_of(frame: &RxFrame<'_>) -> Header {
    Header {
        src: frame.src,
        dst: frame.dst,
        ifindex: frame.ifindex,
        traffic_class: frame.traffic_class,
        hop_limit: frame.hop_limit,
        batch_len: frame.batch_len,
    }
}

/// Upper twelve bits of the destination QPN: bytes 5 and 6 of the BTH.
fn destination_slot(frame: &[u8]) -> Option<u16> {
    const BTH_BYTES: usize = 12;
    let bth = frame.first_chunk::<BTH_BYTES>()?;
    Some(u16::from_be_bytes([bth[5], bth[6]]) >> 4)
}
