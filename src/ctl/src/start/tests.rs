use super::*;

#[test]
fn names_are_read_as_they_are_written() {
    for text in ["@rocebud-0", "/run/rocebud/control", "here"] {
        assert_eq!(SocketName::parse(text.as_ref()).to_string(), text);
    }
    assert_eq!(
        SocketName::parse("@x".as_ref()),
        SocketName::Abstract("x".into())
    );
}

#[test]
fn a_user_is_named_as_the_parent_namespace_knows_him() {
    // The initial namespace, `unshare -Ur` by user 1000, a container with a range.
    assert_eq!(outer_id("         0          0 4294967295\n", 1000), 1000);
    assert_eq!(outer_id("0 1000 1\n", 0), 1000);
    assert_eq!(outer_id("0 100000 65536\n70000 5 1\n", 33), 100_033);
    assert_eq!(outer_id("0 100000 65536\n70000 5 1\n", 70_000), 5);
    assert_eq!(outer_id("0 1000 1\n", 7), 7, "not mapped");
    assert_eq!(outer_id("nonsense", 7), 7);
}

#[test]
fn the_word_of_a_started_daemon_comes_through_the_pipe() {
    let flags = rustix::pipe::PipeFlags::CLOEXEC;
    let error = CtlError::new(ErrorKind::PortTaken, "cause: remedy");
    for outcome in [Ok(Vec::new()), Ok(vec!["remark".to_owned()]), Err(&error)] {
        let (read, write) = rustix::pipe::pipe_with(flags).unwrap();
        report_start(write, outcome.clone());
        let word = read_until(read, Instant::now() + Duration::from_secs(5));
        assert_eq!(
            understand(&word, Path::new("/x/rocebud")),
            outcome.map_err(Clone::clone)
        );
    }
    let of_an_older_one = understand(b"o", Path::new("/x/rocebud"));
    assert_eq!(of_an_older_one, Ok(Vec::new()));
}

#[test]
fn a_daemon_that_cannot_be_started_or_dies_silently_is_an_error_with_its_path() {
    let errno = [b"x".as_slice(), &13_i32.to_le_bytes()].concat();
    for word in [&errno[..], b"", b"?"] {
        let error = understand(word, Path::new("/x/rocebud")).unwrap_err();
        assert!(error.message.contains("/x/rocebud"), "{error}");
    }
}

#[test]
fn waiting_for_a_word_is_bounded() {
    let (read, _write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
    let start = Instant::now();
    let word = read_until(read, start + Duration::from_millis(50));
    assert!(word.is_empty() && start.elapsed() < Duration::from_secs(5));
}

#[test]
fn a_socket_of_a_stranger_is_not_trusted() {
    let name = SocketName::Abstract("x".into());
    let me = rustix::process::geteuid().as_raw();
    assert!(name.trusts(0) && name.trusts(me));
    assert!(!name.trusts(me.wrapping_add(54_321)));
}

/// A socket at a path of its own where somebody listens and never accepts.
fn deaf(name: &str, backlog: i32) -> (PathBuf, OwnedFd) {
    let path = std::env::temp_dir().join(format!("rocebud-{name}-{}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    let socket = control_socket().unwrap();
    let address = SocketName::Path(path.clone()).address().unwrap();
    rustix::net::bind(&socket, &address).unwrap();
    rustix::net::listen(&socket, backlog).unwrap();
    (path, socket)
}

#[test]
fn who_listens_and_never_answers_is_waited_for_briefly_and_named() {
    let (path, socket) = deaf("deaf", 8);
    let start = Instant::now();
    let error = Client::connect_system(&path, Role::Command).unwrap_err();
    let waited = start.elapsed();
    assert!(error.message.contains(path.to_str().unwrap()), "{error}");
    let me = format!("process {}", std::process::id());
    assert!(error.message.contains(&me), "{error}");
    assert!(
        waited < GREETING_WAIT + Duration::from_secs(5),
        "{waited:?}"
    );
    drop(socket);
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn a_full_queue_of_connections_is_no_reason_to_hang() {
    let (path, socket) = deaf("full", 0);
    let name = SocketName::Path(path.clone());
    let address = name.address().unwrap();
    let mut waiting = Vec::new();
    loop {
        let one = control_socket().unwrap();
        rustix::io::ioctl_fionbio(&one, true).unwrap();
        match rustix::net::connect(&one, &address) {
            Ok(()) => waiting.push(one),
            Err(error) => break assert_eq!(error, Errno::AGAIN),
        }
    }
    let start = Instant::now();
    let patience = [Duration::from_millis(100); 2];
    let outcome = Client::connect_within(&name, Role::Command, patience);
    assert!(
        matches!(outcome, Err(Unreachable::Silent(_))),
        "{outcome:?}"
    );
    assert!(start.elapsed() < Duration::from_secs(5));
    drop((waiting, socket));
    std::fs::remove_file(&path).unwrap();
}
