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
}

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
