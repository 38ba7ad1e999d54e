//! States of a stream socket, what may happen in each, and what follows: one table.
//!
//! A pair of state and event without a line changes nothing; for a call of the program
//! [`step`] then says which errno it gets.

use rocebud_objects::Errno;

/// State of a stream socket.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum State {
    /// Made.
    Init,
    /// Has an address.
    Bound,
    /// Takes connections.
    Listening,
    /// `rconnect` asks for the address.
    ResolvingAddress,
    /// `rconnect` asks for the route.
    ResolvingRoute,
    /// The REQ is out.
    Connecting,
    /// The REP is out.
    Accepting,
    /// `rconnect` came to nothing; `SO_ERROR` says why.
    ConnectFailed,
    /// Both directions.
    Open,
    /// We have said that we send no more.
    ReadOnly,
    /// The peer sends no more, or we do not care for it.
    WriteOnly,
    /// Neither direction; our disconnect is on its way.
    Shut,
    /// Over. What came before stays readable.
    Disconnected,
    /// Broken: a request failed, or the peer broke the protocol.
    Failed,
}

/// What happens to a stream socket.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Event {
    /// The program calls `rbind`.
    Bind,
    /// The program calls `rlisten`.
    Listen,
    /// The program calls `rconnect`.
    Connect,
    /// The socket was made for a request that a listener took.
    Accept,
    /// The address is known.
    AddressResolved,
    /// The route is known.
    RouteResolved,
    /// REP or RTU came, and the peer's offer is good.
    Established,
    /// Rejected, unreachable, no route, no offer that one can work with.
    ConnectRefused,
    /// `rshutdown(SHUT_RD)`.
    ShutdownRead,
    /// `rshutdown(SHUT_WR)`.
    ShutdownWrite,
    /// `rshutdown(SHUT_RDWR)` or `rclose`.
    ShutdownBoth,
    /// The peer sends no more.
    PeerShutdown,
    /// The peer has closed.
    PeerDisconnect,
    /// The connection manager says that the connection has ended.
    ConnectionLost,
    /// A request completed with an error.
    WorkFailed,
    /// The peer broke the protocol so that nothing it says can be trusted.
    PeerViolation,
}

/// What a move makes one send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Act {
    /// Nothing.
    Nothing,
    /// CTRL 2.
    SendShutdown,
    /// CTRL 0.
    SendDisconnect,
}

/// One line of the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Move {
    /// In this state,
    pub from: State,
    /// when this happens,
    pub on: Event,
    /// go there
    pub to: State,
    /// and do this.
    pub act: Act,
}

/// What an event does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// A line of the table.
    Go {
        /// The new state.
        to: State,
        /// What to send.
        act: Act,
    },
    /// Nothing.
    Stay,
    /// The program asked for what cannot be now.
    Refuse(Errno),
}

const fn go(from: State, on: Event, to: State) -> Move {
    send(from, on, to, Act::Nothing)
}

const fn send(from: State, on: Event, to: State, act: Act) -> Move {
    Move { from, on, to, act }
}

use Act::{SendDisconnect, SendShutdown};
use Event as E;
use State as S;

/// Every move.
pub const MOVES: &[Move] = &[
    // Before a connection. rlisten and rconnect bind by themselves.
    go(S::Init, E::Bind, S::Bound),
    go(S::Init, E::Listen, S::Listening),
    go(S::Bound, E::Listen, S::Listening),
    go(S::Listening, E::Listen, S::Listening),
    go(S::Init, E::Accept, S::Accepting),
    go(S::Init, E::Connect, S::ResolvingAddress),
    go(S::Bound, E::Connect, S::ResolvingAddress),
    go(S::ResolvingAddress, E::AddressResolved, S::ResolvingRoute),
    go(S::ResolvingRoute, E::RouteResolved, S::Connecting),
    go(S::Connecting, E::Established, S::Open),
    go(S::Accepting, E::Established, S::Open),
    go(S::ResolvingAddress, E::ConnectRefused, S::ConnectFailed),
    go(S::ResolvingRoute, E::ConnectRefused, S::ConnectFailed),
    go(S::Connecting, E::ConnectRefused, S::ConnectFailed),
    go(S::Accepting, E::ConnectRefused, S::ConnectFailed),
    go(S::Connecting, E::ConnectionLost, S::ConnectFailed),
    go(S::Accepting, E::ConnectionLost, S::ConnectFailed),
    // We end a direction, or both.
    go(S::Open, E::ShutdownRead, S::WriteOnly),
    send(S::ReadOnly, E::ShutdownRead, S::Shut, SendDisconnect),
    send(S::Open, E::ShutdownWrite, S::ReadOnly, SendShutdown),
    send(S::WriteOnly, E::ShutdownWrite, S::Shut, SendDisconnect),
    send(S::Open, E::ShutdownBoth, S::Shut, SendDisconnect),
    send(S::ReadOnly, E::ShutdownBoth, S::Shut, SendDisconnect),
    send(S::WriteOnly, E::ShutdownBoth, S::Shut, SendDisconnect),
    // The peer does.
    go(S::Open, E::PeerShutdown, S::WriteOnly),
    go(S::ReadOnly, E::PeerShutdown, S::Disconnected),
    go(S::Shut, E::PeerShutdown, S::Disconnected),
    go(S::Open, E::PeerDisconnect, S::Disconnected),
    go(S::ReadOnly, E::PeerDisconnect, S::Disconnected),
    go(S::WriteOnly, E::PeerDisconnect, S::Disconnected),
    go(S::Shut, E::PeerDisconnect, S::Disconnected),
    // It ends without a word.
    go(S::Open, E::ConnectionLost, S::Disconnected),
    go(S::ReadOnly, E::ConnectionLost, S::Disconnected),
    go(S::WriteOnly, E::ConnectionLost, S::Disconnected),
    go(S::Shut, E::ConnectionLost, S::Disconnected),
    // Accounts that do not add up any more.
    go(S::Open, E::WorkFailed, S::Failed),
    go(S::ReadOnly, E::WorkFailed, S::Failed),
    go(S::WriteOnly, E::WorkFailed, S::Failed),
    // our last message may go unanswered: the peer has gone, which is what we asked for
    go(S::Shut, E::WorkFailed, S::Disconnected),
    go(S::Open, E::PeerViolation, S::Failed),
    go(S::ReadOnly, E::PeerViolation, S::Failed),
    go(S::WriteOnly, E::PeerViolation, S::Failed),
    go(S::Shut, E::PeerViolation, S::Failed),
];

/// What `on` does in `from`.
#[must_use]
pub fn step(from: State, on: Event) -> Step {
    match MOVES.iter().find(|m| m.from == from && m.on == on) {
        Some(&Move { to, act, .. }) => Step::Go { to, act },
        None => refusal(from, on).map_or(Step::Stay, Step::Refuse),
    }
}

/// The errno of a call that has no line. What the peer or the network does is never refused, nor
/// is `rshutdown`, which upstream lets pass in any state.
fn refusal(from: State, on: Event) -> Option<Errno> {
    match on {
        E::Bind | E::Listen | E::Accept => Some(Errno::EINVAL),
        E::Connect => Some(match from {
            S::ResolvingAddress | S::ResolvingRoute | S::Connecting | S::Accepting => EALREADY,
            S::Open | S::ReadOnly | S::WriteOnly | S::Shut | S::Listening => EISCONN,
            _ => Errno::EINVAL,
        }),
        _ => None,
    }
}

pub(crate) const EALREADY: Errno = Errno(114);
pub(crate) const EISCONN: Errno = Errno(106);

impl State {
    /// There is a queue pair that carries messages.
    #[must_use]
    pub const fn is_connected(self) -> bool {
        matches!(
            self,
            Self::Open | Self::ReadOnly | Self::WriteOnly | Self::Shut
        )
    }

    /// More data may come.
    #[must_use]
    pub const fn is_readable(self) -> bool {
        matches!(self, Self::Open | Self::ReadOnly)
    }

    /// The program may send.
    #[must_use]
    pub const fn is_writable(self) -> bool {
        matches!(self, Self::Open | Self::WriteOnly)
    }

    /// A connection is being made.
    #[must_use]
    pub const fn is_opening(self) -> bool {
        matches!(
            self,
            Self::ResolvingAddress | Self::ResolvingRoute | Self::Connecting | Self::Accepting
        )
    }

    /// Every state, in the order of a socket's life.
    pub const ALL: [Self; 14] = [
        Self::Init,
        Self::Bound,
        Self::Listening,
        Self::ResolvingAddress,
        Self::ResolvingRoute,
        Self::Connecting,
        Self::Accepting,
        Self::ConnectFailed,
        Self::Open,
        Self::ReadOnly,
        Self::WriteOnly,
        Self::Shut,
        Self::Disconnected,
        Self::Failed,
    ];
}

impl Event {
    /// Every event.
    pub const ALL: [Self; 16] = [
        Self::Bind,
        Self::Listen,
        Self::Connect,
        Self::Accept,
        Self::AddressResolved,
        Self::RouteResolved,
        Self::Established,
        Self::ConnectRefused,
        Self::ShutdownRead,
        Self::ShutdownWrite,
        Self::ShutdownBoth,
        Self::PeerShutdown,
        Self::PeerDisconnect,
        Self::ConnectionLost,
        Self::WorkFailed,
        Self::PeerViolation,
    ];
}

#[cfg(test)]
mod tests;
