/* SPDX-License-Identifier: MIT OR Apache-2.0
 * identifiers: what librdmacm promises about identifiers and events, both ends in one process.
 *   identifiers ADDRESS PORT [PART...]      ADDRESS is one of this host's
 * Plain librdmacm: it runs on any device that has it.
 * Build: cc -O2 -pthread -o identifiers identifiers.c -lrdmacm -libverbs */
#define _GNU_SOURCE
#include "common.h"
#include <infiniband/ib.h>
#include <infiniband/sa.h>
#include <rdma/rdma_cma.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/wait.h>

static struct rdma_event_channel *channel;
static struct rdma_cm_id *listener;
static struct sockaddr_storage where;

#define CHECK(e) do { if (!(e)) FAIL("%s:%d: %s (errno %d)", __func__, __LINE__, #e, errno); } while (0)
#define NEED(e) do { errno = 0; if (!(e)) DIE("%s:%d: %s", __func__, __LINE__, #e); } while (0)
#define REFUSED(e, wanted) do { errno = 0; int r_ = (e); if (r_ != -1 || errno != (wanted)) \
	FAIL("%s:%d: %s gives %d, errno %d, not %d", __func__, __LINE__, #e, r_, errno, wanted); } while (0)

/* The next event, not acknowledged; NULL after ms. */
static struct rdma_cm_event *next(int ms)
{
	struct pollfd p = { .fd = channel->fd, .events = POLLIN };
	struct rdma_cm_event *event;
	if (poll(&p, 1, ms) != 1)
		return NULL;
	NEED(!rdma_get_cm_event(channel, &event));
	return event;
}

/* The next event of this kind, those of time-wait left aside. */
static struct rdma_cm_event *want(int kind)
{
	struct rdma_cm_event *event;
	while ((event = next(30000)) && event->event == RDMA_CM_EVENT_TIMEWAIT_EXIT)
		rdma_ack_cm_event(event);
	if (!event || (int)event->event != kind)
		DIE("%s in place of %s", event ? rdma_event_str(event->event) : "nothing", rdma_event_str(kind));
	return event;
}

static void pass(int kind) { rdma_ack_cm_event(want(kind)); }

static struct rdma_cm_id *create(void)
{
	struct rdma_cm_id *id;
	NEED(!rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	return id;
}

static struct rdma_cm_id *resolved(void)
{
	struct rdma_cm_id *id = create();
	NEED(!rdma_resolve_addr(id, NULL, (struct sockaddr *)&where, 2000));
	pass(RDMA_CM_EVENT_ADDR_RESOLVED);
	return id;
}

static struct rdma_cm_id *routed(void)
{
	struct rdma_cm_id *id = resolved();
	NEED(!rdma_resolve_route(id, 2000));
	pass(RDMA_CM_EVENT_ROUTE_RESOLVED);
	return id;
}

static struct ibv_srq *shared; /* for queue pairs of `with_qp`, if there is one */

static void with_qp(struct rdma_cm_id *id)
{
	struct ibv_cq *cq = ibv_create_cq(id->verbs, 8, NULL, NULL, 0);
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .srq = shared, .qp_type = IBV_QPT_RC,
		.cap = { 2, 2, 1, 1, 0 } };
	NEED(cq && !rdma_create_qp(id, id->pd, &init));
	id->context = cq;
}

static void without(struct rdma_cm_id *id)
{
	if (id->qp) {
		rdma_destroy_qp(id);
		CHECK(!ibv_destroy_cq(id->context));
	}
	CHECK(!rdma_destroy_id(id));
}

static const struct rdma_conn_param PARAM = { .responder_resources = 1, .initiator_depth = 1, .retry_count = 7,
	.rnr_retry_count = 7 };

/* Client and server of a connection that stands. */
struct pair { struct rdma_cm_id *client, *server; };

static struct pair connected(void)
{
	struct rdma_conn_param param = PARAM;
	struct pair p = { .client = routed() };
	with_qp(p.client);
	NEED(!rdma_connect(p.client, &param));
	struct rdma_cm_event *event = want(RDMA_CM_EVENT_CONNECT_REQUEST);
	p.server = event->id;
	CHECK(event->listen_id == listener);
	rdma_ack_cm_event(event);
	with_qp(p.server);
	NEED(!rdma_accept(p.server, &param));
	pass(RDMA_CM_EVENT_ESTABLISHED);
	pass(RDMA_CM_EVENT_ESTABLISHED);
	return p;
}

static void hang_up(struct pair p)
{
	CHECK(!rdma_disconnect(p.client));
	pass(RDMA_CM_EVENT_DISCONNECTED);
	pass(RDMA_CM_EVENT_DISCONNECTED);
	without(p.client);
	without(p.server);
}

/* ---- enhanced connection establishment: no device of ours has it, but it travels */

static void ece(void)
{
	struct pair p = connected();
	struct ibv_ece own = { .vendor_id = 0x1234, .options = 0x55aa }, theirs = { 0 };
	CHECK(ibv_set_ece(p.client->qp, &own) == EOPNOTSUPP);
	CHECK(ibv_query_ece(p.client->qp, &theirs) == EOPNOTSUPP);
	REFUSED(rdma_set_local_ece(p.client, &own), EINVAL);
	REFUSED(rdma_get_remote_ece(p.client, &theirs), EINVAL);
	hang_up(p);
	/* queue pairs of the program's own */
	struct rdma_cm_id *id = routed();
	struct rdma_conn_param param = PARAM;
	param.qp_num = 0x4711;
	CHECK(!rdma_set_local_ece(id, &own));
	NEED(!rdma_connect(id, &param));
	struct rdma_cm_event *event = want(RDMA_CM_EVENT_CONNECT_REQUEST);
	struct rdma_cm_id *server = event->id;
	rdma_ack_cm_event(event);
	CHECK(!rdma_get_remote_ece(server, &theirs) && theirs.vendor_id == 0x1234 && theirs.options == 0x55aa);
	own.options = 0xa5;
	CHECK(!rdma_set_local_ece(server, &own));
	param.qp_num = 0x4712;
	NEED(!rdma_accept(server, &param));
	event = want(RDMA_CM_EVENT_CONNECT_RESPONSE);
	CHECK(event->param.conn.qp_num == 0x4712);
	rdma_ack_cm_event(event);
	CHECK(!rdma_get_remote_ece(id, &theirs) && theirs.vendor_id == 0x1234 && theirs.options == 0xa5);
	CHECK(!rdma_establish(id));
	pass(RDMA_CM_EVENT_ESTABLISHED);
	hang_up((struct pair) { id, server });
	/* refused because of it */
	id = routed();
	param.qp_num = 0x4713;
	NEED(!rdma_connect(id, &param));
	event = want(RDMA_CM_EVENT_CONNECT_REQUEST);
	server = event->id;
	rdma_ack_cm_event(event);
	CHECK(!rdma_reject_ece(server, "no", 2));
	event = want(RDMA_CM_EVENT_REJECTED);
	CHECK(event->status == 35 && !memcmp(event->param.conn.private_data, "no", 2));
	rdma_ack_cm_event(event);
	without(id);
	without(server);
}

/* ---- what happened to a queue pair, told by the program */

/* An event that is none of the connection manager's, whatever the state. */
static void notices_of_no_concern(struct rdma_cm_id *id)
{
	static const int none[] = { IBV_EVENT_CQ_ERR, IBV_EVENT_SQ_DRAINED, IBV_EVENT_PATH_MIG_ERR, IBV_EVENT_LID_CHANGE, 999, -1 };
	for (size_t i = 0; i < sizeof none / sizeof *none; i++)
		REFUSED(rdma_notify(id, (enum ibv_event_type)none[i]), EINVAL);
}

static void notices_are_refused(struct rdma_cm_id *id)
{
	notices_of_no_concern(id);
	REFUSED(rdma_notify(id, IBV_EVENT_COMM_EST), EINVAL);
	REFUSED(rdma_notify(id, IBV_EVENT_PATH_MIG), EINVAL);
}

/* A connection whose ends have queue pairs elsewhere; what came on the server's says that the client is ready. */
static struct pair established(int first_qpn)
{
	struct rdma_conn_param param = PARAM;
	struct pair p = { .client = routed() };
	notices_are_refused(p.client);
	param.qp_num = (uint32_t)first_qpn;
	NEED(!rdma_connect(p.client, &param));
	notices_are_refused(p.client);
	struct rdma_cm_event *event = want(RDMA_CM_EVENT_CONNECT_REQUEST);
	p.server = event->id;
	rdma_ack_cm_event(event);
	notices_are_refused(p.server);
	param.qp_num++;
	NEED(!rdma_accept(p.server, &param));
	pass(RDMA_CM_EVENT_CONNECT_RESPONSE);
	notices_of_no_concern(p.server);
	REFUSED(rdma_notify(p.server, IBV_EVENT_PATH_MIG), EINVAL);
	CHECK(!rdma_notify(p.server, IBV_EVENT_COMM_EST));
	pass(RDMA_CM_EVENT_ESTABLISHED);
	CHECK(!rdma_establish(p.client));
	return p;
}

static void notices(void)
{
	struct rdma_cm_id *id = create();
	notices_are_refused(id);
	without(id);
	struct pair p = established(0x4711);
	for (int i = 0; i < 2; i++) {
		notices_of_no_concern(i ? p.client : p.server);
		REFUSED(rdma_notify(i ? p.client : p.server, IBV_EVENT_COMM_EST), EISCONN);
	}
	CHECK(!rdma_disconnect(p.client));
	pass(RDMA_CM_EVENT_DISCONNECTED);
	CHECK(!rdma_disconnect(p.server)); /* the kernel agrees to an end only when told to */
	pass(RDMA_CM_EVENT_DISCONNECTED);
	notices_are_refused(p.server);
	notices_are_refused(p.client);
	without(p.client);
	without(p.server);
	/* taken, though there is no other path; the kernel cannot reach the peer from then on, we can */
	p = established(0x4721);
	CHECK(!rdma_notify(p.client, IBV_EVENT_PATH_MIG) && !rdma_notify(p.server, IBV_EVENT_PATH_MIG));
	without(p.client);
	without(p.server);
}

/* ---- a path of the program's own; addresses of another family */

static void paths(void)
{
	struct ibv_path_data path[2] = { { .flags = IBV_PATH_FLAG_GMP } };
	struct rdma_cm_id *id = create();
	REFUSED(rdma_set_option(id, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, path, sizeof(path)), EINVAL);
	rdma_destroy_id(id);
	id = resolved();
	REFUSED(rdma_set_option(id, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, path, sizeof(path)), EINVAL);
	path[1].flags = IBV_PATH_FLAG_GMP | IBV_PATH_FLAG_PRIMARY | IBV_PATH_FLAG_BIDIRECTIONAL;
	REFUSED(rdma_set_option(id, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, path, sizeof(path)), EINVAL);
	path[1].path.sgid = id->route.addr.addr.ibaddr.sgid;
	path[1].path.dgid = id->route.addr.addr.ibaddr.dgid;
	path[1].path.flowlabel_hoplimit = htobe32(0xabcde << 8 | 33);
	path[1].path.tclass = 0x68;
	path[1].path.mtu = 2 << 6 | IBV_MTU_256;
	path[1].path.packetlifetime = 2 << 6 | 15;
	REFUSED(rdma_set_option(id, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, path, sizeof(path) - 1), EINVAL);
	CHECK(!rdma_set_option(id, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, path, sizeof(path)));
	pass(RDMA_CM_EVENT_ROUTE_RESOLVED);
	REFUSED(rdma_set_option(id, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, path, sizeof(path)), EINVAL);
	struct ibv_sa_path_rec *shown = id->route.path_rec;
	CHECK(id->route.num_paths == 1 && shown->mtu == IBV_MTU_256 && shown->traffic_class == 0x68 &&
	      shown->hop_limit == 33 && shown->flow_label == htobe32(0xabcde));
	struct rdma_conn_param param = PARAM;
	with_qp(id);
	NEED(!rdma_connect(id, &param));
	struct rdma_cm_event *event = want(RDMA_CM_EVENT_CONNECT_REQUEST);
	struct pair p = { id, event->id };
	rdma_ack_cm_event(event);
	with_qp(p.server);
	NEED(!rdma_accept(p.server, &param));
	pass(RDMA_CM_EVENT_ESTABLISHED);
	pass(RDMA_CM_EVENT_ESTABLISHED);
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	for (int i = 0; i < 2; i++) {
		CHECK(!ibv_query_qp(i ? p.server->qp : p.client->qp, &attr, IBV_QP_AV | IBV_QP_PATH_MTU, &init));
		CHECK(attr.path_mtu == IBV_MTU_256 && attr.ah_attr.grh.traffic_class == 0x68 &&
		      attr.ah_attr.grh.flow_label == 0xabcde);
	}
	hang_up(p);

}

/* ---- addresses of InfiniBand ports and other families; how names become addresses. The errnos are those of
 * Linux 6.1 with rdma_rxe and of librdmacm 44, but for AF_IB addresses with a P_Key, which they take although no
 * RoCE port has one. */

static struct sockaddr_ib ib_address(const char *gid)
{
	struct sockaddr_ib a = { .sib_family = AF_IB };
	if (gid && inet_pton(AF_INET6, gid, &a.sib_addr) != 1)
		DIE("%s", gid);
	return a;
}

/* The wildcard of AF_IB covers all addresses: a peer comes in by its IP. */
static void ib_wildcard(enum rdma_port_space ps)
{
	struct sockaddr_ib any = ib_address(NULL), *shown;
	struct rdma_cm_id *id, *client;
	any.sib_sid = htobe64(((uint64_t)ps ^ 1) << 16);
	any.sib_sid_mask = htobe64(RDMA_IB_IP_PS_MASK);
	NEED(!rdma_create_id(channel, &id, NULL, ps));
	REFUSED(rdma_bind_addr(id, (struct sockaddr *)&any), EPROTONOSUPPORT);
	any.sib_sid = htobe64((uint64_t)ps << 16 | 7611);
	any.sib_sid_mask = htobe64(RDMA_IB_IP_PS_MASK | RDMA_IB_IP_PORT_MASK);
	CHECK(!rdma_bind_addr(id, (struct sockaddr *)&any));
	shown = (void *)rdma_get_local_addr(id);
	CHECK(shown->sib_family == AF_IB && shown->sib_sid == any.sib_sid && rdma_get_src_port(id) == htons(7611));
	REFUSED(rdma_bind_addr(id, (struct sockaddr *)&any), EINVAL);
	CHECK(!rdma_listen(id, 1) && shown->sib_family == AF_IB);
	CHECK(!rdma_destroy_id(id));
	/* without a service ID: any port */
	any = ib_address(NULL);
	NEED(!rdma_create_id(channel, &id, NULL, ps));
	CHECK(!rdma_bind_addr(id, (struct sockaddr *)&any) && !rdma_listen(id, 1) && rdma_get_src_port(id));
	if (ps == RDMA_PS_TCP) {
		struct sockaddr_storage before = where;
		struct rdma_conn_param param = PARAM;
		param.qp_num = 0x4711;
		((struct sockaddr_in *)&where)->sin_port = rdma_get_src_port(id);
		client = routed();
		where = before;
		NEED(!rdma_connect(client, &param));
		struct rdma_cm_event *event = want(RDMA_CM_EVENT_CONNECT_REQUEST);
		struct rdma_cm_id *server = event->id;
		CHECK(event->listen_id == id && rdma_get_local_addr(server)->sa_family == where.ss_family);
		rdma_ack_cm_event(event);
		CHECK(!rdma_reject(server, NULL, 0));
		pass(RDMA_CM_EVENT_REJECTED);
		without(client);
		without(server);
	}
	CHECK(!rdma_destroy_id(id));
}

static void ib_addresses(enum rdma_port_space ps, int wildcard, int mixed)
{
	struct sockaddr_ib any = ib_address(NULL), own = ib_address("::ffff:127.0.0.1"), other = ib_address("fe80::1");
	struct sockaddr *ip = (struct sockaddr *)&where, *all[] = { (void *)&any, (void *)&own, (void *)&other };
	struct rdma_cm_id *id;
	NEED(!rdma_create_id(channel, &id, NULL, ps));
	for (int i = 0; i < 3; i++) {
		if (i || ps == RDMA_PS_IPOIB)
			REFUSED(rdma_bind_addr(id, all[i]), i ? ENODEV : wildcard);
		REFUSED(rdma_resolve_addr(id, NULL, all[i], 500), wildcard);
		REFUSED(rdma_resolve_addr(id, ip, all[i], 500), EINVAL);
		REFUSED(rdma_resolve_addr(id, all[i], ip, 500), i ? ENODEV : mixed);
	}
	rdma_destroy_id(id);
}

static void families(void)
{
	ib_addresses(RDMA_PS_TCP, ENODEV, EINVAL);
	ib_addresses(RDMA_PS_UDP, ENODEV, EINVAL);
	ib_addresses(RDMA_PS_IB, ENODEV, EINVAL);
	ib_addresses(RDMA_PS_IPOIB, EPROTONOSUPPORT, EPROTONOSUPPORT);
	ib_wildcard(RDMA_PS_TCP);
	ib_wildcard(RDMA_PS_UDP);
	ib_wildcard(RDMA_PS_IB);
	static const int strange[] = { AF_UNSPEC, AF_UNIX, AF_AX25, AF_NETLINK, AF_PACKET, AF_MPLS, 255 };
	for (size_t i = 0; i < sizeof(strange) / sizeof(*strange); i++) {
		struct sockaddr_storage a = { .ss_family = (sa_family_t)strange[i] };
		struct rdma_cm_id *id = create();
		REFUSED(rdma_bind_addr(id, (struct sockaddr *)&a), EINVAL);
		REFUSED(rdma_resolve_addr(id, NULL, (struct sockaddr *)&a, 500), EINVAL);
		rdma_destroy_id(id);
	}
}

/* What comes of a name. */
struct name {
	const char *node, *service;
	int flags, family, type, space;
	int result, flags_out, family_out, type_out, space_out; /* result: 0, or what getaddrinfo(3) says */
};

static void names(void)
{
	enum { TCP = RDMA_PS_TCP, UDP = RDMA_PS_UDP, RC = IBV_QPT_RC, UD = IBV_QPT_UD };
	static const char own[] = "127.0.0.1";
	static const struct name all[] = {
		{ own, "7600", 0, 0, 0, 0, 0, 0, AF_INET, RC, TCP },
		{ own, NULL, 0, 0, 0, 0, 0, 0, AF_INET, RC, TCP },
		{ own, "7600", RAI_NUMERICHOST, 0, 0, 0, 0, 0, AF_INET, RC, TCP },
		{ "localhost", "7600", RAI_NUMERICHOST, 0, 0, 0, EAI_NONAME, 0, 0, 0, 0 },
		{ own, "7600", RAI_NOROUTE, 0, 0, 0, 0, 0, AF_INET, RC, TCP },
		{ own, "7600", RAI_FAMILY, AF_INET, 0, 0, 0, 0, AF_INET, RC, TCP },
		{ own, "7600", RAI_FAMILY, AF_INET6, 0, 0, EAI_ADDRFAMILY, 0, 0, 0, 0 },
		{ own, "7600", RAI_FAMILY, AF_IB, 0, 0, 0, 0, AF_INET, RC, TCP },
		{ own, "7600", 0, AF_IB, 0, 0, 0, 0, AF_INET, RC, TCP },
		{ "fe80::1", "7600", 0, AF_IB, 0, 0, 0, 0, AF_INET6, RC, TCP },
		{ NULL, "7600", RAI_PASSIVE, AF_IB, 0, 0, 0, RAI_PASSIVE, AF_INET, RC, TCP },
		{ NULL, "7600", RAI_PASSIVE, AF_INET6, 0, 0, 0, RAI_PASSIVE, AF_INET6, RC, TCP },
		{ own, "7600", RAI_PASSIVE | RAI_NUMERICHOST, 0, 0, 0, 0, RAI_PASSIVE, AF_INET, RC, TCP },
		{ own, "7600", 0, 99, 0, 0, EAI_FAMILY, 0, 0, 0, 0 },
		{ own, "7600", 0, 0, UD, UDP, 0, 0, AF_INET, UD, UDP },
		{ own, "7600", 0, 0, IBV_QPT_XRC_SEND, RDMA_PS_IB, 0, 0, AF_INET, IBV_QPT_XRC_SEND, RDMA_PS_IB },
		{ own, "noservice", 0, 0, 0, 0, EAI_SERVICE, 0, 0, 0, 0 },
		{ own, "7600", 0x1000, 0, 0, 0, 0, 0, AF_INET, RC, TCP },
		{ own, "7600", 1 << 5, 0, 0, 0, 0, 0, AF_INET, RC, TCP }, /* RAI_SA: nobody to ask, as upstream */
	};
	for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++) {
		const struct name *n = &all[i];
		struct rdma_addrinfo hints = { .ai_flags = n->flags, .ai_family = n->family, .ai_qp_type = n->type,
			.ai_port_space = n->space }, *found = NULL;
		int e = rdma_getaddrinfo(n->node, n->service, &hints, &found);
		if (e != n->result)
			FAIL("name %zu: rdma_getaddrinfo gives %d, not %d", i, e, n->result);
		if (e)
			continue;
		int passive = n->flags & RAI_PASSIVE;
		CHECK(found->ai_flags == n->flags_out && found->ai_family == n->family_out &&
		      found->ai_qp_type == n->type_out && found->ai_port_space == n->space_out);
		CHECK(!found->ai_dst_addr == !!passive && !found->ai_src_addr == !passive && !found->ai_next);
		rdma_freeaddrinfo(found);
	}
	struct rdma_addrinfo *found;
	REFUSED(rdma_getaddrinfo(NULL, NULL, NULL, &found), EINVAL);
}

/* ---- C021: destroying waits exactly for events taken and not acknowledged */

static atomic_int gone;

static void *destroy(void *id)
{
	CHECK(!rdma_destroy_id(id));
	atomic_store(&gone, 1);
	return NULL;
}

static void c021(void)
{
	struct rdma_cm_id *id = create();
	struct rdma_cm_event *taken[2];
	pthread_t thread;
	NEED(!rdma_resolve_addr(id, NULL, (struct sockaddr *)&where, 2000));
	taken[0] = want(RDMA_CM_EVENT_ADDR_RESOLVED);
	NEED(!rdma_resolve_route(id, 2000));
	taken[1] = want(RDMA_CM_EVENT_ROUTE_RESOLVED);
	NEED(!pthread_create(&thread, NULL, destroy, id));
	usleep(200000);
	CHECK(!atomic_load(&gone));
	rdma_ack_cm_event(taken[1]);
	usleep(200000);
	CHECK(!atomic_load(&gone));
	rdma_ack_cm_event(taken[0]);
	pthread_join(thread, NULL);
	/* what nobody has taken vanishes */
	id = create();
	NEED(!rdma_resolve_addr(id, NULL, (struct sockaddr *)&where, 2000));
	struct pollfd p = { .fd = channel->fd, .events = POLLIN };
	CHECK(poll(&p, 1, 10000) == 1);
	CHECK(!rdma_destroy_id(id));
	CHECK(poll(&p, 1, 100) == 0);
	/* a request, too, whose listener goes: the peer is refused */
	struct sockaddr_storage other = where;
	((struct sockaddr_in *)&other)->sin_port = htons(ntohs(((struct sockaddr_in *)&where)->sin_port) + 1);
	struct rdma_cm_id *second = create();
	NEED(!rdma_bind_addr(second, (struct sockaddr *)&other) && !rdma_listen(second, 4));
	id = create();
	struct rdma_conn_param param = PARAM;
	NEED(!rdma_resolve_addr(id, NULL, (struct sockaddr *)&other, 2000));
	pass(RDMA_CM_EVENT_ADDR_RESOLVED);
	NEED(!rdma_resolve_route(id, 2000));
	pass(RDMA_CM_EVENT_ROUTE_RESOLVED);
	with_qp(id);
	NEED(!rdma_connect(id, &param));
	CHECK(poll(&p, 1, 10000) == 1);
	CHECK(!rdma_destroy_id(second));
	pass(RDMA_CM_EVENT_REJECTED);
	without(id);
}

/* ---- C024: the last request of a shared receive queue, when the peer hangs up or dies */

/* A peer that is killed in mid-connection. */
static void dead_peer(void)
{
	struct rdma_conn_param param = PARAM;
	pid_t child = fork();
	if (!child) {
		shared = NULL;
		channel = rdma_create_event_channel();
		NEED(channel);
		struct rdma_cm_id *id = routed();
		with_qp(id);
		NEED(!rdma_connect(id, &param));
		pass(RDMA_CM_EVENT_ESTABLISHED);
		for (;;)
			pause();
	}
	struct rdma_cm_event *event = want(RDMA_CM_EVENT_CONNECT_REQUEST);
	struct rdma_cm_id *server = event->id;
	rdma_ack_cm_event(event);
	with_qp(server);
	NEED(!rdma_accept(server, &param));
	pass(RDMA_CM_EVENT_ESTABLISHED);
	NEED(!kill(child, SIGKILL) && waitpid(child, NULL, 0) == child);
	pass(RDMA_CM_EVENT_DISCONNECTED);
	CHECK(!rdma_disconnect(server));
	struct ibv_async_event last;
	struct pollfd poll_for = { .fd = server->verbs->async_fd, .events = POLLIN };
	CHECK(poll(&poll_for, 1, 1000) == 1 && !ibv_get_async_event(server->verbs, &last));
	CHECK(last.event_type == IBV_EVENT_QP_LAST_WQE_REACHED && last.element.qp == server->qp);
	ibv_ack_async_event(&last);
	CHECK(poll(&poll_for, 1, 100) == 0); /* once */
	without(server);
}

static void c024(void)
{
	struct rdma_cm_id *id = routed();
	struct ibv_srq_init_attr attr = { .attr = { .max_wr = 16, .max_sge = 1 } };
	shared = ibv_create_srq(id->pd, &attr);
	NEED(shared);
	rdma_destroy_id(id);
	struct pair p = connected();
	CHECK(!rdma_disconnect(p.server));
	struct ibv_async_event event;
	struct pollfd poll_for = { .fd = p.server->verbs->async_fd, .events = POLLIN };
	CHECK(poll(&poll_for, 1, 10000) == 1 && !ibv_get_async_event(p.server->verbs, &event));
	CHECK(event.event_type == IBV_EVENT_QP_LAST_WQE_REACHED && event.element.qp == p.server->qp);
	ibv_ack_async_event(&event);
	pass(RDMA_CM_EVENT_DISCONNECTED);
	pass(RDMA_CM_EVENT_DISCONNECTED);
	CHECK(!rdma_disconnect(p.client)); /* nothing is left to say: only its queue pair ends */
	CHECK(poll(&poll_for, 1, 10000) == 1 && !ibv_get_async_event(p.client->verbs, &event));
	CHECK(event.event_type == IBV_EVENT_QP_LAST_WQE_REACHED && event.element.qp == p.client->qp);
	ibv_ack_async_event(&event);
	CHECK(poll(&poll_for, 1, 100) == 0);
	without(p.client);
	without(p.server);
	dead_peer();
	CHECK(!ibv_destroy_srq(shared));
	shared = NULL;
}

/* ---- calls out of order */

static void orders(void)
{
	struct rdma_conn_param param = PARAM;
	struct rdma_cm_id *id = create();
	REFUSED(rdma_resolve_route(id, 1000), EINVAL);
	REFUSED(rdma_connect(id, &param), EINVAL);
	REFUSED(rdma_accept(id, &param), EINVAL);
	REFUSED(rdma_disconnect(id), EINVAL);
	REFUSED(rdma_reject(id, NULL, 0), EINVAL);
	REFUSED(rdma_bind_addr(id, (struct sockaddr *)&where), EADDRINUSE);
	rdma_destroy_id(id);
	REFUSED(rdma_bind_addr(listener, (struct sockaddr *)&where), EINVAL);
	REFUSED(rdma_connect(listener, &param), EINVAL);
	REFUSED(rdma_accept(listener, &param), EINVAL);
	REFUSED(rdma_resolve_addr(listener, NULL, (struct sockaddr *)&where, 1000), EINVAL);

	id = resolved();
	REFUSED(rdma_listen(id, 1), EINVAL);
	REFUSED(rdma_connect(id, &param), EINVAL);
	REFUSED(rdma_resolve_addr(id, NULL, (struct sockaddr *)&where, 1000), EINVAL);
	NEED(!rdma_resolve_route(id, 2000));
	pass(RDMA_CM_EVENT_ROUTE_RESOLVED);
	with_qp(id);
	/* private data: 56 bytes of a request, and no more */
	uint8_t data[200];
	memset(data, 7, sizeof(data));
	param.private_data = data;
	param.private_data_len = 57;
	REFUSED(rdma_connect(id, &param), EINVAL);
	param.private_data_len = 56;
	CHECK(!rdma_connect(id, &param));
	REFUSED(rdma_connect(id, &param), EINVAL);
	struct rdma_cm_event *event = want(RDMA_CM_EVENT_CONNECT_REQUEST);
	struct rdma_cm_id *server = event->id;
	CHECK(event->param.conn.private_data_len >= 56 && !memcmp(event->param.conn.private_data, data, 56));
	rdma_ack_cm_event(event);
	with_qp(server);
	param.private_data_len = 197;
	REFUSED(rdma_accept(server, &param), EINVAL);
	without(server); /* neither accepted nor rejected */
	event = want(RDMA_CM_EVENT_REJECTED);
	CHECK(event->status == 28);
	rdma_ack_cm_event(event);
	REFUSED(rdma_accept(id, &param), EINVAL);
	without(id);

	/* rejected with as much as fits; twice is once too often */
	id = routed();
	with_qp(id);
	param.private_data = NULL;
	param.private_data_len = 0;
	NEED(!rdma_connect(id, &param));
	event = want(RDMA_CM_EVENT_CONNECT_REQUEST);
	server = event->id;
	rdma_ack_cm_event(event);
	REFUSED(rdma_reject(server, data, 149), EINVAL);
	CHECK(!rdma_reject(server, data, 148));
	REFUSED(rdma_reject(server, data, 148), EINVAL);
	REFUSED(rdma_accept(server, &param), EINVAL);
	event = want(RDMA_CM_EVENT_REJECTED);
	CHECK(event->param.conn.private_data_len == 148 && !memcmp(event->param.conn.private_data, data, 148));
	rdma_ack_cm_event(event);
	without(server);
	without(id);

	/* both ends hang up at once, and again */
	struct pair p = connected();
	CHECK(!rdma_disconnect(p.client) && !rdma_disconnect(p.server));
	pass(RDMA_CM_EVENT_DISCONNECTED);
	pass(RDMA_CM_EVENT_DISCONNECTED);
	CHECK(!rdma_disconnect(p.client) && !rdma_disconnect(p.server));
	without(p.client);
	without(p.server);

	/* the queue pair goes first, then the peer */
	p = connected();
	rdma_destroy_qp(p.client);
	CHECK(!ibv_destroy_cq(p.client->context));
	CHECK(!rdma_destroy_id(p.client));
	pass(RDMA_CM_EVENT_DISCONNECTED);
	without(p.server);
}

/* ---- a backlog of one, and a slow server */

static void backlog(void)
{
	enum { N = 6 };
	struct sockaddr_storage other = where;
	((struct sockaddr_in *)&other)->sin_port = htons(ntohs(((struct sockaddr_in *)&where)->sin_port) + 2);
	struct rdma_cm_id *narrow = create(), *ids[N], *servers[N] = { NULL };
	struct rdma_conn_param param = PARAM;
	NEED(!rdma_bind_addr(narrow, (struct sockaddr *)&other) && !rdma_listen(narrow, 1));
	for (int i = 0; i < N; i++) {
		ids[i] = create();
		NEED(!rdma_resolve_addr(ids[i], NULL, (struct sockaddr *)&other, 2000));
		pass(RDMA_CM_EVENT_ADDR_RESOLVED);
		NEED(!rdma_resolve_route(ids[i], 2000));
		pass(RDMA_CM_EVENT_ROUTE_RESOLVED);
		with_qp(ids[i]);
	}
	for (int i = 0; i < N; i++)
		NEED(!rdma_connect(ids[i], &param));
	usleep(300000);
	int asked = 0, established = 0;
	while (established < 2 * N) {
		struct rdma_cm_event *event = next(30000);
		if (!event)
			DIE("backlog: %d asked, %d established", asked, established);
		if (event->event == RDMA_CM_EVENT_CONNECT_REQUEST && asked < N) {
			servers[asked] = event->id;
			with_qp(event->id);
			CHECK(!rdma_accept(servers[asked++], &param));
		} else if (event->event == RDMA_CM_EVENT_ESTABLISHED) {
			established++;
		} else {
			DIE("backlog: %s, status %d", rdma_event_str(event->event), event->status);
		}
		rdma_ack_cm_event(event);
	}
	for (int i = 0; i < N; i++) {
		without(ids[i]);
		pass(RDMA_CM_EVENT_DISCONNECTED);
	}
	for (int i = 0; i < N; i++)
		without(servers[i]);
	without(narrow);
}

/* ---- many threads wait on one channel: each event reaches one of them */

enum { THREADS = 8, IDS = 200 };
static atomic_int resolutions, routes;

static void *taker(void *arg)
{
	struct rdma_cm_event *event;
	(void)arg;
	for (;;) {
		NEED(!rdma_get_cm_event(channel, &event));
		struct rdma_cm_id *id = event->id;
		int kind = event->event;
		rdma_ack_cm_event(event);
		if (kind == RDMA_CM_EVENT_ADDR_RESOLVED) {
			CHECK(atomic_fetch_add((atomic_int *)id->context, 1) == 0);
			atomic_fetch_add(&resolutions, 1);
			CHECK(!rdma_resolve_route(id, 2000));
		} else {
			CHECK(kind == RDMA_CM_EVENT_ROUTE_RESOLVED && atomic_fetch_add((atomic_int *)id->context, 1) == 1);
			CHECK(!rdma_destroy_id(id));
			atomic_fetch_add(&routes, 1);
		}
	}
}

static void threads(void)
{
	static atomic_int steps[IDS];
	pthread_t all[THREADS];
	struct rdma_cm_id *id;
	for (int i = 0; i < THREADS; i++)
		NEED(!pthread_create(&all[i], NULL, taker, NULL));
	for (int i = 0; i < IDS; i++) {
		NEED(!rdma_create_id(channel, &id, &steps[i], RDMA_PS_TCP));
		NEED(!rdma_resolve_addr(id, NULL, (struct sockaddr *)&where, 2000));
	}
	for (uint64_t end = now_ns() + 60000000000u; atomic_load(&routes) < IDS && now_ns() < end;)
		usleep(1000);
	CHECK(atomic_load(&resolutions) == IDS && atomic_load(&routes) == IDS);
	for (int i = 0; i < THREADS; i++) {
		NEED(!pthread_cancel(all[i]));
		pthread_join(all[i], NULL);
	}
}

/* ---- a child made by fork: what it inherited answers EIO, its own works, the parent's goes on */

static void forks(void)
{
	struct pair p = connected();
	pid_t child = fork();
	if (!child) {
		struct rdma_conn_param param = PARAM;
		struct rdma_cm_id *id;
		REFUSED(rdma_connect(p.client, &param), EIO);
		REFUSED(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP), EIO);
		REFUSED(rdma_disconnect(p.client), EIO);
		channel = rdma_create_event_channel();
		NEED(channel);
		id = routed();
		CHECK(!rdma_destroy_id(id));
		rdma_destroy_event_channel(channel);
		_exit(failures != 0);
	}
	int status;
	NEED(waitpid(child, &status, 0) == child);
	CHECK(status == 0);
	CHECK(!next(300)); /* its end is no end of the parent's connection */
	hang_up(p);
}

int main(int argc, char **argv)
{
	program = "identifiers";
	struct addrinfo hints = { .ai_flags = AI_NUMERICHOST, .ai_socktype = SOCK_STREAM }, *a;
	if (argc < 3 || getaddrinfo(argv[1], argv[2], &hints, &a))
		DIE("usage: identifiers ADDRESS PORT");
	memcpy(&where, a->ai_addr, a->ai_addrlen);
	channel = rdma_create_event_channel();
	NEED(channel);
	listener = create();
	NEED(!rdma_bind_addr(listener, (struct sockaddr *)&where) && !rdma_listen(listener, 16));
	struct { const char *name; void (*run)(void); } all[] = { { "ece", ece }, { "notices", notices }, { "paths", paths },
		{ "families", families }, { "names", names }, { "c021", c021 },
		{ "c024", c024 }, { "orders", orders }, { "backlog", backlog }, { "threads", threads }, { "forks", forks } };
	for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++) {
		int before = failures, wanted = argc == 3;
		for (int part = 3; part < argc; part++)
			wanted |= !strcmp(argv[part], all[i].name);
		if (!wanted)
			continue;
		uint64_t begun = now_ns();
		all[i].run();
		printf("%s %s (%.1f s)\n", failures == before ? "ok" : "FAILED", all[i].name, (now_ns() - begun) / 1e9);
		fflush(stdout);
	}
	CHECK(!rdma_destroy_id(listener));
	rdma_destroy_event_channel(channel);
	return failures != 0;
}
