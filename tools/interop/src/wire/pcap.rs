//! Captures: classic pcap, Ethernet, microseconds.

use std::path::Path;

use super::Seen;
use crate::error::{Doing, Result};

/// Writes what was sent (also what a rule dropped) to a file.
///
/// # Errors
/// The file cannot be written.
pub fn write(path: &Path, frames: &[Seen]) -> Result<()> {
    let mut out = Vec::new();
    for word in [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 0x4_0000, 1] {
        out.extend(word.to_le_bytes());
    }
    for frame in frames {
        let length = u32::try_from(frame.bytes.len()).unwrap_or_default();
        let seconds = u32::try_from(frame.at.as_secs()).unwrap_or_default();
        for word in [seconds, frame.at.subsec_micros(), length, length] {
            out.extend(word.to_le_bytes());
        }
        out.extend_from_slice(&frame.bytes);
    }
    std::fs::write(path, out).doing(|| format!("writing {}", path.display()))
}
