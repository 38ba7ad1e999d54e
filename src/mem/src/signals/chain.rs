//! The actions behind ours, as atomics: a handler reads them at any moment, also in the middle of a
//! change, and a program may change its action from within a handler.

use std::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering};

/// Handlers that ours replaced, oldest first. More than that many different ones in one program
/// would be odd; then the newest takes the last place.
const CHAIN_MAX: usize = 16;

/// Places for actions. One that was replaced may still be read by a handler on another thread; it
/// is used again only after this many changes less those that are in the chain.
const POOL: usize = 64;

/// No place: a handler that was put in again since and thus has a later one.
const GONE: usize = usize::MAX;

/// What a program asked for: `struct sigaction` as numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Action {
    /// A function, `SIG_DFL` or `SIG_IGN`.
    pub(super) handler: usize,
    /// `SA_…`
    pub(super) flags: i32,
    /// Signals blocked while it runs, bit `signal - 1`.
    pub(super) mask: u64,
}

/// A place for an action.
#[derive(Debug)]
pub(super) struct Link {
    handler: AtomicUsize,
    flags: AtomicI32,
    mask: AtomicU64,
}

impl Link {
    const fn new() -> Self {
        Self {
            handler: AtomicUsize::new(0),
            flags: AtomicI32::new(0),
            mask: AtomicU64::new(0),
        }
    }

    /// What is in it.
    pub(super) fn action(&self) -> Action {
        Action {
            handler: self.handler.load(Ordering::Relaxed),
            flags: self.flags.load(Ordering::Relaxed),
            mask: self.mask.load(Ordering::Relaxed),
        }
    }

    /// From now on another handler, with flags and mask as they are (`SA_RESETHAND`).
    pub(super) fn reset(&self, handler: usize) {
        self.handler.store(handler, Ordering::Relaxed);
    }

    fn fill(&self, action: Action) {
        self.handler.store(action.handler, Ordering::Relaxed);
        self.flags.store(action.flags, Ordering::Relaxed);
        self.mask.store(action.mask, Ordering::Relaxed);
    }
}

/// The actions behind ours, of one signal.
#[derive(Debug)]
pub(super) struct Chain {
    len: AtomicUsize,
    /// Places in the pool.
    order: [AtomicUsize; CHAIN_MAX],
    pool: [Link; POOL],
    next: AtomicUsize,
}

impl Chain {
    pub(super) const fn new() -> Self {
        Self {
            len: AtomicUsize::new(0),
            order: [const { AtomicUsize::new(GONE) }; CHAIN_MAX],
            pool: [const { Link::new() }; POOL],
            next: AtomicUsize::new(0),
        }
    }

    /// Adds what ours has replaced or is about to. A handler that comes again leaves its old
    /// place. One at a time.
    pub(super) fn push(&self, action: Action) {
        let len = self.len.load(Ordering::Relaxed);
        for place in self.order.iter().take(len) {
            let same = |link: &Link| link.action().handler == action.handler;
            if self.at(place).is_some_and(same) {
                place.store(GONE, Ordering::Relaxed);
            }
        }
        // The newest place that is gone may as well be used again.
        let gone = |at: usize| {
            let place = self.order.get(at);
            place.is_some_and(|p| p.load(Ordering::Relaxed) == GONE)
        };
        let at = if len > 0 && (gone(len - 1) || len == CHAIN_MAX) {
            len - 1
        } else {
            len
        };
        if let Some(place) = self.order.get(at) {
            place.store(self.place(action), Ordering::Release);
            self.len.store(at + 1, Ordering::Release);
        }
    }

    /// Puts an action in the newest one's place; returns that one. From any thread or handler.
    pub(super) fn replace(&self, action: Action) -> Option<Action> {
        let place = self.places().next()?;
        let old = place.swap(self.place(action), Ordering::AcqRel);
        self.pool.get(old).map(Link::action)
    }

    /// The link to pass a fault to when `depth` newer ones already had it.
    pub(super) fn link(&self, depth: usize) -> Option<&Link> {
        self.places().nth(depth).and_then(|place| self.at(place))
    }

    /// Places in use, newest first.
    fn places(&self) -> impl Iterator<Item = &AtomicUsize> {
        let len = self.len.load(Ordering::Acquire);
        let known = self.order.iter().take(len).rev();
        known.filter(|place| place.load(Ordering::Acquire) != GONE)
    }

    fn at(&self, place: &AtomicUsize) -> Option<&Link> {
        self.pool.get(place.load(Ordering::Acquire))
    }

    /// A place in the pool that is not in the chain, with the action in it.
    fn place(&self, action: Action) -> usize {
        loop {
            let at = self.next.fetch_add(1, Ordering::Relaxed) % POOL;
            let used = self.places().any(|p| p.load(Ordering::Relaxed) == at);
            if let Some(link) = self.pool.get(at).filter(|_| !used) {
                link.fill(action);
                return at;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn action(handler: usize) -> Action {
        Action {
            handler,
            flags: 4,
            mask: handler as u64,
        }
    }

    fn handlers(chain: &Chain) -> Vec<usize> {
        (0..)
            .map_while(|depth| chain.link(depth))
            .map(|link| link.action().handler)
            .collect()
    }

    #[test]
    fn the_newest_comes_first_and_a_handler_has_one_place() {
        let chain = Chain::new();
        for handler in [1, 2, 3, 2] {
            chain.push(action(handler));
        }
        assert_eq!(handlers(&chain), [2, 3, 1]);
        for handler in 10..60 {
            chain.push(action(handler));
        }
        assert_eq!(handlers(&chain)[0], 59);
        assert!(handlers(&chain).len() <= CHAIN_MAX);
    }

    #[test]
    fn a_program_that_sets_and_restores_leaves_no_trace() {
        let chain = Chain::new();
        assert_eq!(chain.replace(action(9)), None, "nothing is there yet");
        chain.push(action(1));
        for round in 0..1000 {
            assert_eq!(chain.replace(action(2 + round)), Some(action(1)));
            assert_eq!(chain.replace(action(1)), Some(action(2 + round)));
        }
        assert_eq!(handlers(&chain), [1]);
    }
}
