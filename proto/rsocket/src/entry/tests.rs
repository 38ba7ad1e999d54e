use super::*;

/// From a capture of two upstream programs on x86: address 0x7fd672cc2000, key 0x4953, 512 KiB.
const CAPTURED: [u8; 16] = [
    0x00, 0x20, 0xcc, 0x72, 0xd6, 0x7f, 0, 0, 0x53, 0x49, 0, 0, 0, 0, 0x08, 0,
];

#[test]
fn an_entry_stands_in_its_readers_byte_order() {
    let entry = TargetEntry {
        address: 0x7fd6_72cc_2000,
        key: 0x4953,
        length: 0x8_0000,
    };
    assert_eq!(TargetEntry::parse(&CAPTURED, ByteOrder::Little), entry);
    assert_eq!(entry.emit(ByteOrder::Little), CAPTURED);
    let big = entry.emit(ByteOrder::Big);
    assert_eq!(big[..4], [0, 0, 0x7f, 0xd6]);
    assert_eq!(TargetEntry::parse(&big, ByteOrder::Big), entry);
}

#[test]
fn an_iomap_entry_is_an_offset_and_an_entry() {
    let entry = IoEntry {
        offset: 0x1122_3344_5566_7788,
        memory: TargetEntry::parse(&CAPTURED, ByteOrder::Little),
    };
    let bytes = entry.emit(ByteOrder::Little);
    assert_eq!(bytes[..8], 0x1122_3344_5566_7788_u64.to_le_bytes());
    assert_eq!(bytes[8..], CAPTURED);
    for order in [ByteOrder::Little, ByteOrder::Big] {
        assert_eq!(IoEntry::parse(&entry.emit(order), order), entry);
    }
}
