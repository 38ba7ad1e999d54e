//! Readers for the golden data.
#![allow(dead_code, reason = "each test file uses a part")]

use std::fs;
use std::path::{Path, PathBuf};

/// A packet from a public source.
pub(crate) struct Published {
    pub(crate) name: String,
    /// Starts at the Ethernet header, else at the IP header.
    pub(crate) ethernet: bool,
    pub(crate) bytes: Vec<u8>,
}

impl Published {
    /// Its ICRC is known to be wrong.
    pub(crate) fn bad(&self) -> bool {
        self.name.starts_with("BAD-")
    }
}

/// All packets of `packets.txt`.
pub(crate) fn published() -> Vec<Published> {
    let text = fs::read_to_string(dir().join("packets.txt")).expect("packets.txt");
    let lines: Vec<&str> = text
        .lines()
        .filter(|l| !l.starts_with('#') && !l.is_empty())
        .collect();
    lines
        .chunks(2)
        .map(|pair| {
            let mut head = pair[0].split('|').map(str::trim);
            Published {
                name: head.next().expect("name").to_owned(),
                ethernet: head.next() == Some("eth"),
                bytes: hex(pair[1]),
            }
        })
        .collect()
}

/// A capture: file name and frames from their Ethernet header.
pub(crate) struct Capture {
    pub(crate) name: String,
    pub(crate) frames: Vec<Vec<u8>>,
}

/// All captures between two kernels, by name.
pub(crate) fn captures() -> Vec<Capture> {
    captures_in(&dir())
}

/// All captures between a kernel and rocebud, by name.
pub(crate) fn interop_captures() -> Vec<Capture> {
    captures_in(&dir().join("interop"))
}

fn captures_in(dir: &Path) -> Vec<Capture> {
    let mut paths: Vec<PathBuf> = fs::read_dir(dir)
        .expect("a directory of captures")
        .map(|e| e.expect("entry").path())
        .filter(|p| p.extension().is_some_and(|x| x == "pcap"))
        .collect();
    paths.sort();
    paths
        .into_iter()
        .map(|p| Capture {
            name: p.file_stem().expect("stem").to_string_lossy().into_owned(),
            frames: read_pcap(&fs::read(&p).expect("pcap")),
        })
        .collect()
}

/// Frames of one capture.
pub(crate) fn capture(name: &str) -> Vec<Vec<u8>> {
    read_pcap(&fs::read(dir().join(format!("{name}.pcap"))).expect("pcap"))
}

/// Names of the captures in the list of those between a kernel and rocebud.
pub(crate) fn interop_list() -> Vec<String> {
    let text = fs::read_to_string(dir().join("interop/captures.tsv")).expect("captures.tsv");
    let name = |line: &str| line.split('\t').next().expect("a column").to_owned();
    text.lines().skip(1).map(name).collect()
}

fn dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden")
}

fn hex(text: &str) -> Vec<u8> {
    (0..text.len())
        .step_by(2)
        .map(|i| u8::from_str_radix(&text[i..i + 2], 16).expect("hex"))
        .collect()
}

/// Little-endian classic pcap with Ethernet frames, as the README of the data says.
fn read_pcap(bytes: &[u8]) -> Vec<Vec<u8>> {
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four"));
    assert_eq!((word(0), word(20)), (0xa1b2_c3d4, 1));
    let mut frames = Vec::new();
    let mut at = 24;
    while at < bytes.len() {
        let (captured, length) = (word(at + 8) as usize, word(at + 12) as usize);
        assert_eq!(captured, length, "whole frames only");
        frames.push(bytes[at + 16..at + 16 + captured].to_vec());
        at += 16 + captured;
    }
    frames
}
