//! A queue pair.
pub mod state;
use crate::cx::Cx;
use crate::env::Env;
use crate::node::{RxMeta, Transmit};
use crate::ready::Index;
use rocebud_objects::*;
use rocebud_wire::{Mtu, Packet, Qpn};

#[derive(Debug)]
pub(crate) struct Qp {
    pub(crate) qpn: Qpn,
    pub(crate) init: QpInit,
    pub(crate) state: QpState,
    pub(crate) port_mtu: Mtu,
}
#[allow(
    unused_variables,
    clippy::unused_self,
    reason = "skeleton, bodies follow"
)]
impl Qp {
    pub(crate) fn new(index: Index, qpn: Qpn, init: QpInit) -> Self {
        Self {
            qpn,
            init,
            state: QpState::Reset,
            port_mtu: Mtu::M4096,
        }
    }
    pub(crate) fn retire<E: Env>(&mut self, cx: &mut Cx<'_, E>) {}
    pub(crate) fn uses_cq(&self, cq: CqId) -> bool {
        self.init.send_cq == cq || self.init.recv_cq == cq
    }
    pub(crate) fn modify<E: Env>(
        &mut self,
        attr: &QpAttr,
        mask: AttrMask,
        path: Option<Path>,
        cx: &mut Cx<'_, E>,
    ) -> Result<(), Misuse> {
        Ok(())
    }
    pub(crate) fn query(&self) -> QpAttr {
        QpAttr::default()
    }
    pub(crate) fn post_send<E: Env>(
        &mut self,
        wr: SendWr,
        cx: &mut Cx<'_, E>,
    ) -> Result<(), Misuse> {
        Ok(())
    }
    pub(crate) fn post_recv<E: Env>(
        &mut self,
        wr: RecvWr,
        cx: &mut Cx<'_, E>,
    ) -> Result<(), Misuse> {
        Ok(())
    }
    pub(crate) fn on_frame<E: Env>(&mut self, rx: &RxMeta, pkt: &Packet<'_>, cx: &mut Cx<'_, E>) {}
    pub(crate) fn on_timer<E: Env>(&mut self, cx: &mut Cx<'_, E>) {}
    pub(crate) fn poll_transmit<E: Env>(
        &mut self,
        buf: &mut [u8],
        cx: &mut Cx<'_, E>,
    ) -> Option<Transmit> {
        None
    }
    pub(crate) fn is_idle(&self) -> bool {
        true
    }
    pub(crate) fn cq_failed<E: Env>(&mut self, cx: &mut Cx<'_, E>) {}
}
