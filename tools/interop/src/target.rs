//! Who is tested, and the bench for it: two agents, and where possible the wire between them.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::error::{Doing, Error, Result, fail};
use crate::netns::Namespace;
use crate::peer::agent::Address;
use crate::peer::{OURS, Options, Peer, THEIRS, bring_up, image};
use crate::programs;
use crate::run::Order;
use crate::session::Session;
use crate::shell::Place;
use crate::wire::{NETDEV, Plug, Wire};

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

/// An end of a test.
#[derive(Clone, Debug)]
pub struct Party {
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
}

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
    pub fn session(&self, name: &str) -> Result<Session> {
        match &self.how {
            Reach::Program(argv) => Session::start(name, argv),
            Reach::Agent(address) => Session::meet(name, address),
        }
    }

    /// Name of the device that has an address, and the address's index in its GID table, as programs are told.
    ///
    /// # Errors
    /// The agent does not answer, or no device has it.
    pub fn device_of(&self, address: &str) -> Result<(String, String)> {
        let mut session = self.session("an agent")?;
        let answer = session.ask(&format!("open dev={} addr={address}", self.device))?;
        Ok((
            answer.word("dev").to_owned(),
            answer.word("index").to_owned(),
        ))
    }

    /// The path of the program that verifies data, at this end.
    ///
    /// # Errors
    /// It cannot be compiled, or not be put there.
    pub fn verify(&self) -> Result<String> {
        let here = programs::verify()?;
        let Place::There(agent) = &self.place else {
            return Ok(here.display().to_string());
        };
        let there = "/tmp/rocebud-interop-verify";
        let bytes = std::fs::read(&here).doing(|| "reading verify".into())?;
        agent.put(there, 0o755, &bytes)?;
        Ok(there.to_owned())
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

/// What keeps a bench up.
#[derive(Debug)]
enum Frame {
    Guest(Box<Peer>),
    Pair {
        wire: Wire,
        _ours: Namespace,
        _theirs: Namespace,
    },
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
    frame: Frame,
}

impl Bench {
    /// Sets everything up for a target.
    ///
    /// # Errors
    /// What is missing.
    pub fn set_up(order: &Order) -> Result<Self> {
        let agent = image::agent()?;
        match &order.target {
            Target::Rocebud => Self::pair(&order.options, &agent),
            Target::Rxe => Self::guest(&order.options, &agent),
            Target::Inside => fail("the target \"inside\" has no bench of its own"),
            Target::Verbs(device) => Self::own(device, order, &agent),
            Target::Host(host) => Self::host(host, &agent),
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

    /// The wire, if this program carries it.
    pub fn wire(&self) -> Option<&Wire> {
        match &self.frame {
            Frame::Guest(peer) => Some(&peer.wire),
            Frame::Pair { wire, .. } => Some(wire),
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

    fn pair(options: &Options, agent: &Path) -> Result<Self> {
        let (ours, theirs) = (Namespace::new()?, Namespace::new()?);
        let wire = Wire::lay(Plug::tap(&ours)?, Plug::tap(&theirs)?)?;
        bring_up(&ours, options.mtu, OURS)?;
        bring_up(&theirs, options.mtu, THEIRS)?;
        Ok(Self {
            ours: rocebud_in(Some(ours.name()), agent, OURS)?,
            theirs: rocebud_in(Some(theirs.name()), agent, THEIRS)?,
            about: "rocebud in two namespaces".into(),
            frame: Frame::Pair {
                wire,
                _ours: ours,
                _theirs: theirs,
            },
        })
    }

    fn guest(options: &Options, agent: &Path) -> Result<Self> {
        let peer = Peer::boot(&image::image(agent)?, options)?;
        let theirs = Party {
            how: Reach::Agent(peer.agent.clone()),
            place: Place::There(peer.agent.clone()),
            run: String::new(),
            program: String::new(),
            netdev: "eth0".into(),
            device: "rxe0".into(),
            v4: Some(THEIRS.0.into()),
            v6: Some(THEIRS.1.into()),
        };
        Ok(Self {
            ours: rocebud_in(Some(peer.ns.name()), agent, OURS)?,
            theirs,
            about: format!("rdma_rxe of Linux {} ({})", peer.version, peer.how),
            frame: Frame::Guest(Box::new(peer)),
        })
    }

    fn own(device: &str, order: &Order, agent: &Path) -> Result<Self> {
        let (mut ours, mut theirs) = ([None, None], [None, None]);
        for pair in order.addresses.chunks(2) {
            let [a, b] = pair else { continue };
            for (addr, of) in [(a, &mut ours), (b, &mut theirs)] {
                let ip: IpAddr = addr.parse().doing(|| addr.clone())?;
                of[usize::from(ip.is_ipv6())] = Some(addr.clone());
            }
        }
        if order.addresses.is_empty() || order.addresses.len() % 2 == 1 {
            return fail(
                "verbs:DEVICE wants --addresses OURS,THEIRS: an address of an interface that rocebud \
                 may use, and the device's",
            );
        }
        let ([v4, v6], [their_v4, their_v6]) = (ours, theirs);
        let program = vec![agent.display().to_string(), "verbs".into()];
        let party = rocebud_in(order.namespace.as_deref(), agent, ("", ""))?;
        Ok(Self {
            ours: Party { v4, v6, ..party },
            theirs: Party {
                how: Reach::Program(program),
                place: Place::Here(None),
                run: String::new(),
                program: String::new(),
                netdev: String::new(),
                device: device.to_owned(),
                v4: their_v4,
                v6: their_v6,
            },
            about: format!("{device} of this machine"),
            frame: Frame::Nothing,
        })
    }

    fn host(host: &str, agent: &Path) -> Result<Self> {
        let with_port = if host.contains("]:") || host.matches(':').count() == 1 {
            host.to_owned()
        } else {
            format!(
                "{}:7471",
                if host.contains(':') {
                    format!("[{host}]")
                } else {
                    host.to_owned()
                }
            )
        };
        let mut found = with_port
            .to_socket_addrs()
            .doing(|| format!("host {host}"))?;
        let Some(socket) = found.next() else {
            return fail(format!("host {host} has no address"));
        };
        let mine = own_address_towards(socket)?;
        let agent_address = Address {
            namespace: None,
            socket,
        };
        let split = |ip: IpAddr| {
            let text = ip.to_string();
            if ip.is_ipv4() {
                (Some(text), None)
            } else {
                (None, Some(text))
            }
        };
        let ((v4, v6), (their_v4, their_v6)) = (split(mine), split(socket.ip()));
        Ok(Self {
            ours: Party {
                v4,
                v6,
                ..rocebud_in(None, agent, ("", ""))?
            },
            theirs: Party {
                how: Reach::Agent(agent_address.clone()),
                place: Place::There(agent_address),
                run: String::new(),
                program: String::new(),
                netdev: String::new(),
                device: String::new(),
                v4: their_v4,
                v6: their_v6,
            },
            about: format!("the agent at {socket}"),
            frame: Frame::Nothing,
        })
    }
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
    let beside = || Some(std::env::current_exe().ok()?.with_file_name("rocebud"));
    let named = std::env::var_os("ROCEBUD_BIN").map(PathBuf::from);
    let path = named.or_else(beside).unwrap_or_default();
    let lib = path
        .parent()
        .and_then(Path::parent)
        .map(|d| d.join("lib/libibverbs.so.1"));
    if path.exists() && lib.is_some_and(|l| l.exists()) {
        return Ok(path);
    }
    Err(Error(format!(
        "{} is no complete build: run `make build` and build/bin/rocebud, or set ROCEBUD_BIN",
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
        how: Reach::Program(argv),
        place: Place::Here(namespace.map(str::to_owned)),
        run: format!("{rocebud} run --"),
        program: rocebud,
        netdev: NETDEV.into(),
        device: String::new(),
        v4: Some(v4.into()),
        v6: Some(v6.into()),
    })
}
