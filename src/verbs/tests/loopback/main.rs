//! Real packets through the real UDP path: two endpoints in one process, over the loopback of a
//! network namespace of our own, with a daemon that the library starts by itself.
//!
//! Runs as root or as an ordinary user; where the system allows no namespace it says so and
//! passes. `cargo test -p rocebud-verbs --test loopback [WORD]` runs the cases whose name has WORD.

mod cases;
mod endpoint;
mod faults;
mod life;
mod regions;
mod sys;
mod windows;
mod xrc;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;

type Case = (&'static str, fn());

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().collect();
    if args.get(1).is_some_and(|a| a == "daemon") {
        return sys::be_daemon(&args);
    }
    if args.iter().any(|a| a == "--list") {
        return ExitCode::SUCCESS;
    }
    if let Err(why) = sys::enter_namespace() {
        println!("loopback: left out, no network namespace of our own: {why}");
        return ExitCode::SUCCESS;
    }
    let filter = args.iter().skip(1).find(|a| !a.starts_with('-'));
    let all = [
        cases::ALL,
        life::ALL,
        regions::ALL,
        windows::ALL,
        xrc::ALL,
        faults::ALL,
    ]
    .concat();
    let mut failed = 0;
    for (name, case) in all {
        if filter.is_some_and(|f| !name.contains(f.as_str())) {
            continue;
        }
        let started = std::time::Instant::now();
        let good = catch_unwind(AssertUnwindSafe(case)).is_ok();
        let word = if good { "ok" } else { "FAILED" };
        println!(
            "test {name} ... {word} ({} ms)",
            started.elapsed().as_millis()
        );
        failed += usize::from(!good);
        if !good {
            endpoint::print_counters();
        }
    }
    println!("loopback: {failed} failed");
    if failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
