/* SPDX-License-Identifier: MIT OR Apache-2.0
 * Eight threads that share one completion queue, one shared receive queue and 32 queue pairs (16 pairs of one
 * device, connected to each other): random requests, and pairs that are torn down and made anew in the middle
 * of it, with their memory regions. Every byte is compared, every completion accounted for; at the end each
 * buffer of the shared receive queue must still be there.
 *
 *   stress [-d device] [-s seconds] [-t threads] [-r seed] */
#include "common.h"

#define PAIRS 16
#define SLOTS 8        /* requests of a pair under way at once */
#define ROOM 4096      /* bytes of a request at most */
#define RECEIVES 512
#define REGION (2 * SLOTS * ROOM + 8) /* local halves, remote halves, one counter */
#define PATIENCE_S 60

enum kind { FREE, SEND, SEND_IMM, WRITE, WRITE_IMM, READ, ADD, SWAP };

/* What a message says about itself, in front of its bytes. */
struct header { uint32_t slot, generation, to, length; uint64_t seed; };

struct slot {
	enum kind kind;
	int side, sent, awaits; /* side: who posts; sent: no completion yet; awaits: a receive is to come */
	uint32_t length;
	uint64_t seed;
};

struct pair {
	pthread_mutex_t lock;
	struct ibv_qp *qp[2];
	struct ibv_mr *mr[2];
	uint8_t *memory[2];
	uint32_t generation;
	int closing, failed; /* no new requests; errors are expected */
	int under_way;
	uint64_t added, adds_posted;
	struct slot slot[SLOTS];
};

static struct device dev;
static struct ibv_cq *cq;
static struct ibv_srq *srq;
static struct ibv_mr *receive_mr;
static uint8_t *receives;
static struct pair pairs[PAIRS];
static uint32_t inline_max;
static int over;
static uint64_t done[SWAP + 1], remade, flushed;

static void fill(uint8_t *p, uint32_t n, uint64_t seed)
{
	for (uint32_t i = 0; i < n; i++)
		p[i] = (uint8_t)(mix(seed + i / 8) >> (i % 8 * 8));
}

static int same(const uint8_t *p, uint32_t n, uint64_t seed)
{
	for (uint32_t i = 0; i < n; i++)
		if (p[i] != (uint8_t)(mix(seed + i / 8) >> (i % 8 * 8)))
			return 0;
	return 1;
}

static uint64_t word(const uint8_t *p)
{
	uint64_t w;
	memcpy(&w, p, sizeof w);
	return w;
}

static uint8_t *local_of(struct pair *p, int side, uint32_t slot) { return p->memory[side] + slot * ROOM; }
static uint8_t *remote_of(struct pair *p, int side, uint32_t slot) { return p->memory[!side] + (SLOTS + slot) * ROOM; }
static uint64_t id_of(struct pair *p, uint32_t slot)
{
	return (uint64_t)p->generation << 32 | (uint64_t)(p - pairs) << 8 | slot;
}

/* ---- receives ---- */

#define IS_RECEIVE (1ull << 63)

static void post_receive(uint32_t i)
{
	struct ibv_sge to = { (uintptr_t)receives + (uint64_t)i * ROOM, ROOM, receive_mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = IS_RECEIVE | i, .sg_list = &to, .num_sge = 1 }, *bad;
	int e = ibv_post_srq_recv(srq, &wr, &bad);
	if (e)
		FAIL("ibv_post_srq_recv: errno %d", e);
}

static void finish_slot(struct pair *p, struct slot *s)
{
	if (s->sent || s->awaits)
		return;
	__atomic_add_fetch(&done[s->kind], 1, __ATOMIC_RELAXED);
	s->kind = FREE;
	p->under_way--;
}

/* The request that a receive belongs to, with its pair locked; NULL when that pair has been made anew. */
static struct slot *request_of(uint64_t id, struct pair **pair)
{
	uint32_t i = (uint32_t)(id >> 8 & 0xff), n = (uint32_t)(id & 0xff);
	if (i >= PAIRS || n >= SLOTS) {
		FAIL("a completion names pair %u, slot %u", i, n);
		return NULL;
	}
	*pair = &pairs[i];
	pthread_mutex_lock(&(*pair)->lock);
	if ((*pair)->generation == (uint32_t)(id >> 32))
		return &(*pair)->slot[n];
	pthread_mutex_unlock(&(*pair)->lock);
	return NULL;
}

static void received(const struct ibv_wc *wc)
{
	uint32_t i = (uint32_t)wc->wr_id;
	const uint8_t *at = receives + (uint64_t)i * ROOM;
	struct header h = { 0 };
	struct pair *p;
	if (wc->status != IBV_WC_SUCCESS) {
		if (wc->status != IBV_WC_WR_FLUSH_ERR)
			FAIL("a receive failed: %s", ibv_wc_status_str(wc->status));
		post_receive(i);
		return;
	}
	int imm = wc->opcode == IBV_WC_RECV_RDMA_WITH_IMM;
	if (!imm)
		memcpy(&h, at, sizeof h);
	else
		h.slot = ntohl(wc->imm_data) & 0xffff, h.generation = ntohl(wc->imm_data) >> 16;
	struct slot *s = request_of((uint64_t)h.generation << 32 | h.slot, &p);
	if (s) {
		if (wc->qp_num != p->qp[!s->side]->qp_num)
			FAIL("a message for QP 0x%x came to 0x%x", p->qp[!s->side]->qp_num, wc->qp_num);
		else if (!s->awaits && p->failed)
			; /* its request was flushed, and it got there all the same */
		else if (!s->awaits)
			FAIL("a message came twice, or was never sent");
		else if (wc->byte_len != s->length)
			FAIL("a message of %u bytes is %u long", s->length, wc->byte_len);
		else if (!imm && (h.seed != s->seed || !same(at + sizeof h, s->length - (uint32_t)sizeof h, h.seed)))
			FAIL("a message of %u bytes came spoiled", s->length);
		if (s->awaits) {
			s->awaits = 0;
			finish_slot(p, s);
		}
		pthread_mutex_unlock(&p->lock);
	}
	post_receive(i);
}

/* ---- requests ---- */

static void check_done(struct pair *p, struct slot *s, uint32_t n)
{
	const uint8_t *here = local_of(p, s->side, n), *there = remote_of(p, s->side, n);
	switch (s->kind) {
	case WRITE:
	case WRITE_IMM:
		if (!same(there, s->length, s->seed))
			FAIL("a WRITE of %u bytes is not there", s->length);
		break;
	case READ:
		if (!same(here, s->length, s->seed))
			FAIL("a READ of %u bytes brought something else", s->length);
		break;
	case ADD:
		p->added++;
		if (word(here) >= p->adds_posted)
			FAIL("FETCH_ADD brought %llu of %llu", (unsigned long long)word(here), (unsigned long long)p->adds_posted);
		break;
	case SWAP:
		if (word(here) != s->seed || word(there) != ~s->seed)
			FAIL("CMP_SWAP brought 0x%llx, left 0x%llx", (unsigned long long)word(here), (unsigned long long)word(there));
		break;
	default:
		break;
	}
}

static void sent(const struct ibv_wc *wc)
{
	struct pair *p;
	struct slot *s = request_of(wc->wr_id, &p);
	if (!s)
		return; /* polled by this thread before another made the pair anew */
	if (!s->sent) {
		FAIL("a request completed twice");
	} else if (wc->status == IBV_WC_SUCCESS) {
		if (wc->qp_num != p->qp[s->side]->qp_num)
			FAIL("a completion of QP 0x%x says 0x%x", p->qp[s->side]->qp_num, wc->qp_num);
		check_done(p, s, (uint32_t)(wc->wr_id & 0xff));
	} else {
		if (!p->failed)
			FAIL("kind %d of %u bytes: %s, vendor error 0x%x", s->kind, s->length, ibv_wc_status_str(wc->status), wc->vendor_err);
		__atomic_add_fetch(&flushed, 1, __ATOMIC_RELAXED);
		s->awaits = 0; /* it may or may not have got there */
	}
	s->sent = 0;
	finish_slot(p, s);
	pthread_mutex_unlock(&p->lock);
}

/* Returns how many completions there were. */
static int take(void)
{
	struct ibv_wc wc[8];
	int n = ibv_poll_cq(cq, 8, wc);
	if (n < 0)
		FAIL("ibv_poll_cq: %d", n);
	for (int i = 0; i < n; i++)
		if (wc[i].wr_id & IS_RECEIVE)
			received(&wc[i]);
		else
			sent(&wc[i]);
	return n;
}

static void prepare(struct pair *p, struct slot *s, uint32_t n, struct ibv_send_wr *wr)
{
	uint8_t *here = local_of(p, s->side, n), *there = remote_of(p, s->side, n);
	struct header h = { (uint32_t)(p - pairs) << 8 | n, p->generation, p->qp[!s->side]->qp_num, s->length, s->seed };
	wr->wr.rdma.remote_addr = (uintptr_t)there;
	wr->wr.rdma.rkey = p->mr[!s->side]->rkey;
	wr->imm_data = htonl(p->generation << 16 | (uint32_t)(p - pairs) << 8 | n);
	switch (s->kind) {
	case SEND:
	case SEND_IMM:
		s->length = s->length < sizeof h ? (uint32_t)sizeof h : s->length;
		h.length = s->length;
		memcpy(here, &h, sizeof h);
		fill(here + sizeof h, s->length - (uint32_t)sizeof h, s->seed);
		break;
	case READ:
		memset(here, 0, s->length);
		fill(there, s->length, s->seed);
		break;
	case ADD:
	case SWAP:
		s->length = 8;
		memcpy(there, &s->seed, 8);
		wr->wr.atomic.remote_addr = (uintptr_t)(s->kind == SWAP ? there : p->memory[!s->side] + REGION - 8);
		wr->wr.atomic.rkey = p->mr[!s->side]->rkey;
		wr->wr.atomic.compare_add = s->kind == SWAP ? s->seed : 1;
		wr->wr.atomic.swap = ~s->seed;
		p->adds_posted += s->kind == ADD;
		break;
	default:
		memset(there, 0, s->length);
		fill(here, s->length, s->seed);
	}
}

/* A random request on a random pair, if that one has room. */
static void post(struct rng *r)
{
	static const enum ibv_wr_opcode OPCODE[] = { [SEND] = IBV_WR_SEND, [SEND_IMM] = IBV_WR_SEND_WITH_IMM,
		[WRITE] = IBV_WR_RDMA_WRITE, [WRITE_IMM] = IBV_WR_RDMA_WRITE_WITH_IMM, [READ] = IBV_WR_RDMA_READ,
		[ADD] = IBV_WR_ATOMIC_FETCH_AND_ADD, [SWAP] = IBV_WR_ATOMIC_CMP_AND_SWP };
	struct pair *p = &pairs[rng_below(r, PAIRS)];
	pthread_mutex_lock(&p->lock);
	uint32_t n = 0;
	while (n < SLOTS && p->slot[n].kind != FREE)
		n++;
	if (p->closing || n == SLOTS) {
		pthread_mutex_unlock(&p->lock);
		return;
	}
	struct slot *s = &p->slot[n];
	*s = (struct slot){ .kind = (enum kind)(SEND + rng_below(r, SWAP)), .side = (int)rng_below(r, 2), .sent = 1,
			    .length = rng_below(r, rng_below(r, 2) ? 200 : ROOM + 1), .seed = rng_next(r) };
	if (s->kind == ADD)
		s->side = 0; /* one counter a pair */
	s->awaits = s->kind == SEND || s->kind == SEND_IMM || s->kind == WRITE_IMM;
	struct ibv_send_wr wr = { .wr_id = id_of(p, n), .opcode = OPCODE[s->kind], .num_sge = 1,
				  .send_flags = IBV_SEND_SIGNALED | (rng_below(r, 8) ? 0 : IBV_SEND_FENCE) }, *bad;
	prepare(p, s, n, &wr);
	struct ibv_sge from = { (uintptr_t)local_of(p, s->side, n), s->length, p->mr[s->side]->lkey };
	wr.sg_list = &from;
	if (s->kind < READ && s->length <= inline_max && rng_below(r, 2))
		wr.send_flags |= IBV_SEND_INLINE;
	p->under_way++;
	int e = ibv_post_send(p->qp[s->side], &wr, &bad);
	if (e) {
		FAIL("ibv_post_send: errno %d", e);
		s->kind = FREE;
		p->under_way--;
	}
	pthread_mutex_unlock(&p->lock);
}

/* ---- pairs ---- */

static void make(struct pair *p)
{
	struct ibv_qp_init_attr a = { .send_cq = cq, .recv_cq = cq, .srq = srq, .qp_type = IBV_QPT_RC,
				      .cap = { .max_send_wr = SLOTS, .max_send_sge = 1, .max_inline_data = 128 } };
	struct qp_options o = QP_DEFAULTS;
	o.timeout = 18;
	for (int i = 0; i < 2; i++) {
		memset(p->memory[i], 0, REGION);
		if (!(p->mr[i] = ibv_reg_mr(dev.pd, p->memory[i], REGION, ALL_ACCESS)))
			DIE("ibv_reg_mr");
		if (!(p->qp[i] = ibv_create_qp(dev.pd, &a)))
			DIE("ibv_create_qp");
		inline_max = a.cap.max_inline_data;
	}
	for (int i = 0; i < 2; i++) {
		struct qp_addr peer = { p->qp[!i]->qp_num, 0xfffffe, dev.gid };
		if ((errno = to_init(p->qp[i], &o)) || (errno = to_rtr(&dev, p->qp[i], &peer, &o)) ||
		    (errno = to_rts(&dev, p->qp[i], 0xfffffe, &o)))
			DIE("connecting a pair");
	}
	p->generation = (p->generation + 1) & 0x7fff;
	p->added = p->adds_posted = 0;
	p->closing = p->failed = 0;
}

static void unmake(struct pair *p)
{
	for (int i = 0; i < 2; i++)
		if ((errno = ibv_destroy_qp(p->qp[i])) || (errno = ibv_dereg_mr(p->mr[i])))
			FAIL("destroying a pair: errno %d", errno);
	memset(p->slot, 0, sizeof p->slot);
	p->under_way = 0;
}

static int one_sided_only(const struct pair *p)
{
	for (int i = 0; i < SLOTS; i++)
		if (p->slot[i].awaits)
			return 0;
	return 1;
}

/* Polls until nothing of a pair is under way, and then until the queue has been seen empty: a receive that an
 * error has flushed is taken from there, not lost with the queue pair. Called and returns with the lock held. */
static void drain(struct pair *p)
{
	uint64_t end = now_ns() + PATIENCE_S * 1000000000ull;
	int n = 1;
	while (p->under_way || n) {
		pthread_mutex_unlock(&p->lock);
		n = take();
		pthread_mutex_lock(&p->lock);
		if (now_ns() > end) {
			FAIL("%d requests of a pair do not complete", p->under_way);
			return;
		}
	}
}

/* Takes a pair down and makes it anew, in one of three ways: in order; by way of ERR; or, when no message is
 * under way, by destroying it as it is. */
static void remake(struct rng *r)
{
	struct pair *p = &pairs[rng_below(r, PAIRS)];
	uint32_t way = rng_below(r, 3);
	pthread_mutex_lock(&p->lock);
	if (p->closing) {
		pthread_mutex_unlock(&p->lock);
		return;
	}
	p->closing = 1;
	if (way == 1) {
		struct ibv_qp_attr a = { .qp_state = IBV_QPS_ERR };
		p->failed = 1;
		for (int i = 0; i < 2; i++)
			if ((errno = ibv_modify_qp(p->qp[i], &a, IBV_QP_STATE)))
				FAIL("to ERR: errno %d", errno);
	}
	if (way != 2 || !one_sided_only(p))
		drain(p);
	uint64_t counter = word(p->memory[1] + REGION - 8);
	if (counter < p->added || counter > p->adds_posted)
		FAIL("%llu of %llu FETCH_ADDs completed, the counter is %llu", (unsigned long long)p->added,
		     (unsigned long long)p->adds_posted, (unsigned long long)counter);
	unmake(p);
	make(p);
	__atomic_add_fetch(&remade, 1, __ATOMIC_RELAXED);
	pthread_mutex_unlock(&p->lock);
}

/* Objects that nobody else knows. */
static void churn(void)
{
	struct ibv_comp_channel *channel = ibv_create_comp_channel(dev.ctx);
	struct ibv_cq *own = ibv_create_cq(dev.ctx, 16, NULL, channel, 0);
	struct ibv_pd *pd = ibv_alloc_pd(dev.ctx);
	if (!channel || !own || !pd) {
		FAIL("creating objects: errno %d", errno);
		return;
	}
	struct ibv_qp_init_attr a = { .send_cq = own, .recv_cq = own, .qp_type = IBV_QPT_UD, .cap = { 8, 8, 1, 1, 0 } };
	struct ibv_qp *qp = ibv_create_qp(pd, &a);
	if (!qp || ibv_destroy_qp(qp) || ibv_dealloc_pd(pd) || ibv_destroy_cq(own) || ibv_destroy_comp_channel(channel))
		FAIL("creating and destroying objects: errno %d", errno);
}

static void *thread(void *seed)
{
	struct rng r = { (uintptr_t)seed };
	while (!__atomic_load_n(&over, __ATOMIC_RELAXED)) {
		uint32_t dice = rng_below(&r, 1000);
		if (dice < 3)
			remake(&r);
		else if (dice < 6)
			churn();
		else if (dice < 500)
			post(&r);
		else
			take();
	}
	return NULL;
}

/* Every receive buffer is still posted: as many messages arrive as there are buffers, each in its own. */
static void all_receives_are_there(void)
{
	static uint8_t seen[RECEIVES];
	struct pair *p = &pairs[0];
	struct ibv_sge from = { (uintptr_t)p->memory[0], 64, p->mr[0]->lkey };
	uint64_t end = now_ns() + PATIENCE_S * 1000000000ull;
	uint32_t posted = 0, completed = 0, got = 0;
	while ((got < RECEIVES || completed < RECEIVES) && now_ns() < end) {
		struct ibv_send_wr wr = { .opcode = IBV_WR_SEND, .sg_list = &from, .num_sge = 1, .send_flags = IBV_SEND_SIGNALED }, *bad;
		if (posted < RECEIVES && posted - completed < SLOTS && !ibv_post_send(p->qp[0], &wr, &bad))
			posted++;
		struct ibv_wc wc;
		if (ibv_poll_cq(cq, 1, &wc) != 1)
			continue;
		if (wc.status != IBV_WC_SUCCESS)
			FAIL("counting receives: %s", ibv_wc_status_str(wc.status));
		else if (!(wc.wr_id & IS_RECEIVE))
			completed++;
		else if (seen[(uint32_t)wc.wr_id]++)
			FAIL("receive %u completed twice", (uint32_t)wc.wr_id);
		else
			got++;
	}
	if (got != RECEIVES)
		FAIL("%u of %d receives are still in the shared queue", got, RECEIVES);
}

static void set_up(const char *device)
{
	struct ibv_srq_init_attr sa = { .attr = { .max_wr = RECEIVES, .max_sge = 1 } };
	open_device(&dev, device, -1, 0);
	receives = calloc(RECEIVES, ROOM);
	if (!(cq = ibv_create_cq(dev.ctx, 4096, NULL, NULL, 0)) || !(srq = ibv_create_srq(dev.pd, &sa)) ||
	    !(receive_mr = ibv_reg_mr(dev.pd, receives, RECEIVES * ROOM, IBV_ACCESS_LOCAL_WRITE)))
		DIE("shared objects");
	for (uint32_t i = 0; i < RECEIVES; i++)
		post_receive(i);
	for (int i = 0; i < PAIRS; i++) {
		pthread_mutex_init(&pairs[i].lock, NULL);
		for (int k = 0; k < 2; k++)
			if (!(pairs[i].memory[k] = aligned_alloc(8, REGION)))
				DIE("memory");
		make(&pairs[i]);
	}
}

static void tear_down(void)
{
	for (int i = 0; i < PAIRS; i++) {
		pthread_mutex_lock(&pairs[i].lock);
		drain(&pairs[i]);
		pthread_mutex_unlock(&pairs[i].lock);
	}
	all_receives_are_there();
	for (int i = 0; i < PAIRS; i++) {
		unmake(&pairs[i]);
		free(pairs[i].memory[0]);
		free(pairs[i].memory[1]);
	}
	if ((errno = ibv_destroy_srq(srq)) || (errno = ibv_dereg_mr(receive_mr)) || (errno = ibv_destroy_cq(cq)) ||
	    (errno = ibv_dealloc_pd(dev.pd)) || (errno = ibv_close_device(dev.ctx)))
		FAIL("the end: errno %d", errno);
	free(receives);
}

int main(int argc, char **argv)
{
	const char *device = NULL;
	unsigned seconds = 60, threads = 8;
	uint64_t seed = now_ns();
	pthread_t t[64];
	program = "stress";
	for (int c; (c = getopt(argc, argv, "d:s:t:r:")) != -1;)
		switch (c) {
		case 'd': device = optarg; break;
		case 's': seconds = (unsigned)atoi(optarg); break;
		case 't': threads = (unsigned)atoi(optarg) % 65; break;
		case 'r': seed = strtoull(optarg, NULL, 0); break;
		default: fprintf(stderr, "usage: stress [-d device] [-s seconds] [-t threads] [-r seed]\n"); return 2;
		}
	printf("seed %llu\n", (unsigned long long)seed);
	set_up(device);
	for (unsigned i = 0; i < threads; i++)
		if (pthread_create(&t[i], NULL, thread, (void *)(uintptr_t)mix(seed + i)))
			DIE("pthread_create");
	sleep(seconds);
	__atomic_store_n(&over, 1, __ATOMIC_RELAXED);
	for (unsigned i = 0; i < threads; i++)
		pthread_join(t[i], NULL);
	tear_down();
	printf("send %llu, with immediate %llu, write %llu, with immediate %llu, read %llu, add %llu, swap %llu; pairs made anew %llu, "
	       "flushed %llu\n", (unsigned long long)done[SEND], (unsigned long long)done[SEND_IMM], (unsigned long long)done[WRITE],
	       (unsigned long long)done[WRITE_IMM], (unsigned long long)done[READ], (unsigned long long)done[ADD],
	       (unsigned long long)done[SWAP], (unsigned long long)remade, (unsigned long long)flushed);
	for (int k = SEND; k <= SWAP; k++)
		if (!done[k])
			FAIL("no request of kind %d", k);
	printf(failures ? "stress: %d failures\n" : "stress ok\n", failures);
	return failures != 0;
}
