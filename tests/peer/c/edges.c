/* SPDX-License-Identifier: MIT OR Apache-2.0
 * edges: the corners of the data path, on two queue pairs of one process.
 * edges [-d DEV] [-g GID] [-m MTU] [-c CASES]      exit status 0 when every case held
 * Build: cc -O2 -pthread -o edges edges.c -libverbs */
#include "pair.h"

#define S IBV_WC_SUCCESS
#define LEN(a) (sizeof(a) / sizeof *(a))

/* ---- C041: inline ---- */

static void inline_takes(struct pair *p, struct ibv_sge *sge, int n, uint32_t total)
{
	struct ibv_sge to = sge_at(&p->mem[1], 0, REGION);
	uint8_t want[REGION];
	uint32_t at = 0;
	for (int i = 0; i < n; i++) {
		for (uint32_t k = 0; k < sge[i].length; k++)
			((uint8_t *)(uintptr_t)sge[i].addr)[k] = want[at + k] = (uint8_t)(at + k * 3 + 1);
		at += sge[i].length;
		sge[i].lkey = 0;
	}
	struct ibv_send_wr wr = request(p, IBV_WR_SEND, sge, n, 0);
	wr.send_flags = IBV_SEND_INLINE;
	if (post_recv(p, 1, 1, &to, 1) || post(p, &wr)) {
		FAIL("inline of %u bytes in %d pieces refused, limit %u", total, n, p->inline_max);
		return;
	}
	for (int i = 0; i < n; i++)
		memset((void *)(uintptr_t)sge[i].addr, 0x77, sge[i].length); /* the buffer is ours again */
	struct ibv_wc wc = expect_wc(p, 1, S, "inline receive");
	if (wc.byte_len != total || memcmp(p->mem[1].base, want, total))
		FAIL("inline of %u bytes in %d pieces: other bytes arrived (byte_len %u)", total, n, wc.byte_len);
	expect_wc(p, 0, S, "inline send");
}

/* good, too large, good: the first is posted, bad_wr names the second, the third is not posted */
static void inline_too_large(struct pair *p, struct ibv_sge *sge, int n, const char *what)
{
	struct ibv_sge one = sge_at(&p->mem[0], 0, 8), to = sge_at(&p->mem[1], 0, 64);
	struct ibv_send_wr wr[3], *bad = NULL;
	wr[0] = wr[2] = request(p, IBV_WR_SEND, &one, 1, 0);
	wr[1] = request(p, IBV_WR_SEND, sge, n, 0);
	wr[0].send_flags = wr[1].send_flags = IBV_SEND_INLINE;
	wr[0].wr_id = 1;
	wr[0].next = &wr[1];
	wr[1].next = &wr[2];
	if (post_recv(p, 1, 1, &to, 1))
		FAIL("post_recv");
	int e = ibv_post_send(p->qp[0], wr, &bad);
	if ((e != EINVAL && e != ENOMEM) || bad != &wr[1])
		FAIL("%s: returned %d, bad_wr %s", what, e, bad == &wr[1] ? "right" : "wrong");
	expect_wc(p, 1, S, "the good neighbour");
	struct ibv_wc wc = expect_wc(p, 0, S, "the good neighbour's send");
	if (wc.wr_id != 1)
		FAIL("%s: completion of another request", what);
	usleep(20000);
	expect_none(p, 0, what);
}

static void c041_inline(struct device *d)
{
	struct pair p = pair_new(d, &PAIR_DEFAULTS);
	uint32_t cap = p.inline_max;
	if (cap < 64)
		FAIL("asked for 64 inline bytes, granted %u", cap);
	struct region *m = &p.mem[0];
	struct ibv_sge a[] = { sge_at(m, 1, 32), sge_at(m, 101, 32) }, b[] = { sge_at(m, 0, cap) }, c[] = { sge_at(m, 3, cap - 1), sge_at(m, 9001, 1) };
	inline_takes(&p, a, 2, 64);
	inline_takes(&p, b, 1, cap);
	inline_takes(&p, c, 2, cap);
	inline_takes(&p, NULL, 0, 0);
	struct ibv_sge one[] = { sge_at(m, 0, 1) };
	inline_takes(&p, one, 1, 1);
	struct ibv_sge over[] = { sge_at(m, 0, cap + 1) }, split[] = { sge_at(m, 0, cap / 2 + 1), sge_at(m, 9000, cap - cap / 2) };
	struct ibv_sge g = { (uintptr_t)m->base, 1u << 30, m->mr->lkey }, wrap[] = { g, g, g, g }; /* 2^32: 0 in 32 bits */
	struct ibv_sge four[] = { { (uintptr_t)m->base, 0xffffffff, m->mr->lkey }, { (uintptr_t)m->base, 2, m->mr->lkey } };
	inline_too_large(&p, over, 1, "one byte over");
	inline_too_large(&p, split, 2, "one byte over in two pieces");
	if (!kernel_rxe) { /* librxe sums in 32 bits and crashes */
		inline_too_large(&p, wrap, 4, "4 x 2^30");
		inline_too_large(&p, four, 2, "2^32 + 1");
	}
	pair_free(&p);
	struct pair_options o = PAIR_DEFAULTS;
	o.cap.max_inline_data = 220;
	p = pair_new(d, &o);
	if (p.inline_max < 220)
		FAIL("asked for 220 inline bytes, granted %u", p.inline_max);
	pair_free(&p);
}

/* ---- C042: atomics ---- */

static uint64_t word(struct pair *p, uint32_t off)
{
	uint64_t v;
	memcpy(&v, p->mem[1].base + off, 8);
	return v;
}

static void atomic_values(struct device *d)
{
	struct pair p = pair_new(d, &PAIR_DEFAULTS);
	uint64_t v = 0x0123456789abcdef, got;
	memcpy(p.mem[1].base + 64, &v, 8);
	struct { enum ibv_wr_opcode op; uint64_t ca, swap, before, after; } t[] = {
		{ IBV_WR_ATOMIC_FETCH_AND_ADD, 1, 0, v, v + 1 },
		{ IBV_WR_ATOMIC_FETCH_AND_ADD, ~(uint64_t)0, 0, v + 1, v },
		{ IBV_WR_ATOMIC_CMP_AND_SWP, v, 42, v, 42 },
		{ IBV_WR_ATOMIC_CMP_AND_SWP, v, 43, 42, 42 },
		{ IBV_WR_ATOMIC_CMP_AND_SWP, 42, ~(uint64_t)0, 42, ~(uint64_t)0 },
		{ IBV_WR_ATOMIC_FETCH_AND_ADD, 2, 0, ~(uint64_t)0, 1 },
	};
	for (size_t i = 0; i < LEN(t); i++) {
		struct ibv_sge s = sge_at(&p.mem[0], 3, 8);
		struct ibv_send_wr wr = request(&p, t[i].op, &s, 1, 64);
		wr.wr.atomic.compare_add = t[i].ca;
		wr.wr.atomic.swap = t[i].swap;
		if (post(&p, &wr))
			FAIL("atomic %zu refused", i);
		expect_wc(&p, 0, S, "atomic");
		memcpy(&got, p.mem[0].base + 3, 8);
		if (got != t[i].before || word(&p, 64) != t[i].after)
			FAIL("atomic %zu: fetched 0x%llx, word now 0x%llx", i, (unsigned long long)got, (unsigned long long)word(&p, 64));
	}
	if (region_touched(&p.mem[1], 64, 8) >= 0 || region_touched(&p.mem[0], 3, 8) >= 0)
		FAIL("atomics wrote beside their words");
	pair_free(&p);
}

static void atomic_refused(struct device *d, const struct pair_options *o, uint64_t off, int want, const char *what)
{
	struct pair p = pair_new(d, o);
	struct ibv_sge s = sge_at(&p.mem[0], 0, 8);
	struct ibv_send_wr wr = request(&p, IBV_WR_ATOMIC_FETCH_AND_ADD, &s, 1, off);
	int e = post(&p, &wr);
	if (e && e != EINVAL)
		FAIL("%s: post returned %d", what, e);
	if (!e)
		expect_wc(&p, 0, want, what);
	if (region_touched(&p.mem[1], 0, 0) >= 0 || region_touched(&p.mem[0], 0, 0) >= 0)
		FAIL("%s: memory changed", what);
	pair_free(&p);
}

static void c042_atomic_rules(struct device *d)
{
	struct pair_options o = PAIR_DEFAULTS;
	atomic_values(d);
	atomic_refused(d, &o, 1, IBV_WC_REM_INV_REQ_ERR, "atomic at +1");
	atomic_refused(d, &o, 4, IBV_WC_REM_INV_REQ_ERR, "atomic at +4");
	atomic_refused(d, &o, REGION, IBV_WC_REM_ACCESS_ERR, "atomic past the region");
	o.qp[1].access = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;
	atomic_refused(d, &o, 0, IBV_WC_REM_INV_REQ_ERR, "QP without REMOTE_ATOMIC");
	o = PAIR_DEFAULTS;
	o.access[1] = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
	atomic_refused(d, &o, 0, IBV_WC_REM_ACCESS_ERR, "MR without REMOTE_ATOMIC");
	o = PAIR_DEFAULTS;
	o.qp[1].max_dest_rd_atomic = 0;
	atomic_refused(d, &o, 0, IBV_WC_REM_INV_REQ_ERR, "max_dest_rd_atomic 0");
	struct pair p = pair_new(d, &PAIR_DEFAULTS);
	struct ibv_sge s = sge_at(&p.mem[0], 0, 4);
	struct ibv_send_wr wr = request(&p, IBV_WR_ATOMIC_FETCH_AND_ADD, &s, 1, 0);
	if (!post(&p, &wr) && expect_wc(&p, 0, -1, "4-byte atomic").status == S)
		FAIL("an atomic with 4 bytes to land in succeeded");
	pair_free(&p);
}

#define ADDERS 4
static int adds_each = 20000;
struct adder { struct pair p; uint64_t *word, *seen; uint32_t rkey; int i; };

static void *add_remotely(void *arg)
{
	struct adder *a = arg;
	int posted = 0, done = 0;
	struct ibv_wc wc[16];
	while (done < adds_each) {
		while (posted < adds_each && posted - done < 32) {
			struct ibv_sge s = sge_at(&a->p.mem[0], 8 * (uint32_t)(posted % 32), 8);
			struct ibv_send_wr wr = request(&a->p, IBV_WR_ATOMIC_FETCH_AND_ADD, &s, 1, 0);
			wr.wr_id = (uint64_t)posted;
			wr.wr.atomic.remote_addr = (uintptr_t)a->word;
			wr.wr.atomic.rkey = a->rkey;
			if (post(&a->p, &wr)) {
				FAIL("post of an atomic");
				return NULL;
			}
			posted++;
		}
		int n = ibv_poll_cq(a->p.cq[0], 16, wc);
		for (int i = 0; i < n; i++, done++) {
			if (wc[i].status != S || (int)wc[i].wr_id != done) {
				FAIL("adder %d: status %d, wr_id %llu, expected %d", a->i, wc[i].status, (unsigned long long)wc[i].wr_id, done);
				return NULL;
			}
			memcpy(&a->seen[done], a->p.mem[0].base + 8 * (done % 32), 8);
		}
	}
	return NULL;
}

static int by_value(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
	return x < y ? -1 : x > y;
}

/* Several queue pairs and, where the device says GLOB, the owner's own CPU add to one word. */
static void c042_atomic_sum(struct device *d)
{
	struct adder a[ADDERS];
	pthread_t t[ADDERS];
	uint64_t total = (uint64_t)ADDERS * (uint64_t)adds_each, own = 0;
	uint64_t *seen = calloc(total, sizeof *seen);
	for (int i = 0; i < ADDERS; i++) {
		a[i] = (struct adder){ .p = pair_new(d, &PAIR_DEFAULTS), .seen = seen + (size_t)i * (size_t)adds_each, .i = i };
		a[i].word = (uint64_t *)a[0].p.mem[1].base;
		a[i].rkey = a[0].p.mem[1].mr->rkey;
	}
	*a[0].word = 0;
	for (int i = 0; i < ADDERS; i++)
		pthread_create(&t[i], NULL, add_remotely, &a[i]);
	if (d->attr.atomic_cap == IBV_ATOMIC_GLOB)
		for (; own < 1000000; own++)
			__atomic_fetch_add(a[0].word, 1, __ATOMIC_RELAXED);
	for (int i = 0; i < ADDERS; i++)
		pthread_join(t[i], NULL);
	if (*a[0].word != total + own)
		FAIL("the sum is %llu, expected %llu", (unsigned long long)*a[0].word, (unsigned long long)(total + own));
	for (int i = 0; i < ADDERS; i++)
		for (int k = 1; k < adds_each; k++)
			if (a[i].seen[k] <= a[i].seen[k - 1]) {
				FAIL("adder %d fetched %llu after %llu", i, (unsigned long long)a[i].seen[k], (unsigned long long)a[i].seen[k - 1]);
				break;
			}
	qsort(seen, total, sizeof *seen, by_value);
	for (uint64_t k = 1; k < total; k++)
		if (seen[k] == seen[k - 1]) {
			FAIL("two adders fetched %llu", (unsigned long long)seen[k]);
			break;
		}
	for (int i = ADDERS - 1; i >= 0; i--)
		pair_free(&a[i].p);
	free(seen);
}

/* ---- C054: bounds ---- */

static void out_of_bounds(struct device *d, enum ibv_wr_opcode op, uint64_t va, uint32_t len, const char *what)
{
	struct pair p = pair_new(d, &PAIR_DEFAULTS);
	struct ibv_sge s = sge_at(&p.mem[0], 0, len);
	struct ibv_send_wr wr = request(&p, op, &s, 1, 0);
	wr.wr.rdma.remote_addr = va ? va : (uintptr_t)p.mem[1].base - 1;
	if (va == 1)
		wr.wr.rdma.remote_addr = (uintptr_t)p.mem[1].base + REGION - 1;
	if (post(&p, &wr))
		FAIL("%s: refused at the post", what);
	else
		expect_wc(&p, 0, IBV_WC_REM_ACCESS_ERR, what);
	for (int i = 0; i < 2; i++)
		if (region_touched(&p.mem[i], 0, 0) >= 0)
			FAIL("%s: memory of side %d changed at %ld", what, i, region_touched(&p.mem[i], 0, 0));
	pair_free(&p);
}

static void c054_remote_bounds(struct device *d)
{
	static const enum ibv_wr_opcode OPS[] = { IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ };
	for (size_t i = 0; i < LEN(OPS); i++) {
		out_of_bounds(d, OPS[i], ~(uint64_t)0 - 1023, 1024, "va 2^64-1024, 1024 bytes");
		out_of_bounds(d, OPS[i], 0, 2, "one byte before the region");
		out_of_bounds(d, OPS[i], 1, 2, "one byte past the region");
		out_of_bounds(d, OPS[i], (uint64_t)1 << 63, REGION, "va 2^63");
		out_of_bounds(d, OPS[i], ~(uint64_t)0, 1, "va 2^64-1");
	}
}

/* A region of `len` bytes wanted, more than the peer has: refused by the responder, or by the limit on messages. */
static void c054_huge_length(struct device *d)
{
	struct pair p = pair_new(d, &PAIR_DEFAULTS);
	size_t len = d->port.max_msg_sz > (1u << 24) ? 1u << 24 : d->port.max_msg_sz;
	uint8_t *big = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	struct ibv_mr *mr = ibv_reg_mr(d->pd, big, len, ALL_ACCESS);
	if (!mr)
		DIE("ibv_reg_mr");
	for (int read = 0; read < 2; read++) {
		struct ibv_sge s = { (uintptr_t)big, (uint32_t)len, mr->lkey };
		struct ibv_send_wr wr = request(&p, read ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE, &s, 1, 0);
		if (post(&p, &wr))
			FAIL("%zu bytes refused at the post", len);
		expect_wc(&p, 0, IBV_WC_REM_ACCESS_ERR, "longer than the region");
		if (region_touched(&p.mem[1], 0, 0) >= 0)
			FAIL("longer than the region: memory changed");
		pair_revive(&p, &PAIR_DEFAULTS);
	}
	struct ibv_sge s = { (uintptr_t)big, 0xffffffff, mr->lkey };
	struct ibv_send_wr wr = request(&p, IBV_WR_RDMA_WRITE, &s, 1, 0);
	if (!post(&p, &wr) && expect_wc(&p, 0, -1, "2^32-1 bytes").status == S)
		FAIL("2^32-1 bytes out of a region of %zu succeeded", len);
	pair_free(&p);
	if (ibv_dereg_mr(mr))
		FAIL("ibv_dereg_mr");
	munmap(big, len);
}

static void c054_local_bounds(struct device *d)
{
	static const struct { long off; uint32_t len; } T[] = { { -1, 2 }, { REGION - 1, 2 }, { REGION, 1 }, { 0, REGION + 1 } };
	struct pair p = pair_new(d, &PAIR_DEFAULTS);
	for (size_t i = 0; i < LEN(T); i++)
		for (int read = 0; read < 2; read++) {
			struct ibv_sge s = { (uintptr_t)(p.mem[0].base + T[i].off), T[i].len, p.mem[0].mr->lkey };
			struct ibv_send_wr wr = request(&p, read ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE, &s, 1, 0);
			if (T[i].len > REGION)
				wr.wr.rdma.rkey = p.mem[1].mr->rkey;
			int e = post(&p, &wr);
			struct ibv_wc wc = e ? (struct ibv_wc){ 0 } : expect_wc(&p, 0, -1, "local SGE out of bounds");
			if (e || (wc.status != IBV_WC_LOC_PROT_ERR && !(T[i].len > REGION && wc.status == IBV_WC_REM_ACCESS_ERR)))
				FAIL("local SGE %ld+%u: post %d, status %d", T[i].off, T[i].len, e, wc.status);
			if (region_touched(&p.mem[0], 0, 0) >= 0 || region_touched(&p.mem[1], 0, 0) >= 0)
				FAIL("local SGE %ld+%u: memory changed", T[i].off, T[i].len);
			pair_revive(&p, &PAIR_DEFAULTS);
		}
	pair_free(&p);
}

/* ---- C039: fence ---- */

static void c039_fence(struct device *d)
{
	struct pair p = pair_new(d, &PAIR_DEFAULTS);
	for (int round = 0; round < 50; round++) {
		struct ibv_sge to = sge_at(&p.mem[1], 16384, 4096), s[4], all = sge_at(&p.mem[0], 0, 4096);
		struct ibv_send_wr wr[5], *bad;
		memset(p.mem[0].base, 0, 4096);
		memset(p.mem[1].base, 0x10 + round, 4096);
		if (post_recv(&p, 1, 1, &to, 1))
			FAIL("post_recv");
		for (int i = 0; i < 4; i++) {
			s[i] = sge_at(&p.mem[0], 1024 * (uint32_t)i, 1024);
			wr[i] = request(&p, IBV_WR_RDMA_READ, &s[i], 1, 1024 * (uint64_t)i);
			wr[i].next = &wr[i + 1];
		}
		wr[4] = request(&p, IBV_WR_SEND, &all, 1, 0);
		wr[4].send_flags = IBV_SEND_FENCE;
		if (ibv_post_send(p.qp[0], wr, &bad))
			FAIL("post of reads and a fenced send");
		expect_wc(&p, 1, S, "fenced send's receive");
		if (memcmp(p.mem[1].base + 16384, p.mem[1].base, 4096))
			FAIL("round %d: the fenced send carried old bytes", round);
		for (int i = 0; i < 5; i++)
			expect_wc(&p, 0, S, "reads and the fenced send");
	}
	pair_free(&p);
}

/* ---- C030: addresses ---- */

static int is_zero(const union ibv_gid *g)
{
	static const uint8_t z[16];
	return !memcmp(g->raw, z, 16);
}

/* Every listed address works as source of a connection to itself; empty and outside indices are refused. */
static void c030_every_gid(struct device *d)
{
	int used = 0, empty = -1;
	struct device one = *d;
	for (int i = 0; i < d->port.gid_tbl_len; i++) {
		if (ibv_query_gid(d->ctx, 1, i, &one.gid)) {
			FAIL("ibv_query_gid of index %d", i);
			continue;
		}
		if (is_zero(&one.gid)) {
			empty = empty < 0 ? i : empty;
			continue;
		}
		one.gid_index = i;
		used++;
		struct pair p = pair_new(&one, &PAIR_DEFAULTS);
		struct ibv_sge s = sge_at(&p.mem[0], 0, 5000);
		struct ibv_send_wr wr = request(&p, IBV_WR_RDMA_WRITE, &s, 1, 0);
		memset(p.mem[0].base, i + 1, 5000);
		if (post(&p, &wr))
			FAIL("post over GID %d", i);
		char what[40];
		snprintf(what, sizeof what, "WRITE over GID index %d", i);
		expect_wc(&p, 0, S, what);
		if (memcmp(p.mem[0].base, p.mem[1].base, 5000))
			FAIL("%s: other bytes arrived", what);
		pair_free(&p);
	}
	if (!used)
		FAIL("no GID at all");
	one = *d;
	one.gid_index = empty >= 0 ? empty : d->port.gid_tbl_len;
	for (int k = 0; k < 2; k++, one.gid_index = d->port.gid_tbl_len) {
		struct ibv_ah_attr a = ah_of(&one, &d->gid);
		errno = 0;
		if (ibv_create_ah(d->pd, &a) || (errno != EINVAL && !(kernel_rxe && errno == ENODATA)))
			FAIL("ibv_create_ah with sgid_index %d: errno %d", one.gid_index, errno);
	}
}

static const struct test_case CASES[] = {
	{ "c030_every_gid", c030_every_gid },
	{ "c039_fence", c039_fence },
	{ "c041_inline", c041_inline },
	{ "c042_atomic_rules", c042_atomic_rules },
	{ "c042_atomic_sum", c042_atomic_sum },
	{ "c054_remote_bounds", c054_remote_bounds },
	{ "c054_huge_length", c054_huge_length },
	{ "c054_local_bounds", c054_local_bounds },
};

int main(int argc, char **argv)
{
	program = "edges";
	if (getenv("EDGES_ADDS"))
		adds_each = atoi(getenv("EDGES_ADDS"));
	return case_main(argc, argv, CASES, LEN(CASES));
}
