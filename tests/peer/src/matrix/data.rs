//! The data of the matrix, as the files of `tests/peer/matrix` have it.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::tree;

/// A program and what it does without options.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Program {
    /// Its name on the PATH.
    pub name: String,
    /// How it is called and what its report looks like.
    pub family: Family,
    /// Size of a message in bytes.
    pub bytes: u64,
    /// How many messages.
    pub iterations: u32,
}

/// Programs that are called alike and report alike.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Family {
    /// perftest's `_bw`.
    Bandwidth,
    /// perftest's `_lat`.
    Latency,
    /// rdma-core's ping-pongs.
    Pingpong,
}

impl Family {
    /// Its name in the data.
    pub fn word(self) -> &'static str {
        match self {
            Self::Bandwidth => "bandwidth",
            Self::Latency => "latency",
            Self::Pingpong => "pingpong",
        }
    }
}

/// A choice that has to be made in every run of the programs that have it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Axis {
    /// Its name.
    pub name: String,
    /// Programs and families that have it.
    pub of: Vec<String>,
    /// What can be chosen, the default first.
    pub values: Vec<Value>,
}

impl Axis {
    /// Does `program` have this choice?
    pub fn applies(&self, program: &Program) -> bool {
        self.of
            .iter()
            .any(|o| *o == program.name || o == program.family.word())
    }
}

/// One thing that can be chosen on an axis.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Value {
    /// Its name; unique over all axes.
    pub name: String,
    /// Arguments for both sides, separated by blanks.
    pub args: String,
    /// Arguments of the full matrix, where they differ.
    pub full_args: Option<String>,
    /// At most so many messages.
    pub iterations: Option<u32>,
    /// Messages of this size.
    pub bytes: Option<u64>,
    /// Messages of every power of two up to 8 MiB.
    pub every_size: bool,
    /// This path MTU.
    pub mtu: Option<u32>,
    /// So many queue pairs.
    pub queue_pairs: Option<u32>,
    /// The program counts time, not messages.
    pub timed: bool,
    /// Takes seconds: in the full matrix it meets any other value, not any two others.
    pub heavy: bool,
    /// In the cover it meets its programs, not all other values.
    pub minor: bool,
}

/// Where the two sides are.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Place {
    /// Its name.
    pub name: String,
    /// What connects them.
    pub link: Link,
    /// The interface's MTU.
    pub mtu: u32,
    /// The largest path MTU that fits.
    pub port_mtu: u32,
    /// Values of the axis `gid` that the interface has.
    pub gids: Vec<String>,
}

/// What connects the two sides of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Link {
    /// Loopback of one host.
    Loopback,
    /// One host, the addresses of an interface of its own.
    Own,
    /// Two hosts on a veth pair.
    Veth,
    /// The same, the addresses on bridges of which the veths are ports.
    Bridge,
    /// The same, the addresses on VLAN interfaces.
    Vlan,
    /// Two hosts with tun interfaces, and a relay between them.
    Tun,
}

/// A combination that does not work, and who says so in which words.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Refusal {
    /// Who refuses; for the reader.
    pub by: String,
    /// When.
    pub when: Condition,
    /// What the server says.
    pub says: String,
    /// What the client does.
    #[serde(default)]
    pub client: RefusedClient,
}

/// A combination that is not run although nobody refuses it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LeftOut {
    /// As [`Refusal::when`].
    pub when: Condition,
    /// Why; for the reader.
    pub because: String,
}

/// Packets that may be dropped in a good run.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Explained {
    /// When.
    pub when: Condition,
    /// The counters that may rise.
    pub counters: Vec<String>,
    /// Why; for the reader.
    pub because: String,
}

/// Keys and the values of which one has to hold, for each key.
pub type Condition = BTreeMap<String, Vec<String>>;

/// What the client of a refused run does.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RefusedClient {
    /// It fails, too.
    #[default]
    Fails,
    /// It does not notice and has to be ended.
    Hangs,
    /// It ends with a failure or by a signal, and the server has to be ended.
    Crashes,
}

/// All of it.
#[derive(Clone, Debug)]
pub struct Data {
    /// Programs.
    pub programs: Vec<Program>,
    /// Their options.
    pub axes: Vec<Axis>,
    /// Places.
    pub places: Vec<Place>,
    /// What does not work.
    pub refusals: Vec<Refusal>,
    /// What is not tried.
    pub left_out: Vec<LeftOut>,
    /// Drops that are nobody's fault.
    pub explained: Vec<Explained>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Programs {
    program: Vec<Program>,
    axis: Vec<Axis>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Places {
    place: Vec<Place>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Refusals {
    refusal: Vec<Refusal>,
    left_out: Vec<LeftOut>,
    explained: Vec<Explained>,
}

impl Data {
    /// Reads and checks the files of `tests/peer/matrix`.
    ///
    /// # Errors
    /// What is wrong with them, and where.
    pub fn load() -> Result<Self, String> {
        let (p, places): (Programs, Places) = (read("programs.toml")?, read("places.toml")?);
        let refusals: Refusals = read("refusals.toml")?;
        let data = Self {
            programs: p.program,
            axes: p.axis,
            places: places.place,
            refusals: refusals.refusal,
            left_out: refusals.left_out,
            explained: refusals.explained,
        };
        data.check()?;
        Ok(data)
    }

    /// A misspelt word must not silently leave something out.
    fn check(&self) -> Result<(), String> {
        for axis in &self.axes {
            let known = |o: &String| {
                let mut programs = self.programs.iter();
                programs.any(|p| p.name == *o || p.family.word() == o)
            };
            if let Some(o) = axis.of.iter().find(|o| !known(o)) {
                return Err(format!("axis {}: no program or family {o}", axis.name));
            }
        }
        let refused = self.refusals.iter().map(|r| (&r.when, &r.says));
        let left_out = self.left_out.iter().map(|l| (&l.when, &l.because));
        let explained = self.explained.iter().map(|e| (&e.when, &e.because));
        for (when, text) in refused.chain(left_out).chain(explained) {
            for (key, values) in when {
                let known = self.known_values(key);
                if let Some(v) = values.iter().find(|v| !known.contains(&v.as_str())) {
                    return Err(format!("'{text}': {key} is never {v}"));
                }
            }
        }
        Ok(())
    }

    fn known_values(&self, key: &str) -> Vec<&str> {
        match key {
            "program" => self.programs.iter().map(|p| p.name.as_str()).collect(),
            "family" => self.programs.iter().map(|p| p.family.word()).collect(),
            "place" => self.places.iter().map(|p| p.name.as_str()).collect(),
            "fits" => vec!["no"],
            "port_mtu" => vec!["less"],
            _ => {
                let axes = self.axes.iter().filter(|a| a.name == key);
                axes.flat_map(|a| a.values.iter().map(|v| v.name.as_str()))
                    .collect()
            }
        }
    }
}

fn read<T: serde::de::DeserializeOwned>(name: &str) -> Result<T, String> {
    let path = tree::root().join("tests/peer/matrix").join(name);
    let text = std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    toml::from_str(&text).map_err(|e| format!("{}: {e}", path.display()))
}
