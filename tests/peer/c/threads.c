/* SPDX-License-Identifier: MIT OR Apache-2.0
 * Threads, completion queues and contexts by the dozen, as UCX and its like use them: one completion
 * queue polled by everybody, one queue pair posted to by everybody, many open devices in one process.
 * Both ends are in this process, over the device's own address.
 *
 *   threads [-d DEV] [-g GID] [-c CASES]     exit status 0 when every behaviour held */
#include "pair.h"
#include "usage.h"
#include <fcntl.h>

#define THREADS 8
#define SIZE 64

static struct ibv_qp *make_qp(struct device *d, struct ibv_cq *cq)
{
	struct ibv_qp_init_attr a = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .sq_sig_all = 1,
		.cap = { .max_send_wr = 32, .max_recv_wr = 32, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = SIZE } };
	struct ibv_qp *qp = ibv_create_qp(d->pd, &a);
	if (!qp)
		DIE("ibv_create_qp");
	return qp;
}

static void link_up(struct device *d, struct ibv_qp *a, struct ibv_qp *b)
{
	static const struct qp_options o = { -1, 1, 1, 17, 7, 7, 8 };
	struct ibv_qp *qp[2] = { a, b };
	for (int i = 0; i < 2; i++) {
		struct qp_addr peer = { qp[!i]->qp_num, 9, d->gid };
		if ((errno = to_init(qp[i], &o)) || (errno = to_rtr(d, qp[i], &peer, &o)) || (errno = to_rts(d, qp[i], 9, &o)))
			DIE("connecting");
	}
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
		FAIL("%s: %d", what, e);
}

static int load(const int *p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
static int add(int *p, int n) { return __atomic_add_fetch(p, n, __ATOMIC_ACQ_REL); }

/* An inline message whose first word is `word`. */
static int send_word(struct ibv_qp *qp, uint64_t id, uint64_t word)
{
	uint64_t out[SIZE / 8] = { word, ~word };
	struct ibv_sge sge = { (uintptr_t)out, sizeof out, 0 };
	struct ibv_send_wr w = { .wr_id = id, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_INLINE }, *bad;
	return ibv_post_send(qp, &w, &bad);
}

struct inbox {
	uint64_t words[32][SIZE / 8];
	struct ibv_mr *mr;
};

static void inbox_new(struct device *d, struct inbox *in)
{
	if (!(in->mr = ibv_reg_mr(d->pd, in->words, sizeof in->words, IBV_ACCESS_LOCAL_WRITE)))
		DIE("ibv_reg_mr");
}

static void receive_into(struct ibv_qp *qp, struct inbox *in, int slot, uint64_t id)
{
	struct ibv_sge sge = { (uintptr_t)in->words[slot], SIZE, in->mr->lkey };
	struct ibv_recv_wr r = { .wr_id = id, .sg_list = &sge, .num_sge = 1 }, *bad;
	if ((errno = ibv_post_recv(qp, &r, &bad)))
		DIE("post_recv");
}

/* ---- everybody polls one completion queue ---- */

#define LANES 8          /* connected pairs */
#define MESSAGES 4000    /* each lane */

struct lane {
	struct ibv_qp *from, *to;
	struct inbox in;
	pthread_mutex_t lock;  /* of what follows */
	int posted, sent_done, received;
	uint8_t seen[MESSAGES];
};

struct hall {
	struct ibv_cq *cq;
	struct lane lane[LANES];
	int completions;
};

/* wr_id: lane, direction, number or slot */
#define WR(lane, recv, n) ((uint64_t)(lane) << 32 | (uint64_t)(recv) << 31 | (uint64_t)(n))

/* Whose completion it is does not matter to who polls. The words tell what was lost or doubled. */
static void hall_take(struct hall *h, const struct ibv_wc *wc)
{
	struct lane *l = &h->lane[wc->wr_id >> 32];
	int recv = wc->wr_id >> 31 & 1, n = (int)(wc->wr_id & 0xffff);
	if (wc->status)
		FAIL("lane %d: %s", (int)(wc->wr_id >> 32), ibv_wc_status_str(wc->status));
	pthread_mutex_lock(&l->lock);
	if (recv) {
		uint64_t word = l->in.words[n][0];
		if (word >= MESSAGES || l->in.words[n][1] != ~word || l->seen[word]++)
			FAIL("message %lld is wrong or comes twice", (long long)word);
		l->received++;
		receive_into(l->to, &l->in, n, wc->wr_id);
	} else {
		l->sent_done++;
	}
	pthread_mutex_unlock(&l->lock);
	add(&h->completions, 1);
}

static void *hall_worker(void *arg)
{
	struct hall *h = arg;
	struct ibv_wc wc[4];
	uint64_t end = now_ns() + 60000000000u;
	for (int turn = 0; load(&h->completions) < 2 * LANES * MESSAGES && !load(&failures); turn++) {
		struct lane *l = &h->lane[turn % LANES];
		if (pthread_mutex_trylock(&l->lock) == 0) {
			while (l->posted < MESSAGES && l->posted - l->sent_done < 16)
				if (send_word(l->from, WR(turn % LANES, 0, 0), (uint64_t)l->posted++))
					FAIL("post_send");
			pthread_mutex_unlock(&l->lock);
		}
		int n = ibv_poll_cq(h->cq, 4, wc);
		for (int i = 0; i < n; i++)
			hall_take(h, &wc[i]);
		if (now_ns() > end) {
			FAIL("%d of %d completions after a minute", load(&h->completions), 2 * LANES * MESSAGES);
			break;
		}
	}
	return NULL;
}

static void eight_threads_share_one_cq(struct device *d)
{
	static struct hall h;
	pthread_t thread[THREADS];
	memset(&h, 0, sizeof h);
	h.cq = make_cq(d, 1024, NULL);
	for (int i = 0; i < LANES; i++) {
		struct lane *l = &h.lane[i];
		pthread_mutex_init(&l->lock, NULL);
		inbox_new(d, &l->in);
		l->from = make_qp(d, h.cq);
		l->to = make_qp(d, h.cq);
		link_up(d, l->from, l->to);
		for (int n = 0; n < 32; n++)
			receive_into(l->to, &l->in, n, WR(i, 1, n));
	}
	for (int i = 0; i < THREADS; i++)
		pthread_create(&thread[i], NULL, hall_worker, &h);
	for (int i = 0; i < THREADS; i++)
		pthread_join(thread[i], NULL);
	struct ibv_wc wc;
	if (ibv_poll_cq(h.cq, 1, &wc))
		FAIL("a completion too many");
	for (int i = 0; i < LANES; i++) {
		struct lane *l = &h.lane[i];
		if (l->received != MESSAGES || l->sent_done != MESSAGES)
			FAIL("lane %d: %d received, %d sent", i, l->received, l->sent_done);
		unmake(ibv_destroy_qp(l->from), "ibv_destroy_qp");
		unmake(ibv_destroy_qp(l->to), "ibv_destroy_qp");
		unmake(ibv_dereg_mr(l->in.mr), "ibv_dereg_mr");
	}
	unmake(ibv_destroy_cq(h.cq), "ibv_destroy_cq");
}

/* ---- everybody posts to one queue pair ---- */

struct well {
	struct ibv_qp *qp;
	int number;
};

#define DROPS 1000

static void *well_worker(void *arg)
{
	struct well *w = arg;
	for (int n = 0; n < DROPS && !load(&failures); n++) {
		int e;
		while ((e = send_word(w->qp, 0, (uint64_t)w->number << 32 | (uint64_t)n)) == ENOMEM)
			sched_yield();
		if (e)
			FAIL("post_send: %d", e);
	}
	return NULL;
}

static void eight_threads_post_to_one_qp(struct device *d)
{
	struct ibv_cq *from_cq = make_cq(d, 64, NULL), *to_cq = make_cq(d, 64, NULL);
	struct ibv_qp *from = make_qp(d, from_cq), *to = make_qp(d, to_cq);
	static struct inbox in;
	struct well well[THREADS];
	pthread_t thread[THREADS];
	int next[THREADS] = { 0 }, left = THREADS * DROPS, left_sent = THREADS * DROPS;
	inbox_new(d, &in);
	link_up(d, from, to);
	for (int n = 0; n < 32; n++)
		receive_into(to, &in, n, (uint64_t)n);
	for (int i = 0; i < THREADS; i++) {
		well[i] = (struct well){ from, i };
		pthread_create(&thread[i], NULL, well_worker, &well[i]);
	}
	uint64_t end = now_ns() + 60000000000u;
	struct ibv_wc wc;
	while ((left || left_sent) && now_ns() < end) {
		if (ibv_poll_cq(from_cq, 1, &wc) == 1) {
			left_sent--;
			if (wc.status)
				FAIL("send: %s", ibv_wc_status_str(wc.status));
		}
		if (ibv_poll_cq(to_cq, 1, &wc) != 1)
			continue;
		uint64_t word = in.words[wc.wr_id][0];
		unsigned who = (unsigned)(word >> 32);
		if (wc.status || who >= THREADS || (int)(uint32_t)word != next[who]++)
			FAIL("message %llx of thread %u (%s)", (unsigned long long)word, who, ibv_wc_status_str(wc.status));
		left--;
		receive_into(to, &in, (int)wc.wr_id, wc.wr_id);
	}
	if (left || left_sent)
		FAIL("%d messages and %d completions of sends are missing", left, left_sent);
	for (int i = 0; i < THREADS; i++)
		pthread_join(thread[i], NULL);
	unmake(ibv_destroy_qp(from), "ibv_destroy_qp");
	unmake(ibv_destroy_qp(to), "ibv_destroy_qp");
	unmake(ibv_dereg_mr(in.mr), "ibv_dereg_mr");
	unmake(ibv_destroy_cq(from_cq), "ibv_destroy_cq");
	unmake(ibv_destroy_cq(to_cq), "ibv_destroy_cq");
}

/* ---- a ping-pong for each thread, with queues of its own; some sleep for events ---- */

struct player {
	struct device *d;
	int sleeps, hops, hops_done;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_qp *qp[2];
	struct inbox in;
};

static int next_wc(struct player *p, struct ibv_wc *wc)
{
	if (!p->sleeps)
		return wait_wc(p->cq, wc, 20000);
	for (;;) {
		struct ibv_cq *cq;
		void *ctx;
		if (ibv_poll_cq(p->cq, 1, wc) == 1)
			return 1;
		if (ibv_req_notify_cq(p->cq, 0))
			return 0;
		if (ibv_poll_cq(p->cq, 1, wc) == 1)
			return 1;
		if (ibv_get_cq_event(p->channel, &cq, &ctx))
			return 0;
		ibv_ack_cq_events(cq, 1);
	}
}

static void player_new(struct player *p, struct device *d, int sleeps, int hops)
{
	*p = (struct player){ .d = d, .sleeps = sleeps, .hops = hops };
	if (sleeps && !(p->channel = ibv_create_comp_channel(d->ctx)))
		DIE("ibv_create_comp_channel");
	p->cq = make_cq(d, 16, p->channel);
	for (int i = 0; i < 2; i++)
		p->qp[i] = make_qp(d, p->cq);
	inbox_new(d, &p->in);
	link_up(d, p->qp[0], p->qp[1]);
}

static void *player_run(void *arg)
{
	struct player *p = arg;
	for (int hop = 0; hop < p->hops; hop++) {
		struct ibv_wc wc = { 0 };
		receive_into(p->qp[!(hop & 1)], &p->in, hop & 31, 1);
		if (send_word(p->qp[hop & 1], 0, (uint64_t)hop))
			FAIL("post_send");
		for (int i = 0; i < 2; i++)
			if (next_wc(p, &wc) != 1 || wc.status) {
				FAIL("hop %d: %s", hop, ibv_wc_status_str(wc.status));
				return NULL;
			}
		if (p->in.words[hop & 31][0] != (uint64_t)hop)
			FAIL("hop %d: message %lld", hop, (long long)p->in.words[hop & 31][0]);
		add(&p->hops_done, 1);
	}
	return NULL;
}

static void player_free(struct player *p)
{
	for (int i = 0; i < 2; i++)
		unmake(ibv_destroy_qp(p->qp[i]), "ibv_destroy_qp");
	unmake(ibv_dereg_mr(p->in.mr), "ibv_dereg_mr");
	unmake(ibv_destroy_cq(p->cq), "ibv_destroy_cq");
	if (p->channel)
		unmake(ibv_destroy_comp_channel(p->channel), "ibv_destroy_comp_channel");
}

static void threads_with_queues_of_their_own(struct device *d)
{
	static struct player p[2 * THREADS];
	pthread_t thread[2 * THREADS];
	for (int i = 0; i < 2 * THREADS; i++)
		player_new(&p[i], d, i % 2, 300);
	for (int i = 0; i < 2 * THREADS; i++)
		pthread_create(&thread[i], NULL, player_run, &p[i]);
	for (int i = 0; i < 2 * THREADS; i++)
		pthread_join(thread[i], NULL);
	for (int i = 0; i < 2 * THREADS; i++)
		player_free(&p[i]);
}

/* ---- many wait at one channel: each event wakes one ---- */

struct waiter { struct ibv_comp_channel *channel; int *taken, *stop; };

static void *waiter_run(void *arg)
{
	struct waiter *w = arg;
	struct ibv_cq *cq;
	void *ctx;
	while (ibv_get_cq_event(w->channel, &cq, &ctx) == 0) {
		ibv_ack_cq_events(cq, 1);
		add(w->taken, 1);
		if (load(w->stop))
			break;
	}
	return NULL;
}

static void many_wait_at_one_channel(struct device *d)
{
	enum { EVENTS = 200 };
	struct ibv_comp_channel *channel = ibv_create_comp_channel(d->ctx);
	struct ibv_cq *from_cq = make_cq(d, 64, NULL), *cq = make_cq(d, 64, channel);
	struct ibv_qp *from = make_qp(d, from_cq), *to = make_qp(d, cq);
	static struct inbox in;
	int taken = 0, stop = 0;
	struct waiter w = { channel, &taken, &stop };
	pthread_t thread[THREADS];
	struct ibv_wc wc;
	inbox_new(d, &in);
	link_up(d, from, to);
	for (int i = 0; i < THREADS; i++)
		pthread_create(&thread[i], NULL, waiter_run, &w);
	for (int i = 0; i < EVENTS + THREADS; i++) {
		if (i == EVENTS)
			__atomic_store_n(&stop, 1, __ATOMIC_RELEASE);
		receive_into(to, &in, 0, 0);
		if (ibv_req_notify_cq(cq, 0) || send_word(from, 0, 1))
			FAIL("round %d", i);
		for (int tries = 0; load(&taken) != i + 1 && tries < 5000; tries++)
			usleep(1000);
		if (load(&taken) != i + 1) {
			FAIL("event %d: %d taken", i, load(&taken));
			exit(1); /* threads wait for ever */
		}
		if (wait_wc(cq, &wc, 5000) != 1 || wc.status || wait_wc(from_cq, &wc, 5000) != 1 || wc.status)
			FAIL("completion %d", i);
	}
	for (int i = 0; i < THREADS; i++)
		pthread_join(thread[i], NULL);
	unmake(ibv_destroy_qp(from), "ibv_destroy_qp");
	unmake(ibv_destroy_qp(to), "ibv_destroy_qp");
	unmake(ibv_dereg_mr(in.mr), "ibv_dereg_mr");
	unmake(ibv_destroy_cq(from_cq), "ibv_destroy_cq");
	unmake(ibv_destroy_cq(cq), "ibv_destroy_cq");
	unmake(ibv_destroy_comp_channel(channel), "ibv_destroy_comp_channel");
}

/* ---- objects come and go beside traffic; more queue pairs than a slot has numbers ---- */

static void *comes_and_goes(void *arg)
{
	struct device *d = arg;
	enum { AT_A_TIME = 2500 };
	static struct ibv_qp *qp[2][AT_A_TIME];
	static int which;
	struct ibv_qp **mine = qp[add(&which, 1) & 1];
	struct ibv_cq *cq = make_cq(d, 16, NULL);
	for (int i = 0; i < AT_A_TIME; i++)
		mine[i] = make_qp(d, cq);
	for (int i = 0; i < AT_A_TIME; i++)
		unmake(ibv_destroy_qp(mine[i]), "ibv_destroy_qp");
	unmake(ibv_destroy_cq(cq), "ibv_destroy_cq");
	return NULL;
}

static void five_thousand_qps_come_and_go_beside_traffic(struct device *d)
{
	static struct player p[4];
	pthread_t player[4], churn[2];
	for (int i = 0; i < 4; i++)
		player_new(&p[i], d, i % 2, 1 << 30);
	for (int i = 0; i < 4; i++)
		pthread_create(&player[i], NULL, player_run, &p[i]);
	for (int round = 0; round < 3; round++) {
		int before[4];
		for (int i = 0; i < 4; i++)
			before[i] = load(&p[i].hops_done);
		for (int i = 0; i < 2; i++)
			pthread_create(&churn[i], NULL, comes_and_goes, d);
		for (int i = 0; i < 2; i++)
			pthread_join(churn[i], NULL);
		for (int i = 0; i < 4; i++) { /* everybody gets on, at once or when the crowd has gone */
			for (int tries = 0; load(&p[i].hops_done) == before[i] && tries < 5000; tries++)
				usleep(1000);
			if (load(&p[i].hops_done) == before[i])
				FAIL("round %d: player %d stands still", round, i);
		}
	}
	for (int i = 0; i < 4; i++)
		p[i].hops = 0;
	for (int i = 0; i < 4; i++)
		pthread_join(player[i], NULL);
	for (int i = 0; i < 4; i++)
		player_free(&p[i]);
}

/* ---- contexts ---- */

static struct device again(const struct device *d)
{
	struct device n = *d;
	if (!(n.ctx = ibv_open_device(d->ctx->device)) || !(n.pd = ibv_alloc_pd(n.ctx)))
		DIE("opening the device once more");
	return n;
}

static void many_contexts_at_a_time(struct device *d)
{
	enum { CONTEXTS = 64 };
	static struct device all[CONTEXTS];
	static struct player p[CONTEXTS];
	for (int i = 0; i < CONTEXTS; i++) {
		all[i] = again(d);
		player_new(&p[i], &all[i], i % 4 == 0, 10);
	}
	for (int i = 0; i < CONTEXTS; i++)
		player_run(&p[i]);
	/* every other one is closed; the rest goes on */
	for (int i = 0; i < CONTEXTS; i++) {
		if (i % 2) {
			player_run(&p[i]);
			player_free(&p[i]);
			unmake(ibv_dealloc_pd(all[i].pd), "ibv_dealloc_pd");
		}
		unmake(ibv_close_device(all[i].ctx), "ibv_close_device");
	}
	for (int i = 1; i < CONTEXTS; i += 2)
		if (p[i].hops_done != 20)
			FAIL("context %d: %d hops", i, p[i].hops_done);
}

/* Opened and closed, with everything destroyed. The process has its sockets, and the records of all
 * numbers of queue pairs, before. */
static void a_thousand_contexts_come_and_go(struct device *d)
{
	static struct player p;
	struct ibv_cq *cq = make_cq(d, 16, NULL);
	for (int i = 0; i < 8192; i++)
		unmake(ibv_destroy_qp(make_qp(d, cq)), "ibv_destroy_qp");
	unmake(ibv_destroy_cq(cq), "ibv_destroy_cq");
	long kb = 0;
	int fds = open_fds();
	for (int i = 0; i < 1000; i++) {
		struct device n = again(d);
		player_new(&p, &n, 1, 2);
		if (i % 10 == 0)
			player_run(&p);
		player_free(&p);
		unmake(ibv_dealloc_pd(n.pd), "ibv_dealloc_pd");
		unmake(ibv_close_device(n.ctx), "ibv_close_device");
		if (i == 200)
			kb = rss_kb();
	}
	if (open_fds() != fds)
		FAIL("%d descriptors, %d before", open_fds(), fds);
	if (rss_kb() > kb + 512)
		FAIL("%ld kB resident, %ld after the first two hundred", rss_kb(), kb);
	printf("   %ld kB, %ld after the first two hundred\n", rss_kb(), kb);
}

int main(int argc, char **argv)
{
	static const struct test_case all[] = {
		{ "eight_threads_share_one_cq", eight_threads_share_one_cq },
		{ "eight_threads_post_to_one_qp", eight_threads_post_to_one_qp },
		{ "threads_with_queues_of_their_own", threads_with_queues_of_their_own },
		{ "many_wait_at_one_channel", many_wait_at_one_channel },
		{ "five_thousand_qps_come_and_go_beside_traffic", five_thousand_qps_come_and_go_beside_traffic },
		{ "many_contexts_at_a_time", many_contexts_at_a_time },
		{ "a_thousand_contexts_come_and_go", a_thousand_contexts_come_and_go },
	};
	program = "threads";
	return case_main(argc, argv, all, sizeof all / sizeof *all);
}
