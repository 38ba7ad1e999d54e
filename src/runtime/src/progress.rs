//! The progress thread: one-sided operations, timers and sleepers.
//!
//! While an application thread polls, it runs the engine itself, and a second thread would only
//! fight it for the lock and the core. So the thread *watches*: it sleeps in slices with the
//! sockets out of its sight, and takes over when a slice passes without a poll. It *stands by* when
//! nobody polls: it sleeps until a socket is readable.
//!
//! While it watches, or is awake, something may be left to the program's next call: in the end the
//! thread finds it. Before it goes *away*, standing by for as long as nothing happens, it looks.
//!
//! A program that polls, gets what it wanted, and then spins on memory (as `ib_write_lat` does)
//! would lose a slice each time. It is recognised by packets that waited through a slice without a
//! poll: then the thread stands by for a while whatever the program polls, longer each time it
//! turns out right.

use std::os::fd::{AsFd, AsRawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use crate::core::{Core, now};
use crate::crowd::{Crowd, Manner, SLEEP_NS};
use crate::later::Bet;
use crate::log::{self, Level};
use crate::lookout::{Lookout, Post};
use crate::runtime::{ClosedRings, Runtime, Sockets, as_bits};
use crate::sync::{lock, try_lock};
use crate::sys;

/// A slice of watching, at first. Short enough that a program that stopped polling does not wait
/// long.
const SLICE_MIN_NS: u64 = 90_000;

/// Each wake-up costs a polling program several microseconds, so slices grow while it polls on: up
/// to this part of the time that it has polled, and no longer than this.
const SLICE_PART: u64 = 8;
const SLICE_MAX_NS: u64 = 1_000_000;

/// A poll that found nothing is followed by the next within this time if the program spins.
const SPINNING_NS: u64 = 50_000;

/// What a program that spins right now is given to take its packets itself.
const GRACE_NS: u64 = 10_000;

/// Slices without a poll that a program in the middle of polling is waited for: it was descheduled
/// and will be back.
const IDLE_SLICES_MAX: u32 = 32;

/// What a missed slice weighs against polled ones, and how much is too much: a program that spins
/// on memory misses every second slice, a descheduled one misses once in many.
const MISS: u32 = 4;
const MISSES_MAX: u32 = 10;

/// What a program that posts itself gets to answer a message before its ACK leaves alone.
const ANSWER_NS: u64 = 20_000;

/// Where it did not, so many messages are acknowledged at once. Few: while ACKs leave alone, each hop
/// costs the wake-up of a thread.
const ANSWERS_OFF_MIN: u32 = 2;
const ANSWERS_OFF_MAX: u32 = 64;

/// A program that slept this short a time ago, waiting for an event, will sleep again: there is no watching
/// it, as it would have to wake the thread each time that it does.
const SLEEPY_NS: u64 = 1_000_000;

/// A program that posted within this time may answer.
const POSTS_NS: u64 = 1_000_000;

/// Bounds of standing by in spite of polls.
const STAND_BY_MIN_NS: u64 = 2_000_000;
const STAND_BY_MAX_NS: u64 = 200_000_000;

/// Needless wake-ups and waits in a row that end standing by in spite of polls.
const NEEDLESS_MAX: u32 = 8;

/// How long the thread rests beside a lookout, at first and at most, before it sees whether packets wait
/// all the same.
const REST_MIN_NS: u64 = 50_000_000;
const REST_MAX_NS: u64 = 400_000_000;

/// Internal errors after which the runtime gives up.
const PANICS_MAX: u32 = 10;

/// No timer is armed.
const NEVER: u64 = u64::MAX;

/// What application threads tell the thread, and how they wake it.
#[derive(Debug)]
pub(crate) struct Progress {
    /// When an application last polled in vain, or posted.
    last_call_ns: AtomicU64,
    /// The last poll found something: the program may do something else now.
    satisfied: AtomicBool,
    /// Polls in vain, and posts.
    calls: AtomicU64,
    /// Who else wants the core of a polling thread.
    crowd: Crowd,
    /// Application threads that sleep on the sockets in the middle of polling.
    dozing: AtomicU32,
    /// Wakes them when somebody else took what they wait for.
    rouse: std::os::fd::OwnedFd,
    /// Application threads that sleep in an event call.
    sleepers: AtomicU32,
    /// The last thing that the application did was to poll an armed queue in vain: it may sleep on the
    /// channel's descriptor by means of its own.
    outside: AtomicBool,
    /// When one last slept, or may have.
    last_sleep_ns: AtomicU64,
    /// The application thread that sleeps on the sockets until its own work completes.
    pub(crate) lookout: Lookout,
    /// When an application last posted.
    last_post_ns: AtomicU64,
    /// The thread is in a slice.
    watching: AtomicBool,
    /// The thread sleeps until something happens. Set with the engine's lock held.
    away: AtomicBool,
    /// It was asked to come and watch.
    called: AtomicBool,
    /// For when the timer is armed. Changed by the holder of the engine's lock.
    armed_ns: AtomicU64,
    timer: std::os::fd::OwnedFd,
    wake: std::os::fd::OwnedFd,
}

impl Progress {
    pub(crate) fn new() -> std::io::Result<Self> {
        Ok(Self {
            last_call_ns: AtomicU64::new(0),
            satisfied: AtomicBool::new(true),
            calls: AtomicU64::new(0),
            crowd: Crowd::default(),
            dozing: AtomicU32::new(0),
            rouse: sys::wake_event()?,
            sleepers: AtomicU32::new(0),
            outside: AtomicBool::new(false),
            last_sleep_ns: AtomicU64::new(0),
            lookout: Lookout::default(),
            last_post_ns: AtomicU64::new(0),
            watching: AtomicBool::new(false),
            away: AtomicBool::new(false),
            called: AtomicBool::new(false),
            armed_ns: AtomicU64::new(NEVER),
            timer: sys::timer()?,
            wake: sys::wake_event()?,
        })
    }

    /// Descriptors that children must not keep.
    pub(crate) fn fds(&self) -> [i32; 3] {
        [&self.timer, &self.wake, &self.rouse].map(AsRawFd::as_raw_fd)
    }

    /// A descriptor whose poll ends at once, for who must not sleep.
    pub(crate) fn always_ready(&self) -> libc::pollfd {
        // It can be added to.
        libc::pollfd {
            events: libc::POLLOUT,
            ..sys::poll_fd(self.wake.as_raw_fd())
        }
    }

    /// An application polled and found nothing, in an `armed` queue or another. Returns whether it spins:
    /// it was here a moment ago.
    #[inline]
    pub(crate) fn polled_in_vain(&self, now_ns: u64, armed: bool) -> bool {
        if self.outside.load(Ordering::Relaxed) != armed {
            self.goes_outside(armed, now_ns);
        }
        let last = self.last_call_ns.load(Ordering::Relaxed);
        self.last_call_ns.store(now_ns, Ordering::Relaxed);
        // Plain loads and stores: losing a count to another thread costs nothing.
        let calls = self.calls.load(Ordering::Relaxed);
        self.calls.store(calls.wrapping_add(1), Ordering::Relaxed);
        if self.satisfied.load(Ordering::Relaxed) {
            self.satisfied.store(false, Ordering::Relaxed);
        }
        now_ns.saturating_sub(last) < SPINNING_NS
    }

    #[cold]
    fn goes_outside(&self, it_does: bool, now_ns: u64) {
        self.outside.store(it_does, Ordering::SeqCst);
        self.last_sleep_ns.store(now_ns, Ordering::Relaxed);
        if it_does && self.watching.load(Ordering::SeqCst) {
            self.wake();
        }
    }

    /// An application posts a request: it is about, and will poll.
    #[inline]
    pub(crate) fn posted(&self, now_ns: u64) {
        if self.outside.load(Ordering::Relaxed) {
            self.goes_outside(false, now_ns);
        }
        self.last_call_ns.store(now_ns, Ordering::Relaxed);
        self.last_post_ns.store(now_ns, Ordering::Relaxed);
        let calls = self.calls.load(Ordering::Relaxed);
        self.calls.store(calls.wrapping_add(1), Ordering::Relaxed);
    }

    /// Ends a poll in vain on a machine with few cores: see [`crate::crowd`]. True: nobody gets the
    /// core unless the caller sleeps, by [`Progress::doze`].
    #[inline]
    pub(crate) fn give_way(&self, now_ns: u64) -> bool {
        match self.crowd.manner(now_ns) {
            Manner::Spin => false,
            Manner::Sleep => true,
            Manner::Yield => {
                let before = sys::monotonic_ns();
                sys::yield_now();
                let after = sys::monotonic_ns();
                self.crowd.yielded(after.saturating_sub(before), after);
                false
            }
        }
    }

    /// Sleeps for a moment, until a packet arrives. `done` = there is no need to any more.
    #[cold]
    pub(crate) fn doze(&self, sockets: impl FnOnce() -> Sockets, done: impl FnOnce() -> bool) {
        let mut fds = vec![sys::poll_fd(self.rouse.as_raw_fd())];
        let sockets = sockets();
        fds.extend(sockets.receive.iter().map(|fd| sys::poll_fd(*fd)));
        self.dozing.fetch_add(1, Ordering::SeqCst);
        let rings = sockets.close_rings();
        if !done() && rings.waiting() == 0 {
            let _ = sys::poll(&mut fds, Some(SLEEP_NS));
        }
        self.dozing.fetch_sub(1, Ordering::SeqCst);
        if fds.first().is_some_and(|rouse| rouse.revents != 0) {
            sys::take(self.rouse.as_fd());
        }
        self.crowd.slept(sys::monotonic_ns());
    }

    /// Something happened in the engine that a dozing thread may wait for.
    #[inline]
    pub(crate) fn rouse(&self) {
        if self.is_dozing() {
            sys::signal(self.rouse.as_fd(), 1);
        }
    }

    fn is_dozing(&self) -> bool {
        self.dozing.load(Ordering::SeqCst) != 0
    }

    /// An application got what it polled for and may do something else now.
    #[inline]
    pub(crate) fn polled_well(&self) {
        if !self.satisfied.load(Ordering::Relaxed) {
            self.satisfied.store(true, Ordering::Relaxed);
        }
    }

    /// An application thread goes to sleep until an event comes.
    pub(crate) fn falls_asleep(&self) {
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        self.polled_well();
        if self.watching.load(Ordering::SeqCst) {
            self.wake();
        }
    }

    /// The other end of [`Progress::falls_asleep`].
    pub(crate) fn wakes_up(&self) {
        let now = sys::monotonic_ns();
        self.last_sleep_ns.store(now, Ordering::Relaxed);
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }

    /// Wakes the thread.
    pub(crate) fn wake(&self) {
        sys::signal(self.wake.as_fd(), 1);
    }

    /// Arms the timer if it would fire too late. Called with the engine's lock held, after
    /// anything that may have made a deadline.
    #[inline]
    pub(crate) fn rearm(&self, core: &Core) {
        if let Some(deadline) = core.deadline_ns()
            && deadline < self.armed_ns.load(Ordering::Relaxed)
        {
            self.armed_ns.store(deadline, Ordering::Relaxed);
            sys::set_timer(self.timer.as_fd(), deadline.max(1));
        }
    }

    /// The thread may sleep for ever: what the engine has to say must be said now. Asked with the
    /// engine's lock held, the answer holds until it is released.
    #[inline]
    pub(crate) fn is_away(&self) -> bool {
        self.away.load(Ordering::SeqCst)
    }

    /// A thread that spins found the progress thread away, and so could leave nothing to it. The packets
    /// that it takes itself wake the thread for nothing, one after the other, and it hears of none.
    #[cold]
    pub(crate) fn call(&self) {
        if !self.called.swap(true, Ordering::SeqCst) {
            self.wake();
        }
    }

    /// An application posted a moment ago: it may answer what it gets.
    fn may_answer(&self) -> bool {
        let last = self.last_post_ns.load(Ordering::Relaxed);
        sys::monotonic_ns().saturating_sub(last) < POSTS_NS
    }

    /// A thread polls, or did a moment ago, and has not slept lately.
    fn polls(&self) -> bool {
        let now = sys::monotonic_ns();
        let since = |at: &AtomicU64| now.saturating_sub(at.load(Ordering::Relaxed));
        let recently = since(&self.last_call_ns) < SPINNING_NS;
        let here = recently || self.is_dozing() || self.lookout.kept().is_some();
        here && !self.has_sleepers() && since(&self.last_sleep_ns) > SLEEPY_NS
    }

    /// A thread is in the middle of polling: it has not yet found what it polls for.
    fn is_spinning(&self) -> bool {
        self.polls() && !self.satisfied.load(Ordering::Relaxed)
    }

    pub(crate) fn has_sleepers(&self) -> bool {
        self.sleepers.load(Ordering::SeqCst) != 0 || self.outside.load(Ordering::SeqCst)
    }
}

/// Starts the thread. It lives as long as the process.
pub(crate) fn start(runtime: &Arc<Runtime>) -> std::io::Result<()> {
    let runtime = Arc::clone(runtime);
    // A thread inherits the mask, so there is no moment in which it could take a signal.
    let _blocked = sys::SignalsBlocked::new();
    std::thread::Builder::new()
        .name("rocebud".into())
        .stack_size(256 * 1024)
        .spawn(move || {
            sys::exact_timers();
            sys::short_slices();
            Thread::new(&runtime).run();
        })?;
    Ok(())
}

struct Thread<'a> {
    runtime: &'a Runtime,
    progress: &'a Progress,
    stand_by_until_ns: u64,
    stand_by_ns: u64,
    /// Slices in a row without a poll.
    idle_slices: u32,
    /// When the first of the slices in a row with polls began.
    polled_since_ns: u64,
    /// Wake-ups in a row, while standing by in spite of polls, for packets that a poll took.
    needless: u32,
    /// That the program answers in a moment what it gets.
    answers: Bet<ANSWERS_OFF_MIN, ANSWERS_OFF_MAX>,
    /// Rises by [`MISS`] with each slice that packets waited through, falls by one with each that
    /// was polled in.
    misses: u32,
    panics: u32,
}

/// What a sleep ended with.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Woken {
    /// Sockets that are readable, as bits.
    frames: u64,
    forwarded: bool,
    timer: bool,
    daemon: bool,
}

impl<'a> Thread<'a> {
    fn new(runtime: &'a Runtime) -> Self {
        Self {
            runtime,
            progress: &runtime.progress,
            stand_by_until_ns: 0,
            stand_by_ns: STAND_BY_MIN_NS,
            idle_slices: 0,
            polled_since_ns: 0,
            needless: 0,
            answers: Bet::default(),
            misses: 0,
            panics: 0,
        }
    }

    fn run(&mut self) {
        let mut watch = false;
        while !self.runtime.is_dead() {
            let step = AssertUnwindSafe(|| if watch { self.watch() } else { self.stand_by() });
            watch = catch_unwind(step).unwrap_or_else(|_| self.panicked());
        }
    }

    /// A bug of ours. Going on gives the program errors and timeouts; ending the thread would give
    /// it silence.
    fn panicked(&mut self) -> bool {
        log::line(
            Level::Error,
            format_args!("internal error in the progress thread (please report it)"),
        );
        self.panics += 1;
        if self.panics > PANICS_MAX {
            self.runtime.die();
        }
        false
    }

    /// One slice beside a program that polls. Returns whether to watch on.
    fn watch(&mut self) -> bool {
        let before = self.progress.calls.load(Ordering::Relaxed);
        let lookout = self.progress.lookout.kept();
        let polled = sys::monotonic_ns().saturating_sub(self.polled_since_ns);
        let slice = (polled / SLICE_PART).clamp(SLICE_MIN_NS, SLICE_MAX_NS);
        self.progress.watching.store(true, Ordering::SeqCst);
        let woken = if self.progress.has_sleepers() {
            Woken::default()
        } else {
            self.sleep(false, Some(slice))
        };
        self.progress.watching.store(false, Ordering::SeqCst);
        self.serve(woken);
        if self.progress.has_sleepers() {
            self.turn_until_dry(0);
            return false;
        }
        if self.progress.calls.load(Ordering::Relaxed) != before || self.progress.is_dozing() {
            self.idle_slices = 0;
            self.misses = self.misses.saturating_sub(1);
            if self.progress.satisfied.load(Ordering::Relaxed) {
                // It may do something else now, and it has left us something.
                self.finish();
            }
            return true;
        }
        self.polled_since_ns = sys::monotonic_ns();
        if let Some(post) = self.progress.lookout.kept() {
            self.idle_slices = 0;
            return lookout != Some(post) || self.rest(post);
        }
        // Descheduled in the middle of polling, or doing something else?
        let satisfied = self.progress.satisfied.load(Ordering::Relaxed);
        let received = self.turn_until_dry(0);
        if satisfied {
            if received != 0 {
                self.missed();
            }
            return false;
        }
        self.idle_slices += 1;
        self.idle_slices < IDLE_SLICES_MAX
    }

    /// The lookout has slept through a slice: sleeps until it goes. Returns whether to watch on.
    fn rest(&mut self, post: Post) -> bool {
        let (mut longest, mut deposed) = (REST_MIN_NS, false);
        self.progress.watching.store(true, Ordering::SeqCst);
        loop {
            self.go_away();
            let kept = self.progress.lookout.trust(post) && !self.progress.has_sleepers();
            let woken = kept.then(|| self.sleep(false, Some(longest)));
            self.progress.lookout.distrust();
            self.progress.away.store(false, Ordering::SeqCst);
            self.progress.called.store(false, Ordering::SeqCst);
            self.serve(woken.unwrap_or_default());
            let goes_on = self.progress.lookout.kept() == Some(post);
            if !goes_on || self.progress.has_sleepers() {
                break;
            }
            longest = (longest * 2).min(REST_MAX_NS);
            if woken == Some(Woken::default()) && self.sleep(true, Some(0)).frames != 0 {
                // It was woken for them, and is somewhere else.
                deposed = self.progress.lookout.depose(post);
                break;
            }
        }
        self.progress.watching.store(false, Ordering::SeqCst);
        if deposed || self.progress.has_sleepers() {
            self.turn_until_dry(0);
            return false;
        }
        true
    }

    /// Packets waited and nobody polled. Once that may be the scheduler's doing; when it goes on,
    /// be quicker from now on.
    fn missed(&mut self) {
        self.misses += MISS;
        if self.misses < MISSES_MAX {
            return;
        }
        self.misses = MISSES_MAX - MISS;
        let now = sys::monotonic_ns();
        let recent = now.saturating_sub(self.stand_by_until_ns) < self.stand_by_ns;
        self.stand_by_ns = if recent {
            (self.stand_by_ns * 2).min(STAND_BY_MAX_NS)
        } else {
            STAND_BY_MIN_NS
        };
        self.stand_by_until_ns = now + self.stand_by_ns;
    }

    /// Sleeps until there is something to do, and does it. Returns whether to watch from now on.
    fn stand_by(&mut self) -> bool {
        let in_spite = sys::monotonic_ns() < self.stand_by_until_ns;
        if !in_spite {
            self.go_away();
        }
        let woken = self.sleep(true, in_spite.then_some(SLICE_MIN_NS));
        self.progress.away.store(false, Ordering::SeqCst);
        let called = self.progress.called.swap(false, Ordering::SeqCst);
        self.serve(woken);
        let now = sys::monotonic_ns();
        if woken.frames == 0 {
            self.finish();
            // While it takes its packets itself, each of them wakes us for nothing, unseen by us.
            if in_spite && self.progress.polls() {
                self.was_needless();
            }
        }
        let wanted = woken.frames != 0 || called || in_spite;
        if wanted && self.progress.polls() && now >= self.stand_by_until_ns {
            self.needless = 0;
            self.idle_slices = 0;
            self.polled_since_ns = now;
            return true;
        }
        if woken.frames == 0 {
            return false;
        }
        if self.progress.is_spinning() {
            // It will find them itself; look again in a moment, in case it does not.
            self.sleep(false, Some(GRACE_NS));
            if self.progress.is_spinning() {
                self.was_needless();
                return false;
            }
        }
        self.needless = 0;
        self.turn_until_dry(woken.frames);
        false
    }

    fn was_needless(&mut self) {
        self.needless += 1;
        if self.needless >= NEEDLESS_MAX {
            self.stand_by_until_ns = 0;
        }
    }

    /// From here on nothing is left for us, and what was is done.
    fn go_away(&self) {
        let mut core = lock(&self.runtime.core);
        self.progress.called.store(false, Ordering::SeqCst);
        self.progress.away.store(true, Ordering::SeqCst);
        self.send_left(&mut core);
    }

    /// Sends what was left to a call that did not come. Whoever holds the lock has come.
    fn finish(&self) {
        if let Some(mut core) = try_lock(&self.runtime.core) {
            self.send_left(&mut core);
        }
    }

    fn send_left(&self, core: &mut Core) {
        core.later.found(sys::monotonic_ns());
        if core.has_more() {
            self.runtime.kick(core);
        }
    }

    /// Everything but frames.
    fn serve(&self, woken: Woken) {
        if woken.daemon {
            self.runtime.on_notices();
        }
        if woken.timer {
            self.on_timer();
        }
        if woken.forwarded {
            let mut core = lock(&self.runtime.core);
            core.telling_last(|core| {
                core.receive_forwarded(&self.runtime.shared);
                self.runtime.kick(core);
            });
            drop(core);
            self.progress.rouse();
        }
    }

    fn on_timer(&self) {
        let mut core = lock(&self.runtime.core);
        sys::take(self.progress.timer.as_fd());
        self.progress.armed_ns.store(NEVER, Ordering::Relaxed);
        core.turn(&self.runtime.shared, now(), |_, _| false);
        self.runtime.kick(&mut core);
        drop(core);
        self.progress.rouse();
    }

    /// Runs the engine until the sockets are dry. With `readable`, as bits, only these are looked at first,
    /// and a second look is left to the poll that the caller goes back to. Returns packets received.
    fn turn_until_dry(&mut self, readable: u64) -> usize {
        let mut received = 0;
        let mut late = false;
        let mut known = readable;
        loop {
            let progress = self.progress;
            let bets = !late && progress.may_answer();
            let answers = &mut self.answers;
            let mut waits = false;
            let mut core = lock(&self.runtime.core);
            let at = now();
            core.later.found(at.0);
            core.look_at(std::mem::take(&mut known));
            let turn = core.turn(&self.runtime.shared, at, |_, pending| {
                waits = pending && bets && !progress.is_spinning() && answers.is_on();
                waits
            });
            let more = core.has_more();
            let dry = turn.received == 0 || readable != 0 && core.seems_dry();
            let spins = progress.is_spinning();
            if !waits {
                progress.rearm(&core);
            }
            drop(core);
            received += turn.received;
            if turn.received != 0 {
                progress.rouse();
            }
            if waits {
                late = !self.let_answer();
                if !late && dry {
                    return received;
                }
            } else if dry && !more || spins {
                return received;
            } else {
                late = false;
            }
        }
    }

    /// A program that spins on memory answers at once what it finds there, and our ACK can ride
    /// along; its peer, which polls for the ACK, then gets both in one poll. Returns whether it did.
    fn let_answer(&mut self) -> bool {
        self.sleep(false, Some(ANSWER_NS));
        let answered = !lock(&self.runtime.core).has_more();
        if answered {
            self.answers.won();
        } else {
            self.answers.lost();
        }
        answered
    }

    fn sleep(&self, frames: bool, timeout_ns: Option<u64>) -> Woken {
        let sockets = lock(&self.runtime.sockets).clone();
        let mut fds = vec![
            sys::poll_fd(self.progress.wake.as_raw_fd()),
            sys::poll_fd(self.progress.timer.as_raw_fd()),
            sys::poll_fd(self.runtime.client.fd()),
        ];
        fds.extend(sockets.forwards.iter().map(|fd| sys::poll_fd(*fd)));
        let first_socket = fds.len();
        let rings = frames.then(|| sockets.close_rings());
        if frames {
            fds.extend(sockets.receive.iter().map(|fd| sys::poll_fd(*fd)));
        }
        let waiting = rings.as_ref().map_or(0, ClosedRings::waiting);
        let timeout_ns = if waiting == 0 { timeout_ns } else { Some(0) };
        if sys::poll(&mut fds, timeout_ns).is_err() {
            return Woken::default();
        }
        let ready = |fd: &libc::pollfd| fd.revents != 0;
        if ready(&fds[0]) {
            sys::take(self.progress.wake.as_fd());
            self.runtime.farewell.attend(self.runtime);
        }
        Woken {
            timer: ready(&fds[1]),
            daemon: ready(&fds[2]),
            forwarded: fds[3..first_socket].iter().any(ready),
            frames: as_bits(fds[first_socket..].iter().map(ready)) | waiting,
        }
    }
}
