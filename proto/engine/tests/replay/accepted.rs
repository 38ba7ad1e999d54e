//! Where the engine may differ from a capture, and why. The list is complete and every line is needed.

use rocebud_wire::{NakCode, Opcode, Psn, Syndrome};

use crate::capture::Shape;

/// How many packets of the capture and of the engine a difference takes.
type Takes = (usize, usize);

/// A difference that is known and right.
pub struct Accepted {
    pub why: &'static str,
    /// Looks at what the capture has (and had) and what the engine has.
    matches: fn(&[Shape], &Shape, Option<&Shape>) -> Option<Takes>,
}

pub const ACCEPTED: [Accepted; 4] = [
    Accepted {
        why: "rxe puts its newest MSN into an answer that it repeats, we that of the request",
        matches: |before, theirs, ours| {
            let repeated = before.iter().any(|b| b.psn == theirs.psn);
            let msn = ours?.msn;
            let same = Shape {
                msn,
                ..theirs.clone()
            } == *ours?;
            (repeated && same && theirs.opcode != Opcode::RC_ACKNOWLEDGE).then_some((1, 1))
        },
    },
    Accepted {
        why: "rxe goes on with MIDDLE where a READ is asked for again from its middle; the answer to a request begins with FIRST",
        matches: |before, theirs, ours| {
            let ours = ours?;
            let repeated = before.iter().any(|b| b.psn == theirs.psn);
            let pair = (theirs.opcode, ours.opcode);
            let opcodes = pair
                == (
                    Opcode::RC_READ_RESPONSE_MIDDLE,
                    Opcode::RC_READ_RESPONSE_FIRST,
                );
            let same = theirs.psn == ours.psn && theirs.payload == ours.payload;
            (repeated && opcodes && same).then_some((1, 1))
        },
    },
    Accepted {
        why: "rxe also refuses what was in flight behind the packet it had no receive for; we wait for that packet",
        matches: |before, theirs, _| {
            let out_of_turn = theirs.syndrome == Some(Syndrome::Nak(NakCode::PsnSequenceError));
            let rnr = before
                .last()
                .is_some_and(|b| b.is_rnr() && b.psn == theirs.psn);
            (rnr && out_of_turn).then_some((1, 0))
        },
    },
    Accepted {
        why: "requests that came together got one ACK from rocebud then; here each comes alone",
        matches: |_, theirs, ours| {
            let plain =
                |s: &Shape| s.opcode == Opcode::RC_ACKNOWLEDGE && s.syndrome == Some(Syndrome::ACK);
            let later = Psn::new(theirs.psn).after(Psn::new(ours?.psn));
            (plain(theirs) && plain(ours?) && later).then_some((0, 1))
        },
    },
];

/// Compares, and counts the accepted differences by their place in the list.
///
/// # Errors
/// The first difference that is not accepted.
pub fn compare(theirs: &[Shape], ours: &[Shape], used: &mut [usize]) -> Result<(), String> {
    let (mut t, mut o) = (0, 0);
    loop {
        let (their, our) = (theirs.get(t), ours.get(o));
        if their.is_none() && our.is_none() {
            return Ok(());
        }
        if their == our {
            (t, o) = (t + 1, o + 1);
            continue;
        }
        let explained = their.and_then(|their| {
            let rules = ACCEPTED.iter().enumerate();
            rules
                .filter_map(|(n, rule)| Some((n, (rule.matches)(&theirs[..t], their, our)?)))
                .next()
        });
        let Some((rule, takes)) = explained else {
            return Err(difference((theirs, t), (ours, o)));
        };
        used[rule] += 1;
        (t, o) = (t + takes.0, o + takes.1);
    }
}

fn difference((theirs, t): (&[Shape], usize), (ours, o): (&[Shape], usize)) -> String {
    let line = |shapes: &[Shape], at: usize| {
        shapes
            .get(at)
            .map_or_else(|| "nothing more".into(), Shape::line)
    };
    let before: Vec<String> = theirs[t.saturating_sub(2)..t]
        .iter()
        .map(Shape::line)
        .collect();
    format!(
        "packet {} of {}\n  captured {}\n  engine   {}\n  before   {before:?}",
        t + 1,
        theirs.len(),
        line(theirs, t),
        line(ours, o)
    )
}
