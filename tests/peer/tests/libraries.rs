//! Libraries and programs that stand on verbs: UCX, libfabric, Open MPI over UCX. Unmodified; where they check
//! nothing themselves, a program of ours on top of them does.

use std::os::unix::fs::PermissionsExt;

use rocebud_peer::netns::Wire;
use rocebud_peer::program::{Spec, duo};
use rocebud_peer::runner::{Case, Need};
use rocebud_peer::tree::{self, c_program_with};
use rocebud_peer::{Failure, Outcome, ensure};

use crate::places::Series;

/// UCX' names of our transports.
const TRANSPORTS: &[&str] = &["rc_v", "ud_v"];

/// Name, test and sizes of `ucx_perftest`.
const PERFTEST: &str = "\
tag -t tag_bw -n 500 -w 20 -s 4096
tag_large -t tag_lat -n 20 -w 2 -s 1000000
put -t ucp_put_bw -n 500 -w 20 -s 4096
put_small -t ucp_put_lat -n 200 -w 20 -s 64
get -t ucp_get -n 100 -w 5 -s 65536
am -t ucp_am_bw -n 500 -w 20 -s 4096
am_large -t ucp_am_lat -n 50 -w 5 -s 70000
fetch_add -t ucp_fadd -n 200 -w 20 -s 8
";

pub(crate) fn cases() -> Vec<Case> {
    let host = [Need::Root, Need::Build];
    let perftest = [&host[..], &[Need::Program("ucx_perftest")]].concat();
    let ucp = [
        &host[..],
        &[Need::Compiler, Need::Header("/usr/include/ucp/api/ucp.h")],
    ]
    .concat();
    let mpi = [
        &host[..],
        &[Need::Program("mpicc"), Need::Program("mpirun")],
    ]
    .concat();
    let mut all = vec![Case::new("ucx_lists_rc_and_ud", &perftest, ucx_lists)];
    let fabric = [&host[..], &[Need::Program("fi_info")]].concat();
    all.push(Case::new("libfabric_lists_verbs", &fabric, libfabric_lists));
    let pingpong = [&host[..], &[Need::Program("fi_pingpong")]].concat();
    for kind in ["msg", "rdm"] {
        all.push(Case::new(
            &format!("fi_pingpong_{kind}"),
            &pingpong,
            move || fi_pingpong(kind),
        ));
    }
    for tl in TRANSPORTS.iter().copied() {
        all.push(Case::new(
            &format!("ucx_perftest_{tl}"),
            &perftest,
            move || ucx_perftest(tl),
        ));
        all.push(Case::new(
            &format!("ucp_every_byte_{tl}"),
            &ucp,
            move || ucp_every_byte(tl),
        ));
        all.push(Case::new(&format!("openmpi_{tl}"), &mpi, move || {
            openmpi(tl)
        }));
    }
    all
}

fn ucx_lists() -> Outcome {
    let wire = Wire::new(9000)?;
    let said = wire.a.rocebud("ucx_info", &["-d"]).run()?.succeeded()?;
    let mut series = Series::default();
    for transport in ["rc_verbs", "ud_verbs"] {
        let line = format!("Transport: {transport}");
        let device = format!("Device: {}:1", wire.a.device());
        // the device's line follows the transport's
        let listed = said
            .split(&line)
            .skip(1)
            .any(|t| t.lines().nth(1).is_some_and(|l| l.ends_with(&device)));
        series.note(
            transport,
            ensure(listed, || format!("not on {device}:\n{said}")),
        );
    }
    series.end()
}

/// libfabric asks `rdma_get_devices`, `rdma_create_id` and `rdma_bind_addr` what there is.
fn libfabric_lists() -> Outcome {
    let wire = Wire::new(9000)?;
    let list = wire.a.rocebud("fi_info", &["-p", "verbs"]);
    let said = list.run()?.succeeded()?;
    let mut series = Series::default();
    for (domain, kind) in [("", "FI_EP_MSG"), ("-dgram", "FI_EP_DGRAM")] {
        let domain = format!("domain: {}{domain}\n", wire.a.device());
        // an endpoint of that kind in the paragraph of that domain
        let listed = said
            .split("provider: ")
            .any(|p| p.contains(&domain) && p.contains(kind));
        series.note(kind, ensure(listed, || format!("not in {domain}:\n{said}")));
    }
    series.end()
}

/// Connected endpoints by rdma_cm, and what libfabric makes of them; it compares the bytes.
fn fi_pingpong(kind: &str) -> Outcome {
    const PORT: u16 = 47592;
    let wire = Wire::new(9000)?;
    wire.a.count_arriving()?;
    let args = ["-p", "verbs", "-e", kind, "-c", "-I", "100"];
    let server = wire.a.rocebud("fi_pingpong", &args).limit(90);
    let args = [&args[..], &[wire.a.v4.as_str()]].concat();
    let client = wire.b.rocebud("fi_pingpong", &args).limit(90);
    let (_, said) = duo((&wire.a, &server), &client, PORT)?;
    ensure(said.contains("=100"), || format!("no result:\n{said}"))?;
    crossed(&wire)
}

/// Both hosts with the transport under test and no other.
fn ucx_duo(wire: &Wire, tl: &str, program: &str, args: &[&str], port: u16) -> Outcome {
    let on = |host: &rocebud_peer::netns::Host, args: &[&str]| -> Spec {
        host.rocebud(program, args)
            .env("UCX_TLS", tl)
            .env("UCX_NET_DEVICES", &format!("{}:1", host.device()))
            .limit(90)
    };
    wire.a.count_arriving()?;
    let client = [&[wire.a.v4.as_str()], args].concat();
    duo((&wire.a, &on(&wire.a, args)), &on(&wire.b, &client), port)?;
    crossed(wire)
}

/// It was RoCE that crossed the wire, and no other transport of UCX'.
fn crossed(wire: &Wire) -> Outcome {
    let arrived = wire.a.arrived()?;
    ensure(arrived > 100, || {
        format!("only {arrived} RoCE packets crossed the wire")
    })
}

fn ucx_perftest(tl: &str) -> Outcome {
    let batch = tree::log_dir().join(format!("ucx-{}-{tl}.txt", std::process::id()));
    std::fs::write(&batch, PERFTEST)?;
    let wire = Wire::new(9000)?;
    let path = batch.display().to_string();
    let ran = ucx_duo(&wire, tl, "ucx_perftest", &["-b", &path, "-f"], 13337);
    let _ = std::fs::remove_file(&batch);
    ran
}

fn ucp_every_byte(tl: &str) -> Outcome {
    let program = c_program_with("ucp", "ucp", "cc", &["-lucp", "-lucs"])?;
    let mut series = Series::default();
    for mtu in [1500, 9000] {
        let wire = Wire::new(mtu)?;
        series.note(
            &format!("MTU {mtu}"),
            ucx_duo(&wire, tl, &program, &[], 18720),
        );
    }
    series.end()
}

/// Two ranks on one host, then two ranks on two hosts; the second host is a namespace that has a host
/// name of its own and is reached through the launcher's "rsh".
fn openmpi(tl: &str) -> Outcome {
    let program = c_program_with("mpi", "mpi", "mpicc", &[])?;
    let wire = Wire::new(9000)?;
    let agent = rsh_agent(&wire)?;
    let (tls, net) = (format!("UCX_TLS={tl},self"), subnet(&wire.a.v4));
    let common = [
        "--allow-run-as-root",
        "--oversubscribe",
        "-np",
        "2",
        "--mca",
        "pml",
        "ucx",
        "--mca",
        "osc",
        "ucx",
        "-x",
        &tls,
        "--mca",
        "oob_tcp_if_include",
        &net,
    ];
    let one = format!("UCX_NET_DEVICES={}:1", wire.a.device());
    let hosts = format!("localhost:1,{}:1", wire.b.v4);
    let places: [(&str, &[&str]); 2] = [
        ("one host", &["-x", &one]),
        (
            "two hosts",
            &["-host", &hosts, "--mca", "plm_rsh_agent", &agent],
        ),
    ];
    let mut series = Series::default();
    wire.b.count_arriving()?;
    for (place, options) in places {
        let args = [&common[..], options, &[program.as_str()]].concat();
        let ran = wire.a.rocebud("mpirun", &args).limit(90).run();
        let right = ran.and_then(rocebud_peer::program::Finished::succeeded);
        if let Some(said) = series.note(place, right) {
            let ok = said.contains("mpi ok");
            series.note(place, ensure(ok, || format!("no result: {said}")));
        }
    }
    series.note(
        "the wire",
        wire.b.arrived().and_then(|n| {
            ensure(n > 100, || {
                format!("only {n} RoCE packets crossed the wire")
            })
        }),
    );
    let _ = std::fs::remove_file(&agent);
    series.end()
}

/// `HOST COMMAND...`: the command in the other namespace, under a rocebud of that namespace.
fn rsh_agent(wire: &Wire) -> Result<String, Failure> {
    let ns = wire.b.namespace().unwrap_or_default();
    let path = tree::log_dir().join(format!("rsh-{}", std::process::id()));
    let rocebud = tree::rocebud();
    let script = format!(
        "#!/bin/sh\nshift\nexec ip netns exec {ns} unshare --uts \\\n  \
         sh -c 'hostname other && exec \"$0\" run -- sh -c \"$1\"' {} \"$*\"\n",
        rocebud.display()
    );
    std::fs::write(&path, script)?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755))?;
    Ok(path.display().to_string())
}

/// The /24 around an IPv4 address.
fn subnet(v4: &str) -> String {
    let (net, _) = v4.rsplit_once('.').unwrap_or((v4, ""));
    format!("{net}.0/24")
}
