//! The sockets of port 4791 and which slot each serves.
//!
//! Positions in a reuseport group must not move, so the daemon keeps every receive socket open
//! itself, whatever its users do, and adds at the end only. A position whose user is gone serves
//! again, but only for the same user (uid): a child that a dead process left behind may still
//! hold the descriptor, and must not read what is another user's.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rocebud_ctl::limits::SEND_SOCKETS_PER_SLOT;
use rocebud_nic::udp::{
    ROCE_PORT, Ring, RingFds, Rings, SlotSockets, attach_steering, free_send_socket, queue_state,
    receive_buffer_bytes, receive_socket, set_receive_buffer,
};

/// Slot that no QPN has: marks a position that gets nothing.
const NOBODY: u16 = 0xffff;

/// Positions in the group; each costs two descriptors. Also kept below what a steering program
/// can tell apart.
pub(crate) const POSITIONS_MAX: usize = 512;

/// Datagrams thrown away when a position changes hands, at most: more than its buffer holds.
const DRAIN_MAX: usize = 100_000;

#[derive(Debug)]
struct Member {
    v4: OwnedFd,
    v6: Option<OwnedFd>,
    slot: u16,
    /// The only user that may have it; `None` for position 0.
    uid: Option<u32>,
    /// Drops when it was opened.
    drops_before: u32,
    rings: Rings,
    /// What earlier rings took from its sockets.
    taken_before: u32,
}

impl Member {
    /// Its sockets once more, for receiving.
    fn sockets(&self) -> io::Result<SlotSockets> {
        Ok(SlotSockets {
            recv_v4: self.v4.try_clone()?,
            recv_v6: self.v6.as_ref().map(OwnedFd::try_clone).transpose()?,
            send_v4: Vec::new(),
            send_v6: Vec::new(),
            rings: self.rings.clone(),
        })
    }

    /// Datagrams dropped because a socket was full. Wraps.
    fn drops(&self) -> u32 {
        let of = |fd: &OwnedFd| queue_state(fd.as_fd()).map_or(0, |state| state.drops);
        let v6 = self.v6.as_ref().map_or(0, of);
        let dropped = of(&self.v4).wrapping_add(v6);
        dropped
            .wrapping_sub(self.taken_before)
            .wrapping_sub(self.taken())
    }

    /// What the rings took: the kernel counts it as dropped. Wraps.
    fn taken(&self) -> u32 {
        let rings = [&self.rings.v4, &self.rings.v6].into_iter().flatten();
        rings
            .map(|ring| ring.taken() as u32)
            .fold(0, u32::wrapping_add)
    }

    /// Gives each socket a ring of its own, for the process that gets it.
    fn attach_rings(&mut self) -> [Option<RingFds>; 2] {
        let (v4, v4_fds) = Ring::attach(self.v4.as_fd(), false).ok().unzip();
        let v6 = self.v6.as_ref();
        let (v6, v6_fds) = v6
            .and_then(|fd| Ring::attach(fd.as_fd(), true).ok())
            .unzip();
        self.rings = Rings { v4, v6 };
        [v4_fds, v6_fds]
    }

    /// Takes them away.
    fn detach_rings(&self) {
        if let Some(ring) = &self.rings.v4 {
            ring.detach(self.v4.as_fd());
        }
        if let (Some(ring), Some(v6)) = (&self.rings.v6, &self.v6) {
            ring.detach(v6.as_fd());
        }
    }

    /// Forgets them, when they were read for the last time.
    fn drop_rings(&mut self) {
        self.taken_before = self.taken_before.wrapping_add(self.taken());
        self.rings = Rings::default();
    }
}

/// What was found in the sockets of a slot that ends.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Closing {
    /// Datagrams that the kernel had no room for.
    pub(crate) overflown: u64,
    /// Datagrams thrown away unread.
    pub(crate) unread: u64,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Group {
    members: Vec<Member>,
    ipv6: bool,
    positions_max: usize,
    /// Why sockets get no rings.
    no_rings: Option<String>,
}

/// Why there are no sockets for a slot.
#[derive(Debug)]
pub(crate) enum NoSockets {
    /// All positions are taken.
    Full,
    /// The system refused.
    Os(io::Error),
}

/// The sockets of one slot, still the daemon's.
#[derive(Debug)]
pub(crate) struct SlotFds<'a> {
    pub(crate) v4: BorrowedFd<'a>,
    pub(crate) v6: Option<BorrowedFd<'a>>,
    pub(crate) send_v4: Vec<(u16, OwnedFd)>,
    pub(crate) send_v6: Vec<(u16, OwnedFd)>,
    pub(crate) rings: [Option<RingFds>; 2],
}

impl Group {
    /// Takes the port. `EADDRINUSE` when somebody else has it (also a process of this user).
    pub(crate) fn take_port(positions_max: usize) -> io::Result<Self> {
        // A socket outside any group: refused if there is a group already, even one of ours.
        drop(receive_socket(false, ROCE_PORT, false)?);
        let ipv6 = match receive_socket(true, ROCE_PORT, false) {
            Ok(_) => true,
            Err(error) if lacks_ipv6(&error) => false,
            Err(error) => return Err(error),
        };
        let mut group = Self {
            members: Vec::new(),
            ipv6,
            positions_max: positions_max.min(POSITIONS_MAX),
            no_rings: None,
        };
        group.add(0, None)?;
        group.try_rings();
        group.steer()?;
        Ok(group)
    }

    /// Finds out whether the kernel lets us have rings, with a socket that needs none.
    fn try_rings(&mut self) {
        if rocebud_ctl::settings::ring().value == Some(false) {
            self.no_rings = Some("ROCEBUD_RING is off".to_owned());
            return;
        }
        let Some(own) = self.members.first() else {
            return;
        };
        match Ring::attach(own.v4.as_fd(), false) {
            Ok((ring, _)) => ring.detach(own.v4.as_fd()),
            Err(error) => self.no_rings = Some(why_no_rings(&error)),
        }
    }

    /// Why sockets get no rings; `None`: they do.
    pub(crate) fn no_rings(&self) -> Option<&str> {
        self.no_rings.as_deref()
    }

    /// There is an IPv6 half.
    pub(crate) const fn has_ipv6(&self) -> bool {
        self.ipv6
    }

    /// Position 0: the daemon's own sockets, once more, and a new one to send from, on the first
    /// free port from `port` on.
    pub(crate) fn own_sockets(&self, port: u16) -> io::Result<SlotSockets> {
        let own = self.members.first().ok_or(io::ErrorKind::NotFound)?;
        let send_v6 = match self.ipv6 {
            true => vec![free_send_socket(true, port)?],
            false => Vec::new(),
        };
        Ok(SlotSockets {
            send_v4: vec![free_send_socket(false, port)?],
            send_v6,
            ..own.sockets()?
        })
    }

    /// Position 0, for polling.
    pub(crate) fn own_fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let own = self.members.first().into_iter();
        own.flat_map(|m| [Some(m.v4.as_fd()), m.v6.as_ref().map(AsFd::as_fd)])
            .flatten()
    }

    /// Bytes of receive buffer that a socket has.
    pub(crate) fn rcvbuf_bytes(&self) -> u32 {
        let first = self.members.first();
        first
            .and_then(|m| receive_buffer_bytes(m.v4.as_fd()).ok())
            .unwrap_or(0)
    }

    /// Where `slot` is served.
    pub(crate) fn position(&self, slot: u16) -> Option<usize> {
        self.members.iter().position(|m| m.slot == slot)
    }

    /// Sockets for `slot` of a process of user `uid`; frames for it arrive there from now on.
    /// `chance` spreads the send ports.
    pub(crate) fn open(
        &mut self,
        slot: u16,
        uid: u32,
        chance: u32,
    ) -> Result<SlotFds<'_>, NoSockets> {
        let first = (chance & 0x3fff) as u16 | 0xc000;
        let send_v4 = send_sockets(false, first).map_err(NoSockets::Os)?;
        let send_v6 = if self.ipv6 {
            send_sockets(true, first).map_err(NoSockets::Os)?
        } else {
            Vec::new()
        };
        let idle = |m: &Member| m.slot == NOBODY && m.uid == Some(uid);
        let position = match self.members.iter().position(idle) {
            Some(position) => position,
            None if self.members.len() < self.positions_max => {
                self.add(NOBODY, Some(uid)).map_err(NoSockets::Os)?;
                self.members.len() - 1
            }
            None => return Err(NoSockets::Full),
        };
        self.drain(position);
        let mut rings = [None, None];
        if let Some(member) = self.members.get_mut(position) {
            member.drops_before = member.drops();
            if self.no_rings.is_none() {
                rings = member.attach_rings();
            }
        }
        self.serve(position, slot).map_err(NoSockets::Os)?;
        let Some(member) = self.members.get(position) else {
            return Err(NoSockets::Full);
        };
        Ok(SlotFds {
            v4: member.v4.as_fd(),
            v6: member.v6.as_ref().map(AsFd::as_fd),
            send_v4,
            send_v6,
            rings,
        })
    }

    /// Ends the service of `slot`: its frames go to position 0 from now on. `rest` gets its
    /// sockets, to read what may belong to others; what is left then is thrown away.
    pub(crate) fn close(&mut self, slot: u16, rest: impl FnOnce(SlotSockets)) -> Closing {
        let Some(position) = self.position(slot) else {
            return Closing::default();
        };
        if let Err(error) = self.serve(position, NOBODY) {
            crate::log::warn(&format!("slot {slot:#x} is still steered to: {error}"));
        }
        if let Some(member) = self.members.get(position) {
            member.detach_rings();
        }
        let overflown = self.overflown(position);
        if let Some(Ok(sockets)) = self.members.get(position).map(Member::sockets) {
            rest(sockets);
        }
        if let Some(member) = self.members.get_mut(position) {
            member.drop_rings();
        }
        Closing {
            overflown,
            unread: self.drain(position),
        }
    }

    /// Datagrams that the sockets of a position were too full for since it was opened.
    fn overflown(&self, position: usize) -> u64 {
        let member = self.members.get(position);
        let lost = member.map_or(0, |m| m.drops().wrapping_sub(m.drops_before));
        // A ring counts a packet a moment before the kernel does.
        if lost > u32::MAX / 2 {
            0
        } else {
            u64::from(lost)
        }
    }

    fn serve(&mut self, position: usize, slot: u16) -> io::Result<()> {
        if let Some(member) = self.members.get_mut(position) {
            member.slot = slot;
        }
        self.steer()
    }

    fn add(&mut self, slot: u16, uid: Option<u32>) -> io::Result<()> {
        let v4 = member_socket(false)?;
        let v6 = match self.ipv6 {
            true => Some(member_socket(true)?),
            false => None,
        };
        self.members.push(Member {
            v4,
            v6,
            slot,
            uid,
            drops_before: 0,
            rings: Rings::default(),
            taken_before: 0,
        });
        Ok(())
    }

    /// Tells the kernel which slot each position serves.
    fn steer(&self) -> io::Result<()> {
        let slots: Vec<u16> = self.members.iter().map(|m| m.slot).collect();
        let Some(own) = self.members.first() else {
            return Ok(());
        };
        attach_steering(own.v4.as_fd(), &slots)?;
        own.v6
            .as_ref()
            .map_or(Ok(()), |v6| attach_steering(v6.as_fd(), &slots))
    }

    fn drain(&self, position: usize) -> u64 {
        let member = self.members.get(position);
        let fds = member
            .into_iter()
            .flat_map(|m| [Some(&m.v4), m.v6.as_ref()])
            .flatten();
        fds.map(drain).sum()
    }
}

/// A receive socket of the group. `ROCEBUD_RCVBUF` asks for another buffer than the largest, to see
/// how programs do with small ones.
fn member_socket(v6: bool) -> io::Result<OwnedFd> {
    let socket = receive_socket(v6, ROCE_PORT, true)?;
    if let Some(bytes) = rocebud_ctl::settings::receive_buffer().value {
        set_receive_buffer(socket.as_fd(), bytes)?;
    }
    Ok(socket)
}

fn drain(fd: &OwnedFd) -> u64 {
    use rustix::net::RecvFlags;
    let mut byte = [0; 1];
    let one = |_: &usize| rustix::net::recv(fd, &mut byte, RecvFlags::DONTWAIT).is_ok();
    (0..DRAIN_MAX).take_while(one).count() as u64
}

fn send_sockets(v6: bool, first: u16) -> io::Result<Vec<(u16, OwnedFd)>> {
    // Ports far apart: neighbours would often fall into the same receive queue of a peer.
    let step = 0x4000 / SEND_SOCKETS_PER_SLOT as u16;
    let ports = (0..SEND_SOCKETS_PER_SLOT as u16).map(|i| first.wrapping_add(i * step) | 0xc000);
    ports.map(|port| free_send_socket(v6, port)).collect()
}

fn why_no_rings(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => {
            "the daemon has no right to load BPF programs: run it as root".to_owned()
        }
        _ => format!("the kernel refuses them ({error})"),
    }
}

fn lacks_ipv6(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EAFNOSUPPORT | libc::EADDRNOTAVAIL | libc::EPERM | libc::EACCES)
    )
}
