//! Critical sections that C opens with one call and closes with another.

use std::sync::{Condvar, Mutex, PoisonError};

/// One thread at a time between [`Turn::take`] and [`Turn::give`]; the others sleep.
#[derive(Debug, Default)]
pub(crate) struct Turn {
    /// The program promised that one thread at most comes here.
    alone: bool,
    taken: Mutex<bool>,
    free: Condvar,
}

impl Turn {
    /// With `alone`, no thread ever waits.
    pub(crate) fn new(alone: bool) -> Self {
        Self {
            alone,
            ..Self::default()
        }
    }

    /// Waits for the turn.
    #[inline]
    pub(crate) fn take(&self) {
        if self.alone {
            return;
        }
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        while *taken {
            taken = self
                .free
                .wait(taken)
                .unwrap_or_else(PoisonError::into_inner);
        }
        *taken = true;
    }

    /// Ends it. Without a turn taken, nothing happens.
    #[inline]
    pub(crate) fn give(&self) {
        if self.alone {
            return;
        }
        *self.taken.lock().unwrap_or_else(PoisonError::into_inner) = false;
        self.free.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::Turn;

    #[test]
    fn one_thread_at_a_time() {
        let turn = Arc::new(Turn::new(false));
        let inside = Arc::new(AtomicU32::new(0));
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let (turn, inside) = (Arc::clone(&turn), Arc::clone(&inside));
                std::thread::spawn(move || {
                    for _ in 0..1000 {
                        turn.take();
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                        std::thread::yield_now();
                        inside.fetch_sub(1, Ordering::SeqCst);
                        turn.give();
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
    }

    #[test]
    fn alone_nobody_waits_and_an_end_without_a_beginning_is_nothing() {
        let turn = Turn::new(true);
        turn.take();
        turn.take();
        let turn = Turn::new(false);
        turn.give();
        turn.take();
    }
}
