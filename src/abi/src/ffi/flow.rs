//! Flow rules and their counters: reached through `verbs_context`.

use core::ffi::c_int;

use rocebud_objects::flow::{FlowAttr, FlowKind, FlowSpec, Masked};
use rocebud_objects::{Errno, Misuse};
use rocebud_verbs::CounterPoint;

use super::boundary::{Arg, ErrnoCode, NULL, Outcome, enter};
use super::context::Context;
use super::handle::{Handle, Head, Object, give};
use super::memory::next_handle;
use super::qp::Qp;
use super::types::{Slot, ibv_counter_attach_attr, ibv_counters, ibv_flow, ibv_flow_attr};

/// A rule of ours. Unlike other structures it does not begin with its context, so it is never asked
/// for its owner: it comes through our own context's table alone.
#[repr(C)]
pub(crate) struct Flow {
    head: Head<ibv_flow>,
    verbs: rocebud_verbs::Flow,
}

impl Object for Flow {
    const DEPTH: usize = 0;
}

/// Counters of ours.
#[repr(C)]
pub(crate) struct Counters {
    head: Head<ibv_counters>,
    verbs: rocebud_verbs::Counters,
}

impl Object for Counters {
    const DEPTH: usize = 2;
}

own_entry! {
    /// `verbs_context.create_flow`
    fn create_flow(qp: Qp, attr: Arg<ibv_flow_attr>) -> Pointer, *mut ibv_flow {
        let wanted = attr_of(attr)?;
        let counters = wanted.counters.map(Handle::mine).transpose()?;
        let verbs = qp.verbs.create_flow(wanted.attr, counters.map(|c: &Counters| &c.verbs))?;
        let head = ibv_flow {
            comp_mask: 0,
            context: qp.context(),
            handle: next_handle(),
        };
        Ok(give(Box::new(Flow { head: Head::new(head), verbs })))
    }

    /// `verbs_context.create_counters`
    fn create_counters(context: Context, init: Arg<u32>) -> Pointer, *mut ibv_counters {
        if init.get()? != 0 {
            return Err(Misuse::new(
                Errno::EOPNOTSUPP,
                "ibv_create_counters: comp_mask must be 0",
            ));
        }
        let verbs = context.verbs.create_counters()?;
        let head = ibv_counters { context: context.as_ptr() };
        Ok(give(Box::new(Counters { head: Head::new(head), verbs })))
    }

    /// `verbs_context.destroy_counters`: EBUSY while rules count there.
    fn destroy_counters(counters: Counters) -> ErrnoCode, () {
        counters.verbs.destroy()?;
        drop(Handle::<Counters>::from_raw(counters.head.as_ptr()).reclaim());
        Ok(())
    }

    /// `verbs_context.attach_counters_point_flow`: before rules count there, without a rule.
    fn attach_counters_point_flow(
        counters: Counters, attr: Arg<ibv_counter_attach_attr>, flow: *mut ibv_flow,
    ) -> ErrnoCode, () {
        let wanted = attr.get()?;
        if !flow.is_null() || wanted.comp_mask != 0 {
            return Err(Misuse::new(
                Errno::EOPNOTSUPP,
                "ibv_attach_counters_point_flow: give the counters to ibv_create_flow instead",
            ));
        }
        let point = match wanted.counter_desc {
            0 => CounterPoint::Packets,
            1 => CounterPoint::Bytes,
            _ => return Err(Misuse::new(
                Errno::EOPNOTSUPP,
                "ibv_attach_counters_point_flow: packets and bytes are counted",
            )),
        };
        counters.verbs.attach(point, wanted.index)
    }

    /// `verbs_context.read_counters`. The values are never older than the call.
    fn read_counters(counters: Counters, values: Arg<u64>, count: u32, flags: u32)
        -> ErrnoCode, ()
    {
        const PREFER_CACHED: u32 = 1;
        if flags & !PREFER_CACHED != 0 {
            return Err(Misuse::invalid("ibv_read_counters: unknown flags"));
        }
        if values.is_null() {
            return Err(NULL);
        }
        // SAFETY: verbs.h: the caller's array has `count` values, which nobody else touches now.
        let values = unsafe { core::slice::from_raw_parts_mut(values.raw(), count as usize) };
        counters.verbs.read(values)
    }
}

/// `verbs_context.destroy_flow`
extern "C" fn destroy_flow(flow: Handle<Flow>) -> c_int {
    enter::<ErrnoCode, ()>(|| {
        if flow.is_null() {
            return Err(NULL);
        }
        flow.ours().verbs.destroy()?;
        drop(Handle::<Flow>::from_raw(flow.ours().head.as_ptr()).reclaim());
        Ok(())
    })
}

/// `enum ibv_flow_flags`
const DONT_TRAP: u32 = 1 << 1;
const EGRESS: u32 = 1 << 2;

/// Conditions and actions of a rule; every layer once, and some to spare.
const SPECS_MAX: u8 = 16;

const NOT_OFFERED: Misuse = Misuse::new(
    Errno::EOPNOTSUPP,
    "ibv_create_flow: conditions are on Ethernet, IPv4, IPv6, TCP and UDP, outer headers; actions \
     are tag, drop and count",
);
const MALFORMED: Misuse =
    Misuse::invalid("ibv_create_flow: a spec's type and size do not go together");

/// A rule as C describes it.
struct Wanted {
    attr: FlowAttr,
    counters: Option<Handle<Counters>>,
}

fn attr_of(at: Arg<ibv_flow_attr>) -> Outcome<Wanted> {
    let head = at.get()?;
    let kind = match head.r#type {
        0 => FlowKind::Normal,
        1 => FlowKind::AllDefault,
        2 => FlowKind::McDefault,
        3 => FlowKind::Sniffer,
        _ => return Err(Misuse::invalid("ibv_create_flow: no such type of rule")),
    };
    if head.flags & EGRESS != 0 {
        return Err(Misuse::new(
            Errno::EOPNOTSUPP,
            "ibv_create_flow: rules are about what comes in",
        ));
    }
    if head.comp_mask != 0 || head.flags & !DONT_TRAP != 0 || head.num_of_specs > SPECS_MAX {
        return Err(Misuse::invalid(
            "ibv_create_flow: unknown flags or comp_mask, or more than 16 specs",
        ));
    }
    if head.port != 1 {
        return Err(Misuse::invalid("ibv_create_flow: the only port is 1"));
    }
    let mut wanted = Wanted {
        attr: FlowAttr {
            kind,
            priority: head.priority,
            dont_trap: head.flags & DONT_TRAP != 0,
            ..FlowAttr::default()
        },
        counters: None,
    };
    let mut place = at.raw().wrapping_add(1).cast::<u8>().cast_const();
    for _ in 0..head.num_of_specs {
        let spec = Spec::read(place)?;
        place = place.wrapping_add(spec.bytes.len());
        spec.add_to(&mut wanted)?;
    }
    Ok(wanted)
}

/// Bytes of the longest spec (of IPv6).
const SPEC_BYTES_MAX: usize = 88;
/// Type and size, and what aligns a word behind them.
const SPEC_HEAD: usize = 6;
const SPEC_HEAD_WORD: usize = 8;

/// One spec: its type, and its bytes from the type on.
struct Spec {
    kind: u32,
    bytes: Vec<u8>,
}

impl Spec {
    fn read(place: *const u8) -> Outcome<Self> {
        let head = Self::copy(place, SPEC_HEAD);
        let kind = u32::from_ne_bytes(part(&head, 0));
        let size = usize::from(u16::from_ne_bytes(part(&head, 4)));
        let expected = match kind {
            ETH => 40,
            IPV4 => 24,
            IPV4_EXT => 32,
            IPV6 => SPEC_BYTES_MAX,
            TCP | UDP => 16,
            TAG => 12,
            DROP => 8,
            COUNT => 16,
            ESP | VXLAN | GRE | MPLS | HANDLE => return Err(NOT_OFFERED),
            _ if kind & INNER != 0 => return Err(NOT_OFFERED),
            _ => return Err(MALFORMED),
        };
        if size != expected {
            return Err(MALFORMED);
        }
        let bytes = Self::copy(place, size);
        Ok(Self { kind, bytes })
    }

    fn copy(place: *const u8, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        // SAFETY: verbs.h: `num_of_specs` specs follow the attributes one after the other, each as
        // long as its size says; none is shorter than its head.
        unsafe { core::ptr::copy_nonoverlapping(place, bytes.as_mut_ptr(), len) };
        bytes
    }

    /// A field and its mask: `at` bytes into a filter of `filter` bytes that begins at `start`.
    fn field<const N: usize>(&self, start: usize, filter: usize, at: usize) -> Masked<[u8; N]> {
        Masked {
            value: part(&self.bytes, start + at),
            mask: part(&self.bytes, start + filter + at),
        }
    }

    fn add_to(&self, wanted: &mut Wanted) -> Outcome<()> {
        match self.kind {
            TAG => wanted.attr.tag = u32::from_ne_bytes(part(&self.bytes, SPEC_HEAD_WORD)),
            DROP => wanted.attr.drop = true,
            COUNT => {
                let word = usize::from_ne_bytes(part(&self.bytes, SPEC_HEAD_WORD));
                let place: *mut ibv_counters = core::ptr::with_exposed_provenance_mut(word);
                wanted.counters = Some(Handle::from_raw(place));
            }
            _ => wanted.attr.specs.push(self.condition().ok_or(MALFORMED)?),
        }
        Ok(())
    }

    fn condition(&self) -> Option<FlowSpec> {
        let eth = |at| number16(self.field(SPEC_HEAD, 16, at));
        let port = |at| number16(self.field(SPEC_HEAD, 4, at));
        let v4 = |at| self.field(SPEC_HEAD_WORD, 8, at);
        let ext = |at| number8(self.field(SPEC_HEAD_WORD, 12, at));
        let v6 = |at| number8(self.field(SPEC_HEAD_WORD, 40, at));
        Some(match self.kind {
            ETH => FlowSpec::Eth {
                dst_mac: self.field(SPEC_HEAD, 16, 0),
                src_mac: self.field(SPEC_HEAD, 16, 6),
                ether_type: eth(12),
                vlan_tag: eth(14),
            },
            IPV4 => FlowSpec::Ipv4 {
                src: v4(0),
                dst: v4(4),
                proto: Masked::default(),
                tos: Masked::default(),
                ttl: Masked::default(),
                flags: Masked::default(),
            },
            IPV4_EXT => FlowSpec::Ipv4 {
                src: self.field(SPEC_HEAD_WORD, 12, 0),
                dst: self.field(SPEC_HEAD_WORD, 12, 4),
                proto: ext(8),
                tos: ext(9),
                ttl: ext(10),
                flags: ext(11),
            },
            IPV6 => FlowSpec::Ipv6 {
                src: self.field(SPEC_HEAD_WORD, 40, 0),
                dst: self.field(SPEC_HEAD_WORD, 40, 16),
                flow_label: number32(self.field(SPEC_HEAD_WORD, 40, 32)),
                next_hdr: v6(36),
                traffic_class: v6(37),
                hop_limit: v6(38),
            },
            TCP => FlowSpec::Tcp {
                dst_port: port(0),
                src_port: port(2),
            },
            UDP => FlowSpec::Udp {
                dst_port: port(0),
                src_port: port(2),
            },
            _ => return None,
        })
    }
}

/// `enum ibv_flow_spec_type`
const ETH: u32 = 0x20;
const IPV4: u32 = 0x30;
const IPV6: u32 = 0x31;
const IPV4_EXT: u32 = 0x32;
const ESP: u32 = 0x34;
const TCP: u32 = 0x40;
const UDP: u32 = 0x41;
const VXLAN: u32 = 0x50;
const GRE: u32 = 0x51;
const MPLS: u32 = 0x60;
const INNER: u32 = 0x100;
const TAG: u32 = 0x1000;
const DROP: u32 = 0x1001;
const HANDLE: u32 = 0x1002;
const COUNT: u32 = 0x1003;

fn part<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let part = bytes.get(at..at + N).and_then(|b| b.try_into().ok());
    part.unwrap_or([0; N])
}

/// Fields are in the order of the wire.
fn number8(field: Masked<[u8; 1]>) -> Masked<u8> {
    Masked {
        value: field.value[0],
        mask: field.mask[0],
    }
}

fn number16(field: Masked<[u8; 2]>) -> Masked<u16> {
    Masked {
        value: u16::from_be_bytes(field.value),
        mask: u16::from_be_bytes(field.mask),
    }
}

fn number32(field: Masked<[u8; 4]>) -> Masked<u32> {
    Masked {
        value: u32::from_be_bytes(field.value),
        mask: u32::from_be_bytes(field.mask),
    }
}

/// The slots of `verbs_context`: create_flow, destroy_flow, create_counters, destroy_counters,
/// attach_counters_point_flow, read_counters.
pub(crate) fn slots() -> [Slot; 6] {
    type Attr = Arg<ibv_flow_attr>;
    type Attach = Arg<ibv_counter_attach_attr>;
    [
        slot!(create_flow, fn(Handle<Qp>, Attr) -> *mut ibv_flow),
        slot!(destroy_flow, fn(Handle<Flow>) -> c_int),
        slot!(
            create_counters,
            fn(Handle<Context>, Arg<u32>) -> *mut ibv_counters
        ),
        slot!(destroy_counters, fn(Handle<Counters>) -> c_int),
        slot!(
            attach_counters_point_flow,
            fn(Handle<Counters>, Attach, *mut ibv_flow) -> c_int
        ),
        slot!(
            read_counters,
            fn(Handle<Counters>, Arg<u64>, u32, u32) -> c_int
        ),
    ]
}

// The attributes and the specs behind them are not in the list that the build compares with.
const _: () = assert!(size_of::<ibv_flow_attr>() == 20);
