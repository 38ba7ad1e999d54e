//! Shared receive queues: first in, first out, with a limit that fires once.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use rocebud_objects::{AttrMask, Misuse, PdId, RecvWr, SrqAttr, SrqInit, XrcSrq};

use crate::ready::{Index, Ready};

/// Bits of `enum ibv_srq_attr_mask`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SrqMask(pub u32);

impl SrqMask {
    /// `IBV_SRQ_MAX_WR`.
    pub const MAX_WR: u32 = 1;
    /// `IBV_SRQ_LIMIT`.
    pub const LIMIT: u32 = 2;

    const fn has(self, bit: u32) -> bool {
        self.0 & bit != 0
    }
}

impl From<AttrMask> for SrqMask {
    fn from(mask: AttrMask) -> Self {
        Self(mask.bits())
    }
}

#[derive(Debug)]
pub(crate) struct Srq {
    pub(crate) pd: PdId,
    /// Domain and completion queue, for XRC.
    pub(crate) xrc: Option<XrcSrq>,
    attr: SrqAttr,
    queue: VecDeque<RecvWr>,
    /// Queue pairs attached.
    pub(crate) users: u32,
    /// Queue pairs with packets that wait for a receive, each once.
    waiting: Vec<Index>,
}

impl Srq {
    pub(crate) fn new(init: SrqInit) -> Self {
        Self {
            pd: init.pd,
            xrc: init.xrc,
            attr: init.attr,
            queue: VecDeque::with_capacity(init.attr.max_wr.min(4096) as usize),
            users: 0,
            waiting: Vec::new(),
        }
    }

    pub(crate) fn query(&self) -> SrqAttr {
        self.attr
    }

    /// Refuses without change, or applies all of it.
    pub(crate) fn modify(&mut self, attr: &SrqAttr, mask: SrqMask) -> Result<(), Misuse> {
        let max_wr = if mask.has(SrqMask::MAX_WR) {
            attr.max_wr
        } else {
            self.attr.max_wr
        };
        if mask.0 & !(SrqMask::MAX_WR | SrqMask::LIMIT) != 0 {
            return Err(Misuse::invalid("modify_srq: unknown bits in the mask"));
        }
        if mask.has(SrqMask::MAX_WR) && (max_wr == 0 || (max_wr as usize) < self.queue.len()) {
            return Err(Misuse::invalid(
                "modify_srq: max_wr is below what is posted",
            ));
        }
        if mask.has(SrqMask::LIMIT) && attr.srq_limit > max_wr {
            return Err(Misuse::invalid("modify_srq: srq_limit is above max_wr"));
        }
        self.attr.max_wr = max_wr;
        if mask.has(SrqMask::LIMIT) {
            self.attr.srq_limit = attr.srq_limit;
        }
        Ok(())
    }

    pub(crate) fn post(&mut self, wr: RecvWr) -> Result<(), Misuse> {
        if wr.sges.len() > self.attr.max_sge as usize {
            return Err(Misuse::invalid("post_srq_recv: more SGEs than max_sge"));
        }
        if self.queue.len() >= self.attr.max_wr as usize {
            return Err(Misuse::new(
                rocebud_objects::Errno::ENOMEM,
                "post_srq_recv: the queue holds max_wr receives; wait for completions",
            ));
        }
        self.queue.push_back(wr);
        Ok(())
    }

    /// Takes the oldest receive; true = the limit was crossed and has fired.
    pub(crate) fn take(&mut self) -> Option<(RecvWr, bool)> {
        let wr = self.queue.pop_front()?;
        let fired = self.attr.srq_limit as usize > self.queue.len();
        if fired {
            self.attr.srq_limit = 0;
        }
        Some((wr, fired))
    }

    /// A receive that was taken and not used, because its queue pair went away.
    pub(crate) fn give_back(&mut self, wr: RecvWr) {
        self.queue.push_front(wr);
    }

    /// `index` is to be tried when a receive is posted.
    pub(crate) fn wait(&mut self, index: Index) {
        if !self.waiting.contains(&index) {
            self.waiting.push(index);
        }
    }

    /// Lets who waits try.
    pub(crate) fn wake(&mut self, ready: &mut Ready) {
        for index in self.waiting.drain(..) {
            ready.push(index);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn srq(posted: u32, limit: u32) -> Srq {
        let attr = SrqAttr {
            max_wr: 16,
            max_sge: 1,
            srq_limit: 0,
        };
        let mut srq = Srq::new(SrqInit {
            pd: PdId(1),
            attr,
            xrc: None,
        });
        for wr_id in 0..u64::from(posted) {
            srq.post(RecvWr {
                wr_id,
                ..RecvWr::default()
            })
            .unwrap();
        }
        srq.modify(
            &SrqAttr {
                srq_limit: limit,
                ..attr
            },
            SrqMask(SrqMask::LIMIT),
        )
        .unwrap();
        srq
    }

    fn fired(srq: &mut Srq, takes: usize) -> usize {
        (0..takes)
            .filter(|_| srq.take().is_some_and(|(_, fired)| fired))
            .count()
    }

    #[test]
    fn the_limit_fires_once_when_the_count_falls_below_it() {
        let mut srq = srq(16, 10);
        assert_eq!(fired(&mut srq, 6), 0, "ten left is not below ten");
        assert_eq!(fired(&mut srq, 1), 1);
        assert_eq!(srq.query().srq_limit, 0);
        assert_eq!(fired(&mut srq, 5), 0);
        srq.modify(
            &SrqAttr {
                srq_limit: 8,
                ..srq.query()
            },
            SrqMask(SrqMask::LIMIT),
        )
        .unwrap();
        assert_eq!(
            fired(&mut srq, 1),
            1,
            "armed above the count: at the next take"
        );
    }

    #[test]
    fn a_limit_above_the_size_is_refused_and_changes_nothing() {
        let mut srq = srq(3, 2);
        let attr = SrqAttr {
            max_wr: 2,
            max_sge: 1,
            srq_limit: 17,
        };
        assert!(srq.modify(&attr, SrqMask(SrqMask::LIMIT)).is_err());
        assert!(
            srq.modify(&attr, SrqMask(SrqMask::MAX_WR)).is_err(),
            "three are posted"
        );
        assert_eq!(srq.query().srq_limit, 2);
        assert_eq!(srq.query().max_wr, 16);
    }
}
