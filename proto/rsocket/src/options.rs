//! Socket options: which there are, what they hold, until when they can be set. One table.

use rocebud_objects::{Errno, Misuse};

use crate::config::Config;
use crate::limits::{
    BUFFER_DEFAULT, BUFFER_MAX, BUFFER_MIN, INLINE_DEFAULT, IOMAP_MAX, QUEUE_DEFAULT, QUEUE_MAX,
    QUEUE_MIN,
};

/// Levels and names, as in the headers of Linux and of rsockets.
#[allow(missing_docs, reason = "the names say it")]
pub mod names {
    pub const SOL_SOCKET: i32 = 1;
    pub const SO_REUSEADDR: i32 = 2;
    pub const SO_TYPE: i32 = 3;
    pub const SO_ERROR: i32 = 4;
    pub const SO_SNDBUF: i32 = 7;
    pub const SO_RCVBUF: i32 = 8;
    pub const SO_KEEPALIVE: i32 = 9;
    pub const SO_OOBINLINE: i32 = 10;
    pub const SO_LINGER: i32 = 13;
    pub const IPPROTO_TCP: i32 = 6;
    pub const TCP_NODELAY: i32 = 1;
    pub const TCP_MAXSEG: i32 = 2;
    pub const TCP_KEEPIDLE: i32 = 4;
    pub const TCP_KEEPINTVL: i32 = 5;
    pub const TCP_KEEPCNT: i32 = 6;
    pub const IPPROTO_IPV6: i32 = 41;
    pub const IPV6_V6ONLY: i32 = 26;
    pub const SOL_RDMA: i32 = 0x10000;
    pub const RDMA_SQSIZE: i32 = 0;
    pub const RDMA_RQSIZE: i32 = 1;
    pub const RDMA_INLINE: i32 = 2;
    pub const RDMA_IOMAPSIZE: i32 = 3;
    pub const RDMA_ROUTE: i32 = 4;
}
use names::*;

/// An option that can be set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "the names are the options'")]
pub enum Name {
    ReuseAddress,
    SendBuffer,
    ReceiveBuffer,
    Linger,
    Keepalive,
    OobInline,
    NoDelay,
    MaxSegment,
    KeepIdle,
    KeepInterval,
    KeepCount,
    V6Only,
    SendQueue,
    ReceiveQueue,
    Inline,
    IomapEntries,
}

/// Until when an option can be set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Until {
    /// At any time.
    Always,
    /// Later calls succeed and change nothing: the rings are there.
    Rings,
    /// EINVAL once a connection is begun.
    Connect,
}

/// One line of the table.
#[derive(Clone, Copy, Debug)]
pub struct Line {
    /// Level.
    pub level: i32,
    /// Name at this level.
    pub name: i32,
    /// Which.
    pub option: Name,
    /// Until when.
    pub until: Until,
}

const fn line(level: i32, name: i32, option: Name, until: Until) -> Line {
    Line {
        level,
        name,
        option,
        until,
    }
}

/// Every option that can be set. `SO_ERROR` and `SO_TYPE` can be read only, and are the socket's, as
/// `RDMA_ROUTE` is.
pub const OPTIONS: &[Line] = &[
    line(SOL_SOCKET, SO_REUSEADDR, Name::ReuseAddress, Until::Always),
    line(SOL_SOCKET, SO_SNDBUF, Name::SendBuffer, Until::Rings),
    line(SOL_SOCKET, SO_RCVBUF, Name::ReceiveBuffer, Until::Rings),
    line(SOL_SOCKET, SO_LINGER, Name::Linger, Until::Always),
    line(SOL_SOCKET, SO_KEEPALIVE, Name::Keepalive, Until::Always),
    line(SOL_SOCKET, SO_OOBINLINE, Name::OobInline, Until::Always),
    line(IPPROTO_TCP, TCP_NODELAY, Name::NoDelay, Until::Always),
    line(IPPROTO_TCP, TCP_MAXSEG, Name::MaxSegment, Until::Always),
    line(IPPROTO_TCP, TCP_KEEPIDLE, Name::KeepIdle, Until::Always),
    line(
        IPPROTO_TCP,
        TCP_KEEPINTVL,
        Name::KeepInterval,
        Until::Always,
    ),
    line(IPPROTO_TCP, TCP_KEEPCNT, Name::KeepCount, Until::Always),
    line(IPPROTO_IPV6, IPV6_V6ONLY, Name::V6Only, Until::Always),
    line(SOL_RDMA, RDMA_SQSIZE, Name::SendQueue, Until::Connect),
    line(SOL_RDMA, RDMA_RQSIZE, Name::ReceiveQueue, Until::Connect),
    line(SOL_RDMA, RDMA_INLINE, Name::Inline, Until::Connect),
    line(SOL_RDMA, RDMA_IOMAPSIZE, Name::IomapEntries, Until::Connect),
];

/// How far a socket is, for [`Until`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// Nothing begun.
    Idle,
    /// A connection is begun, or there.
    Begun,
}

/// Values of all options.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// Sizes.
    pub config: Config,
    /// `SO_REUSEADDR`
    pub reuse_address: bool,
    /// `SO_LINGER`: on, seconds. Kept, without effect: a close waits for what was sent.
    pub linger: (i32, i32),
    /// `SO_KEEPALIVE`
    pub keepalive: bool,
    /// `SO_OOBINLINE`, kept without effect.
    pub oob_inline: bool,
    /// `TCP_NODELAY`, kept without effect: nothing is ever delayed.
    pub no_delay: bool,
    /// `TCP_KEEPIDLE`, seconds between keepalives.
    pub keep_idle_s: u32,
    /// `IPV6_V6ONLY`
    pub v6_only: bool,
}

/// Seconds between keepalives where the system's own setting cannot be read.
pub const KEEP_IDLE_DEFAULT_S: u32 = 7200;

impl Default for Options {
    fn default() -> Self {
        Self {
            config: Config {
                send_queue: QUEUE_DEFAULT,
                receive_queue: QUEUE_DEFAULT,
                send_ring: BUFFER_DEFAULT,
                receive_ring: BUFFER_DEFAULT,
                inline: INLINE_DEFAULT,
                ..Config::default()
            },
            reuse_address: false,
            linger: (0, 0),
            keepalive: false,
            oob_inline: false,
            no_delay: false,
            keep_idle_s: KEEP_IDLE_DEFAULT_S,
            v6_only: false,
        }
    }
}

const NO_SUCH_OPTION: Misuse = Misuse::new(
    Errno::EOPNOTSUPP,
    "rsockets have no such option; proto/rsocket/src/options.rs lists them",
);
const SHORT: Misuse = Misuse::invalid("the option's value is shorter than its type");
const TOO_LATE: Misuse =
    Misuse::invalid("the sizes of RDMA queues and tables are fixed once a connection is begun");
const BAD_VALUE: Misuse = Misuse::invalid("the option's value is out of its range");

impl Options {
    /// `rsetsockopt`; which option it was, so that the socket can follow.
    ///
    /// # Errors
    /// EOPNOTSUPP for an unknown option; EINVAL for a short or impossible value, or too late.
    pub fn set(&mut self, at: (i32, i32), value: &[u8], phase: Phase) -> Result<Name, Misuse> {
        let line = find(at)?;
        match (line.until, phase) {
            (Until::Connect, Phase::Begun) => return Err(TOO_LATE),
            (Until::Rings, Phase::Begun) => return Ok(line.option),
            _ => {}
        }
        let first = int(value, 0)?;
        let on = first != 0;
        match line.option {
            Name::ReuseAddress => self.reuse_address = on,
            Name::SendBuffer => self.config.send_ring = ring(first),
            Name::ReceiveBuffer => self.config.receive_ring = ring(first),
            Name::Linger => self.linger = (first, int(value, 1)?),
            Name::Keepalive => self.keepalive = on,
            Name::OobInline => self.oob_inline = on,
            Name::NoDelay => self.no_delay = on,
            // accepted, as upstream does: nothing here corresponds to them
            Name::MaxSegment | Name::KeepInterval | Name::KeepCount => {}
            Name::KeepIdle => {
                self.keep_idle_s = u32::try_from(first)
                    .ok()
                    .filter(|s| *s != 0)
                    .ok_or(BAD_VALUE)?;
            }
            Name::V6Only => self.v6_only = on,
            Name::SendQueue => self.config.send_queue = queue(first),
            Name::ReceiveQueue => self.config.receive_queue = queue(first),
            Name::Inline => self.config.inline = bounded(first, QUEUE_MAX),
            Name::IomapEntries => {
                self.config.iomap_entries = bounded(first, IOMAP_MAX);
                self.config = self.config.clamped();
            }
        }
        Ok(line.option)
    }

    /// `rgetsockopt`: one or two ints, and how many.
    ///
    /// # Errors
    /// EOPNOTSUPP for an unknown option.
    pub fn get(&self, at: (i32, i32)) -> Result<([i32; 2], usize), Misuse> {
        let one = |n: i32| Ok(([n, 0], 1));
        match find(at)?.option {
            Name::ReuseAddress => one(self.reuse_address.into()),
            Name::SendBuffer => one(self.config.send_ring.cast_signed()),
            Name::ReceiveBuffer => one(self.config.receive_ring.cast_signed()),
            Name::Linger => Ok(([self.linger.0, self.linger.1], 2)),
            Name::Keepalive => one(self.keepalive.into()),
            Name::OobInline => one(self.oob_inline.into()),
            Name::NoDelay => one(self.no_delay.into()),
            Name::MaxSegment => one(MAX_SEGMENT),
            Name::KeepIdle => one(i32::try_from(self.keep_idle_s).unwrap_or(i32::MAX)),
            Name::KeepInterval | Name::KeepCount => one(1),
            Name::V6Only => one(self.v6_only.into()),
            Name::SendQueue => one(self.config.send_queue.into()),
            Name::ReceiveQueue => one(self.config.receive_queue.into()),
            Name::Inline => one(self.config.inline.into()),
            Name::IomapEntries => one(self.config.iomap_entries.into()),
        }
    }
}

/// `TCP_MAXSEG` where no path is known, as upstream answers.
const MAX_SEGMENT: i32 = 2048;

fn find((level, name): (i32, i32)) -> Result<&'static Line, Misuse> {
    OPTIONS
        .iter()
        .find(|l| (l.level, l.name) == (level, name))
        .ok_or(NO_SUCH_OPTION)
}

/// The int of this index.
fn int(value: &[u8], index: usize) -> Result<i32, Misuse> {
    value
        .get(index * 4..)
        .and_then(|rest| rest.first_chunk::<4>())
        .map(|b| i32::from_ne_bytes(*b))
        .ok_or(SHORT)
}

/// A buffer is twice what was asked for, as with TCP; negative counts as large, as there.
fn ring(asked: i32) -> u32 {
    let doubled = u64::from(asked.cast_unsigned()) * 2;
    let n = u32::try_from(doubled).unwrap_or(u32::MAX);
    n.clamp(BUFFER_MIN, BUFFER_MAX) & !1
}

fn queue(asked: i32) -> u16 {
    bounded(asked, QUEUE_MAX).max(QUEUE_MIN)
}

fn bounded(asked: i32, max: u16) -> u16 {
    u16::try_from(asked.cast_unsigned().min(u32::from(max))).unwrap_or(max)
}

#[cfg(test)]
mod tests;
