/* SPDX-License-Identifier: MIT OR Apache-2.0
 * Stream sockets over RDMA and both ends of their connections, on ports behind FIRST_PORT. */
#ifndef ROCEBUD_PEER_ENDS_H
#define ROCEBUD_PEER_ENDS_H
#include <fcntl.h>
#include <netdb.h>
#include <pthread.h>
#include <rdma/rsocket.h>
#include <stdint.h>
#include "checks.h"

static struct sockaddr_storage base; /* the address, without a port */
static socklen_t base_len;
static int port = FIRST_PORT;

static int resolved(const char *address)
{
	struct addrinfo hints = {.ai_flags = AI_NUMERICHOST, .ai_socktype = SOCK_STREAM}, *found;
	if (getaddrinfo(address, "0", &hints, &found))
		return 0;
	memcpy(&base, found->ai_addr, found->ai_addrlen);
	base_len = found->ai_addrlen;
	return 1;
}

static struct sockaddr_storage at(int p)
{
	struct sockaddr_storage a = base;
	((struct sockaddr_in *)&a)->sin_port = htons(p); /* the same place in both families */
	return a;
}

static int made(int flags)
{
	return rsocket(base.ss_family, SOCK_STREAM | flags, 0);
}

/* Two ends of one connection; the options of the listener are those of its children. */
struct both {
	int a, b;
};

struct size {
	int level, name, value;
};

static struct both connected_with(const struct size *sizes, int n)
{
	struct sockaddr_storage a = at(++port), from;
	socklen_t len = sizeof from;
	int l = made(0);
	struct both c = {.a = made(SOCK_NONBLOCK)};
	for (int i = 0; i < n; i++) {
		CHECK(!rsetsockopt(l, sizes[i].level, sizes[i].name, &sizes[i].value, sizeof(int)));
		CHECK(!rsetsockopt(c.a, sizes[i].level, sizes[i].name, &sizes[i].value, sizeof(int)));
	}
	CHECK(!rbind(l, (void *)&a, base_len));
	CHECK(!rlisten(l, 1));
	IS(rconnect(c.a, (void *)&a, base_len), EINPROGRESS);
	/* one thread plays both ends: what either does goes on in its own calls */
	struct pollfd p[2] = {{.fd = l, .events = POLLIN}, {.fd = c.a, .events = POLLOUT}};
	while (!p[0].revents)
		CHECK(rpoll(p, 2, 10000) > 0);
	c.b = raccept(l, (void *)&from, &len);
	CHECK(c.b >= 0 && from.ss_family == base.ss_family);
	for (p[0].fd = c.b, p[0].events = POLLOUT, p[0].revents = p[1].revents = 0;
	     !(p[0].revents & p[1].revents & POLLOUT);)
		CHECK(rpoll(p, 2, 10000) > 0);
	int error = 1;
	len = sizeof error;
	CHECK(!rgetsockopt(c.a, SOL_SOCKET, SO_ERROR, &error, &len) && !error);
	CHECK(!rfcntl(c.a, F_SETFL, 0) && !(rfcntl(c.a, F_GETFL, 0) & O_NONBLOCK));
	CHECK(!rclose(l));
	return c;
}

static struct both connected(void)
{
	return connected_with(NULL, 0);
}

static void *closing(void *s)
{
	CHECK(!rclose((int)(intptr_t)s));
	return NULL;
}

static void closed(struct both c)
{
	pthread_t t;
	pthread_create(&t, NULL, closing, (void *)(intptr_t)c.a);
	CHECK(!rclose(c.b));
	pthread_join(t, NULL);
}

#endif
