//! Ports of the connection manager: not those of TCP or UDP, but given out by the same rules. Pure.

use std::collections::BTreeMap;
use std::net::IpAddr;

use libc::{EACCES, EADDRINUSE, EADDRNOTAVAIL};

/// Whoever has a port, and how far it shares it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Claim {
    /// The identifier.
    pub(super) id: u32,
    /// Address that it is bound to; the wildcard covers all.
    pub(super) ip: IpAddr,
    /// Interface of a link-local address, else 0.
    pub(super) scope: u32,
    /// REUSEADDR.
    pub(super) reuse: bool,
    /// AFONLY: an IPv6 wildcard leaves IPv4 alone.
    pub(super) family_only: bool,
}

/// First port that ordinary users may ask for.
const UNPRIVILEGED: u16 = 1024;

/// All ports in use, by port space.
#[derive(Debug)]
pub(super) struct Ports {
    used: BTreeMap<(u16, u16), Vec<Claim>>,
    /// First and last of the ports that are given to whoever asks for none.
    ephemeral: (u16, u16),
}

impl Ports {
    /// `ephemeral`: first and last port for those that ask for none.
    pub(super) fn new(ephemeral: (u16, u16)) -> Self {
        Self {
            used: BTreeMap::new(),
            ephemeral,
        }
    }

    /// Takes `port` of a space, or a free one for 0, found from `chance` on.
    ///
    /// Errors: EACCES, EADDRINUSE, EADDRNOTAVAIL, as Linux has them.
    pub(super) fn take(
        &mut self,
        space: u16,
        port: u16,
        claim: Claim,
        privileged: bool,
        chance: u32,
    ) -> Result<u16, i32> {
        let port = match port {
            0 => self.free(space, chance)?,
            port if port < UNPRIVILEGED && !privileged => return Err(EACCES),
            port => port,
        };
        self.check((space, port), &claim, claim.reuse)?;
        self.used.entry((space, port)).or_default().push(claim);
        Ok(port)
    }

    /// Whether the claim may listen: nobody may share its address then.
    pub(super) fn listen(&self, space: u16, port: u16, claim: &Claim) -> Result<(), i32> {
        self.check((space, port), claim, false)
    }

    /// Gives a port back.
    pub(super) fn release(&mut self, space: u16, port: u16, id: u32) {
        if let Some(claims) = self.used.get_mut(&(space, port)) {
            claims.retain(|claim| claim.id != id);
            if claims.is_empty() {
                self.used.remove(&(space, port));
            }
        }
    }

    /// Changes what an identifier said about sharing.
    pub(super) fn amend(&mut self, space: u16, port: u16, claim: Claim) {
        let claims = self.used.get_mut(&(space, port));
        let mut claims = claims.into_iter().flatten();
        if let Some(old) = claims.find(|old| old.id == claim.id) {
            *old = claim;
        }
    }

    fn check(&self, key: (u16, u16), claim: &Claim, reuse: bool) -> Result<(), i32> {
        let others = self.used.get(&key).into_iter().flatten();
        for other in others.filter(|other| other.id != claim.id) {
            let apart =
                claim.family_only && other.family_only && claim.ip.is_ipv4() != other.ip.is_ipv4();
            if apart || (reuse && other.reuse) {
                continue;
            }
            if claim.ip.is_unspecified() || other.ip.is_unspecified() {
                return Err(EADDRNOTAVAIL);
            }
            if (claim.ip, claim.scope) == (other.ip, other.scope) {
                return Err(EADDRINUSE);
            }
        }
        Ok(())
    }

    fn free(&self, space: u16, chance: u32) -> Result<u16, i32> {
        let (first, last) = self.ephemeral;
        let count = u32::from(last.saturating_sub(first)) + 1;
        let nth = |i: u32| first + u16::try_from((chance % count + i) % count).unwrap_or(0);
        let mut ports = (0..count).map(nth);
        let free = ports.find(|port| !self.used.contains_key(&(space, *port)));
        free.ok_or(EADDRNOTAVAIL)
    }
}

/// The system's range for ports that nobody asked for.
pub(super) fn ephemeral_range() -> (u16, u16) {
    const USUAL: (u16, u16) = (32768, 60999);
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range");
    let text = text.unwrap_or_default();
    let mut numbers = text.split_whitespace().map(str::parse::<u16>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(first)), Some(Ok(last))) if first > 0 && first <= last => (first, last),
        _ => USUAL,
    }
}

#[cfg(test)]
mod tests;
