//! What may be asked for: sizes, fences, inline data, alignment.

use rocebud_objects::{Payload, SendFlags, SendOp, SendWr, Sge, WcStatus};
use rocebud_wire::{LKey, RKey};

use super::{FAR, OK};
use crate::pair::{Fate, KEY, Pair, START, Setup, region, remote, sge, wr};

#[test]
fn c037_two_gib_is_accepted_and_one_byte_more_is_not() {
    let mut pair = Pair::rc();
    let gib = 1_u32 << 30;
    let far = remote(FAR);
    for op in [
        SendOp::Send,
        SendOp::Write { remote: far },
        SendOp::Read { remote: far },
    ] {
        assert!(
            pair.post(0, wr(0, op, &[sge(START, gib), sge(START, gib)]))
                .is_ok()
        );
        assert!(pair.post(0, wr(0, op, &[sge(START, 1 << 31)])).is_ok());
        assert!(
            pair.post(
                0,
                wr(0, op, &[sge(START, gib), sge(START, gib), sge(START, 1)])
            )
            .is_err()
        );
        let wrapping = [
            sge(START, gib),
            sge(START, gib),
            sge(START, gib),
            sge(START, gib),
            sge(START, 16),
        ];
        assert!(
            pair.post(0, wr(0, op, &wrapping)).is_err(),
            "4 GiB + 16 does not wrap to 16"
        );
    }
}

#[test]
fn c039_a_fenced_send_carries_what_the_read_before_it_brought() {
    let mut pair = Pair::rc();
    let bytes = pair.pattern(1, FAR, 4000, 3);
    pair.rule(|f| {
        if f.from == 1 {
            Fate::Delay(50_000)
        } else {
            Fate::Deliver
        }
    });
    pair.recv(1, 1, &[sge(FAR + 0x1_0000, 4000)]).unwrap();
    for id in 0..4 {
        let read = SendOp::Read {
            remote: remote(FAR + id * 1000),
        };
        pair.post(0, wr(id, read, &[sge(START + id * 1000, 1000)]))
            .unwrap();
    }
    let fenced = SendWr {
        flags: SendFlags::FENCE,
        ..wr(4, SendOp::Send, &[sge(START, 4000)])
    };
    pair.post(0, fenced).unwrap();
    pair.run();
    assert_eq!(pair.side[1].world.peek(KEY, FAR + 0x1_0000, 4000), bytes);

    let mut window = region(crate::pair::everything());
    window.window = true;
    pair.side[0].world.regions.insert(0x900, window);
    let target = Sge {
        addr: START,
        length: 4000,
        lkey: LKey(0x900),
    };
    pair.post(
        0,
        wr(
            5,
            SendOp::Read {
                remote: remote(FAR),
            },
            &[target],
        ),
    )
    .unwrap();
    pair.post(0, wr(6, SendOp::LocalInv { rkey: RKey(0x900) }, &[]))
        .unwrap();
    pair.step();
    pair.step();
    assert!(
        pair.side[0].world.regions.contains_key(&0x900),
        "not before the READ is complete"
    );
    pair.run();
    assert!(!pair.side[0].world.regions.contains_key(&0x900));
    assert!(pair.results(0).iter().all(|(_, status)| *status == OK));
}

#[test]
fn c041_the_inline_limit_is_on_the_exact_total() {
    let mut setup = Setup::default();
    setup.cap.max_inline_data = 64;
    let mut pair = Pair::new(setup);
    let inline = |id, len: usize| SendWr {
        payload: Payload::Inline((0..len).map(|i| i as u8).collect()),
        flags: SendFlags::INLINE,
        ..wr(id, SendOp::Send, &[])
    };
    pair.recv(1, 0, &[sge(FAR, 100)]).unwrap();
    pair.recv(1, 1, &[sge(FAR + 200, 100)]).unwrap();
    pair.post(0, inline(0, 64)).unwrap();
    assert!(pair.post(0, inline(9, 65)).is_err());
    let gib = sge(START, 1 << 30);
    let lists: [&[Sge]; 3] = [
        &[sge(START, 33), sge(START, 32)],
        &[gib, gib, gib, gib, sge(START, 8)],
        &[sge(START, 8)],
    ];
    for list in lists {
        let request = SendWr {
            flags: SendFlags::INLINE,
            ..wr(9, SendOp::Send, list)
        };
        assert!(pair.post(0, request).is_err());
    }
    pair.post(0, inline(1, 1)).unwrap();
    pair.run();
    assert_eq!(pair.results(0), [(0, OK), (1, OK)], "neighbours untouched");
    let want: Vec<u8> = (0..64).collect();
    assert_eq!(pair.side[1].world.peek(KEY, FAR, 64), want);
}

#[test]
fn c042_atomics_need_eight_local_bytes_and_alignment_is_the_responders_to_refuse() {
    let mut pair = Pair::rc();
    let add = |addr| SendOp::FetchAdd {
        remote: remote(addr),
        add: 1,
    };
    assert!(pair.post(0, wr(0, add(FAR), &[sge(START, 7)])).is_err());
    assert!(pair.post(0, wr(0, add(FAR), &[])).is_err());
    pair.post(0, wr(0, add(FAR), &[sge(START, 16)])).unwrap();
    pair.run();
    assert_eq!(pair.wcs(0)[0].byte_len, 8);
    pair.post(0, wr(1, add(FAR + 1), &[sge(START, 8)])).unwrap();
    pair.run();
    assert_eq!(pair.results(0), [(1, WcStatus::RemInvReqErr)]);
}
