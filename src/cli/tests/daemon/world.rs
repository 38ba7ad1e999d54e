//! Namespaces, processes and waiting.

use std::io::{BufRead, BufReader, ErrorKind};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rocebud_ctl::messages::Role;
use rocebud_ctl::status::StatusReport;
use rocebud_ctl::{Client, DeviceInfo, SocketName};

use crate::sys;

/// The command under test.
pub(crate) const ROCEBUD: &str = env!("CARGO_BIN_EXE_rocebud");

/// Nobody's user number, without a home directory.
pub(crate) const NOBODY: u32 = 65_534;

/// Enters a fresh namespace with `lo` up. False (and a line that says so) without the right to.
pub(crate) fn enter() -> bool {
    if !rustix::process::geteuid().is_root() || sys::own_network().is_err() {
        eprintln!("SKIPPED: network namespaces need root");
        return false;
    }
    ip("link set lo up");
    true
}

/// Runs `ip` in this thread's namespace.
pub(crate) fn ip(arguments: &str) {
    let out = Command::new("ip")
        .args(arguments.split(' '))
        .output()
        .expect("ip");
    assert!(
        out.status.success(),
        "ip {arguments}: {}",
        text(&out.stderr)
    );
}

/// The command with arguments, looking only at what is given to it.
pub(crate) fn rocebud(arguments: &[&str]) -> Command {
    let mut command = Command::new(ROCEBUD);
    command
        .args(arguments)
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
    command
}

/// Makes a command run as nobody.
pub(crate) fn as_nobody(command: &mut Command) -> &mut Command {
    use std::os::unix::process::CommandExt;
    command.uid(NOBODY).gid(NOBODY).current_dir("/")
}

pub(crate) fn output(command: &mut Command) -> (bool, String, String) {
    command.stdin(Stdio::null());
    // A test beside this one may have forked while a copy of the command was still being written:
    // until that child execs, the copy counts as open for writing.
    let Output {
        status,
        stdout,
        stderr,
    } = wait(10, "the command may be executed", || {
        match command.output() {
            Err(error) if error.kind() == ErrorKind::ExecutableFileBusy => None,
            done => Some(done.expect("run")),
        }
    });
    (status.success(), text(&stdout), text(&stderr))
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Connects as a program would; starts a daemon if there is none.
pub(crate) fn connect() -> Client {
    // This test program is not where the library looks for a daemon to start; the command is.
    let (ok, _, err) = output(&mut rocebud(&["devices"]));
    assert!(ok, "starting a daemon: {err}");
    Client::connect_or_start().unwrap_or_else(|error| panic!("connecting: {error}"))
}

/// Text without its line breaks: sentences of `rocebud status` go on in the next line.
pub(crate) fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// What the running daemon says; panics if there is none.
pub(crate) fn status() -> StatusReport {
    let client = Client::connect_running(Role::Command)
        .expect("status")
        .expect("a daemon");
    client.status().expect("status")
}

/// Tries until `what` is there, at most `seconds`.
pub(crate) fn wait<T>(seconds: u64, what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(seconds);
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "{what}: not within {seconds} s");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A device by name.
pub(crate) fn device(client: &Client, name: &str) -> Option<DeviceInfo> {
    let devices = client.devices().expect("devices");
    devices.into_iter().find(|d| d.name == name)
}

/// A process that is killed when the test ends.
#[derive(Debug)]
pub(crate) struct Process(pub(crate) Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts this test program once more as a client that does `role`; returns it with the line that
/// it says when it is ready.
pub(crate) fn actor(role: &str, uid: Option<u32>) -> (Process, String) {
    let exe = std::env::current_exe().expect("own path");
    let mut command = Command::new(exe);
    command.args(["--exact", "clients::actor", "--ignored", "--nocapture"]);
    command.env("ACTOR", role).env("ROCEBUD_DAEMON", ROCEBUD);
    if let Some(uid) = uid {
        use std::os::unix::process::CommandExt;
        command.uid(uid).gid(uid).current_dir("/");
    }
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("spawn");
    let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let ready = lines.map_while(Result::ok).find_map(|line| {
        let at = line.find("ready ")?;
        Some(line[at + 6..].to_owned())
    });
    (
        Process(child),
        ready.expect("the actor says that it is ready"),
    )
}

/// A daemon at a path, as a system's is.
#[derive(Debug)]
pub(crate) struct SystemDaemon {
    pub(crate) path: String,
    pub(crate) process: Process,
}

impl SystemDaemon {
    pub(crate) fn start(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("rocebud-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("mkdir");
        Self::start_at(dir.join("control").to_str().expect("utf-8"))
    }

    /// Starts one at a path and waits until it answers.
    pub(crate) fn start_at(path: &str) -> Self {
        let mut command = rocebud(&["daemon", "--socket", path]);
        let process = Process(command.stderr(Stdio::null()).spawn().expect("daemon"));
        let path = path.to_owned();
        let daemon = Self { path, process };
        wait(5, "the daemon answers", || {
            daemon.try_connect(Role::Command)
        });
        daemon
    }

    pub(crate) fn connect(&self) -> Client {
        self.try_connect(Role::Library).expect("connect")
    }

    fn try_connect(&self, role: Role) -> Option<Client> {
        Client::connect(&SocketName::parse(self.path.as_ref()), role).ok()
    }
}

impl Drop for SystemDaemon {
    fn drop(&mut self) {
        if let Some(dir) = std::path::Path::new(&self.path).parent() {
            let _ = std::fs::remove_dir_all(dir);
        }
    }
}
