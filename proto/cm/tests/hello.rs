//! Hosts of ours find each other, and disturb nobody else.

mod common;

use common::world::{MS, address};
use common::{Dice, ends, mirrored};
use rocebud_cm::hello::{
    self, Cause, Greeter, Hello, METHOD_GET, METHOD_GET_RESP, Manners, Met, OUI, VERSION,
};
use rocebud_cm::{Ends, Message, Peer};
use rocebud_objects::Instant;

const NOW: Instant = Instant(1_000 * MS);

fn ours(instance: u64) -> Hello {
    Hello::new(instance, 128, 212_992, 1)
}

fn greeter(instance: u64) -> Greeter {
    let mut dice = Dice::new(instance);
    let random = Box::new(move || dice.roll());
    Greeter::new(Manners::default(), ours(instance), random)
}

fn from_to(from: usize, to: usize) -> Ends {
    ends(address(from), address(to))
}

/// News of the one whom the first asked.
fn met(hello: Option<Hello>, cause: Cause) -> Option<Met> {
    Some(Met {
        ends: from_to(0, 1),
        hello,
        cause,
    })
}

/// Two that have had their exchange.
fn acquainted() -> (Greeter, Greeter) {
    let (mut alice, mut bob) = (greeter(1), greeter(2));
    alice.look(NOW, from_to(0, 1));
    exchange(NOW, &mut alice, &mut bob);
    assert_eq!(alice.poll_met(), met(Some(ours(2)), Cause::New));
    (alice, bob)
}

/// A question and its answer. Says how many of either.
fn exchange(now: Instant, alice: &mut Greeter, bob: &mut Greeter) -> (usize, usize) {
    (carry(now, alice, bob), carry(now, bob, alice))
}

/// Everything that one has to say goes to the other.
fn carry(now: Instant, from: &mut Greeter, to: &mut Greeter) -> usize {
    let mut count = 0;
    while let Some(message) = from.poll_transmit() {
        assert!(to.handle_mad(now, mirrored(message.path.ends), &message.mad[..]));
        count += 1;
    }
    count
}

#[test]
fn a_hello_is_what_its_layout_says() {
    let mad = Hello {
        kernel: 0x99aa_bbcc_ddee_ff01,
        ..Hello::new(0x1122_3344_5566_7788, 128, 0x0003_4000, 5)
    }
    .datagram(METHOD_GET, 9);
    let mut expected = [0; 256];
    expected[..4].copy_from_slice(&[1, 0x42, 1, 1]);
    expected[15] = 9;
    expected[17] = 1;
    expected[37..41].copy_from_slice(&[2, 0x52, 0x42, 1]);
    expected[42..44].copy_from_slice(&[0, 128]);
    expected[44..48].copy_from_slice(&[0, 3, 0x40, 0]);
    expected[51] = 5;
    expected[52..60].copy_from_slice(&[0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88]);
    expected[60..68].copy_from_slice(&[0x99, 0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xff, 1]);
    assert_eq!(mad[..], expected);
    let (header, hello) = hello::parse(&mad[..]).expect("ours");
    assert_eq!((header.tid, hello.oui, hello.version), (9, OUI, VERSION));
    assert!(Message::parse(&mad[..]).is_err(), "not of the CM's class");
}

#[test]
fn two_hosts_of_ours_know_each_other_after_one_exchange() {
    let (mut alice, mut bob) = (greeter(1), greeter(2));
    let there = from_to(0, 1);
    assert_eq!(alice.look(NOW, there), None);
    assert_eq!(alice.look(NOW, there), None, "asked once");
    assert_eq!(carry(NOW, &mut alice, &mut bob), 1);
    assert_eq!(carry(NOW, &mut bob, &mut alice), 1);
    let hello = Some(ours(2));
    assert_eq!(alice.poll_met(), met(hello, Cause::New));
    assert_eq!((alice.poll_met(), alice.look(NOW, there)), (None, hello));
    // The question alone says nothing about who asked.
    assert_eq!((bob.peers(), bob.poll_met()), (0, None));
}

#[test]
fn silence_means_the_standard() {
    let mut alice = greeter(1);
    let there = from_to(0, 1);
    alice.look(NOW, there);
    let mut asked = 0;
    let mut now = NOW;
    while now - NOW < 10_000 * MS {
        while let Some(message) = alice.poll_transmit() {
            assert_eq!(message.path.ends, there);
            asked += 1;
        }
        now = alice.poll_timeout().expect("a timer");
        alice.handle_timeout(now, |_| false);
    }
    assert_eq!(asked, 3);
    assert_eq!((alice.poll_met(), alice.look(now, there)), (None, None));
    // Looked at since, so it is asked again, ten minutes later; then nobody looks, and it is
    // forgotten.
    assert!(alice.poll_transmit().is_some());
    for _ in 0..8 {
        if let Some(at) = alice.poll_timeout() {
            alice.handle_timeout(at, |_| false);
            while alice.poll_transmit().is_some() {}
        }
    }
    assert_eq!((alice.peers(), alice.poll_timeout()), (0, None));
}

/// A stack that answers with a status, as Linux does, is one of the standard, at once.
#[test]
fn a_refusal_means_the_standard() {
    let mut alice = greeter(1);
    let there = from_to(0, 1);
    alice.look(NOW, there);
    let mut mad = alice.poll_transmit().expect("a question").mad;
    mad[3] = METHOD_GET_RESP;
    mad[5] = 0x0c;
    assert!(alice.handle_mad(NOW, there, &mad[..]));
    assert_eq!(alice.look(NOW, there), None);
    assert!(alice.poll_timeout() > Some(NOW + 60_000 * MS));
}

/// An answer that nobody asked for, from elsewhere, late or of another version changes nothing.
#[test]
fn only_an_answer_to_our_question_is_believed() {
    let mut alice = greeter(1);
    let there = from_to(0, 1);
    let lie = ours(666);
    alice.handle_mad(NOW, there, &lie.datagram(METHOD_GET_RESP, 0)[..]);
    alice.handle_mad(NOW, there, &lie.datagram(METHOD_GET, 7)[..]);
    assert_eq!(alice.peers(), 0);
    alice.poll_transmit().expect("an answer");
    alice.look(NOW, there);
    let question = alice.poll_transmit().expect("a question");
    let (header, _) = hello::parse(&question.mad[..]).expect("ours");
    let answer = lie.datagram(METHOD_GET_RESP, header.tid);
    alice.handle_mad(NOW, from_to(0, 2), &answer[..]);
    let wrong = lie.datagram(METHOD_GET_RESP, header.tid ^ 1);
    alice.handle_mad(NOW, there, &wrong[..]);
    assert_eq!((alice.poll_met(), alice.look(NOW, there)), (None, None));
    alice.handle_mad(NOW, there, &answer[..]);
    assert_eq!(alice.look(NOW, there), Some(lie));
    let late = ours(667).datagram(METHOD_GET_RESP, header.tid);
    alice.handle_mad(NOW, there, &late[..]);
    assert_eq!(alice.look(NOW, there), Some(lie), "answered already");
    assert!(!alice.handle_mad(NOW, there, &[0; 256]), "another class");
    assert!(!alice.handle_mad(NOW, there, &answer[..255]), "too short");
}

/// A peer that starts again with other properties, or turns into another, is noticed in time.
#[test]
fn what_is_old_is_asked_again() {
    let (mut alice, mut bob) = (greeter(1), greeter(2));
    let there = from_to(0, 1);
    alice.look(NOW, there);
    carry(NOW, &mut alice, &mut bob);
    carry(NOW, &mut bob, &mut alice);
    assert_eq!(alice.look(NOW, there), Some(ours(2)));
    alice.poll_met();
    let later = alice.poll_timeout().expect("some day");
    alice.handle_timeout(later, |_| false);
    let mut other = greeter(3);
    carry(later, &mut alice, &mut other);
    assert_eq!(
        alice.look(later, there),
        Some(ours(2)),
        "until it is known better"
    );
    carry(later, &mut other, &mut alice);
    assert_eq!(alice.poll_met(), met(Some(ours(3)), Cause::New));
    // Now nobody answers any more.
    alice.look(later, there);
    for _ in 0..4 {
        let later = alice.poll_timeout().expect("a timer");
        alice.handle_timeout(later, |_| false);
        while alice.poll_transmit().is_some() {}
    }
    assert_eq!(alice.poll_met(), met(None, Cause::New));
}

/// Who does what it said it never does is asked, not more than once a second whoever complains, and
/// the complainer hears what came of it.
#[test]
fn a_word_in_doubt_is_asked_for_again() {
    let (mut alice, mut bob) = acquainted();
    let there = from_to(0, 1);
    for _ in 0..3 {
        alice.doubt(NOW, there);
    }
    assert_eq!(
        exchange(NOW, &mut alice, &mut bob),
        (0, 0),
        "it just said so"
    );
    let soon = NOW + 1_000 * MS;
    assert_eq!(alice.poll_timeout(), Some(soon));
    alice.handle_timeout(soon, |_| false);
    alice.doubt(soon, there);
    assert_eq!(exchange(soon, &mut alice, &mut bob), (1, 1));
    assert_eq!(alice.poll_met(), met(Some(ours(2)), Cause::Confirmed));
    assert_eq!(alice.poll_met(), None);

    let later = soon + 5_000 * MS;
    alice.doubt(later, there);
    assert_eq!(
        alice.look(later, there),
        Some(ours(2)),
        "until it is known better"
    );
    let mut mad = alice.poll_transmit().expect("a question, at once").mad;
    mad[3] = METHOD_GET_RESP;
    mad[5] = 0x0c;
    alice.handle_mad(later, there, &mad[..]);
    assert_eq!(alice.poll_met(), met(None, Cause::New), "another stack");
    alice.doubt(later + 2_000 * MS, there);
    while alice.poll_transmit().is_some() {}
    alice.handle_mad(later, there, &mad[..]);
    assert_eq!(alice.poll_met(), None, "another question");
}

/// A doubt about somebody who is forgotten has an outcome, too.
#[test]
fn a_stranger_in_doubt_is_asked() {
    let (mut alice, mut bob) = (greeter(1), greeter(2));
    alice.doubt(NOW, from_to(0, 1));
    assert_eq!(exchange(NOW, &mut alice, &mut bob), (1, 1));
    assert_eq!(alice.poll_met(), met(Some(ours(2)), Cause::New));
    alice.doubt(NOW, from_to(0, 2));
    let mut now = NOW;
    while alice.poll_met().is_none() {
        now = alice.poll_timeout().expect("a timer");
        alice.handle_timeout(now, |_| false);
        while alice.poll_transmit().is_some() {}
    }
    assert_eq!(now, NOW + 1_500 * MS, "three questions");
}

/// The daemon of a peer that started again asks for its own reasons, and thereby tells. A question
/// of a stranger tells nothing, nor does one that names the run that is known.
#[test]
fn a_peer_that_asks_in_another_name_is_asked() {
    let (mut alice, _) = acquainted();
    let (mut again, there, here) = (greeter(3), from_to(0, 1), from_to(1, 0));
    let mut later = NOW + 10_000 * MS;
    alice.handle_mad(later, there, &ours(2).datagram(METHOD_GET, 5)[..]);
    alice.handle_mad(later, from_to(0, 2), &ours(4).datagram(METHOD_GET, 5)[..]);
    assert_eq!(
        std::iter::from_fn(|| alice.poll_transmit()).count(),
        2,
        "answers"
    );
    again.look(later, here);
    exchange(later, &mut again, &mut alice);
    exchange(later, &mut again, &mut alice);
    assert_eq!(alice.poll_met(), met(Some(ours(3)), Cause::New));
    assert_eq!(again.look(later, here), Some(ours(1)));
    // One that was silent when it was asked, too.
    let mut alice = greeter(1);
    alice.look(later, there);
    for _ in 0..3 {
        assert!(alice.poll_transmit().is_some());
        later = alice.poll_timeout().expect("a timer");
        alice.handle_timeout(later, |_| false);
    }
    later = later + 2_000 * MS;
    alice.handle_mad(later, there, &ours(3).datagram(METHOD_GET, 6)[..]);
    let said = std::iter::from_fn(|| alice.poll_transmit());
    let methods = said.map(|message| message.mad[3]).collect::<Vec<_>>();
    assert_eq!(methods, [METHOD_GET_RESP, METHOD_GET]);
}

/// Whom somebody relies on is asked again in time; who is forgotten, so that nobody would notice a
/// change, is no longer relied on.
#[test]
fn what_is_relied_on_is_renewed_or_given_up() {
    let (mut alice, mut bob) = acquainted();
    for _ in 0..3 {
        let later = alice.poll_timeout().expect("a timer");
        alice.handle_timeout(later, |peer| peer == Peer::of(&from_to(0, 1)));
        assert_eq!(exchange(later, &mut alice, &mut bob), (1, 1));
        assert_eq!(alice.poll_met(), None, "as before");
    }
    let later = alice.poll_timeout().expect("a timer");
    alice.handle_timeout(later, |_| false);
    assert_eq!(alice.poll_met(), met(None, Cause::Forgotten));

    let (mut alice, _) = acquainted();
    for n in 0..Manners::default().peers_max as u32 {
        let mut remote = address(0);
        remote.0[12..].copy_from_slice(&n.to_be_bytes());
        alice.look(NOW, ends(address(0), remote));
        while alice.poll_transmit().is_some() {}
        let due = alice.poll_timeout().expect("a timer");
        assert!(due <= NOW + 500 * MS, "others wait for an answer");
    }
    // The first whose time comes makes room: not one whose answer is believed for long.
    assert_eq!(alice.poll_met(), None);
    assert_eq!(alice.look(NOW, from_to(0, 1)), Some(ours(2)));
}

#[test]
fn lost_messages_are_repeated() {
    for lost in 0..3 {
        let (mut alice, mut bob) = (greeter(1), greeter(2));
        let there = from_to(0, 1);
        alice.look(NOW, there);
        let mut now = NOW;
        for _ in 0..lost {
            while alice.poll_transmit().is_some() {}
            now = alice.poll_timeout().expect("a timer");
            alice.handle_timeout(now, |_| false);
        }
        carry(now, &mut alice, &mut bob);
        carry(now, &mut bob, &mut alice);
        let known = alice.look(now, there);
        assert_eq!(known, Some(ours(2)));
    }
}

#[test]
fn memory_is_bounded() {
    let mut alice = greeter(1);
    for n in 0..10_000_u32 {
        let mut remote = address(0);
        remote.0[12..].copy_from_slice(&n.to_be_bytes());
        alice.look(NOW, ends(address(0), remote));
        while alice.poll_transmit().is_some() {}
    }
    assert_eq!(alice.peers(), Manners::default().peers_max);
    for tid in 0..10_000 {
        alice.handle_mad(NOW, from_to(0, 1), &ours(1).datagram(METHOD_GET, tid)[..]);
    }
    let mut answers = 0;
    while alice.poll_transmit().is_some() {
        answers += 1;
    }
    assert_eq!(answers, rocebud_cm::limits::ANSWERS_MAX);
}
