//! Clients that say anything, to a real daemon.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rocebud_ctl::channel::{recv, send, wait_readable};
use rocebud_ctl::forward::{Bundle, HEADER_BYTES, Header};
use rocebud_ctl::limits::MESSAGE_BYTES_MAX;
use rocebud_ctl::messages::{self, Answer, Hello, Request, Role, VERSION};
use rocebud_ctl::{Client, PeerHint, control_socket};
use rocebud_wire::Gid;

use crate::input::Input;

/// Connections of one input.
const CONNECTIONS_MAX: usize = 4;
/// Things said in one input.
const ACTS_MAX: usize = 64;
/// Descriptors that daemon and clients together may have open: those of every position in the
/// daemon's group, and some more.
const FDS_MAX: usize = 1_400;

/// A client, and the ends that it was given.
struct Liar {
    socket: OwnedFd,
    given: Vec<OwnedFd>,
}

pub(super) fn play(data: &[u8]) {
    let name = crate::place::daemon();
    let mut input = Input::new(data);
    let mut liars: Vec<Liar> = Vec::new();
    for _ in 0..ACTS_MAX {
        if input.is_empty() {
            break;
        }
        if liars.is_empty() {
            liars.push(connect());
        }
        let at = input.below(liars.len());
        match input.below(16) {
            0 | 1 if liars.len() < CONNECTIONS_MAX => liars.push(connect()),
            2 => drop(liars.remove(at)),
            3..=5 => say(&liars[at], &hello(&mut input), 0),
            6..=9 => {
                let request = request(&mut input);
                say(&liars[at], &request, usize::from(input.rarely(20)));
            }
            10 => {
                let bytes: Vec<u8> = (0..input.below(40)).map(|_| input.byte()).collect();
                let many = input.rarely(10);
                let bytes = if many { bytes.repeat(20) } else { bytes };
                say(&liars[at], &bytes, input.below(3));
            }
            11..=13 => hear(&mut liars[at]),
            14 => hand_on(&mut input, &liars[at]),
            _ => {
                let given = &mut liars[at].given;
                if !given.is_empty() {
                    given.swap_remove(input.below(given.len()));
                }
            }
        }
    }
    drop(liars);
    // A client that behaves is served as before.
    let client = Client::connect(name, Role::Command).expect("the daemon serves others");
    let report = client.status().expect("the daemon answers others");
    assert!(report.slots.len() < 4096);
    let open = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    assert!(open < FDS_MAX, "{open} descriptors are open");
}

fn connect() -> Liar {
    let socket = control_socket().expect("a socket");
    let address = crate::place::daemon().address().expect("an address");
    rustix::net::connect(&socket, &address).expect("connect");
    Liar {
        socket,
        given: Vec::new(),
    }
}

fn say(liar: &Liar, bytes: &[u8], fds: usize) {
    let null = std::fs::File::open("/dev/null").expect("/dev/null");
    let fds: Vec<BorrowedFd<'_>> = vec![null.as_fd(); fds];
    // The daemon may have closed, or not read: both are its right.
    let _ = send(&liar.socket, bytes, &fds);
}

fn hello(input: &mut Input<'_>) -> Vec<u8> {
    let shape = input.byte();
    let hello = Hello {
        version: VERSION.wrapping_add(u32::from(shape == 1)),
        role: if shape & 2 == 0 {
            Role::Library
        } else {
            Role::Command
        },
    };
    let mut bytes = hello.encode().to_vec();
    if shape >= 0xf0 {
        let at = input.below(bytes.len());
        bytes[at] ^= input.byte();
    }
    bytes
}

fn request(input: &mut Input<'_>) -> Vec<u8> {
    let request = match input.below(8) {
        0 => Request::Devices,
        1 | 2 => Request::TakeSlot,
        3 => Request::PageSet,
        4 => Request::Status,
        5 => Request::Ledger,
        6 => Request::Peer(peer(input)),
        _ => Request::PagesOf {
            key: u64::from(input.byte()),
        },
    };
    messages::encode(&request).expect("a request")
}

/// A host to be asked, mostly one that there is.
fn peer(input: &mut Input<'_>) -> PeerHint {
    let mut address = || {
        let mut bytes = Gid::from_ip([127, 0, 0, 1].into()).0;
        if input.rarely(100) {
            bytes.fill_with(|| input.byte());
        }
        bytes[15] ^= input.byte() & 3;
        bytes
    };
    PeerHint {
        local: address(),
        remote: address(),
        ifindex: u32::from(input.byte()),
        doubt: input.rarely(128),
    }
}

/// Takes an answer, if one comes soon.
fn hear(liar: &mut Liar) {
    let soon = Instant::now() + Duration::from_millis(1);
    if !wait_readable(&liar.socket, soon) {
        return;
    }
    let mut buf = vec![0; MESSAGE_BYTES_MAX];
    let Ok(got) = recv(&liar.socket, &mut buf) else {
        return;
    };
    if let Ok(Answer::Slot { slot, .. }) = messages::decode(&buf[..got.bytes]) {
        assert!(slot != 0 && slot < 0xfff, "slot {slot:#x}");
        assert!(got.fds.len() >= 3, "a slot has sockets");
    }
    liar.given.extend(got.fds);
    liar.given.truncate(40);
}

/// A frame for some queue pair, into everything that was given.
fn hand_on(input: &mut Input<'_>, liar: &Liar) {
    let header = Header {
        src: ([127, 0, 0, 1], 4791).into(),
        dst: [127, 0, 0, 1].into(),
        ifindex: 1,
        traffic_class: 0,
        hop_limit: 1,
        batch_len: 1,
    };
    let position = input.half();
    let frame: Vec<u8> = (0..input.below(64)).map(|_| input.byte()).collect();
    let bundle = Bundle::new(0, &header, position, &frame).expect("it is short");
    let mut bytes = bundle.message().to_vec();
    if input.rarely(60) {
        bytes.truncate(input.below(HEADER_BYTES));
    }
    for fd in &liar.given {
        let _ = send(fd, &bytes, &[]);
    }
}
