//! Golden captures: the RoCE frames of cells that went right, each with the command that made it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::cell::Ran;
use crate::error::{Doing, Result};
use crate::probes::hello;
use crate::target::Bench;
use crate::wire::{Fault, Seen, pcap, rule};

const LIST: &str = "captures.tsv";
const HEAD: &str = "capture\tlost frames (from 1)\tpeer\tcommand\n";

/// Where they go, and how this run was asked for them.
#[derive(Clone, Debug)]
pub struct Shelf {
    /// Directory; made if it is not there.
    pub directory: PathBuf,
    /// The command line up to the choice of a cell.
    pub command: String,
}

impl Shelf {
    /// Keeps the frames of a cell, and its line in the list. What is there of the same name is replaced.
    ///
    /// # Errors
    /// The files cannot be read or written.
    pub fn put(&self, bench: &mut Bench, ran: &Ran, frames: &[Seen]) -> Result<()> {
        let dir = &self.directory;
        fs::create_dir_all(dir).doing(|| dir.display().to_string())?;
        let mut frames: Vec<Seen> = frames
            .iter()
            // daemons ask each other who they are once, beside whatever cell is the first
            .filter(|f| rule::is_roce(&f.bytes) && hello::mad(f).is_none())
            .cloned()
            .collect();
        let start = frames.first().map(|f| f.at).unwrap_or_default();
        for frame in &mut frames {
            frame.at -= start;
        }
        let lost: Vec<String> = (1..)
            .zip(&frames)
            .filter(|(_, f)| f.fault == Some(Fault::Drop))
            .map(|(n, _)| n.to_string())
            .collect();
        let name = file_name(&ran.name);
        pcap::write(&dir.join(format!("{name}.pcap")), &frames)?;
        let peer = bench
            .peer()
            .map_or_else(|| "-".into(), |p| format!("Linux {}", p.version));
        let row = format!(
            "{}\t{peer}\t{} --only '{}'",
            lost.join(" "),
            self.command,
            ran.name
        );
        list(&dir.join(LIST), &name, &row)
    }
}

/// `rxe>rocebud` must not look like `rocebud>rxe` with a stroke.
fn file_name(name: &str) -> String {
    let spoken = name.replace('>', " to ");
    let words: Vec<&str> = spoken
        .split(|c: char| !c.is_ascii_alphanumeric())
        .filter(|w| !w.is_empty())
        .collect();
    words.join("-")
}

fn list(path: &Path, name: &str, row: &str) -> Result<()> {
    let before = fs::read_to_string(path).unwrap_or_default();
    let mut rows: BTreeMap<&str, &str> = before
        .lines()
        .skip(1)
        .filter_map(|line| line.split_once('\t'))
        .collect();
    rows.insert(name, row);
    let mut text = HEAD.to_owned();
    for (name, row) in rows {
        text.push_str(&format!("{name}\t{row}\n"));
    }
    fs::write(path, text).doing(|| path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_name_says_who_asked_whom() {
        let name = "rc send 3 mtu 1024 v4 rxe>rocebud hand [drop requester send_middle 2]";
        assert_eq!(
            file_name(name),
            "rc-send-3-mtu-1024-v4-rxe-to-rocebud-hand-drop-requester-send-middle-2"
        );
    }

    #[test]
    fn a_capture_made_again_replaces_its_line_and_no_other() {
        let dir = std::env::temp_dir().join(format!("rocebud-golden-{}", std::process::id()));
        fs::create_dir_all(&dir).expect("a directory");
        let path = dir.join(LIST);
        for (name, row) in [("b", "\tx\t1"), ("a", "7\tx\t2"), ("b", "\tx\t3")] {
            list(&path, name, row).expect("written");
        }
        let text = fs::read_to_string(&path).expect("there");
        fs::remove_dir_all(&dir).expect("removed");
        assert_eq!(text, format!("{HEAD}a\t7\tx\t2\nb\t\tx\t3\n"));
    }
}
