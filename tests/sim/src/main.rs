//! `rocebud-sim`: runs seeds by hand.

use std::process::ExitCode;
use std::time::Duration;

use rocebud_sim::{Options, Report, run_many, run_seed};

const USAGE: &str = "\
usage: rocebud-sim [--seed N] [--seeds COUNT] [--faults PERCENT] [--jobs N] [--verbose]

  --seed N          the seed to run, or the first of several (default: 1)
  --seeds COUNT     run COUNT seeds in a row (default: 1)
  --faults PERCENT  each fault is at most this likely per frame (default: 5)
  --jobs N          threads, for several seeds (default: all cores)
  --verbose         print every frame, call and completion (for one seed)";

struct Args {
    first: u64,
    count: u64,
    jobs: usize,
    options: Options,
}

fn main() -> ExitCode {
    let args = match parse(std::env::args().skip(1)) {
        Ok(args) => args,
        Err(why) => {
            eprintln!("{why}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let watch = Stopwatch::start();
    let done = if args.count == 1 {
        run_seed(args.first, &args.options).map(|report| vec![report])
    } else {
        run_many(args.first, args.count, args.jobs, &args.options)
    };
    match done {
        Ok(reports) => {
            print_summary(&reports, watch.elapsed());
            ExitCode::SUCCESS
        }
        Err(failure) => {
            eprintln!("{failure}");
            ExitCode::FAILURE
        }
    }
}

fn parse(mut args: impl Iterator<Item = String>) -> Result<Args, String> {
    let jobs = std::thread::available_parallelism().map_or(1, |n| n.get());
    let mut parsed = Args {
        first: 1,
        count: 1,
        jobs,
        options: Options::default(),
    };
    while let Some(name) = args.next() {
        if name == "--verbose" {
            parsed.options.verbose = true;
            continue;
        }
        let value = args
            .next()
            .and_then(|v| v.parse::<u64>().ok())
            .ok_or_else(|| format!("{name}: a number must follow"))?;
        match name.as_str() {
            "--seed" => parsed.first = value,
            "--seeds" => parsed.count = value,
            "--faults" => parsed.options.faults_percent_max = value.min(100) as u32,
            "--jobs" => parsed.jobs = value as usize,
            _ => return Err(format!("{name}: unknown option")),
        }
    }
    Ok(parsed)
}

fn print_summary(reports: &[Report], took: Duration) {
    let sum = |of: fn(&Report) -> u64| reports.iter().map(of).sum::<u64>();
    println!(
        "{} seeds in {:.1} s: {} requests done, {} ended in expected errors, {} messages received",
        reports.len(),
        took.as_secs_f64(),
        sum(|r| r.done),
        sum(|r| r.failed),
        sum(|r| r.received),
    );
    println!(
        "{} frames: {} dropped, {} duplicated, {} corrupted ({} undetected), {} delayed; {} steps, {} virtual s",
        sum(|r| r.stats.frames),
        sum(|r| r.stats.dropped),
        sum(|r| r.stats.duplicated),
        sum(|r| r.stats.corrupted),
        sum(|r| r.stats.undetected),
        sum(|r| r.stats.disordered),
        sum(|r| r.stats.steps),
        sum(|r| r.elapsed_ns) / 1_000_000_000,
    );
}

/// Real time, for the summary only: nothing in a run sees it.
struct Stopwatch(std::time::Instant);

impl Stopwatch {
    #[expect(clippy::disallowed_methods, reason = "speed is measured in real time")]
    fn start() -> Self {
        Self(std::time::Instant::now())
    }

    fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }
}
