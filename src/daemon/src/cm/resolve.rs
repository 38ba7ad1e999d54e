//! From an address to the way there: own address, device, and a neighbour that answers.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use libc::{EHOSTUNREACH, EINVAL, EIO, ENODEV, ETIMEDOUT};
use rocebud_cm::ip::PortSpace;
use rocebud_ctl::DeviceInfo;
use rocebud_ctl::cm::{CmAddr, CmPath, CmRoute};
use rocebud_wire::{Gid, UDP_PORT};

use super::World;
use crate::devices::Now;
use crate::netlink::ask::{Asker, Neighbour};

/// Hop limit where the route has none.
const HOP_LIMIT: u8 = 64;

/// Packet life time in path records: what Linux has since 6.12.
pub(super) const PACKET_LIFE: u8 = 16;

/// Neighbours are looked at after this time at first, then ever less often …
const LOOK_FIRST: Now = Now::from_millis(1);
/// … but at least this often.
const LOOK_LAST: Now = Now::from_millis(50);

/// A neighbour that failed before we asked gets this long to come back.
const SECOND_CHANCE: Now = Now::from_millis(500);

/// Port of the datagram that makes the system look for a neighbour: "discard".
const PROBE_PORT: u16 = 9;

/// An address that waits for its neighbour.
#[derive(Debug)]
pub(super) struct Query {
    route: CmRoute,
    next_hop: IpAddr,
    ifindex: u32,
    begun: Now,
    until: Now,
    pub(super) look_at: Now,
    pause: Now,
}

/// How a look-up stands.
#[derive(Debug)]
pub(super) enum Outcome {
    /// It is done.
    Found(CmRoute),
    /// It failed: a positive errno.
    Failed(i32),
    /// Look again later.
    Waits(Box<Query>),
}

/// Asks the system.
#[derive(Debug)]
pub(super) struct Resolver {
    asker: Option<Asker>,
}

impl Resolver {
    pub(super) fn new() -> Self {
        // Without netlink neighbours are believed in: the connection will tell.
        Self {
            asker: Asker::new().ok(),
        }
    }

    /// Begins a look-up.
    pub(super) fn begin(
        &mut self,
        source: Option<CmAddr>,
        destination: CmAddr,
        timeout: Now,
        world: &World<'_>,
    ) -> Outcome {
        let destination = loopback_for_any(destination);
        let (source, socket) = match source_for(source, &destination) {
            Ok(found) => found,
            Err(errno) => return Outcome::Failed(errno),
        };
        let Some(device) = device_with(world.devices, source.ip, source.scope) else {
            return Outcome::Failed(ENODEV);
        };
        let mut route = CmRoute {
            source,
            destination,
            ifindex: device.ifindex,
            path: CmPath {
                sgid: Gid::from_ip(source.ip).0,
                dgid: Gid::from_ip(destination.ip).0,
                flow_label: 0,
                hop_limit: HOP_LIMIT,
                traffic_class: 0,
                mtu: device.active_mtu,
                packet_life_time: PACKET_LIFE,
            },
        };
        let asked = self.asker.as_mut();
        let way = asked.and_then(|asker| asker.route(destination.ip, destination.scope));
        let Some(way) = way else {
            return Outcome::Found(route);
        };
        route.path.hop_limit = way.hop_limit.unwrap_or(HOP_LIMIT);
        let link = world.picture.link(way.ifindex);
        if way.local || !link.is_some_and(|link| link.resolves_neighbours()) {
            return Outcome::Found(route);
        }
        let query = Query {
            route,
            next_hop: way.next_hop,
            ifindex: way.ifindex,
            begun: world.now,
            until: world.now + timeout,
            look_at: world.now,
            pause: LOOK_FIRST,
        };
        if self.state(&query) == Neighbour::Usable {
            return Outcome::Found(route);
        }
        probe(&socket, &destination);
        self.look(Box::new(query), world.now)
    }

    /// Looks again.
    pub(super) fn look(&mut self, mut query: Box<Query>, now: Now) -> Outcome {
        match self.state(&query) {
            Neighbour::Usable => return Outcome::Found(query.route),
            Neighbour::Failed if now >= query.begun + SECOND_CHANCE => {
                return Outcome::Failed(EHOSTUNREACH);
            }
            _ => {}
        }
        if now >= query.until {
            return Outcome::Failed(ETIMEDOUT);
        }
        query.look_at = (now + query.pause).min(query.until);
        query.pause = (query.pause * 2).min(LOOK_LAST);
        Outcome::Waits(query)
    }

    fn state(&mut self, query: &Query) -> Neighbour {
        let asker = self.asker.as_mut();
        asker.map_or(Neighbour::Usable, |asker| {
            asker.neighbour(query.next_hop, query.ifindex)
        })
    }
}

/// The device that has an address; a scope chooses among link-local ones.
pub(super) fn device_with(devices: &[DeviceInfo], ip: IpAddr, scope: u32) -> Option<&DeviceInfo> {
    let wanted = Gid::from_ip(ip);
    let has = |device: &&DeviceInfo| {
        let mut gids = device.gids.iter().flatten();
        gids.any(|entry| entry.gid() == wanted && (scope == 0 || entry.ifindex == scope))
    };
    devices.iter().find(has)
}

/// Where a GID stands in a device's table.
pub(super) fn gid_index(device: &DeviceInfo, gid: Gid) -> Option<u8> {
    let is_it = |entry: &Option<rocebud_ctl::GidEntry>| entry.is_some_and(|e| e.gid() == gid);
    u8::try_from(device.gids.iter().position(is_it)?).ok()
}

/// Connecting to the wildcard means this host, as with TCP.
fn loopback_for_any(destination: CmAddr) -> CmAddr {
    let ip = match destination.ip {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    CmAddr { ip, ..destination }
}

/// The address that the system sends from, and a socket that would.
fn source_for(source: Option<CmAddr>, to: &CmAddr) -> Result<(CmAddr, UdpSocket), i32> {
    let errno = |e: io::Error| e.raw_os_error().unwrap_or(EIO);
    let any: IpAddr = match to.ip {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let own = source.map_or(any, |source| source.ip);
    if own.is_ipv4() != to.ip.is_ipv4() {
        return Err(EINVAL);
    }
    let own_scope = source.map_or(0, |source| source.scope);
    let from = CmAddr {
        ip: own,
        port: 0,
        scope: own_scope,
    };
    let scope = if to.scope == 0 { own_scope } else { to.scope };
    let target = CmAddr {
        port: UDP_PORT,
        scope,
        ..*to
    };
    let socket = UdpSocket::bind(from.socket_addr()).map_err(errno)?;
    let _ = socket.set_nonblocking(true);
    socket.connect(target.socket_addr()).map_err(errno)?;
    let found = socket.local_addr().map_err(errno)?;
    let scope = match found {
        SocketAddr::V6(v6) if Gid::from_ip(found.ip()).is_link_local() => match v6.scope_id() {
            0 => scope,
            own => own,
        },
        _ => 0,
    };
    let found = CmAddr {
        ip: found.ip(),
        port: source.map_or(0, |source| source.port),
        scope,
    };
    Ok((found, socket))
}

/// Makes the system look for a neighbour: nothing but sending does.
fn probe(socket: &UdpSocket, destination: &CmAddr) {
    let to = CmAddr {
        port: PROBE_PORT,
        ..*destination
    };
    let _ = socket.connect(to.socket_addr());
    let _ = socket.send(&[]);
}

/// The flow label that Linux gives a connection.
pub(super) const fn flow_label(source: &CmAddr, destination: &CmAddr) -> u32 {
    rocebud_wire::cm_flow_label(source.port, destination.port)
}

/// Whether a port space is for datagrams.
pub(super) const fn is_datagram(space: PortSpace) -> bool {
    matches!(space, PortSpace::Udp | PortSpace::IpoIb)
}
