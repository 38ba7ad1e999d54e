//! Every byte compared: `verify`, `edges`, `badargs` and their kin of tests/peer/c, with and without loss.

use rocebud_peer::runner::{Case, Need};
use rocebud_peer::tree::c_program;
use rocebud_peer::{Failure, Outcome, ensure, wrong};

use crate::places::{Family, PLACES, Place, Program, Series, Stage};

/// Name, options of the client.
const RUNS: &[(&str, &[&str])] = &[
    ("rc_mixed_both_ways", &["-n", "1500", "-B"]),
    ("rc_on_events", &["-n", "400", "-B", "-e"]),
    ("rc_from_a_shared_queue", &["-n", "600", "-Q", "-q", "16"]),
    ("rc_three_threads", &["-n", "400", "-t", "3"]),
    ("rc_small_mtu", &["-n", "300", "-m", "256", "-S", "20000"]),
    ("uc", &["-T", "uc", "-n", "300", "-B", "-S", "100000"]),
    ("ud", &["-T", "ud", "-n", "400", "-B"]),
    ("ud_on_events", &["-T", "ud", "-n", "100", "-e"]),
];

pub(crate) fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    for place in PLACES.iter().copied() {
        let (n, needs) = (place.name(), place.needs(&[Need::Compiler]));
        all.push(Case::new(&format!("verify_{n}"), &needs, move || {
            verify_all(place)
        }));
        all.push(Case::new(
            &format!("verify_1b_to_64mib_{n}"),
            &needs,
            move || sweep(place),
        ));
    }
    let needs = Place::Veth(1500).needs(&[Need::Compiler]);
    let lossy = Place::Veth(1500).needs(&[Need::Compiler, Need::Nft]);
    all.push(Case::new(
        "verify_sees_a_spoiled_byte",
        &needs,
        spoiled_byte,
    ));
    all.push(Case::new(
        "verify_compares_bytes_in_flight",
        &[Need::Compiler],
        compares_in_flight,
    ));
    all.push(Case::new("c005_psn_wrap", &needs, || psn_wrap(0)));
    all.push(Case::new("c005_psn_wrap_one_percent_loss", &lossy, || {
        psn_wrap(1)
    }));
    all.push(Case::new(
        "c006_read_responses_lost",
        &lossy,
        read_responses_lost,
    ));
    all.push(Case::new("c007_atomic_acks_lost", &lossy, atomic_acks_lost));
    all.push(Case::new("loss_both_ways_five_percent", &lossy, || {
        loss_both_ways(5)
    }));
    let places: &[Place] = &[Place::Loopback, Place::Veth(1500), Place::Veth(9000)];
    // What these try does not depend on the path MTU.
    let few = &places[..2];
    for (program, places) in [
        ("edges", places),
        ("badargs", places),
        ("misuse", few),
        ("cqex", few),
        ("qpex", few),
        ("domains", few),
    ] {
        for place in places.iter().copied() {
            let needs = place.needs(&[Need::Compiler]);
            let case = format!("{program}_{}", place.name());
            all.push(Case::new(&case, &needs, move || {
                on_one_host(place, program)
            }));
        }
    }
    all
}

fn verify(stage: &Stage, family: Family, options: &[&str]) -> Result<String, Failure> {
    let path = c_program("verify")?;
    let (_, said) = stage.run(&Program::verify(&path, family, options))?;
    if said.contains("verify ok:") {
        Ok(said)
    } else {
        wrong(said)
    }
}

fn verify_all(place: Place) -> Outcome {
    let stage = place.open()?;
    let mut series = Series::default();
    for (i, (name, options)) in RUNS.iter().enumerate() {
        // families take turns; both get RC and UD
        let family = if i % 2 == 0 { Family::V4 } else { Family::V6 };
        series.note(
            &format!("{name} {family:?}"),
            verify(&stage, family, options),
        );
    }
    series.note(
        "ud other family",
        verify(&stage, Family::V6, &["-T", "ud", "-n", "100"]),
    );
    series.note(
        "rc other family",
        verify(&stage, Family::V6, &["-n", "400", "-B"]),
    );
    series.end()
}

fn sweep(place: Place) -> Outcome {
    let stage = place.open()?;
    let mut series = Series::default();
    let rc = verify(&stage, Family::V4, &["-x", "-S", "67108864"]);
    series.note("rc, every operation, 0 B to 64 MiB", rc);
    series.note(
        "uc to 1 MiB",
        verify(&stage, Family::V6, &["-T", "uc", "-x", "-S", "1048576"]),
    );
    series.note("ud", verify(&stage, Family::V4, &["-T", "ud", "-x"]));
    series.end()
}

/// The program itself: it finds nothing equal that still arrives.
fn compares_in_flight() -> Outcome {
    let verify = c_program("verify")?;
    let out = std::process::Command::new(verify).arg("-Y").output()?;
    if out.status.success() {
        return Ok(());
    }
    wrong(String::from_utf8_lossy(&out.stderr).into_owned())
}

/// The program itself: a byte changed behind the transport's back is found, on either side.
fn spoiled_byte() -> Outcome {
    let stage = Place::Veth(1500).open()?;
    let path = c_program("verify")?;
    for (server, client) in [
        (&["-Z"][..], &["-n", "20"][..]),
        (&[][..], &["-n", "20", "-Z"][..]),
    ] {
        let mut program = Program::verify(&path, Family::V4, client);
        program.server = server;
        match stage.run(&program) {
            Err(Failure::Wrong(why)) if why.contains("exit status 1") => {}
            Err(other) => return Err(other),
            Ok(_) => return wrong("a spoiled byte went unseen"),
        }
    }
    Ok(())
}

/// C005: start just below the wrap, queue always full.
fn psn_wrap(loss_percent: u32) -> Outcome {
    let stage = Place::Veth(1500).open()?;
    if loss_percent > 0 {
        lose(&stage, &format!("numgen random mod 100 < {loss_percent}"))?;
    }
    let count = if loss_percent > 0 { "3000" } else { "10000" };
    let kinds = "send,write,read,fadd";
    let options = [
        "-n", count, "-q", "128", "-P", "0xfffff0", "-o", kinds, "-w", "60",
    ];
    verify(&stage, Family::V4, &options)?;
    check_lost(&stage, loss_percent > 0)
}

/// Frames one by one, and a rule at each side's receiver.
fn lose(stage: &Stage, expression: &str) -> Outcome {
    let Some(wire) = stage.wire() else {
        return wrong("loss needs a wire");
    };
    wire.true_frames()?;
    wire.a.drop_arriving(expression)?;
    wire.b.drop_arriving(expression)
}

fn check_lost(stage: &Stage, expected: bool) -> Outcome {
    let Some(wire) = stage.wire() else {
        return Ok(());
    };
    if !expected {
        return Ok(());
    }
    let lost = wire.a.dropped()? + wire.b.dropped()?;
    ensure(lost > 0, || {
        "the rule dropped no packet, so the run proved nothing".into()
    })
}

/// C006: responses of READs go missing while WRITEs around them are acknowledged.
fn read_responses_lost() -> Outcome {
    let mut series = Series::default();
    // READ Response First, Middle, Last, Only: each kind in turn, a fifth of it
    for opcode in ["0x0d", "0x0e", "0x0f", "0x10"] {
        let stage = Place::Veth(1500).open()?;
        // by chance: a fixed rhythm can hit the same response in every round of a go-back-N
        lose(&stage, &format!("@th,64,8 {opcode} numgen random mod 5 2"))?;
        let options = ["-n", "400", "-o", "write,read", "-S", "16384", "-w", "60"];
        series.note(
            &format!("opcode {opcode}"),
            verify(&stage, Family::V4, &options),
        );
        series.note(&format!("opcode {opcode}"), check_lost(&stage, true));
    }
    series.end()
}

/// C007: a seventh of the ATOMIC Acknowledges is lost; each word must have been changed exactly once.
fn atomic_acks_lost() -> Outcome {
    let stage = Place::Veth(1500).open()?;
    lose(&stage, "@th,64,8 0x12 numgen random mod 7 3")?;
    verify(
        &stage,
        Family::V4,
        &["-n", "1000", "-o", "fadd,cas", "-w", "60"],
    )?;
    check_lost(&stage, true)
}

fn loss_both_ways(percent: u32) -> Outcome {
    let mut series = Series::default();
    for family in [Family::V4, Family::V6] {
        let stage = Place::Veth(1500).open()?;
        lose(&stage, &format!("numgen random mod 100 < {percent}"))?;
        let options = ["-n", "600", "-B", "-S", "16384", "-w", "60"];
        series.note(&format!("{family:?}"), verify(&stage, family, &options));
        series.note(&format!("{family:?}"), check_lost(&stage, true));
    }
    series.end()
}

/// These programs connect queue pairs of one process over the device's own address.
fn on_one_host(place: Place, program: &str) -> Outcome {
    let path = c_program(program)?;
    let stage = place.open()?;
    let (v4, _) = stage.gids(Family::V4)?;
    let (v6, _) = stage.gids(Family::V6)?;
    let device = stage.server().device();
    for gid in [v4, v6] {
        let args = ["-d", device.as_str(), "-g", &gid];
        stage
            .server()
            .rocebud(&path, &args)
            .limit(120)
            .run()?
            .succeeded()?;
    }
    Ok(())
}
