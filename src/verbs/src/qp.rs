//! Queue pairs.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use rocebud_objects::{
    AttrMask, CqId, Errno, Misuse, Payload, QpAttr, QpCap, QpInit, QpState, QpType, RateLimit,
    RecvWr, RxHash, SendWr, Sge,
};
use rocebud_runtime::context::{QpHandle, QpShared};
use rocebud_runtime::{RawCreate, Runtime, ports};
use rocebud_wire::{Gid, Qpn};

pub use rocebud_runtime::PostError;

use crate::attrs::limits;
use crate::pd::PdUse;
use crate::raw::is_no_right;
use crate::xrc::XrcdUse;
use crate::{Context, Cq, IndTable, Pd, Srq, Xrcd};

/// What `create_qp` is told; `struct ibv_qp_init_attr`.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "the names are those of verbs.h")]
pub struct QpCreate {
    pub qp_type: QpType,
    pub send_cq: Cq,
    pub recv_cq: Cq,
    pub srq: Option<Srq>,
    pub cap: QpCap,
    pub sq_sig_all: bool,
    /// Of raw packets: VLAN tags are taken off and told in the completion.
    pub strips_vlan: bool,
    /// What asynchronous events give back.
    pub user: u64,
}

impl QpCreate {
    /// Sixteen requests each way, one SGE each.
    #[must_use]
    pub fn new(qp_type: QpType, send_cq: &Cq, recv_cq: &Cq) -> Self {
        Self {
            qp_type,
            send_cq: send_cq.clone(),
            recv_cq: recv_cq.clone(),
            srq: None,
            cap: QpCap {
                max_send_wr: 16,
                max_recv_wr: 16,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: 0,
            },
            sq_sig_all: false,
            strips_vlan: false,
            user: 0,
        }
    }
}

/// A queue pair, as one creation or one `ibv_open_qp` gave it.
#[derive(Clone, Debug)]
pub struct Qp {
    inner: Arc<Opened>,
}

/// One handle of a queue pair: with its last one the queue pair goes.
#[derive(Debug)]
struct Opened {
    context: Context,
    handle: Arc<QpHandle>,
    real: Arc<Real>,
    xrcd: Option<XrcdUse>,
    gone: AtomicBool,
}

/// What all handles of a queue pair have in common.
#[derive(Debug)]
struct Real {
    shared: Arc<QpShared>,
    init: QpInit,
    pd: PdUse,
    /// Keep what it uses alive, as handles. Rust drops them after the queue pair is destroyed.
    _uses: (Vec<Cq>, Option<Srq>),
    _table: Option<IndTable>,
}

/// A queue pair that may be gone.
#[derive(Clone, Debug)]
pub(crate) struct WeakQp(Weak<Real>);

impl WeakQp {
    pub(crate) fn is_alive(&self) -> bool {
        self.0.strong_count() != 0
    }

    /// One handle more, unless the queue pair is destroyed.
    pub(crate) fn open(&self, context: &Context, xrcd: &Xrcd) -> Option<Qp> {
        let real = self.0.upgrade()?;
        let runtime = context.runtime();
        let handle = runtime.open_qp(&real.shared, context.shared(), 0)?;
        Some(Qp::opened(context, handle, real, Some(xrcd)))
    }
}

impl Qp {
    pub(crate) fn create(pd: &Pd, create: &QpCreate) -> Result<Self, Misuse> {
        let context = pd.context().clone();
        check_create(&context, create)?;
        let init = QpInit {
            qp_type: create.qp_type,
            pd: pd.id(),
            send_cq: create.send_cq.shared().id,
            recv_cq: create.recv_cq.shared().id,
            srq: create.srq.as_ref().map(Srq::id),
            xrcd: None,
            cap: granted(create),
            sq_sig_all: create.sq_sig_all,
        };
        let cqs = vec![create.send_cq.clone(), create.recv_cq.clone()];
        if create.qp_type == QpType::RawPacket {
            let raw = RawCreate {
                strips_vlan: create.strips_vlan,
                spread: None,
            };
            return Self::make_raw(pd, init, cqs, raw, None, create.user);
        }
        Self::make(pd, init, (cqs, create.srq.clone()), None, create.user)
    }

    /// A queue pair that only receives, into the queues of a table.
    pub(crate) fn create_spreading(
        pd: &Pd,
        table: &IndTable,
        hash: RxHash,
        user: u64,
    ) -> Result<Self, Misuse> {
        if !table.is_of(pd.context()) || !hash.fields.is_valid() {
            return Err(Misuse::invalid(
                "create_qp: the table is gone or of another open device, or the hash mixes \
                 IPv4 with IPv6, or TCP with UDP",
            ));
        }
        let init = QpInit {
            qp_type: QpType::RawPacket,
            pd: pd.id(),
            send_cq: CqId::NONE,
            recv_cq: CqId::NONE,
            srq: None,
            xrcd: None,
            cap: QpCap::default(),
            sq_sig_all: false,
        };
        let raw = RawCreate {
            strips_vlan: false,
            spread: Some((table.id(), hash)),
        };
        Self::make_raw(pd, init, Vec::new(), raw, Some(table.clone()), user)
    }

    fn make_raw(
        pd: &Pd,
        init: QpInit,
        cqs: Vec<Cq>,
        raw: RawCreate,
        table: Option<IndTable>,
        user: u64,
    ) -> Result<Self, Misuse> {
        let context = pd.context().clone();
        let shared = cqs.iter().map(|cq| Arc::clone(cq.shared())).collect();
        let runtime = context.runtime();
        let (shared, handle) = runtime.create_raw_qp(context.shared(), init, shared, user, raw)?;
        let real = Real {
            shared,
            init,
            pd: pd.hold(),
            _uses: (cqs, None),
            _table: table,
        };
        Ok(Self::opened(&context, handle, Arc::new(real), None))
    }

    /// The serving end of an extended reliable connection.
    pub(crate) fn create_target(pd: &Pd, xrcd: &Xrcd, user: u64) -> Result<Self, Misuse> {
        let init = QpInit {
            qp_type: QpType::XrcRecv,
            pd: pd.id(),
            send_cq: CqId::NONE,
            recv_cq: CqId::NONE,
            srq: None,
            xrcd: Some(xrcd.id()),
            cap: QpCap::default(),
            sq_sig_all: false,
        };
        Self::make(pd, init, (Vec::new(), None), Some(xrcd), user)
    }

    fn make(
        pd: &Pd,
        init: QpInit,
        uses: (Vec<Cq>, Option<Srq>),
        xrcd: Option<&Xrcd>,
        user: u64,
    ) -> Result<Self, Misuse> {
        let context = pd.context().clone();
        let cqs = uses.0.iter().map(|cq| Arc::clone(cq.shared())).collect();
        let runtime = context.runtime();
        let (shared, handle) = runtime.create_qp(context.shared(), init, cqs, user)?;
        let real = Real {
            shared,
            init,
            pd: pd.hold(),
            _uses: uses,
            _table: None,
        };
        Ok(Self::opened(&context, handle, Arc::new(real), xrcd))
    }

    fn opened(
        context: &Context,
        handle: Arc<QpHandle>,
        real: Arc<Real>,
        xrcd: Option<&Xrcd>,
    ) -> Self {
        Self {
            inner: Arc::new(Opened {
                context: context.clone(),
                handle,
                real,
                xrcd: xrcd.map(Xrcd::hold),
                gone: AtomicBool::new(false),
            }),
        }
    }

    pub(crate) fn downgrade(&self) -> WeakQp {
        WeakQp(Arc::downgrade(&self.inner.real))
    }

    #[inline]
    fn check(&self) -> Result<(), Misuse> {
        self.inner.context.check()?;
        if self.inner.gone.load(Ordering::Acquire) {
            return Err(Misuse::invalid("the queue pair was destroyed"));
        }
        Ok(())
    }

    /// This process may use the queue pair at all.
    ///
    /// # Errors
    /// EIO: a child made by fork.
    #[inline]
    pub fn check_process(&self) -> Result<(), Misuse> {
        if self.runtime().is_inherited() {
            self.inner.context.check()?;
        }
        Ok(())
    }

    fn runtime(&self) -> &Runtime {
        self.inner.context.runtime()
    }

    pub(crate) fn context(&self) -> &Context {
        &self.inner.context
    }

    pub(crate) fn shared(&self) -> &Arc<QpShared> {
        &self.inner.real.shared
    }

    pub(crate) fn pd(&self) -> &Pd {
        self.inner.real.pd.pd()
    }

    /// Its number.
    #[must_use]
    pub fn qpn(&self) -> Qpn {
        self.inner.real.shared.qpn
    }

    /// Its type.
    #[must_use]
    pub fn qp_type(&self) -> QpType {
        self.inner.real.init.qp_type
    }

    /// Sizes granted.
    #[must_use]
    pub fn cap(&self) -> QpCap {
        self.inner.real.init.cap
    }

    /// `ibv_modify_qp`. On an error nothing has changed.
    ///
    /// # Errors
    /// EINVAL: move, mask or value. ENETUNREACH, EHOSTUNREACH: no route to the destination.
    pub fn modify(&self, attr: &QpAttr, mask: AttrMask) -> Result<(), Misuse> {
        self.check()?;
        let path = if mask.contains(AttrMask::AV) {
            let device = self.inner.context.device_info();
            let path = ports::resolve(Some(&device), &attr.ah_attr)?;
            self.runtime().check_route(&path)?;
            Some(path)
        } else {
            None
        };
        let qp = &self.inner.real.shared;
        self.runtime().modify_qp(qp, attr, mask, path)?;
        if let Some(path) = path {
            self.runtime().meet(&path);
        }
        Ok(())
    }

    /// This process may use Q_Keys of bit 31: it has CAP_NET_RAW. The kernel decides, by letting it
    /// open a packet socket or not.
    ///
    /// # Errors
    /// EPERM: it may not. EMFILE, ENFILE and what else a system lacks: no verdict.
    pub fn check_controlled_qkey(&self) -> Result<(), Misuse> {
        const DENIED: Misuse = Misuse::new(
            Errno::EPERM,
            "ibv_modify_qp: a controlled Q_Key (bit 31) needs CAP_NET_RAW",
        );
        let answer = self.runtime().check_packet_sockets();
        answer.map_err(|why| if is_no_right(&why) { DENIED } else { why })
    }

    /// `ibv_query_qp_data_in_order`: messages to a connected queue pair, and READ responses, are
    /// placed byte by byte in ascending order, SENDs along their scatter list. The network header
    /// in front of a datagram has no place in that order.
    #[must_use]
    pub fn places_in_order(&self) -> bool {
        self.qp_type() != QpType::Ud && self.runtime().places_in_order()
    }

    /// `ibv_modify_qp_rate_limit`: how fast requests leave from now on, until RESET.
    ///
    /// # Errors
    /// EINVAL: not in RTS.
    pub fn set_rate_limit(&self, limit: RateLimit) -> Result<(), Misuse> {
        self.check()?;
        self.runtime().set_rate_limit(self.qpn(), limit)
    }

    /// `ibv_query_qp`; everything is filled.
    ///
    /// # Errors
    /// EINVAL: destroyed.
    pub fn query(&self) -> Result<(QpAttr, QpInit), Misuse> {
        if self.inner.context.runtime().is_inherited() {
            self.inner.context.check()?;
        }
        if self.inner.gone.load(Ordering::Acquire) || !self.inner.context.is_open() {
            return Err(Misuse::invalid(
                "the queue pair was destroyed or its device closed",
            ));
        }
        self.runtime().query_qp(self.qpn())
    }

    /// State now; ERR once it is destroyed or the device is dead.
    #[must_use]
    pub fn state(&self) -> QpState {
        if self.check().is_err() {
            return QpState::Err;
        }
        self.runtime().qp_state(self.qpn()).unwrap_or(QpState::Err)
    }

    /// `ibv_post_send` of one request.
    ///
    /// # Errors
    /// EINVAL: state, opcode for this type, sizes. ENOMEM: the send queue is full.
    pub fn post_send(&self, wr: SendWr) -> Result<(), Misuse> {
        self.post_send_list([Ok(wr)]).map_err(|e| e.misuse)
    }

    /// `ibv_post_send` of a list: stops at the first that is refused (by us or by the iterator);
    /// earlier ones stay posted and leave together. The iterator must call no verb.
    ///
    /// # Errors
    /// As [`Qp::post_send`], with the position.
    pub fn post_send_list(
        &self,
        wrs: impl IntoIterator<Item = Result<SendWr, Misuse>>,
    ) -> Result<(), PostError> {
        self.check()
            .map_err(|misuse| PostError { posted: 0, misuse })?;
        self.runtime().post_send(self.qpn(), wrs)
    }

    /// `ibv_wr_complete`: posts all of `wrs`, which leave together, or, when one is refused, none.
    /// On success `wrs` is empty.
    ///
    /// # Errors
    /// As [`Qp::post_send`].
    pub fn post_sends(&self, wrs: &mut Vec<SendWr>) -> Result<(), Misuse> {
        self.check()?;
        self.runtime().post_sends(self.qpn(), wrs)
    }

    /// Copies what `sges` name (their keys are not looked at) for a request with INLINE. May be
    /// called by the iterator of [`Qp::post_send_list`].
    ///
    /// # Errors
    /// EINVAL: longer than `max_inline_data`, added up in 64 bits. EFAULT: memory not there.
    pub fn gather_inline(&self, sges: &[Sge]) -> Result<Payload, Misuse> {
        let total: u64 = sges.iter().map(|s| u64::from(s.length)).sum();
        if total > u64::from(self.cap().max_inline_data) {
            return Err(Misuse::invalid(
                "post_send: more bytes inline than max_inline_data of the queue pair",
            ));
        }
        let mut bytes = vec![0; usize::try_from(total).unwrap_or(0)].into_boxed_slice();
        let mut rest = &mut bytes[..];
        for sge in sges {
            let (piece, after) = rest.split_at_mut(sge.length as usize);
            rest = after;
            let copied = usize::try_from(sge.addr)
                .ok()
                .filter(|_| !piece.is_empty())
                .map_or(Ok(()), |addr| rocebud_runtime::copy_in(piece, addr));
            copied.map_err(|_| {
                Misuse::new(Errno::EFAULT, "post_send: inline data is not in memory")
            })?;
        }
        Ok(Payload::Inline(bytes))
    }

    /// `ibv_post_recv` of one request.
    ///
    /// # Errors
    /// EINVAL: RESET, too many SGEs, or the queue pair has an SRQ. ENOMEM: full.
    pub fn post_recv(&self, wr: RecvWr) -> Result<(), Misuse> {
        self.post_recv_list([Ok(wr)]).map_err(|e| e.misuse)
    }

    /// `ibv_post_recv` of a list; see [`Qp::post_send_list`].
    ///
    /// # Errors
    /// As [`Qp::post_recv`], with the position.
    pub fn post_recv_list(
        &self,
        wrs: impl IntoIterator<Item = Result<RecvWr, Misuse>>,
    ) -> Result<(), PostError> {
        self.check()
            .map_err(|misuse| PostError { posted: 0, misuse })?;
        self.runtime().post_recv(self.qpn(), wrs)
    }

    /// `ibv_attach_mcast`; joins the group on the network too.
    ///
    /// # Errors
    /// EINVAL: not UD, or not multicast. ENOMEM: too many.
    pub fn attach_mcast(&self, group: Gid) -> Result<(), Misuse> {
        self.check()?;
        self.runtime().attach_mcast(&self.inner.real.shared, group)
    }

    /// `ibv_detach_mcast`.
    ///
    /// # Errors
    /// EINVAL: not attached.
    pub fn detach_mcast(&self, group: Gid) -> Result<(), Misuse> {
        self.check()?;
        self.runtime().detach_mcast(&self.inner.real.shared, group)
    }

    /// `ibv_destroy_qp`: with its last handle its completions vanish; waits until every event of
    /// this handle that was taken is acknowledged.
    ///
    /// # Errors
    /// EBUSY: attached to a multicast group. EINVAL: done already.
    pub fn destroy(&self) -> Result<(), Misuse> {
        let inner = &self.inner;
        let runtime = self.runtime();
        if runtime.is_inherited() {
            return inner.context.check();
        }
        if inner.gone.swap(true, Ordering::AcqRel) {
            return Err(Misuse::invalid("destroy_qp: done already"));
        }
        if inner.context.is_open() {
            match runtime.destroy_qp(&inner.real.shared, &inner.handle) {
                Ok(true) => inner.real.pd.release(),
                Ok(false) => {}
                Err(refused) => {
                    inner.gone.store(false, Ordering::Release);
                    return Err(refused);
                }
            }
        } else {
            inner.real.pd.release();
        }
        if let Some(xrcd) = &inner.xrcd {
            xrcd.release();
        }
        Ok(())
    }

    /// `ibv_ack_async_event`, by object: acknowledges `n` asynchronous events taken.
    pub fn ack_async_events(&self, n: u32) {
        if !self.runtime().is_inherited() {
            self.inner.handle.acks.ack(n);
        }
    }

    /// The word that events of this handle carry.
    #[must_use]
    pub fn user(&self) -> u64 {
        self.inner.handle.user.load(Ordering::Acquire)
    }

    /// Sets [`Qp::user`].
    pub fn set_user(&self, user: u64) {
        self.inner.handle.user.store(user, Ordering::Release);
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        if self.context.runtime().is_inherited()
            || self.gone.load(Ordering::Acquire)
            || !self.context.is_open()
        {
            return;
        }
        let runtime = self.context.runtime();
        runtime.abandon_qp(&self.real.shared, &self.handle);
    }
}

fn check_create(context: &Context, create: &QpCreate) -> Result<(), Misuse> {
    let cap = &create.cap;
    if cap.max_send_wr > limits::QP_WR_MAX || cap.max_recv_wr > limits::QP_WR_MAX {
        return Err(Misuse::invalid(
            "create_qp: more requests than max_qp_wr of query_device",
        ));
    }
    if cap.max_send_sge > limits::SGE_MAX || cap.max_recv_sge > limits::SGE_MAX {
        return Err(Misuse::invalid(
            "create_qp: more SGEs than max_sge of query_device",
        ));
    }
    if cap.max_inline_data > limits::INLINE_MAX {
        return Err(Misuse::invalid(
            "create_qp: max_inline_data above what the device takes (4096 bytes)",
        ));
    }
    if !create.send_cq.is_of(context) || !create.recv_cq.is_of(context) {
        return Err(Misuse::invalid(
            "create_qp: a completion queue was destroyed or belongs to another open device",
        ));
    }
    if create.qp_type == QpType::XrcRecv {
        return Err(Misuse::invalid(
            "create_qp: XRC_RECV queue pairs are created in an XRC domain",
        ));
    }
    if let Some(srq) = &create.srq {
        if !matches!(create.qp_type, QpType::Rc | QpType::Ud) {
            return Err(Misuse::invalid(
                "create_qp: only RC and UD take a shared receive queue",
            ));
        }
        if !srq.is_of(context) {
            return Err(Misuse::invalid(
                "create_qp: the SRQ was destroyed or belongs to another open device",
            ));
        }
    }
    Ok(())
}

/// Sizes raised to what is given anyway.
fn granted(create: &QpCreate) -> QpCap {
    let cap = create.cap;
    let has_srq = create.srq.is_some() || create.qp_type == QpType::XrcSend;
    let recv = |asked: u32| if has_srq { 0 } else { asked.max(1) };
    QpCap {
        max_send_wr: cap.max_send_wr.max(1),
        max_recv_wr: recv(cap.max_recv_wr),
        max_send_sge: cap.max_send_sge.max(1),
        max_recv_sge: recv(cap.max_recv_sge),
        max_inline_data: cap.max_inline_data.max(limits::INLINE_MIN),
    }
}
