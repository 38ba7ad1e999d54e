//! A daemon for benchmarks of a tree that has no `rocebud` command built:
//! `ROCEBUD_DAEMON=…/bench_daemon loop_bw …` makes the library start it.

use std::os::fd::{FromRawFd, OwnedFd};

fn main() {
    let mut args = std::env::args().skip_while(|a| a != "--status-fd").skip(1);
    let status = args.next().and_then(|fd| fd.parse().ok()).map(|fd| {
        // SAFETY: the starter gave us this descriptor for this purpose.
        unsafe { OwnedFd::from_raw_fd(fd) }
    });
    let options = rocebud_daemon::Options {
        socket: None,
        auto: true,
        status,
    };
    if let Err(error) = rocebud_daemon::run(options) {
        eprintln!("{error}");
    }
}
