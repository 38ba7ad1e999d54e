//! The end of a run: everything is done, quiet and as the models say.

use rocebud_objects::QpState;

use super::{Report, World, refused};
use crate::check::sends::Outcome;
use crate::setup;
use crate::violation::{Checker, Verdict, Violation};

impl World {
    /// Nothing is left to happen: judge what is there, then take everything down.
    pub(crate) fn finish(&mut self) -> Verdict<Report> {
        self.check_quiet()?;
        self.check_psns()?;
        self.check_limits()?;
        self.check_memory()?;
        self.tear_down()?;
        self.report.stats = self.fabric.stats();
        self.report.elapsed_ns = self.fabric.now().0;
        Ok(self.report)
    }

    fn check_quiet(&mut self) -> Verdict {
        for (id, host) in self.fabric.hosts() {
            if !host.node.quiescent() {
                let what = format!("h{}: nothing is left to happen, but not quiescent", id.0);
                return Err(Violation::new(Checker::Quiet, what));
            }
        }
        for index in 0..self.ends.len() {
            let end = &self.ends[index];
            let stuck = self.has_more(end)
                || end.draining
                || end.sends.outstanding().iter().any(|p| p.signaled)
                || end.kind.is_reliable() && !end.inbox.is_empty();
            if stuck {
                let what = format!(
                    "{}: stuck: {} of {} posted, {} outstanding, {} messages not received, draining {}, first {:?}",
                    end.qpn,
                    end.posted,
                    end.plan.budget,
                    end.sends.outstanding().len(),
                    end.inbox.len(),
                    end.draining,
                    end.sends.outstanding().front(),
                );
                return Err(Violation::new(Checker::Quiet, what));
            }
        }
        Ok(())
    }

    /// What the engine says of its PSNs is what passed on the wire.
    fn check_psns(&self) -> Verdict {
        for (index, end) in self.ends.iter().enumerate() {
            let Some(next) = self.wire.next_psn(end.qpn) else {
                continue;
            };
            let peer = &self.ends[end.peer];
            let own = self.query(index)?.sq_psn;
            let expected = self.query(end.peer)?.rq_psn;
            if own != next || end.kind.is_reliable() && expected != next {
                let what = format!(
                    "{}: sq_psn {own}, rq_psn of {} {expected}, on the wire {next}",
                    end.qpn, peer.qpn
                );
                return Err(Violation::new(Checker::Wire, what));
            }
        }
        Ok(())
    }

    fn query(&self, index: usize) -> Verdict<rocebud_objects::QpAttr> {
        let end = &self.ends[index];
        let node = &self.fabric.host(end.host).node;
        Ok(node.query_qp(end.qpn).map_err(refused)?.0)
    }

    fn check_limits(&self) -> Verdict {
        for pool in &self.pools {
            let Some(srq) = pool.srq else { continue };
            let node = &self.fabric.host(pool.host).node;
            let limit = node.query_srq(srq).map_err(refused)?.srq_limit;
            if limit != pool.limit {
                let what = format!("{srq:?}: limit is {limit}, not {}", pool.limit);
                return Err(Violation::new(Checker::Events, what));
            }
        }
        Ok(())
    }

    fn check_memory(&mut self) -> Verdict {
        self.check_canaries()?;
        let quiet = self.plan.faults.is_quiet();
        for index in 0..self.ends.len() {
            for posted in self.ends[index].sends.drain()? {
                self.ended(index, &posted, Outcome::Done)?;
            }
            // Without faults unreliable writes land too, unless one with immediate found no receive.
            let peer = self.ends[index].peer;
            let prompt = self.pools[self.ends[peer].pool].plan.late_percent == 0;
            let untroubled = |l: usize| !self.links[l].ever_troubled;
            if quiet && prompt && self.ends[index].link.is_some_and(untroubled) {
                let seq = self.ends[index].seq;
                self.ends[peer].target.retire(seq);
            }
        }
        for index in 0..self.ends.len() {
            self.settle_end(index)?;
        }
        (0..self.pools.len()).try_for_each(|pool| self.check_pool(pool))?;
        for (at, word) in self.words.iter().enumerate() {
            let memory = &self.fabric.host(word.host).env.memory;
            let mut last = [0; 8];
            last.copy_from_slice(memory.peek(word.addr, 8));
            let what = format!("word {at} of h{}", word.host.0);
            word.ledger.check(&what, u64::from_ne_bytes(last))?;
        }
        Ok(())
    }

    /// All queue pairs to ERR: receives come back, once and in order; then nothing moves.
    fn tear_down(&mut self) -> Verdict {
        self.closing = true;
        let frames = self.fabric.stats().frames;
        for index in 0..self.ends.len() {
            let (host, qpn) = (self.ends[index].host, self.ends[index].qpn);
            setup::go(&mut self.fabric, host, qpn, QpState::Err).map_err(refused)?;
            self.poll_host(host)?;
            self.check_flushed_end(index)?;
        }
        while self.fabric.step(&mut self.wire) != rocebud_fabric::Step::Idle {
            self.poll_all()?;
            self.watch()?;
        }
        if self.fabric.stats().frames != frames {
            let what = "frames leave a queue pair in error";
            return Err(Violation::new(Checker::Wire, what));
        }
        for index in 0..self.ends.len() {
            let (host, qpn) = (self.ends[index].host, self.ends[index].qpn);
            let host = self.fabric.host_mut(host);
            host.node.destroy_qp(qpn, &mut host.env).map_err(refused)?;
        }
        self.poll_all()?;
        self.check_canaries()
    }
}
