/* SPDX-License-Identifier: MIT OR Apache-2.0
 * rsdgram: datagram sockets over RDMA and sets of sockets, call by call, in one process.
 * rsdgram ADDRESS [OTHER]      two addresses of this host; exit status 0 when every case held */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <pthread.h>
#include <rdma/rsocket.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>
#include "checks.h"

/* of a library newer than the distribution's */
static int (*repoll_create)(int flags);
static int (*repoll_ctl)(int epfd, int op, int fd, struct epoll_event *event);
static int (*repoll_wait)(int epfd, struct epoll_event *events, int maxevents, int timeout);

static struct sockaddr_storage base, other;
static socklen_t len;

#define V6 (base.ss_family == AF_INET6)
#define MOST ((int)(V6 ? 2024 : 2040))

static void name(int s, struct sockaddr_storage *a)
{
	socklen_t n = sizeof *a;
	memset(a, 0, sizeof *a);
	CHECK(!rgetsockname(s, (void *)a, &n) && n == len);
}

/* A socket at an address, at a port of the kernel's choice. */
static int bound(struct sockaddr_storage at, int flags, struct sockaddr_storage *is)
{
	int s = rsocket(base.ss_family, SOCK_DGRAM | flags, 0);
	CHECK(s >= 0);
	CHECK(!rbind(s, (void *)&at, len));
	name(s, is);
	return s;
}

static int is_ready(int s, int events, int ms)
{
	struct pollfd p = {.fd = s, .events = events};
	return rpoll(&p, 1, ms) == 1 ? p.revents : 0;
}

static void fill(char *b, int n, unsigned seed)
{
	for (int i = 0; i < n; i++)
		b[i] = (seed = seed * 1103515245 + 12345) >> 16;
}

/* One datagram each way; every byte is looked at. The first go by UDP, then UD. */
static void both_ways(int a, int b, struct sockaddr_storage *an, struct sockaddr_storage *bn, int n, unsigned seed)
{
	static char sent[2048], came[2048];
	struct sockaddr_storage from;
	socklen_t size = sizeof from;
	int s[2] = {a, b};
	struct sockaddr_storage *names[2] = {an, bn};
	for (int i = 0; i < 2; i++) {
		int to = s[!i];
		fill(sent, n, seed + i);
		CHECK(rsendto(s[i], sent, n, 0, (void *)names[!i], len) == n);
		CHECK(is_ready(to, POLLIN, 5000) & POLLIN);
		memset(came, 0x5a, sizeof came);
		size = sizeof from;
		memset(&from, 0, sizeof from);
		CHECK(rrecvfrom(to, came, sizeof came, MSG_DONTWAIT, (void *)&from, &size) == n);
		CHECK(!memcmp(sent, came, n) && (n == 2048 || came[n] == 0x5a));
		CHECK(size == len && !memcmp(&from, names[i], len));
	}
}

static void sizes(void)
{
	struct sockaddr_storage an, bn;
	int a = bound(base, 0, &an), b = bound(other, 0, &bn);
	for (int round = 0; round < 3; round++)
		for (int n = 0; n <= MOST; n += n < 70 ? 1 : 97)
			both_ways(a, b, &an, &bn, n, n * 3 + round);
	both_ways(a, b, &an, &bn, MOST, 9);
	char big[4096] = "";
	IS(rsendto(a, big, MOST + 1, 0, (void *)&bn, len), EMSGSIZE);
	IS(rsendto(a, big, sizeof big, 0, (void *)&bn, len), EMSGSIZE);
	CHECK(!is_ready(b, POLLIN, 50));
	CHECK(!rclose(a) && !rclose(b));
	IS(rclose(a), EBADF);
}

/* What is too long is so also before the peer is known. */
static void first_contact(void)
{
	struct sockaddr_storage an, bn;
	int a = bound(base, 0, &an), b = bound(other, 0, &bn);
	char big[4096] = "";
	IS(rsendto(a, big, MOST + 1, 0, (void *)&bn, len), EMSGSIZE);
	/* many at once, before the other end has said anything: none is lost or doubled */
	for (int i = 0; i < 100; i++) {
		big[0] = i;
		CHECK(rsendto(a, big, 100 + i, 0, (void *)&bn, len) == 100 + i);
	}
	char seen[100] = "";
	for (int i = 0; i < 100; i++) {
		CHECK(is_ready(b, POLLIN, 5000));
		int n = rrecv(b, big, sizeof big, MSG_DONTWAIT);
		CHECK(n == 100 + big[0]);
		if (n == 100 + big[0])
			CHECK(!seen[(int)big[0]]++);
	}
	CHECK(!is_ready(b, POLLIN, 50));
	CHECK(!rclose(a) && !rclose(b));
}

/* Another program takes the place of the one that was known; the sender knows nothing of it. */
static void restarted(void)
{
	struct sockaddr_storage an, bn;
	int a = bound(base, 0, &an), b = bound(other, 0, &bn), again = 0;
	both_ways(a, b, &an, &bn, 10, 1);
	for (int i = 0; i < 2; i++) {
		CHECK(!rclose(b));
		b = bound(bn, 0, &bn);
		for (int tries = 0; tries < 100; tries++) {
			CHECK(rsendto(a, "anybody?", 9, 0, (void *)&bn, len) == 9);
			if (is_ready(b, POLLIN, 100))
				break;
		}
		char c[9] = "";
		CHECK(rrecv(b, c, sizeof c, MSG_DONTWAIT) == 9 && !strcmp(c, "anybody?"));
		while (rrecv(b, c, sizeof c, MSG_DONTWAIT) > 0)
			again++;
		both_ways(a, b, &an, &bn, 10, 1);
	}
	CHECK(again < 10);
	CHECK(!rclose(a) && !rclose(b));
}

/* A socket that is bound to no address answers from the one it was called by. */
static void wildcard(void)
{
	struct sockaddr_storage any = base, an, bn, to;
	if (V6)
		((struct sockaddr_in6 *)&any)->sin6_addr = in6addr_any;
	else
		((struct sockaddr_in *)&any)->sin_addr.s_addr = 0;
	int a = bound(any, 0, &an), b = rsocket(base.ss_family, SOCK_DGRAM, IPPROTO_UDP);
	for (int i = 0; i < 2; i++) {
		to = i ? other : base;
		((struct sockaddr_in *)&to)->sin_port = ((struct sockaddr_in *)&an)->sin_port;
		CHECK(!rconnect(b, (void *)&to, len)); /* hears nobody else from now on */
		for (int j = 0; j < 20; j++) {
			char c[10];
			struct sockaddr_storage from;
			socklen_t size = sizeof from;
			CHECK(rsend(b, "question", 9, 0) == 9);
			CHECK(is_ready(a, POLLIN, 5000));
			CHECK(rrecvfrom(a, c, sizeof c, 0, (void *)&from, &size) == 9 && !strcmp(c, "question"));
			name(b, &bn);
			CHECK(!memcmp(&from, &bn, len));
			CHECK(rsendto(a, "answer", 7, 0, (void *)&from, size) == 7);
			CHECK(is_ready(b, POLLIN, 5000));
			CHECK(rrecv(b, c, sizeof c, 0) == 7 && !strcmp(c, "answer"));
		}
	}
	CHECK(!rclose(a) && !rclose(b));
}

static void connected(void)
{
	struct sockaddr_storage an, bn, cn, peer;
	socklen_t size = sizeof peer;
	int a = bound(base, SOCK_NONBLOCK, &an), b = bound(other, 0, &bn), c = bound(base, 0, &cn);
	char x[64];
	CHECK(rfcntl(a, F_GETFL, 0) & O_NONBLOCK);
	IS(rrecv(a, x, sizeof x, 0), EAGAIN);
	IS(rsend(a, x, 1, 0), EDESTADDRREQ);
	IS(rgetpeername(a, (void *)&peer, &size), ENOTCONN);
	IS(rshutdown(a, SHUT_WR), ENOTCONN);
	CHECK(!rconnect(a, (void *)&bn, len));
	size = sizeof peer;
	CHECK(!rgetpeername(a, (void *)&peer, &size) && size == len && !memcmp(&peer, &bn, len));
	both_ways(b, c, &bn, &cn, 10, 1);
	CHECK(rwrite(a, "one", 4) == 4);
	CHECK(is_ready(b, POLLIN, 5000));
	CHECK(rread(b, x, sizeof x) == 4 && !strcmp(x, "one"));
	CHECK(rsendto(b, "two", 4, 0, (void *)&an, len) == 4);
	CHECK(rsendto(c, "stranger", 9, 0, (void *)&an, len) == 9);
	CHECK(is_ready(a, POLLIN, 5000));
	CHECK(rrecv(a, x, sizeof x, MSG_PEEK) == 4 && !strcmp(x, "two"));
	CHECK(rrecv(a, x, sizeof x, 0) == 4 && !strcmp(x, "two"));
	CHECK(!is_ready(a, POLLIN, 100)); /* a connected socket hears its peer only */
	CHECK(!rshutdown(a, SHUT_RDWR));
	CHECK(rrecv(a, x, sizeof x, 0) == 0);
	IS(rsend(a, x, 1, 0), EPIPE);
	CHECK(!rclose(a) && !rclose(b) && !rclose(c));
}

static void messages(void)
{
	struct sockaddr_storage an, bn, from;
	int a = bound(base, 0, &an), b = bound(other, 0, &bn);
	both_ways(a, b, &an, &bn, 20, 1);
	for (int round = 0; round < 2; round++) {
		char x[3][8] = {"abc", "defgh", "ij"}, y[2][4];
		struct iovec out[3] = {{x[0], 3}, {x[1], 5}, {x[2], 2}}, in[2] = {{y[0], 4}, {y[1], 3}};
		struct msghdr m = {.msg_name = &bn, .msg_namelen = len, .msg_iov = out, .msg_iovlen = 3};
		CHECK(rsendmsg(a, &m, 0) == 10);
		struct msghdr r = {.msg_name = &from, .msg_namelen = sizeof from, .msg_iov = in, .msg_iovlen = 2};
		CHECK(is_ready(b, POLLIN, 5000));
		CHECK(rrecvmsg(b, &r, 0) == 7 && r.msg_flags & MSG_TRUNC);
		CHECK(!memcmp(y[0], "abcd", 4) && !memcmp(y[1], "efg", 3));
		CHECK(r.msg_namelen == len && !memcmp(&from, &an, len));
		if (!round)
			CHECK(!rconnect(a, (void *)&bn, len));
		CHECK(rwritev(a, out, 3) == 10);
		CHECK(is_ready(b, POLLIN, 5000));
		CHECK(rreadv(b, in, 2) == 7);
		CHECK(!is_ready(b, POLLIN, 20)); /* the rest of a datagram is gone */
	}
	char c;
	struct iovec one = {&c, 1};
	struct msghdr m = {.msg_iov = &one, .msg_iovlen = 1, .msg_control = &c, .msg_controllen = 1};
	IS(rsendmsg(a, &m, 0), EOPNOTSUPP);
	IS(rrecvmsg(a, &m, 0), EOPNOTSUPP);
	IS(rsend(a, &c, 1, MSG_OOB), EOPNOTSUPP);
	CHECK(!rclose(a) && !rclose(b));
}

static void options(void)
{
	struct sockaddr_storage an, bn;
	int a = bound(base, 0, &an), n = 0;
	socklen_t size = sizeof n;
	CHECK(!rgetsockopt(a, SOL_SOCKET, SO_TYPE, &n, &size) && n == SOCK_DGRAM);
	n = 1 << 18;
	CHECK(!rsetsockopt(a, SOL_SOCKET, SO_SNDBUF, &n, sizeof n));
	CHECK(!rsetsockopt(a, SOL_SOCKET, SO_RCVBUF, &n, sizeof n));
	CHECK(!rgetsockopt(a, SOL_SOCKET, SO_RCVBUF, &n, &size) && n == 1 << 19);
	n = 32;
	CHECK(!rsetsockopt(a, SOL_RDMA, RDMA_SQSIZE, &n, sizeof n));
	CHECK(!rsetsockopt(a, SOL_RDMA, RDMA_RQSIZE, &n, sizeof n));
	n = 0;
	CHECK(!rgetsockopt(a, SOL_RDMA, RDMA_RQSIZE, &n, &size) && n == 32);
	CHECK(!rgetsockopt(a, SOL_SOCKET, SO_ERROR, &n, &size) && !n);
	IS(rsetsockopt(a, SOL_SOCKET, 12345, &n, sizeof n), ENOPROTOOPT);
	int b = bound(other, 0, &bn);
	both_ways(a, b, &an, &bn, 100, 1);
	IS(rsetsockopt(a, SOL_RDMA, RDMA_RQSIZE, &n, sizeof n), EINVAL);
	IS(rlisten(a, 1), EOPNOTSUPP);
	IS(raccept(a, NULL, NULL), EOPNOTSUPP);
	CHECK(riomap(a, &n, 4, PROT_WRITE, 0, 0) == -1);
	IS(rbind(a, (void *)&base, len), EINVAL);
	IS(rbind(b, (void *)&base, 1), EINVAL);
	struct sockaddr_storage wrong = {.ss_family = V6 ? AF_INET : AF_INET6};
	IS(rconnect(b, (void *)&wrong, sizeof wrong), EAFNOSUPPORT);
	IS(rsendto(b, &n, 1, 0, (void *)&wrong, sizeof wrong), EAFNOSUPPORT);
	int c = rsocket(base.ss_family, SOCK_DGRAM, 0);
	IS(rbind(c, (void *)&an, len), EADDRINUSE);
	IS(rsocket(base.ss_family, SOCK_DGRAM, IPPROTO_TCP), EOPNOTSUPP);
	CHECK(!rclose(a) && !rclose(b) && !rclose(c));
}

/* Whoever is no rsocket, or lies, is not heard. */
static void strangers(void)
{
	static const char *nonsense[] = {"", "x", "UUUU", "UUUUUUUUUUUUUUUUUUUUUUUUUUUUUUUUUUUUUUU"};
	struct sockaddr_storage an, bn;
	int a = bound(base, SOCK_NONBLOCK, &an), b = bound(other, 0, &bn);
	int u = socket(base.ss_family, SOCK_DGRAM, 0);
	char big[3000] = "", c;
	for (int i = 0; i < 4; i++)
		CHECK(sendto(u, nonsense[i], strlen(nonsense[i]), 0, (void *)&an, len) >= 0);
	CHECK(sendto(u, big, sizeof big, 0, (void *)&an, len) == sizeof big);
	CHECK(!is_ready(a, POLLIN, 100));
	IS(rrecv(a, &c, 1, 0), EAGAIN);
	both_ways(a, b, &an, &bn, 33, 5);
	close(u);
	CHECK(!rclose(a) && !rclose(b));
}

static int ends[2];
static void *echo(void *to)
{
	char x[2048];
	struct sockaddr_storage from;
	for (;;) {
		socklen_t size = sizeof from;
		int n = rrecvfrom(ends[1], x, sizeof x, 0, (void *)&from, &size);
		CHECK(n > 0);
		if (n <= 1)
			return to;
		CHECK(rsendto(ends[1], x, n, 0, (void *)&from, size) == n);
	}
}

/* Calls that wait, in two threads; several in flight. */
static void threads(void)
{
	struct sockaddr_storage an, bn;
	ends[0] = bound(base, 0, &an), ends[1] = bound(other, 0, &bn);
	pthread_t t;
	CHECK(!rconnect(ends[0], (void *)&bn, len));
	CHECK(!pthread_create(&t, NULL, echo, NULL));
	char x[2048], y[2048];
	for (int i = 0; i < 300; i++) {
		int n = 2 + i * 6;
		fill(x, n, i);
		for (int k = 0; k < 4; k++)
			CHECK(rsend(ends[0], x, n, 0) == n);
		for (int k = 0; k < 4; k++)
			CHECK(rrecv(ends[0], y, sizeof y, 0) == n && !memcmp(x, y, n));
	}
	CHECK(rsend(ends[0], x, 1, 0) == 1);
	CHECK(!pthread_join(t, NULL));
	CHECK(!rclose(ends[0]) && !rclose(ends[1]));
}

static void selecting(void)
{
	struct sockaddr_storage an, bn;
	int a = bound(base, 0, &an), b = bound(other, 0, &bn);
	both_ways(a, b, &an, &bn, 1, 1);
	for (int i = 0; i < 2; i++) {
		fd_set r, w;
		FD_ZERO(&r);
		FD_ZERO(&w);
		FD_SET(b, &r);
		FD_SET(a, &w);
		struct timeval t = {.tv_sec = 5};
		if (i) {
			CHECK(rsendto(a, "x", 1, 0, (void *)&bn, len) == 1);
			FD_CLR(a, &w);
		}
		CHECK(rselect((a > b ? a : b) + 1, &r, &w, NULL, &t) == 1);
		CHECK(!!FD_ISSET(b, &r) == i && !!FD_ISSET(a, &w) == !i);
	}
	CHECK(!rclose(a) && !rclose(b));
}

static void *later(void *fd)
{
	usleep(50000);
	CHECK(write((int)(intptr_t)fd, "x", 1) == 1);
	return NULL;
}

static int set, grown[2];
static void *grow(void *data)
{
	struct epoll_event e = {.events = EPOLLIN, .data.u32 = 77};
	usleep(50000);
	CHECK(!repoll_ctl(set, EPOLL_CTL_ADD, grown[0], &e));
	return data;
}

static void sets(void)
{
	struct sockaddr_storage an, bn;
	int a = bound(base, 0, &an), b = bound(other, 0, &bn), p[2];
	struct epoll_event e = {.events = EPOLLIN, .data.u64 = 0x123456789abcdef}, found[4];
	pthread_t t;
	CHECK(!pipe(p) && !pipe(grown));
	set = repoll_create(EPOLL_CLOEXEC);
	CHECK(set >= 0);
	IS(repoll_create(0x7fff0000), EINVAL);
	IS(repoll_wait(set, found, 0, 0), EINVAL);
	CHECK(repoll_wait(set, found, 4, 20) == 0);
	CHECK(!repoll_ctl(set, EPOLL_CTL_ADD, b, &e));
	IS(repoll_ctl(set, EPOLL_CTL_ADD, b, &e), EEXIST);
	IS(repoll_ctl(set, EPOLL_CTL_MOD, a, &e), ENOENT);
	IS(repoll_ctl(set, EPOLL_CTL_DEL, a, NULL), ENOENT);
	IS(repoll_ctl(set, EPOLL_CTL_ADD, set, &e), EINVAL);
	IS(repoll_ctl(set, EPOLL_CTL_ADD, 1000, &e), EBADF);
	IS(repoll_ctl(a, EPOLL_CTL_ADD, b, &e), EINVAL);
	CHECK(repoll_wait(set, found, 4, 20) == 0);
	CHECK(rsendto(a, "x", 1, 0, (void *)&bn, len) == 1);
	for (int i = 0; i < 2; i++) { /* as long as nobody reads */
		CHECK(repoll_wait(set, found, 4, 5000) == 1);
		CHECK(found[0].events == EPOLLIN && found[0].data.u64 == e.data.u64);
	}
	char c;
	CHECK(rrecv(b, &c, 1, 0) == 1);
	CHECK(repoll_wait(set, found, 4, 20) == 0);
	e.events = EPOLLIN | EPOLLOUT, e.data.u32 = 7;
	CHECK(!repoll_ctl(set, EPOLL_CTL_MOD, b, &e));
	CHECK(repoll_wait(set, found, 4, -1) == 1 && found[0].events == EPOLLOUT && found[0].data.u32 == 7);
	CHECK(!repoll_ctl(set, EPOLL_CTL_DEL, b, NULL));
	/* plain descriptors too, and one that speaks once */
	e.events = EPOLLIN | EPOLLONESHOT, e.data.u32 = 9;
	CHECK(!repoll_ctl(set, EPOLL_CTL_ADD, p[0], &e));
	CHECK(!pthread_create(&t, NULL, later, (void *)(intptr_t)p[1]));
	CHECK(repoll_wait(set, found, 4, 5000) == 1 && found[0].data.u32 == 9);
	CHECK(repoll_wait(set, found, 4, 20) == 0);
	CHECK(!repoll_ctl(set, EPOLL_CTL_MOD, p[0], &e));
	CHECK(repoll_wait(set, found, 4, 5000) == 1);
	CHECK(!pthread_join(t, NULL));
	/* a set that grows while somebody waits */
	CHECK(write(grown[1], "x", 1) == 1);
	CHECK(!pthread_create(&t, NULL, grow, NULL));
	CHECK(repoll_wait(set, found, 4, 5000) == 1 && found[0].data.u32 == 77);
	CHECK(!pthread_join(t, NULL));
	/* more are ready than there is room for: all come in turn */
	e.events = EPOLLOUT;
	unsigned seen = 0;
	e.data.u32 = 1;
	CHECK(!repoll_ctl(set, EPOLL_CTL_ADD, a, &e));
	e.data.u32 = 2;
	CHECK(!repoll_ctl(set, EPOLL_CTL_ADD, b, &e));
	for (int i = 0; i < 3; i++) {
		CHECK(repoll_wait(set, found, 1, 5000) == 1);
		seen |= found[0].data.u32;
	}
	CHECK(seen == (1 | 2 | 77));
	/* what is closed leaves the set */
	CHECK(!rclose(a) && !rclose(b));
	close(grown[0]);
	CHECK(repoll_wait(set, found, 4, 20) == 0);
	CHECK(!rclose(set));
	IS(repoll_wait(set, found, 4, 0), EINVAL);
	close(p[0]), close(p[1]), close(grown[1]);
}

/* Nothing is left of many. */
static int descriptors(void)
{
	int n = 0;
	for (int i = 0; i < 1024; i++)
		n += fcntl(i, F_GETFD) >= 0;
	return n;
}

static void many_one_after_the_other(void)
{
	int before = 0;
	for (int i = 0; i < 40; i++) {
		struct sockaddr_storage an, bn;
		int a = bound(base, 0, &an), b = bound(other, 0, &bn);
		both_ways(a, b, &an, &bn, 64, i);
		CHECK(!rclose(a) && !rclose(b));
		if (i == 5)
			before = descriptors();
	}
	CHECK(descriptors() <= before);
}

/* Who has no descriptor left is told that, and not that he is in another network namespace. */
static void without_descriptors(void)
{
	static int taken[4096];
	struct rlimit was, low;
	int n = 0;
	CHECK(!getrlimit(RLIMIT_NOFILE, &was));
	low = was;
	low.rlim_cur = 256;
	CHECK(!setrlimit(RLIMIT_NOFILE, &low));
	while (n < 4096 && (taken[n] = dup(0)) >= 0)
		n++;
	CHECK(rsocket(base.ss_family, SOCK_DGRAM, 0) == -1 && errno == EMFILE);
	while (n)
		close(taken[--n]);
	CHECK(!setrlimit(RLIMIT_NOFILE, &was));
	int s = rsocket(base.ss_family, SOCK_DGRAM, 0);
	CHECK(s >= 0 && !rclose(s));
}

static void run(const char *what, void (*f)(void))
{
	struct timespec t, u;
	int before = failures;
	current = what;
	clock_gettime(CLOCK_MONOTONIC, &t);
	f();
	clock_gettime(CLOCK_MONOTONIC, &u);
	if (before == failures)
		printf("ok %s (%.1f s)\n", what, u.tv_sec - t.tv_sec + (u.tv_nsec - t.tv_nsec) / 1e9);
	fflush(stdout);
}

static void parse(const char *text, struct sockaddr_storage *to)
{
	struct addrinfo hints = {.ai_flags = AI_NUMERICHOST, .ai_socktype = SOCK_DGRAM}, *found;
	if (getaddrinfo(text, "0", &hints, &found))
		exit(2);
	memcpy(to, found->ai_addr, len = found->ai_addrlen);
	freeaddrinfo(found);
}

int main(int argc, char **argv)
{
	const char *one = argc > 1 ? argv[1] : "127.0.0.1";
	*(void **)&repoll_create = dlsym(RTLD_DEFAULT, "repoll_create");
	*(void **)&repoll_ctl = dlsym(RTLD_DEFAULT, "repoll_ctl");
	*(void **)&repoll_wait = dlsym(RTLD_DEFAULT, "repoll_wait");
	parse(one, &base);
	parse(argc > 2 ? argv[2] : one, &other);
	run("sizes", sizes);
	run("first_contact", first_contact);
	run("restarted", restarted);
	run("wildcard", wildcard);
	run("connected", connected);
	run("messages", messages);
	run("options", options);
	run("strangers", strangers);
	run("threads", threads);
	run("selecting", selecting);
	if (repoll_create && repoll_ctl && repoll_wait)
		run("sets", sets);
	run("many_one_after_the_other", many_one_after_the_other);
	run("without_descriptors", without_descriptors);
	return failures != 0;
}
