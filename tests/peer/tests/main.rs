//! Unmodified programs and data-verifying programs of our own, between namespaces.
//!
//! `cargo test -p rocebud-peer --test peer [-- NAME...]`; as root everything runs, as an ordinary user
//! what needs no namespaces. One module per group of behaviours; cases run one after the other.

mod alive;
mod capture;
mod connected;
mod connections;
mod crowds;
mod data;
mod deaths;
mod flow;
mod harness;
mod hostile;
mod hosts;
mod libraries;
mod machine;
mod mads;
mod matrix;
mod ordinary;
mod places;
mod programs;
mod raw;
mod removal;
mod rings;
mod rsockets;
mod scale;
mod settings;
mod stress;

use rocebud_peer::status;

fn main() {
    let groups = [
        harness::cases,
        machine::cases,
        ordinary::cases,
        programs::cases,
        data::cases,
        libraries::cases,
        connections::cases,
        connected::cases,
        crowds::cases,
        stress::cases,
        capture::cases,
        hostile::cases,
        hosts::cases,
        mads::cases,
        matrix::cases,
        scale::cases,
        settings::cases,
        deaths::cases,
        raw::cases,
        removal::cases,
        alive::cases,
        flow::cases,
        rings::cases,
        rsockets::cases,
    ];
    let cases: Vec<_> = groups.into_iter().flat_map(|group| group()).collect();
    std::process::exit(rocebud_peer::runner::main(&cases));
}
