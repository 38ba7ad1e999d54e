//! Slot 0: frames that nobody owns, and frames on their way to the right slot.

use std::collections::BTreeMap;
use std::io;

use rocebud_ctl::forward::{HEADER_BYTES, Header, MESSAGE_BYTES_MAX};
use rocebud_nic::udp::{SlotSockets, UdpLink};
use rocebud_nic::{PacketIo, RxFrame};
use rocebud_objects::Counter;
use rustix::io::Errno;

use crate::clients::Client;
use crate::group::Group;
use crate::limits::FRAMES_PER_TURN;
use crate::slots::Slots;

/// The daemon's own sockets and what it counted.
#[derive(Debug)]
pub(crate) struct Slot0 {
    link: UdpLink,
    counts: BTreeMap<&'static str, u64>,
    buf: Vec<u8>,
}

impl Slot0 {
    pub(crate) fn new(group: &Group) -> io::Result<Self> {
        let (recv_v4, recv_v6) = group.own_sockets()?.ok_or(io::ErrorKind::NotFound)?;
        let link = UdpLink::new(SlotSockets {
            recv_v4,
            recv_v6,
            send_v4: Vec::new(),
            send_v6: Vec::new(),
        })?;
        Ok(Self {
            link,
            counts: BTreeMap::new(),
            buf: vec![0; MESSAGE_BYTES_MAX],
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
    /// queued before the steering changed; it is handed on.
    pub(crate) fn receive(&mut self, slots: &Slots, clients: &BTreeMap<u64, Client>) {
        let mut found = Vec::new();
        let buf = &mut self.buf;
        self.link.look_everywhere();
        let outcome = self.link.recv(FRAMES_PER_TURN, &mut |frame: RxFrame<'_>| {
            found.push(hand_on(&frame, buf, slots, clients));
        });
        if let Err(error) = outcome {
            crate::log::debug(&format!("receiving at slot 0: {error}"));
        }
        self.count(Counter::RcvdPkts, found.len() as u64);
        for counter in found {
            self.count(counter, 1);
        }
    }

    /// Takes what a client wants handed on. Only to processes of the same user: the header's
    /// source address is the sender's word. False when the client has closed its end.
    pub(crate) fn hand_over(
        &mut self,
        from: &Client,
        slot_index: usize,
        slots: &Slots,
        clients: &BTreeMap<u64, Client>,
    ) -> bool {
        let Some(slot) = from.slots.get(slot_index) else {
            return false;
        };
        for _ in 0..FRAMES_PER_TURN {
            let got = match rocebud_ctl::channel::recv(&slot.forward, &mut self.buf) {
                Ok(got) if got.bytes > 0 => got,
                Err(Errno::AGAIN) => return true,
                Ok(_) | Err(_) => return false,
            };
            let message = self.buf.get(..got.bytes).unwrap_or_default();
            let frame = Header::decode(message).map(|(_, frame)| frame);
            let counter = match frame.map(destination_slot) {
                None | Some(None) => Counter::DropMalformed,
                Some(Some(slot)) => {
                    let owner = slots.owner(slot).and_then(|key| clients.get(&key));
                    match owner.filter(|owner| owner.ids.uid == from.ids.uid) {
                        Some(owner) if owner.forward(slot, message) => Counter::Forwarded,
                        Some(_) => Counter::SocketOverflow,
                        None => Counter::DropNoQp,
                    }
                }
            };
            self.count(counter, 1);
        }
        true
    }
}

fn hand_on(
    frame: &RxFrame<'_>,
    buf: &mut [u8],
    slots: &Slots,
    clients: &BTreeMap<u64, Client>,
) -> Counter {
    let Some(slot) = destination_slot(frame.data) else {
        return Counter::DropMalformed;
    };
    let Some(owner) = slots.owner(slot).and_then(|key| clients.get(&key)) else {
        return Counter::DropNoQp;
    };
    let header = Header {
        src: frame.src,
        dst: frame.dst,
        ifindex: frame.ifindex,
        traffic_class: frame.traffic_class,
        hop_limit: frame.hop_limit,
        seg_index: frame.seg_index,
        batch_len: frame.batch_len,
    };
    let Some(message) = buf.get_mut(..HEADER_BYTES + frame.data.len()) else {
        return Counter::DropMalformed;
    };
    let (head, body) = message.split_at_mut(HEADER_BYTES);
    head.copy_from_slice(&header.encode());
    body.copy_from_slice(frame.data);
    match owner.forward(slot, message) {
        true => Counter::Forwarded,
        false => Counter::SocketOverflow,
    }
}

/// Upper twelve bits of the destination QPN: bytes 5 and 6 of the BTH.
fn destination_slot(frame: &[u8]) -> Option<u16> {
    const BTH_BYTES: usize = 12;
    let bth = frame.first_chunk::<BTH_BYTES>()?;
    Some(u16::from_be_bytes([bth[5], bth[6]]) >> 4)
}
