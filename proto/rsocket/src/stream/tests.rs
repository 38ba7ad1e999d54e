use super::*;
use proptest::prelude::*;
use std::vec;
use std::vec::Vec;
use world::{BLOCK, RING, USER, USER_LEN, World};

mod world;

fn small() -> Config {
    Config {
        send_queue: 16,
        receive_queue: 16,
        send_ring: 4096,
        receive_ring: 4096,
        ..Config::default()
    }
}

fn with_iomap() -> Config {
    Config {
        iomap_entries: 2,
        ..small()
    }
}

fn pattern(from: usize, len: usize) -> Vec<u8> {
    (from..from + len).map(|i| (i ^ (i >> 8)) as u8).collect()
}

#[test]
fn the_first_message_of_each_end_is_that_of_upstream() {
    let world = World::new(Config::default(), Config::default());
    for end in &world.ends {
        let (write, bytes) = &end.wire[0];
        assert_eq!(write.immediate, Some(0x8000_0180));
        assert_eq!(write.remote.address, BLOCK.address + 16, "entry 1 first");
        assert_eq!(write.remote.key, BLOCK.key);
        let entry = TargetEntry::parse(bytes[..].try_into().unwrap(), ByteOrder::HOST);
        assert_eq!(entry.address, RING.address + 65536);
        assert_eq!((entry.key, entry.length), (RING.key, 65536));
        assert_eq!(end.wire.len(), 1);
    }
}

#[test]
fn data_need_not_wait_for_the_peers_first_message() {
    let mut world = World::new(small(), small());
    assert_eq!(world.ends[0].send(&pattern(0, 2048)), Ok(2048));
    let refused = world.ends[0].send(&[1]);
    assert_eq!(refused, Err(Stopped::Wait), "half a ring, until told more");
    world.settle();
    assert_eq!(world.ends[1].read(9999), Ok(pattern(0, 2048)));
}

#[test]
fn short_messages_go_inline_and_long_ones_through_the_ring() {
    let mut world = World::new(small(), small());
    let a = &mut world.ends[0];
    a.send(&[7; 64]).unwrap();
    a.send(&[8; 65]).unwrap();
    assert_eq!(a.wire[1].0.source, Source::Caller);
    let Source::Ring([first, _]) = a.wire[2].0.source else {
        panic!("{:?}", a.wire[2].0);
    };
    assert_eq!(first, Span { at: 0, len: 65 });
    assert_eq!(a.wire[2].0.immediate, Some(65));
}

#[test]
fn credits_run_out_and_come_back() {
    let mut world = World::new(small(), small());
    world.settle();
    let sent: Vec<_> = (0..40_u8).map(|i| world.ends[0].send(&[i])).collect();
    let taken = sent.iter().filter(|r| r.is_ok()).count();
    assert_eq!(taken, 12, "the send queue keeps four entries for control");
    world.settle();
    for i in 12..16 {
        world.ends[0].send(&[i]).unwrap();
        world.settle();
    }
    assert_eq!(world.ends[0].send(&[16]), Err(Stopped::Wait), "16 credits");
    assert!(!world.ends[0].stream.ready().writable);
    let first: Vec<u8> = (0..7).collect();
    assert_eq!(world.ends[1].read(7), Ok(first));
    world.settle();
    assert_eq!(
        world.ends[0].send(&[16]),
        Err(Stopped::Wait),
        "7 are not half"
    );
    world.ends[1].read(1).unwrap();
    world.settle();
    assert!(world.ends[0].stream.ready().writable);
    assert_eq!(world.ends[0].said.len(), 17, "nothing was sent to say so");
    assert_eq!(world.ends[0].send(&[16]), Ok(1));
}

#[test]
fn control_messages_wait_for_room_in_the_queue() {
    let mut world = World::new(small(), small());
    let b = &mut world.ends[1];
    b.stream.set_keepalive(Instant(0), 1);
    for second in 1..10 {
        b.stream.on_timeout(Instant(second * 1_000_000_000));
        b.work();
    }
    b.shutdown(Event::ShutdownBoth);
    assert_eq!(b.wire.len(), 4, "the first message and three keepalives");
    assert!(!b.stream.is_quiet());
    world.settle();
    assert_eq!(
        world.ends[1].said.last(),
        Some(&None),
        "one keepalive waited"
    );
    assert!(world.ends[1].said.contains(&Some(0xe000_0000)));
    assert!(world.ends[1].stream.is_quiet());
    assert_eq!(world.ends[0].stream.state(), State::Disconnected);
}

#[test]
fn a_keepalive_is_a_bare_write_that_the_peer_does_not_see() {
    let mut world = World::new(small(), small());
    world.settle();
    let a = &mut world.ends[0];
    a.stream.set_keepalive(Instant(500), 2);
    assert_eq!(a.stream.poll_timeout(), Some(Instant(2_000_000_500)));
    a.stream.on_timeout(Instant(2_000_000_499));
    a.work();
    assert!(a.wire.is_empty());
    a.stream.on_timeout(Instant(2_000_000_500));
    a.work();
    let (write, _) = a.wire[0].clone();
    assert_eq!((write.immediate, write.len), (None, 0));
    assert_eq!(write.remote, Region::default());
    assert_eq!(a.stream.poll_timeout(), Some(Instant(4_000_000_500)));
    let before = world.ends[1].receives;
    world.settle();
    assert_eq!(world.ends[1].receives, before);
    world.ends[0].stream.set_keepalive(Instant(0), 0);
    assert_eq!(world.ends[0].stream.poll_timeout(), None);
}

#[test]
fn a_shutdown_ends_one_direction_and_the_second_the_connection() {
    let mut world = World::new(small(), small());
    world.settle();
    world.ends[0].send(b"last words").unwrap();
    world.ends[0].shutdown(Event::ShutdownWrite);
    assert_eq!(world.ends[0].said.last(), Some(&Some(0xe000_0002)));
    assert_eq!(world.ends[0].send(&[1]), Err(Stopped::Failed(ECONNRESET)));
    world.settle();
    let b = &mut world.ends[1];
    assert_eq!(b.stream.state(), State::WriteOnly);
    assert_eq!(b.read(100), Ok(b"last words".to_vec()));
    assert_eq!(b.read(100), Err(Stopped::End));
    assert_eq!(b.send(b"answer"), Ok(6));
    b.shutdown(Event::ShutdownWrite);
    assert_eq!(b.said.last(), Some(&Some(0xe000_0000)));
    world.settle();
    let a = &mut world.ends[0];
    assert_eq!(a.stream.state(), State::Disconnected);
    assert!(
        a.stream.ready().readable && !a.stream.ready().hung_up,
        "data come first"
    );
    assert_eq!(
        a.read(100),
        Ok(b"answer".to_vec()),
        "what came before is readable"
    );
    assert_eq!(a.read(100), Err(Stopped::End));
    assert!(a.stream.is_quiet());
    assert!(a.stream.ready().hung_up && a.stream.ready().readable);
    assert_eq!(a.stream.take_error(), None, "in good order");
}

#[test]
fn both_ends_may_close_at_once() {
    let mut world = World::new(small(), small());
    world.settle();
    for end in &mut world.ends {
        end.shutdown(Event::ShutdownBoth);
        assert_eq!(end.said.last(), Some(&Some(0xe000_0000)));
    }
    world.settle();
    for end in &mut world.ends {
        assert_eq!(end.stream.state(), State::Disconnected);
    }
}

#[test]
fn the_message_that_a_gone_peer_never_acknowledged_is_no_error() {
    let mut world = World::new(small(), small());
    world.settle();
    let a = &mut world.ends[0];
    a.shutdown(Event::ShutdownBoth);
    let (write, _) = a.wire.pop_front().unwrap();
    a.stream.on_sent(write.id, false);
    assert_eq!(a.stream.state(), State::Disconnected);
    assert_eq!(a.stream.take_error(), None);
    assert!(a.stream.is_quiet());
}

#[test]
fn a_failed_request_and_a_lost_connection_say_so() {
    let mut world = World::new(small(), small());
    world.settle();
    world.ends[1].send(b"before").unwrap();
    world.settle();
    let a = &mut world.ends[0];
    a.send(&[1; 100]).unwrap();
    let id = a.wire[0].0.id;
    a.stream.on_sent(id, false);
    assert_eq!(a.stream.state(), State::Failed);
    assert_eq!(a.send(&[1]), Err(Stopped::Failed(Errno::EIO)));
    assert_eq!(a.read(100), Ok(b"before".to_vec()));
    assert_eq!(a.read(100), Err(Stopped::Failed(Errno::EIO)));
    assert!(a.stream.ready().failed);
    assert_eq!(a.stream.take_error(), Some(Errno::EIO));
    assert_eq!(a.stream.take_error(), None, "SO_ERROR is read once");
    let b = &mut world.ends[1];
    b.stream.connection_lost();
    assert_eq!(b.stream.state(), State::Disconnected);
    assert_eq!(b.stream.take_error(), Some(ECONNRESET));
    assert_eq!(b.read(1), Err(Stopped::End));
}

#[test]
fn a_stream_that_never_came_about_says_why() {
    let mut s = Stream::connecting(Config::default(), Local::default());
    assert_eq!(s.send(1), Err(Stopped::Failed(ENOTCONN)));
    assert_eq!(s.peek(1), Err(Stopped::Failed(ENOTCONN)));
    assert_eq!(s.ready(), Ready::default());
    assert_eq!(
        s.poll_work(),
        Some(Work::Receives(384)),
        "before the REQ goes"
    );
    assert_eq!(s.poll_work(), None);
    s.refused(Errno(111));
    assert_eq!(s.state(), State::ConnectFailed);
    assert!(s.ready().failed && !s.ready().readable);
    assert_eq!(s.take_error(), Some(Errno(111)));
}

#[test]
fn a_mapping_is_told_before_the_next_data_and_written_to_directly() {
    let mut world = World::new(with_iomap(), with_iomap());
    world.settle();
    let b = &mut world.ends[1];
    let offset = b.stream.map(USER, USER_LEN as u32, 0).unwrap();
    b.send(b"ready").unwrap();
    let said = &b.said[b.said.len() - 2..];
    assert_eq!(said, [Some(0xc000_0000), Some(5)]);
    world.settle();
    let a = &mut world.ends[0];
    assert_eq!(a.read(5), Ok(b"ready".to_vec()));
    assert_eq!(a.send_direct(offset + 100, &pattern(0, 1000)), Ok(1000));
    assert_eq!(a.said.last(), Some(&None), "no immediate");
    assert_eq!(
        a.send_direct(USER_LEN as u64, b"x"),
        Err(Stopped::Failed(Errno::EINVAL))
    );
    assert_eq!(
        a.send_direct(USER_LEN as u64 - 3, b"12345"),
        Ok(3),
        "to its end"
    );
    world.settle();
    assert_eq!(world.ends[1].user[100..1100], pattern(0, 1000));
    assert_eq!(&world.ends[1].user[USER_LEN - 3..], b"123");
    assert_eq!(world.ends[1].receives, 16, "no receive was used");
    assert_eq!(
        world.ends[1].stream.unmap(offset, USER_LEN as u32),
        Ok(USER)
    );
}

#[test]
fn mappings_without_data_are_told_too_and_cost_no_credit_for_good() {
    let mut world = World::new(with_iomap(), with_iomap());
    world.settle();
    for round in 0..100_u8 {
        let b = &mut world.ends[1];
        let offset = b.stream.map(USER, 64, i64::from(round)).unwrap();
        b.work();
        b.send(&[round]).unwrap();
        world.settle();
        assert_eq!(world.ends[0].read(9), Ok(vec![round]));
        world.ends[0].send_direct(offset, &[round]).unwrap();
        world.settle();
        assert_eq!(world.ends[1].user[0], round);
        world.ends[1].stream.unmap(offset, 64).unwrap();
    }
}

#[test]
fn ends_of_different_byte_order_understand_each_other() {
    let big = Config {
        order: ByteOrder::Big,
        ..with_iomap()
    };
    let little = Config {
        order: ByteOrder::Little,
        ..with_iomap()
    };
    let mut world = World::new(big, little);
    world.settle();
    for i in 0..2 {
        let offset = world.ends[i].stream.map(USER, 64, -1).unwrap();
        assert_eq!(offset, USER.address);
        world.ends[i].work();
        world.settle();
        for round in 0..10 {
            let bytes = pattern(round * 2048, 2048);
            assert_eq!(world.ends[i].send(&bytes), Ok(2048), "{i} {round}");
            world.settle();
            assert_eq!(world.ends[1 - i].read(4096), Ok(bytes));
            world.settle();
        }
        world.ends[1 - i]
            .send_direct(USER.address, b"direct")
            .unwrap();
        world.settle();
        assert_eq!(&world.ends[i].user[..6], b"direct");
    }
}

/// What a hostile peer says, on a fresh connection.
fn hostile(immediate: u32, len: u32, block: &[u8]) -> Stream {
    let mut world = World::new(with_iomap(), with_iomap());
    world.settle();
    let [mut a, _] = world.ends;
    a.receives -= 1;
    a.stream.on_received(Received { immediate, len }, block);
    a.work();
    a.stream
}

#[test]
fn lies_about_data_end_the_connection() {
    for (immediate, violation) in [
        (0x1fff_ffff, Violation::DataBeyondAnnounced),
        (4097, Violation::DataBeyondAnnounced),
        (0x2000_0001, Violation::UnknownMessage),
        (0xa000_0001, Violation::UnknownMessage),
        (0xe000_0001, Violation::UnknownMessage),
    ] {
        let mut s = hostile(immediate, 0, &[]);
        assert_eq!(s.state(), State::Failed, "{immediate:08x}");
        assert_eq!(s.violations(), (1, Some(violation)));
        assert_eq!(s.take_error(), Some(EPROTO));
        assert_eq!(s.unread(), 0);
        assert!(s.poll_work().is_none() && s.is_quiet());
    }
}

#[test]
fn lies_about_anything_else_are_counted_and_change_nothing() {
    let ones = [0xff; 32 + 48];
    for (immediate, len, violation) in [
        (0x8000_7fff, 0, Violation::CreditsBeyondReceives),
        (0x8000_0010, 16, Violation::EntryInUse),
        (0x8000_0010, 15, Violation::EntrySize),
        (0x8000_0010, u32::MAX, Violation::EntrySize),
        (0xc000_0002, 24, Violation::IomapIndex),
        (0xdfff_ffff, 24, Violation::IomapIndex),
    ] {
        let mut s = hostile(immediate, len, &ones);
        assert_eq!(s.state(), State::Open, "{immediate:08x}");
        assert_eq!(s.violations(), (1, Some(violation)));
        for _ in 0..16 {
            if let Ok(p) = s.send(2048) {
                assert_eq!(p.write.remote.key, RING.key);
            }
        }
        assert!(s.in_flight() <= 16);
    }
}

#[test]
fn an_offer_of_impossible_memory_is_not_written_to() {
    let mut block = [0; 32 + 48];
    let entry = IoEntry {
        offset: 0,
        memory: TargetEntry {
            address: u64::MAX - 1,
            key: 1,
            length: u32::MAX,
        },
    };
    block[32..56].copy_from_slice(&entry.emit(ByteOrder::HOST));
    let mut s = hostile(0xc000_0000, 24, &block);
    assert_eq!(s.send_direct(0, 3), Err(Stopped::Failed(Errno::EINVAL)));
    assert_eq!(s.send_direct(2, 1), Err(Stopped::Failed(Errno::EINVAL)));
    assert!(s.send_direct(0, 2).is_ok());
}

#[test]
fn nothing_counts_after_the_end() {
    let mut world = World::new(small(), small());
    world.settle();
    let offer = world.ends[1].stream.connect_data();
    let a = &mut world.ends[0];
    a.stream.connection_lost();
    let late = Received {
        immediate: 10,
        len: 10,
    };
    a.stream.on_received(late, a.block.as_slice());
    a.stream.on_sent(WorkId(u64::MAX), false);
    a.stream.shutdown(Event::ShutdownBoth);
    a.stream.established(&offer);
    assert_eq!(a.stream.state(), State::Disconnected);
    assert_eq!((a.stream.unread(), a.stream.poll_work()), (0, None));
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Send(usize, u16),
    Read(usize, u16),
    Deliver(usize, u8),
    Arrived(usize, u8),
    Completed(usize, u8),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let one = (0..2_usize, 0..5_u8, any::<u16>()).prop_map(|(end, kind, n)| match kind {
        0 => Step::Send(end, n),
        1 => Step::Read(end, n),
        2 => Step::Deliver(end, n as u8),
        3 => Step::Arrived(end, n as u8),
        _ => Step::Completed(end, n as u8),
    });
    prop::collection::vec(one, 0..600)
}

fn config() -> impl Strategy<Value = Config> {
    (16..80_u16, 16..80_u16, 12..16_u32, 12..16_u32, 0..400_u16).prop_map(
        |(send_queue, receive_queue, send, receive, inline)| Config {
            send_queue,
            receive_queue,
            send_ring: (1 << send) + u32::from(inline),
            receive_ring: (1 << receive) + 2 * u32::from(inline),
            inline,
            ..Config::default()
        },
    )
}

/// Bytes of each direction that were taken and that were read.
#[derive(Default)]
struct Flow {
    sent: [usize; 2],
    read: [usize; 2],
}

impl Flow {
    fn send(&mut self, world: &mut World, end: usize, len: usize) {
        let bytes = pattern(self.sent[end], len);
        match world.ends[end].send(&bytes) {
            Ok(n) => self.sent[end] += n,
            Err(stopped) => assert_eq!(stopped, Stopped::Wait),
        }
    }

    fn read(&mut self, world: &mut World, end: usize, len: usize) {
        match world.ends[end].read(len) {
            Ok(bytes) => {
                assert_eq!(bytes, pattern(self.read[end], bytes.len()));
                self.read[end] += bytes.len();
            }
            Err(stopped) => assert!(matches!(stopped, Stopped::Wait | Stopped::End)),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(debug_assertions) { 96 } else { 400 }))]

    /// Whatever the order of calls and completions: bytes come out as they went in, nothing is
    /// written elsewhere, and all of it arrives in the end.
    #[test]
    fn streams_are_exact_in_any_order_of_things(a in config(), b in config(), steps in steps()) {
        let mut world = World::new(a, b);
        let mut flow = Flow::default();
        for step in steps {
            match step {
                Step::Send(end, n) => flow.send(&mut world, end, usize::from(n) % 9000 + 1),
                Step::Read(end, n) => flow.read(&mut world, end, usize::from(n) % 9000 + 1),
                Step::Deliver(end, n) => (0..n).for_each(|_| { world.deliver(end); }),
                Step::Arrived(end, n) => (0..n % 8).for_each(|_| { world.ends[end].poll_arrived(); }),
                Step::Completed(end, n) => (0..n % 8).for_each(|_| { world.ends[end].poll_completed(); }),
            }
        }
        // both programs read on until nothing moves any more, and then can still send
        for _ in 0..200 {
            world.settle();
            for end in 0..2 {
                flow.read(&mut world, end, 1 << 20);
            }
        }
        prop_assert_eq!(flow.sent[0], flow.read[1]);
        prop_assert_eq!(flow.sent[1], flow.read[0]);
        for end in 0..2 {
            prop_assert!(world.ends[end].stream.ready().writable, "end {} is stuck", end);
            prop_assert_eq!(world.ends[end].stream.violations(), (0, None));
            world.ends[end].shutdown(Event::ShutdownWrite);
        }
        world.settle();
        for end in &world.ends {
            prop_assert_eq!(end.stream.state(), State::Disconnected);
        }
    }

    /// A peer that says anything in any order: no panic, bounded memory, reads stay inside what
    /// was announced.
    #[test]
    fn a_hostile_peer_is_bounded(messages in prop::collection::vec((any::<u8>(), any::<u32>(), 0..40_u32), 0..300), block: [u8; 32]) {
        let mut world = World::new(small(), small());
        world.settle();
        let a = &mut world.ends[0];
        for (kind, data, len) in messages {
            let immediate = match kind % 8 {
                0..=2 => data % 600,
                3 | 4 => 0x8000_0000 | (data % 70_000),
                5 => 0xc000_0000 | (data % 8),
                6 => data,
                _ => {
                    let _ = a.send(&[1; 700]);
                    while a.poll_completed() {}
                    a.completed.extend(a.wire.drain(..).map(|(w, _)| w.id));
                    let _ = a.read(100);
                    continue;
                }
            };
            let received = Received { immediate, len: if kind & 16 == 0 { len } else { 16 } };
            a.stream.on_received(received, block.as_slice());
            a.receives = a.receives.saturating_sub(1);
            a.work();
            prop_assert!(a.stream.unread() <= 4096);
        }
    }
}

#[test]
fn counts_of_messages_wrap() {
    let mut world = World::new(small(), small());
    let mut flow = Flow::default();
    for round in 0..170_000 {
        flow.send(&mut world, 0, 1);
        if round % 7 == 0 {
            world.settle();
            flow.read(&mut world, 1, 9);
        }
    }
    world.settle();
    flow.read(&mut world, 1, 100);
    assert_eq!(flow.sent[0], flow.read[1]);
    assert!(flow.sent[0] > 2 * 65536, "{}", flow.sent[0]);
}
