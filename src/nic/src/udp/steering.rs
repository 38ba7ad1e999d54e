//! Which socket of the reuseport group gets a frame: a classic BPF program over the UDP payload.
//!
//! It reads the upper twelve bits of the destination QPN (BTH bytes 5 and 6) and finds the group
//! position in a binary tree of runs of slots. It always ends in a known position: an index beyond
//! the group would make the kernel fall back to a hash of the flow.

use crate::bpf::Insn;
use crate::sys;
use std::io;
use std::os::fd::BorrowedFd;

/// Most group positions that one program can tell apart, however scattered the slots. (The kernel
/// takes 4096 instructions; one scattered slot needs about four.)
pub const SLOTS_MAX: usize = 1000;

/// Makes the reuseport group of `fd` choose by `destination QPN >> 12`. `slots[i]` is the slot
/// served by the socket at group position `i` (the order of binding). Frames of other slots, and
/// frames too short to have a QPN, go to position 0. A slot listed twice goes to the first.
/// Replaces the earlier program of the group; any member may do so, without privileges.
///
/// Errors: `E2BIG` for more than [`SLOTS_MAX`] positions, `ENOMEM` where `net.core.optmem_max`
/// is too small for the program.
pub fn attach_steering(fd: BorrowedFd<'_>, slots: &[u16]) -> io::Result<()> {
    if slots.len() > SLOTS_MAX {
        return Err(io::Error::from_raw_os_error(libc::E2BIG));
    }
    sys::attach_program(fd, libc::SO_ATTACH_REUSEPORT_CBPF, &program(slots))
}

/// Slots `first..=last`, served by positions `position`, `position + 1`, …
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Run {
    first: u16,
    last: u16,
    position: u32,
}

fn program(slots: &[u16]) -> Vec<Insn> {
    let mut insns = vec![
        // A load beyond the end of the payload ends the program with 0.
        Insn::new(libc::BPF_LD | libc::BPF_H | libc::BPF_ABS, 0, 0, 5),
        Insn::new(libc::BPF_ALU | libc::BPF_RSH | libc::BPF_K, 0, 0, 4),
    ];
    insns.extend(tree(&runs(slots)));
    insns
}

/// The slots as runs, sorted; a slot listed twice counts once.
fn runs(slots: &[u16]) -> Vec<Run> {
    let mut pairs: Vec<(u16, u32)> = slots.iter().copied().zip(0..).collect();
    pairs.sort_unstable();
    pairs.dedup_by_key(|pair| pair.0);
    let mut runs: Vec<Run> = Vec::new();
    for (slot, position) in pairs {
        match runs.last_mut() {
            Some(run)
                if run.last + 1 == slot
                    && run.position + u32::from(slot - run.first) == position =>
            {
                run.last = slot;
            }
            _ => runs.push(Run {
                first: slot,
                last: slot,
                position,
            }),
        }
    }
    runs
}

fn tree(runs: &[Run]) -> Vec<Insn> {
    match runs {
        [] => vec![Insn::ret(0)],
        [run] => leaf(*run),
        _ => {
            let (left, right) = runs.split_at(runs.len() / 2);
            let pivot = right.first().map_or(0, |run| u32::from(run.first));
            let (left, right) = (tree(left), tree(right));
            let mut insns = Vec::with_capacity(left.len() + right.len() + 2);
            // Conditional jumps reach 255 instructions; a longer one needs a plain jump.
            match u8::try_from(left.len()) {
                Ok(over) => insns.push(Insn::new(JGE, over, 0, pivot)),
                Err(_) => {
                    insns.push(Insn::new(JGE, 0, 1, pivot));
                    let over = u32::try_from(left.len()).unwrap_or(u32::MAX);
                    insns.push(Insn::new(libc::BPF_JMP | libc::BPF_JA, 0, 0, over));
                }
            }
            insns.extend(left);
            insns.extend(right);
            insns
        }
    }
}

fn leaf(run: Run) -> Vec<Insn> {
    let (first, last) = (u32::from(run.first), u32::from(run.last));
    if first == last {
        return vec![
            Insn::new(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, first),
            Insn::ret(run.position),
            Insn::ret(0),
        ];
    }
    vec![
        Insn::new(JGE, 0, 3, first),
        Insn::new(libc::BPF_JMP | libc::BPF_JGT | libc::BPF_K, 2, 0, last),
        Insn::new(
            libc::BPF_ALU | libc::BPF_SUB | libc::BPF_K,
            0,
            0,
            first.wrapping_sub(run.position),
        ),
        Insn::new(libc::BPF_RET | libc::BPF_A, 0, 0, 0),
        Insn::ret(0),
    ]
}

const JGE: u32 = libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K;

#[cfg(test)]
mod tests;
