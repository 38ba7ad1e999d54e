//! perftest and the pingpongs of rdma-core, unmodified.

use rocebud_peer::netns::{Addresses, Host, Wire};
use rocebud_peer::runner::{Case, Need};
use rocebud_peer::{Outcome, ensure, wrong};

use crate::places::{FAMILIES, Family, Hosts, PLACES, Place, Program, Series, Stage};

const PERFTEST: &[&str] = &[
    "ib_write_bw",
    "ib_write_lat",
    "ib_read_bw",
    "ib_read_lat",
    "ib_send_bw",
    "ib_send_lat",
    "ib_atomic_bw",
    "ib_atomic_lat",
];

const PINGPONGS: &[(&str, &[&str])] = &[
    ("ibv_rc_pingpong", &["-c"]),
    ("ibv_uc_pingpong", &["-c"]),
    ("ibv_ud_pingpong", &["-c", "-s", "1024"]),
    ("ibv_srq_pingpong", &["-c"]),
];

pub(crate) fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    for place in PLACES.iter().copied() {
        let n = place.name();
        let perftest = place.needs(&[Need::Program("ib_write_bw")]);
        let pingpong = place.needs(&[Need::Program("ibv_rc_pingpong")]);
        all.push(Case::new(&format!("pingpongs_{n}"), &pingpong, move || {
            pingpongs(place)
        }));
        all.push(Case::new(&format!("perftest_{n}"), &perftest, move || {
            perftest_defaults(place)
        }));
        all.push(Case::new(
            &format!("write_bw_all_sizes_{n}"),
            &perftest,
            move || all_sizes(place),
        ));
    }
    let wire = [Need::Root, Need::Build, Need::Program("ib_write_bw")];
    for (name, addresses) in [
        ("ipv4_only", Addresses::V4Only),
        ("ipv6_only", Addresses::V6Only),
        ("dual", Addresses::Dual),
    ] {
        all.push(Case::new(
            &format!("c030_every_gid_{name}"),
            &wire,
            move || every_gid(addresses),
        ));
    }
    all.push(Case::new("c035_message_sizes_veth_1500", &wire, || {
        message_sizes(1500)
    }));
    all.push(Case::new("c035_message_sizes_veth_9000", &wire, || {
        message_sizes(9000)
    }));
    all.push(Case::new(
        "c042_perftest_atomics_on_four_queue_pairs",
        &wire,
        atomics_on_four_qps,
    ));
    all.push(Case::new("perftest_xrc_veth_9000", &wire, xrc));
    all.extend(sleepers());
    all
}

/// Programs that wait for events.
fn sleepers() -> Vec<Case> {
    let anyone = [Need::Build, Need::Program("ib_send_bw")];
    let wire = [Need::Root, Need::Build, Need::Program("ib_send_lat")];
    let relayed = [&wire[..], &[Need::Compiler]].concat();
    let ethtool = [&wire[..], &[Need::Program("ethtool")]].concat();
    // the second does what a device further on would: the offload is still said to be on
    let apart = [
        ("without_offload", "ethtool -K ve0 tx-udp-segmentation off"),
        ("where_batches_are_cut", "ip link set ve0 gso_max_segs 1"),
    ];
    let apart = apart.map(|(name, command)| {
        let name = format!("latency_programs_that_sleep_finish_{name}");
        Case::new(&name, &ethtool, move || {
            let wire = Wire::new(4300)?;
            for host in [&wire.a, &wire.b] {
                host.tool(command)?;
            }
            asleep_between_messages(&Stage::new(Hosts::Two(wire))?)
        })
    });
    let mut all = vec![
        Case::new("unreliable_senders_that_sleep_finish", &anyone, asleep),
        Case::new("latency_programs_that_sleep_finish", &wire, || {
            asleep_between_messages(&Place::Veth(4300).open()?)
        }),
        Case::new(
            "latency_programs_that_sleep_finish_over_tun_interfaces",
            &relayed,
            || {
                // the relay ends with what holds it
                let (wire, _relay) = Wire::tun(4300)?;
                asleep_between_messages(&Stage::new(Hosts::Two(wire))?)
            },
        ),
    ];
    all.extend(apart);
    all
}

/// No answers wake a UC or UD sender that waits for its completions: whatever a bounded turn of the engine
/// leaves over has to leave all the same. And perftest polls a few of many completions for each event.
fn asleep() -> Outcome {
    let stage = Place::Loopback.open()?;
    let mut series = Series::default();
    let long: &[&str] = &["-F", "-e", "-c", "UC", "-n", "50", "-s", "1048575"];
    for args in [
        long,
        &["-F", "-e", "-c", "UC", "-n", "50", "-q", "8"],
        &["-F", "-e", "-c", "UD", "-n", "10", "-q", "8", "-b"],
    ] {
        let mut program = Program::perftest("ib_send_bw", Family::V4, args);
        program.limit = 30;
        series.note(&args.join(" "), stage.run(&program));
    }
    series.end()
}

/// `ib_send_lat -e` waits for what it sent and what it gets on one channel, and takes one completion for each
/// event, whichever queue that is of: woken by a message before its own is acknowledged, it runs ahead.
/// And whoever sleeps must not be the one for whose call an acknowledgement waits.
fn asleep_between_messages(stage: &Stage) -> Outcome {
    let mut series = Series::default();
    for args in [
        &["-F", "-e", "-n", "300", "-s", "64"][..],
        &["-F", "-e", "-n", "300", "-s", "8000"],
        &["-F", "-e", "-n", "300", "-s", "4097", "--use-srq"],
        &["-F", "-e", "-n", "300", "-c", "UC"],
        &["-F", "-e", "-n", "1000", "-s", "243", "--use-srq"],
    ] {
        for run in 0..2 {
            let mut program = Program::perftest("ib_send_lat", Family::V4, args);
            program.limit = 60;
            let name = format!("{} ({run})", args.join(" "));
            series.note(&name, stage.run(&program));
        }
    }
    series.end()
}

fn pingpongs(place: Place) -> Outcome {
    let stage = place.open()?;
    let mut series = Series::default();
    for (name, args) in PINGPONGS {
        for family in FAMILIES {
            let ran = stage.run(&Program::pingpong(name, *family, args));
            if let Some((_, said)) = series.note(&format!("{name} {family:?}"), ran) {
                let right = ensure(said.contains("iters in"), || format!("no result: {said}"));
                series.note(name, right);
            }
        }
    }
    series.end()
}

fn perftest_defaults(place: Place) -> Outcome {
    let stage = place.open()?;
    let mut series = Series::default();
    for name in PERFTEST {
        for family in FAMILIES {
            let ran = stage.run(&Program::perftest(name, *family, &["-F"]));
            series.note(&format!("{name} {family:?}"), ran);
        }
    }
    series.end()
}

/// `-a` is 5000 messages of every size up to 8 MiB, 80 GB; with `ROCEBUD_PEER_FULL` set that is what
/// runs, else 100 messages.
fn all_sizes(place: Place) -> Outcome {
    let stage = place.open()?;
    let full = std::env::var_os("ROCEBUD_PEER_FULL").is_some();
    let args: &[&str] = if full {
        &["-F", "-a"]
    } else {
        &["-F", "-a", "-n", "100"]
    };
    let mut series = Series::default();
    for family in FAMILIES {
        let mut program = Program::perftest("ib_write_bw", *family, args);
        program.limit = if full { 900 } else { 180 };
        let Some((_, said)) = series.note(&format!("{family:?}"), stage.run(&program)) else {
            continue;
        };
        let last = said.lines().any(|l| l.trim_start().starts_with("8388608 "));
        series.note(
            "sizes",
            ensure(last, || format!("no line for 8388608 bytes:\n{said}")),
        );
    }
    series.end()
}

/// C030: every listed address works, and the tools' defaults do.
fn every_gid(addresses: Addresses) -> Outcome {
    let stage = Stage::new(Hosts::Two(Wire::with(1500, addresses)?))?;
    let (s, c) = (stage.server(), stage.client());
    let (to, device) = (s.v4.as_str(), s.device());
    let mut series = Series::default();
    let listed = rocebud_peer::device::DevInfo::of(s)?.gids;
    if listed.is_empty() {
        return wrong("the GID table is empty");
    }
    // both ends number alike: the same kinds of addresses in the same order
    for (index, address) in listed {
        let i = index.to_string();
        series.note(
            &format!("-g {i} ({address})"),
            pingpong(s, c, to, &["-g", &i]),
        );
    }
    series.note("-g 0", pingpong(s, c, to, &["-g", "0"]));
    let defaults: &[&str] = match addresses {
        Addresses::V6Only => &["-F", "-d", &device], // the side channel has a device, too
        _ => &["-F"],
    };
    let client_args = [defaults, &[to]].concat();
    let (server, client) = (
        s.rocebud("ib_write_bw", defaults),
        c.rocebud("ib_write_bw", &client_args),
    );
    series.note(
        "ib_write_bw with no GID",
        rocebud_peer::program::duo((s, &server), &client, 18515),
    );
    series.end()
}

fn pingpong(s: &Host, c: &Host, to: &str, args: &[&str]) -> Outcome {
    let device = s.device();
    let args = &[&["-d", device.as_str()], args].concat();
    let mut with_host = args.to_vec();
    with_host.push(to);
    let (server, client) = (
        s.rocebud("ibv_rc_pingpong", args),
        c.rocebud("ibv_rc_pingpong", &with_host),
    );
    rocebud_peer::program::duo((s, &server), &client, 18515).map(drop)
}

/// C035: sizes around the borders of packets and messages.
fn message_sizes(mtu: u32) -> Outcome {
    const SIZES: &[u32] = &[
        1, 1023, 1024, 1025, 1444, 1445, 1446, 2047, 2048, 2049, 4095, 4096, 4097, 65535, 65536,
        65537, 8388609,
    ];
    let stage = Place::Veth(mtu).open()?;
    let mut series = Series::default();
    for size in SIZES {
        let text = size.to_string();
        let args = ["-F", "-n", "20", "-s", &text];
        for name in ["ib_write_lat", "ib_send_bw", "ib_read_bw"] {
            let family = if size % 2 == 0 {
                Family::V6
            } else {
                Family::V4
            };
            series.note(
                &format!("{name} -s {size}"),
                stage.run(&Program::perftest(name, family, &args)),
            );
        }
    }
    series.end()
}

fn xrc() -> Outcome {
    let stage = Place::Veth(9000).open()?;
    let mut series = Series::default();
    let args = ["-F", "-c", "XRC", "-q", "2", "-n", "300"];
    let programs = PERFTEST.iter().filter(|n| n.ends_with("_bw"));
    // families take turns
    for (name, family) in programs.zip(FAMILIES.iter().cycle()) {
        let ran = stage.run(&Program::perftest(name, *family, &args));
        series.note(&format!("{name} {family:?}"), ran);
    }
    series.end()
}

fn atomics_on_four_qps() -> Outcome {
    let stage = Place::Veth(1500).open()?;
    let mut series = Series::default();
    for kind in ["FETCH_AND_ADD", "CMP_AND_SWAP"] {
        let args = ["-F", "-q", "4", "-A", kind];
        series.note(
            kind,
            stage.run(&Program::perftest("ib_atomic_bw", Family::V4, &args)),
        );
    }
    series.end()
}
