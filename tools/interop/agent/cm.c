/* SPDX-License-Identifier: MIT OR Apache-2.0
 * Scenarios whose queue pairs are connected by librdmacm. The device, and so the memory, is the identifier's. */
#include "verbs.h"

#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <string.h>

/* The next event, which must be `want`; events that say "established" twice are passed over. */
static int await(struct scenario *s, enum rdma_cm_event_type want, struct rdma_cm_event **taken)
{
	struct pollfd p = { .fd = s->events->fd, .events = POLLIN };
	if (poll(&p, 1, (int)s->wait_s * 1000) <= 0)
		return fault(s, "rdma_cm: no %s within %u s", rdma_event_str(want), s->wait_s);
	if (rdma_get_cm_event(s->events, taken))
		return fault(s, "rdma_get_cm_event: %s", strerror(errno));
	if ((*taken)->event == want)
		return 1;
	fault(s, "rdma_cm: %s, status %d, expected %s", rdma_event_str((*taken)->event), (*taken)->status, rdma_event_str(want));
	rdma_ack_cm_event(*taken);
	return 0;
}

static int expect(struct scenario *s, enum rdma_cm_event_type want)
{
	struct rdma_cm_event *e;
	if (!await(s, want, &e))
		return 0;
	rdma_ack_cm_event(e);
	return 1;
}

static int address(struct scenario *s, const char *addr, const char *port, struct addrinfo **out)
{
	struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST };
	int e = getaddrinfo(addr, port, &hints, out);
	return e ? fault(s, "%s: %s", addr, gai_strerror(e)) : 1;
}

static int new_id(struct scenario *s, struct rdma_cm_id **id)
{
	if (!s->events && !(s->events = rdma_create_event_channel()))
		return fault(s, "rdma_create_event_channel: %s", strerror(errno));
	if (rdma_create_id(s->events, id, NULL, RDMA_PS_TCP))
		return fault(s, "rdma_create_id: %s", strerror(errno));
	return 1;
}

static int make_qp(struct scenario *s)
{
	s->ctx = s->id->verbs;
	if (!make_resources(s))
		return 0;
	struct ibv_qp_init_attr a = qp_attr(s);
	if (rdma_create_qp(s->id, s->pd, &a))
		return fault(s, "rdma_create_qp: %s", strerror(errno));
	s->qp = s->id->qp;
	return 1;
}

static struct rdma_conn_param param(const struct scenario *s)
{
	uint8_t depth = (uint8_t)s->rd_atomic;
	return (struct rdma_conn_param){ .responder_resources = depth, .initiator_depth = depth, .retry_count = 7, .rnr_retry_count = 7 };
}

int cm_listen(struct scenario *s, const char *addr, const char *port)
{
	struct addrinfo *a;
	if (!address(s, addr, port, &a) || !new_id(s, &s->listener))
		return 0;
	int bad = rdma_bind_addr(s->listener, a->ai_addr) || rdma_listen(s->listener, 4);
	freeaddrinfo(a);
	return bad ? fault(s, "listening on %s port %s: %s", addr, port, strerror(errno)) : 1;
}

int cm_accept(struct scenario *s)
{
	struct rdma_cm_event *e;
	if (!await(s, RDMA_CM_EVENT_CONNECT_REQUEST, &e))
		return 0;
	s->id = e->id;
	rdma_ack_cm_event(e);
	struct rdma_conn_param p = { 0 };
	if (!make_qp(s))
		return 0;
	p = param(s);
	if (rdma_accept(s->id, &p))
		return fault(s, "rdma_accept: %s", strerror(errno));
	return expect(s, RDMA_CM_EVENT_ESTABLISHED);
}

int cm_connect(struct scenario *s, const char *from, const char *addr, const char *port)
{
	struct addrinfo *a, *b;
	if (!address(s, addr, port, &a) || !address(s, from, "0", &b) || !new_id(s, &s->id))
		return 0;
	int bad = rdma_resolve_addr(s->id, b->ai_addr, a->ai_addr, 5000);
	freeaddrinfo(a);
	freeaddrinfo(b);
	if (bad)
		return fault(s, "rdma_resolve_addr: %s", strerror(errno));
	if (!expect(s, RDMA_CM_EVENT_ADDR_RESOLVED))
		return 0;
	if (rdma_resolve_route(s->id, 5000))
		return fault(s, "rdma_resolve_route: %s", strerror(errno));
	if (!expect(s, RDMA_CM_EVENT_ROUTE_RESOLVED) || !make_qp(s))
		return 0;
	struct rdma_conn_param p = param(s);
	if (rdma_connect(s->id, &p))
		return fault(s, "rdma_connect: %s", strerror(errno));
	return expect(s, RDMA_CM_EVENT_ESTABLISHED);
}

void cm_close(struct scenario *s)
{
	if (s->id && s->qp) {
		rdma_disconnect(s->id);
		rdma_destroy_qp(s->id);
		s->qp = NULL;
	}
	if (s->id)
		rdma_destroy_id(s->id);
	if (s->listener)
		rdma_destroy_id(s->listener);
	s->id = s->listener = NULL;
}
