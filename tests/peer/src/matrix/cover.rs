//! Few combinations in which any two (or three) choices meet: a greedy covering array with constraints.

mod shrink;

/// What can be combined.
pub trait Space {
    /// How many values each axis has. Axes that decide what others may be come first.
    fn sizes(&self) -> Vec<usize>;
    /// May this be part of a combination? `None` is open. What is forbidden stays so, however the rest
    /// is chosen.
    fn allowed(&self, choices: &[Option<usize>]) -> bool;
    /// Have these two or three choices (ordered by axis) to meet?
    fn wanted(&self, tuple: &[Item]) -> bool;
    /// Is this value to be kept for few combinations, because it takes long?
    fn slow(&self, axis: usize, value: usize) -> bool;
}

/// How many combinations are tried for each that is taken. More makes the cover smaller, slowly.
const CANDIDATES: usize = 16;
/// What a tuple is worth that goes with one value of the first axis only.
const WORTH_MAX: usize = 144;
/// The order of trials starts from here, so the same space always has the same cover.
const SEED: u64 = 0x9e37_79b9_7f4a_7c15;

/// An axis and the index of one of its values.
pub type Item = (usize, usize);
type Choices = Vec<Option<usize>>;

/// Combinations in which every tuple occurs that is allowed and [`Space::wanted`].
pub fn cover(space: &dyn Space) -> Vec<Vec<usize>> {
    let mut search = Search::new(space);
    let mut taken = Vec::new();
    let slow = |tuple: &Vec<Item>| tuple.iter().any(|(a, v)| space.slow(*a, *v));
    let (late, early): (Vec<_>, Vec<_>) = search.tuples.clone().into_iter().partition(slow);
    for seed in [early, late].concat() {
        if search.missing(&seed)
            && let Some(found) = search.best_with(&seed)
        {
            search.take(&found);
            taken.push(found);
        }
    }
    shrink::shrink(&search, taken)
}

/// Every wanted pair and triple that can occur.
pub fn tuples(space: &dyn Space) -> Vec<Vec<Item>> {
    Search::new(space).tuples
}

struct Search<'a> {
    space: &'a dyn Space,
    sizes: Vec<usize>,
    tuples: Vec<Vec<Item>>,
    /// What the tuples that did not occur yet are worth, by [`Search::place`]; 0 for all others.
    missing: Vec<usize>,
    triples: bool,
    chance: u64,
}

impl<'a> Search<'a> {
    fn new(space: &'a dyn Space) -> Self {
        let sizes = space.sizes();
        let items: usize = sizes.iter().sum::<usize>() + 1;
        let mut search = Self {
            space,
            tuples: Vec::new(),
            missing: vec![0; items * items * items],
            triples: false,
            chance: SEED,
            sizes,
        };
        for size in [2, 3] {
            for tuple in search.of_size(size) {
                let worth = if space.wanted(&tuple) {
                    search.worth(&tuple)
                } else {
                    0
                };
                if worth > 0 {
                    let place = search.place(&tuple);
                    search.missing[place] = worth;
                    search.triples |= size == 3;
                    search.tuples.push(tuple);
                }
            }
        }
        search
    }

    /// The fewer values of the first axis a tuple can go with, the more it is worth: what can occur
    /// almost anywhere need not be hurried. 0: it cannot occur.
    fn worth(&self, tuple: &[Item]) -> usize {
        let all = self.sizes.first().copied().unwrap_or(0);
        let fits = |value: &usize| {
            let mut choices = self.only(tuple);
            let same = choices[0].is_none_or(|v| v == *value);
            choices[0] = Some(*value);
            same && self.complete(&mut choices)
        };
        let hosts = (0..all).filter(fits).count();
        (WORTH_MAX / (hosts * hosts).max(1)).max(1) * usize::from(hosts > 0)
    }

    /// All tuples of so many axes.
    fn of_size(&self, size: usize) -> Vec<Vec<Item>> {
        let mut all: Vec<Vec<Item>> = vec![Vec::new()];
        for _ in 0..size {
            let longer = |tuple: &Vec<Item>| {
                let axes = tuple.last().map_or(0, |(a, _)| a + 1)..self.sizes.len();
                let items = axes.flat_map(|a| (0..self.sizes[a]).map(move |v| (a, v)));
                items
                    .map(|i| [tuple.as_slice(), &[i]].concat())
                    .collect::<Vec<_>>()
            };
            all = all.iter().flat_map(longer).collect();
        }
        all
    }

    /// Where a tuple (ordered by axis) is in `missing`.
    fn place(&self, tuple: &[Item]) -> usize {
        let base: usize = self.sizes.iter().sum::<usize>() + 1;
        let number = |(axis, value): &Item| self.sizes[..*axis].iter().sum::<usize>() + value + 1;
        tuple
            .iter()
            .fold(0, |place, item| place * base + number(item))
    }

    fn missing(&self, tuple: &[Item]) -> bool {
        self.missing[self.place(tuple)] > 0
    }

    fn only(&self, tuple: &[Item]) -> Choices {
        let mut choices = vec![None; self.sizes.len()];
        tuple.iter().for_each(|(a, v)| choices[*a] = Some(*v));
        choices
    }

    /// Fills what is open, in any allowed way.
    fn complete(&self, choices: &mut Choices) -> bool {
        if !self.space.allowed(choices) {
            return false;
        }
        let Some(axis) = choices.iter().position(Option::is_none) else {
            return true;
        };
        for value in 0..self.sizes[axis] {
            choices[axis] = Some(value);
            if self.complete(choices) {
                return true;
            }
        }
        choices[axis] = None;
        false
    }

    /// The best of some combinations with `seed` in them.
    fn best_with(&mut self, seed: &[Item]) -> Option<Vec<usize>> {
        let mut best: Option<(usize, Vec<usize>)> = None;
        for _ in 0..CANDIDATES {
            let Some(found) = self.fill(seed) else {
                continue;
            };
            let all: Vec<Item> = found.iter().copied().enumerate().collect();
            let gain = (0..all.len()).map(|i| self.gain(&all[..i], all[i])).sum();
            if best.as_ref().is_none_or(|(most, _)| gain > *most) {
                best = Some((gain, found));
            }
        }
        best.map(|(_, found)| found)
    }

    /// Chooses, axis by axis, what brings most new tuples.
    fn fill(&mut self, seed: &[Item]) -> Option<Vec<usize>> {
        let mut choices = self.only(seed);
        let late = seed.iter().any(|(a, v)| self.space.slow(*a, *v));
        for axis in self.order() {
            if choices[axis].is_some() {
                continue;
            }
            let chosen: Vec<Item> = choices
                .iter()
                .enumerate()
                .filter_map(|(a, v)| Some((a, (*v)?)))
                .collect();
            let mut best: Option<(usize, usize)> = None;
            for value in self.values(axis) {
                let gain = self.gain(&chosen, (axis, value));
                let kept_back = !late && self.space.slow(axis, value);
                if kept_back || best.is_some_and(|(most, _)| gain <= most) {
                    continue;
                }
                choices[axis] = Some(value);
                if self.space.allowed(&choices) {
                    best = Some((gain, value));
                }
            }
            choices[axis] = best.map(|(_, value)| value);
        }
        let whole = self.complete(&mut choices);
        whole.then(|| choices.into_iter().flatten().collect())
    }

    /// What the missing tuples are worth that `item` makes with what is chosen on other axes.
    fn gain(&self, chosen: &[Item], item: Item) -> usize {
        let mut gain = 0;
        for (i, a) in chosen.iter().enumerate() {
            gain += self.missing[self.place(&ordered(&[*a, item]))];
            if self.triples {
                let triples = chosen[i + 1..].iter().map(|b| ordered(&[*a, *b, item]));
                gain += triples.map(|t| self.missing[self.place(&t)]).sum::<usize>();
            }
        }
        gain
    }

    fn take(&mut self, combination: &[usize]) {
        for place in self.places(combination) {
            self.missing[place] = 0;
        }
    }

    /// Where the pairs and triples of a combination are in `missing`.
    fn places(&self, combination: &[usize]) -> Vec<usize> {
        let all: Vec<Item> = combination.iter().copied().enumerate().collect();
        let mut places = Vec::new();
        for (i, a) in all.iter().enumerate() {
            for (j, b) in all.iter().enumerate().skip(i + 1) {
                places.push(self.place(&[*a, *b]));
                let triples = all[j + 1..].iter().filter(|_| self.triples);
                places.extend(triples.map(|c| self.place(&[*a, *b, *c])));
            }
        }
        places
    }

    /// The two deciding axes, then the others in a chance order.
    fn order(&mut self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.sizes.len()).collect();
        for i in (3..order.len()).rev() {
            let j = 2 + self.next(i - 1);
            order.swap(i, j);
        }
        order
    }

    /// The values of an axis, from a chance one on.
    fn values(&mut self, axis: usize) -> Vec<usize> {
        let n = self.sizes[axis];
        let first = self.next(n);
        (0..n).map(|i| (first + i) % n).collect()
    }

    fn next(&mut self, below: usize) -> usize {
        self.chance ^= self.chance << 13;
        self.chance ^= self.chance >> 7;
        self.chance ^= self.chance << 17;
        usize::try_from(self.chance % below.max(1) as u64).unwrap_or(0)
    }
}

fn ordered(items: &[Item]) -> Vec<Item> {
    let mut items = items.to_vec();
    items.sort_unstable();
    items
}

#[cfg(test)]
mod tests;
