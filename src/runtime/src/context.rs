//! What is shared about an open device and its objects, below the handles of verbs.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use rocebud_objects::{CqId, EventKind, SrqId};
use rocebud_wire::Qpn;

use crate::channel::{Acked, Acks, EventQueue};
use crate::cq::{CompChannel, Cq};
use crate::sync::lock;

/// An open device: its interface and its asynchronous events.
#[derive(Debug)]
pub struct ContextShared {
    /// Interface of the device; stays when the name changes.
    pub ifindex: u32,
    /// The layer above's word.
    pub user: AtomicU64,
    closed: AtomicBool,
    gone: AtomicBool,
    events: EventQueue<AsyncNotice>,
    channels: Mutex<Vec<Weak<CompChannel>>>,
    /// The process's: a completion queue was armed once, so its program sleeps for events.
    sleeps: Arc<AtomicBool>,
}

/// A queue pair.
#[derive(Debug)]
pub struct QpShared {
    /// Its number.
    pub qpn: Qpn,
    /// Interface of its device.
    pub ifindex: u32,
    /// Where its completions go: sends, receives. XRC queue pairs lack one or both.
    pub cqs: Vec<Arc<Cq>>,
    /// Whoever may use it, and hears of its events. More than one for the serving end of an
    /// extended reliable connection alone; none once it is destroyed.
    handles: Mutex<Vec<Arc<QpHandle>>>,
}

/// One right to use a queue pair, as events see it: each gets its own.
#[derive(Debug)]
pub struct QpHandle {
    /// Number of the queue pair.
    pub qpn: Qpn,
    /// The layer above's word.
    pub user: AtomicU64,
    /// Asynchronous events taken.
    pub acks: Acks,
    /// By which open device.
    pub context: Arc<ContextShared>,
}

impl QpShared {
    pub(crate) fn new(qpn: Qpn, ifindex: u32, cqs: Vec<Arc<Cq>>) -> Self {
        Self {
            qpn,
            ifindex,
            cqs,
            handles: Mutex::default(),
        }
    }

    /// One handle more.
    pub(crate) fn add_handle(&self, context: &Arc<ContextShared>, user: u64) -> Arc<QpHandle> {
        let handle = Arc::new(QpHandle {
            qpn: self.qpn,
            user: AtomicU64::new(user),
            acks: Acks::default(),
            context: Arc::clone(context),
        });
        lock(&self.handles).push(Arc::clone(&handle));
        handle
    }

    /// A handle that nobody may use any more: no event will name it.
    pub(crate) fn remove_handle(&self, handle: &Arc<QpHandle>) {
        lock(&self.handles).retain(|h| !Arc::ptr_eq(h, handle));
    }

    /// The handles of an open device go; true if there were some.
    pub(crate) fn remove_handles_of(&self, context: &Arc<ContextShared>) -> bool {
        let mut handles = lock(&self.handles);
        let before = handles.len();
        handles.retain(|h| !Arc::ptr_eq(&h.context, context));
        handles.len() != before
    }

    /// It has this handle.
    pub(crate) fn has_handle(&self, handle: &Arc<QpHandle>) -> bool {
        lock(&self.handles).iter().any(|h| Arc::ptr_eq(h, handle))
    }

    /// Handles that are there.
    pub(crate) fn handles(&self) -> usize {
        lock(&self.handles).len()
    }

    /// Tells every handle.
    pub(crate) fn raise(&self, kind: EventKind) {
        for handle in lock(&self.handles).iter() {
            let element = Element::Qp(Arc::clone(handle));
            handle.context.raise(kind, element);
        }
    }

    /// Takes its completions out of its queues.
    pub(crate) fn purge(&self) {
        let mut last: Option<&Arc<Cq>> = None;
        for cq in &self.cqs {
            if !last.is_some_and(|done| Arc::ptr_eq(done, cq)) {
                cq.purge(self.qpn);
            }
            last = Some(cq);
        }
    }

    pub(crate) fn release_cqs(&self) {
        for cq in &self.cqs {
            cq.users.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

/// A shared receive queue, as events see it.
#[derive(Debug)]
pub struct SrqShared {
    /// Its name towards the engine.
    pub id: SrqId,
    /// The layer above's word.
    pub user: AtomicU64,
    /// Asynchronous events taken.
    pub acks: Acks,
    /// Whose it is.
    pub context: Arc<ContextShared>,
    /// Where its receives complete, if it is of the type XRC.
    pub cq: Option<Arc<Cq>>,
}

impl SrqShared {
    pub(crate) fn release_cq(&self) {
        if let Some(cq) = &self.cq {
            cq.users.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

/// What an asynchronous event is about.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "said by their names")]
pub enum Element {
    Qp(Arc<QpHandle>),
    Cq(Arc<Cq>),
    Srq(Arc<SrqShared>),
    Port(u8),
    Device,
}

/// An asynchronous event.
#[derive(Clone, Debug)]
pub struct AsyncNotice {
    /// What happened.
    pub kind: EventKind,
    /// To what.
    pub element: Element,
}

impl Acked for AsyncNotice {
    fn acks(&self) -> Option<&Acks> {
        match &self.element {
            Element::Qp(qp) => Some(&qp.acks),
            Element::Cq(cq) => Some(&cq.async_acks),
            Element::Srq(srq) => Some(&srq.acks),
            Element::Port(_) | Element::Device => None,
        }
    }
}

impl ContextShared {
    pub(crate) fn new(ifindex: u32, sleeps: Arc<AtomicBool>) -> std::io::Result<Self> {
        Ok(Self {
            ifindex,
            user: AtomicU64::new(0),
            closed: AtomicBool::new(false),
            gone: AtomicBool::new(false),
            events: EventQueue::new()?,
            channels: Mutex::default(),
            sleeps,
        })
    }

    /// The program arms a completion queue.
    #[inline]
    pub(crate) fn note_sleeper(&self) {
        self.sleeps.store(true, Ordering::Relaxed);
    }

    /// Becomes readable when an asynchronous event waits.
    pub fn async_fd(&self) -> RawFd {
        self.events.fd()
    }

    /// Raises an event.
    pub fn raise(&self, kind: EventKind, element: Element) {
        if !self.is_closed() {
            self.events.push(AsyncNotice { kind, element });
        }
    }

    /// Takes the oldest event.
    pub fn try_take(&self) -> Option<AsyncNotice> {
        self.events.try_take()
    }

    /// The queue of its events.
    pub(crate) const fn events(&self) -> &EventQueue<AsyncNotice> {
        &self.events
    }

    /// A completion channel of this device.
    pub(crate) fn new_channel(&self) -> std::io::Result<Arc<CompChannel>> {
        let channel = Arc::new(CompChannel::new()?);
        let mut channels = lock(&self.channels);
        channels.retain(|c| c.strong_count() != 0);
        channels.push(Arc::downgrade(&channel));
        drop(channels);
        if self.is_gone() {
            channel.close();
        }
        Ok(channel)
    }

    /// The interface was removed, or the daemon went: programs hear it, and whoever waits for
    /// events of this device is woken.
    pub(crate) fn lose(&self) {
        if self.gone.swap(true, Ordering::AcqRel) {
            return;
        }
        self.raise(EventKind::DeviceFatal, Element::Device);
        self.events.close();
        for channel in lock(&self.channels).iter().filter_map(Weak::upgrade) {
            channel.close();
        }
    }

    /// The device will never work again.
    #[inline]
    pub fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    /// Nothing may be done with it any more.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Marks it closed; false if it was.
    pub fn mark_closed(&self) -> bool {
        !self.closed.swap(true, Ordering::AcqRel)
    }

    pub(crate) fn purge_cq(&self, id: CqId) {
        self.events
            .purge(|n| matches!(&n.element, Element::Cq(cq) if cq.id == id));
    }

    pub(crate) fn purge_qp(&self, handle: &Arc<QpHandle>) {
        self.events
            .purge(|n| matches!(&n.element, Element::Qp(qp) if Arc::ptr_eq(qp, handle)));
    }

    pub(crate) fn purge_srq(&self, id: SrqId) {
        self.events
            .purge(|n| matches!(&n.element, Element::Srq(srq) if srq.id == id));
    }

    /// Drops all events: they hold their objects alive.
    pub(crate) fn purge_all(&self) {
        self.events.purge(|_| true);
    }
}
