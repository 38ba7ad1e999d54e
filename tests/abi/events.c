/* Completion and asynchronous events, and who waits for whom (C021): destroy waits exactly for the
 * events that were taken and not yet acknowledged. Completions come from receives posted to a queue
 * pair in ERR, so that nothing here needs a network.
 *
 *   events [DEVICE]        exit status 0 when every behaviour held */
#include "abi.h"
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>

struct rig {
	struct ibv_context *ctx;
	struct ibv_pd *pd;
	struct ibv_comp_channel *channel;
};

/* A queue pair in ERR: each receive posted to it completes at once, flushed. */
static struct ibv_qp *flusher(struct rig *r, struct ibv_cq *cq, struct ibv_srq *srq)
{
	struct ibv_qp_init_attr init = {
		.send_cq = cq, .recv_cq = cq, .srq = srq, .qp_type = IBV_QPT_RC,
		.cap = {.max_send_wr = 4, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1},
	};
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1};
	struct ibv_qp *qp = ibv_create_qp(r->pd, &init);

	NEED(qp);
	NEED(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
					      IBV_QP_ACCESS_FLAGS) == 0);
	attr.qp_state = IBV_QPS_ERR;
	NEED(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == 0);
	return qp;
}

static void complete_one(struct ibv_qp *qp)
{
	struct ibv_recv_wr wr = {.wr_id = 7}, *bad;

	SAME(ibv_post_recv(qp, &wr, &bad), 0);
}

static int drain(struct ibv_cq *cq)
{
	struct ibv_wc wc;
	int n = 0;

	while (ibv_poll_cq(cq, 1, &wc) == 1) {
		SAME((int)wc.status, IBV_WC_WR_FLUSH_ERR);
		SAME((int)wc.wr_id, 7);
		n++;
	}
	return n;
}

static int readable(int fd)
{
	struct pollfd p = {.fd = fd, .events = POLLIN};

	return poll(&p, 1, 0);
}

/* Arms, completes once, and leaves one event in the channel. */
static void make_event(struct ibv_cq *cq, struct ibv_qp *qp)
{
	SAME(ibv_req_notify_cq(cq, 0), 0);
	complete_one(qp);
	SAME(drain(cq), 1);
}

static void take(struct rig *r, struct ibv_cq *want)
{
	struct ibv_cq *cq = NULL;
	void *context = NULL;

	SAME(ibv_get_cq_event(r->channel, &cq, &context), 0);
	TRUE(cq == want);
	TRUE(context == (void *)((char *)r + 1));
}

static struct ibv_cq *make_cq(struct rig *r)
{
	struct ibv_cq *cq = ibv_create_cq(r->ctx, 64, (char *)r + 1, r->channel, 0);

	NEED(cq);
	return cq;
}

/* ---- a destroy call in a thread of its own ---- */

struct destroyer {
	pthread_t thread;
	int (*destroy)(void *);
	void *object;
	int done, answer;
};

static void *destroy_body(void *arg)
{
	struct destroyer *d = arg;

	d->answer = d->destroy(d->object);
	__atomic_store_n(&d->done, 1, __ATOMIC_RELEASE);
	return NULL;
}

static void start(struct destroyer *d, int (*destroy)(void *), void *object)
{
	*d = (struct destroyer){.destroy = destroy, .object = object};
	NEED(pthread_create(&d->thread, NULL, destroy_body, d) == 0);
}

static int returned(struct destroyer *d, int within_ms)
{
	for (int i = 0; i <= within_ms; i++) {
		if (__atomic_load_n(&d->done, __ATOMIC_ACQUIRE))
			return 1;
		usleep(1000);
	}
	return 0;
}

static void finish(struct destroyer *d)
{
	if (!returned(d, 3000)) {
		printf("FAIL: destroy does not return though everything is acknowledged\n");
		exit(1);
	}
	pthread_join(d->thread, NULL);
	SAME(d->answer, 0);
}

static int destroy_cq(void *cq) { return ibv_destroy_cq(cq); }
static int destroy_qp(void *qp) { return ibv_destroy_qp(qp); }
static int destroy_srq(void *srq) { return ibv_destroy_srq(srq); }

/* ---- behaviours ---- */

static void one_event_for_each_arm(struct rig *r)
{
	struct ibv_cq *cq = make_cq(r);
	struct ibv_qp *qp = flusher(r, cq, NULL);

	complete_one(qp);
	SAME(drain(cq), 1);
	TRUE(!readable(r->channel->fd)); /* a fresh queue is not armed */
	SAME(ibv_req_notify_cq(cq, 0), 0);
	complete_one(qp);
	complete_one(qp);
	complete_one(qp);
	TRUE(readable(r->channel->fd));
	take(r, cq);
	TRUE(!readable(r->channel->fd)); /* however many completions follow */
	SAME(drain(cq), 3);
	SAME(ibv_req_notify_cq(cq, 1), 0); /* errors count for a solicited-only arm */
	complete_one(qp);
	take(r, cq);
	ibv_ack_cq_events(cq, 2);
	SAME(ibv_destroy_qp(qp), 0);
	SAME(ibv_destroy_cq(cq), 0);
}

static void destroy_waits_for_the_last_ack(struct rig *r)
{
	struct ibv_cq *cq = make_cq(r);
	struct ibv_qp *qp = flusher(r, cq, NULL);
	struct destroyer d;

	for (int i = 0; i < 3; i++) {
		make_event(cq, qp);
		take(r, cq);
	}
	SAME(ibv_destroy_qp(qp), 0);
	start(&d, destroy_cq, cq);
	TRUE(!returned(&d, 100));
	ibv_ack_cq_events(cq, 2);
	TRUE(!returned(&d, 100));
	ibv_ack_cq_events(cq, 1);
	finish(&d);
}

static void unread_events_vanish(struct rig *r)
{
	struct ibv_cq *cq = make_cq(r);
	struct ibv_qp *qp = flusher(r, cq, NULL);
	struct destroyer d;

	for (int i = 0; i < 5; i++)
		make_event(cq, qp);
	TRUE(readable(r->channel->fd));
	SAME(ibv_destroy_qp(qp), 0);
	start(&d, destroy_cq, cq);
	finish(&d);
	TRUE(!readable(r->channel->fd));
}

static void acks_release_their_own_queue_only(struct rig *r)
{
	struct ibv_cq *a = make_cq(r), *b = make_cq(r);
	struct ibv_qp *qa = flusher(r, a, NULL), *qb = flusher(r, b, NULL);
	struct destroyer da, db;

	make_event(a, qa);
	make_event(b, qb);
	make_event(a, qa);
	take(r, a);
	take(r, b);
	take(r, a); /* first in, first out, across the queues */
	SAME(ibv_destroy_qp(qa), 0);
	SAME(ibv_destroy_qp(qb), 0);
	start(&da, destroy_cq, a);
	start(&db, destroy_cq, b);
	ibv_ack_cq_events(b, 1);
	finish(&db);
	ibv_ack_cq_events(a, 1);
	TRUE(!returned(&da, 100));
	ibv_ack_cq_events(a, 1);
	finish(&da);
}

static void get_event_blocks_until_there_is_one(struct rig *r)
{
	struct ibv_cq *cq = make_cq(r), *got;
	struct ibv_qp *qp = flusher(r, cq, NULL);
	int flags = fcntl(r->channel->fd, F_GETFL);
	void *context;

	SAME(fcntl(r->channel->fd, F_SETFL, flags | O_NONBLOCK), 0);
	errno = 0;
	SAME(ibv_get_cq_event(r->channel, &got, &context), -1);
	SAME(errno, EAGAIN);
	make_event(cq, qp);
	take(r, cq);
	SAME(fcntl(r->channel->fd, F_SETFL, flags), 0);
	ibv_ack_cq_events(cq, 1);
	SAME(ibv_destroy_qp(qp), 0);
	SAME(ibv_destroy_cq(cq), 0);
}

/* ---- asynchronous events ---- */

static struct ibv_srq *make_srq(struct rig *r)
{
	struct ibv_srq_init_attr init = {.srq_context = r, .attr = {.max_wr = 16, .max_sge = 1}};
	struct ibv_srq *srq = ibv_create_srq(r->pd, &init);

	NEED(srq);
	return srq;
}

static void last_wqe_event_holds_its_queue_pair(struct rig *r)
{
	struct ibv_cq *cq = make_cq(r);
	struct ibv_srq *srq = make_srq(r);
	struct ibv_qp *qp = flusher(r, cq, srq);
	struct ibv_async_event e;
	struct pollfd p = {.fd = r->ctx->async_fd, .events = POLLIN};
	struct destroyer d;

	if (poll(&p, 1, 1000) != 1) {
		printf("FAIL: no event when a queue pair on an SRQ enters ERR\n");
		failures++;
		return;
	}
	SAME(ibv_get_async_event(r->ctx, &e), 0);
	SAME((int)e.event_type, IBV_EVENT_QP_LAST_WQE_REACHED);
	TRUE(e.element.qp == qp);
	TRUE(!readable(r->ctx->async_fd)); /* exactly once */
	start(&d, destroy_qp, qp);
	TRUE(!returned(&d, 100));
	ibv_ack_async_event(&e);
	finish(&d);
	start(&d, destroy_srq, srq);
	finish(&d);
	SAME(ibv_destroy_cq(cq), 0);
}

static void unread_async_events_vanish_with_their_object(struct rig *r)
{
	struct ibv_cq *cq = make_cq(r);
	struct ibv_srq *srq = make_srq(r);
	struct ibv_qp *qp = flusher(r, cq, srq);
	struct ibv_async_event e;
	struct destroyer d;
	int flags = fcntl(r->ctx->async_fd, F_GETFL);

	start(&d, destroy_qp, qp);
	finish(&d);
	SAME(fcntl(r->ctx->async_fd, F_SETFL, flags | O_NONBLOCK), 0);
	errno = 0;
	SAME(ibv_get_async_event(r->ctx, &e), -1);
	SAME(errno, EAGAIN);
	SAME(fcntl(r->ctx->async_fd, F_SETFL, flags), 0);
	SAME(ibv_destroy_srq(srq), 0);
	SAME(ibv_destroy_cq(cq), 0);
}

int main(int argc, char **argv)
{
	struct rig r = {.ctx = open_device(argc > 1 ? argv[1] : NULL)};

	r.pd = ibv_alloc_pd(r.ctx);
	r.channel = ibv_create_comp_channel(r.ctx);
	NEED(r.pd && r.channel);
	RUN(one_event_for_each_arm(&r));
	RUN(destroy_waits_for_the_last_ack(&r));
	RUN(unread_events_vanish(&r));
	RUN(acks_release_their_own_queue_only(&r));
	RUN(get_event_blocks_until_there_is_one(&r));
	RUN(last_wqe_event_holds_its_queue_pair(&r));
	RUN(unread_async_events_vanish_with_their_object(&r));
	SAME(ibv_destroy_comp_channel(r.channel), 0);
	SAME(ibv_dealloc_pd(r.pd), 0);
	SAME(ibv_close_device(r.ctx), 0);
	return verdict();
}
