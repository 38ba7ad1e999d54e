/* SPDX-License-Identifier: MIT OR Apache-2.0
 * vanish: memory goes away under a registration, in every role that memory has and whatever the program
 * does with SIGSEGV and SIGBUS. Each time: error completions of the right status, never a crash, the
 * queue pair works again, and a fault of the program's own is still the program's.
 * vanish [-d DEV] [-g GID] [-m MTU] [-c CASES]      exit status 0 when every case held */
#define _GNU_SOURCE
#include "pair.h"
#include <dlfcn.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <sys/wait.h>

#define PAGE 4096u
#define PAGES 8u
#define HOLE 4u /* the page that goes */
#define FROM (2 * PAGE + 100) /* the message begins two pages before it and ends behind it */
#define LEN (4 * PAGE)

/* ---- memory that goes away ---- */

enum way { UNMAPPED, CLOSED, READ_ONLY, TRUNCATED, WAYS };
static const char *const WAY[] = { "munmap", "mprotect none", "mprotect read", "truncate" };

struct memory {
	uint8_t *at;
	int file;
	struct ibv_mr *mr;
};

static struct memory memory_new(struct device *d, enum way way)
{
	struct memory m = { .file = -1 };
	int flags = MAP_PRIVATE | MAP_ANONYMOUS;
	if (way == TRUNCATED) {
		char name[] = "/tmp/rocebud-vanish-XXXXXX";
		m.file = mkostemp(name, O_CLOEXEC);
		if (m.file < 0 || unlink(name) || ftruncate(m.file, PAGES * PAGE))
			DIE("a file in /tmp");
		flags = MAP_SHARED;
	}
	m.at = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, flags, m.file, 0);
	if (m.at == MAP_FAILED)
		DIE("mmap");
	memset(m.at, FILL, PAGES * PAGE);
	if (!(m.mr = ibv_reg_mr(d->pd, m.at, PAGES * PAGE, ALL_ACCESS)))
		DIE("ibv_reg_mr");
	return m;
}

static void memory_goes(struct memory *m, enum way way)
{
	uint8_t *hole = m->at + HOLE * PAGE;
	int e = 0;
	switch (way) {
	case UNMAPPED: e = munmap(hole, PAGE); break;
	case CLOSED: e = mprotect(hole, PAGE, PROT_NONE); break;
	case READ_ONLY: e = mprotect(hole, PAGE, PROT_READ); break;
	case TRUNCATED: e = ftruncate(m->file, HOLE * PAGE); break;
	case WAYS: break;
	}
	if (e)
		DIE("%s", WAY[way]);
}

static void memory_free(struct memory *m)
{
	if (ibv_dereg_mr(m->mr))
		FAIL("ibv_dereg_mr of memory that is gone");
	munmap(m->at, PAGES * PAGE);
	if (m->file >= 0)
		close(m->file);
}

static struct ibv_sge whole(const struct memory *m)
{
	return (struct ibv_sge){ (uintptr_t)m->at + FROM, LEN, m->mr->lkey };
}

static struct ibv_sge word(const struct memory *m)
{
	return (struct ibv_sge){ (uintptr_t)m->at + HOLE * PAGE + 64, 8, m->mr->lkey };
}

/* ---- the roles of memory ---- */

static struct ibv_send_wr to_memory(enum ibv_wr_opcode op, struct ibv_sge *sge, const struct memory *m)
{
	struct ibv_send_wr wr = { .wr_id = 77, .opcode = op, .sg_list = sge, .num_sge = 1 };
	if (op == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		wr.wr.atomic.remote_addr = word(m).addr;
		wr.wr.atomic.rkey = m->mr->rkey;
	} else {
		wr.wr.rdma.remote_addr = whole(m).addr;
		wr.wr.rdma.rkey = m->mr->rkey;
	}
	return wr;
}

enum role { SEND_FROM, WRITE_FROM, READ_INTO, ADD_INTO, RECV_INTO, WRITE_TO, READ_OF, ADD_TO, ROLES };
static const struct {
	const char *name;
	enum ibv_wr_opcode op;
	int requester, receiver; /* the statuses; -1: no receive completes */
	int writes;              /* the memory is written */
} ROLE[] = {
	{ "source of SEND", IBV_WR_SEND, IBV_WC_LOC_PROT_ERR, -1, 0 },
	{ "source of WRITE", IBV_WR_RDMA_WRITE, IBV_WC_LOC_PROT_ERR, -1, 0 },
	{ "destination of READ", IBV_WR_RDMA_READ, IBV_WC_LOC_PROT_ERR, -1, 1 },
	{ "result of FETCH_ADD", IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WC_LOC_PROT_ERR, -1, 1 },
	{ "receive buffer", IBV_WR_SEND, IBV_WC_REM_OP_ERR, IBV_WC_LOC_PROT_ERR, 1 },
	{ "target of WRITE", IBV_WR_RDMA_WRITE, IBV_WC_REM_OP_ERR, -1, 1 },
	{ "source of READ", IBV_WR_RDMA_READ, IBV_WC_REM_OP_ERR, -1, 0 },
	{ "target of FETCH_ADD", IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WC_REM_OP_ERR, -1, 1 },
};

static int is_local(enum role role) { return role <= ADD_INTO; }

/* Bytes of `m` before the hole must be those that the transfer brought, none behind it. */
static void check_landed(const struct memory *m, enum role role, const char *what)
{
	if (role != RECV_INTO && role != WRITE_TO && role != READ_INTO)
		return;
	for (uint32_t i = 0; i < HOLE * PAGE; i++) {
		uint8_t got = m->at[i];
		/* only what was checked is placed, in order; how much of it before the error is open */
		if (got != FILL && (i < FROM || got != 0x3c)) {
			FAIL("%s: byte %u is 0x%02x", what, i, got);
			return;
		}
	}
}

static void good_transfer(struct pair *p, const char *what)
{
	struct ibv_sge from = sge_at(&p->mem[0], 0, 5000), to = sge_at(&p->mem[1], 100, 5000);
	for (uint32_t i = 0; i < 5000; i++)
		p->mem[0].base[i] = (uint8_t)(i * 7 + 1);
	struct ibv_send_wr wr = request(p, IBV_WR_SEND, &from, 1, 0);
	if (post_recv(p, 1, 5, &to, 1) || post(p, &wr))
		FAIL("%s: posting afterwards", what);
	expect_wc(p, 0, IBV_WC_SUCCESS, what);
	expect_wc(p, 1, IBV_WC_SUCCESS, what);
	if (memcmp(p->mem[1].base + 100, p->mem[0].base, 5000))
		FAIL("%s: other bytes arrived afterwards", what);
}

static void vanish(struct device *d, struct pair *p, enum role role, enum way way)
{
	char what[96];
	snprintf(what, sizeof what, "%s, %s", ROLE[role].name, WAY[way]);
	struct memory m = memory_new(d, way);
	int atomic = ROLE[role].op == IBV_WR_ATOMIC_FETCH_AND_ADD;
	struct ibv_sge mine = atomic ? word(&m) : whole(&m), other = sge_at(&p->mem[0], 0, atomic ? 8 : LEN);
	memset(p->mem[0].base, 0x3c, LEN);
	memset(p->mem[1].base, 0x3c, LEN);
	struct ibv_sge receive = role == RECV_INTO ? mine : sge_at(&p->mem[1], 0, REGION);
	int receives = ROLE[role].op == IBV_WR_SEND;
	if (receives && post_recv(p, 1, 5, &receive, 1))
		FAIL("%s: ibv_post_recv", what);
	memory_goes(&m, way);
	struct ibv_send_wr wr;
	if (is_local(role))
		wr = request(p, ROLE[role].op, &mine, 1, 0);
	else
		wr = to_memory(ROLE[role].op, &other, &m);
	if (post(p, &wr))
		FAIL("%s: ibv_post_send", what);
	struct ibv_wc wc = expect_wc(p, 0, ROLE[role].requester, what);
	if (wc.wr_id != 77)
		FAIL("%s: completion of wr_id %llu", what, (unsigned long long)wc.wr_id);
	if (ROLE[role].receiver >= 0)
		expect_wc(p, 1, ROLE[role].receiver, what);
	expect_none(p, 0, what);
	check_landed(&m, role, what);
	memory_free(&m);
	pair_revive(p, &PAIR_DEFAULTS);
	good_transfer(p, what);
}

static void every_role(struct device *d)
{
	struct pair p = pair_new(d, &PAIR_DEFAULTS);
	for (int role = 0; role < ROLES; role++)
		for (int way = 0; way < WAYS; way++)
			if (way != READ_ONLY || ROLE[role].writes)
				vanish(d, &p, (enum role)role, (enum way)way);
	pair_free(&p);
}

/* ---- the program's own faults ---- */

static sigjmp_buf back;
static volatile sig_atomic_t caught;
static void *volatile caught_at;

static void on_own_fault(int sig, siginfo_t *info, void *context)
{
	(void)context;
	caught = sig;
	caught_at = info->si_addr;
	siglongjmp(back, 1);
}

static void on_own_fault_simple(int sig)
{
	caught = sig;
	siglongjmp(back, 1);
}

static void own_fault(int with_address)
{
	uint8_t *hole = mmap(NULL, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	caught = 0;
	caught_at = NULL;
	if (!sigsetjmp(back, 1))
		*(volatile uint8_t *)(hole + 8) = 1;
	if (caught != SIGSEGV || (with_address && caught_at != hole + 8))
		FAIL("the program's own fault: signal %d at %p", caught, caught_at);
	munmap(hole, PAGE);
}

/* What a child does, which must die of a signal or exit. */
static int fate(void (*child)(void))
{
	pid_t pid = fork();
	if (pid == 0) {
		child();
		_exit(0);
	}
	int status = 0;
	waitpid(pid, &status, 0);
	return WIFSIGNALED(status) ? WTERMSIG(status) : -WEXITSTATUS(status);
}

static uint8_t *volatile nowhere = (uint8_t *)8;
static void crash(void) { *nowhere = 1; }

static void dies_of_own_fault(const char *what)
{
	int how = fate(crash);
	if (how != SIGSEGV)
		FAIL("%s: a crash of the program ended it by %d", what, how);
}

/* ---- what programs do with the signals ---- */

static void set_handlers(int flags)
{
	struct sigaction a = { .sa_sigaction = on_own_fault, .sa_flags = SA_SIGINFO | flags };
	sigemptyset(&a.sa_mask);
	if (sigaction(SIGSEGV, &a, NULL) || sigaction(SIGBUS, &a, NULL))
		DIE("sigaction");
}

static void set_default(void)
{
	struct sigaction a = { .sa_handler = SIG_DFL };
	sigaction(SIGSEGV, &a, NULL);
	sigaction(SIGBUS, &a, NULL);
}

static void plain(struct device *d)
{
	every_role(d);
	dies_of_own_fault("default");
}

static void blocked(struct device *d)
{
	sigset_t all, old;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	every_role(d);
	sigset_t now;
	pthread_sigmask(SIG_SETMASK, &old, &now);
	if (sigismember(&now, SIGSEGV) != 1 || sigismember(&now, SIGTERM) != 1)
		FAIL("the thread's mask has changed");
}

/* ---- the mask changes, and memory goes in the same moment ---- */

static struct pair *in_use;
static sigset_t every, before;

/* With the signals let in: what the library knows of the mask is as new as can be. */
static void used(void) { good_transfer(in_use, "before the signals are blocked"); }

static void by_pthread_sigmask(void)
{
	used();
	pthread_sigmask(SIG_BLOCK, &every, NULL);
}

static void by_sigprocmask(void)
{
	used();
	sigprocmask(SIG_BLOCK, &every, NULL);
}

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

static void by_sighold(void)
{
	used();
	sighold(SIGSEGV);
	sighold(SIGBUS);
}

static void by_sigset(void)
{
	used();
	sigset(SIGSEGV, SIG_HOLD);
	sigset(SIGBUS, SIG_HOLD);
}

static void by_sigblock(void)
{
	used();
	sigblock(1 << (SIGSEGV - 1) | 1 << (SIGBUS - 1));
}

static void by_sigsetmask(void)
{
	used();
	sigsetmask(1 << (SIGSEGV - 1) | 1 << (SIGBUS - 1));
}

#pragma GCC diagnostic pop

/* Out of a handler, whose mask stays. */
extern void __longjmp_chk(jmp_buf, int) __attribute__((noreturn)); /* longjmp, where sources are fortified */
static jmp_buf out;
static sigjmp_buf sigout;
static void jumps(int sig) { longjmp(out, sig); }
static void jumps_plainly(int sig) { _longjmp(out, sig); }
static void jumps_checked(int sig) { __longjmp_chk(out, sig); }
static void jumps_without_mask(int sig) { siglongjmp(sigout, sig); }

static void interrupted_by(void (*handler)(int))
{
	struct sigaction a = { .sa_handler = handler, .sa_mask = every };
	if (sigaction(SIGUSR1, &a, NULL))
		DIE("sigaction");
	used();
	raise(SIGUSR1);
	DIE("the handler came back");
}

static void by_longjmp(void)
{
	if (!setjmp(out))
		interrupted_by(jumps);
}

static void by_longjmp_plain(void)
{
	if (!_setjmp(out))
		interrupted_by(jumps_plainly);
}

static void by_longjmp_chk(void)
{
	if (!setjmp(out))
		interrupted_by(jumps_checked);
}

static void by_siglongjmp_out(void)
{
	if (!sigsetjmp(sigout, 0))
		interrupted_by(jumps_without_mask);
}

/* Back to where the signals were blocked. */
static void by_siglongjmp(void)
{
	pthread_sigmask(SIG_SETMASK, &every, NULL);
	if (!sigsetjmp(sigout, 1)) {
		pthread_sigmask(SIG_SETMASK, &before, NULL);
		used();
		siglongjmp(sigout, 1);
	}
}

static ucontext_t here, there;

static void by_setcontext(void)
{
	static volatile int back_again;
	back_again = 0;
	pthread_sigmask(SIG_SETMASK, &every, NULL);
	getcontext(&here);
	if (!back_again) {
		back_again = 1;
		pthread_sigmask(SIG_SETMASK, &before, NULL);
		used();
		setcontext(&here);
	}
}

static void other_end(void)
{
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	used();
	swapcontext(&there, &here);
}

static void by_swapcontext(void)
{
	static uint8_t stack[256 * 1024];
	getcontext(&there);
	there.uc_stack.ss_sp = stack;
	there.uc_stack.ss_size = sizeof stack;
	there.uc_link = NULL;
	makecontext(&there, other_end, 0);
	pthread_sigmask(SIG_SETMASK, &every, NULL);
	swapcontext(&here, &there);
}

static const struct { const char *name; void (*block)(void); } BY[] = {
	{ "pthread_sigmask", by_pthread_sigmask }, { "sigprocmask", by_sigprocmask },
	{ "sighold", by_sighold }, { "sigset", by_sigset },
	{ "sigblock", by_sigblock }, { "sigsetmask", by_sigsetmask },
	{ "longjmp", by_longjmp }, { "_longjmp", by_longjmp_plain },
	{ "__longjmp_chk", by_longjmp_chk }, { "siglongjmp out of a handler", by_siglongjmp_out },
	{ "siglongjmp", by_siglongjmp }, { "setcontext", by_setcontext }, { "swapcontext", by_swapcontext },
};

/* What was known of the mask a moment ago is wrong now: whoever still believes it dies of the fault. */
static void blocked_a_moment_ago(struct device *d)
{
	struct pair p = pair_new(d, &PAIR_DEFAULTS);
	in_use = &p;
	sigfillset(&every);
	pthread_sigmask(SIG_SETMASK, NULL, &before);
	for (unsigned way = 0; way < sizeof BY / sizeof *BY; way++) {
		fprintf(stderr, "vanish: blocked by %s\n", BY[way].name);
		for (int round = 0; round < 20; round++) {
			struct memory m = memory_new(d, CLOSED);
			struct ibv_sge mine = whole(&m);
			struct ibv_send_wr wr = request(&p, IBV_WR_SEND, &mine, 1, 0);
			memory_goes(&m, CLOSED);
			BY[way].block();
			if (post(&p, &wr))
				FAIL("%s: ibv_post_send", BY[way].name);
			expect_wc(&p, 0, IBV_WC_LOC_PROT_ERR, BY[way].name);
			sigset_t now;
			pthread_sigmask(SIG_SETMASK, &before, &now);
			if (sigismember(&now, SIGSEGV) != 1 || sigismember(&now, SIGBUS) != 1)
				FAIL("%s: does not block", BY[way].name);
			memory_free(&m);
			pair_revive(&p, &PAIR_DEFAULTS);
		}
	}
	signal(SIGUSR1, SIG_DFL);
	pair_free(&p);
}

/* The library asks the kernel for a thread's mask when the count of changes has moved. What it does by
 * itself must not move it, or it asks twice a message. */
static void transfers_change_no_mask(struct device *d)
{
	const unsigned *(*where)(void) = (const unsigned *(*)(void))dlsym(RTLD_DEFAULT, "rocebud_shim_mask_changes");
	const char *preload = getenv("LD_PRELOAD");
	if (!where && !(preload && strstr(preload, "rocebud-shim")))
		return; /* another library */
	if (!where)
		DIE("the shim counts nothing");
	struct pair p = pair_new(d, &PAIR_DEFAULTS);
	good_transfer(&p, "before");
	unsigned at_first = *where();
	for (int i = 0; i < 100; i++)
		good_transfer(&p, "while masks are counted");
	if (*where() != at_first)
		FAIL("100 transfers changed %u masks", *where() - at_first);
	pair_free(&p);
}

static void own_handler(struct device *d)
{
	set_handlers(0);
	every_role(d);
	own_fault(1);
	struct sigaction a;
	sigaction(SIGSEGV, NULL, &a);
	if (a.sa_sigaction != on_own_fault || !(a.sa_flags & SA_SIGINFO))
		FAIL("sigaction shows another handler than the program's");
	set_default();
	dies_of_own_fault("back to default");
}

static void own_handler_by_signal(struct device *d)
{
	signal(SIGBUS, on_own_fault_simple);
	if (signal(SIGSEGV, on_own_fault_simple) != SIG_DFL)
		FAIL("signal returns another handler than the program's");
	every_role(d);
	own_fault(0);
	if (signal(SIGSEGV, SIG_DFL) != on_own_fault_simple)
		FAIL("signal returns another handler than the program's");
	signal(SIGBUS, SIG_DFL);
	dies_of_own_fault("back to default by signal");
}

/* As a library that probes memory: installs a handler for a moment, puts back what was there. */
static void saved_and_restored(struct device *d)
{
	set_handlers(0);
	struct sigaction probe = { .sa_handler = on_own_fault_simple }, saved;
	sigaction(SIGSEGV, &probe, &saved);
	own_fault(0);
	sigaction(SIGSEGV, &saved, NULL);
	every_role(d);
	own_fault(1);
	set_default();
}

static void on_alternate_stack(struct device *d)
{
	stack_t alternate = { .ss_sp = malloc(65536), .ss_size = 65536 }, old;
	if (sigaltstack(&alternate, &old))
		DIE("sigaltstack");
	set_handlers(SA_ONSTACK);
	every_role(d);
	own_fault(1);
	set_default();
	sigaltstack(&old, NULL);
	free(alternate.ss_sp);
}

/* Past the C library, as the run-time systems of some languages do; noticed within milliseconds. */
static void by_system_call(struct device *d)
{
	struct sigaction a;
	set_handlers(0);
	sigaction(SIGSEGV, NULL, &a);
	struct { void *handler; unsigned long flags; void *restorer; unsigned long mask; } k, ours;
	if (syscall(SYS_rt_sigaction, SIGSEGV, NULL, &ours, 8ul))
		DIE("rt_sigaction");
	k = ours;
	k.handler = (void *)on_own_fault;
	syscall(SYS_rt_sigaction, SIGSEGV, &k, NULL, 8ul);
	syscall(SYS_rt_sigaction, SIGBUS, &k, NULL, 8ul);
	usleep(50000);
	every_role(d);
	own_fault(1);
	set_default();
}

/* A handler that gives up: default action, and the instruction runs again. */
static void gives_up(int sig)
{
	signal(sig, SIG_DFL);
}

static void gives_up_and_crashes(void)
{
	signal(SIGSEGV, gives_up);
	crash();
}

static void a_handler_that_gives_up(struct device *d)
{
	signal(SIGSEGV, gives_up);
	signal(SIGBUS, gives_up);
	every_role(d);
	int how = fate(gives_up_and_crashes);
	if (how != SIGSEGV)
		FAIL("a handler that gives up: ended by %d", how);
	signal(SIGSEGV, SIG_DFL);
	signal(SIGBUS, SIG_DFL);
}

static const struct test_case CASES[] = {
	{ "default", plain },
	{ "blocked", blocked },
	{ "blocked_a_moment_ago", blocked_a_moment_ago },
	{ "transfers_change_no_mask", transfers_change_no_mask },
	{ "own_handler", own_handler },
	{ "own_handler_by_signal", own_handler_by_signal },
	{ "saved_and_restored", saved_and_restored },
	{ "on_alternate_stack", on_alternate_stack },
	{ "by_system_call", by_system_call },
	{ "a_handler_that_gives_up", a_handler_that_gives_up },
};

int main(int argc, char **argv)
{
	program = "vanish";
	return case_main(argc, argv, CASES, sizeof CASES / sizeof *CASES);
}
