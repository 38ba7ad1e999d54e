use super::*;
use std::fmt::Write;
use std::string::String;

/// State × event: what each pair does. `UPDATE=1 cargo test -p rocebud-rsocket` writes it anew.
fn matrix() -> String {
    let mut text = String::new();
    for from in State::ALL {
        writeln!(text, "{from:?}").unwrap();
        for on in Event::ALL {
            match step(from, on) {
                Step::Stay => {}
                Step::Refuse(errno) => writeln!(text, "    {on:?}: errno {}", errno.0).unwrap(),
                Step::Go { to, act } => writeln!(text, "    {on:?}: {to:?}, {act:?}").unwrap(),
            }
        }
    }
    text
}

#[test]
fn the_whole_matrix_is_as_written_down() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/state/matrix.txt");
    let now = matrix();
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(path, &now).unwrap();
    }
    let written = std::fs::read_to_string(path).unwrap();
    assert_eq!(
        now, written,
        "the table has changed: look at it, then UPDATE=1"
    );
}

#[test]
fn no_pair_has_two_lines() {
    for (i, a) in MOVES.iter().enumerate() {
        let twice = MOVES[..i].iter().any(|b| (a.from, a.on) == (b.from, b.on));
        assert!(!twice, "{a:?}");
    }
}

#[test]
fn what_is_over_stays_over() {
    for end in [State::Disconnected, State::Failed, State::ConnectFailed] {
        for on in Event::ALL {
            assert!(!matches!(step(end, on), Step::Go { .. }), "{end:?} {on:?}");
        }
    }
}

#[test]
fn every_state_is_reached_and_every_connection_can_end() {
    for state in State::ALL.into_iter().filter(|s| *s != State::Init) {
        assert!(MOVES.iter().any(|m| m.to == state), "{state:?}");
    }
    for state in State::ALL.into_iter().filter(|s| s.is_connected()) {
        for on in [Event::PeerDisconnect, Event::ConnectionLost] {
            let over = Step::Go {
                to: State::Disconnected,
                act: Act::Nothing,
            };
            assert_eq!(step(state, on), over);
        }
    }
}

#[test]
fn a_disconnect_is_announced_exactly_when_both_directions_have_ended() {
    for m in MOVES.iter().filter(|m| m.to == State::Shut) {
        assert_eq!(m.act, SendDisconnect, "{m:?}");
    }
    for m in MOVES.iter().filter(|m| m.act == SendDisconnect) {
        assert_eq!(m.to, State::Shut, "{m:?}");
    }
}
