//! From interfaces to devices: which, in what order, with what name, GUID, state and GID table.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use rocebud_ctl::limits::DEVICES_MAX;
use rocebud_ctl::{DeviceInfo, DeviceList, GidEntry};
use rocebud_wire::{Gid, Mtu, guid_from_mac};

use crate::ethtool::AskInterface;
use crate::gid_table::GidTable;
use crate::netlink::codec::Link;
use crate::picture::Picture;

/// Time since the daemon started.
pub(crate) type Now = Duration;

/// How long a port that has come up waits for its addresses to pass duplicate detection (up to one
/// second of random delay and one of listening) before it goes on without them.
pub(crate) const SETTLE_MAX: Duration = Duration::from_millis(2500);

/// After an interface starts running the kernel gives it a link-local address, at once but
/// without telling: no conclusion before this time.
pub(crate) const LINK_LOCAL_GRACE: Duration = Duration::from_millis(300);

/// Assumed where an interface does not know, as Linux does.
const SPEED_UNKNOWN_MBPS: u32 = 1000;

/// What is remembered of each interface.
#[derive(Debug)]
struct Port {
    table: GidTable,
    /// Since when it has been up with carrier.
    up_since: Option<Now>,
    /// Until when its link-local address may still appear; `None` while it is not running.
    link_local_due: Option<Now>,
    speed_mbps: u32,
    /// What the speed was asked for, to ask again only after a change.
    asked: Option<(String, u32)>,
    /// It hands batches to this machine as they are; `None` = to be asked.
    keeps_batches: Option<bool>,
    left_out: usize,
    /// It is up, and an address that it is about to get is missing.
    waits: bool,
}

/// All ports.
#[derive(Debug, Default)]
pub(crate) struct Devices {
    ports: BTreeMap<u32, Port>,
    salt: u64,
    ipv6: bool,
    list: Vec<DeviceInfo>,
    generation: u64,
    left_out: usize,
    /// There was a first look; what it found up had been up before.
    looked: bool,
}

impl Devices {
    /// `salt` makes the GUIDs of interfaces without a MAC address differ from host to host;
    /// without `ipv6` no IPv6 address becomes a GID.
    pub(crate) fn new(salt: u64, ipv6: bool) -> Self {
        Self {
            salt,
            ipv6,
            ..Self::default()
        }
    }

    /// The devices in the order in which verbs lists them.
    pub(crate) fn list(&self) -> &[DeviceInfo] {
        &self.list
    }

    /// The same as clients get it.
    pub(crate) fn numbered(&self) -> DeviceList {
        DeviceList {
            generation: self.generation,
            devices: self.list.clone(),
        }
    }

    /// Brings everything up to date with the picture and the time. True if the list changed.
    pub(crate) fn refresh(&mut self, picture: &Picture, now: Now, ask: &dyn AskInterface) -> bool {
        self.ports.retain(|ifindex, _| picture.has(*ifindex));
        let mut list = Vec::new();
        for link in picture.links() {
            // What was a device stays one: a tunnel that loses its last address is DOWN, not gone.
            if !is_device(link, picture) && !self.ports.contains_key(&link.ifindex) {
                continue;
            }
            let addresses = self.addresses(picture, link.ifindex);
            let guid = self.guid(link);
            let port = self
                .ports
                .entry(link.ifindex)
                .or_insert_with(|| Port::new(guid));
            let grace = if self.looked {
                LINK_LOCAL_GRACE
            } else {
                Duration::ZERO
            };
            port.follow_link(link, guid, now, now + grace, ask);
            port.follow_addresses(link, &addresses, now, picture);
            list.push(port.describe(link, guid, !addresses.is_empty()));
        }
        self.looked = true;
        list.sort_by_key(order);
        self.left_out = list.len().saturating_sub(DEVICES_MAX);
        list.truncate(DEVICES_MAX);
        let changed = list != self.list;
        self.generation += u64::from(changed);
        self.list = list;
        changed
    }

    /// Something about an interface has changed; what, no event tells. `None`: of any.
    pub(crate) fn ask_again(&mut self, changed: Option<u32>) {
        let ports = self.ports.iter_mut();
        let ports = ports.filter(|(ifindex, _)| changed.is_none_or(|it| it == **ifindex));
        ports.for_each(|(_, port)| port.keeps_batches = None);
    }

    /// No port is waiting for its addresses.
    #[cfg(test)]
    pub(crate) fn is_settled(&self, now: Now) -> bool {
        self.deadline(now).is_none()
    }

    /// When to refresh even if nothing happens: a port's waiting ends.
    pub(crate) fn deadline(&self, now: Now) -> Option<Now> {
        let waiting = self.ports.values().filter(|port| port.waits);
        let deadlines = waiting.flat_map(Port::deadlines);
        deadlines.filter(|at| *at > now).min()
    }

    /// Things that a person should know.
    pub(crate) fn remarks(&self) -> Vec<String> {
        let mut remarks = Vec::new();
        if self.left_out > 0 {
            remarks.push(format!(
                "{} interfaces are not listed: {DEVICES_MAX} devices is the most",
                self.left_out
            ));
        }
        for device in &self.list {
            let port = self.ports.get(&device.ifindex);
            match port.map_or(0, |port| port.left_out) {
                0 => {}
                n => remarks.push(format!(
                    "{n} addresses of {} have no GID: its table is full",
                    device.netdev
                )),
            }
            if Mtu::fitting_netdev(device.netdev_mtu).is_none() {
                remarks.push(format!(
                    "{} is DOWN for RoCE: its MTU of {} holds not even 256 bytes of payload (raise \
                     it to 336 or more)",
                    device.netdev, device.netdev_mtu
                ));
            }
        }
        remarks
    }

    fn addresses(&self, picture: &Picture, ifindex: u32) -> Vec<IpAddr> {
        let usable = picture.usable(ifindex);
        usable.filter(|ip| self.ipv6 || ip.is_ipv4()).collect()
    }

    fn guid(&self, link: &Link) -> u64 {
        link.mac
            .map_or_else(|| made_up_guid(self.salt, &link.name), guid_from_mac)
    }
}

impl Port {
    fn new(guid: u64) -> Self {
        Self {
            table: GidTable::new(default_gid(guid)),
            up_since: None,
            link_local_due: None,
            speed_mbps: SPEED_UNKNOWN_MBPS,
            asked: None,
            keeps_batches: None,
            left_out: 0,
            waits: false,
        }
    }

    fn follow_link(
        &mut self,
        link: &Link,
        guid: u64,
        now: Now,
        link_local_due: Now,
        ask: &dyn AskInterface,
    ) {
        let up = link.is_up() && link.has_carrier();
        self.up_since = up.then(|| self.up_since.unwrap_or(now));
        let running = up && link.is_running();
        self.link_local_due = running.then(|| self.link_local_due.unwrap_or(link_local_due));
        let question = Some((link.name.clone(), link.flags));
        if self.asked != question {
            self.speed_mbps = ask.speed_mbps(&link.name).unwrap_or(SPEED_UNKNOWN_MBPS);
            self.asked = question;
        }
        let stays_here = link.is_loopback() || link.is_veth;
        self.keeps_batches
            .get_or_insert_with(|| stays_here && ask.takes_udp_batches(&link.name));
        self.table.set_default(default_gid(guid));
    }

    fn follow_addresses(&mut self, link: &Link, addresses: &[IpAddr], now: Now, picture: &Picture) {
        self.left_out = self.table.update(addresses);
        let complete = self.has_its_addresses(link, addresses, now, picture);
        if complete && !addresses.is_empty() {
            self.table.settle();
        }
        self.waits = !complete && self.up_since.is_some() && !self.table.is_settled();
    }

    /// The port is up, and no address that it is about to get is missing (or it has waited long
    /// enough).
    fn has_its_addresses(
        &self,
        link: &Link,
        addresses: &[IpAddr],
        now: Now,
        picture: &Picture,
    ) -> bool {
        let Some(up_since) = self.up_since else {
            return false;
        };
        if now >= up_since + SETTLE_MAX {
            return true;
        }
        let link_local = addresses.iter().any(|ip| Gid::from_ip(*ip).is_link_local());
        let overdue = self.link_local_due.is_some_and(|due| now >= due);
        let complete = link_local || overdue || link.is_loopback();
        complete && !picture.any_tentative(link.ifindex)
    }

    fn deadlines(&self) -> impl Iterator<Item = Now> + use<> {
        let settle = self.up_since.map(|since| since + SETTLE_MAX);
        settle.into_iter().chain(self.link_local_due)
    }

    fn describe(&self, link: &Link, guid: u64, has_address: bool) -> DeviceInfo {
        let mtu = Mtu::fitting_netdev(link.mtu);
        let up = link.is_up() && link.has_carrier();
        let entry = |gid: Gid| GidEntry {
            bytes: gid.0,
            ifindex: link.ifindex,
        };
        DeviceInfo {
            name: device_name(&link.name),
            ifindex: link.ifindex,
            netdev: link.name.clone(),
            guid,
            mac: link.mac.unwrap_or_default(),
            netdev_mtu: link.mtu,
            active_mtu: mtu.unwrap_or(Mtu::M256) as u8,
            enabled: link.is_up(),
            active: up && has_address && mtu.is_some() && self.table.is_settled(),
            speed_mbps: self.speed_mbps,
            loopback: link.is_loopback(),
            keeps_batches: self.keeps_batches == Some(true),
            gids: self
                .table
                .view()
                .into_iter()
                .map(|gid| gid.map(entry))
                .collect(),
        }
    }
}

/// Stubs that every namespace has for tunnels nobody made are no devices.
fn is_device(link: &Link, picture: &Picture) -> bool {
    const TUNNEL: u16 = 768;
    const TUNNEL6: u16 = 769;
    const SIT: u16 = 776;
    const IPGRE: u16 = 778;
    const IP6GRE: u16 = 823;
    match link.arp_type {
        TUNNEL | TUNNEL6 | SIT | IPGRE | IP6GRE => picture.usable(link.ifindex).next().is_some(),
        _ => true,
    }
}

/// Usable ports by index, then loopback, then the rest.
fn order(device: &DeviceInfo) -> (Reverse<bool>, bool, u32) {
    let usable = device.active && !device.loopback;
    (Reverse(usable), !device.loopback, device.ifindex)
}

/// `rb_` and the interface's name. Names of interfaces have at most 15 bytes, those of devices 63.
fn device_name(netdev: &str) -> String {
    let plain = |c: char| {
        if c.is_ascii_graphic() && c != '/' {
            c
        } else {
            '_'
        }
    };
    format!("rb_{}", netdev.chars().map(plain).collect::<String>())
}

/// fe80:: and the GUID.
fn default_gid(guid: u64) -> Gid {
    let mut bytes = [0; 16];
    bytes[..2].copy_from_slice(&[0xfe, 0x80]);
    bytes[8..].copy_from_slice(&guid.to_be_bytes());
    Gid(bytes)
}

/// A GUID for an interface without a MAC address: FNV-1a of host and name, marked as locally
/// administered (so never 0 and no manufacturer's).
fn made_up_guid(salt: u64, name: &str) -> u64 {
    const PRIME: u64 = 0x0000_0100_0000_01b3;
    const BASIS: u64 = 0xcbf2_9ce4_8422_2325;
    let bytes = salt.to_le_bytes().into_iter().chain(name.bytes());
    let hash = bytes.fold(BASIS, |hash, b| (hash ^ u64::from(b)).wrapping_mul(PRIME));
    hash & 0x00ff_ffff_ffff_ffff | 0x0200_0000_0000_0000
}

#[cfg(test)]
mod tests;
