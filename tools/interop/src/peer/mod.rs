//! The kernel peer: Linux `rdma_rxe` in a guest, on a wire that this program carries.
//!
//! The guest's first network card is the wire, without any offload; the second is qemu's user network, for the
//! agent alone. The host's end is a tap in a namespace of its own.

use std::fs::File;
use std::io::Read;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::cleanup;
use crate::error::{Doing, Result, fail};
use crate::netns::Namespace;
use crate::wire::{NETDEV, Plug, Wire};

pub mod agent;
pub mod image;

use image::Image;

/// The host's addresses on the wire.
pub const OURS: (&str, &str) = ("10.98.0.1", "fd98:0:0:1::1");
/// The target's.
pub const THEIRS: (&str, &str) = ("10.98.0.2", "fd98:0:0:1::2");

/// How the guest is to be.
#[derive(Clone, Debug)]
pub struct Options {
    /// MTU of the wire; 4200 or more gives path MTU 4096.
    pub mtu: u32,
    /// Seconds until it must answer. Software emulation needs 8 when nothing else runs.
    pub boot_s: u64,
    /// `kvm`, `tcg`, or `None` to find out.
    pub accel: Option<String>,
    /// The wire's other end is in the guest too: its third network card. Nothing of the host is on it.
    pub inside: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            mtu: 4200,
            boot_s: 180,
            accel: None,
            inside: false,
        }
    }
}

/// A guest that runs. Dropping it ends it.
#[derive(Debug)]
pub struct Peer {
    /// The wire to it.
    pub wire: Wire,
    /// The namespace of the host's end.
    pub ns: Namespace,
    /// Its agent.
    pub agent: agent::Address,
    /// Kernel and package versions.
    pub version: String,
    /// How it is run, and how long the boot took.
    pub how: String,
    qemu: Qemu,
}

impl Peer {
    /// Boots one and waits until its agent answers.
    ///
    /// # Errors
    /// qemu is missing, the guest does not boot in time, or another agent answers.
    pub fn boot(image: &Image, options: &Options) -> Result<Self> {
        let dir = cleanup::scratch()?;
        let verdict = crate::cache::directory()?.join(format!("accel-{}", boot_id()));
        let mut accel = options
            .accel
            .clone()
            .unwrap_or_else(|| guess_accel(&verdict));
        let start = Instant::now();
        let (ns, wire, qemu) = loop {
            let (ns, wire, ends) = plug(options)?;
            let mut qemu = Qemu::start(image, options, &ns, &ends, &dir, &accel)?;
            drop(ends);
            // A hypervisor may offer KVM and hang in it: then nothing at all appears on the console.
            if accel == "kvm"
                && options.accel.is_none()
                && qemu.wait_console("interop: init", 10).is_err()
            {
                // Where it cannot be kept the next run tries again.
                let _ = std::fs::write(&verdict, "tcg");
                accel = "tcg".into();
                continue;
            }
            qemu.wait_console("AGENT READY", options.boot_s)?;
            break (ns, wire, qemu);
        };
        let agent = agent::Address {
            namespace: Some(ns.name().to_owned()),
            socket: SocketAddr::from((Ipv4Addr::LOCALHOST, CONTROL_PORT)),
        };
        let how = format!("{accel}, booted in {:.1} s", start.elapsed().as_secs_f64());
        agent.must("rdma link show rxe0/1", 20)?;
        Ok(Self {
            wire,
            ns,
            agent,
            version: image.version.clone(),
            how,
            qemu,
        })
    }

    /// Does the guest still run?
    pub fn alive(&mut self) -> bool {
        self.qemu.alive()
    }

    /// How it ended, if it did: the last that its console and qemu said.
    pub fn ended(&mut self) -> Option<String> {
        if self.qemu.alive() {
            return None;
        }
        let last = self.qemu.last_words();
        Some(format!(
            "the guest ended by itself; its last words:\n{last}"
        ))
    }

    /// The process id of qemu.
    pub fn pid(&self) -> u32 {
        self.qemu.child.id()
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.qemu.stop();
    }
}

/// The port on 127.0.0.1 of the host's namespace that leads to the agent.
const CONTROL_PORT: u16 = 7000;

/// Namespace, tap with addresses, wire; and the ends of the wire for qemu: the target's, and for `inside` ours.
fn plug(options: &Options) -> Result<(Namespace, Wire, Vec<UnixStream>)> {
    let pair = || UnixStream::pair().doing(|| "a socket pair".into());
    let ns = Namespace::new()?;
    let (here, there) = pair()?;
    let mut ends = vec![there];
    let ours = if options.inside {
        let (here, there) = pair()?;
        ends.push(there);
        Plug::Stream(here)
    } else {
        let tap = Plug::tap(&ns)?;
        bring_up(&ns, options.mtu, OURS)?;
        tap
    };
    Ok((ns, Wire::lay(ours, Plug::Stream(here))?, ends))
}

/// Gives the tap of a namespace its addresses.
///
/// # Errors
/// `ip` or `sysctl` failed.
pub fn bring_up(ns: &Namespace, mtu: u32, (v4, v6): (&str, &str)) -> Result<()> {
    ns.tool(&format!("sysctl -qw net.ipv6.conf.{NETDEV}.accept_dad=0"))?;
    ns.ip(&format!("link set {NETDEV} mtu {mtu} up"))?;
    ns.ip(&format!("addr add {v4}/24 dev {NETDEV}"))?;
    ns.ip(&format!("-6 addr add {v6}/64 dev {NETDEV} nodad"))
}

fn boot_id() -> String {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    id.trim().to_owned()
}

fn guess_accel(verdict: &Path) -> String {
    let kvm = File::options()
        .read(true)
        .write(true)
        .open("/dev/kvm")
        .is_ok();
    let known = std::fs::read_to_string(verdict).unwrap_or_default();
    if kvm && known.trim() != "tcg" {
        "kvm"
    } else {
        "tcg"
    }
    .into()
}

#[derive(Debug)]
struct Qemu {
    child: Child,
    console: PathBuf,
    log: PathBuf,
}

impl Qemu {
    fn start(
        image: &Image,
        options: &Options,
        ns: &Namespace,
        ends: &[UnixStream],
        dir: &Path,
        accel: &str,
    ) -> Result<Self> {
        there("qemu-system-x86_64", "qemu-system-x86")?;
        let name = |what: &str| dir.join(format!("{}-{what}.log", ns.name()));
        let (console, log) = (name("console"), name("qemu"));
        let _ = std::fs::remove_file(&console);
        let out = File::create(&log).doing(|| format!("{}", log.display()))?;
        let flags = rustix::io::FdFlags::empty();
        for end in ends {
            rustix::io::fcntl_setfd(end, flags).doing(|| "the wire's descriptor".into())?;
        }
        let mut command = Command::new("setpriv");
        // the kernel ends it when this program is killed
        command.args(["--pdeathsig", "KILL", "ip", "netns", "exec", ns.name()]);
        command
            .arg("qemu-system-x86_64")
            .args(machine(accel))
            .arg("-kernel")
            .arg(&image.kernel);
        command
            .arg("-initrd")
            .arg(&image.initrd)
            .args(["-append", &kernel_line(options.mtu)]);
        command
            .arg("-serial")
            .arg(format!("file:{}", console.display()));
        command.args(cards(ends));
        command
            .stdin(Stdio::null())
            .stdout(out.try_clone().doing(|| "a log".into())?)
            .stderr(out)
            // a Ctrl-C is for this program, which then ends the guest
            .process_group(0);
        let child = command
            .spawn()
            .doing(|| "starting setpriv (util-linux)".into())?;
        cleanup::process(child.id());
        Ok(Self {
            child,
            console,
            log,
        })
    }

    fn alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Waits until the console shows `text`.
    fn wait_console(&mut self, text: &str, seconds: u64) -> Result<()> {
        let end = Instant::now() + Duration::from_secs(seconds);
        loop {
            let said = read_lossy(&self.console);
            if said.contains(text) {
                return Ok(());
            }
            if !self.alive() {
                return fail(format!(
                    "the guest ended before it was ready; its last words:\n{}",
                    self.last_words()
                ));
            }
            if Instant::now() > end {
                self.stop();
                return fail(format!(
                    "the guest did not get ready within {seconds} s (--boot gives it more time); its last words:\n{}",
                    self.last_words()
                ));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// The end of its console, and what qemu said.
    fn last_words(&self) -> String {
        let console = read_lossy(&self.console);
        let lines: Vec<&str> = console.lines().filter(|l| !l.trim().is_empty()).collect();
        // behind a panic come more lines than these
        let behind = lines.len().saturating_sub(5);
        let panic = lines[..behind]
            .iter()
            .filter(|l| l.contains("Kernel panic"));
        let mut words: String = panic.map(|line| format!("{line}\n")).collect();
        words.push_str(&lines[behind..].join("\n"));
        let qemu = read_lossy(&self.log);
        for line in qemu.lines().take(5) {
            words.push_str(&format!("\nqemu: {line}"));
        }
        match words.trim() {
            "" => "nothing at all, of it or of qemu".into(),
            some => some.to_owned(),
        }
    }

    fn stop(&mut self) {
        let pid = self.child.id();
        let _ = self.child.kill();
        let _ = self.child.wait();
        cleanup::process_gone(pid);
    }
}

impl Drop for Qemu {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A program that is needed, and the package it is of.
fn there(program: &str, package: &str) -> Result<()> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    if std::env::split_paths(&path).any(|dir| dir.join(program).is_file()) {
        return Ok(());
    }
    fail(format!("{program} is missing: apt-get install {package}"))
}

fn read_lossy(path: &Path) -> String {
    let mut bytes = Vec::new();
    if let Ok(mut file) = File::open(path) {
        let _ = file.read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn machine(accel: &str) -> Vec<String> {
    let (accel, cpu) = if accel == "kvm" {
        ("kvm", "host")
    } else {
        ("tcg,thread=multi", "max")
    };
    let words = format!(
        "-name rocebud-interop -machine q35 -accel {accel} -cpu {cpu} -smp 1 -m 1024 -nodefaults \
         -no-reboot -display none -device virtio-rng-pci"
    );
    words.split_whitespace().map(str::to_owned).collect()
}

fn kernel_line(mtu: u32) -> String {
    let (v4, v6) = THEIRS;
    format!(
        "console=ttyS0 quiet loglevel=4 panic=-1 mitigations=off nokaslr audit=0 cryptomgr.notests \
         random.trust_cpu=1 peer.ip4={v4} peer.ip6={v6} peer.mtu={mtu}"
    )
}

/// The wire's, with every offload off so that it carries true frames, and the control network's.
fn cards(ends: &[UnixStream]) -> Vec<String> {
    let off = "csum=off,guest_csum=off,gso=off,host_tso4=off,host_tso6=off,host_ecn=off,host_ufo=off,\
               guest_tso4=off,guest_tso6=off,guest_ecn=off,guest_ufo=off,mrg_rxbuf=on";
    let mut words = Vec::new();
    let mut card = |backend: String, card: String| {
        words.extend(["-netdev".into(), backend, "-device".into(), card]);
    };
    // the guest names its cards in the order of these addresses: eth0, eth1, eth2
    for (end, (at, mac)) in ends.iter().zip([(4, 2), (6, 1)]) {
        let id = format!("wire{at}");
        card(
            format!("socket,id={id},fd={}", end.as_raw_fd()),
            format!(
                "virtio-net-pci,netdev={id},mac=52:54:00:98:00:0{mac},addr={at},speed=10000,duplex=full,romfile=,{off}"
            ),
        );
    }
    card(
        format!(
            "user,id=ctl,restrict=on,ipv6=off,hostfwd=tcp:127.0.0.1:{CONTROL_PORT}-10.0.2.15:7000"
        ),
        "virtio-net-pci,netdev=ctl,mac=52:54:00:99:00:02,addr=5,romfile=".into(),
    );
    words
}
