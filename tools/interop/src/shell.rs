//! Commands at an end of a test: in our namespace, or where an agent serves.

use std::fs::File;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::cleanup;
use crate::error::{Doing, Result, fail};
use crate::peer::agent::{Address, Ended, Started};

/// Where commands are run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Place {
    /// This machine, in a namespace or where we are.
    Here(Option<String>),
    /// Where this agent is.
    There(Address),
}

/// A shell command that runs. Dropping it ends it.
#[derive(Debug)]
pub enum Running {
    /// On this machine.
    Here(Local),
    /// By an agent.
    There(Started),
}

impl Place {
    /// Starts a shell command that may take so many seconds.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(&self, command: &str, seconds: u64) -> Result<Running> {
        match self {
            Self::Here(namespace) => {
                Local::start(namespace.as_deref(), command, seconds).map(Running::Here)
            }
            Self::There(agent) => agent.start(command, seconds).map(Running::There),
        }
    }

    /// Runs a shell command to its end.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn run(&self, command: &str, seconds: u64) -> Result<Ended> {
        self.start(command, seconds)?.finish()
    }

    /// Runs a shell command until it exits with 0.
    ///
    /// # Errors
    /// It did not within these seconds.
    pub fn until(&self, command: &str, seconds: u64) -> Result<()> {
        let end = Instant::now() + Duration::from_secs(seconds);
        loop {
            let ended = self.run(command, 20)?;
            if ended.code == 0 {
                return Ok(());
            }
            if Instant::now() > end {
                return fail(format!(
                    "not within {seconds} s: {command}\n{}",
                    ended.output
                ));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Running {
    /// What it has said so far.
    pub fn output(&self) -> String {
        match self {
            Self::Here(local) => local.output(),
            Self::There(started) => started.output(),
        }
    }

    /// Has it ended?
    pub fn over(&mut self) -> bool {
        match self {
            Self::Here(local) => local.over(),
            Self::There(started) => started.over(),
        }
    }

    /// Waits for its end; its time is limited.
    ///
    /// # Errors
    /// The agent is gone.
    pub fn finish(self) -> Result<Ended> {
        match self {
            Self::Here(local) => local.finish(),
            Self::There(started) => started.finish(),
        }
    }

    /// Waits until it has printed these words, and stops it; or for its end, if it never does. Says which.
    ///
    /// # Errors
    /// The agent is gone.
    pub fn until(mut self, words: &str) -> Result<(Ended, bool)> {
        loop {
            // asked in this order, or what it printed last would be missed
            let over = self.over();
            let output = self.output();
            if output.contains(words) {
                self.kill();
                return Ok((Ended { code: 0, output }, true));
            }
            if over {
                return Ok((self.finish()?, false));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Ends it.
    pub fn kill(self) {
        if let Self::There(started) = self {
            started.kill();
        }
    }
}

/// A shell command on this machine, in a process group of its own; its output goes to a file.
#[derive(Debug)]
pub struct Local {
    child: Child,
    log: PathBuf,
    end: Instant,
}

impl Local {
    fn start(namespace: Option<&str>, text: &str, seconds: u64) -> Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let log = cleanup::scratch()?.join(format!("{n}.txt"));
        let out = File::create(&log).doing(|| format!("{}", log.display()))?;
        let mut command = match namespace {
            Some(name) => {
                let mut ip = Command::new("ip");
                ip.args(["netns", "exec", name, "sh"]);
                ip
            }
            None => Command::new("sh"),
        };
        command
            .args(["-c", text])
            .stdin(Stdio::null())
            .process_group(0);
        command
            .stdout(out.try_clone().doing(|| "a log".into())?)
            .stderr(out);
        let child = command.spawn().doing(|| format!("starting {text}"))?;
        cleanup::process(child.id());
        let end = Instant::now() + Duration::from_secs(seconds);
        Ok(Self { child, log, end })
    }

    /// Has it ended, or is its time up?
    fn over(&mut self) -> bool {
        Instant::now() > self.end || !matches!(self.child.try_wait(), Ok(None))
    }

    fn output(&self) -> String {
        std::fs::read(&self.log)
            .map(|b| String::from_utf8_lossy(&b).into_owned())
            .unwrap_or_default()
    }

    fn finish(mut self) -> Result<Ended> {
        loop {
            if let Some(status) = self.child.try_wait().doing(|| "waiting".into())? {
                let code = status
                    .code()
                    .unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
                return Ok(Ended {
                    code,
                    output: self.output(),
                });
            }
            if Instant::now() > self.end {
                self.end_group();
                return Ok(Ended {
                    code: 124,
                    output: self.output(),
                });
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn end_group(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            let group = i32::try_from(self.child.id())
                .ok()
                .and_then(rustix::process::Pid::from_raw);
            if let Some(group) = group {
                let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
            }
            let _ = self.child.wait();
        }
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        self.end_group();
        cleanup::process_gone(self.child.id());
        let _ = std::fs::remove_file(&self.log);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_stopped_when_it_has_said_what_was_waited_for() {
        let begun = |text| Place::Here(None).start(text, 600).expect("it starts");
        let (ended, reached) = begun("echo one; sleep 500").until("one").expect("it runs");
        assert_eq!((ended.output.as_str(), reached), ("one\n", true));
        let (ended, reached) = begun("echo two; exit 3").until("one").expect("it runs");
        assert_eq!((ended.code, reached), (3, false));
        let (_, reached) = begun("echo two; echo one").until("one").expect("it runs");
        assert!(reached, "what it says last counts");
        let late = Place::Here(None).start("sleep 500", 0).expect("it starts");
        let (ended, reached) = late.until("one").expect("it runs");
        assert_eq!((ended.code, reached), (124, false));
    }
}
