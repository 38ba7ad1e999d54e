/* SPDX-License-Identifier: MIT OR Apache-2.0
 * rscancel: threads that wait in a socket call are cancelled. The distribution's calls wait in the C library's
 * poll and read, which are cancellation points: the program's clean-up handlers run there and then, may use the
 * socket themselves, and nothing stays locked for others.
 * rscancel [ADDRESS]   127.0.0.1 unless said; exit status 0 when every case held */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <pthread.h>
#include <rdma/rsocket.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#define FIRST_PORT 7400
#include "ends.h"

/* Newer than the distribution's librdmacm. */
static int (*repoll_create)(int flags);
static int (*repoll_ctl)(int set, int op, int fd, struct epoll_event *event);
static int (*repoll_wait)(int set, struct epoll_event *events, int most, int timeout);

static int listening(void)
{
	struct sockaddr_storage a = at(++port);
	int s = made(0);
	CHECK(s >= 0 && !rbind(s, (void *)&a, base_len) && !rlisten(s, 8));
	return s;
}

/* ---- one that waits, and is cancelled ---- */

struct waiter {
	int s, set;                     /* what it waits for */
	void (*call)(struct waiter *);  /* does not come back */
	void (*cleanup)(struct waiter *);
	struct sockaddr_storage to;
	_Atomic pid_t tid;
	atomic_int cleaned, came_back;
	pthread_t thread;
};

static void clean(void *arg)
{
	struct waiter *w = arg;
	if (w->cleanup)
		w->cleanup(w);
	w->cleaned++;
}

static void *body(void *arg)
{
	struct waiter *w = arg;
	pthread_cleanup_push(clean, w);
	w->tid = gettid();
	w->call(w);
	w->came_back = 1;
	pthread_cleanup_pop(0);
	return NULL;
}

/* The state of a thread as /proc has it. */
static char state_of(pid_t tid)
{
	char name[64], text[256] = "";
	snprintf(name, sizeof name, "/proc/self/task/%d/stat", (int)tid);
	int fd = open(name, O_RDONLY);
	ssize_t n = read(fd, text, sizeof text - 1);
	close(fd);
	char *end = n > 0 ? strrchr(text, ')') : NULL;
	return end ? end[2] : '?';
}

static void start(struct waiter *w)
{
	CHECK(!pthread_create(&w->thread, NULL, body, w));
	while (!w->tid)
		sched_yield();
}

static void sleeps(struct waiter *w)
{
	for (int calm = 0; calm < 20 && !w->came_back; usleep(1000))
		calm = state_of(w->tid) == 'S' ? calm + 1 : 0;
	CHECK(!w->came_back);
}

static void ends(struct waiter *w)
{
	void *end = NULL;
	struct timespec until;
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += 10;
	if (pthread_timedjoin_np(w->thread, &end, &until)) {
		printf("FAIL %s: a cancelled thread waits on\n", current);
		fflush(stdout);
		_exit(1);
	}
	CHECK(end == PTHREAD_CANCELED && w->cleaned == 1);
}

/* Cancels one that sleeps, or may only be on its way. */
static void cancelled(struct waiter w, int asleep)
{
	start(&w);
	if (asleep)
		sleeps(&w);
	CHECK(!pthread_cancel(w.thread));
	ends(&w);
}

static void rrecv_(struct waiter *w)
{
	char c[8];
	rrecv(w->s, c, sizeof c, 0);
}

static void rrecv_all(struct waiter *w)
{
	char c[8];
	rrecv(w->s, c, sizeof c, MSG_WAITALL);
}

static void rreadv_(struct waiter *w)
{
	char c[8];
	struct iovec v[2] = {{c, 4}, {c + 4, 4}};
	rreadv(w->s, v, 2);
}

static void rrecvfrom_(struct waiter *w)
{
	char c[8];
	rrecvfrom(w->s, c, sizeof c, 0, NULL, NULL);
}

static void rrecvmsg_(struct waiter *w)
{
	char c[8];
	struct iovec v = {c, 8};
	struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1};
	rrecvmsg(w->s, &m, 0);
}

static char large[1 << 20];

static void rsend_(struct waiter *w)
{
	rsend(w->s, large, sizeof large, 0);
}

static void rwritev_(struct waiter *w)
{
	struct iovec v[3] = {{large, 10}, {large, 0}, {large, sizeof large}};
	rwritev(w->s, v, 3);
}

static void rsendmsg_(struct waiter *w)
{
	struct iovec v = {large, sizeof large};
	struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1};
	rsendmsg(w->s, &m, 0);
}

static void riowrite_(struct waiter *w)
{
	for (;;)
		if (riowrite(w->s, large, sizeof large, 0, 0) != sizeof large)
			return;
}

static void rpoll_(struct waiter *w)
{
	struct pollfd p[2] = {{w->s, POLLIN, 0}, {STDOUT_FILENO, 0, 0}};
	rpoll(p, 2, -1);
}

static void rpoll_timed(struct waiter *w)
{
	struct pollfd p = {w->s, POLLIN, 0};
	rpoll(&p, 1, 60000);
}

static void rselect_(struct waiter *w)
{
	fd_set r;
	FD_ZERO(&r);
	FD_SET(w->s, &r);
	rselect(w->s + 1, &r, NULL, NULL, NULL);
}

static void repoll_(struct waiter *w)
{
	struct epoll_event e;
	repoll_wait(w->set, &e, 1, -1);
}

static void raccept_(struct waiter *w)
{
	raccept(w->s, NULL, NULL);
}

static void rconnect_(struct waiter *w)
{
	rconnect(w->s, (void *)&w->to, base_len);
}

static void rclose_(struct waiter *w)
{
	rclose(w->s);
}

static void rshutdown_(struct waiter *w)
{
	rshutdown(w->s, SHUT_RDWR);
}

/* ---- cases ---- */

/* What was on its way to a thread that is no more, others get. */
static void speaks(struct both c)
{
	char in[8];
	CHECK(rsend(c.a, "abcd", 4, 0) == 4);
	CHECK(rrecv(c.b, in, 4, MSG_WAITALL) == 4 && !memcmp(in, "abcd", 4));
	CHECK(rsend(c.b, "efgh", 4, 0) == 4);
	CHECK(rrecv(c.a, in, 4, MSG_WAITALL) == 4 && !memcmp(in, "efgh", 4));
}

static void receiving(void)
{
	static void (*const calls[])(struct waiter *) = {rrecv_, rrecv_all, rreadv_, rrecvfrom_, rrecvmsg_,
							 rpoll_, rpoll_timed, rselect_};
	struct both c = connected();
	for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
		for (int asleep = 0; asleep < 2; asleep++) {
			cancelled((struct waiter){.s = c.b, .call = calls[i]}, asleep);
			speaks(c);
		}
	closed(c);
}

/* A set, which another thread changes afterwards. */
static void in_a_set(void)
{
	repoll_create = dlsym(RTLD_DEFAULT, "repoll_create");
	repoll_ctl = dlsym(RTLD_DEFAULT, "repoll_ctl");
	repoll_wait = dlsym(RTLD_DEFAULT, "repoll_wait");
	if (!repoll_create)
		return;
	struct both c = connected();
	struct epoll_event e = {.events = EPOLLIN, .data.u32 = 7};
	int set = repoll_create(0);
	CHECK(set >= 0 && !repoll_ctl(set, EPOLL_CTL_ADD, c.b, &e));
	for (int asleep = 0; asleep < 2; asleep++)
		cancelled((struct waiter){.set = set, .call = repoll_}, asleep);
	CHECK(rsend(c.a, "abcd", 4, 0) == 4);
	CHECK(repoll_wait(set, &e, 1, 10000) == 1 && e.data.u32 == 7 && e.events == EPOLLIN);
	char in[4];
	CHECK(rrecv(c.b, in, 4, MSG_WAITALL) == 4 && !repoll_ctl(set, EPOLL_CTL_DEL, c.b, NULL));
	CHECK(!rclose(set));
	closed(c);
}

/* Of several at one socket only one sleeps on its descriptors; the others wait for that one. */
static void several(void)
{
	struct both c = connected();
	for (int first = 0; first < 3; first++) {
		struct waiter w[3];
		for (int i = 0; i < 3; i++) {
			w[i] = (struct waiter){.s = c.b, .call = rrecv_};
			start(&w[i]);
			sleeps(&w[i]);
		}
		for (int i = 0; i < 3; i++) {
			CHECK(!pthread_cancel(w[(first + i) % 3].thread));
			ends(&w[(first + i) % 3]);
		}
		speaks(c);
	}
	/* who is left takes over, whichever it is */
	for (int gone = 0; gone < 2; gone++) {
		struct waiter w[2];
		for (int i = 0; i < 2; i++) {
			w[i] = (struct waiter){.s = c.b, .call = rrecv_};
			start(&w[i]);
			sleeps(&w[i]);
		}
		CHECK(!pthread_cancel(w[gone].thread));
		ends(&w[gone]);
		CHECK(rsend(c.a, "x", 1, 0) == 1);
		CHECK(!pthread_join(w[!gone].thread, NULL) && w[!gone].came_back);
	}
	speaks(c);
	closed(c);
}

/* More of what was sent is still to come. */
static int is_late(int s)
{
	struct pollfd p = {s, POLLIN, 0};
	return rpoll(&p, 1, 200) == 1;
}

/* The peer reads nothing: the sender waits, and has sent a part when it ends. */
static void sending(void)
{
	static void (*const calls[])(struct waiter *) = {rsend_, rwritev_, rsendmsg_};
	static char in[1 << 16];
	for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
		struct both c = connected();
		ssize_t n;
		cancelled((struct waiter){.s = c.a, .call = calls[i]}, 1);
		while ((n = rrecv(c.b, in, sizeof in, MSG_DONTWAIT)) > 0 || is_late(c.b))
			;
		CHECK(n < 0 && errno == EAGAIN);
		speaks(c);
		closed(c);
	}
}

/* The clean-up handler uses the socket, and closes it. */
static void say_and_close(struct waiter *w)
{
	CHECK(rsend(w->s, "end", 3, 0) == 3);
	CHECK(!rclose(w->s));
}

static void cleaning_up(void)
{
	struct both c = connected();
	char in[4];
	cancelled((struct waiter){.s = c.b, .call = rrecv_, .cleanup = say_and_close}, 1);
	CHECK(rrecv(c.a, in, 4, MSG_WAITALL) == 3 && !memcmp(in, "end", 3));
	IS(rrecv(c.b, in, 1, 0), EBADF);
	CHECK(!rclose(c.a));
}

/* A request for cancellation that came before acts in the first call that waits. */
static void late(struct waiter *w)
{
	int old;
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &old);
	usleep(100000);
	CHECK(rsend(w->s, "x", 1, 0) == 1);
	pthread_setcancelstate(old, NULL);
	rrecv_(w);
}

/* One that does not want to be cancelled gets its data. */
static void deaf(struct waiter *w)
{
	char in[4] = "";
	int old;
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &old);
	CHECK(rrecv(w->s, in, 4, MSG_WAITALL) == 4 && !memcmp(in, "abcd", 4));
	pthread_setcancelstate(old, NULL);
	pthread_testcancel();
}

static void asked_before(void)
{
	struct both c = connected();
	char in;
	cancelled((struct waiter){.s = c.b, .call = late}, 0);
	CHECK(rrecv(c.a, &in, 1, 0) == 1);
	struct waiter w = {.s = c.b, .call = deaf};
	start(&w);
	sleeps(&w);
	CHECK(!pthread_cancel(w.thread));
	usleep(20000);
	CHECK(rsend(c.a, "ab", 2, 0) == 2);
	sleeps(&w);
	CHECK(rsend(c.a, "cd", 2, 0) == 2);
	ends(&w);
	speaks(c);
	closed(c);
}

static void accepting(void)
{
	int l = listening();
	struct sockaddr_storage a = at(port);
	for (int asleep = 0; asleep < 2; asleep++)
		cancelled((struct waiter){.s = l, .call = raccept_}, asleep);
	/* nobody takes the request: rconnect waits */
	int s = made(0);
	cancelled((struct waiter){.s = s, .call = rconnect_, .to = a}, 1);
	CHECK(!rclose(s));
	/* and the listener goes on */
	s = made(SOCK_NONBLOCK);
	IS(rconnect(s, (void *)&a, base_len), EINPROGRESS);
	struct both c = {.a = s};
	do
		c.b = raccept(l, NULL, NULL);
	while (c.b < 0);
	/* the first may be of the one that has gone */
	struct pollfd p[2] = {{.fd = c.b, .events = POLLIN}, {.fd = l, .events = POLLIN}};
	CHECK(rpoll(p, 1, 300) >= 0);
	if (p[0].revents) {
		CHECK(!rclose(c.b));
		c.b = raccept(l, NULL, NULL);
		CHECK(c.b >= 0);
	}
	CHECK(!rfcntl(s, F_SETFL, 0));
	p[0] = (struct pollfd){.fd = s, .events = POLLOUT};
	CHECK(rpoll(p, 1, 10000) == 1);
	speaks(c);
	closed(c);
	CHECK(!rclose(l));
}

/* A peer that is stopped acknowledges nothing: closing waits. */
static struct both with_stopped(int ready, pid_t peer, int p)
{
	char c;
	struct sockaddr_storage a = at(p);
	CHECK(read(ready, &c, 1) == 1);
	struct both s = {.a = made(0)};
	CHECK(!rconnect(s.a, (void *)&a, base_len));
	CHECK(rrecv(s.a, &c, 1, 0) == 1);
	CHECK(!kill(peer, SIGSTOP));
	CHECK(waitpid(peer, NULL, WUNTRACED) == peer);
	CHECK(rsend(s.a, "abc", 3, 0) == 3);
	return s;
}

static void serve(int ready, int p)
{
	struct sockaddr_storage a = at(p);
	CHECK(!prctl(PR_SET_PDEATHSIG, SIGKILL));
	int l = made(0);
	CHECK(!rbind(l, (void *)&a, base_len) && !rlisten(l, 8));
	CHECK(write(ready, "r", 1) == 1);
	int s = raccept(l, NULL, NULL);
	CHECK(rsend(s, "h", 1, 0) == 1);
	for (;;)
		pause();
}

static int descriptors(void)
{
	DIR *dir = opendir("/proc/self/fd");
	int n = 0;
	while (readdir(dir))
		n++;
	closedir(dir);
	return n;
}

static int ready[2][2];
static pid_t servers[2];

static void ending(void)
{
	for (int i = 0; i < 2; i++) {
		struct both s = with_stopped(ready[i][0], servers[i], 7398 + i);
		int before = descriptors();
		cancelled((struct waiter){.s = s.a, .call = i ? rshutdown_ : rclose_}, 1);
		kill(servers[i], SIGKILL);
		CHECK(waitpid(servers[i], NULL, 0) == servers[i]);
		if (i)
			CHECK(!rclose(s.a)); /* the socket is still the program's */
		else
			IS(rclose(s.a), EBADF); /* it has gone, as with close() */
		CHECK(descriptors() < before);
	}
}

static void datagrams(void)
{
	static void (*const calls[])(struct waiter *) = {rrecv_, rrecvfrom_, rrecvmsg_, rpoll_};
	struct sockaddr_storage a = at(++port);
	char in[8];
	int s = rsocket(base.ss_family, SOCK_DGRAM, 0), t = rsocket(base.ss_family, SOCK_DGRAM, 0);
	CHECK(s >= 0 && !rbind(s, (void *)&a, base_len));
	for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
		for (int asleep = 0; asleep < 2; asleep++) {
			cancelled((struct waiter){.s = s, .call = calls[i]}, asleep);
			CHECK(rsendto(t, "abc", 3, 0, (void *)&a, base_len) == 3);
			CHECK(rrecv(s, in, 8, 0) == 3);
		}
	CHECK(!rclose(s) && !rclose(t));
}

static void mapped(void)
{
	const int one = 1;
	struct sockaddr_storage a = at(++port);
	static char memory[sizeof large];
	int l = made(0);
	struct both c = {.a = made(SOCK_NONBLOCK)};
	CHECK(!rsetsockopt(l, SOL_RDMA, RDMA_IOMAPSIZE, &one, sizeof one));
	CHECK(!rsetsockopt(c.a, SOL_RDMA, RDMA_IOMAPSIZE, &one, sizeof one));
	CHECK(!rbind(l, (void *)&a, base_len) && !rlisten(l, 1));
	CHECK(rconnect(c.a, (void *)&a, base_len) < 0);
	do
		c.b = raccept(l, NULL, NULL);
	while (c.b < 0);
	struct pollfd p[2] = {{c.a, POLLOUT, 0}, {c.b, POLLOUT, 0}};
	while (!(p[0].revents & p[1].revents & POLLOUT))
		CHECK(rpoll(p, 2, 10000) > 0);
	CHECK(!rfcntl(c.a, F_SETFL, 0) && !rclose(l));
	CHECK(riomap(c.b, memory, sizeof memory, PROT_WRITE, 0, 0) == 0);
	CHECK(rsend(c.b, "ready", 5, 0) == 5 && rrecv(c.a, large, 5, MSG_WAITALL) == 5);
	/* it waits for acknowledgements now and then, and nowhere else for long */
	for (int i = 0; i < 20; i++) {
		struct waiter w = {.s = c.a, .call = riowrite_};
		start(&w);
		usleep(1000 * i);
		CHECK(!pthread_cancel(w.thread));
		ends(&w);
	}
	speaks(c);
	closed(c);
}

/* A thread that ends uses its socket once more, when all else of it has gone. */
static pthread_key_t key;
static int rounds;

static void at_the_end(void *arg)
{
	struct both *c = arg;
	char in[4];
	if (++rounds < PTHREAD_DESTRUCTOR_ITERATIONS) { /* behind those of others */
		pthread_setspecific(key, arg);
		return;
	}
	CHECK(rsend(c->b, "last", 4, 0) == 4);
	CHECK(rrecv(c->b, in, 4, MSG_WAITALL) == 4 && !memcmp(in, "word", 4));
	CHECK(!rclose(c->b));
}

static void *ending_thread(void *arg)
{
	struct both *c = arg;
	char in;
	CHECK(rrecv(c->b, &in, 1, 0) == 1);
	CHECK(!pthread_setspecific(key, arg));
	return NULL;
}

static void thread_ends(void)
{
	struct both c = connected();
	char in[4];
	pthread_t t;
	CHECK(!pthread_key_create(&key, at_the_end));
	CHECK(!pthread_create(&t, NULL, ending_thread, &c));
	usleep(100000); /* it sleeps by now */
	CHECK(rsend(c.a, "x", 1, 0) == 1);
	CHECK(rrecv(c.a, in, 4, MSG_WAITALL) == 4 && !memcmp(in, "last", 4));
	usleep(100000);
	CHECK(rsend(c.a, "word", 4, 0) == 4);
	CHECK(!pthread_join(t, NULL));
	CHECK(!rrecv(c.a, in, 4, 0) && !rclose(c.a));
}

static void run(const char *name, void (*f)(void))
{
	int before = failures;
	current = name;
	f();
	if (before == failures)
		printf("ok %s\n", name);
	fflush(stdout);
}

int main(int argc, char **argv)
{
	if (!resolved(argc > 1 ? argv[1] : "127.0.0.1"))
		return 2;
	fflush(stdout);
	for (int i = 0; i < 2; i++) { /* before the first verb */
		CHECK(!pipe(ready[i]));
		servers[i] = fork();
		if (!servers[i])
			serve(ready[i][1], 7398 + i);
	}
	run("receiving", receiving);
	run("in_a_set", in_a_set);
	run("several", several);
	run("sending", sending);
	run("cleaning_up", cleaning_up);
	run("asked_before", asked_before);
	run("accepting", accepting);
	run("ending", ending);
	run("datagrams", datagrams);
	run("mapped", mapped);
	run("thread_ends", thread_ends);
	return failures != 0;
}
