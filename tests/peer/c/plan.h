/* SPDX-License-Identifier: MIT OR Apache-2.0
 * The plan of verify.c: which operations run, where their bytes lie, and what memory must look like
 * afterwards. Both sides draw the same plan from the same seed, so nothing but the seed crosses the
 * side channel.
 *
 * An arena is one registered region. The plan says its content before (`image`) and after (`expect`)
 * a batch, canaries between and around the pieces included, so the check of a batch is one comparison of
 * everything. */
#ifndef ROCEBUD_PEER_PLAN_H
#define ROCEBUD_PEER_PLAN_H
#include "common.h"

enum kind { SEND, SEND_IMM, WRITE, WRITE_IMM, READ, CAS, FADD, FORWARD, KINDS };
static const char *const KIND_NAMES[KINDS] = { "send", "send_imm", "write", "write_imm", "read", "cas", "fadd", "forward" };

#define PIECES_MAX 8
#define CANARY 0xe7
#define SCRIBBLE 0x5c /* written over an inline source as soon as the post has returned */
#define GRH_BYTES 40

struct config { /* the client's, sent to the server */
	uint32_t magic, type, mtu, depth, ops, max_size, psn, threads, kinds, max_sge, inline_max;
	uint32_t sweep, both, events, srq;
	uint64_t seed;
};
#define CONFIG_MAGIC 0x72627601u

struct piece { uint32_t off, len; };
struct op {
	enum kind kind;
	uint32_t size, imm, id;
	int inl, solicited, nl, nr;
	struct piece l[PIECES_MAX]; /* the requester's scatter/gather list */
	struct piece r[PIECES_MAX]; /* the responder's receive, for what consumes one */
	uint32_t remote;            /* where WRITE, READ and atomics point */
	uint64_t before, compare_add, swap, after;
};
struct batch {
	struct op *op;
	uint32_t n, l_used, r_used;
};
#define OPS_PER_BATCH 4096

static inline int takes_receive(enum kind k) { return k == SEND || k == SEND_IMM || k == WRITE_IMM || k == FORWARD; }
static inline int has_imm(enum kind k) { return k == SEND_IMM || k == WRITE_IMM; }
static inline int is_atomic(enum kind k) { return k == CAS || k == FADD; }
static inline int sources_local(enum kind k) { return k == SEND || k == SEND_IMM || k == WRITE || k == WRITE_IMM; }
static inline int points_remote(enum kind k) { return k != SEND && k != SEND_IMM; }
static inline int reads_remote(enum kind k) { return k == READ || k == FORWARD; }

/* ---- which operation is number i ---- */

static const uint32_t SWEEP[] = { 0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 63, 64, 65, 255, 256, 257, 511, 512, 513, 1023, 1024,
	1025, 1444, 1445, 1446, 2047, 2048, 2049, 4095, 4096, 4097, 16383, 16385, 65535, 65536, 65537, 262143, 1048575, 1048577,
	4194305, 8388607, 8388608, 8388609, 33554431, 67108863, 67108864 };
#define SWEEP_N (sizeof SWEEP / sizeof SWEEP[0])

static uint32_t kinds_count(const struct config *c) { return (uint32_t)__builtin_popcount(c->kinds); }

static enum kind nth_kind(const struct config *c, uint32_t n)
{
	for (int k = 0; k < KINDS; k++)
		if (c->kinds >> k & 1 && n-- == 0)
			return (enum kind)k;
	return SEND;
}

static uint32_t sweep_sizes(const struct config *c)
{
	uint32_t n = 0;
	while (n < SWEEP_N && SWEEP[n] <= c->max_size)
		n++;
	return n;
}

static uint32_t total_ops(const struct config *c)
{
	return c->sweep ? sweep_sizes(c) * kinds_count(c) : c->ops;
}

/* Log-uniform: every order of magnitude is as likely as the next. */
static uint32_t random_size(struct rng *r, uint32_t max)
{
	uint32_t bits = 32 - (uint32_t)__builtin_clz(max | 1);
	uint32_t top = 1u << rng_below(r, bits + 1);
	uint32_t size = top / 2 + rng_below(r, top / 2 + 1);
	return size < max ? size : max;
}

static void choose(const struct config *c, struct rng *r, uint32_t i, struct op *o)
{
	memset(o, 0, sizeof *o);
	o->id = i;
	if (c->sweep) {
		o->kind = nth_kind(c, i % kinds_count(c));
		o->size = SWEEP[i / kinds_count(c)];
	} else {
		o->kind = nth_kind(c, rng_below(r, kinds_count(c)));
		o->size = random_size(r, c->max_size);
	}
	if (is_atomic(o->kind))
		o->size = 8;
	o->imm = (uint32_t)rng_next(r);
	o->solicited = (int)rng_below(r, 2);
	o->inl = sources_local(o->kind) && o->size <= c->inline_max && rng_below(r, 2);
	o->before = rng_next(r);
	o->swap = rng_next(r);
	o->compare_add = rng_next(r);
	if (o->kind == CAS) {
		if (rng_below(r, 2))
			o->compare_add = o->before;
		o->after = o->compare_add == o->before ? o->swap : o->before;
	} else {
		o->after = o->before + o->compare_add;
	}
}

/* ---- where its bytes lie ---- */

static uint32_t place(struct rng *r, uint32_t *cursor, uint32_t len)
{
	uint32_t off = *cursor + 8 + rng_below(r, 64); /* any alignment, a canary in between */
	*cursor = off + len + 8;
	return off;
}

static int place_pieces(const struct config *c, struct rng *r, uint32_t *cursor, uint32_t len, struct piece *p)
{
	uint32_t most = c->max_sge < PIECES_MAX ? c->max_sge : PIECES_MAX;
	int n = 0;
	if (!len)
		return 0;
	uint32_t pieces = 1 + rng_below(r, most);
	if (pieces > len)
		pieces = len;
	while (len) {
		uint32_t left = pieces - (uint32_t)n;
		uint32_t take = left == 1 ? len : 1 + rng_below(r, len - left + 1);
		p[n].off = place(r, cursor, take);
		p[n++].len = take;
		len -= take;
	}
	return n;
}

static void lay_out(const struct config *c, struct rng *r, struct op *o, uint32_t *l, uint32_t *rr)
{
	if (is_atomic(o->kind)) { /* one piece of 8 at the requester, an aligned word at the responder */
		o->nl = 1;
		o->l[0] = (struct piece){ place(r, l, 8), 8 };
		o->remote = (place(r, rr, 16) + 7) & ~7u;
		return;
	}
	o->nl = place_pieces(c, r, l, o->size, o->l);
	if (points_remote(o->kind))
		o->remote = place(r, rr, o->size);
	if (takes_receive(o->kind)) {
		uint32_t len = o->kind == WRITE_IMM ? rng_below(r, 9) : o->size + rng_below(r, 34);
		if (c->type == IBV_QPT_UD)
			len += GRH_BYTES;
		o->nr = place_pieces(c, r, rr, len, o->r);
	}
}

/* The next batch: as many operations as the arenas hold, starting at number `first`. */
static void draw_batch(const struct config *c, struct rng *r, uint32_t first, uint32_t most, uint32_t arena, struct batch *b)
{
	b->n = 0;
	b->l_used = b->r_used = 0;
	while (b->n < most && first + b->n < total_ops(c)) {
		struct rng saved = *r;
		struct op *o = &b->op[b->n];
		uint32_t l = b->l_used, rr = b->r_used;
		choose(c, r, first + b->n, o);
		lay_out(c, r, o, &l, &rr);
		if (l + 128 > arena || rr + 128 > arena) {
			*r = saved; /* it opens the next batch */
			break;
		}
		b->l_used = l;
		b->r_used = rr;
		b->n++;
	}
	b->l_used += 64;
	b->r_used += 64;
}

/* ---- what memory looks like ---- */

static void pattern(uint64_t seed, uint32_t id, uint32_t at, uint8_t *to, uint32_t len)
{
	uint64_t base = mix(seed ^ ((uint64_t)id << 32));
	while (len && at % 8) {
		*to++ = (uint8_t)(mix(base + at / 8) >> (8 * (at % 8)));
		at++;
		len--;
	}
	for (; len >= 8; len -= 8, at += 8, to += 8) {
		uint64_t w = mix(base + at / 8);
		memcpy(to, &w, 8);
	}
	for (; len; len--, at++)
		*to++ = (uint8_t)(mix(base + at / 8) >> (8 * (at % 8)));
}

/* The message's bytes, `skip` bytes into the pieces (a GRH, in UD receives). */
static void scatter(uint64_t seed, const struct op *o, const struct piece *p, int n, uint32_t skip, uint8_t *arena)
{
	uint32_t at = 0;
	for (int i = 0; i < n && at < o->size; i++) {
		uint32_t off = p[i].off, len = p[i].len;
		uint32_t drop = skip < len ? skip : len;
		off += drop;
		len -= drop;
		skip -= drop;
		if (len > o->size - at)
			len = o->size - at;
		pattern(seed, o->id, at, arena + off, len);
		at += len;
	}
}

static void paint_requester(uint64_t seed, const struct batch *b, uint8_t *image, uint8_t *expect)
{
	memset(image, CANARY, b->l_used);
	for (uint32_t i = 0; i < b->n; i++)
		if (sources_local(b->op[i].kind))
			scatter(seed, &b->op[i], b->op[i].l, b->op[i].nl, 0, image);
	memcpy(expect, image, b->l_used);
	for (uint32_t i = 0; i < b->n; i++) {
		const struct op *o = &b->op[i];
		if (is_atomic(o->kind))
			memcpy(expect + o->l[0].off, &o->before, 8);
		else if (!sources_local(o->kind))
			scatter(seed, o, o->l, o->nl, 0, expect);
		else if (o->inl)
			for (int k = 0; k < o->nl; k++)
				memset(expect + o->l[k].off, SCRIBBLE, o->l[k].len);
	}
}

static void paint_responder(const struct config *c, const struct batch *b, uint8_t *image, uint8_t *expect)
{
	uint32_t skip = c->type == IBV_QPT_UD ? GRH_BYTES : 0;
	memset(image, CANARY, b->r_used);
	for (uint32_t i = 0; i < b->n; i++) {
		const struct op *o = &b->op[i];
		if (is_atomic(o->kind))
			memcpy(image + o->remote, &o->before, 8);
		else if (reads_remote(o->kind))
			pattern(c->seed, o->id, 0, image + o->remote, o->size);
	}
	memcpy(expect, image, b->r_used);
	for (uint32_t i = 0; i < b->n; i++) {
		const struct op *o = &b->op[i];
		if (is_atomic(o->kind))
			memcpy(expect + o->remote, &o->after, 8);
		else if (o->kind == WRITE || o->kind == WRITE_IMM)
			pattern(c->seed, o->id, 0, expect + o->remote, o->size);
		if (takes_receive(o->kind) && o->kind != WRITE_IMM)
			scatter(c->seed, o, o->r, o->nr, skip, expect);
	}
}
#endif
