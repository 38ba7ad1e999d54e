/* SPDX-License-Identifier: MIT OR Apache-2.0
 * What the C programs of tests/peer share: a TCP side channel, opening a device, and bringing queue
 * pairs up. Plain libibverbs, nothing else, so that the same source runs on any verbs device.
 *
 * Every failure of the set-up ends the program with status 2 and one line; a failure of what is under
 * test is counted by FAIL() and makes the exit status 1. */
#ifndef ROCEBUD_PEER_COMMON_H
#define ROCEBUD_PEER_COMMON_H

#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define DIE(...)                                                              \
	do {                                                                  \
		int e_ = errno;                                               \
		fprintf(stderr, "%s: ", program);                             \
		fprintf(stderr, __VA_ARGS__);                                 \
		fprintf(stderr, " (errno %d, %s)\n", e_, strerror(e_));       \
		exit(2);                                                      \
	} while (0)

static const char *program = "peer";
static int failures; /* written with atomics: threads count into it */

__attribute__((format(printf, 1, 2), unused)) static void FAIL(const char *fmt, ...)
{
	if (__atomic_add_fetch(&failures, 1, __ATOMIC_RELAXED) > 20)
		return; /* the first twenty tell the story */
	char line[512];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(line, sizeof line, fmt, ap);
	va_end(ap);
	fprintf(stderr, "FAIL %s\n", line);
}

static inline uint64_t now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* splitmix64: one 64-bit mix, good enough to make every byte of every message its own */
static inline uint64_t mix(uint64_t x)
{
	x += 0x9e3779b97f4a7c15u;
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
	return x ^ (x >> 31);
}

struct rng { uint64_t state; };
static inline uint64_t rng_next(struct rng *r) { return mix(r->state++); }
/* a number in 0..n-1 */
static inline uint32_t rng_below(struct rng *r, uint32_t n) { return n ? (uint32_t)(rng_next(r) % n) : 0; }

/* ---- side channel ---- */

__attribute__((unused)) static void tcp_send(int fd, const void *p, size_t n)
{
	const char *c = p;
	while (n) {
		ssize_t r = send(fd, c, n, MSG_NOSIGNAL);
		if (r <= 0)
			DIE("side channel: the other side is gone");
		c += r;
		n -= (size_t)r;
	}
}

__attribute__((unused)) static void tcp_recv(int fd, void *p, size_t n)
{
	char *c = p;
	while (n) {
		ssize_t r = recv(fd, c, n, 0);
		if (r <= 0) {
			if (r == 0)
				errno = ECONNRESET;
			DIE("side channel: the other side is gone or silent");
		}
		c += r;
		n -= (size_t)r;
	}
}

/* Both sides have come this far; each hands the other one word. */
__attribute__((unused)) static uint32_t barrier(int fd, uint32_t word)
{
	uint32_t theirs;
	tcp_send(fd, &word, sizeof word);
	tcp_recv(fd, &theirs, sizeof theirs);
	return theirs;
}

static void tcp_tune(int fd, int timeout_s)
{
	int one = 1;
	struct timeval tv = { .tv_sec = timeout_s };
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof tv);
}

__attribute__((unused)) static int tcp_listen(const char *port)
{
	struct addrinfo h = { .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE, .ai_family = AF_INET6 }, *a;
	int one = 1, e = getaddrinfo(NULL, port, &h, &a);
	if (e) { /* a host without IPv6 */
		h.ai_family = AF_INET;
		e = getaddrinfo(NULL, port, &h, &a);
	}
	if (e)
		DIE("address to listen on: %s", gai_strerror(e));
	int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0 && a->ai_family == AF_INET6) {
		freeaddrinfo(a);
		h.ai_family = AF_INET;
		if (getaddrinfo(NULL, port, &h, &a))
			DIE("address to listen on");
		fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	}
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	if (bind(fd, a->ai_addr, a->ai_addrlen) || listen(fd, 64))
		DIE("listen on port %s", port);
	freeaddrinfo(a);
	return fd;
}

__attribute__((unused)) static int tcp_accept(int listener, int timeout_s)
{
	int fd = accept(listener, NULL, NULL);
	if (fd < 0)
		DIE("accept");
	tcp_tune(fd, timeout_s);
	return fd;
}

__attribute__((unused)) static int tcp_connect(const char *host, const char *port, int timeout_s)
{
	struct addrinfo h = { .ai_socktype = SOCK_STREAM }, *a;
	int e = getaddrinfo(host, port, &h, &a);
	if (e)
		DIE("address %s: %s", host, gai_strerror(e));
	for (int tries = 0;; tries++) {
		int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
		if (fd >= 0 && connect(fd, a->ai_addr, a->ai_addrlen) == 0) {
			freeaddrinfo(a);
			tcp_tune(fd, timeout_s);
			return fd;
		}
		if (tries == 100)
			DIE("connect to %s port %s", host, port);
		close(fd);
		usleep(100000);
	}
}

/* ---- device ---- */

struct device {
	struct ibv_context *ctx;
	struct ibv_pd *pd;
	struct ibv_device_attr attr;
	struct ibv_port_attr port;
	union ibv_gid gid;
	int gid_index;
	enum ibv_mtu mtu;
};

static inline int gid_is_v4(const union ibv_gid *g)
{
	static const uint8_t prefix[12] = { 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff };
	return memcmp(g->raw, prefix, 12) == 0;
}

/* The first IPv4-mapped GID, else index 0: what perftest picks. */
__attribute__((unused)) static int default_gid(struct ibv_context *ctx, int n)
{
	for (int i = 0; i < n; i++) {
		union ibv_gid g;
		if (ibv_query_gid(ctx, 1, i, &g) == 0 && gid_is_v4(&g))
			return i;
	}
	return 0;
}

static inline enum ibv_mtu mtu_of(int bytes)
{
	return bytes >= 4096 ? IBV_MTU_4096 : bytes >= 2048 ? IBV_MTU_2048 : bytes >= 1024 ? IBV_MTU_1024
	     : bytes >= 512 ? IBV_MTU_512 : IBV_MTU_256;
}
static inline uint32_t mtu_bytes(enum ibv_mtu m) { return 128u << m; }

/* name NULL: the first device. gid_index -1: default_gid. mtu_bytes 0: the port's active MTU. */
__attribute__((unused)) static void open_device(struct device *d, const char *name, int gid_index, int mtu)
{
	int n = 0;
	struct ibv_device **list = ibv_get_device_list(&n), *found = NULL;
	if (!list)
		DIE("ibv_get_device_list");
	for (int i = 0; i < n && !found; i++)
		if (!name || !strcmp(ibv_get_device_name(list[i]), name))
			found = list[i];
	if (!found) {
		errno = ENODEV;
		DIE("device %s: not among %d devices", name ? name : "(any)", n);
	}
	if (!(d->ctx = ibv_open_device(found)))
		DIE("ibv_open_device");
	ibv_free_device_list(list);
	if ((errno = ibv_query_device(d->ctx, &d->attr)))
		DIE("ibv_query_device");
	if ((errno = ibv_query_port(d->ctx, 1, &d->port)))
		DIE("ibv_query_port");
	if (!(d->pd = ibv_alloc_pd(d->ctx)))
		DIE("ibv_alloc_pd");
	d->gid_index = gid_index >= 0 ? gid_index : default_gid(d->ctx, d->port.gid_tbl_len);
	if (ibv_query_gid(d->ctx, 1, d->gid_index, &d->gid))
		DIE("ibv_query_gid index %d", d->gid_index);
	d->mtu = mtu ? mtu_of(mtu) : d->port.active_mtu;
}

/* ---- queue pairs ---- */

struct qp_addr {
	uint32_t qpn, psn;
	union ibv_gid gid;
};

#define QKEY 0x11111111u
#define ALL_ACCESS (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC)

struct qp_options {
	int access;           /* qp_access_flags; -1: everything the type allows */
	int max_rd_atomic;    /* both directions; -1: the device's, at most 16 */
	int max_dest_rd_atomic; /* -1: as max_rd_atomic */
	int timeout, retry_cnt, rnr_retry, min_rnr_timer;
};
static const struct qp_options QP_DEFAULTS = { -1, -1, -1, 16, 7, 7, 8 };

__attribute__((unused)) static int to_init(struct ibv_qp *qp, const struct qp_options *o)
{
	int rc_access = o->access >= 0 ? o->access : ALL_ACCESS;
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY, .qp_access_flags = (unsigned)rc_access };
	if (qp->qp_type == IBV_QPT_UC)
		a.qp_access_flags &= IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_LOCAL_WRITE;
	int m = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;
	return ibv_modify_qp(qp, &a, m | (qp->qp_type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS));
}

__attribute__((unused)) static struct ibv_ah_attr ah_of(const struct device *d, const union ibv_gid *to)
{
	return (struct ibv_ah_attr){ .is_global = 1, .port_num = 1,
		.grh = { .dgid = *to, .sgid_index = (uint8_t)d->gid_index, .hop_limit = 64 } };
}

static inline int rd_atomic(const struct device *d, int asked)
{
	int most = d->attr.max_qp_rd_atom < 16 ? d->attr.max_qp_rd_atom : 16;
	return asked >= 0 ? asked : most;
}

__attribute__((unused)) static int to_rtr(const struct device *d, struct ibv_qp *qp, const struct qp_addr *peer,
					  const struct qp_options *o)
{
	int dest = o->max_dest_rd_atomic >= 0 ? o->max_dest_rd_atomic : rd_atomic(d, o->max_rd_atomic);
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_RTR, .path_mtu = d->mtu, .dest_qp_num = peer->qpn,
		.rq_psn = peer->psn, .max_dest_rd_atomic = (uint8_t)dest,
		.min_rnr_timer = (uint8_t)o->min_rnr_timer, .ah_attr = ah_of(d, &peer->gid) };
	int m = IBV_QP_STATE;
	if (qp->qp_type != IBV_QPT_UD)
		m |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
	if (qp->qp_type == IBV_QPT_RC)
		m |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	return ibv_modify_qp(qp, &a, m);
}

__attribute__((unused)) static int to_rts(const struct device *d, struct ibv_qp *qp, uint32_t psn,
					  const struct qp_options *o)
{
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_RTS, .sq_psn = psn, .timeout = (uint8_t)o->timeout,
		.retry_cnt = (uint8_t)o->retry_cnt, .rnr_retry = (uint8_t)o->rnr_retry,
		.max_rd_atomic = (uint8_t)rd_atomic(d, o->max_rd_atomic) };
	int m = IBV_QP_STATE | IBV_QP_SQ_PSN;
	if (qp->qp_type == IBV_QPT_RC)
		m |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
	return ibv_modify_qp(qp, &a, m);
}

/* One completion, by polling; 0 when none came in time. */
__attribute__((unused)) static int wait_wc(struct ibv_cq *cq, struct ibv_wc *wc, int timeout_ms)
{
	uint64_t end = now_ns() + (uint64_t)timeout_ms * 1000000u;
	for (;;) {
		int n = ibv_poll_cq(cq, 1, wc);
		if (n)
			return n;
		if (now_ns() > end)
			return 0;
	}
}

#endif
