/* SPDX-License-Identifier: MIT OR Apache-2.0
 * stream: a client keeps a queue pair busy until something ends it, and says how it ended.
 *   stream [-d DEV] [-g GID] [-p PORT]                      server: memory to work on; sleeps, calls no verb
 *   stream [...] HOST                                       client
 * -o write|read|send (default write; send needs the server to poll, so it does then)
 * -e client waits for completion events        -t N -r N timeout and retry_cnt (14, 7)
 * -s BYTES of a message (65536)                -n N messages, then a clean end (default: for ever)
 * -f server: a child made by fork holds on to everything while the server does nothing
 * -F the same, but the child is made past the C library, so that no handler of a fork runs
 * -w server: waits in ibv_get_async_event
 *
 * Lines of the client: "streaming", then at the end
 *   "ended status N (words) after X ms of silence, Y ms of timeout times R tries"
 *   "event TYPE (words)" for each asynchronous event; "call NAME errno N" for verbs tried afterwards;
 *   "destroyed" when every object could be destroyed.
 * Exit status: 0 a clean end; 1 an error completion; 3 an error of a call; 4 something was not destroyed. */
#define _GNU_SOURCE
#include "common.h"
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define DEPTH 8
#define RECVS 64

struct options {
	const char *dev, *port, *host, *op;
	int gid, mtu, events, child, raw_child, waits;
	struct qp_options qp;
	uint32_t bytes;
	uint64_t messages;
};

struct end {
	struct device d;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	uint8_t *memory;
	uint32_t psn;
};

struct hello {
	struct qp_addr addr;
	uint64_t va;
	uint32_t rkey, pad;
};

static void make(struct end *e, const struct options *o)
{
	open_device(&e->d, o->dev, o->gid, o->mtu);
	size_t len = (size_t)o->bytes * DEPTH;
	e->memory = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (e->memory == MAP_FAILED || !(e->mr = ibv_reg_mr(e->d.pd, e->memory, len, ALL_ACCESS)))
		DIE("memory");
	if (!(e->channel = ibv_create_comp_channel(e->d.ctx)))
		DIE("ibv_create_comp_channel");
	if (!(e->cq = ibv_create_cq(e->d.ctx, DEPTH + RECVS, NULL, e->channel, 0)))
		DIE("ibv_create_cq");
	struct ibv_qp_init_attr a = { .send_cq = e->cq, .recv_cq = e->cq, .qp_type = IBV_QPT_RC, .sq_sig_all = 1,
		.cap = { DEPTH, RECVS, 1, 1, 0 } };
	if (!(e->qp = ibv_create_qp(e->d.pd, &a)))
		DIE("ibv_create_qp");
	e->psn = (uint32_t)getpid() & 0xffffff;
}

static struct hello join(struct end *e, const struct options *o, int fd)
{
	struct hello mine = { { e->qp->qp_num, e->psn, e->d.gid }, (uintptr_t)e->memory, e->mr->rkey, 0 }, theirs;
	tcp_send(fd, &mine, sizeof mine);
	tcp_recv(fd, &theirs, sizeof theirs);
	if ((errno = to_init(e->qp, &o->qp)) || (errno = to_rtr(&e->d, e->qp, &theirs.addr, &o->qp)) ||
	    (errno = to_rts(&e->d, e->qp, e->psn, &o->qp)))
		DIE("queue pair");
	barrier(fd, 1);
	return theirs;
}

/* ---- server ---- */

static void give_receives(struct end *e, uint32_t bytes, int n)
{
	struct ibv_sge s = { (uintptr_t)e->memory, bytes, e->mr->lkey };
	struct ibv_recv_wr wr = { .sg_list = &s, .num_sge = 1 }, *bad;
	for (int i = 0; i < n; i++)
		if ((errno = ibv_post_recv(e->qp, &wr, &bad)))
			DIE("ibv_post_recv");
}

/* A child that lives on, with every descriptor that it was given. */
static void leave_child(int raw)
{
	pid_t pid = raw ? (pid_t)syscall(SYS_clone, (long)SIGCHLD, 0l, 0l, 0l, 0l) : fork();
	if (pid == 0)
		for (;;)
			syscall(SYS_pause);
	printf("child %d\n", (int)pid);
	fflush(stdout);
}

static void *tell_events(void *context)
{
	struct ibv_async_event event;
	while (!ibv_get_async_event(context, &event)) {
		printf("event %d (%s)\n", event.event_type, ibv_event_type_str(event.event_type));
		fflush(stdout);
		ibv_ack_async_event(&event);
	}
	printf("no more events: errno %d\n", errno);
	fflush(stdout);
	return NULL;
}

static int serve(struct end *e, const struct options *o)
{
	int fd = tcp_accept(tcp_listen(o->port), 0);
	join(e, o, fd);
	if (!strcmp(o->op, "send"))
		give_receives(e, o->bytes, RECVS); /* until then the client is told to come again */
	printf("qpn 0x%06x serving\n", e->qp->qp_num);
	fflush(stdout);
	if (o->child || o->raw_child)
		leave_child(o->raw_child);
	if (o->waits) {
		tell_events(e->d.ctx);
		return 1;
	}
	char byte;
	if (strcmp(o->op, "send")) {
		/* the client closes the side channel when it is done, or dies */
		while (recv(fd, &byte, 1, 0) > 0)
			;
		return 0;
	}
	struct ibv_wc wc;
	for (;;) {
		int n = ibv_poll_cq(e->cq, 1, &wc);
		if (n < 0 || (n > 0 && wc.status))
			return 1;
		if (n > 0)
			give_receives(e, o->bytes, 1);
		else if (recv(fd, &byte, 1, MSG_DONTWAIT) == 0)
			return 0;
	}
}

/* ---- client ---- */

static int post_one(struct end *e, const struct options *o, const struct hello *to, uint64_t id)
{
	uint64_t off = id % DEPTH * o->bytes;
	struct ibv_sge s = { (uintptr_t)e->memory + off, o->bytes, e->mr->lkey };
	struct ibv_send_wr wr = { .wr_id = id, .sg_list = &s, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE }, *bad;
	wr.wr.rdma.remote_addr = to->va + off;
	wr.wr.rdma.rkey = to->rkey;
	if (!strcmp(o->op, "read"))
		wr.opcode = IBV_WR_RDMA_READ;
	if (!strcmp(o->op, "send"))
		wr.opcode = IBV_WR_SEND;
	return ibv_post_send(e->qp, &wr, &bad);
}

static int next_wc(struct end *e, const struct options *o, struct ibv_wc *wc)
{
	for (;;) {
		int n = ibv_poll_cq(e->cq, 1, wc);
		if (n || !o->events)
			return n;
		if ((errno = ibv_req_notify_cq(e->cq, 0)))
			return -errno;
		n = ibv_poll_cq(e->cq, 1, wc);
		if (n)
			return n;
		struct ibv_cq *cq;
		void *context;
		if (ibv_get_cq_event(e->channel, &cq, &context))
			return -errno;
		ibv_ack_cq_events(cq, 1);
	}
}

static void say_end(const struct options *o, const struct ibv_wc *wc, uint64_t good)
{
	double silence = (double)(now_ns() - good) / 1e6, timeout = 4.096e-3 * (double)(1u << o->qp.timeout);
	printf("ended status %d (%s) after %.1f ms of silence, %.1f ms of timeout times %d tries\n", wc->status,
	       ibv_wc_status_str(wc->status), silence, timeout, o->qp.retry_cnt + 1);
	fflush(stdout);
}

/* Streams until an error; 0 after all messages, 1 after an error completion, 3 when a call failed. */
static int stream(struct end *e, const struct options *o, const struct hello *to)
{
	uint64_t posted = 0, done = 0, good = now_ns();
	struct ibv_wc wc;
	while (done < o->messages) {
		while (posted < o->messages && posted - done < DEPTH) {
			int err = post_one(e, o, to, posted);
			if (err) {
				printf("call ibv_post_send errno %d\n", err);
				return 3;
			}
			posted++;
		}
		int n = next_wc(e, o, &wc);
		if (n < 0) {
			printf("call ibv_poll_cq errno %d\n", -n);
			return 3;
		}
		if (n == 0)
			continue;
		if (wc.status) {
			say_end(o, &wc, good);
			return 1;
		}
		good = now_ns();
		done++;
		if (done == DEPTH) {
			printf("streaming\n");
			fflush(stdout);
		}
	}
	return 0;
}

/* Everything left must complete, flushed. */
static int drain(struct end *e)
{
	struct ibv_wc wc;
	int n = 0;
	for (uint64_t end = now_ns() + 200000000u; now_ns() < end;)
		if (ibv_poll_cq(e->cq, 1, &wc) > 0) {
			n++;
			if (wc.status != IBV_WC_WR_FLUSH_ERR)
				printf("after the end: status %d\n", wc.status);
		}
	printf("flushed %d\n", n);
	return n;
}

static void try_verbs(struct end *e)
{
	struct ibv_port_attr port = { 0 };
	int err = ibv_query_port(e->d.ctx, 1, &port);
	printf("port state %d errno %d\n", port.state, err);
	errno = 0;
	struct ibv_cq *cq = ibv_create_cq(e->d.ctx, 4, NULL, NULL, 0);
	printf("call ibv_create_cq errno %d\n", cq ? 0 : errno);
	if (cq)
		ibv_destroy_cq(cq);
	errno = 0;
	struct ibv_mr *mr = ibv_reg_mr(e->d.pd, e->memory, 100, 0);
	printf("call ibv_reg_mr errno %d\n", mr ? 0 : errno);
	if (mr)
		ibv_dereg_mr(mr);
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_RESET };
	printf("call ibv_modify_qp errno %d\n", ibv_modify_qp(e->qp, &a, IBV_QP_STATE));
}

static int destroy(struct end *e)
{
	int bad = 0;
	bad |= ibv_destroy_qp(e->qp);
	bad |= ibv_destroy_cq(e->cq);
	bad |= ibv_destroy_comp_channel(e->channel);
	bad |= ibv_dereg_mr(e->mr);
	bad |= ibv_dealloc_pd(e->d.pd);
	bad |= ibv_close_device(e->d.ctx);
	printf(bad ? "NOT destroyed\n" : "destroyed\n");
	fflush(stdout);
	return bad ? 4 : 0;
}

static int client(struct end *e, const struct options *o)
{
	pthread_t teller;
	int fd = tcp_connect(o->host, o->port, 10);
	struct hello to = join(e, o, fd);
	if (pthread_create(&teller, NULL, tell_events, e->d.ctx))
		DIE("pthread_create");
	int how = stream(e, o, &to);
	if (how == 0)
		return 0; /* clean: nothing more to see */
	drain(e);
	try_verbs(e);
	fflush(stdout);
	int failed = destroy(e);
	return failed ? failed : how;
}

int main(int argc, char **argv)
{
	struct options o = { .port = "18900", .op = "write", .gid = -1, .qp = QP_DEFAULTS, .bytes = 65536, .messages = UINT64_MAX };
	struct end e = { 0 };
	int opt;
	program = "stream";
	o.qp.timeout = 14;
	while ((opt = getopt(argc, argv, "d:g:m:p:o:et:r:s:n:fFw")) != -1)
		switch (opt) {
		case 'd': o.dev = optarg; break;
		case 'g': o.gid = atoi(optarg); break;
		case 'm': o.mtu = atoi(optarg); break;
		case 'p': o.port = optarg; break;
		case 'o': o.op = optarg; break;
		case 'e': o.events = 1; break;
		case 't': o.qp.timeout = atoi(optarg); break;
		case 'r': o.qp.retry_cnt = atoi(optarg); break;
		case 's': o.bytes = (uint32_t)atoi(optarg); break;
		case 'n': o.messages = strtoull(optarg, NULL, 0); break;
		case 'f': o.child = 1; break;
		case 'F': o.raw_child = 1; break;
		case 'w': o.waits = 1; break;
		default: return 2;
		}
	o.host = argv[optind];
	make(&e, &o);
	return o.host ? client(&e, &o) : serve(&e, &o);
}
