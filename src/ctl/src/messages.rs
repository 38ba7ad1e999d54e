//! The messages. [`Hello`] and [`Welcome`] have a fixed layout that no version may change, so that
//! unlike versions can say so; everything after them is postcard.

use serde::{Deserialize, Serialize};

use crate::cm::{CmAnswer, CmRequest};
use crate::error::CtlError;
use crate::status::StatusReport;
use crate::{DeviceList, ErrorKind, PeerHint, PeerNews};

/// Version of everything behind the greeting. Library and daemon must agree exactly.
pub const VERSION: u32 = 7;

const MAGIC: [u8; 8] = *b"ROCEBUD\0";

/// First message of a client: magic, version, role.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hello {
    /// [`VERSION`] of the client.
    pub version: u32,
    /// Who asks.
    pub role: Role,
}

/// Who asks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Role {
    /// A process that uses verbs. Keeps an automatic daemon alive.
    Library = 1,
    /// The `rocebud` command, only looking.
    Command = 2,
}

impl Hello {
    /// Bytes on the socket.
    pub const BYTES: usize = 16;

    /// As bytes.
    #[must_use]
    pub fn encode(self) -> [u8; Self::BYTES] {
        let mut b = [0; Self::BYTES];
        b[..8].copy_from_slice(&MAGIC);
        b[8..12].copy_from_slice(&self.version.to_le_bytes());
        b[12..].copy_from_slice(&(self.role as u32).to_le_bytes());
        b
    }

    /// From bytes; `None` if this is no greeting.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let rest = bytes.strip_prefix(&MAGIC)?;
        let (version, rest) = rest.split_first_chunk::<4>()?;
        let (role, _) = rest.split_first_chunk::<4>()?;
        let role = match u32::from_le_bytes(*role) {
            1 => Role::Library,
            2 => Role::Command,
            _ => return None,
        };
        Some(Self {
            version: u32::from_le_bytes(*version),
            role,
        })
    }
}

/// The daemon's answer to [`Hello`]. With it come, if the versions agree, the receiving end of the
/// notices.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Welcome {
    /// [`VERSION`] of the daemon.
    pub version: u32,
    /// False when the daemon will not talk to this client (see `reason`); the socket closes.
    pub accepted: bool,
    /// Why not.
    pub reason: Refusal,
    /// Network namespace of the daemon; see [`crate::fds::netns_id`].
    pub netns: u64,
    /// Its process, as itself sees it.
    pub pid: u32,
}

/// Why a client was turned away at the door.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
#[allow(missing_docs, reason = "said by their names")]
pub enum Refusal {
    None = 0,
    Version = 1,
    User = 2,
    TooManyClients = 3,
}

impl Welcome {
    /// Bytes on the socket.
    pub const BYTES: usize = 40;

    /// As bytes.
    #[must_use]
    pub fn encode(self) -> [u8; Self::BYTES] {
        let mut b = [0; Self::BYTES];
        b[..8].copy_from_slice(&MAGIC);
        b[8..12].copy_from_slice(&self.version.to_le_bytes());
        b[12..16].copy_from_slice(&u32::from(self.accepted).to_le_bytes());
        b[16..20].copy_from_slice(&(self.reason as u32).to_le_bytes());
        b[20..24].copy_from_slice(&self.pid.to_le_bytes());
        b[24..32].copy_from_slice(&self.netns.to_le_bytes());
        b
    }

    /// From bytes; `None` if this is no greeting.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let rest = bytes.strip_prefix(&MAGIC)?;
        let (version, rest) = rest.split_first_chunk::<4>()?;
        let (accepted, rest) = rest.split_first_chunk::<4>()?;
        let (reason, rest) = rest.split_first_chunk::<4>()?;
        let (pid, rest) = rest.split_first_chunk::<4>()?;
        let (netns, _) = rest.split_first_chunk::<8>()?;
        Some(Self {
            version: u32::from_le_bytes(*version),
            accepted: *accepted != [0; 4],
            reason: match u32::from_le_bytes(*reason) {
                0 => Refusal::None,
                1 => Refusal::Version,
                3 => Refusal::TooManyClients,
                _ => Refusal::User,
            },
            netns: u64::from_le_bytes(*netns),
            pid: u32::from_le_bytes(*pid),
        })
    }
}

/// What a client asks. Every request has exactly one [`Answer`], but [`Request::Peer`] none.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Request {
    /// The device list.
    Devices,
    /// A slot: sockets and 4096 QPNs.
    TakeSlot,
    /// This process's shared page-set.
    PageSet,
    /// The ledger of this process's user.
    Ledger,
    /// Everything the daemon knows about itself and its clients.
    Status,
    /// The page-set of process `key` of a [`StatusReport`], to read.
    PagesOf {
        /// [`crate::status::ProcessStatus::key`].
        key: u64,
    },
    /// The slot granted last could not be received for want of descriptors: it is nobody's again.
    ReturnSlot {
        /// Slot number of the grant.
        slot: u16,
    },
    /// About connections.
    Cm(CmRequest),
    /// This process talks to a host. There may be an [`Announcement::Peer`] some time.
    Peer(PeerHint),
}

/// What the daemon answers.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Answer {
    /// To [`Request::Devices`].
    Devices(DeviceList),
    /// To [`Request::TakeSlot`]. Descriptors: receive IPv4, forwarding, receive IPv6 if `v6`, then
    /// the send sockets in the order of their ports, then records and words of each ring.
    Slot {
        /// Slot number: the upper 12 bits of its QPNs.
        slot: u16,
        /// There is an IPv6 half.
        v6: bool,
        /// Ports of the IPv4 send sockets.
        send_v4: Vec<u16>,
        /// Ports of the IPv6 send sockets.
        send_v6: Vec<u16>,
        /// Receive buffer of each receive socket, bytes of kernel memory.
        rcvbuf_bytes: u32,
        /// There are rings beside the IPv4 and the IPv6 receive socket.
        rings: [bool; 2],
    },
    /// To [`Request::PageSet`], [`Request::Ledger`] and [`Request::PagesOf`], with one descriptor.
    Pages,
    /// To [`Request::Status`].
    Status(Box<StatusReport>),
    /// To any request.
    Refused(CtlError),
    /// To [`Request::ReturnSlot`].
    Returned,
    /// To [`Request::Cm`].
    Cm(CmAnswer),
}

/// What the daemon says unasked, on the notices' socket.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Announcement {
    /// The device list after a change. Only the newest is worth anything.
    Devices(DeviceList),
    /// What a host said that this process named.
    Peer(PeerNews),
}

/// Reads a message; trailing bytes are an error.
pub fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, CtlError> {
    match postcard::take_from_bytes(bytes) {
        Ok((message, [])) => Ok(message),
        Ok(_) => Err(malformed("trailing bytes")),
        Err(error) => Err(malformed(&error.to_string())),
    }
}

/// Writes a message.
pub fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, CtlError> {
    postcard::to_stdvec(message).map_err(|error| malformed(&error.to_string()))
}

fn malformed(what: &str) -> CtlError {
    CtlError::new(
        ErrorKind::Malformed,
        format!(
            "message between library and daemon is malformed ({what}): stop the daemon so that one of this version starts"
        ),
    )
}

#[cfg(test)]
mod tests;
