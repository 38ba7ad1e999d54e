//! Losses in our own endpoint (`ROCEBUD_FAULT`), for targets whose wire this program does not carry: real RNICs and other
//! machines. Packets can be lost there, not doubled, swapped or spoiled.

use serde_json::Value;

use crate::error::{Doing, Result, fail};
use crate::matrix::{Cell, Who};
use crate::target::Party;
use crate::wire::{End, Fault};

/// The variable that our library reads.
pub const VARIABLE: &str = "ROCEBUD_FAULT";

/// The loss of a cell, in the words of the variable; `None` where its fault is none or another.
pub fn of_cell(cell: &Cell) -> Option<String> {
    let (from, opcode, plan) = cell.named()?;
    let way = match from {
        End::Ours => "tx",
        End::Theirs => "rx",
    };
    let words = format!("drop {way} opcode={opcode:#x} nth={}", plan.nth);
    (plan.fault == Fault::Drop).then_some(words)
}

/// So many of a million lost, of what one end sends or of both ends'.
pub fn of_chance(per_million: u64, by: Option<Who>, seed: u64) -> String {
    let percent = format!("{}.{:04}", per_million / 10_000, per_million % 10_000);
    let both = [("tx", Who::Ours), ("rx", Who::Theirs)];
    let chosen = both
        .into_iter()
        .filter(|(_, who)| by.is_none_or(|only| only == *who));
    let rules: Vec<String> = chosen
        .map(|(way, _)| format!("drop {way}:{percent}%"))
        .collect();
    format!("{}; seed={seed}", rules.join("; "))
}

/// How many packets a process of ours has lost so.
///
/// # Errors
/// Nobody tells of that process.
pub fn lost(ours: &Party, pid: u32) -> Result<u64> {
    let command = format!("{} status --json", ours.program);
    let ended = ours.place.run(&command, 30)?;
    let said: Value = serde_json::from_str(&ended.output).doing(|| format!("reading {command}"))?;
    let processes = said["processes"].as_array().cloned().unwrap_or_default();
    let Some(process) = processes.iter().find(|p| p["pid"] == pid) else {
        return fail(format!("{command} does not tell of process {pid}"));
    };
    let counters = process["counters"].as_array().cloned().unwrap_or_default();
    let found = counters.iter().find(|c| c[0] == "drop_fault");
    Ok(found.and_then(|c| c[1].as_u64()).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matrix::Matrix;

    #[test]
    fn a_loss_is_named_by_direction_opcode_and_number_and_other_faults_are_not() {
        let text = r#"
            [[group]]
            name = "faults"
            types = ["rc"]
            ops = ["write"]
            sizes = ["3mtu"]
            mtus = [1024]
            families = ["v4"]
            requesters = ["ours", "theirs"]
            faults = ["drop requester write_middle 2", "drop responder ack 1", "corrupt responder ack 1"]
        "#;
        let cells = Matrix::parse(text).and_then(|m| m.cells()).expect("parses");
        let words: Vec<Option<String>> = cells.iter().map(of_cell).collect();
        let is = |text: &str| Some(text.to_owned());
        let wanted = [
            is("drop tx opcode=0x7 nth=2"),
            is("drop rx opcode=0x11 nth=1"),
            None,
            is("drop rx opcode=0x7 nth=2"),
            is("drop tx opcode=0x11 nth=1"),
            None,
        ];
        assert_eq!(words, wanted);
    }

    #[test]
    fn a_chance_is_said_in_percent_for_one_end_or_both() {
        assert_eq!(
            of_chance(10_000, None, 7),
            "drop tx:1.0000%; drop rx:1.0000%; seed=7"
        );
        assert_eq!(
            of_chance(500, Some(Who::Theirs), 7),
            "drop rx:0.0500%; seed=7"
        );
    }
}
