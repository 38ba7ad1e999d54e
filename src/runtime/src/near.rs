//! Which destinations get a batch as it was sent.
//!
//! A batch of packets that leaves as one (UDP segmentation offload) is taken apart on its way by whatever
//! cannot carry it: a NIC, a tun interface, a VLAN. Its packets then arrive one by one, in their order.
//! Loopback and veth pairs carry it whole (unless told not to), up to the socket of the receiver; but
//! behind the other end of a veth may be a bridge and a NIC. So a batch arrives whole at an own address,
//! and, as a rule, by a veth at a host that says it runs on the same kernel: what is between the two (a
//! bridge whose port has the offload off, a tunnel, another route) is not seen from here.

use std::collections::HashSet;
use std::net::IpAddr;

use rocebud_ctl::{DeviceInfo, PeerNews};
use rocebud_wire::Gid;

/// What is known of the ways to destinations.
#[derive(Debug, Default)]
pub(crate) struct Near {
    /// Addresses of this host.
    own: HashSet<Gid>,
    /// Loopback keeps batches.
    loopback: bool,
    /// Other interfaces that do.
    veths: HashSet<u32>,
    /// Hosts on the same kernel.
    neighbours: HashSet<Gid>,
    /// The last question and its answer: packets come in runs.
    last: Option<(IpAddr, u32, bool)>,
}

impl Near {
    /// Interfaces or addresses have changed.
    pub(crate) fn set_devices(&mut self, devices: &[DeviceInfo]) {
        self.own = devices.iter().flat_map(DeviceInfo::addresses).collect();
        let keep = || devices.iter().filter(|device| device.keeps_batches);
        self.loopback = keep().any(|device| device.loopback);
        let veths = keep().filter(|device| !device.loopback);
        self.veths = veths.map(|device| device.ifindex).collect();
        self.last = None;
    }

    /// A host has said something of itself, or what it said no longer holds.
    pub(crate) fn heard(&mut self, news: &PeerNews) {
        if news.word.is_some_and(|word| word.same_kernel) {
            self.neighbours.insert(news.remote());
        } else {
            self.neighbours.remove(&news.remote());
        }
        self.last = None;
    }

    /// What leaves by this interface as one batch for `dst` arrives as one.
    #[inline]
    pub(crate) fn arrives_whole(&mut self, dst: IpAddr, ifindex: u32) -> bool {
        match self.last {
            Some((to, by, whole)) if to == dst && by == ifindex => whole,
            _ => self.look(dst, ifindex),
        }
    }

    #[cold]
    fn look(&mut self, dst: IpAddr, ifindex: u32) -> bool {
        let to = Gid::from_ip(dst);
        let whole = if dst.is_loopback() || self.own.contains(&to) {
            self.loopback
        } else {
            self.veths.contains(&ifindex) && self.neighbours.contains(&to)
        };
        self.last = Some((dst, ifindex, whole));
        whole
    }
}

#[cfg(test)]
mod tests {
    use rocebud_ctl::{GidEntry, PeerWord};

    use super::*;

    const THERE: Gid = Gid::from_v4([10, 0, 0, 2]);
    const LO: u32 = 1;
    const VETH: u32 = 7;
    const TUN: u32 = 8;

    fn device(ifindex: u32, keeps_batches: bool) -> DeviceInfo {
        let own = GidEntry {
            bytes: Gid::from_v4([10, 0, 0, 1]).0,
            ifindex,
        };
        DeviceInfo {
            name: "rb_x0".to_owned(),
            ifindex,
            netdev: "x0".to_owned(),
            guid: 1,
            mac: [0; 6],
            netdev_mtu: 1500,
            active_mtu: 3,
            enabled: true,
            active: true,
            speed_mbps: 1000,
            loopback: ifindex == LO,
            keeps_batches,
            gids: vec![Some(own), None],
        }
    }

    fn news(same_kernel: Option<bool>) -> PeerNews {
        let word = same_kernel.map(|same_kernel| PeerWord {
            id_bound: 64,
            receive_buffer: 0,
            extensions: 0,
            same_kernel,
        });
        PeerNews {
            remote: THERE.0,
            word,
        }
    }

    #[test]
    fn batches_arrive_whole_by_loopback_and_by_a_veth_on_the_same_kernel_only() {
        let mut near = Near::default();
        let there = THERE.ip();
        let here = IpAddr::from([10, 0, 0, 1]);
        assert!(!near.arrives_whole(here, VETH));
        let [lo, veth, tun] = [device(LO, true), device(VETH, true), device(TUN, false)];
        near.set_devices(&[lo, veth, tun]);
        assert!(near.arrives_whole(here, TUN), "an own address");
        assert!(near.arrives_whole(IpAddr::from([127, 0, 0, 9]), LO));
        assert!(!near.arrives_whole(there, VETH), "it has said nothing");
        near.heard(&news(Some(true)));
        assert!(near.arrives_whole(there, VETH));
        assert!(!near.arrives_whole(there, TUN));
        assert!(near.arrives_whole(there, VETH));
        for otherwise in [Some(false), None] {
            near.heard(&news(Some(true)));
            near.heard(&news(otherwise));
            assert!(!near.arrives_whole(there, VETH), "{otherwise:?}");
        }
        near.heard(&news(Some(true)));
        near.set_devices(&[device(LO, false), device(TUN, true)]);
        assert!(!near.arrives_whole(there, VETH), "another interface now");
        assert!(!near.arrives_whole(here, LO), "no offload now");
    }
}
