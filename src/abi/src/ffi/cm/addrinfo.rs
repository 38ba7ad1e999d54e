//! Names to addresses: the system's resolver, in the words of librdmacm. Lists are memory of
//! malloc's, as programs know them.

use core::ffi::{c_char, c_int, c_void};

use rocebud_objects::{Errno, Misuse};
use rocebud_verbs::cm::CmRequest;

use super::super::boundary::{Arg, MinusOne, NULL, Outcome, Silent, enter, guard, set_errno};
use super::super::sleep::enter_waiting;
use super::super::types::Plain;
use super::address::AF_IB;
use super::event::completing;
use super::id::{AddrInfo, Id, Resolved};
use super::types::{
    PS_IB, PS_IPOIB, PS_TCP, PS_UDP, RC, UC, UD, XRC_RECV, XRC_SEND, event, rdma_addrinfo,
    rdma_cm_id,
};

/// `RAI_PASSIVE`, `RAI_NUMERICHOST`, `RAI_SA`, `RAI_DNS`
const PASSIVE: c_int = 1;
const NUMERICHOST: c_int = 2;
const SA: c_int = 1 << 5;

/// Why there is no list: an errno, or what getaddrinfo(3) says.
enum Failure {
    Errno(Misuse),
    Resolver(c_int),
}

impl From<Misuse> for Failure {
    fn from(e: Misuse) -> Self {
        Self::Errno(e)
    }
}

const NO_MEMORY: Misuse = Misuse::new(Errno::ENOMEM, "no memory for an address");
const NO_SA: Misuse = Misuse::new(
    Errno::EOPNOTSUPP,
    "there is no subnet administrator to ask in RoCE",
);

fn copy(from: *const u8, length: u32) -> Outcome<*mut u8> {
    if from.is_null() || length == 0 {
        return Ok(core::ptr::null_mut());
    }
    let length = length as usize;
    // SAFETY: no pointers.
    let to: *mut u8 = unsafe { libc::malloc(length) }.cast();
    if to.is_null() {
        return Err(NO_MEMORY);
    }
    // SAFETY: the caller vouches for `length` bytes at `from`; `to` has as many.
    unsafe { to.copy_from_nonoverlapping(from, length) };
    Ok(to)
}

fn hints_of(hints: &rdma_addrinfo) -> libc::addrinfo {
    // SAFETY: plain data for which zero is a value.
    let mut out: libc::addrinfo = unsafe { core::mem::zeroed() };
    if hints.ai_flags & PASSIVE != 0 {
        out.ai_flags |= libc::AI_PASSIVE;
    }
    if hints.ai_flags & NUMERICHOST != 0 {
        out.ai_flags |= libc::AI_NUMERICHOST;
    }
    // The resolver knows no AF_IB: whoever wants that gets what there is, as upstream.
    out.ai_family = match hints.ai_family {
        AF_IB => libc::AF_UNSPEC,
        other => other,
    };
    out.ai_socktype = match hints.ai_qp_type.cast_unsigned() {
        RC | UC | XRC_SEND | XRC_RECV => libc::SOCK_STREAM,
        UD => libc::SOCK_DGRAM,
        _ => 0,
    };
    out.ai_protocol = match (hints.ai_port_space, out.ai_socktype) {
        (PS_TCP, _) | (PS_IB, libc::SOCK_STREAM) => libc::IPPROTO_TCP,
        (PS_IPOIB | PS_UDP, _) | (PS_IB, libc::SOCK_DGRAM) => libc::IPPROTO_UDP,
        _ => 0,
    };
    out
}

/// Fills `list` with the resolver's first answer.
fn resolve(
    node: *const c_char,
    service: *const c_char,
    hints: Option<&rdma_addrinfo>,
    list: &mut rdma_addrinfo,
) -> Result<(), Failure> {
    let wanted = hints.map(hints_of);
    let wanted = wanted
        .as_ref()
        .map_or(core::ptr::null(), core::ptr::from_ref);
    let mut found = core::ptr::null_mut();
    // SAFETY: strings of the caller's or NULL, hints that live on, and room for a pointer.
    let code = unsafe { libc::getaddrinfo(node, service, wanted, &raw mut found) };
    if code != 0 {
        return Err(Failure::Resolver(code));
    }
    // SAFETY: a successful call gives at least one.
    let first = unsafe { found.read() };
    let taken = take(&first, hints, list);
    // SAFETY: given just now, and not used any more.
    unsafe { libc::freeaddrinfo(found) };
    taken.map_err(Failure::Errno)
}

fn take(
    found: &libc::addrinfo,
    hints: Option<&rdma_addrinfo>,
    list: &mut rdma_addrinfo,
) -> Outcome<()> {
    let given = |of: fn(&rdma_addrinfo) -> c_int| hints.map(of).filter(|n| *n != 0);
    list.ai_qp_type = given(|h| h.ai_qp_type).unwrap_or(match found.ai_socktype {
        libc::SOCK_STREAM => RC.cast_signed(),
        libc::SOCK_DGRAM => UD.cast_signed(),
        _ => 0,
    });
    list.ai_port_space = given(|h| h.ai_port_space).unwrap_or(match found.ai_protocol {
        libc::IPPROTO_TCP => PS_TCP,
        libc::IPPROTO_UDP => PS_UDP,
        _ => 0,
    });
    list.ai_family = found.ai_family;
    let address = copy(found.ai_addr.cast_const().cast(), found.ai_addrlen)?;
    // The flag is the caller's: the resolver's answers do not carry it everywhere.
    if given(|h| h.ai_flags & PASSIVE).is_some() {
        list.ai_flags = PASSIVE;
        (list.ai_src_addr, list.ai_src_len) = (address, found.ai_addrlen);
    } else {
        (list.ai_dst_addr, list.ai_dst_len) = (address, found.ai_addrlen);
    }
    Ok(())
}

fn lookup(
    node: *const c_char,
    service: *const c_char,
    hints: Option<&rdma_addrinfo>,
) -> Result<*mut rdma_addrinfo, Failure> {
    if node.is_null() && service.is_null() && hints.is_none() {
        return Err(Misuse::invalid("rdma_getaddrinfo: nothing is asked for").into());
    }
    // SAFETY: no pointers.
    let list: *mut rdma_addrinfo = unsafe { libc::calloc(1, size_of::<rdma_addrinfo>()) }.cast();
    if list.is_null() {
        return Err(NO_MEMORY.into());
    }
    let mut content = rdma_addrinfo::zeroed();
    let filled = fill(node, service, hints, &mut content);
    // SAFETY: allocated just now, for one.
    unsafe { list.write(content) };
    match filled {
        Ok(()) => Ok(list),
        Err(e) => {
            free(list);
            Err(e)
        }
    }
}

fn fill(
    node: *const c_char,
    service: *const c_char,
    hints: Option<&rdma_addrinfo>,
    list: &mut rdma_addrinfo,
) -> Result<(), Failure> {
    if !node.is_null() || !service.is_null() {
        resolve(node, service, hints, list)?;
    } else if let Some(hints) = hints {
        list.ai_flags = hints.ai_flags;
        list.ai_family = hints.ai_family;
        list.ai_qp_type = hints.ai_qp_type;
        list.ai_port_space = hints.ai_port_space;
        list.ai_dst_addr = copy(hints.ai_dst_addr, hints.ai_dst_len)?;
        list.ai_dst_len = hints.ai_dst_len;
    }
    if let Some(hints) = hints
        && list.ai_src_len == 0
    {
        list.ai_src_addr = copy(hints.ai_src_addr, hints.ai_src_len)?;
        list.ai_src_len = hints.ai_src_len;
    }
    Ok(())
}

/// Frees a list.
pub(super) fn free(mut list: *mut rdma_addrinfo) {
    while !list.is_null() {
        // SAFETY: rdma_cma.h: a list of rdma_getaddrinfo, freed once.
        let one = unsafe { list.read() };
        let parts: [*mut c_void; 7] = [
            one.ai_connect.cast(),
            one.ai_route,
            one.ai_src_canonname.cast(),
            one.ai_dst_canonname.cast(),
            one.ai_src_addr.cast(),
            one.ai_dst_addr.cast(),
            list.cast(),
        ];
        for part in parts {
            // SAFETY: memory of malloc's, or NULL.
            unsafe { libc::free(part) };
        }
        list = one.ai_next;
    }
}

fn option_of(hints: Arg<rdma_addrinfo>) -> Outcome<Option<rdma_addrinfo>> {
    match hints.is_null() {
        true => Ok(None),
        false => hints.get().map(Some),
    }
}

/// `rdma_getaddrinfo`: 0, −1 with errno, or what getaddrinfo(3) says.
#[unsafe(no_mangle)]
extern "C" fn rdma_getaddrinfo(
    node: *const c_char,
    service: *const c_char,
    hints: Arg<rdma_addrinfo>,
    list: *mut *mut rdma_addrinfo,
) -> c_int {
    let looked = guard(|| {
        if list.is_null() {
            return Err(NULL);
        }
        Ok(lookup(node, service, option_of(hints)?.as_ref()))
    });
    match looked.map_err(Failure::Errno).and_then(|found| found) {
        Ok(found) => {
            // SAFETY: rdma_cma.h: room for a pointer; not NULL, as was looked at first.
            unsafe { list.write(found) };
            0
        }
        Err(Failure::Resolver(code)) => code,
        Err(Failure::Errno(e)) => {
            set_errno(e.errno);
            -1
        }
    }
}

/// `rdma_freeaddrinfo`
#[unsafe(no_mangle)]
extern "C" fn rdma_freeaddrinfo(list: *mut rdma_addrinfo) {
    enter::<Silent, ()>(|| {
        free(list);
        Ok(())
    });
}

/// The answer is there when this returns; the event says so.
fn resolve_for(
    this: &Id,
    node: *const c_char,
    service: *const c_char,
    hints: Arg<rdma_addrinfo>,
) -> Outcome<()> {
    if !matches!(this.state().resolved, Resolved::No) {
        return Err(Misuse::new(
            Errno::EBUSY,
            "rdma_resolve_addrinfo: the last answer has not been taken",
        ));
    }
    let hints = option_of(hints)?;
    if hints.is_some_and(|h| h.ai_flags & SA != 0) {
        return Err(NO_SA);
    }
    let list = lookup(node, service, hints.as_ref()).map_err(|e| match e {
        Failure::Errno(e) => e,
        Failure::Resolver(_) => Misuse::new(Errno(libc::ENOENT), "no such name"),
    })?;
    this.state().resolved = Resolved::Yes(AddrInfo(list));
    this.manager.tell(CmRequest::WriteEvent {
        id: this.number,
        kind: event::ADDRINFO_RESOLVED,
        status: 0,
        argument: 0,
    })
}

/// `rdma_resolve_addrinfo`: as `rdma_getaddrinfo`, with an event at its end.
#[unsafe(no_mangle)]
extern "C-unwind" fn rdma_resolve_addrinfo(
    id: *mut rdma_cm_id,
    node: *const c_char,
    service: *const c_char,
    hints: Arg<rdma_addrinfo>,
) -> c_int {
    enter_waiting::<MinusOne, c_int>(|read| {
        let this = Id::of(id)?;
        completing(this, read, || resolve_for(this, node, service, hints))
    })
}

/// `rdma_query_addrinfo`: takes the answer of `rdma_resolve_addrinfo`.
#[unsafe(no_mangle)]
extern "C" fn rdma_query_addrinfo(id: *mut rdma_cm_id, list: *mut *mut rdma_addrinfo) -> c_int {
    enter::<MinusOne, c_int>(|| {
        let this = Id::of(id)?;
        if list.is_null() {
            return Err(NULL);
        }
        match core::mem::take(&mut this.state().resolved) {
            Resolved::Yes(AddrInfo(found)) => {
                // SAFETY: rdma_cma.h: room for a pointer.
                unsafe { list.write(found) };
                Ok(0)
            }
            Resolved::No => Err(Misuse::new(
                Errno(libc::ENOENT),
                "rdma_query_addrinfo: nothing was resolved",
            )),
        }
    })
}
