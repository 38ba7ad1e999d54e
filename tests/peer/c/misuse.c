/* SPDX-License-Identifier: MIT OR Apache-2.0
 * misuse: what calls answer in states and with objects that do not fit; beside badargs, which is about
 * arguments alone. misuse [-d DEV] [-g GID] [-m MTU] [-c CASES] [-k]    exit status 0 when every answer is right
 * Build: cc -O2 -pthread -o misuse misuse.c -libverbs */
#include "pair.h"
#include <sys/syscall.h>

#define LEN(a) (sizeof(a) / sizeof *(a))

static void same(const char *what, int is, int want)
{
	if (is != want)
		FAIL("%s: %d (%s), expected %d (%s)", what, is, strerror(is), want, strerror(want));
}
static void null_and(const char *what, void *got, int want)
{
	if (got)
		FAIL("%s: succeeded", what);
	else
		same(what, errno, want);
}
#define SAME(what, call, want) same(what, (call), (want))
#define NULL_AND(what, call, want) (errno = 0, null_and(what, (call), (want)))
#define MINUS_AND(what, call, want)                                    \
	do {                                                           \
		errno = 0;                                             \
		if ((call) != -1)                                      \
			FAIL("%s: not -1", what);                      \
		SAME(what, errno, want);                               \
	} while (0)

static struct ibv_qp *queue_pair(struct device *d, struct ibv_cq *cq, enum ibv_qp_type t)
{
	struct ibv_qp_init_attr a = { .send_cq = cq, .recv_cq = cq, .qp_type = t, .sq_sig_all = 1, .cap = { 8, 8, 2, 2, 64 } };
	struct ibv_qp *qp = ibv_create_qp(d->pd, &a);
	if (!qp || (errno = to_init(qp, &QP_DEFAULTS)))
		DIE("a queue pair in INIT");
	return qp;
}

static struct ibv_cq *queue(struct device *d)
{
	struct ibv_cq *cq = ibv_create_cq(d->ctx, 16, NULL, NULL, 0);
	if (!cq)
		DIE("ibv_create_cq");
	return cq;
}

static void to_error(struct ibv_qp *qp)
{
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_ERR };
	SAME("to ERR", ibv_modify_qp(qp, &a, IBV_QP_STATE), 0);
}

/* The index is outside the table. */
static void tables(struct device *d)
{
	union ibv_gid g;
	uint16_t pkey;
	MINUS_AND("a P_Key outside the table", ibv_query_pkey(d->ctx, 1, d->port.pkey_tbl_len, &pkey), EINVAL);
	MINUS_AND("a GID outside the table", ibv_query_gid(d->ctx, 1, d->port.gid_tbl_len, &g), EINVAL);
}

static void queues_smaller_than_what_is_in_them(struct device *d)
{
	struct ibv_cq *cq = queue(d);
	struct ibv_qp *qp = queue_pair(d, cq, IBV_QPT_RC);
	struct ibv_recv_wr wr = { .wr_id = 1 }, *bad;
	struct ibv_wc wc;
	for (int i = 0; i < 5; i++)
		SAME("a receive", ibv_post_recv(qp, &wr, &bad), 0);
	to_error(qp);
	SAME("a CQ below what waits in it", ibv_resize_cq(cq, 3), EINVAL);
	SAME("a CQ of nothing", ibv_resize_cq(cq, 0), EINVAL);
	SAME("a CQ as large as what waits in it", ibv_resize_cq(cq, 5), 0);
	for (int i = 0; i < 5; i++)
		SAME("what waited is still there", ibv_poll_cq(cq, 1, &wc), 1);
	SAME("destroy_qp", ibv_destroy_qp(qp), 0);
	SAME("destroy_cq", ibv_destroy_cq(cq), 0);

	struct ibv_srq_init_attr a = { .attr = { 0, 1, 0 } };
	NULL_AND("an SRQ of no requests", ibv_create_srq(d->pd, &a), EINVAL);
	a.attr = (struct ibv_srq_attr){ 8, 0, 0 };
	NULL_AND("an SRQ of no SGEs", ibv_create_srq(d->pd, &a), EINVAL);
	a.attr = (struct ibv_srq_attr){ 8, 1, 0 };
	struct ibv_srq *srq = ibv_create_srq(d->pd, &a);
	struct ibv_srq_attr resize = { .max_wr = 4 }, got;
	if (!srq)
		DIE("ibv_create_srq");
	for (int i = 0; i < 5; i++)
		SAME("a shared receive", ibv_post_srq_recv(srq, &wr, &bad), 0);
	SAME("an SRQ below what is posted", ibv_modify_srq(srq, &resize, IBV_SRQ_MAX_WR), EINVAL);
	resize.max_wr = (uint32_t)d->attr.max_srq_wr + 1;
	SAME("an SRQ above the device's", ibv_modify_srq(srq, &resize, IBV_SRQ_MAX_WR), EINVAL);
	if (ibv_query_srq(srq, &got) || got.max_wr < 8)
		FAIL("a refused modify_srq left %u requests", got.max_wr);
	SAME("destroy_srq", ibv_destroy_srq(srq), 0);
}

static void groups(struct device *d)
{
	union ibv_gid group = { .raw = { 0xff, 0x0e, [15] = 0x77 } }, v4 = { .raw = { [10] = 0xff, 0xff, 239, 1, 2, 3 } };
	struct ibv_cq *cq = queue(d);
	struct ibv_qp *qp = queue_pair(d, cq, IBV_QPT_UD);
	int is_v4 = !memcmp(d->gid.raw, v4.raw, 12);
	if (is_v4)
		group = v4;
	SAME("a group that is none", ibv_attach_mcast(qp, &d->gid, 0), EINVAL);
	SAME("leaving what was never joined", ibv_detach_mcast(qp, &group, 0), EINVAL);
	int e = ibv_attach_mcast(qp, &group, 0);
	if (e == ENODEV || e == ENETUNREACH) { /* loopback has no multicast */
		SAME("destroy_qp", ibv_destroy_qp(qp), 0);
	} else {
		SAME("joining", e, 0);
		SAME("destroy_qp in a group", ibv_destroy_qp(qp), EBUSY);
		SAME("leaving", ibv_detach_mcast(qp, &group, 0), 0);
		SAME("leaving twice", ibv_detach_mcast(qp, &group, 0), EINVAL);
		int joined = 0;
		for (e = 0; !e && joined < 100000; joined++) {
			memcpy(group.raw + 13, (uint8_t[]){ 2, (uint8_t)(joined >> 8), (uint8_t)joined }, 3);
			e = ibv_attach_mcast(qp, &group, 0);
		}
		SAME("one group more than can be", e, ENOMEM);
		while (joined-- > 1) {
			memcpy(group.raw + 13, (uint8_t[]){ 2, (uint8_t)((joined - 1) >> 8), (uint8_t)(joined - 1) }, 3);
			SAME("leaving one of many", ibv_detach_mcast(qp, &group, 0), 0);
		}
		SAME("destroy_qp", ibv_destroy_qp(qp), 0);
	}
	SAME("destroy_cq", ibv_destroy_cq(cq), 0);
}

/* Nobody routes to it: 2001:db8:: and 203.0.113.0 are for documentation. */
static union ibv_gid nowhere(const struct device *d)
{
	union ibv_gid g = { .raw = { 0x20, 0x01, 0x0d, 0xb8, [15] = 9 } }, v4 = { .raw = { [10] = 0xff, 0xff, 203, 0, 113, 9 } };
	return memcmp(d->gid.raw, v4.raw, 12) ? g : v4;
}

static void unreachable(const char *what, int e)
{
	if (e != ENETUNREACH && e != EHOSTUNREACH && e != ETIMEDOUT)
		FAIL("%s: %d (%s)", what, e, strerror(e));
}

static void destinations(struct device *d)
{
	struct ibv_cq *cq = queue(d);
	struct ibv_qp *qp = queue_pair(d, cq, IBV_QPT_RC);
	struct qp_addr far = { 1, 0, nowhere(d) };
	struct ibv_qp_attr got;
	struct ibv_qp_init_attr init;
	unreachable("RTR towards nowhere", to_rtr(d, qp, &far, &QP_DEFAULTS));
	if (ibv_query_qp(qp, &got, 0, &init) || got.qp_state != IBV_QPS_INIT || init.cap.max_send_wr < 8)
		FAIL("a refused RTR: state %d; query without a mask: %u", got.qp_state, init.cap.max_send_wr);
	struct ibv_ah_attr a = ah_of(d, &far.gid);
	errno = 0;
	if (ibv_create_ah(d->pd, &a))
		FAIL("an address handle to nowhere");
	unreachable("an address handle to nowhere", errno);
	a = ah_of(d, &d->gid);
	a.grh.sgid_index = (uint8_t)d->port.gid_tbl_len;
	NULL_AND("an address handle from nowhere", ibv_create_ah(d->pd, &a), EINVAL);
	struct ibv_wc wc = { .wc_flags = IBV_WC_GRH };
	struct ibv_grh none = { 0 };
	errno = 0;
	if (ibv_create_ah_from_wc(d->pd, &wc, &none, 1) || !errno)
		FAIL("an address handle from a header that is none: errno %d", errno);
	SAME("destroy_qp", ibv_destroy_qp(qp), 0);
	SAME("destroy_cq", ibv_destroy_cq(cq), 0);
}

/* Requests before the bad one stay posted, those behind it are not looked at. */
static void lists(struct device *d)
{
	struct pair p = pair_new(d, &PAIR_DEFAULTS);
	struct ibv_sge s = sge_at(&p.mem[0], 0, 8);
	struct ibv_send_wr third = request(&p, IBV_WR_RDMA_WRITE, &s, 1, 16), second = request(&p, (enum ibv_wr_opcode)99, &s, 1, 8);
	struct ibv_send_wr first = request(&p, IBV_WR_RDMA_WRITE, &s, 1, 0), *bad = NULL;
	first.wr_id = 1, second.wr_id = 2, third.wr_id = 3;
	first.next = &second, second.next = &third;
	SAME("a list with a bad request", ibv_post_send(p.qp[0], &first, &bad), EINVAL);
	if (bad != &second)
		FAIL("bad_wr is not the second");
	if (expect_wc(&p, 0, IBV_WC_SUCCESS, "the first of the list").wr_id != 1)
		FAIL("another than the first completed");
	expect_none(&p, 0, "behind the bad request");
	struct ibv_recv_wr r2 = { .wr_id = 12, .num_sge = 33 }, r1 = { .wr_id = 11, .next = &r2 }, *bad_recv = NULL;
	SAME("a list with a bad receive", ibv_post_recv(p.qp[1], &r1, &bad_recv), EINVAL);
	if (bad_recv != &r2)
		FAIL("bad_wr is not the second receive");
	to_error(p.qp[1]);
	if (expect_wc(&p, 1, IBV_WC_WR_FLUSH_ERR, "the first receive").wr_id != 11)
		FAIL("another receive than the first was posted");
	expect_none(&p, 1, "behind the bad receive");
	pair_free(&p);
}

static void windows(struct device *d)
{
	struct pair_options o = PAIR_DEFAULTS;
	struct ibv_mw *one = ibv_alloc_mw(d->pd, IBV_MW_TYPE_1), *two = ibv_alloc_mw(d->pd, IBV_MW_TYPE_2);
	if (!one || !two)
		DIE("ibv_alloc_mw");
	o.type = IBV_QPT_UD;
	struct pair p = pair_new(d, &o);
	struct ibv_mw_bind bind = { .bind_info = { p.mem[0].mr, (uintptr_t)p.mem[0].base, 64, IBV_ACCESS_REMOTE_READ } };
	SAME("a window on a datagram queue pair", ibv_bind_mw(p.qp[0], one, &bind), EINVAL);
	struct ibv_send_wr wr = { .opcode = IBV_WR_BIND_MW, .bind_mw = { two, two->rkey + 1, bind.bind_info } };
	SAME("a bind request on a datagram queue pair", post(&p, &wr), EINVAL);
	pair_free(&p);
	SAME("dealloc_mw", ibv_dealloc_mw(one), 0);
	SAME("dealloc_mw", ibv_dealloc_mw(two), 0);
}

/* A send queue that has not drained goes nowhere but to ERR. */
static void not_drained(struct device *d)
{
	struct ibv_cq *cq = queue(d);
	struct ibv_qp *qp = queue_pair(d, cq, IBV_QPT_RC), *gone = queue_pair(d, cq, IBV_QPT_RC);
	struct qp_addr nobody = { gone->qp_num, 0, d->gid };
	struct ibv_qp_attr drain = { .qp_state = IBV_QPS_SQD }, go = { .qp_state = IBV_QPS_RTS }, got;
	struct ibv_qp_init_attr init;
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND }, *bad;
	struct ibv_wc wc;
	SAME("destroy_qp", ibv_destroy_qp(gone), 0);
	SAME("to RTS", to_rtr(d, qp, &nobody, &QP_DEFAULTS) | to_rts(d, qp, 0, &QP_DEFAULTS), 0);
	SAME("a request that nobody answers", ibv_post_send(qp, &wr, &bad), 0);
	SAME("RTS to SQD", ibv_modify_qp(qp, &drain, IBV_QP_STATE), 0);
	if (ibv_query_qp(qp, &got, IBV_QP_STATE, &init) || got.qp_state != IBV_QPS_SQD || !got.sq_draining)
		FAIL("state %d, draining %d", got.qp_state, got.sq_draining);
	SAME("SQD to RTS before it drained", ibv_modify_qp(qp, &go, IBV_QP_STATE), EINVAL);
	to_error(qp);
	if (wait_wc(cq, &wc, 5000) != 1 || wc.status != IBV_WC_WR_FLUSH_ERR)
		FAIL("the request was not flushed");
	SAME("destroy_qp", ibv_destroy_qp(qp), 0);
	SAME("destroy_cq", ibv_destroy_cq(cq), 0);
}

/* Takes CAP_NET_RAW (bit 13) from this thread's effective set, or gives it back. */
static void net_raw(int on)
{
	struct { uint32_t version; int pid; } header = { 0x20080522, 0 };
	struct { uint32_t effective, permitted, inheritable; } set[2];
	if (syscall(SYS_capget, &header, set))
		return;
	set[0].effective = on ? set[0].effective | (set[0].permitted & 1u << 13) : set[0].effective & ~(1u << 13);
	(void)syscall(SYS_capset, &header, set);
}

static void raw_packets(struct device *d)
{
	struct ibv_cq *cq = queue(d);
	struct ibv_qp_init_attr a = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RAW_PACKET, .cap = { 4, 4, 1, 1, 0 } };
	net_raw(0);
	NULL_AND("raw packets without the right to them", ibv_create_qp(d->pd, &a), EPERM);
	net_raw(1);
	SAME("destroy_cq", ibv_destroy_cq(cq), 0);
}

static const struct test_case CASES[] = {
	{ "tables", tables },
	{ "queues_smaller_than_what_is_in_them", queues_smaller_than_what_is_in_them },
	{ "groups", groups },
	{ "destinations", destinations },
	{ "lists", lists },
	{ "windows", windows },
	{ "not_drained", not_drained },
	{ "raw_packets", raw_packets },
};

int main(int argc, char **argv)
{
	program = "misuse";
	return case_main(argc, argv, CASES, LEN(CASES));
}
