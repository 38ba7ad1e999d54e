//! Requests of programs: check, apply, answer.

use std::os::fd::OwnedFd;

use libc::{EADDRNOTAVAIL, EINVAL, EIO, EISCONN, EMFILE, ENODEV, ENOMEM};
use rocebud_cm::ip::{PortSpace, service_id};
use rocebud_cm::{
    Accept, CmQpType, Connect, Ece, Listen, RejReason, SidrReply, SidrRequest, sidr_status,
};
use rocebud_ctl::cm::{
    CmAddr, CmAh, CmAnswer, CmBound, CmDatagram, CmDetails, CmEvent, CmOption, CmParam, CmPath,
    CmQpAttr, CmRequest, CmRoute,
};
use rocebud_objects::Misuse;
use rocebud_wire::{Gid, Mtu, PKey, QKey, Qpn};

use super::id::{Id, State, path_of};
use super::multicast::{HOP_LIMIT, Membership, QPN};
use super::news::asks_once;
use super::resolve::{device_with, gid_index};
use super::{Cm, World};
use crate::devices::Now;
use crate::limits::{CM_CHANNELS_PER_CLIENT_MAX, CM_EVENTS_WAITING_MAX, CM_GROUPS_PER_ID_MAX};

/// Who asks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asker {
    /// Key of the client.
    pub(crate) client: u64,
    /// May use low ports.
    pub(crate) privileged: bool,
}

/// An answer, or a positive errno.
type Served = Result<CmAnswer, i32>;

/// Q_Key of RDMA_PS_UDP.
const UDP_QKEY: u32 = 0x0123_4567;
/// Q_Key of groups in other spaces: IPoIB's.
const GROUP_QKEY: u32 = 0x0b1b;

/// `enum rdma_cm_event_type`
const ROUTE_RESOLVED: u32 = 2;
const MULTICAST_JOIN: u32 = 12;
const MULTICAST_ERROR: u32 = 13;
const USER: u32 = 18;
const ADDRINFO_RESOLVED: u32 = 16;

/// `enum ibv_qp_type`
const UC: u8 = 3;
const XRC_SEND: u8 = 9;
const XRC_RECV: u8 = 10;

impl Cm {
    /// Does what a program asks for. A descriptor comes with a new channel.
    pub(crate) fn serve(
        &mut self,
        asker: Asker,
        request: CmRequest,
        world: &World<'_>,
    ) -> (CmAnswer, Option<OwnedFd>) {
        if request == CmRequest::OpenChannel {
            return match self.open_channel(asker) {
                Ok((channel, socket)) => (CmAnswer::Channel(channel), Some(socket)),
                Err(errno) => (CmAnswer::Refused(errno), None),
            };
        }
        let served = self.apply(asker, request, world);
        (served.unwrap_or_else(CmAnswer::Refused), None)
    }

    fn apply(&mut self, asker: Asker, request: CmRequest, world: &World<'_>) -> Served {
        use CmRequest as R;
        match request {
            R::OpenChannel => Err(EINVAL),
            R::CloseChannel { channel } => self.close_channel(asker, channel, world),
            R::CreateId {
                channel,
                space,
                qp_type,
            } => self.create(asker, channel, space, qp_type),
            R::NextEvent { channel } => self.next_event(asker, channel),
            R::DestroyId { id } => {
                self.check(asker, id)?;
                Ok(CmAnswer::Reported(self.destroy(id, world)))
            }
            R::MigrateId { id, channel } => self.migrate(asker, id, channel),
            R::Bind { id, address } => self.bind_to(asker, id, address, world),
            R::ResolveAddr {
                id,
                source,
                destination,
                timeout_ms,
            } => self.resolve(asker, id, (source, destination), timeout_ms, world),
            R::ResolveRoute { id } => self.resolve_route(asker, id),
            R::SetPath { id, path } => self.set_path(asker, id, path),
            R::Listen { id, backlog } => self.listen(asker, id, backlog, world),
            R::Connect { id, param } => self.connect(asker, id, param, world),
            R::Accept { id, param } => self.accept(asker, id, param, world),
            R::Establish { id } => self.establish(asker, id, world),
            R::Reject {
                id,
                reason,
                private_data,
            } => self.reject(asker, id, reason, &private_data, world),
            R::Disconnect { id } => self.disconnect(asker, id, world),
            R::Notify { id, migrated } => self.notify(asker, id, migrated, world),
            R::QpAttr { id } => self.qp_attr(asker, id, world),
            R::SetOption { id, option } => self.set_option(asker, id, option),
            R::Join { id, group } => self.join(asker, id, group, world),
            R::Leave { id, membership } => self.leave(asker, id, membership),
            R::WriteEvent {
                id,
                kind,
                status,
                argument,
            } => self.write_event(asker, id, (kind, status, argument)),
        }
    }

    // ---- channels and identifiers

    fn open_channel(&mut self, asker: Asker) -> Result<(u32, OwnedFd), i32> {
        if self.channels.count(asker.client) >= CM_CHANNELS_PER_CLIENT_MAX {
            return Err(EMFILE);
        }
        let opened = self.channels.open(asker.client);
        opened.map_err(|e| e.raw_os_error().unwrap_or(EIO))
    }

    fn close_channel(&mut self, asker: Asker, channel: u32, world: &World<'_>) -> Served {
        self.check_channel(asker, channel)?;
        let on_it = |(number, id): (&u32, &Id)| (id.channel == channel).then_some(*number);
        let on_it: Vec<u32> = self.ids.iter().filter_map(on_it).collect();
        for id in on_it {
            self.destroy(id, world);
        }
        self.channels.close(channel);
        Ok(CmAnswer::Done)
    }

    fn create(&mut self, asker: Asker, channel: u32, space: u16, qp_type: u8) -> Served {
        const UD: u8 = 4;
        self.check_channel(asker, channel)?;
        let space = PortSpace::from_abi(u32::from(space)).ok_or(EINVAL)?;
        if !matches!(qp_type, 2 | UC | UD | XRC_SEND | XRC_RECV) {
            return Err(EINVAL);
        }
        if !self.has_room(asker.client) {
            return Err(ENOMEM);
        }
        let id = Id::new(asker.client, channel, space, qp_type);
        Ok(CmAnswer::Id(self.add(id)))
    }

    fn migrate(&mut self, asker: Asker, number: u32, channel: u32) -> Served {
        self.check_channel(asker, channel)?;
        let id = self.check(asker, number)?;
        let old = std::mem::replace(&mut id.channel, channel);
        let reported = id.reported;
        if old != channel {
            let mine = |event: &CmEvent| match event.listener {
                0 => event.id == number,
                listener => listener == number,
            };
            for event in self.channels.remove(old, mine) {
                // Who asked follows whom it asked.
                if event.listener != 0
                    && let Some(child) = self.ids.get_mut(&event.id)
                {
                    child.channel = channel;
                }
                self.channels.push(channel, event);
            }
        }
        Ok(CmAnswer::Reported(reported))
    }

    fn next_event(&mut self, asker: Asker, channel: u32) -> Served {
        self.check_channel(asker, channel)?;
        let Some(event) = self.channels.pop(channel) else {
            return Ok(CmAnswer::Event(None));
        };
        if event.listener != 0
            && let Some(conn) = self.ids.get(&event.id).and_then(|child| child.conn)
        {
            self.manager.taken(conn);
        }
        let subject = if event.listener == 0 {
            event.id
        } else {
            event.listener
        };
        if let Some(id) = self.ids.get_mut(&subject) {
            id.reported += 1;
            if let CmDetails::Multicast(membership, _) = &event.details
                && let Some(membership) = id.memberships.get_mut(membership)
            {
                membership.reported += 1;
            }
        }
        Ok(CmAnswer::Event(Some(Box::new(event))))
    }

    fn write_event(&mut self, asker: Asker, id: u32, event: (u32, i32, u64)) -> Served {
        let (kind, status, argument) = event;
        let channel = self.check(asker, id)?.channel;
        if !matches!(kind, USER | ADDRINFO_RESOLVED) {
            return Err(EINVAL);
        }
        if self.channels.waiting(channel) >= CM_EVENTS_WAITING_MAX {
            return Err(ENOMEM);
        }
        self.push(id, kind, status, CmDetails::Argument(argument));
        Ok(CmAnswer::Done)
    }

    fn check(&mut self, asker: Asker, id: u32) -> Result<&mut Id, i32> {
        let id = self.ids.get_mut(&id);
        id.filter(|id| id.client == asker.client).ok_or(EINVAL)
    }

    fn check_channel(&self, asker: Asker, channel: u32) -> Result<(), i32> {
        match self.channels.is_of(channel, asker.client) {
            true => Ok(()),
            false => Err(EINVAL),
        }
    }

    // ---- addresses

    fn bind_to(&mut self, asker: Asker, number: u32, address: CmAddr, world: &World<'_>) -> Served {
        let id = self.check(asker, number)?;
        if id.state != State::Idle {
            return Err(EINVAL);
        }
        let ifindex = match address.ip.is_unspecified() {
            true => 0,
            false => {
                let link_local = Gid::from_ip(address.ip).is_link_local();
                let scope = if link_local { address.scope } else { 0 };
                let device = device_with(world.devices, address.ip, scope);
                device.ok_or(EADDRNOTAVAIL)?.ifindex
            }
        };
        let claim = id.claim(number, &address);
        let space = id.space as u16;
        let chance = super::random();
        let port = self
            .ports
            .take(space, address.port, claim, asker.privileged, chance)?;
        let id = self.check(asker, number)?;
        id.port = Some(port);
        id.source = CmAddr { port, ..address };
        id.ifindex = ifindex;
        id.state = State::Bound;
        Ok(bound(id))
    }

    fn resolve(
        &mut self,
        asker: Asker,
        number: u32,
        (source, destination): (Option<CmAddr>, CmAddr),
        timeout_ms: u32,
        world: &World<'_>,
    ) -> Served {
        if self.check(asker, number)?.state == State::Idle {
            let any = CmAddr {
                ip: match destination.ip.is_ipv4() {
                    true => std::net::Ipv4Addr::UNSPECIFIED.into(),
                    false => std::net::Ipv6Addr::UNSPECIFIED.into(),
                },
                port: 0,
                scope: 0,
            };
            self.bind_to(asker, number, source.unwrap_or(any), world)?;
        }
        let id = self.check(asker, number)?;
        if id.state != State::Bound {
            return Err(EINVAL);
        }
        id.state = State::Resolving;
        let from = (!id.source.ip.is_unspecified()).then_some(id.source);
        let timeout = Now::from_millis(u64::from(timeout_ms));
        let outcome = self.resolver.begin(from, destination, timeout, world);
        self.resolved(number, outcome);
        Ok(CmAnswer::Done)
    }

    fn resolve_route(&mut self, asker: Asker, number: u32) -> Served {
        let id = self.check(asker, number)?;
        let route = id.route.filter(|_| id.state == State::AddrResolved);
        let route = route.ok_or(EINVAL)?;
        id.state = State::RouteResolved;
        self.push(number, ROUTE_RESOLVED, 0, CmDetails::Route(route));
        Ok(CmAnswer::Done)
    }

    fn set_path(&mut self, asker: Asker, number: u32, path: CmPath) -> Served {
        let id = self.check(asker, number)?;
        let route = id.route.filter(|_| id.state == State::AddrResolved);
        let route = route.ok_or(EINVAL)?;
        // Between the addresses that were resolved, with an MTU that the port has.
        let fits = (path.sgid, path.dgid) == (route.path.sgid, route.path.dgid);
        if !fits || path.mtu == 0 || path.mtu > route.path.mtu {
            return Err(EINVAL);
        }
        let route = CmRoute { path, ..route };
        id.route = Some(route);
        id.state = State::RouteResolved;
        self.push(number, ROUTE_RESOLVED, 0, CmDetails::Route(route));
        Ok(CmAnswer::Done)
    }

    fn listen(&mut self, asker: Asker, number: u32, backlog: u32, world: &World<'_>) -> Served {
        if self.check(asker, number)?.state == State::Idle {
            let any = self.check(asker, number)?.source;
            self.bind_to(asker, number, any, world)?;
        }
        let id = self.check(asker, number)?;
        if id.state != State::Bound {
            return Err(EINVAL);
        }
        let (space, port) = (id.space, id.source.port);
        let claim = id.claim(number, &id.source);
        let what = Listen {
            service_id: service_id(space, port),
            mask: u64::MAX,
            bind: id.bind(),
            backlog,
        };
        self.ports.listen(space as u16, port, &claim)?;
        let listener = self.manager.listen(what).map_err(errno)?;
        self.withdrawn.remove(&port);
        self.listeners.insert(listener, number);
        let id = self.check(asker, number)?;
        id.listener = Some(listener);
        id.state = State::Listening;
        Ok(bound(id))
    }

    fn set_option(&mut self, asker: Asker, number: u32, option: CmOption) -> Served {
        let id = self.check(asker, number)?;
        let early = matches!(id.state, State::Idle | State::Bound);
        match option {
            CmOption::Tos(tos) => id.options.tos = tos,
            CmOption::AckTimeout(timeout) => {
                if !matches!(id.qp_type, 2 | XRC_SEND) || timeout > 31 {
                    return Err(EINVAL);
                }
                id.options.ack_timeout = (timeout != 0).then_some(timeout);
            }
            // Sharing may be asked for before a port is taken, and given up as long as nobody
            // listens.
            CmOption::ReuseAddr(on) if early => id.options.reuse = on,
            CmOption::AfOnly(on) if early => id.options.family_only = on,
            CmOption::ReuseAddr(_) | CmOption::AfOnly(_) => return Err(EINVAL),
        }
        if let Some(port) = id.port {
            let (space, claim) = (id.space as u16, id.claim(number, &id.source));
            self.ports.amend(space, port, claim);
        }
        Ok(CmAnswer::Done)
    }

    // ---- connections

    fn connect(&mut self, asker: Asker, number: u32, param: CmParam, world: &World<'_>) -> Served {
        let id = self.check(asker, number)?;
        let route = id.route.filter(|_| id.state == State::RouteResolved);
        let route = route.ok_or(EINVAL)?;
        let (service_id, ip) = id.asks(&route);
        id.resources = param.responder_resources;
        let conn = if asks_once(id) {
            let ask = SidrRequest {
                path: path_of(&route),
                service_id,
                ip: Some(ip),
                pkey: PKey::DEFAULT,
                private_data: param.private_data,
            };
            self.manager.sidr_request(world.instant(), &ask)
        } else {
            let device = world.device(route.ifindex).ok_or(ENODEV)?;
            let qp_type = qp_type(id.qp_type);
            let usual = Connect::new(
                path_of(&route),
                device.guid,
                service_id,
                Qpn::new(param.qpn),
            );
            let ask = Connect {
                ip: Some(ip),
                qp_type,
                srq: param.srq,
                flow_control: param.flow_control,
                responder_resources: param.responder_resources,
                initiator_depth: param.initiator_depth,
                retry_count: param.retry_count,
                rnr_retry_count: param.rnr_retry_count,
                mtu: Mtu::from_verbs(u32::from(route.path.mtu)).unwrap_or(Mtu::M1024),
                packet_life: route.path.packet_life_time,
                ece: ece(&param),
                private_data: param.private_data,
                ..usual
            };
            self.manager.connect(world.instant(), &ask)
        };
        let conn = conn.map_err(errno)?;
        self.conns.insert(conn, number);
        let id = self.check(asker, number)?;
        id.conn = Some(conn);
        id.state = State::Connected;
        Ok(CmAnswer::Done)
    }

    fn accept(&mut self, asker: Asker, number: u32, param: CmParam, world: &World<'_>) -> Served {
        let id = self.check(asker, number)?;
        let conn = id.conn.filter(|_| id.state == State::Requested);
        let conn = conn.ok_or(EINVAL)?;
        id.resources = param.responder_resources;
        let qpn = Qpn::new(param.qpn);
        let accepted = if asks_once(id) {
            let answer = SidrReply {
                status: sidr_status::VALID,
                qpn,
                qkey: QKey(qkey(id)),
                ece: ece(&param),
                private_data: param.private_data,
            };
            self.manager.sidr_reply(world.instant(), conn, &answer)
        } else {
            let device = world.device(id.ifindex).ok_or(ENODEV)?;
            let answer = Accept {
                srq: param.srq || id.qp_type == XRC_RECV,
                flow_control: param.flow_control,
                responder_resources: param.responder_resources,
                initiator_depth: param.initiator_depth,
                rnr_retry_count: param.rnr_retry_count,
                ece: ece(&param),
                private_data: param.private_data,
                ..Accept::new(device.guid, qpn)
            };
            self.manager.accept(world.instant(), conn, &answer)
        };
        accepted.map_err(errno)?;
        self.check(asker, number)?.state = State::Connected;
        Ok(CmAnswer::Done)
    }

    fn establish(&mut self, asker: Asker, number: u32, world: &World<'_>) -> Served {
        let id = self.check(asker, number)?;
        let conn = id.conn.filter(|_| id.state == State::Replied);
        let established = self
            .manager
            .establish(world.instant(), conn.ok_or(EINVAL)?, &[]);
        established.map_err(errno)?;
        self.check(asker, number)?.state = State::Connected;
        Ok(CmAnswer::Done)
    }

    fn reject(
        &mut self,
        asker: Asker,
        number: u32,
        reason: u8,
        data: &[u8],
        world: &World<'_>,
    ) -> Served {
        let id = self.check(asker, number)?;
        let fits = matches!(id.state, State::Requested | State::Replied);
        let conn = id.conn.filter(|_| fits).ok_or(EINVAL)?;
        let rejected = if asks_once(id) {
            let answer = SidrReply {
                status: sidr_status::REJECT,
                private_data: data.to_vec(),
                ..SidrReply::default()
            };
            self.manager.sidr_reply(world.instant(), conn, &answer)
        } else {
            let reason = match reason {
                0 => RejReason::CONSUMER,
                reason => RejReason(u16::from(reason)),
            };
            self.manager
                .reject(world.instant(), conn, reason, &[], data)
        };
        rejected.map_err(errno)?;
        self.check(asker, number)?.state = State::Connected;
        Ok(CmAnswer::Done)
    }

    fn disconnect(&mut self, asker: Asker, number: u32, world: &World<'_>) -> Served {
        let id = self.check(asker, number)?;
        match (id.state, id.conn) {
            (_, Some(conn)) => {
                // What cannot be ended any more has ended.
                let _ = self.manager.disconnect(world.instant(), conn);
                Ok(CmAnswer::Done)
            }
            (State::Connected | State::Replied | State::Requested, None) => Ok(CmAnswer::Done),
            _ => Err(EINVAL),
        }
    }

    /// With the kernel's answers: no path but the first is ever in use, so it may always have been left.
    fn notify(&mut self, asker: Asker, number: u32, migrated: bool, world: &World<'_>) -> Served {
        use rocebud_cm::State as S;
        let conn = self.check(asker, number)?.conn.ok_or(EINVAL)?;
        match (self.manager.state(conn), migrated) {
            (Some(S::Established), true) => {}
            (Some(S::Established), false) => return Err(EISCONN),
            (Some(S::DreqSent | S::TimeWait), _) | (_, true) => return Err(EINVAL),
            (_, false) => {
                let noted = self.manager.comm_established(world.instant(), conn);
                noted.map_err(errno)?;
            }
        }
        Ok(CmAnswer::Done)
    }

    fn qp_attr(&mut self, asker: Asker, number: u32, world: &World<'_>) -> Served {
        const REMOTE_WRITE: u32 = 1 << 1;
        const REMOTE_READ_AND_ATOMIC: u32 = 1 << 2 | 1 << 3;
        let id = self.check(asker, number)?;
        if id.ifindex == 0 {
            return Err(EINVAL);
        }
        let mut attr = CmQpAttr {
            access_flags: REMOTE_WRITE,
            qkey: qkey(id),
            ..CmQpAttr::default()
        };
        if id.resources > 0 {
            attr.access_flags |= REMOTE_READ_AND_ATOMIC;
        }
        let (ah, conn, timeout) = (id.ah(world), id.conn, id.options.ack_timeout);
        let known = conn.and_then(|conn| self.manager.qp_params(conn));
        let (Some(ah), Some(qp)) = (ah, known) else {
            return Ok(CmAnswer::QpAttr(attr));
        };
        if qp.max_dest_rd_atomic > 0 {
            attr.access_flags |= REMOTE_READ_AND_ATOMIC;
        }
        Ok(CmAnswer::QpAttr(CmQpAttr {
            connected: true,
            ah,
            path_mtu: qp.path_mtu as u8,
            dest_qpn: qp.dest_qpn.value(),
            rq_psn: qp.rq_psn.value(),
            sq_psn: qp.sq_psn.value(),
            max_rd_atomic: qp.max_rd_atomic,
            max_dest_rd_atomic: qp.max_dest_rd_atomic,
            min_rnr_timer: qp.min_rnr_timer,
            timeout: timeout.unwrap_or(qp.timeout),
            retry_cnt: qp.retry_cnt,
            rnr_retry: qp.rnr_retry,
            ..attr
        }))
    }

    // ---- groups

    fn join(&mut self, asker: Asker, number: u32, group: CmAddr, world: &World<'_>) -> Served {
        let membership = self.next_membership.wrapping_add(1).max(1);
        let id = self.check(asker, number)?;
        let bound = matches!(
            id.state,
            State::Bound | State::AddrResolved | State::RouteResolved
        );
        if !bound || id.ifindex == 0 || !group.ip.is_multicast() {
            return Err(EINVAL);
        }
        if id.memberships.len() >= CM_GROUPS_PER_ID_MAX {
            return Err(ENOMEM);
        }
        let device = world.device(id.ifindex).ok_or(ENODEV)?;
        let own = Gid::from_ip(id.source.ip);
        let datagram = CmDatagram {
            private_data: Vec::new(),
            ah: CmAh {
                dgid: Gid::from_ip(group.ip).0,
                sgid_index: gid_index(device, own).unwrap_or(0),
                flow_label: 0,
                hop_limit: HOP_LIMIT,
                traffic_class: id.options.tos,
            },
            qpn: QPN,
            qkey: if id.space == PortSpace::Udp {
                UDP_QKEY
            } else {
                GROUP_QKEY
            },
        };
        let (kind, status) = match Membership::join(group.ip, id.ifindex) {
            Ok(joined) => {
                id.memberships.insert(membership, joined);
                (MULTICAST_JOIN, 0)
            }
            Err(e) => (MULTICAST_ERROR, -e.raw_os_error().unwrap_or(EIO)),
        };
        self.next_membership = membership;
        let details = CmDetails::Multicast(membership, datagram);
        self.push(number, kind, status, details);
        Ok(CmAnswer::Joined(membership))
    }

    fn leave(&mut self, asker: Asker, number: u32, membership: u32) -> Served {
        let id = self.check(asker, number)?;
        let channel = id.channel;
        let left = id.memberships.remove(&membership);
        let of_it = |event: &CmEvent| {
            event.id == number
                && matches!(&event.details, CmDetails::Multicast(m, _) if *m == membership)
        };
        self.channels.remove(channel, of_it);
        Ok(CmAnswer::Reported(left.map_or(0, |m| m.reported)))
    }
}

const fn bound(id: &Id) -> CmAnswer {
    CmAnswer::Bound(CmBound {
        source: id.source,
        ifindex: id.ifindex,
    })
}

fn errno(e: Misuse) -> i32 {
    e.errno.0
}

const fn qkey(id: &Id) -> u32 {
    match id.space {
        PortSpace::IpoIb => GROUP_QKEY,
        _ => UDP_QKEY,
    }
}

const fn qp_type(of: u8) -> CmQpType {
    match of {
        UC => CmQpType::Uc,
        XRC_SEND | XRC_RECV => CmQpType::Xrc,
        _ => CmQpType::Rc,
    }
}

const fn ece(param: &CmParam) -> Ece {
    Ece {
        vendor_id: param.ece.vendor_id,
        options: param.ece.options,
    }
}
