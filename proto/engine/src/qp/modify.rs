//! `ibv_modify_qp` and `ibv_query_qp`: check all, then change all.

use rocebud_objects::{AttrMask, EventKind, Misuse, Path, QpAttr, QpState, QpType};
use rocebud_wire::{source_port, ud_source_port};

use super::Qp;
use super::sq::Timer;
use super::state::{find_move, ignored};
use crate::cx::Cx;
use crate::env::Env;
use crate::limits;
use crate::reasons::Reason;

impl Qp {
    pub(crate) fn modify<E: Env>(
        &mut self,
        attr: &QpAttr,
        mask: AttrMask,
        path: Option<Path>,
        cx: &mut Cx<'_, E>,
    ) -> Result<(), Misuse> {
        let mask = mask.difference(ignored(self.init.qp_type));
        let to = self.check_move(attr, mask)?;
        self.check_values(attr, mask, path, cx)?;
        match to {
            QpState::Reset => {
                self.retire(cx);
                self.set_state(QpState::Reset, cx);
            }
            QpState::Err => self.enter_error(Reason::FlushedByModify, false, cx),
            _ => {
                self.apply(attr, mask, path, cx);
                self.arrive(to, attr, mask, cx);
            }
        }
        Ok(())
    }

    /// The table of moves; returns the state after.
    fn check_move(&self, attr: &QpAttr, mask: AttrMask) -> Result<QpState, Misuse> {
        let mut from = self.state;
        if mask.contains(AttrMask::CUR_STATE) {
            let known = |s| matches!(s, QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe);
            if !known(self.state) || !known(attr.cur_qp_state) {
                return Err(Misuse::invalid(
                    "modify_qp: cur_qp_state is not possible here",
                ));
            }
            from = attr.cur_qp_state;
        }
        let to = if mask.contains(AttrMask::STATE) {
            attr.qp_state
        } else {
            from
        };
        let Some(found) = find_move(self.init.qp_type, from, to) else {
            return Err(Misuse::invalid(
                "modify_qp: this state cannot follow the current one",
            ));
        };
        let given = mask.difference(AttrMask::STATE);
        if !given.contains(found.must) {
            return Err(Misuse::invalid(
                "modify_qp: a required attribute is not in the mask",
            ));
        }
        if !found.must.union(found.may).contains(given) {
            return Err(Misuse::invalid(
                "modify_qp: an attribute in the mask is not allowed here",
            ));
        }
        // Only a claimed RTR leads here: the real one has nothing under way.
        if mask.contains(AttrMask::SQ_PSN) && !self.sq.drained() {
            return Err(Misuse::invalid(
                "modify_qp: sq_psn cannot change while requests are under way",
            ));
        }
        // A mask without STATE is looked up as X to X, which exists only where attributes may
        // change: in RESET and ERR there is nothing to set.
        if self.state == QpState::Sqd && to == QpState::Rts && !self.sq.drained() {
            return Err(Misuse::invalid(
                "modify_qp: the send queue is still draining",
            ));
        }
        Ok(to)
    }

    fn check_values<E: Env>(
        &self,
        attr: &QpAttr,
        mask: AttrMask,
        path: Option<Path>,
        cx: &Cx<'_, E>,
    ) -> Result<(), Misuse> {
        let refuse = |bad: bool, why| {
            if bad {
                Err(Misuse::invalid(why))
            } else {
                Ok(())
            }
        };
        let has = |bit| mask.contains(bit);
        let rd_max = cx.core.cfg.max_rd_atomic;
        let port_ok = |port: u8| (1..=limits::PORT_MAX).contains(&port);
        refuse(
            has(AttrMask::ALT_PATH),
            "modify_qp: RoCE has no alternate path",
        )?;
        refuse(
            has(AttrMask::PORT) && !port_ok(attr.port_num),
            "modify_qp: no such port",
        )?;
        refuse(
            has(AttrMask::PKEY_INDEX) && attr.pkey_index != 0,
            "modify_qp: no such P_Key",
        )?;
        if has(AttrMask::AV) {
            let av = &attr.ah_attr;
            refuse(
                !av.is_global,
                "modify_qp: a RoCE address vector needs is_global and a GID",
            )?;
            refuse(
                path.is_none(),
                "modify_qp: the address vector was not resolved",
            )?;
            refuse(
                !port_ok(av.port_num),
                "modify_qp: the address vector names no port",
            )?;
        }
        refuse(
            has(AttrMask::PATH_MTU) && attr.path_mtu > self.port_mtu,
            "modify_qp: path_mtu is larger than the port's active_mtu",
        )?;
        refuse(
            has(AttrMask::TIMEOUT) && attr.timeout > limits::TIMEOUT_EXPONENT_MAX,
            "modify_qp: timeout is an exponent of at most 31",
        )?;
        refuse(
            has(AttrMask::MAX_QP_RD_ATOMIC) && attr.max_rd_atomic > rd_max,
            "modify_qp: max_rd_atomic is above the device's max_qp_init_rd_atom",
        )?;
        refuse(
            has(AttrMask::MAX_DEST_RD_ATOMIC) && attr.max_dest_rd_atomic > rd_max,
            "modify_qp: max_dest_rd_atomic is above the device's max_qp_rd_atom",
        )
    }

    /// Takes over every attribute in the mask.
    fn apply<E: Env>(
        &mut self,
        attr: &QpAttr,
        mask: AttrMask,
        path: Option<Path>,
        cx: &mut Cx<'_, E>,
    ) {
        let has = |bit| mask.contains(bit);
        macro_rules! take {
            ($($bit:ident => $field:ident,)*) => {
                $(if has(AttrMask::$bit) { self.attr.$field = attr.$field; })*
            };
        }
        take! {
            ACCESS_FLAGS => qp_access_flags,
            PKEY_INDEX => pkey_index,
            PORT => port_num,
            QKEY => qkey,
            AV => ah_attr,
            PATH_MTU => path_mtu,
            TIMEOUT => timeout,
            RETRY_CNT => retry_cnt,
            RNR_RETRY => rnr_retry,
            MAX_QP_RD_ATOMIC => max_rd_atomic,
            MAX_DEST_RD_ATOMIC => max_dest_rd_atomic,
            MIN_RNR_TIMER => min_rnr_timer,
            PATH_MIG_STATE => path_mig_state,
            DEST_QPN => dest_qp_num,
            EN_SQD_ASYNC_NOTIFY => en_sqd_async_notify,
        }
        self.attr.retry_cnt = self.attr.retry_cnt.min(limits::RETRY_CNT_MAX);
        self.attr.rnr_retry = self.attr.rnr_retry.min(limits::RNR_RETRY_INFINITE);
        self.attr.min_rnr_timer &= 0x1f;
        // Rounded up as the Linux software peer does: it rounds its own side too, and would
        // otherwise be refused the READs that it believes to be allowed.
        self.attr.max_dest_rd_atomic = match self.attr.max_dest_rd_atomic {
            0 => 0,
            n => n.checked_next_power_of_two().unwrap_or(n),
        };
        if has(AttrMask::PATH_MTU) {
            self.pmtu = attr.path_mtu.bytes() as usize;
        }
        if has(AttrMask::RQ_PSN) {
            self.resp.epsn = attr.rq_psn;
        }
        if has(AttrMask::SQ_PSN) {
            self.sq.restart(attr.sq_psn);
        }
        if let Some(path) = path.filter(|_| has(AttrMask::AV)) {
            if has(AttrMask::PORT) || self.state == QpState::Sqd {
                self.attr.port_num = attr.ah_attr.port_num;
            }
            self.path = path;
            self.attach_peer(cx);
        }
        self.sport = match self.init.qp_type {
            QpType::Ud => ud_source_port(self.qpn),
            _ => source_port(self.path.flow_label, self.qpn, self.attr.dest_qp_num),
        };
        self.reload_retries();
        let may_run = matches!(self.sq.timer, Timer::Off | Timer::Ack { .. });
        if has(AttrMask::TIMEOUT) && self.sq.outstanding() && may_run {
            self.arm_ack_timer(cx);
        }
    }

    /// Joins the budget of the peer's process.
    fn attach_peer<E: Env>(&mut self, cx: &mut Cx<'_, E>) {
        let flight = self.sq.flight;
        self.give_back(flight, cx);
        if let Some(old) = self.peer.take() {
            cx.core.peers.detach(old);
        }
        let core = &mut *cx.core;
        let slot = self.attr.dest_qp_num.slot();
        let peer = core
            .peers
            .attach(self.path.dgid, slot, core.cfg.peer_window_bytes);
        if let Some(window) = core.peers.window(peer) {
            window.take(flight.bytes);
        }
        core.reads.take(flight.read_bytes);
        core.ready.push(self.index);
        self.peer = Some(peer);
    }

    fn arrive<E: Env>(&mut self, to: QpState, attr: &QpAttr, mask: AttrMask, cx: &mut Cx<'_, E>) {
        let was = self.state;
        self.set_state(to, cx);
        if to == QpState::Sqd && was == QpState::Rts {
            self.draining =
                mask.contains(AttrMask::EN_SQD_ASYNC_NOTIFY) && attr.en_sqd_async_notify;
            self.check_drained(cx);
        }
        if to == QpState::Rts {
            self.draining = false;
            cx.core.ready.push(self.index);
        }
    }

    /// Raises SQ_DRAINED once the requests that were begun are complete.
    pub(crate) fn check_drained<E: Env>(&mut self, cx: &mut Cx<'_, E>) {
        if self.draining && self.state == QpState::Sqd && self.sq.drained() {
            self.draining = false;
            self.raise(EventKind::SqDrained, cx);
        }
    }

    pub(crate) fn query(&self) -> QpAttr {
        let mut attr = self.attr;
        attr.qp_state = self.state;
        attr.cur_qp_state = self.state;
        attr.sq_psn = self.sq.psn(self.sq.nxt);
        attr.rq_psn = self.resp.epsn;
        attr.sq_draining = self.state == QpState::Sqd && !self.sq.drained();
        attr.cap = self.init.cap;
        attr
    }
}
