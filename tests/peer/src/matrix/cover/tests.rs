use std::collections::BTreeSet;

use super::{Item, Space, cover, tuples};

/// Axes of three values; `forbidden` pairs; the last value of the last axis is slow.
struct Toy {
    axes: usize,
    triples: bool,
    forbidden: Vec<[Item; 2]>,
}

impl Space for Toy {
    fn sizes(&self) -> Vec<usize> {
        vec![3; self.axes]
    }
    fn allowed(&self, choices: &[Option<usize>]) -> bool {
        let is = |(a, v): Item| choices[a] == Some(v);
        !self.forbidden.iter().any(|[x, y]| is(*x) && is(*y))
    }
    fn wanted(&self, tuple: &[Item]) -> bool {
        let slow = tuple.iter().any(|(a, v)| self.slow(*a, *v));
        tuple.len() == 2 || self.triples && !slow
    }
    fn slow(&self, axis: usize, value: usize) -> bool {
        axis + 1 == self.axes && value == 2
    }
}

fn covered(found: &[Vec<usize>], tuple: &[Item]) -> bool {
    found.iter().any(|c| tuple.iter().all(|(a, v)| c[*a] == *v))
}

#[test]
fn every_allowed_tuple_occurs_and_no_forbidden_one() {
    for triples in [false, true] {
        let toy = Toy {
            axes: 5,
            triples,
            forbidden: vec![[(0, 1), (1, 2)], [(2, 0), (4, 0)]],
        };
        let found = cover(&toy);
        let wanted = tuples(&toy);
        assert!(wanted.iter().all(|t| covered(&found, t)));
        assert!(
            found
                .iter()
                .all(|c| toy.allowed(&c.iter().copied().map(Some).collect::<Vec<_>>()))
        );
        // 5 axes of 3: 10 pairs of axes, 9 pairs of values each, two of them forbidden
        let pairs = wanted.iter().filter(|t| t.len() == 2).count();
        assert_eq!(pairs, 88);
    }
}

#[test]
fn a_cover_is_small_and_always_the_same() {
    let toy = Toy {
        axes: 6,
        triples: false,
        forbidden: Vec::new(),
    };
    let found = cover(&toy);
    assert!(
        found.len() <= 20,
        "{} combinations, 9 is the least",
        found.len()
    );
    assert_eq!(found, cover(&toy));
}

#[test]
fn slow_values_are_rare() {
    let toy = Toy {
        axes: 5,
        triples: true,
        forbidden: Vec::new(),
    };
    let found = cover(&toy);
    let rare: BTreeSet<_> = found.iter().filter(|c| c[4] == 2).collect();
    assert!(
        rare.len() * 3 < found.len(),
        "{} of {}",
        rare.len(),
        found.len()
    );
}
