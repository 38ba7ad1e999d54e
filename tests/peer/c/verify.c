/* SPDX-License-Identifier: MIT OR Apache-2.0
 * verify: moves messages of every operation between two processes and compares every byte, canaries
 * around the data included.
 *
 *   server:  verify [-d DEV] [-g GID] [-p PORT] [-w SECONDS]
 *   client:  verify [-d DEV] [-g GID] [-p PORT] [-T rc|uc|ud] [-m MTU] [-x | -n OPS] [-S MAXSIZE] [-o KINDS]
 *                   [-q DEPTH] [-t THREADS] [-P PSN] [-s SEED] [-i INLINE] [-B] [-e] [-Q] HOST
 *
 * -x walks a fixed list of sizes up to MAXSIZE (at most 64 MiB) with every kind; -n draws OPS random
 * operations and keeps the send queue full. -B runs both directions at once, -e sleeps on completion
 * channels, -Q receives from a shared receive queue. KINDS is a comma list out of send, send_imm, write,
 * write_imm, read, cas, fadd, forward (a READ and a fenced SEND of what it fetched).
 * -Z spoils a byte of this side's memory after each batch, to prove that the check sees it.
 * UC and UD run one message at a time and send again what the network lost; losses are reported.
 * -Y tries the comparison itself, alone, against bytes that still arrive.
 * Exit status: 0 everything right, 1 wrong data or completions, 2 could not be set up.
 * Build: cc -O2 -pthread -o verify verify.c -libverbs */
#include "plan.h"

struct half { /* one direction, as one side sees it */
	struct batch batch;
	struct rng rng;
	uint8_t *arena, *expect;
	struct ibv_mr *mr;
	uint64_t peer_addr; /* requester: the responder's arena */
	uint32_t peer_rkey;
	uint32_t *receives; /* responder: batch indices of what takes a receive, in order */
	uint32_t first, wrs, posted, retired, want, given, got, bell;
};

struct totals { uint64_t ops[KINDS], bytes, inlined, pieces, events, lost; };

struct session {
	const struct config *c;
	const struct device *d;
	int fd, server, active_out, active_in;
	uint32_t arena;
	struct ibv_qp *qp;
	struct ibv_cq *scq, *rcq;
	struct ibv_srq *srq;
	struct ibv_comp_channel *channel;
	struct qp_addr me, peer;
	struct half out, in; /* where this side asks, and where it answers */
	uint64_t deadline;
	struct totals sum;
};

static int wait_s = 30;
static int plant; /* -Z: this side spoils one byte behind the transport's back, and the check must see it */

/* ---- set-up ---- */

static void half_init(struct session *s, struct half *h, uint64_t seed)
{
	h->batch.op = calloc(OPS_PER_BATCH, sizeof *h->batch.op);
	h->receives = calloc(OPS_PER_BATCH, sizeof *h->receives);
	h->rng.state = seed;
	h->arena = mmap(NULL, s->arena, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	h->expect = mmap(NULL, s->arena, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (!h->batch.op || !h->receives || h->arena == MAP_FAILED || h->expect == MAP_FAILED)
		DIE("memory");
	if (!(h->mr = ibv_reg_mr(s->d->pd, h->arena, s->arena, ALL_ACCESS)))
		DIE("ibv_reg_mr of %u bytes", s->arena);
}

static void make_qp(struct session *s)
{
	const struct config *c = s->c;
	if (c->events && !(s->channel = ibv_create_comp_channel(s->d->ctx)))
		DIE("ibv_create_comp_channel");
	s->scq = ibv_create_cq(s->d->ctx, (int)c->depth + 8, NULL, s->channel, 0);
	s->rcq = ibv_create_cq(s->d->ctx, (int)c->depth + 8, NULL, s->channel, 0);
	if (!s->scq || !s->rcq)
		DIE("ibv_create_cq of %u", c->depth + 8);
	if (c->srq) {
		struct ibv_srq_init_attr sa = { .attr = { .max_wr = c->depth, .max_sge = c->max_sge } };
		if (!(s->srq = ibv_create_srq(s->d->pd, &sa)))
			DIE("ibv_create_srq");
	}
	struct ibv_qp_init_attr qa = { .send_cq = s->scq, .recv_cq = s->rcq, .srq = s->srq, .qp_type = c->type,
		.cap = { c->depth, s->srq ? 0 : c->depth, c->max_sge, s->srq ? 0 : c->max_sge, c->inline_max } };
	if (!(s->qp = ibv_create_qp(s->d->pd, &qa)))
		DIE("ibv_create_qp");
	if (qa.cap.max_inline_data < c->inline_max || qa.cap.max_send_wr < c->depth || qa.cap.max_send_sge < c->max_sge)
		FAIL("create_qp granted less than asked: inline %u send_wr %u sge %u", qa.cap.max_inline_data, qa.cap.max_send_wr,
		     qa.cap.max_send_sge);
	if ((errno = to_init(s->qp, &QP_DEFAULTS)))
		DIE("modify to INIT");
}

static void wire_up(struct session *s)
{
	struct wire { struct qp_addr qp; uint64_t addr; uint32_t rkey, pad; } mine = { 0 }, theirs;
	s->me = (struct qp_addr){ s->qp->qp_num, s->c->psn, s->d->gid };
	mine.qp = s->me;
	mine.addr = s->active_in ? (uintptr_t)s->in.arena : 0;
	mine.rkey = s->active_in ? s->in.mr->rkey : 0;
	tcp_send(s->fd, &mine, sizeof mine);
	tcp_recv(s->fd, &theirs, sizeof theirs);
	s->peer = theirs.qp;
	s->out.peer_addr = theirs.addr;
	s->out.peer_rkey = theirs.rkey;
	if ((errno = to_rtr(s->d, s->qp, &s->peer, &QP_DEFAULTS)))
		DIE("modify to RTR");
	if ((errno = to_rts(s->d, s->qp, s->c->psn, &QP_DEFAULTS)))
		DIE("modify to RTS");
	barrier(s->fd, 0);
}

/* ---- posting ---- */

static struct ibv_ah *ah_for(struct session *s)
{
	struct ibv_ah_attr a = ah_of(s->d, &s->peer.gid);
	struct ibv_ah *ah = ibv_create_ah(s->d->pd, &a);
	if (!ah)
		DIE("ibv_create_ah");
	return ah;
}

static int sge_list(const struct piece *p, int n, const struct half *h, struct ibv_sge *out)
{
	for (int i = 0; i < n; i++)
		out[i] = (struct ibv_sge){ (uintptr_t)h->arena + p[i].off, p[i].len, h->mr->lkey };
	return n;
}

static void post_receives(struct session *s)
{
	struct half *h = &s->in;
	while (h->given < h->want && h->given - h->got < s->c->depth) {
		struct ibv_sge sge[PIECES_MAX];
		const struct op *o = &h->batch.op[h->receives[h->given]];
		struct ibv_recv_wr wr = { .wr_id = h->given, .sg_list = sge, .num_sge = sge_list(o->r, o->nr, h, sge) }, *bad;
		errno = s->srq ? ibv_post_srq_recv(s->srq, &wr, &bad) : ibv_post_recv(s->qp, &wr, &bad);
		if (errno)
			DIE("post of receive %u", h->given);
		h->given++;
	}
}

static const enum ibv_wr_opcode WR_OPCODE[KINDS] = { IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, IBV_WR_RDMA_WRITE,
	IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_RDMA_READ, IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_RDMA_READ };
static const enum ibv_wc_opcode WC_OPCODE[KINDS] = { IBV_WC_SEND, IBV_WC_SEND, IBV_WC_RDMA_WRITE, IBV_WC_RDMA_WRITE,
	IBV_WC_RDMA_READ, IBV_WC_COMP_SWAP, IBV_WC_FETCH_ADD, IBV_WC_RDMA_READ };

/* The work request of one operation; wr_id is its number in the batch. */
static void make_wr(struct session *s, uint32_t i, struct ibv_send_wr *wr, struct ibv_sge *sge)
{
	const struct op *o = &s->out.batch.op[i];
	memset(wr, 0, sizeof *wr);
	wr->wr_id = i;
	wr->opcode = WR_OPCODE[o->kind];
	wr->sg_list = o->nl ? sge : NULL;
	wr->num_sge = sge_list(o->l, o->nl, &s->out, sge);
	wr->send_flags = (o->inl ? IBV_SEND_INLINE : 0) | (o->solicited ? IBV_SEND_SOLICITED : 0);
	for (int k = 0; o->inl && k < o->nl; k++)
		sge[k].lkey = 0; /* inline ignores it */
	if (has_imm(o->kind))
		wr->imm_data = htonl(o->imm);
	uint64_t to = s->out.peer_addr + o->remote;
	if (is_atomic(o->kind)) {
		wr->wr.atomic.remote_addr = to;
		wr->wr.atomic.rkey = s->out.peer_rkey;
		wr->wr.atomic.compare_add = o->compare_add;
		wr->wr.atomic.swap = o->swap;
	} else if (points_remote(o->kind)) {
		wr->wr.rdma.remote_addr = to;
		wr->wr.rdma.rkey = s->out.peer_rkey;
	}
}

#define CHAIN 4
/* Posts one list of up to CHAIN work requests; not every one is signaled. */
static void post_chain(struct session *s, uint32_t room, struct rng *dice, struct ibv_ah *ah)
{
	struct half *h = &s->out;
	struct ibv_send_wr wr[CHAIN * 2], *bad;
	struct ibv_sge sge[CHAIN][PIECES_MAX];
	uint32_t n = 0, ops = 0, limit = 1 + rng_below(dice, CHAIN), from = h->posted;
	while (ops < limit && h->posted < h->batch.n && n + 2 <= room) {
		const struct op *o = &h->batch.op[h->posted];
		make_wr(s, h->posted, &wr[n], sge[ops]);
		int last = h->posted + 1 == h->batch.n;
		if (ah) {
			wr[n].wr.ud.ah = ah;
			wr[n].wr.ud.remote_qpn = s->peer.qpn;
			wr[n].wr.ud.remote_qkey = QKEY;
		}
		if (o->kind == FORWARD) {
			wr[n + 1] = wr[n];
			wr[n].next = &wr[n + 1];
			wr[++n].opcode = IBV_WR_SEND;
			wr[n].send_flags |= IBV_SEND_FENCE;
		}
		if (last || ++h->bell >= s->c->depth / 4 || rng_below(dice, 2)) {
			wr[n].send_flags |= IBV_SEND_SIGNALED;
			h->bell = 0;
		}
		if (ops)
			wr[n - (o->kind == FORWARD) - 1].next = &wr[n - (o->kind == FORWARD)];
		n++;
		ops++;
		h->posted++;
	}
	if ((errno = ibv_post_send(s->qp, wr, &bad)))
		DIE("ibv_post_send of operation %llu (%s)", (unsigned long long)bad->wr_id, KIND_NAMES[h->batch.op[bad->wr_id].kind]);
	for (uint32_t i = from; i < h->posted; i++)
		if (h->batch.op[i].inl)
			for (int k = 0; k < h->batch.op[i].nl; k++)
				memset(h->arena + h->batch.op[i].l[k].off, SCRIBBLE, h->batch.op[i].l[k].len);
}

/* Every operation counts two work requests, for the sake of FORWARD. */
static uint32_t room(const struct session *s)
{
	uint32_t used = 2 * (s->out.posted - s->out.retired);
	return used < s->c->depth ? s->c->depth - used : 0;
}

/* ---- completions ---- */

static void progress(struct session *s) { s->deadline = now_ns() + (uint64_t)wait_s * 1000000000u; }

static void send_done(struct session *s, const struct ibv_wc *wc)
{
	struct half *h = &s->out;
	progress(s);
	if (wc->status != IBV_WC_SUCCESS) {
		FAIL("send completion of operation %llu: status %d (%s), vendor_err 0x%x", (unsigned long long)wc->wr_id, wc->status,
		     ibv_wc_status_str(wc->status), wc->vendor_err);
		exit(1); /* the queue pair is in error: nothing more to learn */
	}
	if (wc->wr_id < h->retired || wc->wr_id >= h->posted) {
		FAIL("send completion for operation %llu, expected %u..%u", (unsigned long long)wc->wr_id, h->retired, h->posted - 1);
		exit(1);
	}
	const struct op *o = &h->batch.op[wc->wr_id];
	enum ibv_wc_opcode want = o->kind == FORWARD ? IBV_WC_SEND : WC_OPCODE[o->kind];
	if (wc->opcode != want || wc->qp_num != s->qp->qp_num)
		FAIL("send completion of a %s: opcode %d, expected %d; qp_num 0x%x", KIND_NAMES[o->kind], wc->opcode, want, wc->qp_num);
	h->retired = (uint32_t)wc->wr_id + 1;
}

static void recv_done(struct session *s, const struct ibv_wc *wc)
{
	struct half *h = &s->in;
	progress(s);
	if (wc->status != IBV_WC_SUCCESS || wc->wr_id != h->got || h->got >= h->given) {
		FAIL("receive completion %llu (expected %u): status %d (%s)", (unsigned long long)wc->wr_id, h->got, wc->status,
		     ibv_wc_status_str(wc->status));
		exit(1);
	}
	const struct op *o = &h->batch.op[h->receives[h->got++]];
	uint32_t len = o->size + (s->c->type == IBV_QPT_UD ? GRH_BYTES : 0);
	enum ibv_wc_opcode want = o->kind == WRITE_IMM ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV;
	if (wc->opcode != want || wc->byte_len != len || wc->qp_num != s->qp->qp_num)
		FAIL("receive of a %s of %u: opcode %d byte_len %u qp_num 0x%x", KIND_NAMES[o->kind], o->size, wc->opcode, wc->byte_len,
		     wc->qp_num);
	if (!!(wc->wc_flags & IBV_WC_WITH_IMM) != has_imm(o->kind) || (has_imm(o->kind) && ntohl(wc->imm_data) != o->imm))
		FAIL("receive of a %s: flags 0x%x imm 0x%x, expected 0x%x", KIND_NAMES[o->kind], wc->wc_flags, ntohl(wc->imm_data), o->imm);
	if (s->c->type == IBV_QPT_UD && (wc->src_qp != s->peer.qpn || !(wc->wc_flags & IBV_WC_GRH)))
		FAIL("UD receive: src_qp 0x%x (expected 0x%x) flags 0x%x", wc->src_qp, s->peer.qpn, wc->wc_flags);
}

static int poll_both(struct session *s)
{
	struct ibv_wc wc[16];
	int total = 0, n = ibv_poll_cq(s->rcq, 16, wc);
	for (int i = 0; i < n; i++)
		recv_done(s, &wc[i]);
	total += n;
	int m = n < 0 ? n : ibv_poll_cq(s->scq, 16, wc);
	for (int i = 0; i < m; i++)
		send_done(s, &wc[i]);
	if (n < 0 || m < 0)
		DIE("ibv_poll_cq");
	return total + m;
}

/* Sleep until a completion queue rings, at most `ms`. */
static int sleep_on_channel(struct session *s, int ms)
{
	if (ibv_req_notify_cq(s->scq, 0) || ibv_req_notify_cq(s->rcq, 0))
		DIE("ibv_req_notify_cq");
	int n = poll_both(s); /* what came before the arming */
	if (n)
		return n;
	struct pollfd p = { .fd = s->channel->fd, .events = POLLIN };
	if (poll(&p, 1, ms) <= 0)
		return 0;
	struct ibv_cq *cq;
	void *user;
	if (ibv_get_cq_event(s->channel, &cq, &user))
		DIE("ibv_get_cq_event");
	if (cq != s->scq && cq != s->rcq)
		FAIL("event of an unknown completion queue");
	ibv_ack_cq_events(cq, 1);
	s->sum.events++;
	return poll_both(s);
}

static int harvest(struct session *s, int ms)
{
	int n = poll_both(s);
	return n || !s->c->events ? n : sleep_on_channel(s, ms);
}

/* ---- a batch ---- */

static uint32_t half_draw(struct session *s, struct half *h, int requester)
{
	const struct config *c = s->c;
	uint32_t most = c->type == IBV_QPT_RC ? OPS_PER_BATCH : 1;
	draw_batch(c, &h->rng, h->first, most, s->arena, &h->batch);
	h->want = h->given = h->got = h->posted = h->retired = h->bell = 0;
	for (uint32_t i = 0; i < h->batch.n; i++)
		if (takes_receive(h->batch.op[i].kind))
			h->receives[h->want++] = i;
	if (requester)
		paint_requester(c->seed, &h->batch, h->arena, h->expect);
	else
		paint_responder(c, &h->batch, h->arena, h->expect);
	h->first += h->batch.n;
	return h->batch.n;
}

/* The 40 bytes in front of a UD message: an IPv6 header, or an IPv4 header in its last 20. */
static void check_grh(struct session *s)
{
	struct half *h = &s->in;
	uint8_t g[GRH_BYTES];
	uint32_t at = 0;
	const struct op *o = &h->batch.op[0];
	for (int i = 0; i < o->nr && at < GRH_BYTES; i++) {
		uint32_t n = o->r[i].len < GRH_BYTES - at ? o->r[i].len : GRH_BYTES - at;
		memcpy(g + at, h->arena + o->r[i].off, n);
		memcpy(h->expect + o->r[i].off, h->arena + o->r[i].off, n); /* judged here, not by memcmp */
		at += n;
	}
	int ok;
	if (gid_is_v4(&s->d->gid))
		ok = g[20] == 0x45 && !memcmp(g + 32, s->peer.gid.raw + 12, 4) && !memcmp(g + 36, s->d->gid.raw + 12, 4) && g[29] == 17;
	else
		ok = g[0] >> 4 == 6 && !memcmp(g + 8, s->peer.gid.raw, 16) && !memcmp(g + 24, s->d->gid.raw, 16);
	if (!ok)
		FAIL("UD message: the header area names other addresses (bytes %02x .. %02x %02x)", g[0], g[20], g[29]);
}

/* Where `a` first differs from `b`; `n` where nowhere. Reads every byte of `a` once, so that it may be asked
 * while a WRITE still arrives: memcmp, which looks again for the byte that differed, answers "equal" when that
 * byte has come meanwhile, whatever lies behind it. */
static uint32_t differs_at(const uint8_t *a, const uint8_t *b, uint32_t n)
{
	uint32_t at = 0;
	for (uint64_t want; at + sizeof want <= n; at += sizeof want) {
		memcpy(&want, b + at, sizeof want);
		uint64_t is = *(const volatile uint64_t *)(const void *)(a + at);
		if (is != want)
			return at + (uint32_t)__builtin_ctzll(is ^ want) / 8;
	}
	while (at < n && *(const volatile uint8_t *)(a + at) == b[at])
		at++;
	return at;
}

#define FLIGHT 262144u
struct flight { uint8_t *to, *from; uint32_t rounds, go, landed; };

static void *fly(void *arg)
{
	struct flight *f = arg;
	for (uint32_t r = 1; r <= f->rounds; r++) {
		while (__atomic_load_n(&f->go, __ATOMIC_ACQUIRE) != r)
			;
		for (uint32_t at = 0; at < FLIGHT; at += 4096)
			memcpy(f->to + at, f->from + at, 4096);
		__atomic_store_n(&f->landed, r, __ATOMIC_RELEASE);
	}
	return NULL;
}

/* -Y: what is found equal while it arrives must be equal to its end. */
static int compare_in_flight(void)
{
	struct flight f = { .to = malloc(FLIGHT), .from = malloc(FLIGHT), .rounds = 3000 };
	pthread_t t;
	if (!f.to || !f.from || pthread_create(&t, NULL, fly, &f))
		DIE("memory or a thread");
	memset(f.from, 0x33, FLIGHT);
	for (uint32_t r = 1; r <= f.rounds; r++) {
		memset(f.to, CANARY, FLIGHT);
		__atomic_store_n(&f.go, r, __ATOMIC_RELEASE);
		while (differs_at(f.to, f.from, FLIGHT) != FLIGHT)
			;
		if (__atomic_load_n(&f.landed, __ATOMIC_ACQUIRE) != r && differs_at(f.to, f.from, FLIGHT) != FLIGHT)
			FAIL("round %u: found equal, and differs", r);
		while (__atomic_load_n(&f.landed, __ATOMIC_ACQUIRE) != r)
			;
	}
	pthread_join(t, NULL);
	printf("verify %s: %u comparisons in flight\n", failures ? "FAIL" : "ok", f.rounds);
	return failures != 0;
}

static int check(struct session *s, const struct half *h, uint32_t used, int requester, int quiet)
{
	if (plant)
		h->arena[used - 1] ^= 1;
	uint32_t at = differs_at(h->arena, h->expect, used);
	if (at == used || quiet)
		return at == used;
	const struct op *near = NULL;
	for (uint32_t i = 0; i < h->batch.n; i++) {
		const struct op *o = &h->batch.op[i];
		const struct piece *p = requester ? o->l : o->r;
		for (int k = 0; k < (requester ? o->nl : o->nr); k++)
			if (at + 8 >= p[k].off && at < p[k].off + p[k].len + 8)
				near = o;
		if (!requester && points_remote(o->kind) && at + 8 >= o->remote && at < o->remote + o->size + 8)
			near = o;
	}
	FAIL("%s memory differs at offset %u (%02x, expected %02x): operation %u, %s of %u bytes%s", requester ? "requester" : "responder",
	     at, h->arena[at], h->expect[at], near ? near->id : 0, near ? KIND_NAMES[near->kind] : "none near", near ? near->size : 0,
	     near && near->inl ? ", inline" : "");
	(void)s;
	return 0;
}

static void count(struct session *s)
{
	for (uint32_t i = 0; i < s->out.batch.n; i++) {
		const struct op *o = &s->out.batch.op[i];
		s->sum.ops[o->kind]++;
		s->sum.bytes += o->size;
		s->sum.inlined += (uint64_t)o->inl;
		s->sum.pieces += (uint64_t)o->nl;
	}
}

static void run_reliable(struct session *s, struct rng *dice)
{
	progress(s);
	while (s->out.retired < s->out.batch.n || s->in.got < s->in.want) {
		post_receives(s);
		while (s->out.posted < s->out.batch.n && room(s) >= 2)
			post_chain(s, room(s), dice, NULL);
		if (!harvest(s, 100) && now_ns() > s->deadline) {
			FAIL("no completion for %d s: sends %u of %u, receives %u of %u", wait_s, s->out.retired, s->out.batch.n, s->in.got,
			     s->in.want);
			exit(1);
		}
	}
	barrier(s->fd, 0);
	if (s->active_out)
		check(s, &s->out, s->out.batch.l_used, 1, 0);
	if (s->active_in)
		check(s, &s->in, s->in.batch.r_used, 0, 0);
}

/* Has the one message of this batch arrived? Waits a while for it. */
static uint32_t arrived(struct session *s)
{
	uint64_t end = now_ns() + 300000000u + (uint64_t)s->in.batch.r_used * 20;
	if (!s->active_in || !s->in.batch.n)
		return 1;
	do {
		harvest(s, 10);
		if (s->in.want ? s->in.got == s->in.want : check(s, &s->in, s->in.batch.r_used, 0, 1))
			return 1;
	} while (now_ns() < end);
	return 0;
}

static void run_lossy(struct session *s, struct rng *dice, struct ibv_ah *ah)
{
	for (int tries = 0;; tries++) {
		progress(s);
		post_receives(s);
		barrier(s->fd, 0);
		if (s->out.batch.n) {
			paint_requester(s->c->seed, &s->out.batch, s->out.arena, s->out.expect);
			s->out.posted = s->out.retired = 0;
			post_chain(s, s->c->depth, dice, ah);
		}
		while (s->out.retired < s->out.batch.n && now_ns() < s->deadline)
			harvest(s, 100);
		if (s->out.retired < s->out.batch.n)
			FAIL("no send completion for %d s", wait_s);
		barrier(s->fd, 0);
		uint32_t here = arrived(s), there = barrier(s->fd, here);
		if (here && there)
			break;
		s->sum.lost++;
		if (tries == 20) {
			FAIL("a message was lost %d times running", tries);
			exit(1);
		}
	}
	if (s->c->type == IBV_QPT_UD && s->in.want)
		check_grh(s);
	if (s->active_out)
		check(s, &s->out, s->out.batch.l_used, 1, 0);
	if (s->active_in)
		check(s, &s->in, s->in.batch.r_used, 0, 0);
}

static void *run_session(void *arg)
{
	struct session *s = arg;
	struct rng dice = { s->c->seed ^ (uint64_t)s->server };
	struct ibv_ah *ah = NULL;
	make_qp(s);
	if (s->active_out)
		half_init(s, &s->out, mix(s->c->seed + (s->server ? 2 : 1)));
	if (s->active_in)
		half_init(s, &s->in, mix(s->c->seed + (s->server ? 1 : 2)));
	wire_up(s);
	if (s->c->type == IBV_QPT_UD)
		ah = ah_for(s);
	for (;;) {
		uint32_t n = 0;
		if (s->active_out)
			n += half_draw(s, &s->out, 1);
		if (s->active_in)
			n += half_draw(s, &s->in, 0);
		if (!(barrier(s->fd, n) | n)) /* both directions are through */
			break;
		if (s->c->type == IBV_QPT_RC)
			run_reliable(s, &dice);
		else
			run_lossy(s, &dice, ah);
		count(s);
	}
	uint32_t theirs = barrier(s->fd, (uint32_t)failures);
	if (theirs)
		FAIL("the other side counted %u failures", theirs);
	if ((ah && ibv_destroy_ah(ah)) || ibv_destroy_qp(s->qp) || (s->srq && ibv_destroy_srq(s->srq)) || ibv_destroy_cq(s->scq) ||
	    ibv_destroy_cq(s->rcq) || (s->channel && ibv_destroy_comp_channel(s->channel)) || (s->active_out && ibv_dereg_mr(s->out.mr)) ||
	    (s->active_in && ibv_dereg_mr(s->in.mr)))
		FAIL("a destroy call failed (errno %d)", errno);
	return NULL;
}

/* ---- the program ---- */

static uint32_t parse_kinds(const char *list)
{
	uint32_t mask = 0;
	char *copy = strdup(list), *save = NULL;
	for (char *t = strtok_r(copy, ",", &save); t; t = strtok_r(NULL, ",", &save)) {
		int k = 0;
		while (k < KINDS && strcmp(t, KIND_NAMES[k]))
			k++;
		if (k == KINDS) {
			errno = EINVAL;
			DIE("unknown kind %s", t);
		}
		mask |= 1u << k;
	}
	free(copy);
	return mask;
}

/* What the transport and the device cannot do is left out. */
static void fit(struct config *c, const struct device *d)
{
	if (c->type != IBV_QPT_RC)
		c->kinds &= 1u << SEND | 1u << SEND_IMM | (c->type == IBV_QPT_UC ? 1u << WRITE | 1u << WRITE_IMM : 0u);
	if (!d->attr.atomic_cap)
		c->kinds &= ~(1u << CAS | 1u << FADD);
	if (c->type == IBV_QPT_UD && c->max_size > mtu_bytes(d->mtu))
		c->max_size = mtu_bytes(d->mtu);
	if (c->max_size > d->port.max_msg_sz)
		c->max_size = d->port.max_msg_sz;
	if (c->max_sge > (uint32_t)d->attr.max_sge)
		c->max_sge = (uint32_t)d->attr.max_sge;
	if (c->depth > (uint32_t)d->attr.max_qp_wr)
		c->depth = (uint32_t)d->attr.max_qp_wr;
	c->mtu = mtu_bytes(d->mtu);
}

static void report(const struct config *c, const struct session *all, double seconds)
{
	struct totals t = { 0 };
	static const char *const TYPES[] = { [IBV_QPT_RC] = "rc", [IBV_QPT_UC] = "uc", [IBV_QPT_UD] = "ud" };
	for (uint32_t i = 0; i < c->threads; i++) {
		for (int k = 0; k < KINDS; k++)
			t.ops[k] += all[i].sum.ops[k];
		t.bytes += all[i].sum.bytes;
		t.inlined += all[i].sum.inlined;
		t.pieces += all[i].sum.pieces;
		t.events += all[i].sum.events;
		t.lost += all[i].sum.lost;
	}
	printf("verify %s: %s mtu %u bytes %llu in %.2f s", failures ? "FAIL" : "ok", TYPES[c->type], c->mtu, (unsigned long long)t.bytes,
	       seconds);
	for (int k = 0; k < KINDS; k++)
		if (t.ops[k])
			printf(", %s %llu", KIND_NAMES[k], (unsigned long long)t.ops[k]);
	printf(", inline %llu, pieces %llu, events %llu, lost %llu, failures %d\n", (unsigned long long)t.inlined,
	       (unsigned long long)t.pieces, (unsigned long long)t.events, (unsigned long long)t.lost, failures);
}

static void run_all(const struct config *c, const struct device *d, const int *fds, int server)
{
	struct session *s = calloc(c->threads, sizeof *s);
	struct config *per = calloc(c->threads, sizeof *per);
	pthread_t *t = calloc(c->threads, sizeof *t);
	uint64_t start = now_ns();
	for (uint32_t i = 0; i < c->threads; i++) {
		per[i] = *c;
		per[i].seed = mix(c->seed + i);
		per[i].psn = (c->psn + 7919 * i) & 0xffffff;
		s[i] = (struct session){ .c = &per[i], .d = d, .fd = fds[i], .server = server,
			.active_out = !server || c->both, .active_in = server || c->both,
			.arena = c->max_size * 2 + 4194304 };
		if (pthread_create(&t[i], NULL, run_session, &s[i]))
			DIE("pthread_create");
	}
	for (uint32_t i = 0; i < c->threads; i++)
		pthread_join(t[i], NULL);
	report(c, s, (double)(now_ns() - start) / 1e9);
}

int main(int argc, char **argv)
{
	struct config c = { .magic = CONFIG_MAGIC, .type = IBV_QPT_RC, .depth = 64, .ops = 1000, .max_size = 262144, .psn = 0xfffff0,
		.threads = 1, .kinds = (1u << KINDS) - 1, .max_sge = 6, .inline_max = 220, .seed = now_ns() };
	const char *dev = NULL, *port = "18700";
	int opt, gid = -1, mtu = 0, fds[64];
	program = "verify";
	while ((opt = getopt(argc, argv, "d:g:m:p:T:s:n:q:t:S:o:P:i:w:BeQxYZ")) != -1)
		switch (opt) {
		case 'd': dev = optarg; break;
		case 'g': gid = atoi(optarg); break;
		case 'm': mtu = atoi(optarg); break;
		case 'p': port = optarg; break;
		case 'T': c.type = optarg[1] == 'd' ? IBV_QPT_UD : optarg[0] == 'u' ? IBV_QPT_UC : IBV_QPT_RC; break;
		case 's': c.seed = strtoull(optarg, NULL, 0); break;
		case 'n': c.ops = (uint32_t)strtoul(optarg, NULL, 0); break;
		case 'q': c.depth = (uint32_t)strtoul(optarg, NULL, 0); break;
		case 't': c.threads = (uint32_t)strtoul(optarg, NULL, 0); break;
		case 'S': c.max_size = (uint32_t)strtoul(optarg, NULL, 0); break;
		case 'o': c.kinds = parse_kinds(optarg); break;
		case 'P': c.psn = (uint32_t)strtoul(optarg, NULL, 0) & 0xffffff; break;
		case 'i': c.inline_max = (uint32_t)strtoul(optarg, NULL, 0); break;
		case 'w': wait_s = atoi(optarg); break;
		case 'B': c.both = 1; break;
		case 'e': c.events = 1; break;
		case 'Q': c.srq = 1; break;
		case 'x': c.sweep = 1; break;
		case 'Y': return compare_in_flight();
		case 'Z': plant = 1; break;
		default: fprintf(stderr, "see the head of verify.c\n"); return 2;
		}
	struct device d;
	int server = optind >= argc;
	int listener = server ? tcp_listen(port) : -1;
	open_device(&d, dev, gid, mtu);
	fds[0] = server ? tcp_accept(listener, wait_s) : tcp_connect(argv[optind], port, wait_s);
	if (server) {
		tcp_recv(fds[0], &c, sizeof c);
		if (c.magic != CONFIG_MAGIC || c.threads > 64)
			DIE("the client is of another version");
		d.mtu = mtu_of((int)c.mtu);
	} else {
		fit(&c, &d);
		if (c.threads < 1 || c.threads > 64 || c.depth < 4 || !c.kinds)
			DIE("threads 1..64, depth at least 4, and some kind that the transport has");
		tcp_send(fds[0], &c, sizeof c);
		fprintf(stderr, "verify: seed 0x%llx\n", (unsigned long long)c.seed);
	}
	for (uint32_t i = 1; i < c.threads; i++)
		fds[i] = server ? tcp_accept(listener, wait_s) : tcp_connect(argv[optind], port, wait_s);
	run_all(&c, &d, fds, server);
	if (ibv_dealloc_pd(d.pd) || ibv_close_device(d.ctx))
		FAIL("closing the device failed (errno %d)", errno);
	return failures != 0;
}
