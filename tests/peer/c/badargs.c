/* SPDX-License-Identifier: MIT OR Apache-2.0
 * badargs: what the verbs answer to bad arguments, and what a work request that fails does to its queue
 * pair. badargs [-d DEV] [-g GID] [-m MTU] [-c CASES] [-k]    exit status 0 when every answer is right
 * Build: cc -O2 -pthread -o badargs badargs.c -libverbs */
#include "pair.h"
#include <fcntl.h>
#include <sys/syscall.h>

#define S IBV_WC_SUCCESS
#define LEN(a) (sizeof(a) / sizeof *(a))

/* a call that returns 0 or an errno */
#define WANT(call, e)                                                                             \
	do {                                                                                      \
		int r_ = (call);                                                                  \
		if (r_ != (e))                                                                    \
			FAIL("%s: returned %d (%s), expected %d (%s)", #call, r_, strerror(r_), (e), strerror(e)); \
	} while (0)
/* a call that returns NULL and sets errno */
#define WANT_NULL(call, e)                                                                        \
	do {                                                                                      \
		errno = 0;                                                                        \
		if ((call) != NULL)                                                               \
			FAIL("%s: succeeded", #call);                                             \
		else if (errno != (e))                                                            \
			FAIL("%s: errno %d (%s), expected %d (%s)", #call, errno, strerror(errno), (e), strerror(e)); \
	} while (0)
/* a call that returns -1 */
#define WANT_MINUS(call)                                                                          \
	do {                                                                                      \
		if ((call) != -1)                                                                 \
			FAIL("%s: did not return -1", #call);                                     \
	} while (0)

static uint8_t *page;

static void queries(struct device *d)
{
	struct ibv_port_attr pa;
	union ibv_gid g;
	uint16_t pkey;
	WANT(ibv_query_port(d->ctx, 0, &pa), EINVAL);
	WANT(ibv_query_port(d->ctx, 2, &pa), EINVAL);
	WANT_MINUS(ibv_query_gid(d->ctx, 1, d->port.gid_tbl_len, &g));
	WANT_MINUS(ibv_query_gid(d->ctx, 1, -1, &g));
	WANT_MINUS(ibv_query_gid(d->ctx, 2, 0, &g));
	WANT_MINUS(ibv_query_pkey(d->ctx, 1, d->port.pkey_tbl_len, &pkey));
	WANT(ibv_query_gid(d->ctx, 1, d->port.gid_tbl_len - 1, &g), 0); /* an empty slot is not an error */
	struct ibv_gid_entry e;
	WANT(ibv_query_gid_ex(d->ctx, 1, (uint32_t)d->port.gid_tbl_len, &e, 0), kernel_rxe ? EINVAL : ENODATA);
	WANT(ibv_query_gid_ex(d->ctx, 1, (uint32_t)d->gid_index, &e, 0), 0);
	if (e.gid_type != IBV_GID_TYPE_ROCE_V2 || memcmp(&e.gid, &d->gid, 16) || !e.ndev_ifindex)
		FAIL("ibv_query_gid_ex: type %u ndev %u", e.gid_type, e.ndev_ifindex);
	if (!d->attr.node_guid || !d->attr.sys_image_guid || d->attr.max_mr_size <= 4096 || d->attr.page_size_cap < 4096 ||
	    !d->attr.vendor_id || d->attr.max_pkeys < 1 || d->port.max_msg_sz <= 4096 || !d->port.active_width || !d->port.active_speed)
		FAIL("an attribute that tools depend on is zero or too small");
}

static void regions(struct device *d)
{
	WANT_NULL(ibv_reg_mr(d->pd, page, 4096, IBV_ACCESS_REMOTE_WRITE), EINVAL);
	WANT_NULL(ibv_reg_mr(d->pd, page, 4096, IBV_ACCESS_REMOTE_ATOMIC), EINVAL);
	WANT_NULL(ibv_reg_mr(d->pd, page, 4096, 1 << 12), EINVAL);
	void *hole = mmap(NULL, 8192, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	munmap(hole, 8192);
	WANT_NULL(ibv_reg_mr(d->pd, hole, 8192, IBV_ACCESS_LOCAL_WRITE), EFAULT);
	WANT_NULL(ibv_reg_mr_iova(d->pd, page, 4096, 1, IBV_ACCESS_LOCAL_WRITE), EINVAL);
	struct ibv_mr *mr = ibv_reg_mr(d->pd, page, 4096, IBV_ACCESS_LOCAL_WRITE);
	if (!mr)
		DIE("ibv_reg_mr");
	WANT(ibv_dealloc_pd(d->pd), EBUSY);
	WANT(ibv_dereg_mr(mr), 0);
	if (!kernel_rxe && !d->attr.max_mw)
		WANT_NULL(ibv_alloc_mw(d->pd, IBV_MW_TYPE_2), EOPNOTSUPP);
}

static void completion_queues(struct device *d)
{
	WANT_NULL(ibv_create_cq(d->ctx, 0, NULL, NULL, 0), EINVAL);
	WANT_NULL(ibv_create_cq(d->ctx, -1, NULL, NULL, 0), EINVAL);
	WANT_NULL(ibv_create_cq(d->ctx, d->attr.max_cqe + 1, NULL, NULL, 0), EINVAL);
	WANT_NULL(ibv_create_cq(d->ctx, 16, NULL, NULL, d->ctx->num_comp_vectors), EINVAL);
	struct ibv_comp_channel *ch = ibv_create_comp_channel(d->ctx);
	struct ibv_cq *cq = ch ? ibv_create_cq(d->ctx, 16, NULL, ch, 0) : NULL, *from;
	struct ibv_async_event ev;
	struct ibv_wc wc;
	void *user;
	if (!cq)
		DIE("ibv_create_cq");
	WANT(ibv_resize_cq(cq, d->attr.max_cqe + 1), EINVAL);
	WANT(ibv_poll_cq(cq, 1, &wc), 0);
	WANT(ibv_poll_cq(cq, 0, NULL), 0);
	WANT(ibv_req_notify_cq(cq, 0), 0);
	WANT(ibv_req_notify_cq(cq, 1), 0);
	fcntl(ch->fd, F_SETFL, fcntl(ch->fd, F_GETFL) | O_NONBLOCK);
	errno = 0;
	WANT_MINUS(ibv_get_cq_event(ch, &from, &user));
	WANT(errno, EAGAIN);
	fcntl(d->ctx->async_fd, F_SETFL, fcntl(d->ctx->async_fd, F_GETFL) | O_NONBLOCK);
	errno = 0;
	WANT_MINUS(ibv_get_async_event(d->ctx, &ev));
	WANT(errno, EAGAIN);
	struct ibv_qp_init_attr a = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = { 1, 1, 1, 1, 0 } };
	struct ibv_qp *qp = ibv_create_qp(d->pd, &a);
	WANT(ibv_destroy_cq(cq), EBUSY);
	WANT(ibv_destroy_comp_channel(ch), EBUSY);
	WANT(ibv_destroy_qp(qp), 0);
	WANT(ibv_destroy_cq(cq), 0);
	WANT(ibv_destroy_comp_channel(ch), 0);
}

static void shared_receive_queues(struct device *d)
{
	struct ibv_srq_init_attr a = { .attr = { (uint32_t)d->attr.max_srq_wr + 1, 1, 0 } };
	WANT_NULL(ibv_create_srq(d->pd, &a), EINVAL);
	a.attr = (struct ibv_srq_attr){ 8, (uint32_t)d->attr.max_srq_sge + 1, 0 };
	WANT_NULL(ibv_create_srq(d->pd, &a), EINVAL);
	a.attr = (struct ibv_srq_attr){ 8, 2, 0 };
	struct ibv_srq *srq = ibv_create_srq(d->pd, &a);
	if (!srq)
		DIE("ibv_create_srq");
	struct ibv_srq_attr got;
	WANT(ibv_query_srq(srq, &got), 0);
	if (got.max_wr < 8 || got.max_sge < 2)
		FAIL("ibv_query_srq: max_wr %u max_sge %u", got.max_wr, got.max_sge);
	struct ibv_srq_attr limit = { .srq_limit = got.max_wr + 1 };
	WANT(ibv_modify_srq(srq, &limit, IBV_SRQ_LIMIT), EINVAL);
	struct ibv_sge sge[64] = { { 0 } };
	struct ibv_recv_wr wr = { .sg_list = sge, .num_sge = (int)got.max_sge + 1 }, *bad = NULL;
	WANT(ibv_post_srq_recv(srq, &wr, &bad), EINVAL);
	if (bad != &wr)
		FAIL("ibv_post_srq_recv: bad_wr not set");
	wr.num_sge = 0;
	int e = 0, n = 0;
	while (!e && n < 4096)
		e = ibv_post_srq_recv(srq, &wr, &bad), n++;
	WANT(e, ENOMEM);
	struct ibv_cq *cq = ibv_create_cq(d->ctx, 16, NULL, NULL, 0);
	struct ibv_qp_init_attr qa = { .send_cq = cq, .recv_cq = cq, .srq = srq, .qp_type = IBV_QPT_RC, .cap = { 1, 0, 1, 0, 0 } };
	struct ibv_qp *qp = ibv_create_qp(d->pd, &qa);
	if (!qp)
		DIE("ibv_create_qp with an SRQ");
	WANT(ibv_post_recv(qp, &wr, &bad), EINVAL);
	WANT(ibv_destroy_srq(srq), EBUSY);
	WANT(ibv_destroy_qp(qp), 0);
	qa.qp_type = IBV_QPT_UC;
	errno = 0;
	qp = kernel_rxe ? NULL : ibv_create_qp(d->pd, &qa); /* rxe allows it */
	if (qp)
		FAIL("a UC queue pair took an SRQ");
	WANT(ibv_destroy_srq(srq), 0);
	WANT(ibv_destroy_cq(cq), 0);
}

static void create_qps(struct device *d)
{
	struct ibv_cq *cq = ibv_create_cq(d->ctx, 16, NULL, NULL, 0);
	const struct ibv_qp_init_attr good = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = { 4, 4, 1, 1, 0 } };
	struct ibv_qp_init_attr a = good;
	a.cap.max_send_wr = (uint32_t)d->attr.max_qp_wr + 1;
	WANT_NULL(ibv_create_qp(d->pd, &a), EINVAL);
	a = good;
	a.cap.max_recv_wr = (uint32_t)d->attr.max_qp_wr + 1;
	WANT_NULL(ibv_create_qp(d->pd, &a), EINVAL);
	a = good;
	a.cap.max_send_sge = (uint32_t)d->attr.max_sge + 1;
	WANT_NULL(ibv_create_qp(d->pd, &a), EINVAL);
	a = good;
	a.cap.max_recv_sge = (uint32_t)d->attr.max_sge + 1;
	WANT_NULL(ibv_create_qp(d->pd, &a), EINVAL);
	a = good;
	a.cap.max_inline_data = 1u << 24;
	if (!kernel_rxe)
		WANT_NULL(ibv_create_qp(d->pd, &a), EINVAL);
	a = good;
	a.send_cq = NULL;
	if (!kernel_rxe) /* libibverbs follows the NULL pointer */
		WANT_NULL(ibv_create_qp(d->pd, &a), EINVAL);
	a = good;
	a.qp_type = (enum ibv_qp_type)77;
	errno = 0;
	if (ibv_create_qp(d->pd, &a) || (errno != EINVAL && errno != EOPNOTSUPP))
		FAIL("ibv_create_qp of type 77: errno %d", errno);
	WANT(ibv_destroy_cq(cq), 0);
}

/* ---- modify ---- */

static struct ibv_qp *fresh_qp(struct device *d, struct ibv_cq *cq, enum ibv_qp_type t)
{
	struct ibv_qp_init_attr a = { .send_cq = cq, .recv_cq = cq, .qp_type = t, .sq_sig_all = 1, .cap = { 4, 4, 2, 2, 64 } };
	struct ibv_qp *qp = ibv_create_qp(d->pd, &a);
	if (!qp)
		DIE("ibv_create_qp");
	return qp;
}

static void rtr_values(struct device *d, struct ibv_qp *qp)
{
	const struct ibv_qp_attr good = { .qp_state = IBV_QPS_RTR, .path_mtu = d->mtu, .dest_qp_num = qp->qp_num,
		.max_dest_rd_atomic = 1, .min_rnr_timer = 8, .ah_attr = ah_of(d, &d->gid) };
	const int mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
		IBV_QP_MIN_RNR_TIMER;
	struct ibv_qp_attr a = good;
	WANT(ibv_modify_qp(qp, &a, mask & ~IBV_QP_RQ_PSN), EINVAL);
	WANT(ibv_modify_qp(qp, &a, mask | IBV_QP_QKEY), EINVAL);
	a.ah_attr.is_global = 0;
	WANT(ibv_modify_qp(qp, &a, mask), EINVAL);
	a = good;
	a.ah_attr.port_num = 2;
	WANT(ibv_modify_qp(qp, &a, mask), EINVAL);
	a = good;
	a.path_mtu = IBV_MTU_4096;
	if (d->port.active_mtu < IBV_MTU_4096)
		WANT(ibv_modify_qp(qp, &a, mask), EINVAL);
	a.path_mtu = (enum ibv_mtu)6;
	WANT(ibv_modify_qp(qp, &a, mask), EINVAL);
	a = good;
	for (int i = 0; i < 2; i++) { /* an empty index, and one outside the table */
		union ibv_gid g, zero = { { 0 } };
		a.ah_attr.grh.sgid_index = (uint8_t)(i ? d->port.gid_tbl_len : d->port.gid_tbl_len - 1);
		int empty = i || (!ibv_query_gid(d->ctx, 1, d->port.gid_tbl_len - 1, &g) && !memcmp(&g, &zero, 16));
		int e = ibv_modify_qp(qp, &a, mask);
		if (empty && e != EINVAL && !(kernel_rxe && e == ENODATA))
			FAIL("RTR with sgid_index %d: returned %d", a.ah_attr.grh.sgid_index, e);
	}
	a = good;
	WANT(ibv_modify_qp(qp, &a, mask), 0);
}

static void modify(struct device *d)
{
	struct ibv_cq *cq = ibv_create_cq(d->ctx, 16, NULL, NULL, 0);
	struct ibv_qp *qp = fresh_qp(d, cq, IBV_QPT_RC);
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_RTS, .port_num = 1 }, got;
	struct ibv_qp_init_attr ia;
	WANT(ibv_modify_qp(qp, &a, IBV_QP_STATE), EINVAL);
	a.qp_state = IBV_QPS_INIT;
	const int init = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
	WANT(ibv_modify_qp(qp, &a, init & ~IBV_QP_PORT), EINVAL);
	WANT(ibv_modify_qp(qp, &a, init | IBV_QP_QKEY), EINVAL);
	a.port_num = 2;
	WANT(ibv_modify_qp(qp, &a, init), EINVAL);
	a.port_num = 1;
	for (int bit = 21; bit < 31; bit++) { /* bits that mean nothing, and a rate limit, which has a call of its own */
		int e = kernel_rxe ? EINVAL : ibv_modify_qp(qp, &a, init | 1 << bit);
		if (e != EINVAL && e != EOPNOTSUPP)
			FAIL("ibv_modify_qp with bit %d of the mask: returned %d", bit, e);
	}
	WANT(ibv_query_qp(qp, &got, IBV_QP_STATE, &ia), 0);
	if (got.qp_state != IBV_QPS_RESET)
		FAIL("a refused modify changed the state to %d", got.qp_state);
	WANT(to_init(qp, &QP_DEFAULTS), 0);
	rtr_values(d, qp);
	a = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .sq_psn = 5, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1 };
	const int rts = IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
	WANT(ibv_modify_qp(qp, &a, rts & ~IBV_QP_TIMEOUT), EINVAL);
	if (d->attr.max_qp_rd_atom < 255) {
		a.max_rd_atomic = (uint8_t)(d->attr.max_qp_rd_atom + 1);
		WANT(ibv_modify_qp(qp, &a, rts), EINVAL);
		a.max_rd_atomic = 1;
	}
	WANT(ibv_modify_qp(qp, &a, rts), 0);
	WANT(ibv_query_qp(qp, &got, IBV_QP_STATE, &ia), 0);
	if (got.qp_state != IBV_QPS_RTS || got.sq_psn != 5 || got.timeout != 14 || got.path_mtu != d->mtu || ia.cap.max_send_wr < 4)
		FAIL("ibv_query_qp: state %d sq_psn %u timeout %u path_mtu %d", got.qp_state, got.sq_psn, got.timeout, got.path_mtu);
	WANT(ibv_destroy_qp(qp), 0);
	WANT(ibv_destroy_cq(cq), 0);
}

/* Takes CAP_NET_RAW (bit 13) from this thread's effective set, or gives it back; 0 when it has no such right. */
static int net_raw(int on)
{
	struct { uint32_t version; int pid; } header = { 0x20080522, 0 };
	struct { uint32_t effective, permitted, inheritable; } set[2];
	if (syscall(SYS_capget, &header, set))
		return 0;
	set[0].effective = on ? set[0].effective | (set[0].permitted & 1u << 13) : set[0].effective & ~(1u << 13);
	return syscall(SYS_capset, &header, set) == 0 && (set[0].permitted >> 13 & 1);
}

static void controlled_qkey(struct device *d)
{
	struct ibv_cq *cq = ibv_create_cq(d->ctx, 16, NULL, NULL, 0);
	struct ibv_qp *qp = fresh_qp(d, cq, IBV_QPT_UD);
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 0x80010000 };
	const int init = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY;
	int may = net_raw(0);
	if (!kernel_rxe) /* before 6.4 */
		WANT(ibv_modify_qp(qp, &a, init), EPERM);
	if (may) {
		net_raw(1);
		WANT(ibv_modify_qp(qp, &a, init), 0);
	} else {
		a.qkey = 1;
		WANT(ibv_modify_qp(qp, &a, init), 0);
	}
	WANT(ibv_destroy_qp(qp), 0);
	WANT(ibv_destroy_cq(cq), 0);
}

/* ---- posting ---- */

static void post_in_state(struct ibv_qp *qp, int want_send, int want_recv, const char *state)
{
	struct ibv_send_wr sw = { .opcode = IBV_WR_SEND }, *bs = NULL;
	struct ibv_recv_wr rw = { .wr_id = 1 }, *br = NULL;
	int e = ibv_post_send(qp, &sw, &bs);
	if (e != want_send || (e && bs != &sw && !kernel_rxe)) /* librxe leaves bad_wr alone here */
		FAIL("ibv_post_send in %s: returned %d, expected %d", state, e, want_send);
	e = ibv_post_recv(qp, &rw, &br);
	if (e != want_recv || (e && br != &rw && !kernel_rxe))
		FAIL("ibv_post_recv in %s: returned %d, expected %d", state, e, want_recv);
}

static void post_states(struct device *d)
{
	struct ibv_cq *cq = ibv_create_cq(d->ctx, 16, NULL, NULL, 0);
	struct ibv_qp *qp = fresh_qp(d, cq, IBV_QPT_RC);
	struct qp_addr self = { qp->qp_num, 0, d->gid };
	struct ibv_qp_attr err = { .qp_state = IBV_QPS_ERR };
	struct ibv_wc wc;
	post_in_state(qp, EINVAL, EINVAL, "RESET");
	WANT(to_init(qp, &QP_DEFAULTS), 0);
	post_in_state(qp, EINVAL, 0, "INIT");
	WANT(to_rtr(d, qp, &self, &QP_DEFAULTS), 0);
	post_in_state(qp, EINVAL, 0, "RTR");
	WANT(ibv_modify_qp(qp, &err, IBV_QP_STATE), 0);
	for (int i = 0; i < 2; i++)
		if (wait_wc(cq, &wc, 5000) != 1 || wc.status != IBV_WC_WR_FLUSH_ERR)
			FAIL("receive %d was not flushed", i);
	post_in_state(qp, 0, 0, "ERR");
	for (int i = 0; i < 2; i++)
		if (wait_wc(cq, &wc, 5000) != 1 || wc.status != IBV_WC_WR_FLUSH_ERR)
			FAIL("request %d posted in ERR was not flushed", i);
	WANT(ibv_destroy_qp(qp), 0);
	WANT(ibv_destroy_cq(cq), 0);
}

/* Operations that the transport does not have. Not for kernel rxe: librxe lets them through. */
static void post_opcodes(struct device *d)
{
	struct pair_options o = PAIR_DEFAULTS;
	if (kernel_rxe)
		return;
	struct pair p = pair_new(d, &o);
	struct ibv_send_wr wr = request(&p, (enum ibv_wr_opcode)99, NULL, 0, 0);
	WANT(post(&p, &wr), EINVAL);
	pair_free(&p);
	o.type = IBV_QPT_UC;
	p = pair_new(d, &o);
	struct ibv_sge ok = sge_at(&p.mem[0], 0, 8);
	static const enum ibv_wr_opcode NOT_UC[] = { IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_SEND_WITH_INV };
	for (size_t i = 0; i < LEN(NOT_UC); i++) {
		wr = request(&p, NOT_UC[i], &ok, 1, 0);
		WANT(post(&p, &wr), EINVAL);
	}
	pair_free(&p);
	o.type = IBV_QPT_UD;
	p = pair_new(d, &o);
	ok = sge_at(&p.mem[0], 0, 8);
	wr = request(&p, IBV_WR_RDMA_WRITE, &ok, 1, 0);
	WANT(post(&p, &wr), EINVAL);
	wr = (struct ibv_send_wr){ .opcode = IBV_WR_SEND }; /* no address handle */
	WANT(post(&p, &wr), EINVAL);
	pair_free(&p);
}

static void post_arguments(struct device *d)
{
	struct pair p = pair_new(d, &PAIR_DEFAULTS);
	struct ibv_sge sge[64] = { { 0 } };
	struct ibv_send_wr wr = request(&p, IBV_WR_SEND, sge, 33, 0);
	WANT(post(&p, &wr), EINVAL); /* more SGEs than any grant */
	WANT(post_recv(&p, 1, 1, sge, 33), EINVAL);
	int e = 0, n = 0;
	while (!e && n < 100000)
		e = post_recv(&p, 1, 1, NULL, 0), n++;
	WANT(e, ENOMEM);
	if ((uint32_t)n <= p.recv_wr_max)
		FAIL("only %d receives of %u granted ones", n - 1, p.recv_wr_max);
	pair_free(&p);
}

/* A queue pair whose peer does not answer: the send queue fills up, and the retries run out. */
static void full_and_unanswered(struct device *d)
{
	struct ibv_cq *cq = ibv_create_cq(d->ctx, 16, NULL, NULL, 0);
	struct ibv_qp *qp = fresh_qp(d, cq, IBV_QPT_RC), *gone = fresh_qp(d, cq, IBV_QPT_RC);
	struct qp_options o = QP_DEFAULTS;
	struct qp_addr nobody = { gone->qp_num, 0, d->gid };
	o.timeout = 13; /* 34 ms */
	o.retry_cnt = 2;
	WANT(ibv_destroy_qp(gone), 0);
	WANT(to_init(qp, &o) | to_rtr(d, qp, &nobody, &o) | to_rts(d, qp, 0, &o), 0);
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND }, *bad;
	int e = 0, n = 0;
	uint64_t start = now_ns();
	while (!e && n < 4096)
		e = ibv_post_send(qp, &wr, &bad), n++;
	WANT(e, ENOMEM);
	struct ibv_wc wc = { 0 };
	if (wait_wc(cq, &wc, 5000) != 1 || wc.status != IBV_WC_RETRY_EXC_ERR)
		FAIL("unanswered: status %d (%s)", wc.status, ibv_wc_status_str(wc.status));
	uint64_t ms = (now_ns() - start) / 1000000;
	if (ms < 90 || ms > 2000) /* three times T..4T, T = 33.6 ms; and a busy machine */
		FAIL("the retries ran out after %llu ms", (unsigned long long)ms);
	for (int i = 1; i < n - 1; i++)
		if (wait_wc(cq, &wc, 1000) != 1 || wc.status != IBV_WC_WR_FLUSH_ERR)
			FAIL("request %d of %d was not flushed (status %d)", i, n - 1, wc.status);
	WANT(ibv_destroy_qp(qp), 0);
	WANT(ibv_destroy_cq(cq), 0);
}

static void address_handles(struct device *d)
{
	struct ibv_ah_attr a = ah_of(d, &d->gid);
	a.is_global = 0;
	WANT_NULL(ibv_create_ah(d->pd, &a), EINVAL);
	a = ah_of(d, &d->gid);
	a.port_num = 2;
	WANT_NULL(ibv_create_ah(d->pd, &a), EINVAL);
	a = ah_of(d, &d->gid);
	struct ibv_ah *ah = ibv_create_ah(d->pd, &a);
	if (!ah)
		FAIL("ibv_create_ah to ourselves: errno %d", errno);
	else
		WANT(ibv_destroy_ah(ah), 0);
	struct ibv_cq *cq = ibv_create_cq(d->ctx, 16, NULL, NULL, 0);
	struct ibv_qp *rc = fresh_qp(d, cq, IBV_QPT_RC);
	int e = ibv_attach_mcast(rc, &d->gid, 0);
	if (e != EINVAL && e != EOPNOTSUPP)
		FAIL("ibv_attach_mcast of an RC queue pair: returned %d", e);
	WANT(ibv_destroy_qp(rc), 0);
	WANT(ibv_destroy_cq(cq), 0);
}

/* ---- work requests that fail ---- */

/* The statuses of sender and receiver; -1: no receive is posted. Then the pair must come up again and work. */
static void failing(struct device *d, struct ibv_send_wr *(*make)(struct pair *, struct ibv_send_wr *, struct ibv_sge *),
		    const struct pair_options *o, int recv_len, int want_send, int want_recv, const char *what)
{
	struct pair p = pair_new(d, o);
	struct ibv_sge s, r = sge_at(&p.mem[1], 0, recv_len > 0 ? (uint32_t)recv_len : 0), g = sge_at(&p.mem[0], 0, 64);
	struct ibv_send_wr wr, next, *bad;
	make(&p, &wr, &s);
	next = request(&p, IBV_WR_SEND, NULL, 0, 0);
	next.wr_id = 78;
	wr.next = &next;
	if (recv_len >= 0 && post_recv(&p, 1, 5, &r, 1))
		FAIL("%s: post_recv", what);
	if (ibv_post_send(p.qp[0], &wr, &bad)) {
		FAIL("%s: refused at the post", what);
	} else {
		struct ibv_wc wc = expect_wc(&p, 0, -1, what);
		/* kernel rxe answers a too long send with "remote operation error", a wrong lkey with "local QP operation error" */
		int alt = kernel_rxe && ((want_send == IBV_WC_REM_INV_REQ_ERR && wc.status == IBV_WC_REM_OP_ERR) ||
					 (want_send == IBV_WC_LOC_PROT_ERR && wc.status == IBV_WC_LOC_QP_OP_ERR));
		if ((wc.status != (enum ibv_wc_status)want_send && !alt) || wc.wr_id != 77)
			FAIL("%s: status %d (%s) of wr %llu", what, wc.status, ibv_wc_status_str(wc.status), (unsigned long long)wc.wr_id);
		expect_wc(&p, 0, IBV_WC_WR_FLUSH_ERR, "the request behind it");
		if (want_recv >= 0) {
			wc = expect_wc(&p, 1, -1, what);
			alt = kernel_rxe && want_recv == IBV_WC_LOC_LEN_ERR && wc.status == IBV_WC_LOC_QP_OP_ERR;
			if (wc.status != (enum ibv_wc_status)want_recv && !alt)
				FAIL("%s: receiver's status %d (%s)", what, wc.status, ibv_wc_status_str(wc.status));
		}
		struct ibv_qp_attr qa;
		struct ibv_qp_init_attr ia;
		if (ibv_query_qp(p.qp[0], &qa, IBV_QP_STATE, &ia) || qa.qp_state != IBV_QPS_ERR)
			FAIL("%s: the sender's state is %d", what, qa.qp_state);
	}
	pair_revive(&p, &PAIR_DEFAULTS);
	wr = request(&p, IBV_WR_SEND, &g, 1, 0);
	r = sge_at(&p.mem[1], 128, 64);
	if (post_recv(&p, 1, 6, &r, 1) || post(&p, &wr))
		FAIL("%s: no post after the revival", what);
	expect_wc(&p, 1, S, "receive after the revival");
	expect_wc(&p, 0, S, "send after the revival");
	pair_free(&p);
}

static struct ibv_send_wr *bad_rkey(struct pair *p, struct ibv_send_wr *wr, struct ibv_sge *s)
{
	*s = sge_at(&p->mem[0], 0, 64);
	*wr = request(p, IBV_WR_RDMA_WRITE, s, 1, 0);
	wr->wr.rdma.rkey ^= 0x5a5a00;
	return wr;
}
static struct ibv_send_wr *bad_rkey_read(struct pair *p, struct ibv_send_wr *wr, struct ibv_sge *s)
{
	bad_rkey(p, wr, s)->opcode = IBV_WR_RDMA_READ;
	return wr;
}
static struct ibv_send_wr *bad_lkey(struct pair *p, struct ibv_send_wr *wr, struct ibv_sge *s)
{
	*s = sge_at(&p->mem[0], 0, 64);
	s->lkey ^= 0x5a5a00;
	*wr = request(p, IBV_WR_SEND, s, 1, 0);
	return wr;
}
static struct ibv_send_wr *plain_write(struct pair *p, struct ibv_send_wr *wr, struct ibv_sge *s)
{
	*s = sge_at(&p->mem[0], 0, 64);
	*wr = request(p, IBV_WR_RDMA_WRITE, s, 1, 0);
	return wr;
}
static struct ibv_send_wr *plain_read(struct pair *p, struct ibv_send_wr *wr, struct ibv_sge *s)
{
	plain_write(p, wr, s)->opcode = IBV_WR_RDMA_READ;
	return wr;
}
static struct ibv_send_wr *plain_send(struct pair *p, struct ibv_send_wr *wr, struct ibv_sge *s)
{
	plain_write(p, wr, s)->opcode = IBV_WR_SEND;
	return wr;
}
static void requests_that_fail(struct device *d)
{
	struct pair_options o = PAIR_DEFAULTS;
	failing(d, bad_rkey, &o, -1, IBV_WC_REM_ACCESS_ERR, -1, "wrong rkey, WRITE");
	failing(d, bad_rkey_read, &o, -1, IBV_WC_REM_ACCESS_ERR, -1, "wrong rkey, READ");
	failing(d, bad_lkey, &o, 64, IBV_WC_LOC_PROT_ERR, -1, "wrong lkey");
	failing(d, plain_send, &o, 63, IBV_WC_REM_INV_REQ_ERR, IBV_WC_LOC_LEN_ERR, "receive one byte short");
	o.qp[1].access = 0;
	failing(d, plain_write, &o, -1, IBV_WC_REM_INV_REQ_ERR, -1, "QP without REMOTE_WRITE");
	failing(d, plain_read, &o, -1, IBV_WC_REM_INV_REQ_ERR, -1, "QP without REMOTE_READ");
	o = PAIR_DEFAULTS;
	o.access[1] = IBV_ACCESS_LOCAL_WRITE;
	failing(d, plain_write, &o, -1, IBV_WC_REM_ACCESS_ERR, -1, "MR without REMOTE_WRITE");
	failing(d, plain_read, &o, -1, IBV_WC_REM_ACCESS_ERR, -1, "MR without REMOTE_READ");
	o = PAIR_DEFAULTS;
	o.qp[0].rnr_retry = 1;
	failing(d, plain_send, &o, -1, IBV_WC_RNR_RETRY_EXC_ERR, -1, "no receive posted");
}

/* No window has this key: the message arrives, the receiver's completion says the error and its queue pair
 * stops; the sender, who is not to blame, sees success. */
static void invalidation_refused(struct device *d)
{
	struct pair p = pair_new(d, &PAIR_DEFAULTS);
	struct ibv_sge r = sge_at(&p.mem[1], 0, 64), s = sge_at(&p.mem[0], 0, 64);
	struct ibv_send_wr wr = request(&p, IBV_WR_SEND_WITH_INV, &s, 1, 0);
	struct ibv_qp_attr qa;
	struct ibv_qp_init_attr ia;
	wr.invalidate_rkey = p.mem[1].mr->rkey ^ 0x5a5a00;
	if (post_recv(&p, 1, 1, &r, 1) || post(&p, &wr))
		FAIL("post");
	expect_wc(&p, 0, S, "SEND with an rkey that is no window's, sender");
	if (expect_wc(&p, 1, -1, "SEND with an rkey that is no window's, receiver").status == S)
		FAIL("a key that is no window's was invalidated");
	if (ibv_query_qp(p.qp[1], &qa, IBV_QP_STATE, &ia) || qa.qp_state != IBV_QPS_ERR)
		FAIL("the receiver's state is %d", qa.qp_state);
	pair_free(&p);
}

static void receive_with_bad_key(struct device *d)
{
	struct pair p = pair_new(d, &PAIR_DEFAULTS);
	struct ibv_sge r = sge_at(&p.mem[1], 0, 64), s = sge_at(&p.mem[0], 0, 64);
	struct ibv_send_wr wr = request(&p, IBV_WR_SEND, &s, 1, 0);
	r.lkey ^= 0x5a5a00;
	if (post_recv(&p, 1, 1, &r, 1) || post(&p, &wr))
		FAIL("post");
	expect_wc(&p, 0, IBV_WC_REM_OP_ERR, "receive with a wrong lkey, sender");
	expect_wc(&p, 1, kernel_rxe ? IBV_WC_LOC_QP_OP_ERR : IBV_WC_LOC_PROT_ERR, "receive with a wrong lkey, receiver");
	pair_free(&p);
}

static void flush_in_order(struct device *d)
{
	struct pair p = pair_new(d, &PAIR_DEFAULTS);
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_ERR };
	for (uint64_t i = 0; i < 20; i++)
		WANT(post_recv(&p, 1, i, NULL, 0), 0);
	WANT(ibv_modify_qp(p.qp[1], &a, IBV_QP_STATE), 0);
	for (uint64_t i = 0; i < 20; i++) {
		struct ibv_wc wc = expect_wc(&p, 1, IBV_WC_WR_FLUSH_ERR, "flush");
		if (wc.wr_id != i || wc.qp_num != p.qp[1]->qp_num)
			FAIL("flush %llu came as %llu", (unsigned long long)i, (unsigned long long)wc.wr_id);
	}
	expect_none(&p, 1, "after the flush");
	pair_free(&p);
}

static const struct test_case CASES[] = {
	{ "queries", queries },
	{ "regions", regions },
	{ "completion_queues", completion_queues },
	{ "shared_receive_queues", shared_receive_queues },
	{ "create_qps", create_qps },
	{ "modify", modify },
	{ "controlled_qkey", controlled_qkey },
	{ "post_states", post_states },
	{ "post_opcodes", post_opcodes },
	{ "post_arguments", post_arguments },
	{ "full_and_unanswered", full_and_unanswered },
	{ "address_handles", address_handles },
	{ "requests_that_fail", requests_that_fail },
	{ "invalidation_refused", invalidation_refused },
	{ "receive_with_bad_key", receive_with_bad_key },
	{ "flush_in_order", flush_in_order },
};

int main(int argc, char **argv)
{
	program = "badargs";
	page = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	return case_main(argc, argv, CASES, LEN(CASES));
}
