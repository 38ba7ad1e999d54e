/* SPDX-License-Identifier: MIT OR Apache-2.0
 * cancel: threads that wait for events, or in calls that wait for theirs, are cancelled, as with a device of the kernel, where waiting is a
 * read and reads are cancellation points. The clean-up handlers of the program run, nothing stays locked, and
 * other threads get the events.
 *   cancel DEVICE
 * Build: cc -O2 -pthread -o cancel cancel.c -lrdmacm -libverbs */
#define _GNU_SOURCE
#include "common.h"
#include <dirent.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <sched.h>
#include <stdatomic.h>

static struct rdma_event_channel *channel;
static struct ibv_comp_channel *completions;
static struct ibv_context *context;
static atomic_int waiting, cleaned;

static void clean(void *arg)
{
	(void)arg;
	atomic_fetch_add(&cleaned, 1);
}

static void *cm_thread(void *arg)
{
	struct rdma_cm_event *event;
	pthread_cleanup_push(clean, arg);
	atomic_store(&waiting, 1);
	rdma_get_cm_event(channel, &event);
	pthread_cleanup_pop(0);
	return NULL;
}

static void *cq_thread(void *arg)
{
	struct ibv_cq *cq;
	void *user;
	pthread_cleanup_push(clean, arg);
	atomic_store(&waiting, 1);
	ibv_get_cq_event(completions, &cq, &user);
	pthread_cleanup_pop(0);
	return NULL;
}

static void *async_thread(void *arg)
{
	struct ibv_async_event event;
	pthread_cleanup_push(clean, arg);
	atomic_store(&waiting, 1);
	ibv_get_async_event(context, &event);
	pthread_cleanup_pop(0);
	return NULL;
}

static struct rdma_cm_id *listener;

static void *request_thread(void *arg)
{
	struct rdma_cm_id *id;
	pthread_cleanup_push(clean, arg);
	atomic_store(&waiting, 1);
	rdma_get_request(listener, &id);
	pthread_cleanup_pop(0);
	return NULL;
}

/* Calls of an identifier that waits by itself for what they bring about. The peer is a listener that nobody
 * asks, so rdma_connect waits. */
static struct rdma_cm_id *made(void)
{
	struct rdma_addrinfo hints = {.ai_port_space = RDMA_PS_TCP}, *found;
	struct ibv_qp_init_attr init = {.cap = {1, 1, 1, 1, 0}};
	struct rdma_cm_id *id;
	char port[8];
	snprintf(port, sizeof port, "%d", ntohs(rdma_get_src_port(listener)));
	if (rdma_getaddrinfo("127.0.0.1", port, &hints, &found) || rdma_create_ep(&id, found, NULL, &init))
		DIE("endpoint");
	rdma_freeaddrinfo(found);
	return id;
}

static void destroy(void *id)
{
	rdma_destroy_ep(id);
	clean(NULL);
}

static void *connect_thread(void *arg)
{
	struct rdma_cm_id *id = arg = made();
	pthread_cleanup_push(destroy, arg);
	atomic_store(&waiting, 1);
	rdma_connect(id, NULL);
	pthread_cleanup_pop(0);
	return NULL;
}

/* A pending request for cancellation acts at the next wait, too. */
static void *late_thread(void *arg)
{
	struct rdma_cm_event *event;
	int old;
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &old);
	pthread_cleanup_push(clean, arg);
	atomic_store(&waiting, 1);
	usleep(100000);
	pthread_setcancelstate(old, NULL);
	rdma_get_cm_event(channel, &event);
	pthread_cleanup_pop(0);
	return NULL;
}

static void cancel(const char *name, void *(*body)(void *))
{
	pthread_t thread;
	void *end = NULL;
	struct timespec until;
	for (int i = 0; i < 20; i++) {
		atomic_store(&waiting, 0);
		atomic_store(&cleaned, 0);
		if (pthread_create(&thread, NULL, body, NULL))
			DIE("thread");
		while (!atomic_load(&waiting))
			sched_yield();
		if (i % 2)
			usleep(10000); /* it sleeps by now; else it may be on its way */
		if (pthread_cancel(thread))
			DIE("pthread_cancel");
		clock_gettime(CLOCK_REALTIME, &until);
		until.tv_sec += 20;
		if (pthread_timedjoin_np(thread, &end, &until)) {
			FAIL("%s: a cancelled thread waits on", name);
			exit(1);
		}
		if (end != PTHREAD_CANCELED || atomic_load(&cleaned) != 1)
			FAIL("%s: ended with %p, %d handlers ran", name, end, atomic_load(&cleaned));
	}
	printf("%s ok\n", name);
}

/* Calls that wait for a moment only: the request is there when they begin to. What such a call has made goes
 * with it. */
static int descriptors(void)
{
	DIR *dir = opendir("/proc/self/fd");
	int n = 0;
	while (dir && readdir(dir))
		n++;
	if (dir)
		closedir(dir);
	return n;
}

static void *ep_thread(void *arg)
{
	pthread_cleanup_push(clean, arg);
	pthread_cancel(pthread_self());
	made();
	pthread_cleanup_pop(0);
	return NULL;
}

static struct rdma_cm_id *member; /* resolved, for datagrams, without a channel */
static struct sockaddr_in group = { .sin_family = AF_INET };

static void *join_thread(void *arg)
{
	pthread_cleanup_push(clean, arg);
	pthread_cancel(pthread_self());
	rdma_join_multicast(member, (struct sockaddr *)&group, NULL);
	pthread_cleanup_pop(0);
	return NULL;
}

static void *join_ex_thread(void *arg)
{
	struct rdma_cm_join_mc_attr_ex attr = { .comp_mask = RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS,
		.join_flags = RDMA_MC_JOIN_FLAG_FULLMEMBER, .addr = (struct sockaddr *)&group };
	pthread_cleanup_push(clean, arg);
	pthread_cancel(pthread_self());
	rdma_join_multicast_ex(member, &attr, NULL);
	pthread_cleanup_pop(0);
	return NULL;
}

static struct rdma_cm_id *new_member(void)
{
	struct sockaddr_in here = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons(9) };
	struct rdma_cm_id *id;
	group.sin_addr.s_addr = inet_addr("239.1.2.3");
	if (rdma_create_id(NULL, &id, NULL, RDMA_PS_UDP) || rdma_resolve_addr(id, NULL, (struct sockaddr *)&here, 2000))
		DIE("an identifier for datagrams");
	return id;
}

static void requested(const char *name, void *(*body)(void *))
{
	int before = 0;
	for (int i = 0; i < 20; i++) {
		pthread_t thread;
		void *end = NULL;
		atomic_store(&cleaned, 0);
		if (body != ep_thread)
			member = new_member();
		if (pthread_create(&thread, NULL, body, NULL) || pthread_join(thread, &end))
			DIE("thread");
		if (end != PTHREAD_CANCELED || atomic_load(&cleaned) != 1)
			return FAIL("%s: went on to its end", name);
		if (body != ep_thread && rdma_destroy_id(member))
			FAIL("%s: rdma_destroy_id", name);
		if (i == 3)
			before = descriptors();
	}
	if (descriptors() != before)
		FAIL("%s: %d descriptors became %d", name, before, descriptors());
	printf("%s ok\n", name);
}

/* The same calls, of threads that nobody cancels. */
static void undisturbed(void)
{
	rdma_destroy_ep(made());
	member = new_member();
	if (rdma_join_multicast(member, (struct sockaddr *)&group, NULL) ||
	    rdma_leave_multicast(member, (struct sockaddr *)&group) || rdma_destroy_id(member))
		FAIL("a group is not joined, or not left");
}

/* Calls that do not wait go on to their end with a request pending, whatever they read and write inside. */
static void *busy_thread(void *arg)
{
	struct ibv_pd *pd;
	struct ibv_mr *mr;
	struct ibv_cq *cq;
	struct ibv_wc wc;
	static char memory[4096];
	pthread_cancel(pthread_self());
	pd = ibv_alloc_pd(context);
	mr = pd ? ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE) : NULL;
	cq = ibv_create_cq(context, 16, NULL, completions, 0);
	if (!pd || !mr || !cq || ibv_req_notify_cq(cq, 0) || ibv_poll_cq(cq, 1, &wc) || ibv_destroy_cq(cq) ||
	    ibv_dereg_mr(mr) || ibv_dealloc_pd(pd))
		FAIL("a call failed in a cancelled thread");
	pthread_cleanup_push(clean, arg);
	pthread_testcancel();
	pthread_cleanup_pop(0);
	return NULL;
}

static void busy(void)
{
	pthread_t thread;
	void *end = NULL;
	atomic_store(&cleaned, 0);
	if (pthread_create(&thread, NULL, busy_thread, NULL) || pthread_join(thread, &end))
		DIE("thread");
	if (end != PTHREAD_CANCELED || atomic_load(&cleaned) != 1)
		FAIL("busy: ended with %p", end);
}

/* Everything still works: an event reaches whoever waits now. */
static void afterwards(void)
{
	struct rdma_cm_id *id;
	struct rdma_cm_event *event;
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons(9) };
	if (rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) || rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, 2000))
		DIE("resolve");
	if (rdma_get_cm_event(channel, &event) || event->event != RDMA_CM_EVENT_ADDR_RESOLVED)
		DIE("event");
	rdma_ack_cm_event(event);
	if (rdma_destroy_id(id))
		DIE("destroy");
}

int main(int argc, char **argv)
{
	program = "cancel";
	struct device device;
	open_device(&device, argc > 1 ? argv[1] : NULL, -1, 0);
	context = device.ctx;
	channel = rdma_create_event_channel();
	completions = ibv_create_comp_channel(context);
	if (!channel || !completions)
		DIE("channels");
	cancel("rdma_get_cm_event", cm_thread);
	cancel("rdma_get_cm_event, asked before", late_thread);
	cancel("ibv_get_cq_event", cq_thread);
	cancel("ibv_get_async_event", async_thread);
	struct sockaddr_in any = { .sin_family = AF_INET };
	if (rdma_create_id(NULL, &listener, NULL, RDMA_PS_TCP) || rdma_bind_addr(listener, (struct sockaddr *)&any) ||
	    rdma_listen(listener, 1))
		DIE("listen");
	cancel("rdma_get_request", request_thread);
	cancel("rdma_connect", connect_thread);
	undisturbed();
	requested("rdma_create_ep", ep_thread);
	requested("rdma_join_multicast", join_thread);
	requested("rdma_join_multicast_ex", join_ex_thread);
	undisturbed();
	if (rdma_destroy_id(listener))
		DIE("destroy");
	busy();
	afterwards();
	if (ibv_destroy_comp_channel(completions) || ibv_close_device(context))
		DIE("close");
	rdma_destroy_event_channel(channel);
	if (!failures)
		printf("cancel ok\n");
	return failures != 0;
}
