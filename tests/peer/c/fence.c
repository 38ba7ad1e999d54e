/* SPDX-License-Identifier: MIT OR Apache-2.0
 * fence: C010 and C020, memory whose registration ends while the peer works on it.
 *   fence [-d DEV] [-g GID] [-m MTU] [-p PORT] [-n ROUNDS] reuse         the owner of the memory
 *   fence [...] reuse HOST                                               its peer
 *   fence [...] [-s MIB] dereg|munmap [HOST]                             C010, the same two sides
 * Exit status 0 when everything held. */
#define _GNU_SOURCE
#include "common.h"

#define CANARY 0xca
#define CHUNK 65536u
#define AREA_BYTES (4u * CHUNK)

struct options {
	const char *dev, *port, *what, *host;
	int gid, mtu, rounds;
	size_t mib;
};

struct end {
	struct device d;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	uint32_t psn;
	int fd;
};

struct hello {
	struct qp_addr addr;
	uint64_t va;
	uint32_t rkey, kind;
};

static void make(struct end *e, const struct options *o)
{
	open_device(&e->d, o->dev, o->gid, o->mtu);
	struct ibv_cq *cq = e->cq = ibv_create_cq(e->d.ctx, 64, NULL, NULL, 0);
	struct ibv_qp_init_attr a = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .sq_sig_all = 1, .cap = { 16, 16, 1, 1, 0 } };
	if (!cq || !(e->qp = ibv_create_qp(e->d.pd, &a)))
		DIE("queue pair");
	e->psn = (uint32_t)getpid() & 0xffffff;
	e->fd = o->host ? tcp_connect(o->host, o->port, 60) : tcp_accept(tcp_listen(o->port), 60);
}

/* From whatever state it is in; each time with another PSN. */
static struct hello join(struct end *e, struct hello mine)
{
	struct hello theirs;
	struct ibv_qp_attr reset = { .qp_state = IBV_QPS_RESET };
	struct qp_options o = QP_DEFAULTS;
	o.timeout = 12;
	e->psn = (e->psn + 0x1001) & 0xffffff;
	mine.addr = (struct qp_addr){ e->qp->qp_num, e->psn, e->d.gid };
	if ((errno = ibv_modify_qp(e->qp, &reset, IBV_QP_STATE)) || (errno = to_init(e->qp, &o)))
		DIE("queue pair to RESET and INIT");
	tcp_send(e->fd, &mine, sizeof mine);
	tcp_recv(e->fd, &theirs, sizeof theirs);
	if ((errno = to_rtr(&e->d, e->qp, &theirs.addr, &o)) || (errno = to_rts(&e->d, e->qp, e->psn, &o)))
		DIE("queue pair to RTS");
	barrier(e->fd, 1);
	return theirs;
}

static uint64_t timed_dereg(struct ibv_mr *mr)
{
	uint64_t before = now_ns();
	if (ibv_dereg_mr(mr))
		FAIL("ibv_dereg_mr");
	uint64_t took = now_ns() - before;
	if (took > 1000000000u)
		FAIL("ibv_dereg_mr took %llu ms", (unsigned long long)took / 1000000);
	return took;
}

/* ---- C020: registered, used by the peer, deregistered, reused at once; over and over ---- */

enum kind { WRITES, READS, BOTH, SENDS, KINDS };

static uint8_t *map_at(uint8_t *at)
{
	int flags = MAP_PRIVATE | MAP_ANONYMOUS | (at ? MAP_FIXED : 0);
	uint8_t *p = mmap(at, AREA_BYTES, PROT_READ | PROT_WRITE, flags, -1, 0);
	if (p == MAP_FAILED)
		DIE("mmap");
	return p;
}

/* what the peer writes and what it may read: one pattern a round, never the canary */
static uint8_t tone(int round) { return (uint8_t)(1 + round % 100); }

static void owner_round(struct end *e, uint8_t **area, int round, struct rng *r)
{
	enum kind kind = (enum kind)(round % KINDS);
	memset(*area, tone(round), AREA_BYTES);
	struct ibv_mr *mr = ibv_reg_mr(e->d.pd, *area, AREA_BYTES, ALL_ACCESS);
	if (!mr)
		DIE("ibv_reg_mr");
	/* SENDS: no receive is posted, so the peer is told to come again */
	join(e, (struct hello){ .va = (uintptr_t)*area, .rkey = mr->rkey, .kind = kind });
	usleep(rng_below(r, 3000));
	timed_dereg(mr);
	munmap(*area, AREA_BYTES);
	*area = map_at(*area);
	memset(*area, CANARY, AREA_BYTES);
	usleep(10000);
	for (uint32_t i = 0; i < AREA_BYTES; i++)
		if ((*area)[i] != CANARY) {
			FAIL("round %d: byte %u of reused memory is 0x%02x", round, i, (*area)[i]);
			break;
		}
	barrier(e->fd, 2);
	struct ibv_wc wc;
	while (ibv_poll_cq(e->cq, 1, &wc) > 0)
		;
}

static void owner(struct end *e, int rounds)
{
	struct rng r = { 7 };
	uint8_t *area = map_at(NULL);
	for (int round = 0; round < rounds && !failures; round++)
		owner_round(e, &area, round, &r);
	munmap(area, AREA_BYTES);
}

static int post_chunk(struct end *e, const struct hello *to, struct ibv_mr *mr, uint8_t *at, uint64_t n)
{
	struct ibv_sge s = { (uintptr_t)at, CHUNK, mr->lkey };
	struct ibv_send_wr wr = { .wr_id = n, .sg_list = &s, .num_sge = 1 }, *bad;
	int reads = to->kind == READS || (to->kind == BOTH && n % 2);
	wr.opcode = to->kind == SENDS ? IBV_WR_SEND : reads ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE;
	wr.wr.rdma.remote_addr = to->va + n % 4 * CHUNK;
	wr.wr.rdma.rkey = to->rkey;
	return ibv_post_send(e->qp, &wr, &bad);
}

/* Works on the owner's memory until that ends. */
static void peer_round(struct end *e, struct ibv_mr *mr, uint8_t *area, int round)
{
	memset(area, tone(round), AREA_BYTES);
	struct hello to = join(e, (struct hello){ 0 });
	uint64_t posted = 0, done = 0, limit = now_ns() + (to.kind == SENDS ? 8000000u : 10000000000u);
	int status = IBV_WC_SUCCESS;
	while (!status && now_ns() < limit) {
		while (posted - done < 4 && !post_chunk(e, &to, mr, area + posted % 4 * CHUNK, posted))
			posted++;
		struct ibv_wc wc;
		if (ibv_poll_cq(e->cq, 1, &wc) < 1)
			continue;
		status = wc.status;
		done++;
	}
	if (to.kind != SENDS && status != IBV_WC_REM_ACCESS_ERR)
		FAIL("round %d: status %d after %llu requests", round, status, (unsigned long long)done);
	for (uint32_t i = 0; i < AREA_BYTES; i++)
		if (area[i] != tone(round)) {
			FAIL("round %d: byte %u was read as 0x%02x", round, i, area[i]);
			break;
		}
	barrier(e->fd, 2);
	struct ibv_wc wc;
	while (ibv_poll_cq(e->cq, 1, &wc) > 0)
		if (wc.status == IBV_WC_SUCCESS && status)
			FAIL("round %d: a success after the error", round);
}

static void peer(struct end *e, int rounds)
{
	uint8_t *area = map_at(NULL);
	struct ibv_mr *mr = ibv_reg_mr(e->d.pd, area, AREA_BYTES, IBV_ACCESS_LOCAL_WRITE);
	if (!mr)
		DIE("ibv_reg_mr");
	for (int round = 0; round < rounds && !failures; round++)
		peer_round(e, mr, area, round);
}

/* ---- C010: the memory goes half way through one large READ ---- */

static uint8_t byte_at(size_t i) { return (uint8_t)(1 + i * 31 % 251); }

static uint8_t *big(size_t bytes, int filled)
{
	uint8_t *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED)
		DIE("mmap of %zu bytes", bytes);
	for (size_t i = 0; i < bytes; i++)
		p[i] = filled ? byte_at(i) : 0;
	return p;
}

static void half_way_owner(struct end *e, const struct options *o)
{
	size_t bytes = o->mib << 20;
	uint8_t *p = big(bytes, 1);
	struct ibv_mr *mr = ibv_reg_mr(e->d.pd, p, bytes, ALL_ACCESS);
	if (!mr)
		DIE("ibv_reg_mr");
	join(e, (struct hello){ .va = (uintptr_t)p, .rkey = mr->rkey });
	barrier(e->fd, 3); /* half of it is there */
	if (!strcmp(o->what, "munmap"))
		munmap(p, bytes);
	else
		timed_dereg(mr);
	barrier(e->fd, 4);
	barrier(e->fd, 5); /* the peer has seen the end */
	struct ibv_qp_attr a;
	struct ibv_qp_init_attr init;
	if (ibv_query_qp(e->qp, &a, IBV_QP_STATE, &init) || a.qp_state != IBV_QPS_ERR)
		FAIL("the owner's queue pair is in state %d", a.qp_state);
}

/* Waits until the bytes that the READ brings have come to `half`. */
static void await_half(struct end *e, const uint8_t *p, size_t half)
{
	struct ibv_wc wc;
	uint64_t limit = now_ns() + 60000000000u;
	while (!*(const volatile uint8_t *)(p + half)) {
		if (ibv_poll_cq(e->cq, 1, &wc)) {
			FAIL("a completion before half of it was there: status %d", wc.status);
			return;
		}
		if (now_ns() > limit)
			DIE("half of it never came");
	}
}

static void half_way_peer(struct end *e, const struct options *o)
{
	size_t bytes = o->mib << 20, landed = 0;
	uint8_t *p = big(bytes, 0);
	struct ibv_mr *mr = ibv_reg_mr(e->d.pd, p, bytes, IBV_ACCESS_LOCAL_WRITE);
	if (!mr)
		DIE("ibv_reg_mr");
	struct hello to = join(e, (struct hello){ 0 });
	for (uint64_t id = 0; id < 4; id++) { /* the READ, and three that will be flushed */
		struct ibv_sge s = { (uintptr_t)p, id ? 8 : (uint32_t)bytes, mr->lkey };
		struct ibv_send_wr wr = { .wr_id = id, .sg_list = &s, .num_sge = 1, .opcode = IBV_WR_RDMA_READ }, *bad;
		wr.wr.rdma.remote_addr = to.va;
		wr.wr.rdma.rkey = to.rkey;
		if ((errno = ibv_post_send(e->qp, &wr, &bad)))
			DIE("ibv_post_send");
	}
	await_half(e, p, bytes / 2);
	barrier(e->fd, 3);
	barrier(e->fd, 4);
	uint64_t gone = now_ns();
	struct ibv_wc wc = { 0 };
	int want = !strcmp(o->what, "munmap") ? IBV_WC_REM_OP_ERR : IBV_WC_REM_ACCESS_ERR;
	if (wait_wc(e->cq, &wc, 10000) != 1 || wc.wr_id != 0 || (int)wc.status != want)
		FAIL("completion of wr_id %llu with status %d, expected %d", (unsigned long long)wc.wr_id, wc.status, want);
	printf("ended after %llu ms\n", (unsigned long long)(now_ns() - gone) / 1000000);
	if (now_ns() - gone > 1000000000u)
		FAIL("it took more than a second");
	for (uint64_t id = 1; id < 4; id++)
		if (wait_wc(e->cq, &wc, 1000) != 1 || wc.wr_id != id || wc.status != IBV_WC_WR_FLUSH_ERR)
			FAIL("request %llu: wr_id %llu status %d", (unsigned long long)id, (unsigned long long)wc.wr_id, wc.status);
	if (wait_wc(e->cq, &wc, 300))
		FAIL("one completion too many, status %d", wc.status);
	while (landed < bytes && p[landed] == byte_at(landed))
		landed++;
	printf("landed %zu of %zu\n", landed, bytes);
	for (size_t i = landed; i < bytes; i++)
		if (p[i]) {
			FAIL("byte %zu is 0x%02x, behind byte %zu, which has not come", i, p[i], landed);
			break;
		}
	if (landed < bytes / 2 || landed == bytes)
		FAIL("%zu bytes of %zu have landed", landed, bytes);
	printf("quiet\n"); /* from now on nothing may be on the wire */
	fflush(stdout);
	usleep(500000);
	barrier(e->fd, 5);
}

int main(int argc, char **argv)
{
	struct options o = { .port = "18950", .gid = -1, .rounds = 1000, .mib = 256 };
	struct end e = { 0 };
	int opt;
	program = "fence";
	while ((opt = getopt(argc, argv, "d:g:m:p:n:s:")) != -1)
		switch (opt) {
		case 'd': o.dev = optarg; break;
		case 'g': o.gid = atoi(optarg); break;
		case 'm': o.mtu = atoi(optarg); break;
		case 'p': o.port = optarg; break;
		case 'n': o.rounds = atoi(optarg); break;
		case 's': o.mib = (size_t)atoi(optarg); break;
		default: return 2;
		}
	o.what = argv[optind];
	if (!o.what)
		return 2;
	o.host = argv[optind + 1];
	make(&e, &o);
	if (strcmp(o.what, "reuse"))
		(o.host ? half_way_peer : half_way_owner)(&e, &o);
	else
		(o.host ? peer : owner)(&e, o.rounds);
	printf(failures ? "fence FAILED\n" : "fence ok\n");
	return failures != 0;
}
