//! A line for people when a peer does not answer: what to look at. Once for each peer, since a
//! program may have thousands of queue pairs towards it.

use std::net::IpAddr;
use std::sync::Mutex;

use rocebud_engine::Reason;
use rocebud_objects::{Note, NoteKind};
use rocebud_wire::Qpn;

use crate::log::{self, Level};
use crate::sync::try_lock;

/// Peers that are told of in the life of a process; after so many, one more line helps nobody.
const PEERS_MAX: usize = 8;

static TOLD: Mutex<Vec<IpAddr>> = Mutex::new(Vec::new());

/// The note says that all retries passed without any answer.
#[inline]
pub(crate) fn is_meant(note: &Note) -> bool {
    note.kind == NoteKind::ErrorCompletion && note.arg & 0xffff == Reason::RetryExceeded as u32
}

/// Tells of a peer that was not told of before.
#[cold]
pub(crate) fn tell(qpn: Qpn, peer: IpAddr) {
    // Whoever holds the lock tells of a peer itself, or is a thread that a fork left behind.
    let Some(mut told) = try_lock(&TOLD) else {
        return;
    };
    if is_news(&mut told, peer) {
        log::line(
            Level::Warn,
            format_args!(
                "queue pair {qpn}: no answer from {peer} after all retries. Its program has ended \
                 or its queue pair is not ready, or UDP port 4791 is blocked (a firewall here, \
                 there or on the way), or the path carries less than the path MTU"
            ),
        );
    }
}

fn is_news(told: &mut Vec<IpAddr>, peer: IpAddr) -> bool {
    if told.len() >= PEERS_MAX || told.contains(&peer) {
        return false;
    }
    told.push(peer);
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_peer_is_told_of_once_and_not_more_than_a_few() {
        let mut told = Vec::new();
        let peer = |n: u8| IpAddr::from([10, 0, 0, n]);
        assert!(is_news(&mut told, peer(0)));
        assert!(!is_news(&mut told, peer(0)));
        let more = (0..100).filter(|n| is_news(&mut told, peer(*n))).count();
        assert_eq!(more, PEERS_MAX - 1);
    }
}
