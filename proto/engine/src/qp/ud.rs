//! Datagrams: one packet each, to and from anybody with the right Q_Key.

use rocebud_objects::{Counter, SL_ROCE_V2_IPV4, SL_ROCE_V2_IPV6, SendOp, WcOpcode};
use rocebud_wire::frame::{Ipv4, Ipv6, grh_area_v4, grh_area_v6};
use rocebud_wire::{Bth, Deth, Header, ICRC_LEN, Opcode, Packet, QKey, ud_source_port};

use super::flush::local_reason;
use super::{Qp, sge};
use crate::cx::Cx;
use crate::env::Env;
use crate::limits::{GRH_BYTES, PACKET_COST_BYTES};
use crate::node::{RxMeta, Transmit};
use crate::reasons::Reason;

/// Q_Keys with this bit are controlled: the sender's own goes out instead.
const CONTROLLED_QKEY: u32 = 1 << 31;

impl Qp {
    pub(crate) fn send_datagram<E: Env>(
        &mut self,
        buf: &mut [u8],
        cx: &mut Cx<'_, E>,
    ) -> Option<Transmit> {
        let (psn, pd, qkey) = (self.sq.psn(self.sq.cursor), self.init.pd, self.attr.qkey);
        let (qpn, pkey) = (self.qpn, self.attr.pkey());
        let wqe = self.sq.current()?;
        let to = wqe.wr.ud?;
        let cost = wqe.len + PACKET_COST_BYTES;
        if !self.find_room(to.path.dgid, to.remote_qpn, cost, cx) {
            return None;
        }
        let wqe = self.sq.current()?;
        let mut bth = Bth::new(Opcode::UD_SEND_ONLY, to.remote_qpn, psn);
        bth.pkey = pkey;
        bth.solicited = wqe.wr.flags.contains(rocebud_objects::SendFlags::SOLICITED);
        let mut header = Header::new(bth);
        if let SendOp::SendImm { imm } = wqe.wr.op {
            header.bth.opcode = Opcode::UD_SEND_ONLY_IMM;
            header.ext.imm_dt = Some(imm);
        }
        let QKey(given) = to.remote_qkey;
        let qkey = if given & CONTROLLED_QKEY == 0 {
            to.remote_qkey
        } else {
            qkey
        };
        header.ext.deth = Some(Deth { qkey, src_qp: qpn });
        let n = usize::try_from(wqe.len).ok()?;
        let at = header.emit(n, buf);
        let room = buf.get_mut(at..at + n)?;
        if let Err(fault) = sge::gather(cx.env, pd, &wqe.wr.payload, 0, room) {
            self.fail_current(local_reason(fault), cx);
            return None;
        }
        cx.env.count(Counter::SentBytes, n as u64);
        self.sent(1, cx);
        self.finish_unreliable(cx);
        Some(Transmit {
            len: header.frame_len(n),
            path: to.path,
            sport: ud_source_port(qpn),
            dest_qp: to.remote_qpn,
            src_qp: qpn,
            retransmit: false,
            lost: false,
        })
    }

    /// Check only: which counter a datagram goes to that no receive could help.
    pub(crate) fn accepts_datagram(&self, pkt: &Packet<'_>) -> Result<(), Counter> {
        if pkt.ext.deth.is_none_or(|deth| deth.qkey != self.attr.qkey) {
            Err(Counter::DropBadQkey)
        } else if pkt.payload.len() > self.port_mtu.bytes() as usize {
            Err(Counter::DropRefused)
        } else {
            Ok(())
        }
    }

    /// PSNs are not looked at. Whatever does not fit is dropped; the receive stays for the next.
    pub(crate) fn on_datagram<E: Env>(
        &mut self,
        rx: &RxMeta,
        pkt: &Packet<'_>,
        cx: &mut Cx<'_, E>,
    ) {
        if let Err(drop) = self.accepts_datagram(pkt) {
            return cx.count(drop);
        }
        let bytes = GRH_BYTES + pkt.payload.len() as u64;
        if !self.hold_receive(cx) {
            return cx.count(Counter::DropNoReceive);
        }
        let Some(held) = &self.held else { return };
        if held.capacity < bytes {
            return cx.count(Counter::DropNoReceive);
        }
        let area = grh_area(rx, pkt);
        let (pd, sges) = (held.pd, &held.wr.sges);
        let placed = sge::scatter(cx.env, pd, sges, 0, &area)
            .and_then(|()| sge::scatter(cx.env, pd, sges, GRH_BYTES, pkt.payload));
        match placed {
            Ok(()) => {
                let sl = service_level(rx);
                self.complete_receive(pkt, WcOpcode::Recv, bytes, None, sl, cx);
            }
            Err(fault) => {
                if let Some(held) = self.held.take() {
                    self.complete_recv_error(held.cq, held.wr.wr_id, local_reason(fault), cx);
                }
                self.enter_error(Reason::FlushedByError, false, cx);
            }
        }
    }
}

/// Which network header the datagram came with, as the completion tells it.
fn service_level(rx: &RxMeta) -> u8 {
    if rx.src.v4().is_some() && rx.dst.v4().is_some() {
        SL_ROCE_V2_IPV4
    } else {
        SL_ROCE_V2_IPV6
    }
}

/// The 40 bytes before a received datagram: the network header as it was on the wire.
fn grh_area(rx: &RxMeta, pkt: &Packet<'_>) -> [u8; 40] {
    let headers = usize::from(pkt.info.header_len);
    let udp_payload = headers + pkt.payload.len() + usize::from(pkt.bth.pad) + ICRC_LEN;
    match (rx.src.v4(), rx.dst.v4()) {
        (Some(src), Some(dst)) => {
            let ip = Ipv4 {
                tos: rx.traffic_class,
                id: rx.ipv4_id,
                flags_frag: rx.ipv4_flags,
                ttl: rx.hop_limit,
                src,
                dst,
            };
            grh_area_v4(&ip, udp_payload)
        }
        _ => {
            let ip = Ipv6 {
                traffic_class: rx.traffic_class,
                flow_label: 0,
                hop_limit: rx.hop_limit,
                src: rx.src.0,
                dst: rx.dst.0,
            };
            grh_area_v6(&ip, udp_payload)
        }
    }
}
