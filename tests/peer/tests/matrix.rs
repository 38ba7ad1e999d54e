//! The cover of the matrix of programs, one case; the full matrix is `make matrix`.

use rocebud_peer::matrix::data::Data;
use rocebud_peer::matrix::plan::Extent;
use rocebud_peer::matrix::sweep::Sweep;
use rocebud_peer::runner::{Case, Need};
use rocebud_peer::{Outcome, ensure};

pub(crate) fn cases() -> Vec<Case> {
    let needs = [
        Need::Root,
        Need::Build,
        Need::Compiler, // for the relay between tun interfaces
        Need::Program("ib_write_bw"),
        Need::Program("ibv_rc_pingpong"),
    ];
    vec![Case::new("matrix_cover", &needs, matrix_cover)]
}

fn matrix_cover() -> Outcome {
    let sweep = Sweep {
        extent: Extent::Cover,
        only: Vec::new(),
        resume: false,
        jobs: 1,
    };
    let summary = sweep.run(&Data::load()?)?;
    println!("{summary}");
    ensure(summary.failed.is_empty(), || {
        format!("{} cells failed, see above", summary.failed.len())
    })
}
