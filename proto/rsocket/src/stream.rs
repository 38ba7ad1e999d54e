//! A connected stream socket. What its owner does:
//!
//! 1. makes a queue pair, registers both rings and the block that the peer writes (target list and
//!    iomap table), makes a [`Stream`], posts what [`Stream::poll_work`] says (all receives), and
//!    sends [`Stream::connect_data`] with its REQ or REP;
//! 2. tells it how that ended: [`Stream::established`] or [`Stream::refused`];
//! 3. from then on hands in completions in their order, and after each batch of them, and after
//!    each call of the program, posts what `poll_work` says until it says nothing;
//! 4. copies between the program and the rings where [`Stream::send`] and [`Stream::peek`] say;
//! 5. at the end calls [`Stream::shutdown`], goes on with 3 until [`Stream::is_quiet`], moves the
//!    queue pair to Err if the stream is [`State::Disconnected`], and destroys it.
//!
//! A WRITE is posted before anything else is planned: order on the queue pair is the protocol's.

use rocebud_objects::{Errno, Instant, Misuse};

use crate::config::Config;
use crate::connect::{ConnectData, Region};
use crate::entry::{BLOCK_TARGETS, ByteOrder, IOMAP_LEN, IoEntry, TARGET_LEN, TargetEntry};
use crate::iomap::{Offered, Offers};
use crate::message::{Control, Message};
use crate::recv::{Receiver, Violation};
use crate::ring::Span;
use crate::send::{Planned, Sender};
use crate::state::{Act, Event, State, Step, step};

mod owner;

pub use owner::{Local, Ready, Received, SharedBlock, Source, Stopped, Work, WorkId, Write};

/// See the module.
#[derive(Debug)]
pub struct Stream {
    config: Config,
    local: Local,
    state: State,
    error: Option<Errno>,
    peer_order: ByteOrder,
    peer_block: Region,
    peer_targets: u32,
    sender: Sender,
    receiver: Receiver,
    offered: Offered,
    offers: Offers,
    receives_to_post: u32,
    control: Option<Control>,
    keepalive: Option<Keepalive>,
    violations: u64,
    last_violation: Option<Violation>,
}

#[derive(Clone, Copy, Debug)]
struct Keepalive {
    idle_ns: u64,
    at: Instant,
    due: bool,
}

pub(crate) const ENOTCONN: Errno = Errno(107);
pub(crate) const ECONNRESET: Errno = Errno(104);
pub(crate) const EPROTO: Errno = Errno(71);

const NOT_CONNECTED: Misuse = Misuse::new(ENOTCONN, "the socket is not connected");

/// Nanoseconds of a second.
const SECOND_NS: u64 = 1_000_000_000;

impl Stream {
    /// The active end, about to send its REQ. `config` is clamped.
    #[must_use]
    pub fn connecting(config: Config, local: Local) -> Self {
        Self::new(config, local, State::Connecting)
    }

    /// The passive end, about to send its REP. `config` is clamped.
    #[must_use]
    pub fn accepting(config: Config, local: Local) -> Self {
        Self::new(config, local, State::Accepting)
    }

    fn new(config: Config, local: Local, state: State) -> Self {
        let config = config.clamped();
        Self {
            config,
            local,
            state,
            error: None,
            peer_order: config.order,
            peer_block: Region::default(),
            peer_targets: BLOCK_TARGETS,
            sender: Sender::new(config.send_ring, config.send_queue),
            receiver: Receiver::new(local.ring, config.receive_ring, config.receive_queue),
            offered: Offered::new(config.iomap_entries),
            offers: Offers::default(),
            receives_to_post: u32::from(config.receive_queue),
            control: None,
            keepalive: None,
            violations: 0,
            last_violation: None,
        }
    }

    /// Our private data of REQ or REP.
    #[must_use]
    pub const fn connect_data(&self) -> ConnectData {
        ConnectData {
            order: self.config.order,
            credits: self.config.receive_queue,
            iomap_entries: self.config.iomap_entries,
            block: self.local.block,
            targets: BLOCK_TARGETS,
            data: self.receiver.first_target(),
        }
    }

    /// The connection is made; `peer` was in its REP or REQ.
    pub fn established(&mut self, peer: &ConnectData) {
        if !self.happen(Event::Established) {
            return;
        }
        self.peer_order = peer.order;
        self.peer_block = peer.block;
        self.peer_targets = peer.targets;
        self.sender.establish(peer.credits, peer.data);
        self.receiver.establish(peer.targets);
        self.offers.establish(peer.iomap_entries);
    }

    /// No connection came about; `SO_ERROR` gives `why`.
    pub fn refused(&mut self, why: Errno) {
        if self.happen(Event::ConnectRefused) {
            self.error = Some(why);
        }
    }

    /// The connection manager says that it is over.
    pub fn connection_lost(&mut self) {
        let graceful = self.state == State::Shut;
        if self.happen(Event::ConnectionLost) && !graceful {
            self.error = Some(ECONNRESET);
        }
    }

    /// The program ends a direction: [`Event::ShutdownRead`], `ShutdownWrite` or `ShutdownBoth`;
    /// other events are not the program's and do nothing.
    pub fn shutdown(&mut self, how: Event) {
        if matches!(
            how,
            Event::ShutdownRead | Event::ShutdownWrite | Event::ShutdownBoth
        ) {
            self.happen(how);
        }
    }

    /// State.
    #[must_use]
    pub const fn state(&self) -> State {
        self.state
    }

    /// The sizes in use.
    #[must_use]
    pub const fn config(&self) -> &Config {
        &self.config
    }

    /// Takes the pending error, as `SO_ERROR` does.
    pub const fn take_error(&mut self) -> Option<Errno> {
        self.error.take()
    }

    /// How often the peer broke the protocol, and how it did last.
    #[must_use]
    pub const fn violations(&self) -> (u64, Option<Violation>) {
        (self.violations, self.last_violation)
    }

    /// For `rpoll`.
    #[must_use]
    pub fn ready(&self) -> Ready {
        let begun = self.state.is_connected() || self.is_over();
        Ready {
            readable: begun && (self.receiver.unread() != 0 || !self.state.is_readable()),
            writable: self.state.is_writable()
                && self.sender.can_send()
                && !self.offers.has_unsent(),
            // not before the program has read what came: many take it for the end of data
            hung_up: self.state == State::Disconnected && self.receiver.unread() == 0,
            failed: matches!(self.state, State::Failed | State::ConnectFailed),
        }
    }

    const fn is_over(&self) -> bool {
        matches!(self.state, State::Disconnected | State::Failed)
    }

    /// Nothing of ours is on its way, or nothing can be any more: the queue pair may go.
    #[must_use]
    pub const fn is_quiet(&self) -> bool {
        !self.state.is_connected() || (self.control.is_none() && self.sender.is_idle())
    }

    /// Requests posted and not completed; never more than the send queue holds.
    #[must_use]
    pub const fn in_flight(&self) -> u32 {
        self.sender.in_flight()
    }

    /// Plans the next WRITE of `wanted` bytes (at least one) or a part of them.
    ///
    /// # Errors
    /// [`Stopped`]: there is no room now, or never again.
    pub fn send(&mut self, wanted: u32) -> Result<Planned, Stopped> {
        if let Some(first) = self.before_data()? {
            return Ok(first);
        }
        let len = self.sender.message_len(wanted);
        if len == 0 {
            return Err(Stopped::Wait);
        }
        let target = self.sender.take_target(len);
        let remote = Region {
            address: target.address,
            key: target.key,
        };
        let message = Message::Data(target.len);
        Ok(self.data_write(target.len, remote, Some(message)))
    }

    /// Plans a WRITE of `wanted` bytes or a part of them to what the peer offers at `offset`.
    ///
    /// # Errors
    /// [`Stopped`]; EINVAL when the peer offers nothing there.
    pub fn send_direct(&mut self, offset: u64, wanted: u32) -> Result<Planned, Stopped> {
        if let Some(first) = self.before_data()? {
            return Ok(first);
        }
        let Some(to) = self.offered.find(offset, wanted) else {
            return Err(Stopped::Failed(Errno::EINVAL));
        };
        // no entry of the target list bounds it, the ring does
        let room = self.sender.message_room(to.len);
        let remote = Region {
            address: to.address,
            key: to.key,
        };
        Ok(self.data_write(room, remote, None))
    }

    /// What has to go before data: whether any may, and entries that the peer must know first.
    fn before_data(&mut self) -> Result<Option<Planned>, Stopped> {
        if !self.state.is_writable() {
            return Err(Stopped::Failed(self.write_error()));
        }
        if self.offers.has_unsent() {
            let write = self.iomap_write().ok_or(Stopped::Wait)?;
            return Ok(Some(Planned { taken: 0, write }));
        }
        if !self.sender.can_send() {
            return Err(Stopped::Wait);
        }
        Ok(None)
    }

    fn write_error(&self) -> Errno {
        match self.state {
            State::Failed => self.error.unwrap_or(Errno::EIO),
            State::ReadOnly | State::Shut | State::Disconnected => ECONNRESET,
            _ => ENOTCONN,
        }
    }

    fn data_write(&mut self, len: u32, remote: Region, message: Option<Message>) -> Planned {
        self.sender.take_slot();
        let (id, source) = if len <= u32::from(self.config.inline) {
            (WorkId::data(0), Source::Caller)
        } else {
            let kept = self.sender.reserve(len);
            (WorkId::data(kept.len), Source::Ring(kept.spans))
        };
        let write = Write {
            id,
            len,
            source,
            remote,
            immediate: message.map(Message::immediate),
        };
        Planned { taken: len, write }
    }

    /// Where the next bytes to read lie, at most `wanted`. They stay until [`Stream::consume`].
    ///
    /// # Errors
    /// [`Stopped`]: nothing there now, or nothing more to come.
    pub fn peek(&self, wanted: u32) -> Result<[Span; 2], Stopped> {
        if self.receiver.unread() != 0 {
            return Ok(self.receiver.peek(wanted));
        }
        Err(match self.state {
            State::Open | State::ReadOnly => Stopped::Wait,
            State::WriteOnly | State::Shut | State::Disconnected => Stopped::End,
            State::Failed => Stopped::Failed(self.error.unwrap_or(Errno::EIO)),
            _ => Stopped::Failed(ENOTCONN),
        })
    }

    /// Bytes that came and are not read.
    #[must_use]
    pub const fn unread(&self) -> u32 {
        self.receiver.unread()
    }

    /// The program has read `len` of the bytes that [`Stream::peek`] showed.
    pub fn consume(&mut self, len: u32) {
        self.receiver.consume(len);
    }

    /// `riomap`: offers `len` bytes of `memory`; the offset by which the peer's program knows them.
    ///
    /// # Errors
    /// ENOTCONN, EINVAL for a range that cannot be, ENOBUFS when the peer's table is full.
    pub fn map(&mut self, memory: Region, len: u32, offset: i64) -> Result<u64, Misuse> {
        if !self.state.is_connected() {
            return Err(NOT_CONNECTED);
        }
        self.offers.map(memory, len, offset)
    }

    /// `riounmap`: the memory that was offered at `offset`.
    ///
    /// # Errors
    /// EINVAL when none was, of this length.
    pub fn unmap(&mut self, offset: u64, len: u32) -> Result<Region, Misuse> {
        self.offers.unmap(offset, len)
    }

    /// Sends a keepalive every `idle_s` seconds from `now` on; 0: none.
    pub fn set_keepalive(&mut self, now: Instant, idle_s: u32) {
        let idle_ns = u64::from(idle_s) * SECOND_NS;
        self.keepalive = (idle_s != 0).then(|| Keepalive {
            idle_ns,
            at: now + idle_ns,
            due: false,
        });
    }

    /// When [`Stream::on_timeout`] wants to be called.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let alive = self.state.is_connected();
        self.keepalive.filter(|_| alive).map(|k| k.at)
    }

    /// It is `now`.
    pub fn on_timeout(&mut self, now: Instant) {
        if let Some(k) = self.keepalive.as_mut().filter(|k| k.at <= now) {
            k.due = true;
            k.at = now + k.idle_ns;
        }
    }

    /// A request has completed, well or not.
    pub fn on_sent(&mut self, id: WorkId, good: bool) {
        if id == WorkId::CONTROL {
            self.sender.control_done();
        } else {
            self.sender.data_done(id.ring_bytes());
        }
        if !good && self.happen(Event::WorkFailed) && self.state == State::Failed {
            self.error = Some(Errno::EIO);
        }
    }

    /// A receive has completed. Receives that are flushed are not handed in.
    pub fn on_received<B: SharedBlock + ?Sized>(&mut self, received: Received, block: &B) {
        if !self.state.is_connected() {
            return;
        }
        self.receives_to_post += 1;
        let outcome = match Message::parse(received.immediate) {
            Message::Data(len) => self.receiver.on_data(len),
            Message::Credit(limit) => self.on_credit(limit, received.len, block),
            Message::Iomap(index) => self.on_iomap(index, block),
            Message::Control(Control::Shutdown) => {
                self.happen(Event::PeerShutdown);
                Ok(())
            }
            Message::Control(Control::Disconnect) => {
                self.happen(Event::PeerDisconnect);
                Ok(())
            }
            Message::Unknown(_) => Err(Violation::UnknownMessage),
        };
        if let Err(violation) = outcome {
            self.on_violation(violation);
        }
    }

    fn on_credit<B>(&mut self, limit: u16, written: u32, block: &B) -> Result<(), Violation>
    where
        B: SharedBlock + ?Sized,
    {
        let honest = self.sender.on_credit(limit);
        if written as usize == TARGET_LEN {
            let mut bytes = [0; TARGET_LEN];
            block.read(self.sender.next_entry() * TARGET_LEN, &mut bytes);
            let entry = TargetEntry::parse(&bytes, self.config.order);
            if !self.sender.on_entry(entry) {
                return Err(Violation::EntryInUse);
            }
        } else if written != 0 {
            return Err(Violation::EntrySize);
        }
        if honest {
            Ok(())
        } else {
            Err(Violation::CreditsBeyondReceives)
        }
    }

    fn on_iomap<B: SharedBlock + ?Sized>(
        &mut self,
        index: u32,
        block: &B,
    ) -> Result<(), Violation> {
        // The sender counted it among its messages. Upstream's receiver never gives that credit
        // back; to a sender it makes no difference which of its messages was read.
        self.receiver.message_read();
        if !self.offered.has(index) {
            return Err(Violation::IomapIndex);
        }
        let at = BLOCK_TARGETS as usize * TARGET_LEN + index as usize * IOMAP_LEN;
        let mut bytes = [0; IOMAP_LEN];
        block.read(at, &mut bytes);
        self.offered
            .put(index, IoEntry::parse(&bytes, self.config.order));
        Ok(())
    }

    fn on_violation(&mut self, violation: Violation) {
        self.violations += 1;
        self.last_violation = Some(violation);
        if violation.is_fatal() && self.happen(Event::PeerViolation) {
            self.error = Some(EPROTO);
        }
    }

    /// What to post next; `None` when there is nothing, or no room for it.
    pub fn poll_work(&mut self) -> Option<Work> {
        let receives = core::mem::take(&mut self.receives_to_post);
        if receives != 0 && !self.is_over() {
            return Some(Work::Receives(receives));
        }
        if !self.state.is_connected() {
            return None;
        }
        self.credit_write()
            .or_else(|| self.state.is_writable().then(|| self.iomap_write())?)
            .or_else(|| self.control_write())
            .or_else(|| self.keepalive_write())
            .map(Work::Write)
    }

    /// Gives back credits and halves of the ring. After our disconnect nobody wants them.
    fn credit_write(&mut self) -> Option<Write> {
        let wanted = self.state != State::Shut && self.receiver.credit_is_due();
        if !wanted || !self.sender.can_control() {
            return None;
        }
        let (limit, entry) = self.receiver.give_credit();
        let message = Message::Credit(limit);
        let Some((index, entry)) = entry else {
            return Some(self.bare_write(Some(message)));
        };
        let bytes = entry.emit(self.peer_order);
        let at = u64::from(index) * TARGET_LEN as u64;
        self.sender.take_control();
        Some(self.entry_write(WorkId::CONTROL, &bytes, at, message))
    }

    /// Tells the peer of memory that it may write directly. Takes a credit, as data do.
    fn iomap_write(&mut self) -> Option<Write> {
        if !self.sender.has_credit() {
            return None;
        }
        let (index, entry) = self.offers.take_unsent()?;
        self.sender.take_credit();
        self.sender.take_slot();
        let bytes = entry.emit(self.peer_order);
        let behind = u64::from(self.peer_targets) * TARGET_LEN as u64;
        let at = behind + u64::from(index) * IOMAP_LEN as u64;
        let message = Message::Iomap(u32::from(index));
        Some(self.entry_write(WorkId::data(0), &bytes, at, message))
    }

    fn control_write(&mut self) -> Option<Write> {
        if !self.sender.can_control() {
            return None;
        }
        let control = self.control.take()?;
        Some(self.bare_write(Some(Message::Control(control))))
    }

    fn keepalive_write(&mut self) -> Option<Write> {
        if !self.sender.can_control() {
            return None;
        }
        let k = self.keepalive.as_mut().filter(|k| k.due)?;
        k.due = false;
        Some(self.bare_write(None))
    }

    /// A control message without bytes.
    fn bare_write(&mut self, message: Option<Message>) -> Write {
        self.sender.take_control();
        Write {
            id: WorkId::CONTROL,
            len: 0,
            source: Source::Nothing,
            remote: Region::default(),
            immediate: message.map(Message::immediate),
        }
    }

    fn entry_write(&self, id: WorkId, entry: &[u8], at: u64, message: Message) -> Write {
        let mut bytes = [0; IOMAP_LEN];
        bytes
            .iter_mut()
            .zip(entry)
            .for_each(|(to, from)| *to = *from);
        Write {
            id,
            len: entry.len() as u32,
            source: Source::Entry(bytes),
            remote: Region {
                address: self.peer_block.address.wrapping_add(at),
                key: self.peer_block.key,
            },
            immediate: Some(message.immediate()),
        }
    }

    /// Makes the move of the table, if there is one.
    fn happen(&mut self, event: Event) -> bool {
        let Step::Go { to, act } = step(self.state, event) else {
            return false;
        };
        self.state = to;
        match act {
            Act::Nothing => {}
            Act::SendShutdown => self.control = Some(Control::Shutdown),
            Act::SendDisconnect => self.control = Some(Control::Disconnect),
        }
        true
    }
}

#[cfg(test)]
mod tests;
