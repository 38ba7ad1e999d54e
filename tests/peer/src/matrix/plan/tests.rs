use std::collections::BTreeSet;

use super::{Extent, cells};
use crate::matrix::cell::{Cell, Choice, FIRST_AXIS};
use crate::matrix::data::{Data, Value};

fn names(data: &Data, extent: Extent) -> Vec<String> {
    let name = |c: &Vec<Choice>| Cell::new(data, c).to_string();
    cells(data, extent).iter().map(name).collect()
}

#[test]
fn the_cover_has_at_most_120_cells_and_each_once() {
    let data = Data::load().expect("the data is sound");
    let all = names(&data, Extent::Cover);
    let once: BTreeSet<&String> = all.iter().collect();
    assert!(all.len() <= 120, "{} cells", all.len());
    assert_eq!(once.len(), all.len());
}

#[test]
fn every_program_meets_every_place_and_every_value_it_has() {
    let data = Data::load().expect("the data is sound");
    let all = cells(&data, Extent::Cover);
    for (p, program) in data.programs.iter().enumerate() {
        for (a, axis) in data
            .axes
            .iter()
            .enumerate()
            .filter(|(_, a)| a.applies(program))
        {
            let refused =
                |value: &Value| refused_always(&data, &program.name, &axis.name, &value.name);
            for (v, value) in axis.values.iter().enumerate().filter(|(_, v)| !refused(v)) {
                let met =
                    |c: &&Vec<Choice>| c[0] == Choice::Value(p) && c[a + 2] == Choice::Value(v);
                assert!(
                    all.iter().any(|c| met(&c)),
                    "{} never with {}",
                    program.name,
                    value.name
                );
            }
        }
        for (l, place) in data.places.iter().enumerate() {
            let met = all
                .iter()
                .any(|c| c[0] == Choice::Value(p) && c[1] == Choice::Value(l));
            assert!(met, "{} never at {}", program.name, place.name);
        }
    }
}

/// Whatever else is chosen, the program refuses this value; in the cover any one program meets a refusal.
fn refused_always(data: &Data, program: &str, axis: &str, value: &str) -> bool {
    data.refusals.iter().any(|refusal| {
        let names = |key: &str, word: &str| {
            let words = refusal.when.get(key);
            words.is_some_and(|words| words.iter().any(|w| w == word))
        };
        refusal.when.len() == 2 && names("program", program) && names(axis, value)
    })
}

#[test]
fn every_refusal_is_met() {
    let data = Data::load().expect("the data is sound");
    let all = cells(&data, Extent::Cover);
    for refusal in &data.refusals {
        let met = |c: &&Vec<Choice>| {
            Cell::new(&data, c)
                .refusal()
                .is_some_and(|r| std::ptr::eq(r, refusal))
        };
        assert!(all.iter().any(|c| met(&c)), "never met: {}", refusal.says);
    }
}

/// Whatever of perftest the cover runs, runs by rdma_cm as well: in the cover itself or in its twin.
#[test]
fn every_cell_of_the_cover_that_can_runs_by_rdma_cm() {
    let data = Data::load().expect("the data is sound");
    let [cover, twin] = [Extent::Cover, Extent::CoverByRdmaCm].map(|extent| cells(&data, extent));
    let twins = |c: &Vec<Choice>| Cell::new(&data, c).by_rdma_cm();
    assert!(
        twin.iter().all(twins),
        "{:?}",
        names(&data, Extent::CoverByRdmaCm)
    );
    let axis = data.axes.iter().position(|a| a.name == "connect");
    let at = FIRST_AXIS + axis.expect("an axis");
    let (mut ran, mut refused) = (0, 0);
    for cell in &cover {
        if cell[at] == Choice::Lacking || Cell::new(&data, cell).refusal().is_some() {
            continue;
        }
        let mut other = cell.clone();
        other[at] = Choice::Value(1);
        let name = Cell::new(&data, &other).to_string();
        match Cell::new(&data, &other).refusal() {
            Some(refusal) => {
                let says = &refusal.says;
                assert!(refusal.when.contains_key("connect"), "{name}: {says}");
                refused += 1;
            }
            None => {
                assert!(cover.contains(&other) || twin.contains(&other), "{name}");
                ran += 1;
            }
        }
    }
    assert!(
        ran > 50 && refused > 0,
        "{ran} cells by rdma_cm, {refused} refused"
    );
}
