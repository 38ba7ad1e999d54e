/* SPDX-License-Identifier: MIT OR Apache-2.0
 * Opens a device again and again, from one list of devices, until it is gone. From then on nothing is made
 * with a context that was opened before.
 *
 *   gone -d DEVICE
 *
 * Prints "open" once, then "errno N" of the call that failed, and that of the next. */
#include "common.h"
#include <fcntl.h>

#define PATIENCE_S 20

static int try(struct ibv_device *device)
{
	struct ibv_context *context = ibv_open_device(device);
	if (!context)
		return errno;
	if (ibv_close_device(context))
		DIE("ibv_close_device");
	return 0;
}

/* What a program has when its device goes. */
struct holdings {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_mr *mr;
	struct ibv_wq *wq;
	struct ibv_qp *ud, *raw;
	struct ibv_flow *flow;
	char memory[4096];
};

#define HAVE(what)                                                            \
	do {                                                                  \
		if (!(what))                                                  \
			DIE("%s", #what);                                     \
	} while (0)

static struct ibv_qp_init_attr of_type(struct holdings *h, enum ibv_qp_type type)
{
	return (struct ibv_qp_init_attr){ .send_cq = h->cq, .recv_cq = h->cq, .qp_type = type, .cap = { 8, 8, 1, 1, 0 } };
}

static struct ibv_wq_init_attr queue(struct holdings *h)
{
	return (struct ibv_wq_init_attr){ .wq_type = IBV_WQT_RQ, .max_wr = 8, .max_sge = 1, .pd = h->pd, .cq = h->cq };
}

static void hold(struct holdings *h, struct ibv_device *device)
{
	struct ibv_qp_init_attr ud, raw;
	struct ibv_wq_init_attr wq;

	HAVE(h->context = ibv_open_device(device));
	HAVE(h->pd = ibv_alloc_pd(h->context));
	HAVE(h->cq = ibv_create_cq(h->context, 16, NULL, NULL, 0));
	HAVE(h->mr = ibv_reg_mr(h->pd, h->memory, sizeof h->memory, IBV_ACCESS_LOCAL_WRITE));
	ud = of_type(h, IBV_QPT_UD);
	raw = of_type(h, IBV_QPT_RAW_PACKET);
	wq = queue(h);
	HAVE(h->ud = ibv_create_qp(h->pd, &ud));
	HAVE(h->raw = ibv_create_qp(h->pd, &raw));
	HAVE(h->wq = ibv_create_wq(h->context, &wq));
	struct ibv_flow_attr flow = { .type = IBV_FLOW_ATTR_SNIFFER, .size = sizeof flow, .port = 1 };
	HAVE(h->flow = ibv_create_flow(h->raw, &flow));
	for (enum ibv_qp_state state = IBV_QPS_INIT; state <= IBV_QPS_RTS; state++) {
		struct ibv_qp_attr attr = { .qp_state = state, .port_num = 1 };
		HAVE(!ibv_modify_qp(h->raw, &attr, IBV_QP_STATE | (state == IBV_QPS_INIT ? IBV_QP_PORT : 0)));
	}
}

/* A call that makes something, or 0, and has to fail with ENODEV. */
#define REFUSED(call)                                                         \
	do {                                                                  \
		errno = 0;                                                    \
		if (call)                                                     \
			FAIL("%s worked", #call);                             \
		else if (errno != ENODEV)                                     \
			FAIL("%s: errno %d", #call, errno);                   \
	} while (0)

static void nothing_is_made(struct holdings *h)
{
	struct ibv_qp_init_attr rc = of_type(h, IBV_QPT_RC);
	struct ibv_wq_init_attr wq = queue(h);
	struct ibv_rwq_ind_table_init_attr table = { .log_ind_tbl_size = 0, .ind_tbl = &h->wq };
	struct ibv_srq_init_attr srq = { .attr = { .max_wr = 8, .max_sge = 1 } };
	struct ibv_flow_attr flow = { .type = IBV_FLOW_ATTR_ALL_DEFAULT, .size = sizeof flow, .port = 1 };
	struct ibv_counters_init_attr counters = { 0 };
	struct ibv_alloc_dm_attr dm = { .length = 64 };
	struct ibv_td_init_attr td = { 0 };
	struct ibv_xrcd_init_attr xrcd = { .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1,
					   .oflags = O_CREAT };
	struct ibv_cq_init_attr_ex cq = { .cqe = 16 };
	struct ibv_ah_attr ah = { .is_global = 1, .port_num = 1 };

	REFUSED(ibv_alloc_pd(h->context));
	REFUSED(ibv_create_comp_channel(h->context));
	REFUSED(ibv_create_cq(h->context, 16, NULL, NULL, 0));
	REFUSED(ibv_create_cq_ex(h->context, &cq));
	REFUSED(ibv_reg_mr(h->pd, h->memory, sizeof h->memory, 0));
	REFUSED(ibv_alloc_null_mr(h->pd));
	REFUSED(ibv_alloc_mw(h->pd, IBV_MW_TYPE_1));
	REFUSED(ibv_alloc_dm(h->context, &dm));
	REFUSED(ibv_alloc_td(h->context, &td));
	REFUSED(ibv_open_xrcd(h->context, &xrcd));
	REFUSED(ibv_create_srq(h->pd, &srq));
	REFUSED(ibv_create_qp(h->pd, &rc));
	REFUSED(ibv_create_ah(h->pd, &ah));
	REFUSED(ibv_create_wq(h->context, &wq));
	REFUSED(ibv_create_rwq_ind_table(h->context, &table));
	REFUSED(ibv_create_counters(h->context, &counters));
	REFUSED(ibv_create_flow(h->raw, &flow));
}

static void let_go(struct holdings *h)
{
	if (ibv_destroy_flow(h->flow) || ibv_destroy_qp(h->raw) || ibv_destroy_qp(h->ud) || ibv_destroy_wq(h->wq) || ibv_dereg_mr(h->mr) ||
	    ibv_destroy_cq(h->cq) || ibv_dealloc_pd(h->pd) || ibv_close_device(h->context))
		FAIL("what was made cannot be destroyed: errno %d", errno);
}

int main(int argc, char **argv)
{
	struct ibv_device **list, *device = NULL;
	static struct holdings held;
	int n, err;

	program = "gone";
	if (argc != 3 || strcmp(argv[1], "-d"))
		DIE("usage: gone -d DEVICE");
	if (!(list = ibv_get_device_list(&n)))
		DIE("ibv_get_device_list");
	for (int i = 0; i < n; i++)
		if (!strcmp(ibv_get_device_name(list[i]), argv[2]))
			device = list[i];
	if (!device || try(device))
		DIE("%s cannot be opened", argv[2]);
	hold(&held, device);
	printf("open\n");
	fflush(stdout);
	for (uint64_t end = now_ns() + PATIENCE_S * 1000000000ull; !(err = try(device)); usleep(2000))
		if (now_ns() > end)
			DIE("%s is still there", argv[2]);
	nothing_is_made(&held);
	let_go(&held);
	printf("errno %d\nerrno %d\n", err, try(device));
	ibv_free_device_list(list);
	return failures != 0;
}
