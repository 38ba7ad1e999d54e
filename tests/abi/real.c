/* A real device beside ours: the lists are merged, and every call goes to the device's owner. Runs
 * with ROCEBUD_REAL=fake_real.so and a /sys/class/infiniband_verbs that lists a foreign device;
 * see real.sh. */
#include "abi.h"
#include <dlfcn.h>

int main(int argc, char **argv)
{
	static char page[4096];
	int n = -1, ours = 0;
	struct ibv_device **list = ibv_get_device_list(&n), *real = NULL;
	struct ibv_context *ctx;
	struct ibv_pd *pd;
	struct ibv_mr *mr;
	struct ibv_send_wr wr = {0}, *bad;
	struct ibv_qp *qp;
	struct ibv_qp_init_attr init = {0};
	struct ibv_cq cq = {0};
	struct ibv_async_event event = {.event_type = IBV_EVENT_CQ_ERR};
	void *fake = dlopen(getenv("ROCEBUD_REAL"), RTLD_NOW);

	NEED(list && fake);
	for (int i = 0; i < n; i++) {
		if (!strcmp(ibv_get_device_name(list[i]), "real0")) {
			real = list[i];
			SAME(i, n - 1); /* ours come first */
		} else {
			ours++;
		}
	}
	TRUE(list[n] == NULL);
	NEED(real);
	printf("%d of ours, %d in all\n", ours, n);
	SAME(ibv_get_device_guid(real), 77);
	NEED(ctx = ibv_open_device(real));
	ibv_free_device_list(list);
	SAME(((int (*)(void))dlsym(fake, "real_lists"))(), 0);
	NEED(pd = ibv_alloc_pd(ctx));
	SAME(pd->handle, 4343);
	NEED(mr = ibv_reg_mr(pd, page, 64, 1));
	SAME(mr->length, 64);
	SAME(mr->lkey, 1);
	SAME(ibv_rereg_mr(mr, 1, pd, NULL, 5, 6), 4444);
	qp = calloc(1, sizeof(*qp));
	qp->context = ctx;
	SAME(ibv_post_send(qp, &wr, &bad), 4242);
	NULL_AND(ibv_create_qp(pd, &init), ENOSYS); /* this "release" has no such call */
	cq.context = ctx;
	event.element.cq = &cq;
	ibv_ack_async_event(&event);
	SAME(((int (*)(void))dlsym(fake, "real_acks"))(), 1);
	SAME(ibv_fork_init(), 4545);
	SAME(ibv_dereg_mr(mr), 0);
	SAME(ibv_dealloc_pd(pd), 0);
	SAME(ibv_close_device(ctx), 0);
	return verdict();
}
