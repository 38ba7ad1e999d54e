/* SPDX-License-Identifier: MIT OR Apache-2.0
 * Calls that post, take completions and events, and end objects. */
#include "calls.h"

#define SGES 16

static uint32_t key(struct world *w, struct input *in)
{
	struct ibv_mr *mr = some(w, in, MR);
	return mr && below(in, 8) ? (below(in, 2) ? mr->lkey : mr->rkey) : raw(in);
}

static void lists(struct world *w, struct input *in, struct ibv_sge *sge)
{
	for (int i = 0; i < SGES; i++)
		sge[i] = i < 4 ? (struct ibv_sge){ address(in), number(in), key(w, in) } : sge[i % 4];
}
/* Right most often; a list longer than what is there must be refused before it is read. */
static int entries(struct input *in)
{
	return below(in, 6) ? (int)below(in, 5) : (int)(number(in) > SGES ? 0x7fffffffu : number(in));
}

void post_send(struct world *w, struct input *in)
{
	struct ibv_qp *qp = some(w, in, QP);
	if (!qp)
		return;
	struct ibv_sge sge[SGES];
	struct ibv_send_wr wr[3], *bad = NULL;
	uint32_t n = 1 + below(in, 3);
	lists(w, in, sge);
	for (uint32_t i = 0; i < n; i++) {
		int entries_ = entries(in);
		wr[i] = (struct ibv_send_wr){ .wr_id = i, .next = i + 1 < n ? &wr[i + 1] : NULL, .sg_list = entries_ ? sge : NULL,
			.num_sge = entries_ > SGES && entries_ != 0x7fffffff ? -1 : entries_,
			.opcode = below(in, 8) ? below(in, 10) : number(in), .send_flags = below(in, 4) ? byte(in) & 0x1f : raw(in),
			.imm_data = raw(in) };
		if (qp->qp_type == IBV_QPT_UD) {
			wr[i].wr.ud.ah = some(w, in, AH);
			wr[i].wr.ud.remote_qpn = below(in, 2) ? qp->qp_num : raw(in);
			wr[i].wr.ud.remote_qkey = below(in, 2) ? 0x1111 : raw(in);
		} else if (wr[i].opcode == IBV_WR_BIND_MW) {
			wr[i].bind_mw.mw = some(w, in, MW);
			wr[i].bind_mw.rkey = raw(in);
			wr[i].bind_mw.bind_info = (struct ibv_mw_bind_info){ some(w, in, MR), address(in), length(in), byte(in) };
			if (!wr[i].bind_mw.mw || !wr[i].bind_mw.bind_info.mr)
				wr[i].opcode = IBV_WR_SEND;
		} else {
			wr[i].wr.atomic.remote_addr = address(in);
			wr[i].wr.atomic.compare_add = raw(in);
			wr[i].wr.atomic.swap = raw(in);
			wr[i].wr.atomic.rkey = key(w, in);
			if (wr[i].opcode < IBV_WR_ATOMIC_CMP_AND_SWP)
				wr[i].wr.rdma.rkey = key(w, in);
		}
	}
	if (CODE(ibv_post_send(qp, wr, &bad)) && (bad < wr || bad >= wr + n))
		BROKEN("ibv_post_send fails and bad_wr is none of the list");
}

void post_recv(struct world *w, struct input *in)
{
	struct ibv_qp *qp = some(w, in, QP);
	struct ibv_srq *srq = some(w, in, SRQ);
	struct ibv_sge sge[SGES];
	struct ibv_recv_wr wr[4], *bad = NULL;
	uint32_t n = 1 + below(in, 4);
	lists(w, in, sge);
	for (uint32_t i = 0; i < n; i++) {
		int entries_ = entries(in);
		wr[i] = (struct ibv_recv_wr){ i, i + 1 < n ? &wr[i + 1] : NULL, entries_ ? sge : NULL,
			entries_ > SGES && entries_ != 0x7fffffff ? -1 : entries_ };
	}
	if (qp && CODE(ibv_post_recv(qp, wr, &bad)) && (bad < wr || bad >= wr + n))
		BROKEN("ibv_post_recv fails and bad_wr is none of the list");
	bad = NULL;
	if (srq && CODE(ibv_post_srq_recv(srq, wr, &bad)) && (bad < wr || bad >= wr + n))
		BROKEN("ibv_post_srq_recv fails and bad_wr is none of the list");
}

/* One request of the extended posting. The queue pair allows every operation. */
static void one_ex(struct world *w, struct input *in, struct ibv_qp_ex *qp)
{
	struct ibv_mw *mw = some(w, in, MW);
	struct ibv_mr *mr = some(w, in, MR);
	struct ibv_ah *ah = some(w, in, AH);
	struct ibv_sge sge[SGES];
	struct ibv_data_buf bufs[2] = { { arena, number(in) % ARENA }, { arena + 64, number(in) % ARENA } };
	uint32_t rkey = key(w, in);
	uint64_t at = address(in);
	qp->wr_flags = byte(in);
	switch (below(in, 12)) {
	case 0: ibv_wr_send(qp); break;
	case 1: ibv_wr_send_imm(qp, raw(in)); break;
	case 2: ibv_wr_send_inv(qp, rkey); break;
	case 3: ibv_wr_rdma_write(qp, rkey, at); break;
	case 4: ibv_wr_rdma_write_imm(qp, rkey, at, raw(in)); break;
	case 5: ibv_wr_rdma_read(qp, rkey, at); break;
	case 6: ibv_wr_atomic_cmp_swp(qp, rkey, at, raw(in), raw(in)); break;
	case 7: ibv_wr_atomic_fetch_add(qp, rkey, at, raw(in)); break;
	case 8: ibv_wr_local_inv(qp, rkey); break;
	case 9:
		if (mw && mr) {
			struct ibv_mw_bind_info b = { mr, at, length(in), byte(in) };
			ibv_wr_bind_mw(qp, mw, raw(in), &b);
		}
		break;
	default: break; /* a setter with no request before it */
	}
	switch (below(in, 7)) {
	case 0: ibv_wr_set_sge(qp, key(w, in), address(in), number(in)); break;
	case 1:
		lists(w, in, sge);
		ibv_wr_set_sge_list(qp, below(in, SGES + 1), sge);
		break;
	case 2: ibv_wr_set_inline_data(qp, arena, number(in) % ARENA); break;
	case 3: ibv_wr_set_inline_data_list(qp, below(in, 3), bufs); break;
	default: ibv_wr_set_sge(qp, mr ? mr->lkey : 0, (uintptr_t)arena, 64);
	}
	if (qp->qp_base.qp_type == IBV_QPT_UD && ah)
		ibv_wr_set_ud_addr(qp, ah, below(in, 2) ? qp->qp_base.qp_num : raw(in), 0x1111);
}

void post_ex(struct world *w, struct input *in)
{
	for (uint32_t i = 0, first = below(in, PLACES); i < PLACES; i++) {
		struct held *h = &w->of[QP][(first + i) % PLACES];
		if (!h->p || h->ex != 2)
			continue;
		struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(h->p);
		ibv_wr_start(qp);
		for (uint32_t n = below(in, 5); n; n--)
			one_ex(w, in, qp);
		if (below(in, 4))
			CODE(ibv_wr_complete(qp));
		else
			ibv_wr_abort(qp);
		return;
	}
}

static void check_wc(const struct ibv_wc *wc)
{
	if (wc->status > IBV_WC_TM_RNDV_INCOMPLETE || (wc->status == IBV_WC_SUCCESS && wc->opcode > IBV_WC_ATOMIC_WRITE && wc->opcode < IBV_WC_RECV))
		BROKEN("a completion of status %d, opcode %d", wc->status, wc->opcode);
}

void reap(struct world *w, struct input *in)
{
	struct ibv_cq *cq = some(w, in, CQ);
	struct ibv_wc wc[8];
	for (int round = 0; cq && round < 3; round++) {
		int n = ibv_poll_cq(cq, (int)below(in, 9), wc);
		if (n < 0 ? n != -EIO : n > 8) /* EIO: the queue overran */
			BROKEN("ibv_poll_cq answers %d", n);
		for (int i = 0; i < n; i++)
			check_wc(&wc[i]);
		if (!n && round)
			nanosleep(&(struct timespec){ 0, 20000 }, NULL);
	}
}

void reap_ex(struct world *w, struct input *in)
{
	for (uint32_t i = 0, first = below(in, PLACES); i < PLACES; i++) {
		struct held *h = &w->of[CQ][(first + i) % PLACES];
		if (!h->p || h->ex != 1)
			continue;
		struct ibv_cq_ex *cq = (struct ibv_cq_ex *)h->p;
		struct ibv_poll_cq_attr a = { below(in, 8) ? 0 : raw(in) };
		int e = ibv_start_poll(cq, &a);
		if (e) {
			if (e != ENOENT && e != EINVAL && e != EIO) /* EIO: the queue overran */
				BROKEN("ibv_start_poll answers %d", e);
			return;
		}
		for (uint32_t n = below(in, 8); !e; n--) {
			uint64_t sum = ibv_wc_read_opcode(cq) + ibv_wc_read_vendor_err(cq) + ibv_wc_read_byte_len(cq) + ibv_wc_read_imm_data(cq) +
				ibv_wc_read_qp_num(cq) + ibv_wc_read_src_qp(cq) + ibv_wc_read_wc_flags(cq) + ibv_wc_read_slid(cq) +
				ibv_wc_read_sl(cq) + ibv_wc_read_dlid_path_bits(cq);
			if (cq->status > IBV_WC_TM_RNDV_INCOMPLETE)
				BROKEN("status %d, fields %lu", cq->status, (unsigned long)sum);
			if (!n)
				break;
			e = ibv_next_poll(cq);
			if (e && e != ENOENT && e != EIO)
				BROKEN("ibv_next_poll answers %d", e);
		}
		ibv_end_poll(cq);
		return;
	}
}

/* Every event that waits is taken and acknowledged: destroying waits for those that are not. */
void take_events(struct world *w)
{
	struct ibv_async_event e;
	for (int i = 0; i < 64 && !ibv_get_async_event(w->ctx, &e); i++)
		ibv_ack_async_event(&e);
	for (int i = 0; i < PLACES; i++) {
		struct ibv_comp_channel *channel = w->of[CHANNEL][i].p;
		struct ibv_cq *cq;
		void *of;
		for (int j = 0; channel && j < 64 && !ibv_get_cq_event(channel, &cq, &of); j++)
			ibv_ack_cq_events(cq, 1);
	}
}

static int destroy_one(enum kind k, void *p)
{
	switch (k) {
	case PD: return CODE(ibv_dealloc_pd(p));
	case CQ: return CODE(ibv_destroy_cq(p));
	case QP: return CODE(ibv_destroy_qp(p));
	case SRQ: return CODE(ibv_destroy_srq(p));
	case MR: return CODE(ibv_dereg_mr(p));
	case MW: return CODE(ibv_dealloc_mw(p));
	case AH: return CODE(ibv_destroy_ah(p));
	case DM: return CODE(ibv_free_dm(p));
	case CHANNEL: return CODE(ibv_destroy_comp_channel(p));
	default: return 0;
	}
}

void destroy(struct world *w, struct input *in)
{
	struct held *h = &w->of[below(in, KINDS)][below(in, PLACES)];
	enum kind k = (enum kind)((h - w->of[0]) / PLACES);
	take_events(w);
	if (h->p && !destroy_one(k, h->p))
		h->p = NULL;
}

/* In the right order nothing may refuse. The number of those that did. */
int destroy_all(struct world *w)
{
	static const enum kind order[] = { QP, SRQ, MW, MR, DM, AH, CQ, CHANNEL, PD };
	int refused = 0;
	take_events(w);
	for (size_t i = 0; i < LEN(order); i++)
		for (int j = 0; j < PLACES; j++) {
			void *p = w->of[order[i]][j].p;
			int e = p ? destroy_one(order[i], p) : 0;
			if (e) {
				fprintf(stderr, "the last %d refuses to go: %s\n", order[i], strerror(e));
				refused++;
			}
		}
	return refused;
}
