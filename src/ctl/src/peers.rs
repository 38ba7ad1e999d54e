//! What a process and its daemon say to each other about the hosts that it talks to.
//!
//! The process says whom ([`PeerHint`]), the daemon asks the host whether it runs rocebud, and
//! tells what came of it ([`PeerWord`]), at once or later. Nobody waits for anything here.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rocebud_wire::Gid;
use serde::{Deserialize, Serialize};

use crate::channel;
use crate::messages::{self, Request};

/// A host that a process talks to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PeerHint {
    /// Interface through which it goes; counts for link-local addresses. 0 = any.
    pub ifindex: u32,
    /// Our address, as a GID.
    pub local: [u8; 16],
    /// The host's address, as a GID.
    pub remote: [u8; 16],
    /// It did what it said it never does: what is known of it may be wrong.
    pub doubt: bool,
}

impl PeerHint {
    /// The host's address.
    #[must_use]
    pub const fn remote(&self) -> Gid {
        Gid(self.remote)
    }
}

/// What a host said of itself. The same again after a doubt: it stands by it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PeerNews {
    /// The host's address, as a GID.
    pub remote: [u8; 16],
    /// `None`: nothing, or nothing that holds any more. It speaks the standard and nothing else.
    pub word: Option<PeerWord>,
}

impl PeerNews {
    /// The host's address.
    #[must_use]
    pub const fn remote(&self) -> Gid {
        Gid(self.remote)
    }
}

/// What a host that runs rocebud says of itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PeerWord {
    /// IPv4 identifications of its packets are below this; 0 = any.
    pub id_bound: u16,
    /// Receive buffer of each of its processes' sockets, bytes of kernel memory; 0 = it does not say.
    pub receive_buffer: u32,
    /// Extensions of the protocol that it knows, one bit each.
    pub extensions: u32,
    /// It is this machine, in another network namespace.
    pub same_kernel: bool,
}

/// Says things to the daemon that have no answer.
#[derive(Clone, Debug)]
pub struct Herald(pub(crate) Arc<OwnedFd>);

impl Herald {
    /// Never waits. False: the daemon is behind with reading, or gone; it may be told later.
    #[must_use]
    pub fn say(&self, hint: PeerHint) -> bool {
        messages::encode(&Request::Peer(hint))
            .is_ok_and(|bytes| channel::send(&*self.0, &bytes, &[]).is_ok())
    }
}
