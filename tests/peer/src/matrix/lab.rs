//! The places of the matrix, set up when first needed and kept.

use std::collections::BTreeMap;

use super::data::{Data, Link, Place};
use crate::device::DevInfo;
use crate::netns::{Host, Over, Wire};
use crate::program::Running;
use crate::status::{Mark, Status};
use crate::{Failure, wrong};

/// Places that stand.
#[derive(Debug)]
pub struct Lab<'a> {
    data: &'a Data,
    stages: BTreeMap<String, Stage>,
    /// Places that the machine cannot make, and what it lacks.
    lacking: BTreeMap<String, String>,
}

impl<'a> Lab<'a> {
    /// Nothing stands yet.
    pub fn new(data: &'a Data) -> Self {
        Self {
            data,
            stages: BTreeMap::new(),
            lacking: BTreeMap::new(),
        }
    }

    /// The place, set up.
    ///
    /// # Errors
    /// [`Failure::Skip`] if the machine cannot make it.
    pub fn stage(&mut self, place: &Place) -> Result<&mut Stage, Failure> {
        if let Some(what) = self.lacking.get(&place.name) {
            return Err(Failure::Skip(what.clone()));
        }
        if !self.stages.contains_key(&place.name) {
            match Stage::open(place) {
                Ok(stage) => drop(self.stages.insert(place.name.clone(), stage)),
                Err(Failure::Skip(what)) => {
                    self.lacking.insert(place.name.clone(), what.clone());
                    return Err(Failure::Skip(what));
                }
                Err(wrong) => return Err(wrong),
            }
        }
        match self.stages.get_mut(&place.name) {
            Some(stage) => Ok(stage),
            None => wrong(format!("{}: not standing", place.name)),
        }
    }

    /// The data that it is for.
    pub fn data(&self) -> &'a Data {
        self.data
    }

    /// Takes a place down, so that the next run gets a fresh one.
    pub fn close(&mut self, place: &Place) {
        self.stages.remove(&place.name);
    }
}

/// A place: a server's and a client's host, which may be one.
#[derive(Debug)]
pub struct Stage {
    server: Host,
    /// The other host, or the other end of the one host's interface.
    other: Option<Host>,
    one_host: bool,
    /// GID indices of server and client by the name of the address.
    gids: [BTreeMap<String, u32>; 2],
    marks: [Mark; 2],
    _relay: Option<Running>,
}

impl Stage {
    fn open(place: &Place) -> Result<Self, Failure> {
        let two = |wire: Wire, relay| (wire.a, Some(wire.b), relay);
        let (server, other, relay) = match place.link {
            Link::Loopback => (Host::loopback()?, None, None),
            Link::Own | Link::Veth => two(Wire::new(place.mtu)?, None),
            Link::Bridge => two(Wire::over(Over::Bridge, place.mtu)?, None),
            Link::Vlan => two(Wire::over(Over::Vlan, place.mtu)?, None),
            Link::Tun => {
                let (wire, relay) = Wire::tun(place.mtu)?;
                two(wire, Some(relay))
            }
        };
        let one_host = matches!(place.link, Link::Loopback | Link::Own);
        let mut stage = Self {
            server,
            other,
            one_host,
            gids: Default::default(),
            marks: Default::default(),
            _relay: relay,
        };
        stage.gids = [gids(place, stage.server())?, gids(place, stage.client())?];
        Ok(stage)
    }

    /// Where the server runs.
    pub fn server(&self) -> &Host {
        &self.server
    }

    /// Where the client runs.
    pub fn client(&self) -> &Host {
        match &self.other {
            Some(other) if !self.one_host => other,
            _ => &self.server,
        }
    }

    /// Indices of server's and client's address of this name.
    pub fn gid(&self, name: &str) -> Option<[u32; 2]> {
        let [s, c] = &self.gids;
        Some([*s.get(name)?, *c.get(name)?])
    }

    /// What both hosts counted since they were asked last.
    ///
    /// # Errors
    /// `rocebud status` failed.
    pub fn counted(&mut self) -> Result<Counted, Failure> {
        let mut all = Counted::default();
        let hosts = if self.one_host { 1 } else { 2 };
        for i in 0..hosts {
            let host = if i == 0 { self.server() } else { self.client() };
            let status = Status::of(host)?;
            let mark = &self.marks[i];
            all.retransmits += status.counter_since(mark, "retransmits");
            all.drops.extend(status.drops_since(mark));
            self.marks[i] = status.mark();
        }
        Ok(all)
    }
}

/// Counters of one run.
#[derive(Clone, Default, Debug)]
pub struct Counted {
    /// Packets sent again.
    pub retransmits: u64,
    /// Packets dropped, by reason.
    pub drops: Vec<(&'static str, u64)>,
}

/// The indices of the addresses that the place should have; it must have these and no others.
fn gids(place: &Place, host: &Host) -> Result<BTreeMap<String, u32>, Failure> {
    let info = DevInfo::of(host)?;
    let mtu = info.field("active_mtu").unwrap_or_default().to_owned();
    if !mtu.starts_with(&format!("{} ", place.port_mtu)) {
        let (name, want) = (&place.name, place.port_mtu);
        return wrong(format!("{name}: active_mtu is {mtu}, not {want}"));
    }
    let mut found = BTreeMap::new();
    for name in place.gids.iter().filter(|n| *n != "chosen") {
        let index = match name.as_str() {
            "v4" => info.index_of(&host.v4)?,
            "v6" => info.index_of(&host.v6)?,
            _ => link_local(&info, name)?,
        };
        found.insert(name.clone(), index);
    }
    if found.len() == info.gids.len() {
        return Ok(found);
    }
    let text = &info.text;
    wrong(format!(
        "{}: not the addresses {found:?} alone:\n{text}",
        place.name
    ))
}

fn link_local(info: &DevInfo, name: &str) -> Result<u32, Failure> {
    let mut all = info.gids.iter();
    match all.find(|(_, a)| a.segments()[0] & 0xffc0 == 0xfe80) {
        Some((index, _)) if name == "link_local" => Ok(*index),
        _ => wrong(format!("no {name} address in:\n{}", info.text)),
    }
}
