//! Captures between kernel rxe and rocebud, played against the engine of today: given the requests it answers as
//! rxe did (or as it did itself), given the answers it asks as rxe did and comes to the same completions.

#![allow(unreachable_pub, reason = "a test binary has no outside")]

mod accepted;
mod capture;
mod requester;
mod responder;
mod side;
#[allow(dead_code, reason = "the model of the other tests; a part is used")]
#[path = "../behaviour/world.rs"]
mod world;

use accepted::ACCEPTED;
use capture::Capture;

/// Plays all captures; fails with everything that differed. Answers how often each difference was accepted.
fn play_all(
    play: impl Fn(&Capture, &mut [usize]) -> Result<(), String>,
) -> [usize; ACCEPTED.len()] {
    let captures = Capture::all();
    assert!(captures.len() > 50, "{} captures", captures.len());
    let mut used = [0; ACCEPTED.len()];
    let mut wrong = Vec::new();
    for capture in &captures {
        if let Err(why) = play(capture, &mut used) {
            wrong.push(format!("{}: {why}", capture.name));
        }
    }
    let all = captures.len();
    assert!(
        wrong.is_empty(),
        "{} of {all}:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
    used
}

#[test]
fn the_responder_answers_what_is_in_the_capture() {
    let used = play_all(responder::play);
    for (rule, n) in ACCEPTED.iter().zip(used) {
        assert!(n > 0, "no capture needs: {}", rule.why);
    }
}

#[test]
fn the_requester_asks_what_is_in_the_capture_and_completes() {
    let used = play_all(requester::play);
    assert_eq!(used, [0; ACCEPTED.len()], "requests do not differ");
}
