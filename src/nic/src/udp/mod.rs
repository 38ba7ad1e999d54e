//! The UDP link: ordinary sockets, no privileges.

mod sockets;
mod steering;

pub use sockets::{
    SlotSockets, free_send_socket, receive_buffer_bytes, receive_socket, send_socket,
};
pub use steering::{SLOTS_MAX, attach_steering};

use crate::{Caps, PacketIo, RxFrame, SendReport, TxBatch};
use std::io;
use std::net::IpAddr;
use std::os::fd::RawFd;

/// UDP port of RoCE v2.
pub const ROCE_PORT: u16 = 4791;

/// Sends and receives through the sockets of one slot or more.
#[derive(Debug)]
pub struct UdpLink {
    slots: Vec<SlotSockets>,
}

impl UdpLink {
    /// Takes over the sockets of a slot, as the daemon handed them out.
    pub fn new(sockets: SlotSockets) -> io::Result<Self> {
        Ok(Self {
            slots: vec![sockets],
        })
    }

    /// Takes over the sockets of a further slot; it is received from as well.
    pub fn add_slot(&mut self, sockets: SlotSockets) -> io::Result<()> {
        self.slots.push(sockets);
        Ok(())
    }

    /// Destination port of everything sent, 4791 unless changed. For tests.
    pub fn set_peer_port(&mut self, _port: u16) {
        todo!()
    }

    /// Joins a multicast group on the receive sockets of the first slot.
    pub fn join(&self, _group: IpAddr, _ifindex: u32) -> io::Result<()> {
        todo!()
    }

    /// Leaves a multicast group.
    pub fn leave(&self, _group: IpAddr, _ifindex: u32) -> io::Result<()> {
        todo!()
    }
}

impl PacketIo for UdpLink {
    fn caps(&self, _dst: IpAddr) -> Caps {
        todo!()
    }
    fn real_sport(&self, _v6: bool, _wanted: u16) -> u16 {
        todo!()
    }
    fn send(&mut self, _batches: &[TxBatch<'_>]) -> SendReport {
        todo!()
    }
    fn recv(
        &mut self,
        _max_batches: usize,
        _sink: &mut dyn FnMut(RxFrame<'_>),
    ) -> io::Result<usize> {
        todo!()
    }
    fn look_everywhere(&mut self) {
        todo!()
    }
    fn poll_fds(&self) -> Vec<RawFd> {
        todo!()
    }
    fn rx_lost(&self) -> u64 {
        todo!()
    }
}
