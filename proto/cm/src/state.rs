//! The life of a connection as a table: in which state, on what, does which things, and is where
//! then. What the table does not name is nothing: a message is counted, a call refused.

use State::*;

/// Where a connection or a question for a service is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum State {
    /// Active: asked.
    ReqSent,
    /// Active: the peer's application thinks.
    MraReqRcvd,
    /// Active: accepted; our queue pair moves.
    RepRcvd,
    /// Active: that takes so long that the peer asked again.
    MraRepSent,
    /// Passive: asked; our application thinks.
    ReqRcvd,
    /// Passive: it thinks so long that the peer asked again.
    MraReqSent,
    /// Passive: accepted.
    RepSent,
    /// Passive: the peer's application moves its queue pair.
    MraRepRcvd,
    /// Both: in use.
    Established,
    /// Both: we want to end it.
    DreqSent,
    /// Both: ended; the queue pair number rests.
    TimeWait,
    /// Active: asked for a datagram service.
    SidrReqSent,
    /// Passive: asked for a datagram service; our application thinks.
    SidrReqRcvd,
}

impl State {
    /// All states.
    pub const ALL: &[Self] = &[
        ReqSent,
        MraReqRcvd,
        RepRcvd,
        MraRepSent,
        ReqRcvd,
        MraReqSent,
        RepSent,
        MraRepRcvd,
        Established,
        DreqSent,
        TimeWait,
        SidrReqSent,
        SidrReqRcvd,
    ];
}

/// What moves a connection.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Input {
    /// The REQ of this connection once more.
    Req,
    /// An MRA for our REQ.
    MraReq,
    /// An MRA for our REP.
    MraRep,
    /// A REP for our REQ, or the same once more.
    Rep,
    /// An RTU.
    Rtu,
    /// A REJ with any reason but stale.
    Rej,
    /// A REJ: the peer still knows an older connection of our queue pair.
    RejStale,
    /// A DREQ.
    Dreq,
    /// A DREP.
    Drep,
    /// A LAP.
    Lap,
    /// The SIDR_REQ of this question once more.
    SidrReq,
    /// The SIDR_REP to our question.
    SidrRep,
    /// The peer uses the queue pair of this connection for a new one.
    Stale,
    /// The application accepts.
    Accept,
    /// The application (or the library) has moved its queue pair.
    Establish,
    /// Data came on the queue pair.
    CommEstablished,
    /// The application refuses.
    Reject,
    /// The application disconnects.
    Disconnect,
    /// The application answers a question.
    SidrReply,
    /// The owner is dead, or does not want to hear of it any more.
    Forget,
    /// The time to repeat, or the end of time-wait, has come.
    Timer,
    /// Repeated often enough.
    GiveUp,
}

impl Input {
    /// All inputs.
    pub const ALL: &[Self] = &[
        Self::Req,
        Self::MraReq,
        Self::MraRep,
        Self::Rep,
        Self::Rtu,
        Self::Rej,
        Self::RejStale,
        Self::Dreq,
        Self::Drep,
        Self::Lap,
        Self::SidrReq,
        Self::SidrRep,
        Self::Stale,
        Self::Accept,
        Self::Establish,
        Self::CommEstablished,
        Self::Reject,
        Self::Disconnect,
        Self::SidrReply,
        Self::Forget,
        Self::Timer,
        Self::GiveUp,
    ];
}

/// A thing to do.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Act {
    /// Send the message that the call has made, and repeat it until it is answered.
    Send,
    /// Send the message that the call has made, once.
    SendOnce,
    /// Send the last message again.
    Again,
    /// Ask the peer for patience, about its REQ or REP.
    SendMra,
    /// Refuse: as the application wants, or because it went away.
    SendRej,
    /// Refuse: waited long enough.
    SendRejTimeout,
    /// Refuse a REQ whose connection is over.
    SendRejStale,
    /// Ask to end the connection, and repeat it until it is answered.
    SendDreq,
    /// Agree to the end.
    SendDrep,
    /// Refuse another path.
    SendApr,
    /// Refuse a question.
    SendSidrReject,
    /// Wait as long as the MRA says.
    Wait,
    /// Tell the application.
    RaiseReply,
    /// Tell the application.
    RaiseEstablished,
    /// Tell the application, with the peer's reason.
    RaiseRejected,
    /// Tell the application, with reason stale: the peer has begun anew.
    RaiseStale,
    /// Tell the application.
    RaiseUnreachable,
    /// Tell the application.
    RaiseDisconnected,
    /// Tell the application that the peer did not answer its wish.
    RaiseDisconnectTimeout,
    /// Tell the application.
    RaiseSidrReply,
    /// Forget the connection.
    Leave,
}

/// What to do, and where the connection is then.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Step {
    /// In this order.
    pub acts: &'static [Act],
    /// The state after it.
    pub to: State,
}

struct Rule {
    from: &'static [State],
    on: &'static [Input],
    acts: &'static [Act],
    /// None = where it was.
    to: Option<State>,
}

const fn rule(
    from: &'static [State],
    on: &'static [Input],
    acts: &'static [Act],
    to: Option<State>,
) -> Rule {
    Rule { from, on, acts, to }
}

const ASKED: &[State] = &[ReqSent, MraReqRcvd];
const REPLIED: &[State] = &[RepRcvd, MraRepSent];
const ASKING: &[State] = &[ReqRcvd, MraReqSent];
const ACCEPTED: &[State] = &[RepSent, MraRepRcvd];

/// The table. The first rule that fits counts.
#[rustfmt::skip]
const RULES: &[Rule] = {
    use Act::*;
    use Input as On;
    &[
        // Active: REQ out, REP in, RTU out.
        rule(ASKED, &[On::MraReq], &[Wait], Some(MraReqRcvd)),
        rule(ASKED, &[On::Rep], &[RaiseReply], Some(RepRcvd)),
        rule(ASKED, &[On::Rej], &[RaiseRejected, Leave], None),
        // The peer still knows our queue pair from an older connection, so its number rests.
        rule(ASKED, &[On::RejStale], &[RaiseRejected], Some(TimeWait)),
        rule(ASKED, &[On::Timer], &[Again], None),
        rule(ASKED, &[On::GiveUp], &[RaiseUnreachable, Leave], None),
        // Nothing is said about an id that the peer has not named yet. Its REP will find nobody.
        rule(&[ReqSent], &[On::Forget], &[Leave], None),
        rule(&[MraReqRcvd], &[On::Forget], &[SendRejTimeout, Leave], None),
        rule(REPLIED, &[On::Rep], &[SendMra], Some(MraRepSent)),
        rule(REPLIED, &[On::Establish], &[SendOnce], Some(Established)),
        rule(REPLIED, &[On::Reject, On::Forget], &[SendRej, Leave], None),
        rule(REPLIED, &[On::Rej, On::RejStale], &[RaiseRejected], Some(TimeWait)),
        // Passive: REQ in, REP out, RTU in.
        rule(ASKING, &[On::Req], &[SendMra], Some(MraReqSent)),
        rule(ASKING, &[On::Accept], &[Send], Some(RepSent)),
        rule(ASKING, &[On::Reject, On::Forget], &[SendRej, Leave], None),
        rule(ASKING, &[On::Rej], &[RaiseRejected, Leave], None),
        rule(ASKING, &[On::RejStale], &[RaiseRejected], Some(TimeWait)),
        rule(ASKING, &[On::Stale], &[RaiseStale, Leave], None),
        rule(&[RepSent], &[On::Req], &[Again], None),
        rule(ACCEPTED, &[On::MraRep], &[Wait], Some(MraRepRcvd)),
        rule(ACCEPTED, &[On::Rtu, On::CommEstablished], &[RaiseEstablished], Some(Established)),
        rule(ACCEPTED, &[On::Dreq], &[SendDrep, RaiseDisconnected], Some(TimeWait)),
        rule(ACCEPTED, &[On::Rej], &[RaiseRejected, Leave], None),
        rule(ACCEPTED, &[On::RejStale], &[RaiseRejected], Some(TimeWait)),
        rule(ACCEPTED, &[On::Stale], &[RaiseStale, Leave], None),
        rule(ACCEPTED, &[On::Reject, On::Forget], &[SendRej], Some(TimeWait)),
        rule(ACCEPTED, &[On::Timer], &[Again], None),
        rule(ACCEPTED, &[On::GiveUp], &[SendRejTimeout, RaiseUnreachable, Leave], None),
        // Both: in use, and the end of it.
        rule(&[Established], &[On::Rep], &[Again], None),
        rule(&[Established], &[On::CommEstablished], &[], None),
        rule(&[Established], &[On::Disconnect, On::Forget, On::Stale], &[SendDreq], Some(DreqSent)),
        rule(&[Established], &[On::Lap], &[SendApr], None),
        rule(&[Established, DreqSent], &[On::Dreq], &[SendDrep, RaiseDisconnected], Some(TimeWait)),
        rule(&[Established], &[On::Rej, On::RejStale], &[RaiseRejected], Some(TimeWait)),
        rule(&[DreqSent], &[On::Drep, On::Rej, On::RejStale], &[RaiseDisconnected], Some(TimeWait)),
        rule(&[DreqSent], &[On::Timer], &[Again], None),
        rule(&[DreqSent], &[On::GiveUp], &[RaiseDisconnectTimeout], Some(TimeWait)),
        rule(&[DreqSent, TimeWait], &[On::Disconnect, On::Forget, On::CommEstablished], &[], None),
        rule(&[TimeWait], &[On::Dreq], &[SendDrep], None),
        rule(&[TimeWait], &[On::Req], &[SendRejStale], None),
        rule(&[TimeWait], &[On::Timer, On::GiveUp], &[Leave], None),
        // Datagram services.
        rule(&[SidrReqSent], &[On::SidrRep], &[RaiseSidrReply, Leave], None),
        rule(&[SidrReqSent], &[On::Timer], &[Again], None),
        rule(&[SidrReqSent], &[On::GiveUp], &[RaiseUnreachable, Leave], None),
        rule(&[SidrReqSent], &[On::Forget], &[Leave], None),
        rule(&[SidrReqRcvd], &[On::SidrReply], &[SendOnce, Leave], None),
        rule(&[SidrReqRcvd], &[On::Forget], &[SendSidrReject, Leave], None),
    ]
};

/// What a connection in `state` does on `input`; None = nothing.
#[must_use]
pub fn step(state: State, input: Input) -> Option<Step> {
    let rule = RULES
        .iter()
        .find(|rule| rule.from.contains(&state) && rule.on.contains(&input))?;
    Some(Step {
        acts: rule.acts,
        to: rule.to.unwrap_or(state),
    })
}
