//! The engine in the place of a capture's requester.

use rocebud_objects::{Remote, SendOp, WcStatus};
use rocebud_wire::{NakCode, Opcode, Position, Psn, Syndrome};

use crate::accepted::compare;
use crate::capture::{Capture, Shape};
use crate::side::Side;

/// Bytes of local memory for a message.
const SLOT: u64 = 8192;

/// A message, put together from its packets.
struct Message<'a> {
    psn: u32,
    op: SendOp,
    bytes: Vec<u8>,
    /// What it is to bring.
    len: u32,
    packets: Vec<&'a Shape>,
}

/// Posts the requests of a capture and plays the answers.
pub fn play(capture: &Capture, used: &mut [usize]) -> Result<(), String> {
    let messages = messages(capture);
    let mut side = Side::new(capture, true);
    for (i, message) in (0..).zip(&messages) {
        side.poke(i * SLOT, &message.bytes);
        side.post(i, message.op, i * SLOT, message.len);
    }
    for seen in capture.of(false).filter(|p| !p.lost) {
        side.arrives(seen);
    }
    asked_the_same(capture, &side, used)?;
    completed(capture, &mut side, &messages)
}

/// Each packet for the first time: what is sent again depends on when.
fn asked_the_same(capture: &Capture, side: &Side, used: &mut [usize]) -> Result<(), String> {
    let mut next = capture.first_psn();
    let mut once = Vec::new();
    for shape in &side.sent {
        let new = Psn::new(shape.psn);
        if new == next {
            next = new.add(shape.span());
            once.push(shape.clone());
        }
    }
    let captured: Vec<Shape> = capture.requests().into_iter().cloned().collect();
    compare(&captured, &once, used)
}

fn completed(capture: &Capture, side: &mut Side, messages: &[Message<'_>]) -> Result<(), String> {
    let statuses: Vec<WcStatus> = side.completions().iter().map(|wc| wc.status).collect();
    let refused = capture.of(false).find_map(|p| match p.shape.syndrome {
        Some(Syndrome::Nak(NakCode::RemoteAccessError)) => Some(WcStatus::RemAccessErr),
        Some(Syndrome::Nak(NakCode::InvalidRequest)) => Some(WcStatus::RemInvReqErr),
        _ => None,
    });
    let expected: Vec<WcStatus> = match refused {
        None => vec![WcStatus::Success; messages.len()],
        Some(status) => (0..messages.len())
            .map(|i| if i == 0 { status } else { WcStatus::WrFlushErr })
            .collect(),
    };
    if statuses != expected {
        return Err(format!("completions {statuses:?}, expected {expected:?}"));
    }
    for (i, message) in (0..).zip(messages).filter(|_| refused.is_none()) {
        let brought = brought(capture, message);
        if side.peek(i * SLOT, brought.len()) != brought {
            return Err(format!("message {i} brought other bytes"));
        }
    }
    Ok(())
}

/// What the answers to a READ or an atomic brought.
fn brought(capture: &Capture, message: &Message<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    let answers = || capture.of(false).map(|p| &p.shape);
    if let SendOp::Read { .. } = message.op {
        bytes.resize(message.len as usize, 0);
        for answer in answers().filter(|a| !a.payload.is_empty()) {
            let packet = Psn::new(answer.psn).diff(Psn::new(message.psn));
            let at = usize::try_from(packet).map_or(usize::MAX, |n| n * 1024);
            if at < bytes.len() {
                bytes[at..at + answer.payload.len()].copy_from_slice(&answer.payload);
            }
        }
    } else if message.packets[0].atomic.is_some() {
        let mut answers = answers().filter(|a| a.psn == message.psn);
        let original = answers.find_map(|a| a.original).expect("answered");
        bytes = original.to_ne_bytes().to_vec();
    }
    bytes
}

fn messages(capture: &Capture) -> Vec<Message<'_>> {
    let mut messages: Vec<Message<'_>> = Vec::new();
    for shape in capture.requests() {
        if matches!(shape.position(), Position::First | Position::Only) {
            messages.push(Message {
                psn: shape.psn,
                op: SendOp::Send,
                bytes: Vec::new(),
                len: 0,
                packets: Vec::new(),
            });
        }
        let message = messages.last_mut().expect("a first packet");
        message.packets.push(shape);
        message.bytes.extend_from_slice(&shape.payload);
        if matches!(shape.position(), Position::Last | Position::Only) {
            message.op = operation(message);
            message.len = length(message);
        }
    }
    messages
}

fn length(message: &Message<'_>) -> u32 {
    let first = message.packets[0];
    match (first.reth, first.atomic) {
        (Some(reth), _) => reth.dma_len,
        (_, Some(_)) => 8,
        _ => u32::try_from(message.bytes.len()).expect("small"),
    }
}

fn operation(message: &Message<'_>) -> SendOp {
    let first = message.packets[0];
    let imm = message.packets.iter().find_map(|p| p.imm);
    if let Some(atomic) = first.atomic {
        let remote = Remote {
            addr: atomic.va,
            rkey: atomic.rkey,
        };
        return if first.opcode == Opcode::RC_FETCH_ADD {
            let add = atomic.swap_add;
            SendOp::FetchAdd { remote, add }
        } else {
            SendOp::CmpSwap {
                remote,
                compare: atomic.compare,
                swap: atomic.swap_add,
            }
        };
    }
    let remote = first.reth.map(|reth| Remote {
        addr: reth.va,
        rkey: reth.rkey,
    });
    match (remote, imm) {
        (None, None) => SendOp::Send,
        (None, Some(imm)) => SendOp::SendImm { imm },
        (Some(remote), Some(imm)) => SendOp::WriteImm { remote, imm },
        (Some(remote), None) if first.opcode == Opcode::RC_READ_REQUEST => SendOp::Read { remote },
        (Some(remote), None) => SendOp::Write { remote },
    }
}
