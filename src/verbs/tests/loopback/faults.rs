//! The last cases: what kills the runtime of this process.

use std::process::Command;
use std::time::Duration;

use rocebud_verbs::*;

use crate::endpoint::{all_access, pair, wait_until};
use crate::{Case, sys};

pub(crate) const ALL: &[Case] = &[
    ("losses_are_repaired", losses),
    (
        "a_dead_daemon_fails_everything_and_hangs_nothing",
        daemon_dies,
    ),
];

/// Runs the transfer cases again in a process whose packets get lost.
fn losses() {
    let me = std::env::current_exe().unwrap();
    let done = Command::new(me)
        .arg("rc_")
        .env("ROCEBUD_FAULT", "drop=rx:2%; drop=tx:1%; seed=5")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success(), "{said}");
    assert!(
        said.contains("rc_write_and_read_of_every_size ... ok"),
        "{said}"
    );
}

fn daemon_dies() {
    let (a, b) = pair(QpType::Rc, false, 4096);
    b.post_recv(1, 0, 4096);
    let channel = b.context.create_comp_channel().unwrap();
    let cq = b.context.create_cq(4, Some(&channel), 0, 0).unwrap();
    cq.req_notify(false).unwrap();
    sys::set_nonblocking(a.context.async_fd());
    let sleeper = std::thread::spawn(move || channel.get_event());
    std::thread::sleep(Duration::from_millis(20));
    for pid in daemons() {
        sys::kill(pid);
    }
    let woken = sleeper.join().unwrap();
    assert_eq!(woken.unwrap_err().errno, Errno::EIO);
    let mut kinds = Vec::new();
    wait_until("DEVICE_FATAL", || {
        kinds.extend(a.context.next_async_event().map(|e| e.kind));
        kinds.contains(&EventKind::DeviceFatal)
    });
    let last = a.context.next_async_event();
    assert_eq!(last.unwrap_err().errno, Errno::EIO);
    let wc = b.wait();
    assert_eq!(wc.status, WcStatus::WrFlushErr);
    let mut out = [Wc::default()];
    assert_eq!(b.cq.poll(&mut out).unwrap_err().errno, Errno::EIO);
    let refused = a.pd.reg_mr(a.at(0), 10, a.at(0), all_access());
    assert_eq!(refused.unwrap_err().errno, Errno::EIO);
    assert!(a.context.create_cq(4, None, 0, 0).is_err());
    assert_eq!(a.context.query_port(1).unwrap().state, PortState::Down);
    a.qp.destroy().unwrap();
    b.qp.destroy().unwrap();
    // A new daemon serves new contexts.
    std::thread::sleep(Duration::from_millis(100));
    let (c, d) = pair(QpType::Rc, false, 64);
    d.post_recv(1, 0, 64);
    c.post(1, SendOp::Send, c.sges(0, 64));
    c.wait_good();
    d.wait_good();
}

/// Daemons that run this very test program, in this network namespace.
fn daemons() -> Vec<u32> {
    let me = std::env::current_exe().unwrap();
    let net = std::fs::read_link("/proc/self/ns/net").unwrap();
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    processes
        .filter_map(|p| p.file_name().to_str()?.parse::<u32>().ok())
        .filter(|pid| *pid != std::process::id())
        .filter(|pid| {
            let same = |what: &str, as_ours: &std::path::Path| {
                std::fs::read_link(format!("/proc/{pid}/{what}")).is_ok_and(|l| l == as_ours)
            };
            same("exe", &me) && same("ns/net", &net)
        })
        .collect()
}
