//! A local address of a datagram socket: an identifier that holds the port, a UD queue pair with
//! one completion queue, and the slots that its datagrams lie in.

use core::ffi::c_int;
use std::net::{IpAddr, SocketAddr};

use rocebud_objects::{Errno, Misuse};
use rocebud_rsocket::datagram::{BUFFER_LEN, GRH_LEN, QKEY, UdHeader, payload_max};
use rocebud_rsocket::options::Options;
use rocebud_rsocket::{SharedBlock, Span};

use super::super::super::boundary::Outcome;
use super::super::super::cm::types::{PS_UDP, UD, ibv_sa_path_rec, rdma_cm_id};
use super::super::super::types::{
    Plain, ibv_ah, ibv_ah_attr, ibv_cq, ibv_port_attr, ibv_qp, ibv_qp_cap, ibv_qp_init_attr,
    ibv_recv_wr, ibv_send_wr, ibv_sge, ibv_wc,
};
use super::super::completions::{Completions, Look};
use super::super::memory::Memory;
use super::super::verbs::{self, LOCAL_WRITE, Ops};
use super::udp;

/// `IBV_WR_SEND`, `IBV_SEND_SIGNALED`, `IBV_SEND_INLINE`
const SEND: u32 = 2;
const SIGNALED: u32 = 1 << 1;
const INLINE: u32 = 1 << 3;

/// In a `wr_id`: a receive.
const RECEIVE: u64 = 1 << 63;

/// Time for the loopback's own address to be resolved, in ms.
const RESOLVE_MS: c_int = 2000;

const SLOT: u32 = BUFFER_LEN as u32;

/// See the module.
pub(super) struct End {
    pub(super) local: SocketAddr,
    id: *mut rdma_cm_id,
    qp: *mut ibv_qp,
    completions: Option<Completions>,
    ops: Option<Ops>,
    slots: Option<Slots>,
    /// Slots of sends that are not on their way.
    free: Vec<u32>,
    inline: u32,
    pub(super) qpn: u32,
    /// Bytes of user data of one datagram at most.
    pub(super) payload_max: usize,
    /// The device has gone, and everything was flushed.
    pub(super) dead: bool,
}

/// Behind the receive slots are 40 bytes for the GRHs of all of them, which nobody reads.
struct Slots {
    receive: Memory,
    send: Memory,
    receives: u32,
}

/// A datagram in a receive slot.
pub(super) struct Arrived {
    pub(super) from: SocketAddr,
    pub(super) slot: u32,
    /// Where the user data lie.
    pub(super) data: Span,
}

/// Slots for sends, and for receives: what the buffers and the queues hold, as upstream counts.
fn sizes(options: &Options) -> (u32, u32) {
    let c = options.config.clamped();
    let of = |ring: u32, queue: u16| (ring / SLOT).clamp(1, u32::from(queue));
    (
        of(c.send_ring, c.send_queue),
        of(c.receive_ring, c.receive_queue),
    )
}

impl End {
    /// Makes everything for an address, and posts all receives. Where the kernel chose the port,
    /// `any_port` will do: on the wire it is the UDP socket's that counts.
    pub(super) fn new(local: SocketAddr, options: &Options, any_port: bool) -> Outcome<Self> {
        let mut this = Self {
            local,
            id: core::ptr::null_mut(),
            qp: core::ptr::null_mut(),
            completions: None,
            ops: None,
            slots: None,
            free: Vec::new(),
            inline: 0,
            qpn: 0,
            payload_max: 0,
            dead: false,
        };
        let made = this
            .take_port(options, any_port)
            .and_then(|()| this.furnish(options));
        match made {
            Ok(()) => Ok(this),
            Err(e) => {
                this.close();
                Err(e)
            }
        }
    }

    fn take_port(&mut self, options: &Options, any_port: bool) -> Outcome<()> {
        let (channel, context) = (core::ptr::null_mut(), core::ptr::null_mut());
        // SAFETY: room for the identifier; its own channel.
        let code = unsafe { verbs::rdma_create_id(channel, &raw mut self.id, context, PS_UDP) };
        verbs::checked(code, "no identifier for the socket")?;
        if options.reuse_address {
            verbs::reuse_address(self.id);
        }
        let bind = |to: SocketAddr| {
            // SAFETY: a living identifier, and an address of its family's length.
            let code = unsafe { verbs::rdma_bind_addr(self.id, udp::emit(to).0.as_ptr()) };
            verbs::checked(
                code,
                "no RDMA device has this address, or its port is taken",
            )
        };
        let taken = Errno(libc::EADDRINUSE);
        match bind(self.local) {
            Err(e) if any_port && e.errno == taken => bind(SocketAddr::new(self.local.ip(), 0))?,
            other => other?,
        }
        // SAFETY: a living identifier.
        if unsafe { (*self.id).verbs }.is_null() {
            // A loopback address names no device until somebody is to be reached by it.
            let name = udp::emit(self.local).0;
            let from = core::ptr::null();
            // SAFETY: a living identifier whose calls wait, and an address as above.
            let code =
                unsafe { verbs::rdma_resolve_addr(self.id, from, name.as_ptr(), RESOLVE_MS) };
            verbs::checked(code, "no RDMA device has this address")?;
        }
        Ok(())
    }

    fn furnish(&mut self, options: &Options) -> Outcome<()> {
        // SAFETY: a living identifier of the socket.
        let rdma_cm_id {
            verbs: context, pd, ..
        } = unsafe { self.id.read() };
        if context.is_null() {
            let gone = Errno(libc::ENODEV);
            return Err(Misuse::new(gone, "no RDMA device has this address"));
        }
        let (sends, receives) = sizes(options);
        let completions = Completions::new(context, sends + receives)?;
        let cq = completions.cq();
        self.ops = Some(completions.ops());
        self.completions = Some(completions);
        self.create_qp(cq, (sends, receives), options)?;
        let v6 = self.local.is_ipv6();
        self.payload_max = payload_max(v6, path_mtu(self.id)?);
        let receive = Memory::new(pd, receives as usize * BUFFER_LEN + GRH_LEN, LOCAL_WRITE)?;
        match Memory::new(pd, sends as usize * BUFFER_LEN, LOCAL_WRITE) {
            Ok(send) => {
                self.slots = Some(Slots {
                    receive,
                    send,
                    receives,
                });
            }
            Err(e) => {
                receive.close();
                return Err(e);
            }
        }
        self.free = (0..sends).rev().collect();
        for slot in 0..receives {
            self.post_receive(slot);
        }
        Ok(())
    }

    fn create_qp(
        &mut self,
        cq: *mut ibv_cq,
        (sends, receives): (u32, u32),
        options: &Options,
    ) -> Outcome<()> {
        let mut init = ibv_qp_init_attr::zeroed();
        init.send_cq = cq;
        init.recv_cq = cq;
        init.qp_type = UD;
        init.sq_sig_all = 1;
        init.cap = ibv_qp_cap {
            max_send_wr: sends,
            max_recv_wr: receives,
            max_send_sge: 1,
            max_recv_sge: 2,
            max_inline_data: u32::from(options.config.inline),
        };
        // SAFETY: a living identifier bound to a device.
        let pd = unsafe { (*self.id).pd };
        // SAFETY: as above, its protection domain, and an initialised structure.
        let code = unsafe { verbs::rdma_create_qp(self.id, pd, &raw mut init) };
        verbs::checked(code, "no queue pair for the socket")?;
        self.inline = init.cap.max_inline_data;
        // SAFETY: made just now, and the identifier lives.
        self.qp = unsafe { (*self.id).qp };
        // SAFETY: a living queue pair.
        self.qpn = unsafe { (*self.qp).qp_num };
        Ok(())
    }

    /// Destroys everything.
    pub(super) fn close(self) {
        if !self.qp.is_null() {
            // SAFETY: the identifier's own queue pair.
            unsafe { verbs::rdma_destroy_qp(self.id) };
        }
        if let Some(slots) = self.slots {
            slots.receive.close();
            slots.send.close();
        }
        if let Some(completions) = self.completions {
            completions.close();
        }
        if !self.id.is_null() {
            // SAFETY: nothing of it is left.
            unsafe { verbs::rdma_destroy_id(self.id) };
        }
    }

    pub(super) const fn completions(&self) -> Option<&Completions> {
        self.completions.as_ref()
    }

    /// A datagram could be sent.
    pub(super) const fn can_send(&self) -> bool {
        !self.free.is_empty()
    }

    /// Nothing is on its way.
    pub(super) fn is_quiet(&self) -> bool {
        let sends = self.slots.as_ref().map_or(0, |s| s.send.len() / BUFFER_LEN);
        self.dead || self.free.len() == sends
    }

    /// Takes completions: what came goes to `into`.
    pub(super) fn look(&mut self, how: Look, mut into: impl FnMut(Arrived) -> bool) {
        // Out of the end for the time, which changes otherwise.
        let Some(completions) = self.completions.take() else {
            return;
        };
        completions.take(how, |wc| self.completed(wc, &mut into));
        self.completions = Some(completions);
    }

    fn completed(&mut self, wc: &ibv_wc, into: &mut impl FnMut(Arrived) -> bool) {
        let slot = u32::try_from(wc.wr_id & !RECEIVE).unwrap_or(0);
        if wc.wr_id & RECEIVE == 0 {
            self.free.push(slot);
            return;
        }
        if wc.status != 0 {
            // Only a queue pair in Err flushes receives, and this one is never moved there.
            self.dead = true;
            return;
        }
        let kept = self.read(slot, wc.byte_len).is_some_and(into);
        if !kept {
            self.post_receive(slot);
        }
    }

    /// Reads the header in a slot.
    fn read(&self, slot: u32, byte_len: u32) -> Option<Arrived> {
        let len = byte_len.checked_sub(GRH_LEN as u32)?;
        let mut header = [0; 24];
        let memory = &self.slots.as_ref()?.receive;
        memory.read(slot as usize * BUFFER_LEN, &mut header);
        let known = header.get(..header.len().min(len as usize))?;
        let v6 = self.local.is_ipv6();
        let (header, _) = UdHeader::parse(known, v6)?;
        let before = u32::try_from(header.emit().as_ref().len()).ok()?;
        let at = slot * SLOT + before;
        Some(Arrived {
            from: named(header.name(scope(self.local))),
            slot,
            data: Span {
                at,
                len: len.checked_sub(before)?,
            },
        })
    }

    /// Copies a datagram's bytes to the program.
    pub(super) fn copy_out(&self, data: Span, to: *mut u8) {
        if let Some(slots) = &self.slots {
            slots.receive.copy_out(data, to);
        }
    }

    /// Offers a slot to the device.
    pub(super) fn post_receive(&self, slot: u32) {
        let (Some(slots), Some(ops)) = (&self.slots, &self.ops) else {
            return;
        };
        let lkey = slots.receive.lkey();
        let mut list = [
            ibv_sge {
                addr: slots.receive.address(slots.receives * SLOT),
                length: GRH_LEN as u32,
                lkey,
            },
            ibv_sge {
                addr: slots.receive.address(slot * SLOT),
                length: SLOT,
                lkey,
            },
        ];
        let mut wr = ibv_recv_wr::zeroed();
        wr.wr_id = RECEIVE | u64::from(slot);
        wr.sg_list = list.as_mut_ptr();
        wr.num_sge = 2;
        // A dead queue pair takes no more; no other failure is left.
        ops.receive(self.qp, &raw mut wr);
    }

    /// Sends a datagram of pieces of the program's, `len` bytes in all, to an address handle.
    pub(super) fn send(
        &mut self,
        to: (*mut ibv_ah, u32),
        pieces: &[(*mut u8, usize)],
        len: usize,
    ) -> Outcome<()> {
        const GONE: Misuse = Misuse::new(Errno::EIO, "the RDMA device of the socket has gone");
        const FULL: Misuse = Misuse::new(Errno::EAGAIN, "every slot is on its way");
        let (Some(slots), Some(ops)) = (&self.slots, &self.ops) else {
            return Err(GONE);
        };
        let slot = *self.free.last().ok_or(FULL)?;
        let header = UdHeader::of(self.local).emit();
        let header = header.as_ref();
        let mut at = slot * SLOT;
        let own = (header.as_ptr(), header.len());
        let theirs = pieces.iter().map(|&(from, len)| (from.cast_const(), len));
        for (from, len) in core::iter::once(own).chain(theirs) {
            let len = u32::try_from(len).unwrap_or(u32::MAX);
            slots.send.copy_in(Span { at, len }, from);
            at = at.saturating_add(len);
        }
        let whole = u32::try_from(header.len() + len).unwrap_or(u32::MAX);
        let mut sge = ibv_sge {
            addr: slots.send.address(slot * SLOT),
            length: whole,
            lkey: slots.send.lkey(),
        };
        let mut wr = ibv_send_wr::zeroed();
        wr.wr_id = u64::from(slot);
        wr.sg_list = &raw mut sge;
        wr.num_sge = 1;
        wr.opcode = SEND;
        wr.send_flags = SIGNALED | if whole <= self.inline { INLINE } else { 0 };
        wr.set_ud(to.0, to.1, QKEY);
        if !ops.send(self.qp, &mut wr) {
            return Err(GONE);
        }
        self.free.pop();
        Ok(())
    }

    /// An address handle along a resolved path.
    pub(super) fn handle(&self, path: &ibv_sa_path_rec) -> Outcome<*mut ibv_ah> {
        let mut attr = ibv_ah_attr::zeroed();
        attr.grh.dgid = path.dgid;
        attr.grh.flow_label = u32::from_be(path.flow_label);
        attr.grh.sgid_index = verbs::gid_index(self.id, &path.sgid)?;
        attr.grh.hop_limit = path.hop_limit;
        attr.grh.traffic_class = path.traffic_class;
        // RoCE has no other way than by GIDs, whatever the hop limit.
        attr.is_global = 1;
        attr.sl = path.sl;
        attr.static_rate = path.rate;
        // SAFETY: a living identifier bound to a device.
        let rdma_cm_id { pd, port_num, .. } = unsafe { self.id.read() };
        attr.port_num = port_num;
        // SAFETY: a living protection domain, and the attributes.
        let ah = unsafe { verbs::ibv_create_ah(pd, &raw mut attr) };
        verbs::made(ah, "no address handle to the peer")
    }
}

/// Bytes of a packet's payload on the way from an identifier's device.
fn path_mtu(id: *mut rdma_cm_id) -> Outcome<usize> {
    let mut port = ibv_port_attr::zeroed();
    // SAFETY: a living identifier bound to a device.
    let bound = unsafe { id.read() };
    // SAFETY: a living context, and room for the answer.
    let code = unsafe { verbs::ibv_query_port(bound.verbs, bound.port_num, &raw mut port) };
    if code != 0 {
        return Err(Misuse::new(
            Errno(code),
            "the device says nothing of its port",
        ));
    }
    let n = u32::try_from(port.active_mtu).unwrap_or(1);
    Ok(128_usize << n.min(5))
}

/// Only link-local addresses have a scope.
fn scope(of: SocketAddr) -> u32 {
    match of {
        SocketAddr::V6(a) => a.scope_id(),
        SocketAddr::V4(_) => 0,
    }
}

/// As a key: without flow information, and a scope only where it means something.
pub(super) fn named(mut name: SocketAddr) -> SocketAddr {
    if let SocketAddr::V6(a) = &mut name {
        a.set_flowinfo(0);
        if !a.ip().is_unicast_link_local() {
            a.set_scope_id(0);
        }
    }
    name
}

/// The same address, without a port.
pub(super) fn portless(name: SocketAddr) -> SocketAddr {
    let mut out = name;
    out.set_port(0);
    out
}

/// Whether an address may be that of an end.
pub(super) fn is_of_a_host(ip: IpAddr) -> bool {
    !ip.is_unspecified() && !ip.is_multicast()
}
