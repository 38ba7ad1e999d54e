//! The connection manager's objects, as far as they need no peer: devices, event channels, and
//! identifiers bound to an address of ours. That is what libraries ask for to list devices.
//! Everything that needs a connection is in `not_yet`.

use core::ffi::{c_int, c_void};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Mutex, PoisonError};

use rocebud_objects::{Errno, Misuse};
use rocebud_wire::Gid;

use super::boundary::{Arg, MinusOne, NULL, Outcome, Pointer, Silent, Value, enter, last_errno};
use super::context::Context;
use super::handle::{Handle, Owner};
use super::types::ibv_context;

/// `struct rdma_event_channel`: a descriptor that programs wait on. Nothing happens there yet.
#[repr(C)]
struct Channel {
    fd: c_int,
}

/// `struct sockaddr_storage`, aligned as it is.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct Address([u8; 128]);

const NO_ADDRESS: Address = Address([0; 128]);

/// `struct rdma_cm_id`, and what is ours behind it.
#[repr(C)]
struct Id {
    verbs: *mut ibv_context,
    channel: *mut Channel,
    context: *mut c_void,
    qp: *mut c_void,
    source: Address,
    destination: Address,
    /// `ibaddr`, `path_rec` and `num_paths`.
    route: [u64; 7],
    ps: c_int,
    port_num: u8,
    event: *mut c_void,
    /// Channels, completion queues, SRQ and PD: made with a queue pair.
    queues: [*mut c_void; 6],
    qp_type: c_int,
    /// The program gave no channel, so the channel is ours to close.
    own_channel: bool,
}

const _: () = assert!(
    core::mem::offset_of!(Id, ps) == 344
        && core::mem::offset_of!(Id, event) == 352
        && core::mem::offset_of!(Id, qp_type) == 408
);

/// `IBV_QPT_RC` and `IBV_QPT_UD`
const RC: c_int = 2;
const UD: c_int = 4;
/// `RDMA_PS_IPOIB`, `_TCP`, `_UDP`, `_IB`
const IPOIB: c_int = 2;
const TCP: c_int = 0x106;
const UDP: c_int = 0x111;
const IB: c_int = 0x13f;

const BAD_SPACE: Misuse = Misuse::invalid("rdma_create_id: no such port space");
const BOUND: Misuse = Misuse::invalid("rdma_bind_addr: the identifier is bound already");
const FAMILY: Misuse = Misuse::new(
    Errno(libc::EAFNOSUPPORT),
    "rdma_bind_addr: only IPv4 and IPv6 addresses",
);
const NO_SUCH_ADDRESS: Misuse = Misuse::new(
    Errno(libc::EADDRNOTAVAIL),
    "rdma_bind_addr: no device has this address; see `rocebud devices`",
);

/// The contexts that this library opened for its callers, one a device; they stay for the
/// process, as programs keep them beyond the list.
static OPENED: Mutex<Vec<Opened>> = Mutex::new(Vec::new());

struct Opened(*mut ibv_context);
// SAFETY: a context may be used on any thread, and nobody closes this one.
unsafe impl Send for Opened {}

fn ours<'a>(context: *mut ibv_context) -> Option<&'a Context> {
    match Handle::<Context>::from_raw(context).owner() {
        Ok(Owner::Us(context)) => Some(context),
        _ => None,
    }
}

/// One living context a device, of the devices that are there now. A device that came back and a
/// child made by fork get new ones.
fn contexts() -> Outcome<Vec<*mut ibv_context>> {
    let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
    let mut all = Vec::new();
    for device in super::device::ours()? {
        let known = opened.iter().map(|o| o.0).find(|c| {
            ours(*c).is_some_and(|c| c.is_of(device.as_ptr()) && c.verbs.query_port(1).is_ok())
        });
        let context = match known {
            Some(context) => context,
            None => super::context::open(device)?,
        };
        if known.is_none() {
            opened.push(Opened(context));
        }
        all.push(context);
    }
    Ok(all)
}

/// `rdma_get_devices`: a NULL-terminated array of open contexts, of our devices.
#[unsafe(no_mangle)]
extern "C" fn rdma_get_devices(count: Arg<c_int>) -> *mut *mut ibv_context {
    let list = enter::<Pointer, *mut *mut ibv_context>(|| {
        let mut all = contexts()?;
        count.set_if_wanted(c_int::try_from(all.len()).unwrap_or(c_int::MAX));
        all.push(core::ptr::null_mut());
        Ok(Box::into_raw(all.into_boxed_slice()).cast())
    });
    if list.is_null() {
        count.set_if_wanted(0);
    }
    list
}

/// `rdma_free_devices`: only the array goes.
#[unsafe(no_mangle)]
extern "C" fn rdma_free_devices(list: *mut *mut ibv_context) {
    if list.is_null() {
        return;
    }
    let mut n = 0;
    // SAFETY: rdma_cma.h: a list of rdma_get_devices, which ends with NULL.
    while !unsafe { list.wrapping_add(n).read() }.is_null() {
        n += 1;
    }
    // SAFETY: made by rdma_get_devices as a boxed slice of this length.
    drop(unsafe { Box::from_raw(core::ptr::slice_from_raw_parts_mut(list, n + 1)) });
}

fn open_channel() -> Outcome<*mut Channel> {
    // SAFETY: takes no pointers.
    let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
    if fd < 0 {
        return Err(Misuse::new(last_errno(), "no descriptor for the channel"));
    }
    Ok(Box::into_raw(Box::new(Channel { fd })))
}

fn close_channel(channel: *mut Channel) {
    if channel.is_null() {
        return;
    }
    // SAFETY: rdma_cma.h: made by open_channel, destroyed once.
    let channel = unsafe { Box::from_raw(channel) };
    // SAFETY: the channel's own descriptor.
    unsafe { libc::close(channel.fd) };
}

/// `rdma_create_event_channel`
#[unsafe(no_mangle)]
extern "C" fn rdma_create_event_channel() -> *mut Channel {
    enter::<Pointer, *mut Channel>(open_channel)
}

/// `rdma_destroy_event_channel`
#[unsafe(no_mangle)]
extern "C" fn rdma_destroy_event_channel(channel: *mut Channel) {
    enter::<Silent, ()>(|| {
        close_channel(channel);
        Ok(())
    });
}

/// `rdma_create_id`: without a channel the identifier has one of its own.
#[unsafe(no_mangle)]
extern "C" fn rdma_create_id(
    channel: *mut Channel,
    id: Arg<*mut Id>,
    context: *mut c_void,
    ps: c_int,
) -> c_int {
    enter::<MinusOne, c_int>(|| {
        let qp_type = match ps {
            IPOIB | UDP => UD,
            TCP | IB => RC,
            _ => return Err(BAD_SPACE),
        };
        if id.is_null() {
            return Err(NULL);
        }
        let own_channel = channel.is_null();
        let channel = if own_channel {
            open_channel()?
        } else {
            channel
        };
        id.set(Box::into_raw(Box::new(Id {
            verbs: core::ptr::null_mut(),
            channel,
            context,
            qp: core::ptr::null_mut(),
            source: NO_ADDRESS,
            destination: NO_ADDRESS,
            route: [0; 7],
            ps,
            port_num: 0,
            event: core::ptr::null_mut(),
            queues: [core::ptr::null_mut(); 6],
            qp_type,
            own_channel,
        })))?;
        Ok(0)
    })
}

/// `rdma_destroy_id`
#[unsafe(no_mangle)]
extern "C" fn rdma_destroy_id(id: *mut Id) -> c_int {
    enter::<MinusOne, c_int>(|| {
        if id.is_null() {
            return Err(NULL);
        }
        // SAFETY: rdma_cma.h: made by rdma_create_id, destroyed once.
        let id = unsafe { Box::from_raw(id) };
        if id.own_channel {
            close_channel(id.channel);
        }
        Ok(0)
    })
}

/// `rdma_bind_addr`: an address of a device of ours, or the wildcard, which names no device yet.
#[unsafe(no_mangle)]
extern "C" fn rdma_bind_addr(id: *mut Id, address: *const u8) -> c_int {
    enter::<MinusOne, c_int>(|| {
        if id.is_null() || address.is_null() {
            return Err(NULL);
        }
        // SAFETY: rdma_cma.h: a live identifier that no other thread binds now.
        let id = unsafe { &mut *id };
        if id.source.family() != 0 {
            return Err(BOUND);
        }
        let source = read_address(address)?;
        let (ip, scope) = source.ip();
        if !ip.is_unspecified() {
            id.verbs = context_with(ip, scope)?;
            id.port_num = 1;
        }
        id.source = source;
        Ok(0)
    })
}

/// `rdma_get_src_port`: in network order.
#[unsafe(no_mangle)]
extern "C" fn rdma_get_src_port(id: *const Id) -> u16 {
    enter::<Value, u16>(|| {
        if id.is_null() {
            return Err(NULL);
        }
        // SAFETY: rdma_cma.h: a live identifier.
        let source = unsafe { (*id).source };
        Ok(u16::from_ne_bytes([source.0[2], source.0[3]]))
    })
}

/// The living context of the device that has an address; a scope chooses among link-local ones.
fn context_with(ip: IpAddr, scope: u32) -> Outcome<*mut ibv_context> {
    let wanted = Gid(match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    });
    let has = |context: &Context| {
        let info = context.verbs.device_info();
        let mut gids = info.gids.iter().flatten();
        gids.any(|g| g.gid() == wanted && (scope == 0 || g.ifindex == scope))
    };
    let mut all = contexts()?.into_iter();
    all.find(|c| ours(*c).is_some_and(has))
        .ok_or(NO_SUCH_ADDRESS)
}

impl Address {
    const fn family(&self) -> u16 {
        u16::from_ne_bytes([self.0[0], self.0[1]])
    }

    /// The address, and the scope of an IPv6 address.
    fn ip(&self) -> (IpAddr, u32) {
        let b = &self.0;
        if i32::from(self.family()) == libc::AF_INET {
            return (Ipv4Addr::new(b[4], b[5], b[6], b[7]).into(), 0);
        }
        let mut v6 = [0; 16];
        v6.copy_from_slice(&b[8..24]);
        let scope = u32::from_ne_bytes([b[24], b[25], b[26], b[27]]);
        (Ipv6Addr::from(v6).into(), scope)
    }
}

/// Copies as much of a socket address as its family has.
fn read_address(address: *const u8) -> Outcome<Address> {
    // SAFETY: every socket address begins with its family.
    let family = unsafe { address.cast::<u16>().read_unaligned() };
    let length = match i32::from(family) {
        libc::AF_INET => size_of::<libc::sockaddr_in>(),
        libc::AF_INET6 => size_of::<libc::sockaddr_in6>(),
        _ => return Err(FAMILY),
    };
    let mut copy = NO_ADDRESS;
    // SAFETY: an address of this family has this length, which is below 128 bytes.
    unsafe {
        copy.0
            .as_mut_ptr()
            .copy_from_nonoverlapping(address, length)
    };
    Ok(copy)
}
