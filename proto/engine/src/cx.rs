//! What all queue pairs of a node share, and the context that every handler gets.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use rocebud_objects::{AsyncEvent, Counter, CqId, EventKind, Instant, SrqId, Wc, WcStatus};

use crate::config::NodeConfig;
use crate::env::Env;
use crate::peers::{Peers, Window};
use crate::ready::Ready;
use crate::srq::Srq;
use crate::timers::Timers;

#[derive(Debug, Default)]
pub(crate) struct Core {
    pub(crate) cfg: NodeConfig,
    pub(crate) srqs: BTreeMap<SrqId, Srq>,
    pub(crate) peers: Peers,
    /// Bytes of READ responses asked for: our own receive buffer.
    pub(crate) reads: Window,
    pub(crate) timers: Timers,
    /// When queue pairs with a rate limit may send on.
    pub(crate) paced: Timers,
    /// Bytes of packets that wait for receives.
    pub(crate) parked_bytes: u64,
    pub(crate) ready: Ready,
    /// Queue pairs that the world has refused room; see `Env::has_room`.
    pub(crate) held: Ready,
    /// Queues that overran and whose queue pairs have not been told yet.
    pub(crate) failed_cqs: Vec<CqId>,
    /// Queues that overran.
    pub(crate) dead_cqs: Vec<CqId>,
    #[cfg(feature = "planted")]
    pub(crate) planted: Option<crate::config::Planted>,
}

/// Time, world and shared state, for one call.
pub(crate) struct Cx<'a, E> {
    pub(crate) now: Instant,
    pub(crate) env: &'a mut E,
    pub(crate) core: &'a mut Core,
}

impl<E: Env> Cx<'_, E> {
    pub(crate) fn count(&mut self, counter: Counter) {
        self.env.count(counter, 1);
    }

    /// Delivers a completion. An overrun takes the attached queue pairs down at the end of the
    /// call, not in the middle of a handler.
    pub(crate) fn complete(&mut self, cq: CqId, wc: Wc, solicited: bool) {
        if self.env.complete(cq, wc, solicited).is_ok() {
            return;
        }
        let first = !self.core.dead_cqs.contains(&cq);
        // A queue pair may come to a queue that overran before. What is flushed tells nothing new.
        let news = first || wc.status != WcStatus::WrFlushErr;
        if news && !self.core.failed_cqs.contains(&cq) {
            self.core.failed_cqs.push(cq);
        }
        if first {
            self.core.dead_cqs.push(cq);
            self.env.event(AsyncEvent::Cq {
                cq,
                kind: EventKind::CqErr,
            });
        }
    }

    #[cfg(feature = "planted")]
    pub(crate) fn planted(&self, bug: crate::config::Planted) -> bool {
        self.core.planted == Some(bug)
    }
}
