//! The GID table of one port.
//!
//! 1. While the port has not been ready yet, the table is *provisional*: it is filled anew on
//!    every change, link-local addresses first, then IPv4, then other IPv6, each in the order in
//!    which they came.
//! 2. Once it has been ready it is *settled*: an address keeps its slot for good, a new one takes
//!    the lowest free slot, a removed one leaves a hole.
//! 3. Slot 0 is never empty, because programs ask for it by default. When it has no address of its
//!    own, the address in the lowest slot stands in (and keeps its own slot too); without any
//!    address at all it is the default GID of the hardware address. A stand-in makes room for the
//!    next address that comes.

use std::net::IpAddr;

use rocebud_ctl::limits::GIDS_MAX;
use rocebud_wire::Gid;

/// Slots of a table that has few addresses.
const LENGTH_MIN: usize = 16;
/// Free slots that a longer table keeps for addresses to come.
const SPARE: usize = 4;

/// See the module.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct GidTable {
    /// Addresses by slot, without stand-ins.
    own: Vec<Option<Gid>>,
    settled: bool,
    default: Gid,
}

impl GidTable {
    /// An empty provisional table. `default` fills slot 0 when there is no address.
    pub(crate) const fn new(default: Gid) -> Self {
        Self {
            own: Vec::new(),
            settled: false,
            default,
        }
    }

    /// Makes the table hold exactly `addresses` (given in the order in which they came). Returns
    /// how many did not fit.
    pub(crate) fn update(&mut self, addresses: &[IpAddr]) -> usize {
        let mut wanted: Vec<Gid> = addresses.iter().map(|ip| Gid::from_ip(*ip)).collect();
        if !self.settled {
            self.own.clear();
            wanted.sort_by_key(|gid| rank(*gid));
        }
        for slot in &mut self.own {
            *slot = slot.filter(|gid| wanted.contains(gid));
        }
        let mut left_out = 0;
        for gid in wanted {
            if self.own.contains(&Some(gid)) {
                continue;
            }
            match self.own.iter().position(Option::is_none) {
                Some(free) => self.own[free] = Some(gid),
                None if self.own.len() < GIDS_MAX => self.own.push(Some(gid)),
                None => left_out += 1,
            }
        }
        left_out
    }

    /// From now on addresses keep their slots.
    pub(crate) const fn settle(&mut self) {
        self.settled = true;
    }

    /// Addresses keep their slots already.
    pub(crate) const fn is_settled(&self) -> bool {
        self.settled
    }

    /// The interface got another hardware address.
    pub(crate) const fn set_default(&mut self, default: Gid) {
        self.default = default;
    }

    /// The table as programs see it: slot 0 filled, holes as `None`, some free slots at the end.
    /// Never shorter than before.
    pub(crate) fn view(&self) -> Vec<Option<Gid>> {
        let used = self.own.len();
        let roomy = if used + SPARE <= LENGTH_MIN {
            LENGTH_MIN
        } else {
            (used + SPARE).next_multiple_of(8).min(GIDS_MAX)
        };
        let mut view = self.own.clone();
        view.resize(roomy, None);
        if let Some(first @ None) = view.first_mut() {
            let lowest = self.own.iter().flatten().next();
            *first = Some(lowest.copied().unwrap_or(self.default));
        }
        view
    }
}

/// Order of the first filling.
fn rank(gid: Gid) -> u8 {
    if gid.is_link_local() {
        0
    } else if gid.v4().is_some() {
        1
    } else {
        2
    }
}

#[cfg(test)]
mod tests;
