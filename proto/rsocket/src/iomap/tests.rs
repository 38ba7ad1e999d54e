use super::*;

const MEMORY: Region = Region {
    address: 0x1000,
    key: 7,
};

fn entry(offset: u64, address: u64, length: u32) -> IoEntry {
    IoEntry {
        offset,
        memory: TargetEntry {
            address,
            key: 9,
            length,
        },
    }
}

#[test]
fn the_lowest_free_index_is_taken() {
    let mut offers = Offers::default();
    offers.establish(3);
    for offset in [0, 100, 200] {
        assert_eq!(offers.map(MEMORY, 100, offset), Ok(offset as u64));
    }
    assert_eq!(offers.map(MEMORY, 100, 300).unwrap_err().errno, Errno(105));
    assert_eq!(offers.unmap(100, 100), Ok(MEMORY));
    assert_eq!(offers.unmap(0, 100), Ok(MEMORY));
    assert_eq!(offers.map(MEMORY, 50, OFFSET_IS_ADDRESS), Ok(0x1000));
    let told: Vec<u16> = core::iter::from_fn(|| offers.take_unsent().map(|(i, _)| i)).collect();
    assert_eq!(told, [2, 0], "what went before it was told is not told");
}

#[test]
fn ranges_that_cannot_be_are_refused() {
    let mut offers = Offers::default();
    assert_eq!(offers.map(MEMORY, 1, 0).unwrap_err().errno, Errno(105));
    offers.establish(1);
    let high = Region {
        address: u64::MAX,
        key: 1,
    };
    for (memory, len, offset) in [(MEMORY, 0, 0), (MEMORY, 1, -2), (high, 1, -1)] {
        let refused = offers.map(memory, len, offset).unwrap_err();
        assert_eq!(refused.errno, Errno::EINVAL);
    }
    assert_eq!(offers.unmap(0, 1).unwrap_err().errno, Errno::EINVAL);
    assert!(offers.map(MEMORY, 1, i64::MAX).is_ok());
    assert_eq!(
        offers.unmap(i64::MAX as u64, 2).unwrap_err().errno,
        Errno::EINVAL
    );
}

#[test]
fn an_offset_leads_to_the_bytes_up_to_the_end_of_its_mapping() {
    let mut table = Offered::new(2);
    assert!(table.put(1, entry(1000, 0x5000, 64)));
    assert!(!table.put(2, entry(0, 0, 1)));
    assert_eq!(table.find(999, 10), None);
    assert_eq!(
        table.find(1000, 10),
        Some(DirectWrite {
            address: 0x5000,
            key: 9,
            len: 10,
        })
    );
    assert_eq!(
        table.find(1060, 10).map(|d| (d.address, d.len)),
        Some((0x503c, 4))
    );
    assert_eq!(table.find(1064, 10), None, "the end is not inside");
    assert_eq!(table.find(0, 0), None);
}

#[test]
fn an_entry_that_wraps_is_none() {
    let mut table = Offered::new(1);
    table.put(0, entry(0, u64::MAX - 4, 64));
    assert_eq!(table.find(0, 5).map(|d| d.len), Some(5));
    assert_eq!(table.find(0, 6), None);
    assert_eq!(table.find(10, 1), None);
    table.put(0, entry(u64::MAX, 0x5000, u32::MAX));
    assert_eq!(table.find(u64::MAX, 1).map(|d| d.address), Some(0x5000));
}
