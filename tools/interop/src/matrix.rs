//! The matrix as data: groups of choices in TOML, every combination a cell.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::error::{Doing, Result, fail};
use crate::wire::{End, Fault, Rule};

/// The matrix that comes with this program.
pub const BUILT_IN: &str = include_str!("../matrix/cells.toml");

/// The small one, for golden captures and for comparing packets.
pub const GOLDEN: &str = include_str!("../matrix/golden.toml");

/// Longest text of a matrix, bytes: the one that comes along has some thousands.
const TEXT_MAX: u64 = 1 << 20;

/// The text of a matrix in a file.
///
/// # Errors
/// It cannot be read, is no text, or longer than any matrix.
pub fn read(path: &Path) -> Result<String> {
    let mut text = String::new();
    File::open(path)
        .and_then(|file| file.take(TEXT_MAX + 1).read_to_string(&mut text))
        .doing(|| "reading it".into())?;
    if text.len() as u64 > TEXT_MAX {
        return fail("it has more than 1 MiB: is it a matrix?");
    }
    Ok(text)
}

/// A file of groups.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Matrix {
    group: Vec<Group>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Group {
    name: String,
    /// Part of the short form.
    #[serde(default)]
    short: bool,
    types: Vec<Type>,
    ops: Vec<String>,
    /// Bytes, or an expression such as "mtu-1", "3mtu+7".
    sizes: Vec<String>,
    mtus: Vec<u32>,
    families: Vec<Family>,
    requesters: Vec<Who>,
    #[serde(default = "by_hand")]
    connect: Vec<Connect>,
    /// Such as "drop requester write_middle 1"; none: no fault.
    #[serde(default)]
    faults: Vec<String>,
    /// Messages of a cell.
    #[serde(default = "four")]
    count: u32,
    #[serde(default)]
    srq: bool,
    /// Receives are posted when the first message has been refused.
    #[serde(default)]
    late: bool,
}

fn by_hand() -> Vec<Connect> {
    vec![Connect::Hand]
}

fn four() -> u32 {
    4
}

/// Type of the queue pairs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Type {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
}

/// Address family of the wire.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// An end, by its role in the test.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Who {
    /// Rocebud.
    Ours,
    /// The target.
    Theirs,
}

impl Who {
    /// The same, as an end of the wire.
    pub fn end(self) -> End {
        match self {
            Self::Ours => End::Ours,
            Self::Theirs => End::Theirs,
        }
    }
}

/// How the queue pairs come to know each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Connect {
    /// By the runner.
    Hand,
    /// By librdmacm.
    Cm,
}

/// What goes wrong on the wire.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Plan {
    /// As in the matrix.
    pub text: String,
    /// What becomes of the packet.
    pub fault: Fault,
    /// Does the requester send it?
    pub by_requester: bool,
    /// The operation in its opcode: bits 4 to 0.
    pub operation: u8,
    /// The how-manieth, from 1.
    pub nth: u64,
}

/// One test.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Cell {
    /// The group it is of.
    pub group: String,
    /// Part of the short form?
    pub short: bool,
    /// Type of the queue pairs.
    #[serde(rename = "type")]
    pub kind: Type,
    /// The operation, as the agent calls it.
    pub op: String,
    /// Bytes of a message.
    pub size: u32,
    /// Path MTU.
    pub mtu: u32,
    /// Address family.
    pub family: Family,
    /// Who asks.
    pub requester: Who,
    /// How they are connected.
    pub connect: Connect,
    /// What goes wrong.
    pub fault: Option<Plan>,
    /// Messages.
    pub count: u32,
    /// Receives from a shared receive queue?
    pub srq: bool,
    /// Receives only after the first refusal?
    pub late: bool,
}

impl Cell {
    /// A line that names it.
    pub fn name(&self, target: &str) -> String {
        let word = |v: &dyn std::fmt::Debug| format!("{v:?}").to_lowercase();
        let way = match self.requester {
            Who::Ours => format!("rocebud>{target}"),
            Who::Theirs => format!("{target}>rocebud"),
        };
        let mut name = format!(
            "{} {} {} mtu {} {} {way} {}",
            word(&self.kind),
            self.op,
            self.size,
            self.mtu,
            word(&self.family),
            word(&self.connect)
        );
        for (is, text) in [(self.srq, " srq"), (self.late, " late")] {
            name.push_str(if is { text } else { "" });
        }
        if let Some(plan) = &self.fault {
            name.push_str(&format!(" [{}]", plan.text));
        }
        name
    }

    /// The packet that its fault names: who sends it, its opcode.
    pub fn named(&self) -> Option<(End, u8, &Plan)> {
        let plan = self.fault.as_ref()?;
        let asks = self.requester.end();
        let from = if plan.by_requester {
            asks
        } else {
            asks.other()
        };
        let class = match self.kind {
            Type::Rc => 0x00,
            Type::Uc => 0x20,
            Type::Ud => 0x60,
        };
        Some((from, class | plan.operation, plan))
    }

    /// The rule of the wire for its fault.
    pub fn rule(&self) -> Option<Rule> {
        let (from, opcode, plan) = self.named()?;
        Some(Rule::nth(from, Some(opcode), plan.nth, plan.fault))
    }

    /// Does the fault cost a packet, so that somebody must send again?
    pub fn loses(&self) -> bool {
        let fault = self.fault.as_ref().map(|p| p.fault);
        matches!(fault, Some(Fault::Drop | Fault::Corrupt))
    }
}

impl Matrix {
    /// Reads a matrix.
    ///
    /// # Errors
    /// What is wrong in it.
    pub fn parse(text: &str) -> Result<Self> {
        toml::from_str(text).doing(|| "the matrix".into())
    }

    /// Every combination.
    ///
    /// # Errors
    /// A size or fault that nobody understands.
    pub fn cells(&self) -> Result<Vec<Cell>> {
        let mut cells = Vec::new();
        for group in &self.group {
            group.expand(&mut cells)?;
        }
        Ok(cells)
    }
}

impl Group {
    fn expand(&self, into: &mut Vec<Cell>) -> Result<()> {
        let faults = if self.faults.is_empty() {
            vec![None]
        } else {
            self.faults
                .iter()
                .map(|f| plan(f).map(Some))
                .collect::<Result<_>>()?
        };
        let per_cell = |cell: &Cell, into: &mut Vec<Cell>| {
            for fault in &faults {
                into.push(Cell {
                    fault: fault.clone(),
                    ..cell.clone()
                });
            }
        };
        for (kind, op, size, mtu) in product4(&self.types, &self.ops, &self.sizes, &self.mtus) {
            for (family, requester, connect) in
                product3(&self.families, &self.requesters, &self.connect)
            {
                let size = bytes(size, *mtu)?;
                let cell = Cell {
                    group: self.name.clone(),
                    short: self.short,
                    kind: *kind,
                    op: op.clone(),
                    size: if matches!(op.as_str(), "cas" | "fadd") {
                        8
                    } else {
                        size
                    },
                    mtu: *mtu,
                    family: *family,
                    requester: *requester,
                    connect: *connect,
                    fault: None,
                    count: self.count,
                    srq: self.srq,
                    late: self.late,
                };
                per_cell(&cell, into);
            }
        }
        Ok(())
    }
}

fn product3<'a, A, B, C>(a: &'a [A], b: &'a [B], c: &'a [C]) -> Vec<(&'a A, &'a B, &'a C)> {
    let mut all = Vec::new();
    for x in a {
        for y in b {
            all.extend(c.iter().map(|z| (x, y, z)));
        }
    }
    all
}

fn product4<'a, A, B, C, D>(
    a: &'a [A],
    b: &'a [B],
    c: &'a [C],
    d: &'a [D],
) -> Vec<(&'a A, &'a B, &'a C, &'a D)> {
    let mut all = Vec::new();
    for (x, y, z) in product3(a, b, c) {
        all.extend(d.iter().map(|w| (x, y, z, w)));
    }
    all
}

/// "17", "mtu", "mtu+1", "3mtu-5".
fn bytes(text: &str, mtu: u32) -> Result<u32> {
    let understood = || -> Option<u32> {
        let Some((factor, rest)) = text.split_once("mtu") else {
            return text.parse().ok();
        };
        let factor: u32 = if factor.is_empty() {
            1
        } else {
            factor.parse().ok()?
        };
        let more: i32 = if rest.is_empty() {
            0
        } else {
            rest.parse().ok()?
        };
        factor.checked_mul(mtu)?.checked_add_signed(more)
    };
    understood().map_or_else(|| fail(format!("the matrix: size {text:?}")), Ok)
}

/// The operations in opcodes (bits 4 to 0), as faults name them.
const OPERATIONS: &[(&str, u8)] = &[
    ("send_first", 0x00),
    ("send_middle", 0x01),
    ("send_last", 0x02),
    ("send_last_imm", 0x03),
    ("send_only", 0x04),
    ("send_only_imm", 0x05),
    ("write_first", 0x06),
    ("write_middle", 0x07),
    ("write_last", 0x08),
    ("write_last_imm", 0x09),
    ("write_only", 0x0a),
    ("write_only_imm", 0x0b),
    ("read_request", 0x0c),
    ("read_first", 0x0d),
    ("read_middle", 0x0e),
    ("read_last", 0x0f),
    ("read_only", 0x10),
    ("ack", 0x11),
    ("atomic_ack", 0x12),
    ("cmp_swap", 0x13),
    ("fetch_add", 0x14),
];

/// "FAULT requester|responder OPERATION N".
fn plan(text: &str) -> Result<Plan> {
    let understood = || -> Option<Plan> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let [fault, by, operation, nth] = words.as_slice() else {
            return None;
        };
        let fault = match *fault {
            "drop" => Fault::Drop,
            "duplicate" => Fault::Duplicate,
            "reorder" => Fault::Reorder,
            "corrupt" => Fault::Corrupt,
            "mark" => Fault::Mark,
            _ => return None,
        };
        let by_requester = match *by {
            "requester" => true,
            "responder" => false,
            _ => return None,
        };
        let (_, operation) = OPERATIONS.iter().find(|(name, _)| name == operation)?;
        Some(Plan {
            text: text.to_owned(),
            fault,
            by_requester,
            operation: *operation,
            nth: nth.parse().ok()?,
        })
    };
    understood().map_or_else(|| fail(format!("the matrix: fault {text:?}")), Ok)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_numbers_or_multiples_of_the_path_mtu() {
        assert_eq!(bytes("17", 1024), Ok(17));
        assert_eq!(bytes("mtu", 1024), Ok(1024));
        assert_eq!(bytes("mtu-1", 1024), Ok(1023));
        assert_eq!(bytes("3mtu+7", 256), Ok(775));
        assert!(bytes("mtu*2", 256).is_err());
    }

    #[test]
    fn the_matrix_that_comes_along_is_well_formed_and_large_enough() {
        let cells = Matrix::parse(BUILT_IN)
            .and_then(|m| m.cells())
            .expect("parses");
        assert!(cells.len() >= 150, "{} cells", cells.len());
        let short = cells.iter().filter(|c| c.short).count();
        assert!(
            (30..=200).contains(&short),
            "{short} cells in the short form"
        );
        let mut names: Vec<String> = cells.iter().map(|c| c.name("x")).collect();
        names.sort();
        let before = names.len();
        names.dedup();
        assert_eq!(before, names.len(), "two cells of one name");
    }
}
