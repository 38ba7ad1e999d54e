/* Stands in for the distribution's libibverbs where the kernel has an RDMA device: one device,
 * "real0". Answers are odd numbers that only this library gives. Built into a shared library and
 * named by ROCEBUD_REAL; see real.c. */
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdlib.h>
#include <string.h>

static struct ibv_device real0 = {.node_type = IBV_NODE_RNIC, .name = "real0", .dev_name = "uverbs9"};
static int lists;

static int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	return 4242;
}

struct ibv_device **ibv_get_device_list(int *n)
{
	struct ibv_device **list = calloc(2, sizeof(*list));

	list[0] = &real0;
	*n = 1;
	lists++;
	return list;
}

void ibv_free_device_list(struct ibv_device **list)
{
	lists--;
	free(list);
}

int real_lists(void) { return lists; }

struct ibv_context *ibv_open_device(struct ibv_device *device)
{
	struct ibv_context *ctx = calloc(1, sizeof(*ctx));

	if (device != &real0)
		abort();
	ctx->device = device;
	ctx->ops.post_send = post_send;
	return ctx;
}

int ibv_close_device(struct ibv_context *ctx)
{
	free(ctx);
	return 0;
}

__be64 ibv_get_device_guid(struct ibv_device *device) { return 77; }

struct ibv_pd *ibv_alloc_pd(struct ibv_context *ctx)
{
	struct ibv_pd *pd = calloc(1, sizeof(*pd));

	pd->context = ctx;
	pd->handle = 4343;
	return pd;
}

int ibv_dealloc_pd(struct ibv_pd *pd)
{
	free(pd);
	return 0;
}

#undef ibv_reg_mr
struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
{
	struct ibv_mr *mr = calloc(1, sizeof(*mr));

	mr->context = pd->context;
	mr->pd = pd;
	mr->length = length;
	mr->lkey = (uint32_t)access;
	return mr;
}

int ibv_rereg_mr(struct ibv_mr *mr, int flags, struct ibv_pd *pd, void *addr, size_t length, int access)
{
	return flags == 1 && pd == mr->pd && !addr && length == 5 && access == 6 ? 4444 : -1;
}

int ibv_dereg_mr(struct ibv_mr *mr)
{
	free(mr);
	return 0;
}

static int acked;

void ibv_ack_async_event(struct ibv_async_event *event) { acked++; }

int ibv_fork_init(void) { return 4545; }

int real_acks(void) { return acked; }
