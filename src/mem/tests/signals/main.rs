//! How programs end (or go on) that share SIGSEGV and SIGBUS with us. Each case is a program of
//! its own: this one, started again.
#![cfg(target_arch = "x86_64")]

mod sys;

use rocebud_mem::{Fault, atomic_fetch_add, copy_in, copy_out, ensure_in_front, install};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};
use std::sync::atomic::Ordering;
use sys::*;

const CASE: &str = "ROCEBUD_MEM_CASE";
const BAD: usize = 0x1000;
const SEGV: i32 = libc::SIGSEGV;
const BUS: i32 = libc::SIGBUS;
const SIGINFO: i32 = libc::SA_SIGINFO;

/// Runs a case in a process of its own.
fn run(case: &str) -> ExitStatus {
    let program = std::env::current_exe().expect("our own path");
    Command::new(program)
        .args([
            "--exact",
            "child",
            "--ignored",
            "--test-threads=1",
            "--quiet",
        ])
        .env(CASE, case)
        .stdout(std::process::Stdio::null())
        .status()
        .expect("started")
}

fn dies_of(case: &str, signal: i32) {
    let status = run(case);
    assert_eq!(status.signal(), Some(signal), "{case}: {status}");
}

fn exits(case: &str, code: i32) {
    let status = run(case);
    assert_eq!(status.code(), Some(code), "{case}: {status}");
}

#[test]
fn a_crash_elsewhere_still_ends_the_program() {
    dies_of("crash", SEGV);
    dies_of("crash with another signal", BUS);
    dies_of("crash in another thread", SEGV);
}

#[test]
fn a_signal_that_was_sent_still_does_what_it_did() {
    dies_of("sent", SEGV);
    dies_of("sent with another signal", BUS);
    exits("sent but ignored", 0);
    dies_of("ignored cannot ignore a crash", SEGV);
}

#[test]
fn a_handler_from_before_gets_the_faults_that_are_not_ours() {
    exits("handler before", 42);
    exits("handler before goes on", 0);
    exits("handler before with one argument", 43);
}

#[test]
fn a_handler_from_later_is_put_behind_ours() {
    exits("handler later", 42);
    exits("handler later and our fault", 0);
    exits("default later", 0);
    exits("handler later and nobody says so", 0);
}

#[test]
fn handlers_that_pass_back_to_ours_do_not_go_round_in_circles() {
    dies_of("handler later chains", SEGV);
    dies_of("handler later chains, again and again", SEGV);
    exits("two handlers later chain", 42);
}

#[test]
fn a_handler_that_jumps_out_can_do_so_for_ever() {
    exits("jumps out", 0);
}

#[test]
fn a_handler_runs_with_the_mask_and_flags_it_asked_for() {
    exits("mask", 0);
    exits("no defer", 0);
    dies_of("once only", SEGV);
}

#[test]
fn after_a_fork_the_child_is_guarded_too() {
    exits("fork", 0);
}

#[test]
#[ignore = "run by the other tests, with a case"]
fn child() {
    let Ok(case) = std::env::var(CASE) else {
        return;
    };
    no_core();
    // The standard library has a handler of its own; most programs have none.
    set_action(SEGV, libc::SIG_DFL, 0, &[]);
    set_action(BUS, libc::SIG_DFL, 0, &[]);
    match case.as_str() {
        "crash" => crash_after(|| {}),
        "crash with another signal" => {
            install().expect("handlers");
            crash(bus_page());
        }
        "crash in another thread" => crash_after(|| {
            std::thread::spawn(|| crash(BAD)).join().expect("joined");
        }),
        "sent" => sent(SEGV),
        "sent with another signal" => sent(BUS),
        "sent but ignored" => {
            set_action(SEGV, libc::SIG_IGN, 0, &[]);
            sent(SEGV);
        }
        "ignored cannot ignore a crash" => {
            set_action(SEGV, libc::SIG_IGN, 0, &[]);
            crash_after(|| {});
        }
        "fork" => fork(),
        other => with_handlers(other),
    }
}

/// Installs ours, has faults of ours, does something, has faults again, and crashes.
fn crash_after(something: impl FnOnce()) {
    install().expect("handlers");
    our_faults();
    something();
    ensure_in_front();
    our_faults();
    crash(BAD);
}

fn our_faults() {
    for _ in 0..3 {
        let mut back = [0; 300];
        assert_eq!(copy_in(&mut back, BAD), Err(Fault { addr: BAD, done: 0 }));
        assert_eq!(copy_out(BAD, &back), Err(Fault { addr: BAD, done: 0 }));
        assert_eq!(atomic_fetch_add(BAD, 1), Err(Fault { addr: BAD, done: 0 }));
        assert!(copy_in(&mut back, bus_page()).is_err());
    }
}

fn sent(signal: i32) {
    install().expect("handlers");
    our_faults();
    send_self(signal);
}

fn with_handlers(case: &str) {
    let own = exits_42 as Handler as usize;
    match case {
        "handler before" => {
            set_action(SEGV, own, SIGINFO, &[]);
            crash_after(|| {});
        }
        "handler before goes on" => {
            set_action(SEGV, skips as Handler as usize, SIGINFO, &[]);
            install().expect("handlers");
            for i in 1..100 {
                our_faults();
                set_errno(i);
                crash(BAD + i as usize);
                assert_eq!(errno(), i, "errno is what it was");
                assert_eq!(CALLS.load(Ordering::SeqCst), i as usize);
                assert_eq!(ADDR.load(Ordering::SeqCst), BAD + i as usize);
            }
        }
        "handler before with one argument" => {
            extern "C" fn old_style(signal: i32) {
                std::process::exit(if signal == SEGV { 43 } else { 1 });
            }
            set_action(SEGV, old_style as extern "C" fn(i32) as usize, 0, &[]);
            crash_after(|| {});
        }
        "handler later" => crash_after(|| {
            set_action(SEGV, own, SIGINFO, &[]);
        }),
        "handler later and our fault" => {
            install().expect("handlers");
            set_action(SEGV, own, SIGINFO, &[]);
            set_action(BUS, own, SIGINFO, &[]);
            assert!(ensure_in_front());
            our_faults();
            assert!(!ensure_in_front(), "nothing to do the second time");
        }
        "handler later and nobody says so" => {
            install().expect("handlers");
            set_action(SEGV, own, SIGINFO, &[]);
            set_action(BUS, own, SIGINFO, &[]);
            // The coarse clock, by which it is noticed, ticks every four milliseconds or sooner.
            std::thread::sleep(std::time::Duration::from_millis(20));
            our_faults();
        }
        "default later" => {
            install().expect("handlers");
            set_action(SEGV, libc::SIG_DFL, 0, &[]);
            assert!(ensure_in_front());
            our_faults();
        }
        "jumps out" => {
            set_action(
                SEGV,
                jumps_out as Handler as usize,
                SIGINFO | libc::SA_ONSTACK,
                &[],
            );
            install().expect("handlers");
            for _ in 0..200 {
                assert!(catch(BAD));
                our_faults();
            }
        }
        other => with_chains(other),
    }
}

fn with_chains(case: &str) {
    let own = exits_42 as Handler as usize;
    let chaining = chains as Handler as usize;
    match case {
        "handler later chains" => crash_after(|| {
            PREVIOUS.store(set_action(SEGV, chaining, SIGINFO, &[]), Ordering::Relaxed);
        }),
        "handler later chains, again and again" => crash_after(|| {
            for _ in 0..40 {
                PREVIOUS.store(set_action(SEGV, chaining, SIGINFO, &[]), Ordering::Relaxed);
                assert!(ensure_in_front());
                our_faults();
            }
        }),
        "two handlers later chain" => crash_after(|| {
            // The first knows what to do, the second passes on to whoever was there: ours.
            set_action(SEGV, own, SIGINFO, &[]);
            ensure_in_front();
            PREVIOUS.store(set_action(SEGV, chaining, SIGINFO, &[]), Ordering::Relaxed);
        }),
        other => with_flags(other),
    }
}

fn with_flags(case: &str) {
    let skipping = skips as Handler as usize;
    let bit = |signal: i32| 1u64 << (signal - 1);
    let before = mask();
    let flags = match case {
        "mask" => SIGINFO,
        "no defer" => SIGINFO | libc::SA_NODEFER,
        "once only" => SIGINFO | libc::SA_RESETHAND,
        _ => panic!("no case {case:?}"),
    };
    set_action(SEGV, skipping, flags, &[libc::SIGUSR1, libc::SIGUSR2]);
    install().expect("handlers");
    crash(BAD);
    assert_eq!(CALLS.load(Ordering::SeqCst), 1);
    assert_eq!(mask(), before, "the mask is what it was");
    let own = if flags & libc::SA_NODEFER == 0 {
        bit(SEGV)
    } else {
        0
    };
    let wanted = before | bit(libc::SIGUSR1) | bit(libc::SIGUSR2) | own;
    assert_eq!(MASK.load(Ordering::SeqCst), wanted);
    crash(BAD);
}

fn fork() {
    install().expect("handlers");
    // A program of its own again, without exec: threads do not matter to what the child does.
    let code = fork_and_wait(|| {
        our_faults();
        7
    });
    assert_eq!(code, 7);
}
