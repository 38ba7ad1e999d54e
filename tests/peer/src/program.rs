//! Programs with a time limit, whose output is kept in a file.
//!
//! Output goes to files, not pipes: a daemon that a program starts must not be able to hold our end
//! open, and what a killed program wrote is still there to read.

use std::fs::File;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::netns::Host;
use crate::{Failure, tree};

/// How a program will be started.
#[derive(Clone, Debug)]
pub struct Spec {
    argv: Vec<String>,
    env: Vec<(String, String)>,
    clear_env: bool,
    limit: Duration,
}

impl Spec {
    pub(crate) fn new(ns: Option<&str>, program: &str, args: &[&str]) -> Self {
        let mut argv: Vec<String> = Vec::new();
        if let Some(ns) = ns {
            argv.extend(["ip", "netns", "exec", ns].map(String::from));
        }
        argv.push(program.to_owned());
        argv.extend(args.iter().map(|a| (*a).to_owned()));
        Self {
            argv,
            env: Vec::new(),
            clear_env: false,
            limit: Duration::from_secs(60),
        }
    }

    /// At most this long; then it is killed and the case fails.
    #[must_use]
    pub fn limit(mut self, seconds: u64) -> Self {
        self.limit = Duration::from_secs(seconds);
        self
    }

    /// An environment variable more.
    #[must_use]
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    /// As uid and gid 65534, with no home directory and an empty environment.
    #[must_use]
    pub fn as_nobody(mut self) -> Self {
        let words = [
            "setpriv",
            "--reuid=65534",
            "--regid=65534",
            "--clear-groups",
            "--no-new-privs",
        ];
        let at = if self.argv.first().is_some_and(|a| a == "ip") {
            4
        } else {
            0
        };
        self.argv.splice(at..at, words.map(String::from));
        self.clear_env = true;
        self.env("PATH", "/usr/bin:/bin:/usr/sbin:/sbin")
            .env("HOME", "/nonexistent")
    }

    /// Starts it.
    ///
    /// # Errors
    /// It could not be started.
    pub fn start(&self) -> Result<Running, Failure> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let log = tree::log_dir().join(format!("{}-{n}.txt", std::process::id()));
        let out = File::create(&log)?;
        let mut command = Command::new(&self.argv[0]);
        command.args(&self.argv[1..]);
        if self.clear_env {
            command.env_clear();
        } else {
            command.env("ROCEBUD_DAEMON_LOG", tree::daemon_log());
        }
        command
            .env("LC_ALL", "C")
            .envs(self.env.iter().map(|(k, v)| (k, v)));
        command
            .stdin(Stdio::null())
            .stdout(out.try_clone()?)
            .stderr(out)
            .process_group(0);
        if self.clear_env {
            command.current_dir("/");
        }
        let child = command
            .spawn()
            .map_err(|e| Failure::Wrong(format!("cannot start {}: {e}", self.argv.join(" "))))?;
        Ok(Running {
            child,
            log,
            what: self.argv.join(" "),
            end: Instant::now() + self.limit,
            over: false,
        })
    }

    /// Runs it to its end.
    ///
    /// # Errors
    /// It could not be started, or took too long.
    pub fn run(&self) -> Result<Finished, Failure> {
        self.start()?.finish()
    }
}

/// A program that runs. Dropping it kills it.
#[derive(Debug)]
pub struct Running {
    child: Child,
    log: PathBuf,
    what: String,
    end: Instant,
    over: bool,
}

impl Running {
    /// What it has said so far.
    pub fn output(&self) -> String {
        std::fs::read(&self.log)
            .map(|b| String::from_utf8_lossy(&b).into_owned())
            .unwrap_or_default()
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until its output holds `text`.
    ///
    /// # Errors
    /// It ended before, or the time was up.
    pub fn wait_for(&mut self, text: &str) -> Result<String, Failure> {
        loop {
            let said = self.output();
            if said.contains(text) {
                return Ok(said);
            }
            if !self.alive() || Instant::now() > self.end {
                self.kill();
                return Err(Failure::Wrong(format!(
                    "{}: no '{text}' in:\n{said}",
                    self.what
                )));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Waits until a TCP port is listened on in `host`.
    ///
    /// # Errors
    /// The program ended before, or the time was up.
    pub fn wait_listening(&mut self, host: &Host, port: u16) -> Result<(), Failure> {
        let filter = format!("sport = :{port}");
        loop {
            let out = host.plain("ss", &["-Hltn", &filter]).run()?;
            if !out.output.trim().is_empty() {
                return Ok(());
            }
            if !self.alive() || Instant::now() > self.end {
                let said = self.output();
                self.kill();
                return Err(Failure::Wrong(format!(
                    "{}: not listening\n{said}",
                    self.what
                )));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Is it still running?
    pub fn alive(&mut self) -> bool {
        self.over = self.over || !matches!(self.child.try_wait(), Ok(None));
        !self.over
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// The time was up; it was killed.
    pub fn finish(mut self) -> Result<Finished, Failure> {
        loop {
            if let Some(status) = self.child.try_wait()? {
                self.over = true;
                let output = self.output();
                let _ = std::fs::remove_file(&self.log);
                return Ok(Finished {
                    code: status.code(),
                    signal: status.signal(),
                    output,
                    what: self.what.clone(),
                });
            }
            if Instant::now() > self.end {
                let said = tail(&self.output());
                self.kill();
                return Err(Failure::Wrong(format!(
                    "{}: time limit; output:\n{said}",
                    self.what
                )));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Sends it a signal (`KILL`, `STOP` …), and nobody else of its group.
    ///
    /// # Errors
    /// `kill` failed.
    pub fn signal(&self, name: &str) -> Result<(), Failure> {
        let pid = self.child.id().to_string();
        let sent = Command::new("kill").args(["-s", name, &pid]).status()?;
        if sent.success() {
            return Ok(());
        }
        Err(Failure::Wrong(format!("kill -s {name} {pid} failed")))
    }

    /// Kills it and what it started in its process group (kill -9).
    pub fn kill(&mut self) {
        if !self.over {
            let group = format!("-{}", self.child.id());
            let _ = Command::new("kill")
                .args(["-KILL", "--", &group])
                .stderr(Stdio::null())
                .status();
            let _ = self.child.wait();
            self.over = true;
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A program that ended.
#[derive(Clone, Debug)]
pub struct Finished {
    /// Exit status, if it exited.
    pub code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// Standard output and error together.
    pub output: String,
    what: String,
}

impl Finished {
    /// Its output, if it exited with 0.
    ///
    /// # Errors
    /// The status and the end of the output.
    pub fn succeeded(self) -> Result<String, Failure> {
        self.exited(0)
    }

    /// Itself, if it exited with 0.
    ///
    /// # Errors
    /// The status and the end of the output.
    pub fn well(self) -> Result<Self, Failure> {
        self.with(0)
    }

    /// Its output, if it exited with `code`.
    ///
    /// # Errors
    /// The status and the end of the output.
    pub fn exited(self, code: i32) -> Result<String, Failure> {
        self.with(code).map(|ran| ran.output)
    }

    fn with(self, code: i32) -> Result<Self, Failure> {
        if self.code == Some(code) {
            return Ok(self);
        }
        let how = match (self.code, self.signal) {
            (Some(c), _) => format!("exit status {c}"),
            (_, Some(s)) => format!("signal {s}"),
            _ => "no status".into(),
        };
        let said = tail(&self.output);
        Err(Failure::Wrong(format!(
            "{}: {how}, expected {code}; output:\n{said}",
            self.what
        )))
    }
}

/// Server and client of one program. The client starts once the server listens on `port`; both must
/// exit with 0. Returns the outputs, the server's first.
///
/// # Errors
/// Whatever went wrong on either side, with both outputs.
pub fn duo(server: (&Host, &Spec), client: &Spec, port: u16) -> Result<(String, String), Failure> {
    let mut s = server.1.start()?;
    s.wait_listening(server.0, port)?;
    let client = client.run()?;
    if client.code != Some(0) {
        std::thread::sleep(Duration::from_millis(300));
        let said = tail(&s.output());
        return match client.succeeded() {
            Err(Failure::Wrong(e)) => Err(Failure::Wrong(format!(
                "client: {e}\nserver so far:\n{said}"
            ))),
            other => other.map(|o| (said, o)),
        };
    }
    let server = s.finish()?.succeeded()?;
    Ok((server, client.output))
}

fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(25)..].join("\n")
}
