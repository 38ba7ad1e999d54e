//! Event channels: a queue each, and a socket that is readable while the queue is not empty.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::OwnedFd;

use rocebud_ctl::channel;
use rocebud_ctl::cm::CmEvent;

use crate::clients::message_pair;

/// A channel.
#[derive(Debug)]
pub(super) struct Channel {
    /// Key of its client.
    pub(super) client: u64,
    socket: OwnedFd,
    /// The client's end once more, to take the byte back.
    theirs: OwnedFd,
    queue: VecDeque<CmEvent>,
    /// The byte is in the socket, or a thread of the client's has taken it and is about to ask.
    told: bool,
}

impl Channel {
    fn tell(&mut self) {
        if !self.told && !self.queue.is_empty() {
            // An error means that the client has closed its end: nobody waits then.
            let _ = channel::send(&self.socket, &[1], &[]);
            self.told = true;
        }
    }

    /// With no event left the byte goes, unless a thread of the client's was faster: it finds the
    /// queue empty, and waits on.
    fn retract(&mut self) {
        if self.told && self.queue.is_empty() {
            let taken = channel::recv(&self.theirs, &mut [0]);
            self.told = !taken.is_ok_and(|got| got.bytes == 1);
        }
    }
}

/// All channels.
#[derive(Debug, Default)]
pub(super) struct Channels {
    all: BTreeMap<u32, Channel>,
    next: u32,
}

impl Channels {
    /// A channel of `client`: its number, and the client's end.
    pub(super) fn open(&mut self, client: u64) -> io::Result<(u32, OwnedFd)> {
        let (socket, theirs) = message_pair()?;
        // The client decides by its own flags whether it waits.
        rustix::io::ioctl_fionbio(&theirs, false)?;
        loop {
            self.next = self.next.wrapping_add(1).max(1);
            if !self.all.contains_key(&self.next) {
                break;
            }
        }
        let channel = Channel {
            client,
            socket,
            theirs: theirs.try_clone()?,
            queue: VecDeque::new(),
            told: false,
        };
        self.all.insert(self.next, channel);
        Ok((self.next, theirs))
    }

    /// Ends a channel.
    pub(super) fn close(&mut self, channel: u32) {
        self.all.remove(&channel);
    }

    /// Ends all channels of a client.
    pub(super) fn close_all(&mut self, client: u64) {
        self.all.retain(|_, channel| channel.client != client);
    }

    /// It is a channel of `client`.
    pub(super) fn is_of(&self, channel: u32, client: u64) -> bool {
        self.all.get(&channel).is_some_and(|c| c.client == client)
    }

    /// Channels of a client.
    pub(super) fn count(&self, client: u64) -> usize {
        self.all.values().filter(|c| c.client == client).count()
    }

    /// Events that wait in a channel.
    pub(super) fn waiting(&self, channel: u32) -> usize {
        self.all.get(&channel).map_or(0, |c| c.queue.len())
    }

    /// Adds an event, and says that there is one.
    pub(super) fn push(&mut self, channel: u32, event: CmEvent) {
        if let Some(channel) = self.all.get_mut(&channel) {
            channel.queue.push_back(event);
            channel.tell();
        }
    }

    /// The oldest event of a channel whose byte was taken; says whether there is another.
    pub(super) fn pop(&mut self, channel: u32) -> Option<CmEvent> {
        let channel = self.all.get_mut(&channel)?;
        channel.told = false;
        let event = channel.queue.pop_front();
        channel.tell();
        event
    }

    /// Takes events out, in their order.
    pub(super) fn remove(
        &mut self,
        channel: u32,
        which: impl Fn(&CmEvent) -> bool,
    ) -> Vec<CmEvent> {
        let Some(channel) = self.all.get_mut(&channel) else {
            return Vec::new();
        };
        let queue = std::mem::take(&mut channel.queue);
        let (gone, kept): (VecDeque<_>, VecDeque<_>) = queue.into_iter().partition(which);
        channel.queue = kept;
        channel.retract();
        gone.into()
    }
}
