//! Who is tested, and the bench for it: two agents, and where possible the wire between them.

use std::collections::HashMap;
use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::cleanup;
use crate::endpoint;
use crate::error::{Doing, Error, Result, fail};
use crate::netns::Namespace;
use crate::peer::agent::{Address, Ended};
use crate::peer::{OURS, Options, Peer, THEIRS, bring_up, image};
use crate::run::Order;
use crate::session::Session;
use crate::shell::Place;
use crate::wire::{End, NETDEV, Plug, Wire};

/// Who is tested.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Target {
    /// Ourselves, in another namespace.
    Rocebud,
    /// Linux `rdma_rxe`, in a guest.
    Rxe,
    /// `rdma_rxe` through its own libibverbs, rocebud beside it, both in a guest.
    Inside,
    /// A device of this machine's own libibverbs.
    Verbs(String),
    /// An agent on another machine (`rocebud interop agent` there).
    Host(String),
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        match text.split_once(':').unwrap_or((text, "")) {
            ("rocebud", "") => Ok(Self::Rocebud),
            ("rxe", "") => Ok(Self::Rxe),
            ("inside", "") => Ok(Self::Inside),
            ("verbs", device) if !device.is_empty() => Ok(Self::Verbs(device.into())),
            ("host", address) if !address.is_empty() => Ok(Self::Host(address.into())),
            _ => {
                Err("a target is rocebud, rxe, inside, verbs:DEVICE or host:ADDRESS[:PORT]".into())
            }
        }
    }
}

impl Target {
    /// A short name, for tables and for the list of known disagreements.
    pub fn name(&self) -> &str {
        match self {
            Self::Rocebud => "rocebud",
            Self::Rxe => "rxe",
            Self::Inside => "inside",
            Self::Verbs(device) => device,
            Self::Host(address) => address,
        }
    }
}

impl Target {
    /// The same in the names of cells, where it must differ from "rocebud".
    pub fn label(&self) -> &str {
        match self {
            Self::Rocebud => "rocebud2",
            other => other.name(),
        }
    }
}

/// An end of a test.
#[derive(Clone, Debug)]
pub struct Party {
    /// Who it is, in messages.
    pub name: String,
    /// How to reach or start its agent.
    pub how: Reach,
    /// Where its commands run.
    pub place: Place,
    /// What goes before a program so that it uses the end's devices: `…/rocebud run --`, or nothing.
    pub run: String,
    /// The `rocebud` command, if it is rocebud.
    pub program: String,
    /// Its device; empty: the one that has the address.
    pub device: String,
    /// The network interface behind it, where it is known.
    pub netdev: String,
    /// Its addresses.
    pub v4: Option<String>,
    /// The same for IPv6.
    pub v6: Option<String>,
    /// What [`Party::device_of`] has found.
    found: Found,
    /// What [`Party::bring`] has brought.
    brought: Arc<Mutex<Vec<String>>>,
}

/// By address: the name of its device, and its index there.
type Found = Arc<Mutex<HashMap<String, (String, String)>>>;

/// How an agent is reached.
#[derive(Clone, Debug)]
pub enum Reach {
    /// A program that speaks as an agent.
    Program(Vec<String>),
    /// An agent that serves.
    Agent(Address),
}

impl Party {
    /// A new conversation with its agent.
    ///
    /// # Errors
    /// It does not answer.
    pub fn session(&self) -> Result<Session> {
        match &self.how {
            Reach::Program(argv) => Session::start(&self.name, argv),
            Reach::Agent(address) => Session::meet(&self.name, address),
        }
    }

    /// The same with an agent whose library loses these packets (`endpoint`).
    ///
    /// # Errors
    /// It is none of ours.
    pub fn losing(&self, rules: &str) -> Result<Session> {
        let Reach::Program(argv) = &self.how else {
            return fail(format!("{} is no program of ours", self.name));
        };
        Session::start_with(&self.name, argv, &[(endpoint::VARIABLE, rules)])
    }

    /// The same at these addresses.
    fn at(self, [v4, v6]: Addresses) -> Self {
        let text = |a: IpAddr| a.to_string();
        Self {
            v4: v4.map(text),
            v6: v6.map(text),
            ..self
        }
    }

    /// Name of the device that has an address, and the address's index in its GID table, as programs are told.
    ///
    /// # Errors
    /// The agent does not answer, or no device has it.
    pub fn device_of(&self, address: &str) -> Result<(String, String)> {
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = found.get(address) {
            return Ok(known.clone());
        }
        let mut session = self.session()?;
        let answer = session.ask(&format!("open dev={} addr={address}", self.device))?;
        let (dev, index) = (answer.word("dev"), answer.word("index"));
        let device = (dev.to_owned(), index.to_owned());
        found.insert(address.to_owned(), device.clone());
        Ok(device)
    }

    /// Brings a file to this end, once; answers its path there.
    ///
    /// # Errors
    /// It cannot be read, or not be put there.
    pub fn bring(&self, name: &str, here: &Path) -> Result<String> {
        let Place::There(agent) = &self.place else {
            return Ok(here.display().to_string());
        };
        let mut brought = self.brought.lock().unwrap_or_else(PoisonError::into_inner);
        let dir = cleanup::scratch()?.display().to_string();
        let there = format!("{dir}/{name}");
        if !brought.contains(&there) {
            agent.must(&format!("mkdir -p {dir}"), 20)?;
            let bytes = std::fs::read(here).doing(|| format!("reading {}", here.display()))?;
            agent.put(&there, 0o755, &bytes)?;
            brought.push(there.clone());
        }
        Ok(there)
    }

    /// Its address of a family.
    pub fn address(&self, v6: bool) -> Option<&str> {
        if v6 {
            self.v6.as_deref()
        } else {
            self.v4.as_deref()
        }
    }
}

/// Bytes that Linux's rxe takes off an interface's MTU to find its path MTU.
const HEADERS: u32 = 80;

/// What keeps a bench up.
#[derive(Debug)]
enum Frame {
    Guest(Box<Peer>),
    Pair {
        wire: Wire,
        _ours: Namespace,
        _theirs: Namespace,
    },
    /// Another bench's.
    Same(Wire),
    Nothing,
}

/// Two ends ready for scenarios.
#[derive(Debug)]
pub struct Bench {
    /// Rocebud.
    pub ours: Party,
    /// The target.
    pub theirs: Party,
    /// What the target is, in words.
    pub about: String,
    /// MTU of the wire, where it is known.
    pub mtu: Option<u32>,
    frame: Frame,
}

impl Drop for Bench {
    /// Another machine keeps nothing of ours.
    fn drop(&mut self) {
        if let (Frame::Nothing, Place::There(agent)) = (&self.frame, &self.theirs.place)
            && let Ok(dir) = cleanup::scratch()
        {
            let _ = agent.run(&format!("rm -rf {}", dir.display()), 20);
        }
    }
}

impl Bench {
    /// Sets everything up for a target.
    ///
    /// # Errors
    /// What is missing.
    pub fn set_up(order: &Order) -> Result<Self> {
        let agent = image::agent()?;
        match &order.target {
            Target::Rocebud => Self::pair(order.options.mtu, &agent),
            Target::Rxe => Self::guest(&order.options, &agent),
            Target::Inside => fail("the target \"inside\" has no bench of its own"),
            Target::Verbs(device) => Self::own(device, order, &agent),
            Target::Host(host) => Self::host(host, order, &agent),
        }
    }

    /// Both agents answer, and both devices are there: better one line now than every cell's.
    ///
    /// # Errors
    /// Who does not answer, or which device is missing.
    pub fn check(&self) -> Result<()> {
        for party in [&self.ours, &self.theirs] {
            for address in [&party.v4, &party.v6].into_iter().flatten() {
                party.device_of(address)?;
            }
        }
        Ok(())
    }

    /// The same ends, the target at other addresses of it.
    pub fn with_target_at(&self, (v4, v6): (&str, &str)) -> Self {
        let theirs = Party {
            v4: Some(v4.into()),
            v6: Some(v6.into()),
            ..self.theirs.clone()
        };
        Self {
            ours: self.ours.clone(),
            theirs,
            about: self.about.clone(),
            mtu: self.mtu,
            frame: self
                .wire()
                .map_or(Frame::Nothing, |wire| Frame::Same(wire.handle())),
        }
    }

    /// Why nothing more can be tried here, if so: asked when a cell has failed.
    pub fn lost(&mut self) -> Option<String> {
        let why = self.reason()?;
        // a guest takes a moment to end, and is the cause then
        let end = Instant::now() + Duration::from_secs(3);
        while self.peer().is_some() && Instant::now() < end {
            if let Some(how) = self.peer().and_then(Peer::ended) {
                return Some(how);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Some(why)
    }

    fn reason(&self) -> Option<String> {
        let cut = self.wire().and_then(Wire::gone);
        if let Some(end) = cut {
            let who = match end {
                End::Ours => &self.ours.name,
                End::Theirs => &self.theirs.name,
            };
            return Some(format!("{who}: its end of the wire was removed"));
        }
        for party in [&self.ours, &self.theirs] {
            party
                .found
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .clear();
        }
        self.check().err().map(|Error(why)| why)
    }

    /// Why this path MTU cannot be had, if it cannot.
    pub fn too_large(&self, path_mtu: u32) -> Option<String> {
        let mtu = self.mtu.filter(|mtu| path_mtu + HEADERS > *mtu)?;
        let needs = path_mtu + HEADERS;
        Some(format!(
            "path MTU {path_mtu} needs a wire of {needs} bytes, and --mtu is {mtu}"
        ))
    }

    /// The wire, if this program carries it.
    pub fn wire(&self) -> Option<&Wire> {
        match &self.frame {
            Frame::Guest(peer) => Some(&peer.wire),
            Frame::Pair { wire, .. } | Frame::Same(wire) => Some(wire),
            Frame::Nothing => None,
        }
    }

    /// The guest, if there is one.
    pub fn peer(&mut self) -> Option<&mut Peer> {
        match &mut self.frame {
            Frame::Guest(peer) => Some(peer),
            _ => None,
        }
    }

    /// Ourselves at both ends, on a wire of this MTU.
    ///
    /// # Errors
    /// What is missing.
    pub fn rocebud(mtu: u32) -> Result<Self> {
        Self::pair(mtu, &image::agent()?)
    }

    /// The ends' kernels know each other's Ethernet addresses before the first packet. While a kernel asks for one, what
    /// was sent waits, and what is sent in the moment of the answer overtakes it: that is no fault of the cell's ends.
    fn acquainted(self) -> Result<Self> {
        let ends = [(&self.ours, &self.theirs), (&self.theirs, &self.ours)];
        for (here, there) in ends {
            let address = format!("cat /sys/class/net/{}/address", there.netdev);
            let Ended { code, output: mac } = there.place.run(&address, 20)?;
            if code != 0 {
                // What a command says is kept in a file, so with the disk full it has said nothing.
                return fail(format!(
                    "{}: {address}: exit status {code} {} (is there room in {}, which TMPDIR names?)",
                    there.name,
                    mac.trim(),
                    std::env::temp_dir().display()
                ));
            }
            for ip in [&there.v4, &there.v6].into_iter().flatten() {
                let command = format!(
                    "ip neigh replace {ip} lladdr {} dev {} nud permanent",
                    mac.trim(),
                    here.netdev
                );
                let ended = here.place.run(&command, 20)?;
                if ended.code != 0 {
                    return fail(format!("{}: {command}: {}", here.name, ended.output.trim()));
                }
            }
        }
        Ok(self)
    }

    fn pair(mtu: u32, agent: &Path) -> Result<Self> {
        let (ours, theirs) = (Namespace::new()?, Namespace::new()?);
        let wire = Wire::lay(Plug::tap(&ours)?, Plug::tap(&theirs)?)?;
        bring_up(&ours, mtu, OURS)?;
        bring_up(&theirs, mtu, THEIRS)?;
        Self {
            ours: rocebud_in(Some(ours.name()), agent, OURS)?,
            theirs: Party {
                name: "the target (rocebud)".into(),
                ..rocebud_in(Some(theirs.name()), agent, THEIRS)?
            },
            about: "rocebud in two namespaces".into(),
            mtu: Some(mtu),
            frame: Frame::Pair {
                wire,
                _ours: ours,
                _theirs: theirs,
            },
        }
        .acquainted()
    }

    fn guest(options: &Options, agent: &Path) -> Result<Self> {
        rocebud()?;
        let peer = Peer::boot(&image::image(agent)?, options)?;
        let theirs = Party {
            name: "the target (rxe0)".into(),
            how: Reach::Agent(peer.agent.clone()),
            place: Place::There(peer.agent.clone()),
            run: String::new(),
            program: String::new(),
            netdev: "eth0".into(),
            device: "rxe0".into(),
            v4: Some(THEIRS.0.into()),
            v6: Some(THEIRS.1.into()),
            found: Found::default(),
            brought: Arc::default(),
        };
        Self {
            ours: rocebud_in(Some(peer.ns.name()), agent, OURS)?,
            theirs,
            about: format!("rdma_rxe of Linux {} ({})", peer.version, peer.how),
            mtu: Some(options.mtu),
            frame: Frame::Guest(Box::new(peer)),
        }
        .acquainted()
    }

    fn own(device: &str, order: &Order, agent: &Path) -> Result<Self> {
        if order.addresses.is_empty() {
            return fail(
                "verbs:DEVICE wants --addresses OURS,THEIRS: an address of an interface that rocebud \
                 may use, and the device's",
            );
        }
        let (ours, theirs) = ends(&order.addresses)?;
        let program = vec![agent.display().to_string(), "verbs".into()];
        let party = rocebud_in(order.namespace.as_deref(), agent, ("", ""))?;
        Ok(Self {
            ours: party.at(ours),
            theirs: Party {
                name: format!("the target ({device})"),
                how: Reach::Program(program),
                place: Place::Here(None),
                run: String::new(),
                program: String::new(),
                netdev: String::new(),
                device: device.to_owned(),
                v4: None,
                v6: None,
                found: Found::default(),
                brought: Arc::default(),
            }
            .at(theirs),
            about: format!("{device} of this machine"),
            mtu: None,
            frame: Frame::Nothing,
        })
    }

    fn host(host: &str, order: &Order, agent: &Path) -> Result<Self> {
        let socket = agent_socket(host)?;
        let (ours, theirs) = if order.addresses.is_empty() {
            ends(&[own_address_towards(socket)?, socket.ip()])?
        } else {
            ends(&order.addresses)?
        };
        let agent_address = Address {
            namespace: None,
            socket,
        };
        Ok(Self {
            ours: rocebud_in(None, agent, ("", ""))?.at(ours),
            theirs: Party {
                name: format!("the agent at {socket}"),
                how: Reach::Agent(agent_address.clone()),
                place: Place::There(agent_address),
                run: String::new(),
                program: String::new(),
                netdev: String::new(),
                device: String::new(),
                v4: None,
                v6: None,
                found: Found::default(),
                brought: Arc::default(),
            }
            .at(theirs),
            about: format!("the agent at {socket}"),
            mtu: None,
            frame: Frame::Nothing,
        })
    }
}

/// "HOST", "HOST:PORT", "[IPv6]:PORT" or "IPv6".
fn agent_socket(host: &str) -> Result<SocketAddr> {
    let with_port = if host.contains("]:") || host.matches(':').count() == 1 {
        host.to_owned()
    } else if host.contains(':') {
        format!("[{host}]:7471")
    } else {
        format!("{host}:7471")
    };
    let mut found = with_port
        .to_socket_addrs()
        .doing(|| format!("host {host}"))?;
    match found.next() {
        Some(socket) => Ok(socket),
        None => fail(format!("host {host} has no address")),
    }
}

/// An end's addresses: IPv4, IPv6.
type Addresses = [Option<IpAddr>; 2];

/// Pairs of addresses of one family, ours first, as the two ends'.
fn ends(addresses: &[IpAddr]) -> Result<(Addresses, Addresses)> {
    let (mut ours, mut theirs): (Addresses, Addresses) = ([None; 2], [None; 2]);
    for pair in addresses.chunks(2) {
        let &[a, b] = pair else {
            return fail("--addresses wants pairs: rocebud's address, then the target's");
        };
        if a.is_ipv4() != b.is_ipv4() {
            return fail(format!(
                "--addresses wants pairs of one family: {a} and {b} are not"
            ));
        }
        let at = usize::from(a.is_ipv6());
        if ours[at].is_some() {
            return fail("--addresses wants one pair of IPv4 and one of IPv6 at most");
        }
        (ours[at], theirs[at]) = (Some(a), Some(b));
    }
    Ok((ours, theirs))
}

fn own_address_towards(peer: SocketAddr) -> Result<IpAddr> {
    let any = if peer.is_ipv4() {
        "0.0.0.0:0"
    } else {
        "[::]:0"
    };
    let socket = UdpSocket::bind(any).doing(|| "a socket".into())?;
    socket.connect(peer).doing(|| format!("no way to {peer}"))?;
    Ok(socket.local_addr().doing(|| "the own address".into())?.ip())
}

/// `rocebud`, beside this program or where `ROCEBUD_BIN` says.
///
/// # Errors
/// It is not there.
pub fn rocebud() -> Result<PathBuf> {
    rocebud_of(std::env::var_os("ROCEBUD_BIN"))
}

fn rocebud_of(variable: Option<OsString>) -> Result<PathBuf> {
    let beside = || Some(std::env::current_exe().ok()?.with_file_name("rocebud"));
    let named = variable.filter(|v| !v.is_empty()).map(PathBuf::from);
    let whose = if named.is_some() {
        ", which ROCEBUD_BIN names,"
    } else {
        ""
    };
    let path = named.or_else(beside).unwrap_or_default();
    let lib = path
        .parent()
        .and_then(Path::parent)
        .map(|d| d.join("lib/libibverbs.so.1"));
    if path.exists() && lib.is_some_and(|l| l.exists()) {
        return Ok(path);
    }
    Err(Error(format!(
        "{}{whose} is no complete build: run `make build` and build/bin/rocebud, or set ROCEBUD_BIN",
        path.display()
    )))
}

fn rocebud_in(namespace: Option<&str>, agent: &Path, (v4, v6): (&str, &str)) -> Result<Party> {
    let mut argv: Vec<String> = Vec::new();
    if let Some(name) = namespace {
        argv.extend(["ip", "netns", "exec", name].map(str::to_owned));
    }
    let rocebud = rocebud()?.display().to_string();
    argv.push(rocebud.clone());
    argv.extend(["run", "--"].map(str::to_owned));
    argv.extend([agent.display().to_string(), "verbs".into()]);
    Ok(Party {
        name: "rocebud".into(),
        how: Reach::Program(argv),
        place: Place::Here(namespace.map(str::to_owned)),
        run: format!("{rocebud} run --"),
        program: rocebud,
        netdev: NETDEV.into(),
        device: String::new(),
        v4: Some(v4.into()),
        v6: Some(v6.into()),
        found: Found::default(),
        brought: Arc::default(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_of_no_complete_build_is_named_with_its_variable() {
        for path in ["/nonexistent", "/bin/sh"] {
            let why = rocebud_of(Some(path.into())).unwrap_err().to_string();
            let names = format!("{path}, which ROCEBUD_BIN names, is no complete build: ");
            assert!(why.starts_with(&names), "{why}");
        }
        let why = rocebud_of(Some(OsString::new())).unwrap_err().to_string();
        assert!(!why.contains("names"), "{why}");
    }
}
