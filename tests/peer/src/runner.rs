//! A test runner for cases that need a whole machine: serial, with skips that have names.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use crate::tree::Machine;
use crate::{Failure, Outcome};

/// What a case cannot run without.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Need {
    /// Namespaces, veth, raw sockets.
    Root,
    /// `build/bin/rocebud` and its libraries.
    Build,
    /// A C compiler and libibverbs' header.
    Compiler,
    /// A program on the PATH.
    Program(&'static str),
    /// A C header, by its path.
    Header(&'static str),
    /// `/usr/bin/python3` with pyverbs.
    Pyverbs,
    /// `nft`, and a kernel that takes its rules.
    Nft,
    /// A kernel that makes interfaces of this kind, as `ip link add … type` names it.
    Link(&'static str),
}

/// A named case.
pub struct Case {
    name: String,
    needs: Vec<Need>,
    run: Box<dyn Fn() -> Outcome>,
}

impl std::fmt::Debug for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Case")
            .field("name", &self.name)
            .field("needs", &self.needs)
            .finish_non_exhaustive()
    }
}

impl Case {
    /// A case that runs `run` where the machine has all of `needs`.
    pub fn new(name: &str, needs: &[Need], run: impl Fn() -> Outcome + 'static) -> Self {
        Self {
            name: name.to_owned(),
            needs: needs.to_vec(),
            run: Box::new(run),
        }
    }
}

enum Verdict {
    Passed,
    Failed(String),
    Skipped(String),
}

/// Runs the cases whose names contain one of the arguments (all, without arguments) and prints one
/// line each. On CI (`CI=true`) a skip is a failure: a machine of CI has everything but another kernel.
///
/// Returns the exit status.
pub fn main(cases: &[Case]) -> i32 {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let wanted: Vec<&String> = args.iter().filter(|a| !a.starts_with('-')).collect();
    let chosen: Vec<&Case> = cases
        .iter()
        .filter(|c| wanted.is_empty() || wanted.iter().any(|w| c.name.contains(w.as_str())))
        .collect();
    if args.iter().any(|a| a == "--list") {
        chosen.iter().for_each(|c| println!("{}: test", c.name));
        return 0;
    }
    let machine = Machine::look();
    let strict = std::env::var("CI").is_ok_and(|v| v == "true");
    let (mut passed, mut failed, mut skipped) = (0_u32, Vec::new(), Vec::new());
    for case in chosen {
        let start = Instant::now();
        match verdict(case, &machine, strict) {
            Verdict::Passed => {
                passed += 1;
                line("ok", &case.name, start.elapsed(), "");
            }
            Verdict::Failed(why) => {
                line("FAILED", &case.name, start.elapsed(), &why);
                failed.push(case.name.as_str());
            }
            Verdict::Skipped(why) => {
                line("skipped", &case.name, start.elapsed(), &why);
                skipped.push(format!("{} ({why})", case.name));
            }
        }
    }
    closing(passed, &failed, &skipped)
}

fn verdict(case: &Case, machine: &Machine, strict: bool) -> Verdict {
    let (mut missing, mut only_the_kernel) = (Vec::new(), true);
    for need in &case.needs {
        if let Some(what) = machine.lacks(*need) {
            only_the_kernel &= matches!(need, Need::Link(_));
            missing.push(what);
        }
    }
    let strict = strict && (missing.is_empty() || !only_the_kernel);
    let outcome = if missing.is_empty() {
        catch_unwind(AssertUnwindSafe(|| (case.run)()))
            .unwrap_or_else(|_| Err(Failure::Wrong("the case panicked (see above)".into())))
            .and_then(|()| no_daemon_panicked())
    } else {
        Err(Failure::Skip(missing.join(", ")))
    };
    match outcome {
        Ok(()) => Verdict::Passed,
        Err(Failure::Wrong(why)) => Verdict::Failed(why),
        Err(Failure::Skip(why)) if strict => Verdict::Failed(format!("skipped on CI: {why}")),
        Err(Failure::Skip(why)) => Verdict::Skipped(why),
    }
}

/// A daemon that panics takes the devices of all programs with it, whether a case notices or not.
fn no_daemon_panicked() -> Outcome {
    let log = crate::tree::daemon_log();
    let said = std::fs::read_to_string(&log).unwrap_or_default();
    let _ = std::fs::remove_file(&log);
    if said.contains("panicked at") {
        return Err(Failure::Wrong(format!("a daemon panicked:\n{said}")));
    }
    Ok(())
}

fn line(word: &str, name: &str, took: Duration, why: &str) {
    println!("{word} {name} ({:.1} s)", took.as_secs_f64());
    for l in why.lines() {
        println!("    {l}");
    }
}

fn closing(passed: u32, failed: &[&str], skipped: &[String]) -> i32 {
    for name in failed {
        println!("FAILED: {name}");
    }
    for name in skipped {
        println!("left out: {name}");
    }
    println!(
        "peer: {passed} passed, {} failed, {} skipped",
        failed.len(),
        skipped.len()
    );
    i32::from(!failed.is_empty())
}
