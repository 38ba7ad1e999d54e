//! What the wire sees: tcpdump on veth, judged by tshark and by a script that shares no code with us.

use std::path::PathBuf;
use std::time::Duration;

use rocebud_peer::netns::{Host, Wire};
use rocebud_peer::program::Running;
use rocebud_peer::runner::{Case, Need};
use rocebud_peer::tree::{c_program, log_dir, root};
use rocebud_peer::{Failure, Outcome, ensure, wrong};

use crate::places::{Family, Hosts, Program, Series, Stage};

pub(crate) fn cases() -> Vec<Case> {
    let needs = [
        Need::Root,
        Need::Build,
        Need::Compiler,
        Need::Program("tcpdump"),
        Need::Program("tshark"),
        Need::Program("ethtool"),
    ];
    vec![
        Case::new("wire_ipv4_single_frames", &needs, || {
            frames(1500, Family::V4, false)
        }),
        Case::new("wire_ipv4_batches", &needs, || {
            frames(1500, Family::V4, true)
        }),
        Case::new("wire_ipv4_batches_mtu_9000", &needs, || {
            frames(9000, Family::V4, true)
        }),
        Case::new("wire_ipv6_single_frames", &needs, || {
            frames(1500, Family::V6, false)
        }),
        Case::new("wire_ipv6_batches", &needs, || {
            frames(9000, Family::V6, true)
        }),
    ]
}

/// Every packet decodes as RoCE v2, nothing is malformed, every ICRC is right.
fn frames(mtu: u32, family: Family, batches: bool) -> Outcome {
    let wire = Wire::new(mtu)?;
    for host in [&wire.a, &wire.b] {
        // frames leave as a wire would see them; the batches are cut up above the device
        host.tool("ethtool -K ve0 tx-udp-segmentation off")?;
        host.tool("ethtool -K ve0 gro off")?;
        if !batches {
            // and with finished UDP checksums, where no kernel may refuse batches for that
            host.tool("ethtool -K ve0 tx off")?;
        }
    }
    let stage = Stage::new(Hosts::Two(wire))?;
    let mut series = Series::default();
    for (name, program) in traffic(family, batches)? {
        let mut capture = Capture::start(stage.client())?;
        series.note(&name, stage.run(&program.as_program()));
        let file = capture.stop()?;
        let icrcs = series.note(&format!("{name}: icrc"), icrc(&file, batches));
        let seen = tshark(stage.client(), &file);
        let last_id = series.note(&format!("{name}: tshark"), seen);
        if let (true, Some(id), Family::V4) = (batches, last_id, family) {
            // the kernel numbers the segments of a batch, single frames carry 0
            series.note(&name, ensure(id > 0, || "no batch was seen".into()));
        }
        if icrcs.is_some() && last_id.is_some() {
            let _ = std::fs::remove_file(&file);
        }
    }
    series.end()
}

/// Programs with arguments that live as long as the list.
struct Traffic {
    name: String,
    pingpong: bool,
    family: Family,
    args: &'static [&'static str],
    client: &'static [&'static str],
}

impl Traffic {
    fn as_program(&self) -> Program<'_> {
        let mut p = if self.pingpong {
            Program::pingpong(&self.name, self.family, self.args)
        } else if self.name.contains('/') {
            Program::verify(&self.name, self.family, self.client)
        } else {
            Program::perftest(&self.name, self.family, self.args)
        };
        p.client = self.client;
        p
    }
}

/// tshark guesses at what a payload may be, and random bytes now and then look like the start of a
/// broken IPv4 packet to it. With this seed none of `verify`'s messages does.
const SEED: &str = "13";

fn traffic(family: Family, batches: bool) -> Result<Vec<(String, Traffic)>, Failure> {
    let verify = c_program("verify")?;
    let mut list: Vec<(
        String,
        bool,
        &'static [&'static str],
        &'static [&'static str],
    )> = Vec::new();
    if batches {
        list.push(("ib_write_bw".into(), false, &["-F", "-n", "60"], &[]));
        list.push(("ib_read_bw".into(), false, &["-F", "-n", "60"], &[]));
        list.push((verify.clone(), false, &[], &["-s", SEED, "-n", "300", "-B"]));
        list.push((
            verify,
            false,
            &[],
            &["-s", SEED, "-T", "uc", "-n", "40", "-S", "60000"],
        ));
    } else {
        list.push((
            "ibv_rc_pingpong".into(),
            true,
            &["-c", "-s", "777", "-n", "200"],
            &[],
        ));
        list.push((
            "ibv_ud_pingpong".into(),
            true,
            &["-c", "-s", "1023", "-n", "200"],
            &[],
        ));
        list.push(("ib_atomic_lat".into(), false, &["-F", "-n", "100"], &[]));
        list.push((
            verify,
            false,
            &[],
            &["-s", SEED, "-n", "300", "-S", "256", "-m", "256"],
        ));
    }
    Ok(list
        .into_iter()
        .map(|(name, pingpong, args, client)| {
            let short = name.rsplit('/').next().unwrap_or_default();
            let label = format!("{short} {} {}", args.join(" "), client.join(" "));
            (
                label.trim().to_owned(),
                Traffic {
                    name,
                    pingpong,
                    family,
                    args,
                    client,
                },
            )
        })
        .collect())
}

struct Capture {
    tcpdump: Running,
    file: PathBuf,
}

impl Capture {
    fn start(host: &Host) -> Result<Self, Failure> {
        let file = log_dir().join(format!("{}.pcap", host.namespace().unwrap_or("here")));
        let path = file.display().to_string();
        let args = [
            "-i",
            "ve0",
            "-s",
            "9216",
            // else what the last second brought may be lost at the end
            "--immediate-mode",
            "-B",
            "65536",
            "-Z",
            "root",
            "-w",
            &path,
            "udp port 4791",
        ];
        let mut tcpdump = host.plain("tcpdump", &args).limit(120).start()?;
        tcpdump.wait_for("listening on")?;
        Ok(Self { tcpdump, file })
    }

    /// Ends tcpdump in good order, so that the file is whole, and wants no packet missed.
    fn stop(&mut self) -> Result<PathBuf, Failure> {
        std::thread::sleep(Duration::from_millis(300));
        let pid = self.tcpdump.pid().to_string();
        std::process::Command::new("kill")
            .args(["-INT", &pid])
            .status()?;
        // it writes the rest of the file after it has said its counts
        while self.tcpdump.alive() {
            std::thread::sleep(Duration::from_millis(10));
        }
        let said = self.tcpdump.output();
        let whole = said.contains("\n0 packets dropped by kernel");
        ensure(whole, || format!("tcpdump: {said}"))?;
        Ok(self.file.clone())
    }
}

fn icrc(file: &std::path::Path, batches: bool) -> Outcome {
    let script = root().join("tests/peer/icrc_pcap.py");
    let out = std::process::Command::new("/usr/bin/python3")
        .arg(script)
        .args(["--at-least", "50"])
        .args(batches.then_some("--offload"))
        .arg(file)
        .output()?;
    let said = String::from_utf8_lossy(&out.stdout).into_owned();
    let err = String::from_utf8_lossy(&out.stderr).into_owned();
    ensure(out.status.success(), || {
        format!("icrc_pcap.py: {said}{err}")
    })
}

/// Returns the highest IPv4 identification.
fn tshark(host: &Host, file: &std::path::Path) -> Result<u32, Failure> {
    let path = file.display().to_string();
    let mut args = vec![
        "-n",
        "-r",
        &path,
        "--disable-protocol",
        "rpcordma",
        "-T",
        "fields",
    ];
    for field in [
        "frame.number",
        "infiniband.bth.opcode",
        "_ws.malformed",
        "udp.length",
        "ip.id",
    ] {
        args.extend(["-e", field]);
    }
    let said = host.plain("tshark", &args).limit(120).run()?.succeeded()?;
    let (mut bad, mut count, mut last_id) = (Vec::new(), 0, 0);
    for line in said
        .lines()
        .filter(|l| l.starts_with(|c: char| c.is_ascii_digit()))
    {
        count += 1;
        let mut f = line.split('\t').skip(1).map(str::to_owned);
        let mut next = || f.next().unwrap_or_default();
        let (opcode, malformed, length, id) = (next(), next(), next(), next());
        last_id = u32::from_str_radix(id.trim_start_matches("0x"), 16)
            .unwrap_or(0)
            .max(last_id);
        // tshark wants a payload in a UD send: BTH, DETH (and immediate) and ICRC alone are too few
        let empty_ud = matches!(
            (opcode.as_str(), length.as_str()),
            ("100", "32") | ("101", "36")
        );
        if opcode.is_empty() || (!malformed.is_empty() && !empty_ud) {
            bad.push(line.to_owned());
        }
    }
    if count < 50 {
        return wrong(format!("tshark saw {count} packets: {said}"));
    }
    let some = || {
        format!(
            "{} of {count} packets:\n{}",
            bad.len(),
            bad[..bad.len().min(5)].join("\n")
        )
    };
    ensure(bad.is_empty(), some)?;
    Ok(last_id)
}
