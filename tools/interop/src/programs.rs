//! Unmodified programs between the two ends, from `matrix/programs.toml`: each as server and as client at either end.

use std::time::{Duration, Instant};

use serde::Deserialize;

use crate::cell::{Ran, Verdict};
use crate::check;
use crate::cleanup;
use crate::endpoint;
use crate::error::{Doing, Error, Result, fail};
use crate::matrix::{Family, Who};
use crate::peer::image;
use crate::shell::{Place, Running};
use crate::target::{Bench, Party};
use crate::wire::{End, Fault, Rule, Seen, Wire};

const BUILT_IN: &str = include_str!("../matrix/programs.toml");

/// Of the file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Programs {
    program: Vec<Program>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Program {
    name: String,
    #[serde(default)]
    short: bool,
    /// Only for these targets.
    #[serde(default)]
    targets: Vec<String>,
    command: String,
    /// Instead of `command` at the server's end.
    server_command: Option<String>,
    #[serde(default)]
    server: String,
    #[serde(default)]
    client: String,
    wait: String,
    #[serde(default)]
    stays: bool,
    /// What the client prints when it has done what is asked of it; then it is stopped, and the server too.
    until: Option<String>,
    check: Option<String>,
    #[serde(default)]
    mtus: Vec<u32>,
    #[serde(default)]
    families: Vec<Family>,
    /// Instead of every family with every path MTU.
    #[serde(default)]
    pairs: Vec<(Family, u32)>,
    #[serde(default)]
    loss: u64,
    /// Whose packets the wire loses; both ends', without this.
    loss_by: Option<Who>,
    netem: Option<String>,
    #[serde(default = "limit")]
    limit: u64,
}

fn limit() -> u64 {
    120
}

/// A program to run, one way round.
#[derive(Clone, Debug)]
pub struct Play {
    program: Program,
    family: Family,
    mtu: u32,
    client: Who,
}

/// Everything of the file that fits the target.
///
/// # Errors
/// The file is not well-formed.
pub fn plays(target: &str, short: bool) -> Result<Vec<Play>> {
    let file: Programs = toml::from_str(BUILT_IN).doing(|| "the list of programs".into())?;
    let mut all = Vec::new();
    for program in file.program {
        let fits = program.targets.is_empty() || program.targets.iter().any(|t| t == target);
        if !fits || (short && !program.short) {
            continue;
        }
        let mut pairs = program.pairs.clone();
        for family in &program.families {
            pairs.extend(program.mtus.iter().map(|mtu| (*family, *mtu)));
        }
        for (family, mtu) in pairs {
            for client in [Who::Ours, Who::Theirs] {
                all.push(Play {
                    program: program.clone(),
                    family,
                    mtu,
                    client,
                });
            }
        }
    }
    Ok(all)
}

impl Play {
    /// A line that names it.
    pub fn name(&self, target: &str) -> String {
        let way = match self.client {
            Who::Ours => format!("rocebud>{target}"),
            Who::Theirs => format!("{target}>rocebud"),
        };
        let family = if self.family == Family::V4 {
            "v4"
        } else {
            "v6"
        };
        format!("{} mtu {} {family} {way}", self.program.name, self.mtu)
    }

    /// Runs it.
    pub fn run(&self, bench: &Bench, target: &str) -> (Ran, Vec<Seen>) {
        let begin = Instant::now();
        let mut ran = Ran::new(self.name(target), "programs");
        let mut frames = Vec::new();
        ran.verdict = match self.not_possible(bench) {
            Some(why) => Verdict::NotRun(why),
            None => match self.play(bench, &mut ran, &mut frames) {
                Ok(()) => Verdict::Ok,
                Err(Error(why)) => Verdict::Failed(why),
            },
        };
        ran.ms = u64::try_from(begin.elapsed().as_millis()).unwrap_or(u64::MAX);
        (ran, frames)
    }

    fn not_possible(&self, bench: &Bench) -> Option<String> {
        let v6 = self.family == Family::V6;
        let there = |p: &Party| p.address(v6).is_some() && p.address(false).is_some();
        if !there(&bench.ours) || !there(&bench.theirs) {
            return Some(
                "an end has no address of this family, or no IPv4 address for handshakes".into(),
            );
        }
        bench.too_large(self.mtu)
    }

    fn play(&self, bench: &Bench, ran: &mut Ran, frames: &mut Vec<Seen>) -> Result<()> {
        if let Some(wire) = bench.wire() {
            wire.rules(self.rules());
            wire.keep(true);
        }
        let netem = self.program.netem.as_ref();
        let (_, theirs) = places(bench);
        if let Some(options) = netem {
            let netdev = bench.theirs.netdev.as_str();
            must(
                &theirs,
                &format!("tc qdisc add dev {netdev} root netem {options}"),
            )?;
        }
        let mut played = self.duo(bench, &mut ran.commands);
        let ended = bench.wire().map(Wire::elapsed);
        if netem.is_some() {
            must(
                &theirs,
                &format!("tc qdisc del dev {} root", bench.theirs.netdev),
            )?;
        }
        if let Some(wire) = bench.wire() {
            wire.rules(Vec::new());
            *frames = wire.take();
            wire.keep(false);
            let silence = ended.and_then(|end| check::silence(frames, end, QUIET));
            ran.packets = check::each(frames);
            if let (Err(error), Some(how)) = (&mut played, silence) {
                error.0.push('\n');
                error.0.push_str(&how);
            }
        }
        played?;
        match ran.packets.wrong.as_slice() {
            [first, ..] => fail(format!("packets: {first}")),
            [] if bench.wire().is_some() && ran.packets.packets == 0 => {
                fail("not one packet on the wire")
            }
            [] => Ok(()),
        }
    }

    fn rules(&self) -> Vec<Rule> {
        let both = [(Who::Ours, End::Ours), (Who::Theirs, End::Theirs)];
        let chosen = both
            .into_iter()
            .filter(|(who, _)| self.program.loss_by.is_none_or(|only| only == *who));
        let rule = |(_, end)| {
            Rule::chance(
                end,
                self.program.loss,
                SEED + u64::from(self.mtu),
                Fault::Drop,
            )
        };
        if self.program.loss == 0 {
            Vec::new()
        } else {
            chosen.map(rule).collect()
        }
    }

    /// Server, client, and what must hold afterwards.
    fn duo(&self, bench: &Bench, commands: &mut Vec<String>) -> Result<()> {
        let (ours, theirs) = places(bench);
        let (server_place, client_place) = match self.client {
            Who::Ours => (theirs, ours),
            Who::Theirs => (ours, theirs),
        };
        let p = &self.program;
        let first = p.server_command.as_ref().unwrap_or(&p.command);
        let server_text = self.fill(bench, &format!("{first} {}", p.server), false)?;
        let client_text = self.fill(bench, &format!("{} {}", p.command, p.client), true)?;
        commands.extend([&server_text, &client_text].map(|text| text.trim().to_owned()));
        let mut server = server_place.start(&server_text, p.limit)?;
        let ready = self.fill(bench, &self.ready(), false)?;
        let settle = if self.program.wait.starts_with("tcp ") {
            Duration::ZERO
        } else {
            SETTLE
        };
        if let Err(Error(why)) = wait_ready(&server_place, &mut server, &ready, settle) {
            let said = tail(&server.output());
            server.kill();
            return fail(format!("server: {why}\n{said}"));
        }
        let client = client_place.start(&client_text, p.limit)?;
        let (client, reached) = match &p.until {
            Some(words) => client.until(words)?,
            None => (client.finish()?, false),
        };
        if p.until.is_some() && !reached && client.code == 0 {
            server.kill();
            return fail(format!(
                "client: it ended without having printed {:?}\n{}",
                p.until,
                tail(&client.output)
            ));
        }
        if !reached && client.code != 0 {
            std::thread::sleep(Duration::from_millis(300));
            let said = tail(&server.output());
            server.kill();
            return fail(format!(
                "client: exit status {}: {client_text}\n{}\nserver so far: {server_text}\n{said}",
                client.code,
                tail(&client.output)
            ));
        }
        if p.stays || reached {
            server.kill();
        } else {
            let ended = server.finish()?;
            if ended.code != 0 {
                let said = tail(&ended.output);
                return fail(format!(
                    "server: exit status {}: {server_text}\n{said}",
                    ended.code
                ));
            }
        }
        match &p.check {
            Some(check) => must(&server_place, &self.fill(bench, check, false)?),
            None => Ok(()),
        }
    }

    /// Files of this run of the program; the same name at both ends, and no other run's.
    fn directory(&self, bench: &Bench) -> Result<String> {
        let lane = match &bench.ours.place {
            Place::Here(Some(namespace)) => namespace,
            _ => "files",
        };
        Ok(format!("{}/{lane}", cleanup::scratch()?.display()))
    }

    /// A command that succeeds when the server is ready.
    fn ready(&self) -> String {
        match self.program.wait.split_once(' ') {
            Some(("tcp", port)) => format!("ss -Hltn 'sport = :{port}' | grep -q ."),
            Some((_, port)) => format!("{{listeners}} | grep ':{port}' >/dev/null"),
            None => "ip maddr show | grep -q {group_mac}".into(),
        }
    }

    /// Puts the words of one end into a command.
    fn fill(&self, bench: &Bench, text: &str, client: bool) -> Result<String> {
        let who = if client == (self.client == Who::Ours) {
            &bench.ours
        } else {
            &bench.theirs
        };
        let server = if self.client == Who::Ours {
            &bench.theirs
        } else {
            &bench.ours
        };
        let v6 = self.family == Family::V6;
        let losing = self.program.loss > 0 && bench.wire().is_none() && !who.run.is_empty();
        let run = if losing {
            let seed = SEED + u64::from(self.mtu);
            let rules = endpoint::of_chance(self.program.loss, self.program.loss_by, seed);
            format!("{}='{rules}' {}", endpoint::VARIABLE, who.run)
        } else {
            who.run.clone()
        };
        let own = who.address(v6).unwrap_or_default();
        let (group, mac) = if v6 {
            ("ff1e::4:98", "33:33:00:04:00:98")
        } else {
            ("239.255.98.1", "01:00:5e:7f:62:01")
        };
        let listeners = if who.run.is_empty() {
            // the agent of another machine may run on rocebud's devices
            "{ rdma resource show cm_id 2>/dev/null | grep LISTEN; \
             [ -z \"$ROCEBUD_DAEMON\" ] || \"$ROCEBUD_DAEMON\" status --json; }"
                .to_owned()
        } else {
            format!("{} status --json", who.program)
        };
        let mut out = text.to_owned();
        if out.contains("{gid}") || out.contains("{dev}") {
            let (dev, gid) = who.device_of(own)?;
            out = out.replace("{dev}", &dev).replace("{gid}", &gid);
        }
        if out.contains("{verify}") {
            let verify = who.bring("verify", &verify()?)?;
            out = out.replace("{verify}", &format!("{run} {verify}"));
        }
        if out.contains("{quick}") {
            let quick = who.bring("quick.so", &quick()?)?;
            out = out.replace("{quick}", &format!("LD_PRELOAD={quick}"));
        }
        Ok(out
            .replace("{run}", &run)
            .replace("{addr}", server.address(v6).unwrap_or_default())
            .replace("{v4}", server.address(false).unwrap_or_default())
            .replace("{own}", own)
            .replace("{tmp}", &self.directory(bench)?)
            .replace("{mtu}", &self.mtu.to_string())
            .replace("{group}", group)
            .replace("{group_mac}", mac)
            .replace("{listeners}", &listeners))
    }
}

/// Between "the server listens" and the client's start: Linux shows a listener of rdma_cm before its devices listen,
/// and who connects at once is refused; and it joins a group before its device does.
const SETTLE: Duration = Duration::from_millis(500);

/// Of the dice that lose packets.
const SEED: u64 = 0x5eed;

/// An emulated guest on a machine with ten times as much work as cores took more than 30 s.
const LISTENS_WITHIN: Duration = Duration::from_secs(90);

/// A wire on which nothing is seen for so long has stalled.
const QUIET: Duration = Duration::from_secs(5);

fn places(bench: &Bench) -> (Place, Place) {
    (bench.ours.place.clone(), bench.theirs.place.clone())
}

fn must(place: &Place, command: &str) -> Result<()> {
    let ended = place.run(command, 60)?;
    if ended.code == 0 {
        return Ok(());
    }
    fail(format!(
        "{command}: exit status {}\n{}",
        ended.code,
        tail(&ended.output)
    ))
}

fn wait_ready(place: &Place, server: &mut Running, ready: &str, settle: Duration) -> Result<()> {
    let end = Instant::now() + LISTENS_WITHIN;
    loop {
        if place.run(ready, 20)?.code == 0 {
            std::thread::sleep(settle);
            return Ok(());
        }
        if server.over() {
            return fail("it ended before it listened");
        }
        if Instant::now() > end {
            return fail(format!(
                "it does not listen within {} s",
                LISTENS_WITHIN.as_secs()
            ));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(40)..].join("\n")
}

/// The program that verifies data, compiled once.
///
/// # Errors
/// There is no C compiler.
pub fn verify() -> Result<std::path::PathBuf> {
    image::compiled(
        "rocebud-interop-verify",
        &[
            ("verify.c", include_str!("../../../tests/peer/c/verify.c")),
            ("plan.h", include_str!("../../../tests/peer/c/plan.h")),
            ("common.h", include_str!("../../../tests/peer/c/common.h")),
        ],
    )
}

/// What perftest is run with, so that it does not spend its time on the length of a cycle.
///
/// # Errors
/// There is no C compiler.
pub fn quick() -> Result<std::path::PathBuf> {
    image::compiled(
        "rocebud-interop-quick.so",
        &[("quick.c", include_str!("../agent/quick.c"))],
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_that_comes_along_is_well_formed_and_its_names_differ() {
        let all = plays("rxe", false).expect("parses");
        let mut names: Vec<String> = all.iter().map(|p| p.name("rxe")).collect();
        let before = names.len();
        assert!(before > 60, "{before}");
        names.sort();
        names.dedup();
        assert_eq!(before, names.len(), "two of one name");
    }
}
