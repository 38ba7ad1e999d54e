//! Known disagreements: data with a reason and the evidence, so that a difference is either news or explained.

use serde::Deserialize;

use crate::error::{Doing, Result};

/// The list that comes with this program.
const BUILT_IN: &str = include_str!("../matrix/known.toml");

/// A difference that is somebody else's, or a choice that the specification leaves.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Known {
    /// Of which target: its name.
    pub target: String,
    /// Words that the cell's name has, all of them.
    pub cell: String,
    /// What the failure says, in part.
    pub says: String,
    /// Who is at fault, and the evidence.
    pub reason: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct List {
    #[serde(default)]
    known: Vec<Known>,
}

/// Those of one target.
///
/// # Errors
/// The list is not well-formed.
pub fn of(target: &str) -> Result<Vec<Known>> {
    parse(BUILT_IN, target)
}

/// Those of one target in a list.
///
/// # Errors
/// The list is not well-formed.
pub fn parse(text: &str, target: &str) -> Result<Vec<Known>> {
    let list: List = toml::from_str(text).doing(|| "the known disagreements".into())?;
    Ok(list
        .known
        .into_iter()
        .filter(|k| k.target == target)
        .collect())
}

impl Known {
    /// Explains this failure of this cell.
    pub fn explains(&self, cell: &str, why: &str) -> bool {
        let name: Vec<&str> = cell.split_whitespace().collect();
        self.cell.split_whitespace().all(|w| name.contains(&w)) && why.contains(&self.says)
    }
}
