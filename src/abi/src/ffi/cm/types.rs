//! The C structures of rdma_cma.h and sa.h at release 64, checked like those of verbs.h.
#![allow(
    non_camel_case_types,
    missing_docs,
    reason = "names and fields are those of rdma_cma.h"
)]

use core::ffi::{c_char, c_int, c_uint, c_void};

use super::super::types::{
    Plain, c_struct, ibv_ah_attr, ibv_comp_channel, ibv_context, ibv_cq, ibv_gid, ibv_pd, ibv_qp,
    ibv_srq,
};

/// `struct sockaddr_storage`, aligned as it is.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
pub(crate) struct sockaddr_storage(pub(crate) [u8; 128]);

c_struct! {
    struct rdma_event_channel {
        fd: c_int,
    }
    struct rdma_ib_addr {
        sgid: ibv_gid,
        dgid: ibv_gid,
        pkey: u16,
    }
    struct rdma_addr {
        src: sockaddr_storage,
        dst: sockaddr_storage,
        addr: rdma_ib_addr,
    }
    struct rdma_route {
        addr: rdma_addr,
        path_rec: *mut ibv_sa_path_rec,
        num_paths: c_int,
    }
    struct rdma_cm_id {
        verbs: *mut ibv_context,
        channel: *mut rdma_event_channel,
        context: *mut c_void,
        qp: *mut ibv_qp,
        route: rdma_route,
        ps: c_int,
        port_num: u8,
        event: *mut rdma_cm_event,
        send_cq_channel: *mut ibv_comp_channel,
        send_cq: *mut ibv_cq,
        recv_cq_channel: *mut ibv_comp_channel,
        recv_cq: *mut ibv_cq,
        srq: *mut ibv_srq,
        pd: *mut ibv_pd,
        qp_type: c_uint,
    }
    struct rdma_conn_param {
        private_data: *const u8,
        private_data_len: u8,
        responder_resources: u8,
        initiator_depth: u8,
        flow_control: u8,
        retry_count: u8,
        rnr_retry_count: u8,
        srq: u8,
        qp_num: u32,
    }
    struct rdma_ud_param {
        private_data: *const c_void,
        private_data_len: u8,
        ah_attr: ibv_ah_attr,
        qp_num: u32,
        qkey: u32,
    }
    struct rdma_cm_event {
        id: *mut rdma_cm_id,
        listen_id: *mut rdma_cm_id,
        event: c_uint,
        status: c_int,
        param: rdma_cm_param,
    }
    struct rdma_cm_join_mc_attr_ex {
        comp_mask: u32,
        join_flags: u32,
        addr: *const u8,
    }
    struct rdma_addrinfo {
        ai_flags: c_int,
        ai_family: c_int,
        ai_qp_type: c_int,
        ai_port_space: c_int,
        ai_src_len: u32,
        ai_dst_len: u32,
        ai_src_addr: *mut u8,
        ai_dst_addr: *mut u8,
        ai_src_canonname: *mut c_char,
        ai_dst_canonname: *mut c_char,
        ai_route_len: usize,
        ai_route: *mut c_void,
        ai_connect_len: usize,
        ai_connect: *mut u8,
        ai_next: *mut rdma_addrinfo,
    }
    struct ibv_sa_path_rec {
        dgid: ibv_gid,
        sgid: ibv_gid,
        dlid: u16,
        slid: u16,
        raw_traffic: c_int,
        flow_label: u32,
        hop_limit: u8,
        traffic_class: u8,
        reversible: c_int,
        numb_path: u8,
        pkey: u16,
        sl: u8,
        mtu_selector: u8,
        mtu: u8,
        rate_selector: u8,
        rate: u8,
        packet_life_time_selector: u8,
        packet_life_time: u8,
        preference: u8,
    }
    struct ibv_ece {
        vendor_id: u32,
        options: u32,
        comp_mask: u32,
    }
}

/// The union in an event.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) union rdma_cm_param {
    pub(crate) conn: rdma_conn_param,
    pub(crate) ud: rdma_ud_param,
    pub(crate) arg: u64,
}

// SAFETY: bytes.
unsafe impl Plain for sockaddr_storage {}

/// `RDMA_PS_IPOIB`, `_TCP`, `_UDP`, `_IB`
pub(crate) const PS_IPOIB: c_int = 2;
pub(crate) const PS_TCP: c_int = 0x106;
pub(crate) const PS_UDP: c_int = 0x111;
pub(crate) const PS_IB: c_int = 0x13f;

/// `IBV_QPT_*`
pub(crate) const RC: c_uint = 2;
pub(crate) const UC: c_uint = 3;
pub(crate) const UD: c_uint = 4;
pub(crate) const XRC_SEND: c_uint = 9;
pub(crate) const XRC_RECV: c_uint = 10;

/// `RDMA_MAX_RESP_RES`, `RDMA_MAX_INIT_DEPTH`: as many as there are.
pub(crate) const ALL: u8 = 0xff;

/// `enum rdma_cm_event_type`
pub(crate) mod event {
    use core::ffi::c_uint;

    pub(crate) const ADDR_ERROR: c_uint = 1;
    pub(crate) const ROUTE_RESOLVED: c_uint = 2;
    pub(crate) const CONNECT_REQUEST: c_uint = 4;
    pub(crate) const CONNECT_RESPONSE: c_uint = 5;
    pub(crate) const CONNECT_ERROR: c_uint = 6;
    pub(crate) const REJECTED: c_uint = 8;
    pub(crate) const ESTABLISHED: c_uint = 9;
    pub(crate) const DISCONNECTED: c_uint = 10;
    pub(crate) const DEVICE_REMOVAL: c_uint = 11;
    pub(crate) const MULTICAST_JOIN: c_uint = 12;
    pub(crate) const MULTICAST_ERROR: c_uint = 13;
    pub(crate) const ADDRINFO_RESOLVED: c_uint = 16;
    pub(crate) const USER: c_uint = 18;
}

include!(concat!(env!("OUT_DIR"), "/cm_layout_asserts.rs"));
