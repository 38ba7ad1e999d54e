//! The program against an interpreter; `udp/tests.rs` tries it on real sockets.

use super::*;

/// What the kernel would answer, of the few instructions that we use.
fn interpret(program: &[Insn], payload: &[u8]) -> u32 {
    let (mut a, mut pc) = (0u32, 0usize);
    loop {
        let insn = program[pc];
        pc += 1;
        let cond = match u32::from(insn.code) {
            0x28 => {
                let at = insn.k as usize;
                let Some(bytes) = payload.get(at..at + 2) else {
                    return 0;
                };
                a = u32::from(u16::from_be_bytes([bytes[0], bytes[1]]));
                continue;
            }
            0x74 => {
                a >>= insn.k;
                continue;
            }
            0x14 => {
                a = a.wrapping_sub(insn.k);
                continue;
            }
            0x05 => {
                pc += insn.k as usize;
                continue;
            }
            0x06 => return insn.k,
            0x16 => return a,
            0x15 => a == insn.k,
            0x25 => a > insn.k,
            0x35 => a >= insn.k,
            other => panic!("instruction {other:#x} is not one of ours"),
        };
        pc += usize::from(if cond { insn.jt } else { insn.jf });
    }
}

fn payload(slot: u16) -> [u8; 12] {
    let mut bth = [0u8; 12];
    let qpn = u32::from(slot) << 12 | 0xabc;
    bth[5..8].copy_from_slice(&qpn.to_be_bytes()[1..]);
    bth
}

fn check(slots: &[u16]) {
    let program = program(slots);
    assert!(
        program.len() <= 4096,
        "{} slots need {} instructions",
        slots.len(),
        program.len()
    );
    for slot in 0..4096 {
        let want = slots.iter().position(|s| *s == slot).unwrap_or(0);
        assert_eq!(
            interpret(&program, &payload(slot)),
            want as u32,
            "slot {slot}"
        );
    }
}

#[test]
fn every_slot_finds_its_position_and_strangers_find_0() {
    check(&[]);
    check(&[0]);
    check(&[0, 1, 2, 3]);
    check(&[0, 4, 2, 3, 9, 10, 11, 4095]);
    check(&[0, 7, 7, 7]);
    check(&[5, 4, 3, 2, 1, 0]);
}

#[test]
fn the_most_scattered_slots_fit() {
    let scattered: Vec<u16> = (0..SLOTS_MAX as u16)
        .map(|i| (i * 4 + i % 3) % 4096)
        .collect();
    check(&scattered);
    let backwards: Vec<u16> = (0..SLOTS_MAX as u16).rev().collect();
    check(&backwards);
}

#[test]
fn a_dense_group_costs_a_handful_of_instructions() {
    let dense: Vec<u16> = (0..900).collect();
    assert!(program(&dense).len() < 10);
}

#[test]
fn a_frame_without_a_qpn_goes_to_position_0() {
    let program = program(&[9, 0xff]);
    assert_eq!(
        interpret(&program, &[0x0f, 0xff, 0xff, 0xff, 0xff, 0x0f]),
        0
    );
    assert_eq!(interpret(&program, &[]), 0);
}

#[test]
fn too_many_positions_are_refused_before_the_kernel_is_asked() {
    let fd = super::super::receive_socket(false, 0, true).expect("a socket");
    let slots = vec![1u16; SLOTS_MAX + 1];
    let error = attach_steering(std::os::fd::AsFd::as_fd(&fd), &slots).expect_err("too many");
    assert_eq!(error.raw_os_error(), Some(libc::E2BIG));
}
