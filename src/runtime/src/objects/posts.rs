//! Work requests.

use rocebud_objects::{Instant, Misuse, RecvWr, SendWr};
use rocebud_wire::Qpn;

use super::PostError;
use crate::core::Core;
use crate::runtime::Runtime;
use crate::sync::lock;

/// Posts up to this many bytes may wait for a batch: one by one they would pay more for their system
/// calls than for their bytes.
const SMALL_POST_BYTES: u64 = 8192;

impl Runtime {
    /// `ibv_post_send`: requests are posted together and leave together.
    ///
    /// # Errors
    /// EINVAL, ENOMEM, with the position.
    pub fn post_send(
        &self,
        qpn: Qpn,
        wrs: impl IntoIterator<Item = Result<SendWr, Misuse>>,
    ) -> Result<(), PostError> {
        let mut core = lock(&self.core);
        if core.raw.has(qpn) {
            return self.post_send_raw(&mut core, qpn, wrs);
        }
        let mut refused = None;
        let mut bytes = 0;
        let now;
        {
            let (node, mut world) = core.split(&self.shared);
            now = world.now;
            self.progress.posted(now.0);
            for (posted, wr) in wrs.into_iter().enumerate() {
                let done = wr.and_then(|wr| {
                    bytes += wr.payload.len();
                    node.post_send(world.now, qpn, wr, &mut world)
                });
                if let Err(misuse) = done {
                    refused = Some(PostError { posted, misuse });
                    break;
                }
            }
        }
        self.send_soon(&mut core, bytes, now);
        refused.map_or(Ok(()), Err)
    }

    /// `ibv_wr_complete`: posts all requests, taking them out of `wrs`, or, when one is refused,
    /// none.
    ///
    /// # Errors
    /// EINVAL, ENOMEM.
    pub fn post_sends(&self, qpn: Qpn, wrs: &mut Vec<SendWr>) -> Result<(), Misuse> {
        let bytes = wrs.iter().map(|wr| wr.payload.len()).sum();
        let mut core = lock(&self.core);
        if core.raw.has(qpn) {
            return self.post_sends_raw(&mut core, qpn, wrs);
        }
        let (node, mut world) = core.split(&self.shared);
        let now = world.now;
        self.progress.posted(now.0);
        node.post_sends(now, qpn, wrs, &mut world)?;
        self.send_soon(&mut core, bytes, now);
        Ok(())
    }

    /// Sends what was posted, `bytes` in all, unless it may wait for more. Waiting needs somebody
    /// who sends in the end: the program's next call, or the progress thread.
    fn send_soon(&self, core: &mut Core, bytes: u64, now: Instant) {
        core.later.called();
        let waits = bytes <= SMALL_POST_BYTES && !self.progress.is_away() && core.may_wait(now.0);
        if waits {
            return;
        }
        if core.transmit_at(&self.shared, || now) != 0 && core.has_more() {
            self.kick(core);
        } else {
            self.progress.rearm(core);
        }
    }

    /// `ibv_post_recv`.
    ///
    /// # Errors
    /// EINVAL, ENOMEM, with the position.
    pub fn post_recv(
        &self,
        qpn: Qpn,
        wrs: impl IntoIterator<Item = Result<RecvWr, Misuse>>,
    ) -> Result<(), PostError> {
        let mut core = lock(&self.core);
        if core.raw.has(qpn) {
            return self.post_recv_raw(&mut core, qpn, wrs);
        }
        let (node, mut world) = core.split_untimed(&self.shared);
        let done = wrs.into_iter().enumerate().try_for_each(|(posted, wr)| {
            wr.and_then(|wr| node.post_recv(world.now, qpn, wr, &mut world))
                .map_err(|misuse| PostError { posted, misuse })
        });
        // Receives flushed at once may have made an event that is held back.
        if core.dir.due_ns().is_some() {
            self.progress.rearm(&core);
        }
        done
    }
}
