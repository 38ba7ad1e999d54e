//! The client's end of the control socket.

use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::channel::{self, Received};
use crate::cm::{CmAnswer, CmRequest};
use crate::error::{CtlError, ErrorKind, too_many_files};
use crate::fds;
use crate::limits::{ANSWER_WAIT, BUSY_WAIT, CM_ANSWER_BYTES_MAX, MESSAGE_BYTES_MAX};
use crate::messages::{self, Announcement, Answer, Hello, Refusal, Request, Role, Welcome};
use crate::start::{SocketName, Unreachable, serves_us};
use crate::status::StatusReport;
use crate::{DeviceInfo, DeviceList, Herald, Ledger, PageSet, PeerNews};

/// A connection to the daemon. Requests from several threads take turns.
#[derive(Debug)]
pub struct Client {
    /// Whoever asks holds `turn`; who wants no answer needs none.
    socket: Arc<OwnedFd>,
    turn: Mutex<()>,
    notices: OwnedFd,
    closed: AtomicBool,
    pages: OnceLock<Arc<PageSet>>,
    netns: u64,
    daemon_pid: u32,
    remarks: Vec<String>,
}

/// What the daemon said unasked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Notice {
    /// All devices, after some change.
    Devices(DeviceList),
    /// What a host said that this process named.
    Peer(PeerNews),
    /// The daemon went away. Close the sockets of your slots at once: a stale holder of port 4791
    /// would shift the group of the next daemon.
    Closed,
}

/// A slot: 4096 QPNs (`slot << 12 ..`) and the sockets for them.
#[derive(Debug)]
pub struct SlotGrant {
    /// Upper 12 bits of its QPNs; never 0 or 0xfff.
    pub slot: u16,
    /// Receives IPv4 on port 4791.
    pub recv_v4: OwnedFd,
    /// Receives IPv6; missing where the system has none.
    pub recv_v6: Option<OwnedFd>,
    /// Send IPv4, with the source port of each.
    pub send_v4: Vec<(u16, OwnedFd)>,
    /// Send IPv6, with the source port of each.
    pub send_v6: Vec<(u16, OwnedFd)>,
    /// Receive buffer of a receive socket, bytes of kernel memory.
    pub rcvbuf_bytes: u32,
    /// Records and words of the rings beside the IPv4 and the IPv6 receive socket, where the daemon
    /// may make such.
    pub rings: [Option<[OwnedFd; 2]>; 2],
    /// Frames that arrived elsewhere come in here, and frames of other slots go out here; see
    /// [`crate::forward`]. Non-blocking.
    pub forward: OwnedFd,
}

impl Client {
    /// Exchanges greetings on a connected socket, until `deadline`; with a daemon that has too much to
    /// do until `last`.
    pub(crate) fn greet(
        socket: OwnedFd,
        role: Role,
        name: &SocketName,
        deadline: Instant,
        last: Instant,
    ) -> Result<Self, Unreachable> {
        let hello = Hello {
            version: messages::VERSION,
            role,
        };
        if channel::send(&socket, &hello.encode(), &[]).is_err() {
            return Err(Unreachable::Closed);
        }
        let mut buf = [0; 256];
        let busy = || peer_is_busy(&socket);
        let got = match receive_from_busy(&socket, &mut buf, deadline, last, busy) {
            Ok(got) => got,
            Err(Errno::TIMEDOUT) => return Err(silent(name, Some(&socket))),
            Err(_) => return Err(Unreachable::Closed),
        };
        if got.bytes == 0 {
            return Err(Unreachable::Closed);
        }
        let welcome = Welcome::decode(&buf[..got.bytes.min(buf.len())])
            .ok_or_else(|| Unreachable::Refused(not_ours(name)))?;
        let notices = got.fds.into_iter().next();
        match (welcome.accepted, notices) {
            (true, Some(notices)) => Ok(Self {
                socket: Arc::new(socket),
                turn: Mutex::default(),
                notices,
                closed: AtomicBool::new(false),
                pages: OnceLock::new(),
                netns: welcome.netns,
                daemon_pid: welcome.pid,
                remarks: Vec::new(),
            }),
            (true, None) => Err(Unreachable::Refused(too_few_fds())),
            // A system's daemon that serves another network namespace is none of ours.
            (false, _)
                if name.is_system()
                    && !serves_us(welcome.netns).map_err(Unreachable::Refused)? =>
            {
                Err(Unreachable::Absent)
            }
            (false, _) => Err(Unreachable::Refused(turned_away(&welcome, name))),
        }
    }

    /// A descriptor that becomes readable when [`Client::poll_notices`] has something to say. Only
    /// for polling.
    #[must_use]
    pub fn fd(&self) -> RawFd {
        self.notices.as_raw_fd()
    }

    /// Network namespace of the daemon; see [`crate::fds::netns_id`].
    #[must_use]
    pub const fn netns(&self) -> u64 {
        self.netns
    }

    /// Process of the daemon, as itself sees it.
    #[must_use]
    pub const fn daemon_pid(&self) -> u32 {
        self.daemon_pid
    }

    /// The daemon was started for this connection and had this to say.
    pub(crate) fn started_with(self, remarks: Vec<String>) -> Self {
        Self { remarks, ..self }
    }

    /// What the user must know of the daemon that was started for this connection, as sentences.
    #[must_use]
    pub fn remarks(&self) -> &[String] {
        &self.remarks
    }

    /// Descriptors that a forked child has inherited and should close (by number, without
    /// touching this object: its lock may be held by a thread that the child does not have).
    #[must_use]
    pub fn raw_fds(&self) -> [RawFd; 2] {
        [self.socket.as_raw_fd(), self.notices.as_raw_fd()]
    }

    /// All devices, in the order in which verbs lists them.
    pub fn devices(&self) -> Result<Vec<DeviceInfo>, CtlError> {
        self.device_list().map(|list| list.devices)
    }

    /// All devices, and which of several lists is the newest.
    pub fn device_list(&self) -> Result<DeviceList, CtlError> {
        match self.ask(&Request::Devices)? {
            (Answer::Devices(list), _) => Ok(list),
            _ => Err(self.out_of_step()),
        }
    }

    /// A slot more for this process. The first call gives the first slot.
    ///
    /// Errors: [`ErrorKind::Limit`] when this process or the daemon has no more;
    /// [`ErrorKind::Descriptors`] when this process has no room for its sockets (nothing is lost
    /// then: ask again).
    pub fn take_slot(&self) -> Result<SlotGrant, CtlError> {
        let (answer, fds) = self.ask(&Request::TakeSlot)?;
        let Answer::Slot {
            slot,
            v6,
            send_v4,
            send_v6,
            rcvbuf_bytes,
            rings,
        } = answer
        else {
            return Err(self.out_of_step());
        };
        let mut fds = fds.into_iter();
        let mut grant = || -> Option<SlotGrant> {
            let recv_v4 = fds.next()?;
            let forward = fds.next()?;
            let recv_v6 = if v6 { Some(fds.next()?) } else { None };
            let mut ports = |ports: &[u16]| -> Option<Vec<(u16, OwnedFd)>> {
                ports
                    .iter()
                    .map(|port| Some((*port, fds.next()?)))
                    .collect()
            };
            let (send_v4, send_v6) = (ports(&send_v4)?, ports(&send_v6)?);
            let mut ring = |there: bool| match there {
                true => Some(Some([fds.next()?, fds.next()?])),
                false => Some(None),
            };
            Some(SlotGrant {
                slot,
                recv_v4,
                recv_v6,
                send_v4,
                send_v6,
                rcvbuf_bytes,
                rings: [ring(rings[0])?, ring(rings[1])?],
                forward,
            })
        };
        grant().ok_or_else(too_few_fds)
    }

    /// The shared page-set of this process, made at the first call.
    pub fn page_set(&self) -> Result<Arc<PageSet>, CtlError> {
        if let Some(pages) = self.pages.get() {
            return Ok(Arc::clone(pages));
        }
        let pages = Arc::new(self.map_pages(&Request::PageSet)?);
        Ok(Arc::clone(self.pages.get_or_init(|| pages)))
    }

    /// What is on its way to each process of this user; see [`Ledger`].
    pub fn ledger(&self) -> Result<Ledger, CtlError> {
        let (answer, fds) = self.ask(&Request::Ledger)?;
        if answer != Answer::Pages {
            return Err(self.out_of_step());
        }
        let fd = fds.into_iter().next().ok_or_else(too_few_fds)?;
        Ledger::map(&fd).map_err(|e| CtlError::os("mapping the ledger", e))
    }

    /// What the daemon knows about itself and everybody.
    pub fn status(&self) -> Result<StatusReport, CtlError> {
        match self.ask(&Request::Status)? {
            (Answer::Status(report), _) => Ok(*report),
            _ => Err(self.out_of_step()),
        }
    }

    /// The page-set of the process `key` of a status report, living or dead.
    pub fn pages_of(&self, key: u64) -> Result<PageSet, CtlError> {
        self.map_pages(&Request::PagesOf { key })
    }

    /// A request about connections; a descriptor comes with a new channel.
    ///
    /// Errors: those of talking with the daemon. What it refuses is an answer.
    pub fn cm(&self, request: CmRequest) -> Result<(CmAnswer, Option<OwnedFd>), CtlError> {
        match self.ask(&Request::Cm(request))? {
            (Answer::Cm(answer), fds) => Ok((answer, fds.into_iter().next())),
            _ => Err(self.out_of_step()),
        }
    }

    /// For what needs no answer.
    #[must_use]
    pub fn herald(&self) -> Herald {
        Herald(Arc::clone(&self.socket))
    }

    /// What the daemon has said since the last call. Never waits. After [`Notice::Closed`] nothing
    /// more comes.
    pub fn poll_notices(&self) -> Vec<Notice> {
        let mut said = Vec::new();
        if self.closed.load(Ordering::Relaxed) {
            return said;
        }
        let mut buf = vec![0; MESSAGE_BYTES_MAX];
        loop {
            match channel::recv(&self.notices, &mut buf) {
                Ok(got) if got.bytes == 0 => break,
                Ok(got) if got.truncated => {}
                Ok(got) => match messages::decode(&buf[..got.bytes]) {
                    Ok(Announcement::Devices(list)) => said.push(Notice::Devices(list)),
                    Ok(Announcement::Peer(news)) => said.push(Notice::Peer(news)),
                    Err(_) => break,
                },
                Err(Errno::AGAIN) => return said,
                Err(_) => break,
            }
        }
        self.closed.store(true, Ordering::Relaxed);
        said.push(Notice::Closed);
        said
    }

    fn map_pages(&self, request: &Request) -> Result<PageSet, CtlError> {
        let (answer, fds) = self.ask(request)?;
        if answer != Answer::Pages {
            return Err(self.out_of_step());
        }
        let fd = fds.into_iter().next().ok_or_else(too_few_fds)?;
        let pages = PageSet::map(&fd).map_err(|e| CtlError::os("mapping the page-set", e))?;
        if pages.is_valid() {
            Ok(pages)
        } else {
            Err(self.out_of_step())
        }
    }

    fn ask(&self, request: &Request) -> Result<(Answer, Vec<OwnedFd>), CtlError> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let (answer, got) = self.exchange(request)?;
        if !got.truncated {
            return Ok((answer, got.fds));
        }
        // What arrived of it goes, and the daemon is told that nobody has the slot or channel.
        drop(got.fds);
        let back = match answer {
            Answer::Slot { slot, .. } => Some(Request::ReturnSlot { slot }),
            Answer::Cm(CmAnswer::Channel(channel)) => {
                Some(Request::Cm(CmRequest::CloseChannel { channel }))
            }
            _ => None,
        };
        if let Some(back) = back {
            self.exchange(&back)?;
        }
        Err(too_few_fds())
    }

    fn exchange(&self, request: &Request) -> Result<(Answer, Received), CtlError> {
        let socket = &*self.socket;
        let asked = Instant::now();
        let [deadline, last] = [ANSWER_WAIT, BUSY_WAIT].map(|wait| asked + wait);
        let bytes = messages::encode(request)?;
        channel::send(socket, &bytes, &[]).map_err(|_| CtlError::gone())?;
        let room = match request {
            Request::Cm(_) => CM_ANSWER_BYTES_MAX,
            _ => MESSAGE_BYTES_MAX,
        };
        let mut buf = vec![0; room];
        let busy = || peer_is_busy(socket);
        let got = match receive_from_busy(socket, &mut buf, deadline, last, busy) {
            Ok(got) => got,
            Err(Errno::TIMEDOUT) => {
                // A late answer must not be taken for the next one's.
                let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Both);
                return Err(CtlError::new(
                    ErrorKind::Gone,
                    format!(
                        "the rocebud daemon (process {}) did not answer within {} s: see what it \
                         is doing, or stop it",
                        self.daemon_pid,
                        asked.elapsed().as_secs()
                    ),
                ));
            }
            Err(_) => return Err(CtlError::gone()),
        };
        if got.bytes == 0 {
            return Err(CtlError::gone());
        }
        match messages::decode(&buf[..got.bytes.min(buf.len())])? {
            Answer::Refused(error) => Err(error),
            answer => Ok((answer, got)),
        }
    }

    fn out_of_step(&self) -> CtlError {
        CtlError::new(
            ErrorKind::Malformed,
            format!(
                "the rocebud daemon (process {}) gave an answer that belongs to another question: \
                 stop it, so that a fresh one starts",
                self.daemon_pid
            ),
        )
    }
}

fn receive(socket: impl AsFd, buf: &mut [u8], deadline: Instant) -> Result<Received, Errno> {
    loop {
        if !channel::wait_readable(&socket, deadline) {
            return Err(Errno::TIMEDOUT);
        }
        match channel::recv(&socket, buf) {
            Err(Errno::AGAIN) => std::thread::sleep(Duration::from_micros(100)),
            other => return other,
        }
    }
}

/// As [`receive`], on and on for as long as the other side `is_busy`, at most until `last`.
fn receive_from_busy(
    socket: impl AsFd,
    buf: &mut [u8],
    deadline: Instant,
    last: Instant,
    is_busy: impl Fn() -> bool,
) -> Result<Received, Errno> {
    let mut until = deadline;
    loop {
        match receive(&socket, buf, until) {
            Err(Errno::TIMEDOUT) if until < last && is_busy() => {
                until = last.min(Instant::now() + BUSY_LOOK);
            }
            other => return other,
        }
    }
}

/// From one look at a process that may be busy to the next.
const BUSY_LOOK: Duration = Duration::from_millis(100);

fn peer_is_busy(socket: &OwnedFd) -> bool {
    fds::peer_ids(socket).is_ok_and(|ids| is_busy(ids.pid))
}

/// The process has work: it runs, waits for a processor, or for a disk. One that is stopped or sleeps
/// although somebody knocked is not busy, and of one that cannot be seen it is not known.
fn is_busy(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The state is behind the name, which may have spaces and parentheses in it.
    let state = stat.rsplit_once(") ").map(|(_, rest)| rest.as_bytes());
    matches!(state, Some([b'R' | b'D', ..]))
}

fn too_few_fds() -> CtlError {
    CtlError::new(
        ErrorKind::Descriptors,
        format!(
            "the daemon's descriptors could not all be received: {}",
            too_many_files()
        ),
    )
}

/// Whoever listens at `name` does not accept, or does not greet; `socket` if it is connected.
pub(crate) fn silent(name: &SocketName, socket: Option<&OwnedFd>) -> Unreachable {
    let ids = socket.and_then(|socket| fds::peer_ids(socket).ok());
    let who = ids.map_or_else(String::new, |ids| {
        format!(" (process {}, user {})", ids.pid, ids.uid)
    });
    Unreachable::Silent(CtlError::new(
        ErrorKind::NoDaemon,
        format!(
            "whoever listens at {name}{who} does not answer: let it go on (kill -CONT) or stop it, \
             so that a fresh daemon can start"
        ),
    ))
}

fn not_ours(name: &SocketName) -> CtlError {
    CtlError::new(
        ErrorKind::Malformed,
        format!("whoever listens at {name} is no rocebud daemon"),
    )
}

fn turned_away(welcome: &Welcome, name: &SocketName) -> CtlError {
    let pid = welcome.pid;
    match welcome.reason {
        Refusal::Version => CtlError::new(
            ErrorKind::Version,
            format!(
                "the daemon at {name} (process {pid}) speaks version {} of the protocol, this \
                 program {}: stop the daemon, so that a matching one starts",
                welcome.version,
                messages::VERSION
            ),
        ),
        Refusal::TooManyClients => CtlError::new(
            ErrorKind::Limit,
            format!("the daemon at {name} (process {pid}) serves as many processes as it can"),
        ),
        Refusal::User | Refusal::None => CtlError::new(
            ErrorKind::Denied,
            format!(
                "the daemon at {name} (process {pid}) serves its own user only: run `rocebud \
                 daemon` as root to serve all users"
            ),
        ),
    }
}

#[cfg(test)]
mod tests;
