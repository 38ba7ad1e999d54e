//! The C structures of verbs.h at release 64, a superset of all earlier ones: callers that know
//! less pass a size, and tails that they do not know stay untouched.
//!
//! The build script compares size and offsets of every structure here with the layout list in
//! tests/abi and stops the build where they differ.
#![allow(
    non_camel_case_types,
    non_snake_case,
    missing_docs,
    reason = "names and fields are those of verbs.h"
)]

use core::ffi::{c_char, c_int, c_uint, c_void};

/// Structures of integers, pointers and optional function pointers: all-zero is a valid value,
/// and any bytes may be read as one.
///
/// # Safety
/// The type must be `repr(C)` and hold only such fields.
pub(crate) unsafe trait Plain: Copy {
    /// The value whose bytes are all zero.
    fn zeroed() -> Self {
        // SAFETY: the trait promises that all-zero bytes are a valid value.
        unsafe { core::mem::zeroed() }
    }
}

macro_rules! c_struct {
    ($($(#[$meta:meta])* struct $name:ident { $($field:ident: $ty:ty,)* })*) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy)]
        #[repr(C)]
        pub(crate) struct $name { $(pub(crate) $field: $ty,)* }
        // SAFETY: repr(C); every field is an integer, a pointer, an optional function pointer
        // or another structure made here.
        unsafe impl Plain for $name {}
    )*};
}

pub(crate) use c_struct;

/// A slot that this library fills with a function of its own, or leaves empty: the headers then
/// answer EOPNOTSUPP.
pub(crate) type Slot = Option<unsafe extern "C" fn()>;

/// Storage of a glibc `pthread_mutex_t`; kept because it is part of the layout.
pub(crate) type mutex_t = [u64; 5];
/// Storage of a glibc `pthread_cond_t`.
pub(crate) type cond_t = [u64; 6];

/// `union ibv_gid`: sixteen bytes, aligned as the 64-bit words that C also sees in them.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
pub(crate) struct ibv_gid(pub(crate) [u8; 16]);

c_struct! {
    struct ibv_device {
        _ops: [*const c_void; 2],
        node_type: c_int,
        transport_type: c_int,
        name: [c_char; 64],
        dev_name: [c_char; 64],
        dev_path: [c_char; 256],
        ibdev_path: [c_char; 256],
    }
    struct ibv_context_ops {
        _compat_query_device: Slot,
        _compat_query_port: Slot,
        _compat_alloc_pd: Slot,
        _compat_dealloc_pd: Slot,
        _compat_reg_mr: Slot,
        _compat_rereg_mr: Slot,
        _compat_dereg_mr: Slot,
        alloc_mw: Slot,
        bind_mw: Slot,
        dealloc_mw: Slot,
        _compat_create_cq: Slot,
        poll_cq: Slot,
        req_notify_cq: Slot,
        _compat_cq_event: Slot,
        _compat_resize_cq: Slot,
        _compat_destroy_cq: Slot,
        _compat_create_srq: Slot,
        _compat_modify_srq: Slot,
        _compat_query_srq: Slot,
        _compat_destroy_srq: Slot,
        post_srq_recv: Slot,
        _compat_create_qp: Slot,
        _compat_query_qp: Slot,
        _compat_modify_qp: Slot,
        _compat_destroy_qp: Slot,
        post_send: Slot,
        post_recv: Slot,
        _compat_create_ah: Slot,
        _compat_destroy_ah: Slot,
        _compat_attach_mcast: Slot,
        _compat_detach_mcast: Slot,
        _compat_async_event: Slot,
    }
    struct ibv_context {
        device: *mut ibv_device,
        ops: ibv_context_ops,
        cmd_fd: c_int,
        async_fd: c_int,
        num_comp_vectors: c_int,
        mutex: mutex_t,
        abi_compat: *mut c_void,
    }
    struct verbs_context {
        free_buf: Slot,
        alloc_buf: Slot,
        dm_export_dmabuf_fd: Slot,
        reg_mr_ex: Slot,
        dealloc_dmah: Slot,
        alloc_dmah: Slot,
        query_port: Slot,
        advise_mr: Slot,
        alloc_null_mr: Slot,
        read_counters: Slot,
        attach_counters_point_flow: Slot,
        create_counters: Slot,
        destroy_counters: Slot,
        reg_dm_mr: Slot,
        alloc_dm: Slot,
        free_dm: Slot,
        modify_flow_action_esp: Slot,
        destroy_flow_action: Slot,
        create_flow_action_esp: Slot,
        modify_qp_rate_limit: Slot,
        alloc_parent_domain: Slot,
        dealloc_td: Slot,
        alloc_td: Slot,
        modify_cq: Slot,
        post_srq_ops: Slot,
        destroy_rwq_ind_table: Slot,
        create_rwq_ind_table: Slot,
        destroy_wq: Slot,
        modify_wq: Slot,
        create_wq: Slot,
        query_rt_values: Slot,
        create_cq_ex: Slot,
        r#priv: *mut c_void,
        query_device_ex: Slot,
        ibv_destroy_flow: Slot,
        ABI_placeholder2: Slot,
        ibv_create_flow: Slot,
        ABI_placeholder1: Slot,
        open_qp: Slot,
        create_qp_ex: Slot,
        get_srq_num: Slot,
        create_srq_ex: Slot,
        open_xrcd: Slot,
        close_xrcd: Slot,
        _ABI_placeholder3: u64,
        sz: usize,
        context: ibv_context,
    }
    struct ibv_device_attr {
        fw_ver: [c_char; 64],
        node_guid: u64,
        sys_image_guid: u64,
        max_mr_size: u64,
        page_size_cap: u64,
        vendor_id: u32,
        vendor_part_id: u32,
        hw_ver: u32,
        max_qp: c_int,
        max_qp_wr: c_int,
        device_cap_flags: c_uint,
        max_sge: c_int,
        max_sge_rd: c_int,
        max_cq: c_int,
        max_cqe: c_int,
        max_mr: c_int,
        max_pd: c_int,
        max_qp_rd_atom: c_int,
        max_ee_rd_atom: c_int,
        max_res_rd_atom: c_int,
        max_qp_init_rd_atom: c_int,
        max_ee_init_rd_atom: c_int,
        atomic_cap: c_int,
        max_ee: c_int,
        max_rdd: c_int,
        max_mw: c_int,
        max_raw_ipv6_qp: c_int,
        max_raw_ethy_qp: c_int,
        max_mcast_grp: c_int,
        max_mcast_qp_attach: c_int,
        max_total_mcast_qp_attach: c_int,
        max_ah: c_int,
        max_fmr: c_int,
        max_map_per_fmr: c_int,
        max_srq: c_int,
        max_srq_wr: c_int,
        max_srq_sge: c_int,
        max_pkeys: u16,
        local_ca_ack_delay: u8,
        phys_port_cnt: u8,
    }
    struct ibv_odp_caps {
        general_caps: u64,
        rc_odp_caps: u32,
        uc_odp_caps: u32,
        ud_odp_caps: u32,
    }
    struct ibv_rss_caps {
        supported_qpts: u32,
        max_rwq_indirection_tables: u32,
        max_rwq_indirection_table_size: u32,
        rx_hash_fields_mask: u64,
        rx_hash_function: u8,
    }
    struct ibv_device_attr_ex {
        orig_attr: ibv_device_attr,
        comp_mask: u32,
        odp_caps: ibv_odp_caps,
        completion_timestamp_mask: u64,
        hca_core_clock: u64,
        device_cap_flags_ex: u64,
        tso_caps: [u32; 2],
        rss_caps: ibv_rss_caps,
        max_wq_type_rq: u32,
        packet_pacing_caps: [u32; 3],
        raw_packet_caps: u32,
        tm_caps: [u32; 5],
        cq_mod_caps: [u16; 2],
        max_dm_size: u64,
        pci_atomic_caps: [u16; 3],
        xrc_odp_caps: u32,
        phys_port_cnt_ex: u32,
    }
    struct ibv_port_attr {
        state: c_int,
        max_mtu: c_int,
        active_mtu: c_int,
        gid_tbl_len: c_int,
        port_cap_flags: u32,
        max_msg_sz: u32,
        bad_pkey_cntr: u32,
        qkey_viol_cntr: u32,
        pkey_tbl_len: u16,
        lid: u16,
        sm_lid: u16,
        lmc: u8,
        max_vl_num: u8,
        sm_sl: u8,
        subnet_timeout: u8,
        init_type_reply: u8,
        active_width: u8,
        active_speed: u8,
        phys_state: u8,
        link_layer: u8,
        flags: u8,
        port_cap_flags2: u16,
        active_speed_ex: u32,
    }
    struct ibv_gid_entry {
        gid: ibv_gid,
        gid_index: u32,
        port_num: u32,
        gid_type: u32,
        ndev_ifindex: u32,
    }
    struct ibv_pd {
        context: *mut ibv_context,
        handle: u32,
    }
    struct ibv_td {
        context: *mut ibv_context,
    }
    struct ibv_td_init_attr {
        comp_mask: u32,
    }
    struct ibv_parent_domain_init_attr {
        pd: *mut ibv_pd,
        td: *mut ibv_td,
        comp_mask: u32,
        alloc: Option<super::room::Alloc>,
        free: Option<super::room::Free>,
        pd_context: *mut c_void,
    }
    struct ibv_mr {
        context: *mut ibv_context,
        pd: *mut ibv_pd,
        addr: *mut c_void,
        length: usize,
        handle: u32,
        lkey: u32,
        rkey: u32,
    }
    struct ibv_comp_channel {
        context: *mut ibv_context,
        fd: c_int,
        refcnt: c_int,
    }
    struct ibv_cq {
        context: *mut ibv_context,
        channel: *mut ibv_comp_channel,
        cq_context: *mut c_void,
        handle: u32,
        cqe: c_int,
        mutex: mutex_t,
        cond: cond_t,
        comp_events_completed: u32,
        async_events_completed: u32,
    }
    struct ibv_cq_ex {
        context: *mut ibv_context,
        channel: *mut ibv_comp_channel,
        cq_context: *mut c_void,
        handle: u32,
        cqe: c_int,
        mutex: mutex_t,
        cond: cond_t,
        comp_events_completed: u32,
        async_events_completed: u32,
        comp_mask: u32,
        status: c_uint,
        wr_id: u64,
        start_poll: Slot,
        next_poll: Slot,
        end_poll: Slot,
        read_opcode: Slot,
        read_vendor_err: Slot,
        read_byte_len: Slot,
        read_imm_data: Slot,
        read_qp_num: Slot,
        read_src_qp: Slot,
        read_wc_flags: Slot,
        read_slid: Slot,
        read_sl: Slot,
        read_dlid_path_bits: Slot,
        read_completion_ts: Slot,
        read_cvlan: Slot,
        read_flow_tag: Slot,
        read_tm_info: Slot,
        read_completion_wallclock_ns: Slot,
    }
    struct ibv_cq_init_attr_ex {
        cqe: u32,
        cq_context: *mut c_void,
        channel: *mut ibv_comp_channel,
        comp_vector: u32,
        wc_flags: u64,
        comp_mask: u32,
        flags: u32,
        parent_domain: *mut ibv_pd,
    }
    /// `moderate` is completions and microseconds.
    struct ibv_modify_cq_attr {
        attr_mask: u32,
        moderate: [u16; 2],
    }
    struct ibv_poll_cq_attr {
        comp_mask: u32,
    }
    struct ibv_wc_tm_info {
        tag: u64,
        r#priv: u32,
    }
    struct ibv_srq {
        context: *mut ibv_context,
        srq_context: *mut c_void,
        pd: *mut ibv_pd,
        handle: u32,
        mutex: mutex_t,
        cond: cond_t,
        events_completed: u32,
    }
    struct ibv_srq_attr {
        max_wr: u32,
        max_sge: u32,
        srq_limit: u32,
    }
    struct ibv_srq_init_attr {
        srq_context: *mut c_void,
        attr: ibv_srq_attr,
    }
    struct ibv_srq_init_attr_ex {
        srq_context: *mut c_void,
        attr: ibv_srq_attr,
        comp_mask: u32,
        srq_type: c_int,
        pd: *mut ibv_pd,
        xrcd: *mut c_void,
        cq: *mut ibv_cq,
        tm_cap: [u32; 2],
    }
    struct ibv_global_route {
        dgid: ibv_gid,
        flow_label: u32,
        sgid_index: u8,
        hop_limit: u8,
        traffic_class: u8,
    }
    struct ibv_ah_attr {
        grh: ibv_global_route,
        dlid: u16,
        sl: u8,
        src_path_bits: u8,
        static_rate: u8,
        is_global: u8,
        port_num: u8,
    }
    struct ibv_ah {
        context: *mut ibv_context,
        pd: *mut ibv_pd,
        handle: u32,
    }
    struct ibv_grh {
        version_tclass_flow: [u8; 4],
        paylen: [u8; 2],
        next_hdr: u8,
        hop_limit: u8,
        sgid: ibv_gid,
        dgid: ibv_gid,
    }
    struct ibv_qp {
        context: *mut ibv_context,
        qp_context: *mut c_void,
        pd: *mut ibv_pd,
        send_cq: *mut ibv_cq,
        recv_cq: *mut ibv_cq,
        srq: *mut ibv_srq,
        handle: u32,
        qp_num: u32,
        state: c_uint,
        qp_type: c_uint,
        mutex: mutex_t,
        cond: cond_t,
        events_completed: u32,
    }
    struct ibv_qp_ex {
        qp_base: ibv_qp,
        comp_mask: u64,
        wr_id: u64,
        wr_flags: c_uint,
        wr_atomic_cmp_swp: Slot,
        wr_atomic_fetch_add: Slot,
        wr_bind_mw: Slot,
        wr_local_inv: Slot,
        wr_rdma_read: Slot,
        wr_rdma_write: Slot,
        wr_rdma_write_imm: Slot,
        wr_send: Slot,
        wr_send_imm: Slot,
        wr_send_inv: Slot,
        wr_send_tso: Slot,
        wr_set_ud_addr: Slot,
        wr_set_xrc_srqn: Slot,
        wr_set_inline_data: Slot,
        wr_set_inline_data_list: Slot,
        wr_set_sge: Slot,
        wr_set_sge_list: Slot,
        wr_start: Slot,
        wr_complete: Slot,
        wr_abort: Slot,
        wr_atomic_write: Slot,
        wr_flush: Slot,
    }
    struct ibv_data_buf {
        addr: *mut c_void,
        length: usize,
    }
    struct ibv_qp_cap {
        max_send_wr: u32,
        max_recv_wr: u32,
        max_send_sge: u32,
        max_recv_sge: u32,
        max_inline_data: u32,
    }
    struct ibv_qp_init_attr {
        qp_context: *mut c_void,
        send_cq: *mut ibv_cq,
        recv_cq: *mut ibv_cq,
        srq: *mut ibv_srq,
        cap: ibv_qp_cap,
        qp_type: c_uint,
        sq_sig_all: c_int,
    }
    struct ibv_rx_hash_conf {
        rx_hash_function: u8,
        rx_hash_key_len: u8,
        rx_hash_key: *mut u8,
        rx_hash_fields_mask: u64,
    }
    struct ibv_qp_init_attr_ex {
        qp_context: *mut c_void,
        send_cq: *mut ibv_cq,
        recv_cq: *mut ibv_cq,
        srq: *mut ibv_srq,
        cap: ibv_qp_cap,
        qp_type: c_uint,
        sq_sig_all: c_int,
        comp_mask: u32,
        pd: *mut ibv_pd,
        xrcd: *mut c_void,
        create_flags: u32,
        max_tso_header: u16,
        rwq_ind_tbl: *mut c_void,
        rx_hash_conf: ibv_rx_hash_conf,
        source_qpn: u32,
        send_ops_flags: u64,
    }
    struct ibv_qp_attr {
        qp_state: c_uint,
        cur_qp_state: c_uint,
        path_mtu: c_uint,
        path_mig_state: c_uint,
        qkey: u32,
        rq_psn: u32,
        sq_psn: u32,
        dest_qp_num: u32,
        qp_access_flags: c_uint,
        cap: ibv_qp_cap,
        ah_attr: ibv_ah_attr,
        alt_ah_attr: ibv_ah_attr,
        pkey_index: u16,
        alt_pkey_index: u16,
        en_sqd_async_notify: u8,
        sq_draining: u8,
        max_rd_atomic: u8,
        max_dest_rd_atomic: u8,
        min_rnr_timer: u8,
        port_num: u8,
        timeout: u8,
        retry_cnt: u8,
        rnr_retry: u8,
        alt_port_num: u8,
        alt_timeout: u8,
        rate_limit: u32,
    }
    struct ibv_qp_rate_limit_attr {
        rate_limit: u32,
        max_burst_sz: u32,
        typical_pkt_sz: u16,
        comp_mask: u32,
    }
    struct ibv_sge {
        addr: u64,
        length: u32,
        lkey: u32,
    }
    struct ibv_recv_wr {
        wr_id: u64,
        next: *mut ibv_recv_wr,
        sg_list: *mut ibv_sge,
        num_sge: c_int,
    }
    /// `imm_data` is a union with `invalidate_rkey`; `wr` is a union of five words, read by the
    /// methods of this type.
    struct ibv_send_wr {
        wr_id: u64,
        next: *mut ibv_send_wr,
        sg_list: *mut ibv_sge,
        num_sge: c_int,
        opcode: c_uint,
        send_flags: c_uint,
        imm_data: [u8; 4],
        wr: [u64; 4],
        qp_type: u32,
        bind_mw_or_tso: [u64; 6],
    }
    struct ibv_xrcd {
        context: *mut ibv_context,
    }
    struct ibv_xrcd_init_attr {
        comp_mask: u32,
        fd: c_int,
        oflags: c_int,
    }
    struct ibv_qp_open_attr {
        comp_mask: u32,
        qp_num: u32,
        xrcd: *mut c_void,
        qp_context: *mut c_void,
        qp_type: c_uint,
    }
    struct ibv_mr_init_attr {
        length: usize,
        access: c_int,
        comp_mask: u64,
        iova: u64,
        addr: *mut c_void,
        fd: c_int,
        fd_offset: u64,
        dmah: *mut c_void,
    }
    struct ibv_dm {
        context: *mut ibv_context,
        memcpy_to_dm: Slot,
        memcpy_from_dm: Slot,
        comp_mask: u32,
        handle: u32,
    }
    struct ibv_alloc_dm_attr {
        length: usize,
        log_align_req: u32,
        comp_mask: u32,
    }
    struct ibv_mw {
        context: *mut ibv_context,
        pd: *mut ibv_pd,
        rkey: u32,
        handle: u32,
        r#type: c_uint,
    }
    struct ibv_mw_bind_info {
        mr: *mut ibv_mr,
        addr: u64,
        length: u64,
        mw_access_flags: c_uint,
    }
    struct ibv_mw_bind {
        wr_id: u64,
        send_flags: c_uint,
        bind_info: ibv_mw_bind_info,
    }
    struct ibv_wq {
        context: *mut ibv_context,
        wq_context: *mut c_void,
        pd: *mut ibv_pd,
        cq: *mut ibv_cq,
        wq_num: u32,
        handle: u32,
        state: c_uint,
        wq_type: c_uint,
        post_recv: Slot,
        mutex: mutex_t,
        cond: cond_t,
        events_completed: u32,
        comp_mask: u32,
    }
    struct ibv_wq_init_attr {
        wq_context: *mut c_void,
        wq_type: c_uint,
        max_wr: u32,
        max_sge: u32,
        pd: *mut ibv_pd,
        cq: *mut ibv_cq,
        comp_mask: u32,
        create_flags: u32,
    }
    struct ibv_wq_attr {
        attr_mask: u32,
        wq_state: c_uint,
        curr_wq_state: c_uint,
        flags: u32,
        flags_mask: u32,
    }
    struct ibv_rwq_ind_table {
        context: *mut ibv_context,
        ind_tbl_handle: c_int,
        ind_tbl_num: c_int,
        comp_mask: u32,
    }
    struct ibv_rwq_ind_table_init_attr {
        log_ind_tbl_size: u32,
        ind_tbl: *mut *mut ibv_wq,
        comp_mask: u32,
    }
    struct ibv_flow {
        comp_mask: u32,
        context: *mut ibv_context,
        handle: u32,
    }
    /// Specs follow.
    struct ibv_flow_attr {
        comp_mask: u32,
        r#type: c_uint,
        size: u16,
        priority: u16,
        num_of_specs: u8,
        port: u8,
        flags: u32,
    }
    struct ibv_counters {
        context: *mut ibv_context,
    }
    struct ibv_counter_attach_attr {
        counter_desc: c_uint,
        index: u32,
        comp_mask: u32,
    }
    struct ibv_wc {
        wr_id: u64,
        status: c_uint,
        opcode: c_uint,
        vendor_err: u32,
        byte_len: u32,
        imm_data: [u8; 4],
        qp_num: u32,
        src_qp: u32,
        wc_flags: c_uint,
        pkey_index: u16,
        slid: u16,
        sl: u8,
        dlid_path_bits: u8,
    }
    struct ibv_async_event {
        element: *mut c_void,
        event_type: c_uint,
    }
    struct ibv_values_ex {
        comp_mask: u32,
        raw_clock: [i64; 2],
    }
}

impl ibv_send_wr {
    /// `wr.rdma` as (remote_addr, rkey).
    pub(crate) const fn rdma(&self) -> (u64, u32) {
        (self.wr[0], low(self.wr[1]))
    }

    /// `wr.atomic` as (remote_addr, compare_add, swap, rkey).
    pub(crate) const fn atomic(&self) -> (u64, u64, u64, u32) {
        (self.wr[0], self.wr[1], self.wr[2], low(self.wr[3]))
    }

    /// `qp_type.xrc.remote_srqn`
    pub(crate) const fn xrc_srqn(&self) -> u32 {
        self.qp_type
    }

    /// `wr.ud` as (ah, remote_qpn, remote_qkey).
    pub(crate) fn ud(&self) -> (*mut ibv_ah, u32, u32) {
        let ah = core::ptr::with_exposed_provenance_mut(self.wr[0] as usize);
        (ah, low(self.wr[1]), high(self.wr[1]))
    }

    /// Sets `wr.ud`.
    pub(crate) fn set_ud(&mut self, ah: *mut ibv_ah, qpn: u32, qkey: u32) {
        let ([a, b, c, d], [e, f, g, h]) = (qpn.to_ne_bytes(), qkey.to_ne_bytes());
        self.wr[0] = ah.expose_provenance() as u64;
        self.wr[1] = u64::from_ne_bytes([a, b, c, d, e, f, g, h]);
    }
}

impl ibv_send_wr {
    /// `bind_mw` as (mw, rkey, bind_info).
    pub(crate) fn bind_mw(&self) -> (*mut ibv_mw, u32, ibv_mw_bind_info) {
        let [mw, rkey, mr, addr, length, flags] = self.bind_mw_or_tso;
        let info = ibv_mw_bind_info {
            mr: core::ptr::with_exposed_provenance_mut(mr as usize),
            addr,
            length,
            mw_access_flags: low(flags),
        };
        let mw = core::ptr::with_exposed_provenance_mut(mw as usize);
        (mw, low(rkey), info)
    }
}

/// The four bytes at the lower address of a word.
const fn low(word: u64) -> u32 {
    let [a, b, c, d, ..] = word.to_ne_bytes();
    u32::from_ne_bytes([a, b, c, d])
}

/// The four bytes at the upper address of a word.
const fn high(word: u64) -> u32 {
    let [.., a, b, c, d] = word.to_ne_bytes();
    u32::from_ne_bytes([a, b, c, d])
}

include!(concat!(env!("OUT_DIR"), "/layout_asserts.rs"));
