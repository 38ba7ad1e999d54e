/* SPDX-License-Identifier: MIT OR Apache-2.0
 * signals: data stays right whatever the program does with signals and with its user.
 * signals [-d DEV] [-g GID] [-m MTU] [-c CASES] [-k]      exit status 0 when every case held
 * ROCEBUD_TEST_BLOCK=1: every signal is blocked before the device is opened. */
#define _GNU_SOURCE
#include "pair.h"
#include <grp.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>

#define MESSAGES 400

/* ---- traffic ---- */

static volatile sig_atomic_t alarms;
static int interrupted; /* calls that answered EINTR */
static int restarts;    /* handlers are installed with SA_RESTART: no call may answer so */

struct world {
	struct pair p;
	struct ibv_comp_channel *channel[2];
};

static struct world world_new(struct device *d)
{
	struct world w;
	struct ibv_cq *cq[2];
	for (int i = 0; i < 2; i++)
		if (!(w.channel[i] = ibv_create_comp_channel(d->ctx)) ||
		    !(cq[i] = ibv_create_cq(d->ctx, 256, NULL, w.channel[i], 0)))
			DIE("completion queue with a channel");
	w.p = pair_on(d, &PAIR_DEFAULTS, cq[0], cq[1]);
	return w;
}

static void world_free(struct world *w)
{
	pair_free(&w->p);
	for (int i = 0; i < 2; i++)
		if (ibv_destroy_comp_channel(w->channel[i]))
			FAIL("ibv_destroy_comp_channel");
}

/* The next completion of a side, by sleeping until its event comes. */
static int by_event(struct world *w, int side, struct ibv_wc *wc)
{
	for (;;) {
		int n = ibv_poll_cq(w->p.cq[side], 1, wc);
		if (n)
			return n;
		if (ibv_req_notify_cq(w->p.cq[side], 0))
			FAIL("ibv_req_notify_cq");
		n = ibv_poll_cq(w->p.cq[side], 1, wc);
		if (n)
			return n;
		struct ibv_cq *cq;
		void *context;
		while (ibv_get_cq_event(w->channel[side], &cq, &context)) {
			if (errno != EINTR || restarts) {
				FAIL("ibv_get_cq_event: errno %d", errno);
				return -1;
			}
			interrupted++;
		}
		ibv_ack_cq_events(cq, 1);
	}
}

static void exchange(struct world *w, uint32_t messages, int events)
{
	struct rng r = { messages * 2u + (uint32_t)events };
	for (uint32_t m = 0; m < messages && !failures; m++) {
		uint32_t len = 1 + rng_below(&r, REGION), seed = (uint32_t)rng_next(&r);
		struct ibv_sge from = sge_at(&w->p.mem[0], 0, len), to = sge_at(&w->p.mem[1], 0, REGION);
		for (uint32_t i = 0; i < len; i++)
			w->p.mem[0].base[i] = (uint8_t)(seed + i * 13);
		struct ibv_send_wr wr = request(&w->p, IBV_WR_SEND, &from, 1, 0);
		if (post_recv(&w->p, 1, m, &to, 1) || post(&w->p, &wr))
			FAIL("posting message %u", m);
		for (int side = 1; side >= 0; side--) {
			struct ibv_wc wc = { 0 };
			int n = events ? by_event(w, side, &wc) : wait_wc(w->p.cq[side], &wc, 10000);
			if (n != 1 || wc.status)
				FAIL("message %u, side %d: %d completions, status %d", m, side, n, wc.status);
		}
		for (uint32_t i = 0; i < len; i++)
			if (w->p.mem[1].base[i] != (uint8_t)(seed + i * 13)) {
				FAIL("message %u: byte %u of %u is wrong", m, i, len);
				break;
			}
	}
}

/* Objects come and go, and the daemon is asked. */
static void make_and_destroy(struct device *d)
{
	for (int i = 0; i < 20; i++) {
		int n;
		struct ibv_device **list = ibv_get_device_list(&n);
		if (!list || !n)
			FAIL("ibv_get_device_list: errno %d", errno);
		struct ibv_context *ctx = list ? ibv_open_device(list[0]) : NULL;
		if (!ctx)
			FAIL("ibv_open_device: errno %d", errno);
		else if (ibv_close_device(ctx))
			FAIL("ibv_close_device");
		if (list)
			ibv_free_device_list(list);
		struct pair p = pair_new(d, &PAIR_DEFAULTS);
		pair_free(&p);
	}
}

/* ---- interval timers ---- */

static void on_alarm(int sig)
{
	(void)sig;
	alarms++;
}

static void set_timer(int microseconds)
{
	struct itimerval t = { { 0, microseconds }, { 0, microseconds } };
	if (setitimer(ITIMER_REAL, &t, NULL))
		DIE("setitimer");
}

/* SIGALRM every 150 microseconds, on whatever thread the kernel chooses. */
static void under_alarms(struct device *d, int flags)
{
	struct sigaction a = { .sa_handler = on_alarm, .sa_flags = flags }, old;
	restarts = (flags & SA_RESTART) != 0;
	sigaction(SIGALRM, &a, &old);
	alarms = 0;
	set_timer(150);
	struct world w = world_new(d);
	exchange(&w, MESSAGES, 0);
	exchange(&w, MESSAGES, 1);
	make_and_destroy(d);
	world_free(&w);
	set_timer(0);
	sigaction(SIGALRM, &old, NULL);
	if (alarms < 100)
		FAIL("only %d alarms", (int)alarms);
	restarts = 0;
}

static void alarms_restart(struct device *d) { under_alarms(d, SA_RESTART); }
static void alarms_interrupt(struct device *d) { under_alarms(d, 0); }

static void alarms_on_alternate_stack(struct device *d)
{
	stack_t alternate = { .ss_sp = malloc(16384), .ss_size = 16384 }, old;
	if (sigaltstack(&alternate, &old))
		DIE("sigaltstack");
	under_alarms(d, SA_ONSTACK | SA_RESTART);
	sigaltstack(&old, NULL);
	free(alternate.ss_sp);
}

struct sleeper {
	struct world *w;
	volatile int began;
	int error;
};

static void *sleep_until_event(void *arg)
{
	struct sleeper *s = arg;
	struct ibv_cq *cq;
	void *context;
	s->began = 1;
	s->error = ibv_get_cq_event(s->w->channel[1], &cq, &context) ? errno : 0;
	if (!s->error)
		ibv_ack_cq_events(cq, 1);
	return NULL;
}

/* A thread that sleeps in ibv_get_cq_event and is interrupted says so, as with a device of the kernel;
 * after a handler with SA_RESTART it sleeps on, until an event comes. */
static void sleeper_is_interrupted(struct device *d)
{
	for (int restart = 0; restart < 2; restart++) {
		struct world w = world_new(d);
		struct sigaction a = { .sa_handler = on_alarm, .sa_flags = restart ? SA_RESTART : 0 }, old;
		sigaction(SIGALRM, &a, &old);
		alarms = 0;
		if (ibv_req_notify_cq(w.p.cq[1], 0))
			FAIL("ibv_req_notify_cq");
		struct sleeper s = { .w = &w };
		pthread_t t;
		pthread_create(&t, NULL, sleep_until_event, &s);
		while (!s.began)
			usleep(1000);
		usleep(20000);
		for (int i = 0; i < (restart ? 20 : 1); i++) {
			pthread_kill(t, SIGALRM);
			usleep(2000);
		}
		if (restart)
			exchange(&w, 1, 0); /* completions, and with them the event */
		pthread_join(t, NULL);
		if (s.error != (restart ? 0 : EINTR) || alarms < 1)
			FAIL("a sleeper after %d alarms: errno %d", (int)alarms, s.error);
		sigaction(SIGALRM, &old, NULL);
		world_free(&w);
	}
}

/* ---- masks, and signals that are waited for ---- */

static void everything_blocked(struct device *d)
{
	sigset_t all, old, pending;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	struct world w = world_new(d);
	exchange(&w, MESSAGES, 0);
	kill(getpid(), SIGTERM);
	kill(getpid(), SIGUSR1);
	exchange(&w, MESSAGES, 1);
	make_and_destroy(d);
	world_free(&w);
	/* nobody else took them */
	sigpending(&pending);
	if (!sigismember(&pending, SIGTERM) || !sigismember(&pending, SIGUSR1))
		FAIL("a blocked signal was taken by somebody");
	struct timespec none = { 0 };
	sigemptyset(&all);
	sigaddset(&all, SIGTERM);
	sigaddset(&all, SIGUSR1);
	while (sigtimedwait(&all, NULL, &none) > 0)
		;
	pthread_sigmask(SIG_SETMASK, &old, NULL);
}

/* ---- another user ---- */

static void drops_privileges(struct device *d)
{
	if (geteuid() != 0)
		return; /* an ordinary user has nothing to drop */
	struct world w = world_new(d);
	exchange(&w, MESSAGES / 4, 0);
	if (setgroups(0, NULL) || setgid(65534) || setuid(65534))
		DIE("setuid");
	if (setuid(0) == 0)
		FAIL("root again");
	exchange(&w, MESSAGES / 4, 0);
	exchange(&w, MESSAGES / 4, 1);
	make_and_destroy(d);
	world_free(&w);
}

/* setuid is made known to every thread by a signal of the C library's: ours must let it in. */
static void *uid_of_thread(void *out)
{
	*(uid_t *)out = (uid_t)syscall(SYS_geteuid);
	return NULL;
}

static void every_thread_drops(struct device *d)
{
	(void)d;
	if (geteuid() == 0 && seteuid(65534))
		FAIL("seteuid");
	pthread_t t;
	uid_t uid = 0;
	pthread_create(&t, NULL, uid_of_thread, &uid);
	pthread_join(t, NULL);
	char path[64], line[128];
	snprintf(path, sizeof path, "/bin/sh -c 'cat /proc/%d/task/*/status'", (int)getpid());
	FILE *f = popen(path, "r");
	int threads = 0;
	while (f && fgets(line, sizeof line, f)) {
		unsigned real, effective;
		if (sscanf(line, "Uid: %u %u", &real, &effective) == 2) {
			threads++;
			if (effective != geteuid())
				FAIL("a thread is still user %u", effective);
		}
	}
	if (!f || pclose(f) || threads < 2)
		FAIL("%d threads seen", threads);
	if (seteuid(getuid()))
		FAIL("seteuid back");
}

static const struct test_case CASES[] = {
	{ "alarms_restart", alarms_restart },
	{ "alarms_interrupt", alarms_interrupt },
	{ "alarms_on_alternate_stack", alarms_on_alternate_stack },
	{ "sleeper_is_interrupted", sleeper_is_interrupted },
	{ "everything_blocked", everything_blocked },
	{ "every_thread_drops", every_thread_drops },
	{ "drops_privileges", drops_privileges }, /* the last: there is no way back */
};

int main(int argc, char **argv)
{
	program = "signals";
	if (getenv("ROCEBUD_TEST_BLOCK")) {
		sigset_t all;
		sigfillset(&all);
		sigprocmask(SIG_SETMASK, &all, NULL);
	}
	return case_main(argc, argv, CASES, sizeof CASES / sizeof *CASES);
}
