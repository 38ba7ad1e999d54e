//! XRC domains: what the shared receive queues and the serving queue pairs of extended reliable
//! connections have in common.
//!
//! A domain without a file is its opener's own; one with a file is shared by whoever opens the same
//! file on the same device, within this process. Another process that has it makes the call fail:
//! queues and queue pairs live in the process that made them.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use rocebud_objects::{Errno, Misuse, XrcdId};
use rocebud_runtime::Claim;
use rocebud_wire::Qpn;

use crate::qp::WeakQp;
use crate::{Context, Cq, Pd, Qp, Srq, SrqAttr};

/// An XRC domain, as one call of `ibv_open_xrcd` gave it.
#[derive(Clone, Debug)]
pub struct Xrcd {
    inner: Arc<XrcdInner>,
}

#[derive(Debug)]
struct XrcdInner {
    context: Context,
    domain: Arc<Domain>,
    users: AtomicU32,
    gone: AtomicBool,
}

#[derive(Debug)]
struct Domain {
    id: XrcdId,
    /// Process that it belongs to: a child made by fork has a copy that means nothing.
    process: u32,
    /// Serving queue pairs, for `ibv_open_qp`.
    targets: Mutex<HashMap<Qpn, WeakQp>>,
    /// Keeps other processes from the file's domain.
    _claim: Option<Claim>,
}

/// Device (by interface), file system and inode.
type File = (u32, u64, u64);

static BY_FILE: Mutex<Option<HashMap<File, Weak<Domain>>>> = Mutex::new(None);

fn by_file() -> MutexGuard<'static, Option<HashMap<File, Weak<Domain>>>> {
    BY_FILE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How `ibv_open_xrcd` is to treat a domain that is there, or is not.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct OpenXrcd {
    /// Descriptor of the file that names the domain; `None` = a domain of one's own.
    pub fd: Option<i32>,
    /// `O_CREAT`: make it if it is not there.
    pub create: bool,
    /// `O_EXCL`: it must not be there.
    pub exclusive: bool,
}

/// Keeps an XRC domain from being closed.
#[derive(Debug)]
pub(crate) struct XrcdUse {
    xrcd: Xrcd,
    released: AtomicBool,
}

impl XrcdUse {
    pub(crate) fn release(&self) {
        if !self.released.swap(true, Ordering::AcqRel) {
            self.xrcd.inner.users.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

impl Drop for XrcdUse {
    fn drop(&mut self) {
        self.release();
    }
}

impl Domain {
    fn new(claim: Option<Claim>) -> Arc<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        Arc::new(Self {
            id: XrcdId(NEXT.fetch_add(1, Ordering::Relaxed)),
            process: std::process::id(),
            targets: Mutex::default(),
            _claim: claim,
        })
    }

    fn targets(&self) -> MutexGuard<'_, HashMap<Qpn, WeakQp>> {
        self.targets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The domain of a file.
    fn of_file(file: File, how: OpenXrcd) -> Result<Arc<Self>, Misuse> {
        let mut all = by_file();
        let all = all.get_or_insert_default();
        all.retain(|_, domain| domain.strong_count() != 0);
        let ours = |domain: &Arc<Self>| domain.process == std::process::id();
        if let Some(domain) = all.get(&file).and_then(Weak::upgrade).filter(ours) {
            if how.exclusive {
                return Err(Misuse::invalid(
                    "open_xrcd: O_EXCL, and the file's domain is open already",
                ));
            }
            return Ok(domain);
        }
        let (ifindex, device, inode) = file;
        let claim = Claim::take(&format!("xrcd-{ifindex}-{device}-{inode}")).map_err(|_| {
            Misuse::new(
                Errno::EOPNOTSUPP,
                "open_xrcd: another process has this file's domain; domains are shared within one \
                 process alone",
            )
        })?;
        if !how.create {
            return Err(Misuse::new(
                Errno::EAGAIN,
                "open_xrcd: the file's domain is not open and O_CREAT was not given",
            ));
        }
        let domain = Self::new(Some(claim));
        all.insert(file, Arc::downgrade(&domain));
        Ok(domain)
    }
}

impl Context {
    /// `ibv_open_xrcd`.
    ///
    /// # Errors
    /// EBADF as errno 9: no such descriptor. EAGAIN: no such domain and no `create`. EINVAL: no
    /// file and no `create`, or `exclusive` and it is there. EOPNOTSUPP: another process has it.
    pub fn open_xrcd(&self, how: OpenXrcd) -> Result<Xrcd, Misuse> {
        self.check()?;
        let domain = match how.fd {
            None if !how.create => {
                return Err(Misuse::invalid(
                    "open_xrcd: a domain without a file can only be created (O_CREAT)",
                ));
            }
            None => Domain::new(None),
            Some(fd) => {
                let found = std::fs::metadata(format!("/proc/self/fd/{fd}")).map_err(|_| {
                    Misuse::new(Errno::EBADF, "open_xrcd: not a descriptor of a file")
                })?;
                let file = (self.shared().ifindex, found.dev(), found.ino());
                Domain::of_file(file, how)?
            }
        };
        Ok(Xrcd {
            inner: Arc::new(XrcdInner {
                context: self.clone(),
                domain,
                users: AtomicU32::new(0),
                gone: AtomicBool::new(false),
            }),
        })
    }
}

impl Xrcd {
    pub(crate) fn id(&self) -> XrcdId {
        self.inner.domain.id
    }

    /// The domain may be used with `context`.
    ///
    /// # Errors
    /// EINVAL: closed, or of another open device. EIO: the device is gone.
    pub fn check(&self, context: &Context) -> Result<(), Misuse> {
        self.inner.context.check()?;
        if self.inner.gone.load(Ordering::Acquire) || !self.inner.context.is_related(context) {
            return Err(Misuse::invalid(
                "the XRC domain was closed or belongs to another open device",
            ));
        }
        Ok(())
    }

    pub(crate) fn hold(&self) -> XrcdUse {
        self.inner.users.fetch_add(1, Ordering::AcqRel);
        XrcdUse {
            xrcd: self.clone(),
            released: AtomicBool::new(false),
        }
    }

    /// `ibv_create_qp_ex` of the type XRC_RECV: a queue pair that serves the domain's shared
    /// receive queues.
    ///
    /// # Errors
    /// ENOMEM: no queue pair numbers left.
    pub fn create_qp(&self, user: u64) -> Result<Qp, Misuse> {
        self.check(&self.inner.context)?;
        // No region belongs to it: all keys are looked up in the domain of the queue that a
        // packet names.
        let pd = Pd::new(
            self.inner.context.clone(),
            self.inner.context.runtime().next_pd(),
        );
        let qp = Qp::create_target(&pd, self, user)?;
        let mut targets = self.inner.domain.targets();
        targets.retain(|_, qp| qp.is_alive());
        targets.insert(qp.qpn(), qp.downgrade());
        Ok(qp)
    }

    /// `ibv_open_qp`: another handle of a serving queue pair of this domain, within the process.
    /// Each handle gets the events, at the device by which its domain was opened. The queue pair
    /// is destroyed with its last handle.
    ///
    /// # Errors
    /// EINVAL: the domain has no such queue pair.
    pub fn open_qp(&self, qpn: Qpn) -> Result<Qp, Misuse> {
        self.check(&self.inner.context)?;
        let found = self.inner.domain.targets().get(&qpn).cloned();
        let opened = found.and_then(|qp| qp.open(&self.inner.context, self));
        opened.ok_or(Misuse::invalid(
            "open_qp: this XRC domain has no XRC_RECV queue pair of that number in this process",
        ))
    }

    /// `ibv_close_xrcd`.
    ///
    /// # Errors
    /// EBUSY: shared receive queues or queue pairs are left on it. EINVAL: done already.
    pub fn close(&self) -> Result<(), Misuse> {
        let inner = &self.inner;
        if inner.users.load(Ordering::Acquire) != 0 && inner.context.is_open() {
            return Err(Misuse::new(
                Errno::EBUSY,
                "close_xrcd: shared receive queues or queue pairs are left on it",
            ));
        }
        if inner.gone.swap(true, Ordering::AcqRel) {
            return Err(Misuse::invalid("close_xrcd: done already"));
        }
        Ok(())
    }
}

impl Pd {
    /// `ibv_create_srq_ex` of the type XRC: receives complete in `cq`; requests that name the
    /// queue use the keys of this protection domain.
    ///
    /// # Errors
    /// EINVAL: sizes 0 or above the device's, domain or completion queue of another open device.
    pub fn create_xrc_srq(
        &self,
        attr: &SrqAttr,
        xrcd: &Xrcd,
        cq: &Cq,
        user: u64,
    ) -> Result<Srq, Misuse> {
        self.check()?;
        Srq::create(self, attr, Some((xrcd, cq)), user)
    }
}
