//! Memory windows that ends lend to their peers: bound, used, given back, taken away.
//!
//! The owner binds a window to a part of its target region, the peer uses it as it would use the
//! region, and gives it back by a fenced SEND with invalidate, or the owner takes it back when
//! nothing of the peer's can still need it. Judged is what a program can know: a bind that
//! completed shows exactly what was asked, once; a flushed one shows nothing; a key that was
//! invalidated, or whose queue pair went, shows nothing.

use rocebud_objects::{
    Access, Binding, KEY_BYTE, MwBind, MwType, QpState, QpType, Remote, SendOp, WcOpcode, WcStatus,
};
use rocebud_wire::{LKey, Qpn, RKey};

use super::request::{Local, Request};
use super::{World, pd};
use crate::check::sends::{Action, Fatal};
use crate::plan::Incident;
use crate::violation::{Checker, Verdict, Violation};

/// What a window shows of its owner's target region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shown {
    /// Its key.
    pub rkey: RKey,
    /// First byte in the target region.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// What it grants.
    pub access: Access,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// Shows nothing.
    Away,
    /// A bind is posted.
    Asked(Shown),
    /// The peer may use it.
    Open(Shown),
    /// An invalidation is posted.
    Closing,
}

/// A window and what its owner knows of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lent {
    /// Names it.
    first: RKey,
    mw_type: MwType,
    state: State,
    key_byte: u32,
    /// Binds that had been carried out when the latest was posted.
    done_before: usize,
}

const MW_BIND: Fatal = Fatal {
    requester: &[WcStatus::MwBindErr],
    receiver: None,
};
const REM_ACCESS: Fatal = Fatal {
    requester: &[WcStatus::RemAccessErr],
    receiver: None,
};
/// What windows grant, in turns.
const GRANTS: [Access; 3] = [
    Access::REMOTE_READ.union(Access::REMOTE_WRITE),
    Access::REMOTE_READ,
    Access::REMOTE_WRITE,
];

impl World {
    /// Gives an end a window of each type.
    pub(crate) fn add_windows(&mut self, index: usize) {
        let end = &mut self.ends[index];
        if !self.plan.windows || end.kind != QpType::Rc {
            return;
        }
        let memory = &mut self.fabric.host_mut(end.host).env.memory;
        for mw_type in [MwType::One, MwType::Two] {
            end.windows.push(Lent {
                first: memory.add_window(pd(end.host), mw_type),
                mw_type,
                state: State::Away,
                key_byte: end.rng.range_u32(0, KEY_BYTE),
                done_before: 0,
            });
        }
    }

    // ---- the owner

    /// A bind of a window that is free for it, if there is one.
    pub(crate) fn bind(&mut self, index: usize) -> Option<Request> {
        let at = (0..self.ends[index].windows.len()).find(|&at| self.may_bind(index, at))?;
        let end = &mut self.ends[index];
        let rng = &mut end.rng;
        let size = end.target.span.len;
        let offset = if rng.percent(50) {
            0
        } else {
            rng.below(size) / 8 * 8
        };
        let mut len = size - offset;
        if rng.percent(50) {
            len = rng.range(1, len);
        }
        let lent = &mut end.windows[at];
        // The call that binds type 1 gives a new key each time.
        let least = u32::from(lent.mw_type == MwType::One);
        lent.key_byte = lent.key_byte.wrapping_add(rng.pick(&[least, 1, 77])) & KEY_BYTE;
        let mut access = rng.pick(&GRANTS);
        let zero_based = lent.mw_type == MwType::Two && rng.percent(30);
        access.set(Access::ZERO_BASED, zero_based);
        let shown = Shown {
            rkey: RKey(lent.first.0 & !KEY_BYTE | lent.key_byte),
            offset,
            len,
            access,
        };
        lent.state = State::Asked(shown);
        let bind = MwBind {
            window: lent.first,
            rkey: shown.rkey,
            lkey: LKey(end.target_key),
            addr: end.target.span.addr + offset,
            len,
            access,
        };
        let first = lent.first;
        self.ends[index].windows[at].done_before = self.binds_of(index, first);
        let action = Action::Bind {
            window: first,
            shown,
        };
        let op = SendOp::BindMw { bind };
        Some(Request::new(op, WcOpcode::BindMw, action, Local::none()))
    }

    /// A type 2 window must be free; a type 1 window only unused.
    fn may_bind(&self, index: usize, at: usize) -> bool {
        let lent = &self.ends[index].windows[at];
        match lent.state {
            State::Away => true,
            State::Open(shown) => lent.mw_type == MwType::One && !self.is_used(index, shown.rkey),
            State::Asked(_) | State::Closing => false,
        }
    }

    /// Something of the peer's that is not known to be complete goes through this window.
    fn is_used(&self, owner: usize, rkey: RKey) -> bool {
        let peer = &self.ends[self.ends[owner].peer];
        let mut outstanding = peer.sends.outstanding().iter();
        outstanding.any(|posted| posted.window == Some(rkey))
    }

    /// The key of an own type 2 window that nobody uses, to be taken away by LOCAL_INV.
    pub(crate) fn take_back(&mut self, index: usize) -> Option<RKey> {
        let (at, shown) = self.open_type_2(index)?;
        if self.is_used(index, shown.rkey) {
            return None;
        }
        self.ends[index].windows[at].state = State::Closing;
        Some(shown.rkey)
    }

    fn open_type_2(&self, owner: usize) -> Option<(usize, Shown)> {
        let windows = self.ends[owner].windows.iter().enumerate();
        windows
            .filter(|(_, lent)| lent.mw_type == MwType::Two)
            .find_map(|(at, lent)| match lent.state {
                State::Open(shown) => Some((at, shown)),
                _ => None,
            })
    }

    /// Binds of a window that were carried out.
    fn binds_of(&self, owner: usize, first: RKey) -> usize {
        let memory = &self.fabric.host(self.ends[owner].host).env.memory;
        let is = |b: &&(Qpn, MwBind)| b.1.window == first;
        memory.binds().iter().filter(is).count()
    }

    // ---- the peer

    /// A place of `len` bytes behind one of the peer's open windows: offset in the target region
    /// and what to name.
    pub(crate) fn lent_place(
        &mut self,
        index: usize,
        len: u64,
        align: u64,
        need: Access,
    ) -> Option<(u64, Remote)> {
        let owner = self.ends[index].peer;
        let base = self.ends[owner].target.span.addr;
        let fits = |lent: &Lent| match lent.state {
            State::Open(shown) if shown.access.contains(need) && shown.len >= len => Some(shown),
            _ => None,
        };
        let open: Vec<Shown> = self.ends[owner].windows.iter().filter_map(fits).collect();
        let rng = &mut self.ends[index].rng;
        if open.is_empty() || len == 0 || !rng.percent(60) {
            return None;
        }
        let shown = rng.pick(&open);
        let room = shown.len - len;
        let anywhere = rng.below(room + 1);
        let within = rng.pick(&[0, room, anywhere]) / align * align;
        let offset = shown.offset + within;
        let addr = if shown.access.contains(Access::ZERO_BASED) {
            within
        } else {
            base + offset
        };
        let rkey = shown.rkey;
        Some((offset, Remote { addr, rkey }))
    }

    /// The key of the peer's open type 2 window, to be given back.
    pub(crate) fn give_back_key(&mut self, index: usize) -> Option<RKey> {
        let owner = self.ends[index].peer;
        let (at, shown) = self.open_type_2(owner)?;
        self.ends[owner].windows[at].state = State::Closing;
        Some(shown.rkey)
    }

    // ---- what became of it

    fn lent_by(&mut self, owner: usize, window: RKey) -> Option<&mut Lent> {
        let is = |lent: &&mut Lent| (lent.first.0 ^ window.0) & !KEY_BYTE == 0;
        self.ends[owner].windows.iter_mut().find(is)
    }

    fn shows(&self, owner: usize, window: RKey) -> Option<(RKey, Binding)> {
        let memory = &self.fabric.host(self.ends[owner].host).env.memory;
        let window = memory.window(window)?;
        Some((window.rkey, window.binding?))
    }

    /// A bind has completed.
    pub(crate) fn bound(&mut self, index: usize, window: RKey, shown: Shown) -> Verdict {
        let end = &self.ends[index];
        let (addr, qpn, lkey) = (end.target.span.addr, end.qpn, end.target_key);
        let zero_based = shown.access.contains(Access::ZERO_BASED);
        let seen = self.shows(index, window);
        let done = self.binds_of(index, window);
        let Some(lent) = self.lent_by(index, window) else {
            return Ok(());
        };
        if lent.state != State::Asked(shown) {
            return Ok(());
        }
        lent.state = State::Open(shown);
        let expected = Binding {
            lkey: LKey(lkey),
            offset: shown.offset,
            iova: if zero_based { 0 } else { addr + shown.offset },
            len: shown.len,
            access: shown.access,
            qpn: (lent.mw_type == MwType::Two).then_some(qpn),
        };
        let once = done == lent.done_before + 1;
        if once && seen == Some((shown.rkey, expected)) {
            return Ok(());
        }
        let what = format!("{qpn}: bound {shown:?} {done} times, but it shows {seen:?}");
        Err(Violation::new(Checker::Sends, what))
    }

    /// A bind was flushed: it never happened.
    pub(crate) fn not_bound(&mut self, index: usize, window: RKey, shown: Shown) -> Verdict {
        // What a RESET took along may have been done, and said so too late.
        let known = self.state(index) == Some(QpState::Err) && self.ends[index].alive;
        let seen = self.shows(index, window);
        let Some(lent) = self.lent_by(index, window) else {
            return Ok(());
        };
        if lent.state == State::Asked(shown) {
            lent.state = State::Away;
        }
        match seen {
            Some((rkey, it)) if known && (rkey, it.len) == (shown.rkey, shown.len) => {
                let what = format!("{shown:?} was flushed and shows something all the same");
                Err(Violation::new(Checker::Sends, what))
            }
            _ => Ok(()),
        }
    }

    /// A key of this end was invalidated.
    pub(crate) fn invalidated(&mut self, owner: usize, rkey: RKey) -> Verdict {
        let memory = &self.fabric.host(self.ends[owner].host).env.memory;
        let works = memory.region(rkey.0).is_some() || self.shows(owner, rkey).is_some();
        if let Some(lent) = self.lent_by(owner, rkey) {
            lent.state = State::Away;
        }
        if works {
            let what = format!("{rkey:?} was to be invalidated and still works");
            return Err(Violation::new(Checker::Receives, what));
        }
        Ok(())
    }

    /// The queue pair of an end is gone, or in RESET: its type 2 windows show nothing.
    pub(crate) fn windows_gone(&mut self, index: usize) -> Verdict {
        for at in 0..self.ends[index].windows.len() {
            let lent = self.ends[index].windows[at];
            let goes = lent.mw_type == MwType::Two || matches!(lent.state, State::Asked(_));
            if goes {
                self.ends[index].windows[at].state = State::Away;
            }
            if lent.mw_type == MwType::Two && self.shows(index, lent.first).is_some() {
                let what = format!("{:?} outlives its queue pair", lent.first);
                return Err(Violation::new(Checker::Sends, what));
            }
        }
        Ok(())
    }

    /// The region behind an end's windows was taken away.
    pub(crate) fn windows_revoked(&mut self, index: usize) {
        for lent in &mut self.ends[index].windows {
            lent.state = State::Away;
        }
    }

    // ---- incidents

    /// A request about windows that must fail.
    pub(crate) fn bad_window_request(
        &mut self,
        index: usize,
        incident: Incident,
    ) -> Option<(Request, Fatal)> {
        if incident == Incident::BadBind {
            return self.bad_bind(index).map(|request| (request, MW_BIND));
        }
        let owner = self.ends[index].peer;
        let span = self.ends[owner].target.span;
        let windows = self.ends[owner].windows.clone();
        let rng = &mut self.ends[index].rng;
        let lent = (!windows.is_empty()).then(|| rng.pick(&windows))?;
        let (addr, rkey) = match (incident, lent.state) {
            (Incident::PastWindow, State::Open(shown)) => {
                let based = shown.access.contains(Access::ZERO_BASED);
                let start = if based { 0 } else { span.addr + shown.offset };
                (start + shown.len - 1, shown.rkey)
            }
            (Incident::StaleWindow, State::Open(shown)) => {
                let other = shown.rkey.0 ^ rng.range_u32(1, KEY_BYTE);
                (span.addr + shown.offset, RKey(other))
            }
            (Incident::StaleWindow, State::Away) if lent.mw_type == MwType::Two => {
                (span.addr, lent.first)
            }
            _ => return None,
        };
        let local = self.source(index, 2, 1)?;
        let op = SendOp::Write {
            remote: Remote { addr, rkey },
        };
        let write = Action::Write {
            offset: 0,
            len: 0,
            message: false,
        };
        let request = Request::new(op, WcOpcode::RdmaWrite, write, local);
        Some((request, REM_ACCESS))
    }

    /// A bind that breaks a rule, of a window that has nothing under way.
    fn bad_bind(&mut self, index: usize) -> Option<Request> {
        let end = &mut self.ends[index];
        let idle = |lent: &&Lent| matches!(lent.state, State::Away | State::Open(_));
        let lent = *end.windows.iter().rfind(idle)?;
        let span = end.target.span;
        let mut bind = MwBind {
            window: lent.first,
            rkey: RKey(lent.first.0 & !KEY_BYTE | end.rng.range_u32(0, KEY_BYTE)),
            lkey: LKey(end.target_key),
            addr: span.addr,
            len: span.len,
            access: Access::REMOTE_READ,
        };
        let bound_already = lent.mw_type == MwType::Two && lent.state != State::Away;
        match end.rng.below(if bound_already { 8 } else { 7 }) {
            0 => bind.len += 1,
            1 => bind.addr -= 1,
            2 => (bind.addr, bind.len) = (u64::MAX - 15, 32),
            3 => bind.lkey = LKey(end.readonly_key),
            4 => bind.rkey.0 ^= KEY_BYTE + 1,
            5 => bind.access |= Access::MW_BIND,
            6 => bind.lkey = LKey(self.fabric.host_mut(end.host).env.memory.unused_key()),
            _ => {}
        }
        let op = SendOp::BindMw { bind };
        Some(Request::new(
            op,
            WcOpcode::BindMw,
            Action::Marker,
            Local::none(),
        ))
    }

    /// The peer closes the window that this end is using.
    pub(crate) fn close_window(&mut self, index: usize) -> Verdict {
        let owner = self.ends[index].peer;
        let end = &self.ends[owner];
        let full = end.sends.outstanding().len() >= end.plan.send_depth as usize;
        let Some((at, shown)) = self.open_type_2(owner).filter(|_| !full) else {
            return Ok(());
        };
        self.ends[owner].windows[at].state = State::Closing;
        let request = close_request(shown.rkey);
        self.post(owner, request)?;
        if let Some(link) = self.ends[index].link {
            self.links[link].revoked = Some((owner, WcStatus::RemAccessErr));
        }
        self.trouble(index);
        Ok(())
    }
}

/// LOCAL_INV of a window.
pub(crate) fn close_request(rkey: RKey) -> Request {
    let op = SendOp::LocalInv { rkey };
    let action = Action::LocalInv { key: rkey.0 };
    Request::new(op, WcOpcode::LocalInv, action, Local::none())
}
