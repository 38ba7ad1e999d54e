//! The same requests to the target and to rocebud: what the target's end sends may differ only with a reason
//! (`matrix/differences.toml`). The cells are those whose packets do not depend on time: nothing is lost, late or
//! refused.

use super::{Scene, cells};
use crate::differ;
use crate::error::{Result, fail};

const CELLS: &str = include_str!("../../matrix/same.toml");

/// The probe.
///
/// # Errors
/// A difference without a reason, or a cell that did not go right.
pub(super) fn packets(scene: &mut Scene<'_>) -> Result<()> {
    // The two agents of the cells before would hold what these need.
    scene.pair = None;
    let differences = differ::compare(scene.bench, scene.target, &cells(CELLS)?)?;
    if let [first, ..] = differences.skipped() {
        return fail(format!("not compared: {first}"));
    }
    if differences.news() == 0 {
        return Ok(());
    }
    fail(differences.report(scene.target.name()))
}
