//! The wire between the two ends of a test: this program carries every frame, so it sees all of them in one
//! order, and loses, doubles, swaps or spoils those that a rule names.
//!
//! An end is a tap (what runs in its namespace sees an ordinary interface, and the kernel cuts large sends into
//! true frames before they come here) or the stream to a guest's network card.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::error::{Doing, Result};
use crate::netns::Namespace;

pub mod pcap;
pub mod rule;
#[allow(unsafe_code, reason = "one system call, see the file")]
mod sys;

pub use rule::{Fault, Rule};

/// Bytes of the longest frame (64 KiB of IP and an Ethernet header).
const FRAME_MAX: usize = 65_550;

/// How long a frame that waits to be overtaken waits at most.
const HELD_MAX: Duration = Duration::from_millis(20);

/// Most bytes of frames that are kept; what comes beyond is carried and not kept.
const KEPT_MAX: usize = 192 << 20;

/// The name of the tap in its namespace.
pub const NETDEV: &str = "wire0";

/// Which end of the wire.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// Rocebud's.
    Ours,
    /// The target's.
    Theirs,
}

impl End {
    /// The other one.
    pub fn other(self) -> Self {
        match self {
            Self::Ours => Self::Theirs,
            Self::Theirs => Self::Ours,
        }
    }

    fn index(self) -> usize {
        usize::from(self == Self::Theirs)
    }
}

/// A frame that somebody sent.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Since the wire was laid.
    pub at: Duration,
    /// Who sent it.
    pub from: End,
    /// As it was sent, from the Ethernet header on.
    pub bytes: Vec<u8>,
    /// What became of it.
    pub fault: Option<Fault>,
}

/// Where an end is plugged in.
#[derive(Debug)]
pub enum Plug {
    /// A tap.
    Tap(File),
    /// qemu's: each frame behind its length, four bytes, big-endian.
    Stream(UnixStream),
}

impl Plug {
    /// A tap in a namespace, without addresses and down.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn tap(ns: &Namespace) -> Result<Self> {
        let file = ns.enter(|| sys::tap(NETDEV))?;
        ns.ip(&format!("link set {NETDEV} txqueuelen 10000"))?;
        Ok(Self::Tap(file))
    }

    /// Waits up to 50 ms for something to read.
    fn readable(&self) -> bool {
        let fd = match self {
            Self::Tap(file) => PollFd::new(file, PollFlags::IN),
            Self::Stream(stream) => PollFd::new(stream, PollFlags::IN),
        };
        let limit = Timespec {
            tv_sec: 0,
            tv_nsec: 10_000_000,
        };
        poll(&mut [fd], Some(&limit)).is_ok_and(|n| n > 0)
    }

    /// The next frame; `None` when the other side has gone.
    fn read(&self, buffer: &mut [u8]) -> Option<usize> {
        match self {
            Self::Tap(file) => match (&*file).read(buffer) {
                Ok(length) => Some(length),
                // somebody removed the interface
                Err(e) if e.raw_os_error() == Some(libc::EBADFD) => None,
                // a tap that is down answers EIO; it may come up again
                Err(_) => Some(0),
            },
            Self::Stream(stream) => {
                let mut length = [0; 4];
                (&*stream).read_exact(&mut length).ok()?;
                let length = usize::try_from(u32::from_be_bytes(length)).ok()?;
                let frame = buffer.get_mut(..length)?;
                (&*stream).read_exact(frame).ok()?;
                Some(length)
            }
        }
    }

    fn write(&self, frame: &[u8]) {
        // A frame that cannot be delivered is a frame lost; who waits for it will say so.
        let _ = match self {
            Self::Tap(file) => (&*file).write_all(frame),
            Self::Stream(stream) => {
                let length = u32::try_from(frame.len()).unwrap_or_default();
                let mut whole = length.to_be_bytes().to_vec();
                whole.extend_from_slice(frame);
                (&*stream).write_all(&whole)
            }
        };
    }
}

#[derive(Debug, Default)]
struct State {
    rules: Vec<Rule>,
    seen: Vec<Seen>,
    keep: bool,
    kept: usize,
    held: [Option<(Vec<u8>, Instant)>; 2],
}

#[derive(Debug)]
struct Shared {
    plugs: [Plug; 2],
    state: Mutex<State>,
    stop: AtomicBool,
    /// Who has gone, by end.
    gone: [AtomicBool; 2],
    start: Instant,
}

/// A wire that carries frames until it is dropped.
#[derive(Debug)]
pub struct Wire {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Wire {
    /// Lays it.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn lay(ours: Plug, theirs: Plug) -> Result<Self> {
        let shared = Arc::new(Shared {
            plugs: [ours, theirs],
            state: Mutex::default(),
            stop: AtomicBool::new(false),
            gone: Default::default(),
            start: Instant::now(),
        });
        let mut threads = Vec::new();
        for from in [End::Ours, End::Theirs] {
            let shared = Arc::clone(&shared);
            let carry = move || shared.carry(from);
            let thread = std::thread::Builder::new().name("wire".into()).spawn(carry);
            threads.push(thread.doing(|| "a thread for the wire".into())?);
        }
        Ok(Self { shared, threads })
    }

    /// From now on these rules hold, and no others; what they did before is forgotten.
    pub fn rules(&self, rules: Vec<Rule>) {
        self.shared.state().rules = rules;
    }

    /// Keeps every frame from now on (192 MiB of them at most), or none.
    pub fn keep(&self, keep: bool) {
        let mut state = self.shared.state();
        state.keep = keep;
        state.kept = 0;
        state.seen.clear();
    }

    /// What has been seen since the last call or [`Wire::keep`].
    pub fn take(&self) -> Vec<Seen> {
        std::mem::take(&mut self.shared.state().seen)
    }

    /// Has such a frame been kept?
    pub fn any(&self, such: impl Fn(&Seen) -> bool) -> bool {
        self.shared.state().seen.iter().any(such)
    }

    /// The same wire, which goes on when this handle is dropped.
    pub fn handle(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
            threads: Vec::new(),
        }
    }

    /// Since it was laid.
    pub fn elapsed(&self) -> Duration {
        self.shared.start.elapsed()
    }

    /// How often each rule has struck.
    pub fn struck(&self) -> Vec<u64> {
        self.shared.state().rules.iter().map(Rule::struck).collect()
    }

    /// The end that has gone: its tap was removed, or its guest has ended.
    pub fn gone(&self) -> Option<End> {
        let gone = |end: &End| self.shared.gone[end.index()].load(Ordering::Relaxed);
        [End::Ours, End::Theirs].into_iter().find(gone)
    }

    /// Sends a frame as if the end had sent it. It is neither kept nor judged by rules.
    pub fn inject(&self, from: End, frame: &[u8]) {
        self.shared.plug(from.other()).write(frame);
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        if self.threads.is_empty() {
            return;
        }
        self.shared.stop.store(true, Ordering::Relaxed);
        for plug in &self.shared.plugs {
            if let Plug::Stream(stream) = plug {
                let _ = stream.shutdown(std::net::Shutdown::Both);
            }
        }
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn plug(&self, end: End) -> &Plug {
        let [ours, theirs] = &self.plugs;
        match end {
            End::Ours => ours,
            End::Theirs => theirs,
        }
    }

    /// The life of one direction.
    fn carry(&self, from: End) {
        let (source, sink) = (self.plug(from), self.plug(from.other()));
        let mut buffer = vec![0; FRAME_MAX];
        while !self.stop.load(Ordering::Relaxed) {
            if !source.readable() {
                self.release_late(from, sink);
                continue;
            }
            let Some(length) = source.read(&mut buffer) else {
                self.gone[from.index()].store(true, Ordering::Relaxed);
                return;
            };
            if let Some(frame) = buffer.get(..length).filter(|f| !f.is_empty()) {
                for out in self.judge(from, frame) {
                    sink.write(&out);
                }
            }
        }
    }

    /// What comes out at the other end for a frame that goes in.
    fn judge(&self, from: End, frame: &[u8]) -> Vec<Vec<u8>> {
        let mut state = self.state();
        let fault = state
            .rules
            .iter_mut()
            .find_map(|rule| rule.strike(from, frame));
        if state.keep && state.kept < KEPT_MAX {
            state.kept += frame.len();
            let at = self.start.elapsed();
            let bytes = frame.to_vec();
            state.seen.push(Seen {
                at,
                from,
                bytes,
                fault,
            });
        }
        let mut out = match fault {
            None => vec![frame.to_vec()],
            Some(Fault::Drop) => Vec::new(),
            Some(Fault::Duplicate) => vec![frame.to_vec(), frame.to_vec()],
            Some(Fault::Corrupt) => vec![rule::corrupted(frame)],
            Some(Fault::Mark) => vec![rule::marked(frame)],
            Some(Fault::Reorder) => {
                let slot = &mut state.held[from.index()];
                let before = slot.replace((frame.to_vec(), Instant::now()));
                return before.into_iter().map(|(f, _)| f).collect();
            }
        };
        if rule::is_roce(frame) {
            out.extend(state.held[from.index()].take().map(|(f, _)| f));
        }
        out
    }

    /// A frame that waits for another to overtake it goes on when none comes.
    fn release_late(&self, from: End, sink: &Plug) {
        let late = {
            let slot = &mut self.state().held[from.index()];
            slot.take_if(|(_, since)| since.elapsed() > HELD_MAX)
        };
        if let Some((frame, _)) = late {
            sink.write(&frame);
        }
    }
}
