//! Memory against a model, byte by byte.
//!
//! A target region is written by one queue pair only, in the order of its requests, so its bytes
//! are known: what the completed requests left, or, where later requests are under way, what one
//! of those writes.

use std::collections::VecDeque;

use rocebud_fabric::{Span, fill};

use crate::violation::{Checker, Verdict, Violation};

#[derive(Clone, Copy, Debug)]
struct Write {
    seq: u64,
    offset: usize,
    len: usize,
    stream: u64,
}

impl Write {
    fn covers(&self, offset: usize, len: usize) -> bool {
        self.offset < offset + len && offset < self.offset + self.len
    }
}

/// A region that one peer writes.
#[derive(Debug)]
pub struct TargetModel {
    /// The bytes.
    pub span: Span,
    base: Vec<u8>,
    pending: VecDeque<Write>,
}

impl TargetModel {
    /// A model of a region that holds `bytes` now.
    #[must_use]
    pub fn new(span: Span, bytes: &[u8]) -> Self {
        Self {
            span,
            base: bytes.to_vec(),
            pending: VecDeque::new(),
        }
    }

    /// A request that writes `stream` was posted.
    pub fn post(&mut self, seq: u64, offset: u64, len: u64, stream: u64) {
        self.pending.push_back(Write {
            seq,
            offset: offset as usize,
            len: len as usize,
            stream,
        });
    }

    /// The request `seq` has completed, and so have all before it.
    pub fn retire(&mut self, seq: u64) {
        while let Some(write) = self.pending.front().copied().filter(|w| w.seq <= seq) {
            let at = write.offset..write.offset + write.len;
            fill(write.stream, 0, &mut self.base[at]);
            self.pending.pop_front();
        }
    }

    /// Requests after `seq` were never executed.
    pub fn forget_after(&mut self, seq: u64) {
        self.pending.retain(|w| w.seq <= seq);
    }

    /// The request `seq` was refused as a whole.
    pub fn forget(&mut self, seq: u64) {
        self.pending.retain(|w| w.seq != seq);
    }

    /// Judges bytes read at `offset`: what completed requests left, or what a pending request
    /// before `limit` writes.
    pub fn check(&self, what: &str, offset: u64, actual: &[u8], limit: u64) -> Verdict {
        let from = offset as usize;
        let base = &self.base[from..from + actual.len()];
        if base == actual {
            return Ok(());
        }
        let candidates: Vec<(Write, Vec<u8>)> = self
            .pending
            .iter()
            .filter(|w| w.seq < limit && w.covers(from, actual.len()))
            .map(|w| {
                let mut bytes = vec![0; w.len];
                fill(w.stream, 0, &mut bytes);
                (*w, bytes)
            })
            .collect();
        for (i, &byte) in actual.iter().enumerate() {
            let at = from + i;
            let pending =
                |(w, bytes): &(Write, Vec<u8>)| w.covers(at, 1) && bytes[at - w.offset] == byte;
            if base[i] != byte && !candidates.iter().any(pending) {
                let what = format!(
                    "{what}: byte {i} of {} (target offset {at:#x}) is {byte:#04x}, not {:#04x}",
                    actual.len(),
                    base[i]
                );
                return Err(Violation::new(Checker::Bytes, what));
            }
        }
        Ok(())
    }

    /// Judges the whole region when nothing can write it any more, and starts anew from what is
    /// there.
    pub fn settle(&mut self, what: &str, actual: &[u8]) -> Verdict {
        self.check(what, 0, actual, u64::MAX)?;
        self.pending.clear();
        self.base.copy_from_slice(actual);
        Ok(())
    }
}

/// A region that only its owner writes: sources of sends, sinks of READs, receive buffers.
#[derive(Debug)]
pub struct LocalModel {
    /// The bytes.
    pub span: Span,
    shadow: Vec<u8>,
}

impl LocalModel {
    /// A model of a region that holds `bytes` now.
    #[must_use]
    pub fn new(span: Span, bytes: &[u8]) -> Self {
        Self {
            span,
            shadow: bytes.to_vec(),
        }
    }

    /// The application or a checked operation wrote `bytes`.
    pub fn note(&mut self, addr: u64, bytes: &[u8]) {
        let at = (addr - self.span.addr) as usize;
        self.shadow[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// Judges `actual`, the bytes at `addr`.
    pub fn check(&self, what: &str, addr: u64, actual: &[u8]) -> Verdict {
        let at = (addr - self.span.addr) as usize;
        let expected = &self.shadow[at..at + actual.len()];
        if actual == expected {
            return Ok(());
        }
        match (0..actual.len()).find(|&i| actual[i] != expected[i]) {
            None => Ok(()),
            Some(i) => {
                let what = format!(
                    "{what}: byte at {:#x} is {:#04x}, not {:#04x}: nobody asked for that",
                    addr + i as u64,
                    actual[i],
                    expected[i]
                );
                Err(Violation::new(Checker::Bytes, what))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(seed: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        fill(seed, 0, &mut bytes);
        bytes
    }

    #[test]
    fn a_pending_write_may_or_may_not_be_seen() {
        let span = Span { addr: 0, len: 100 };
        let mut model = TargetModel::new(span, &[0; 100]);
        model.post(1, 10, 20, 5);
        let mut seen = vec![0; 100];
        assert!(model.check("before", 0, &seen, 2).is_ok());
        seen[10..30].copy_from_slice(&stream(5, 20));
        assert!(model.check("after", 0, &seen, 2).is_ok());
        assert!(model.check("behind a fence", 0, &seen, 1).is_err());
        model.retire(1);
        assert!(model.check("done", 0, &seen, 1).is_ok());
        assert!(model.check("lost", 0, &[0; 100], 9).is_err());
    }

    #[test]
    fn a_stray_byte_shows() {
        let span = Span { addr: 50, len: 10 };
        let mut model = LocalModel::new(span, &[1; 10]);
        model.note(55, &[2, 3]);
        assert!(model.check("x", 54, &[1, 2, 3]).is_ok());
        assert!(model.check("x", 54, &[1, 2, 4]).is_err());
    }
}
