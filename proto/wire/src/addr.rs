//! GIDs from hardware addresses, and where multicast goes on Ethernet.

use crate::Gid;

/// EUI-64 of a MAC address, in host order: the GUID of a device on that interface.
#[must_use]
pub const fn guid_from_mac(mac: [u8; 6]) -> u64 {
    u64::from_be_bytes([
        mac[0] ^ 2,
        mac[1],
        mac[2],
        0xff,
        0xfe,
        mac[3],
        mac[4],
        mac[5],
    ])
}

impl Gid {
    /// The default GID of an interface: fe80::/64 and the EUI-64 of its MAC address.
    #[must_use]
    pub const fn link_local_from_mac(mac: [u8; 6]) -> Self {
        let g = guid_from_mac(mac).to_be_bytes();
        Self([
            0xfe, 0x80, 0, 0, 0, 0, 0, 0, g[0], g[1], g[2], g[3], g[4], g[5], g[6], g[7],
        ])
    }

    /// The Ethernet address of a multicast group: 01:00:5e and the low 23 bits of an IPv4 group,
    /// 33:33 and the low 32 bits of others. `None` if this is no multicast GID.
    #[must_use]
    pub fn multicast_mac(self) -> Option<[u8; 6]> {
        if !self.is_multicast() {
            return None;
        }
        let [.., a, b, c, d] = self.0;
        Some(if self.v4().is_some() {
            [0x01, 0x00, 0x5e, b & 0x7f, c, d]
        } else {
            [0x33, 0x33, a, b, c, d]
        })
    }

    /// The group that stands for an IPv4 multicast address in RoCE v1: ff0e::ffff:a.b.c.d.
    #[must_use]
    pub const fn v1_multicast_from_v4(a: [u8; 4]) -> Self {
        let mut gid = Self::from_v4(a).0;
        gid[0] = 0xff;
        gid[1] = 0x0e;
        Self(gid)
    }
}

#[cfg(test)]
mod tests;
