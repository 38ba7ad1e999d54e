//! What a program that ends has still to say.
//!
//! It may end with its last receive just taken: the ACK must not die with it, or the peer reports a
//! failure that never was. A program that polls leaves that ACK to its next poll, which never comes.
//!
//! Where `exit` ends it the library says itself what is due. `_exit`, `_Exit` and `quick_exit` may be
//! called from a handler that interrupted anything, even the holder of a lock, so there the progress
//! thread is asked, and waited for: not long, since it may need the very lock that is held below the handler.
//! A process that ends by a signal or by a bare system call says nothing.

use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::runtime::Runtime;
use crate::sync::{lock, try_lock};
use crate::{current, sys};

/// How often a program that exits looks whether the engine is free, and the pauses: 100 ms.
const EXIT_TRIES: usize = 1000;
const EXIT_PAUSE: std::time::Duration = std::time::Duration::from_micros(100);

/// How long whoever must not wait for a lock waits for the progress thread to begin, and to be done: it
/// hands on what belongs to others, which has a bound of two seconds of its own.
const BEGIN_NS: u64 = 100_000_000;
const DONE_NS: u64 = 2_500_000_000;

/// The process that the runtime is of. A child made by `vfork` shares all memory, this word too.
static OWNER: AtomicU32 = AtomicU32::new(0);

/// How far the progress thread is with a wish that what is due be said.
#[derive(Debug, Default)]
pub(crate) struct Farewell(AtomicU32);

const ASKED: u32 = 1;
const BEGUN: u32 = 2;
const SAID: u32 = 3;

impl Farewell {
    /// The progress thread woke up. Says what is due if somebody waits for that.
    pub(crate) fn attend(&self, runtime: &Runtime) {
        if self.0.load(Ordering::SeqCst) != ASKED {
            return;
        }
        let mut core = lock(&runtime.core);
        self.0.store(BEGUN, Ordering::SeqCst);
        core.say_the_last(&runtime.shared);
        drop(core);
        self.0.store(SAID, Ordering::SeqCst);
        sys::futex_wake(&self.0);
    }

    /// Asks the progress thread, and waits. Async-signal-safe: no lock, no allocation, and no cancellation point.
    fn ask(&self, runtime: &Runtime) {
        // Two threads may end the process at once: what is said for one is said for both.
        self.0.store(ASKED, Ordering::SeqCst);
        runtime.progress.wake();
        let start = sys::monotonic_ns();
        loop {
            let word = self.0.load(Ordering::SeqCst);
            let most = match word {
                SAID => return,
                BEGUN => DONE_NS,
                _ => BEGIN_NS,
            };
            let passed = sys::monotonic_ns().saturating_sub(start);
            if passed >= most {
                return;
            }
            // Nobody wakes us when it begins: look again in time for that.
            sys::futex_wait(&self.0, word, BEGIN_NS.min(most - passed));
        }
    }
}

/// From now on what is due is said when the process ends.
pub(crate) fn prepare() {
    static ONCE: Once = Once::new();
    OWNER.store(std::process::id(), Ordering::Release);
    ONCE.call_once(|| {
        sys::at_exit(say_what_is_due);
        sys::at_quick_exit(say_from_anywhere);
        sys::at_bare_exit(say_from_anywhere);
    });
}

/// At `exit`. Waits a little for a thread that is just at it, and not for ever, since threads may be
/// stopped anywhere (this one too: in a signal handler).
extern "C" fn say_what_is_due() {
    let Some(runtime) = current::get() else {
        return;
    };
    for _ in 0..EXIT_TRIES {
        if let Some(mut core) = try_lock(&runtime.core) {
            core.say_the_last(&runtime.shared);
            return;
        }
        std::thread::sleep(EXIT_PAUSE);
    }
}

/// At the other ways to end, from any thread, and from handlers of signals.
extern "C" fn say_from_anywhere() {
    if OWNER.load(Ordering::Acquire) != std::process::id() {
        return;
    }
    if let Some(runtime) = current::get()
        && !runtime.is_dead()
    {
        runtime.farewell.ask(&runtime);
    }
}
