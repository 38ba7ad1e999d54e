//! The interfaces and addresses of the network namespace, as events leave them.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::netlink::codec::{Address, Link, Message};

/// Interfaces by index; addresses of each in the order in which they came.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Picture {
    links: BTreeMap<u32, Link>,
    addresses: BTreeMap<u32, Vec<Address>>,
}

impl Picture {
    /// The picture after a full dump. Addresses that were known keep their order, because a dump
    /// does not tell which came first across families.
    pub(crate) fn replaced(&self, dump: &[Message]) -> Self {
        let mut fresh = Self::default();
        for message in dump {
            fresh.apply(message);
        }
        for (ifindex, list) in &mut fresh.addresses {
            let known = self.addresses.get(ifindex).map_or(&[][..], Vec::as_slice);
            let place = |address: &Address| known.iter().position(|k| k.ip == address.ip);
            list.sort_by_key(|address| place(address).unwrap_or(usize::MAX));
        }
        fresh
    }

    /// Applies one event; one that says what is known already changes nothing.
    pub(crate) fn apply(&mut self, message: &Message) {
        match message {
            Message::Link(link) => {
                self.links.insert(link.ifindex, link.clone());
            }
            Message::LinkGone { ifindex } => {
                self.links.remove(ifindex);
                self.addresses.remove(ifindex);
            }
            Message::Address(address) => {
                let list = self.addresses.entry(address.ifindex).or_default();
                match list.iter_mut().find(|known| known.ip == address.ip) {
                    Some(known) => *known = *address,
                    None => list.push(*address),
                }
            }
            Message::AddressGone { ifindex, ip } => {
                if let Some(list) = self.addresses.get_mut(ifindex) {
                    list.retain(|known| known.ip != *ip);
                }
            }
            Message::Done | Message::Interrupted | Message::Failed(_) => {}
        }
    }

    /// Interfaces in the order of their indexes.
    pub(crate) fn links(&self) -> impl Iterator<Item = &Link> {
        self.links.values()
    }

    /// An interface.
    pub(crate) fn link(&self, ifindex: u32) -> Option<&Link> {
        self.links.get(&ifindex)
    }

    /// The interface is there.
    pub(crate) fn has(&self, ifindex: u32) -> bool {
        self.links.contains_key(&ifindex)
    }

    /// Addresses of an interface that may be used, in the order in which they came.
    pub(crate) fn usable(&self, ifindex: u32) -> impl Iterator<Item = IpAddr> + '_ {
        let fit = |a: &&Address| !a.is_tentative() && !a.is_duplicate() && is_unicast(a.ip);
        self.all(ifindex).iter().filter(fit).map(|a| a.ip)
    }

    /// Some address of the interface is still being checked for duplicates.
    pub(crate) fn any_tentative(&self, ifindex: u32) -> bool {
        let waiting = |a: &Address| a.is_tentative() && !a.is_duplicate();
        self.all(ifindex).iter().any(waiting)
    }

    fn all(&self, ifindex: u32) -> &[Address] {
        self.addresses.get(&ifindex).map_or(&[], Vec::as_slice)
    }
}

fn is_unicast(ip: IpAddr) -> bool {
    !ip.is_multicast() && !ip.is_unspecified()
}

#[cfg(test)]
mod tests;
