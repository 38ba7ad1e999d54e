//! Multicast groups: the engine's, and the interface's with the first queue pair of a group.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;

use rocebud_objects::{Errno, Misuse};
use rocebud_wire::Gid;

use crate::context::QpShared;
use crate::core::Core;
use crate::runtime::{Runtime, no_descriptor};
use crate::sync::lock;

impl Runtime {
    /// `ibv_attach_mcast`, on the network too.
    ///
    /// # Errors
    /// EINVAL: not UD and not raw packets, or no group. ENOMEM: too many. ENODEV: the network does not join.
    pub fn attach_mcast(&self, qp: &QpShared, group: Gid) -> Result<(), Misuse> {
        self.check()?;
        if lock(&self.core).raw.has(qp.qpn) {
            return self.attach_raw(qp, group);
        }
        let mut core = lock(&self.core);
        core.node.attach_mcast(qp.qpn, group)?;
        let Core { groups, link, .. } = &mut *core;
        let users = groups.entry((group, qp.ifindex)).or_insert(0);
        *users += 1;
        let joined = match link {
            Some(link) if *users == 1 => link.join(group.ip(), qp.ifindex),
            _ => Ok(()),
        };
        if let Err(error) = joined {
            groups.remove(&(group, qp.ifindex));
            core.node.detach_mcast(qp.qpn, group)?;
            return Err(not_joined(&error));
        }
        Ok(())
    }

    /// `ibv_detach_mcast`.
    ///
    /// # Errors
    /// EINVAL: not attached.
    pub fn detach_mcast(&self, qp: &QpShared, group: Gid) -> Result<(), Misuse> {
        self.check()?;
        if lock(&self.core).raw.has(qp.qpn) {
            return self.detach_raw(qp, group);
        }
        let mut core = lock(&self.core);
        core.node.detach_mcast(qp.qpn, group)?;
        let Core { groups, link, .. } = &mut *core;
        leave(groups, link.as_ref(), group, qp.ifindex);
        Ok(())
    }

    pub(super) fn detach_all(core: &mut Core, qp: &QpShared) {
        let groups: Vec<Gid> = core.groups.keys().map(|(group, _)| *group).collect();
        for group in groups {
            if core.node.detach_mcast(qp.qpn, group).is_ok() {
                let Core { groups, link, .. } = &mut *core;
                leave(groups, link.as_ref(), group, qp.ifindex);
            }
        }
    }
}

/// Why a group was not joined, in the words of verbs.
fn not_joined(error: &io::Error) -> Misuse {
    match error.raw_os_error() {
        Some(libc::EMFILE | libc::ENFILE) => no_descriptor("joining a group", error),
        Some(libc::ENOBUFS) => Misuse::new(
            Errno::ENOMEM,
            "attach_mcast: as many groups as a process may join; raise net.ipv4.igmp_max_memberships \
             or net.core.optmem_max",
        ),
        code => Misuse::new(
            Errno(code.unwrap_or(Errno::EIO.0)),
            "attach_mcast: the interface did not join the group",
        ),
    }
}

fn leave(
    groups: &mut HashMap<(Gid, u32), u32>,
    link: Option<&rocebud_nic::udp::UdpLink>,
    group: Gid,
    ifindex: u32,
) {
    let Some(users) = groups.get_mut(&(group, ifindex)) else {
        return;
    };
    *users -= 1;
    if *users == 0 {
        groups.remove(&(group, ifindex));
        let ip: IpAddr = group.ip();
        if let Some(link) = link {
            // Failing to leave costs a few unwanted packets and nothing else.
            let _ = link.leave(ip, ifindex);
        }
    }
}
