//! A daemon that answers anything, to the library's end of the socket.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use rocebud_ctl::messages::{self, Answer, Refusal, Role, VERSION, Welcome};
use rocebud_ctl::{Client, CtlError, ErrorKind, PageSet, PeerHint, SocketName, control_socket};
use rustix::net::SocketFlags;

use crate::input::Input;

/// How long a script may stay silent: shorter than any patience of the library's.
const PATIENCE: Duration = Duration::from_secs(1);
/// Answers in a script.
const ANSWERS_MAX: usize = 12;

/// What the liar sends for each thing he hears, and how many descriptors with it.
struct Line {
    bytes: Vec<u8>,
    fds: usize,
    pages: bool,
}

struct Liar {
    name: SocketName,
    scripts: Sender<Vec<Line>>,
    done: std::sync::Mutex<Receiver<()>>,
}

static LIAR: OnceLock<Liar> = OnceLock::new();

pub(super) fn play(data: &[u8]) {
    let mut input = Input::new(data);
    let calls = input.byte();
    let mut script = vec![greeting(&mut input)];
    while !input.is_empty() && script.len() < ANSWERS_MAX {
        script.push(line(&mut input));
    }
    let liar = LIAR.get_or_init(start);
    liar.scripts.send(script).expect("the liar lives");
    if let Ok(client) = Client::connect(&liar.name, Role::Library) {
        use_client(&client, calls);
    }
    let done = liar.done.lock().expect("not poisoned");
    done.recv().expect("the liar lives");
}

fn use_client(client: &Client, calls: u8) {
    let started = Instant::now();
    let _ = (
        client.fd(),
        client.netns(),
        client.daemon_pid(),
        client.raw_fds(),
    );
    let hint = PeerHint {
        ifindex: 0,
        local: [calls; 16],
        remote: [calls; 16],
        doubt: false,
    };
    let _ = client.herald().say(hint);
    for n in 0..6 {
        match calls.wrapping_add(n * 7) % 6 {
            0 => drop(client.devices()),
            1 => drop(client.take_slot()),
            2 => drop(client.page_set()),
            3 => drop(client.status()),
            4 => drop(client.pages_of(n.into())),
            _ => drop(client.poll_notices()),
        }
    }
    assert!(
        started.elapsed() < PATIENCE * 4,
        "the library hangs at a daemon that closes"
    );
}

/// Mostly a welcome, so that more can be said.
fn greeting(input: &mut Input<'_>) -> Line {
    let shape = input.byte();
    let welcome = Welcome {
        version: VERSION + u32::from(shape == 1),
        accepted: shape != 2,
        reason: if shape == 2 {
            Refusal::User
        } else {
            Refusal::None
        },
        netns: 0,
        pid: 1,
    };
    let mut bytes = welcome.encode().to_vec();
    if shape >= 0xf0 {
        bytes.truncate(input.below(41));
    }
    Line {
        bytes,
        fds: usize::from(shape & 7 != 7),
        pages: false,
    }
}

fn line(input: &mut Input<'_>) -> Line {
    let shape = input.byte();
    let answer = match shape & 7 {
        0 => return raw(input),
        1 => Answer::Pages,
        2 => Answer::Refused(CtlError::new(ErrorKind::Limit, "no\nmore")),
        3 => Answer::Status(Box::default()),
        4..=6 => Answer::Slot {
            slot: input.half(),
            v6: shape & 8 != 0,
            send_v4: (0..input.below(6)).map(|n| n as u16).collect(),
            send_v6: (0..input.below(6)).map(|n| n as u16).collect(),
            rcvbuf_bytes: input.word(),
            rings: [shape & 16 != 0, shape & 32 != 0],
        },
        _ => return raw(input),
    };
    let mut bytes = messages::encode(&answer).expect("an answer");
    if shape & 0x80 != 0 && !bytes.is_empty() {
        let at = input.below(bytes.len().min(256));
        bytes[at] ^= input.byte();
    }
    Line {
        bytes,
        fds: usize::from(shape >> 4 & 7) * 3,
        pages: shape & 0x40 != 0,
    }
}

fn raw(input: &mut Input<'_>) -> Line {
    let bytes = (0..input.below(200)).map(|_| input.byte()).collect();
    Line {
        bytes,
        fds: input.below(3),
        pages: false,
    }
}

fn start() -> Liar {
    let name = SocketName::Abstract(format!("rocebud-liar-{}", std::process::id()));
    let socket = control_socket().expect("a socket");
    let address = name.address().expect("an address");
    rustix::net::bind(&socket, &address).expect("bind");
    rustix::net::listen(&socket, 8).expect("listen");
    let (scripts, to_play) = channel::<Vec<Line>>();
    let (say, done) = channel();
    std::thread::spawn(move || {
        for script in to_play {
            lie(&socket, script);
            if say.send(()).is_err() {
                return;
            }
        }
    });
    Liar {
        name,
        scripts,
        done: std::sync::Mutex::new(done),
    }
}

/// Plays a script to whoever connects, then closes.
fn lie(listener: &OwnedFd, script: Vec<Line>) {
    let deadline = Instant::now() + PATIENCE;
    if !rocebud_ctl::channel::wait_readable(listener, deadline) {
        return;
    }
    let Ok(socket) = rustix::net::accept_with(listener, SocketFlags::CLOEXEC) else {
        return;
    };
    let null = std::fs::File::open("/dev/null").expect("/dev/null");
    let pages = PageSet::create().expect("memory").1;
    let mut buf = [0; 512];
    for line in script {
        let deadline = Instant::now() + PATIENCE;
        if !rocebud_ctl::channel::wait_readable(&socket, deadline) {
            return;
        }
        match rocebud_ctl::channel::recv(&socket, &mut buf) {
            Ok(got) if got.bytes > 0 => {}
            _ => return,
        }
        let one: BorrowedFd<'_> = if line.pages {
            pages.as_fd()
        } else {
            null.as_fd()
        };
        let fds = vec![one; line.fds];
        if rocebud_ctl::channel::send(&socket, &line.bytes, &fds).is_err() {
            return;
        }
    }
}
