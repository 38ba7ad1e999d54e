//! Which frames come in at all: a classic BPF program that the kernel runs on each.
//!
//! It may let through too much, never too little: whoever receives looks again.

use std::io;
use std::os::fd::BorrowedFd;

use crate::bpf::Insn;
use crate::sys;

/// A look at one to four bytes of a frame, big-endian.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Test {
    /// From the frame's beginning.
    pub at: u16,
    /// 1, 2 or 4.
    pub bytes: u8,
    /// Bits that count.
    pub mask: u32,
    /// What they must be.
    pub value: u32,
}

/// Which of the frames that this host sends come in as well.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outgoing {
    /// None.
    None,
    /// Those to a group, and those to this address: what a network card hands back to itself.
    Back([u8; 6]),
    /// All.
    All,
}

/// What passes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Filter {
    /// Which outgoing frames are looked at.
    pub outgoing: Outgoing,
    /// A frame passes that meets all tests of one of these. Frames with a VLAN tag in front of
    /// where the tests look always pass.
    pub any_of: Vec<Vec<Test>>,
}

/// So many alternatives are tried by the kernel; beyond that every frame comes in. A longer program
/// would cost each frame of the interface more than it saves, and the kernel bounds its memory
/// (`net.core.optmem_max`).
const ALTERNATIVES_MAX: usize = 64;
/// "As much of the frame as there is."
const WHOLE: u32 = u32::MAX;
const NOTHING: u32 = 0;

const LOAD_BYTE: u32 = libc::BPF_LD | libc::BPF_B | libc::BPF_ABS;
const LOAD_HALF: u32 = libc::BPF_LD | libc::BPF_H | libc::BPF_ABS;
const LOAD_WORD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
const AND: u32 = libc::BPF_ALU | libc::BPF_AND | libc::BPF_K;
const EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
const ANY_BIT: u32 = libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K;

/// Where the kernel tells the kind of packet, and the kind that is outgoing.
const KIND: u32 = (libc::SKF_AD_OFF + libc::SKF_AD_PKTTYPE) as u32;
const KIND_OUTGOING: u32 = 4;

impl Filter {
    pub(super) fn attach(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        let attach = |program: &[Insn]| sys::attach_program(fd, libc::SO_ATTACH_FILTER, program);
        if self.any_of.len() <= ALTERNATIVES_MAX {
            match attach(&self.program()) {
                // The system allows sockets less memory than this program needs.
                Err(error) if error.raw_os_error() == Some(libc::ENOMEM) => {}
                done => return done,
            }
        }
        attach(&self.coarse_program())
    }

    /// Lets everything in, but for outgoing frames.
    fn coarse_program(&self) -> Vec<Insn> {
        let mut program = self.outgoing.program();
        program.push(Insn::ret(WHOLE));
        program
    }

    fn program(&self) -> Vec<Insn> {
        let mut program = self.outgoing.program();
        // Of incoming frames the kernel has taken the tag off; tests would look at wrong places.
        program.push(Insn::new(LOAD_HALF, 0, 0, 12));
        program.push(Insn::new(EQUAL, 1, 0, 0x8100));
        program.push(Insn::new(EQUAL, 0, 1, 0x88a8));
        program.push(Insn::ret(WHOLE));
        for tests in &self.any_of {
            program.extend(alternative(tests));
        }
        program.push(Insn::ret(NOTHING));
        program
    }
}

/// Ends the program with success, or goes on behind itself. A test beyond the frame's end ends the
/// program without it.
fn alternative(tests: &[Test]) -> Vec<Insn> {
    // Three instructions a test, and the end.
    let end = tests.len() * 3 + 1;
    let mut insns = Vec::with_capacity(end);
    for test in tests {
        let load = match test.bytes {
            1 => LOAD_BYTE,
            2 => LOAD_HALF,
            _ => LOAD_WORD,
        };
        insns.push(Insn::new(load, 0, 0, u32::from(test.at)));
        insns.push(Insn::new(AND, 0, 0, test.mask));
        // Behind the end, seen from the instruction after this one. Tests are few.
        let over = u8::try_from(end - insns.len() - 1).unwrap_or(u8::MAX);
        insns.push(Insn::new(EQUAL, 0, over, test.value & test.mask));
    }
    insns.push(Insn::ret(WHOLE));
    insns
}

impl Outgoing {
    /// Ends the program for frames that are not to be looked at.
    fn program(self) -> Vec<Insn> {
        let is_outgoing = |over| {
            [
                Insn::new(LOAD_WORD, 0, 0, KIND),
                Insn::new(EQUAL, 0, over, KIND_OUTGOING),
            ]
        };
        match self {
            Self::All => Vec::new(),
            Self::None => [is_outgoing(1).as_slice(), &[Insn::ret(NOTHING)]].concat(),
            Self::Back([a, b, c, d, e, f]) => {
                let rest = [
                    Insn::new(LOAD_BYTE, 0, 0, 0),
                    Insn::new(ANY_BIT, 5, 0, 1),
                    Insn::new(LOAD_WORD, 0, 0, 0),
                    Insn::new(EQUAL, 0, 2, u32::from_be_bytes([a, b, c, d])),
                    Insn::new(LOAD_HALF, 0, 0, 4),
                    Insn::new(EQUAL, 1, 0, u32::from(u16::from_be_bytes([e, f]))),
                    Insn::ret(NOTHING),
                ];
                let over = u8::try_from(rest.len()).unwrap_or(u8::MAX);
                [is_outgoing(over).as_slice(), &rest].concat()
            }
        }
    }
}

#[cfg(test)]
mod tests;
