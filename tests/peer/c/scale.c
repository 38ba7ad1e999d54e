/* SPDX-License-Identifier: MIT OR Apache-2.0
 * Many of everything in one process: queue pairs that are connected and move data, idle ones beside a
 * busy one, as many as the device promises, and objects that come and go by the hundred thousand.
 * Queue pairs are connected to each other over the device's own address.
 *
 *   scale [-d DEV] [-g GID] [-c CASES]     exit status 0 when every behaviour held */
#include "pair.h"
#include "usage.h"

#define QPS 4096       /* what one slot of numbers holds */
#define MESSAGE 1000   /* bytes of each SEND */
#define ROUNDS 2       /* SENDs from each queue pair */

/* ---- what the process uses ---- */

struct usage { long kb; int fds; };
static struct usage usage(void) { return (struct usage){ rss_kb(), open_fds() }; }

/* What came and went may leave a little of the allocator's behind, and no descriptor. */
static void levelled(const char *what, struct usage before, long may_grow_kb)
{
	struct usage now = usage();
	if (now.fds != before.fds)
		FAIL("%s: %d descriptors, %d before", what, now.fds, before.fds);
	if (now.kb > before.kb + may_grow_kb)
		FAIL("%s: %ld kB resident, %ld before", what, now.kb, before.kb);
	printf("   %s: %ld kB, %ld before\n", what, now.kb, before.kb);
}

static double seconds_since(uint64_t start) { return (double)(now_ns() - start) / 1e9; }

/* ---- a crowd of connected pairs ---- */

struct crowd {
	struct device *d;
	int n;                  /* queue pairs; 2i and 2i + 1 are connected */
	struct ibv_cq *cq;      /* of all */
	struct ibv_qp **qp;
	uint8_t *out, *in;      /* MESSAGE bytes for each queue pair */
	struct ibv_mr *mr_out, *mr_in;
};

static struct ibv_qp *small_qp(struct device *d, struct ibv_cq *cq)
{
	struct ibv_qp_init_attr a = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .sq_sig_all = 1,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 } };
	return ibv_create_qp(d->pd, &a);
}

static const struct qp_options CALM = { -1, 1, 1, 17, 7, 7, 12 };

static int bring_up(struct device *d, struct ibv_qp *qp, uint32_t peer_qpn)
{
	struct qp_addr peer = { peer_qpn, 77, d->gid };
	int e = to_init(qp, &CALM);
	e = e ? e : to_rtr(d, qp, &peer, &CALM);
	return e ? e : to_rts(d, qp, 77, &CALM);
}

static void crowd_grow(struct crowd *c, int n)
{
	for (; c->n < n; c->n += 2) {
		struct ibv_qp **p = &c->qp[c->n];
		for (int i = 0; i < 2; i++)
			if (!(p[i] = small_qp(c->d, c->cq)))
				DIE("queue pair %d", c->n + i);
		for (int i = 0; i < 2; i++)
			if ((errno = bring_up(c->d, p[i], p[!i]->qp_num)))
				DIE("connecting queue pair %d", c->n + i);
	}
}

static struct crowd crowd_new(struct device *d, int most)
{
	struct crowd c = { .d = d };
	size_t bytes = (size_t)most * MESSAGE;
	c.qp = calloc((size_t)most, sizeof *c.qp);
	c.out = malloc(bytes);
	c.in = malloc(bytes);
	if (!c.qp || !c.out || !c.in || !(c.cq = ibv_create_cq(d->ctx, 4 * most, NULL, NULL, 0)))
		DIE("a completion queue of %d", 4 * most);
	c.mr_out = ibv_reg_mr(d->pd, c.out, bytes, 0);
	c.mr_in = ibv_reg_mr(d->pd, c.in, bytes, IBV_ACCESS_LOCAL_WRITE);
	if (!c.mr_out || !c.mr_in)
		DIE("ibv_reg_mr");
	return c;
}

static void crowd_free(struct crowd *c)
{
	for (int i = 0; i < c->n; i++)
		if (ibv_destroy_qp(c->qp[i]))
			FAIL("ibv_destroy_qp");
	if (ibv_dereg_mr(c->mr_out) || ibv_dereg_mr(c->mr_in) || ibv_destroy_cq(c->cq))
		FAIL("leaving");
	free(c->qp);
	free(c->out);
	free(c->in);
}

static void post_one(struct crowd *c, int i, int sends)
{
	struct ibv_sge sge = sends ? (struct ibv_sge){ (uintptr_t)c->out + (size_t)i * MESSAGE, MESSAGE, c->mr_out->lkey }
				   : (struct ibv_sge){ (uintptr_t)c->in + (size_t)i * MESSAGE, MESSAGE, c->mr_in->lkey };
	struct ibv_send_wr s = { .wr_id = (uint64_t)i, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND }, *bs;
	struct ibv_recv_wr r = { .wr_id = (uint64_t)i, .sg_list = &sge, .num_sge = 1 }, *br;
	if ((errno = sends ? ibv_post_send(c->qp[i], &s, &bs) : ibv_post_recv(c->qp[i], &r, &br)))
		DIE("posting to queue pair %d", i);
}

/* Every byte its own: of the sender, the round and the place. */
static uint8_t byte_of(int sender, int round, int at)
{
	return (uint8_t)mix((uint64_t)sender << 32 | (uint64_t)round << 16 | (uint64_t)at);
}

/* Every queue pair sends one message and takes one, all at the same time. */
static void everybody_talks(struct crowd *c, int round)
{
	for (int i = 0; i < c->n; i++)
		for (int b = 0; b < MESSAGE; b++)
			c->out[(size_t)i * MESSAGE + (size_t)b] = byte_of(i, round, b);
	memset(c->in, 0, (size_t)c->n * MESSAGE);
	for (int i = 0; i < c->n; i++)
		post_one(c, i, 0);
	for (int i = 0; i < c->n; i++)
		post_one(c, i, 1);
	struct ibv_wc wc[64];
	uint64_t end = now_ns() + 60000000000u;
	int left[2] = { c->n, c->n };
	while ((left[0] || left[1]) && now_ns() < end) {
		int n = ibv_poll_cq(c->cq, 64, wc);
		for (int i = 0; i < n; i++) {
			if (wc[i].status)
				FAIL("round %d: queue pair %d: %s", round, (int)wc[i].wr_id, ibv_wc_status_str(wc[i].status));
			left[wc[i].opcode == IBV_WC_RECV]--;
		}
	}
	if (left[0] || left[1])
		FAIL("round %d: %d sends and %d receives of %d are missing", round, left[0], left[1], c->n);
	for (int i = 0; i < c->n; i++)
		for (int b = 0; b < MESSAGE; b++)
			if (c->in[(size_t)i * MESSAGE + (size_t)b] != byte_of(i ^ 1, round, b)) {
				FAIL("round %d: byte %d of queue pair %d", round, b, i);
				break;
			}
}

/* One message from queue pair `from` to its partner, until both ends have their completion. */
static void one_hop(struct crowd *c, int from)
{
	post_one(c, from ^ 1, 0);
	post_one(c, from, 1);
	struct ibv_wc wc;
	for (int got = 0; got < 2; got++)
		if (wait_wc(c->cq, &wc, 10000) != 1 || wc.status)
			DIE("ping-pong on queue pair %d", from);
}

/* Nanoseconds of a hop there and back: the median of the medians of some hundreds, so that what else
 * runs on the machine does not count. */
static double hop_ns(struct crowd *c, int from)
{
	enum { HOPS = 400 };
	static uint64_t t[HOPS];
	for (int i = 0; i < HOPS; i++) {
		uint64_t start = now_ns();
		one_hop(c, from);
		one_hop(c, from ^ 1);
		t[i] = now_ns() - start;
	}
	for (int i = 1; i < HOPS; i++) /* insertion */
		for (int k = i; k && t[k] < t[k - 1]; k--) {
			uint64_t x = t[k];
			t[k] = t[k - 1];
			t[k - 1] = x;
		}
	return (double)t[HOPS / 2];
}

/* 4,096 queue pairs: all move data at once, and the idle ones cost the busy one nothing that shows. */
static void many_qps_talk_and_idle_ones_are_free(struct device *d)
{
	struct crowd c = crowd_new(d, QPS);
	crowd_grow(&c, 2);
	hop_ns(&c, 0);
	double alone = hop_ns(&c, 0);
	uint64_t start = now_ns();
	crowd_grow(&c, QPS);
	printf("   %d connected in %.1f s\n", c.n, seconds_since(start));
	double untouched = hop_ns(&c, 0);
	start = now_ns();
	for (int round = 0; round < ROUNDS; round++)
		everybody_talks(&c, round);
	printf("   %d rounds of everybody in %.1f s\n", ROUNDS, seconds_since(start));
	double after = hop_ns(&c, 0), other = hop_ns(&c, QPS - 2);
	printf("   there and back: %.1f us alone, %.1f beside idle ones, %.1f and %.1f after they talked\n",
	       alone / 1e3, untouched / 1e3, after / 1e3, other / 1e3);
	double most = untouched > after ? untouched : after;
	if ((most > other ? most : other) > 5 * alone)
		FAIL("idle queue pairs slow a busy one down: %.1f us alone, %.1f beside %d", alone / 1e3, most / 1e3, QPS);
	start = now_ns();
	crowd_free(&c);
	printf("   destroyed in %.1f s\n", seconds_since(start));
}

/* As many as max_qp says, with further slots of numbers on demand; one more is refused, and fits when
 * one has gone. */
static void as_many_qps_as_promised(struct device *d)
{
	int most = d->attr.max_qp, n = 0;
	struct crowd c = crowd_new(d, most + 1);
	uint64_t start = now_ns();
	crowd_grow(&c, 10000);
	everybody_talks(&c, 0);
	printf("   10000 connected and all talked in %.1f s\n", seconds_since(start));
	for (n = c.n; n <= most; n++)
		if (!(c.qp[n] = small_qp(d, c.cq)))
			break;
	int refused = errno;
	if (n != most)
		FAIL("%d queue pairs, %d promised (errno %d)", n, most, refused);
	else if (refused != ENOMEM)
		FAIL("queue pair %d: errno %d, ENOMEM expected", n + 1, refused);
	if (n > c.n) {
		if (ibv_destroy_qp(c.qp[--n]) || !(c.qp[n] = small_qp(d, c.cq)))
			FAIL("no queue pair after one was destroyed: errno %d", errno);
		else
			n++;
	}
	int talk = c.n;
	c.n = n;
	printf("   %d queue pairs, %ld kB\n", n, rss_kb());
	everybody_talks(&(struct crowd){ d, talk, c.cq, c.qp, c.out, c.in, c.mr_out, c.mr_in }, 1);
	crowd_free(&c);
}

/* ---- coming and going ---- */

#define TURNS 100000

static void cycle_qp(struct device *d, struct ibv_cq *cq, int turn)
{
	struct ibv_qp *qp = small_qp(d, cq);
	if (!qp)
		DIE("queue pair %d", turn);
	/* now and then one that was connected, has a receive posted and fails a send: most states */
	if (turn % 16 == 0) {
		struct ibv_recv_wr r = { .wr_id = 1 }, *br;
		struct ibv_send_wr s = { .wr_id = 2, .opcode = IBV_WR_SEND }, *bs;
		struct ibv_qp_attr error = { .qp_state = IBV_QPS_ERR };
		if ((errno = bring_up(d, qp, qp->qp_num)) || (errno = ibv_post_recv(qp, &r, &br)))
			DIE("queue pair %d", turn);
		if (turn % 32 == 0 && (errno = ibv_post_send(qp, &s, &bs)))
			DIE("post_send on queue pair %d", turn);
		if (turn % 64 == 0 && (errno = ibv_modify_qp(qp, &error, IBV_QP_STATE)))
			DIE("ERR on queue pair %d", turn);
	}
	if ((errno = ibv_destroy_qp(qp)))
		DIE("destroying queue pair %d", turn);
}

/* A tenth first: what that many need at a time is then there. */
static void a_hundred_thousand_qps_come_and_go(struct device *d)
{
	struct ibv_cq *cq = ibv_create_cq(d->ctx, 64, NULL, NULL, 0);
	for (int i = 0; i < TURNS / 10; i++)
		cycle_qp(d, cq, i);
	struct usage before = usage();
	uint64_t start = now_ns();
	for (int i = 0; i < TURNS; i++)
		cycle_qp(d, cq, i);
	printf("   %.1f s\n", seconds_since(start));
	levelled("queue pairs", before, 256);
	struct ibv_wc wc;
	if (ibv_poll_cq(cq, 1, &wc))
		FAIL("a completion of a queue pair that was destroyed");
	ibv_destroy_cq(cq);
}

static uint8_t *mapped(size_t bytes)
{
	uint8_t *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED)
		DIE("mmap");
	return p;
}

static void a_hundred_thousand_regions_come_and_go(struct device *d)
{
	enum { ALIVE = 5000 };
	static struct ibv_mr *mr[ALIVE];
	uint8_t *area = mapped(1 << 20);
	struct usage before = { 0 };
	uint64_t start = now_ns();
	/* one by one, and thousands at a time; twice as many before, since a table of random keys may
	 * take some ten turns to reach the size that it keeps */
	enum { MEASURED = TURNS / ALIVE / 2, BEFORE = 2 * MEASURED };
	for (int turn = 0; turn < BEFORE + MEASURED; turn++) {
		for (int i = 0; i < ALIVE; i++) {
			struct ibv_mr *m = ibv_reg_mr(d->pd, area + i, 4096, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
			if (!m || ibv_dereg_mr(m))
				DIE("region");
		}
		for (int i = 0; i < ALIVE; i++)
			if (!(mr[i] = ibv_reg_mr(d->pd, area + i, 4096, IBV_ACCESS_LOCAL_WRITE)))
				DIE("region %d", i);
		for (int i = 0; i < ALIVE; i++)
			if (ibv_dereg_mr(mr[i]))
				DIE("ibv_dereg_mr");
		if (turn == BEFORE - 1)
			before = usage();
	}
	printf("   %.1f s\n", seconds_since(start));
	levelled("regions", before, 256);
	munmap(area, 1 << 20);
}

/* Everything else that a program makes and unmakes. */
static void others_come_and_go(struct device *d)
{
	struct usage before = { 0 };
	uint64_t start = now_ns();
	for (int i = 0; i < 20000; i++) {
		struct ibv_pd *pd = ibv_alloc_pd(d->ctx);
		struct ibv_comp_channel *ch = ibv_create_comp_channel(d->ctx);
		struct ibv_cq *cq = ibv_create_cq(d->ctx, 16, NULL, ch, 0);
		struct ibv_srq_init_attr sa = { .attr = { .max_wr = 16, .max_sge = 1 } };
		struct ibv_srq *srq = pd ? ibv_create_srq(pd, &sa) : NULL;
		struct ibv_ah_attr aa = ah_of(d, &d->gid);
		struct ibv_ah *ah = pd ? ibv_create_ah(pd, &aa) : NULL;
		if (!pd || !ch || !cq || !srq || !ah)
			DIE("turn %d", i);
		if (ibv_destroy_ah(ah) || ibv_destroy_srq(srq) || ibv_destroy_cq(cq) || ibv_destroy_comp_channel(ch) ||
		    ibv_dealloc_pd(pd))
			DIE("unmaking, turn %d", i);
		if (i == 2000)
			before = usage();
	}
	printf("   %.1f s\n", seconds_since(start));
	levelled("pd, channel, cq, srq, ah", before, 256);
}

/* Queue pairs with a completion queue each, destroyed in the order of their making: nothing may look
 * through all the others. */
static void four_thousand_cqs_with_a_qp_each(struct device *d)
{
	static struct ibv_cq *cq[QPS];
	static struct ibv_qp *qp[QPS];
	uint64_t start = now_ns();
	for (int i = 0; i < QPS; i++)
		if (!(cq[i] = ibv_create_cq(d->ctx, 4, NULL, NULL, 0)) || !(qp[i] = small_qp(d, cq[i])))
			DIE("number %d", i);
	for (int i = 0; i < QPS; i += 512) {
		struct ibv_recv_wr r = { .wr_id = (uint64_t)i }, *br;
		struct ibv_send_wr s = { .opcode = IBV_WR_SEND }, *bs;
		struct ibv_wc wc;
		if (bring_up(d, qp[i], qp[i + 1]->qp_num) || bring_up(d, qp[i + 1], qp[i]->qp_num) ||
		    ibv_post_recv(qp[i], &r, &br) || ibv_post_send(qp[i + 1], &s, &bs))
			DIE("number %d", i);
		if (wait_wc(cq[i], &wc, 10000) != 1 || wc.status || wc.wr_id != (uint64_t)i ||
		    wait_wc(cq[i + 1], &wc, 10000) != 1 || wc.status)
			FAIL("number %d", i);
	}
	for (int i = 0; i < QPS; i++)
		if (ibv_destroy_qp(qp[i]) || ibv_destroy_cq(cq[i]))
			FAIL("unmaking number %d", i);
	printf("   %.1f s\n", seconds_since(start));
}

int main(int argc, char **argv)
{
	static const struct test_case all[] = {
		{ "many_qps_talk_and_idle_ones_are_free", many_qps_talk_and_idle_ones_are_free },
		{ "as_many_qps_as_promised", as_many_qps_as_promised },
		{ "a_hundred_thousand_qps_come_and_go", a_hundred_thousand_qps_come_and_go },
		{ "a_hundred_thousand_regions_come_and_go", a_hundred_thousand_regions_come_and_go },
		{ "others_come_and_go", others_come_and_go },
		{ "four_thousand_cqs_with_a_qp_each", four_thousand_cqs_with_a_qp_each },
	};
	program = "scale";
	return case_main(argc, argv, all, sizeof all / sizeof *all);
}
