//! What the daemon knows of each connection.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rocebud_ctl::fds::{self, PeerIds};
use rocebud_ctl::forward::Outbox;
use rocebud_ctl::messages::Role;
use rocebud_ctl::status::ProcessStatus;
use rocebud_ctl::{PageSet, PeerNews};
use rocebud_nic::udp::set_send_buffer;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use crate::devices::Now;
use crate::limits::{DEAD_MAX, FORWARDING_BYTES};

/// A connection.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) key: u64,
    pub(crate) socket: OwnedFd,
    /// Our end of the notices; none before the greeting.
    pub(crate) notices: Option<OwnedFd>,
    pub(crate) pidfd: Option<OwnedFd>,
    pub(crate) ids: PeerIds,
    /// `None` until it has greeted.
    pub(crate) role: Option<Role>,
    pub(crate) command: String,
    pub(crate) since: Now,
    pub(crate) slots: Vec<ClientSlot>,
    pub(crate) pages: Option<Pages>,
    /// Has asked for the devices and waits until they have settled, at most until then.
    pub(crate) wants_devices: Option<Now>,
    /// It did not take the last notice: the newest device list and `news` wait.
    pub(crate) behind: bool,
    /// The newest of each peer, by address.
    pub(crate) news: BTreeMap<[u8; 16], PeerNews>,
}

/// A slot of a client, with our end of its forwarding socket.
#[derive(Debug)]
pub(crate) struct ClientSlot {
    pub(crate) number: u16,
    pub(crate) forward: OwnedFd,
    /// What the client has not taken yet.
    pub(crate) outbox: Outbox,
    /// Its forwarding socket is full, and watched for room.
    pub(crate) blocked: bool,
}

/// A page-set and its file.
#[derive(Debug)]
pub(crate) struct Pages {
    pub(crate) set: PageSet,
    pub(crate) fd: OwnedFd,
}

impl Client {
    pub(crate) fn new(key: u64, socket: OwnedFd, since: Now) -> io::Result<Self> {
        let ids = fds::peer_ids(&socket)?;
        let command = crate::holder::command(Path::new("/proc"), ids.pid);
        Ok(Self {
            key,
            notices: None,
            pidfd: fds::peer_pidfd(&socket).ok(),
            socket,
            ids,
            role: None,
            command,
            since,
            slots: Vec::new(),
            pages: None,
            wants_devices: None,
            behind: false,
            news: BTreeMap::new(),
        })
    }

    /// Uses verbs (or may).
    pub(crate) fn is_library(&self) -> bool {
        self.role == Some(Role::Library)
    }

    /// Its page-set, made at the first call.
    pub(crate) fn pages(&mut self) -> io::Result<&Pages> {
        if self.pages.is_none() {
            let (set, fd) = PageSet::create()?;
            for slot in &self.slots {
                set.add_slot(slot.number);
            }
            self.pages = Some(Pages { set, fd });
        }
        self.pages
            .as_ref()
            .ok_or_else(|| io::ErrorKind::Other.into())
    }

    /// One of its slots, and the position among them.
    pub(crate) fn slot_mut(&mut self, number: u16) -> Option<(usize, &mut ClientSlot)> {
        let mut slots = self.slots.iter_mut().enumerate();
        slots.find(|(_, slot)| slot.number == number)
    }

    pub(crate) fn status(&self, now: Now) -> ProcessStatus {
        ProcessStatus {
            key: self.key,
            pid: self.ids.pid,
            uid: self.ids.uid,
            command: self.command.clone(),
            slots: self.slots.iter().map(|s| s.number).collect(),
            age_ms: millis(now.saturating_sub(self.since)),
            dead_ms: None,
            has_pages: self.pages.is_some(),
        }
    }
}

/// A pair for frames: with room for some dozen batches, where that may be had.
pub(crate) fn forwarding_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let (ours, theirs) = message_pair()?;
    for end in [&ours, &theirs] {
        set_send_buffer(end.as_fd(), FORWARDING_BYTES)?;
    }
    Ok((ours, theirs))
}

/// A pair of sockets that keep message boundaries: ours (non-blocking) and the client's.
pub(crate) fn message_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        flags,
        None,
    )?)
}

/// What is left of a process.
#[derive(Debug)]
pub(crate) struct Dead {
    status: ProcessStatus,
    died: Now,
    pages: Pages,
}

impl Dead {
    /// Some queue pair had an error completion.
    fn has_error(&self) -> bool {
        self.pages.set.qps().any(|qp| qp.error().is_some())
    }
}

/// The last processes that died, newest first.
#[derive(Debug, Default)]
pub(crate) struct Graveyard(VecDeque<Dead>);

impl Graveyard {
    /// Keeps what a client leaves, if there is something to look at.
    pub(crate) fn bury(&mut self, client: Client, now: Now) {
        let status = client.status(now);
        let Some(pages) = client.pages else { return };
        self.0.push_front(Dead {
            status,
            died: now,
            pages,
        });
        self.0.truncate(DEAD_MAX);
    }

    /// Some of them died with an error that can be explained.
    pub(crate) fn has_error(&self) -> bool {
        self.0.iter().any(Dead::has_error)
    }

    pub(crate) fn statuses(&self, now: Now) -> impl Iterator<Item = ProcessStatus> + '_ {
        self.0.iter().map(move |dead| ProcessStatus {
            dead_ms: Some(millis(now.saturating_sub(dead.died))),
            ..dead.status.clone()
        })
    }

    /// User and page-set of a dead process.
    pub(crate) fn find(&self, key: u64) -> Option<(u32, rustix::fd::BorrowedFd<'_>)> {
        let dead = self.0.iter().find(|dead| dead.status.key == key)?;
        Some((dead.status.uid, dead.pages.fd.as_fd()))
    }
}

pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
