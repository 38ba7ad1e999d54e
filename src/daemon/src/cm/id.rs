//! One identifier.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use rocebud_cm::ip::{IpCm, PortSpace, service_id};
use rocebud_cm::{Bind, ConnId, ListenerId, Path};
use rocebud_ctl::cm::{CmAddr, CmAh, CmRoute};
use rocebud_wire::Gid;

use super::World;
use super::multicast::Membership;
use super::ports::Claim;
use super::resolve::{flow_label, gid_index};

/// Where an identifier is. Calls that do not fit its state are answered with EINVAL.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    /// Just made.
    Idle,
    /// Has an address and a port.
    Bound,
    /// Waits for a neighbour.
    Resolving,
    /// Knows its device.
    AddrResolved,
    /// Ready to connect.
    RouteResolved,
    /// Offers a service.
    Listening,
    /// Has asked for a connection, or been asked and answered; or all that is over.
    Connected,
    /// The peer has accepted, and waits for the queue pair.
    Replied,
    /// A peer asks for a connection.
    Requested,
}

/// `rdma_set_option`
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Options {
    pub(super) reuse: bool,
    pub(super) family_only: bool,
    pub(super) tos: u8,
    pub(super) ack_timeout: Option<u8>,
}

/// An identifier.
#[derive(Debug)]
pub(super) struct Id {
    /// Key of its client.
    pub(super) client: u64,
    pub(super) channel: u32,
    pub(super) space: PortSpace,
    /// `IBV_QPT_*`
    pub(super) qp_type: u8,
    pub(super) state: State,
    pub(super) source: CmAddr,
    /// Its port, if it has taken one itself.
    pub(super) port: Option<u16>,
    /// Interface of its device; 0 while it has none.
    pub(super) ifindex: u32,
    pub(super) route: Option<CmRoute>,
    pub(super) options: Options,
    pub(super) conn: Option<ConnId>,
    pub(super) listener: Option<ListenerId>,
    /// RDMA READs and atomics that it serves: whether they are allowed at all.
    pub(super) resources: u8,
    /// Events given out.
    pub(super) reported: u32,
    pub(super) memberships: BTreeMap<u32, Membership>,
    /// It was told that its device is gone.
    pub(super) removed: bool,
}

impl Id {
    pub(super) fn new(client: u64, channel: u32, space: PortSpace, qp_type: u8) -> Self {
        Self {
            client,
            channel,
            space,
            qp_type,
            state: State::Idle,
            source: CmAddr {
                ip: Ipv4Addr::UNSPECIFIED.into(),
                port: 0,
                scope: 0,
            },
            port: None,
            ifindex: 0,
            route: None,
            options: Options::default(),
            conn: None,
            listener: None,
            resources: 0,
            reported: 0,
            memberships: BTreeMap::new(),
            removed: false,
        }
    }

    /// What it wants of a port.
    pub(super) const fn claim(&self, number: u32, address: &CmAddr) -> Claim {
        Claim {
            id: number,
            ip: address.ip,
            scope: address.scope,
            reuse: self.options.reuse,
            family_only: self.options.family_only,
        }
    }

    /// The addresses that a listener of it serves.
    pub(super) fn bind(&self) -> Bind {
        let gid = Gid::from_ip(self.source.ip);
        match self.source.ip {
            IpAddr::V4(ip) if ip.is_unspecified() => Bind::AnyV4,
            IpAddr::V6(ip) if ip.is_unspecified() && self.options.family_only => Bind::AnyV6,
            IpAddr::V6(ip) if ip.is_unspecified() => Bind::Any,
            _ => Bind::Addr {
                gid,
                port: gid.is_link_local().then_some(self.ifindex),
            },
        }
    }

    /// Takes a resolved route for its own.
    pub(super) fn adopt(&mut self, mut route: CmRoute) -> CmRoute {
        route.source.port = self.source.port;
        route.path.traffic_class = self.options.tos;
        route.path.flow_label = flow_label(&route.source, &route.destination);
        if let Some(timeout) = self.options.ack_timeout {
            route.path.packet_life_time = timeout.saturating_sub(1);
        }
        self.source = route.source;
        self.ifindex = route.ifindex;
        self.route = Some(route);
        self.state = State::AddrResolved;
        route
    }

    /// Service and addresses that it asks for.
    pub(super) fn asks(&self, route: &CmRoute) -> (u64, IpCm) {
        let header = IpCm {
            src_port: route.source.port,
            src: route.source.ip,
            dst: route.destination.ip,
        };
        (service_id(self.space, route.destination.port), header)
    }

    /// Its route as an address vector.
    pub(super) fn ah(&self, world: &World<'_>) -> Option<CmAh> {
        let CmRoute { ifindex, path, .. } = self.route?;
        let device = world.device(ifindex)?;
        Some(CmAh {
            dgid: path.dgid,
            sgid_index: gid_index(device, Gid(path.sgid))?,
            flow_label: path.flow_label,
            hop_limit: path.hop_limit,
            traffic_class: path.traffic_class,
        })
    }
}

/// The way of messages, and of the connection, along a route.
pub(super) const fn path_of(route: &CmRoute) -> Path {
    Path {
        ends: rocebud_cm::Ends {
            port: route.ifindex,
            local: Gid(route.path.sgid),
            remote: Gid(route.path.dgid),
        },
        flow_label: route.path.flow_label,
        traffic_class: route.path.traffic_class,
        hop_limit: route.path.hop_limit,
        sl: 0,
    }
}
