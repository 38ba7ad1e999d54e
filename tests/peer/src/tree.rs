//! Where things are in the tree, and what the machine has.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, OnceLock};

use crate::Failure;
use crate::runner::Need;

/// The root of the repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .unwrap_or_default()
}

/// `build/bin/rocebud`, or what `ROCEBUD_BIN` names.
pub fn rocebud() -> PathBuf {
    std::env::var_os("ROCEBUD_BIN").map_or_else(|| root().join("build/bin/rocebud"), PathBuf::from)
}

/// What is to be done where that is no build.
fn no_build(program: &Path) -> String {
    match std::env::var_os("ROCEBUD_BIN") {
        Some(_) => format!("the build that ROCEBUD_BIN names: {}", program.display()),
        None => "the build: run `make build`".to_owned(),
    }
}

/// Where outputs and captures of this run are kept.
pub fn log_dir() -> PathBuf {
    let dir = root().join("build/tests/logs");
    let _ = std::fs::create_dir_all(&dir);
    dir
}

/// What daemons say that programs of this run have started.
pub fn daemon_log() -> PathBuf {
    log_dir().join(format!("daemons-{}.txt", std::process::id()))
}

/// A script of `tests/peer/scripts`.
pub fn script(name: &str) -> String {
    root()
        .join("tests/peer/scripts")
        .join(name)
        .display()
        .to_string()
}

/// A C program of `tests/peer/c`, compiled the first time it is asked for.
///
/// # Errors
/// What the compiler said.
pub fn c_program(name: &str) -> Result<String, Failure> {
    c_program_with(name, name, "cc", &["-libverbs"])
}

/// As [`c_program`]: `tests/peer/c/{name}.c` becomes the program `out`, by a compiler driver and with
/// libraries or options of its own.
///
/// # Errors
/// What the compiler said.
pub fn c_program_with(name: &str, out: &str, cc: &str, more: &[&str]) -> Result<String, Failure> {
    let dir = root().join("build/tests");
    std::fs::create_dir_all(&dir)?;
    let (source, out) = (
        root().join(format!("tests/peer/c/{name}.c")),
        dir.join(out).display().to_string(),
    );
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _others_wait = ONE_AT_A_TIME.lock();
    if newest(&root().join("tests/peer/c")) > modified(Path::new(&out)) {
        let cc = Command::new(cc)
            .args(["-O2", "-Wall", "-Wextra", "-pthread", "-o", &out])
            .arg(&source)
            .args(more)
            .output()?;
        if !cc.status.success() {
            let text = String::from_utf8_lossy(&cc.stderr).into_owned();
            return Err(Failure::Wrong(format!("cc {name}.c: {text}")));
        }
    }
    Ok(out)
}

fn modified(path: &Path) -> Option<std::time::SystemTime> {
    path.metadata().and_then(|m| m.modified()).ok()
}

fn newest(dir: &Path) -> Option<std::time::SystemTime> {
    std::fs::read_dir(dir)
        .ok()?
        .flatten()
        .filter_map(|e| modified(&e.path()))
        .max()
}

/// What this machine can do; looked up once a run.
#[derive(Clone, Copy, Debug)]
pub struct Machine {
    root: bool,
    build: bool,
    compiler: bool,
    pyverbs: bool,
    nft: bool,
}

impl Machine {
    /// Looks.
    pub fn look() -> Self {
        Self {
            root: is_root(),
            build: rocebud().exists(),
            compiler: quiet("cc", &["--version"])
                && Path::new("/usr/include/infiniband/verbs.h").exists(),
            pyverbs: quiet("/usr/bin/python3", &["-c", "import pyverbs.device"]),
            nft: is_root() && has_nft(),
        }
    }

    /// The name of a thing that is missing, and how to get it.
    pub fn lacks(&self, need: Need) -> Option<String> {
        let (there, name) = match need {
            Need::Root => (self.root, "root, for network namespaces".to_owned()),
            Need::Build => (self.build, no_build(&rocebud())),
            Need::Compiler => (
                self.compiler,
                "a C compiler and libibverbs-dev: apt-get install gcc libibverbs-dev".to_owned(),
            ),
            Need::Program(p) => (on_path(p), format!("the program {p}")),
            Need::Header(h) => (Path::new(h).exists(), format!("the C header {h}")),
            Need::Pyverbs => (
                self.pyverbs,
                "pyverbs: apt-get install python3-pyverbs".to_owned(),
            ),
            Need::Nft => (self.nft, "nftables: apt-get install nftables".to_owned()),
            Need::Link(kind) => (
                is_root() && has_link(kind),
                format!("a kernel with {kind} interfaces"),
            ),
        };
        (!there).then_some(name)
    }
}

/// Makes the kernel an interface of this kind?
fn has_link(kind: &str) -> bool {
    let (ns, words) = (format!("rbprobe{}", std::process::id()), words_of(kind));
    let ip = |words: &str| {
        let words: Vec<&str> = words.split(' ').collect();
        quiet("ip", &words)
    };
    let there = ip(&format!("netns add {ns}")) && ip(&format!("-n {ns} link add name x {words}"));
    ip(&format!("netns del {ns}"));
    there
}

fn words_of(kind: &str) -> String {
    match kind {
        "vlan" => "link lo type vlan id 5".to_owned(),
        other => format!("type {other}"),
    }
}

/// The command line of a process, or nothing when it is gone.
pub fn command_of(pid: u32) -> String {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words = line.split(|b| *b == 0).map(String::from_utf8_lossy);
    words.collect::<Vec<_>>().join(" ").trim().to_owned()
}

/// Are we root?
pub fn is_root() -> bool {
    static ROOT: OnceLock<bool> = OnceLock::new();
    *ROOT.get_or_init(|| {
        Command::new("id")
            .arg("-u")
            .output()
            .is_ok_and(|o| o.stdout.trim_ascii() == b"0")
    })
}

fn has_nft() -> bool {
    let ns = format!("rbprobe{}", std::process::id());
    let made = quiet("ip", &["netns", "add", &ns]);
    let works = made && quiet("ip", &["netns", "exec", &ns, "nft", "add table inet probe"]);
    if made {
        quiet("ip", &["netns", "del", &ns]);
    }
    works
}

fn on_path(program: &str) -> bool {
    let path = std::env::var("PATH").unwrap_or_default();
    path.split(':')
        .chain(["/usr/sbin", "/sbin"])
        .any(|d| Path::new(d).join(program).exists())
}

fn quiet(program: &str, args: &[&str]) -> bool {
    Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|s| s.success())
}
