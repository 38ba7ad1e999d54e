//! Attributes of devices and ports: what we promise, and keep.

use rocebud_wire::Mtu;

/// Bits of [`DeviceAttr::device_cap_flags`]; values of `enum ibv_device_cap_flags`.
pub mod device_cap {
    /// Bad P_Key packets are counted.
    pub const BAD_PKEY_CNTR: u32 = 1 << 1;
    /// Bad Q_Key packets are counted.
    pub const BAD_QKEY_CNTR: u32 = 1 << 2;
    /// `current_qp_state` is checked by modify_qp.
    pub const CURR_QP_STATE_MOD: u32 = 1 << 7;
    /// PORT_ACTIVE is raised.
    pub const PORT_ACTIVE_EVENT: u32 = 1 << 10;
    /// `sys_image_guid` is valid.
    pub const SYS_IMAGE_GUID: u32 = 1 << 11;
    /// RNR NAKs are made for RC.
    pub const RC_RNR_NAK_GEN: u32 = 1 << 12;
    /// Shared receive queues can be resized.
    pub const SRQ_RESIZE: u32 = 1 << 13;
    /// Memory windows of type 1.
    pub const MEM_WINDOW: u32 = 1 << 17;
    /// Extended reliable connections.
    pub const XRC: u32 = 1 << 20;
    /// LOCAL_INV and SEND with invalidate.
    pub const MEM_MGT_EXTENSIONS: u32 = 1 << 21;
    /// Memory windows of type 2 that belong to a queue pair and its protection domain.
    pub const MEM_WINDOW_TYPE_2B: u32 = 1 << 24;
    /// Flow rules steer packets.
    pub const MANAGED_FLOW_STEERING: u32 = 1 << 29;
}

/// `enum ibv_atomic_cap`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum AtomicCap {
    /// No atomics.
    None = 0,
    /// Atomic among queue pairs of this device.
    Hca = 1,
    /// Atomic towards the CPU as well.
    Glob = 2,
}

/// `struct ibv_device_attr`.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "the names are those of verbs.h")]
pub struct DeviceAttr {
    pub fw_ver: String,
    /// Host order; the C struct wants it in network order.
    pub node_guid: u64,
    /// Host order.
    pub sys_image_guid: u64,
    pub max_mr_size: u64,
    pub page_size_cap: u64,
    pub vendor_id: u32,
    pub vendor_part_id: u32,
    pub hw_ver: u32,
    pub max_qp: u32,
    pub max_qp_wr: u32,
    pub device_cap_flags: u32,
    pub max_sge: u32,
    pub max_sge_rd: u32,
    pub max_cq: u32,
    pub max_cqe: u32,
    pub max_mr: u32,
    pub max_pd: u32,
    pub max_qp_rd_atom: u32,
    pub max_ee_rd_atom: u32,
    pub max_res_rd_atom: u32,
    pub max_qp_init_rd_atom: u32,
    pub max_ee_init_rd_atom: u32,
    pub atomic_cap: AtomicCap,
    pub max_ee: u32,
    pub max_rdd: u32,
    pub max_mw: u32,
    pub max_raw_ipv6_qp: u32,
    pub max_raw_ethy_qp: u32,
    pub max_mcast_grp: u32,
    pub max_mcast_qp_attach: u32,
    pub max_total_mcast_qp_attach: u32,
    pub max_ah: u32,
    pub max_fmr: u32,
    pub max_map_per_fmr: u32,
    pub max_srq: u32,
    pub max_srq_wr: u32,
    pub max_srq_sge: u32,
    pub max_pkeys: u16,
    pub local_ca_ack_delay: u8,
    pub phys_port_cnt: u8,
    /// Not in the C struct of this name: `num_comp_vectors` of the context.
    pub num_comp_vectors: u32,
    /// Bytes that a send may carry inline at most.
    pub max_inline_data: u32,
    /// Bytes of device memory in one piece.
    pub max_dm_size: u64,
    /// On-demand regions.
    pub odp: OdpCaps,
    /// This process may carry raw packets: queue pairs of them, flow rules, indirection tables.
    pub raw_packet: bool,
    /// Queues of an indirection table.
    pub max_ind_table: u32,
}

/// What on-demand regions may be used for: bits of [`odp_cap`] by transport.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[allow(missing_docs, reason = "the names are those of verbs.h")]
pub struct OdpCaps {
    /// 1 = on demand at all, 2 = the whole address space too.
    pub general: u64,
    pub rc: u32,
    pub uc: u32,
    pub ud: u32,
    pub xrc: u32,
}

/// `enum ibv_odp_transport_cap_bits`.
pub mod odp_cap {
    /// SEND from such a region.
    pub const SEND: u32 = 1;
    /// Receives into it.
    pub const RECV: u32 = 1 << 1;
    /// WRITE, at both ends.
    pub const WRITE: u32 = 1 << 2;
    /// READ, at both ends.
    pub const READ: u32 = 1 << 3;
    /// Atomics, at both ends.
    pub const ATOMIC: u32 = 1 << 4;
    /// Receives of a shared queue into it.
    pub const SRQ_RECV: u32 = 1 << 5;
    /// FLUSH of it.
    pub const FLUSH: u32 = 1 << 6;
    /// ATOMIC WRITE, at both ends.
    pub const ATOMIC_WRITE: u32 = 1 << 7;
}

/// Software copies when bytes move, and looks at the pages only then: every operation can.
const ODP: OdpCaps = OdpCaps {
    general: 1 | 2,
    rc: odp_cap::SEND
        | odp_cap::RECV
        | odp_cap::WRITE
        | odp_cap::READ
        | odp_cap::ATOMIC
        | odp_cap::SRQ_RECV
        | odp_cap::FLUSH
        | odp_cap::ATOMIC_WRITE,
    uc: odp_cap::SEND | odp_cap::RECV | odp_cap::WRITE,
    ud: odp_cap::SEND | odp_cap::RECV | odp_cap::SRQ_RECV,
    xrc: odp_cap::SEND
        | odp_cap::WRITE
        | odp_cap::READ
        | odp_cap::ATOMIC
        | odp_cap::SRQ_RECV
        | odp_cap::FLUSH,
};

/// `enum ibv_port_state`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
#[allow(missing_docs, reason = "the names are those of verbs.h")]
pub enum PortState {
    Nop = 0,
    Down = 1,
    Init = 2,
    Armed = 3,
    Active = 4,
    ActiveDefer = 5,
}

/// `struct ibv_port_attr`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "the names are those of verbs.h")]
pub struct PortAttr {
    pub state: PortState,
    pub max_mtu: Mtu,
    pub active_mtu: Mtu,
    pub gid_tbl_len: u32,
    pub port_cap_flags: u32,
    pub max_msg_sz: u32,
    pub bad_pkey_cntr: u32,
    pub qkey_viol_cntr: u32,
    pub pkey_tbl_len: u16,
    pub lid: u16,
    pub sm_lid: u16,
    pub lmc: u8,
    pub max_vl_num: u8,
    pub sm_sl: u8,
    pub subnet_timeout: u8,
    pub init_type_reply: u8,
    /// 1 = 1X, 2 = 4X, 4 = 8X, 8 = 12X.
    pub active_width: u8,
    /// 1 SDR, 2 DDR, 4 QDR, 8 FDR10, 16 FDR, 32 EDR, 64 HDR.
    pub active_speed: u8,
    /// 2 polling, 3 disabled, 5 link up.
    pub phys_state: u8,
    /// 2 = Ethernet.
    pub link_layer: u8,
    /// `IBV_QPF_GRH_REQUIRED` = 1.
    pub flags: u8,
    pub port_cap_flags2: u16,
    pub active_speed_ex: u32,
}

/// Limits that `create_*` enforce; the same numbers are in [`DeviceAttr`].
pub(crate) mod limits {
    /// Queue pairs of a process: four slots of the daemon.
    pub(crate) const QP_MAX: u32 = 4 * 4096;
    /// Requests in a queue. The queues grow as they fill, up to this.
    pub(crate) const QP_WR_MAX: u32 = 1 << 16;
    /// Pieces of a request.
    pub(crate) const SGE_MAX: u32 = 32;
    /// Bytes inline at most.
    pub(crate) const INLINE_MAX: u32 = 4096;
    /// Bytes inline that every queue pair is given.
    pub(crate) const INLINE_MIN: u32 = 512;
    /// Protection domains are numbers only.
    pub(crate) const PD_MAX: u32 = 1 << 20;
    /// Shared receive queues.
    pub(crate) use rocebud_runtime::SRQS_MAX as SRQ_MAX;
    /// Completion queues.
    pub(crate) use rocebud_runtime::cq::CQS_MAX as CQ_MAX;
    /// Address handles are values only.
    pub(crate) const AH_MAX: u32 = 1 << 20;
    /// READs and atomics outstanding, each way.
    pub(crate) const RD_ATOM_MAX: u32 = 128;
    /// Queues of an indirection table.
    pub(crate) const IND_TABLE_MAX: u32 = 128;
    /// Places in an array of counters.
    pub(crate) const COUNTERS_MAX: u32 = 64;
    /// Queue pairs attached to a multicast group.
    pub(crate) const MCAST_ATTACH_MAX: u32 = 56;
    /// Multicast groups.
    pub(crate) const MCAST_GROUP_MAX: u32 = 8192;
    /// Completion vectors.
    pub(crate) const COMP_VECTORS: u32 = 1;
    /// Bytes of a region: what a process can address.
    pub(crate) const MR_BYTES_MAX: u64 = 1 << 47;
    /// Bytes of device memory in one piece. It is plain memory; this keeps a program that takes the
    /// maximum modest.
    pub(crate) const DM_BYTES_MAX: u64 = 1 << 24;
    /// Device memory can be aligned to a huge page.
    pub(crate) const DM_LOG_ALIGN_MAX: u32 = 21;
    /// Bytes of a message.
    pub(crate) const MESSAGE_BYTES_MAX: u32 = 1 << 31;
}

/// What a device with this GUID offers.
pub(crate) fn device_attr(node_guid: u64, raw_packet: bool) -> DeviceAttr {
    let steering = if raw_packet {
        device_cap::MANAGED_FLOW_STEERING
    } else {
        0
    };
    DeviceAttr {
        fw_ver: env!("CARGO_PKG_VERSION").into(),
        node_guid,
        sys_image_guid: node_guid,
        max_mr_size: limits::MR_BYTES_MAX,
        page_size_cap: 0xffff_f000,
        vendor_id: 0x00ff_ffff,
        vendor_part_id: 0,
        hw_ver: 0,
        max_qp: limits::QP_MAX,
        max_qp_wr: limits::QP_WR_MAX,
        device_cap_flags: device_cap::BAD_PKEY_CNTR
            | device_cap::BAD_QKEY_CNTR
            | device_cap::CURR_QP_STATE_MOD
            | device_cap::PORT_ACTIVE_EVENT
            | device_cap::SYS_IMAGE_GUID
            | device_cap::RC_RNR_NAK_GEN
            | device_cap::SRQ_RESIZE
            | device_cap::MEM_WINDOW
            | device_cap::XRC
            | device_cap::MEM_MGT_EXTENSIONS
            | device_cap::MEM_WINDOW_TYPE_2B
            | steering,
        max_sge: limits::SGE_MAX,
        max_sge_rd: limits::SGE_MAX,
        max_cq: limits::CQ_MAX,
        max_cqe: rocebud_runtime::cq::CQE_MAX,
        max_mr: u32::try_from(rocebud_runtime::keys::REGIONS_MAX).unwrap_or(u32::MAX),
        max_pd: limits::PD_MAX,
        max_qp_rd_atom: limits::RD_ATOM_MAX,
        max_ee_rd_atom: 0,
        max_res_rd_atom: limits::RD_ATOM_MAX * limits::QP_MAX,
        max_qp_init_rd_atom: limits::RD_ATOM_MAX,
        max_ee_init_rd_atom: 0,
        // Every atomic is one instruction of the CPU on the application's memory.
        atomic_cap: AtomicCap::Glob,
        max_ee: 0,
        max_rdd: 0,
        max_mw: u32::try_from(rocebud_runtime::keys::WINDOWS_MAX).unwrap_or(u32::MAX),
        max_raw_ipv6_qp: 0,
        max_raw_ethy_qp: 0,
        max_mcast_grp: limits::MCAST_GROUP_MAX,
        max_mcast_qp_attach: limits::MCAST_ATTACH_MAX,
        max_total_mcast_qp_attach: limits::MCAST_ATTACH_MAX * limits::MCAST_GROUP_MAX,
        max_ah: limits::AH_MAX,
        max_fmr: 0,
        max_map_per_fmr: 0,
        max_srq: limits::SRQ_MAX,
        max_srq_wr: limits::QP_WR_MAX,
        max_srq_sge: limits::SGE_MAX,
        max_pkeys: 1,
        local_ca_ack_delay: 15,
        phys_port_cnt: 1,
        num_comp_vectors: limits::COMP_VECTORS,
        max_inline_data: limits::INLINE_MAX,
        max_dm_size: limits::DM_BYTES_MAX,
        odp: ODP,
        raw_packet,
        max_ind_table: limits::IND_TABLE_MAX,
    }
}

/// The port of a device; `None` = its interface is gone.
pub(crate) fn port_attr(device: Option<&rocebud_ctl::DeviceInfo>) -> PortAttr {
    let active = device.is_some_and(|d| d.active);
    let enabled = device.is_some_and(|d| d.enabled);
    let (active_speed, active_width) = speed_and_width(device.map_or(0, |d| d.speed_mbps));
    PortAttr {
        state: if active {
            PortState::Active
        } else {
            PortState::Down
        },
        max_mtu: Mtu::M4096,
        active_mtu: device.map_or(Mtu::M256, rocebud_ctl::DeviceInfo::mtu),
        gid_tbl_len: device.map_or(1, |d| u32::try_from(d.gids.len()).unwrap_or(u32::MAX)),
        port_cap_flags: CM_SUPPORTED | IP_BASED_GIDS,
        max_msg_sz: limits::MESSAGE_BYTES_MAX,
        bad_pkey_cntr: 0,
        qkey_viol_cntr: 0,
        pkey_tbl_len: 1,
        lid: 0,
        sm_lid: 0,
        lmc: 0,
        max_vl_num: 1,
        sm_sl: 0,
        subnet_timeout: 0,
        init_type_reply: 0,
        active_width,
        active_speed,
        phys_state: match (active, enabled) {
            (true, _) => 5,
            (false, true) => 2,
            (false, false) => 3,
        },
        link_layer: 2,
        flags: 1,
        port_cap_flags2: 0,
        active_speed_ex: 0,
    }
}

const CM_SUPPORTED: u32 = 1 << 16;
const IP_BASED_GIDS: u32 = 1 << 26;

/// As Linux translates Ethernet speeds.
fn speed_and_width(mbps: u32) -> (u8, u8) {
    const SDR: u8 = 1;
    const DDR: u8 = 2;
    const FDR10: u8 = 8;
    const EDR: u8 = 32;
    const X1: u8 = 1;
    const X4: u8 = 2;
    match mbps {
        0..=1_000 => (SDR, X1),
        1_001..=10_000 => (FDR10, X1),
        10_001..=20_000 => (DDR, X4),
        20_001..=25_000 => (EDR, X1),
        25_001..=40_000 => (FDR10, X4),
        _ => (EDR, X4),
    }
}
