use super::*;

#[test]
fn header_lengths_are_those_of_the_specification() {
    // Ranges of opcodes and BTH + extension headers in bytes, computed by hand.
    let rc = [
        12, 12, 12, 16, 12, 16, 28, 12, 12, 16, 28, 32, 28, 16, 12, 16, 16, 16, 24, 40, 40,
    ];
    for (op, len) in rc.into_iter().enumerate() {
        let at = |base: usize| Opcode((base + op) as u8).info();
        assert_eq!(at(0).unwrap().header_len, len, "RC {op:#x}");
        if op < 0x0c {
            assert_eq!(at(0x20).unwrap().header_len, len, "UC {op:#x}");
        } else {
            assert!(at(0x20).is_none());
        }
        let response = at(0).unwrap().operation.is_response();
        let rd = if response { 4 } else { 12 };
        assert_eq!(at(0x40).unwrap().header_len, len + rd, "RD {op:#x}");
        let xrc = if response { 0 } else { 4 };
        assert_eq!(at(0xa0).unwrap().header_len, len + xrc, "XRC {op:#x}");
    }
    for (opcode, len) in [
        (Opcode::RC_SEND_LAST_INV, 16),
        (Opcode::RC_SEND_ONLY_INV, 16),
        (Opcode::XRC_SEND_LAST_INV, 20),
        (Opcode::XRC_SEND_ONLY_INV, 20),
        (Opcode::RC_FLUSH, 32),
        (Opcode::RD_FLUSH, 36),
        (Opcode::XRC_FLUSH, 36),
        (Opcode::RC_ATOMIC_WRITE, 28),
        (Opcode::RD_RESYNC, 24),
        (Opcode::UD_SEND_ONLY, 20),
        (Opcode::UD_SEND_ONLY_IMM, 24),
        (Opcode::CNP, 12),
    ] {
        assert_eq!(opcode.info().unwrap().header_len, len, "{opcode}");
    }
}

#[test]
fn numbers_are_those_of_the_specification() {
    for (opcode, value) in [
        (Opcode::RC_ACKNOWLEDGE, 0x11),
        (Opcode::RC_FLUSH, 0x1c),
        (Opcode::RC_ATOMIC_WRITE, 0x1d),
        (Opcode::UC_WRITE_ONLY_IMM, 0x2b),
        (Opcode::RD_RESYNC, 0x55),
        (Opcode::UD_SEND_ONLY, 0x64),
        (Opcode::CNP, 0x81),
        (Opcode::XRC_SEND_ONLY_INV, 0xb7),
    ] {
        assert_eq!(opcode.0, value, "{opcode}");
    }
    let count = |class| Opcode::defined().filter(|(_, i)| i.class == class).count();
    let classes = [
        Class::Rc,
        Class::Uc,
        Class::Rd,
        Class::Ud,
        Class::Cnp,
        Class::Xrc,
        Class::Vendor,
    ];
    assert_eq!(classes.map(count), [25, 12, 23, 2, 1, 24, 0]);
}

#[test]
fn the_table_agrees_with_itself() {
    for (opcode, info) in Opcode::defined() {
        assert_eq!(opcode.class(), info.class, "{opcode}");
        assert_eq!(
            usize::from(info.header_len),
            BTH_LEN + info.ext.byte_len(),
            "{opcode}"
        );
        assert!(usize::from(info.header_len) <= crate::HEADERS_MAX);
        let full = info.payload == PayloadRule::Full;
        let open = matches!(info.position, Position::First | Position::Middle);
        assert_eq!(full, open, "{opcode}: a packet with more behind it is full");
        let class = format!("{:?}", info.class).to_uppercase();
        assert!(info.name.starts_with(&class), "{opcode}");
        assert_eq!(
            info.name.ends_with("IMM"),
            info.ext.contains(ExtSet::IMM_DT)
        );
        assert_eq!(info.name.ends_with("INV"), info.ext.contains(ExtSet::IETH));
    }
}

#[test]
fn payload_rules_know_the_path_mtu() {
    let allowed = |rule: PayloadRule| -> Vec<usize> {
        [0, 1, 8, 255, 256, 257]
            .into_iter()
            .filter(|&n| rule.allows(n, 256))
            .collect()
    };
    assert_eq!(allowed(PayloadRule::Empty), [0]);
    assert_eq!(allowed(PayloadRule::Full), [256]);
    assert_eq!(allowed(PayloadRule::NonEmpty), [1, 8, 255, 256]);
    assert_eq!(allowed(PayloadRule::UpToPmtu), [0, 1, 8, 255, 256]);
    assert_eq!(allowed(PayloadRule::Exactly(8)), [8]);
}
