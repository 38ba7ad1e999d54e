//! Making a cover smaller: a combination can go when all that it alone has can move into others.

use super::{Item, Search};

/// A cover of pairs without the combinations that others could replace. Triples are left as they are:
/// there it takes long and gains little.
pub(super) fn shrink(search: &Search<'_>, taken: Vec<Vec<usize>>) -> Vec<Vec<usize>> {
    if search.triples {
        return taken;
    }
    let mut cover = Cover::new(search, taken);
    for victim in (0..cover.taken.len()).rev() {
        let before = (cover.taken.clone(), cover.count.clone());
        if !cover.remove(victim) {
            (cover.taken, cover.count) = before;
        }
    }
    cover.taken
}

struct Cover<'a, 'b> {
    search: &'a Search<'b>,
    taken: Vec<Vec<usize>>,
    /// In how many combinations a wanted tuple occurs, by its place.
    count: Vec<usize>,
    wanted: Vec<bool>,
}

impl<'a, 'b> Cover<'a, 'b> {
    fn new(search: &'a Search<'b>, taken: Vec<Vec<usize>>) -> Self {
        let mut wanted = vec![false; search.missing.len()];
        search
            .tuples
            .iter()
            .for_each(|t| wanted[search.place(t)] = true);
        let mut count = vec![0; wanted.len()];
        taken
            .iter()
            .flat_map(|c| search.places(c))
            .for_each(|p| count[p] += 1);
        Self {
            search,
            taken,
            count,
            wanted,
        }
    }

    /// Takes a combination out and moves what it alone had elsewhere. On `false` all is in disorder.
    fn remove(&mut self, victim: usize) -> bool {
        let gone = self.taken.remove(victim);
        self.search
            .places(&gone)
            .into_iter()
            .for_each(|p| self.count[p] -= 1);
        let homeless = self.search.tuples.iter();
        let homeless: Vec<_> = homeless
            .filter(|t| self.count[self.search.place(t)] == 0)
            .collect();
        homeless.into_iter().all(|tuple| self.house(tuple))
    }

    /// Changes some combination so that it has the tuple and loses nothing that it alone has.
    fn house(&mut self, tuple: &[Item]) -> bool {
        if self.count[self.search.place(tuple)] > 0 {
            return true; // an earlier one brought it along
        }
        let changed = self
            .taken
            .iter()
            .enumerate()
            .find_map(|(i, c)| Some((i, self.with(c, tuple)?)));
        let Some((at, new)) = changed else {
            return false;
        };
        let old = std::mem::replace(&mut self.taken[at], new.clone());
        self.search
            .places(&old)
            .into_iter()
            .for_each(|p| self.count[p] -= 1);
        self.search
            .places(&new)
            .into_iter()
            .for_each(|p| self.count[p] += 1);
        true
    }

    fn with(&self, combination: &[usize], tuple: &[Item]) -> Option<Vec<usize>> {
        let mut new = combination.to_vec();
        tuple.iter().for_each(|(axis, value)| new[*axis] = *value);
        let kept = self.search.places(&new);
        let lost = |p: &usize| self.wanted[*p] && self.count[*p] == 1 && !kept.contains(p);
        let choices: Vec<Option<usize>> = new.iter().copied().map(Some).collect();
        let fits = !self.search.places(combination).iter().any(lost)
            && self.search.space.allowed(&choices);
        fits.then_some(new)
    }
}
