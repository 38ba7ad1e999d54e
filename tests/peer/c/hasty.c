/* SPDX-License-Identifier: MIT OR Apache-2.0
 * hasty: programs that end the moment they have polled their last receive, in every way that C knows, from where
 * that is allowed. The ACK of it must not end with them: the peer's request completes.
 * hasty [-d DEV] [-g GID] [-m MTU] [-c CASES]      exit status 0 when every case held
 * Build: cc -O2 -pthread -o hasty hasty.c -libverbs */
#define _GNU_SOURCE
#include "pair.h"
#include <signal.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>

#define ROUNDS 12
#define MESSAGES 40 /* a program that polls on gets its ACKs on their way by the next poll, after the first few */
#define LEN 64
#define END_MS 1500 /* no ending waits longer, wherever it was called */

/* One end; the child's is made in the child, which is a process like any other. */
struct end {
	struct device d;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct region mem;
};

static void end_new(struct end *e, const char *dev, int fd)
{
	const struct qp_options *o = &PAIR_DEFAULTS.qp[0];
	open_device(&e->d, dev, -1, 0);
	struct ibv_qp_init_attr a = { .qp_type = IBV_QPT_RC, .sq_sig_all = 1, .cap = { 8, MESSAGES, 1, 1, 0 } };
	if (!(a.send_cq = a.recv_cq = e->cq = ibv_create_cq(e->d.ctx, 64, NULL, NULL, 0)))
		DIE("ibv_create_cq");
	if (!(e->qp = ibv_create_qp(e->d.pd, &a)))
		DIE("ibv_create_qp");
	region_new(&e->d, &e->mem, ALL_ACCESS);
	struct qp_addr mine = { e->qp->qp_num, 0x1000, e->d.gid }, peer;
	tcp_send(fd, &mine, sizeof mine);
	tcp_recv(fd, &peer, sizeof peer);
	if ((errno = to_init(e->qp, o)) || (errno = to_rtr(&e->d, e->qp, &peer, o)) || (errno = to_rts(&e->d, e->qp, mine.psn, o)))
		DIE("queue pair");
}

static void end_free(struct end *e)
{
	if (ibv_destroy_qp(e->qp) || ibv_destroy_cq(e->cq))
		FAIL("destroying");
	region_free(&e->mem);
	if (ibv_dealloc_pd(e->d.pd) || ibv_close_device(e->d.ctx))
		FAIL("closing");
}

/* ---- ways to end ---- */

typedef void way(void);
static void by_exit(void) { exit(0); }
static void by_underscore_exit(void) { _exit(0); }
static void by_capital_exit(void) { _Exit(0); }
static void by_quick_exit(void) { quick_exit(0); }

static void handler(int signal) { (void)signal; _exit(0); }
static void in_a_handler(void)
{
	signal(SIGUSR1, handler);
	raise(SIGUSR1);
}

static void *thread_exits(void *arg) { (void)arg; _exit(0); }
static void in_a_thread(void)
{
	pthread_t thread;
	pthread_create(&thread, NULL, thread_exits, NULL);
	pthread_join(thread, NULL);
}

/* A child that shares our memory ends first; it has nothing to say, and what it must not do is end us. */
static void beside_a_vfork(void)
{
	pid_t pid = vfork();
	if (pid == 0)
		_exit(0);
	waitpid(pid, NULL, 0);
	_exit(0);
}

/* ---- cases ---- */

/* The status a child ended with, -1 if it did not within END_MS. */
static int ended(pid_t pid)
{
	int status = -1;
	for (uint64_t end = now_ns() + END_MS * 1000000ull; now_ns() < end; usleep(1000))
		if (waitpid(pid, &status, WNOHANG) == pid)
			return status;
	kill(pid, SIGKILL);
	waitpid(pid, &status, 0);
	return -1;
}

static void child_polls(int fd, const char *dev, way *way)
{
	struct end e;
	struct ibv_wc wc;
	end_new(&e, dev, fd);
	struct ibv_sge s = sge_at(&e.mem, 0, LEN);
	struct ibv_recv_wr wr = { .wr_id = 1, .sg_list = &s, .num_sge = 1 }, *bad;
	for (int i = 0; i < MESSAGES; i++)
		if (ibv_post_recv(e.qp, &wr, &bad))
			DIE("ibv_post_recv");
	barrier(fd, 0);
	for (int i = 0; i < MESSAGES; i++)
		if (wait_wc(e.cq, &wc, 5000) != 1 || wc.status)
			DIE("no message");
	way();
	abort();
}

static int one_round(struct device *d, const char *name, way *way)
{
	int fds[2], before = failures;
	const char *dev = ibv_get_device_name(d->ctx->device);
	if (socketpair(AF_UNIX, SOCK_STREAM, 0, fds))
		DIE("socketpair");
	pid_t pid = fork();
	if (pid == 0) {
		close(fds[0]);
		child_polls(fds[1], dev, way);
	}
	close(fds[1]);
	struct end e;
	struct ibv_wc wc = { 0 };
	end_new(&e, dev, fds[0]);
	struct ibv_sge s = sge_at(&e.mem, 0, LEN);
	struct ibv_send_wr wr = { .wr_id = 2, .opcode = IBV_WR_SEND, .sg_list = &s, .num_sge = 1 }, *bad;
	barrier(fds[0], 0);
	for (int i = 0; i < MESSAGES && failures == before; i++) {
		if (ibv_post_send(e.qp, &wr, &bad))
			DIE("ibv_post_send");
		if (wait_wc(e.cq, &wc, 20000) != 1 || wc.status)
			FAIL("%s: message %d of %d: status %d (%s)", name, i + 1, MESSAGES, wc.status, ibv_wc_status_str(wc.status));
	}
	int status = ended(pid);
	if (status)
		FAIL("%s: the child's status is 0x%x", name, status);
	end_free(&e);
	close(fds[0]);
	return failures == before;
}

#define ENDS(way)                                                             \
	static void ends_##way(struct device *d)                              \
	{                                                                     \
		for (int i = 0; i < ROUNDS && one_round(d, #way, way); i++)   \
			;                                                     \
	}
ENDS(by_exit)
ENDS(by_underscore_exit)
ENDS(by_capital_exit)
ENDS(by_quick_exit)
ENDS(in_a_handler)
ENDS(in_a_thread)
ENDS(beside_a_vfork)

/* ---- endings that come at any moment ---- */

static volatile sig_atomic_t quick;
static void alarmed(int signal)
{
	(void)signal;
	if (quick)
		quick_exit(0);
	_exit(0);
}

/* Traffic, memory and objects made and freed: whatever lock there is, the handler interrupts its holder. */
static void child_works(const char *dev, uint64_t seed)
{
	struct device d;
	struct rng r = { seed };
	quick = (int)(seed & 1);
	signal(SIGALRM, alarmed);
	open_device(&d, dev, -1, 0);
	struct pair p = pair_new(&d, &PAIR_DEFAULTS);
	struct itimerval when = { .it_value = { 0, 200 + rng_below(&r, 4000) } };
	setitimer(ITIMER_REAL, &when, NULL);
	for (;;) {
		struct ibv_sge s = sge_at(&p.mem[0], 0, LEN);
		struct ibv_send_wr wr = request(&p, IBV_WR_RDMA_WRITE, &s, 1, 0);
		struct ibv_wc wc;
		post(&p, &wr);
		while (!ibv_poll_cq(p.cq[0], 1, &wc))
			;
		struct ibv_mr *mr = ibv_reg_mr(d.pd, p.mem[0].base, LEN, 0);
		if (mr)
			ibv_dereg_mr(mr);
		free(malloc(100000 + rng_below(&r, 100000)));
	}
}

static void at_any_moment(struct device *d)
{
	const char *dev = ibv_get_device_name(d->ctx->device);
	for (uint64_t seed = 1; seed <= 60; seed++) {
		pid_t pid = fork();
		if (pid == 0)
			child_works(dev, seed);
		/* it starts, works for milliseconds, and ends */
		int status = ended(pid);
		if (status)
			return FAIL("seed %llu: the child's status is 0x%x", (unsigned long long)seed, status);
	}
}

/* A stranger to verbs ends at once, and so does a child of one who knows them. */
static void without_verbs(struct device *d)
{
	(void)d;
	uint64_t start = now_ns();
	for (int i = 0; i < 100; i++) {
		pid_t pid = fork();
		if (pid == 0)
			_exit(0);
		int status = ended(pid);
		if (status)
			return FAIL("the child's status is 0x%x", status);
	}
	if (now_ns() - start > 5000000000ull)
		FAIL("a hundred children took %llu ms", (unsigned long long)((now_ns() - start) / 1000000));
}

static const struct test_case CASES[] = {
	{ "ends_by_exit", ends_by_exit },
	{ "ends_by_underscore_exit", ends_by_underscore_exit },
	{ "ends_by_capital_exit", ends_by_capital_exit },
	{ "ends_by_quick_exit", ends_by_quick_exit },
	{ "ends_in_a_handler", ends_in_a_handler },
	{ "ends_in_a_thread", ends_in_a_thread },
	{ "ends_beside_a_vfork", ends_beside_a_vfork },
	{ "at_any_moment", at_any_moment },
	{ "without_verbs", without_verbs },
};

int main(int argc, char **argv)
{
	program = "hasty";
	return case_main(argc, argv, CASES, sizeof CASES / sizeof *CASES);
}
