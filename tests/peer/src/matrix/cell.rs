//! One run: a value for every axis that its program has.

use std::fmt;

use super::data::{Axis, Condition, Data, Explained, Family, Place, Program, Refusal, Value};

/// Axis 0 of a [`Choice`].
pub const PROGRAM: usize = 0;
/// Axis 1 of a [`Choice`].
pub const PLACE: usize = 1;
/// The data's own axes follow.
pub const FIRST_AXIS: usize = 2;
/// The axis of how the ends come together.
pub const CONNECT: &str = "connect";
/// Its value for rdma_cm.
pub const RDMA_CM: &str = "rdma_cm";

/// What is chosen on each axis; programs lack some.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Choice {
    /// Nothing yet.
    Open,
    /// The program has no such choice.
    Lacking,
    /// Index of the value.
    Value(usize),
}

/// A run, perhaps not wholly chosen.
#[derive(Clone, Copy, Debug)]
pub struct Cell<'a> {
    data: &'a Data,
    choices: &'a [Choice],
}

impl<'a> Cell<'a> {
    /// The run in which `choices` were made: program, place, then the data's axes in their order.
    pub fn new(data: &'a Data, choices: &'a [Choice]) -> Self {
        Self { data, choices }
    }

    fn index(&self, axis: usize) -> Option<usize> {
        match self.choices.get(axis) {
            Some(Choice::Value(i)) => Some(*i),
            _ => None,
        }
    }

    /// Its program, when chosen.
    pub fn program(&self) -> Option<&'a Program> {
        self.data.programs.get(self.index(PROGRAM)?)
    }

    /// Its place, when chosen.
    pub fn place(&self) -> Option<&'a Place> {
        self.data.places.get(self.index(PLACE)?)
    }

    /// The values chosen on the data's axes.
    pub fn values(&self) -> impl Iterator<Item = (&'a Axis, &'a Value)> + use<'a> {
        let (data, choices) = (self.data, self.choices);
        let chosen = choices.iter().skip(FIRST_AXIS).zip(&data.axes);
        chosen.filter_map(|(choice, axis)| match choice {
            Choice::Value(i) => Some((axis, axis.values.get(*i)?)),
            _ => None,
        })
    }

    /// The value on the axis of this name, when chosen.
    pub fn value(&self, axis: &str) -> Option<&'a Value> {
        self.values().find(|(a, _)| a.name == axis).map(|(_, v)| v)
    }

    /// The path MTU of the run. `None` while it depends on something open.
    pub fn path_mtu(&self) -> Option<u32> {
        let (program, place) = (self.program()?, self.place()?);
        match self.choice_of("mtu") {
            Choice::Open => None,
            Choice::Lacking => Some(place.port_mtu),
            Choice::Value(_) => Some(match self.value("mtu")?.mtu {
                Some(mtu) => mtu.min(place.port_mtu),
                None if program.family == Family::Pingpong => 1024.min(place.port_mtu),
                None => place.port_mtu,
            }),
        }
    }

    fn choice_of(&self, axis: &str) -> Choice {
        let at = self.data.axes.iter().position(|a| a.name == axis);
        let choice = at.and_then(|at| self.choices.get(at + FIRST_AXIS));
        choice.copied().unwrap_or(Choice::Lacking)
    }

    /// Is this key's value one of `wanted`? Not while it is open.
    fn holds(&self, key: &str, wanted: &[String]) -> bool {
        let found = match key {
            "program" => self.program().map(|p| p.name.as_str()),
            "family" => self.program().map(|p| p.family.word()),
            "place" => self.place().map(|p| p.name.as_str()),
            "fits" => self.fits().map(|fits| if fits { "yes" } else { "no" }),
            "port_mtu" => self.asks_more_than_the_port(),
            axis => self.value(axis).map(|v| v.name.as_str()),
        };
        found.is_some_and(|f| wanted.iter().any(|w| w == f))
    }

    /// Is a message no longer than the path MTU?
    fn fits(&self) -> Option<bool> {
        let program = self.program()?;
        let mut size = program.bytes;
        for axis in ["size", "message"] {
            match self.choice_of(axis) {
                Choice::Open => return None,
                Choice::Lacking => {}
                Choice::Value(_) => {
                    let value = self.value(axis)?;
                    // without a size, perftest's bandwidth tests take the path MTU for datagrams
                    if value.bytes.is_none() && program.family != Family::Pingpong {
                        return Some(true);
                    }
                    size = value.bytes.unwrap_or(size);
                }
            }
        }
        Some(size <= u64::from(self.path_mtu()?))
    }

    fn asks_more_than_the_port(&self) -> Option<&'static str> {
        let asked = self.value("mtu")?.mtu.unwrap_or(0);
        let place = self.place()?;
        Some(if asked > place.port_mtu {
            "less"
        } else {
            "enough"
        })
    }

    fn meets(&self, condition: &Condition) -> bool {
        condition
            .iter()
            .all(|(key, wanted)| self.holds(key, wanted))
    }

    /// Which refusal applies to what is chosen so far.
    pub fn refusal(&self) -> Option<&'a Refusal> {
        self.data.refusals.iter().find(|r| self.meets(&r.when))
    }

    /// May packets be dropped that this counter counts?
    pub fn explains(&self, counter: &str) -> bool {
        let named = |e: &&Explained| e.counters.iter().any(|c| c == counter);
        let mut all = self.data.explained.iter().filter(named);
        all.any(|e| self.meets(&e.when))
    }

    /// Can there be such a run: has the program these options, the place these addresses, and is it not
    /// left out?
    pub fn exists(&self) -> bool {
        let chosen = self.choices.iter().skip(FIRST_AXIS).zip(&self.data.axes);
        let options = |program: &Program| {
            chosen.clone().all(|(choice, axis)| match choice {
                Choice::Open => true,
                Choice::Lacking => !axis.applies(program),
                Choice::Value(_) => axis.applies(program),
            })
        };
        let address = match (self.place(), self.value("gid")) {
            (Some(place), Some(gid)) => place.gids.contains(&gid.name),
            _ => true,
        };
        let left_out = self.data.left_out.iter().any(|l| self.meets(&l.when));
        address && !left_out && self.program().is_none_or(options)
    }

    /// Takes it seconds?
    pub fn heavy(&self) -> bool {
        self.values().any(|(_, v)| v.heavy)
    }

    /// Is it rdma_cm that brings the ends together?
    pub fn by_rdma_cm(&self) -> bool {
        self.value(CONNECT).is_some_and(|v| v.name == RDMA_CM)
    }

    /// How many messages each queue pair sends; `None` when the program counts time.
    pub fn iterations(&self) -> Option<u32> {
        if self.values().any(|(_, v)| v.timed) {
            return None;
        }
        let limits = self.values().filter_map(|(_, v)| v.iterations);
        limits.chain(self.program().map(|p| p.iterations)).min()
    }

    /// How many queue pairs there are on each side.
    pub fn queue_pairs(&self) -> u32 {
        let counts = self.values().filter_map(|(_, v)| v.queue_pairs);
        counts.max().unwrap_or(1)
    }

    /// The sizes that the report has to show, in this order.
    pub fn sizes(&self) -> Vec<u64> {
        let (Some(program), Some(mtu)) = (self.program(), self.path_mtu()) else {
            return Vec::new();
        };
        let datagrams = self.value("transport").is_some_and(|v| v.name == "UD");
        let limit = if datagrams { u64::from(mtu) } else { 1 << 23 };
        if self.values().any(|(_, v)| v.every_size) {
            return (1..=23).map(|i| 1 << i).filter(|s| *s <= limit).collect();
        }
        let size = self.values().find_map(|(_, v)| v.bytes);
        vec![size.unwrap_or_else(|| program.bytes.min(limit))]
    }

    /// Arguments for both sides, without device, address and port.
    pub fn args(&self, full: bool) -> Vec<&'a str> {
        let of = |v: &'a Value| match &v.full_args {
            Some(args) if full => args.split_whitespace(),
            _ => v.args.split_whitespace(),
        };
        self.values().flat_map(|(_, v)| of(v)).collect()
    }
}

/// `PROGRAM@PLACE/GID` and the values that are not defaults.
impl fmt::Display for Cell<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |n: Option<&String>| n.map_or("?", String::as_str).to_owned();
        let gid = self.value("gid").map(|v| &v.name);
        write!(
            f,
            "{}@{}",
            name(self.program().map(|p| &p.name)),
            name(self.place().map(|p| &p.name))
        )?;
        write!(f, "/{}", name(gid))?;
        for (axis, value) in self.values() {
            let default = axis.values.first().is_some_and(|v| v.name == value.name);
            if axis.name != "gid" && !default {
                write!(f, "+{}", value.name)?;
            }
        }
        Ok(())
    }
}
