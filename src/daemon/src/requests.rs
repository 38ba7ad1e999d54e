//! Requests: check, apply, answer.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rocebud_ctl::cm::CmRequest;
use rocebud_ctl::forward::Outbox;
use rocebud_ctl::limits::{REQUEST_BYTES_MAX, SLOTS_PER_PROCESS_MAX};
use rocebud_ctl::messages::{self, Announcement, Answer, Hello, Refusal, Request, Role, Welcome};
use rocebud_ctl::status::{SlotStatus, StatusReport};
use rocebud_ctl::{CtlError, ErrorKind, PeerHint, PeerNews, channel};
use rustix::io::Errno;

use crate::clients::{ClientSlot, forwarding_pair, message_pair, millis};
use crate::cm::{Asker, World};
use crate::devices::SETTLE_MAX;
use crate::epoll::{Events, Token};
use crate::group::NoSockets;
use crate::limits::{CLIENTS_MAX, CLIENTS_PER_USER_MAX, REQUESTS_PER_TURN};
use crate::server::Server;
use crate::slots::{NoNumber, TIME_WAIT};

/// The client is to be dropped.
#[derive(Debug)]
pub(crate) struct DropClient;

impl Server {
    /// Reads what a client says, a few messages at a time.
    pub(crate) fn hear(&mut self, key: u64) -> Result<(), DropClient> {
        for _ in 0..REQUESTS_PER_TURN {
            let Some(client) = self.clients.get(&key) else {
                return Ok(());
            };
            let mut buf = [0; REQUEST_BYTES_MAX];
            let got = match channel::recv(&client.socket, &mut buf) {
                Ok(got) => got,
                Err(Errno::AGAIN) => return Ok(()),
                Err(_) => return Err(DropClient),
            };
            // Closed, or nothing that any version says. Descriptors are closed unseen.
            if got.bytes == 0 || got.truncated || !got.fds.is_empty() {
                return Err(DropClient);
            }
            let message = buf.get(..got.bytes).ok_or(DropClient)?;
            match client.role {
                None => self.greet(key, message)?,
                Some(_) => self.serve(key, message)?,
            }
        }
        Ok(())
    }

    fn greet(&mut self, key: u64, message: &[u8]) -> Result<(), DropClient> {
        let hello = Hello::decode(message).ok_or(DropClient)?;
        let refusal = self.refusal(key, &hello);
        let client = self.clients.get_mut(&key).ok_or(DropClient)?;
        let welcome = Welcome {
            version: messages::VERSION,
            accepted: refusal == Refusal::None,
            reason: refusal,
            netns: self.netns,
            pid: std::process::id(),
        };
        if refusal != Refusal::None {
            let _ = channel::send(&client.socket, &welcome.encode(), &[]);
            return Err(DropClient);
        }
        let (ours, theirs) = message_pair().map_err(|_| DropClient)?;
        channel::send(&client.socket, &welcome.encode(), &[theirs.as_fd()])
            .map_err(|_| DropClient)?;
        client.role = Some(hello.role);
        let notices = client.notices.insert(ours);
        if hello.role != Role::Library {
            return Ok(());
        }
        self.epoll
            .add(notices, Token::Notices(key), Events::NONE)
            .map_err(|_| DropClient)
    }

    /// Why a client is turned away.
    fn refusal(&self, key: u64, hello: &Hello) -> Refusal {
        let Some(client) = self.clients.get(&key) else {
            return Refusal::User;
        };
        let uid = client.ids.uid;
        let of_user = self.clients.values().filter(|c| c.ids.uid == uid).count();
        if hello.version != messages::VERSION {
            Refusal::Version
        } else if self.uid != 0 && uid != self.uid && uid != 0 {
            Refusal::User
        } else if self.clients.len() > CLIENTS_MAX || (uid != 0 && of_user > CLIENTS_PER_USER_MAX) {
            Refusal::TooManyClients
        } else {
            Refusal::None
        }
    }

    fn serve(&mut self, key: u64, message: &[u8]) -> Result<(), DropClient> {
        let request = match messages::decode(message) {
            Ok(request) => request,
            Err(error) => return self.refuse(key, error),
        };
        let outcome = match request {
            Request::Devices => return self.answer_devices(key),
            Request::TakeSlot => self.give_slot(key),
            Request::PageSet => self.give_pages(key),
            Request::Ledger => self.give_ledger(key),
            Request::Status => self.answer_status(key),
            Request::PagesOf { key: of } => self.show_pages(key, of),
            Request::ReturnSlot { slot } => self.take_back_slot(key, slot),
            Request::Cm(request) => self.serve_cm(key, request),
            Request::Peer(hint) => self.on_hint(key, &hint),
        };
        outcome.or_else(|refused| match refused {
            Refused::With(error) => self.refuse(key, error),
            Refused::Drop => Err(DropClient),
        })
    }

    fn answer_devices(&mut self, key: u64) -> Result<(), DropClient> {
        let now = self.now();
        let settled = self.refresh_at.is_none();
        let client = self.clients.get_mut(&key).ok_or(DropClient)?;
        client.wants_devices = Some(now + SETTLE_MAX);
        if settled {
            self.answer_waiting(key)
        } else {
            Ok(())
        }
    }

    /// Answers a client that waits for the device list.
    pub(crate) fn answer_waiting(&mut self, key: u64) -> Result<(), DropClient> {
        let client = self.clients.get_mut(&key).ok_or(DropClient)?;
        if client.wants_devices.take().is_none() {
            return Ok(());
        }
        let list = self.devices.numbered();
        self.answer(key, &Answer::Devices(list), &[])
            .map_err(|_| DropClient)
    }

    /// Sends a client the newest device list, now or when it can take it.
    pub(crate) fn announce(&mut self, key: u64) -> Result<(), DropClient> {
        let list = self.devices.numbered();
        let client = self.clients.get_mut(&key).ok_or(DropClient)?;
        let Some(notices) = client
            .notices
            .as_ref()
            .filter(|_| client.role == Some(Role::Library))
        else {
            return Ok(());
        };
        let taken = notify(notices, &Announcement::Devices(list))?;
        let behind = !(taken && tell_all(notices, &mut client.news)?);
        self.set_behind(key, behind)
    }

    /// Tells a client about a peer that it named, now or when it can take it.
    pub(crate) fn tell(&mut self, key: u64, news: PeerNews) {
        let Some(client) = self.clients.get_mut(&key) else {
            return;
        };
        client.news.insert(news.remote, news);
        let Some(notices) = client.notices.as_ref().filter(|_| !client.behind) else {
            return;
        };
        // One that has closed its end is dropped when that is heard of.
        if let Ok(taken) = tell_all(notices, &mut client.news) {
            let _ = self.set_behind(key, !taken);
        }
    }

    /// Waits for a client to take notices, or no more.
    fn set_behind(&mut self, key: u64, behind: bool) -> Result<(), DropClient> {
        let client = self.clients.get_mut(&key).ok_or(DropClient)?;
        if let Some(notices) = &client.notices
            && behind != client.behind
        {
            let events = if behind { Events::OUT } else { Events::NONE };
            self.epoll
                .modify(notices, Token::Notices(key), events)
                .map_err(|_| DropClient)?;
            client.behind = behind;
        }
        Ok(())
    }

    fn give_slot(&mut self, key: u64) -> Result<(), Refused> {
        let now = self.now();
        let client = self.clients.get_mut(&key).ok_or(Refused::Drop)?;
        if client.role != Some(Role::Library) || client.slots.len() >= SLOTS_PER_PROCESS_MAX {
            return Err(limit(format!(
                "this process has {} slots of queue pair numbers already, which is the most: use \
                 fewer queue pairs per process",
                client.slots.len()
            )));
        }
        let chance = random().map_err(|e| os("getting random numbers", e))?;
        let uid = client.ids.uid;
        let number = self.slots.take(key, uid, chance, now).map_err(|why| {
            limit(match why {
                NoNumber::All => {
                    "the daemon has no slot left: end some programs that use verbs".to_owned()
                }
                NoNumber::User => format!(
                    "user {uid} has as many slots as one user may: end some programs that use \
                     verbs, or wait {} s if many have just ended",
                    TIME_WAIT.as_secs()
                ),
            })
        })?;
        let outcome = self.send_slot(key, number, chance);
        if outcome.is_err() {
            self.nobodys(key, number);
        }
        outcome
    }

    /// A slot that was granted and that nobody has used.
    fn nobodys(&mut self, key: u64, number: u16) {
        if let Some(client) = self.clients.get(&key) {
            if let Some(pages) = &client.pages {
                pages.set.remove_slot(number);
            }
            self.ledgers.close(client.ids.uid, number);
        }
        self.slots.undo(number);
        self.group.close(number, drop);
    }

    fn send_slot(&mut self, key: u64, number: u16, chance: u32) -> Result<(), Refused> {
        let rcvbuf_bytes = self.group.rcvbuf_bytes();
        let client = self.clients.get_mut(&key).ok_or(Refused::Drop)?;
        let (ours, theirs) = forwarding_pair().map_err(|e| os("making a pair of sockets", e))?;
        let fds = match self
            .group
            .open(number, client.ids.uid, chance.rotate_left(16))
        {
            Ok(fds) => fds,
            Err(NoSockets::Full) => {
                return Err(limit(
                    "the daemon has no socket left for another process: end some programs that \
                     use verbs, or raise the daemon's limit of open files"
                        .to_owned(),
                ));
            }
            Err(NoSockets::Os(error)) => return Err(os("opening sockets for a slot", error)),
        };
        let ports = |list: &[(u16, OwnedFd)]| list.iter().map(|(port, _)| *port).collect();
        let answer = Answer::Slot {
            slot: number,
            v6: fds.v6.is_some(),
            send_v4: ports(&fds.send_v4),
            send_v6: ports(&fds.send_v6),
            rcvbuf_bytes,
            rings: fds.rings.each_ref().map(Option::is_some),
        };
        let mut list: Vec<BorrowedFd<'_>> = vec![fds.v4, theirs.as_fd()];
        list.extend(fds.v6);
        list.extend(
            fds.send_v4
                .iter()
                .chain(&fds.send_v6)
                .map(|(_, fd)| fd.as_fd()),
        );
        let rings = fds.rings.iter().flatten();
        list.extend(rings.flat_map(|ring| [ring.records.as_fd(), ring.control.as_fd()]));
        // The record must be there before the first queue pair is.
        if let Some(pages) = &client.pages {
            pages.set.add_slot(number);
        }
        self.ledgers.open(client.ids.uid, number, rcvbuf_bytes);
        let message = messages::encode(&answer).map_err(Refused::With)?;
        channel::send(&client.socket, &message, &list).map_err(|_| Refused::Drop)?;
        let index = client.slots.len();
        self.epoll
            .add(&ours, Token::Forward(key, index), Events::IN)
            .map_err(|e| os("watching a slot", e))?;
        client.slots.push(ClientSlot {
            number,
            forward: ours,
            outbox: Outbox::default(),
            blocked: false,
        });
        Ok(())
    }

    /// Undoes the last grant, which nobody has used.
    fn take_back_slot(&mut self, key: u64, number: u16) -> Result<(), Refused> {
        let client = self.clients.get_mut(&key).ok_or(Refused::Drop)?;
        // Positions of the others are in their tokens, so only the last can go.
        let Some(slot) = client.slots.pop_if(|last| last.number == number) else {
            return Err(Refused::Drop);
        };
        self.epoll.remove(&slot.forward);
        self.nobodys(key, number);
        self.answer(key, &Answer::Returned, &[])
    }

    fn give_pages(&mut self, key: u64) -> Result<(), Refused> {
        let client = self.clients.get_mut(&key).ok_or(Refused::Drop)?;
        let message = messages::encode(&Answer::Pages).map_err(Refused::With)?;
        let pages = client.pages().map_err(|e| os("making a page-set", e))?;
        let fd = pages
            .fd
            .try_clone()
            .map_err(|e| os("making a page-set", e))?;
        channel::send(&client.socket, &message, &[fd.as_fd()]).map_err(|_| Refused::Drop)
    }

    fn give_ledger(&mut self, key: u64) -> Result<(), Refused> {
        let client = self.clients.get(&key).ok_or(Refused::Drop)?;
        let file = self.ledgers.file(client.ids.uid);
        let file = file.map_err(|e| os("making a ledger", e))?;
        let message = messages::encode(&Answer::Pages).map_err(Refused::With)?;
        channel::send(&client.socket, &message, &[file]).map_err(|_| Refused::Drop)
    }

    fn show_pages(&mut self, key: u64, of: u64) -> Result<(), Refused> {
        let asker = self.clients.get(&key).ok_or(Refused::Drop)?;
        let living = self.clients.get(&of);
        let living = living.and_then(|c| Some((c.ids.uid, c.pages.as_ref()?.fd.as_fd())));
        let Some((uid, fd)) = living.or_else(|| self.graveyard.find(of)) else {
            return Err(Refused::With(CtlError::new(
                ErrorKind::Os,
                "that process is no longer known: ask for the status again",
            )));
        };
        if asker.ids.uid != 0 && asker.ids.uid != uid {
            return Err(Refused::With(CtlError::new(
                ErrorKind::Denied,
                format!("that process belongs to user {uid}: look as that user or as root"),
            )));
        }
        let message = messages::encode(&Answer::Pages).map_err(Refused::With)?;
        channel::send(&asker.socket, &message, &[fd]).map_err(|_| Refused::Drop)
    }

    fn answer_status(&mut self, key: u64) -> Result<(), Refused> {
        let report = self.report();
        self.answer(key, &Answer::Status(Box::new(report)), &[])
    }

    fn report(&self) -> StatusReport {
        let now = self.now();
        let slot = |(slot, owner, left): (u16, Option<u64>, _)| SlotStatus {
            slot,
            position: self
                .group
                .position(slot)
                .and_then(|p| u16::try_from(p).ok())
                .unwrap_or(0),
            owner,
            time_wait_ms: millis(left),
        };
        let living = self
            .clients
            .values()
            .filter(|c| c.is_library())
            .map(|c| c.status(now));
        let world = World {
            devices: self.devices.list(),
            picture: &self.picture,
            now,
        };
        let mut remarks = self.remarks.clone();
        remarks.extend(self.devices.remarks());
        if !self.group.has_ipv6() {
            remarks.push("IPv6 is not available here: IPv4 only".to_owned());
        }
        StatusReport {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            uid: self.uid,
            auto: self.auto,
            socket: self.name.to_string(),
            uptime_ms: millis(now),
            ipv6: self.group.has_ipv6(),
            rcvbuf_bytes: self.group.rcvbuf_bytes(),
            no_rings: self.group.no_rings().map(str::to_owned),
            slots: self.slots.list(now).map(slot).collect(),
            processes: living.chain(self.graveyard.statuses(now)).collect(),
            counters: self.slot0.counters(),
            connections: self.cm.status(&world),
            remarks,
        }
    }

    fn serve_cm(&mut self, key: u64, request: CmRequest) -> Result<(), Refused> {
        let client = self.clients.get(&key).ok_or(Refused::Drop)?;
        if client.role != Some(Role::Library) {
            return Err(Refused::Drop);
        }
        let asker = Asker {
            client: key,
            privileged: client.ids.uid == 0,
        };
        let world = World {
            devices: self.devices.list(),
            picture: &self.picture,
            now: self.started.elapsed(),
        };
        let (answer, socket) = self.cm.serve(asker, request, &world);
        self.run_cm();
        let fds: Vec<BorrowedFd<'_>> = socket.iter().map(AsFd::as_fd).collect();
        self.answer(key, &Answer::Cm(answer), &fds)
    }

    fn on_hint(&mut self, key: u64, hint: &PeerHint) -> Result<(), Refused> {
        let client = self.clients.get(&key).ok_or(Refused::Drop)?;
        if !client.is_library() {
            return Err(Refused::Drop);
        }
        let world = World {
            devices: self.devices.list(),
            picture: &self.picture,
            now: self.started.elapsed(),
        };
        self.cm.on_hint(key, hint, &world);
        self.run_cm();
        Ok(())
    }

    fn refuse(&mut self, key: u64, error: CtlError) -> Result<(), DropClient> {
        self.answer(key, &Answer::Refused(error), &[])
            .map_err(|_| DropClient)
    }

    fn answer(&self, key: u64, answer: &Answer, fds: &[BorrowedFd<'_>]) -> Result<(), Refused> {
        let client = self.clients.get(&key).ok_or(Refused::Drop)?;
        let message = messages::encode(answer).map_err(Refused::With)?;
        // One request is out at a time, so a client that cannot take its answer is not reading.
        channel::send(&client.socket, &message, fds).map_err(|_| Refused::Drop)
    }
}

/// Says something unasked. False: the client cannot take it now.
fn notify(notices: &OwnedFd, what: &Announcement) -> Result<bool, DropClient> {
    let message = messages::encode(what).map_err(|_| DropClient)?;
    match channel::send(notices, &message, &[]) {
        Ok(()) => Ok(true),
        Err(Errno::AGAIN) => Ok(false),
        Err(_) => Err(DropClient),
    }
}

/// Says all that is to be said of peers. False: some of it waits.
fn tell_all(
    notices: &OwnedFd,
    news: &mut BTreeMap<[u8; 16], PeerNews>,
) -> Result<bool, DropClient> {
    while let Some(first) = news.first_entry() {
        if !notify(notices, &Announcement::Peer(*first.get()))? {
            return Ok(false);
        }
        first.remove();
    }
    Ok(true)
}

/// Why a request has no proper answer.
#[derive(Debug)]
enum Refused {
    /// Tell the client.
    With(CtlError),
    /// It cannot be told.
    Drop,
}

fn limit(message: String) -> Refused {
    Refused::With(CtlError::new(ErrorKind::Limit, message))
}

fn os(what: &str, error: io::Error) -> Refused {
    let (kind, hint) = match error.raw_os_error() {
        Some(libc::EMFILE | libc::ENFILE) => (
            ErrorKind::Limit,
            ": it serves as many programs as its limit of open files allows, which it has from whoever \
             started it: end some, or start `rocebud daemon` where that is higher (`ulimit -Hn`)",
        ),
        _ => (ErrorKind::Os, ""),
    };
    Refused::With(CtlError::new(
        kind,
        format!("the daemon failed at {what}: {error}{hint}"),
    ))
}

fn random() -> io::Result<u32> {
    let mut bytes = [0; 4];
    getrandom::fill(&mut bytes).map_err(|error| io::Error::other(error.to_string()))?;
    Ok(u32::from_ne_bytes(bytes))
}
