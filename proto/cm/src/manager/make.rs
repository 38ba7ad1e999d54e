//! Messages and connections made of what applications and peers say.

use alloc::boxed::Box;
use alloc::vec::Vec;

use rocebud_objects::{Instant, Misuse};
use rocebud_wire::{Mtu, PKey, Psn, Qpn};

use super::conn::{Conn, fill};
use crate::ip::{self, IpCm};
use crate::msg::{Rep, Req, ReqPath, SidrReq};
use crate::state::State;
use crate::timing::ack_timeout;
use crate::types::{
    Accept, CmQpType, ConnId, Connect, Ece, Ends, Path, QpParams, Reply, Request, SidrRequest,
};

/// Seven tries are the most that a field can say.
fn at_most_seven(count: u8) -> u8 {
    count.min(7)
}

/// Private data behind the header of the IP service.
///
/// # Errors
/// Longer than the message has room for.
pub(crate) fn private<const N: usize>(ip: Option<&IpCm>, data: &[u8]) -> Result<[u8; N], Misuse> {
    let mut field = [0; N];
    let mut room = &mut field[..];
    if let Some(ip) = ip {
        fill(room, &ip.emit());
        room = room.get_mut(ip::HEADER_LEN..).unwrap_or(&mut []);
    }
    if data.len() > room.len() {
        return Err(Misuse::invalid(
            "more private data than the message has room for",
        ));
    }
    fill(room, data);
    Ok(field)
}

/// What a peer put behind the header of the IP service, or all of it.
pub(crate) fn after_header(ip: Option<&IpCm>, field: &[u8]) -> Vec<u8> {
    let skip = if ip.is_some() { ip::HEADER_LEN } else { 0 };
    field.iter().copied().skip(skip).collect()
}

/// A connection that nothing is known of but its ends.
pub(crate) fn blank(id: ConnId, state: State, path: Path, tid: u64) -> Conn {
    Conn {
        id,
        state,
        owned: true,
        passive: false,
        path,
        tid,
        dreq_tid: tid,
        remote_id: 0,
        remote_guid: 0,
        local_guid: 0,
        local_qpn: Qpn::default(),
        service_id: 0,
        qp_type: CmQpType::Rc,
        qp: QpParams {
            dest_qpn: Qpn::default(),
            rq_psn: Psn::default(),
            sq_psn: Psn::default(),
            path_mtu: Mtu::M256,
            max_rd_atomic: 0,
            max_dest_rd_atomic: 0,
            timeout: 0,
            retry_cnt: 0,
            rnr_retry: 0,
            min_rnr_timer: 0,
            pkey: PKey::DEFAULT,
        },
        packet_life: 0,
        last: None,
        sent: 0,
        sends: u8::MAX,
        mras: 0,
        began: Instant(0),
        half_open: false,
        deadline: None,
        place: None,
        overtaken: false,
    }
}

/// The connection that an application asks for.
pub(crate) fn asking(id: ConnId, tid: u64, psn: Psn, ask: &Connect) -> Conn {
    let mut conn = blank(id, State::ReqSent, ask.path, tid);
    conn.local_guid = ask.ca_guid;
    conn.local_qpn = ask.qpn;
    conn.service_id = ask.service_id;
    conn.qp_type = ask.qp_type;
    conn.packet_life = ask.packet_life;
    conn.sends = ask.max_cm_retries.min(15) + 1;
    conn.qp.rq_psn = psn;
    conn.qp.path_mtu = ask.mtu;
    conn.qp.timeout = ack_timeout(ask.packet_life, ask.ca_ack_delay);
    conn.qp.retry_cnt = at_most_seven(ask.retry_count);
    conn.qp.pkey = ask.pkey;
    conn
}

/// The REQ of such a connection.
pub(crate) fn req(conn: &Conn, ask: &Connect) -> Result<Req, Misuse> {
    let (transport, extended_transport) = match ask.qp_type {
        CmQpType::Rc => (0, 0),
        CmQpType::Uc => (1, 0),
        CmQpType::Xrc => (3, 1),
    };
    let routed = ask.path.hop_limit > 1;
    let lid = if routed { 0xffff } else { 0 };
    Ok(Req {
        local_id: conn.id.0,
        vendor_id: ask.ece.vendor_id,
        service_id: ask.service_id,
        local_ca_guid: ask.ca_guid,
        local_qpn: ask.qpn,
        responder_resources: ask.responder_resources,
        initiator_depth: ask.initiator_depth,
        remote_response_timeout: ask.response_timeout,
        transport,
        flow_control: ask.flow_control,
        starting_psn: conn.qp.rq_psn,
        local_response_timeout: ask.response_timeout,
        retry_count: at_most_seven(ask.retry_count),
        pkey: ask.pkey,
        mtu: ask.mtu as u8,
        rnr_retry_count: at_most_seven(ask.rnr_retry_count),
        max_cm_retries: ask.max_cm_retries.min(15),
        srq: ask.srq,
        extended_transport,
        primary: ReqPath {
            local_lid: lid,
            remote_lid: lid,
            local_gid: ask.path.ends.local,
            remote_gid: ask.path.ends.remote,
            flow_label: ask.path.flow_label,
            packet_rate: 0,
            traffic_class: ask.path.traffic_class,
            hop_limit: ask.path.hop_limit,
            sl: ask.path.sl,
            subnet_local: !routed,
            ack_timeout: conn.qp.timeout,
        },
        private_data: private(ask.ip.as_ref(), &ask.private_data)?,
        ..Req::default()
    })
}

/// Kind and MTU of the connection that a peer asks for; None for one that does not exist.
pub(crate) fn kind(req: &Req) -> Option<CmQpType> {
    match (req.transport, req.extended_transport) {
        (0, _) => Some(CmQpType::Rc),
        (1, _) => Some(CmQpType::Uc),
        (3, 1) => Some(CmQpType::Xrc),
        _ => None,
    }
}

/// The connection that a peer asks for.
pub(crate) fn asked(blank: Conn, psn: Psn, req: &Req, qp_type: CmQpType, mtu: Mtu) -> Conn {
    Conn {
        passive: true,
        sends: req.max_cm_retries + 1,
        half_open: true,
        remote_id: req.local_id,
        remote_guid: req.local_ca_guid,
        service_id: req.service_id,
        qp_type,
        qp: QpParams {
            dest_qpn: req.local_qpn,
            rq_psn: psn,
            sq_psn: req.starting_psn,
            path_mtu: mtu,
            max_rd_atomic: req.responder_resources,
            max_dest_rd_atomic: req.initiator_depth,
            timeout: req.primary.ack_timeout,
            retry_cnt: req.retry_count,
            rnr_retry: req.rnr_retry_count,
            min_rnr_timer: 0,
            pkey: req.pkey,
        },
        ..blank
    }
}

/// What the application hears of it.
pub(crate) fn request(conn: &Conn, req: &Req, ip: Option<IpCm>, options: u32) -> Option<Request> {
    Some(Request {
        conn: conn.id,
        listener: conn.place?,
        path: conn.path,
        service_id: req.service_id,
        ip,
        qp_type: conn.qp_type,
        srq: req.srq,
        flow_control: req.flow_control,
        responder_resources: req.initiator_depth,
        initiator_depth: req.responder_resources,
        qp: conn.qp,
        pkey: req.pkey,
        remote_guid: req.local_ca_guid,
        ece: ece(req.vendor_id, options),
        private_data: after_header(ip.as_ref(), &req.private_data),
    })
}

/// The REP with which an application accepts.
pub(crate) fn rep(conn: &Conn, answer: &Accept) -> Result<Rep, Misuse> {
    let xrc = conn.qp_type == CmQpType::Xrc;
    let (local_qpn, local_eecn) = if xrc {
        (Qpn::default(), answer.qpn)
    } else {
        (answer.qpn, Qpn::default())
    };
    Ok(Rep {
        local_id: conn.id.0,
        remote_id: conn.remote_id,
        local_qpn,
        local_eecn,
        vendor_id: answer.ece.vendor_id,
        starting_psn: conn.qp.rq_psn,
        responder_resources: answer.responder_resources,
        initiator_depth: answer.initiator_depth,
        target_ack_delay: answer.ca_ack_delay.min(31),
        flow_control: answer.flow_control,
        rnr_retry_count: at_most_seven(answer.rnr_retry_count),
        srq: answer.srq || xrc,
        local_ca_guid: answer.ca_guid,
        private_data: private(None, &answer.private_data)?,
        ..Rep::default()
    })
}

/// The peer's queue pair in a REP.
pub(crate) fn rep_qpn(conn: &Conn, rep: &Rep) -> Qpn {
    if conn.qp_type == CmQpType::Xrc {
        rep.local_eecn
    } else {
        rep.local_qpn
    }
}

/// Takes over what a REP says.
pub(crate) fn take_reply(conn: &mut Conn, rep: &Rep) {
    conn.remote_id = rep.local_id;
    conn.remote_guid = rep.local_ca_guid;
    let life = conn.packet_life;
    let qp = &mut conn.qp;
    qp.sq_psn = rep.starting_psn;
    qp.max_rd_atomic = rep.responder_resources;
    qp.max_dest_rd_atomic = rep.initiator_depth;
    qp.timeout = ack_timeout(life, rep.target_ack_delay);
    qp.rnr_retry = rep.rnr_retry_count;
    conn.qp.dest_qpn = rep_qpn(conn, rep);
}

/// What the application hears of it.
pub(crate) fn reply(conn: &Conn, rep: &Rep, options: u32) -> Box<Reply> {
    Box::new(Reply {
        conn: conn.id,
        qp: conn.qp,
        responder_resources: rep.initiator_depth,
        initiator_depth: rep.responder_resources,
        srq: rep.srq,
        flow_control: rep.flow_control,
        ece: ece(rep.vendor_id, options),
        private_data: rep.private_data.to_vec(),
    })
}

/// The question that an application asks.
pub(crate) fn sidr_req(id: ConnId, ask: &SidrRequest) -> Result<SidrReq, Misuse> {
    Ok(SidrReq {
        request_id: id.0,
        pkey: ask.pkey,
        service_id: ask.service_id,
        private_data: private(ask.ip.as_ref(), &ask.private_data)?,
    })
}

/// Options without a vendor mean nothing.
pub(crate) const fn ece(vendor_id: u32, options: u32) -> Ece {
    Ece { vendor_id, options }
}

/// How a peer that asks is reached: back to where the request came from, marked as it says.
pub(crate) fn way_back(ends: Ends, path: &ReqPath) -> Path {
    Path {
        ends,
        flow_label: path.flow_label,
        traffic_class: path.traffic_class,
        hop_limit: path.hop_limit,
        sl: path.sl,
    }
}
