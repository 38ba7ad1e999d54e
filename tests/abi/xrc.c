/* XRC from C: domains, queues and both ends, and what bad input gets. */
#include "abi.h"
#include <fcntl.h>
#include <sys/wait.h>

static struct ibv_context *ctx, *other_ctx;
static struct ibv_pd *pd;
static struct ibv_cq *cq;

static struct ibv_xrcd *domain(struct ibv_context *in, int fd, int flags)
{
	struct ibv_xrcd_init_attr init = {.comp_mask = 3, .fd = fd, .oflags = flags};

	return ibv_open_xrcd(in, &init);
}

static struct ibv_srq *queue(struct ibv_xrcd *xrcd, uint32_t max_wr, uint32_t mask)
{
	struct ibv_srq_init_attr_ex init = {.attr = {max_wr, 1}, .comp_mask = mask,
		.srq_type = IBV_SRQT_XRC, .pd = pd, .xrcd = xrcd, .cq = cq};

	return ibv_create_srq_ex(ctx, &init);
}

static struct ibv_qp *target(struct ibv_xrcd *xrcd, uint32_t mask)
{
	struct ibv_qp_init_attr_ex init = {
		.qp_type = IBV_QPT_XRC_RECV, .comp_mask = mask, .xrcd = xrcd, .pd = pd};

	return ibv_create_qp_ex(ctx, &init);
}

#define SRQ_MASK (IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD | \
		  IBV_SRQ_INIT_ATTR_CQ)

static void domains(void)
{
	struct ibv_xrcd_init_attr bad = {.comp_mask = 1, .fd = -1};
	struct ibv_xrcd *own, *first, *second;
	char path[] = "/tmp/rocebud-xrcd-XXXXXX";
	int fd = mkstemp(path), status;
	pid_t child;

	NEED(fd >= 0);
	unlink(path);
	NULL_AND(ibv_open_xrcd(ctx, &bad), EINVAL);
	NULL_AND(domain(ctx, -1, 0), EINVAL);
	NULL_AND(domain(ctx, 9999, O_CREAT), EBADF);
	NULL_AND(domain(ctx, fd, 0), EAGAIN);
	NULL_AND(domain(ctx, fd, O_RDWR | O_CREAT), EINVAL);
	NEED(own = domain(ctx, -1, O_CREAT));
	TRUE(own->context == ctx);
	NEED(first = domain(ctx, fd, O_CREAT | O_EXCL));
	NULL_AND(domain(ctx, fd, O_CREAT | O_EXCL), EINVAL);
	NEED(second = domain(ctx, fd, 0));
	NEED((child = fork()) >= 0);
	if (!child) {
		struct ibv_context *mine = open_device(ibv_get_device_name(ctx->device));

		_exit(domain(mine, fd, O_CREAT) ? 1 : errno);
	}
	NEED(waitpid(child, &status, 0) == child);
	SAME(WEXITSTATUS(status), EOPNOTSUPP);
	SAME(ibv_close_xrcd(second), 0);
	SAME(ibv_close_xrcd(first), 0);
	SAME(ibv_close_xrcd(own), 0);
	close(fd);
}

static void queues(void)
{
	struct ibv_xrcd *xrcd = domain(ctx, -1, O_CREAT), *alien = domain(other_ctx, -1, O_CREAT);
	struct ibv_srq_init_attr_ex matching = {.attr = {1, 1}, .srq_type = IBV_SRQT_TM, .pd = pd,
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD};
	struct ibv_qp_init_attr init = {.qp_type = IBV_QPT_RC, .send_cq = cq, .recv_cq = cq,
		.cap = {1, 1, 1, 1}};
	struct ibv_recv_wr wr = {.wr_id = 1}, *bad;
	struct ibv_srq *srq, *second;
	uint32_t a = 0, b = 0;

	NEED(xrcd && alien);
	NULL_AND(queue(xrcd, 0, SRQ_MASK), EINVAL);
	NULL_AND(queue(xrcd, 4, SRQ_MASK & ~IBV_SRQ_INIT_ATTR_CQ), EINVAL);
	NULL_AND(queue(xrcd, 4, SRQ_MASK & ~IBV_SRQ_INIT_ATTR_PD), EINVAL);
	NULL_AND(queue(alien, 4, SRQ_MASK), EINVAL);
	NULL_AND(ibv_create_srq_ex(ctx, &matching), EOPNOTSUPP);
	NEED(srq = queue(xrcd, 4, SRQ_MASK));
	NEED(second = queue(xrcd, 4, SRQ_MASK));
	SAME(ibv_get_srq_num(srq, &a), 0);
	SAME(ibv_get_srq_num(second, &b), 0);
	TRUE(a && b && a != b && a < 1 << 24);
	SAME(ibv_post_srq_recv(srq, &wr, &bad), 0);
	init.srq = srq;
	NULL_AND(ibv_create_qp(pd, &init), EINVAL);
	SAME(ibv_close_xrcd(xrcd), EBUSY);
	SAME(ibv_destroy_cq(cq), EBUSY);
	SAME(ibv_destroy_srq(srq), 0);
	SAME(ibv_destroy_srq(second), 0);
	SAME(ibv_close_xrcd(xrcd), 0);
	SAME(ibv_close_xrcd(alien), 0);
}

static void both_ends(void)
{
	struct ibv_xrcd *xrcd = domain(ctx, -1, O_CREAT);
	struct ibv_qp_init_attr init = {
		.qp_type = IBV_QPT_XRC_SEND, .send_cq = cq, .cap = {.max_send_wr = 4}};
	struct ibv_qp_open_attr open = {.comp_mask = 11, .qp_type = IBV_QPT_XRC_RECV, .xrcd = xrcd};
	struct ibv_send_wr send = {.opcode = IBV_WR_SEND}, *bad_send;
	struct ibv_recv_wr recv = {.wr_id = 1}, *bad_recv;
	struct ibv_qp *sender, *serving, *opened;

	NEED(xrcd);
	NULL_AND(target(xrcd, IBV_QP_INIT_ATTR_PD), EINVAL);
	NULL_AND(target(NULL, IBV_QP_INIT_ATTR_XRCD), EINVAL);
	NEED(serving = target(xrcd, IBV_QP_INIT_ATTR_XRCD));
	NEED(sender = ibv_create_qp(pd, &init));
	TRUE(serving->qp_type == IBV_QPT_XRC_RECV && serving->context == ctx && !serving->pd);
	SAME(ibv_post_send(serving, &send, &bad_send), EINVAL);
	SAME(ibv_post_recv(serving, &recv, &bad_recv), EINVAL);
	SAME(ibv_post_recv(sender, &recv, &bad_recv), EINVAL);
	open.qp_num = serving->qp_num + 1;
	NULL_AND(ibv_open_qp(ctx, &open), EINVAL);
	open.qp_num = serving->qp_num;
	open.comp_mask = 3;
	NULL_AND(ibv_open_qp(ctx, &open), EINVAL);
	open.comp_mask = 15;
	open.qp_context = &open;
	NEED(opened = ibv_open_qp(ctx, &open));
	TRUE(opened->qp_num == serving->qp_num && opened->qp_context == &open);
	SAME(ibv_close_xrcd(xrcd), EBUSY);
	SAME(ibv_destroy_qp(serving), 0);
	SAME(ibv_close_xrcd(xrcd), EBUSY); /* the other handle keeps it */
	SAME(ibv_destroy_qp(opened), 0);
	SAME(ibv_destroy_qp(sender), 0);
	SAME(ibv_close_xrcd(xrcd), 0);
}

static void capabilities(void)
{
	struct ibv_device_attr_ex attr = {};

	SAME(ibv_query_device_ex(ctx, NULL, &attr), 0);
	TRUE(attr.orig_attr.device_cap_flags & IBV_DEVICE_XRC);
	TRUE(attr.xrc_odp_caps & IBV_ODP_SUPPORT_SRQ_RECV);
}

int main(int argc, char **argv)
{
	const char *name = argc > 1 ? argv[1] : NULL;

	ctx = open_device(name);
	other_ctx = open_device(name);
	NEED(pd = ibv_alloc_pd(ctx));
	NEED(cq = ibv_create_cq(ctx, 16, NULL, NULL, 0));
	RUN(domains());
	RUN(queues());
	RUN(both_ends());
	RUN(capabilities());
	SAME(ibv_destroy_cq(cq), 0);
	SAME(ibv_dealloc_pd(pd), 0);
	SAME(ibv_close_device(ctx), 0);
	SAME(ibv_close_device(other_ctx), 0);
	return verdict();
}
