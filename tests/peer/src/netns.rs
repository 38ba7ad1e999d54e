//! Hosts: network namespaces that exist only for one case.

use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::program::Spec;
use crate::{Failure, Outcome, tree, wrong};

mod links;

pub use links::Over;

/// A place to run programs: a namespace of ours, or (as an ordinary user) where we are.
#[derive(Debug)]
pub struct Host {
    ns: Option<String>,
    /// The interface under test.
    pub netdev: String,
    /// Its IPv4 address.
    pub v4: String,
    /// Its IPv6 address.
    pub v6: String,
}

/// Which addresses the interfaces of a wire get.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Addresses {
    /// IPv4, IPv6 and link-local.
    Dual,
    /// IPv6 switched off on the interface.
    V4Only,
    /// No IPv4.
    V6Only,
}

impl Host {
    /// A host that has nothing but loopback. As an ordinary user: this very host.
    ///
    /// # Errors
    /// `ip` failed.
    pub fn loopback() -> Result<Self, Failure> {
        let ns = if tree::is_root() {
            Some(new_namespace("l")?)
        } else {
            None
        };
        Ok(Self {
            ns,
            netdev: "lo".into(),
            v4: "127.0.0.1".into(),
            v6: "::1".into(),
        })
    }

    /// The device that rocebud makes of the interface.
    pub fn device(&self) -> String {
        format!("rb_{}", self.netdev)
    }

    /// The namespace's name, if there is one.
    pub fn namespace(&self) -> Option<&str> {
        self.ns.as_deref()
    }

    /// An unmodified program under `rocebud run`.
    pub fn rocebud(&self, program: &str, args: &[&str]) -> Spec {
        let mut all = vec!["run", "--", program];
        all.extend(args);
        self.plain(&tree::rocebud().display().to_string(), &all)
    }

    /// A program as it is.
    pub fn plain(&self, program: &str, args: &[&str]) -> Spec {
        Spec::new(self.ns.as_deref(), program, args)
    }

    /// A program in no host of ours.
    pub fn outside(program: &str, args: &[&str]) -> Spec {
        Spec::new(None, program, args)
    }

    /// `ip` in this host; the words are split at blanks.
    ///
    /// # Errors
    /// What `ip` said.
    pub fn ip(&self, words: &str) -> Outcome {
        let mut args: Vec<&str> = Vec::new();
        if let Some(ns) = &self.ns {
            args.extend(["-n", ns]);
        }
        args.extend(words.split_whitespace());
        command("ip", &args)
    }

    /// Runs a tool in this host and wants it to succeed.
    ///
    /// # Errors
    /// What it said.
    pub fn tool(&self, words: &str) -> Outcome {
        let mut it = words.split_whitespace();
        let program = it.next().unwrap_or_default();
        let args: Vec<&str> = it.collect();
        self.plain(program, &args).run()?.succeeded().map(drop)
    }

    /// Drops RoCE packets that arrive here and match an nftables expression, such as
    /// `numgen random mod 100 < 5` or `@th,64,8 0x12 numgen inc mod 7 0` (every seventh of opcode
    /// 0x12: the BTH starts 64 bits into the UDP header). Frames must come singly for that:
    /// [`Wire::true_frames`].
    ///
    /// # Errors
    /// What `nft` said.
    pub fn drop_arriving(&self, expression: &str) -> Outcome {
        let rule = format!("add rule inet loss arriving udp dport 4791 {expression} counter drop");
        for words in [
            "add table inet loss",
            "add chain inet loss arriving { type filter hook input priority 0; }",
            rule.as_str(),
        ] {
            self.plain("nft", &[words]).run()?.succeeded()?;
        }
        Ok(())
    }

    /// Counts the RoCE packets that arrive here from now on: [`Host::arrived`].
    ///
    /// # Errors
    /// What `nft` said.
    pub fn count_arriving(&self) -> Outcome {
        self.count_arriving_like("")
    }

    /// As [`Host::count_arriving`], of those that match an nftables expression.
    ///
    /// # Errors
    /// What `nft` said.
    pub fn count_arriving_like(&self, expression: &str) -> Outcome {
        let rule = format!("add rule inet seen arriving udp dport 4791 {expression} counter");
        for words in [
            "add table inet seen",
            "add chain inet seen arriving { type filter hook input priority -1; }",
            &rule,
        ] {
            self.plain("nft", &[words]).run()?.succeeded()?;
        }
        Ok(())
    }

    /// How many RoCE packets have arrived since [`Host::count_arriving`].
    ///
    /// # Errors
    /// What `nft` said.
    pub fn arrived(&self) -> Result<u64, Failure> {
        self.counted("seen")
    }

    /// How many packets the rules of [`Host::drop_arriving`] have dropped.
    ///
    /// # Errors
    /// What `nft` said.
    pub fn dropped(&self) -> Result<u64, Failure> {
        self.counted("loss")
    }

    fn counted(&self, table: &str) -> Result<u64, Failure> {
        let list = format!("list table inet {table}");
        let text = self.plain("nft", &[&list]).run()?.succeeded()?;
        let counts = text.split("counter packets ").skip(1);
        Ok(counts
            .filter_map(|t| t.split(' ').next()?.parse::<u64>().ok())
            .sum())
    }

    /// The interface's link-local address, with its scope.
    ///
    /// # Errors
    /// It has none.
    pub fn link_local(&self) -> Result<String, Failure> {
        let show = format!("-6 -o addr show dev {} scope link", self.netdev);
        let show: Vec<&str> = show.split_whitespace().collect();
        let said = self.plain("ip", &show).run()?.succeeded()?;
        let address = said.split_whitespace().find_map(|w| w.split_once('/'));
        match address {
            Some((address, _)) => Ok(format!("{address}%{}", self.netdev)),
            None => wrong(format!("no link-local address in:\n{said}")),
        }
    }

    /// Process ids in this host.
    pub fn pids(&self) -> Vec<u32> {
        let Some(ns) = &self.ns else {
            return Vec::new();
        };
        let out = Command::new("ip").args(["netns", "pids", ns]).output();
        let text = out
            .map(|o| String::from_utf8_lossy(&o.stdout).into_owned())
            .unwrap_or_default();
        text.split_whitespace()
            .filter_map(|w| w.parse().ok())
            .collect()
    }
}

impl Drop for Host {
    /// Ends what still runs here (the daemon that was started by itself, too) and removes the namespace.
    fn drop(&mut self) {
        let Some(ns) = self.ns.take() else { return };
        let left: Vec<String> = {
            let out = Command::new("ip").args(["netns", "pids", &ns]).output();
            let text = out
                .map(|o| String::from_utf8_lossy(&o.stdout).into_owned())
                .unwrap_or_default();
            text.split_whitespace().map(str::to_owned).collect()
        };
        if !left.is_empty() {
            let _ = Command::new("kill").arg("-KILL").args(&left).status();
        }
        let _ = Command::new("ip").args(["netns", "del", &ns]).status();
    }
}

/// Two hosts with one wire between them.
#[derive(Debug)]
pub struct Wire {
    /// One end.
    pub a: Host,
    /// The other end.
    pub b: Host,
}

impl Wire {
    /// A veth pair of this MTU with IPv4 and IPv6 addresses.
    ///
    /// # Errors
    /// `ip` failed.
    pub fn new(mtu: u32) -> Result<Self, Failure> {
        Self::with(mtu, Addresses::Dual)
    }

    /// A veth pair of this MTU and the given addresses.
    ///
    /// # Errors
    /// `ip` failed.
    pub fn with(mtu: u32, addresses: Addresses) -> Result<Self, Failure> {
        let mut wire = Self::unplugged()?;
        wire.plug(mtu, addresses)?;
        if addresses == Addresses::V6Only {
            wire.side_channel()?;
        }
        Ok(wire)
    }

    /// Two hosts that have nothing but loopback.
    fn unplugged() -> Result<Self, Failure> {
        let [a, b] = [Host::on("a", "ve0", 1)?, Host::on("b", "ve0", 2)?];
        Ok(Self { a, b })
    }

    /// Makes the veth pair of hosts that have none (any more), with the same addresses each time.
    ///
    /// # Errors
    /// `ip` failed.
    pub fn plug(&mut self, mtu: u32, addresses: Addresses) -> Outcome {
        self.bare_veth()?;
        for host in [&self.a, &self.b] {
            host.bring_up(mtu, addresses)?;
        }
        Ok(())
    }

    /// A veth pair without addresses, down.
    fn bare_veth(&self) -> Outcome {
        let [na, nb] = [&self.a, &self.b].map(|h| h.ns.as_deref().unwrap_or_default());
        command(
            "ip",
            &[
                "link", "add", "ve0", "netns", na, "type", "veth", "peer", "name", "ve0", "netns",
                nb,
            ],
        )
    }

    /// The handshakes of perftest and of the ping-pongs' servers speak IPv4 only, so an IPv6-only wire
    /// needs a second one for them: it has the IPv4 addresses that [`Host::v4`] names.
    fn side_channel(&self) -> Outcome {
        let [na, nb] = [&self.a, &self.b].map(|h| h.ns.as_deref().unwrap_or_default());
        command(
            "ip",
            &[
                "link", "add", "ct0", "netns", na, "type", "veth", "peer", "name", "ct0", "netns",
                nb,
            ],
        )?;
        for host in [&self.a, &self.b] {
            host.ip("link set ct0 up")?;
            host.ip(&format!("addr add {}/24 dev ct0", host.v4))?;
        }
        Ok(())
    }

    /// Frames leave this wire's ends as a real wire would carry them: no segmentation below us.
    ///
    /// # Errors
    /// `ethtool` failed.
    pub fn true_frames(&self) -> Outcome {
        for host in [&self.a, &self.b] {
            host.tool("ethtool -K ve0 tx-udp-segmentation off gso off gro off tso off")?;
        }
        Ok(())
    }
}

impl Host {
    fn bring_up(&self, mtu: u32, addresses: Addresses) -> Outcome {
        let netdev = &self.netdev;
        if addresses == Addresses::V4Only {
            self.tool(&format!("sysctl -qw net.ipv6.conf.{netdev}.disable_ipv6=1"))?;
        }
        self.tool(&format!("sysctl -qw net.ipv6.conf.{netdev}.accept_dad=0"))?;
        self.ip(&format!("link set {netdev} mtu {mtu} up"))?;
        if addresses != Addresses::V6Only {
            self.ip(&format!("addr add {}/24 dev {netdev}", self.v4))?;
        }
        if addresses != Addresses::V4Only {
            self.ip(&format!("-6 addr add {}/64 dev {netdev} nodad", self.v6))?;
        }
        Ok(())
    }
}

fn new_namespace(tag: &str) -> Result<String, Failure> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    let name = format!("rb{}{tag}{n}", std::process::id());
    command("ip", &["netns", "add", &name])?;
    command("ip", &["-n", &name, "link", "set", "lo", "up"])?;
    Ok(name)
}

fn command(program: &str, args: &[&str]) -> Outcome {
    let out = Command::new(program).args(args).output()?;
    if out.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    Err(Failure::Wrong(format!(
        "{program} {}: {}",
        args.join(" "),
        said.trim()
    )))
}
