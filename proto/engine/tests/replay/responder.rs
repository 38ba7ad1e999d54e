//! The engine in the place of a capture's responder.

use std::collections::BTreeMap;

use rocebud_objects::{Access, WcStatus};
use rocebud_wire::{NakCode, Opcode, Operation, Position, Psn, Syndrome};

use crate::accepted::compare;
use crate::capture::{Capture, Shape};
use crate::side::Side;

const RECEIVES: u64 = 16;

/// Plays a capture's requests; the answers must be those of the capture.
pub fn play(capture: &Capture, used: &mut [usize]) -> Result<(), String> {
    let mut side = Side::new(capture, false);
    memory(capture, &mut side);
    let bytes = if capture.name.contains("long-send") {
        32
    } else {
        8192
    };
    let last_rnr = capture.packets.iter().rposition(|p| p.shape.is_rnr());
    let mut posted = false;
    for (at, seen) in capture.packets.iter().enumerate() {
        // The receives came at some time behind the last refusal.
        if !posted && last_rnr.is_none_or(|rnr| rnr < at) {
            side.receives(RECEIVES, bytes);
            posted = true;
        }
        if seen.asks && !seen.lost {
            side.arrives(seen);
        }
    }
    let captured: Vec<Shape> = capture.of(false).map(|p| p.shape.clone()).collect();
    compare(&captured, &side.sent, used)?;
    let refused = |p: &Shape| matches!(p.syndrome, Some(Syndrome::Nak(code)) if code != NakCode::PsnSequenceError);
    if captured.iter().any(refused) {
        return Ok(());
    }
    received(capture, &mut side)?;
    written(capture, &side)
}

/// Every message that takes a receive completed one.
fn received(capture: &Capture, side: &mut Side) -> Result<(), String> {
    let takes = |p: &&&Shape| {
        let send = p
            .opcode
            .info()
            .is_some_and(|i| i.operation == Operation::Send);
        let ends = matches!(p.position(), Position::Last | Position::Only);
        ends && (send || p.imm.is_some())
    };
    let expected = capture.requests().iter().filter(takes).count();
    let completions = side.completions();
    if completions.iter().all(|wc| wc.status == WcStatus::Success) && completions.len() == expected
    {
        return Ok(());
    }
    Err(format!("{completions:?}, expected {expected} receives"))
}

/// The bytes of WRITEs are in memory.
fn written(capture: &Capture, side: &Side) -> Result<(), String> {
    let mut at = None;
    for request in capture.requests() {
        if matches!(request.position(), Position::First | Position::Only) {
            at = request.reth.map(|r| (r.rkey.0, r.va));
        }
        let (Some((key, va)), false) = (at, request.payload.is_empty()) else {
            continue;
        };
        let len = request.payload.len();
        if side.world.peek(key, va, len) != request.payload {
            return Err(format!("memory does not have {}", request.line()));
        }
        at = Some((key, va + len as u64));
    }
    Ok(())
}

/// What the requests name, with the content that the answers show.
fn memory(capture: &Capture, side: &mut Side) {
    let mut ranges: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
    let mut range = |key: u32, from: u64, to: u64| {
        let range = ranges.entry(key).or_insert((from, to));
        *range = (range.0.min(from), range.1.max(to));
    };
    for request in capture.requests() {
        if let Some(reth) = request.reth {
            let len = match u64::from(reth.dma_len) {
                len if capture.name.contains("beyond") => len / 2,
                len => len,
            };
            range(reth.rkey.0, reth.va, reth.va + len);
        } else if let Some(atomic) = request.atomic {
            range(atomic.rkey.0, atomic.va, atomic.va + 8);
        }
    }
    let all = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
    let access = if capture.name.contains("read-only") {
        Access::REMOTE_READ
    } else {
        all | Access::REMOTE_ATOMIC
    };
    for (key, (from, to)) in ranges {
        if !capture.name.contains("bad-rkey") {
            let len = usize::try_from(to - from).expect("small");
            side.region(key, from, len, access);
        }
    }
    for request in capture.requests() {
        content(capture, request, side);
    }
}

fn content(capture: &Capture, request: &Shape, side: &mut Side) {
    let answers = || capture.of(false).map(|p| &p.shape);
    if let Some(atomic) = request.atomic {
        let mut answers = answers().filter(|a| a.psn == request.psn);
        let original = answers.find_map(|a| a.original).expect("answered");
        let bytes = original.to_ne_bytes();
        side.world.poke(atomic.rkey.0, atomic.va, &bytes);
    }
    let Some(reth) = request.reth else { return };
    if request.opcode != Opcode::RC_READ_REQUEST {
        return;
    }
    for answer in answers().filter(|a| !a.payload.is_empty()) {
        let packet = Psn::new(answer.psn).diff(Psn::new(request.psn));
        let Ok(offset) = u64::try_from(packet).map(|n| n * 1024) else {
            continue;
        };
        if offset < reth.dma_len.into() {
            let va = reth.va + offset;
            side.world.poke(reth.rkey.0, va, &answer.payload);
        }
    }
}
