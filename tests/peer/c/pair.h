/* SPDX-License-Identifier: MIT OR Apache-2.0
 * Two queue pairs of one process, connected to each other over the device's own address, and a region
 * with canaries around it. For the programs that try the corners of the API. */
#ifndef ROCEBUD_PEER_PAIR_H
#define ROCEBUD_PEER_PAIR_H
#include "common.h"

#define AREA 65536        /* bytes mapped */
#define REGION_AT 16384   /* where the registered region starts in it */
#define REGION 32768      /* its length: a canary of 16 KiB on each side */
#define FILL 0xa5

struct region {
	uint8_t *area, *base; /* base: first registered byte */
	struct ibv_mr *mr;
};

struct pair {
	struct device *d;
	struct ibv_cq *cq[2];   /* one per side, for sends and receives */
	struct ibv_qp *qp[2];
	struct region mem[2];
	uint32_t inline_max, send_wr_max, recv_wr_max;
};

static inline void region_new(struct device *d, struct region *r, int access)
{
	r->area = mmap(NULL, AREA, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (r->area == MAP_FAILED)
		DIE("mmap");
	memset(r->area, FILL, AREA);
	r->base = r->area + REGION_AT;
	if (!(r->mr = ibv_reg_mr(d->pd, r->base, REGION, access)))
		DIE("ibv_reg_mr access 0x%x", access);
}

static inline void region_free(struct region *r)
{
	if (ibv_dereg_mr(r->mr))
		FAIL("ibv_dereg_mr");
	munmap(r->area, AREA);
}

/* The first byte that is not FILL, except within [skip, skip + n) of the region; -1 when there is none. */
static inline long region_touched(const struct region *r, uint32_t skip, uint32_t n)
{
	for (long i = 0; i < AREA; i++)
		if (r->area[i] != FILL && !(i >= REGION_AT + (long)skip && i < REGION_AT + (long)skip + (long)n))
			return i - REGION_AT;
	return -1;
}

struct pair_options {
	enum ibv_qp_type type;
	struct ibv_qp_cap cap;
	struct qp_options qp[2];
	int access[2]; /* of the regions */
	uint32_t psn;
};
static const struct pair_options PAIR_DEFAULTS = { IBV_QPT_RC, { 64, 64, 8, 8, 64 },
	{ { -1, -1, -1, 14, 7, 7, 8 }, { -1, -1, -1, 14, 7, 7, 8 } }, { ALL_ACCESS, ALL_ACCESS }, 0xfffffe };

static inline int pair_connect(struct pair *p, const struct pair_options *o)
{
	for (int i = 0; i < 2; i++) {
		struct qp_addr peer = { p->qp[!i]->qp_num, o->psn, p->d->gid };
		int e = to_init(p->qp[i], &o->qp[i]);
		e = e ? e : to_rtr(p->d, p->qp[i], &peer, &o->qp[i]);
		e = e ? e : to_rts(p->d, p->qp[i], o->psn, &o->qp[i]);
		if (e)
			return e;
	}
	return 0;
}

/* On completion queues of the caller's making; pair_free destroys them too. */
static inline struct pair pair_on(struct device *d, const struct pair_options *o, struct ibv_cq *cq0, struct ibv_cq *cq1)
{
	struct pair p = { .d = d, .cq = { cq0, cq1 } };
	for (int i = 0; i < 2; i++) {
		struct ibv_qp_init_attr a = { .send_cq = p.cq[i], .recv_cq = p.cq[i], .qp_type = o->type, .sq_sig_all = 1, .cap = o->cap };
		if (!(p.qp[i] = ibv_create_qp(d->pd, &a)))
			DIE("ibv_create_qp");
		p.inline_max = a.cap.max_inline_data;
		p.send_wr_max = a.cap.max_send_wr;
		p.recv_wr_max = a.cap.max_recv_wr;
		region_new(d, &p.mem[i], o->access[i]);
	}
	if ((errno = pair_connect(&p, o)))
		DIE("connecting the pair");
	return p;
}

static inline struct pair pair_new(struct device *d, const struct pair_options *o)
{
	struct ibv_cq *cq[2];
	for (int i = 0; i < 2; i++)
		if (!(cq[i] = ibv_create_cq(d->ctx, 256, NULL, NULL, 0)))
			DIE("ibv_create_cq");
	return pair_on(d, o, cq[0], cq[1]);
}

static inline void pair_free(struct pair *p)
{
	for (int i = 0; i < 2; i++)
		if (ibv_destroy_qp(p->qp[i]))
			FAIL("ibv_destroy_qp");
	for (int i = 0; i < 2; i++) {
		region_free(&p->mem[i]);
		if (ibv_destroy_cq(p->cq[i]))
			FAIL("ibv_destroy_cq");
	}
}

/* ERR, RESET and up again, both sides; leftover completions are thrown away. */
static inline void pair_revive(struct pair *p, const struct pair_options *o)
{
	struct ibv_wc wc;
	for (int i = 0; i < 2; i++) {
		struct ibv_qp_attr a = { .qp_state = IBV_QPS_RESET };
		if (ibv_modify_qp(p->qp[i], &a, IBV_QP_STATE))
			FAIL("modify to RESET");
	}
	for (int i = 0; i < 2; i++)
		while (ibv_poll_cq(p->cq[i], 1, &wc) > 0)
			;
	if (pair_connect(p, o))
		FAIL("a queue pair does not come up again after an error");
}

static inline struct ibv_sge sge_at(const struct region *r, uint32_t off, uint32_t len)
{
	return (struct ibv_sge){ (uintptr_t)r->base + off, len, r->mr->lkey };
}

static inline int post_recv(struct pair *p, int side, uint64_t id, struct ibv_sge *sge, int n)
{
	struct ibv_recv_wr wr = { .wr_id = id, .sg_list = sge, .num_sge = n }, *bad;
	return ibv_post_recv(p->qp[side], &wr, &bad);
}

/* A work request from side 0 to side 1's region. */
static inline struct ibv_send_wr request(const struct pair *p, enum ibv_wr_opcode op, struct ibv_sge *sge, int n, uint64_t off)
{
	struct ibv_send_wr wr = { .wr_id = 77, .opcode = op, .sg_list = sge, .num_sge = n };
	uint64_t to = (uintptr_t)p->mem[1].base + off;
	if (op == IBV_WR_ATOMIC_CMP_AND_SWP || op == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		wr.wr.atomic.remote_addr = to;
		wr.wr.atomic.rkey = p->mem[1].mr->rkey;
		wr.wr.atomic.compare_add = 1;
	} else {
		wr.wr.rdma.remote_addr = to;
		wr.wr.rdma.rkey = p->mem[1].mr->rkey;
	}
	return wr;
}

static inline int post(struct pair *p, struct ibv_send_wr *wr)
{
	struct ibv_send_wr *bad;
	return ibv_post_send(p->qp[0], wr, &bad);
}

/* The next completion of a side must have this status; -1 takes any. */
static inline struct ibv_wc expect_wc(struct pair *p, int side, int status, const char *what)
{
	struct ibv_wc wc = { 0 };
	if (wait_wc(p->cq[side], &wc, 10000) != 1) {
		FAIL("%s: no completion", what);
		wc.status = IBV_WC_GENERAL_ERR;
	} else if (status >= 0 && (int)wc.status != status) {
		FAIL("%s: status %d (%s), expected %d (%s)", what, wc.status, ibv_wc_status_str(wc.status), status,
		     ibv_wc_status_str((enum ibv_wc_status)status));
	}
	return wc;
}

static inline void expect_none(struct pair *p, int side, const char *what)
{
	struct ibv_wc wc;
	if (ibv_poll_cq(p->cq[side], 1, &wc) != 0)
		FAIL("%s: a completion that nobody asked for (status %d, wr_id %llu)", what, wc.status, (unsigned long long)wc.wr_id);
}

/* Runs the cases that `list` names (NULL: all); the line at the end is the plain one that CI reads. */
struct test_case { const char *name; void (*run)(struct device *); };
static inline int run_cases(struct device *d, const struct test_case *all, size_t n, const char *list)
{
	int passed = 0, failed = 0;
	for (size_t i = 0; i < n; i++) {
		if (list && !strstr(list, all[i].name))
			continue;
		int before = failures;
		all[i].run(d);
		printf("%s %s\n", failures == before ? "ok" : "FAILED", all[i].name);
		fflush(stdout);
		*(failures == before ? &passed : &failed) += 1;
	}
	printf("%d passed, %d failed\n", passed, failed);
	return failed || !passed;
}

/* -k: the device is kernel rxe, whose known deviations (each named where it is asked for) pass. */
static int kernel_rxe;

static inline int case_main(int argc, char **argv, const struct test_case *all, size_t n)
{
	const char *dev = NULL, *list = NULL;
	int opt, gid = -1, mtu = 0;
	while ((opt = getopt(argc, argv, "d:g:m:c:k")) != -1)
		switch (opt) {
		case 'd': dev = optarg; break;
		case 'g': gid = atoi(optarg); break;
		case 'm': mtu = atoi(optarg); break;
		case 'c': list = optarg; break;
		case 'k': kernel_rxe = 1; break;
		default: fprintf(stderr, "usage: [-d DEV] [-g GID] [-m MTU] [-c CASES] [-k]\n"); return 2;
		}
	struct device d;
	open_device(&d, dev, gid, mtu);
	return run_cases(&d, all, n, list);
}
#endif
