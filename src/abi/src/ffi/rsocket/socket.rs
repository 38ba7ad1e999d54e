//! A socket: how it comes to a connection, and how its calls wait.

use core::ffi::c_int;
use std::collections::VecDeque;
use std::ops::Deref;
use std::os::fd::RawFd;
use std::sync::Arc;

use rocebud_objects::{Errno, Misuse};
use rocebud_rsocket::options::Options;
use rocebud_rsocket::{ConnectData, Event, State, state};
use rocebud_verbs::CompChannel as Sleeper;

use super::super::boundary::Outcome;
use super::super::cm::types::{PS_TCP, rdma_cm_id, rdma_conn_param, rdma_event_channel};
use super::completions::Look;
use super::endpoint::{Endpoint, Role};
use super::news::{self, News, kind};
use super::verbs;
use super::wait::{Place, Waits, watch};
use super::{defaults, keepalive, route};

/// Time for an address to be resolved, as upstream gives it.
const RESOLVE_MS: c_int = 2000;

/// Times a request is sent again; without end when the peer has no receive posted.
const RETRIES: u8 = 7;

/// Requests on their way that a glance leaves to others: those of a question and its answer.
const UNHEARD_MAX: u32 = 4;

/// See the module.
pub(super) struct Socket {
    place: Arc<Place<Inner>>,
    pub(super) domain: c_int,
}

impl Deref for Socket {
    type Target = Arc<Place<Inner>>;
    fn deref(&self) -> &Arc<Place<Inner>> {
        &self.place
    }
}

/// What changes.
pub(super) struct Inner {
    /// Until there is an endpoint, whose stream knows from then on.
    phase: State,
    channel: *mut rdma_event_channel,
    pub(super) id: *mut rdma_cm_id,
    pub(super) endpoint: Option<Endpoint>,
    pub(super) options: Options,
    pub(super) nonblocking: bool,
    /// `RDMA_ROUTE`, until it is used.
    pub(super) route: Vec<u8>,
    error: Option<Errno>,
    /// What the peer of a connection that is being accepted offered.
    offer: Option<ConnectData>,
    /// Connections that wait for `raccept`.
    requests: VecDeque<Request>,
    /// A thread waits on the descriptors; others wait for it.
    sleeping: bool,
    /// The connection manager has gone.
    deaf: bool,
    closed: bool,
}

// SAFETY: verbs objects and identifiers may be used on any thread.
unsafe impl Send for Inner {}

/// A peer that wants a connection, and speaks rsockets.
struct Request {
    id: *mut rdma_cm_id,
    offer: ConnectData,
}

const LISTEN_FIRST: Misuse = Misuse::invalid("raccept: the socket does not listen");

impl Socket {
    /// A new stream socket.
    pub(super) fn new(domain: c_int, nonblocking: bool) -> Outcome<Arc<Self>> {
        // SAFETY: no arguments.
        let channel = unsafe { verbs::rdma_create_event_channel() };
        let channel = verbs::made(channel, "no event channel for the socket")?;
        let mut id = core::ptr::null_mut();
        let none = core::ptr::null_mut();
        // SAFETY: a living channel, and room for the identifier.
        let code = unsafe { verbs::rdma_create_id(channel, &raw mut id, none, PS_TCP) };
        if let Err(e) = verbs::checked(code, "no identifier for the socket") {
            // SAFETY: made just now, without identifiers.
            unsafe { verbs::rdma_destroy_event_channel(channel) };
            return Err(e);
        }
        Ok(Self::of(
            domain,
            channel,
            id,
            defaults::options(),
            nonblocking,
        ))
    }

    fn of(
        domain: c_int,
        channel: *mut rdma_event_channel,
        id: *mut rdma_cm_id,
        options: Options,
        nonblocking: bool,
    ) -> Arc<Self> {
        // SAFETY: a living channel.
        let fd = unsafe { (*channel).fd };
        verbs::never_wait(fd);
        let inner = Inner {
            phase: State::Init,
            channel,
            id,
            endpoint: None,
            options,
            nonblocking,
            route: Vec::new(),
            error: None,
            offer: None,
            requests: VecDeque::new(),
            sleeping: false,
            deaf: false,
            closed: false,
        };
        Arc::new(Self {
            place: Place::new(fd, inner),
            domain,
        })
    }
}

impl Waits for Inner {
    fn look(&mut self, how: Look) {
        let state = self.state();
        if state.is_opening() || (state == State::Listening && self.requests.is_empty()) {
            self.hear();
        }
        if let Some(endpoint) = self
            .endpoint
            .as_mut()
            .filter(|e| e.stream.state().is_connected())
        {
            // A program that only sends must hear what comes back, too.
            let many = endpoint.stream.in_flight() > UNHEARD_MAX;
            endpoint.look(if many { Look::Pump } else { how });
        }
    }

    /// Takes events of the connection manager until there are none.
    fn hear(&mut self) {
        while !self.deaf && !self.closed {
            match news::next(self.channel) {
                Ok(news) => self.on_news(news),
                Err(e) if e.errno == Errno::EAGAIN => return,
                Err(_) => {
                    self.deaf = true;
                    self.lost();
                }
            }
            if !self.requests.is_empty() {
                // The rest counts against the backlog until it is asked for.
                return;
            }
        }
    }

    fn arm(&mut self) {
        if let Some(endpoint) = &self.endpoint {
            endpoint.completions().arm();
        }
        self.look(Look::Glance);
    }

    /// The event channel, and completions.
    fn descriptors(&self, channel: RawFd, into: &mut Vec<libc::pollfd>) {
        into.push(watch(if self.deaf { -1 } else { channel }));
        let completions = self.endpoint.as_ref().map(Endpoint::completions);
        into.extend(completions.map(|c| watch(c.fd())));
    }

    fn sleeper(&self) -> Option<Sleeper> {
        let endpoint = self.endpoint.as_ref();
        endpoint.and_then(|e| e.completions().sleeper())
    }

    fn woken(&mut self, fds: &[libc::pollfd]) {
        let mut is_ready = fds.iter().map(|f| f.revents != 0);
        let (events, completions) = (is_ready.next(), is_ready.next());
        if let Some(endpoint) = &self.endpoint {
            endpoint.completions().disarm();
            if completions == Some(true) {
                endpoint.completions().take_events();
            }
        }
        if events == Some(true) && self.state() != State::Listening {
            self.hear();
        }
    }

    fn is_closed(&self) -> bool {
        self.closed
    }

    fn sleeping(&mut self) -> &mut bool {
        &mut self.sleeping
    }
}

impl Inner {
    pub(super) fn state(&self) -> State {
        self.endpoint
            .as_ref()
            .map_or(self.phase, |e| e.stream.state())
    }

    /// The pending error, which is told once.
    pub(super) fn take_error(&mut self) -> Option<Errno> {
        let of_stream = self.endpoint.as_mut().and_then(|e| e.stream.take_error());
        of_stream.or_else(|| self.error.take())
    }

    /// Makes a move that the program asked for; its errno if it cannot be now.
    pub(super) fn ask(&mut self, event: Event) -> Outcome<()> {
        match state::step(self.state(), event) {
            state::Step::Go { to, .. } => {
                self.phase = to;
                Ok(())
            }
            state::Step::Stay => Ok(()),
            state::Step::Refuse(errno) => {
                Err(Misuse::new(errno, "not in the state that the socket is in"))
            }
        }
    }

    /// Takes back a move whose call failed.
    pub(super) fn back_to(&mut self, phase: State) {
        self.phase = phase;
    }

    fn on_news(&mut self, news: News) {
        let outcome = match news.kind {
            kind::CONNECT_REQUEST => {
                self.on_request(news);
                Ok(())
            }
            kind::ADDR_RESOLVED => self.address_resolved(),
            kind::ROUTE_RESOLVED => self.route_resolved(),
            kind::ESTABLISHED => self.established(&news),
            kind::ADDR_ERROR
            | kind::ROUTE_ERROR
            | kind::CONNECT_ERROR
            | kind::UNREACHABLE
            | kind::REJECTED => Err(Misuse::new(news.why(), "no connection came about")),
            kind::DISCONNECTED | kind::DEVICE_REMOVAL => {
                self.lost();
                Ok(())
            }
            _ => Ok(()),
        };
        if let Err(e) = outcome {
            self.refused(e.errno);
        }
    }

    /// No connection came about.
    fn refused(&mut self, errno: Errno) {
        if let Some(endpoint) = &mut self.endpoint {
            endpoint.stream.refused(errno);
            return;
        }
        if self.phase.is_opening() {
            self.phase = State::ConnectFailed;
            self.error = Some(errno);
        }
    }

    /// The connection has ended, or its manager.
    fn lost(&mut self) {
        let Some(endpoint) = &mut self.endpoint else {
            self.refused(ECONNRESET);
            return;
        };
        // What came before is the program's.
        endpoint.pump();
        if endpoint.stream.state().is_opening() {
            endpoint.stream.refused(ECONNRESET);
        }
        endpoint.stream.connection_lost();
        self.hang_up();
    }

    /// Moves the queue pair to Err.
    fn hang_up(&self) {
        // SAFETY: a living identifier with a queue pair.
        unsafe { verbs::rdma_disconnect(self.id) };
    }

    /// `rconnect`: asks for the address.
    pub(super) fn resolve(&mut self, to: *const u8) -> Outcome<()> {
        let none = core::ptr::null();
        // SAFETY: a living identifier, and an address of the program's.
        let code = unsafe { verbs::rdma_resolve_addr(self.id, none, to, RESOLVE_MS) };
        verbs::checked(code, "rconnect: the address could not be resolved")
    }

    fn address_resolved(&mut self) -> Outcome<()> {
        self.ask(Event::AddressResolved)?;
        route::resolve(self, RESOLVE_MS)
    }

    fn route_resolved(&mut self) -> Outcome<()> {
        self.ask(Event::RouteResolved)?;
        let endpoint = Endpoint::new(self.id, self.options.config, Role::Active)?;
        let data = endpoint.stream.connect_data().emit();
        self.endpoint = Some(endpoint);
        let param = param(&data);
        // SAFETY: a living identifier; the parameters live through the call.
        let code = unsafe { verbs::rdma_connect(self.id, &raw const param) };
        verbs::checked(code, "rconnect: the request could not be sent")
    }

    fn established(&mut self, news: &News) -> Outcome<()> {
        let offer = match self.offer.take() {
            Some(offer) => Ok(offer),
            None => ConnectData::parse(&news.private_data),
        };
        let Some(endpoint) = &mut self.endpoint else {
            return Ok(());
        };
        match offer {
            Ok(offer) => {
                endpoint.stream.established(&offer);
                endpoint.pump();
                self.keep_alive();
                Ok(())
            }
            Err(_) => {
                self.hang_up();
                Err(Misuse::new(
                    Errno::EOPNOTSUPP,
                    "the peer does not speak rsockets (or another version)",
                ))
            }
        }
    }

    /// Follows `SO_KEEPALIVE` and `TCP_KEEPIDLE`.
    pub(super) fn keep_alive(&mut self) {
        let idle_s = match self.options.keepalive {
            true => self.options.keep_idle_s,
            false => 0,
        };
        if let Some(endpoint) = &mut self.endpoint {
            endpoint.stream.set_keepalive(keepalive::now(), idle_s);
            if idle_s != 0 {
                keepalive::start();
            }
        }
    }

    /// Nothing will come any more to a socket that listens.
    pub(super) const fn is_deaf(&self) -> bool {
        self.deaf
    }

    /// A peer wants a connection: one that speaks rsockets waits for `raccept`.
    fn on_request(&mut self, news: News) {
        match ConnectData::parse(&news.private_data) {
            Ok(offer) => self.requests.push_back(Request { id: news.id, offer }),
            Err(_) => reject(news.id),
        }
    }

    /// A connection is there for `raccept`.
    pub(super) fn has_request(&self) -> bool {
        !self.requests.is_empty()
    }

    /// `raccept`: a socket for the connection that waits longest. `None`: there is none.
    pub(super) fn accept(&mut self, domain: c_int) -> Option<Outcome<Arc<Socket>>> {
        if self.phase != State::Listening {
            return Some(Err(LISTEN_FIRST));
        }
        let request = self.requests.pop_front()?;
        let (id, options) = (request.id, self.options);
        let made = Self::adopt(id, domain, options);
        let socket = match made {
            Ok(socket) => socket,
            Err(e) => {
                reject(id);
                return Some(Err(e));
            }
        };
        let begun = socket.lock().answer(request.offer);
        if let Err(e) = begun {
            socket.close();
            return Some(Err(e));
        }
        Some(Ok(socket))
    }

    /// Gives an identifier a channel and a socket of its own.
    fn adopt(id: *mut rdma_cm_id, domain: c_int, options: Options) -> Outcome<Arc<Socket>> {
        // SAFETY: no arguments.
        let channel = unsafe { verbs::rdma_create_event_channel() };
        let channel = verbs::made(channel, "no event channel for the socket")?;
        // SAFETY: a living identifier without events that wait to be acknowledged.
        let code = unsafe { verbs::rdma_migrate_id(id, channel) };
        if let Err(e) = verbs::checked(code, "raccept: no channel for the connection") {
            // SAFETY: made just now, without identifiers.
            unsafe { verbs::rdma_destroy_event_channel(channel) };
            return Err(e);
        }
        Ok(Socket::of(domain, channel, id, options, false))
    }

    /// Sends the REP.
    fn answer(&mut self, offer: ConnectData) -> Outcome<()> {
        self.ask(Event::Accept)?;
        let endpoint = Endpoint::new(self.id, self.options.config, Role::Passive)?;
        let data = endpoint.stream.connect_data().emit();
        self.endpoint = Some(endpoint);
        self.offer = Some(offer);
        let param = param(&data);
        // SAFETY: a living identifier; the parameters live through the call.
        let code = unsafe { verbs::rdma_accept(self.id, &raw const param) };
        verbs::checked(code, "raccept: the answer could not be sent")
    }

    /// `rshutdown`: ends a direction, or both.
    pub(super) fn shutdown(&mut self, how: Event) {
        if let Some(endpoint) = &mut self.endpoint {
            endpoint.stream.shutdown(how);
            endpoint.work();
        }
    }

    /// What was sent has arrived, or never will.
    pub(super) fn is_quiet(&self) -> bool {
        self.endpoint.as_ref().is_none_or(|e| e.stream.is_quiet())
    }

    /// After a shutdown on both sides nothing is to come on the queue pair.
    pub(super) fn settle(&self) {
        if self.endpoint.is_some() && self.state() == State::Disconnected {
            self.hang_up();
        }
    }

    fn destroy(&mut self) {
        self.closed = true;
        for request in self.requests.drain(..) {
            reject(request.id);
        }
        if let Some(endpoint) = self.endpoint.take() {
            endpoint.close();
        }
        // SAFETY: the socket's own identifier; nothing of it is left.
        unsafe { verbs::rdma_destroy_id(self.id) };
        // SAFETY: its identifier has gone.
        unsafe { verbs::rdma_destroy_event_channel(self.channel) };
    }
}

impl Socket {
    /// Destroys what is left. Other threads that wait here find it closed.
    pub(super) fn close(&self) {
        let mut inner = self.lock();
        if !inner.closed {
            inner.destroy();
        }
        self.stir();
    }
}

pub(super) const ECONNRESET: Errno = Errno(libc::ECONNRESET);

fn reject(id: *mut rdma_cm_id) {
    // SAFETY: an identifier of a request that nobody else has; no private data.
    unsafe { verbs::rdma_reject(id, core::ptr::null(), 0) };
    // SAFETY: as above.
    unsafe { verbs::rdma_destroy_id(id) };
}

fn param(data: &[u8]) -> rdma_conn_param {
    rdma_conn_param {
        private_data: data.as_ptr(),
        private_data_len: u8::try_from(data.len()).unwrap_or(0),
        responder_resources: 0,
        initiator_depth: 0,
        flow_control: 1,
        retry_count: RETRIES,
        rnr_retry_count: RETRIES,
        srq: 0,
        qp_num: 0,
    }
}
