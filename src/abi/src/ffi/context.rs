//! Contexts: an opened device, and what can be asked of it.

use core::ffi::{c_int, c_void};
use core::mem::offset_of;

use rocebud_objects::{Misuse, QpType, RxHashFields};
use rocebud_verbs::DeviceAttr;
use rocebud_wire::Mtu;

use super::boundary::{Arg, Outcome};
use super::command;
use super::cq::{self, Cq};
use super::cq_ex;
use super::device::{Device, put};
use super::dm;
use super::domain::{self, Td, withdraw_dead};
use super::flow;
use super::handle::{Handle, Head, Object, give};
use super::memory;
use super::post;
use super::qp::{self, Qp};
use super::srq::{self, Srq};
use super::types::{
    Plain, ibv_context, ibv_context_ops, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_device,
    ibv_device_attr, ibv_device_attr_ex, ibv_modify_cq_attr, ibv_odp_caps,
    ibv_parent_domain_init_attr, ibv_pd, ibv_port_attr, ibv_qp, ibv_qp_init_attr_ex,
    ibv_qp_rate_limit_attr, ibv_recv_wr, ibv_rss_caps, ibv_send_wr, ibv_td, ibv_td_init_attr,
    ibv_values_ex, ibv_wc, verbs_context,
};
use super::window;
use super::wq;
use super::xrc;

/// An opened device of ours.
#[repr(C)]
pub(crate) struct Context {
    head: Head<verbs_context>,
    pub(crate) verbs: rocebud_verbs::Context,
}

impl Object for Context {
    const DEPTH: usize = 1;
    const OFFSET: usize = offset_of!(verbs_context, context);
}

impl Context {
    /// Is it a context of this device?
    pub(crate) fn is_of(&self, device: *mut ibv_device) -> bool {
        self.head.get().context.device == device
    }

    /// The address that C knows the context by.
    pub(crate) fn as_ptr(&self) -> *mut ibv_context {
        self.head.as_ptr().wrapping_byte_add(Self::OFFSET).cast()
    }
}

c_api! {
    /// `ibv_open_device`
    fn ibv_open_device(device: Device) -> Pointer, *mut ibv_context {
        open(device)
    }

    /// `ibv_close_device`: what is left on the context goes with it, but for what its imports have.
    fn ibv_close_device(context: Context) -> MinusOne, c_int {
        let handle = Handle::<Context>::from_raw(context.as_ptr());
        let command_fd = context.head.get().context.cmd_fd;
        context.verbs.close();
        command::leave(command_fd, &context.verbs);
        withdraw_dead();
        drop(handle.reclaim());
        Ok(0)
    }

    /// `ibv_query_device`
    fn ibv_query_device(context: Context, attr: Arg<ibv_device_attr>) -> ErrnoCode, () {
        attr.set(device_attr(&context.verbs))
    }

    /// `ibv_query_port`: writes only the structure as it was before it grew (48 bytes).
    fn ibv_query_port(context: Context, port: u8, attr: Arg<ibv_port_attr>) -> ErrnoCode, () {
        attr.set_sized(&port_attr(&context.verbs, port)?, OLD_PORT_ATTR)
    }

    /// `ibv_query_port_speed`: in units of 100 Mbit/s.
    fn ibv_query_port_speed(context: Context, port: u32, speed: Arg<u64>) -> ErrnoCode, () {
        let port = u8::try_from(port).unwrap_or(u8::MAX);
        context.verbs.query_port(port)?;
        speed.set(u64::from(context.verbs.device_info().speed_mbps / 100))
    }
}

/// Opens a device of ours.
pub(crate) fn open(device: &Device) -> Outcome<*mut ibv_context> {
    let verbs = device.verbs().open()?;
    let command_fd = command::make()?;
    open_context(device.as_ptr(), verbs, command_fd)
}

/// Hands an open device to C, with its command descriptor.
pub(crate) fn open_context(
    device: *mut ibv_device,
    verbs: rocebud_verbs::Context,
    command_fd: c_int,
) -> Outcome<*mut ibv_context> {
    command::enter(command_fd, device, &verbs);
    let attr = verbs.query_device();
    let mut head = extended_operations();
    [head.alloc_dm, head.free_dm, head.reg_dm_mr] = dm::slots();
    [
        head.open_xrcd,
        head.close_xrcd,
        head.create_srq_ex,
        head.open_qp,
    ] = xrc::slots();
    [head.alloc_null_mr, head.advise_mr] = memory::slots();
    [
        head.ibv_create_flow,
        head.ibv_destroy_flow,
        head.create_counters,
        head.destroy_counters,
        head.attach_counters_point_flow,
        head.read_counters,
    ] = flow::slots();
    [
        head.create_wq,
        head.modify_wq,
        head.destroy_wq,
        head.create_rwq_ind_table,
        head.destroy_rwq_ind_table,
    ] = wq::slots();
    head.context = ibv_context {
        device,
        ops: operations(),
        cmd_fd: command_fd,
        async_fd: verbs.async_fd(),
        num_comp_vectors: c_int::try_from(attr.num_comp_vectors).unwrap_or(1),
        abi_compat: usize::MAX as *mut c_void,
        ..ibv_context::zeroed()
    };
    Ok(give(Box::new(Context {
        head: Head::new(head),
        verbs,
    })))
}

/// What the headers reach in front of the context.
fn extended_operations() -> verbs_context {
    verbs_context {
        sz: size_of::<verbs_context>(),
        query_port: slot!(
            query_port_sized,
            fn(Handle<Context>, u8, Arg<ibv_port_attr>, usize) -> c_int
        ),
        query_device_ex: slot!(
            query_device_ex,
            fn(Handle<Context>, Arg<u32>, Arg<ibv_device_attr_ex>, usize) -> c_int
        ),
        create_cq_ex: slot!(
            cq_ex::create_cq_ex,
            fn(Handle<Context>, Arg<ibv_cq_init_attr_ex>) -> *mut ibv_cq_ex
        ),
        modify_cq: slot!(
            cq_ex::modify_cq,
            fn(Handle<Cq>, Arg<ibv_modify_cq_attr>) -> c_int
        ),
        query_rt_values: slot!(
            query_rt_values,
            fn(Handle<Context>, Arg<ibv_values_ex>) -> c_int
        ),
        get_srq_num: slot!(srq::get_srq_num, fn(Handle<Srq>, Arg<u32>) -> c_int),
        create_qp_ex: slot!(
            qp::create_qp_ex,
            fn(Handle<Context>, Arg<ibv_qp_init_attr_ex>) -> *mut ibv_qp
        ),
        modify_qp_rate_limit: slot!(
            qp::modify_qp_rate_limit,
            fn(Handle<Qp>, Arg<ibv_qp_rate_limit_attr>) -> c_int
        ),
        alloc_td: slot!(
            domain::alloc_td,
            fn(Handle<Context>, Arg<ibv_td_init_attr>) -> *mut ibv_td
        ),
        dealloc_td: slot!(domain::dealloc_td, fn(Handle<Td>) -> c_int),
        alloc_parent_domain: slot!(
            domain::alloc_parent_domain,
            fn(Handle<Context>, Arg<ibv_parent_domain_init_attr>) -> *mut ibv_pd
        ),
        ..verbs_context::zeroed()
    }
}

/// Bytes of `struct ibv_port_attr` up to `port_cap_flags2`.
const OLD_PORT_ATTR: usize = offset_of!(ibv_port_attr, port_cap_flags2);

own_entry! {
    /// `verbs_context.query_port`: as much as the caller's structure holds.
    fn query_port_sized(context: Context, port: u8, attr: Arg<ibv_port_attr>, room: usize)
        -> ErrnoCode, ()
    {
        attr.set_sized(&port_attr(&context.verbs, port)?, room)
    }

    /// `verbs_context.query_device_ex`. The input structure holds only a mask, which must be 0.
    fn query_device_ex(
        context: Context, input: Arg<u32>, attr: Arg<ibv_device_attr_ex>, room: usize,
    ) -> ErrnoCode, () {
        if !input.is_null() && input.get()? != 0 {
            return Err(Misuse::invalid("ibv_query_device_ex: the input's comp_mask must be 0"));
        }
        if room < offset_of!(ibv_device_attr_ex, odp_caps) {
            return Err(Misuse::invalid("ibv_query_device_ex: the structure is too small"));
        }
        let device = context.verbs.query_device();
        let odp = device.odp;
        let orig_attr = device_attr(&context.verbs);
        let full = ibv_device_attr_ex {
            orig_attr,
            device_cap_flags_ex: u64::from(orig_attr.device_cap_flags) | FLUSH_AND_ATOMIC_WRITE,
            phys_port_cnt_ex: u32::from(orig_attr.phys_port_cnt),
            completion_timestamp_mask: u64::MAX,
            hca_core_clock: CLOCK_KHZ,
            cq_mod_caps: [u16::MAX; 2],
            packet_pacing_caps: [1, u32::MAX, CONNECTED_AND_DATAGRAM],
            odp_caps: ibv_odp_caps {
                general_caps: odp.general,
                rc_odp_caps: odp.rc,
                uc_odp_caps: odp.uc,
                ud_odp_caps: odp.ud,
            },
            xrc_odp_caps: odp.xrc,
            max_dm_size: device.max_dm_size,
            ..ibv_device_attr_ex::zeroed()
        };
        let full = if device.raw_packet { with_raw_packet(full, &device) } else { full };
        attr.set_sized(&full, room)
    }

    /// `verbs_context.query_rt_values`: the clock of completions' timestamps, all of it in the
    /// nanoseconds, which is where programs that take it for a counter look.
    fn query_rt_values(context: Context, values: Arg<ibv_values_ex>) -> ErrnoCode, () {
        let mut out = values.get()?;
        out.comp_mask &= VALUES_RAW_CLOCK;
        if out.comp_mask != 0 {
            out.raw_clock = [0, context.verbs.clock_ns()?.cast_signed()];
        }
        values.set(out)
    }
}

/// What a device offers to those who may carry raw packets.
fn with_raw_packet(attr: ibv_device_attr_ex, device: &DeviceAttr) -> ibv_device_attr_ex {
    const CVLAN_STRIPPING: u32 = 1;
    let [low, high, types] = attr.packet_pacing_caps;
    ibv_device_attr_ex {
        rss_caps: ibv_rss_caps {
            supported_qpts: 1 << QpType::RawPacket as u32,
            max_rwq_indirection_tables: device.max_qp,
            max_rwq_indirection_table_size: device.max_ind_table,
            rx_hash_fields_mask: RxHashFields::all().bits(),
            rx_hash_function: 1,
        },
        max_wq_type_rq: device.max_qp,
        raw_packet_caps: CVLAN_STRIPPING,
        packet_pacing_caps: [low, high, types | 1 << QpType::RawPacket as u32],
        ..attr
    }
}

/// Queue pair types that a rate limit is offered for: bits RC, UC and UD.
const CONNECTED_AND_DATAGRAM: u32 = 1 << 2 | 1 << 3 | 1 << 4;

/// `IB_UVERBS_DEVICE_FLUSH_GLOBAL`, `_FLUSH_PERSISTENT` and `_ATOMIC_WRITE`
const FLUSH_AND_ATOMIC_WRITE: u64 = 1 << 38 | 1 << 39 | 1 << 40;

/// `IBV_VALUES_MASK_RAW_CLOCK`
const VALUES_RAW_CLOCK: u32 = 1;

/// The device's clock counts nanoseconds.
const CLOCK_KHZ: u64 = 1_000_000;

/// The data path, which the headers call without going through an exported symbol.
fn operations() -> ibv_context_ops {
    type SendWr = *mut ibv_send_wr;
    type RecvWr = *mut ibv_recv_wr;
    let [alloc_mw, bind_mw, dealloc_mw] = window::slots();
    ibv_context_ops {
        alloc_mw,
        bind_mw,
        dealloc_mw,
        poll_cq: slot!(cq::poll_cq, fn(Handle<Cq>, c_int, Arg<ibv_wc>) -> c_int),
        req_notify_cq: slot!(cq::req_notify_cq, fn(Handle<Cq>, c_int) -> c_int),
        post_srq_recv: slot!(
            post::post_srq_recv,
            fn(Handle<Srq>, RecvWr, Arg<RecvWr>) -> c_int
        ),
        post_send: slot!(
            post::post_send,
            fn(Handle<Qp>, SendWr, Arg<SendWr>) -> c_int
        ),
        post_recv: slot!(
            post::post_recv,
            fn(Handle<Qp>, RecvWr, Arg<RecvWr>) -> c_int
        ),
        ..ibv_context_ops::zeroed()
    }
}

fn int(value: u32) -> c_int {
    c_int::try_from(value).unwrap_or(c_int::MAX)
}

fn device_attr(verbs: &rocebud_verbs::Context) -> ibv_device_attr {
    let a = verbs.query_device();
    let mut attr = ibv_device_attr {
        fw_ver: [0; 64],
        node_guid: a.node_guid.to_be(),
        sys_image_guid: a.sys_image_guid.to_be(),
        max_mr_size: a.max_mr_size,
        page_size_cap: a.page_size_cap,
        vendor_id: a.vendor_id,
        vendor_part_id: a.vendor_part_id,
        hw_ver: a.hw_ver,
        device_cap_flags: a.device_cap_flags,
        max_pkeys: a.max_pkeys,
        local_ca_ack_delay: a.local_ca_ack_delay,
        phys_port_cnt: a.phys_port_cnt,
        max_qp: int(a.max_qp),
        max_qp_wr: int(a.max_qp_wr),
        max_sge: int(a.max_sge),
        max_sge_rd: int(a.max_sge_rd),
        max_cq: int(a.max_cq),
        max_cqe: int(a.max_cqe),
        max_mr: int(a.max_mr),
        max_pd: int(a.max_pd),
        max_qp_rd_atom: int(a.max_qp_rd_atom),
        max_ee_rd_atom: int(a.max_ee_rd_atom),
        max_res_rd_atom: int(a.max_res_rd_atom),
        max_qp_init_rd_atom: int(a.max_qp_init_rd_atom),
        max_ee_init_rd_atom: int(a.max_ee_init_rd_atom),
        max_ee: int(a.max_ee),
        max_rdd: int(a.max_rdd),
        max_mw: int(a.max_mw),
        max_raw_ipv6_qp: int(a.max_raw_ipv6_qp),
        max_raw_ethy_qp: int(a.max_raw_ethy_qp),
        max_mcast_grp: int(a.max_mcast_grp),
        max_mcast_qp_attach: int(a.max_mcast_qp_attach),
        max_total_mcast_qp_attach: int(a.max_total_mcast_qp_attach),
        max_ah: int(a.max_ah),
        max_fmr: int(a.max_fmr),
        max_map_per_fmr: int(a.max_map_per_fmr),
        max_srq: int(a.max_srq),
        max_srq_wr: int(a.max_srq_wr),
        max_srq_sge: int(a.max_srq_sge),
        atomic_cap: int(a.atomic_cap as u32),
    };
    put(&mut attr.fw_ver, &a.fw_ver);
    attr
}

fn port_attr(verbs: &rocebud_verbs::Context, port: u8) -> Result<ibv_port_attr, Misuse> {
    let a = verbs.query_port(port)?;
    let mtu = |m: Mtu| m as c_int;
    Ok(ibv_port_attr {
        state: int(a.state as u32),
        max_mtu: mtu(a.max_mtu),
        active_mtu: mtu(a.active_mtu),
        gid_tbl_len: int(a.gid_tbl_len),
        port_cap_flags: a.port_cap_flags,
        max_msg_sz: a.max_msg_sz,
        bad_pkey_cntr: a.bad_pkey_cntr,
        qkey_viol_cntr: a.qkey_viol_cntr,
        pkey_tbl_len: a.pkey_tbl_len,
        lid: a.lid,
        sm_lid: a.sm_lid,
        lmc: a.lmc,
        max_vl_num: a.max_vl_num,
        sm_sl: a.sm_sl,
        subnet_timeout: a.subnet_timeout,
        init_type_reply: a.init_type_reply,
        active_width: a.active_width,
        active_speed: a.active_speed,
        phys_state: a.phys_state,
        link_layer: a.link_layer,
        flags: a.flags,
        port_cap_flags2: a.port_cap_flags2,
        active_speed_ex: a.active_speed_ex,
    })
}
