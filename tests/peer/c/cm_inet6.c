/* SPDX-License-Identifier: MIT OR Apache-2.0
 * cm_inet6: preloaded to a program whose rdma_cm addresses are IPv4 by its own rule: it binds and calls by IPv6
 * all the same. CM_INET6 is the server's address, perhaps with %INTERFACE; ports stay as they are.
 * Build: cc -O2 -shared -fPIC -o cm_inet6.so cm_inet6.c */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

struct rdma_cm_id;

/* The address with the port of `old`; with no address CM_INET6's. */
static struct sockaddr_in6 instead(const struct sockaddr *old, int any)
{
	struct addrinfo hints = { .ai_family = AF_INET6, .ai_flags = AI_NUMERICHOST, .ai_socktype = SOCK_STREAM }, *found;
	struct sockaddr_in6 new = { .sin6_family = AF_INET6 };
	const char *address = getenv("CM_INET6");
	if (!any) {
		if (!address || getaddrinfo(address, NULL, &hints, &found)) {
			fprintf(stderr, "cm_inet6: CM_INET6 has to be an IPv6 address\n");
			abort();
		}
		memcpy(&new, found->ai_addr, sizeof new);
		freeaddrinfo(found);
	}
	new.sin6_port = ((const struct sockaddr_in *)old)->sin_port;
	return new;
}

int rdma_bind_addr(struct rdma_cm_id *id, struct sockaddr *address)
{
	int (*next)(struct rdma_cm_id *, struct sockaddr *);
	*(void **)&next = dlsym(RTLD_NEXT, "rdma_bind_addr");
	struct sockaddr_in6 any = instead(address, 1);
	return next(id, (struct sockaddr *)&any);
}

int rdma_resolve_addr(struct rdma_cm_id *id, struct sockaddr *from, struct sockaddr *to, int timeout_ms)
{
	int (*next)(struct rdma_cm_id *, struct sockaddr *, struct sockaddr *, int);
	*(void **)&next = dlsym(RTLD_NEXT, "rdma_resolve_addr");
	struct sockaddr_in6 server = instead(to, 0);
	(void)from; /* of the other family */
	return next(id, NULL, (struct sockaddr *)&server, timeout_ms);
}
