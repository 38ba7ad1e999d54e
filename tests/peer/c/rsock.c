/* SPDX-License-Identifier: MIT OR Apache-2.0
 * rsock: sockets over RDMA, call by call, between two threads or processes of one host.
 * rsock [ADDRESS]      127.0.0.1 unless said; exit status 0 when every case held */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <rdma/rsocket.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#define FIRST_PORT 7300
#include "ends.h"

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

static int listening(int p, int flags)
{
	struct sockaddr_storage a = at(p);
	int s = made(flags);
	CHECK(s >= 0);
	CHECK(!rbind(s, (void *)&a, base_len));
	CHECK(!rlisten(s, 8));
	return s;
}

static int is_ready(int s, int events, int ms)
{
	struct pollfd p = {.fd = s, .events = events};
	return rpoll(&p, 1, ms) == 1 ? p.revents : 0;
}

static void fill(uint8_t *p, size_t n, size_t from)
{
	for (size_t i = 0; i < n; i++)
		p[i] = (from + i) ^ (from + i) >> 8;
}

static int holds(const uint8_t *p, size_t n, size_t from)
{
	for (size_t i = 0; i < n; i++)
		if (p[i] != (uint8_t)((from + i) ^ (from + i) >> 8))
			return 0;
	return 1;
}

/* ---- cases ---- */

static void refused(void)
{
	struct sockaddr_storage a = at(++port);
	socklen_t len = sizeof(int);
	int s = made(0), error = 0;
	IS(rconnect(s, (void *)&a, base_len), ECONNREFUSED);
	CHECK(!rclose(s));
	s = made(SOCK_NONBLOCK);
	CHECK(rconnect(s, (void *)&a, base_len) < 0);
	if (errno == EINPROGRESS) { /* or quicker than that */
		CHECK(is_ready(s, POLLOUT, 10000) & POLLERR);
		CHECK(!rgetsockopt(s, SOL_SOCKET, SO_ERROR, &error, &len) && error == ECONNREFUSED);
	} else
		CHECK(errno == ECONNREFUSED);
	CHECK(is_ready(s, POLLOUT, 0) & POLLERR);
	CHECK(!rgetsockopt(s, SOL_SOCKET, SO_ERROR, &error, &len) && !error);
	CHECK(!rclose(s));
}

static void misuse(void)
{
	struct sockaddr_storage a = at(++port);
	char c;
	int n = 1, s = made(0);
	socklen_t len = sizeof a;
	IS(rsocket(AF_UNIX, SOCK_STREAM, 0), EOPNOTSUPP);
	IS(rsend(9999, "x", 1, 0), EBADF);
	IS(rclose(9999), EBADF);
	IS(rrecv(s, &c, 1, 0), ENOTCONN);
	IS(rsend(s, "x", 1, 0), ENOTCONN);
	IS(rgetpeername(s, (void *)&a, &len), ENOTCONN);
	IS(raccept(s, NULL, NULL), EINVAL);
	IS(rbind(s, (void *)&a, 3), EINVAL);
	IS(rsetsockopt(s, SOL_SOCKET, 9999, &n, sizeof n), EOPNOTSUPP);
	IS(rsetsockopt(s, SOL_SOCKET, SO_SNDBUF, &n, 2), EINVAL);
	a = at(port);
	CHECK(!rbind(s, (void *)&a, base_len));
	IS(rbind(s, (void *)&a, base_len), EINVAL);
	CHECK(!rlisten(s, 1));
	IS(rconnect(s, (void *)&a, base_len), EISCONN);
	int other = made(0);
	IS(rbind(other, (void *)&a, base_len), EADDRINUSE);
	CHECK(!rclose(other));
	CHECK(!rfcntl(s, F_SETFL, O_NONBLOCK) && rfcntl(s, F_GETFL, 0) & O_NONBLOCK);
	IS(raccept(s, NULL, NULL), EAGAIN);
	CHECK(!is_ready(s, POLLIN, 20));
	CHECK(!rclose(s));
	IS(rclose(s), EBADF);
}

static void names(void)
{
	struct both c = connected();
	struct sockaddr_storage n[4];
	socklen_t len = sizeof n[0];
	CHECK(!rgetsockname(c.a, (void *)&n[0], &len) && len == base_len);
	CHECK(!rgetpeername(c.a, (void *)&n[1], &len));
	CHECK(!rgetsockname(c.b, (void *)&n[2], &len));
	CHECK(!rgetpeername(c.b, (void *)&n[3], &len));
	CHECK(!memcmp(&n[1], &n[2], 4) && !memcmp(&n[0], &n[3], 4));
	CHECK(((struct sockaddr_in *)&n[1])->sin_port == htons(port));
	closed(c);
}

static void options(void)
{
	struct both c = connected();
	int n = 50000, s = made(0);
	socklen_t len = sizeof n;
	struct linger l = {1, 5}, back = {0, 0};
	CHECK(!rsetsockopt(s, SOL_SOCKET, SO_SNDBUF, &n, sizeof n));
	CHECK(!rgetsockopt(s, SOL_SOCKET, SO_SNDBUF, &n, &len) && n == 100000);
	CHECK(!rsetsockopt(s, SOL_SOCKET, SO_LINGER, &l, sizeof l));
	len = sizeof back;
	CHECK(!rgetsockopt(s, SOL_SOCKET, SO_LINGER, &back, &len) && len == sizeof l && back.l_linger == 5);
	len = sizeof n;
	CHECK(!rgetsockopt(s, SOL_SOCKET, SO_TYPE, &n, &len) && n == SOCK_STREAM);
	n = 1;
	CHECK(!rsetsockopt(s, SOL_SOCKET, SO_REUSEADDR, &n, sizeof n));
	CHECK(!rsetsockopt(c.a, IPPROTO_TCP, TCP_NODELAY, &n, sizeof n));
	CHECK(!rgetsockopt(c.a, IPPROTO_TCP, TCP_NODELAY, &n, &len) && n == 1);
	IS(rsetsockopt(c.a, SOL_RDMA, RDMA_SQSIZE, &n, sizeof n), EINVAL);
	CHECK(!rclose(s));
	closed(c);
}

/* Paths: what a connection found can be given to another, and is checked when it connects. */
static void routes(void)
{
	struct both c = connected();
	char path[2 * 72], back[2 * 72];
	socklen_t len = sizeof path;
	struct sockaddr_storage a = at(++port);
	CHECK(!rgetsockopt(c.a, SOL_RDMA, RDMA_ROUTE, path, &len) && len == 72);
	len = 71;
	IS(rgetsockopt(c.a, SOL_RDMA, RDMA_ROUTE, back, &len), EINVAL);
	IS(rsetsockopt(c.a, SOL_RDMA, RDMA_ROUTE, path, 72), EINVAL);
	int s = made(0);
	len = sizeof back;
	CHECK(!rgetsockopt(s, SOL_RDMA, RDMA_ROUTE, back, &len) && !len);
	IS(rsetsockopt(s, SOL_RDMA, RDMA_ROUTE, path, 0), EINVAL);
	CHECK(!rsetsockopt(s, SOL_RDMA, RDMA_ROUTE, "no path", 8)); /* kept */
	IS(rconnect(s, (void *)&a, base_len), EINVAL);
	CHECK(!rclose(s));
	int l = listening(port, 0);
	s = made(SOCK_NONBLOCK);
	CHECK(!rsetsockopt(s, SOL_RDMA, RDMA_ROUTE, path, 72));
	len = sizeof back;
	CHECK(!rgetsockopt(s, SOL_RDMA, RDMA_ROUTE, back, &len) && len == 72 && !memcmp(path, back, 72));
	IS(rconnect(s, (void *)&a, base_len), EINPROGRESS);
	struct pollfd p[2] = {{.fd = l, .events = POLLIN}, {.fd = s, .events = POLLOUT}};
	while (!p[0].revents)
		CHECK(rpoll(p, 2, 10000) > 0);
	struct both d = {s, raccept(l, NULL, NULL)};
	for (p[0].fd = d.b, p[0].events = POLLOUT, p[0].revents = p[1].revents = 0;
	     !(p[0].revents & p[1].revents & POLLOUT);)
		CHECK(rpoll(p, 2, 10000) > 0);
	CHECK(rsend(s, "abcd", 4, 0) == 4 && rrecv(d.b, back, 4, MSG_WAITALL) == 4 && !memcmp(back, "abcd", 4));
	CHECK(!rfcntl(s, F_SETFL, 0));
	closed(d);
	closed(c);
	CHECK(!rclose(l));
	s = rsocket(base.ss_family, SOCK_DGRAM, 0);
	CHECK(!rsetsockopt(s, SOL_RDMA, RDMA_ROUTE, path, 72));
	CHECK(!rclose(s));
}

static void partial_writes(void)
{
	static uint8_t out[1 << 20], in[1 << 20];
	struct both c = connected();
	size_t sent = 0, got = 0;
	ssize_t n;
	fill(out, sizeof out, 0);
	CHECK(!rfcntl(c.a, F_SETFL, O_NONBLOCK));
	while ((n = rsend(c.a, out + sent, sizeof out - sent, 0)) > 0)
		sent += n;
	CHECK(n < 0 && errno == EAGAIN && sent >= 65536 && sent < sizeof out);
	CHECK(!is_ready(c.a, POLLOUT, 0));
	while (got < sizeof out) {
		while (got < sent && (n = rrecv(c.b, in + got, sent - got, 0)) > 0)
			got += n;
		if (sent < sizeof out && is_ready(c.a, POLLOUT, 5000) & POLLOUT && (n = rsend(c.a, out + sent, sizeof out - sent, 0)) > 0)
			sent += n;
		CHECK(n > 0);
		if (n <= 0)
			break;
	}
	CHECK(!memcmp(in, out, sizeof out));
	IS(rrecv(c.b, in, 1, MSG_DONTWAIT), EAGAIN);
	closed(c);
}

static void flags_and_vectors(void)
{
	struct both c = connected();
	char in[16] = "", more[8] = "";
	struct iovec v[2] = {{"gather", 6}, {"ed", 2}}, w[2] = {{in, 3}, {more, 5}};
	struct msghdr m = {.msg_iov = v, .msg_iovlen = 2};
	CHECK(rwrite(c.a, "peeked", 6) == 6);
	CHECK(rrecv(c.b, in, 16, MSG_PEEK) == 6 && !memcmp(in, "peeked", 6));
	CHECK(rread(c.b, in, 2) == 2 && rrecv(c.b, in + 2, 9, 0) == 4 && !memcmp(in, "peeked", 6));
	CHECK(rwritev(c.a, v, 2) == 8);
	CHECK(rrecv(c.b, in, 8, MSG_WAITALL) == 8 && !memcmp(in, "gathered", 8));
	CHECK(rsendmsg(c.a, &m, 0) == 8);
	m.msg_iov = w;
	CHECK(is_ready(c.b, POLLIN, 5000) == POLLIN);
	while (rrecv(c.b, in, 16, MSG_PEEK) < 8)
		;
	CHECK(rrecvmsg(c.b, &m, 0) == 8 && !memcmp(in, "gat", 3) && !memcmp(more, "hered", 5));
	m.msg_control = in;
	m.msg_controllen = 8;
	IS(rsendmsg(c.a, &m, 0), EOPNOTSUPP);
	IS(rsend(c.a, "x", 1, MSG_OOB), EOPNOTSUPP);
	IS(rsendto(c.a, "x", 1, 0, (void *)&base, base_len), EISCONN);
	CHECK(rsendto(c.a, "to", 2, 0, NULL, 0) == 2);
	struct sockaddr_storage from;
	socklen_t len = sizeof from;
	CHECK(rrecvfrom(c.b, in, 16, 0, (void *)&from, &len) == 2 && from.ss_family == base.ss_family);
	CHECK(!rsend(c.a, "", 0, 0) && !rrecv(c.b, in, 0, 0));
	closed(c);
}

static void half_closed(void)
{
	struct both c = connected();
	char in[16];
	CHECK(rsend(c.a, "last words", 10, 0) == 10);
	CHECK(!rshutdown(c.a, SHUT_WR));
	IS(rsend(c.a, "x", 1, 0), ECONNRESET);
	CHECK(rrecv(c.b, in, 16, MSG_WAITALL) == 10 && !memcmp(in, "last words", 10));
	CHECK(!rrecv(c.b, in, 16, 0) && !rrecv(c.b, in, 16, 0));
	CHECK(rsend(c.b, "answer", 6, 0) == 6);
	CHECK(rrecv(c.a, in, 6, MSG_WAITALL) == 6 && !memcmp(in, "answer", 6));
	CHECK(!rshutdown(c.b, SHUT_WR));
	CHECK(!rrecv(c.a, in, 16, 0));
	CHECK(is_ready(c.a, POLLIN, 5000) & (POLLIN | POLLHUP));
	closed(c);
}

static void closed_with_data_unread(void)
{
	struct both c = connected();
	static uint8_t out[50000], in[50001];
	fill(out, sizeof out, 7);
	CHECK(rsend(c.a, out, sizeof out, 0) == sizeof out);
	CHECK(!rclose(c.a));
	usleep(100000);
	CHECK(is_ready(c.b, POLLIN, 5000) == POLLIN); /* data first, then the end */
	CHECK(rrecv(c.b, in, sizeof in, MSG_WAITALL) == sizeof out && holds(in, sizeof out, 7));
	CHECK(is_ready(c.b, POLLIN, 5000) & POLLHUP);
	IS(rsend(c.b, "x", 1, 0), ECONNRESET);
	CHECK(!rclose(c.b));
}

static void waiting(void)
{
	struct both c = connected();
	int pipes[2];
	char x;
	CHECK(!pipe(pipes));
	struct pollfd p[4] = {{c.a, POLLIN, 0}, {pipes[0], POLLIN, 0}, {c.b, POLLIN, 0}, {-1, POLLIN, 0}};
	double t = now();
	CHECK(!rpoll(p, 4, 150) && now() - t > 0.12);
	CHECK(write(pipes[1], "x", 1) == 1);
	CHECK(rpoll(p, 4, 10000) == 1 && p[1].revents == POLLIN && !p[0].revents && !p[3].revents);
	CHECK(rsend(c.a, "x", 1, 0) == 1);
	do
		CHECK(rpoll(p, 4, 10000) > 0);
	while (!p[2].revents);
	CHECK(p[1].revents == POLLIN && p[2].revents == POLLIN && !p[0].revents);

	int most = (c.a > c.b ? c.a : c.b) + 1;
	fd_set r, w;
	struct timeval time = {5, 0};
	FD_ZERO(&r);
	FD_ZERO(&w);
	FD_SET(c.a, &r);
	FD_SET(c.b, &r);
	FD_SET(c.a, &w);
	CHECK(rselect(most, &r, &w, NULL, &time) == 2);
	CHECK(!FD_ISSET(c.a, &r) && FD_ISSET(c.b, &r) && FD_ISSET(c.a, &w));
	CHECK(rrecv(c.b, &x, 1, 0) == 1);
	FD_ZERO(&r);
	FD_SET(c.b, &r);
	time = (struct timeval){0, 50000};
	CHECK(!rselect(most, &r, NULL, NULL, &time) && !FD_ISSET(c.b, &r));
	close(pipes[0]), close(pipes[1]);
	closed(c);
}

/* A call that waits for data is taken up again after a handler that was installed with SA_RESTART, as upstream's,
 * which reads; a poll is not. After another handler it is EINTR. */
static int waits;

static void *interrupted(void *arg)
{
	struct both *c = arg;
	char in[4];
	for (int i = 0; i < 2; i++) {
		errno = 0;
		ssize_t n = rrecv(c->b, in, 4, 0);
		if (waits ? n != 1 : n >= 0 || errno != EINTR)
			return "rrecv";
	}
	struct pollfd p = {.fd = c->b, .events = POLLIN};
	return rpoll(&p, 1, 10000) < 0 && errno == EINTR ? NULL : "rpoll";
}

static void passes(int signal)
{
	(void)signal;
}

static void signals(void)
{
	struct both c = connected();
	for (waits = 1; waits >= 0; waits--) {
		struct sigaction act = {.sa_handler = passes, .sa_flags = waits ? SA_RESTART : 0};
		pthread_t t;
		void *wrong;
		CHECK(!sigaction(SIGUSR2, &act, NULL));
		CHECK(!pthread_create(&t, NULL, interrupted, &c));
		for (int i = 0; i < 3; i++) {
			usleep(100000);
			CHECK(!pthread_kill(t, SIGUSR2));
			usleep(50000);
			if (waits && i < 2)
				CHECK(rsend(c.a, "x", 1, 0) == 1);
		}
		CHECK(!pthread_join(t, &wrong));
		if (wrong)
			printf("%s\n", (char *)wrong);
		CHECK(!wrong);
	}
	signal(SIGUSR2, SIG_DFL);
	closed(c);
}

static void mapped(void)
{
	const struct size table = {SOL_RDMA, RDMA_IOMAPSIZE, 2};
	struct both c = connected_with(&table, 1);
	static uint8_t memory[100000], out[100000];
	char in[8];
	fill(out, sizeof out, 3);
	off_t o = riomap(c.b, memory, sizeof memory, PROT_WRITE, 0, 4096);
	CHECK(o == 4096);
	CHECK(riomap(c.b, memory, 8, PROT_WRITE, 0, -1) == (off_t)(uintptr_t)memory);
	IS(riomap(c.b, memory, 8, PROT_WRITE, 0, 0), ENOBUFS);
	CHECK(rsend(c.b, "ready", 5, 0) == 5 && rrecv(c.a, in, 5, MSG_WAITALL) == 5);
	CHECK(riowrite(c.a, out, 50000, o + 50000, 0) == 50000);
	CHECK(riowrite(c.a, out + 50000, 50000, o, 0) == 50000);
	CHECK(rsend(c.a, "done", 4, 0) == 4 && rrecv(c.b, in, 4, MSG_WAITALL) == 4);
	CHECK(!memcmp(memory, out + 50000, 50000) && !memcmp(memory + 50000, out, 50000));
	IS((ssize_t)riowrite(c.a, out, 1, 3, 0), EINVAL);
	CHECK(!riounmap(c.b, memory, sizeof memory));
	IS(riounmap(c.b, memory, sizeof memory), EINVAL);
	closed(c);
}

/* Both directions at once, by two threads a socket, in pieces of odd sizes. */
#define BULK (8u << 20)
static size_t piece_of(size_t i)
{
	return 1 + i * 7919 % 100000;
}

static void *writing(void *arg)
{
	int s = (int)(intptr_t)arg;
	uint8_t *p = malloc(100001);
	for (size_t done = 0, i = 0; done < BULK; i++) {
		size_t n = piece_of(i);
		n = n < BULK - done ? n : BULK - done;
		fill(p, n, done);
		CHECK(rsend(s, p, n, 0) == (ssize_t)n);
		done += n;
	}
	free(p);
	return NULL;
}

static void *reading(void *arg)
{
	int s = (int)(intptr_t)arg;
	uint8_t *p = malloc(100001);
	for (size_t done = 0, i = 3; done < BULK; i++) {
		ssize_t n = rrecv(s, p, piece_of(i), 0);
		CHECK(n > 0 && holds(p, n, done));
		if (n <= 0)
			break;
		done += n;
	}
	free(p);
	return NULL;
}

static void bulk_with(const struct size *sizes, int n)
{
	struct both c = connected_with(sizes, n);
	pthread_t t[4];
	for (int i = 0; i < 4; i++)
		pthread_create(&t[i], NULL, i & 1 ? reading : writing, (void *)(intptr_t)(i & 2 ? c.a : c.b));
	for (int i = 0; i < 4; i++)
		pthread_join(t[i], NULL);
	closed(c);
}

static void bulk(void)
{
	bulk_with(NULL, 0);
}

static void bulk_through_small_buffers(void)
{
	const struct size small[] = {
		{SOL_SOCKET, SO_SNDBUF, 4000}, {SOL_SOCKET, SO_RCVBUF, 3001},
		{SOL_RDMA, RDMA_SQSIZE, 16}, {SOL_RDMA, RDMA_RQSIZE, 16}, {SOL_RDMA, RDMA_INLINE, 0},
	};
	struct both c = connected_with(small, 5);
	uint8_t in[3];
	for (int i = 0; i < 2000; i++) { /* a message of a byte takes a credit as well */
		fill(in, 1, i);
		CHECK(rsend(c.a, in, 1, 0) == 1);
		if (i % 5 == 4)
			for (int k = 4; k >= 0; k--)
				CHECK(rrecv(c.b, in, 1, 0) == 1 && holds(in, 1, i - k));
	}
	closed(c);
	bulk_with(small + 2, 2);
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

static void many_one_after_the_other(void)
{
	int before = 0;
	char in[4];
	for (int i = 0; i < 30; i++) {
		struct both c = connected();
		CHECK(rsend(c.a, "abc", 3, 0) == 3 && rrecv(c.b, in, 3, MSG_WAITALL) == 3);
		closed(c);
		if (i == 9)
			before = descriptors();
	}
	CHECK(descriptors() <= before + 2);
}

static void kept_alive(void)
{
	const struct size keep[] = {{SOL_SOCKET, SO_KEEPALIVE, 1}, {IPPROTO_TCP, TCP_KEEPIDLE, 1}};
	struct both c = connected_with(keep, 2);
	char in[4];
	usleep(2300000);
	CHECK(!is_ready(c.b, POLLIN, 0)); /* the peer does not see them */
	CHECK(rsend(c.a, "abc", 3, 0) == 3 && rrecv(c.b, in, 3, MSG_WAITALL) == 3);
	closed(c);
}

/* A server that is killed in the middle: its peer hears of it, and reads what came before. */
static void killed(pid_t server, int ready, int p, int trying)
{
	char in[8];
	struct sockaddr_storage a = at(p);
	CHECK(read(ready, in, 1) == 1);
	int s = made(0);
	CHECK(!rconnect(s, (void *)&a, base_len));
	CHECK(rrecv(s, in, 5, MSG_WAITALL) == 5 && !memcmp(in, "hello", 5));
	kill(server, SIGKILL);
	double t = now();
	ssize_t n;
	if (trying) /* a program that never waits hears of it as well */
		while ((n = rrecv(s, in, 5, MSG_DONTWAIT)) < 0 && errno == EAGAIN && now() - t < 20)
			usleep(1000);
	else
		n = rrecv(s, in, 5, 0);
	CHECK(n <= 0 && now() - t < 20);
	CHECK(rsend(s, "x", 1, 0) < 0);
	CHECK(!rclose(s));
	CHECK(waitpid(server, NULL, 0) == server);
}

static void serve(int ready, int p)
{
	int l = listening(p, 0);
	CHECK(write(ready, "r", 1) == 1);
	int s = raccept(l, NULL, NULL);
	CHECK(rsend(s, "hello", 5, 0) == 5);
	for (;;)
		pause();
}

/* A server whose only thread is held up in a signal handler while it waits in rrecv: what others write into
 * its memory arrives all the same. */
static volatile uint8_t *shared;
static const struct size one_mapping = {SOL_RDMA, RDMA_IOMAPSIZE, 1};

static void stays(int signal)
{
	(void)signal;
	for (;;)
		pause();
}

static void serve_and_stay(int ready, int p)
{
	struct sockaddr_storage a = at(p);
	struct sigaction act = {.sa_handler = stays};
	char in;
	int l = made(0);
	CHECK(!sigaction(SIGUSR1, &act, NULL));
	CHECK(!rsetsockopt(l, one_mapping.level, one_mapping.name, &one_mapping.value, sizeof(int)));
	CHECK(!rbind(l, (void *)&a, base_len) && !rlisten(l, 8));
	CHECK(write(ready, "r", 1) == 1);
	int s = raccept(l, NULL, NULL);
	CHECK(riomap(s, (void *)shared, 4096, PROT_WRITE, 0, 0) == 0);
	CHECK(rsend(s, "hello", 5, 0) == 5);
	rrecv(s, &in, 1, 0);
	_exit(1);
}

/* The state of a process as /proc has it. */
static char state_of(pid_t pid)
{
	char name[32], text[256] = "";
	snprintf(name, sizeof name, "/proc/%d/stat", (int)pid);
	int fd = open(name, O_RDONLY);
	ssize_t n = read(fd, text, sizeof text - 1);
	close(fd);
	char *end = n > 0 ? strrchr(text, ')') : NULL;
	return end ? end[2] : '?';
}

static void held_up(pid_t server, int ready, int p)
{
	char in[8];
	struct sockaddr_storage a = at(p);
	CHECK(read(ready, in, 1) == 1);
	int s = made(0);
	CHECK(!rsetsockopt(s, one_mapping.level, one_mapping.name, &one_mapping.value, sizeof(int)));
	CHECK(!rconnect(s, (void *)&a, base_len));
	CHECK(rrecv(s, in, 5, MSG_WAITALL) == 5);
	for (int calm = 0; calm < 100; usleep(1000)) /* it sleeps in rrecv */
		calm = state_of(server) == 'S' ? calm + 1 : 0;
	CHECK(!kill(server, SIGUSR1));
	CHECK(riowrite(s, "x", 1, 0, 0) == 1);
	double t = now();
	while (*shared != 'x' && now() - t < 10)
		usleep(1000);
	CHECK(*shared == 'x');
	kill(server, SIGKILL);
	CHECK(waitpid(server, NULL, 0) == server);
	CHECK(!rclose(s));
}

static void run(const char *name, void (*f)(void))
{
	int before = failures;
	double t = now();
	current = name;
	f();
	if (before == failures)
		printf("ok %s (%.1f s)\n", name, now() - t);
	fflush(stdout);
}

int main(int argc, char **argv)
{
	if (!resolved(argc > 1 ? argv[1] : "127.0.0.1"))
		return 2;
	int ready[3][2];
	pid_t servers[3];
	fflush(stdout);
	shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(shared != MAP_FAILED);
	for (int i = 0; i < 3; i++) { /* before the first verb */
		CHECK(!pipe(ready[i]));
		servers[i] = fork();
		if (!servers[i])
			(i < 2 ? serve : serve_and_stay)(ready[i][1], 7297 + i);
	}
	current = "killed";
	for (int i = 0; i < 2; i++)
		killed(servers[i], ready[i][0], 7297 + i, i);
	if (!failures)
		printf("ok killed\n");
	current = "held_up";
	held_up(servers[2], ready[2][0], 7299);
	if (!failures)
		printf("ok held_up\n");
	run("refused", refused);
	run("misuse", misuse);
	run("names", names);
	run("options", options);
	run("routes", routes);
	run("partial_writes", partial_writes);
	run("flags_and_vectors", flags_and_vectors);
	run("half_closed", half_closed);
	run("closed_with_data_unread", closed_with_data_unread);
	run("waiting", waiting);
	run("signals", signals);
	run("mapped", mapped);
	run("bulk", bulk);
	run("bulk_through_small_buffers", bulk_through_small_buffers);
	run("many_one_after_the_other", many_one_after_the_other);
	run("kept_alive", kept_alive);
	return failures != 0;
}
