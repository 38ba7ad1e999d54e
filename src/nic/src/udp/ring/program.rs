//! The filter of a receive socket: an eBPF program over packets as UDP sees them.
//!
//! It runs with the packet's UDP header first. A return value of 0 drops the packet (it is in the ring
//! then), any other is the length to which it is cut.

use std::os::fd::{AsRawFd, BorrowedFd};

use super::Control;

/// Longest packet that goes into the ring, with its UDP header. Longer ones have a cost of their own
/// beside which a system call is small.
const PACKET_MAX: i32 = 512;

// A record: words, the IP header, the packet from its UDP header on.
/// Datagrams passed to the socket before it: 64 bits.
const AFTER_AT: usize = 0;
/// Length from the UDP header on: 32 bits, as the next two.
pub(super) const LEN_AT: usize = 8;
pub(super) const IFINDEX_AT: usize = 12;
/// Size of a segment of merged packets.
pub(super) const SEGMENT_AT: usize = 16;
pub(super) const NET_HEADER_AT: usize = 24;
pub(super) const HEADERS_AT: usize = 64;
pub(super) const RECORD_BYTES: usize = HEADERS_AT + PACKET_MAX as usize;

// Fields of struct __sk_buff.
const SKB_LEN: usize = 0;
const SKB_IFINDEX: usize = 40;
const SKB_GSO_SIZE: usize = 176;

/// The loopback interface: what comes from there is told to have come from another one, by rules that
/// are the socket's.
const LOOPBACK: i32 = 1;

const UDP_HEADER_BYTES: i32 = 8;
const IPV4_HEADER_BYTES: i32 = 20;
const IPV6_HEADER_BYTES: i32 = 40;

// Helpers of the kernel.
const SKB_LOAD_BYTES: i32 = 26;
const SKB_LOAD_BYTES_RELATIVE: i32 = 68;
const RINGBUF_RESERVE: i32 = 131;
const RINGBUF_SUBMIT: i32 = 132;
const RINGBUF_DISCARD: i32 = 133;
/// Of the last two: nobody sleeps on the ring.
const NO_WAKEUP: i32 = 1;
/// Of the relative load: from the IP header on.
const FROM_NET_HEADER: i32 = 1;

/// A register. r0 is a result, r1 to r5 are arguments, r6 to r9 survive calls.
type Reg = u8;
const PACKET: Reg = 6;
const RECORD: Reg = 7;
const LEN: Reg = 8;
const WORDS: Reg = 9;

/// One instruction as the kernel has it.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Op {
    code: u8,
    /// Destination, and source << 4.
    registers: u8,
    offset: i16,
    value: i32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Label {
    Pass,
    Discard,
    Kick,
}

/// An instruction, some of them with a jump to a label behind.
#[derive(Clone, Copy, Debug)]
enum Step {
    Op(Op),
    Jump(Op, Label),
    Here(Label),
}

const fn op(code: u8, to: Reg, from: Reg, offset: usize, value: i32) -> Step {
    Step::Op(Op {
        code,
        registers: to | from << 4,
        offset: offset as i16,
        value,
    })
}

const fn set(to: Reg, value: i32) -> Step {
    op(0xb7, to, 0, 0, value)
}

const fn copy(to: Reg, from: Reg) -> Step {
    op(0xbf, to, from, 0, 0)
}

const fn add(to: Reg, value: usize) -> Step {
    op(0x07, to, 0, 0, value as i32)
}

const fn load32(to: Reg, from: Reg, at: usize) -> Step {
    op(0x61, to, from, at, 0)
}

const fn load64(to: Reg, from: Reg, at: usize) -> Step {
    op(0x79, to, from, at, 0)
}

const fn store32(to: Reg, at: usize, from: Reg) -> Step {
    op(0x63, to, from, at, 0)
}

const fn store64(to: Reg, at: usize, from: Reg) -> Step {
    op(0x7b, to, from, at, 0)
}

/// Adds 1 to a shared word; spends r1.
const fn count(at: usize) -> [Step; 2] {
    [set(1, 1), op(0xdb, WORDS, 1, at, 0)]
}

const fn call(helper: i32) -> Step {
    op(0x85, 0, 0, 0, helper)
}

const EXIT: Step = op(0x95, 0, 0, 0, 0);

/// Jumps if the comparison `code` of a register and a value holds.
const fn jump(code: u8, register: Reg, value: i32, to: Label) -> Step {
    let op = Op {
        code,
        registers: register,
        offset: 0,
        value,
    };
    Step::Jump(op, to)
}

const EQUAL: u8 = 0x15;
const ABOVE: u8 = 0x25;
const UNEQUAL: u8 = 0x55;
const BELOW: u8 = 0xa5;

/// A map, or the address of its only value: two instructions.
fn address(to: Reg, map: BorrowedFd<'_>, of_value: bool) -> [Step; 2] {
    let kind = if of_value { 2 } else { 1 };
    [op(0x18, to, kind, 0, map.as_raw_fd()), op(0, 0, 0, 0, 0)]
}

const OPEN: usize = std::mem::offset_of!(Control, open);
const PASSED: usize = std::mem::offset_of!(Control, passed);
const TAKEN: usize = std::mem::offset_of!(Control, taken);
const KICKS: usize = std::mem::offset_of!(Control, kicks);

/// The program of a socket of one family.
pub(super) fn program(v6: bool, records: BorrowedFd<'_>, words: BorrowedFd<'_>) -> Vec<Op> {
    let mut steps = vec![copy(PACKET, 1)];
    steps.extend(address(WORDS, words, true));
    steps.extend(wanted());
    steps.extend(address(1, records, false));
    steps.extend([
        set(2, RECORD_BYTES as i32),
        set(3, 0),
        call(RINGBUF_RESERVE),
        jump(EQUAL, 0, 0, Label::Pass),
        copy(RECORD, 0),
    ]);
    steps.extend(fill(v6));
    steps.extend(count(TAKEN));
    steps.extend([
        copy(1, RECORD),
        set(2, NO_WAKEUP),
        call(RINGBUF_SUBMIT),
        load64(0, WORDS, OPEN),
        jump(EQUAL, 0, 0, Label::Kick),
        set(0, 0),
        EXIT,
        Step::Here(Label::Discard),
        copy(1, RECORD),
        set(2, NO_WAKEUP),
        call(RINGBUF_DISCARD),
        Step::Here(Label::Pass),
    ]);
    steps.extend(count(PASSED));
    // As long as it is.
    steps.extend([set(0, i32::MAX), EXIT, Step::Here(Label::Kick)]);
    steps.extend(count(KICKS));
    steps.extend(count(PASSED));
    // Less than a UDP header is not left: an empty datagram.
    steps.extend([set(0, 1), EXIT]);
    resolve(&steps)
}

/// Only small packets, while the ring is open.
fn wanted() -> [Step; 7] {
    [
        load32(LEN, PACKET, SKB_LEN),
        load64(0, WORDS, OPEN),
        jump(EQUAL, 0, 0, Label::Pass),
        jump(ABOVE, LEN, PACKET_MAX, Label::Pass),
        jump(BELOW, LEN, UDP_HEADER_BYTES, Label::Pass),
        load32(0, PACKET, SKB_IFINDEX),
        jump(EQUAL, 0, LOOPBACK, Label::Pass),
    ]
}

fn fill(v6: bool) -> Vec<Step> {
    let header = if v6 {
        IPV6_HEADER_BYTES
    } else {
        IPV4_HEADER_BYTES
    };
    vec![
        load64(0, WORDS, PASSED),
        store64(RECORD, AFTER_AT, 0),
        store32(RECORD, LEN_AT, LEN),
        load32(0, PACKET, SKB_IFINDEX),
        store32(RECORD, IFINDEX_AT, 0),
        load32(0, PACKET, SKB_GSO_SIZE),
        store32(RECORD, SEGMENT_AT, 0),
        copy(1, PACKET),
        set(2, 0),
        copy(3, RECORD),
        add(3, NET_HEADER_AT),
        set(4, header),
        set(5, FROM_NET_HEADER),
        call(SKB_LOAD_BYTES_RELATIVE),
        jump(UNEQUAL, 0, 0, Label::Discard),
        copy(1, PACKET),
        set(2, 0),
        copy(3, RECORD),
        add(3, HEADERS_AT),
        copy(4, LEN),
        call(SKB_LOAD_BYTES),
        jump(UNEQUAL, 0, 0, Label::Discard),
    ]
}

/// Puts the distances of jumps in: all of them go forward.
fn resolve(steps: &[Step]) -> Vec<Op> {
    let is_op = |step: &&Step| !matches!(step, Step::Here(_));
    let distance = |from: usize, to: Label| {
        let rest = steps.get(from + 1..).unwrap_or_default();
        let until = rest
            .iter()
            .take_while(|step| !matches!(step, Step::Here(label) if *label == to));
        until.filter(is_op).count() as i16
    };
    let mut ops = Vec::new();
    for (at, step) in steps.iter().enumerate() {
        match *step {
            Step::Op(op) => ops.push(op),
            Step::Jump(op, to) => ops.push(Op {
                offset: distance(at, to),
                ..op
            }),
            Step::Here(_) => {}
        }
    }
    ops
}
