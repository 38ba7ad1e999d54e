//! The whole table, state × input, as a snapshot: a change of behaviour shows as a change of
//! `states.txt`. After a wanted one: `ROCEBUD_SNAPSHOT=write cargo test -p rocebud-cm --test states`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

use rocebud_cm::{Act, Input, State, step};

/// One line a cell that does something; the others are nothing.
fn snapshot() -> String {
    let mut text = String::new();
    for &state in State::ALL {
        writeln!(text, "{state:?}").expect("a string");
        for &input in Input::ALL {
            let Some(step) = step(state, input) else {
                continue;
            };
            let acts: Vec<String> = step.acts.iter().map(|act| format!("{act:?}")).collect();
            let to = if step.acts.contains(&Act::Leave) {
                "(gone)".to_owned()
            } else if step.to == state {
                "(stays)".to_owned()
            } else {
                format!("{:?}", step.to)
            };
            writeln!(text, "    {input:?}: {} -> {to}", acts.join(", ")).expect("a string");
        }
    }
    text
}

#[test]
fn the_table_is_what_it_was() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/states.txt");
    let now = snapshot();
    if std::env::var("ROCEBUD_SNAPSHOT").as_deref() == Ok("write") {
        std::fs::write(&file, &now).expect("states.txt");
    }
    let then = std::fs::read_to_string(&file).expect("states.txt");
    for (i, (was, is)) in then.lines().zip(now.lines()).enumerate() {
        assert_eq!(was, is, "line {}", i + 1);
    }
    assert_eq!(then, now);
}

#[test]
fn every_state_can_be_entered_and_left() {
    let first = [
        State::ReqSent,
        State::ReqRcvd,
        State::SidrReqSent,
        State::SidrReqRcvd,
    ];
    let mut reached: BTreeSet<State> = first.into();
    let mut ways: BTreeMap<State, u32> = BTreeMap::new();
    for _ in State::ALL {
        for state in reached.clone() {
            for &input in Input::ALL {
                if let Some(step) = step(state, input) {
                    reached.insert(step.to);
                    let leaves = step.to != state || step.acts.contains(&Act::Leave);
                    *ways.entry(state).or_default() += u32::from(leaves);
                }
            }
        }
    }
    assert_eq!(reached.len(), State::ALL.len());
    for state in State::ALL {
        assert!(ways.contains_key(state), "{state:?} is never left");
    }
}

/// Whatever its state, a connection that nobody wants any more comes to an end.
#[test]
fn every_state_can_be_forgotten() {
    for &state in State::ALL {
        assert!(step(state, Input::Forget).is_some(), "{state:?}");
    }
}

/// A state that repeats a message also stops to.
#[test]
fn every_repetition_ends() {
    for &state in State::ALL {
        let repeats = step(state, Input::Timer).is_some();
        assert_eq!(repeats, step(state, Input::GiveUp).is_some(), "{state:?}");
        if let Some(step) = step(state, Input::GiveUp) {
            let ends = step.acts.contains(&Act::Leave) || step.to == State::TimeWait;
            assert!(ends, "{state:?}");
        }
    }
}
