/* SPDX-License-Identifier: MIT OR Apache-2.0
 * Calls that make, change, ask and destroy. */
#include "calls.h"

void make_memory(struct world *w, struct input *in)
{
	struct ibv_pd *pd = some(w, in, PD);
	if (!pd || full(w, MR))
		return;
	int access = below(in, 4) ? IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
		IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND : (int)(byte(in) | (below(in, 4) ? 0 : raw(in)));
	void *p = NULL;
	switch (below(in, 6)) {
	case 0:
		p = OBJECT(ibv_reg_mr(pd, arena, ARENA, access));
		break;
	case 1: {
		uint64_t at = address(in);
		p = OBJECT(ibv_reg_mr(pd, (void *)(uintptr_t)at, length(in), access));
		break;
	}
	case 2: {
		uint64_t at = address(in), n = length(in);
		p = OBJECT(ibv_reg_mr_iova(pd, (void *)(uintptr_t)at, n, address(in), access));
		break;
	}
	case 3:
		p = OBJECT(ibv_alloc_null_mr(pd));
		break;
	case 4: {
		struct ibv_dm *dm = some(w, in, DM);
		if (dm) {
			uint64_t at = number(in);
			p = OBJECT(ibv_reg_dm_mr(pd, dm, at, length(in), (unsigned)access));
		}
		break;
	}
	default:
		p = OBJECT(ibv_reg_mr(pd, NULL, SIZE_MAX, IBV_ACCESS_ON_DEMAND | access));
	}
	if (p)
		keep(w, MR, p, 0);
}

void change_memory(struct world *w, struct input *in)
{
	struct ibv_mr *mr = some(w, in, MR);
	struct ibv_pd *pd = some(w, in, PD);
	if (!mr || !pd)
		return;
	int flags = (int)below(in, 16);
	uint64_t at = address(in), n = length(in);
	int e = ibv_rereg_mr(mr, flags, below(in, 8) ? pd : NULL, (void *)(uintptr_t)at, n, byte(in));
	if (e > 0 || e < -6) /* enum ibv_rereg_mr_err_code is negative */
		BROKEN("ibv_rereg_mr answers %d", e);
	struct ibv_sge sge[2] = { { address(in), number(in), mr->lkey }, { address(in), number(in), raw(in) } };
	CODE(ibv_advise_mr(pd, below(in, 5), byte(in), sge, below(in, 3)));
}

void make_windows(struct world *w, struct input *in)
{
	struct ibv_pd *pd = some(w, in, PD);
	if (!pd)
		return;
	if (!full(w, MW)) {
		struct ibv_mw *mw = OBJECT(ibv_alloc_mw(pd, below(in, 4)));
		if (mw)
			keep(w, MW, mw, 0);
	}
	if (!full(w, DM)) {
		struct ibv_alloc_dm_attr a = { number(in), below(in, 40), below(in, 8) ? 0 : raw(in) };
		struct ibv_dm *dm = OBJECT(ibv_alloc_dm(w->ctx, &a));
		if (dm)
			keep(w, DM, dm, 0);
	}
	struct ibv_dm *dm = some(w, in, DM);
	if (dm) { /* the local side must be good memory: it is the program's own */
		uint32_t n = number(in) % ARENA;
		CODE(ibv_memcpy_to_dm(dm, number(in), arena, n));
		CODE(ibv_memcpy_from_dm(arena, dm, number(in), n));
	}
	struct ibv_qp *qp = some(w, in, QP);
	struct ibv_mw *mw = some(w, in, MW);
	struct ibv_mr *mr = some(w, in, MR);
	if (qp && mw) {
		struct ibv_mw_bind b = { byte(in), byte(in), { below(in, 8) ? mr : NULL, address(in), length(in), byte(in) } };
		if (b.bind_info.mr || !b.bind_info.length)
			CODE(ibv_bind_mw(qp, mw, &b));
	}
}

void make_queues(struct world *w, struct input *in)
{
	struct ibv_comp_channel *channel = some(w, in, CHANNEL);
	if (!full(w, CHANNEL) && !below(in, 3)) {
		channel = OBJECT(ibv_create_comp_channel(w->ctx));
		if (channel) {
			fcntl(channel->fd, F_SETFL, fcntl(channel->fd, F_GETFL) | O_NONBLOCK);
			keep(w, CHANNEL, channel, 0);
		}
	}
	if (full(w, CQ))
		return;
	int vector = below(in, 8) ? 0 : (int)number(in);
	if (below(in, 2)) {
		struct ibv_cq *cq = OBJECT(ibv_create_cq(w->ctx, (int)number(in), w, below(in, 2) ? channel : NULL, vector));
		if (cq)
			keep(w, CQ, cq, 0);
		return;
	}
	struct ibv_cq_init_attr_ex a = { number(in), w, below(in, 2) ? channel : NULL, (uint32_t)vector,
		below(in, 4) ? 0x7f : raw(in), below(in, 4) ? 0 : byte(in), byte(in), NULL };
	struct ibv_cq_ex *cq = OBJECT(ibv_create_cq_ex(w->ctx, &a));
	if (cq) /* only what was asked for may be read */
		keep(w, CQ, ibv_cq_ex_to_cq(cq), a.wc_flags == 0x7f ? 1 : 0);
}

void change_queues(struct world *w, struct input *in)
{
	struct ibv_cq *cq = some(w, in, CQ);
	struct ibv_srq *srq = some(w, in, SRQ);
	if (cq) {
		CODE(ibv_resize_cq(cq, (int)number(in)));
		struct ibv_modify_cq_attr m = { below(in, 4), { (uint16_t)number(in), (uint16_t)number(in) } };
		CODE(ibv_modify_cq(cq, &m));
		CODE(ibv_req_notify_cq(cq, (int)below(in, 3)));
	}
	if (srq) {
		struct ibv_srq_attr a = { number(in), number(in), number(in) };
		CODE(ibv_modify_srq(srq, &a, (int)below(in, 8)));
		CODE(ibv_query_srq(srq, &a));
	}
}

void make_srq(struct world *w, struct input *in)
{
	struct ibv_pd *pd = some(w, in, PD);
	if (!pd || full(w, SRQ))
		return;
	struct ibv_srq *srq;
	if (below(in, 2)) {
		struct ibv_srq_init_attr a = { w, { number(in), number(in), number(in) } };
		srq = OBJECT(ibv_create_srq(pd, &a));
	} else {
		struct ibv_srq_init_attr_ex a = { .srq_context = w, .attr = { number(in), number(in), number(in) },
			.comp_mask = byte(in), .srq_type = below(in, 4), .pd = pd, .cq = some(w, in, CQ) };
		a.comp_mask &= ~(unsigned)IBV_SRQ_INIT_ATTR_XRCD; /* it has no domain to name */
		srq = OBJECT(ibv_create_srq_ex(w->ctx, &a));
	}
	if (srq)
		keep(w, SRQ, srq, 0);
}

void make_qp(struct world *w, struct input *in)
{
	struct ibv_pd *pd = some(w, in, PD);
	struct ibv_cq *scq = some(w, in, CQ), *rcq = some(w, in, CQ);
	if (!pd || full(w, QP))
		return;
	static const enum ibv_qp_type types[] = { IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD, IBV_QPT_RC };
	int type = below(in, 12) ? (int)types[below(in, 4)] : (int)number(in);
	struct ibv_qp_cap cap = { 16, 16, 4, 4, 64 };
	if (!below(in, 3))
		cap = (struct ibv_qp_cap){ number(in), number(in), number(in), number(in), number(in) };
	struct ibv_srq *srq = below(in, 3) ? NULL : some(w, in, SRQ);
	struct ibv_qp *qp;
	int ex = (int)below(in, 2);
	if (!ex) {
		struct ibv_qp_init_attr a = { w, below(in, 16) ? scq : NULL, below(in, 16) ? rcq : NULL, srq, cap, type, (int)below(in, 2) };
		qp = OBJECT(ibv_create_qp(pd, &a));
	} else {
		struct ibv_qp_init_attr_ex a = { .qp_context = w, .send_cq = scq, .recv_cq = rcq, .srq = srq, .cap = cap, .qp_type = type,
			.sq_sig_all = (int)below(in, 2), .pd = pd,
			.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS | (below(in, 8) ? 0 : byte(in)),
			.create_flags = below(in, 8) ? 0 : raw(in), .send_ops_flags = below(in, 3) ? 0x7ff : raw(in) };
		a.comp_mask &= ~(unsigned)(IBV_QP_INIT_ATTR_XRCD | IBV_QP_INIT_ATTR_IND_TABLE); /* nothing to name there */
		qp = OBJECT(ibv_create_qp_ex(w->ctx, &a));
		ex = qp && ibv_qp_to_qp_ex(qp) ? (a.send_ops_flags == 0x7ff ? 2 : 1) : 0;
	}
	if (qp)
		keep(w, QP, qp, ex);
}

static struct ibv_ah_attr ah_attr(struct world *w, struct input *in)
{
	struct ibv_ah_attr a = { .grh = { .dgid = w->gid, .hop_limit = 64 }, .is_global = 1, .port_num = 1 };
	if (!below(in, 3)) {
		a.grh.dgid.raw[below(in, 16)] ^= byte(in);
		a.grh.sgid_index = byte(in);
		a.grh.flow_label = raw(in);
		a.is_global = (uint8_t)below(in, 2);
		a.port_num = (uint8_t)below(in, 3);
		a.static_rate = byte(in);
	}
	return a;
}

void make_ah(struct world *w, struct input *in)
{
	struct ibv_pd *pd = some(w, in, PD);
	if (!pd || full(w, AH))
		return;
	struct ibv_ah_attr a = ah_attr(w, in);
	struct ibv_ah *ah = OBJECT(ibv_create_ah(pd, &a));
	if (ah)
		keep(w, AH, ah, 0);
}

/* One odd step of a queue pair's life. */
void modify_qp(struct world *w, struct input *in)
{
	struct ibv_qp *qp = some(w, in, QP);
	if (!qp)
		return;
	struct ibv_qp_attr a = { .qp_state = below(in, 9), .cur_qp_state = below(in, 9), .path_mtu = below(in, 8),
		.path_mig_state = below(in, 4), .qkey = number(in), .rq_psn = number(in), .sq_psn = number(in),
		.dest_qp_num = number(in), .qp_access_flags = byte(in), .cap = { number(in), number(in), number(in), number(in), number(in) },
		.ah_attr = ah_attr(w, in), .pkey_index = byte(in), .max_rd_atomic = byte(in), .max_dest_rd_atomic = byte(in),
		.min_rnr_timer = byte(in), .port_num = (uint8_t)below(in, 4), .timeout = byte(in), .retry_cnt = byte(in),
		.rnr_retry = byte(in), .rate_limit = number(in) };
	CODE(ibv_modify_qp(qp, &a, below(in, 4) ? IBV_QP_STATE | byte(in) : (int)raw(in)));
	struct ibv_qp_init_attr init;
	CODE(ibv_query_qp(qp, &a, (int)raw(in), &init));
	if (!below(in, 8)) {
		struct ibv_qp_rate_limit_attr r = { number(in), number(in), (uint16_t)number(in), 0 };
		CODE(ibv_modify_qp_rate_limit(qp, &r));
	}
}

static int mask_of(enum ibv_qp_type type, int step)
{
	static const int rc[] = { IBV_QP_STATE, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
		IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
		IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC };
	static const int uc[] = { IBV_QP_STATE, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
		IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN, IBV_QP_STATE | IBV_QP_SQ_PSN };
	static const int ud[] = { IBV_QP_STATE, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY, IBV_QP_STATE,
		IBV_QP_STATE | IBV_QP_SQ_PSN };
	return type == IBV_QPT_RC ? rc[step] : type == IBV_QPT_UC ? uc[step] : ud[step];
}

/* Brings two queue pairs up, to each other (or one to itself): what is posted then has somewhere to go. */
void connect_pair(struct world *w, struct input *in)
{
	struct ibv_qp *qp[2] = { some(w, in, QP), some(w, in, QP) };
	if (!qp[0])
		return;
	for (int i = 0; i < 2; i++)
		for (int step = 0; step < 4; step++) {
			static const enum ibv_qp_state states[] = { IBV_QPS_RESET, IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS };
			struct ibv_qp_attr a = { .qp_state = states[step], .port_num = 1, .qp_access_flags = 0xf, .qkey = 0x1111,
				.path_mtu = IBV_MTU_1024, .dest_qp_num = qp[!i]->qp_num, .rq_psn = 0xfffffe, .sq_psn = 0xfffffe,
				.max_rd_atomic = 4, .max_dest_rd_atomic = 4, .min_rnr_timer = 1, .timeout = 10, .retry_cnt = 2, .rnr_retry = 2,
				.ah_attr = { .grh = { .dgid = w->gid, .hop_limit = 64 }, .is_global = 1, .port_num = 1 } };
			CODE(ibv_modify_qp(qp[i], &a, mask_of(qp[i]->qp_type, step)));
		}
}

void ask(struct world *w, struct input *in)
{
	struct ibv_port_attr port;
	union ibv_gid gid;
	uint16_t pkey;
	struct ibv_gid_entry entry, table[4];
	struct ibv_device_attr_ex ex;
	CODE(ibv_query_port(w->ctx, (uint8_t)below(in, 4), &port));
	if (ibv_query_gid(w->ctx, (uint8_t)below(in, 3), (int)number(in), &gid) < -1)
		BROKEN("ibv_query_gid");
	if (ibv_query_pkey(w->ctx, (uint8_t)below(in, 3), (int)number(in), &pkey) < -1)
		BROKEN("ibv_query_pkey");
	CODE(ibv_query_gid_ex(w->ctx, number(in), number(in), &entry, below(in, 4) ? 0 : raw(in)));
	if (ibv_query_gid_table(w->ctx, table, below(in, 5), below(in, 4) ? 0 : raw(in)) > 4)
		BROKEN("ibv_query_gid_table wrote past its end");
	CODE(ibv_query_device_ex(w->ctx, NULL, &ex));
	uint32_t v = number(in);
	if (!ibv_wc_status_str(v) || !ibv_event_type_str(v) || !ibv_node_type_str(v) || !ibv_port_state_str(v))
		BROKEN("no word for %u", v);
	(void)(ibv_rate_to_mbps(v) + ibv_rate_to_mult(v) + mbps_to_ibv_rate((int)v) + mult_to_ibv_rate((int)v));
}
