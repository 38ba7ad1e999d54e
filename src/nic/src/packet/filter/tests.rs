use super::*;

/// Runs a program as the kernel does. `None`: it ran off its end, or knows not where to go.
fn run(program: &[Insn], frame: &[u8], kind: u32) -> Option<u32> {
    let (mut a, mut at) = (0u32, 0);
    loop {
        let insn = program.get(at)?;
        at += 1;
        let class = u32::from(insn.code);
        let bytes = |n: usize| {
            let from = usize::try_from(insn.k).ok()?;
            let bytes = frame.get(from..from + n)?;
            Some(bytes.iter().fold(0, |word, b| word << 8 | u32::from(*b)))
        };
        match class {
            LOAD_WORD if insn.k == KIND => a = kind,
            LOAD_BYTE | LOAD_HALF | LOAD_WORD => {
                let n = match class {
                    LOAD_BYTE => 1,
                    LOAD_HALF => 2,
                    _ => 4,
                };
                let Some(word) = bytes(n) else {
                    return Some(NOTHING);
                };
                a = word;
            }
            AND => a &= insn.k,
            EQUAL => at += usize::from(if a == insn.k { insn.jt } else { insn.jf }),
            ANY_BIT => at += usize::from(if a & insn.k != 0 { insn.jt } else { insn.jf }),
            _ if class == libc::BPF_RET | libc::BPF_K => return Some(insn.k),
            _ => return None,
        }
    }
}

const OWN: [u8; 6] = [2, 0, 0, 0, 0, 0x11];
const OTHER: [u8; 6] = [2, 0, 0, 0, 0, 0x12];
const GROUP: [u8; 6] = [0x01, 0x50, 0x56, 0, 0, 1];
const INCOMING: u32 = 0;

fn frame(dst: [u8; 6], ether_type: u16, rest: &[u8]) -> Vec<u8> {
    [&dst[..], &OTHER, &ether_type.to_be_bytes(), rest].concat()
}

fn passes(filter: &Filter, frame: &[u8], kind: u32) -> bool {
    match run(&filter.program(), frame, kind) {
        Some(WHOLE) => true,
        Some(NOTHING) => false,
        other => panic!("{other:?} of {:?}", filter.program()),
    }
}

fn ether_type(value: u32) -> Test {
    Test {
        at: 12,
        bytes: 2,
        mask: 0xffff,
        value,
    }
}

fn all() -> Filter {
    Filter {
        outgoing: Outgoing::All,
        any_of: vec![Vec::new()],
    }
}

#[test]
fn nothing_asked_for_is_nothing_received() {
    let filter = Filter {
        any_of: Vec::new(),
        ..all()
    };
    assert!(!passes(&filter, &frame(OWN, 0x0800, &[0; 46]), INCOMING));
}

#[test]
fn one_of_several_is_enough_and_all_of_one_are_needed() {
    let second = Test {
        at: 23,
        bytes: 1,
        mask: 0xff,
        value: 17,
    };
    let filter = Filter {
        any_of: vec![
            vec![ether_type(0x0800), second],
            vec![ether_type(0x86dd)],
            vec![ether_type(0x0806)],
        ],
        ..all()
    };
    let v4 = |protocol| frame(OWN, 0x0800, &[0, 0, 0, 0, 0, 0, 0, 0, 0, protocol, 0, 0]);
    assert!(passes(&filter, &v4(17), INCOMING));
    assert!(!passes(&filter, &v4(6), INCOMING));
    assert!(passes(&filter, &frame(OWN, 0x0806, &[]), INCOMING));
    assert!(!passes(&filter, &frame(OWN, 0x0807, &[]), INCOMING));
}

#[test]
fn bits_outside_of_the_mask_do_not_count() {
    let test = Test {
        at: 0,
        bytes: 4,
        mask: 0xff00_0000,
        value: 0x02ff_ffff,
    };
    let filter = Filter {
        any_of: vec![vec![test]],
        ..all()
    };
    assert!(passes(&filter, &frame(OWN, 0, &[]), INCOMING));
    assert!(!passes(&filter, &frame(GROUP, 0, &[]), INCOMING));
}

#[test]
fn tags_are_left_to_whoever_receives() {
    let filter = Filter {
        any_of: vec![vec![ether_type(0x0800)]],
        ..all()
    };
    for tpid in [0x8100, 0x88a8] {
        assert!(passes(&filter, &frame(OWN, tpid, &[0; 4]), INCOMING));
    }
}

#[test]
fn outgoing_frames_come_back_as_a_network_card_does_it() {
    let (own, other) = (frame(OWN, 9, &[]), frame(OTHER, 9, &[]));
    let group = frame(GROUP, 9, &[]);
    let back = |outgoing| Filter { outgoing, ..all() };
    for filter in [Outgoing::None, Outgoing::Back(OWN), Outgoing::All].map(back) {
        for incoming in [&own, &other, &group] {
            assert!(passes(&filter, incoming, INCOMING));
        }
        let out = [&own, &other, &group].map(|f| passes(&filter, f, KIND_OUTGOING));
        let expected = match filter.outgoing {
            Outgoing::None => [false; 3],
            Outgoing::Back(_) => [true, false, true],
            Outgoing::All => [true; 3],
        };
        assert_eq!(out, expected, "{:?}", filter.outgoing);
    }
}

#[test]
fn too_many_rules_let_everything_in_but_what_goes_out() {
    let filter = Filter {
        outgoing: Outgoing::Back(OWN),
        any_of: vec![vec![ether_type(1)]; ALTERNATIVES_MAX + 1],
    };
    let frame = frame(OTHER, 9, &[]);
    let coarse = filter.coarse_program();
    assert_eq!(run(&coarse, &frame, INCOMING), Some(WHOLE));
    assert_eq!(run(&coarse, &frame, KIND_OUTGOING), Some(NOTHING));
}
