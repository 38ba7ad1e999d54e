//! What the connection manager tells becomes events of identifiers.

use libc::ETIMEDOUT;
use rocebud_cm::ip::{IpCm, port_of};
use rocebud_cm::{
    ConnId, Event, ListenerId, Path, RejReason, Rejected, Reply, Request, SidrAnswer, SidrAsk,
};
use rocebud_ctl::cm::{CmAddr, CmDatagram, CmDetails, CmEce, CmEvent, CmParam, CmPath, CmRoute};
use rocebud_wire::Gid;

use super::id::{Id, State};
use super::resolve::{PACKET_LIFE, is_datagram};
use super::{Cm, World};
use crate::limits::{CM_IDS_MAX, CM_IDS_PER_CLIENT_MAX};

/// `enum rdma_cm_event_type`
mod kind {
    pub(super) const CONNECT_REQUEST: u32 = 4;
    pub(super) const CONNECT_RESPONSE: u32 = 5;
    pub(super) const UNREACHABLE: u32 = 7;
    pub(super) const REJECTED: u32 = 8;
    pub(super) const ESTABLISHED: u32 = 9;
    pub(super) const DISCONNECTED: u32 = 10;
    pub(super) const TIMEWAIT_EXIT: u32 = 15;
}

impl Cm {
    /// Something happened to a connection.
    pub(super) fn on_news(&mut self, event: Event, world: &World<'_>) {
        match event {
            Event::Request(request) => self.on_request(*request, world),
            Event::SidrRequest(ask) => self.on_question(*ask, world),
            Event::Reply(reply) => self.on_reply(*reply),
            Event::SidrReply(answer) => self.on_answer(*answer, world),
            Event::Rejected(rejected) => self.on_rejected(*rejected),
            Event::Established { conn } => {
                let nothing = CmDetails::Peer(CmParam::default());
                self.tell(conn, kind::ESTABLISHED, 0, nothing);
            }
            Event::Unreachable { conn } => {
                self.tell(conn, kind::UNREACHABLE, -ETIMEDOUT, CmDetails::None);
            }
            Event::Disconnected { conn, timed_out } => {
                let status = if timed_out { -ETIMEDOUT } else { 0 };
                let nothing = CmDetails::Peer(CmParam::default());
                self.tell(conn, kind::DISCONNECTED, status, nothing);
            }
            Event::Gone { conn, time_wait } => {
                if time_wait {
                    self.tell(conn, kind::TIMEWAIT_EXIT, 0, CmDetails::None);
                }
                let number = self.conns.remove(&conn);
                if let Some(id) = number.and_then(|n| self.ids.get_mut(&n)) {
                    id.conn = None;
                }
            }
        }
    }

    fn tell(&mut self, conn: ConnId, kind: u32, status: i32, details: CmDetails) {
        if let Some(number) = self.conns.get(&conn).copied() {
            self.push(number, kind, status, details);
        }
    }

    fn on_reply(&mut self, reply: Reply) {
        let Some(number) = self.conns.get(&reply.conn).copied() else {
            return;
        };
        if let Some(id) = self.ids.get_mut(&number) {
            id.state = State::Replied;
        }
        let param = CmParam {
            qpn: reply.qp.dest_qpn.value(),
            srq: reply.srq,
            responder_resources: reply.responder_resources,
            initiator_depth: reply.initiator_depth,
            flow_control: reply.flow_control,
            retry_count: reply.qp.retry_cnt,
            rnr_retry_count: reply.qp.rnr_retry,
            qkey: 0,
            private_data: reply.private_data,
            ece: ece(&reply.ece),
        };
        self.push(number, kind::CONNECT_RESPONSE, 0, CmDetails::Peer(param));
    }

    fn on_rejected(&mut self, rejected: Rejected) {
        let status = i32::from(rejected.reason.code());
        let param = CmParam {
            private_data: rejected.private_data,
            ..CmParam::default()
        };
        self.tell(
            rejected.conn,
            kind::REJECTED,
            status,
            CmDetails::Peer(param),
        );
    }

    fn on_answer(&mut self, answer: SidrAnswer, world: &World<'_>) {
        let Some(number) = self.conns.get(&answer.conn).copied() else {
            return;
        };
        let ah = self.ids.get(&number).and_then(|id| id.ah(world));
        if answer.status != 0 {
            let status = i32::from(answer.status);
            return self.push(number, kind::UNREACHABLE, status, CmDetails::None);
        }
        let datagram = CmDatagram {
            private_data: answer.private_data,
            ah: ah.unwrap_or_default(),
            qpn: answer.qpn.value(),
            qkey: answer.qkey.0,
        };
        self.push(number, kind::ESTABLISHED, 0, CmDetails::Datagram(datagram));
    }

    fn on_request(&mut self, request: Request, world: &World<'_>) {
        let mtu = request.qp.path_mtu as u8;
        let service = request.service_id;
        let route = route_back(&request.path, request.ip.as_ref(), service, mtu);
        let child = self.child(
            request.conn,
            request.listener,
            route,
            request.responder_resources,
        );
        let Some((number, listener)) = child else {
            let (now, none) = (world.instant(), RejReason::NO_RESOURCES);
            let _ = self.manager.reject(now, request.conn, none, &[], &[]);
            return;
        };
        let param = CmParam {
            qpn: request.qp.dest_qpn.value(),
            srq: request.srq,
            responder_resources: request.responder_resources,
            initiator_depth: request.initiator_depth,
            flow_control: request.flow_control,
            retry_count: request.qp.retry_cnt,
            rnr_retry_count: request.qp.rnr_retry,
            qkey: 0,
            private_data: request.private_data,
            ece: ece(&request.ece),
        };
        self.announce(number, listener, CmDetails::Request(route, param));
    }

    fn on_question(&mut self, ask: SidrAsk, world: &World<'_>) {
        let mtu = world.device(ask.path.ends.port).map_or(0, |d| d.active_mtu);
        let route = route_back(&ask.path, ask.ip.as_ref(), ask.service_id, mtu);
        let Some((number, listener)) = self.child(ask.conn, ask.listener, route, 0) else {
            self.manager.forget(world.instant(), ask.conn);
            return;
        };
        let ah = self.ids.get(&number).and_then(|id| id.ah(world));
        let datagram = CmDatagram {
            private_data: ask.private_data,
            ah: ah.unwrap_or_default(),
            qpn: 0,
            qkey: 0,
        };
        self.announce(
            number,
            listener,
            CmDetails::DatagramRequest(route, datagram),
        );
    }

    /// An identifier for a peer that asks: its number, and the listener's. `None`: the listener's
    /// process has as many as it may have.
    fn child(
        &mut self,
        conn: ConnId,
        listener: ListenerId,
        route: CmRoute,
        resources: u8,
    ) -> Option<(u32, u32)> {
        let listener = self.listeners.get(&listener).copied()?;
        let parent = self.ids.get(&listener)?;
        let (client, channel) = (parent.client, parent.channel);
        let mut id = Id::new(client, channel, parent.space, parent.qp_type);
        id.options = parent.options;
        id.state = State::Requested;
        id.source = route.source;
        id.ifindex = route.ifindex;
        id.route = Some(route);
        id.conn = Some(conn);
        id.resources = resources;
        if !self.has_room(client) {
            return None;
        }
        let number = self.add(id);
        self.conns.insert(conn, number);
        Some((number, listener))
    }

    fn announce(&mut self, number: u32, listener: u32, details: CmDetails) {
        let Some(channel) = self.ids.get(&listener).map(|id| id.channel) else {
            return;
        };
        let event = CmEvent {
            kind: kind::CONNECT_REQUEST,
            id: number,
            listener,
            status: 0,
            details,
        };
        self.channels.push(channel, event);
    }

    /// A client may have one identifier more.
    pub(super) fn has_room(&self, client: u64) -> bool {
        let held = self.held.get(&client).copied().unwrap_or(0);
        held < CM_IDS_PER_CLIENT_MAX && self.ids.len() < CM_IDS_MAX
    }

    /// Gives an identifier a number.
    pub(super) fn add(&mut self, id: Id) -> u32 {
        loop {
            self.next_id = self.next_id.wrapping_add(1).max(1);
            if !self.ids.contains_key(&self.next_id) {
                break;
            }
        }
        *self.held.entry(id.client).or_default() += 1;
        self.ids.insert(self.next_id, id);
        self.next_id
    }
}

/// The way to a peer that asks. Without an IP header its addresses are those of its packet.
fn route_back(path: &Path, ip: Option<&IpCm>, service: u64, mtu: u8) -> CmRoute {
    let scope = |gid: Gid| {
        if gid.is_link_local() {
            path.ends.port
        } else {
            0
        }
    };
    let (local, remote) = (path.ends.local, path.ends.remote);
    CmRoute {
        source: CmAddr {
            ip: ip.map_or_else(|| local.ip(), |ip| ip.dst),
            port: port_of(service),
            scope: scope(local),
        },
        destination: CmAddr {
            ip: ip.map_or_else(|| remote.ip(), |ip| ip.src),
            port: ip.map_or(0, |ip| ip.src_port),
            scope: scope(remote),
        },
        ifindex: path.ends.port,
        path: CmPath {
            sgid: local.0,
            dgid: remote.0,
            flow_label: path.flow_label,
            hop_limit: path.hop_limit,
            traffic_class: path.traffic_class,
            mtu,
            packet_life_time: PACKET_LIFE,
        },
    }
}

fn ece(ece: &rocebud_cm::Ece) -> CmEce {
    CmEce {
        vendor_id: ece.vendor_id,
        options: ece.options,
    }
}

/// Datagram services are asked and answered once.
pub(super) fn asks_once(id: &Id) -> bool {
    is_datagram(id.space) || id.qp_type == 4
}
