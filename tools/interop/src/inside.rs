//! A device of the real libibverbs as the target, without owning an RNIC: in the guest, this very program drives
//! `rxe0` through rdma-core, with rocebud on the guest's third network card, moved into a namespace of its own
//! (kernel rxe holds port 4791 of the first one).

use std::path::{Path, PathBuf};
use std::time::Instant;

use serde::Deserialize;

use crate::cell::{Ran, Verdict};
use crate::check;
use crate::error::{Doing, Error, Result, fail};
use crate::known;
use crate::peer::agent::Address;
use crate::peer::{OURS, Options, Peer, THEIRS, image};
use crate::report::{self, Report};
use crate::run::{Order, explain};
use crate::shell::Place;
use crate::target::rocebud;
use crate::wire::pcap;

/// Where the build is put in the guest.
const HOME: &str = "/opt/rocebud";

/// Boots a guest with both ends of the wire, and lets the runner in it run.
///
/// # Errors
/// The guest does not boot, or takes no files.
pub fn run(order: &Order) -> Result<Report> {
    let begin = Instant::now();
    let when = report::now();
    let image = image::image(&image::agent()?)?;
    let options = Options {
        inside: true,
        ..order.options.clone()
    };
    let peer = Peer::boot(&image, &options)?;
    eprintln!(
        "rdma_rxe of Linux {} ({}), rocebud beside it",
        peer.version, peer.how
    );
    furnish(&peer.agent, order.options.mtu)?;
    let mut cells = Vec::new();
    for (name, work) in PROGRAMS {
        let start = Instant::now();
        let mut ran = Ran::new((*name).to_owned(), "through our library");
        if let Err(Error(why)) = work(&peer.agent) {
            ran.verdict = Verdict::Failed(why);
        }
        ran.ms = u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX);
        cells.push(ran);
    }
    cells.extend(scenarios(order, &peer)?);
    let known = known::of("rxe")?;
    cells.iter_mut().for_each(|ran| explain(ran, &known));
    Ok(Report {
        target: order.target.name().to_owned(),
        command: order.command.clone(),
        when,
        about: format!("verbs:rxe0 in a guest, Linux {}", peer.version),
        seconds: begin.elapsed().as_secs_f64(),
        cells,
        trouble: None,
    })
}

/// The build, and the namespace that rocebud lives in.
fn furnish(agent: &Address, mtu: u32) -> Result<()> {
    agent.must(&format!("mkdir -p {HOME}/bin {HOME}/lib"), 20)?;
    let program = rocebud()?;
    let lib = program
        .parent()
        .and_then(Path::parent)
        .map(|d| d.join("lib"))
        .unwrap_or_default();
    let me = std::env::current_exe().doing(|| "this program's own path".into())?;
    let mut files: Vec<(PathBuf, String)> = vec![
        (program, format!("{HOME}/bin/rocebud")),
        (me, format!("{HOME}/bin/rocebud-interop")),
    ];
    for name in ["libibverbs.so.1", "librdmacm.so.1", "rocebud-shim.so"] {
        files.push((lib.join(name), format!("{HOME}/lib/{name}")));
    }
    for (from, to) in files {
        let bytes = std::fs::read(&from).doing(|| from.display().to_string())?;
        agent.put(&to, 0o755, &bytes)?;
    }
    let (v4, v6) = OURS;
    let lines = [
        "ip netns add inner".to_owned(),
        "ip link set eth2 netns inner".to_owned(),
        "ip -n inner link set lo up".to_owned(),
        "ip netns exec inner sysctl -qw net.ipv6.conf.eth2.accept_dad=0".to_owned(),
        format!("ip -n inner link set eth2 mtu {mtu} up"),
        format!("ip -n inner addr add {v4}/24 dev eth2"),
        format!("ip -n inner -6 addr add {v6}/64 dev eth2 nodad"),
    ];
    agent.must(&lines.join(" && "), 30).map(drop)
}

/// A program and what must come of it.
type Work = fn(&Address) -> Result<()>;

const PROGRAMS: &[(&str, Work)] = &[
    (
        "rocebud run -- ibv_devices lists rxe0 and ours",
        both_listed,
    ),
    ("rocebud run -- ib_write_bw -d rxe0", write_bw_on_rxe),
];

fn both_listed(agent: &Address) -> Result<()> {
    let said = agent.must(
        &format!("ip netns exec inner {HOME}/bin/rocebud run -- ibv_devices"),
        60,
    )?;
    if said.contains("rxe0") && said.contains("rb_eth2") {
        return Ok(());
    }
    fail(format!("not both are listed:\n{said}"))
}

/// Kernel rxe through the real libibverbs, loaded by ours, at both ends.
fn write_bw_on_rxe(agent: &Address) -> Result<()> {
    let run =
        format!("ip netns exec inner {HOME}/bin/rocebud run -- ib_write_bw -d rxe0 -x 1 -F -n 50");
    let server = agent.start(&run, 120)?;
    let listens = "ip netns exec inner ss -Hltn 'sport = :18515' | grep -q .";
    let ready = Place::There(agent.clone()).until(listens, 40);
    if let Err(Error(why)) = ready {
        let said = server.output();
        server.kill();
        return fail(format!("{why}\nserver so far:\n{said}"));
    }
    let client = agent.must(&format!("{run} {}", OURS.0), 120);
    if let Err(Error(why)) = client {
        let said = server.output();
        server.kill();
        return fail(format!("{why}\nserver so far:\n{said}"));
    }
    let ended = server.finish()?;
    if ended.code == 0 {
        return Ok(());
    }
    fail(format!(
        "server: exit status {}\n{}",
        ended.code, ended.output
    ))
}

#[derive(Deserialize)]
struct Inner {
    cells: Vec<Ran>,
}

/// The runner's own cells, in the guest. Probes and faults other than losses need the wire, which is out here, so they
/// are left out; losses are made in our end.
fn scenarios(order: &Order, peer: &Peer) -> Result<Vec<Ran>> {
    peer.wire.keep(true);
    let only = format!(
        "! duplicate ! reorder ! corrupt ! programs ! probes {}",
        order.only.join(" ")
    )
    .replace("! ", "!");
    let command = format!(
        "ROCEBUD_INTEROP_AGENT=/usr/bin/rocebud-interop-agent {HOME}/bin/rocebud-interop --target verbs:rxe0 \
         --namespace inner --addresses {},{},{},{} --short --only '{only}' --json /tmp/inner.json",
        OURS.0, THEIRS.0, OURS.1, THEIRS.1
    );
    let ended = peer.agent.run(&command, 400)?;
    if ended.code > 1 {
        return fail(format!("the runner in the guest: {}", ended.output));
    }
    let json = peer.agent.must("cat /tmp/inner.json", 60)?;
    let inner: Inner =
        serde_json::from_str(&json).doing(|| "the result of the runner in the guest".into())?;
    let mut cells = inner.cells;
    for ran in &mut cells {
        // it is rxe all the same
        ran.name = ran.name.replace("rxe0", "rxe");
        ran.group = format!("verbs:rxe0, {}", ran.group);
    }
    let mut whole = Ran::new("every packet between the two".into(), "verbs:rxe0, packets");
    let frames = peer.wire.take();
    whole.packets = check::each(&frames);
    if let Some(dir) = &order.captures {
        std::fs::create_dir_all(dir).doing(|| dir.display().to_string())?;
        pcap::write(&dir.join("inside.pcap"), &frames)?;
    }
    whole.verdict = match whole.packets.wrong.first() {
        Some(first) => Verdict::Failed(format!("packets: {first}")),
        None if whole.packets.packets == 0 => Verdict::Failed("not one packet on the wire".into()),
        None => Verdict::Ok,
    };
    cells.push(whole);
    Ok(cells)
}
