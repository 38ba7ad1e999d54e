/* SPDX-License-Identifier: MIT OR Apache-2.0
 * calls: connections by librdmacm, made and ended in all ways.
 *   calls serve ADDRESS PORT              accepts; says "listening", and at SIGTERM "accepted N, ended M"
 *   calls call ADDRESS PORT N             N times: connect, one SEND, disconnect; says the longest wait for an event
 *   calls fickle ADDRESS PORT N           N times: connect, disconnect, and destroy without waiting for the peer's word
 *   calls many ADDRESS PORT N             N connections at once, then the end of all
 *   calls stop STAGE ADDRESS PORT         a client that sleeps for ever when it has "resolved" or "asked"
 *   calls sit STAGE ADDRESS PORT          a server that sleeps for ever with a request "unread" or "read"
 *   calls hold ADDRESS PORT               connects, says "held", and sleeps for ever
 *   calls expect EVENT STATUS MS ADDRESS PORT    connecting must end with this event and status within MS
 *   calls giveup ADDRESS PORT             destroys the identifier 100 ms after it began to connect, or to resolve
 *                                         what cannot be resolved
 *   calls watch ADDRESS PORT              connects, says "held", and how it hears that its device is gone, with
 *                                         an address of its own bound besides; then connects again
 * ADDRESS may have a scope (fe80::1%ve0). Plain librdmacm: it runs on any device that has it.
 * Build: cc -O2 -o calls calls.c -lrdmacm -libverbs */
#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define DIE(...) do { printf("FAIL "); printf(__VA_ARGS__); printf(" (%s)\n", strerror(errno)); exit(1); } while (0)

static struct rdma_event_channel *channel;
static volatile sig_atomic_t stop;

static void on_term(int sig) { (void)sig; stop = 1; }

static double now_ms(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e3 + t.tv_nsec / 1e6;
}

static struct addrinfo *address(const char *host, const char *port)
{
	struct addrinfo hints = { .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV, .ai_socktype = SOCK_STREAM }, *found;
	int e = getaddrinfo(host, port, &hints, &found);
	if (e)
		DIE("%s: %s", host, gai_strerror(e));
	return found;
}

/* A queue pair, a completion queue and a buffer of one byte. */
struct end {
	struct ibv_cq *cq;
	struct ibv_mr *mr;
	char byte[64];
};

static void make_qp(struct rdma_cm_id *id)
{
	struct end *end = calloc(1, sizeof(*end));
	end->cq = ibv_create_cq(id->verbs, 4, NULL, NULL, 0);
	struct ibv_qp_init_attr init = { .send_cq = end->cq, .recv_cq = end->cq, .qp_type = IBV_QPT_RC,
		.cap = { 2, 2, 1, 1, 0 } };
	if (!end->cq || rdma_create_qp(id, NULL, &init))
		DIE("queue pair");
	end->mr = ibv_reg_mr(id->pd, end->byte, sizeof(end->byte), IBV_ACCESS_LOCAL_WRITE);
	struct ibv_sge sge = { (uintptr_t)end->byte, sizeof(end->byte), end->mr->lkey };
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;
	if (!end->mr || ibv_post_recv(id->qp, &wr, &bad))
		DIE("receive");
	id->context = end;
}

static void drop(struct rdma_cm_id *id)
{
	struct end *end = id->context;
	if (id->qp) {
		rdma_destroy_qp(id);
		ibv_dereg_mr(end->mr);
		ibv_destroy_cq(end->cq);
		free(end);
	}
	if (rdma_destroy_id(id))
		DIE("destroy");
}

static int lost; /* the device is gone: the channel may be, too */

/* Takes an event within ms; its kind, or -1; -2 when there will be none any more. */
static int take(int ms, int *status, struct rdma_cm_id **id)
{
	struct pollfd p = { .fd = channel->fd, .events = POLLIN };
	struct rdma_cm_event *event;
	if (poll(&p, 1, ms) != 1)
		return -1;
	if (rdma_get_cm_event(channel, &event)) {
		if (!lost)
			DIE("event");
		printf("channel: errno %d\n", errno);
		return -2;
	}
	int kind = event->event;
	if (status)
		*status = event->status;
	if (id)
		*id = event->id;
	if (rdma_ack_cm_event(event))
		DIE("acknowledge");
	return kind;
}

static double longest;

static void want(int kind, int ms)
{
	int status = 0, got;
	double begun = now_ms();
	do
		got = take(ms, &status, NULL);
	while (got == RDMA_CM_EVENT_TIMEWAIT_EXIT); /* of a connection that ended before */
	if (now_ms() - begun > longest)
		longest = now_ms() - begun;
	if (got != kind || status)
		DIE("%s, status %d, in place of %s", got < 0 ? "nothing" : rdma_event_str(got), status, rdma_event_str(kind));
}

static void send_one(struct rdma_cm_id *id)
{
	struct end *end = id->context;
	struct ibv_sge sge = { (uintptr_t)end->byte, 1, end->mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }, *bad;
	struct ibv_wc wc;
	if (ibv_post_send(id->qp, &wr, &bad))
		DIE("post");
	for (double end_at = now_ms() + 20000; now_ms() < end_at;) {
		int n = ibv_poll_cq(end->cq, 1, &wc);
		if (n < 0 || (n > 0 && wc.status))
			DIE("completion: %s", n < 0 ? "error" : ibv_wc_status_str(wc.status));
		if (n > 0 && wc.opcode == IBV_WC_SEND)
			return;
	}
	DIE("no completion");
}

static const struct rdma_conn_param PARAM = { .responder_resources = 1, .initiator_depth = 1, .retry_count = 7,
	.rnr_retry_count = 7 };

static void rest(const char *stage)
{
	printf("at %s\n", stage);
	fflush(stdout);
	for (;;)
		pause();
}

static struct rdma_cm_id *connect_until(const char *stage, struct addrinfo *to)
{
	struct rdma_cm_id *id;
	struct rdma_conn_param param = PARAM;
	if (rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) || rdma_resolve_addr(id, NULL, to->ai_addr, 5000))
		DIE("resolve");
	want(RDMA_CM_EVENT_ADDR_RESOLVED, 20000);
	if (rdma_resolve_route(id, 5000))
		DIE("route");
	want(RDMA_CM_EVENT_ROUTE_RESOLVED, 20000);
	make_qp(id);
	if (!strcmp(stage, "resolved"))
		rest(stage);
	if (rdma_connect(id, &param))
		DIE("connect");
	if (!strcmp(stage, "asked"))
		rest(stage);
	want(RDMA_CM_EVENT_ESTABLISHED, 30000);
	return id;
}

static struct rdma_cm_id *connect_to(struct addrinfo *to) { return connect_until("", to); }

static void sit(const char *stage, struct addrinfo *at)
{
	struct rdma_cm_id *listener;
	struct pollfd p = { .fd = channel->fd, .events = POLLIN };
	if (rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP) || rdma_bind_addr(listener, at->ai_addr) ||
	    rdma_listen(listener, 4))
		DIE("listen");
	printf("listening\n");
	fflush(stdout);
	if (poll(&p, 1, 60000) != 1)
		DIE("nobody asks");
	if (!strcmp(stage, "read") && take(1000, NULL, NULL) != RDMA_CM_EVENT_CONNECT_REQUEST)
		DIE("no request");
	rest(stage);
}

static void hang_up(struct rdma_cm_id *id)
{
	if (rdma_disconnect(id))
		DIE("disconnect");
	want(RDMA_CM_EVENT_DISCONNECTED, 30000);
}

static void serve(struct addrinfo *at)
{
	struct rdma_cm_id *listener, *id;
	struct rdma_conn_param param = PARAM;
	struct sigaction act = { .sa_handler = on_term };
	int accepted = 0, ended = 0, status, on = 1;
	sigaction(SIGTERM, &act, NULL);
	if (rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP) ||
	    rdma_set_option(listener, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &on, sizeof(on)) ||
	    rdma_bind_addr(listener, at->ai_addr) || rdma_listen(listener, 128))
		DIE("listen");
	printf("listening\n");
	fflush(stdout);
	for (;;) {
		int last = stop, kind = take(last ? 500 : 100, &status, &id);
		if ((kind < 0 && last) || kind == -2)
			break;
		switch (kind) {
		case RDMA_CM_EVENT_CONNECT_REQUEST:
			make_qp(id);
			/* a peer that has died meanwhile is an event to come */
			if (rdma_accept(id, &param))
				printf("accept: %s\n", strerror(errno));
			accepted++;
			break;
		case RDMA_CM_EVENT_DEVICE_REMOVAL:
			printf("removed\n");
			fflush(stdout);
			lost = 1;
			ended++;
			drop(id);
			break;
		case RDMA_CM_EVENT_DISCONNECTED:
			rdma_disconnect(id);
			/* fall through */
		case RDMA_CM_EVENT_UNREACHABLE:
		case RDMA_CM_EVENT_REJECTED:
			ended++;
			drop(id);
			break;
		default:
			break;
		}
		if (ended == accepted && accepted)
			fflush(stdout);
	}
	printf("accepted %d, ended %d\n", accepted, ended);
}

static void fickle(struct addrinfo *to, int n)
{
	for (int i = 0; i < n; i++) {
		struct rdma_cm_id *id = connect_to(to);
		if (rdma_disconnect(id))
			DIE("disconnect");
		drop(id);
	}
	printf("longest %.0f ms\n", longest);
}

static void many(struct addrinfo *to, int n)
{
	struct rdma_cm_id **ids = calloc(n, sizeof(*ids));
	double begun = now_ms();
	for (int i = 0; i < n; i++)
		ids[i] = connect_to(to);
	printf("%d connections, %.0f a second\n", n, n / (now_ms() - begun) * 1000);
	for (int i = 0; i < n; i++)
		hang_up(ids[i]);
	for (int i = 0; i < n; i++)
		drop(ids[i]);
}

static int kind_of(const char *name)
{
	for (int kind = 0; kind < 20; kind++)
		if (!strcmp(rdma_event_str(kind) + strlen("RDMA_CM_EVENT_"), name))
			return kind;
	DIE("no such event: %s", name);
}

/* What comes after an address or a route. */
static void go_on(struct rdma_cm_id *id, int kind)
{
	struct rdma_conn_param param = PARAM;
	if (kind == RDMA_CM_EVENT_ADDR_RESOLVED && rdma_resolve_route(id, 2000))
		DIE("route");
	if (kind == RDMA_CM_EVENT_ROUTE_RESOLVED) {
		make_qp(id);
		if (rdma_connect(id, &param))
			DIE("connect");
	}
}

static void expect(const char *name, int wanted_status, int ms, struct addrinfo *to)
{
	struct rdma_cm_id *id;
	int status = 0, kind = -1, wanted = kind_of(name);
	double begun = now_ms();
	if (rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) || rdma_resolve_addr(id, NULL, to->ai_addr, 2000))
		DIE("resolve");
	while (now_ms() < begun + ms && (kind = take(begun + ms - now_ms(), &status, NULL)) >= 0) {
		go_on(id, kind);
		if (kind != RDMA_CM_EVENT_ADDR_RESOLVED && kind != RDMA_CM_EVENT_ROUTE_RESOLVED)
			break;
	}
	if (kind != wanted || (status != wanted_status && wanted_status != 9999))
		DIE("after %.0f ms: %s, status %d, in place of %s, %d", now_ms() - begun,
		    kind < 0 ? "nothing" : rdma_event_str(kind), status, name, wanted_status);
	printf("%s %d after %.0f ms\n", name, status, now_ms() - begun);
	begun = now_ms();
	drop(id);
	if (now_ms() - begun > 2000)
		DIE("destroying took %.0f ms", now_ms() - begun);
}

static void giveup(struct addrinfo *to)
{
	struct rdma_cm_id *id;
	int kind;
	if (rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) || rdma_resolve_addr(id, NULL, to->ai_addr, 20000))
		DIE("resolve");
	for (double last = now_ms() + 100; now_ms() < last && (kind = take(last - now_ms(), NULL, NULL)) >= 0;) {
		go_on(id, kind);
		if (kind == RDMA_CM_EVENT_ROUTE_RESOLVED)
			last = now_ms() + 100;
	}
	double begun = now_ms();
	drop(id);
	printf("gone after %.0f ms\n", now_ms() - begun);
	if (now_ms() - begun > 2000)
		DIE("destroying waits for the peer");
}

/* Every call about a device that is gone ends, and destroying succeeds. */
static void removed(struct rdma_cm_id *id)
{
	struct rdma_conn_param param = PARAM;
	double begun = now_ms();
	if (id->qp) {
		struct end *end = id->context;
		struct ibv_wc wc = { .status = IBV_WC_SUCCESS };
		for (double end_at = now_ms() + 5000; now_ms() < end_at;)
			if (ibv_poll_cq(end->cq, 1, &wc) > 0)
				break;
		if (wc.status != IBV_WC_WR_FLUSH_ERR)
			DIE("the receive ended with %s", ibv_wc_status_str(wc.status));
		rdma_disconnect(id);
	}
	if (!rdma_connect(id, &param) || !rdma_resolve_route(id, 1000))
		DIE("a call about a device that is gone succeeds");
	drop(id);
	printf("removed and destroyed\n");
	if (now_ms() - begun > 5000)
		DIE("it took %.0f ms", now_ms() - begun);
}

static void watch(struct addrinfo *to)
{
	struct rdma_cm_id *id = connect_to(to), *bound, *what;
	struct sockaddr *own = rdma_get_local_addr(id);
	struct rdma_cm_id *never;
	if (rdma_create_id(channel, &bound, NULL, RDMA_PS_UDP) || rdma_bind_addr(bound, own) ||
	    rdma_create_id(channel, &never, NULL, RDMA_PS_TCP))
		DIE("bind");
	printf("held\n");
	fflush(stdout);
	for (int left = 2; left;) {
		int kind = take(60000, NULL, &what);
		lost = kind == RDMA_CM_EVENT_DEVICE_REMOVAL;
		if (kind == RDMA_CM_EVENT_DISCONNECTED || kind == RDMA_CM_EVENT_TIMEWAIT_EXIT)
			continue; /* its peer heard of it first */
		if (!lost)
			DIE("event %d", kind);
		if (what != id && what != bound)
			DIE("an identifier without a device was told");
		removed(what);
		left--;
	}
	/* nobody is told twice */
	if (take(300, NULL, NULL) >= 0)
		DIE("one more event");
	if (rdma_destroy_id(never))
		DIE("destroy");
	fflush(stdout);
	rdma_destroy_event_channel(channel);
	for (double end_at = now_ms() + 30000;; usleep(50000)) {
		lost = 0;
		channel = rdma_create_event_channel();
		if (!channel || rdma_create_id(channel, &id, NULL, RDMA_PS_TCP))
			DIE("a new channel");
		if (!rdma_resolve_addr(id, NULL, to->ai_addr, 1000) && take(20000, NULL, NULL) == RDMA_CM_EVENT_ADDR_RESOLVED)
			break;
		if (now_ms() > end_at)
			DIE("the device does not come back");
		rdma_destroy_id(id);
		rdma_destroy_event_channel(channel);
	}
	rdma_destroy_id(id);
	id = connect_to(to);
	send_one(id);
	hang_up(id);
	drop(id);
}

int main(int argc, char **argv)
{
	const char *how = argc > 3 ? argv[1] : "";
	channel = rdma_create_event_channel();
	if (!channel)
		DIE("channel");
	if (!strcmp(how, "serve")) {
		serve(address(argv[2], argv[3]));
	} else if (!strcmp(how, "call") && argc > 4) {
		struct addrinfo *to = address(argv[2], argv[3]);
		for (int i = atoi(argv[4]); i > 0; i--) {
			struct rdma_cm_id *id = connect_to(to);
			send_one(id);
			hang_up(id);
			drop(id);
		}
		printf("longest %.0f ms\n", longest);
	} else if (!strcmp(how, "fickle") && argc > 4) {
		fickle(address(argv[2], argv[3]), atoi(argv[4]));
	} else if (!strcmp(how, "many") && argc > 4) {
		many(address(argv[2], argv[3]), atoi(argv[4]));
	} else if (!strcmp(how, "hold")) {
		connect_to(address(argv[2], argv[3]));
		printf("held\n");
		fflush(stdout);
		for (;;)
			pause();
	} else if (!strcmp(how, "stop") && argc > 4) {
		connect_until(argv[2], address(argv[3], argv[4]));
	} else if (!strcmp(how, "sit") && argc > 4) {
		sit(argv[2], address(argv[3], argv[4]));
	} else if (!strcmp(how, "watch")) {
		watch(address(argv[2], argv[3]));
	} else if (!strcmp(how, "expect") && argc > 6) {
		expect(argv[2], atoi(argv[3]), atoi(argv[4]), address(argv[5], argv[6]));
	} else if (!strcmp(how, "giveup")) {
		giveup(address(argv[2], argv[3]));
	} else {
		printf("usage: see the source\n");
		return 2;
	}
	printf("ok\n");
	return 0;
}
