//! Unmodified programs and data-verifying programs of our own, between namespaces.
//!
//! `cargo test -p rocebud-peer --test peer [-- NAME...]`; as root everything runs, as an ordinary user
//! what needs no namespaces. One module per group of behaviours; cases run one after the other.

mod harness;

fn main() {
    let cases = harness::cases();
    std::process::exit(rocebud_peer::runner::main(&cases));
}
