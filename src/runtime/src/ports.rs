//! Devices as the daemon describes them, and what their changes mean.

use std::net::{IpAddr, SocketAddr, SocketAddrV6, UdpSocket};

use rocebud_ctl::DeviceInfo;
use rocebud_objects::{AhAttr, Errno, EventKind, Misuse, Path};
use rocebud_wire::{Gid, UDP_PORT};

/// Hop limit of paths whose address vector names none (or one hop, the default of many programs):
/// what Linux puts on its own packets.
pub const DEFAULT_HOP_LIMIT: u8 = 64;

/// Resolves an address vector against the device's GID table.
///
/// # Errors
/// EINVAL: not global, other port than 1, empty GID index, or addresses of different families.
/// ENODEV: the interface is gone.
pub fn resolve(device: Option<&DeviceInfo>, attr: &AhAttr) -> Result<Path, Misuse> {
    let device = device.ok_or(Misuse::new(
        Errno::ENODEV,
        "the interface of this device is gone",
    ))?;
    if !attr.is_global {
        return Err(Misuse::invalid(
            "address vector is not global: RoCE needs is_global and a GID (give the program a GID \
             index, often `-g`)",
        ));
    }
    if attr.port_num > 1 {
        return Err(Misuse::invalid("address vector: the only port is 1"));
    }
    let entry = device
        .gid(usize::from(attr.sgid_index))
        .ok_or(Misuse::invalid(
            "address vector: sgid_index names an empty slot of the GID table (see `rocebud \
             devices`)",
        ))?;
    let sgid = entry.gid();
    let dgid = attr.dgid;
    check_pair(sgid, dgid)?;
    Ok(Path {
        sgid,
        dgid,
        traffic_class: attr.traffic_class,
        hop_limit: if attr.hop_limit <= 1 {
            DEFAULT_HOP_LIMIT
        } else {
            attr.hop_limit
        },
        flow_label: attr.flow_label & 0xf_ffff,
        ifindex: device.ifindex,
    })
}

fn check_pair(sgid: Gid, dgid: Gid) -> Result<(), Misuse> {
    if dgid == Gid::ZERO || dgid.ip().is_unspecified() {
        return Err(Misuse::invalid(
            "address vector: the destination GID is empty (did the peer send its GID?)",
        ));
    }
    match (sgid.ip(), dgid.ip()) {
        (IpAddr::V4(_), IpAddr::V4(_)) | (IpAddr::V6(_), IpAddr::V6(_)) => Ok(()),
        _ => Err(Misuse::invalid(
            "address vector: own GID and destination GID are of different address families; choose \
             another GID index on one side",
        )),
    }
}

/// Asks the system for a route, without sending anything.
///
/// # Errors
/// ENETUNREACH, EHOSTUNREACH. Anything else is no verdict.
pub(crate) fn check_route(path: &Path) -> Result<(), Misuse> {
    let scope = |gid: Gid| if gid.is_link_local() { path.ifindex } else { 0 };
    let address = |gid: Gid, port| match gid.ip() {
        IpAddr::V4(ip) => SocketAddr::from((ip, port)),
        IpAddr::V6(ip) => SocketAddr::V6(SocketAddrV6::new(ip, port, 0, scope(gid))),
    };
    let asked = UdpSocket::bind(address(path.sgid, 0))
        .and_then(|socket| socket.connect(address(path.dgid, UDP_PORT)));
    match asked.err().and_then(|error| error.raw_os_error()) {
        Some(errno) if [Errno::ENETUNREACH.0, Errno::EHOSTUNREACH.0].contains(&errno) => {
            Err(Misuse::new(
                Errno(errno),
                "address vector: this machine has no route from the own GID's address to the \
                 destination's; check both addresses and `ip route get`",
            ))
        }
        _ => Ok(()),
    }
}

/// What changed between two descriptions of one port, as events. `None` = its device is gone.
pub(crate) fn events(old: &DeviceInfo, new: Option<&DeviceInfo>) -> Vec<EventKind> {
    let Some(new) = new else {
        return if old.active {
            vec![EventKind::PortErr]
        } else {
            Vec::new()
        };
    };
    let mut events = Vec::new();
    if old.gids != new.gids {
        events.push(EventKind::GidChange);
    }
    match (old.active, new.active) {
        (true, false) => events.push(EventKind::PortErr),
        (false, true) => events.push(EventKind::PortActive),
        _ => {}
    }
    events
}

#[cfg(test)]
mod tests {
    use rocebud_ctl::GidEntry;

    use super::*;

    fn device() -> DeviceInfo {
        let entry = |gid: Gid| {
            Some(GidEntry {
                bytes: gid.0,
                ifindex: 5,
            })
        };
        DeviceInfo {
            name: "rb_veth0".into(),
            ifindex: 5,
            netdev: "veth0".into(),
            guid: 1,
            mac: [2; 6],
            netdev_mtu: 1500,
            active_mtu: 3,
            enabled: true,
            active: true,
            speed_mbps: 10_000,
            loopback: false,
            keeps_batches: false,
            gids: vec![
                entry(Gid::link_local_from_mac([2; 6])),
                entry(Gid::from_v4([10, 0, 0, 1])),
                None,
            ],
        }
    }

    fn attr(sgid_index: u8, dgid: Gid) -> AhAttr {
        AhAttr {
            dgid,
            sgid_index,
            is_global: true,
            port_num: 1,
            hop_limit: 1,
            ..AhAttr::default()
        }
    }

    #[test]
    fn a_good_address_vector_becomes_a_path() {
        let dgid = Gid::from_v4([10, 0, 0, 2]);
        let path = resolve(Some(&device()), &attr(1, dgid)).unwrap();
        assert_eq!(path.sgid, Gid::from_v4([10, 0, 0, 1]));
        assert_eq!(path.hop_limit, DEFAULT_HOP_LIMIT);
        assert_eq!(path.ifindex, 5);
    }

    #[test]
    fn an_address_vector_that_leads_nowhere_is_refused_at_once() {
        let v4 = Gid::from_v4([10, 0, 0, 2]);
        let local = AhAttr {
            is_global: false,
            ..attr(1, v4)
        };
        for bad in [
            local,
            attr(2, v4),
            attr(3, v4),
            attr(255, v4),
            attr(0, v4),
            attr(1, Gid::ZERO),
            attr(1, Gid::link_local_from_mac([3; 6])),
        ] {
            let error = resolve(Some(&device()), &bad).unwrap_err();
            assert_eq!(error.errno, Errno::EINVAL, "{bad:?}");
        }
        assert_eq!(
            resolve(None, &attr(1, v4)).unwrap_err().errno,
            Errno::ENODEV
        );
    }

    #[test]
    fn changes_become_events() {
        let old = device();
        assert_eq!(events(&old, Some(&old)), []);
        let mut down = old.clone();
        down.active = false;
        assert_eq!(events(&old, Some(&down)), [EventKind::PortErr]);
        assert_eq!(events(&down, Some(&old)), [EventKind::PortActive]);
        let mut moved = old.clone();
        moved.gids[1] = None;
        assert_eq!(events(&old, Some(&moved)), [EventKind::GidChange]);
        assert_eq!(events(&old, None), [EventKind::PortErr]);
        assert_eq!(events(&down, None), []);
    }
}
