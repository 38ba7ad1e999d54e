//! Memory windows.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use rocebud_objects::{
    Access, Errno, KEY_BYTE, Misuse, MwBind, MwType, Payload, QpType, SendFlags, SendOp, SendWr,
    SgeList,
};
use rocebud_wire::{LKey, RKey};

use crate::pd::PdUse;
use crate::{Mr, Pd, Qp};

/// What a window is to show; `struct ibv_mw_bind_info`.
#[derive(Clone, Copy, Debug)]
pub struct MwBindInfo<'a> {
    /// Region behind it; may be missing with length 0.
    pub mr: Option<&'a Mr>,
    /// First byte, as users of the region name it.
    pub addr: u64,
    /// Bytes; 0 takes a type 1 window away.
    pub len: u64,
    /// What it grants the peer.
    pub access: Access,
}

/// A memory window. When the last handle is dropped, it shows nothing any more.
#[derive(Clone, Debug)]
pub struct Mw {
    inner: Arc<MwInner>,
}

#[derive(Debug)]
struct MwInner {
    /// The key that it was allocated with: names it for ever.
    first: RKey,
    mw_type: MwType,
    /// Key of the latest `bind`.
    rkey: AtomicU32,
    pd: PdUse,
    gone: AtomicBool,
}

impl Pd {
    /// `ibv_alloc_mw`.
    ///
    /// # Errors
    /// ENOMEM: too many windows.
    pub fn alloc_mw(&self, mw_type: MwType) -> Result<Mw, Misuse> {
        self.check()?;
        let keys = self.context().runtime().keys();
        let first = keys.insert_window(self.id(), mw_type)?;
        Ok(Mw {
            inner: Arc::new(MwInner {
                first,
                mw_type,
                rkey: AtomicU32::new(first.0),
                pd: self.hold(),
                gone: AtomicBool::new(false),
            }),
        })
    }
}

/// `ibv_inc_rkey`: the same window under the next key byte.
#[must_use]
pub const fn inc_rkey(rkey: RKey) -> RKey {
    RKey(rkey.0 & !KEY_BYTE | rkey.0.wrapping_add(1) & KEY_BYTE)
}

impl Mw {
    /// How it is bound.
    #[must_use]
    pub fn mw_type(&self) -> MwType {
        self.inner.mw_type
    }

    /// Key: of the latest [`Qp::bind_mw`] for type 1, as allocated for type 2.
    #[must_use]
    pub fn rkey(&self) -> RKey {
        RKey(self.inner.rkey.load(Ordering::Acquire))
    }

    /// The operation that binds a type 2 window under `rkey`, of which the low byte is free to
    /// choose. What it breaks shows as `MW_BIND_ERR` in its completion.
    #[must_use]
    pub fn bind_op(&self, rkey: RKey, info: &MwBindInfo<'_>) -> SendOp {
        let bind = MwBind {
            window: self.inner.first,
            rkey,
            lkey: info.mr.map_or(LKey(0), Mr::lkey),
            addr: info.addr,
            len: info.len,
            access: info.access,
        };
        SendOp::BindMw { bind }
    }

    /// `ibv_dealloc_mw`: bound or not; when it returns, the peer uses it no more.
    ///
    /// # Errors
    /// EINVAL: done already. EIO: a child made by fork.
    pub fn dealloc(&self) -> Result<(), Misuse> {
        let context = self.inner.pd.pd().context();
        if context.runtime().is_inherited() {
            return context.check();
        }
        if self.inner.gone.swap(true, Ordering::AcqRel) {
            return Err(Misuse::invalid("dealloc_mw: done already"));
        }
        self.inner.dealloc();
        Ok(())
    }

    fn is_of(&self, pd: &Pd) -> bool {
        self.inner.pd.pd().id() == pd.id() && !self.inner.gone.load(Ordering::Acquire)
    }
}

impl MwInner {
    fn dealloc(&self) {
        let keys = self.pd.pd().context().runtime().keys();
        keys.remove_window(self.first);
        self.pd.release();
    }
}

impl Drop for MwInner {
    fn drop(&mut self) {
        let inherited = self.pd.pd().context().runtime().is_inherited();
        if !inherited && !self.gone.load(Ordering::Acquire) {
            self.dealloc();
        }
    }
}

impl Qp {
    /// `ibv_bind_mw` of a type 1 window: posts the bind and returns the window's key from then
    /// on, which is good when the bind has completed. Only SIGNALED and FENCE mean anything.
    ///
    /// # Errors
    /// EINVAL: not RC or UC, type 2, no region but a length, zero-based, window and queue pair not
    /// of one protection domain, or a state without sending. EPERM: window and region not of one
    /// protection domain. ENOMEM: send queue full.
    /// What only the bind itself finds shows as `MW_BIND_ERR` in its completion.
    pub fn bind_mw(
        &self,
        mw: &Mw,
        wr_id: u64,
        flags: SendFlags,
        info: &MwBindInfo<'_>,
    ) -> Result<RKey, Misuse> {
        self.check_bind(mw, flags, info)?;
        let rkey = inc_rkey(mw.rkey());
        self.post_send(SendWr {
            wr_id,
            op: mw.bind_op(rkey, info),
            flags,
            payload: Payload::Sges(SgeList::new()),
            ud: None,
            xrc_srqn: 0,
        })?;
        mw.inner.rkey.store(rkey.0, Ordering::Release);
        Ok(rkey)
    }

    fn check_bind(&self, mw: &Mw, flags: SendFlags, info: &MwBindInfo<'_>) -> Result<(), Misuse> {
        let refuse = |why| Err(Misuse::invalid(why));
        if mw.mw_type() != MwType::One {
            return refuse("bind_mw: type 2 windows are bound by post_send");
        }
        if !matches!(self.qp_type(), QpType::Rc | QpType::Uc | QpType::XrcSend) {
            return refuse("bind_mw: needs an RC, UC or XRC_SEND queue pair");
        }
        if flags.contains(SendFlags::INLINE) {
            return refuse("bind_mw: nothing can be inline");
        }
        if info.mr.is_none() && info.len != 0 {
            return refuse("bind_mw: a region must be named");
        }
        if info.access.contains(Access::ZERO_BASED) {
            return refuse("bind_mw: only type 2 windows can be zero-based");
        }
        if !mw.is_of(self.pd()) {
            return refuse("bind_mw: window and queue pair are not of one protection domain");
        }
        if info.mr.is_some_and(|mr| mr.pd().id() != self.pd().id()) {
            return Err(Misuse::new(
                Errno::EPERM,
                "bind_mw: window and region are not of one protection domain",
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_low_byte_of_a_key_moves() {
        assert_eq!(inc_rkey(RKey(0x1234_56fe)), RKey(0x1234_56ff));
        assert_eq!(inc_rkey(RKey(0x1234_56ff)), RKey(0x1234_5600));
        assert_eq!(inc_rkey(RKey(0xffff_ffff)), RKey(0xffff_ff00));
    }
}
