//! Random runs, new ones every time, and those that once found something.

use rocebud_sim::{Options, run_many, run_seed};

/// Runs drawn anew by each test run.
const FRESH: u64 = 200;

fn jobs() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get())
}

#[test]
fn two_hundred_fresh_seeds_hold() {
    let base = fresh_base();
    println!("base seed {base}");
    if let Err(failure) = run_many(base, FRESH, jobs(), &Options::default()) {
        panic!("{failure}");
    }
}

#[test]
fn seeds_that_once_failed_hold() {
    let list = include_str!("../seeds.txt");
    for line in list.lines().filter(|l| !l.starts_with('#')) {
        let mut words = line.split_whitespace();
        let number = |w: Option<&str>| w.and_then(|w| w.parse::<u64>().ok());
        let (Some(seed), Some(percent)) = (number(words.next()), number(words.next())) else {
            panic!("seeds.txt: not a seed and a percentage: {line}");
        };
        let options = Options {
            faults_percent_max: percent as u32,
            ..Options::default()
        };
        if let Err(failure) = run_seed(seed, &options) {
            panic!("{failure}\nthis seed once showed: {line}");
        }
    }
}

#[test]
fn a_seed_gives_the_same_run_every_time() {
    let options = Options::default();
    let once = run_seed(42, &options).map(|r| format!("{r:?}"));
    let again = run_seed(42, &options).map(|r| format!("{r:?}"));
    assert_eq!(
        once.map_err(|f| f.to_string()),
        again.map_err(|f| f.to_string())
    );
}

/// Where this test run starts, small enough to type.
fn fresh_base() -> u64 {
    let mut bytes = [0; 4];
    if let Err(why) = getrandom::fill(&mut bytes) {
        panic!("no randomness from the system: {why}");
    }
    u64::from(u32::from_le_bytes(bytes))
}
