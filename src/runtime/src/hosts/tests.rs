use super::*;

const THERE: Gid = Gid::from_v4([10, 0, 0, 2]);

fn word(id_bound: u16) -> PeerWord {
    PeerWord {
        id_bound,
        receive_buffer: 1000,
        same_kernel: false,
        extensions: 0,
    }
}

fn news(word: Option<PeerWord>) -> PeerNews {
    PeerNews {
        remote: THERE.0,
        word,
    }
}

#[test]
fn processes_of_a_host_have_the_buffers_that_it_names() {
    let mut hosts = Hosts::default();
    assert_eq!(hosts.joined(THERE, 5), None);
    assert_eq!(hosts.joined(Gid::from_v4([10, 0, 0, 3]), 9), None);
    assert_eq!(
        hosts.heard(&news(Some(word(64))), 1),
        (&[5][..], Some(1000))
    );
    assert_eq!(hosts.joined(THERE, 6), Some(1000));
    assert_eq!(hosts.joined(THERE, 6), None, "told already");
    assert_eq!(hosts.heard(&news(None), 1), (&[5, 6][..], None));
    let silent = PeerWord {
        receive_buffer: 0,
        ..word(64)
    };
    assert_eq!(hosts.heard(&news(Some(silent)), 1), (&[5, 6][..], None));
}

#[test]
fn no_more_hosts_are_kept_than_are_named() {
    let mut hosts = Hosts::default();
    for n in 0..2 * HOSTS_MAX as u32 {
        hosts.joined(Gid::from_v4(n.to_be_bytes()), 1);
    }
    assert_eq!(hosts.list.len(), HOSTS_MAX);
}

const NOW: u64 = 5_000_000_000;

/// A packet from there that fits this identification.
fn fits(hosts: &mut Hosts, from: [u8; 4], id: u16, at_ns: u64) -> Fit {
    let found = RecoveredId { id, flags_frag: DF };
    fits_exactly(hosts, from, &found, at_ns)
}

fn fits_exactly(hosts: &mut Hosts, from: [u8; 4], found: &RecoveredId, at_ns: u64) -> Fit {
    let frame = RxFrame {
        data: &[],
        src: (from, 4791).into(),
        dst: [10, 0, 0, 1].into(),
        ifindex: 3,
        traffic_class: 0,
        hop_limit: 64,
        seg_index: 0,
        batch_len: 1,
    };
    hosts.fits(&frame, found, at_ns)
}

const FROM: [u8; 4] = [10, 0, 0, 2];

/// Hosts of which one said that its identifications are below 64.
fn promised() -> Hosts {
    let mut hosts = Hosts::default();
    hosts.heard(&news(Some(word(64))), NOW);
    hosts
}

fn spoil(hosts: &mut Hosts, packets: u32, at_ns: u64) {
    for _ in 0..packets {
        hosts.spoiled(FROM.into(), at_ns);
    }
}

#[test]
fn who_said_nothing_may_use_any_identification() {
    let mut hosts = Hosts::default();
    assert_eq!(fits(&mut hosts, FROM, 0xffff, NOW), Fit::Good);
    let mut hosts = promised();
    spoil(&mut hosts, 1000, NOW);
    assert_eq!(fits(&mut hosts, [10, 0, 0, 3], 0xffff, NOW), Fit::Good);
    assert_eq!(fits(&mut hosts, FROM, 63, NOW), Fit::Good);
    hosts.heard(&news(Some(word(0))), NOW);
    assert_eq!(fits(&mut hosts, FROM, 0xffff, NOW), Fit::Good);
    hosts.heard(&news(None), NOW);
    assert_eq!(fits(&mut hosts, FROM, 0xffff, NOW), Fit::Good);
    assert!(!hosts.has_doubts());
}

/// Another stack at the same address: not one of its packets is lost, and the daemon is told once.
#[test]
fn a_word_that_is_broken_on_a_clean_path_is_doubted() {
    let mut hosts = promised();
    spoil(&mut hosts, SPOILED_MANY - 1, NOW);
    for n in 0..100 {
        assert_eq!(fits(&mut hosts, FROM, 64 + n, NOW), Fit::Strange);
    }
    assert_eq!(hosts.doubts.len(), 1);
    assert!(hosts.doubts[0].doubt && hosts.doubts[0].remote() == THERE);
    hosts.doubts.clear();
    assert_eq!(fits(&mut hosts, FROM, 64, NOW), Fit::Strange);
    assert!(!hosts.has_doubts(), "it knows");
    hosts.heard(&news(None), NOW);
    assert_eq!(fits(&mut hosts, FROM, 64, NOW), Fit::Good);
    // It stands by its word: then somebody else sends beside it, and loses nothing either.
    for n in 0..10 {
        hosts.heard(&news(Some(word(64))), NOW + n);
        let other = RecoveredId {
            id: 1,
            flags_frag: 0,
        };
        assert_eq!(
            fits_exactly(&mut hosts, FROM, &other, NOW + n),
            Fit::Strange
        );
        assert!(hosts.has_doubts());
    }
}

/// Where packets are spoiled, one that breaks the word is spoiled, too; the host is asked, and what
/// comes until it has answered may be another's.
#[test]
fn a_word_that_is_broken_on_a_path_that_spoils_packets_costs_one_at_most() {
    let mut hosts = promised();
    spoil(&mut hosts, SPOILED_MANY, NOW);
    for _ in 0..10 {
        assert_eq!(fits(&mut hosts, FROM, 64, NOW + 1), Fit::Spoiled);
    }
    assert!(!hosts.has_doubts(), "it has just said so");
    let later = NOW + FRESH_NS;
    assert_eq!(fits(&mut hosts, FROM, 64, later), Fit::Spoiled);
    assert_eq!(fits(&mut hosts, FROM, 64, later), Fit::Strange);
    assert_eq!(hosts.doubts.len(), 1);
    hosts.heard(&news(Some(word(64))), later + 1);
    assert!(!hosts.has_doubts(), "asked by another process");
    assert_eq!(fits(&mut hosts, FROM, 64, later + 2), Fit::Spoiled);
    assert!(!hosts.has_doubts(), "it has just said so again");
    // Nothing has been spoiled for long.
    let clean = NOW + CLEAN_NS;
    assert_eq!(fits(&mut hosts, FROM, 64, clean), Fit::Strange);
    hosts.heard(&news(Some(word(64))), clean);
    spoil(&mut hosts, SPOILED_MANY - 1, clean);
    assert_eq!(fits(&mut hosts, FROM, 64, clean), Fit::Strange);
}
