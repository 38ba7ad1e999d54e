//! Identifiers: what a program holds, what the daemon calls it, and how many of its events are out.

use core::ffi::{c_int, c_uint, c_void};
use core::mem::offset_of;
use std::collections::HashMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use rocebud_objects::{Errno, Misuse};
use rocebud_verbs::cm::{CmAnswer, CmEce, CmPath, CmRequest, CmRoute, Manager, refusal};

use super::super::boundary::{MinusOne, NULL, Outcome, enter};
use super::super::handle::Head;
use super::super::types::{Plain, ibv_context, ibv_gid, ibv_pd, ibv_qp, ibv_qp_init_attr};
use super::address;
use super::channel::Channel;
use super::device;
use super::multicast::Membership;
use super::types::{
    PS_IB, PS_IPOIB, PS_TCP, PS_UDP, RC, UD, ibv_sa_path_rec, rdma_addr, rdma_addrinfo,
    rdma_cm_event, rdma_cm_id, rdma_event_channel, rdma_ib_addr, rdma_route, sockaddr_storage,
};

/// `struct rdma_cm_id`, and what is ours behind it.
#[repr(C)]
pub(super) struct Id {
    pub(super) head: Head<rdma_cm_id>,
    pub(super) manager: Manager,
    /// The daemon's number.
    pub(super) number: u32,
    state: Mutex<State>,
    /// Somebody acknowledged an event.
    acked: Condvar,
}

/// What changes in the course of a connection.
#[derive(Debug, Default)]
pub(super) struct State {
    /// Calls wait for their events; the channel is this identifier's own.
    pub(super) sync: bool,
    /// Events taken and acknowledged: what a destroy waits for when the daemon, which counts what
    /// it gave out, is gone.
    given: u32,
    completed: u32,
    /// It is being destroyed: no event names it any more.
    ending: bool,
    /// The program was told that its device is gone.
    pub(super) removed: bool,
    /// The queue pair could not be moved: what follows on the wire is not the program's business.
    pub(super) connect_error: bool,
    pub(super) initiator_depth: u8,
    pub(super) responder_resources: u8,
    pub(super) local_ece: CmEce,
    pub(super) remote_ece: CmEce,
    /// Private data of `rdma_addrinfo` that goes in front of the program's.
    pub(super) connect: Vec<u8>,
    pub(super) memberships: Vec<Membership>,
    /// For the queue pairs of `rdma_get_request`.
    pub(super) qp_init: Option<Init>,
    /// It is bound to the AF_IB wildcard.
    pub(super) ib: Option<address::IbAny>,
    /// The answer of `rdma_resolve_addrinfo`.
    pub(super) resolved: Resolved,
}

/// Where a `rdma_resolve_addrinfo` is.
#[derive(Debug, Default)]
pub(super) enum Resolved {
    #[default]
    No,
    Yes(AddrInfo),
}

/// A list of `rdma_addrinfo` of ours.
#[derive(Debug)]
pub(super) struct AddrInfo(pub(super) *mut rdma_addrinfo);
// SAFETY: memory that whoever holds this owns.
unsafe impl Send for AddrInfo {}

/// `struct ibv_qp_init_attr` of a listening endpoint.
#[derive(Clone, Copy)]
pub(super) struct Init(pub(super) ibv_qp_init_attr);
// SAFETY: its pointers are verbs objects, which may be used on any thread.
unsafe impl Send for Init {}
impl core::fmt::Debug for Init {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Init")
    }
}

/// Reads a field of the C structure.
macro_rules! see {
    ($id:expr, $field:ident: $ty:ty) => {
        $id.head
            .field::<$ty>(core::mem::offset_of!(super::types::rdma_cm_id, $field))
    };
}
/// Writes a field of the C structure.
macro_rules! show {
    ($id:expr, $field:ident: $ty:ty = $value:expr) => {
        $id.head.set_field::<$ty>(
            core::mem::offset_of!(super::types::rdma_cm_id, $field),
            $value,
        )
    };
}
pub(super) use {see, show};

/// A pointer to an identifier in the table of all.
#[derive(Clone, Copy)]
struct Known(*mut Id);
// SAFETY: identifiers may be used on any thread.
unsafe impl Send for Known {}

/// All identifiers by manager and number.
static ALL: Mutex<Option<HashMap<(usize, u32), Known>>> = Mutex::new(None);

fn all<T>(act: impl FnOnce(&mut HashMap<(usize, u32), Known>) -> T) -> T {
    let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
    act(all.get_or_insert_default())
}

/// The identifier that an event names. It stays until its events are acknowledged, unless the
/// daemon is gone.
pub(super) fn find<'a>(manager: &Manager, number: u32) -> Option<&'a Id> {
    let known = all(|ids| ids.get(&(manager.key(), number)).copied())?;
    // SAFETY: taken out of the table before it is freed; the daemon has counted the event that
    // asks, so whoever destroys the identifier waits for it.
    Some(unsafe { &*known.0 })
}

/// As [`find`], for an event on its way to the program.
pub(super) fn find_for_event<'a>(manager: &Manager, number: u32) -> Option<&'a Id> {
    all(|ids| {
        let known = ids.get(&(manager.key(), number))?;
        // SAFETY: it is in the table, which is locked. It stays until this event is acknowledged:
        // the daemon has counted it, and so is it here.
        let id: &'a Id = unsafe { &*known.0 };
        id.give().then_some(id)
    })
}

/// With the daemon gone: an identifier with a device whose events come in this channel, and which
/// was not told yet.
pub(super) fn find_orphan<'a>(
    manager: &Manager,
    channel: *mut rdma_event_channel,
) -> Option<&'a Id> {
    all(|ids| {
        let of_manager = ids.iter().filter(|((key, _), _)| *key == manager.key());
        // SAFETY: as in `find_for_event`.
        let mut all = of_manager.map(|(_, known)| -> &'a Id { unsafe { &*known.0 } });
        all.find(|id| {
            see!(id, channel: *mut rdma_event_channel) == channel
                && id.verbs().is_ok()
                && !id.state().removed
                && id.give()
        })
    })
}

/// Who makes an identifier, and for what.
pub(super) struct Make {
    /// NULL: one of its own.
    pub(super) channel: *mut rdma_event_channel,
    pub(super) context: *mut c_void,
    pub(super) ps: c_int,
    pub(super) qp_type: c_uint,
}

impl Id {
    /// The identifier behind a program's pointer.
    pub(super) fn of<'a>(id: *mut rdma_cm_id) -> Outcome<&'a Self> {
        if id.is_null() {
            return Err(NULL);
        }
        // SAFETY: rdma_cma.h: made by `publish` and not destroyed yet.
        Ok(unsafe { &*id.cast::<Self>() })
    }

    pub(super) fn as_ptr(&self) -> *mut rdma_cm_id {
        self.head.as_ptr()
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_sync(&self) -> bool {
        self.state().sync
    }

    pub(super) fn qp(&self) -> *mut ibv_qp {
        see!(self, qp: *mut ibv_qp)
    }

    pub(super) fn qp_type(&self) -> c_uint {
        see!(self, qp_type: c_uint)
    }

    pub(super) fn ps(&self) -> c_int {
        see!(self, ps: c_int)
    }

    pub(super) fn verbs(&self) -> Outcome<*mut ibv_context> {
        let verbs = see!(self, verbs: *mut ibv_context);
        if verbs.is_null() {
            return Err(Misuse::invalid("the identifier is bound to no device yet"));
        }
        Ok(verbs)
    }

    /// An identifier that the daemon does not know yet.
    pub(super) fn create(make: Make) -> Outcome<*mut rdma_cm_id> {
        let sync = make.channel.is_null();
        let channel = if sync {
            Channel::open(&Manager::get()?)?
        } else {
            make.channel
        };
        let made = Self::ask(channel, &make).map(|(manager, number)| {
            let make = Make { channel, ..make };
            Self::publish(manager, number, make, sync)
        });
        if made.is_err() && sync {
            Channel::close(channel);
        }
        made
    }

    fn ask(channel: *mut rdma_event_channel, make: &Make) -> Outcome<(Manager, u32)> {
        let channel = Channel::of(channel)?;
        let answer = channel.manager().ask(CmRequest::CreateId {
            channel: channel.number(),
            space: u16::try_from(make.ps).map_err(|_| BAD_SPACE)?,
            qp_type: u8::try_from(make.qp_type).map_err(|_| BAD_TYPE)?,
        })?;
        match answer {
            CmAnswer::Id(number) => Ok((channel.manager().clone(), number)),
            answer => Err(refusal(&answer)),
        }
    }

    /// Hands an identifier that the daemon knows to C.
    pub(super) fn publish(
        manager: Manager,
        number: u32,
        make: Make,
        sync: bool,
    ) -> *mut rdma_cm_id {
        let mut head = rdma_cm_id::zeroed();
        head.channel = make.channel;
        head.context = make.context;
        head.ps = make.ps;
        head.qp_type = make.qp_type;
        let key = (manager.key(), number);
        let id = Box::into_raw(Box::new(Self {
            head: Head::new(head),
            manager,
            number,
            state: Mutex::new(State {
                sync,
                ..State::default()
            }),
            acked: Condvar::new(),
        }));
        all(|ids| ids.insert(key, Known(id)));
        id.cast()
    }

    /// Counts an event that the program is about to get, unless it is too late for that.
    fn give(&self) -> bool {
        let mut state = self.state();
        if !state.ending {
            state.given += 1;
        }
        !state.ending
    }

    /// An event of it was acknowledged.
    pub(super) fn complete(&self) {
        let mut state = self.state();
        state.completed += 1;
        // Under the lock: whoever waits frees this next.
        self.acked.notify_all();
    }

    /// Waits until as many events are acknowledged as the daemon gave out. `of` finds the count.
    pub(super) fn wait(&self, reported: u32, of: impl Fn(&State) -> u32) {
        let mut state = self.state();
        while of(&state) < reported {
            state = self
                .acked
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits as [`Id::wait`] does, for all of its events.
    fn wait_for_all(&self, reported: u32) {
        self.wait(reported, |state| state.completed);
    }

    /// Acknowledges the event that a call which waited for it has left.
    pub(super) fn drop_event(&self) {
        let event = see!(self, event: *mut rdma_cm_event);
        if !event.is_null() {
            show!(self, event: *mut rdma_cm_event = core::ptr::null_mut());
            super::event::acknowledge(event);
        }
    }

    /// Binds it to the device on an interface, once.
    pub(super) fn bind_device(&self, ifindex: u32) -> Outcome<()> {
        if ifindex == 0 || self.verbs().is_ok() {
            return Ok(());
        }
        let (context, pd) = device::on(ifindex)?;
        show!(self, verbs: *mut ibv_context = context);
        if see!(self, pd: *mut ibv_pd).is_null() {
            show!(self, pd: *mut ibv_pd = pd);
        }
        show!(self, port_num: u8 = 1);
        Ok(())
    }

    fn route_field<F: Copy>(&self, offset: usize, value: F) {
        let at = offset_of!(rdma_cm_id, route) + offset_of!(rdma_route, addr) + offset;
        self.head.set_field(at, value);
    }

    pub(super) fn show_source(&self, source: &rocebud_verbs::cm::CmAddr) {
        self.route_field(offset_of!(rdma_addr, src), address::storage(source));
    }

    pub(super) fn show_ib_source(&self, source: &sockaddr_storage) {
        self.route_field(offset_of!(rdma_addr, src), *source);
    }

    pub(super) fn show_destination(&self, destination: &rocebud_verbs::cm::CmAddr) {
        self.route_field(offset_of!(rdma_addr, dst), address::storage(destination));
    }

    fn show_gids(&self, path: &CmPath) {
        const PKEY: u16 = 0xffff;
        let addr = rdma_ib_addr {
            sgid: ibv_gid(path.sgid),
            dgid: ibv_gid(path.dgid),
            pkey: PKEY,
        };
        self.route_field(offset_of!(rdma_addr, addr), addr);
    }

    /// Fills in both addresses, and the device.
    pub(super) fn show_addresses(&self, route: &CmRoute) -> Outcome<()> {
        self.show_source(&route.source);
        self.show_destination(&route.destination);
        self.show_gids(&route.path);
        self.bind_device(route.ifindex)
    }

    /// Fills in the path record.
    pub(super) fn show_path(&self, path: &CmPath) {
        const EXACTLY: u8 = 2;
        let record = ibv_sa_path_rec {
            dgid: ibv_gid(path.dgid),
            sgid: ibv_gid(path.sgid),
            flow_label: path.flow_label.to_be(),
            hop_limit: path.hop_limit,
            traffic_class: path.traffic_class,
            reversible: 1,
            numb_path: 1,
            pkey: 0xffff,
            mtu_selector: EXACTLY,
            mtu: path.mtu,
            rate_selector: EXACTLY,
            packet_life_time_selector: EXACTLY,
            packet_life_time: path.packet_life_time,
            ..ibv_sa_path_rec::zeroed()
        };
        let at = offset_of!(rdma_cm_id, route) + offset_of!(rdma_route, path_rec);
        let old: *mut ibv_sa_path_rec = self.head.field(at);
        self.head.set_field(at, Box::into_raw(Box::new(record)));
        let paths = offset_of!(rdma_cm_id, route) + offset_of!(rdma_route, num_paths);
        self.head.set_field::<c_int>(paths, 1);
        free_path(old);
    }

    /// The daemon's part of a destroy, and everything that must be over before memory goes.
    fn end(&self) -> Outcome<()> {
        let id = self.number;
        match self.manager.ask(CmRequest::DestroyId { id }) {
            Ok(CmAnswer::Reported(reported)) => {
                self.drop_event();
                self.wait_for_all(reported);
                Ok(())
            }
            Ok(answer) => Err(refusal(&answer)),
            // The daemon is gone: what was given out is known here, too. In a child made by fork
            // nobody is left to acknowledge it.
            Err(e) if e.errno == Errno::EIO => {
                let given = all(|_| {
                    let mut state = self.state();
                    state.ending = true;
                    state.given
                });
                self.drop_event();
                if !self.manager.is_inherited() {
                    self.wait_for_all(given);
                }
                Ok(())
            }
            Err(e) => Err(e),
        }
    }

    /// `rdma_destroy_id`
    pub(super) fn destroy(id: *mut rdma_cm_id) -> Outcome<()> {
        let this = Self::of(id)?;
        this.end()?;
        let key = (this.manager.key(), this.number);
        all(|ids| ids.remove(&key));
        let path: *mut ibv_sa_path_rec = this
            .head
            .field(offset_of!(rdma_cm_id, route) + offset_of!(rdma_route, path_rec));
        free_path(path);
        // SAFETY: made by `publish`; a destroy that succeeds comes once.
        let this = unsafe { Box::from_raw(id.cast::<Self>()) };
        let mut state = this.state();
        if let Resolved::Yes(AddrInfo(list)) = core::mem::take(&mut state.resolved) {
            super::addrinfo::free(list);
        }
        if state.sync {
            Channel::close(see!(this, channel: *mut rdma_event_channel));
        }
        drop(state);
        Ok(())
    }

    /// `rdma_migrate_id`: NULL gives it a channel of its own.
    pub(super) fn migrate(&self, channel: *mut rdma_event_channel) -> Outcome<()> {
        let sync = channel.is_null();
        if sync && self.is_sync() {
            return Err(Misuse::invalid(
                "rdma_migrate_id: it has a channel of its own already",
            ));
        }
        let channel = if sync {
            Channel::open(&self.manager)?
        } else {
            channel
        };
        let moved = Channel::of(channel).and_then(|to| {
            let (id, channel) = (self.number, to.number());
            match self.manager.ask(CmRequest::MigrateId { id, channel })? {
                CmAnswer::Reported(reported) => Ok(reported),
                answer => Err(refusal(&answer)),
            }
        });
        let reported = match moved {
            Ok(reported) => reported,
            Err(e) => {
                if sync {
                    Channel::close(channel);
                }
                return Err(e);
            }
        };
        let old = see!(self, channel: *mut rdma_event_channel);
        if self.is_sync() {
            self.drop_event();
            Channel::close(old);
        }
        self.state().sync = sync;
        show!(self, channel: *mut rdma_event_channel = channel);
        self.wait_for_all(reported);
        Ok(())
    }
}

fn free_path(path: *mut ibv_sa_path_rec) {
    if !path.is_null() {
        // SAFETY: made by `show_path`, and taken out of the identifier.
        drop(unsafe { Box::from_raw(path) });
    }
}

const BAD_SPACE: Misuse = Misuse::invalid("rdma_create_id: no such port space");
const BAD_TYPE: Misuse = Misuse::invalid("an identifier's queue pair is RC, UC, UD or XRC");

/// The port space has this type of queue pair, unless said otherwise.
fn default_type(ps: c_int) -> Outcome<c_uint> {
    match ps {
        PS_IPOIB | PS_UDP => Ok(UD),
        PS_TCP | PS_IB => Ok(RC),
        _ => Err(BAD_SPACE),
    }
}

/// `rdma_create_id`: without a channel the identifier has one of its own, and calls wait.
#[unsafe(no_mangle)]
extern "C" fn rdma_create_id(
    channel: *mut rdma_event_channel,
    id: *mut *mut rdma_cm_id,
    context: *mut c_void,
    ps: c_int,
) -> c_int {
    enter::<MinusOne, c_int>(|| {
        if id.is_null() {
            return Err(NULL);
        }
        let made = Id::create(Make {
            channel,
            context,
            ps,
            qp_type: default_type(ps)?,
        })?;
        // SAFETY: rdma_cma.h: room for a pointer, or NULL.
        unsafe { id.write(made) };
        Ok(0)
    })
}

/// `rdma_destroy_id`: waits until every event that was taken is acknowledged.
#[unsafe(no_mangle)]
extern "C" fn rdma_destroy_id(id: *mut rdma_cm_id) -> c_int {
    enter::<MinusOne, c_int>(|| Id::destroy(id).map(|()| 0))
}

/// `rdma_migrate_id`
#[unsafe(no_mangle)]
extern "C" fn rdma_migrate_id(id: *mut rdma_cm_id, channel: *mut rdma_event_channel) -> c_int {
    enter::<MinusOne, c_int>(|| Id::of(id)?.migrate(channel).map(|()| 0))
}
