//! How much a peer process takes at once, learnt from what gets lost.
//!
//! The buffer that overflows is the peer's, its size is not on the wire, and the engine starts
//! from what an unprivileged socket has by default. A peer that loses nothing is trusted with
//! more, step by step; one that loses something gets less at once, but never less than the start.
//! A peer whose host says how large its buffers are gets what they take from the first packet, and
//! never more.
//!
//! The same holds for READs, with the requests' answers in flight towards us: what overflows is a queue on the
//! peer's side (or a switch) that nobody told us of. Answers that have to be asked for again halve what may be asked
//! for at once, and what comes without a loss opens it again, up to what our own buffer takes.
//!
//! A path may also lose all but the first packet of every batch (segmentation offload that numbers
//! packets in another way, say). What is sent again goes alone, so such a path works, but every
//! window ends in a loss. Where that happens many times in a row, batches are given up.

use std::collections::HashMap;

use rocebud_engine::{Node, Transmit};
use rocebud_wire::Gid;

/// Most bytes in flight towards one process: about 128 full packets, beyond which throughput did
/// not grow.
const WINDOW_MAX: u32 = 640 * 1024;

/// A known buffer is filled up to this part of it: the kernel charges a packet's memory, which may be
/// twice its bytes.
const BUFFER_PARTS: u32 = 2;

/// Windows sent without a loss before the next step up.
const CLEAN_WINDOWS: u64 = 8;

/// Losses closer together than this are one.
const ONE_LOSS_NS: u64 = 10_000_000;

/// Losses in a row, each within a window of the one before, that speak against batches. Random
/// losses of one packet in twenty hardly ever come so regularly.
const LOSSES_IN_A_ROW: u32 = 16;

/// Peers remembered; a stranger beyond them starts with the default again.
const PEERS_MAX: usize = 1024;

type Key = (Gid, u16);

#[derive(Debug, Default)]
pub(crate) struct Windows {
    peers: Vec<Peer>,
    places: HashMap<Key, usize>,
    /// Place of the peer that was sent to last: packets come in runs.
    last: usize,
    reads: Reads,
}

/// What may be asked for by READs at once, all peers together.
#[derive(Debug, Default)]
struct Reads {
    /// What our own buffer takes.
    most: u32,
    /// What the engine was told last. If it has another number somebody else told it: our buffer's.
    now: u32,
    /// Bytes asked for since the last loss or step up.
    clean: u64,
    lost_ns: u64,
}

impl Reads {
    fn sent(&mut self, node: &mut Node, asked: u64, lost: bool, now_ns: u64) {
        let told = node.config().read_window_bytes;
        if told != self.now {
            (self.most, self.now, self.clean) = (told, told, 0);
        }
        if lost {
            self.clean = 0;
            if now_ns.saturating_sub(self.lost_ns) <= ONE_LOSS_NS {
                return;
            }
            self.lost_ns = now_ns;
            // No more than was in flight can have been too much.
            let flight = u32::try_from(node.charged().1).unwrap_or(u32::MAX);
            let least = node.config().peer_window_bytes.min(self.most);
            self.now = (self.now.min(flight) / 2).max(least);
        } else {
            self.clean += asked;
            if self.now == self.most || self.clean <= u64::from(self.now) * CLEAN_WINDOWS {
                return;
            }
            self.clean = 0;
            self.now = self.now.saturating_add(self.now / 2).min(self.most);
        }
        node.set_read_window(self.now);
    }
}

#[derive(Debug)]
struct Peer {
    key: Key,
    window: u32,
    /// More is not tried.
    most: u32,
    /// Bytes since the last loss or step up.
    clean: u64,
    /// Bytes since the last loss.
    unharmed: u64,
    lost_ns: u64,
    /// Losses in a row, each within a window of the one before.
    in_a_row: u32,
}

/// What a run told about the path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Finding {
    /// Nothing new.
    None,
    /// Batches do not seem to arrive.
    BatchesAreLost,
}

impl Windows {
    /// A run of packets leaves.
    pub(crate) fn sent(&mut self, node: &mut Node, run: &Run, now_ns: u64) -> Finding {
        if run.asked > 0 {
            self.reads.sent(node, run.asked, run.reads_lost, now_ns);
        }
        let start = node.config().peer_window_bytes;
        let Some(peer) = self.peer(run.key, start) else {
            return Finding::None;
        };
        let before = peer.window;
        if run.lost {
            if now_ns.saturating_sub(peer.lost_ns) > ONE_LOSS_NS {
                peer.lost_ns = now_ns;
                peer.window = (peer.window / 2).max(start.min(peer.most));
                let soon = peer.unharmed < u64::from(start);
                peer.in_a_row = if soon { peer.in_a_row + 1 } else { 0 };
            }
            peer.clean = 0;
            peer.unharmed = 0;
        } else {
            peer.unharmed += run.bytes;
            peer.clean += run.bytes;
            if peer.clean > u64::from(peer.window) * CLEAN_WINDOWS {
                peer.clean = 0;
                peer.window = (peer.window + peer.window / 2).min(peer.most);
            }
        }
        if peer.window != before {
            let (gid, slot) = run.key;
            node.set_peer_window(gid, slot, peer.window);
        }
        if peer.in_a_row == LOSSES_IN_A_ROW {
            peer.in_a_row = 0;
            return Finding::BatchesAreLost;
        }
        Finding::None
    }

    /// What is known about a peer, if there is room for it.
    fn peer(&mut self, key: Key, start: u32) -> Option<&mut Peer> {
        if self.peers.get(self.last).is_none_or(|peer| peer.key != key) {
            self.last = match self.places.get(&key) {
                Some(&place) => place,
                None if self.peers.len() >= PEERS_MAX => return None,
                None => {
                    self.places.insert(key, self.peers.len());
                    self.peers.push(Peer::new(key, start));
                    self.peers.len() - 1
                }
            };
        }
        self.peers.get_mut(self.last)
    }

    /// The host of a peer says how large the receive buffers of its processes are, or no longer.
    pub(crate) fn tell(&mut self, node: &mut Node, key: Key, buffer_bytes: Option<u32>) {
        let start = node.config().peer_window_bytes;
        let Some(peer) = self.peer(key, start) else {
            return;
        };
        let Some(bytes) = buffer_bytes else {
            peer.most = WINDOW_MAX.max(start);
            return;
        };
        peer.most = (bytes / BUFFER_PARTS).min(WINDOW_MAX);
        // What was lost before may have been lost on the way, of which its host knows nothing.
        peer.window = if peer.lost_ns == 0 {
            peer.most
        } else {
            peer.window.min(peer.most)
        };
        node.set_peer_window(key.0, key.1, peer.window);
    }
}

impl Peer {
    fn new(key: Key, start: u32) -> Self {
        Self {
            key,
            window: start,
            most: WINDOW_MAX.max(start),
            clean: 0,
            unharmed: 0,
            lost_ns: 0,
            in_a_row: 0,
        }
    }
}

/// Packets in a row to one process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    key: Key,
    bytes: u64,
    lost: bool,
    /// Bytes that READs in it ask for.
    asked: u64,
    /// One of them is asked for again.
    reads_lost: bool,
}

impl Run {
    /// Begins with a packet; `asks`: bytes that it asks for, if it is a READ.
    pub(crate) fn new(out: &Transmit, asks: u32) -> Self {
        Self {
            key: (out.path.dgid, out.dest_qp.slot()),
            bytes: out.len as u64,
            lost: out.lost,
            asked: u64::from(asks),
            reads_lost: out.lost && asks > 0,
        }
    }

    /// Where it goes.
    pub(crate) fn destination(&self) -> std::net::IpAddr {
        self.key.0.ip()
    }

    /// Takes a packet in, or tells that it begins another run.
    pub(crate) fn takes(&mut self, out: &Transmit, asks: u32) -> bool {
        if self.key != (out.path.dgid, out.dest_qp.slot()) {
            return false;
        }
        self.bytes += out.len as u64;
        self.lost |= out.lost;
        self.asked += u64::from(asks);
        self.reads_lost |= out.lost && asks > 0;
        true
    }
}

#[cfg(test)]
mod tests {
    use rocebud_engine::NodeConfig;

    use super::*;

    fn run(bytes: u64, lost: bool) -> Run {
        Run {
            key: (Gid::from_v4([10, 0, 0, 1]), 3),
            bytes,
            lost,
            asked: 0,
            reads_lost: false,
        }
    }

    fn window(windows: &Windows) -> u32 {
        windows.peers[0].window
    }

    #[test]
    fn what_arrives_opens_the_window_and_a_loss_closes_it_again() {
        let mut node = Node::new(NodeConfig::default());
        let start = node.config().peer_window_bytes;
        let mut windows = Windows::default();
        for _ in 0..100 {
            windows.sent(&mut node, &run(1_000_000, false), 1);
        }
        assert_eq!(window(&windows), WINDOW_MAX);
        windows.sent(&mut node, &run(1000, true), ONE_LOSS_NS * 2);
        windows.sent(&mut node, &run(1000, true), ONE_LOSS_NS * 2 + 1);
        assert_eq!(window(&windows), WINDOW_MAX / 2, "one loss, not two");
        for n in 4..20 {
            windows.sent(&mut node, &run(1000, true), ONE_LOSS_NS * n * 2);
        }
        assert_eq!(window(&windows), start);
    }

    #[test]
    fn a_known_buffer_is_filled_from_the_start_and_never_overfilled() {
        let mut node = Node::new(NodeConfig::default());
        let start = node.config().peer_window_bytes;
        let key = run(0, false).key;
        for (buffer, most) in [
            (134_217_728, WINDOW_MAX),
            (212_992, start),
            (65_536, 32_768),
        ] {
            let mut windows = Windows::default();
            windows.tell(&mut node, key, Some(buffer));
            assert_eq!(window(&windows), most);
            for _ in 0..100 {
                windows.sent(&mut node, &run(1_000_000, false), 1);
            }
            assert_eq!(window(&windows), most);
            for n in 1..10 {
                windows.sent(&mut node, &run(1000, true), ONE_LOSS_NS * n * 2);
            }
            assert_eq!(window(&windows), most.min(start), "the way may lose, too");
            windows.tell(&mut node, key, Some(buffer));
            assert_eq!(
                window(&windows),
                most.min(start),
                "said again, nothing is new"
            );
            windows.tell(&mut node, key, None);
            for _ in 0..100 {
                windows.sent(&mut node, &run(1_000_000, false), 1);
            }
            assert_eq!(window(&windows), WINDOW_MAX, "learnt again");
        }
    }

    #[test]
    fn answers_that_get_lost_halve_what_reads_ask_for_and_what_comes_opens_it_again() {
        let mut node = Node::new(NodeConfig::default());
        node.set_read_window(8_000_000);
        let mut windows = Windows::default();
        let asks = |asked, reads_lost| Run {
            asked,
            reads_lost,
            ..run(100, reads_lost)
        };
        windows.sent(&mut node, &asks(16_000, false), 1);
        assert_eq!(node.config().read_window_bytes, 8_000_000);
        windows.sent(&mut node, &asks(16_000, true), ONE_LOSS_NS * 2);
        let least = node.config().peer_window_bytes;
        // nothing was in flight, so this little was too much
        assert_eq!(node.config().read_window_bytes, least);
        for n in 0..2000 {
            windows.sent(&mut node, &asks(1_000_000, false), ONE_LOSS_NS * (3 + n));
        }
        assert_eq!(node.config().read_window_bytes, 8_000_000);
        // our buffer has grown, say
        node.set_read_window(9_000_000);
        windows.sent(&mut node, &asks(1, false), ONE_LOSS_NS * 4000);
        assert_eq!(node.config().read_window_bytes, 9_000_000);
    }

    #[test]
    fn a_loss_in_every_window_speaks_against_batches_and_now_and_then_does_not() {
        let mut node = Node::new(NodeConfig::default());
        let mut windows = Windows::default();
        let mut found = |windows: &mut Windows, clean: u64| {
            (1..40).any(|n| {
                windows.sent(&mut node, &run(clean, false), n * ONE_LOSS_NS * 2);
                windows.sent(&mut node, &run(1000, true), n * ONE_LOSS_NS * 2)
                    == Finding::BatchesAreLost
            })
        };
        assert!(!found(&mut windows, 10_000_000));
        assert!(found(&mut Windows::default(), 60_000));
    }
}
