/* SPDX-License-Identifier: MIT OR Apache-2.0
 * A program that has connections which have talked and now sleeps: one thread waits for a completion
 * event, another for an asynchronous one. Says "asleep" and stays until it is killed.
 *
 *   idle [-d DEV] [-g GID] */
#include "pair.h"

#define PAIRS 16

static void *sleeper(void *arg)
{
	struct ibv_async_event e;
	struct ibv_context *ctx = arg;
	for (;;)
		if (ibv_get_async_event(ctx, &e) == 0)
			ibv_ack_async_event(&e);
}

static void talk(struct device *d)
{
	struct ibv_comp_channel *channel = ibv_create_comp_channel(d->ctx);
	struct pair_options o = PAIR_DEFAULTS;
	static struct pair p[PAIRS];
	struct ibv_cq *armed = ibv_create_cq(d->ctx, 16, NULL, channel, 0), *cq;
	void *ctx;
	pthread_t thread;
	for (int i = 0; i < PAIRS; i++) {
		p[i] = pair_new(d, &o);
		struct ibv_sge from = sge_at(&p[i].mem[0], 0, 4000), to = sge_at(&p[i].mem[1], 0, 4000);
		struct ibv_send_wr w = request(&p[i], IBV_WR_SEND, &from, 1, 0);
		if (post_recv(&p[i], 1, 1, &to, 1) || post(&p[i], &w))
			DIE("posting");
		expect_wc(&p[i], 0, IBV_WC_SUCCESS, "send");
		expect_wc(&p[i], 1, IBV_WC_SUCCESS, "receive");
	}
	if (!armed || ibv_req_notify_cq(armed, 0) || pthread_create(&thread, NULL, sleeper, d->ctx))
		DIE("going to sleep");
	usleep(500000); /* timers of what was sent */
	printf("asleep\n");
	fflush(stdout);
	ibv_get_cq_event(channel, &cq, &ctx);
	FAIL("woken");
}

int main(int argc, char **argv)
{
	static const struct test_case all[] = { { "talk", talk } };
	program = "idle";
	return case_main(argc, argv, all, 1);
}
