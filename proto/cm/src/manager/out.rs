//! What waits to be polled, and what is counted.

use alloc::boxed::Box;
use alloc::collections::VecDeque;

use rocebud_objects::Instant;

use crate::bits::{Field, at};
use crate::limits::{ANSWERS_MAX, PUT_OFFS_A_SECOND, PUT_OFFS_MAX};
use crate::mad::MAD_LEN;
use crate::msg::Message;
use crate::types::{Event, Path, Transmit};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident;)*) => {
        /// What happened, in numbers.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        pub struct Counters {
            /// Messages received, by attribute id from 0x10 (REQ) on.
            pub rx: [u64; Message::KINDS.len()],
            /// Messages sent, in the same order, repetitions too.
            pub tx: [u64; Message::KINDS.len()],
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Counters {
            /// All but `rx` and `tx`, with their names.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
                [$((stringify!($name), self.$name),)*].into_iter()
            }
        }
    };
}

counters! {
    /// Messages repeated because nobody answered.
    resent;
    /// Not a datagram of this class, or one of a kind that it does not have.
    malformed;
    /// Messages about a connection that we do not have.
    unknown_id;
    /// Messages about a connection from an address that is not its peer's.
    stranger;
    /// Messages that mean nothing in the state of their connection: mostly late duplicates.
    out_of_place;
    /// Messages that had come before.
    duplicate;
    /// Requests for a service that nobody offers.
    no_listener;
    /// Requests whose IP header is none, or names other addresses than their packets.
    bad_address;
    /// Requests for a kind of connection that does not exist.
    bad_request;
    /// Requests put off because too many wait for the application.
    backlog_full;
    /// Requests put off because the peer has asked for too many and was not ready for them.
    half_open_full;
    /// Requests refused because too many connections exist.
    no_resources;
    /// Requests and replies of a queue pair whose older connection was still known.
    stale;
    /// Answers dropped because too many waited to be sent.
    answers_dropped;
}

/// How many requests may still be told to come again.
#[derive(Debug)]
pub(crate) struct PutOffs {
    left: u64,
    since: Instant,
}

impl PutOffs {
    pub(crate) const fn new() -> Self {
        Self {
            left: PUT_OFFS_MAX,
            since: Instant(0),
        }
    }

    /// One more, if it may be.
    pub(crate) fn take(&mut self, now: Instant) -> bool {
        const SECOND: u64 = 1_000_000_000;
        // Longer ago it would be no more than the most.
        let elapsed = now.0.saturating_sub(self.since.0).min(4 * SECOND);
        let fresh = elapsed * PUT_OFFS_A_SECOND / SECOND;
        if fresh > 0 {
            self.left = PUT_OFFS_MAX.min(self.left + fresh);
            self.since = now;
        }
        let may = self.left > 0;
        self.left -= u64::from(may);
        may
    }
}

/// Everything that goes out of the manager.
#[derive(Debug, Default)]
pub(crate) struct Out {
    transmits: VecDeque<Transmit>,
    events: VecDeque<Event>,
    pub(crate) counters: Counters,
}

/// The place of an attribute id in the counters.
pub(crate) fn kind(attr_id: u16) -> usize {
    usize::from(attr_id.wrapping_sub(0x10))
}

impl Out {
    /// A message that must go.
    pub(crate) fn send(&mut self, path: Path, mad: Box<[u8; MAD_LEN]>) {
        let attr_id = u16::read(&mad[..], &[at(16, 0, 16)]);
        if let Some(count) = self.counters.tx.get_mut(kind(attr_id)) {
            *count += 1;
        }
        self.transmits.push_back(Transmit { path, mad });
    }

    /// An answer that the peer will ask for again if it does not come.
    pub(crate) fn answer(&mut self, path: Path, mad: Box<[u8; MAD_LEN]>) {
        if self.transmits.len() < ANSWERS_MAX {
            self.send(path, mad);
        } else {
            self.counters.answers_dropped += 1;
        }
    }

    pub(crate) fn raise(&mut self, event: Event) {
        self.events.push_back(event);
    }

    pub(crate) fn events_waiting(&self) -> usize {
        self.events.len()
    }

    pub(crate) fn poll_transmit(&mut self) -> Option<Transmit> {
        self.transmits.pop_front()
    }

    pub(crate) fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }
}
