//! Network namespaces of our own: the place of one end of a wire.

use std::fs::File;
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::cleanup;
use crate::error::{Doing, Error, Result, fail};

/// Every name begins with this, then the process id of the owner.
const PREFIX: &str = "rbi";

/// A namespace, removed with all that runs in it when it is dropped.
#[derive(Debug)]
pub struct Namespace {
    name: String,
}

impl Namespace {
    /// A new one, with loopback up.
    ///
    /// # Errors
    /// `ip` failed: it needs root.
    pub fn new() -> Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("{PREFIX}{}n{n}", std::process::id());
        command("ip", &["netns", "add", &name])?;
        cleanup::namespace(&name);
        let made = Self { name };
        made.ip("link set lo up")?;
        Ok(made)
    }

    /// Its name, for `ip netns exec`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// `ip` in it; the words are split at blanks.
    ///
    /// # Errors
    /// What `ip` said.
    pub fn ip(&self, words: &str) -> Result<()> {
        let mut args = vec!["-n", self.name.as_str()];
        args.extend(words.split_whitespace());
        command("ip", &args)
    }

    /// Runs a tool in it and wants it to succeed.
    ///
    /// # Errors
    /// What it said.
    pub fn tool(&self, words: &str) -> Result<()> {
        let mut args = vec!["netns", "exec", self.name.as_str()];
        args.extend(words.split_whitespace());
        command("ip", &args)
    }

    /// Does something in it, on a thread of its own.
    ///
    /// # Errors
    /// The namespace cannot be entered, or what `work` answered.
    pub fn enter<T: Send>(&self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        enter(&self.name, work)
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        cleanup::remove_namespace(&self.name);
    }
}

/// Does something in the namespace of this name, on a thread of its own.
///
/// # Errors
/// The namespace cannot be entered, or what `work` answered.
pub fn enter<T: Send>(name: &str, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    let file = File::open(format!("/run/netns/{name}")).doing(|| format!("namespace {name}"))?;
    std::thread::scope(|scope| {
        scope
            .spawn(move || {
                move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
                    .doing(|| format!("entering namespace {name}"))?;
                work()
            })
            .join()
            .unwrap_or_else(|_| fail("a thread in a namespace panicked"))
    })
}

/// Removes namespaces whose owner was killed before it could.
pub fn sweep() {
    let Ok(list) = std::fs::read_dir("/run/netns") else {
        return;
    };
    for name in list
        .flatten()
        .filter_map(|e| e.file_name().into_string().ok())
    {
        let pid = name
            .strip_prefix(PREFIX)
            .and_then(|rest| rest.split_once('n'))
            .and_then(|(pid, _)| pid.parse::<u32>().ok());
        if pid.is_some_and(|pid| !cleanup::alive(pid)) {
            cleanup::remove_namespace(&name);
        }
    }
}

fn command(program: &str, args: &[&str]) -> Result<()> {
    let out = Command::new(program)
        .args(args)
        .output()
        .doing(|| format!("starting {program}"))?;
    if out.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&out.stderr).trim().to_owned();
    Err(Error(format!("{program} {}: {said}", args.join(" "))))
}
