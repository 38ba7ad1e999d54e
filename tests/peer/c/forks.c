/* SPDX-License-Identifier: MIT OR Apache-2.0
 * forks: C048, children of every kind beside active RDMA.
 * forks [-d DEV] [-g GID] [-m MTU] [-c CASES]      exit status 0 when every case held
 * ROCEBUD_TEST_FULL=1: as many registrations as the case in full has, instead of a tenth. */
#define _GNU_SOURCE
#include "pair.h"
#include <dirent.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define CHILDREN 1000
#define LEN 20001u /* neither begins nor ends on a page */

extern char **environ;

/* ---- what a process has ---- */

static int lines_of_maps(void)
{
	FILE *f = fopen("/proc/self/maps", "r");
	int n = 0, c;
	while (f && (c = getc(f)) != EOF)
		n += c == '\n';
	if (f)
		fclose(f);
	return n;
}

/* Descriptors; those of sockets alone if asked so. */
static int descriptors(int sockets)
{
	DIR *dir = opendir("/proc/self/fd");
	int n = 0;
	for (struct dirent *e; dir && (e = readdir(dir));) {
		char path[300], link[64] = "";
		snprintf(path, sizeof path, "/proc/self/fd/%s", e->d_name);
		if (readlink(path, link, sizeof link - 1) > 0)
			n += !sockets || !strncmp(link, "socket:", 7);
	}
	if (dir)
		closedir(dir);
	return n;
}

/* ---- traffic in a thread of its own ---- */

struct traffic {
	struct pair p;
	uint32_t off; /* where the regions' data begin: not at a page */
	volatile int stop;
	uint64_t rounds;
};

static void *stream(void *arg)
{
	struct traffic *t = arg;
	while (!t->stop && !failures) {
		uint8_t *from = t->p.mem[0].base + t->off, *to = t->p.mem[1].base + t->off;
		for (uint32_t i = 0; i < LEN; i++)
			from[i] = (uint8_t)(mix(t->rounds) + i);
		struct ibv_sge s = sge_at(&t->p.mem[0], t->off, LEN);
		struct ibv_send_wr wr = request(&t->p, IBV_WR_RDMA_WRITE, &s, 1, t->off);
		struct ibv_wc wc = { 0 };
		if (post(&t->p, &wr) || wait_wc(t->p.cq[0], &wc, 10000) != 1 || wc.status)
			FAIL("round %llu: status %d", (unsigned long long)t->rounds, wc.status);
		if (memcmp(from, to, LEN))
			FAIL("round %llu: other bytes arrived", (unsigned long long)t->rounds);
		t->rounds++;
	}
	return NULL;
}

/* ---- children ---- */

static struct traffic *theirs; /* what children try to misuse */

/* Every verb on an inherited object is an error or nothing. */
static int misuses(void)
{
	struct pair *p = &theirs->p;
	struct ibv_wc wc;
	struct ibv_sge s = sge_at(&p->mem[0], 0, 8);
	struct ibv_send_wr wr = request(p, IBV_WR_RDMA_WRITE, &s, 1, 0);
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_ERR };
	int bad = 0;
	bad |= (ibv_poll_cq(p->cq[0], 1, &wc) >= 0) << 0;
	bad |= (post(p, &wr) == 0) << 1;
	bad |= (post_recv(p, 1, 1, &s, 1) == 0) << 2;
	bad |= (ibv_modify_qp(p->qp[0], &a, IBV_QP_STATE) == 0) << 3;
	bad |= (ibv_reg_mr(p->d->pd, p->mem[0].base, 10, 0) != NULL) << 4;
	bad |= (descriptors(1) != 0) << 5;
	/* destroying is refused or does nothing; the parent's objects must live on */
	ibv_destroy_qp(p->qp[0]);
	ibv_dereg_mr(p->mem[0].mr);
	ibv_destroy_cq(p->cq[1]);
	ibv_close_device(p->d->ctx);
	return bad;
}

/* Neighbours of the regions are there and can be written; it is a copy. */
static int touches(void)
{
	for (int i = 0; i < 2; i++) {
		struct region *r = &theirs->p.mem[i];
		if (r->area[REGION_AT - 1] != FILL || r->area[REGION_AT + REGION] != FILL)
			return 1;
		memset(r->area, 0x11, AREA);
	}
	return 0;
}

/* A child with objects of its own is a process like any other. */
static int lives(void)
{
	struct device d;
	open_device(&d, ibv_get_device_name(theirs->p.d->ctx->device), -1, 0);
	struct pair p = pair_new(&d, &PAIR_DEFAULTS);
	struct ibv_sge s = sge_at(&p.mem[0], 0, 100);
	struct ibv_send_wr wr = request(&p, IBV_WR_RDMA_WRITE, &s, 1, 0);
	memset(p.mem[0].base, 0x42, 100);
	if (post(&p, &wr))
		return 1;
	expect_wc(&p, 0, IBV_WC_SUCCESS, "in a child");
	return failures || p.mem[1].base[99] != 0x42;
}

static pid_t forked(int (*child)(void), int by_exit)
{
	pid_t pid = fork();
	if (pid == 0) {
		int status = child ? child() : 0;
		if (by_exit)
			exit(status); /* handlers run, ours too */
		_exit(status);
	}
	return pid;
}

/* Past the C library: no handler of a fork has run. */
static pid_t cloned(void)
{
	pid_t pid = (pid_t)syscall(SYS_clone, (long)SIGCHLD, 0l, 0l, 0l, 0l);
	if (pid == 0) {
		struct ibv_wc wc;
		int bad = ibv_poll_cq(theirs->p.cq[0], 1, &wc) >= 0;
		syscall(SYS_exit_group, bad);
	}
	return pid;
}

static pid_t spawned(void)
{
	char *argv[] = { "true", NULL };
	pid_t pid = -1;
	if (posix_spawnp(&pid, "true", NULL, NULL, argv, environ))
		FAIL("posix_spawnp");
	return pid;
}

static pid_t by_vfork(void)
{
	pid_t pid = vfork();
	if (pid == 0) {
		execlp("true", "true", (char *)NULL);
		_exit(127);
	}
	return pid;
}

static void one_child(int n)
{
	pid_t pid = -1;
	switch (n % 10) {
	case 0: pid = forked(misuses, 0); break;
	case 1: pid = forked(misuses, 1); break;
	case 2: pid = forked(touches, 0); break;
	case 3: pid = cloned(); break;
	case 4: pid = spawned(); break;
	case 5: pid = by_vfork(); break;
	case 6:
		if (system("exit 3") != 3 << 8)
			FAIL("system()");
		return;
	case 7: pid = n % 50 == 7 ? forked(lives, 1) : forked(NULL, 1); break;
	default: pid = forked(NULL, 0); break;
	}
	int status = -1;
	if (pid < 0 || waitpid(pid, &status, 0) != pid || status)
		FAIL("child %d, kind %d: status 0x%x", n, n % 10, status);
}

static void children_beside_traffic(struct device *d)
{
	struct traffic t = { .p = pair_new(d, &PAIR_DEFAULTS), .off = 77 };
	theirs = &t;
	pthread_t thread;
	if (pthread_create(&thread, NULL, stream, &t))
		DIE("pthread_create");
	int maps = 0, fds = 0;
	for (int n = 0; n < CHILDREN && !failures; n++) {
		one_child(n);
		if (n == 100) {
			maps = lines_of_maps();
			fds = descriptors(0);
		}
	}
	int maps_now = lines_of_maps(), fds_now = descriptors(0);
	if (maps_now > maps + 2 || fds_now != fds)
		FAIL("after 100 children %d maps and %d descriptors, after %d: %d and %d", maps, fds, CHILDREN, maps_now, fds_now);
	uint64_t before = t.rounds;
	usleep(100000);
	if (t.rounds == before)
		FAIL("the stream stands still");
	t.stop = 1;
	pthread_join(thread, NULL);
	for (int i = 0; i < 2; i++)
		if (region_touched(&t.p.mem[i], t.off, LEN) >= 0)
			FAIL("bytes beside the region have changed");
	pair_free(&t.p);
	int status;
	if (waitpid(-1, &status, WNOHANG) != -1 || errno != ECHILD)
		FAIL("there is a child that nobody made");
}

/* ---- ibv_fork_init ---- */

static void fork_init(struct device *d)
{
	(void)d;
	if (ibv_fork_init())
		FAIL("ibv_fork_init");
	if (ibv_is_fork_initialized() != IBV_FORK_UNNEEDED)
		FAIL("ibv_is_fork_initialized: %d", ibv_is_fork_initialized());
}

/* ---- registrations leave no trace in the map of memory, nor in what a child sees ---- */

static uint8_t *pieces;

static int sees_everything(void)
{
	for (uint32_t i = 0; i < 1 << 20; i++)
		if (pieces[i] != (uint8_t)(i * 5))
			return 1;
	return 0;
}

static void register_cycles(struct device *d)
{
	int cycles = getenv("ROCEBUD_TEST_FULL") ? 200000 : 20000, maps = 0;
	pieces = malloc(1 << 20);
	for (uint32_t i = 0; i < 1 << 20; i++)
		pieces[i] = (uint8_t)(i * 5);
	struct ibv_mr *mr[16] = { NULL };
	struct rng r = { 1 };
	for (int n = 0; n < cycles; n++) {
		if (mr[n % 16] && ibv_dereg_mr(mr[n % 16]))
			FAIL("ibv_dereg_mr");
		uint32_t at = rng_below(&r, (1 << 20) - 9000);
		mr[n % 16] = ibv_reg_mr(d->pd, pieces + at, 1 + rng_below(&r, 9000), ALL_ACCESS);
		if (!mr[n % 16])
			FAIL("ibv_reg_mr: errno %d", errno);
		if (n == 1000)
			maps = lines_of_maps();
		if (n % (cycles / 20) == 0) {
			int status = -1;
			waitpid(forked(sees_everything, 0), &status, 0);
			if (status)
				FAIL("a child does not see everything: 0x%x", status);
		}
	}
	if (lines_of_maps() > maps + 2)
		FAIL("%d maps after 1000 cycles, %d after %d", maps, lines_of_maps(), cycles);
	for (int i = 0; i < 16; i++)
		if (mr[i])
			ibv_dereg_mr(mr[i]);
	free(pieces);
}

static const struct test_case CASES[] = {
	{ "children_beside_traffic", children_beside_traffic },
	{ "fork_init", fork_init },
	{ "again_after_fork_init", children_beside_traffic },
	{ "register_cycles", register_cycles },
};

int main(int argc, char **argv)
{
	program = "forks";
	return case_main(argc, argv, CASES, sizeof CASES / sizeof *CASES);
}
