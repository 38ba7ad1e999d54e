//! Which cells are run: all that CI has time for, or all.

use super::cell::{CONNECT, Cell, Choice, FIRST_AXIS, PLACE, PROGRAM, RDMA_CM};
use super::cover::{Item, Space, cover};
use super::data::{Data, Value};

/// How much is run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Extent {
    /// Any two values of any two axes meet, programs and places among them, and every refusal is met
    /// once.
    Cover,
    /// Every cell of the cover that works and whose ends did not come together by rdma_cm: the same by
    /// rdma_cm.
    CoverByRdmaCm,
    /// With every program, any three values of its axes meet (heavy ones: any two), and every refusal
    /// is met with every program and value it names.
    Full,
}

/// The choices of every cell, ordered by place so that one place is used while it stands.
pub fn cells(data: &Data, extent: Extent) -> Vec<Vec<Choice>> {
    let mut cells = match extent {
        Extent::Cover => working(data, None),
        Extent::CoverByRdmaCm => return by_rdma_cm(data),
        Extent::Full => {
            let programs = 0..data.programs.len();
            programs.flat_map(|p| working(data, Some(p))).collect()
        }
    };
    cells.extend(refused(data, extent));
    cells.sort_by_key(|c| c[PLACE]);
    cells
}

/// The cover's cells with rdma_cm in place of sockets, where the program can.
fn by_rdma_cm(data: &Data) -> Vec<Vec<Choice>> {
    let axis = data.axes.iter().position(|a| a.name == CONNECT);
    let value = axis.and_then(|a| {
        let values = &data.axes.get(a)?.values;
        values.iter().position(|v| v.name == RDMA_CM)
    });
    let (Some(axis), Some(value)) = (axis, value) else {
        return Vec::new();
    };
    let other = |mut cell: Vec<Choice>| {
        let choice = cell.get_mut(axis + FIRST_AXIS)?;
        if [Choice::Lacking, Choice::Value(value)].contains(choice) {
            return None;
        }
        *choice = Choice::Value(value);
        Some(cell)
    };
    let works = |cell: &Vec<Choice>| {
        let cell = Cell::new(data, cell);
        cell.exists() && cell.refusal().is_none()
    };
    let covered = cells(data, Extent::Cover);
    let mut all: Vec<_> = covered.iter().cloned().filter_map(other).collect();
    all.retain(|cell| works(cell) && !covered.contains(cell));
    all
}

/// Cells in which nothing is refused.
fn working(data: &Data, program: Option<usize>) -> Vec<Vec<Choice>> {
    let programs = Programs { data, program };
    let found = cover(&programs);
    found.iter().map(|c| programs.choices(c)).collect()
}

/// The axes as [`cover`] sees them: index 0 of a data axis is "lacking".
struct Programs<'a> {
    data: &'a Data,
    /// This program alone, or all.
    program: Option<usize>,
}

impl Programs<'_> {
    fn choice(&self, axis: usize, index: usize) -> Choice {
        match axis {
            PROGRAM => Choice::Value(self.program.unwrap_or(index)),
            PLACE => Choice::Value(index),
            _ => index.checked_sub(1).map_or(Choice::Lacking, Choice::Value),
        }
    }

    fn value(&self, axis: usize, index: usize) -> Option<&Value> {
        let axis = self.data.axes.get(axis.checked_sub(FIRST_AXIS)?)?;
        axis.values.get(index.checked_sub(1)?)
    }

    fn choices(&self, indices: &[usize]) -> Vec<Choice> {
        let all = indices.iter().enumerate();
        all.map(|(axis, index)| self.choice(axis, *index)).collect()
    }
}

impl Space for Programs<'_> {
    fn sizes(&self) -> Vec<usize> {
        let programs = self.program.map_or(self.data.programs.len(), |_| 1);
        let axes = self.data.axes.iter().map(|a| a.values.len() + 1);
        [programs, self.data.places.len()]
            .into_iter()
            .chain(axes)
            .collect()
    }

    fn allowed(&self, choices: &[Option<usize>]) -> bool {
        let all = choices.iter().enumerate();
        let choices: Vec<Choice> = all
            .map(|(axis, index)| index.map_or(Choice::Open, |i| self.choice(axis, i)))
            .collect();
        let cell = Cell::new(self.data, &choices);
        cell.exists() && cell.refusal().is_none()
    }

    fn wanted(&self, tuple: &[Item]) -> bool {
        let with_program = self.program.is_none() && tuple.first().is_some_and(|i| i.0 == PROGRAM);
        let counts = |(axis, index): &Item| match (*axis, self.value(*axis, *index)) {
            (PROGRAM, _) => self.program.is_none(),
            (PLACE, _) => true,
            (_, None) => false,
            (_, Some(v)) if tuple.len() == 3 => !v.heavy,
            (_, Some(v)) => !v.minor || with_program || self.program.is_some(),
        };
        (tuple.len() == 2 || self.program.is_some()) && tuple.iter().all(counts)
    }

    fn slow(&self, axis: usize, index: usize) -> bool {
        self.program.is_some() && self.value(axis, index).is_some_and(|v| v.heavy)
    }
}

/// Cells in which one refusal applies and everything else is the default.
fn refused(data: &Data, extent: Extent) -> Vec<Vec<Choice>> {
    let mut cells = Vec::new();
    for refusal in &data.refusals {
        let applies = |choices: &Vec<Choice>| {
            let cell = Cell::new(data, choices);
            let first = cell.refusal();
            cell.exists() && first.is_some_and(|r| std::ptr::eq(r, refusal))
        };
        let mut all = combinations(data, refusal).filter(applies);
        match extent {
            // programs take turns, so that not all refusals are met with the first
            Extent::Cover | Extent::CoverByRdmaCm => {
                let all: Vec<_> = all.collect();
                cells.extend(all.get(cells.len() % all.len().max(1)).cloned());
            }
            Extent::Full => cells.extend(&mut all),
        }
    }
    cells
}

/// Every combination of the values that a refusal names, on every place; defaults elsewhere.
fn combinations<'a>(
    data: &'a Data,
    refusal: &'a super::data::Refusal,
) -> impl Iterator<Item = Vec<Choice>> + use<'a> {
    let named = |axis: &str, value: &str| {
        refusal
            .when
            .get(axis)
            .map(|values| values.iter().any(|v| v == value))
    };
    let programs = (data.programs.iter().enumerate())
        .filter(move |(_, p)| named("program", &p.name).unwrap_or(true));
    programs.flat_map(move |(p, program)| {
        let start = vec![vec![Choice::Value(p)]];
        let places = longer(start, (0..data.places.len()).map(Choice::Value).collect());
        data.axes.iter().fold(places, |cells, axis| {
            let values = axis.values.iter().enumerate();
            // what follows from size and path MTU is looked for among all of their values
            let derived = refusal.when.contains_key("fits")
                && ["size", "message"].contains(&axis.name.as_str())
                || refusal.when.contains_key("port_mtu") && axis.name == "mtu";
            let choices: Vec<Choice> = match axis.applies(program) {
                false => vec![Choice::Lacking],
                true => values
                    .filter(|(i, v)| named(&axis.name, &v.name).unwrap_or(derived || *i == 0))
                    .map(|(i, _)| Choice::Value(i))
                    .collect(),
            };
            longer(cells, choices)
        })
    })
}

/// Each of `cells` with each of `choices` behind it.
fn longer(cells: Vec<Vec<Choice>>, choices: Vec<Choice>) -> Vec<Vec<Choice>> {
    let with = |cell: Vec<Choice>| {
        choices
            .clone()
            .into_iter()
            .map(move |c| [cell.as_slice(), &[c]].concat())
    };
    cells.into_iter().flat_map(with).collect()
}

#[cfg(test)]
mod tests;
