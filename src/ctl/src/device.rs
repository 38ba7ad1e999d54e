//! A device as the daemon describes it.

use rocebud_wire::{Gid, Mtu};
use serde::{Deserialize, Serialize};

/// An entry of a GID table. Its type is RoCE v2 always.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct GidEntry {
    /// The sixteen bytes, network order; see [`GidEntry::gid`].
    pub bytes: [u8; 16],
    /// Interface that has the address.
    pub ifindex: u32,
}

impl GidEntry {
    /// The GID itself.
    #[must_use]
    pub const fn gid(&self) -> Gid {
        Gid(self.bytes)
    }
}

/// One device: a network interface with what RoCE needs to know about it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DeviceInfo {
    /// `rb_` and the interface's name; at most 63 bytes.
    pub name: String,
    /// Interface index; stays when the name changes.
    pub ifindex: u32,
    /// Name of the interface.
    pub netdev: String,
    /// EUI-64 in host order, never 0. Made up (but stable) where there is no MAC address.
    pub guid: u64,
    /// Zero where there is none.
    pub mac: [u8; 6],
    /// Bytes of an IP packet.
    pub netdev_mtu: u32,
    /// Verbs enumeration 1..=5; see [`DeviceInfo::mtu`].
    pub active_mtu: u8,
    /// Administratively up.
    pub enabled: bool,
    /// Up with carrier: the port is ACTIVE.
    pub active: bool,
    /// Mbit/s; 1000 where the interface does not know.
    pub speed_mbps: u32,
    /// The loopback interface.
    pub loopback: bool,
    /// A batch of packets (UDP segmentation offload) that is sent stays one as far as this machine goes:
    /// loopback, or one end of a veth pair, with the offload on.
    pub keeps_batches: bool,
    /// GID table. Slot 0 is never empty; removed addresses leave holes (`None`). The length is the
    /// port's `gid_tbl_len`.
    pub gids: Vec<Option<GidEntry>>,
}

impl DeviceInfo {
    /// Largest path MTU that fits the interface.
    #[must_use]
    pub fn mtu(&self) -> Mtu {
        Mtu::from_verbs(u32::from(self.active_mtu)).unwrap_or(Mtu::M256)
    }

    /// The GID at `index`, if there is one.
    #[must_use]
    pub fn gid(&self, index: usize) -> Option<GidEntry> {
        self.gids.get(index).copied().flatten()
    }

    /// Its addresses.
    pub fn addresses(&self) -> impl Iterator<Item = Gid> + '_ {
        self.gids.iter().flatten().map(GidEntry::gid)
    }

    /// It has this address.
    #[must_use]
    pub fn has_gid(&self, gid: Gid) -> bool {
        self.addresses().any(|own| own == gid)
    }
}

/// All devices at one moment.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct DeviceList {
    /// Rises with every change. Answers and announcements come by two sockets, so an older list may
    /// be read after a newer one; it must be thrown away.
    pub generation: u64,
    /// In the order in which verbs lists them.
    pub devices: Vec<DeviceInfo>,
}
