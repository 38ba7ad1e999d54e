//! Addresses, routes, listening, options: what comes before a connection.

use core::ffi::{c_int, c_void};
use core::mem::offset_of;
use std::net::Ipv6Addr;

use rocebud_objects::{Errno, Misuse};
use rocebud_verbs::cm::{CmAddr, CmAnswer, CmBound, CmOption, CmPath, CmRequest, refusal};

use super::super::boundary::{MinusOne, NULL, Outcome, Value, enter};
use super::super::sleep::enter_waiting;
use super::address::{self, IbAny};
use super::event::completing;
use super::id::{Id, see};
use super::types::{ibv_sa_path_rec, rdma_cm_id, rdma_route};

impl Id {
    fn bound(&self, request: CmRequest) -> Outcome<()> {
        let CmBound { source, ifindex } = match self.manager.ask(request)? {
            CmAnswer::Bound(bound) => bound,
            answer => return Err(refusal(&answer)),
        };
        match self.state().ib {
            Some(any) => self.show_ib_source(&any.storage(self.ps(), source.port)),
            None => self.show_source(&source),
        }
        // A loopback address names no device, as the wildcard names none: with the kernel none has it, and
        // libfabric, which binds whatever the host's name stands for, would see the others no more.
        if source.ip.is_loopback() {
            return Ok(());
        }
        self.bind_device(ifindex)
    }

    pub(super) fn bind(&self, to: *const u8) -> Outcome<()> {
        address::refuse_ib(self.ps(), to, core::ptr::null())?;
        let id = self.number;
        let Some(any) = IbAny::read(self.ps(), to)? else {
            let address = address::parse(to)?;
            return self.bound(CmRequest::Bind { id, address });
        };
        let address = CmAddr {
            ip: Ipv6Addr::UNSPECIFIED.into(),
            port: any.port,
            scope: 0,
        };
        let before = self.state().ib.replace(any);
        let bound = self.bound(CmRequest::Bind { id, address });
        if bound.is_err() {
            self.state().ib = before;
        }
        bound
    }

    pub(super) fn resolve_address(
        &self,
        source: *const u8,
        destination: *const u8,
        timeout_ms: c_int,
    ) -> Outcome<()> {
        address::refuse_ib(self.ps(), source, destination)?;
        let source = match source.is_null() {
            true => None,
            false => Some(address::parse(source)?),
        };
        let destination = address::parse(destination)?;
        self.manager.tell(CmRequest::ResolveAddr {
            id: self.number,
            source,
            destination,
            timeout_ms: u32::try_from(timeout_ms).unwrap_or(0),
        })?;
        self.show_destination(&destination);
        Ok(())
    }

    pub(super) fn resolve_route(&self) -> Outcome<()> {
        self.verbs()?;
        self.manager
            .tell(CmRequest::ResolveRoute { id: self.number })
    }
}

/// `rdma_bind_addr`: to an address of a device, or to the wildcard or a loopback address, which name no device
/// yet.
#[unsafe(no_mangle)]
extern "C" fn rdma_bind_addr(id: *mut rdma_cm_id, address: *const u8) -> c_int {
    enter::<MinusOne, c_int>(|| Id::of(id)?.bind(address).map(|()| 0))
}

/// `rdma_resolve_addr`
#[unsafe(no_mangle)]
extern "C-unwind" fn rdma_resolve_addr(
    id: *mut rdma_cm_id,
    source: *const u8,
    destination: *const u8,
    timeout_ms: c_int,
) -> c_int {
    enter_waiting::<MinusOne, c_int>(|read| {
        let this = Id::of(id)?;
        completing(this, read, || {
            this.resolve_address(source, destination, timeout_ms)
        })
    })
}

/// `rdma_resolve_route`: there is nobody to ask about RoCE routes, so no time is needed.
#[unsafe(no_mangle)]
extern "C-unwind" fn rdma_resolve_route(id: *mut rdma_cm_id, _timeout_ms: c_int) -> c_int {
    enter_waiting::<MinusOne, c_int>(|read| {
        let this = Id::of(id)?;
        completing(this, read, || this.resolve_route())
    })
}

/// `rdma_listen`
#[unsafe(no_mangle)]
extern "C" fn rdma_listen(id: *mut rdma_cm_id, backlog: c_int) -> c_int {
    enter::<MinusOne, c_int>(|| {
        let this = Id::of(id)?;
        this.bound(CmRequest::Listen {
            id: this.number,
            backlog: u32::try_from(backlog).unwrap_or(0),
        })?;
        Ok(0)
    })
}

fn route(id: *mut rdma_cm_id) -> Outcome<rdma_route> {
    Ok(see!(Id::of(id)?, route: rdma_route))
}

/// `rdma_get_src_port`: in network order.
#[unsafe(no_mangle)]
extern "C" fn rdma_get_src_port(id: *mut rdma_cm_id) -> u16 {
    enter::<Value, u16>(|| Ok(address::c_port(&route(id)?.addr.src)))
}

/// `rdma_get_dst_port`: in network order.
#[unsafe(no_mangle)]
extern "C" fn rdma_get_dst_port(id: *mut rdma_cm_id) -> u16 {
    enter::<Value, u16>(|| Ok(address::c_port(&route(id)?.addr.dst)))
}

/// `rdma_set_option`
#[unsafe(no_mangle)]
extern "C" fn rdma_set_option(
    id: *mut rdma_cm_id,
    level: c_int,
    name: c_int,
    value: *const c_void,
    length: usize,
) -> c_int {
    enter::<MinusOne, c_int>(|| {
        let this = Id::of(id)?;
        if value.is_null() {
            return Err(NULL);
        }
        let id = this.number;
        let request = match (level, name) {
            (LEVEL_IB, IB_PATH) => {
                this.verbs()?;
                let path = path(value, length)?;
                CmRequest::SetPath { id, path }
            }
            _ => CmRequest::SetOption {
                id,
                option: option(level, name, value, length)?,
            },
        };
        this.manager.tell(request)?;
        Ok(0)
    })
}

/// `RDMA_OPTION_ID`
const LEVEL_ID: c_int = 0;
/// `RDMA_OPTION_IB`, `RDMA_OPTION_IB_PATH`
const LEVEL_IB: c_int = 1;
const IB_PATH: c_int = 1;

/// `struct ibv_path_data`: flags, and a path record as it is on the wire. (What is not in here has
/// no meaning in RoCE.)
#[derive(Clone, Copy)]
#[repr(C)]
struct PathData {
    flags: u32,
    _reserved: u32,
    service_id: [u8; 8],
    dgid: [u8; 16],
    sgid: [u8; 16],
    lids: [u8; 4],
    flow_label_hop_limit: [u8; 4],
    traffic_class: u8,
    reversible_number: u8,
    pkey: [u8; 2],
    qos_sl: [u8; 2],
    mtu: u8,
    rate: u8,
    packet_life_time: u8,
    preference: u8,
    _more: [u8; 6],
}

/// A path of an identifier's in the form in which a program may give it back.
pub(in super::super) fn path_data(path: &ibv_sa_path_rec) -> [u8; size_of::<PathData>()] {
    const EXACTLY: u8 = 2 << 6;
    let [_, a, b, c] = path.flow_label.to_ne_bytes();
    let mut out = [0; size_of::<PathData>()];
    let mut put = |at: usize, bytes: &[u8]| {
        out.iter_mut()
            .skip(at)
            .zip(bytes)
            .for_each(|(to, from)| *to = *from);
    };
    put(offset_of!(PathData, flags), &WANTED.to_ne_bytes());
    put(offset_of!(PathData, dgid), &path.dgid.0);
    put(offset_of!(PathData, sgid), &path.sgid.0);
    let label = [a, b, c, path.hop_limit];
    put(offset_of!(PathData, flow_label_hop_limit), &label);
    let class = [path.traffic_class, 1 << 7 | 1];
    put(offset_of!(PathData, traffic_class), &class);
    put(offset_of!(PathData, pkey), &path.pkey.to_ne_bytes());
    let times = [path.mtu, path.rate, path.packet_life_time].map(|n| n | EXACTLY);
    put(offset_of!(PathData, mtu), &times);
    out
}

/// `IBV_PATH_FLAG_GMP`, `_PRIMARY`, and of `_BIDIRECTIONAL` the ways out and back
const WANTED: u32 = 1 | 1 << 1 | 1 << 3 | 1 << 5;

/// The path among a program's paths that is for messages and data, and goes both ways.
fn path(value: *const c_void, length: usize) -> Outcome<CmPath> {
    /// Without the selector ("exactly").
    const VALUE: u8 = 0x3f;
    const NONE: Misuse = Misuse::invalid(
        "rdma_set_option: IB_PATH wants paths, one of them GMP, PRIMARY and BIDIRECTIONAL",
    );
    let count = length / size_of::<PathData>();
    if !length.is_multiple_of(size_of::<PathData>()) {
        return Err(NONE);
    }
    let all = value.cast::<PathData>();
    // SAFETY: rdma_cma.h: `value` points to `length` bytes, which hold `count` paths.
    let mut paths = (0..count).map(|i| unsafe { all.wrapping_add(i).read_unaligned() });
    let path = paths.find(|path| path.flags == WANTED).ok_or(NONE)?;
    let [label @ .., hop_limit] = path.flow_label_hop_limit;
    let [a, b, c] = label;
    Ok(CmPath {
        sgid: path.sgid,
        dgid: path.dgid,
        flow_label: u32::from_be_bytes([0, a, b, c]) & 0xf_ffff,
        hop_limit,
        traffic_class: path.traffic_class,
        mtu: path.mtu & VALUE,
        packet_life_time: path.packet_life_time & VALUE,
    })
}

fn option(level: c_int, name: c_int, value: *const c_void, length: usize) -> Outcome<CmOption> {
    if level != LEVEL_ID {
        return Err(Misuse::new(
            Errno::ENOSYS,
            "rdma_set_option: no such level, or no such option of it",
        ));
    }
    let byte = || read::<u8>(value, length);
    let flag = || read::<c_int>(value, length).map(|n| n != 0);
    match name {
        0 => Ok(CmOption::Tos(byte()?)),
        1 => Ok(CmOption::ReuseAddr(flag()?)),
        2 => Ok(CmOption::AfOnly(flag()?)),
        3 => Ok(CmOption::AckTimeout(byte()?)),
        _ => Err(Misuse::new(
            Errno::ENOSYS,
            "rdma_set_option: no such option",
        )),
    }
}

/// A value of exactly the length that the program gives.
fn read<T: Copy>(value: *const c_void, length: usize) -> Outcome<T> {
    if length != size_of::<T>() {
        return Err(Misuse::invalid(
            "rdma_set_option: optlen does not fit the option",
        ));
    }
    // SAFETY: rdma_cma.h: `value` points to `length` bytes, which is the size of a T.
    Ok(unsafe { value.cast::<T>().read_unaligned() })
}
