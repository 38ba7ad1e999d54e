//! The places that programs run in: one host over loopback, two hosts on a wire.

use rocebud_peer::device::DevInfo;
use rocebud_peer::netns::{Host, Wire};
use rocebud_peer::program::{Spec, duo};
use rocebud_peer::runner::Need;
use rocebud_peer::{Failure, Outcome};

/// Where a pair of programs runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    Loopback,
    Veth(u32),
}

pub(crate) const PLACES: &[Place] = &[Place::Loopback, Place::Veth(1500), Place::Veth(9000)];

impl Place {
    pub(crate) fn name(self) -> String {
        match self {
            Self::Loopback => "loopback".into(),
            Self::Veth(mtu) => format!("veth_{mtu}"),
        }
    }

    /// What every case here needs; `more` is added.
    pub(crate) fn needs(self, more: &[Need]) -> Vec<Need> {
        let mut needs = vec![Need::Build];
        if matches!(self, Self::Veth(_)) {
            needs.push(Need::Root);
        }
        needs.extend(more);
        needs
    }

    pub(crate) fn open(self) -> Result<Stage, Failure> {
        let hosts = match self {
            Self::Loopback => Hosts::One(Host::loopback()?),
            Self::Veth(mtu) => Hosts::Two(Wire::new(mtu)?),
        };
        Stage::new(hosts)
    }
}

#[derive(Debug)]
pub(crate) enum Hosts {
    One(Host),
    Two(Wire),
}

/// IPv4 or IPv6 GIDs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Family {
    V4,
    V6,
}

pub(crate) const FAMILIES: &[Family] = &[Family::V4, Family::V6];

/// A server's and a client's host with their devices looked up.
#[derive(Debug)]
pub(crate) struct Stage {
    hosts: Hosts,
    server_info: DevInfo,
    client_info: DevInfo,
}

impl Stage {
    pub(crate) fn new(hosts: Hosts) -> Result<Self, Failure> {
        let (s, c) = match &hosts {
            Hosts::One(h) => (h, h),
            Hosts::Two(w) => (&w.a, &w.b),
        };
        let (server_info, client_info) = (DevInfo::of(s)?, DevInfo::of(c)?);
        Ok(Self {
            hosts,
            server_info,
            client_info,
        })
    }

    pub(crate) fn server(&self) -> &Host {
        match &self.hosts {
            Hosts::One(h) => h,
            Hosts::Two(w) => &w.a,
        }
    }

    pub(crate) fn client(&self) -> &Host {
        match &self.hosts {
            Hosts::One(h) => h,
            Hosts::Two(w) => &w.b,
        }
    }

    pub(crate) fn wire(&self) -> Option<&Wire> {
        match &self.hosts {
            Hosts::One(_) => None,
            Hosts::Two(w) => Some(w),
        }
    }

    /// GID indices of server and client.
    pub(crate) fn gids(&self, family: Family) -> Result<(String, String), Failure> {
        let of = |h: &Host, i: &DevInfo| {
            i.index_of(if family == Family::V4 { &h.v4 } else { &h.v6 })
                .map(|n| n.to_string())
        };
        Ok((
            of(self.server(), &self.server_info)?,
            of(self.client(), &self.client_info)?,
        ))
    }

    /// Runs an unmodified program on both sides. `gid_option` is its way to say the GID index.
    pub(crate) fn run(&self, p: &Program<'_>) -> Result<(String, String), Failure> {
        let (s, c) = (self.server(), self.client());
        let (gs, gc) = self.gids(p.family)?;
        let (ds, dc, port) = (s.device(), c.device(), p.port.to_string());
        let common = |dev: &'static str, gid| [dev, "", p.gid_option, gid, "-p", ""];
        let (mut sa, mut ca) = (
            common("-d", gs.as_str()).to_vec(),
            common("-d", gc.as_str()).to_vec(),
        );
        (sa[1], ca[1], sa[5], ca[5]) = (&ds, &dc, &port, &port);
        sa.extend(p.both);
        sa.extend(p.server);
        ca.extend(p.both);
        ca.extend(p.client);
        ca.push(&s.v4); // the side channel; perftest's is IPv4 only
        let (server, client) = (spec(s, p, &sa), spec(c, p, &ca));
        duo((s, &server), &client, p.port)
    }
}

fn spec(host: &Host, p: &Program<'_>, args: &[&str]) -> Spec {
    host.rocebud(p.name, args).limit(p.limit)
}

/// A program and how to call it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Program<'a> {
    pub(crate) name: &'a str,
    pub(crate) family: Family,
    pub(crate) gid_option: &'static str,
    pub(crate) port: u16,
    pub(crate) both: &'a [&'a str],
    pub(crate) server: &'a [&'a str],
    pub(crate) client: &'a [&'a str],
    /// Seconds.
    pub(crate) limit: u64,
}

impl<'a> Program<'a> {
    pub(crate) fn perftest(name: &'a str, family: Family, both: &'a [&'a str]) -> Self {
        let (gid_option, port) = ("-x", 18515);
        Self {
            name,
            family,
            gid_option,
            port,
            both,
            server: &[],
            client: &[],
            limit: 120,
        }
    }

    pub(crate) fn pingpong(name: &'a str, family: Family, both: &'a [&'a str]) -> Self {
        let (gid_option, port) = ("-g", 18515);
        Self {
            name,
            family,
            gid_option,
            port,
            both,
            server: &[],
            client: &[],
            limit: 60,
        }
    }

    /// `verify` of tests/peer/c: the client's options rule.
    pub(crate) fn verify(path: &'a str, family: Family, client: &'a [&'a str]) -> Self {
        let (gid_option, port) = ("-g", 18700);
        Self {
            name: path,
            family,
            gid_option,
            port,
            both: &[],
            server: &[],
            client,
            limit: 180,
        }
    }
}

/// Every failure of a series, so that one does not hide the next.
#[derive(Debug, Default)]
pub(crate) struct Series {
    failures: Vec<String>,
    runs: usize,
}

impl Series {
    pub(crate) fn note<T>(&mut self, what: &str, result: Result<T, Failure>) -> Option<T> {
        self.runs += 1;
        match result {
            Ok(t) => Some(t),
            Err(Failure::Wrong(why) | Failure::Skip(why)) => {
                self.failures.push(format!("{what}: {why}"));
                None
            }
        }
    }

    pub(crate) fn end(self) -> Outcome {
        if self.failures.is_empty() {
            return Ok(());
        }
        let text = format!("{} of {} runs failed", self.failures.len(), self.runs);
        Err(Failure::Wrong(format!(
            "{text}\n{}",
            self.failures.join("\n")
        )))
    }
}
