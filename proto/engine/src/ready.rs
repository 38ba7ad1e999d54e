//! Queue pairs that may have something to send, in turn.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// Position of a queue pair in the node's slab.
pub(crate) type Index = u32;

/// A queue of queue pairs without duplicates.
#[derive(Debug, Default)]
pub(crate) struct Ready {
    queue: VecDeque<Index>,
    queued: Vec<bool>,
}

impl Ready {
    /// Puts `index` last, unless it waits already.
    pub(crate) fn push(&mut self, index: Index) {
        let at = index as usize;
        if self.queued.len() <= at {
            self.queued.resize(at + 1, false);
        }
        if let Some(flag) = self.queued.get_mut(at)
            && !core::mem::replace(flag, true)
        {
            self.queue.push_back(index);
        }
    }

    pub(crate) fn front(&self) -> Option<Index> {
        self.queue.front().copied()
    }

    /// The front had its turn and has more to say.
    pub(crate) fn rotate(&mut self) {
        if self.queue.len() > 1 {
            self.queue.rotate_left(1);
        }
    }

    /// The front has nothing more to say.
    pub(crate) fn pop(&mut self) {
        if let Some(index) = self.queue.pop_front()
            && let Some(flag) = self.queued.get_mut(index as usize)
        {
            *flag = false;
        }
    }

    /// `index` is in it.
    pub(crate) fn has(&self, index: Index) -> bool {
        self.queued.get(index as usize) == Some(&true)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_pair_waits_once_and_turns_rotate() {
        let mut ready = Ready::default();
        for index in [3, 1, 3] {
            ready.push(index);
        }
        assert_eq!(ready.front(), Some(3));
        ready.rotate();
        assert_eq!(ready.front(), Some(1));
        ready.pop();
        ready.pop();
        assert!(ready.is_empty());
        ready.push(3);
        assert_eq!(ready.front(), Some(3));
    }
}
