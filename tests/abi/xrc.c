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

/* From RESET to RTS, towards a queue pair of the same device. */
static void to_rts(struct ibv_qp *qp, uint32_t peer, union ibv_gid gid)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT, .port_num = 1, .path_mtu = IBV_MTU_1024,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE, .dest_qp_num = peer, .min_rnr_timer = 1,
		.ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = gid, .hop_limit = 1}},
		.timeout = 14, .retry_cnt = 7, .rnr_retry = 7,
	};

	NEED(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
					       IBV_QP_ACCESS_FLAGS));
	attr.qp_state = IBV_QPS_RTR;
	NEED(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU |
		IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		(qp->qp_type == IBV_QPT_XRC_RECV ? IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER : 0)));
	attr.qp_state = IBV_QPS_RTS;
	NEED(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT |
		(qp->qp_type == IBV_QPT_XRC_SEND ?
			IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC : 0)));
}

static void every_handle_gets_the_events(void)
{
	struct ibv_xrcd *xrcd = domain(ctx, -1, O_CREAT);
	struct ibv_qp_init_attr init = {
		.qp_type = IBV_QPT_XRC_SEND, .send_cq = cq, .cap = {.max_send_wr = 4}};
	struct ibv_qp_open_attr open = {.comp_mask = 11, .qp_type = IBV_QPT_XRC_RECV, .xrcd = xrcd};
	struct ibv_send_wr wr = {.opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = {.remote_addr = 4096, .rkey = 1}}, *bad;
	struct ibv_sge sge = {.addr = (uintptr_t)&wr, .length = 8};
	struct ibv_qp *handles[3], *sender;
	struct ibv_srq *srq = queue(xrcd, 4, SRQ_MASK);
	struct ibv_mr *mr;
	struct ibv_async_event e;
	union ibv_gid gid;
	struct ibv_wc wc;
	int named = 0, flags = fcntl(ctx->async_fd, F_GETFL);

	NEED(xrcd && srq && !ibv_query_gid(ctx, 1, 0, &gid));
	NEED(mr = ibv_reg_mr(pd, &wr, sizeof(wr), 0));
	NEED(handles[0] = target(xrcd, IBV_QP_INIT_ATTR_XRCD));
	open.qp_num = handles[0]->qp_num;
	NEED(handles[1] = ibv_open_qp(ctx, &open));
	NEED(handles[2] = ibv_open_qp(ctx, &open));
	NEED(sender = ibv_create_qp(pd, &init));
	to_rts(handles[1], sender->qp_num, gid);
	to_rts(sender, handles[1]->qp_num, gid);
	/* The latest handle goes first: no event may name it any more. */
	SAME(ibv_destroy_qp(handles[2]), 0);
	sge.lkey = mr->lkey;
	wr.sg_list = &sge;
	wr.num_sge = 1;
	SAME(ibv_get_srq_num(srq, &wr.qp_type.xrc.remote_srqn), 0);
	SAME(ibv_post_send(sender, &wr, &bad), 0);
	while (!ibv_poll_cq(cq, 1, &wc))
		;
	SAME((int)wc.status, IBV_WC_REM_ACCESS_ERR);
	SAME(fcntl(ctx->async_fd, F_SETFL, flags | O_NONBLOCK), 0);
	while (!ibv_get_async_event(ctx, &e)) {
		SAME((int)e.event_type, IBV_EVENT_QP_ACCESS_ERR);
		TRUE(e.element.qp == handles[0] || e.element.qp == handles[1]);
		named |= e.element.qp == handles[0] ? 1 : 2;
		ibv_ack_async_event(&e);
	}
	SAME(named, 3);
	SAME(fcntl(ctx->async_fd, F_SETFL, flags), 0);
	SAME(ibv_destroy_qp(handles[0]), 0);
	SAME(ibv_destroy_qp(handles[1]), 0);
	SAME(ibv_destroy_qp(sender), 0);
	SAME(ibv_dereg_mr(mr), 0);
	SAME(ibv_destroy_srq(srq), 0);
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
	RUN(every_handle_gets_the_events());
	RUN(capabilities());
	SAME(ibv_destroy_cq(cq), 0);
	SAME(ibv_dealloc_pd(pd), 0);
	SAME(ibv_close_device(ctx), 0);
	SAME(ibv_close_device(other_ctx), 0);
	return verdict();
}
