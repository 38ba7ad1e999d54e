//! How much a peer process takes at once, learnt from what gets lost.
//!
//! The buffer that overflows is the peer's, its size is not on the wire, and the engine starts
//! from what an unprivileged socket has by default. A peer that loses nothing is trusted with
//! more, step by step; one that loses something gets less at once, but never less than the start.
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
    peers: HashMap<Key, Peer>,
}

#[derive(Debug)]
struct Peer {
    window: u32,
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
        let start = node.config().peer_window_bytes;
        if self.peers.len() >= PEERS_MAX && !self.peers.contains_key(&run.key) {
            return Finding::None;
        }
        let peer = self.peers.entry(run.key).or_insert(Peer {
            window: start,
            clean: 0,
            unharmed: 0,
            lost_ns: 0,
            in_a_row: 0,
        });
        let before = peer.window;
        if run.lost {
            if now_ns.saturating_sub(peer.lost_ns) > ONE_LOSS_NS {
                peer.lost_ns = now_ns;
                peer.window = (peer.window / 2).max(start);
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
                peer.window = (peer.window + peer.window / 2).min(WINDOW_MAX.max(start));
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
}

/// Packets in a row to one process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    key: Key,
    bytes: u64,
    lost: bool,
}

impl Run {
    pub(crate) fn new(out: &Transmit) -> Self {
        Self {
            key: (out.path.dgid, out.dest_qp.slot()),
            bytes: out.len as u64,
            lost: out.lost,
        }
    }

    /// Where it goes.
    pub(crate) fn destination(&self) -> std::net::IpAddr {
        self.key.0.ip()
    }

    /// Takes a packet in, or tells that it begins another run.
    pub(crate) fn takes(&mut self, out: &Transmit) -> bool {
        if self.key != (out.path.dgid, out.dest_qp.slot()) {
            return false;
        }
        self.bytes += out.len as u64;
        self.lost |= out.lost;
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
        }
    }

    fn window(windows: &Windows) -> u32 {
        windows.peers.values().next().unwrap().window
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
