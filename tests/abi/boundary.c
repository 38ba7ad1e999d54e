/* What belongs to the C boundary itself: sizes that callers pass, words of sysfs, the way back from a
 * datagram, NULL arguments, and calls that are not done yet, each by its own convention.
 *
 *   boundary [DEVICE]        exit status 0 when every behaviour held */
#include "abi.h"
#include <arpa/inet.h>
#include <fcntl.h>
#include <rdma/rdma_cma.h>
#include <rdma/rsocket.h>

static struct ibv_context *ctx;
static struct ibv_pd *pd;

/* The function of libibverbs, not the inline one of the same name: it knows an older structure. */
#undef ibv_query_port
#define OLD_PORT_ATTR 48

static void structures_are_filled_as_far_as_the_caller_knows_them(void)
{
	union {
		struct ibv_port_attr attr;
		uint8_t bytes[128];
	} port;
	union {
		struct ibv_device_attr_ex attr;
		uint8_t bytes[512];
	} dev;
	struct verbs_context *v = verbs_get_ctx(ctx);

	TRUE(v && v->sz >= sizeof(*v)); /* newer than these headers */
	memset(&port, 0xa5, sizeof(port));
	SAME(ibv_query_port(ctx, 1, (struct _compat_ibv_port_attr *)&port), 0);
	SAME(port.attr.link_layer, IBV_LINK_LAYER_ETHERNET);
	for (int i = OLD_PORT_ATTR; i < 128; i++)
		SAME(port.bytes[i], 0xa5);

	memset(&port, 0xa5, sizeof(port));
	SAME(v->query_port(ctx, 1, &port.attr, 100), 0);
	for (int i = 56; i < 100; i++)
		SAME(port.bytes[i], 0); /* more than the library knows: zero */
	SAME(port.bytes[100], 0xa5);

	memset(&dev, 0xa5, sizeof(dev));
	SAME(v->query_device_ex(ctx, NULL, &dev.attr, 248), 0);
	TRUE(dev.attr.orig_attr.max_qp > 0);
	SAME(dev.bytes[247], 0);
	SAME(dev.bytes[248], 0xa5);
	SAME(v->query_device_ex(ctx, NULL, &dev.attr, 100), EINVAL);
	SAME(ibv_query_device_ex(ctx, NULL, &dev.attr), 0);
	SAME(dev.attr.phys_port_cnt_ex, 1);
	TRUE(dev.attr.orig_attr.fw_ver[0] != 0);
}

static void device_words_agree(void)
{
	struct ibv_device_attr attr;
	__be64 guid = ibv_get_device_guid(ctx->device);

	SAME(ibv_query_device(ctx, &attr), 0);
	TRUE(guid != 0 && attr.node_guid == guid);
	TRUE(!strcmp(ibv_get_device_name(ctx->device), ctx->device->name));
	SAME(ctx->device->node_type, IBV_NODE_CA);
	SAME(ctx->device->transport_type, IBV_TRANSPORT_IB);
	TRUE(!strncmp(ctx->device->dev_name, "uverbs", 6));
	TRUE(ibv_get_device_index(ctx->device) > 0);
	SAME(ctx->cmd_fd >= 0 && ctx->async_fd >= 0, 1);
	TRUE(ctx->num_comp_vectors > 0);
}

extern int ibv_read_sysfs_file(const char *dir, const char *file, char *buf, size_t size);

static void sysfs_words_need_no_tree(void)
{
	char value[64];

	SAME(ibv_read_sysfs_file(ctx->device->ibdev_path, "board_id", value, sizeof(value)), 7);
	TRUE(!strcmp(value, "rocebud"));
	memset(value, 0xa5, sizeof(value));
	SAME(ibv_read_sysfs_file(ctx->device->ibdev_path, "board_id", value, 3), 3);
	TRUE(!memcmp(value, "roc\xa5", 4));
	MINUS_AND(ibv_read_sysfs_file("/nowhere", "x", value, sizeof(value)), ENOENT);
}

static void gid_tables(void)
{
	struct ibv_gid_entry one, all[256];
	union ibv_gid gid;
	struct ibv_port_attr port;
	ssize_t n;

	SAME(___ibv_query_port(ctx, 1, &port), 0);
	TRUE(port.gid_tbl_len > 0 && port.gid_tbl_len <= 256);
	SAME(ibv_query_gid_table(ctx, all, 0, 0), -EINVAL);
	n = ibv_query_gid_table(ctx, all, 256, 0);
	TRUE(n >= 1 && n <= port.gid_tbl_len);
	for (int i = 0; i < n; i++) {
		SAME(all[i].port_num, 1);
		SAME(all[i].gid_type, IBV_GID_TYPE_ROCE_V2);
		SAME(ibv_query_gid_ex(ctx, 1, all[i].gid_index, &one, 0), 0);
		TRUE(!memcmp(&one, &all[i], sizeof(one)));
		SAME(ibv_query_gid(ctx, 1, (int)all[i].gid_index, &gid), 0);
		TRUE(!memcmp(&gid, &all[i].gid, sizeof(gid)));
	}
	SAME(ibv_query_gid_ex(ctx, 1, 0, &one, 1), EOPNOTSUPP); /* no flags are known */
	SAME(_ibv_query_gid_ex(ctx, 1, all[0].gid_index, &one, 0, 16), 0); /* the GID alone */
	SAME(ibv_get_pkey_index(ctx, 1, htons(0xffff)), 0);
	MINUS_AND(ibv_get_pkey_index(ctx, 1, htons(0x1234)), EINVAL);
}

/* ---- the 40 bytes in front of a datagram ---- */

static uint16_t checksum(const uint8_t *h)
{
	uint32_t sum = 0;

	for (int i = 0; i < 20; i += 2)
		sum += (uint32_t)(h[i] << 8 | h[i + 1]);
	sum = (sum & 0xffff) + (sum >> 16);
	return (uint16_t)~(sum + (sum >> 16));
}

static void ipv4_area(uint8_t area[40], const uint8_t src[4], const uint8_t dst[4])
{
	uint8_t *h = area + 20;
	uint16_t sum;

	memset(area, 0, 40);
	h[0] = 0x45;
	h[1] = 0x20; /* traffic class */
	h[8] = 64;
	h[9] = 17;
	memcpy(h + 12, src, 4);
	memcpy(h + 16, dst, 4);
	sum = checksum(h);
	h[10] = (uint8_t)(sum >> 8);
	h[11] = (uint8_t)sum;
}

static int way_back(const uint8_t area[40], struct ibv_ah_attr *attr)
{
	struct ibv_wc wc = {.wc_flags = IBV_WC_GRH, .sl = 3};

	memset(attr, 0, sizeof(*attr));
	return ibv_init_ah_from_wc(ctx, 1, &wc, (struct ibv_grh *)area, attr);
}

static void the_way_back_from_a_datagram(void)
{
	uint8_t area[40] __attribute__((aligned(8)));
	static const uint8_t far4[4] = {192, 0, 2, 9}, group4[4] = {224, 0, 0, 5};
	struct ibv_gid_entry all[256];
	struct ibv_ah_attr attr;
	struct ibv_wc plain = {.slid = 5};
	ssize_t n = ibv_query_gid_table(ctx, all, 256, 0);

	for (int i = 0; i < n; i++) {
		const uint8_t *own = all[i].gid.raw;
		static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};

		if (!memcmp(own, mapped, 12)) {
			ipv4_area(area, far4, own + 12);
		} else {
			memset(area, 0, sizeof(area));
			area[0] = 0x62; /* version 6, traffic class 0x20, flow label 0x12345 */
			area[1] = 0x01;
			area[2] = 0x23;
			area[3] = 0x45;
			memset(area + 8, 0x20, 16);
			memcpy(area + 24, own, 16);
		}
		SAME(way_back(area, &attr), 0);
		SAME(attr.is_global, 1);
		SAME(attr.port_num, 1);
		SAME(attr.sl, 3);
		SAME(attr.grh.sgid_index, all[i].gid_index);
		SAME(attr.grh.traffic_class, 0x20);
		if (area[0]) {
			SAME(attr.grh.flow_label, 0x12345);
			SAME(attr.grh.dgid.raw[0], 0x20);
		} else {
			TRUE(!memcmp(attr.grh.dgid.raw + 12, far4, 4));
		}
	}
	ipv4_area(area, far4, group4);
	MINUS_AND(way_back(area, &attr), EINVAL); /* came by multicast */
	ipv4_area(area, far4, far4);
	SAME(way_back(area, &attr), -1); /* no address of ours */
	area[30] ^= 1; /* the checksum no longer fits: no header at all */
	MINUS_AND(way_back(area, &attr), EPROTONOSUPPORT);
	SAME(ibv_init_ah_from_wc(ctx, 1, &plain, NULL, &attr), 0); /* without a GRH */
	SAME(attr.dlid, 5);
	SAME(attr.is_global, 0);
}

static void null_arguments_are_refused(void)
{
	struct ibv_device_attr attr;
	struct ibv_qp *qp;
	struct ibv_qp_init_attr init = {.qp_type = IBV_QPT_RC};
	struct ibv_cq *cq;
	struct ibv_send_wr wr = {0}, *bad;

	SAME(ibv_query_device(NULL, &attr), EINVAL);
	SAME(ibv_query_device(ctx, NULL), EINVAL);
	NULL_AND(ibv_alloc_pd(NULL), EINVAL);
	SAME(ibv_dealloc_pd(NULL), EINVAL);
	SAME(ibv_dereg_mr(NULL), EINVAL);
	SAME(ibv_destroy_qp(NULL), EINVAL);
	NULL_AND(ibv_create_qp(pd, NULL), EINVAL);
	NULL_AND(ibv_open_device(NULL), EINVAL);
	ibv_free_device_list(NULL);
	NEED(cq = ibv_create_cq(ctx, 4, NULL, NULL, 0));
	init.send_cq = init.recv_cq = cq;
	init.cap.max_send_wr = init.cap.max_send_sge = init.cap.max_recv_sge = 1;
	NEED(qp = ibv_create_qp(pd, &init));
	SAME(ibv_post_send(qp, NULL, &bad), EINVAL);
	SAME(ibv_post_send(qp, &wr, NULL), EINVAL);
	wr.num_sge = 1;
	SAME(ibv_post_send(qp, &wr, &bad), EINVAL); /* sg_list is NULL */
	wr.num_sge = -1;
	SAME(ibv_post_send(qp, &wr, &bad), EINVAL);
	TRUE(bad == &wr);
	TRUE(ibv_poll_cq(cq, -1, NULL) < 0);
	SAME(ibv_destroy_qp(qp), 0);
	SAME(ibv_destroy_cq(cq), 0);
}

static void calls_of_later_releases_refuse(void)
{
	static char page[4096];
	struct ibv_counters_init_attr counters = {0};
	struct ibv_device_attr attr;

	/* they count flows, which only those have who may carry raw packets */
	SAME(ibv_query_device(ctx, &attr), 0);
	if (attr.device_cap_flags & IBV_DEVICE_MANAGED_FLOW_STEERING)
		SAME(ibv_destroy_counters(ibv_create_counters(ctx, &counters)), 0);
	else
		NULL_AND(ibv_create_counters(ctx, &counters), EOPNOTSUPP);
	SAME(ibv_is_fork_initialized(), IBV_FORK_UNNEEDED);
	SAME(ibv_fork_init(), 0);
	MINUS_AND(rsocket(AF_UNIX, SOCK_STREAM, 0), EOPNOTSUPP);
	MINUS_AND(rread(0, page, 1), EBADF); /* no socket of ours */
}

static struct ibv_context *device_of(struct ibv_context **list, int n)
{
	for (int i = 0; i < n; i++)
		if (list[i]->device == ctx->device)
			return list[i];
	return NULL;
}

static void identifiers_bind_to_our_addresses(void)
{
	int n = -1;
	struct ibv_context **list = rdma_get_devices(&n), *shared = NULL;
	struct sockaddr_in6 at = {.sin6_family = AF_INET6, .sin6_port = htons(7471)};
	struct sockaddr_in any = {.sin_family = AF_INET}, nobody = {.sin_family = AF_INET};
	struct rdma_event_channel *channel;
	struct rdma_cm_id *id, *sync;

	NEED(list && n > 0 && !list[n]);
	NEED(shared = device_of(list, n));
	rdma_free_devices(list);
	NEED(list = rdma_get_devices(NULL)); /* the same contexts as before, open after the list was freed */
	SAME(device_of(list, n) == shared, 1);
	rdma_free_devices(list);
	rdma_free_devices(NULL);

	NEED(channel = rdma_create_event_channel());
	SAME(channel->fd > 2, 1);
	MINUS_AND(rdma_create_id(channel, &id, ctx, (enum rdma_port_space)7), EINVAL);
	SAME(rdma_create_id(channel, &id, ctx, RDMA_PS_UDP), 0);
	SAME(id->channel == channel && id->context == ctx && !id->verbs, 1);
	SAME(id->qp_type, IBV_QPT_UD);
	inet_pton(AF_INET, "203.0.113.9", &nobody.sin_addr);
	MINUS_AND(rdma_bind_addr(id, (struct sockaddr *)&nobody), EADDRNOTAVAIL);
	nobody.sin_family = AF_UNIX;
	MINUS_AND(rdma_bind_addr(id, (struct sockaddr *)&nobody), EINVAL);
	MINUS_AND(rdma_bind_addr(id, NULL), EINVAL);

	/* GID 0 is an address of the device, an IPv4 one too */
	NEED(!ibv_query_gid(ctx, 1, 0, (union ibv_gid *)&at.sin6_addr));
	SAME(rdma_bind_addr(id, (struct sockaddr *)&at), 0);
	SAME(id->verbs->device == ctx->device, 1);
	SAME(id->port_num, 1);
	SAME(rdma_get_src_port(id), htons(7471));
	SAME(id->route.addr.src_sin6.sin6_family, AF_INET6);
	MINUS_AND(rdma_bind_addr(id, (struct sockaddr *)&at), EINVAL);
	SAME(rdma_destroy_id(id), 0);

	SAME(rdma_create_id(NULL, &sync, NULL, RDMA_PS_TCP), 0);
	SAME(sync->channel && sync->qp_type == IBV_QPT_RC, 1);
	SAME(rdma_bind_addr(sync, (struct sockaddr *)&any), 0);
	SAME(sync->verbs == NULL, 1); /* the wildcard names no device */
	SAME(rdma_get_src_port(sync) != 0, 1);
	SAME(rdma_listen(sync, 1), 0);
	MINUS_AND(rdma_listen(sync, 1), EINVAL);
	SAME(rdma_destroy_id(sync), 0);
	rdma_destroy_event_channel(channel);
}

static void calls_that_do_not_fit_an_identifiers_state_refuse(void)
{
	struct rdma_conn_param param = {0};
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT};
	struct ibv_qp_init_attr init = {.qp_type = IBV_QPT_RC};
	struct sockaddr_in lo = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	struct rdma_event_channel *channel;
	struct rdma_cm_event *event;
	struct rdma_cm_id *id, *other;
	uint8_t tos = 32;
	int on = 1, mask;

	NEED(channel = rdma_create_event_channel());
	SAME(fcntl(channel->fd, F_SETFL, O_NONBLOCK), 0);
	MINUS_AND(rdma_get_cm_event(channel, &event), EAGAIN);
	MINUS_AND(rdma_get_cm_event(channel, NULL), EINVAL);
	MINUS_AND(rdma_get_cm_event(NULL, &event), EINVAL);
	MINUS_AND(rdma_ack_cm_event(NULL), EINVAL);

	SAME(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP), 0);
	MINUS_AND(rdma_create_qp(id, NULL, &init), EINVAL);
	MINUS_AND(rdma_resolve_route(id, 1), EINVAL);
	MINUS_AND(rdma_connect(id, &param), EINVAL);
	MINUS_AND(rdma_accept(id, &param), EINVAL);
	MINUS_AND(rdma_reject(id, NULL, 0), EINVAL);
	MINUS_AND(rdma_disconnect(id), EINVAL);
	MINUS_AND(rdma_establish(id), EINVAL);
	MINUS_AND(rdma_notify(id, IBV_EVENT_COMM_EST), EINVAL);
	MINUS_AND(rdma_init_qp_attr(id, &attr, &mask), EINVAL);
	MINUS_AND(rdma_join_multicast(id, (struct sockaddr *)&lo, NULL), EINVAL);
	MINUS_AND(rdma_leave_multicast(id, (struct sockaddr *)&lo), EADDRNOTAVAIL);
	MINUS_AND(rdma_get_request(id, &other), EINVAL);
	MINUS_AND(rdma_resolve_addr(id, NULL, NULL, 1), EINVAL);
	SAME(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &tos, 1), 0);
	MINUS_AND(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &tos, 4), EINVAL);
	SAME(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &on, sizeof(on)), 0);
	MINUS_AND(rdma_set_option(id, RDMA_OPTION_ID, 77, &on, sizeof(on)), ENOSYS);
	MINUS_AND(rdma_set_option(id, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, &on, sizeof(on)), EINVAL);

	/* an address of ours resolves without anybody's help */
	SAME(rdma_resolve_addr(id, NULL, (struct sockaddr *)&lo, 100), 0);
	SAME(rdma_get_cm_event(channel, &event), 0);
	SAME(event->event, RDMA_CM_EVENT_ADDR_RESOLVED);
	SAME(event->id == id && id->verbs && id->pd && id->port_num == 1, 1);
	MINUS_AND(rdma_connect(id, &param), EINVAL);
	rdma_ack_cm_event(event);
	SAME(rdma_resolve_route(id, 100), 0);
	/* an event that nobody has read goes with the identifier: nothing is left in the channel */
	MINUS_AND(rdma_resolve_route(id, 100), EINVAL);
	SAME(rdma_destroy_id(id), 0);
	MINUS_AND(rdma_get_cm_event(channel, &event), EAGAIN);
	rdma_destroy_event_channel(channel);
}

static void names_become_addresses(void)
{
	struct rdma_addrinfo hints = {.ai_flags = RAI_PASSIVE | RAI_NUMERICHOST, .ai_port_space = RDMA_PS_TCP}, *info;

	MINUS_AND(rdma_getaddrinfo(NULL, NULL, NULL, &info), EINVAL);
	SAME(rdma_getaddrinfo("127.0.0.1", "7471", NULL, &info), 0);
	SAME(info->ai_dst_len, sizeof(struct sockaddr_in));
	SAME(((struct sockaddr_in *)info->ai_dst_addr)->sin_port, htons(7471));
	SAME(info->ai_src_len, 0);
	rdma_freeaddrinfo(info);
	SAME(rdma_getaddrinfo("::1", "7471", &hints, &info), 0);
	SAME(info->ai_src_len, sizeof(struct sockaddr_in6));
	SAME(info->ai_flags & RAI_PASSIVE && info->ai_qp_type == IBV_QPT_RC && info->ai_port_space == RDMA_PS_TCP, 1);
	rdma_freeaddrinfo(info);
	SAME(rdma_getaddrinfo("no address", "7471", &hints, &info) != 0, 1);
	rdma_freeaddrinfo(NULL);
}

int main(int argc, char **argv)
{
	ctx = open_device(argc > 1 ? argv[1] : NULL);
	NEED(pd = ibv_alloc_pd(ctx));
	RUN(structures_are_filled_as_far_as_the_caller_knows_them());
	RUN(device_words_agree());
	RUN(sysfs_words_need_no_tree());
	RUN(gid_tables());
	RUN(the_way_back_from_a_datagram());
	RUN(null_arguments_are_refused());
	RUN(calls_of_later_releases_refuse());
	RUN(identifiers_bind_to_our_addresses());
	RUN(calls_that_do_not_fit_an_identifiers_state_refuse());
	RUN(names_become_addresses());
	SAME(ibv_dealloc_pd(pd), 0);
	SAME(ibv_close_device(ctx), 0);
	return verdict();
}
