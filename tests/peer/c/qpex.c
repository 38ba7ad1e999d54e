/* SPDX-License-Identifier: MIT OR Apache-2.0
 * qpex: extended posting (ibv_wr_*): every operation and setter, all or nothing, abort, threads.
 * qpex [-d DEV] [-g GID] [-m MTU] [-c CASES]    exit status 0 when every case passed
 * Build: cc -O2 -pthread -o qpex qpex.c -libverbs */
#include "judge.h"
#include "pair.h"

#define WITH_FLUSH (1u << 11) /* later than release 44: constants and the slot behind wr_atomic_write */
#define FLUSH_ACCESS (3 << 8)
#define WC_FLUSH 8
#define RC_OPERATIONS                                                                                       \
	(IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | IBV_QP_EX_WITH_SEND |             \
	 IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP |      \
	 IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD | IBV_QP_EX_WITH_LOCAL_INV | IBV_QP_EX_WITH_SEND_WITH_INV |    \
	 IBV_QP_EX_WITH_BIND_MW | IBV_QP_EX_WITH_ATOMIC_WRITE | WITH_FLUSH)

static void flush(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t addr, size_t len, uint8_t type, uint8_t level)
{
	typedef void (*wr_flush)(struct ibv_qp_ex *, uint32_t, uint64_t, size_t, uint8_t, uint8_t);
	wr_flush f;
	memcpy(&f, (char *)&qp->wr_atomic_write + sizeof(void *), sizeof f);
	f(qp, rkey, addr, len, type, level);
}

/* Room for every completion of a case: nothing holds the posting threads back but the send queue, which empties into
 * the completion queue whether or not anybody polls. */
#define CQ_ENTRIES 4096

/* A pair whose side 0 posts through `*x`. */
static struct pair extended(struct device *d, struct pair_options o, uint64_t operations, struct ibv_qp_ex **x)
{
	struct pair p = { .d = d };
	for (int i = 0; i < 2; i++) {
		if (!(p.cq[i] = ibv_create_cq(d->ctx, CQ_ENTRIES, NULL, NULL, 0)))
			DIE("ibv_create_cq");
		struct ibv_qp_init_attr_ex a = { .send_cq = p.cq[i], .recv_cq = p.cq[i], .qp_type = o.type, .sq_sig_all = 1,
			.cap = o.cap, .pd = d->pd, .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
			.send_ops_flags = operations };
		if (!(p.qp[i] = ibv_create_qp_ex(d->ctx, &a)))
			DIE("ibv_create_qp_ex operations 0x%llx", (unsigned long long)operations);
		p.inline_max = a.cap.max_inline_data;
		p.send_wr_max = a.cap.max_send_wr;
		region_new(d, &p.mem[i], o.access[i]);
	}
	if ((errno = pair_connect(&p, &o)))
		DIE("connecting the pair");
	if (!(*x = ibv_qp_to_qp_ex(p.qp[0])))
		DIE("ibv_qp_to_qp_ex");
	return p;
}

static struct pair rc(struct device *d, struct ibv_qp_ex **x)
{
	struct pair_options o = PAIR_DEFAULTS;
	o.access[1] |= FLUSH_ACCESS;
	return extended(d, o, RC_OPERATIONS, x);
}

static uint64_t at(const struct pair *p, uint32_t off) { return (uintptr_t)p->mem[1].base + off; }
static uint32_t rkey(const struct pair *p) { return p->mem[1].mr->rkey; }
static void set(struct ibv_qp_ex *x, const struct pair *p, uint32_t off, uint32_t len)
{
	ibv_wr_set_sge(x, p->mem[0].mr->lkey, (uintptr_t)p->mem[0].base + off, len);
}

static void fill(struct pair *p, uint32_t off, uint32_t len, uint8_t salt)
{
	for (uint32_t i = 0; i < len; i++)
		p->mem[0].base[off + i] = (uint8_t)(i * 7 + salt);
}

static void completed(struct pair *p, int side, uint64_t id, enum ibv_wc_opcode opcode)
{
	struct ibv_wc wc = expect_wc(p, side, IBV_WC_SUCCESS, "an operation");
	SAME("wr_id", wc.wr_id, id);
	SAME("opcode", wc.opcode, opcode);
}

/* The same from side 1, for the one that binds windows: they are served by the queue pair that bound them. */
static struct ibv_qp_ex *other_side(struct pair *p)
{
	struct ibv_qp_ex *x = ibv_qp_to_qp_ex(p->qp[1]);
	if (!x)
		DIE("ibv_qp_to_qp_ex");
	return x;
}

/* ---- cases ---- */

static void creation(struct device *d)
{
	static const struct { enum ibv_qp_type type; uint64_t operations; } BAD[] = {
		{ IBV_QPT_RC, IBV_QP_EX_WITH_TSO }, { IBV_QPT_RC, 1ull << 40 },
		{ IBV_QPT_UC, IBV_QP_EX_WITH_RDMA_READ }, { IBV_QPT_UC, IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD },
		{ IBV_QPT_UC, IBV_QP_EX_WITH_SEND_WITH_INV }, { IBV_QPT_UC, WITH_FLUSH },
		{ IBV_QPT_UD, IBV_QP_EX_WITH_RDMA_WRITE }, { IBV_QPT_UD, IBV_QP_EX_WITH_LOCAL_INV },
	};
	struct ibv_cq *cq = ibv_create_cq(d->ctx, 8, NULL, NULL, 0);
	struct ibv_qp_init_attr_ex a = { .send_cq = cq, .recv_cq = cq, .cap = PAIR_DEFAULTS.cap, .pd = d->pd };
	struct ibv_qp *qp;
	for (unsigned i = 0; i < LEN(BAD); i++) {
		a.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
		a.qp_type = BAD[i].type;
		a.send_ops_flags = BAD[i].operations;
		errno = 0;
		qp = ibv_create_qp_ex(d->ctx, &a);
		if (qp || errno != EOPNOTSUPP)
			FAIL("operations %u: %s, errno %d", i, qp ? "accepted" : "refused", errno);
	}
	a.comp_mask = IBV_QP_INIT_ATTR_PD;
	a.qp_type = IBV_QPT_RC;
	if (!(qp = ibv_create_qp_ex(d->ctx, &a)))
		DIE("ibv_create_qp_ex without operations");
	if (ibv_qp_to_qp_ex(qp))
		FAIL("a queue pair created without send_ops_flags posts extended");
	SAME("destroy", ibv_destroy_qp(qp), 0);
	static const struct ibv_qp_cap GOOD = { 4, 4, 1, 1, 0 };
	for (int way = 0; way < 7; way++) {
		int e = EINVAL;
		a.cap = GOOD;
		a.send_cq = a.recv_cq = cq;
		a.comp_mask = IBV_QP_INIT_ATTR_PD;
		switch (way) {
		case 0: a.cap.max_send_wr = (uint32_t)d->attr.max_qp_wr + 1; break;
		case 1: a.cap.max_recv_sge = (uint32_t)d->attr.max_sge + 1; break;
		case 2: a.cap.max_inline_data = 1 << 24; break;
		case 3: a.send_cq = NULL; break;
		case 4: a.recv_cq = NULL; break;
		case 5: a.comp_mask |= 1u << 20; e = EOPNOTSUPP; break;
		case 6: a.comp_mask |= IBV_QP_INIT_ATTR_CREATE_FLAGS; a.create_flags = 1u << 30; e = EOPNOTSUPP; break;
		}
		errno = 0;
		if (ibv_create_qp_ex(d->ctx, &a) || errno != e)
			FAIL("bad attributes %d: errno %d, expected %d", way, errno, e);
	}
	a.cap = GOOD;
	a.send_cq = a.recv_cq = cq;
	a.create_flags = 0;
	a.comp_mask = IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
	errno = 0;
	if (ibv_create_qp_ex(d->ctx, &a) || errno != EINVAL)
		FAIL("no protection domain: errno %d", errno);
	SAME("destroy", ibv_destroy_cq(cq), 0);
	struct ibv_device_attr_ex attr;
	SAME("ibv_query_device_ex", ibv_query_device_ex(d->ctx, NULL, &attr), 0);
	SAME("flush and atomic write are told", attr.device_cap_flags_ex >> 38 & 7, 7);
}

static void messages(struct device *d)
{
	struct ibv_qp_ex *x;
	struct pair p = rc(d, &x);
	struct ibv_sge to[2] = { sge_at(&p.mem[1], 0, 300), sge_at(&p.mem[1], 1000, 300) };
	struct ibv_sge from[3] = { sge_at(&p.mem[0], 0, 100), sge_at(&p.mem[0], 200, 0), sge_at(&p.mem[0], 100, 200) };
	fill(&p, 0, 300, 1);
	post_recv(&p, 1, 1, &to[0], 1);
	post_recv(&p, 1, 2, &to[1], 1);
	ibv_wr_start(x);
	x->wr_id = 10;
	x->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_send(x);
	ibv_wr_set_sge_list(x, 3, from);
	x->wr_id = 11;
	ibv_wr_send_imm(x, htonl(77));
	set(x, &p, 0, 300);
	SAME("complete", ibv_wr_complete(x), 0);
	completed(&p, 0, 10, IBV_WC_SEND);
	completed(&p, 0, 11, IBV_WC_SEND);
	completed(&p, 1, 1, IBV_WC_RECV);
	struct ibv_wc wc = expect_wc(&p, 1, IBV_WC_SUCCESS, "with immediate");
	SAME("immediate", wc.imm_data, htonl(77));
	SAME("flags", wc.wc_flags, IBV_WC_WITH_IMM);
	SAME("length", wc.byte_len, 300);
	if (memcmp(p.mem[1].base, p.mem[0].base, 300) || memcmp(p.mem[1].base + 1000, p.mem[0].base, 300))
		FAIL("other bytes arrived");
	pair_free(&p);
}

static void remote_memory(struct device *d)
{
	struct ibv_qp_ex *x;
	struct pair p = rc(d, &x);
	post_recv(&p, 1, 5, NULL, 0);
	fill(&p, 0, 5000, 3);
	ibv_wr_start(x);
	x->wr_id = 20;
	x->wr_flags = 0;
	ibv_wr_rdma_write(x, rkey(&p), at(&p, 0));
	set(x, &p, 0, 5000);
	x->wr_id = 21;
	ibv_wr_rdma_write_imm(x, rkey(&p), at(&p, 6000), 0x01020304);
	set(x, &p, 0, 100);
	x->wr_id = 22;
	ibv_wr_rdma_read(x, rkey(&p), at(&p, 0));
	set(x, &p, 10000, 5000);
	x->wr_id = 23;
	ibv_wr_rdma_write(x, rkey(&p), at(&p, 0)); /* no setter: nothing is written */
	SAME("complete", ibv_wr_complete(x), 0);
	completed(&p, 0, 20, IBV_WC_RDMA_WRITE);
	completed(&p, 0, 21, IBV_WC_RDMA_WRITE);
	completed(&p, 0, 22, IBV_WC_RDMA_READ);
	completed(&p, 0, 23, IBV_WC_RDMA_WRITE);
	struct ibv_wc wc = expect_wc(&p, 1, IBV_WC_SUCCESS, "with immediate");
	SAME("opcode", wc.opcode, IBV_WC_RECV_RDMA_WITH_IMM);
	SAME("immediate", wc.imm_data, 0x01020304);
	if (memcmp(p.mem[1].base, p.mem[0].base, 5000) || memcmp(p.mem[0].base + 10000, p.mem[0].base, 5000) ||
	    memcmp(p.mem[1].base + 6000, p.mem[0].base, 100))
		FAIL("other bytes arrived");
	pair_free(&p);
}

static void eight_bytes(struct device *d)
{
	struct ibv_qp_ex *x;
	struct pair p = rc(d, &x);
	uint64_t *word = (uint64_t *)(void *)p.mem[1].base, *old = (uint64_t *)(void *)p.mem[0].base, value = 1000;
	word[0] = 40;
	ibv_wr_start(x);
	x->wr_id = 1;
	ibv_wr_atomic_fetch_add(x, rkey(&p), at(&p, 0), 2);
	set(x, &p, 0, 8);
	ibv_wr_atomic_cmp_swp(x, rkey(&p), at(&p, 0), 42, 50);
	set(x, &p, 8, 8);
	ibv_wr_atomic_cmp_swp(x, rkey(&p), at(&p, 0), 42, 60);
	set(x, &p, 16, 8);
	ibv_wr_atomic_write(x, rkey(&p), at(&p, 8), &value);
	value = 0; /* it was copied */
	flush(x, rkey(&p), at(&p, 0), 16, 1, 0);
	flush(x, rkey(&p), 0, 0, 2, 1);
	SAME("complete", ibv_wr_complete(x), 0);
	completed(&p, 0, 1, IBV_WC_FETCH_ADD);
	completed(&p, 0, 1, IBV_WC_COMP_SWAP);
	completed(&p, 0, 1, IBV_WC_COMP_SWAP);
	completed(&p, 0, 1, (enum ibv_wc_opcode)9 /* IBV_WC_ATOMIC_WRITE */);
	completed(&p, 0, 1, (enum ibv_wc_opcode)WC_FLUSH);
	completed(&p, 0, 1, (enum ibv_wc_opcode)WC_FLUSH);
	SAME("word", word[0], 50);
	SAME("written", word[1], 1000);
	SAME("before the addition", old[0], 40);
	SAME("before the swap", old[1], 42);
	SAME("before the swap that did not fit", old[2], 50);
	struct pair_options o = PAIR_DEFAULTS;
	ibv_wr_start(x);
	flush(x, p.mem[0].mr->rkey, (uintptr_t)p.mem[0].base, 8, 1, 0); /* a region that grants no flush */
	SAME("complete", ibv_wr_complete(x), 0);
	expect_wc(&p, 0, IBV_WC_REM_ACCESS_ERR, "flush without access");
	pair_revive(&p, &o);
	ibv_wr_start(x);
	ibv_wr_local_inv(x, p.mem[0].mr->rkey); /* a plain region cannot be invalidated */
	SAME("complete", ibv_wr_complete(x), 0);
	if (expect_wc(&p, 0, -1, "local invalidate").status == IBV_WC_SUCCESS)
		FAIL("a plain region was invalidated");
	pair_free(&p);
}

static void windows(struct device *d)
{
	struct pair_options o = PAIR_DEFAULTS;
	struct ibv_qp_ex *x;
	o.access[1] |= IBV_ACCESS_MW_BIND;
	struct pair p = extended(d, o, RC_OPERATIONS, &x);
	struct ibv_qp_ex *owner = other_side(&p);
	struct ibv_mw *mw = ibv_alloc_mw(d->pd, IBV_MW_TYPE_2);
	if (!mw)
		DIE("ibv_alloc_mw");
	struct ibv_mw_bind_info info = { p.mem[1].mr, at(&p, 0), 4096, IBV_ACCESS_REMOTE_WRITE };
	uint32_t key = mw->rkey;
	for (int round = 0; round < 2; round++) {
		key = ibv_inc_rkey(key);
		ibv_wr_start(owner);
		owner->wr_id = 1;
		ibv_wr_bind_mw(owner, mw, key, &info);
		SAME("bind", ibv_wr_complete(owner), 0);
		completed(&p, 1, 1, IBV_WC_BIND_MW);
		if (!round)
			post_recv(&p, 1, 3, NULL, 0);
		ibv_wr_start(x);
		x->wr_id = 2;
		ibv_wr_rdma_write(x, key, at(&p, 0));
		set(x, &p, 0, 4096);
		if (!round)
			ibv_wr_send_inv(x, key); /* the peer takes the window away */
		SAME("complete", ibv_wr_complete(x), 0);
		completed(&p, 0, 2, IBV_WC_RDMA_WRITE);
		if (!round) {
			completed(&p, 0, 2, IBV_WC_SEND);
			struct ibv_wc wc = expect_wc(&p, 1, IBV_WC_SUCCESS, "with invalidate");
			SAME("flags", wc.wc_flags, IBV_WC_WITH_INV);
			SAME("key", wc.invalidated_rkey, key);
		} else { /* its owner does */
			ibv_wr_start(owner);
			ibv_wr_local_inv(owner, key);
			SAME("complete", ibv_wr_complete(owner), 0);
			completed(&p, 1, 1, IBV_WC_LOCAL_INV);
		}
		ibv_wr_start(x);
		ibv_wr_rdma_write(x, key, at(&p, 0));
		set(x, &p, 0, 8);
		SAME("complete", ibv_wr_complete(x), 0);
		expect_wc(&p, 0, IBV_WC_REM_ACCESS_ERR, "after invalidation");
		pair_revive(&p, &o);
	}
	ibv_wr_start(owner);
	ibv_wr_bind_mw(owner, NULL, key, &info);
	SAME("no window", ibv_wr_complete(owner), EINVAL);
	ibv_wr_start(owner);
	ibv_wr_bind_mw(owner, mw, key, NULL);
	SAME("no info", ibv_wr_complete(owner), EINVAL);
	SAME("ibv_dealloc_mw", ibv_dealloc_mw(mw), 0);
	pair_free(&p);
}

static void inline_data(struct device *d)
{
	struct ibv_qp_ex *x;
	struct pair p = rc(d, &x);
	uint8_t bytes[5000];
	struct ibv_data_buf list[3] = { { bytes, 60 }, { NULL, 0 }, { bytes + 60, p.inline_max - 60 } };
	for (unsigned i = 0; i < sizeof bytes; i++)
		bytes[i] = (uint8_t)(i * 5 + 1);
	ibv_wr_start(x);
	ibv_wr_rdma_write(x, rkey(&p), at(&p, 0));
	ibv_wr_set_inline_data(x, bytes, p.inline_max);
	ibv_wr_rdma_write(x, rkey(&p), at(&p, 8192));
	ibv_wr_set_inline_data_list(x, 3, list);
	ibv_wr_rdma_write(x, rkey(&p), at(&p, 16384));
	ibv_wr_set_inline_data(x, bytes, 0);
	uint8_t first = bytes[0];
	memset(bytes, 0, sizeof bytes); /* free for use again */
	SAME("complete", ibv_wr_complete(x), 0);
	for (int i = 0; i < 3; i++)
		expect_wc(&p, 0, IBV_WC_SUCCESS, "inline write");
	for (uint32_t i = 0; i < p.inline_max; i++)
		if (p.mem[1].base[i] != (uint8_t)(i * 5 + first) || p.mem[1].base[8192 + i] != (uint8_t)(i * 5 + first)) {
			FAIL("inline byte %u is another", i);
			break;
		}
	static const size_t TOO_LONG[] = { 1, 1ull << 32, SIZE_MAX - 4096 };
	for (unsigned i = 0; i < LEN(TOO_LONG); i++) {
		ibv_wr_start(x);
		ibv_wr_rdma_write(x, rkey(&p), at(&p, 0));
		ibv_wr_set_inline_data(x, bytes, i ? TOO_LONG[i] : p.inline_max + 1);
		SAME("too many inline bytes", ibv_wr_complete(x), EINVAL);
	}
	ibv_wr_start(x);
	ibv_wr_rdma_read(x, rkey(&p), at(&p, 0));
	ibv_wr_set_inline_data(x, bytes, 8);
	SAME("a READ into inline data", ibv_wr_complete(x), EINVAL);
	ibv_wr_start(x);
	ibv_wr_rdma_write(x, rkey(&p), at(&p, 0));
	ibv_wr_set_inline_data(x, (void *)8, 8);
	SAME("inline data that is not there", ibv_wr_complete(x), EFAULT);
	expect_none(&p, 0, "refused posts");
	pair_free(&p);
}

/* The middle one of three is bad in one way each: the posting is refused and leaves no trace. */
static void all_or_nothing(struct device *d)
{
	struct ibv_qp_ex *x;
	struct pair p = rc(d, &x);
	struct ibv_sge many[9] = { { 0 } };
	enum { WAYS = 6 };
	for (int way = 0; way < WAYS; way++) {
		ibv_wr_start(x);
		ibv_wr_rdma_write(x, rkey(&p), at(&p, 0));
		set(x, &p, 0, 64);
		switch (way) {
		case 0: ibv_wr_rdma_write(x, rkey(&p), at(&p, 0)); ibv_wr_set_sge_list(x, 9, many); break;
		case 1: ibv_wr_rdma_write(x, rkey(&p), at(&p, 0)); ibv_wr_set_sge_list(x, 1, NULL); break;
		case 2: ibv_wr_atomic_fetch_add(x, rkey(&p), at(&p, 0), 1); set(x, &p, 0, 7); break;
		case 3: flush(x, rkey(&p), at(&p, 0), 8, 0, 0); break;
		case 4: flush(x, rkey(&p), at(&p, 0), 8, 1, 2); break;
		case 5: ibv_wr_send_tso(x, NULL, 0, 0); break;
		}
		ibv_wr_rdma_write(x, rkey(&p), at(&p, 64));
		set(x, &p, 0, 64);
		if (ibv_wr_complete(x) != EINVAL)
			FAIL("way %d was not refused", way);
	}
	ibv_wr_start(x);
	for (uint32_t i = 0; i <= p.send_wr_max; i++) {
		ibv_wr_rdma_write(x, rkey(&p), at(&p, 0));
		set(x, &p, 0, 64);
	}
	SAME("one more than fit", ibv_wr_complete(x), ENOMEM);
	ibv_wr_start(x);
	ibv_wr_rdma_write(x, rkey(&p), at(&p, 0));
	set(x, &p, 0, 64);
	ibv_wr_abort(x);
	ibv_wr_start(x);
	ibv_wr_set_sge(x, 1, 2, 3);
	SAME("a setter without a request", ibv_wr_complete(x), EINVAL);
	ibv_wr_start(x);
	SAME("nothing at all", ibv_wr_complete(x), 0);
	usleep(20000);
	expect_none(&p, 0, "refused posts");
	if (region_touched(&p.mem[1], 0, 0) >= 0)
		FAIL("a refused post wrote something");
	ibv_wr_start(x);
	x->wr_id = 9;
	ibv_wr_rdma_write(x, rkey(&p), at(&p, 0));
	set(x, &p, 0, 64);
	SAME("afterwards", ibv_wr_complete(x), 0);
	completed(&p, 0, 9, IBV_WC_RDMA_WRITE);
	pair_free(&p);
}

static void operations_not_asked_for(struct device *d)
{
	struct ibv_qp_ex *x;
	struct pair p = extended(d, PAIR_DEFAULTS, IBV_QP_EX_WITH_RDMA_READ, &x);
	ibv_wr_start(x);
	ibv_wr_rdma_write(x, rkey(&p), at(&p, 0));
	set(x, &p, 0, 8);
	SAME("write on a queue pair for reads", ibv_wr_complete(x), EINVAL);
	struct ibv_sge s = sge_at(&p.mem[0], 0, 8);
	struct ibv_send_wr wr = request(&p, IBV_WR_RDMA_WRITE, &s, 1, 0);
	SAME("the other way of posting has them all", post(&p, &wr), 0);
	completed(&p, 0, 77, IBV_WC_RDMA_WRITE);
	pair_free(&p);
}

static void states(struct device *d)
{
	struct ibv_qp_ex *x;
	struct pair p = rc(d, &x);
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_ERR };
	SAME("to ERR", ibv_modify_qp(p.qp[0], &a, IBV_QP_STATE), 0);
	ibv_wr_start(x);
	x->wr_id = 3;
	ibv_wr_rdma_write(x, rkey(&p), at(&p, 0));
	set(x, &p, 0, 8);
	SAME("post in ERR", ibv_wr_complete(x), 0);
	SAME("it is flushed", expect_wc(&p, 0, IBV_WC_WR_FLUSH_ERR, "in ERR").wr_id, 3);
	a.qp_state = IBV_QPS_RESET;
	SAME("to RESET", ibv_modify_qp(p.qp[0], &a, IBV_QP_STATE), 0);
	ibv_wr_start(x);
	ibv_wr_rdma_write(x, rkey(&p), at(&p, 0));
	set(x, &p, 0, 8);
	SAME("post in RESET", ibv_wr_complete(x), EINVAL);
	pair_free(&p);
}

static void datagrams(struct device *d)
{
	struct pair_options o = PAIR_DEFAULTS;
	struct ibv_qp_ex *x;
	o.type = IBV_QPT_UD;
	struct pair p = extended(d, o, IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM, &x);
	struct ibv_ah_attr attr = { .grh = { .dgid = d->gid, .sgid_index = (uint8_t)d->gid_index, .hop_limit = 64 },
				    .is_global = 1, .port_num = 1 };
	struct ibv_ah *ah = ibv_create_ah(d->pd, &attr);
	struct ibv_sge to = sge_at(&p.mem[1], 0, 200);
	if (!ah)
		DIE("ibv_create_ah");
	post_recv(&p, 1, 1, &to, 1);
	fill(&p, 0, 100, 9);
	ibv_wr_start(x);
	ibv_wr_send(x);
	set(x, &p, 0, 100);
	SAME("a datagram without an address", ibv_wr_complete(x), EINVAL);
	ibv_wr_start(x);
	ibv_wr_send(x);
	ibv_wr_set_ud_addr(x, NULL, p.qp[1]->qp_num, QKEY);
	SAME("no address handle", ibv_wr_complete(x), EINVAL);
	ibv_wr_start(x);
	x->wr_id = 4;
	ibv_wr_send_imm(x, htonl(5));
	ibv_wr_set_ud_addr(x, ah, p.qp[1]->qp_num, QKEY);
	ibv_wr_set_inline_data(x, p.mem[0].base, 100);
	SAME("complete", ibv_wr_complete(x), 0);
	completed(&p, 0, 4, IBV_WC_SEND);
	struct ibv_wc wc = expect_wc(&p, 1, IBV_WC_SUCCESS, "datagram");
	SAME("length", wc.byte_len, 140);
	SAME("immediate", wc.imm_data, htonl(5));
	SAME("sender", wc.src_qp, p.qp[0]->qp_num);
	if (memcmp(p.mem[1].base + 40, p.mem[0].base, 100))
		FAIL("other bytes arrived");
	SAME("destroy", ibv_destroy_ah(ah), 0);
	pair_free(&p);
}

struct poster { struct pair *p; struct ibv_qp_ex *x; int number; };
enum { THREADS = 4, ROUNDS = 300, IN_FLIGHT = 8 };

/* Two additions of one thread: the second posted together with the first, never with another's. */
static void *add_twice(void *arg)
{
	struct poster *w = arg;
	for (int i = 0; i < ROUNDS; i++) {
		int e;
		do {
			ibv_wr_start(w->x);
			for (int k = 0; k < 2; k++) {
				w->x->wr_id = (uint64_t)(w->number * ROUNDS + i);
				w->x->wr_flags = IBV_SEND_SIGNALED;
				ibv_wr_atomic_fetch_add(w->x, rkey(w->p), at(w->p, 0), 1);
				set(w->x, w->p, 0, 8);
				if (k == 0)
					usleep(0);
			}
			e = ibv_wr_complete(w->x);
			if (e == ENOMEM)
				usleep(100);
		} while (e == ENOMEM);
		SAME("complete", e, 0);
	}
	return NULL;
}

static void four_threads(struct device *d)
{
	struct ibv_qp_ex *x;
	struct pair p = rc(d, &x);
	struct poster w[THREADS];
	pthread_t t[THREADS];
	uint64_t *word = (uint64_t *)(void *)p.mem[1].base, last = 0;
	*word = 0;
	for (int i = 0; i < THREADS; i++) {
		w[i] = (struct poster){ &p, x, i };
		pthread_create(&t[i], NULL, add_twice, &w[i]);
	}
	for (int i = 0; i < 2 * THREADS * ROUNDS; i++) {
		uint64_t id = expect_wc(&p, 0, IBV_WC_SUCCESS, "an addition").wr_id;
		if (i % 2 && id != last) {
			FAIL("postings of two threads are mixed: %llu, then %llu", (unsigned long long)last, (unsigned long long)id);
			break;
		}
		last = id;
	}
	for (int i = 0; i < THREADS; i++)
		pthread_join(t[i], NULL);
	SAME("additions", *word, 2 * THREADS * ROUNDS);
	pair_free(&p);
}

/* 512 KiB take a second at 4194 kbit/s; a busy machine may need longer, never much less. */
static void rate_limit(struct device *d)
{
	enum { TIMES = 16 };
	struct ibv_qp_ex *x;
	struct pair p = rc(d, &x);
	struct ibv_qp_rate_limit_attr slow = { .rate_limit = 4194 }, bad = { .rate_limit = 1, .comp_mask = 1 }, none = { 0 };
	struct ibv_device_attr_ex attr;
	SAME("ibv_query_device_ex", ibv_query_device_ex(d->ctx, NULL, &attr), 0);
	/* and for raw packets, to those who may carry them */
	SAME("offered for RC, UC and UD", attr.packet_pacing_caps.supported_qpts & ~(1u << IBV_QPT_RAW_PACKET), 1 << IBV_QPT_RC | 1 << IBV_QPT_UC | 1 << IBV_QPT_UD);
	if (attr.packet_pacing_caps.qp_rate_limit_max < slow.rate_limit || attr.packet_pacing_caps.qp_rate_limit_min > slow.rate_limit)
		FAIL("limits of the rate limit");
	SAME("unknown mask", ibv_modify_qp_rate_limit(p.qp[0], &bad), EINVAL);
	SAME("limit", ibv_modify_qp_rate_limit(p.qp[0], &slow), 0);
	fill(&p, 0, REGION, 2);
	for (int limited = 1; limited >= 0; limited--) {
		uint64_t began = now_ns();
		struct ibv_sge s = sge_at(&p.mem[0], 0, REGION);
		for (int i = 0; i < TIMES; i++) {
			struct ibv_send_wr wr = request(&p, IBV_WR_RDMA_WRITE, &s, 1, 0);
			SAME("post", post(&p, &wr), 0);
		}
		for (int i = 0; i < TIMES; i++)
			expect_wc(&p, 0, IBV_WC_SUCCESS, "a write");
		uint64_t ms = (now_ns() - began) / 1000000;
		if (limited && ms < 900)
			FAIL("a limited queue pair took only %llu ms", (unsigned long long)ms);
		SAME("no limit", ibv_modify_qp_rate_limit(p.qp[0], &none), 0);
	}
	if (memcmp(p.mem[0].base, p.mem[1].base, REGION))
		FAIL("other bytes arrived");
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_RESET };
	SAME("to RESET", ibv_modify_qp(p.qp[0], &a, IBV_QP_STATE), 0);
	SAME("a limit in RESET", ibv_modify_qp_rate_limit(p.qp[0], &slow), EINVAL);
	pair_free(&p);
}

static void data_in_order(struct device *d)
{
	struct ibv_qp_ex *x;
	struct pair p = rc(d, &x);
	SAME("WRITE", ibv_query_qp_data_in_order(p.qp[0], IBV_WR_RDMA_WRITE, 0), 1);
	SAME("READ", ibv_query_qp_data_in_order(p.qp[0], IBV_WR_RDMA_READ, 0), 1);
	SAME("whole messages, and so aligned blocks", ibv_query_qp_data_in_order(p.qp[0], IBV_WR_SEND, 1), 3);
	SAME("an operation without data", ibv_query_qp_data_in_order(p.qp[0], IBV_WR_LOCAL_INV, 0), 0);
	SAME("unknown flags", ibv_query_qp_data_in_order(p.qp[0], IBV_WR_SEND, 1 << 9), 0);
	pair_free(&p);
}

static const struct test_case CASES[] = {
	{ "creation", creation },
	{ "messages", messages },
	{ "remote_memory", remote_memory },
	{ "eight_bytes", eight_bytes },
	{ "windows", windows },
	{ "inline_data", inline_data },
	{ "all_or_nothing", all_or_nothing },
	{ "operations_not_asked_for", operations_not_asked_for },
	{ "states", states },
	{ "datagrams", datagrams },
	{ "four_threads", four_threads },
	{ "rate_limit", rate_limit },
	{ "data_in_order", data_in_order },
};

int main(int argc, char **argv)
{
	program = "qpex";
	return case_main(argc, argv, CASES, LEN(CASES));
}
