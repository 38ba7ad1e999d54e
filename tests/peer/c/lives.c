/* SPDX-License-Identifier: MIT OR Apache-2.0
 * Ends and new beginnings: a queue pair reset, one taken to ERR in mid-stream, objects destroyed while
 * their events are out, queue pairs that share receives. Both ends are in this process, over the
 * device's own address.
 *
 *   lives [-d DEV] [-g GID] [-c CASES]     exit status 0 when every behaviour held */
#include "pair.h"
#include <fcntl.h>

static struct ibv_qp *make_qp(struct device *d, struct ibv_cq *send, struct ibv_cq *recv, struct ibv_srq *srq, int wrs)
{
	struct ibv_qp_init_attr a = { .send_cq = send, .recv_cq = recv, .srq = srq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = (uint32_t)wrs, .max_recv_wr = (uint32_t)wrs, .max_send_sge = 1, .max_recv_sge = 1 } };
	struct ibv_qp *qp = ibv_create_qp(d->pd, &a);
	if (!qp)
		DIE("ibv_create_qp");
	return qp;
}

static void to_state(struct ibv_qp *qp, enum ibv_qp_state state)
{
	struct ibv_qp_attr a = { .qp_state = state };
	if ((errno = ibv_modify_qp(qp, &a, IBV_QP_STATE)))
		DIE("modify to state %d", state);
}

static const struct qp_options PATIENT = { -1, -1, -1, 16, 7, 7, 8 };

static void link_up(struct device *d, struct ibv_qp *a, struct ibv_qp *b, uint32_t psn, const struct qp_options *o)
{
	struct ibv_qp *qp[2] = { a, b };
	for (int i = 0; i < 2; i++) {
		struct qp_addr peer = { qp[!i]->qp_num, psn, d->gid };
		if ((errno = to_init(qp[i], o)) || (errno = to_rtr(d, qp[i], &peer, o)) || (errno = to_rts(d, qp[i], psn, o)))
			DIE("connecting");
	}
}

static void reset_both(struct ibv_qp *a, struct ibv_qp *b)
{
	to_state(a, IBV_QPS_RESET);
	to_state(b, IBV_QPS_RESET);
}

static struct ibv_cq *make_cq(struct device *d, int cqe, struct ibv_comp_channel *channel)
{
	struct ibv_cq *cq = ibv_create_cq(d->ctx, cqe, NULL, channel, 0);
	if (!cq)
		DIE("ibv_create_cq");
	return cq;
}

static void unmake(int e, const char *what)
{
	if (e)
		FAIL("%s: %s", what, strerror(e));
}

/* A WRITE with immediate of no bytes, or with a key that nobody has. */
static void write_imm(struct ibv_qp *qp, uint64_t id, uint32_t rkey, struct ibv_sge *sge)
{
	struct ibv_send_wr w = { .wr_id = id, .opcode = IBV_WR_RDMA_WRITE_WITH_IMM, .send_flags = IBV_SEND_SIGNALED,
		.sg_list = sge, .num_sge = sge ? 1 : 0, .wr.rdma.rkey = rkey }, *bad;
	if ((errno = ibv_post_send(qp, &w, &bad)))
		DIE("post_send %d", (int)id);
}

static void recv_any(struct ibv_qp *qp, uint64_t id)
{
	struct ibv_recv_wr r = { .wr_id = id }, *bad;
	if ((errno = ibv_post_recv(qp, &r, &bad)))
		DIE("post_recv");
}

/* The next completion, successful, of this queue pair and request. */
static void expect(struct ibv_cq *cq, const struct ibv_qp *qp, uint64_t id, const char *what)
{
	struct ibv_wc wc;
	if (wait_wc(cq, &wc, 10000) != 1)
		FAIL("%s: no completion of request %d", what, (int)id);
	else if (wc.status || wc.wr_id != id || wc.qp_num != qp->qp_num)
		FAIL("%s: request %d of 0x%x, %s; expected %d of 0x%x", what, (int)wc.wr_id, wc.qp_num,
		     ibv_wc_status_str(wc.status), (int)id, qp->qp_num);
}

static void expect_no_more(struct ibv_cq *cq, const char *what)
{
	struct ibv_wc wc;
	if (ibv_poll_cq(cq, 1, &wc))
		FAIL("%s: request %d of 0x%x (%s) is one too many", what, (int)wc.wr_id, wc.qp_num, ibv_wc_status_str(wc.status));
}

static void await_state(struct ibv_qp *qp, enum ibv_qp_state state, const char *what)
{
	struct ibv_qp_attr a;
	struct ibv_qp_init_attr i;
	for (int tries = 0; tries < 5000; tries++) {
		if (ibv_query_qp(qp, &a, IBV_QP_STATE, &i) == 0 && a.qp_state == state)
			return;
		usleep(1000);
	}
	FAIL("%s: state %d, expected %d", what, a.qp_state, state);
}

static int readable(int fd, int wait_ms)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };
	return poll(&p, 1, wait_ms) == 1;
}

/* ---- C013: a queue pair taken to RESET starts clean ---- */

static void reset_round(struct device *d, struct ibv_comp_channel *channel, uint32_t psn)
{
	const char *how = channel ? "armed" : "polled";
	struct ibv_cq *cq = make_cq(d, 64, channel), *far = make_cq(d, 64, NULL), *event_cq;
	struct ibv_qp *one = make_qp(d, cq, cq, NULL, 8), *two = make_qp(d, cq, cq, NULL, 8);
	struct ibv_qp *far_one = make_qp(d, far, far, NULL, 8), *far_two = make_qp(d, far, far, NULL, 8);
	static uint8_t byte;
	struct ibv_mr *mr = ibv_reg_mr(d->pd, &byte, 1, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_sge sge = { (uintptr_t)&byte, 1, mr->lkey };
	void *ctx;
	link_up(d, one, far_one, psn, &PATIENT);
	link_up(d, two, far_two, psn + 5, &PATIENT);
	if (channel && ibv_req_notify_cq(cq, 0))
		FAIL("ibv_req_notify_cq");
	/* one: a success, an error, two flushed, two receives flushed; two: three successes around them */
	for (int i = 0; i < 4; i++)
		recv_any(far_two, 0);
	recv_any(far_one, 0);
	recv_any(one, 50);
	recv_any(one, 51);
	write_imm(one, 10, 0, NULL);
	write_imm(two, 20, 0, NULL);
	expect(far, far_one, 0, how);
	expect(far, far_two, 0, how);
	write_imm(one, 11, 0xdead00, &sge);
	write_imm(one, 12, 0, NULL);
	write_imm(one, 13, 0, NULL);
	await_state(one, IBV_QPS_ERR, how);
	write_imm(two, 21, 0, NULL);
	write_imm(two, 22, 0, NULL);
	expect(far, far_two, 0, how);
	expect(far, far_two, 0, how);
	usleep(20000); /* the last ACK; nothing polls */
	if (channel) {
		if (ibv_get_cq_event(channel, &event_cq, &ctx) || event_cq != cq || ibv_req_notify_cq(cq, 0))
			FAIL("armed: the event");
		ibv_ack_cq_events(cq, 1);
	}
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	reset_both(one, far_one);
	if (ibv_query_qp(one, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN, &init) || attr.qp_state != IBV_QPS_RESET)
		FAIL("%s: state %d after RESET", how, attr.qp_state);
	for (uint64_t id = 20; id < 23; id++)
		expect(cq, two, id, how);
	expect_no_more(cq, how);
	/* up again, with other numbers; queues are empty: eight fit each way */
	link_up(d, one, far_one, psn + 1000, &PATIENT);
	for (uint64_t id = 0; id < 8; id++) {
		recv_any(far_one, id);
		recv_any(one, id);
	}
	for (uint64_t id = 30; id < 38; id++)
		write_imm(one, id, 0, NULL);
	for (uint64_t id = 30; id < 38; id++)
		expect(cq, one, id, how);
	expect_no_more(cq, how);
	if (channel && !readable(channel->fd, 1000))
		FAIL("armed: no event for what came after RESET");
	while (channel && readable(channel->fd, 0) && !ibv_get_cq_event(channel, &event_cq, &ctx))
		ibv_ack_cq_events(event_cq, 1);
	write_imm(two, 23, 0, NULL);
	recv_any(far_two, 0);
	expect(cq, two, 23, how);
	struct ibv_qp *all[] = { one, two, far_one, far_two };
	for (int i = 0; i < 4; i++)
		unmake(ibv_destroy_qp(all[i]), "ibv_destroy_qp");
	unmake(ibv_dereg_mr(mr), "ibv_dereg_mr");
	unmake(ibv_destroy_cq(cq), "ibv_destroy_cq");
	unmake(ibv_destroy_cq(far), "ibv_destroy_cq");
}

static void c013_reset_starts_clean(struct device *d)
{
	struct ibv_comp_channel *channel = ibv_create_comp_channel(d->ctx);
	for (uint32_t i = 0; i < 10; i++) {
		reset_round(d, NULL, 0xfffffe);
		reset_round(d, channel, i);
	}
	unmake(ibv_destroy_comp_channel(channel), "ibv_destroy_comp_channel");
}

/* ---- C015: a message completes at most once, even if ERR strikes at that very moment ---- */

#define STREAM 1000
#define STREAM_ROUNDS 1000

/* A second thread that takes the receiver to ERR once so many messages have arrived. */
struct strike {
	struct ibv_qp *qp;
	uint32_t at, spin;
	uint32_t *arrived;
	int go; /* 1: strike; 2: leave */
};

static void *striker(void *arg)
{
	struct strike *s = arg;
	for (;;) {
		int go;
		while (!(go = __atomic_load_n(&s->go, __ATOMIC_ACQUIRE)))
			sched_yield();
		if (go == 2)
			return NULL;
		while (__atomic_load_n(s->arrived, __ATOMIC_RELAXED) < s->at)
			sched_yield();
		for (volatile uint32_t i = 0; i < s->spin; i++)
			;
		to_state(s->qp, IBV_QPS_ERR);
		__atomic_store_n(&s->go, 0, __ATOMIC_RELEASE);
	}
}

struct stream {
	struct ibv_cq *from_cq, *to_cq;
	struct ibv_qp *from, *to;
	uint64_t out[64], in[STREAM][8];
	struct ibv_mr *mr_out, *mr_in;
	uint32_t sent, in_flight, successes, flushes;
};

static void stream_post_receives(struct stream *s)
{
	memset(s->in, 0xff, sizeof s->in);
	for (uint64_t i = 0; i < STREAM; i++) {
		struct ibv_sge sge = { (uintptr_t)s->in[i], 64, s->mr_in->lkey };
		struct ibv_recv_wr r = { .wr_id = i, .sg_list = &sge, .num_sge = 1 }, *bad;
		if ((errno = ibv_post_recv(s->to, &r, &bad)))
			DIE("receive %d", (int)i);
	}
}

/* Numbered messages, inline, each sixteenth signaled, as many as fit, up to `most` in all. */
static void stream_send(struct stream *s, uint32_t most)
{
	while (s->sent < most && s->in_flight < 48) {
		s->out[0] = s->sent;
		struct ibv_sge sge = { (uintptr_t)s->out, 64, 0 };
		struct ibv_send_wr w = { .wr_id = s->sent, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
			.send_flags = IBV_SEND_INLINE | (s->sent % 16 == 15 ? IBV_SEND_SIGNALED : 0) }, *bad;
		if ((errno = ibv_post_send(s->from, &w, &bad)))
			DIE("post_send %u", s->sent);
		s->sent++;
		s->in_flight++;
	}
	struct ibv_wc wc;
	while (ibv_poll_cq(s->from_cq, 1, &wc) == 1 && !wc.status)
		s->in_flight -= 16;
}

static void stream_take(struct stream *s, int round)
{
	struct ibv_wc wc[16];
	int n = ibv_poll_cq(s->to_cq, 16, wc);
	for (int i = 0; i < n; i++) {
		uint64_t id = wc[i].wr_id;
		if (id != s->successes + s->flushes)
			FAIL("round %d: receive %d completes as number %u", round, (int)id, s->successes + s->flushes);
		if (wc[i].status == IBV_WC_SUCCESS) {
			if (s->flushes)
				FAIL("round %d: receive %d succeeds after one was flushed", round, (int)id);
			if (wc[i].byte_len != 64 || s->in[id][0] != s->successes)
				FAIL("round %d: receive %d has message %d", round, (int)id, (int)s->in[id][0]);
			__atomic_store_n(&s->successes, s->successes + 1, __ATOMIC_RELAXED);
		} else {
			if (wc[i].status != IBV_WC_WR_FLUSH_ERR)
				FAIL("round %d: receive %d: %s", round, (int)id, ibv_wc_status_str(wc[i].status));
			s->flushes++;
		}
	}
}

static void c015_error_in_mid_stream(struct device *d)
{
	static struct stream s;
	s.from_cq = make_cq(d, 256, NULL);
	s.to_cq = make_cq(d, STREAM + 10, NULL);
	s.from = make_qp(d, s.from_cq, s.from_cq, NULL, 64);
	s.to = make_qp(d, s.to_cq, s.to_cq, NULL, STREAM);
	s.mr_in = ibv_reg_mr(d->pd, s.in, sizeof s.in, IBV_ACCESS_LOCAL_WRITE);
	if (!s.mr_in)
		DIE("ibv_reg_mr");
	struct strike strike = { .qp = s.to, .arrived = &s.successes };
	struct rng rng = { 15 };
	pthread_t thread;
	pthread_create(&thread, NULL, striker, &strike);
	uint64_t all = 0, in_the_air = 0;
	for (int round = 0; round < STREAM_ROUNDS && !failures; round++) {
		link_up(d, s.from, s.to, rng_below(&rng, 1 << 24), &PATIENT);
		stream_post_receives(&s);
		s.sent = s.in_flight = s.successes = s.flushes = 0;
		strike.at = rng_below(&rng, STREAM / 2); /* it may run late */
		strike.spin = rng_below(&rng, 20000);
		uint64_t start = now_ns();
		__atomic_store_n(&strike.go, 1, __ATOMIC_RELEASE);
		while (s.successes + s.flushes < STREAM && now_ns() < start + 10000000000u) {
			/* the stream does not end before it is cut, however late the striker runs */
			stream_send(&s, __atomic_load_n(&strike.go, __ATOMIC_ACQUIRE) ? STREAM - 1 : 0);
			stream_take(&s, round);
		}
		if (s.successes + s.flushes != STREAM)
			FAIL("round %d: %u successes and %u flushes of %d", round, s.successes, s.flushes, STREAM);
		if (!s.flushes)
			FAIL("round %d: nothing was flushed", round);
		all += s.successes;
		in_the_air += s.sent != s.successes;
		while (__atomic_load_n(&strike.go, __ATOMIC_ACQUIRE))
			stream_take(&s, round);
		expect_no_more(s.to_cq, "after the last");
		reset_both(s.from, s.to);
		expect_no_more(s.from_cq, "after RESET");
	}
	printf("   %d streams cut, %d with messages in the air, %d messages\n", STREAM_ROUNDS, (int)in_the_air, (int)all);
	if (!in_the_air)
		FAIL("no stream was cut with messages in the air: this proves nothing");
	__atomic_store_n(&strike.go, 2, __ATOMIC_RELEASE);
	pthread_join(thread, NULL);
	unmake(ibv_destroy_qp(s.from), "ibv_destroy_qp");
	unmake(ibv_destroy_qp(s.to), "ibv_destroy_qp");
	unmake(ibv_destroy_cq(s.from_cq), "ibv_destroy_cq");
	unmake(ibv_destroy_cq(s.to_cq), "ibv_destroy_cq");
	unmake(ibv_dereg_mr(s.mr_in), "ibv_dereg_mr");
}

/* ---- C021: destroy waits exactly for events taken and not yet acknowledged ---- */

struct destroyer { pthread_t thread; struct ibv_cq *cq; int done; };

static void *destroy_body(void *arg)
{
	struct destroyer *x = arg;
	unmake(ibv_destroy_cq(x->cq), "ibv_destroy_cq");
	__atomic_store_n(&x->done, 1, __ATOMIC_RELEASE);
	return NULL;
}

static int is_done(struct destroyer *x, int within_ms)
{
	for (int i = 0; i <= within_ms && !__atomic_load_n(&x->done, __ATOMIC_ACQUIRE); i++)
		usleep(1000);
	return __atomic_load_n(&x->done, __ATOMIC_ACQUIRE);
}

/* One message to `cq`, armed before, polled after: an event is in the channel. */
static void one_event(struct ibv_qp *from, struct ibv_cq *from_cq, struct ibv_qp *to, struct ibv_cq *cq)
{
	if (ibv_req_notify_cq(cq, 0))
		FAIL("ibv_req_notify_cq");
	recv_any(to, 1);
	write_imm(from, 1, 0, NULL);
	expect(from_cq, from, 1, "c021");
	expect(cq, to, 1, "c021");
}

static void c021_destroy_waits_for_acks(struct device *d)
{
	struct ibv_comp_channel *channel = ibv_create_comp_channel(d->ctx);
	struct ibv_cq *from_cq = make_cq(d, 16, NULL), *cq[2], *taken;
	struct ibv_qp *from[2], *to[2];
	void *ctx;
	for (int i = 0; i < 2; i++) {
		cq[i] = make_cq(d, 16, channel);
		from[i] = make_qp(d, from_cq, from_cq, NULL, 4);
		to[i] = make_qp(d, cq[i], cq[i], NULL, 4);
		link_up(d, from[i], to[i], 100, &PATIENT);
	}
	/* three taken of the first, one of the second, five of the second unread */
	for (int n = 0; n < 9; n++) {
		int i = n >= 3;
		one_event(from[i], from_cq, to[i], cq[i]);
		if (n < 4 && (ibv_get_cq_event(channel, &taken, &ctx) || taken != cq[i]))
			FAIL("event %d", n);
	}
	for (int i = 0; i < 2; i++) {
		unmake(ibv_destroy_qp(from[i]), "ibv_destroy_qp");
		unmake(ibv_destroy_qp(to[i]), "ibv_destroy_qp");
	}
	struct destroyer x[2] = { { .cq = cq[0] }, { .cq = cq[1] } };
	for (int i = 0; i < 2; i++)
		pthread_create(&x[i].thread, NULL, destroy_body, &x[i]);
	ibv_ack_cq_events(cq[0], 2);
	if (is_done(&x[0], 100) || is_done(&x[1], 0))
		FAIL("destroyed with an event out");
	ibv_ack_cq_events(cq[1], 1);
	if (!is_done(&x[1], 3000))
		FAIL("not destroyed although what was taken is acknowledged (five are unread)");
	if (is_done(&x[0], 50))
		FAIL("destroyed by the acknowledgement of another queue's event");
	if (readable(channel->fd, 0))
		FAIL("events of a destroyed queue are still in the channel");
	ibv_ack_cq_events(cq[0], 1);
	if (!is_done(&x[0], 3000))
		FAIL("not destroyed after the last acknowledgement");
	for (int i = 0; i < 2; i++)
		pthread_join(x[i].thread, NULL);
	unmake(ibv_destroy_cq(from_cq), "ibv_destroy_cq");
	unmake(ibv_destroy_comp_channel(channel), "ibv_destroy_comp_channel");
}

/* ---- C024: events of shared receive queues ---- */

#define SHARERS 8

struct sharing {
	struct device *d;
	struct ibv_srq *srq;
	struct ibv_cq *cq, *far_cq;
	struct ibv_qp *qp[SHARERS], *far[SHARERS];
};

static void share_post(struct sharing *s, int n)
{
	for (int i = 0; i < n; i++) {
		struct ibv_recv_wr r = { .wr_id = 1 }, *bad;
		if ((errno = ibv_post_srq_recv(s->srq, &r, &bad)))
			DIE("ibv_post_srq_recv");
	}
}

static void share_consume(struct sharing *s, int n)
{
	struct ibv_wc wc;
	for (int i = 0; i < n; i++) {
		write_imm(s->far[i % SHARERS], 3, 0, NULL);
		if (wait_wc(s->cq, &wc, 5000) != 1 || wc.status || wait_wc(s->far_cq, &wc, 5000) != 1 || wc.status)
			FAIL("a message to the shared queue");
	}
}

/* The next asynchronous event within a second: 0 = none. */
static int next_event(struct sharing *s, struct ibv_async_event *e, int wait_ms)
{
	if (!readable(s->d->ctx->async_fd, wait_ms) || ibv_get_async_event(s->d->ctx, e))
		return 0;
	ibv_ack_async_event(e);
	return 1;
}

static void expect_limit_events(struct sharing *s, int n, const char *when)
{
	struct ibv_async_event e;
	int got = 0;
	while (next_event(s, &e, got < n ? 1000 : 20)) {
		if (e.event_type != IBV_EVENT_SRQ_LIMIT_REACHED || e.element.srq != s->srq)
			FAIL("%s: event %s", when, ibv_event_type_str(e.event_type));
		got++;
	}
	if (got != n)
		FAIL("%s: %d limit events, expected %d", when, got, n);
}

static void arm_limit(struct sharing *s, uint32_t limit)
{
	struct ibv_srq_attr a = { .srq_limit = limit };
	unmake(ibv_modify_srq(s->srq, &a, IBV_SRQ_LIMIT), "ibv_modify_srq");
}

static void share_limit(struct sharing *s)
{
	struct ibv_srq_attr a;
	share_post(s, 16);
	arm_limit(s, 10);
	unmake(ibv_query_srq(s->srq, &a), "ibv_query_srq");
	if (a.srq_limit != 10 || a.max_wr < 64 || a.max_sge < 1)
		FAIL("ibv_query_srq: limit %u, %u receives of %u pieces", a.srq_limit, a.max_wr, a.max_sge);
	share_consume(s, 6);
	expect_limit_events(s, 0, "ten are left");
	share_consume(s, 1);
	expect_limit_events(s, 1, "nine are left");
	unmake(ibv_query_srq(s->srq, &a), "ibv_query_srq");
	if (a.srq_limit)
		FAIL("the limit is still armed after its event: %u", a.srq_limit);
	share_consume(s, 5);
	expect_limit_events(s, 0, "not armed again");
	arm_limit(s, 3);
	share_consume(s, 1);
	expect_limit_events(s, 0, "armed again, three are left");
	share_consume(s, 1);
	expect_limit_events(s, 1, "armed again, two are left");
	share_consume(s, 2);
}

/* The queue pair is in ERR: one event, and no completion of a receive after it. */
static void expect_last_wqe(struct sharing *s, struct ibv_qp *qp, const char *why)
{
	struct ibv_async_event e;
	struct ibv_wc wc;
	if (!next_event(s, &e, 1000))
		FAIL("%s: no event", why);
	else if (e.event_type != IBV_EVENT_QP_LAST_WQE_REACHED || e.element.qp != qp)
		FAIL("%s: event %s", why, ibv_event_type_str(e.event_type));
	while (ibv_poll_cq(s->cq, 1, &wc) == 1)
		if (wc.opcode & IBV_WC_RECV)
			FAIL("%s: a receive completes (%s)", why, ibv_wc_status_str(wc.status));
	if (next_event(s, &e, 20))
		FAIL("%s: a second event, %s", why, ibv_event_type_str(e.event_type));
}

static void share_last_wqe(struct sharing *s)
{
	share_post(s, 32);
	share_consume(s, 8);
	/* told to */
	for (int i = 0; i < SHARERS - 2; i++) {
		to_state(s->qp[i], IBV_QPS_ERR);
		expect_last_wqe(s, s->qp[i], "modify to ERR");
		to_state(s->qp[i], IBV_QPS_ERR);
		if (readable(s->d->ctx->async_fd, 0))
			FAIL("ERR to ERR raises an event");
	}
	/* by a request of its own that fails */
	struct ibv_sge nowhere = { 4096, 1, 0xdead00 };
	write_imm(s->qp[SHARERS - 2], 4, 0, &nowhere);
	expect_last_wqe(s, s->qp[SHARERS - 2], "a bad local key");
	/* by the peer's death */
	struct ibv_qp *widow = s->qp[SHARERS - 1];
	unmake(ibv_destroy_qp(s->far[SHARERS - 1]), "ibv_destroy_qp");
	s->far[SHARERS - 1] = NULL;
	write_imm(widow, 5, 0, NULL);
	expect_last_wqe(s, widow, "the peer's death");
}

static void c024_srq_events(struct device *d)
{
	/* quick to give up: 4 ms, twice */
	static const struct qp_options hasty = { -1, 1, 1, 10, 1, 7, 8 };
	struct sharing s = { .d = d, .cq = make_cq(d, 128, NULL), .far_cq = make_cq(d, 128, NULL) };
	struct ibv_srq_init_attr a = { .attr = { .max_wr = 64, .max_sge = 1 } };
	if (!(s.srq = ibv_create_srq(d->pd, &a)))
		DIE("ibv_create_srq");
	for (int i = 0; i < SHARERS; i++) {
		s.qp[i] = make_qp(d, s.cq, s.cq, s.srq, 8);
		s.far[i] = make_qp(d, s.far_cq, s.far_cq, NULL, 8);
		link_up(d, s.qp[i], s.far[i], 7, i == SHARERS - 1 ? &hasty : &PATIENT);
	}
	while (readable(d->ctx->async_fd, 20)) { /* communication established */
		struct ibv_async_event e;
		next_event(&s, &e, 0);
	}
	share_limit(&s);
	struct ibv_async_event e;
	while (next_event(&s, &e, 20))
		;
	share_last_wqe(&s);
	for (int i = 0; i < SHARERS; i++) {
		unmake(ibv_destroy_qp(s.qp[i]), "ibv_destroy_qp");
		if (s.far[i])
			unmake(ibv_destroy_qp(s.far[i]), "ibv_destroy_qp");
	}
	unmake(ibv_destroy_srq(s.srq), "ibv_destroy_srq");
	unmake(ibv_destroy_cq(s.cq), "ibv_destroy_cq");
	unmake(ibv_destroy_cq(s.far_cq), "ibv_destroy_cq");
}

int main(int argc, char **argv)
{
	static const struct test_case all[] = {
		{ "c013_reset_starts_clean", c013_reset_starts_clean },
		{ "c015_error_in_mid_stream", c015_error_in_mid_stream },
		{ "c021_destroy_waits_for_acks", c021_destroy_waits_for_acks },
		{ "c024_srq_events", c024_srq_events },
	};
	program = "lives";
	return case_main(argc, argv, all, sizeof all / sizeof *all);
}
