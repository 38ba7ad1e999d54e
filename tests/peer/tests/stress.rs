//! Many threads on shared objects, which come and go under traffic; on its own and under the tools that see
//! what a program cannot: AddressSanitizer (which then also owns the library's heap) and valgrind.
//! `ROCEBUD_PEER_FULL` makes each run a minute long.

use rocebud_peer::netns::Host;
use rocebud_peer::program::Spec;
use rocebud_peer::runner::{Case, Need};
use rocebud_peer::tree::{c_program, c_program_with};
use rocebud_peer::{Outcome, ensure};

pub(crate) fn cases() -> Vec<Case> {
    let compiled = [Need::Root, Need::Build, Need::Compiler];
    let valgrind = [&compiled[..], &[Need::Program("valgrind")]].concat();
    vec![
        Case::new("stress", &compiled, || {
            let program = c_program("stress")?;
            stress(&program, &[], "10", |s| s)
        }),
        Case::new("stress_under_address_sanitizer", &compiled, || {
            let options = ["-g", "-O1", "-fsanitize=address", "-libverbs"];
            let program = c_program_with("stress", "stress-asan", "cc", &options)?;
            // the shim is preloaded and so comes before the sanitizer's library
            stress(&program, &[], "8", |s| {
                s.env("ASAN_OPTIONS", "verify_asan_link_order=0")
                    .env("ROCEBUD_REAL", "off")
            })
        }),
        Case::new("stress_under_valgrind", &valgrind, || {
            let program = c_program("stress")?;
            let under = [
                "valgrind",
                "-q",
                "--fair-sched=yes",
                "--error-exitcode=9",
                "--leak-check=no",
            ];
            stress(&program, &under, "8", |s| s)
        }),
    ]
}

fn stress(program: &str, under: &[&str], seconds: &str, dress: impl Fn(Spec) -> Spec) -> Outcome {
    let full = std::env::var_os("ROCEBUD_PEER_FULL").is_some();
    let seconds = if full { "60" } else { seconds };
    let host = Host::loopback()?;
    let words = [under, &[program, "-d", "rb_lo", "-s", seconds]].concat();
    let (first, rest) = words.split_first().unwrap_or((&"", &[]));
    let said = dress(host.rocebud(first, rest).limit(240))
        .run()?
        .succeeded()?;
    ensure(said.contains("stress ok"), || format!("no result:\n{said}"))
}
