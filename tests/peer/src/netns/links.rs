//! Wires whose ends are something else than a veth: bridges, VLANs, tun interfaces.

use super::{Addresses, Host, Wire, new_namespace};
use crate::program::Running;
use crate::{Failure, tree};

/// What the addresses of a [`Wire`] are on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Over {
    /// A bridge that has the veth as its port.
    Bridge,
    /// A VLAN interface on the veth (802.1Q, id 7).
    Vlan,
}

impl Wire {
    /// A veth pair with an interface of another kind over each end, which has the addresses.
    ///
    /// # Errors
    /// [`Failure::Skip`] if the kernel cannot make such interfaces.
    pub fn over(over: Over, mtu: u32) -> Result<Self, Failure> {
        let mut wire = Self::unplugged()?;
        wire.bare_veth()?;
        for host in [&mut wire.a, &mut wire.b] {
            host.ip(&format!("link set ve0 mtu {mtu} up"))?;
            match over {
                Over::Bridge => {
                    host.add_link("br0", "type bridge")?;
                    host.ip("link set ve0 master br0")?;
                }
                Over::Vlan => host.add_link("vl0", "link ve0 type vlan id 7")?,
            }
            host.netdev = if over == Over::Bridge { "br0" } else { "vl0" }.into();
            host.bring_up(mtu, Addresses::Dual)?;
        }
        Ok(wire)
    }

    /// Two hosts with a tun interface each; a relay carries every packet from one to the other, as
    /// VPNs do.
    ///
    /// # Errors
    /// The relay could not be compiled or cannot make interfaces.
    pub fn tun(mtu: u32) -> Result<(Self, Running), Failure> {
        let [a, b] = [Host::on("a", "tn0", 1)?, Host::on("b", "tn0", 2)?];
        let wire = Self { a, b };
        let relay = tree::c_program("tun_relay")?;
        let [na, nb] = [&wire.a, &wire.b].map(|h| h.ns.clone().unwrap_or_default());
        let mut relay = crate::program::Spec::new(None, &relay, &[&na, &nb, "tn0"])
            .limit(24 * 3600)
            .start()?;
        relay.wait_for("ready")?;
        for host in [&wire.a, &wire.b] {
            host.bring_up(mtu, Addresses::Dual)?;
            // a tun interface drops what its reader has not fetched; nothing slows the sender down
            host.ip("link set tn0 txqueuelen 100000")?;
        }
        Ok((wire, relay))
    }
}

impl Host {
    /// Adds an interface; `what` is the rest of the words of `ip link add NAME`.
    ///
    /// # Errors
    /// [`Failure::Skip`] if the kernel cannot make one.
    pub fn add_link(&self, name: &str, what: &str) -> Result<(), Failure> {
        match self.ip(&format!("link add name {name} {what}")) {
            Err(Failure::Wrong(why)) if lacking(&why) => {
                let kind = what.split("type ").nth(1).unwrap_or(what);
                let kind = kind.split(' ').next().unwrap_or(kind);
                Err(Failure::Skip(format!("a kernel with {kind} interfaces")))
            }
            other => other,
        }
    }

    /// A new namespace in which `netdev` will have address `n`.
    pub(super) fn on(tag: &str, netdev: &str, n: u8) -> Result<Self, Failure> {
        Ok(Self {
            ns: Some(new_namespace(tag)?),
            netdev: netdev.into(),
            v4: format!("10.77.0.{n}"),
            v6: format!("fd77::{n}"),
        })
    }
}

/// Does `ip` say that the kernel does not know the kind of interface?
fn lacking(why: &str) -> bool {
    ["not supported", "Unknown device type"]
        .iter()
        .any(|w| why.contains(w))
}
