/* SPDX-License-Identifier: MIT OR Apache-2.0
 * cqex: extended completion queues: the iterator, every field, times, moderation, resizing, overruns.
 * cqex [-d DEV] [-g GID] [-m MTU] [-c CASES]    exit status 0 when every case passed
 * Build: cc -O2 -pthread -o cqex cqex.c -libverbs */
#include "judge.h"
#include "pair.h"
#include <fcntl.h>

#define EVERY_FIELD                                                                                      \
	(IBV_WC_STANDARD_FLAGS | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | IBV_WC_EX_WITH_CVLAN |            \
	 IBV_WC_EX_WITH_FLOW_TAG | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK)

static struct ibv_cq_ex *create(struct device *d, uint32_t cqe, uint64_t wc_flags, uint32_t flags)
{
	struct ibv_cq_init_attr_ex a = { .cqe = cqe, .cq_context = d, .wc_flags = wc_flags,
					 .comp_mask = flags ? IBV_CQ_INIT_ATTR_MASK_FLAGS : 0, .flags = flags };
	struct ibv_cq_ex *cq = ibv_create_cq_ex(d->ctx, &a);
	if (!cq)
		DIE("ibv_create_cq_ex wc_flags 0x%llx flags 0x%x", (unsigned long long)wc_flags, flags);
	return cq;
}

static struct pair connected(struct device *d, struct ibv_cq_ex *cq[2], uint32_t cqe, uint64_t wc_flags, uint32_t flags)
{
	cq[0] = create(d, cqe, wc_flags, flags);
	cq[1] = create(d, cqe, wc_flags, flags);
	return pair_on(d, &PAIR_DEFAULTS, ibv_cq_ex_to_cq(cq[0]), ibv_cq_ex_to_cq(cq[1]));
}

/* Starts a batch, waiting up to ten seconds for a completion. */
static int start(struct ibv_cq_ex *cq)
{
	struct ibv_poll_cq_attr a = { 0 };
	uint64_t until = now_ns() + 10000000000u;
	int e;
	while ((e = ibv_start_poll(cq, &a)) == ENOENT && now_ns() < until)
		;
	return e;
}

static uint64_t wall_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_REALTIME, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static uint64_t device_ns(struct device *d)
{
	struct ibv_values_ex v = { .comp_mask = IBV_VALUES_MASK_RAW_CLOCK };
	int e = ibv_query_rt_values_ex(d->ctx, &v);
	if (e || v.comp_mask != IBV_VALUES_MASK_RAW_CLOCK)
		FAIL("ibv_query_rt_values_ex: %d, comp_mask 0x%x", e, v.comp_mask);
	return (uint64_t)v.raw_clock.tv_nsec;
}

/* ---- cases ---- */

static void attributes(struct device *d)
{
	struct ibv_device_attr_ex a;
	SAME("ibv_query_device_ex", ibv_query_device_ex(d->ctx, NULL, &a), 0);
	SAME("timestamp mask", a.completion_timestamp_mask, UINT64_MAX);
	SAME("clock in kHz", a.hca_core_clock, 1000000);
	if (a.tm_caps.max_num_tags || a.tm_caps.max_ops || a.tm_caps.flags)
		FAIL("tag matching is refused, so it must not be offered");
	if (a.cq_mod_caps.max_cq_count < 2 || !a.cq_mod_caps.max_cq_period)
		FAIL("moderation is offered but its limits are not");
	struct ibv_values_ex v = { .comp_mask = ~0u };
	SAME("values with unknown bits", ibv_query_rt_values_ex(d->ctx, &v), 0);
	SAME("what was answered", v.comp_mask, IBV_VALUES_MASK_RAW_CLOCK);
	uint64_t first = device_ns(d);
	usleep(1000);
	if (device_ns(d) < first + 1000000)
		FAIL("the device's clock does not run");
}

static void refusals(struct device *d)
{
	static const struct { struct ibv_cq_init_attr_ex a; int e; } BAD[] = {
		{ { .cqe = 0 }, EINVAL },
		{ { .cqe = UINT32_MAX }, EINVAL },
		{ { .cqe = 8, .comp_vector = 1000 }, EINVAL },
		{ { .cqe = 8, .wc_flags = IBV_WC_EX_WITH_TM_INFO }, EOPNOTSUPP },
		{ { .cqe = 8, .wc_flags = 1 << 20 }, EOPNOTSUPP },
		{ { .cqe = 8, .comp_mask = 1 << 20 }, EOPNOTSUPP },
		{ { .cqe = 8, .comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS, .flags = 1 << 20 }, EOPNOTSUPP },
	};
	for (unsigned i = 0; i < LEN(BAD); i++) {
		struct ibv_cq_init_attr_ex a = BAD[i].a;
		errno = 0;
		if (ibv_create_cq_ex(d->ctx, &a))
			FAIL("bad attributes %u: accepted", i);
		else if (errno != BAD[i].e)
			FAIL("bad attributes %u: errno %d, expected %d", i, errno, BAD[i].e);
	}
	struct ibv_cq_init_attr_ex unread = { .cqe = 8, .flags = ~0u }; /* the mask does not name them */
	struct ibv_cq_ex *cq = ibv_create_cq_ex(d->ctx, &unread);
	if (!cq)
		DIE("flags that no mask names are looked at");
	struct ibv_poll_cq_attr bad = { .comp_mask = 1 }, none = { 0 };
	SAME("start with an unknown mask", ibv_start_poll(cq, &bad), EINVAL);
	SAME("start on an empty queue", ibv_start_poll(cq, &none), ENOENT);
	ibv_end_poll(cq); /* not allowed after an error, and harmless */
	SAME("start again", ibv_start_poll(cq, &none), ENOENT);
	struct ibv_modify_cq_attr m = { .attr_mask = 1 << 5 };
	SAME("unknown attribute", ibv_modify_cq(ibv_cq_ex_to_cq(cq), &m), EOPNOTSUPP);
	SAME("destroy", ibv_destroy_cq(ibv_cq_ex_to_cq(cq)), 0);
}

static void fields(struct device *d)
{
	struct ibv_cq_ex *cq[2];
	struct pair p = connected(d, cq, 64, EVERY_FIELD, 0);
	struct ibv_sge from = sge_at(&p.mem[0], 0, 100), to = sge_at(&p.mem[1], 0, 200);
	post_recv(&p, 1, 11, &to, 1);
	uint64_t device_before = device_ns(d), wall_before = wall_ns();
	struct ibv_send_wr wr = request(&p, IBV_WR_SEND_WITH_IMM, &from, 1, 0);
	wr.imm_data = htonl(0x01020304);
	if (post(&p, &wr))
		FAIL("ibv_post_send");
	SAME("receive side", start(cq[1]), 0);
	uint64_t device_after = device_ns(d), wall_after = wall_ns();
	SAME("status", cq[1]->status, IBV_WC_SUCCESS);
	SAME("wr_id", cq[1]->wr_id, 11);
	SAME("opcode", ibv_wc_read_opcode(cq[1]), IBV_WC_RECV);
	SAME("vendor_err", ibv_wc_read_vendor_err(cq[1]), 0);
	SAME("byte_len", ibv_wc_read_byte_len(cq[1]), 100);
	SAME("imm", ibv_wc_read_imm_data(cq[1]), htonl(0x01020304));
	SAME("qp_num", ibv_wc_read_qp_num(cq[1]), p.qp[1]->qp_num);
	SAME("wc_flags", ibv_wc_read_wc_flags(cq[1]), IBV_WC_WITH_IMM);
	SAME("slid", ibv_wc_read_slid(cq[1]), 0);
	SAME("sl", ibv_wc_read_sl(cq[1]), 0);
	SAME("dlid_path_bits", ibv_wc_read_dlid_path_bits(cq[1]), 0);
	SAME("cvlan", ibv_wc_read_cvlan(cq[1]), 0);
	SAME("flow tag", ibv_wc_read_flow_tag(cq[1]), 0);
	uint64_t ts = ibv_wc_read_completion_ts(cq[1]), wall = ibv_wc_read_completion_wallclock_ns(cq[1]);
	if (ts < device_before || ts > device_after)
		FAIL("timestamp %llu outside of %llu..%llu", (unsigned long long)ts, (unsigned long long)device_before,
		     (unsigned long long)device_after);
	if (wall < wall_before || wall > wall_after)
		FAIL("wall clock %llu outside of %llu..%llu", (unsigned long long)wall, (unsigned long long)wall_before,
		     (unsigned long long)wall_after);
	SAME("next", ibv_next_poll(cq[1]), ENOENT);
	ibv_end_poll(cq[1]);
	SAME("send side", start(cq[0]), 0);
	SAME("opcode", ibv_wc_read_opcode(cq[0]), IBV_WC_SEND);
	SAME("qp_num", ibv_wc_read_qp_num(cq[0]), p.qp[0]->qp_num);
	ibv_end_poll(cq[0]);
	pair_free(&p);
}

static void datagram_fields(struct device *d)
{
	struct pair_options o = PAIR_DEFAULTS;
	o.type = IBV_QPT_UD;
	struct ibv_cq_ex *cq[2] = { create(d, 64, EVERY_FIELD, 0), create(d, 64, EVERY_FIELD, 0) };
	struct pair p = pair_on(d, &o, ibv_cq_ex_to_cq(cq[0]), ibv_cq_ex_to_cq(cq[1]));
	struct ibv_ah_attr at = { .grh = { .dgid = d->gid, .sgid_index = (uint8_t)d->gid_index, .hop_limit = 64 },
				  .is_global = 1, .port_num = 1 };
	struct ibv_ah *ah = ibv_create_ah(d->pd, &at);
	if (!ah)
		DIE("ibv_create_ah");
	struct ibv_sge from = sge_at(&p.mem[0], 0, 64), to = sge_at(&p.mem[1], 0, 200);
	post_recv(&p, 1, 5, &to, 1);
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND, .sg_list = &from, .num_sge = 1,
				  .wr.ud = { .ah = ah, .remote_qpn = p.qp[1]->qp_num, .remote_qkey = QKEY } };
	if (post(&p, &wr))
		FAIL("ibv_post_send");
	SAME("receive side", start(cq[1]), 0);
	SAME("status", cq[1]->status, IBV_WC_SUCCESS);
	SAME("byte_len", ibv_wc_read_byte_len(cq[1]), 64 + 40);
	SAME("src_qp", ibv_wc_read_src_qp(cq[1]), p.qp[0]->qp_num);
	SAME("wc_flags", ibv_wc_read_wc_flags(cq[1]), IBV_WC_GRH);
	/* the network header's kind, as hardware says it and UCX wants it: bit 3 UDP, 1 IPv6, 2 IPv4 */
	SAME("sl", ibv_wc_read_sl(cq[1]), gid_is_v4(&d->gid) ? 8 | 2 : 8 | 1);
	ibv_end_poll(cq[1]);
	expect_wc(&p, 0, IBV_WC_SUCCESS, "the datagram's own completion");
	ibv_destroy_ah(ah);
	pair_free(&p);
}

static void failed_request(struct device *d)
{
	struct ibv_cq_ex *cq[2];
	struct pair p = connected(d, cq, 64, EVERY_FIELD, 0);
	struct ibv_sge from = sge_at(&p.mem[0], 0, 8);
	struct ibv_send_wr wr = request(&p, IBV_WR_RDMA_WRITE, &from, 1, 0);
	wr.wr.rdma.rkey ^= 0x5a00;
	if (post(&p, &wr))
		FAIL("ibv_post_send");
	SAME("start", start(cq[0]), 0);
	SAME("status", cq[0]->status, IBV_WC_REM_ACCESS_ERR);
	SAME("wr_id", cq[0]->wr_id, 77);
	if (!ibv_wc_read_vendor_err(cq[0]))
		FAIL("an error without a finer reason");
	ibv_end_poll(cq[0]);
	pair_free(&p);
}

/* N numbered messages; both ways of polling see each once and in order. */
static void batches(struct device *d)
{
	enum { N = 40 };
	struct ibv_cq_ex *cq[2];
	struct pair p = connected(d, cq, 128, IBV_WC_STANDARD_FLAGS, 0);
	struct ibv_sge from = sge_at(&p.mem[0], 0, 4), to = sge_at(&p.mem[1], 0, 4);
	uint64_t next = 0;
	struct ibv_wc wc;
	int before = failures;
	for (uint64_t i = 0; i < N; i++)
		post_recv(&p, 1, i, &to, 1);
	for (int i = 0; i < N; i++) {
		struct ibv_send_wr wr = request(&p, IBV_WR_SEND, &from, 1, 0);
		if (post(&p, &wr))
			FAIL("ibv_post_send");
	}
	while (next < N && failures == before) {
		if (start(cq[1])) {
			FAIL("message %llu did not arrive", (unsigned long long)next);
			break;
		}
		do
			SAME("order", cq[1]->wr_id, next++);
		while (next % 7 && ibv_next_poll(cq[1]) == 0);
		ibv_end_poll(cq[1]);
		if (next < N && wait_wc(p.cq[1], &wc, 10000) == 1) /* the other way, in between */
			SAME("order", wc.wr_id, next++);
	}
	for (int i = 0; i < N; i++)
		expect_wc(&p, 0, IBV_WC_SUCCESS, "a send");
	pair_free(&p);
}

struct poller { struct ibv_cq_ex *cq; int *left; uint8_t *seen; };

static void *poll_numbers(void *arg)
{
	struct poller *p = arg;
	struct ibv_poll_cq_attr a = { 0 };
	while (__atomic_load_n(p->left, __ATOMIC_RELAXED) > 0) {
		if (ibv_start_poll(p->cq, &a)) {
			usleep(10);
			continue;
		}
		do {
			/* Another thread in here would change what this one reads. */
			uint64_t id = p->cq->wr_id;
			uint32_t len = ibv_wc_read_byte_len(p->cq);
			if (len != id % 64)
				FAIL("completion %llu read with the length of another: %u", (unsigned long long)id, len);
			__atomic_add_fetch(&p->seen[id], 1, __ATOMIC_RELAXED);
			__atomic_sub_fetch(p->left, 1, __ATOMIC_RELAXED);
		} while (ibv_next_poll(p->cq) == 0);
		ibv_end_poll(p->cq);
	}
	return NULL;
}

static void four_threads(struct device *d)
{
	enum { N = 4000, THREADS = 4, WINDOW = 32 };
	static uint8_t seen[N];
	struct ibv_cq_ex *cq[2];
	struct pair p = connected(d, cq, N, IBV_WC_STANDARD_FLAGS, 0); /* nothing holds the sender back */
	int left = N;
	struct poller poller = { cq[1], &left, seen };
	pthread_t t[THREADS];
	memset(seen, 0, sizeof seen);
	for (int i = 0; i < THREADS; i++)
		pthread_create(&t[i], NULL, poll_numbers, &poller);
	for (uint64_t i = 0; i < N; i++) {
		struct ibv_sge from = sge_at(&p.mem[0], 0, i % 64), to = sge_at(&p.mem[1], 0, 64);
		struct ibv_send_wr wr = request(&p, IBV_WR_SEND, &from, 1, 0);
		post_recv(&p, 1, i, &to, 1);
		if (post(&p, &wr))
			FAIL("ibv_post_send");
		if (i >= WINDOW)
			expect_wc(&p, 0, IBV_WC_SUCCESS, "a send");
	}
	for (int i = 0; i < WINDOW; i++)
		expect_wc(&p, 0, IBV_WC_SUCCESS, "a send");
	for (uint64_t until = now_ns() + 10000000000u; __atomic_load_n(&left, __ATOMIC_RELAXED) > 0;)
		if (now_ns() > until) {
			FAIL("%d completions are missing", left);
			__atomic_store_n(&left, 0, __ATOMIC_RELAXED);
		}
	for (int i = 0; i < THREADS; i++)
		pthread_join(t[i], NULL);
	for (int i = 0; i < N; i++)
		if (seen[i] != 1)
			FAIL("completion %d was seen %d times", i, seen[i]);
	pair_free(&p);
}

static void single_threaded(struct device *d)
{
	struct ibv_cq_ex *cq[2];
	struct pair p = connected(d, cq, 64, IBV_WC_STANDARD_FLAGS, IBV_CREATE_CQ_ATTR_SINGLE_THREADED);
	struct ibv_sge from = sge_at(&p.mem[0], 0, 8);
	for (int i = 0; i < 100; i++) {
		struct ibv_send_wr wr = request(&p, IBV_WR_RDMA_WRITE, &from, 1, 0);
		if (post(&p, &wr))
			FAIL("ibv_post_send");
		SAME("start", start(cq[0]), 0);
		SAME("opcode", ibv_wc_read_opcode(cq[0]), IBV_WC_RDMA_WRITE);
		ibv_end_poll(cq[0]);
	}
	pair_free(&p);
}

/* Milliseconds until the channel has an event, which is taken; -1: none within the limit. */
static int event_after(struct ibv_comp_channel *channel, int limit_ms)
{
	struct pollfd f = { .fd = channel->fd, .events = POLLIN };
	uint64_t began = now_ns();
	struct ibv_cq *cq;
	void *context;
	if (poll(&f, 1, limit_ms) != 1)
		return -1;
	int ms = (int)((now_ns() - began) / 1000000);
	if (ibv_get_cq_event(channel, &cq, &context))
		FAIL("ibv_get_cq_event");
	ibv_ack_cq_events(cq, 1);
	return ms;
}

static void moderation(struct device *d)
{
	struct ibv_comp_channel *channel = ibv_create_comp_channel(d->ctx);
	struct ibv_cq_init_attr_ex a = { .cqe = 64, .channel = channel, .wc_flags = IBV_WC_STANDARD_FLAGS };
	struct ibv_cq_ex *cq = ibv_create_cq_ex(d->ctx, &a);
	if (!channel || !cq)
		DIE("a queue with a channel");
	struct pair p = pair_on(d, &PAIR_DEFAULTS, ibv_cq_ex_to_cq(cq), ibv_create_cq(d->ctx, 64, NULL, NULL, 0));
	struct ibv_sge from = sge_at(&p.mem[0], 0, 8);
	struct ibv_send_wr wr = request(&p, IBV_WR_RDMA_WRITE, &from, 1, 0);
	struct ibv_modify_cq_attr m = { IBV_CQ_ATTR_MODERATE, { .cq_count = 4, .cq_period = 60000 } };
	SAME("ibv_modify_cq", ibv_modify_cq(p.cq[0], &m), 0);
	for (int round = 0; round < 3; round++) {
		SAME("arm", ibv_req_notify_cq(p.cq[0], 0), 0);
		for (int i = 0; i < 3; i++)
			post(&p, &wr);
		int ms = event_after(channel, 20);
		if (ms >= 0 && ms < 15) /* a machine that stood still for the whole period may be late, never early */
			FAIL("an event after three completions of four, %d ms", ms);
		if (ms < 0) {
			post(&p, &wr);
			if (event_after(channel, 10000) < 0)
				FAIL("no event after four completions");
		} else {
			post(&p, &wr);
		}
		for (int i = 0; i < 4; i++)
			expect_wc(&p, 0, IBV_WC_SUCCESS, "a write");
	}
	m.moderate.cq_period = 30000;
	SAME("ibv_modify_cq", ibv_modify_cq(p.cq[0], &m), 0);
	uint64_t armed = now_ns();
	SAME("arm", ibv_req_notify_cq(p.cq[0], 0), 0);
	post(&p, &wr);
	if (event_after(channel, 10000) < 0)
		FAIL("a single completion never made its event");
	if (now_ns() - armed < 29000000)
		FAIL("the period was not waited for: %llu ns", (unsigned long long)(now_ns() - armed));
	expect_wc(&p, 0, IBV_WC_SUCCESS, "a write");
	m.moderate = (struct ibv_moderate_cq){ 0, 0 };
	SAME("switched off", ibv_modify_cq(p.cq[0], &m), 0);
	SAME("arm", ibv_req_notify_cq(p.cq[0], 0), 0);
	post(&p, &wr);
	if (event_after(channel, 10000) < 0)
		FAIL("no event without moderation");
	expect_wc(&p, 0, IBV_WC_SUCCESS, "a write");
	pair_free(&p);
	SAME("channel", ibv_destroy_comp_channel(channel), 0);
}

struct resizer { struct ibv_cq *cq; int stop; int done; };

static void *resize(void *arg)
{
	struct resizer *r = arg;
	struct rng rng = { 5 };
	while (!__atomic_load_n(&r->stop, __ATOMIC_RELAXED)) {
		int e = ibv_resize_cq(r->cq, (int)(64 + rng_below(&rng, 200)));
		if (e)
			FAIL("ibv_resize_cq: %d", e);
		r->done++;
		usleep(50);
	}
	return NULL;
}

static void resized_under_traffic(struct device *d)
{
	enum { N = 5000, WINDOW = 48 };
	struct pair p = pair_new(d, &PAIR_DEFAULTS);
	struct resizer r = { .cq = p.cq[0] };
	int before = failures;
	struct ibv_sge from = sge_at(&p.mem[0], 0, 8);
	pthread_t t;
	pthread_create(&t, NULL, resize, &r);
	for (uint64_t i = 0; i < N + WINDOW; i++) {
		struct ibv_send_wr wr = request(&p, IBV_WR_RDMA_WRITE, &from, 1, 0);
		wr.wr_id = i;
		if (i < N && post(&p, &wr))
			FAIL("ibv_post_send");
		if (i >= WINDOW)
			SAME("order", expect_wc(&p, 0, IBV_WC_SUCCESS, "a write").wr_id, i - WINDOW);
		if (failures != before)
			break;
	}
	__atomic_store_n(&r.stop, 1, __ATOMIC_RELAXED);
	pthread_join(t, NULL);
	if (!r.done)
		FAIL("nothing was resized");
	for (int i = 0; i < 10; i++) {
		struct ibv_send_wr wr = request(&p, IBV_WR_RDMA_WRITE, &from, 1, 0);
		if (post(&p, &wr))
			FAIL("ibv_post_send");
	}
	int e = 0; /* once enough has come; where it has not, the queue gets its room back at once */
	for (uint64_t until = now_ns() + 10000000000u; !e && now_ns() < until;) {
		usleep(200000);
		if (!(e = ibv_resize_cq(p.cq[0], 5)))
			ibv_resize_cq(p.cq[0], 64);
	}
	SAME("smaller than what waits", e, EINVAL);
	for (int i = 0; i < 10; i++)
		expect_wc(&p, 0, IBV_WC_SUCCESS, "what waited is still there");
	SAME("too small for nothing", ibv_resize_cq(p.cq[0], 0), EINVAL);
	pair_free(&p);
}

/* Posts n writes to a queue of two and waits until the last was carried out. */
static void overfill(struct device *d, struct pair *p, int n)
{
	(void)d;
	for (uint64_t i = 0; i < (uint64_t)n; i++) {
		*(uint64_t *)(void *)(p->mem[0].base + 8 * i) = i + 1;
		struct ibv_sge from = sge_at(&p->mem[0], (uint32_t)(8 * i), 8);
		struct ibv_send_wr wr = request(p, IBV_WR_RDMA_WRITE, &from, 1, 8 * i);
		wr.wr_id = i;
		int e = post(p, &wr);
		if (e)
			FAIL("post %llu: %d", (unsigned long long)i, e);
	}
}

static int async_event(struct device *d, int limit_ms)
{
	struct pollfd f = { .fd = d->ctx->async_fd, .events = POLLIN };
	struct ibv_async_event e;
	if (poll(&f, 1, limit_ms) != 1 || ibv_get_async_event(d->ctx, &e))
		return -1;
	ibv_ack_async_event(&e);
	return (int)e.event_type;
}

static void overrun(struct device *d)
{
	struct ibv_cq_ex *cq[2] = { create(d, 2, IBV_WC_STANDARD_FLAGS, 0), create(d, 64, 0, 0) };
	struct pair p = pair_on(d, &PAIR_DEFAULTS, ibv_cq_ex_to_cq(cq[0]), ibv_cq_ex_to_cq(cq[1]));
	overfill(d, &p, 4);
	int cq_err = 0, fatal = 0, e;
	while (!(cq_err && fatal) && (e = async_event(d, 10000)) >= 0) {
		cq_err += e == IBV_EVENT_CQ_ERR;
		fatal += e == IBV_EVENT_QP_FATAL;
	}
	SAME("CQ_ERR", cq_err, 1);
	SAME("QP_FATAL", fatal, 1);
	struct ibv_poll_cq_attr a = { 0 };
	SAME("what was there stays", ibv_start_poll(cq[0], &a), 0);
	SAME("first", cq[0]->wr_id, 0);
	SAME("second", ibv_next_poll(cq[0]), 0);
	SAME("then it is broken", ibv_next_poll(cq[0]), EIO);
	ibv_end_poll(cq[0]);
	pair_free(&p);
}

static void overrun_ignored(struct device *d)
{
	struct ibv_cq_ex *cq[2] = { create(d, 2, IBV_WC_STANDARD_FLAGS, IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN),
				    create(d, 64, 0, 0) };
	struct pair p = pair_on(d, &PAIR_DEFAULTS, ibv_cq_ex_to_cq(cq[0]), ibv_cq_ex_to_cq(cq[1]));
	overfill(d, &p, 6);
	/* Nobody polls; the sixth write's arrival tells that the fifth's completion may be there. */
	volatile uint64_t *last = (volatile uint64_t *)(void *)(p.mem[1].base + 40);
	for (uint64_t until = now_ns() + 10000000000u; *last != 6 && now_ns() < until;)
		;
	SAME("sixth write", *last, 6);
	usleep(200000);
	SAME("events", (unsigned)async_event(d, 0), (unsigned)-1);
	uint64_t id, before = 0;
	int n = 0;
	while (n < 2 && start(cq[0]) == 0) {
		id = cq[0]->wr_id;
		if (n++ && id != before + 1)
			FAIL("%llu follows %llu", (unsigned long long)id, (unsigned long long)before);
		before = id;
		ibv_end_poll(cq[0]);
		if (id == 5)
			break;
	}
	SAME("the newest is there", before, 5);
	struct ibv_sge from = sge_at(&p.mem[0], 0, 8);
	struct ibv_send_wr wr = request(&p, IBV_WR_RDMA_WRITE, &from, 1, 0);
	SAME("the queue pair lives", post(&p, &wr), 0);
	expect_wc(&p, 0, IBV_WC_SUCCESS, "a write afterwards");
	pair_free(&p);
}

static const struct test_case CASES[] = {
	{ "attributes", attributes },
	{ "refusals", refusals },
	{ "fields", fields },
	{ "datagram_fields", datagram_fields },
	{ "failed_request", failed_request },
	{ "batches", batches },
	{ "four_threads", four_threads },
	{ "single_threaded", single_threaded },
	{ "moderation", moderation },
	{ "resized_under_traffic", resized_under_traffic },
	{ "overrun_ignored", overrun_ignored },
	{ "overrun", overrun },
};

int main(int argc, char **argv)
{
	program = "cqex";
	return case_main(argc, argv, CASES, LEN(CASES));
}
