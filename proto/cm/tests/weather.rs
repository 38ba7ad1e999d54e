//! Many connections in bad weather: each ends in what the application wanted or a truthful
//! error, on both sides, in time, and nothing stays behind.

mod common;

use std::collections::BTreeMap;

use common::world::{MS, Weather, World};
use rocebud_cm::{ConnId, Event, RejReason};
use rocebud_objects::Instant;

/// What became of a connection, seen from one side.
#[derive(Default, Debug)]
struct Fate {
    began: Instant,
    established: bool,
    disconnected: bool,
    rejected: Option<RejReason>,
    unreachable: bool,
    gone: bool,
    /// Longest wait for an answer to what this side wanted, in nanoseconds.
    longest: u64,
    /// What it waits for began.
    waits_since: Option<Instant>,
}

impl Fate {
    fn answered(&mut self, now: Instant) {
        if let Some(since) = self.waits_since.take() {
            self.longest = self.longest.max(now - since);
        }
    }
}

/// Applications that accept and establish at once; the requester disconnects when it is
/// connected, the other side when it is told.
struct Story {
    world: World,
    fates: BTreeMap<(usize, ConnId), Fate>,
}

impl Story {
    fn new(seed: u64, weather: Weather) -> Self {
        let mut world = World::new(seed, 2);
        world.weather = weather;
        world.listen(1);
        Self {
            world,
            fates: BTreeMap::new(),
        }
    }

    fn begin(&mut self) {
        let qpn = self.world.fresh_qpn();
        let conn = self.world.connect(0, 1, qpn);
        let fate = Fate {
            began: self.world.now,
            waits_since: Some(self.world.now),
            ..Fate::default()
        };
        self.fates.insert((0, conn), fate);
    }

    fn on(&mut self, host: usize, event: &Event) {
        let now = self.world.now;
        let conn = event.conn();
        if let Event::Request(_) = event {
            let fate = Fate {
                began: now,
                waits_since: Some(now),
                ..Fate::default()
            };
            assert!(self.fates.insert((host, conn), fate).is_none());
            self.world.accept(host, conn);
            return;
        }
        let fate = self.fates.get_mut(&(host, conn)).expect("one of ours");
        assert!(!fate.gone, "an event after the last one");
        fate.answered(now);
        match event {
            Event::Reply(_) => {
                fate.established = true;
                fate.waits_since = Some(now);
                let both = |m: &mut rocebud_cm::Manager, now| {
                    m.establish(now, conn, &[])
                        .and_then(|()| m.disconnect(now, conn))
                };
                self.world.call(host, both).expect("both calls");
            }
            Event::Established { .. } => fate.established = true,
            Event::Disconnected { .. } => fate.disconnected = true,
            Event::Rejected(e) => fate.rejected = Some(e.reason),
            Event::Unreachable { .. } => fate.unreachable = true,
            Event::Gone { .. } => fate.gone = true,
            other => panic!("{other:?}"),
        }
    }

    fn run(&mut self, ms: u64) {
        let end = self.world.now + ms * MS;
        while let Some(events) = self.world.step(end) {
            for (host, event) in events {
                self.on(host, &event);
            }
        }
        self.world.now = end;
    }

    /// All ended, nothing is left.
    fn end(&mut self) {
        self.run(600_000);
        // A side whose peer has gone, and none of whose messages about it came, is still
        // connected. Its application would notice by its data, and disconnect.
        let left: Vec<(usize, ConnId)> = self
            .fates
            .iter()
            .filter(|(_, fate)| !fate.gone && fate.established)
            .map(|(&who, _)| who)
            .collect();
        for (host, conn) in left {
            let done = self.world.call(host, |m, now| m.disconnect(now, conn));
            done.expect("disconnecting");
        }
        self.run(600_000);
        for ((host, conn), fate) in &self.fates {
            assert!(fate.gone, "host {host} {conn:?}: {fate:?}");
            let ends = u8::from(fate.disconnected)
                + u8::from(fate.rejected.is_some())
                + u8::from(fate.unreachable);
            assert_eq!(ends, 1, "host {host} {conn:?}: {fate:?}");
        }
        for host in &self.world.hosts {
            assert_eq!(host.contradiction(), None);
            assert_eq!((host.connections(), host.poll_timeout()), (0, None));
        }
    }

    fn count(&self, host: usize, what: fn(&Fate) -> bool) -> usize {
        let fates = self.fates.iter().filter(|((h, _), _)| *h == host);
        fates.filter(|(_, fate)| what(fate)).count()
    }
}

#[test]
fn a_thousand_connections_under_two_percent_loss_all_end_truthfully_within_ten_seconds() {
    let weather = Weather {
        loss: 20,
        twice: 10,
        delay_ms: 3,
    };
    let mut story = Story::new(1, weather);
    for _ in 0..1000 {
        story.begin();
        story.run(5);
    }
    story.end();
    let good = story.count(0, |f| f.established && f.disconnected);
    assert_eq!(good, 1000, "with five tries each");
    let longest = story.fates.values().map(|f| f.longest).max();
    assert!(longest < Some(10_000 * MS), "{longest:?}");
}

#[test]
fn everything_ends_in_any_weather() {
    for seed in 1..40 {
        let weather = Weather {
            loss: (seed as u32 * 37) % 700,
            twice: (seed as u32 * 101) % 600,
            delay_ms: (seed as u32 * 13) % 1500,
        };
        let mut story = Story::new(seed, weather);
        for _ in 0..60 {
            story.begin();
            story.run(7);
        }
        story.end();
        // What one side has used and ended, no side calls refused.
        let lost = story.count(0, |f| !f.established && f.disconnected);
        assert_eq!(lost, 0, "seed {seed}");
    }
}

#[test]
fn a_peer_that_is_not_there_is_unreachable_after_eight_seconds() {
    let mut story = Story::new(3, Weather::default());
    story.world.dead.insert(1);
    story.begin();
    let began = story.world.now;
    story.run(7_000);
    assert_eq!(story.count(0, |f| f.unreachable), 0);
    story.run(2_000);
    assert_eq!(story.count(0, |f| f.unreachable && f.gone), 1);
    let waited = story.fates.values().map(|f| f.longest).max();
    assert_eq!(waited, Some(7_846 * MS));
    assert_eq!(story.fates.values().next().map(|f| f.began), Some(began));
}
