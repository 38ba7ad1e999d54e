//! A private place: a network namespace of this process alone, with a daemon in a thread.
//!
//! The namespace must be entered before any thread exists, so a program calls [`enter`] first. It
//! needs root, or a system that lets ordinary users make namespaces.

mod sys;

use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use rocebud_ctl::SocketName;
use rocebud_ctl::messages::Role;

static ENTERED: OnceLock<Result<(), String>> = OnceLock::new();
static DAEMON: OnceLock<SocketName> = OnceLock::new();

/// The daemon's name; abstract names live in the network namespace.
const SOCKET: &str = "rocebud-fuzz";

/// Enters the place. Says why not where that is not possible; the second call answers as the first.
///
/// # Errors
/// What the system refuses.
pub fn enter() -> Result<(), String> {
    ENTERED
        .get_or_init(|| {
            sys::own_network().map_err(|error| error.to_string())?;
            let up = Command::new("ip")
                .args(["link", "set", "lo", "up"])
                .status();
            if !up.is_ok_and(|status| status.success()) {
                return Err("`ip link set lo up` failed".to_owned());
            }
            // The machine's own devices, if any, are none of ours; and the daemon says nothing.
            sys::set_env("ROCEBUD_REAL", "off");
            sys::set_env("ROCEBUD_LOG", "off");
            sys::set_env("ROCEBUD_SOCKET", &format!("@{SOCKET}"));
            Ok(())
        })
        .clone()
}

/// The place was entered.
pub(crate) fn entered() -> bool {
    matches!(ENTERED.get(), Some(Ok(())))
}

/// The daemon of the place, started at the first call.
pub(crate) fn daemon() -> &'static SocketName {
    DAEMON.get_or_init(|| {
        let name = SocketName::Abstract(SOCKET.to_owned());
        let options = rocebud_daemon::Options {
            socket: Some(name.clone()),
            ..rocebud_daemon::Options::default()
        };
        std::thread::spawn(move || {
            let end = rocebud_daemon::run(options);
            panic!("the daemon left: {end:?}");
        });
        let deadline = Instant::now() + Duration::from_secs(20);
        while rocebud_ctl::Client::connect(&name, Role::Command).is_err() {
            assert!(Instant::now() < deadline, "the daemon does not come up");
            std::thread::sleep(Duration::from_millis(2));
        }
        name
    })
}
