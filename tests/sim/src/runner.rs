//! Runs seeds, one or many, and says how to run a failed one again.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::plan::{Options, Plan};
use crate::violation::{Checker, Verdict, Violation};
use crate::world::{Report, World};

/// A seed that failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    /// The seed.
    pub seed: u64,
    /// Faults that it was run with.
    pub faults_percent_max: u32,
    /// What was seen.
    pub violation: Violation,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "seed {} failed: {}\nreplay: cargo run -p rocebud-sim --release -- --seed {} --faults {} --verbose",
            self.seed, self.violation, self.seed, self.faults_percent_max
        )
    }
}

impl std::error::Error for Failure {}

/// Runs one seed.
///
/// # Errors
/// The first violation.
pub fn run_seed(seed: u64, options: &Options) -> Result<Report, Failure> {
    run_with(seed, options, |_| {})
}

/// Runs one seed in a world that `prepare` may change before anything happens.
///
/// # Errors
/// The first violation.
pub fn run_with(
    seed: u64,
    options: &Options,
    prepare: impl FnOnce(&mut World),
) -> Result<Report, Failure> {
    let run = || -> Verdict<Report> {
        let mut world = World::new(Plan::draw(seed, options), *options)?;
        prepare(&mut world);
        world.run()
    };
    let done = catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|payload| {
        let text = payload
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| payload.downcast_ref::<&str>().copied())
            .unwrap_or("no message");
        Err(Violation::new(Checker::Panic, text))
    });
    done.map_err(|violation| Failure {
        seed,
        faults_percent_max: options.faults_percent_max,
        violation,
    })
}

/// Runs `count` seeds from `first` on `jobs` threads; stops at the first failure.
///
/// # Errors
/// The failure with the smallest seed among those seen.
pub fn run_many(
    first: u64,
    count: u64,
    jobs: usize,
    options: &Options,
) -> Result<Vec<Report>, Failure> {
    let next = AtomicU64::new(0);
    let stop = AtomicBool::new(false);
    let reports = Mutex::new(Vec::new());
    let failures: Mutex<Vec<Failure>> = Mutex::new(Vec::new());
    let work = || {
        while !stop.load(Ordering::Relaxed) {
            let n = next.fetch_add(1, Ordering::Relaxed);
            if n >= count {
                break;
            }
            match run_seed(first.wrapping_add(n), options) {
                Ok(report) => lock(&reports).push(report),
                Err(failure) => {
                    stop.store(true, Ordering::Relaxed);
                    lock(&failures).push(failure);
                }
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..jobs.max(1) {
            scope.spawn(work);
        }
    });
    let failed = lock(&failures).drain(..).min_by_key(|f| f.seed);
    match failed {
        Some(failure) => Err(failure),
        None => Ok(std::mem::take(&mut *lock(&reports))),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}
