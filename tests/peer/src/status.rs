//! `rocebud status --json`, read without knowing its shape: counters are found by their names.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::netns::Host;
use crate::program::{Running, Spec};
use crate::{Failure, Outcome, tree, wrong};

/// A snapshot of a host's counters.
#[derive(Debug)]
pub struct Status(Value);

/// Counters that say that a packet was dropped. `drop_bad_psn` is not among them: the ping-pong's own
/// duplicates count there when the machine is so busy that its timers run out.
const DROPS: &[&str] = &[
    "drop_malformed",
    "drop_unknown_opcode",
    "rx_icrc_encapsulated",
    "drop_no_qp",
    "drop_wrong_class",
    "drop_bad_state",
    "drop_wrong_peer",
    "bad_pkey",
    "bad_qkey",
    "drop_no_receive",
    "drop_refused",
    "socket_overflow",
    "drop_forward",
];

/// A host, as the daemon knows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Peer {
    /// Its address.
    pub address: String,
    /// It was asked, and has not answered yet.
    pub asked: bool,
    /// It runs rocebud.
    pub ours: bool,
    /// IPv4 identifications of its packets are below this.
    pub id_bound: u64,
    /// Bytes of its processes' receive buffers.
    pub receive_buffer: u64,
}

impl Status {
    /// Asks `rocebud status --json` in `host`.
    ///
    /// # Errors
    /// It failed or printed something that is not JSON.
    pub fn of(host: &Host) -> Result<Self, Failure> {
        let bin = tree::rocebud().display().to_string();
        Self::said_by(&host.plain(&bin, &["status", "--json"]))
    }

    /// Reads what `rocebud status --json` says when it is started in this way.
    ///
    /// # Errors
    /// As [`Status::of`].
    pub fn said_by(program: &Spec) -> Result<Self, Failure> {
        let said = program.clone().limit(30).run()?.succeeded()?;
        match serde_json::from_str(&said) {
            Ok(value) => Ok(Self(value)),
            Err(e) => wrong(format!("rocebud status --json: {e} in:\n{said}")),
        }
    }

    /// Addresses with ports that rdma_cm programs listen on.
    pub fn listeners(&self) -> Vec<&str> {
        let all = self.0["daemon"]["connections"]["listeners"].as_array();
        let addresses = all.into_iter().flatten().map(|l| l["address"].as_str());
        addresses.flatten().collect()
    }

    /// Hosts that programs had to do with.
    pub fn peers(&self) -> Vec<Peer> {
        let all = self.0["daemon"]["connections"]["peers"].as_array();
        let peer = |p: &Value| Peer {
            address: p["address"].as_str().unwrap_or_default().to_owned(),
            asked: p["asked"] == true,
            ours: p["ours"] == true,
            id_bound: p["id_bound"].as_u64().unwrap_or(0),
            receive_buffer: p["receive_buffer"].as_u64().unwrap_or(0),
        };
        all.into_iter().flatten().map(peer).collect()
    }

    /// Identifiers of rdma_cm programs, and connections (those in time-wait too).
    pub fn connections(&self) -> (u64, u64) {
        let has = &self.0["daemon"]["connections"];
        let number = |name| has[name].as_u64().unwrap_or(u64::MAX);
        (number("identifiers"), number("connections"))
    }

    /// The daemon's process.
    pub fn daemon_pid(&self) -> u64 {
        self.0["daemon"]["pid"].as_u64().unwrap_or(0)
    }

    /// Milliseconds of time-wait left, of each slot that rests.
    pub fn time_waits(&self) -> Vec<u64> {
        let slots = self.0["daemon"]["slots"].as_array();
        let resting = slots.into_iter().flatten().filter(|s| s["owner"].is_null());
        resting.filter_map(|s| s["time_wait_ms"].as_u64()).collect()
    }

    /// The sum of every counter of this name, over the daemon and all processes, dead ones too.
    pub fn counter(&self, name: &str) -> u64 {
        sum(&self.0, name)
    }
}

/// Waits until an rdma_cm program listens on `port`, as the daemon knows.
///
/// # Errors
/// Nobody does, and what the server said.
pub fn wait_listening(server: &mut Running, host: &Host, port: &str) -> Outcome {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        let ends = |a: &&str| a.rsplit_once(':').is_some_and(|(_, p)| p == port);
        // The daemon comes with the first program.
        if Status::of(host).is_ok_and(|s| s.listeners().iter().any(ends)) {
            return Ok(());
        }
        if !server.alive() || Instant::now() > end {
            return wrong(format!("nobody listens on {port}:\n{}", server.output()));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A point in the life of a host's daemon: which processes it had seen, what it had counted itself.
#[derive(Clone, Default, Debug)]
pub struct Mark {
    daemon: u64,
    key: u64,
    own: Value,
}

impl Status {
    /// Now.
    pub fn mark(&self) -> Mark {
        let daemon = &self.0["daemon"];
        Mark {
            daemon: daemon["pid"].as_u64().unwrap_or(0),
            key: self.keys().max().unwrap_or(0),
            own: daemon["counters"].clone(),
        }
    }

    fn keys(&self) -> impl Iterator<Item = u64> {
        let processes = self.0["processes"].as_array().into_iter().flatten();
        processes.filter_map(|p| p["key"].as_u64())
    }

    /// A counter's sum over the processes that came after `mark`, and what the daemon itself counted
    /// since. (The sum over everything can fall: the daemon forgets processes that ended long ago.)
    pub fn counter_since(&self, mark: &Mark, name: &str) -> u64 {
        let daemon = &self.0["daemon"];
        let same = daemon["pid"].as_u64() == Some(mark.daemon);
        let (key, own) = if same {
            (mark.key, sum(&mark.own, name))
        } else {
            (0, 0)
        };
        let processes = self.0["processes"].as_array().into_iter().flatten();
        let new = processes.filter(|p| p["key"].as_u64().is_some_and(|k| k > key));
        let counted: u64 = new.map(|p| sum(&p["counters"], name)).sum();
        counted + sum(&daemon["counters"], name).saturating_sub(own)
    }

    /// Packets dropped since `mark`, by reason; only the reasons that occurred.
    pub fn drops_since(&self, mark: &Mark) -> Vec<(&'static str, u64)> {
        let counts = DROPS
            .iter()
            .map(|name| (*name, self.counter_since(mark, name)));
        counts.filter(|(_, n)| *n > 0).collect()
    }
}

/// Packets dropped, by reason.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Drops(Vec<(&'static str, u64)>);

impl Drops {
    /// Every reason's count in `host`, since its daemon started.
    ///
    /// # Errors
    /// As [`Status::of`].
    pub fn of(host: &Host) -> Result<Self, Failure> {
        let status = Status::of(host)?;
        Ok(Self(
            DROPS
                .iter()
                .map(|name| (*name, status.counter(name)))
                .collect(),
        ))
    }

    /// What was dropped since `before`.
    pub fn since(&self, before: &Self) -> Self {
        let pairs = self.0.iter().zip(&before.0);
        Self(
            pairs
                .map(|((name, n), (_, b))| (*name, n.saturating_sub(*b)))
                .collect(),
        )
    }

    /// All reasons together.
    pub fn total(&self) -> u64 {
        self.0.iter().map(|(_, n)| n).sum()
    }
}

/// `{"name": 5}` and `["name", 5]` both count.
fn sum(value: &Value, name: &str) -> u64 {
    match value {
        Value::Object(map) => map
            .iter()
            .map(|(k, v)| {
                if k == name {
                    v.as_u64().unwrap_or_else(|| sum(v, name))
                } else {
                    sum(v, name)
                }
            })
            .sum(),
        Value::Array(list) => match list.as_slice() {
            [Value::String(k), Value::Number(n)] if k == name => n.as_u64().unwrap_or(0),
            list => list.iter().map(|v| sum(v, name)).sum(),
        },
        _ => 0,
    }
}
