//! Atomics on a shared word form one history: every answered operation exactly once, in the order
//! of each queue pair, from the first value to the last.
//!
//! All operands are random 64-bit numbers, so a value appears once in a history and the value that
//! an operation returned is its place in it. Operations that ended in an error may have been
//! executed or not; those of one queue pair only as a prefix.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use rocebud_objects::AtomicOp;

use crate::violation::{Checker, Verdict, Violation};

#[derive(Clone, Copy, Debug)]
struct Op {
    /// Queue pair and its life, so that order is kept within one.
    stream: u64,
    seq: u64,
    op: AtomicOp,
}

/// A word and everything that was done to it.
#[derive(Debug)]
pub struct WordLedger {
    initial: u64,
    pending: Vec<Op>,
    done: Vec<(Op, u64)>,
    lost: Vec<Op>,
}

/// States that the search for the next known value may visit.
const SEARCH_MAX: usize = 100_000;

impl WordLedger {
    /// A word that holds `initial`.
    #[must_use]
    pub const fn new(initial: u64) -> Self {
        Self {
            initial,
            pending: Vec::new(),
            done: Vec::new(),
            lost: Vec::new(),
        }
    }

    /// An operation was posted.
    pub fn post(&mut self, stream: u64, seq: u64, op: AtomicOp) {
        self.pending.push(Op { stream, seq, op });
    }

    /// An operation completed and returned `old`. Answers what it left in the word.
    pub fn answered(&mut self, stream: u64, seq: u64, old: u64) -> Option<u64> {
        let op = self.take(stream, seq)?;
        self.done.push((op, old));
        Some(apply(op.op, old))
    }

    /// An operation ended in an error.
    pub fn lost(&mut self, stream: u64, seq: u64) {
        if let Some(op) = self.take(stream, seq) {
            self.lost.push(op);
        }
    }

    fn take(&mut self, stream: u64, seq: u64) -> Option<Op> {
        let same = |o: &Op| o.stream == stream && o.seq == seq;
        let at = self.pending.iter().position(same)?;
        Some(self.pending.remove(at))
    }

    /// Judges the history, given the value that the word holds in the end.
    pub fn check(&self, what: &str, last: u64) -> Verdict {
        let wrong = |why: String| Err(Violation::new(Checker::Atomics, format!("{what}: {why}")));
        if let Some(op) = self.pending.first() {
            return wrong(format!("never ended: {op:?}"));
        }
        let mut steps = BTreeMap::new();
        let mut looks: BTreeMap<u64, Vec<Op>> = BTreeMap::new();
        for &(op, old) in &self.done {
            if apply(op.op, old) == old {
                looks.entry(old).or_default().push(op);
            } else if let Some(other) = steps.insert(old, op) {
                return wrong(format!("{op:?} and {other:?} both found {old:#x}"));
            }
        }
        let mut lost: BTreeMap<u64, Vec<Op>> = BTreeMap::new();
        for op in &self.lost {
            lost.entry(op.stream).or_default().push(*op);
        }
        let lost: Vec<_> = lost.into_values().collect();
        let mut search = Search {
            steps,
            looks: looks.keys().copied().collect(),
            last,
            path: vec![self.initial],
            order: Vec::new(),
        };
        if !search.walk(self.initial, &lost) {
            return wrong(format!(
                "no order of {} answered and {} unanswered operations leads from {:#x} to {last:#x}; got as far as {:#x}; left are {:x?} and looks at {:x?}",
                self.done.len(),
                self.lost.len(),
                self.initial,
                search.path.last().copied().unwrap_or_default(),
                search.steps.values().collect::<Vec<_>>(),
                search
                    .looks
                    .iter()
                    .map(|v| (v, &looks[v]))
                    .collect::<Vec<_>>(),
            ));
        }
        check_order(what, &search, &looks)
    }
}

/// Operations of one queue pair appear in its order.
fn check_order(what: &str, search: &Search, looks: &BTreeMap<u64, Vec<Op>>) -> Verdict {
    let mut newest: BTreeMap<u64, u64> = BTreeMap::new();
    let mut see = |op: &Op| -> Verdict {
        let before = newest.insert(op.stream, op.seq);
        if before.is_some_and(|seq| seq > op.seq) {
            let why = format!("{what}: {op:?} took effect after {before:?} of its queue pair");
            return Err(Violation::new(Checker::Atomics, why));
        }
        Ok(())
    };
    for (i, value) in search.path.iter().enumerate() {
        if let Some(ops) = looks.get(value) {
            // Several looks at one value: any order between queue pairs, rising within one.
            let mut ops = ops.clone();
            ops.sort_by_key(|o| o.seq);
            ops.iter().try_for_each(&mut see)?;
        }
        if let Some(op) = search.order.get(i) {
            see(op)?;
        }
    }
    Ok(())
}

/// The history found so far.
struct Search {
    /// Answered operations that changed the word, by the value they found.
    steps: BTreeMap<u64, Op>,
    /// Values that answered operations found and left as they were, until they were passed.
    looks: BTreeSet<u64>,
    last: u64,
    path: Vec<u64>,
    order: Vec<Op>,
}

impl Search {
    /// Goes on from `value`; true when all answered operations were used and `last` is reached.
    fn walk(&mut self, mut value: u64, lost: &[Vec<Op>]) -> bool {
        let mut used = vec![0; lost.len()];
        loop {
            self.looks.remove(&value);
            // An answered operation is the only one that can have found its value.
            while let Some(op) = self.steps.remove(&value) {
                value = self.take(op, value);
            }
            if self.steps.is_empty() && self.looks.is_empty() && value == self.last {
                return true;
            }
            // Operands are random: a way that leads to a value of the history is the right one.
            let Some(way) = self.bridge(value, &used, lost) else {
                return false;
            };
            for (stream, at) in way {
                used[stream] = at + 1;
                value = self.take(lost[stream][at], value);
            }
        }
    }

    fn take(&mut self, op: Op, value: u64) -> u64 {
        let next = apply(op.op, value);
        self.looks.remove(&next);
        self.path.push(next);
        self.order.push(op);
        next
    }

    /// The shortest row of unanswered operations from `value` to one that the history knows.
    fn bridge(&self, value: u64, used: &[usize], lost: &[Vec<Op>]) -> Option<Vec<(usize, usize)>> {
        let all = self.steps.is_empty() && self.looks.is_empty();
        let known = |v: u64| {
            self.steps.contains_key(&v) || self.looks.contains(&v) || all && v == self.last
        };
        let mut seen = BTreeSet::from([(used.to_vec(), value)]);
        let mut queue = VecDeque::from([(used.to_vec(), value, Vec::new())]);
        while let Some((used, value, way)) = queue.pop_front() {
            for (stream, ops) in lost.iter().enumerate() {
                // A compare that failed leaves no trace: look behind it.
                let effect = |at: &usize| apply(ops[*at].op, value) != value;
                let Some(at) = (used[stream]..ops.len()).find(effect) else {
                    continue;
                };
                let next = apply(ops[at].op, value);
                let (mut used, mut way) = (used.clone(), way.clone());
                used[stream] = at + 1;
                way.push((stream, at));
                if known(next) {
                    return Some(way);
                }
                if seen.len() < SEARCH_MAX && seen.insert((used.clone(), next)) {
                    queue.push_back((used, next, way));
                }
            }
        }
        None
    }
}

const fn apply(op: AtomicOp, value: u64) -> u64 {
    match op {
        AtomicOp::FetchAdd { add } => value.wrapping_add(add),
        AtomicOp::CmpSwap { compare, swap } if value == compare => swap,
        AtomicOp::CmpSwap { .. } => value,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn add(n: u64) -> AtomicOp {
        AtomicOp::FetchAdd { add: n }
    }

    #[test]
    fn a_history_is_found_and_a_second_execution_is_not_forgiven() {
        let mut word = WordLedger::new(100);
        word.post(1, 0, add(7));
        word.post(2, 0, add(1000));
        word.post(1, 1, add(30));
        word.answered(1, 0, 1100);
        word.answered(2, 0, 100);
        word.answered(1, 1, 1107);
        assert!(word.check("word", 1137).is_ok());
        assert!(word.check("word", 1167).is_err());
    }

    #[test]
    fn unanswered_operations_may_have_happened_in_order() {
        let mut word = WordLedger::new(0);
        for (seq, n) in [3, 50, 700].into_iter().enumerate() {
            word.post(1, seq as u64, add(n));
            word.lost(1, seq as u64);
        }
        word.post(2, 0, add(9000));
        word.answered(2, 0, 53);
        assert!(word.check("word", 9053).is_ok());
        assert!(word.check("word", 9753).is_ok());
        assert!(word.check("word", 9050).is_err());
        assert!(word.check("word", 10453).is_err());
    }

    #[test]
    fn order_within_a_queue_pair_counts() {
        let mut word = WordLedger::new(0);
        word.post(1, 0, add(1));
        word.post(1, 1, add(10));
        word.answered(1, 0, 10);
        word.answered(1, 1, 0);
        assert!(word.check("word", 11).is_err());
    }

    #[test]
    fn a_failed_compare_saw_a_value_that_was_there() {
        let mut word = WordLedger::new(5);
        let swap = |compare| AtomicOp::CmpSwap { compare, swap: 77 };
        word.post(1, 0, swap(5));
        word.post(1, 1, swap(5));
        word.answered(1, 0, 5);
        word.answered(1, 1, 77);
        assert!(word.check("word", 77).is_ok());
        word.post(1, 2, swap(5));
        word.answered(1, 2, 6);
        assert!(word.check("word", 77).is_err());
    }
}
