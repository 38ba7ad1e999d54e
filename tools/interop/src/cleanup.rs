//! What must not outlive this program: processes, namespaces and files, also when a signal ends it.
//!
//! `kill -9` leaves no time; then the kernel ends the guest (its parent is gone), and the namespace and the
//! directory, whose names say whose they were, are swept by the next run.

use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::{Doing, Result, fail};

#[derive(Clone, PartialEq, Eq, Debug)]
enum Thing {
    Process(u32),
    Namespace(String),
    Directory(PathBuf),
}

static THINGS: Mutex<Vec<Thing>> = Mutex::new(Vec::new());

/// A signal has come: everything is being ended, and what fails now is no finding.
static ENDING: AtomicBool = AtomicBool::new(false);

/// Every directory's name begins with this, then the process id of the owner.
const PREFIX: &str = "rocebud-interop-";

fn things() -> std::sync::MutexGuard<'static, Vec<Thing>> {
    THINGS
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn add(thing: Thing) {
    let mut things = things();
    if ENDING.load(Ordering::SeqCst) {
        drop(things);
        end(&thing);
    } else {
        things.push(thing);
    }
}

fn gone(thing: &Thing) {
    things().retain(|t| t != thing);
}

/// A process of ours that is killed, with its group if it leads one, when a signal ends this program.
pub fn process(pid: u32) {
    add(Thing::Process(pid));
}

/// A namespace that is removed when a signal ends this program.
pub fn namespace(name: &str) {
    add(Thing::Namespace(name.to_owned()));
}

/// The process has been waited for.
pub fn process_gone(pid: u32) {
    gone(&Thing::Process(pid));
}

/// The directory of this run, for files that end with it; made when it is first asked for.
///
/// # Errors
/// It cannot be made, or is somebody else's.
pub fn scratch() -> Result<PathBuf> {
    let path = std::env::temp_dir().join(format!("{PREFIX}{}", std::process::id()));
    match std::fs::DirBuilder::new().mode(0o700).create(&path) {
        Ok(()) => add(Thing::Directory(path.clone())),
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists && ours(&path) => {}
        Err(e) => return fail(format!("the directory {}: {e}", path.display())),
    }
    Ok(path)
}

fn ours(path: &Path) -> bool {
    let own = rustix::process::geteuid().as_raw();
    std::fs::symlink_metadata(path).is_ok_and(|m| m.is_dir() && m.uid() == own)
}

/// Ends everything that was named, the newest first.
pub fn all() {
    let named: Vec<Thing> = things().drain(..).rev().collect();
    named.iter().for_each(end);
}

fn end(thing: &Thing) {
    match thing {
        Thing::Process(pid) => kill(&[*pid]),
        Thing::Namespace(name) => remove_namespace(name),
        Thing::Directory(path) => drop(std::fs::remove_dir_all(path)),
    }
}

/// SIGKILL to processes of ours, and to the groups that they lead.
pub fn kill(pids: &[u32]) {
    use rustix::process::{Pid, Signal, kill_process, kill_process_group};
    for pid in pids {
        if let Some(pid) = i32::try_from(*pid).ok().and_then(Pid::from_raw) {
            let _ = kill_process_group(pid, Signal::KILL);
            let _ = kill_process(pid, Signal::KILL);
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
    gone(&Thing::Namespace(name.to_owned()));
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
            {
                // nothing is added to the list behind this
                let _things = things();
                ENDING.store(true, Ordering::SeqCst);
            }
            let name = signal_hook::low_level::signal_name(signal).unwrap_or("a signal");
            eprintln!("\nrocebud interop: interrupted by {name}; what ran is being ended");
            all();
            std::process::exit(128 + signal);
        }
    });
    Ok(())
}

/// Does not return while a signal ends this program: what was killed for that must not be taken for a failure.
pub fn stop_if_ending() {
    while ENDING.load(Ordering::SeqCst) {
        std::thread::park();
    }
}

/// Removes the directories of runs that were killed before they could.
pub fn sweep() {
    sweep_in(&std::env::temp_dir());
}

fn sweep_in(directory: &Path) {
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        let owner = entry
            .file_name()
            .to_str()
            .and_then(|name| name.strip_prefix(PREFIX))
            .and_then(|pid| pid.parse::<u32>().ok());
        if owner.is_some_and(|pid| !alive(pid)) && ours(&entry.path()) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

/// Is there a process of this number?
pub fn alive(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_dead_run_left_is_swept_and_nothing_else() {
        let base = std::env::temp_dir().join(format!("rocebud-sweep-{}", std::process::id()));
        let mut dead = Command::new("true").spawn().expect("a process");
        dead.wait().expect("it ends");
        let stale = base.join(format!("{PREFIX}{}", dead.id()));
        let mine = base.join(format!("{PREFIX}{}", std::process::id()));
        let other = base.join(format!("{PREFIX}verify"));
        for dir in [&stale, &mine, &other] {
            std::fs::create_dir_all(dir.join("within")).expect("made");
        }
        sweep_in(&base);
        let left = [&stale, &mine, &other].map(|d| d.exists());
        std::fs::remove_dir_all(&base).expect("removed");
        assert_eq!(left, [false, true, true]);
    }
}
