//! What must not outlive this program: processes and namespaces, also when a signal ends it.
//!
//! `kill -9` leaves no time; then the kernel ends the guest (its parent is gone), and the namespace, whose
//! name says whose it was, is swept by the next run.

use std::process::Command;
use std::sync::Mutex;

use crate::error::{Doing, Result};

#[derive(Clone, PartialEq, Eq, Debug)]
enum Thing {
    Process(u32),
    Namespace(String),
}

static THINGS: Mutex<Vec<Thing>> = Mutex::new(Vec::new());

fn things() -> std::sync::MutexGuard<'static, Vec<Thing>> {
    THINGS
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// A process of ours that is killed when a signal ends this program.
pub fn process(pid: u32) {
    things().push(Thing::Process(pid));
}

/// A namespace that is removed when a signal ends this program.
pub fn namespace(name: &str) {
    things().push(Thing::Namespace(name.to_owned()));
}

/// The process has been waited for.
pub fn process_gone(pid: u32) {
    things().retain(|t| *t != Thing::Process(pid));
}

/// The namespace has been removed.
pub fn namespace_gone(name: &str) {
    things().retain(|t| *t != Thing::Namespace(name.to_owned()));
}

/// Ends everything that was named, the newest first.
pub fn all() {
    let named: Vec<Thing> = things().drain(..).rev().collect();
    for thing in named {
        match thing {
            Thing::Process(pid) => kill(&[pid]),
            Thing::Namespace(name) => remove_namespace(&name),
        }
    }
}

/// SIGKILL to processes of ours.
pub fn kill(pids: &[u32]) {
    for pid in pids {
        let pid = i32::try_from(*pid)
            .ok()
            .and_then(rustix::process::Pid::from_raw);
        if let Some(pid) = pid {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
    }
}

/// Ends what still runs in a namespace and removes it.
pub fn remove_namespace(name: &str) {
    let out = Command::new("ip").args(["netns", "pids", name]).output();
    let text = out.map(|o| o.stdout).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let pids: Vec<u32> = text
        .split_whitespace()
        .filter_map(|w| w.parse().ok())
        .collect();
    kill(&pids);
    let _ = Command::new("ip").args(["netns", "del", name]).output();
    namespace_gone(name);
}

/// From now on SIGINT, SIGTERM and SIGHUP clean up before they end this program.
///
/// # Errors
/// The handlers could not be installed.
pub fn on_signals() -> Result<()> {
    let mut signals =
        signal_hook::iterator::Signals::new([1, 2, 15]).doing(|| "signal handlers".into())?;
    std::thread::spawn(move || {
        if let Some(signal) = signals.forever().next() {
            all();
            std::process::exit(128 + signal);
        }
    });
    Ok(())
}
