use super::*;

/// /proc/net/udp of Linux 6.18 with sockets of user 1000 on ports 53 and 4791.
const TABLE: &str = "\
   sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops
  513: 3500007F:0035 00000000:0000 07 00000000:00000000 00:00000000 00000000  1000        0 123 2 0000000000000000 0
  700: 00000000:12B7 00000000:0000 07 00000000:00000000 00:00000000 00000000  1000        0 4567 2 0000000000000000 0
";

#[test]
fn the_socket_on_the_port_is_found_by_its_number() {
    let found = sockets_on_port(TABLE);
    assert_eq!(
        found,
        [Socket {
            uid: 1000,
            inode: 4567
        }]
    );
    assert_eq!(sockets_on_port("nonsense\n\n1 2 3"), []);
}

#[test]
fn a_daemon_of_another_user_is_named_with_the_remedy() {
    let text = describe(&Holder {
        uid: Some(54_321),
        process: Some((77, "rocebud".into())),
        rxe_loaded: true,
    });
    assert_eq!(
        text,
        "UDP port 4791 is held by process 77 (user 54321, command rocebud): stop it with `kill \
         77`, then run `rocebud daemon` as root to serve all users"
    );
}

#[test]
fn the_kernels_rxe_is_named_where_no_process_has_the_port() {
    let text = describe(&Holder {
        uid: Some(0),
        process: None,
        rxe_loaded: true,
    });
    assert!(
        text.starts_with("kernel rdma_rxe holds UDP port 4791: `rmmod rdma_rxe`"),
        "{text}"
    );
}

#[test]
fn a_holder_that_cannot_be_seen_is_named_by_user() {
    let text = describe(&Holder {
        uid: Some(54_321),
        ..Holder::default()
    });
    assert!(
        text.contains("user 54321") && text.contains("ss -ulnp"),
        "{text}"
    );
    assert!(!text.contains('\n'));
}

#[test]
fn what_a_process_calls_itself_cannot_steer_a_terminal() {
    let proc = std::env::temp_dir().join(format!("rocebud-comm-{}", std::process::id()));
    let dir = proc.join("7");
    std::fs::create_dir_all(&dir).unwrap();
    let called = |comm: &[u8]| {
        std::fs::write(dir.join("comm"), comm).unwrap();
        command(&proc, 7)
    };
    assert_eq!(called(b"ib_write_bw\n"), "ib_write_bw");
    assert_eq!(called(b"\x1b[31mred\n\tx\n"), "?[31mred??x");
    assert_eq!(
        called("d\u{e9}j\u{e0} \u{9b}2J\n".as_bytes()),
        "d\u{e9}j\u{e0} ?2J"
    );
    assert_eq!(called(b"\xff\n"), "\u{fffd}");
    assert_eq!(called(b"\n"), "?");
    assert_eq!(command(&proc, 8), "?", "gone");
    std::fs::remove_dir_all(&proc).unwrap();
}
