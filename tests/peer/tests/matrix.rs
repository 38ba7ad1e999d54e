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
    [
        ("matrix_cover", Extent::Cover),
        ("matrix_cover_by_rdma_cm", Extent::CoverByRdmaCm),
    ]
    .map(|(name, extent)| Case::new(name, &needs, move || sweep(extent)))
    .into()
}

fn sweep(extent: Extent) -> Outcome {
    let sweep = Sweep {
        extent,
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
