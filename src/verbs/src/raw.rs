//! Raw packets: flow rules, counters of rules, receive queues and their indirection tables.
//!
//! For processes that may open packet sockets where the device is; see [`DeviceAttr::raw_packet`].
//!
//! [`DeviceAttr::raw_packet`]: crate::DeviceAttr::raw_packet

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rocebud_objects::flow::{FlowAttr, FlowId, FlowKind};
use rocebud_objects::{Errno, Misuse, RecvWr};
use rocebud_runtime::{FlowCounts, TableId};
use rocebud_wire::Qpn;

pub use rocebud_runtime::WqState;

use crate::attrs::limits;
use crate::pd::PdUse;
use crate::{Context, Cq, Pd, PostError, Qp, QpType};

/// A rule that steers frames to a raw packet queue pair.
#[derive(Clone, Debug)]
pub struct Flow {
    inner: Arc<FlowInner>,
}

#[derive(Debug)]
struct FlowInner {
    qp: Qp,
    id: FlowId,
    counters: Option<Counters>,
    gone: AtomicBool,
}

impl Flow {
    pub(crate) fn create(
        qp: &Qp,
        attr: FlowAttr,
        counters: Option<&Counters>,
    ) -> Result<Self, Misuse> {
        let context = qp.context();
        context.check()?;
        match qp.qp_type() {
            QpType::RawPacket => {}
            QpType::Ud => {
                // What a caller without the right is told whatever it asks for.
                context.runtime().check_raw()?;
                return Err(Misuse::new(
                    Errno::EOPNOTSUPP,
                    "create_flow: rules steer to raw packet queue pairs alone",
                ));
            }
            _ => {
                return Err(Misuse::invalid(
                    "create_flow: rules steer to raw packet queue pairs",
                ));
            }
        }
        if attr.kind != FlowKind::Normal && !attr.specs.is_empty() {
            return Err(Misuse::invalid(
                "create_flow: default and sniffer rules have no conditions",
            ));
        }
        if counters.is_some_and(|c| c.check().is_err() || !c.inner.context.is_same(context)) {
            return Err(Misuse::invalid(
                "create_flow: the counters were destroyed or belong to another open device",
            ));
        }
        let counts = counters.map(|c| Arc::clone(&c.inner.counts));
        let id = context.runtime().create_flow(qp.shared(), attr, counts)?;
        if let Some(counters) = counters {
            counters.inner.bound.fetch_add(1, Ordering::AcqRel);
        }
        Ok(Self {
            inner: Arc::new(FlowInner {
                qp: qp.clone(),
                id,
                counters: counters.cloned(),
                gone: AtomicBool::new(false),
            }),
        })
    }

    /// `ibv_destroy_flow`.
    ///
    /// # Errors
    /// EINVAL: done already.
    pub fn destroy(&self) -> Result<(), Misuse> {
        if self.inner.qp.context().runtime().is_inherited() {
            return self.inner.qp.context().check();
        }
        if self.inner.gone.swap(true, Ordering::AcqRel) {
            return Err(Misuse::invalid("destroy_flow: done already"));
        }
        self.inner.end();
        Ok(())
    }
}

impl FlowInner {
    /// The rule may have gone with its open device.
    fn end(&self) {
        let _ = self.qp.context().runtime().destroy_flow(self.id);
        if let Some(counters) = &self.counters {
            counters.inner.bound.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

impl Drop for FlowInner {
    fn drop(&mut self) {
        let inherited = self.qp.context().runtime().is_inherited();
        if !inherited && !self.gone.load(Ordering::Acquire) {
            self.end();
        }
    }
}

/// What a counter counts; values of `enum ibv_counter_description`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum CounterPoint {
    /// Frames.
    Packets = 0,
    /// Their bytes.
    Bytes = 1,
}

/// Counters of flow rules.
#[derive(Clone, Debug)]
pub struct Counters {
    inner: Arc<CountersInner>,
}

#[derive(Debug)]
struct CountersInner {
    context: Context,
    /// What is where in the array that is read.
    points: Mutex<Vec<(CounterPoint, u32)>>,
    counts: Arc<FlowCounts>,
    /// Rules that count here.
    bound: AtomicU32,
    gone: AtomicBool,
}

impl Counters {
    pub(crate) fn create(context: &Context) -> Result<Self, Misuse> {
        context.check()?;
        context.runtime().check_raw().map_err(absent)?;
        Ok(Self {
            inner: Arc::new(CountersInner {
                context: context.clone(),
                points: Mutex::default(),
                counts: Arc::default(),
                bound: AtomicU32::new(0),
                gone: AtomicBool::new(false),
            }),
        })
    }

    fn check(&self) -> Result<(), Misuse> {
        self.inner.context.check()?;
        if self.inner.gone.load(Ordering::Acquire) {
            return Err(Misuse::invalid("the counters were destroyed"));
        }
        Ok(())
    }

    /// `ibv_attach_counters_point_flow` without a flow: from now on `index` shows this.
    ///
    /// # Errors
    /// EBUSY: rules count already. EINVAL: the index is taken, or above 63.
    pub fn attach(&self, point: CounterPoint, index: u32) -> Result<(), Misuse> {
        self.check()?;
        if self.inner.bound.load(Ordering::Acquire) != 0 {
            return Err(Misuse::new(
                Errno::EBUSY,
                "attach_counters_point_flow: rules count here already",
            ));
        }
        let mut points = self.points();
        if index >= limits::COUNTERS_MAX || points.iter().any(|(_, taken)| *taken == index) {
            return Err(Misuse::invalid(
                "attach_counters_point_flow: the index is taken or above 63",
            ));
        }
        points.push((point, index));
        Ok(())
    }

    /// `ibv_read_counters`: places that nothing was attached to stay as they are.
    ///
    /// # Errors
    /// EINVAL: `values` is shorter than the largest index.
    pub fn read(&self, values: &mut [u64]) -> Result<(), Misuse> {
        self.check()?;
        let counts = &self.inner.counts;
        for (point, index) in self.points().iter() {
            let place = values.get_mut(*index as usize);
            let place = place.ok_or(Misuse::invalid(
                "read_counters: fewer values than the largest index that was attached",
            ))?;
            *place = match point {
                CounterPoint::Packets => counts.packets.load(Ordering::Relaxed),
                CounterPoint::Bytes => counts.bytes.load(Ordering::Relaxed),
            };
        }
        Ok(())
    }

    fn points(&self) -> std::sync::MutexGuard<'_, Vec<(CounterPoint, u32)>> {
        let points = self.inner.points.lock();
        points.unwrap_or_else(PoisonError::into_inner)
    }

    /// `ibv_destroy_counters`.
    ///
    /// # Errors
    /// EBUSY: rules count here. EINVAL: done already.
    pub fn destroy(&self) -> Result<(), Misuse> {
        if self.inner.bound.load(Ordering::Acquire) != 0 && self.inner.context.is_open() {
            return Err(Misuse::new(
                Errno::EBUSY,
                "destroy_counters: rules still count here; destroy them first",
            ));
        }
        if self.inner.gone.swap(true, Ordering::AcqRel) {
            return Err(Misuse::invalid("destroy_counters: done already"));
        }
        Ok(())
    }
}

/// Without the right to carry raw packets a device has none of this. A shortage stays what it is.
fn absent(why: Misuse) -> Misuse {
    if is_no_right(&why) {
        return Misuse::new(
            Errno::EOPNOTSUPP,
            "raw packets need CAP_NET_RAW in the network namespace of the device",
        );
    }
    why
}

/// What `check_raw` says to a process that may not carry raw packets, as against one that can not
/// open a socket now.
pub(crate) fn is_no_right(why: &Misuse) -> bool {
    [Errno::EPERM, Errno::EOPNOTSUPP].contains(&why.errno)
}

/// What `create_wq` is told; `struct ibv_wq_init_attr`.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "the names are those of verbs.h")]
pub struct WqCreate {
    pub pd: Pd,
    pub cq: Cq,
    pub max_wr: u32,
    pub max_sge: u32,
    /// VLAN tags are taken off and told in the completion.
    pub strips_vlan: bool,
}

/// A receive queue for indirection tables.
#[derive(Clone, Debug)]
pub struct Wq {
    inner: Arc<WqInner>,
}

#[derive(Debug)]
struct WqInner {
    context: Context,
    number: Qpn,
    pd: PdUse,
    _cq: Cq,
    gone: AtomicBool,
}

impl Wq {
    pub(crate) fn create(context: &Context, create: &WqCreate) -> Result<Self, Misuse> {
        context.check()?;
        context.runtime().check_raw().map_err(absent)?;
        let (max_wr, max_sge) = (create.max_wr, create.max_sge);
        if max_wr == 0 || max_wr > limits::QP_WR_MAX || max_sge > limits::SGE_MAX {
            return Err(Misuse::invalid(
                "create_wq: max_wr is 0, or sizes are above those of query_device",
            ));
        }
        create.pd.check()?;
        if !create.cq.is_of(context) || !create.pd.context().is_same(context) {
            return Err(Misuse::invalid(
                "create_wq: queue or domain belong to another open device, or were destroyed",
            ));
        }
        let (pd, cq) = (create.pd.id(), create.cq.shared());
        let sizes = (max_wr, max_sge.max(1));
        let runtime = context.runtime();
        let number = runtime.create_wq(pd, cq, sizes, create.strips_vlan)?;
        Ok(Self {
            inner: Arc::new(WqInner {
                context: context.clone(),
                number,
                pd: create.pd.hold(),
                _cq: create.cq.clone(),
                gone: AtomicBool::new(false),
            }),
        })
    }

    fn check(&self) -> Result<(), Misuse> {
        self.inner.context.check()?;
        if self.inner.gone.load(Ordering::Acquire) {
            return Err(Misuse::invalid("the receive queue was destroyed"));
        }
        Ok(())
    }

    /// Its number; what completions show as their queue pair.
    #[must_use]
    pub fn number(&self) -> Qpn {
        self.inner.number
    }

    /// `ibv_modify_wq`; gives the state that it is in then.
    ///
    /// # Errors
    /// EINVAL: no such move, or it is not in the state that it is believed in.
    pub fn modify(
        &self,
        believed: Option<WqState>,
        to: Option<WqState>,
    ) -> Result<WqState, Misuse> {
        self.check()?;
        let runtime = self.inner.context.runtime();
        runtime.modify_wq(self.inner.number, believed, to)
    }

    /// `ibv_post_wq_recv`; see [`Qp::post_recv_list`].
    ///
    /// # Errors
    /// EINVAL: not in RDY, or too many SGEs. ENOMEM: full. With the position.
    pub fn post_recv_list(
        &self,
        wrs: impl IntoIterator<Item = Result<RecvWr, Misuse>>,
    ) -> Result<(), PostError> {
        self.check()
            .map_err(|misuse| PostError { posted: 0, misuse })?;
        let runtime = self.inner.context.runtime();
        runtime.post_wq_recv(self.inner.number, wrs)
    }

    /// `ibv_destroy_wq`.
    ///
    /// # Errors
    /// EBUSY: tables use it. EINVAL: done already.
    pub fn destroy(&self) -> Result<(), Misuse> {
        let context = &self.inner.context;
        if context.runtime().is_inherited() {
            return context.check();
        }
        if self.inner.gone.swap(true, Ordering::AcqRel) {
            return Err(Misuse::invalid("destroy_wq: done already"));
        }
        if context.is_open()
            && let Err(refused) = context.runtime().destroy_wq(self.inner.number)
        {
            self.inner.gone.store(false, Ordering::Release);
            return Err(refused);
        }
        self.inner.pd.release();
        Ok(())
    }
}

impl Drop for WqInner {
    fn drop(&mut self) {
        if !self.gone.load(Ordering::Acquire) && self.context.is_open() {
            // Tables hold handles, so none uses it.
            let _ = self.context.runtime().destroy_wq(self.number);
        }
    }
}

/// Receive queues among which the frames of a queue pair are spread.
#[derive(Clone, Debug)]
pub struct IndTable {
    inner: Arc<TableInner>,
}

#[derive(Debug)]
struct TableInner {
    context: Context,
    id: TableId,
    _wqs: Vec<Wq>,
    gone: AtomicBool,
}

impl IndTable {
    pub(crate) fn create(context: &Context, wqs: Vec<Wq>) -> Result<Self, Misuse> {
        context.check()?;
        if !wqs.len().is_power_of_two() || wqs.len() > limits::IND_TABLE_MAX as usize {
            return Err(Misuse::invalid(
                "create_rwq_ind_table: a power of two of queues, at most 128",
            ));
        }
        if wqs.iter().any(|wq| !wq.inner.context.is_same(context)) {
            return Err(Misuse::invalid(
                "create_rwq_ind_table: a queue belongs to another open device",
            ));
        }
        wqs.iter().try_for_each(Wq::check)?;
        let numbers = wqs.iter().map(Wq::number).collect();
        let id = context.runtime().create_table(numbers)?;
        Ok(Self {
            inner: Arc::new(TableInner {
                context: context.clone(),
                id,
                _wqs: wqs,
                gone: AtomicBool::new(false),
            }),
        })
    }

    pub(crate) fn id(&self) -> TableId {
        self.inner.id
    }

    pub(crate) fn is_of(&self, context: &Context) -> bool {
        self.inner.context.is_same(context) && !self.inner.gone.load(Ordering::Acquire)
    }

    /// `ibv_destroy_rwq_ind_table`.
    ///
    /// # Errors
    /// EBUSY: queue pairs use it. EINVAL: done already.
    pub fn destroy(&self) -> Result<(), Misuse> {
        let context = &self.inner.context;
        if context.runtime().is_inherited() {
            return context.check();
        }
        if self.inner.gone.swap(true, Ordering::AcqRel) {
            return Err(Misuse::invalid("destroy_rwq_ind_table: done already"));
        }
        if context.is_open()
            && let Err(refused) = context.runtime().destroy_table(self.inner.id)
        {
            self.inner.gone.store(false, Ordering::Release);
            return Err(refused);
        }
        Ok(())
    }
}

impl Drop for TableInner {
    fn drop(&mut self) {
        if !self.gone.load(Ordering::Acquire) && self.context.is_open() {
            let _ = self.context.runtime().destroy_table(self.id);
        }
    }
}

impl Context {
    /// `ibv_create_counters`.
    ///
    /// # Errors
    /// EOPNOTSUPP: this process may not carry raw packets.
    pub fn create_counters(&self) -> Result<Counters, Misuse> {
        Counters::create(self)
    }

    /// `ibv_create_wq`.
    ///
    /// # Errors
    /// EINVAL: sizes. EOPNOTSUPP: this process may not carry raw packets. ENOMEM: no numbers left.
    pub fn create_wq(&self, create: &WqCreate) -> Result<Wq, Misuse> {
        Wq::create(self, create)
    }

    /// `ibv_create_rwq_ind_table`.
    ///
    /// # Errors
    /// EINVAL: not a power of two of queues, or one was destroyed.
    pub fn create_ind_table(&self, wqs: Vec<Wq>) -> Result<IndTable, Misuse> {
        IndTable::create(self, wqs)
    }
}

impl Qp {
    /// `ibv_create_flow`.
    ///
    /// # Errors
    /// EINVAL: no raw packet queue pair, or a default rule with conditions. EPERM: without the
    /// right. ENOMEM: too many rules.
    pub fn create_flow(&self, attr: FlowAttr, counters: Option<&Counters>) -> Result<Flow, Misuse> {
        Flow::create(self, attr, counters)
    }
}
