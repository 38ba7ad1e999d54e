//! Each planted fault is found, and by the checker that is there for it.
//!
//! Run by `cargo test -p rocebud-sim --features planted --test planted`; no other build has the
//! faults in it.

use rocebud_engine::Planted;
use rocebud_fabric::HostId;
use rocebud_sim::{Checker, Options, World, run_with};

/// Each fault must show within this many seeds.
const SEEDS: u64 = 200;

/// Runs seeds until one fails; `finders` are the checkers that may have found it.
fn caught(name: &str, finders: &[Checker], plant: impl Fn(&mut World)) {
    for seed in 1..=SEEDS {
        if let Err(failure) = run_with(seed, &Options::default(), &plant) {
            println!("{name}: seed {seed}: {}", failure.violation);
            let finder = failure.violation.checker;
            assert!(finders.contains(&finder), "{name}: found by {finder:?}");
            return;
        }
    }
    panic!("{name}: not found within {SEEDS} seeds");
}

fn in_engines(planted: Planted) -> impl Fn(&mut World) {
    move |world| {
        for host in 0..world.hosts() {
            let host = world.fabric_mut().host_mut(HostId(host));
            host.node.plant(Some(planted));
        }
    }
}

#[test]
fn a_duplicate_atomic_executed_again_is_found() {
    let plant = in_engines(Planted::DuplicateAtomicExecuted);
    caught("duplicate atomic", &[Checker::Atomics], plant);
}

#[test]
fn an_ack_accepted_past_an_unanswered_read_is_found() {
    let plant = in_engines(Planted::AckPastUnansweredRead);
    // The READ's bytes are not there, or the atomic's result is not.
    let finders = [Checker::Bytes, Checker::Atomics];
    caught("ACK past READ", &finders, plant);
}

#[test]
fn psns_compared_without_wrap_are_found() {
    let plant = in_engines(Planted::PsnComparedWithoutWrap);
    // Nothing is understood any more behind the wrap: what shows first depends on the traffic.
    let finders = [
        Checker::Sends,
        Checker::Receives,
        Checker::Quiet,
        Checker::Wire,
        Checker::Bytes,
    ];
    caught("no PSN wrap", &finders, plant);
}

#[test]
fn a_lost_last_ack_that_is_never_recovered_is_found() {
    let plant = in_engines(Planted::LostLastAckNeverRecovered);
    caught("lost last ACK", &[Checker::Quiet], plant);
}

#[test]
fn a_double_flush_is_found() {
    let plant = in_engines(Planted::DoubleFlush);
    caught("double flush", &[Checker::Sends], plant);
}

#[test]
fn a_flushed_bind_that_stays_is_found() {
    let plant = in_engines(Planted::FlushedBindStays);
    caught("flushed bind", &[Checker::Sends], plant);
}

#[test]
fn a_bind_carried_out_twice_is_found() {
    let plant = in_engines(Planted::BindRepeated);
    caught("bind again", &[Checker::Sends], plant);
}

#[test]
fn a_byte_written_past_a_region_is_found() {
    caught("byte past region", &[Checker::Canaries], |world| {
        for host in 0..world.hosts() {
            let host = world.fabric_mut().host_mut(HostId(host));
            host.env.write_past_region = true;
        }
    });
}
