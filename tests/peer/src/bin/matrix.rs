//! The matrix of programs: `make matrix`.
//!
//! `matrix [cover|cover_by_rdma_cm|full] [--list] [--resume] [--jobs N] [WORD...]`: cells whose names have every WORD in
//! them. Results: `build/tests/matrix/*.jsonl`, a JSON object a line.

use std::process::ExitCode;

use rocebud_peer::Failure;
use rocebud_peer::matrix::data::Data;
use rocebud_peer::matrix::plan::Extent;
use rocebud_peer::matrix::sweep::Sweep;

fn main() -> ExitCode {
    match run() {
        Ok(code) => code,
        Err(Failure::Wrong(why) | Failure::Skip(why)) => {
            eprintln!("matrix: {why}");
            ExitCode::from(2)
        }
    }
}

fn run() -> Result<ExitCode, Failure> {
    let (sweep, list) = arguments()?;
    let data = Data::load()?;
    if list {
        sweep.names(&data).iter().for_each(|n| println!("{n}"));
        return Ok(ExitCode::SUCCESS);
    }
    let summary = sweep.run(&data)?;
    println!("{summary}");
    println!("results: {}", sweep.results().display());
    Ok(if summary.failed.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn arguments() -> Result<(Sweep, bool), Failure> {
    let mut sweep = Sweep {
        extent: Extent::Full,
        only: Vec::new(),
        resume: false,
        jobs: 2,
    };
    let mut list = false;
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        match word.as_str() {
            "cover" => sweep.extent = Extent::Cover,
            "cover_by_rdma_cm" => sweep.extent = Extent::CoverByRdmaCm,
            "full" => sweep.extent = Extent::Full,
            "--list" => list = true,
            "--resume" => sweep.resume = true,
            "--jobs" => sweep.jobs = words.next().unwrap_or_default().parse()?,
            option if option.starts_with('-') => {
                return Err(Failure::Wrong(format!("{option}: not an option")));
            }
            _ => sweep.only.push(word),
        }
    }
    Ok((sweep, list))
}
