//! Hosts that find out about each other while their programs connect queue pairs by hand.

use std::time::{Duration, Instant};

use rocebud_peer::device::DevInfo;
use rocebud_peer::netns::{Host, Wire};
use rocebud_peer::program::Running;
use rocebud_peer::runner::{Case, Need};
use rocebud_peer::status::{Peer, Status};
use rocebud_peer::{Failure, Outcome, ensure};

/// What the general services' queue pair gets of the class by which daemons ask each other.
const HELLO: &str = "@th,104,24 0x000001 @th,232,8 0x42";

const PINGPONG_PORT: u16 = 18515;
const ANOTHER_PORT: u16 = 18516;

pub(crate) fn cases() -> Vec<Case> {
    let needs = [Need::Root, Need::Build, Need::Program("ibv_rc_pingpong")];
    vec![Case::new(
        "hosts_of_hand_connected_programs_know_each_other",
        &needs,
        hand_connected,
    )]
}

/// A ping-pong of `program` without end.
fn live(wire: &Wire, program: &str, port: u16) -> Result<[Running; 2], Failure> {
    let gid = |h: &Host| DevInfo::of(h)?.index_of(&h.v4).map(|n| n.to_string());
    let (ga, gb) = (gid(&wire.a)?, gid(&wire.b)?);
    let at = port.to_string();
    let common = ["-n", "2000000000", "-s", "256", "-p", &at, "-g"];
    let server = [&common[..], &[&ga]].concat();
    let mut server = wire.a.rocebud(program, &server).limit(120).start()?;
    server.wait_listening(&wire.a, port)?;
    let client = [&common[..], &[&gb, &wire.a.v4]].concat();
    let client = wire.b.rocebud(program, &client).limit(120).start()?;
    Ok([server, client])
}

/// What `of` knows about `other`, once it `fits`; what it was in the end if it never does.
fn knows(of: &Host, other: &Host, fits: impl Fn(&Peer) -> bool) -> Result<Option<Peer>, Failure> {
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        let peers = Status::of(of)?.peers();
        ensure(peers.len() <= 1, || {
            format!("more peers than one: {peers:?}")
        })?;
        let found = peers.into_iter().find(|p| p.address == other.v4);
        if found.as_ref().is_some_and(&fits) || Instant::now() > end {
            return Ok(found);
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn is_ours(peer: &Peer) -> bool {
    !peer.asked && peer.ours && peer.id_bound == 64 && peer.receive_buffer > 0
}

/// Queue pairs taken to RTR by hand, and address handles: one question each way, whatever follows.
fn hand_connected() -> Outcome {
    for program in ["ibv_rc_pingpong", "ibv_uc_pingpong", "ibv_ud_pingpong"] {
        let wire = Wire::new(1500)?;
        for host in [&wire.a, &wire.b] {
            host.count_arriving_like(HELLO)?;
        }
        let mut programs = Vec::new();
        for port in [PINGPONG_PORT, ANOTHER_PORT] {
            programs.extend(live(&wire, program, port)?);
            for (of, other) in [(&wire.a, &wire.b), (&wire.b, &wire.a)] {
                let found = knows(of, other, is_ours)?;
                ensure(found.as_ref().is_some_and(is_ours), || {
                    format!("{program}: of {} is known {found:?}", other.v4)
                })?;
            }
            ensure(programs.iter_mut().all(Running::alive), || {
                format!("{program} ended: {}", programs[0].output())
            })?;
        }
        let messages = (wire.a.arrived()?, wire.b.arrived()?);
        ensure(messages == (2, 2), || {
            format!("{program}: {messages:?} messages, not a question and an answer each")
        })?;
    }
    Ok(())
}
