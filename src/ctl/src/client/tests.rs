use super::*;
use crate::{ErrorKind, PeerHint};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::thread;

fn pair() -> (OwnedFd, OwnedFd) {
    let flags = SocketFlags::CLOEXEC;
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap()
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(5)
}

fn name() -> SocketName {
    SocketName::Abstract("test".into())
}

/// A client of a daemon that answers the greeting and then says `answers`, one per request.
fn client(answers: Vec<Vec<u8>>) -> (Client, thread::JoinHandle<OwnedFd>) {
    let (ours, theirs) = pair();
    let (notices, their_notices) = pair();
    let daemon = thread::spawn(move || {
        let deadline = Instant::now() + Duration::from_secs(5);
        let mut buf = [0; 512];
        receive(&theirs, &mut buf, deadline).unwrap();
        let welcome = Welcome {
            version: messages::VERSION,
            accepted: true,
            reason: Refusal::None,
            netns: 5,
            pid: 6,
        };
        channel::send(&theirs, &welcome.encode(), &[their_notices.as_fd()]).unwrap();
        for answer in answers {
            receive(&theirs, &mut buf, deadline).unwrap();
            channel::send(&theirs, &answer, &[]).unwrap();
        }
        notices
    });
    let client = Client::greet(ours, Role::Library, &name(), soon(), soon()).unwrap();
    (client, daemon)
}

#[test]
fn greeting_tells_namespace_and_process() {
    let (client, daemon) = client(Vec::new());
    assert_eq!((client.netns(), client.daemon_pid()), (5, 6));
    drop(daemon.join().unwrap());
}

#[test]
fn answers_that_do_not_fit_or_are_nonsense_are_errors() {
    let other = messages::encode(&Answer::Pages).unwrap();
    let no_fds = messages::encode(&Answer::Slot {
        slot: 1,
        v6: true,
        send_v4: vec![49_152],
        send_v6: vec![],
        rcvbuf_bytes: 1,
        rings: [false, false],
    })
    .unwrap();
    let (client, daemon) = client(vec![other, vec![0xff; 40], no_fds]);
    assert_eq!(client.devices().unwrap_err().kind, ErrorKind::Malformed);
    assert_eq!(client.devices().unwrap_err().kind, ErrorKind::Malformed);
    assert_eq!(client.take_slot().unwrap_err().kind, ErrorKind::Descriptors);
    let _notices = daemon.join().unwrap();
    assert_eq!(client.devices().unwrap_err().kind, ErrorKind::Gone);
}

#[test]
fn a_refusal_is_handed_on_word_for_word() {
    let error = CtlError::new(ErrorKind::Limit, "no more: end something");
    let answer = messages::encode(&Answer::Refused(error.clone())).unwrap();
    let (client, daemon) = client(vec![answer]);
    assert_eq!(client.take_slot().unwrap_err(), error);
    drop(daemon.join().unwrap());
}

/// What needs no answer is said while another thread waits for one, and answers stay with their
/// questions.
#[test]
fn a_hint_waits_for_nobody() {
    let (client, daemon) = client(vec![messages::encode(&Answer::Returned).unwrap()]);
    let hint = PeerHint {
        ifindex: 1,
        local: [1; 16],
        remote: [2; 16],
        doubt: false,
    };
    let _turn = client.turn.lock().unwrap();
    assert!(client.herald().say(hint));
    let notices = daemon.join().unwrap();
    assert!(!client.herald().say(hint), "the daemon has closed");
    let news = PeerNews {
        remote: [2; 16],
        word: None,
    };
    let said = messages::encode(&Announcement::Peer(news)).unwrap();
    channel::send(&notices, &said, &[]).unwrap();
    assert_eq!(client.poll_notices(), [Notice::Peer(news)]);
}

/// A daemon that does not read holds nobody up.
#[test]
fn a_hint_to_a_busy_daemon_is_given_up_at_once() {
    let (ours, _theirs) = pair();
    let herald = Herald(Arc::new(ours));
    let hint = PeerHint {
        ifindex: 1,
        local: [1; 16],
        remote: [2; 16],
        doubt: false,
    };
    assert!((0..1_000_000).any(|_| !herald.say(hint)));
}

#[test]
fn notices_come_in_order_and_end_with_closed_once() {
    let (client, daemon) = client(Vec::new());
    assert_eq!(client.poll_notices(), []);
    let notices = daemon.join().unwrap();
    let said = messages::encode(&Announcement::Devices(DeviceList::default())).unwrap();
    channel::send(&notices, &said, &[]).unwrap();
    assert_eq!(
        client.poll_notices(),
        [Notice::Devices(DeviceList::default())]
    );
    drop(notices);
    assert_eq!(client.poll_notices(), [Notice::Closed]);
    assert_eq!(client.poll_notices(), []);
}

#[test]
fn another_version_and_a_stranger_are_told_apart() {
    for (reason, kind) in [
        (Refusal::Version, ErrorKind::Version),
        (Refusal::User, ErrorKind::Denied),
        (Refusal::TooManyClients, ErrorKind::Limit),
    ] {
        let (ours, theirs) = pair();
        let welcome = Welcome {
            version: 99,
            accepted: false,
            reason,
            netns: 0,
            pid: 6,
        };
        channel::send(&theirs, &welcome.encode(), &[]).unwrap();
        match Client::greet(ours, Role::Library, &name(), soon(), soon()) {
            Err(Unreachable::Refused(error)) => assert_eq!(error.kind, kind),
            other => panic!("{other:?}"),
        }
    }
    let (ours, theirs) = pair();
    channel::send(&theirs, b"HTTP/1.1 400", &[]).unwrap();
    match Client::greet(ours, Role::Library, &name(), soon(), soon()) {
        Err(Unreachable::Refused(error)) => assert!(error.message.contains("no rocebud daemon")),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_daemon_that_closes_in_greeting_is_one_that_leaves() {
    let (ours, theirs) = pair();
    drop(theirs);
    let outcome = Client::greet(ours, Role::Library, &name(), soon(), soon());
    assert!(matches!(outcome, Err(Unreachable::Closed)), "{outcome:?}");
}

#[test]
fn a_listener_that_never_greets_is_named_in_bounded_time() {
    let (ours, theirs) = pair();
    let deadline = Instant::now() + Duration::from_millis(50);
    let outcome = Client::greet(ours, Role::Library, &name(), deadline, deadline);
    let Err(Unreachable::Silent(error)) = outcome else {
        panic!("{outcome:?}");
    };
    let me = format!("(process {}, user", std::process::id());
    assert!(error.message.contains(&me), "{error}");
    assert!(deadline.elapsed() < Duration::from_secs(5));
    drop(theirs);
}

#[test]
fn a_daemon_that_has_no_processor_is_waited_for() {
    let (ours, theirs) = pair();
    let (looks, mut buf) = (std::cell::Cell::new(0), [0; 16]);
    let greets_at_the_third_look = || {
        looks.set(looks.get() + 1);
        if looks.get() == 3 {
            channel::send(&theirs, b"late", &[]).unwrap();
        }
        true
    };
    let (now, long) = (Instant::now(), Duration::from_secs(60));
    let got = receive_from_busy(&ours, &mut buf, now, now + long, greets_at_the_third_look);
    assert_eq!(got.unwrap().bytes, 4);
    let got = receive_from_busy(&ours, &mut buf, now, now + long, || false);
    assert_eq!(got.err(), Some(Errno::TIMEDOUT), "it is not busy");
    let got = receive_from_busy(&ours, &mut buf, now, now, || true);
    assert_eq!(got.err(), Some(Errno::TIMEDOUT), "too long");
}

#[test]
fn who_runs_is_busy_and_who_sleeps_or_is_stopped_is_not() {
    use rustix::process::{Pid, Signal, kill_process};
    use std::process::{Command, Stdio};
    let spawn = |program: &str, word: &str| {
        let mut command = Command::new(program);
        command.arg(word).stdout(Stdio::null()).spawn().unwrap()
    };
    let comes = |pid: u32, busy: bool| {
        let end = Instant::now() + Duration::from_secs(20);
        while is_busy(pid) != busy {
            assert!(Instant::now() < end, "busy: {}", !busy);
            thread::sleep(Duration::from_millis(1));
        }
    };
    let (mut runs, mut sleeps) = (spawn("yes", "on"), spawn("sleep", "600"));
    comes(runs.id(), true);
    comes(sleeps.id(), false);
    kill_process(Pid::from_child(&runs), Signal::STOP).unwrap();
    comes(runs.id(), false);
    assert!(!is_busy(0));
    for child in [&mut runs, &mut sleeps] {
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
