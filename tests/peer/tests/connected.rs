//! Programs and libraries that come together by rdma_cm: qperf, fio, UCX, Open MPI over libfabric,
//! rping's servers for many; and threads that are cancelled while they wait.

use std::time::{Duration, Instant};

use rocebud_peer::netns::{Host, Over, Wire};
use rocebud_peer::program::{Running, Spec, duo};
use rocebud_peer::runner::{Case, Need};
use rocebud_peer::tree::c_program_with;
use rocebud_peer::{Failure, Outcome, ensure, wrong};

use crate::connections::{calls, run, wait_listening};
use crate::places::Series;

/// qperf's tests that connect by rdma_cm. It refuses its UC and UD tests there, and without rdma_cm
/// it gives queue pairs no GID, which RoCE cannot do without.
const QPERF: &str = "\
rc_lat rc_bw rc_rdma_read_bw rc_rdma_write_lat rc_compare_swap_mr ver_rc_fetch_add";

pub(crate) fn cases() -> Vec<Case> {
    let host = [Need::Root, Need::Build];
    let with = |needs: &[Need]| [&host[..], needs].concat();
    let header = Need::Header("/usr/include/rdma/rdma_cma.h");
    let ucp = [Need::Compiler, Need::Header("/usr/include/ucp/api/ucp.h")];
    let mpi = [Need::Program("mpicc"), Need::Program("mpirun")];
    type Run = fn() -> Outcome;
    let all: [(&str, Vec<Need>, Run); 11] = [
        (
            "cancelled_threads_wait_no_more",
            with(&[Need::Compiler, header]),
            cancelled,
        ),
        (
            "c021_destroying_an_identifier_waits_for_acks",
            with(&[Need::Compiler, header]),
            || identifiers(&["c021"]),
        ),
        (
            "c024_last_wqe_of_queue_pairs_of_identifiers",
            with(&[Need::Compiler, header]),
            || identifiers(&["c024"]),
        ),
        (
            "identifiers_and_events",
            with(&[Need::Compiler, header]),
            || {
                identifiers(&[
                    "ece", "notices", "paths", "families", "names", "orders", "backlog", "threads",
                    "forks",
                ])
            },
        ),
        (
            "c033_rdma_cm_over_bridge",
            with(&[Need::Program("rping")]),
            || over(Over::Bridge),
        ),
        (
            "c033_rdma_cm_over_vlan",
            with(&[
                Need::Compiler,
                header,
                Need::Program("rping"),
                Need::Link("vlan"),
            ]),
            vlan,
        ),
        (
            "rping_serves_many",
            with(&[Need::Program("rping")]),
            rping_persistent,
        ),
        ("qperf_cm1", with(&[Need::Program("qperf")]), qperf),
        ("fio_rdma_verified", with(&[Need::Program("fio")]), fio),
        ("ucx_by_rdmacm_every_byte", with(&ucp), ucx),
        ("openmpi_ofi_by_rdmacm", with(&mpi), openmpi),
    ];
    let case = |(name, needs, run): (&str, Vec<Need>, Run)| Case::new(name, &needs, run);
    all.into_iter().map(case).collect()
}

/// Counts the connection manager's messages that arrive at a host from now on.
fn count_messages(host: &Host) -> Outcome {
    for words in [
        "add table inet seen",
        "add chain inet seen arriving { type filter hook input priority -1; }",
        // destination queue pair 1, and the class of communication management
        "add rule inet seen arriving udp dport 4791 @th,104,24 0x000001 @th,232,8 0x07 counter",
    ] {
        host.plain("nft", &[words]).run()?.succeeded()?;
    }
    Ok(())
}

/// It was rdma_cm that brought the ends together.
fn connected_by_rdmacm(host: &Host) -> Outcome {
    let messages = host.arrived()?;
    ensure(messages > 0, || {
        "no message of the connection manager came".into()
    })
}

/// As with a device of the kernel, waiting for an event is a cancellation point.
fn cancelled() -> Outcome {
    let host = Host::loopback()?;
    let libraries = ["-lrdmacm", "-libverbs"];
    let program = c_program_with("cancel", "cancel", "cc", &libraries)?;
    let run = host.rocebud(&program, &[&host.device()]).limit(120);
    let said = run.run()?.succeeded()?;
    ensure(said.contains("cancel ok"), || said)
}

/// What librdmacm promises, both ends in one process: C021 and C024 (events), paths, ECE, calls out of
/// order, private data, a backlog of one, many threads, forks.
fn identifiers(parts: &[&str]) -> Outcome {
    let host = Host::loopback()?;
    let libraries = ["-lrdmacm", "-libverbs"];
    let program = c_program_with("identifiers", "identifiers", "cc", &libraries)?;
    let args = [&[host.v4.as_str(), "7600"], parts].concat();
    let said = host
        .rocebud(&program, &args)
        .limit(120)
        .run()?
        .succeeded()?;
    let done = said.lines().filter(|l| l.starts_with("ok ")).count();
    ensure(done == parts.len(), || {
        format!("not all of {parts:?}:\n{said}")
    })
}

/// C033: interfaces over others have devices of their own, with their own addresses.
fn over(over: Over) -> Outcome {
    let wire = Wire::over(over, 1500)?;
    let mut series = Series::default();
    for address in [&wire.b.v4, &wire.b.v6] {
        series.note(address, rping(&wire, address));
    }
    series.end()
}

fn rping(wire: &Wire, address: &str) -> Outcome {
    let serve = wire.b.rocebud("rping", &["-s", "-a", address, "-C", "5"]);
    let mut server = serve.limit(60).start()?;
    wait_listening(&mut server, &wire.b, "7174")?;
    let ask = ["-c", "-a", address, "-C", "5", "-V"];
    let asked = wire.a.rocebud("rping", &ask).limit(60).run();
    let asked = asked.and_then(|a| a.succeeded());
    if asked.is_err() {
        server.kill();
    }
    asked.map(drop)
}

/// C033: over a VLAN; and whoever sends without the tag is not heard, and is told so in time.
fn vlan() -> Outcome {
    over(Over::Vlan)?;
    let wire = Wire::over(Over::Vlan, 1500)?;
    let v4 = format!("{}/24 dev", wire.a.v4);
    wire.a.ip(&format!("addr del {v4} vl0"))?;
    wire.a.ip(&format!("addr add {v4} ve0"))?;
    let expect = ["expect", "ADDR_ERROR", "9999", "20000", &wire.b.v4, "7174"];
    run(&wire.a, &calls()?, &expect).map(drop)
}

/// One after the other, then several at once, on one host and between two.
fn rping_persistent() -> Outcome {
    let wire = Wire::new(1500)?;
    let at = wire.b.v4.as_str();
    let serve = wire.b.rocebud("rping", &["-s", "-P", "-a", at, "-V"]);
    let mut server = serve.limit(120).start()?;
    wait_listening(&mut server, &wire.b, "7174")?;
    let ask = |host: &Host, count: &str| {
        let args = ["-c", "-a", at, "-V", "-C", count];
        host.rocebud("rping", &args).limit(60)
    };
    for host in [&wire.a, &wire.b, &wire.a] {
        ask(host, "5").run()?.succeeded()?;
    }
    let hosts = [&wire.a, &wire.b, &wire.a, &wire.b, &wire.a];
    let started: Result<Vec<Running>, Failure> =
        hosts.iter().map(|host| ask(host, "20").start()).collect();
    for client in started? {
        client.finish()?.succeeded()?;
    }
    ask(&wire.a, "5").run()?.succeeded()?;
    let alive = server.alive();
    server.kill();
    ensure(alive, || format!("the server ended:\n{}", server.output()))
}

fn qperf() -> Outcome {
    const PORT: u16 = 19765;
    let wire = Wire::new(9000)?;
    count_messages(&wire.b)?;
    let mut server = wire.b.rocebud("qperf", &[]).limit(120).start()?;
    server.wait_listening(&wire.b, PORT)?;
    let mut series = Series::default();
    let between = QPERF.split_whitespace().map(|test| (&wire.a, test));
    let alone = ["rc_lat", "rc_bw"].map(|test| (&wire.b, test));
    for (from, test) in between.chain(alone) {
        let args = ["-t", "1", "-cm1", &wire.b.v4, test];
        let ran = from.rocebud("qperf", &args).limit(30).run();
        let said = ran.and_then(rocebud_peer::program::Finished::succeeded);
        if let Some(said) = series.note(test, said) {
            // a result is the last word of a line "name = value unit"
            let value = said.lines().find_map(|l| l.split_once(" = "));
            let value = value.map_or("0", |(_, v)| v.trim());
            series.note(test, ensure(!value.starts_with('0'), || said.clone()));
        }
    }
    // what it says where it does not use rdma_cm
    for (test, words) in [
        ("uc_bw", "failed to modify QP to RTR"),
        ("ud_lat", "failed to create address handle"),
    ] {
        let args = ["-t", "1", "-cm1", &wire.b.v4, test];
        let ran = wire.a.rocebud("qperf", &args).limit(30).run()?;
        let said = ran.output;
        let right = said.contains("-cm1 set but not used") && said.contains(words);
        series.note(test, ensure(right, || said.clone()));
    }
    server.kill();
    series.note("rdma_cm", connected_by_rdmacm(&wire.b));
    series.end()
}

/// What both ends of a fio run are told.
fn fio_end(host: &Host, more: &[&str]) -> Spec {
    let common = [
        "--ioengine=rdma",
        "--port=14321",
        "--bs=64k",
        "--size=8m",
        "--iodepth=16",
        // A file in the working directory.
        "--verify_state_save=0",
    ];
    host.rocebud("fio", &[&common[..], more].concat()).limit(60)
}

/// Blocks with checksums in them, by SEND, WRITE and READ; a checksum that is wrong is found.
fn fio() -> Outcome {
    let wire = Wire::new(9000)?;
    count_messages(&wire.b)?;
    let mut series = Series::default();
    for (verb, from) in [
        ("send", &wire.a),
        ("send", &wire.b),
        ("write", &wire.b),
        ("read", &wire.a),
    ] {
        let mut tries = 0;
        let ran = loop {
            let ran = fio_pair((&wire.b, from), verb, "--verify=crc32c");
            tries += 1;
            // Its connections retry nothing, and its SENDs may be faster than the receives.
            let early = |f: &Failure| matches!(f, Failure::Wrong(w) if w.contains("RNR retry"));
            if tries == 5 || !ran.as_ref().is_err_and(early) {
                break ran;
            }
        };
        series.note(verb, ran);
    }
    // The blocks bear no checksum: whoever verifies must see that.
    let found = match fio_pair((&wire.b, &wire.a), "send", "--verify=0") {
        Err(Failure::Wrong(said)) if said.contains("verify: bad magic") => Ok(()),
        other => wrong(format!("nothing is verified: {other:?}")),
    };
    // unless its first SEND was too early
    let early = |f: &Failure| matches!(f, Failure::Wrong(w) if w.contains("RNR retry") && !w.contains("verify:"));
    if !found.as_ref().is_err_and(early) {
        series.note("no checksum", found);
    }
    series.note("rdma_cm", connected_by_rdmacm(&wire.b));
    series.end()
}

/// Writes from one host to the other, which reads (and verifies) what came. A client of this release
/// does not end when its requests fail: it is ended.
fn fio_pair((at, from): (&Host, &Host), verb: &str, verify: &str) -> Outcome {
    let take = ["--name=in", "--rw=read", "--verify=crc32c"];
    let mut server = fio_end(at, &take).start()?;
    wait_listening(&mut server, at, "14321")?;
    // who writes is the client, whatever the operation
    let (by, host) = (format!("--verb={verb}"), format!("--hostname={}", at.v4));
    let give = ["--name=out", "--rw=write", &by, verify, &host];
    let mut client = fio_end(from, &give).start()?;
    let end = Instant::now() + Duration::from_secs(60);
    while (client.alive() || server.alive()) && Instant::now() < end {
        let failed = [&client, &server].map(|end| end.output());
        if failed
            .iter()
            .any(|said| said.contains("cq completion status") || said.contains("bad magic"))
        {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let over = !client.alive() && !server.alive();
    if !over {
        let said = format!("{}\n{}", client.output(), server.output());
        // its jobs are in sessions of their own
        for host in [from, at] {
            end_jobs(host)?;
        }
        client.kill();
        server.kill();
        return wrong(said);
    }
    client.finish()?.succeeded()?;
    server.finish()?.succeeded().map(drop)
}

fn end_jobs(host: &Host) -> Outcome {
    for pid in host.pids() {
        let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        if name.trim() == "fio" {
            host.tool(&format!("kill -KILL {pid}"))?;
        }
    }
    Ok(())
}

/// UCX' listener and endpoints by its rdmacm component; every byte of every kind of message.
fn ucx() -> Outcome {
    let program = c_program_with("ucp", "ucp", "cc", &["-lucp", "-lucs"])?;
    let wire = Wire::new(9000)?;
    count_messages(&wire.b)?;
    let mut series = Series::default();
    for (transport, address) in [
        ("rc_v", &wire.b.v4),
        ("ud_v", &wire.b.v4),
        ("rc_v", &wire.b.v6),
    ] {
        for from in [&wire.a, &wire.b] {
            let end = |host: &Host, more: &[&str]| {
                let args = [&["-c", address.as_str()], more].concat();
                host.rocebud(&program, &args)
                    .env("UCX_TLS", transport)
                    .env("UCX_NET_DEVICES", &format!("{}:1", host.device()))
                    .env("UCX_SOCKADDR_TLS_PRIORITY", "rdmacm")
                    .limit(90)
            };
            let client = end(from, &[&wire.b.v4]);
            let ran = duo((&wire.b, &end(&wire.b, &[])), &client, 18720);
            let what = format!("{transport} from {:?} to {address}", from.namespace());
            series.note(&what, ran);
        }
    }
    series.note("rdma_cm", connected_by_rdmacm(&wire.b));
    series.end()
}

/// Open MPI by libfabric, whose verbs provider connects by rdma_cm. (Its own way, the rdmacm method
/// of the openib BTL, is in no build of the distribution.)
fn openmpi() -> Outcome {
    let program = c_program_with("mpi", "mpi", "mpicc", &[])?;
    let host = Wire::new(9000)?;
    let words = "--allow-run-as-root --oversubscribe -np 2 --mca btl self,vader --mca pml cm \
        --mca mtl ofi --mca mtl_ofi_provider_include verbs;ofi_rxm";
    let words: Vec<&str> = words.split_whitespace().chain([program.as_str()]).collect();
    let said = host.a.rocebud("mpirun", &words).limit(90).run()?;
    let said = said.succeeded()?;
    ensure(said.contains("mpi ok"), || format!("no result: {said}"))
}
