//! Keepalives: the one thing that happens while the program calls nothing. One thread for all
//! sockets, there while one of them wants it.

use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use rocebud_objects::Instant;

use super::table;

/// Keepalives are counted in seconds.
const TICK: Duration = Duration::from_secs(1);

static RUNNING: Mutex<bool> = Mutex::new(false);
static EPOCH: OnceLock<std::time::Instant> = OnceLock::new();

/// Now, since some time of this process.
pub(super) fn now() -> Instant {
    let since = EPOCH.get_or_init(std::time::Instant::now).elapsed();
    Instant(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
}

/// Makes sure that somebody looks at the clock.
pub(super) fn start() {
    let mut running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
    if *running {
        return;
    }
    let before = block_signals();
    let thread = std::thread::Builder::new().name("rb-keepalive".to_owned());
    *running = thread.spawn(run).is_ok();
    restore_signals(&before);
}

fn run() {
    loop {
        std::thread::sleep(TICK);
        let mut wanted = false;
        for socket in table::all() {
            let table::Any::Stream(socket) = socket else {
                continue;
            };
            let mut inner = socket.lock();
            if let Some(endpoint) = &mut inner.endpoint {
                endpoint.tick(now());
                wanted |= endpoint.stream.poll_timeout().is_some();
            }
        }
        let mut running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
        if !wanted {
            *running = false;
            return;
        }
    }
}

/// The program's signals are for the program's threads.
fn block_signals() -> libc::sigset_t {
    // SAFETY: a set of signals is plain bits.
    let mut all: libc::sigset_t = unsafe { core::mem::zeroed() };
    // SAFETY: as above.
    let mut before: libc::sigset_t = unsafe { core::mem::zeroed() };
    // SAFETY: a set of our own.
    unsafe { libc::sigfillset(&raw mut all) };
    // SAFETY: both sets are our own.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before) };
    before
}

fn restore_signals(before: &libc::sigset_t) {
    let none = core::ptr::null_mut();
    // SAFETY: the set that was in force; the old one is not asked for.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before, none) };
}
