/* SPDX-License-Identifier: MIT OR Apache-2.0
 * waits: two programs that send each other bursts of messages of all sizes, and wait for them in ways that
 * change from burst to burst: they poll, sleep for an event, sleep on the channel's descriptor by means of
 * their own, look now and then, or do something else meanwhile. No message may be lost, overtaken, or wait
 * for anything but its receiver: a queue pair has no timer here that would hide it.
 *   waits [-d DEV] [-g GID] [-p PORT] [-T rc|uc] [-n BURSTS] [-S SEED] [HOST] */
#include "common.h"

#define BURST 8
#define BYTES 3000
#define LATE_MS 1000

enum way { POLL, SOME_POLLS_THEN_EVENT, EVENT, OWN_POLL, NOW_AND_THEN, ELSEWHERE, WAYS };

struct end {
	struct device d;
	struct ibv_comp_channel *channel;
	struct ibv_cq *sent, *got;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	uint8_t out[BURST][BYTES], in[2 * BURST][BYTES];
	uint32_t next_in, next_out; /* numbers of messages */
	uint64_t longest_ns;
	struct rng chance;
};

struct hello {
	struct qp_addr addr;
	uint64_t seed;
};

static struct end e;

static void make(const char *dev, int gid, enum ibv_qp_type type)
{
	open_device(&e.d, dev, gid, 0);
	e.channel = ibv_create_comp_channel(e.d.ctx);
	e.sent = ibv_create_cq(e.d.ctx, BURST, NULL, NULL, 0);
	e.got = ibv_create_cq(e.d.ctx, 2 * BURST, NULL, e.channel, 0);
	e.mr = ibv_reg_mr(e.d.pd, &e, sizeof e, IBV_ACCESS_LOCAL_WRITE);
	if (!e.channel || !e.sent || !e.got || !e.mr)
		DIE("objects");
	struct ibv_qp_init_attr a = { .send_cq = e.sent, .recv_cq = e.got, .qp_type = type, .sq_sig_all = 1,
		.cap = { BURST, 2 * BURST, 1, 1, 0 } };
	if (!(e.qp = ibv_create_qp(e.d.pd, &a)))
		DIE("ibv_create_qp");
}

static void give(uint32_t slot)
{
	struct ibv_sge s = { (uintptr_t)e.in[slot], BYTES, e.mr->lkey };
	struct ibv_recv_wr w = { .wr_id = slot, .sg_list = &s, .num_sge = 1 }, *bad;
	if ((errno = ibv_post_recv(e.qp, &w, &bad)))
		DIE("ibv_post_recv");
}

/* Half of them small. */
static uint32_t size_of(uint32_t number)
{
	uint64_t r = mix(number);
	return 8 + (uint32_t)(r % (r >> 60 < 8 ? 100 : BYTES - 8));
}

static void fill(uint8_t *p, uint32_t number)
{
	memset(p, (int)number, size_of(number));
	memcpy(p, &number, sizeof number);
}

static void check(const struct ibv_wc *wc)
{
	uint8_t want[BYTES];
	uint32_t number = e.next_in++;
	if (wc->status != IBV_WC_SUCCESS)
		FAIL("message %u: %s", number, ibv_wc_status_str(wc->status));
	fill(want, number);
	if (wc->byte_len != size_of(number) || memcmp(want, e.in[wc->wr_id], wc->byte_len)) {
		uint32_t other;
		memcpy(&other, e.in[wc->wr_id], sizeof other);
		FAIL("message %u: %u bytes of message %u", number, wc->byte_len, other);
	}
	give((uint32_t)wc->wr_id);
}

static int take(uint32_t *left)
{
	struct ibv_wc wc;
	int n = ibv_poll_cq(e.got, 1, &wc);
	if (n < 0)
		DIE("ibv_poll_cq");
	if (n > 0) {
		check(&wc);
		--*left;
	}
	return n;
}

static void take_all(uint32_t *left)
{
	while (*left && take(left))
		;
}

static void event(int own)
{
	struct pollfd fd = { e.channel->fd, POLLIN, 0 };
	struct ibv_cq *cq;
	void *context;
	if (own && poll(&fd, 1, 3 * LATE_MS) != 1)
		FAIL("no event in %d ms after message %u", 3 * LATE_MS, e.next_in);
	if (ibv_get_cq_event(e.channel, &cq, &context))
		DIE("ibv_get_cq_event");
	ibv_ack_cq_events(cq, 1);
}

static void arm_and_sleep(uint32_t *left, int own)
{
	if ((errno = ibv_req_notify_cq(e.got, 0)))
		DIE("ibv_req_notify_cq");
	if (!take(left)) {
		event(own);
		return;
	}
	/* armed all the same: its event is taken with a later one */
}

/* Until `left` messages have come. */
static void wait_for(uint32_t left, enum way way)
{
	uint64_t start = now_ns();
	while (left) {
		take_all(&left);
		if (!left)
			break;
		switch (way) {
		case SOME_POLLS_THEN_EVENT:
			for (uint32_t n = rng_below(&e.chance, 3000); n && left; n--)
				take(&left);
			if (left)
				arm_and_sleep(&left, 0);
			break;
		case EVENT: arm_and_sleep(&left, 0); break;
		case OWN_POLL: arm_and_sleep(&left, 1); break;
		case NOW_AND_THEN: usleep(rng_below(&e.chance, 300)); break;
		case ELSEWHERE:
			for (uint64_t end = now_ns() + rng_below(&e.chance, 3000000); now_ns() < end;)
				;
			break;
		default: break;
		}
	}
	uint64_t took = now_ns() - start;
	if (took > e.longest_ns)
		e.longest_ns = took;
	if (took > LATE_MS * 1000000ull)
		FAIL("%.0f ms until message %u, by way %d", (double)took / 1e6, e.next_in, way);
}

static void send_burst(uint32_t n)
{
	struct ibv_wc wc;
	for (uint32_t i = 0; i < n; i++) {
		uint32_t number = e.next_out++;
		fill(e.out[i], number);
		struct ibv_sge s = { (uintptr_t)e.out[i], size_of(number), e.mr->lkey };
		struct ibv_send_wr w = { .wr_id = i, .sg_list = &s, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad;
		if ((errno = ibv_post_send(e.qp, &w, &bad)))
			DIE("ibv_post_send");
	}
	for (uint32_t i = 0; i < n; i++)
		if (wait_wc(e.sent, &wc, 3 * LATE_MS) != 1 || wc.status)
			DIE("a send that does not complete");
}

static uint32_t burst(struct rng *common) { return 1 + rng_below(common, BURST); }

int main(int argc, char **argv)
{
	const char *dev = NULL, *port = "18960";
	enum ibv_qp_type type = IBV_QPT_RC;
	uint32_t bursts = 2000;
	uint64_t seed = 1;
	int gid = -1, opt;
	program = "waits";
	while ((opt = getopt(argc, argv, "d:g:p:T:n:S:")) != -1)
		switch (opt) {
		case 'd': dev = optarg; break;
		case 'g': gid = atoi(optarg); break;
		case 'p': port = optarg; break;
		case 'T': type = strcmp(optarg, "uc") ? IBV_QPT_RC : IBV_QPT_UC; break;
		case 'n': bursts = (uint32_t)atoi(optarg); break;
		case 'S': seed = strtoull(optarg, NULL, 0); break;
		default: return 2;
		}
	int asks = optind < argc;
	make(dev, gid, type);
	int fd = asks ? tcp_connect(argv[optind], port, 10) : tcp_accept(tcp_listen(port), 0);
	struct qp_options o = QP_DEFAULTS;
	o.timeout = 0;
	uint32_t psn = (uint32_t)getpid() & 0xffffff;
	struct hello mine = { { e.qp->qp_num, psn, e.d.gid }, seed }, theirs;
	tcp_send(fd, &mine, sizeof mine);
	tcp_recv(fd, &theirs, sizeof theirs);
	if ((errno = to_init(e.qp, &o)))
		DIE("INIT");
	for (uint32_t i = 0; i < 2 * BURST; i++)
		give(i);
	if ((errno = to_rtr(&e.d, e.qp, &theirs.addr, &o)) || (errno = to_rts(&e.d, e.qp, psn, &o)))
		DIE("RTS");
	barrier(fd, 1);
	struct rng common = { asks ? seed : theirs.seed };
	e.chance.state = mix(seed + (uint64_t)asks);
	enum way way = POLL;
	for (uint32_t i = 0; i < bursts; i++) {
		uint32_t there = burst(&common), back = burst(&common);
		/* a way stays for some bursts, so that it becomes a habit */
		if (rng_below(&e.chance, 8) == 0)
			way = (enum way)rng_below(&e.chance, WAYS);
		if (asks)
			send_burst(there);
		wait_for(asks ? back : there, way);
		if (!asks)
			send_burst(back);
	}
	barrier(fd, (uint32_t)failures);
	printf("%u messages, the longest wait %.1f ms\n", e.next_in, (double)e.longest_ns / 1e6);
	return failures ? 1 : 0;
}
