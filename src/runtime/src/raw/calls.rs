//! The calls of verbs about raw packets.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use rocebud_ctl::DeviceInfo;
use rocebud_nic::packet::FrameSender;
use rocebud_objects::flow::{FlowAttr, FlowId, FlowSpec, Masked};
use rocebud_objects::{
    AttrMask, Errno, Misuse, PdId, QpAttr, QpInit, QpState, RateLimit, RecvWr, RxHash, SendWr,
};
use rocebud_wire::{Gid, Qpn};

use super::port::Port;
use super::qp::{RawQp, Receives};
use super::recv::RecvQueue;
use super::steer::Rule;
use super::{FlowCounts, Raw, Table, TableId, Wq};
use crate::context::{ContextShared, QpHandle, QpShared};
use crate::core::{Core, now};
use crate::cq::Cq;
use crate::objects::PostError;
use crate::runtime::{Runtime, no_descriptor};
use crate::sync::lock;

/// Rules of a process.
const FLOWS_MAX: usize = 4096;

/// States of a receive queue; values of `enum ibv_wq_state`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u32)]
pub enum WqState {
    /// Takes no frames and no receives.
    #[default]
    Reset = 0,
    /// Works.
    Ready = 1,
    /// Receives are forgotten; it must be reset.
    Err = 2,
}

impl WqState {
    /// From the ABI's number.
    #[must_use]
    pub const fn from_verbs(value: u32) -> Option<Self> {
        Some(match value {
            0 => Self::Reset,
            1 => Self::Ready,
            2 => Self::Err,
            _ => return None,
        })
    }
}

/// What a raw packet queue pair is made with, besides what every queue pair is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RawCreate {
    /// VLAN tags are taken off and told in the completion.
    pub strips_vlan: bool,
    /// Frames are spread over other queues.
    pub spread: Option<(TableId, RxHash)>,
}

const NO_QP: Misuse = Misuse::invalid("no such queue pair");
const NO_WQ: Misuse = Misuse::invalid("no such receive queue");
const ELSEWHERE: Misuse = Misuse::new(
    Errno::EOPNOTSUPP,
    "raw packets need a program in the network namespace of its daemon",
);
const DENIED: Misuse = Misuse::new(
    Errno::EPERM,
    "raw packets need CAP_NET_RAW in the network namespace of the device",
);

impl Runtime {
    /// This process may carry raw packets: it has CAP_NET_RAW where the devices are. The kernel
    /// decides, by letting it open a packet socket or not.
    ///
    /// # Errors
    /// EOPNOTSUPP: it is in another network namespace, or the system has no packet sockets. EPERM:
    /// it may not. EMFILE, ENFILE and what else a system lacks: no verdict.
    pub fn check_raw(&self) -> Result<(), Misuse> {
        if !self.is_here()? {
            return Err(ELSEWHERE);
        }
        self.check_packet_sockets()
    }

    /// This process may open packet sockets wherever it is.
    ///
    /// # Errors
    /// As [`Runtime::check_raw`], but for the namespace.
    pub fn check_packet_sockets(&self) -> Result<(), Misuse> {
        // Interface 0 is any: bound to nothing, and closed at once.
        FrameSender::open(0).map(drop).map_err(refused)
    }

    /// A raw packet queue pair. Sizes were checked by the layer above.
    ///
    /// # Errors
    /// EPERM, EOPNOTSUPP: see [`Runtime::check_raw`]. ENODEV: the interface is gone. ENOMEM: no
    /// numbers left. EINVAL: the table is gone.
    pub fn create_raw_qp(
        &self,
        context: &Arc<ContextShared>,
        init: QpInit,
        cqs: Vec<Arc<Cq>>,
        user: u64,
        raw: RawCreate,
    ) -> Result<(Arc<QpShared>, Arc<QpHandle>), Misuse> {
        self.check()?;
        self.check_raw()?;
        let device = self.device(context.ifindex).ok_or(GONE)?;
        let (mut core, qpn) = self.allocate_qpn()?;
        let made = core.raw.create_qp(qpn, &device, init, raw);
        if let Err(misuse) = made {
            core.qpns.free(qpn, now().0);
            return Err(misuse);
        }
        Ok(self.enter_qp(&mut core, qpn, context, &init, cqs, user))
    }

    pub(crate) fn modify_raw(
        &self,
        core: &mut Core,
        qp: &QpShared,
        attr: &QpAttr,
        mask: AttrMask,
    ) -> Result<(), Misuse> {
        let (raw, node, mut world) = core.split_raw(&self.shared);
        let Raw { qps, failed, .. } = raw;
        let found = qps.get_mut(&qp.qpn).ok_or(NO_QP)?;
        found.modify(attr, mask, failed, &mut world)?;
        let reset = found.state == QpState::Reset;
        raw.transmit(node, &mut world);
        if reset {
            qp.purge();
        }
        self.progress.rearm(core);
        Ok(())
    }

    pub(crate) fn set_rate_limit_raw(
        &self,
        core: &mut Core,
        qpn: Qpn,
        limit: RateLimit,
    ) -> Result<(), Misuse> {
        let (raw, node, mut world) = core.split_raw(&self.shared);
        raw.qps.get_mut(&qpn).ok_or(NO_QP)?.set_rate_limit(limit)?;
        raw.transmit(node, &mut world);
        self.progress.rearm(core);
        Ok(())
    }

    pub(crate) fn post_send_raw(
        &self,
        core: &mut Core,
        qpn: Qpn,
        wrs: impl IntoIterator<Item = Result<SendWr, Misuse>>,
    ) -> Result<(), PostError> {
        let (raw, node, mut world) = core.split_raw(&self.shared);
        self.progress.posted(world.now.0);
        let Raw { qps, failed, .. } = raw;
        let done = wrs.into_iter().enumerate().try_for_each(|(posted, wr)| {
            let qp = qps.get_mut(&qpn).ok_or(NO_QP);
            let done = qp.and_then(|qp| {
                let wr = wr?;
                qp.check_send(&wr, 0)?;
                qp.enqueue_send(wr, failed, &mut world);
                Ok(())
            });
            done.map_err(|misuse| PostError { posted, misuse })
        });
        raw.transmit(node, &mut world);
        self.progress.rearm(core);
        done
    }

    pub(crate) fn post_sends_raw(
        &self,
        core: &mut Core,
        qpn: Qpn,
        wrs: &mut Vec<SendWr>,
    ) -> Result<(), Misuse> {
        let qp = core.raw.qps.get(&qpn).ok_or(NO_QP)?;
        for (ahead, wr) in wrs.iter().enumerate() {
            qp.check_send(wr, ahead)?;
        }
        let all = wrs.drain(..).map(Ok);
        self.post_send_raw(core, qpn, all).map_err(|e| e.misuse)
    }

    pub(crate) fn post_recv_raw(
        &self,
        core: &mut Core,
        qpn: Qpn,
        wrs: impl IntoIterator<Item = Result<RecvWr, Misuse>>,
    ) -> Result<(), PostError> {
        let (raw, node, mut world) = core.split_raw(&self.shared);
        let Raw { qps, failed, .. } = raw;
        let done = wrs.into_iter().enumerate().try_for_each(|(posted, wr)| {
            let qp = qps.get_mut(&qpn).ok_or(NO_QP);
            let done = qp.and_then(|qp| qp.post_recv(wr?, failed, &mut world));
            done.map_err(|misuse| PostError { posted, misuse })
        });
        raw.settle(node, &mut world);
        done
    }

    // ---- rules

    /// A rule that steers frames to a raw packet queue pair.
    ///
    /// # Errors
    /// EINVAL: no raw packet queue pair. ENOMEM: too many rules, or descriptors.
    pub fn create_flow(
        &self,
        qp: &QpShared,
        attr: FlowAttr,
        counts: Option<Arc<FlowCounts>>,
    ) -> Result<FlowId, Misuse> {
        self.check()?;
        self.add_rule(&mut lock(&self.core), qp, attr, counts)
    }

    fn add_rule(
        &self,
        core: &mut Core,
        qp: &QpShared,
        attr: FlowAttr,
        counts: Option<Arc<FlowCounts>>,
    ) -> Result<FlowId, Misuse> {
        let raw = &mut core.raw;
        if !raw.has(qp.qpn) {
            return Err(NO_QP);
        }
        if raw.steering.len() >= FLOWS_MAX {
            return Err(Misuse::new(Errno::ENOMEM, "create_flow: too many rules"));
        }
        let id = FlowId(raw.fresh_id());
        let ifindex = qp.ifindex;
        raw.steering.add(Rule {
            id,
            qpn: qp.qpn,
            ifindex,
            attr,
            counts,
        });
        let steered = raw.steer(ifindex);
        if steered.is_err() {
            raw.steering.remove(id);
        }
        self.raw_sockets_changed(core, steered?);
        Ok(id)
    }

    /// `ibv_destroy_flow`.
    ///
    /// # Errors
    /// EINVAL: it went with its queue pair.
    pub fn destroy_flow(&self, id: FlowId) -> Result<(), Misuse> {
        let mut core = lock(&self.core);
        let rule = core.raw.steering.remove(id);
        let rule = rule.ok_or(Misuse::invalid("destroy_flow: there is no such rule"))?;
        let changed = core.raw.steer(rule.ifindex)?;
        self.raw_sockets_changed(&core, changed);
        Ok(())
    }

    /// Frames to an Ethernet group arrive at a raw packet queue pair. What other rules say of them stands:
    /// a group takes nothing from anybody, as with datagrams.
    pub(crate) fn attach_raw(&self, qp: &QpShared, group: Gid) -> Result<(), Misuse> {
        let mac = ethernet_group(group)?;
        let mut core = lock(&self.core);
        if core.raw.groups.contains_key(&(qp.qpn, mac)) {
            return Ok(());
        }
        let dst_mac = Masked {
            value: mac,
            mask: [0xff; 6],
        };
        let attr = FlowAttr {
            dont_trap: true,
            specs: vec![FlowSpec::Eth {
                dst_mac,
                src_mac: Masked::default(),
                ether_type: Masked::default(),
                vlan_tag: Masked::default(),
            }],
            ..FlowAttr::default()
        };
        let id = self.add_rule(&mut core, qp, attr, None)?;
        core.raw.groups.insert((qp.qpn, mac), id);
        Ok(())
    }

    pub(crate) fn detach_raw(&self, qp: &QpShared, group: Gid) -> Result<(), Misuse> {
        let mac = ethernet_group(group)?;
        let id = lock(&self.core).raw.groups.remove(&(qp.qpn, mac));
        let none = Misuse::invalid("detach_mcast: not attached to this group");
        self.destroy_flow(id.ok_or(none)?)
    }

    /// The progress thread must sleep on other descriptors from now on.
    fn raw_sockets_changed(&self, core: &Core, changed: bool) {
        if changed && !self.is_dead() {
            *lock(&self.sockets) = core.sockets();
            self.progress.depose_lookout();
        }
    }

    // ---- receive queues and tables

    /// A receive queue for tables; its number is taken from those of queue pairs.
    ///
    /// # Errors
    /// ENOMEM: no numbers left.
    pub fn create_wq(
        &self,
        pd: PdId,
        cq: &Arc<Cq>,
        (max_wr, max_sge): (u32, u32),
        strips_vlan: bool,
    ) -> Result<Qpn, Misuse> {
        self.check()?;
        let (mut core, number) = self.allocate_qpn()?;
        let mut queue = RecvQueue::new(pd, cq.id, number, max_wr, max_sge);
        queue.strips = strips_vlan;
        cq.users.fetch_add(1, Ordering::AcqRel);
        let wq = Wq {
            state: WqState::Reset,
            queue,
            cq: Arc::clone(cq),
            users: 0,
        };
        core.raw.wqs.insert(number, wq);
        Ok(number)
    }

    /// `ibv_modify_wq`: to a state. RESET may follow any, RDY follows RESET, ERR follows RDY.
    ///
    /// # Errors
    /// EINVAL: no such move, or not in the state that the caller believes it in.
    pub fn modify_wq(
        &self,
        number: Qpn,
        believed: Option<WqState>,
        to: Option<WqState>,
    ) -> Result<WqState, Misuse> {
        self.check()?;
        let mut core = lock(&self.core);
        let wq = core.raw.wqs.get_mut(&number).ok_or(NO_WQ)?;
        if believed.is_some_and(|state| state != wq.state) {
            return Err(Misuse::invalid("modify_wq: it is in another state"));
        }
        let to = to.unwrap_or(wq.state);
        let illegal = matches!(
            (wq.state, to),
            (WqState::Err, WqState::Ready) | (WqState::Reset, WqState::Err)
        );
        if illegal {
            return Err(Misuse::invalid(
                "modify_wq: this state cannot follow the current one",
            ));
        }
        if to != wq.state && to != WqState::Ready {
            wq.queue.clear();
        }
        if to == WqState::Reset {
            wq.cq.purge(number);
        }
        wq.state = to;
        Ok(to)
    }

    /// `ibv_post_wq_recv`.
    ///
    /// # Errors
    /// EINVAL, ENOMEM, with the position.
    pub fn post_wq_recv(
        &self,
        number: Qpn,
        wrs: impl IntoIterator<Item = Result<RecvWr, Misuse>>,
    ) -> Result<(), PostError> {
        let mut core = lock(&self.core);
        let (raw, node, mut world) = core.split_raw(&self.shared);
        let Raw { wqs, failed, .. } = raw;
        let done = wrs.into_iter().enumerate().try_for_each(|(posted, wr)| {
            let wq = wqs.get_mut(&number).ok_or(NO_WQ);
            let done = wq.and_then(|wq| {
                if wq.state != WqState::Ready {
                    return Err(Misuse::invalid("post_wq_recv: the queue is not in RDY"));
                }
                wq.queue.post(wr?)?;
                if wq.queue.unpark(failed, &mut world).is_err() {
                    wq.state = WqState::Err;
                }
                Ok(())
            });
            done.map_err(|misuse| PostError { posted, misuse })
        });
        raw.settle(node, &mut world);
        done
    }

    /// `ibv_destroy_wq`: its completions vanish.
    ///
    /// # Errors
    /// EBUSY: tables use it.
    pub fn destroy_wq(&self, number: Qpn) -> Result<(), Misuse> {
        let mut core = lock(&self.core);
        let wq = core.raw.wqs.get(&number).ok_or(NO_WQ)?;
        if wq.users != 0 {
            return Err(Misuse::new(
                Errno::EBUSY,
                "destroy_wq: indirection tables still use it; destroy them first",
            ));
        }
        if let Some(wq) = core.raw.wqs.remove(&number) {
            wq.cq.purge(number);
            wq.cq.users.fetch_sub(1, Ordering::AcqRel);
        }
        core.raw.forget_dead();
        core.qpns.free(number, now().0);
        Ok(())
    }

    /// `ibv_create_rwq_ind_table`: the queues were checked by the layer above.
    ///
    /// # Errors
    /// EINVAL: a queue is gone.
    pub fn create_table(&self, wqs: Vec<Qpn>) -> Result<TableId, Misuse> {
        self.check()?;
        let mut core = lock(&self.core);
        let raw = &mut core.raw;
        if wqs.is_empty() || !wqs.iter().all(|wq| raw.wqs.contains_key(wq)) {
            return Err(NO_WQ);
        }
        for number in &wqs {
            if let Some(wq) = raw.wqs.get_mut(number) {
                wq.users += 1;
            }
        }
        let id = TableId(raw.fresh_id());
        raw.tables.insert(id, Table { wqs, users: 0 });
        Ok(id)
    }

    /// `ibv_destroy_rwq_ind_table`.
    ///
    /// # Errors
    /// EBUSY: queue pairs use it.
    pub fn destroy_table(&self, id: TableId) -> Result<(), Misuse> {
        let mut core = lock(&self.core);
        let raw = &mut core.raw;
        let table = raw.tables.get(&id);
        let table = table.ok_or(Misuse::invalid("no such indirection table"))?;
        if table.users != 0 {
            return Err(Misuse::new(
                Errno::EBUSY,
                "destroy_rwq_ind_table: queue pairs still use it; destroy them first",
            ));
        }
        for number in raw.tables.remove(&id).into_iter().flat_map(|t| t.wqs) {
            if let Some(wq) = raw.wqs.get_mut(&number) {
                wq.users -= 1;
            }
        }
        Ok(())
    }

    /// Destroys a raw packet queue pair, and the rules that steer to it.
    pub(crate) fn remove_raw(&self, core: &mut Core, qpn: Qpn) {
        let changed = core.raw.remove_qp(qpn);
        self.raw_sockets_changed(core, changed);
    }
}

const GONE: Misuse = Misuse::new(
    Errno::ENODEV,
    "the interface of this device was removed: close it and open another",
);

/// The address of an Ethernet group: the last six bytes of a GID that is zero before them.
fn ethernet_group(Gid(bytes): Gid) -> Result<[u8; 6], Misuse> {
    match bytes {
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, mac @ ..] if mac[0] & 1 != 0 => Ok(mac),
        _ => Err(Misuse::invalid(
            "attach_mcast: a raw packet queue pair takes an Ethernet group, as the last six bytes of a GID that is \
             zero otherwise; for anything else there is ibv_create_flow",
        )),
    }
}

fn refused(error: std::io::Error) -> Misuse {
    match error.raw_os_error() {
        Some(errno) if [Errno::EPERM.0, Errno::EACCES.0].contains(&errno) => DENIED,
        Some(libc::EAFNOSUPPORT) => Misuse::new(
            Errno::EOPNOTSUPP,
            "this system has no packet sockets, or does not let this program know of them",
        ),
        Some(libc::EMFILE | libc::ENFILE) => no_descriptor("opening a packet socket", &error),
        Some(errno) => Misuse::new(Errno(errno), "the system gave no packet socket"),
        None => Misuse::new(Errno::EIO, "the system gave no packet socket"),
    }
}

impl Raw {
    fn fresh_id(&mut self) -> u32 {
        self.next_id = self.next_id.wrapping_add(1);
        self.next_id
    }

    fn create_qp(
        &mut self,
        qpn: Qpn,
        device: &DeviceInfo,
        init: QpInit,
        raw: RawCreate,
    ) -> Result<(), Misuse> {
        let receives = match raw.spread {
            Some((table, hash)) => {
                let found = self.tables.get_mut(&table);
                let found = found.ok_or(Misuse::invalid("create_qp: no such indirection table"))?;
                found.users += 1;
                Receives::Spread { table, hash }
            }
            None => {
                let (cq, cap) = (init.recv_cq, init.cap);
                let mut queue = RecvQueue::new(init.pd, cq, qpn, cap.max_recv_wr, cap.max_recv_sge);
                queue.strips = raw.strips_vlan;
                Receives::Own(queue)
            }
        };
        let port = match self.ports.remove(&device.ifindex) {
            Some(port) => Ok(port),
            None => Port::open(device.ifindex, device.loopback).map_err(refused),
        };
        let mut port = port.inspect_err(|_| self.release_table(&receives))?;
        port.users += 1;
        self.ports.insert(device.ifindex, port);
        let qp = RawQp::new(qpn, device.ifindex, init, receives);
        self.qps.insert(qpn, qp);
        Ok(())
    }

    fn release_table(&mut self, receives: &Receives) {
        if let Receives::Spread { table, .. } = receives
            && let Some(table) = self.tables.get_mut(table)
        {
            table.users -= 1;
        }
    }

    /// A queue pair may go.
    ///
    /// # Errors
    /// EBUSY: rules steer to it.
    pub(crate) fn check_removable(&self, qpn: Qpn) -> Result<(), Misuse> {
        if self.steering.has_rules_of(qpn) {
            return Err(Misuse::new(
                Errno::EBUSY,
                "destroy_qp: flow rules or groups still steer to it; destroy them, or detach it, first",
            ));
        }
        Ok(())
    }

    /// True when the descriptors changed.
    fn remove_qp(&mut self, qpn: Qpn) -> bool {
        let Some(qp) = self.qps.remove(&qpn) else {
            return false;
        };
        self.release_table(&qp.receives);
        self.steering.remove_of(qpn);
        self.groups.retain(|(of, _), _| *of != qpn);
        let changed = self.steer(qp.ifindex).unwrap_or(true);
        if let Some(port) = self.ports.get_mut(&qp.ifindex) {
            port.users -= 1;
            if port.users == 0
                && let Some(port) = self.ports.remove(&qp.ifindex)
            {
                self.lost_before += port.lost();
            }
        }
        self.forget_dead();
        changed
    }

    /// Receives of an interface what its rules want. True when the descriptors changed.
    fn steer(&mut self, ifindex: u32) -> Result<bool, Misuse> {
        let Some(port) = self.ports.get_mut(&ifindex) else {
            return Ok(false);
        };
        let filter = self.steering.filter(ifindex, port.mac, port.loopback);
        let listens = self.steering.listens(ifindex, port.mac);
        port.steer(ifindex, filter.as_ref(), &listens)
            .map_err(refused)
    }

    /// Forgets everything of a context.
    pub(crate) fn remove_of(&mut self, cqs_of: impl Fn(&Cq) -> bool) -> Vec<Qpn> {
        let of = |wq: &Wq| cqs_of(&wq.cq);
        let gone: Vec<Qpn> = self
            .wqs
            .iter()
            .filter(|(_, wq)| of(wq))
            .map(|(number, _)| *number)
            .collect();
        for number in &gone {
            if let Some(wq) = self.wqs.remove(number) {
                wq.cq.users.fetch_sub(1, Ordering::AcqRel);
            }
        }
        let stays = |table: &Table| !table.wqs.iter().any(|wq| gone.contains(wq));
        self.tables.retain(|_, table| stays(table));
        self.forget_dead();
        gone
    }

    /// State of a queue pair.
    pub(crate) fn state(&self, qpn: Qpn) -> Option<QpState> {
        self.qps.get(&qpn).map(|qp| qp.state)
    }

    /// `ibv_query_qp`.
    pub(crate) fn query(&self, qpn: Qpn) -> Option<(QpAttr, QpInit)> {
        self.qps.get(&qpn).map(RawQp::query)
    }
}
