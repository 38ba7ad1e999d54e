use super::*;
use proptest::prelude::*;
use std::vec::Vec;

/// What an upstream passive side with default sizes sends, written from the layout by hand.
const UPSTREAM: [u8; 40] = [
    1, 2, 0x01, 0x80, 0, 0, 0, 0, // version, flags, 384 credits, no iomap
    0, 0, 0x7f, 0xd6, 0x72, 0xcc, 0x20, 0x00, 0, 0, 0x49, 0x53, 0, 0, 0, 2, // target list
    0, 0, 0x7f, 0xd6, 0x72, 0xcc, 0x40, 0x00, 0, 0, 0x49, 0x54, 0, 1, 0, 0, // half a ring
];

#[test]
fn the_layout_is_that_of_upstream() {
    let offer = ConnectData::parse(&UPSTREAM).unwrap();
    assert_eq!(
        offer,
        ConnectData {
            order: ByteOrder::Little,
            credits: 384,
            iomap_entries: 0,
            block: Region {
                address: 0x7fd6_72cc_2000,
                key: 0x4953,
            },
            targets: 2,
            data: TargetEntry {
                address: 0x7fd6_72cc_4000,
                key: 0x4954,
                length: 65536,
            },
        }
    );
    assert_eq!(offer.emit(), UPSTREAM);
}

#[test]
fn padding_behind_the_block_does_not_matter() {
    let mut padded = UPSTREAM.to_vec();
    padded.resize(196, 0);
    assert_eq!(ConnectData::parse(&padded), ConnectData::parse(&UPSTREAM),);
}

#[test]
fn a_peer_that_speaks_something_else_is_told_apart() {
    let with = |at: usize, byte: u8| {
        let mut b = UPSTREAM;
        b[at] = byte;
        ConnectData::parse(&b)
    };
    assert_eq!(
        ConnectData::parse(&UPSTREAM[..39]),
        Err(Unacceptable::Short { had: 39 })
    );
    assert_eq!(with(0, 0), Err(Unacceptable::Version(0)));
    assert_eq!(with(0, 2), Err(Unacceptable::Version(2)));
    assert_eq!(with(23, 1), Err(Unacceptable::Targets(1)));
    let mut mute = UPSTREAM;
    mute[2..4].fill(0);
    assert_eq!(ConnectData::parse(&mute), Err(Unacceptable::NoCredits));
    // an older sender says nothing about its iomap table, whatever byte 7 holds
    let mut old = UPSTREAM;
    old[1] = 0;
    old[7] = 9;
    assert_eq!(ConnectData::parse(&old).unwrap().iomap_entries, 0);
    assert_eq!(with(1, 3).unwrap().order, ByteOrder::Big);
}

#[test]
fn counts_are_said_exactly_up_to_128_and_in_steps_of_256_beyond() {
    for n in 0..=128 {
        assert_eq!(said_iomap_entries(n), n);
    }
    assert_eq!(said_iomap_entries(255), 128, "rounded down");
    assert_eq!(said_iomap_entries(256), 256);
    assert_eq!(said_iomap_entries(0x1234), 0x1200);
    assert_eq!(said_iomap_entries(u16::MAX), 127 << 8);
}

proptest! {
    #[test]
    fn any_bytes_are_refused_or_come_out_the_same(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        if let Ok(offer) = ConnectData::parse(&bytes) {
            prop_assert_eq!(ConnectData::parse(&offer.emit()), Ok(offer));
        }
    }

    #[test]
    fn any_offer_reads_as_it_was_written(
        big: bool, credits in 1_u16.., entries: u16, a: u64, k: u32, targets in 2_u32.., b: u64, l: u32,
    ) {
        let offer = ConnectData {
            order: if big { ByteOrder::Big } else { ByteOrder::Little },
            credits,
            iomap_entries: said_iomap_entries(entries),
            block: Region { address: a, key: k },
            targets,
            data: TargetEntry { address: b, key: k ^ 1, length: l },
        };
        let bytes: Vec<u8> = offer.emit().to_vec();
        prop_assert_eq!(ConnectData::parse(&bytes), Ok(offer));
    }
}
