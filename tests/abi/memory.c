/* Regions, windows and device memory from C: what bad input gets, and that nothing happened then.
 * What they do with good input is for pyverbs and the loopback tests. */
#define _GNU_SOURCE
#include "abi.h"
#include <dlfcn.h>
#include <sys/mman.h>

static struct ibv_context *ctx, *other_ctx;
static struct ibv_pd *pd, *other_pd;
static char *page;

#define LOCAL IBV_ACCESS_LOCAL_WRITE
#define ALL (LOCAL | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC)

static void flags_of_regions(void)
{
	struct ibv_mr *mr;

	NULL_AND(ibv_reg_mr(pd, page, 4096, IBV_ACCESS_REMOTE_WRITE), EINVAL);
	NULL_AND(ibv_reg_mr(pd, page, 4096, IBV_ACCESS_REMOTE_ATOMIC), EINVAL);
	NULL_AND(ibv_reg_mr(pd, page, 4096, LOCAL | 1 << 12), EINVAL);
	NULL_AND(ibv_reg_mr_iova(pd, page, 4096, (uintptr_t)page + 1, LOCAL), EINVAL);
	NULL_AND(ibv_reg_mr(pd, page + 8192, 4096, LOCAL), EFAULT);
	TRUE(mr = ibv_reg_mr(pd, page, 0, LOCAL));
	SAME(ibv_dereg_mr(mr), 0);
	TRUE(mr = ibv_reg_mr(pd, page, 4096, ALL | IBV_ACCESS_RELAXED_ORDERING | 1 << 27));
	TRUE(mr->addr == page && mr->length == 4096 && mr->pd == pd && mr->lkey);
	SAME(ibv_dealloc_pd(pd), EBUSY);
	SAME(ibv_dereg_mr(mr), 0);
	TRUE(mr = ibv_reg_mr_iova(pd, page, 4096, 0x7000, ALL));
	SAME(ibv_dereg_mr(mr), 0);
	/* On demand: memory that is not there yet, or all there is. */
	TRUE(mr = ibv_reg_mr(pd, page + 8192, 4096, ALL | IBV_ACCESS_ON_DEMAND));
	SAME(ibv_dereg_mr(mr), 0);
	TRUE(mr = ibv_reg_mr(pd, page, 4096, LOCAL | IBV_ACCESS_ON_DEMAND | IBV_ACCESS_HUGETLB));
	SAME(ibv_dereg_mr(mr), 0);
	NULL_AND(ibv_reg_mr(pd, NULL, SIZE_MAX, LOCAL), EINVAL);
	TRUE(mr = ibv_reg_mr(pd, NULL, SIZE_MAX, LOCAL | IBV_ACCESS_ON_DEMAND));
	SAME(ibv_dereg_mr(mr), 0);
}

static void registering_anew(void)
{
	struct ibv_mr *mr = ibv_reg_mr(pd, page, 4096, LOCAL);
	struct ibv_mr *null = ibv_alloc_null_mr(pd);
	uint32_t lkey;

	NEED(mr && null);
	lkey = mr->lkey;
#define INPUT(flags, pd_, addr, len, access)                                               \
	do {                                                                               \
		errno = 0;                                                                 \
		SAME(ibv_rereg_mr(mr, flags, pd_, addr, len, access),                      \
		     IBV_REREG_MR_ERR_INPUT);                                              \
		SAME(errno, EINVAL);                                                       \
	} while (0)
	INPUT(0, NULL, NULL, 0, 0);
	INPUT(1 << 3, NULL, NULL, 0, 0);
	INPUT(IBV_REREG_MR_CHANGE_TRANSLATION, NULL, NULL, 4096, 0);
	INPUT(IBV_REREG_MR_CHANGE_TRANSLATION, NULL, page, 0, 0);
	INPUT(IBV_REREG_MR_CHANGE_PD, pd, NULL, 0, LOCAL);
#define CMD(mr_, flags, pd_, addr, len, access, want)                                      \
	do {                                                                               \
		errno = 0;                                                                 \
		SAME(ibv_rereg_mr(mr_, flags, pd_, addr, len, access),                     \
		     IBV_REREG_MR_ERR_CMD);                                                \
		SAME(errno, want);                                                         \
	} while (0)
	CMD(mr, IBV_REREG_MR_CHANGE_PD, NULL, NULL, 0, 0, EINVAL);
	CMD(mr, IBV_REREG_MR_CHANGE_PD, other_pd, NULL, 0, 0, EINVAL);
	CMD(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_REMOTE_WRITE, EINVAL);
	CMD(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, page + 8192, 4096, 0, EFAULT);
	CMD(null, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, LOCAL, EINVAL);
	TRUE(mr->addr == page && mr->length == 4096 && mr->pd == pd);

	struct ibv_pd *second = ibv_alloc_pd(ctx);
	NEED(second);
	SAME(ibv_rereg_mr(mr, 7, second, page + 4096, 100, ALL), 0);
	TRUE(mr->addr == page + 4096 && mr->length == 100 && mr->pd == second);
	SAME(mr->lkey, lkey);
	SAME(ibv_dealloc_pd(second), EBUSY);
	SAME(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, pd, NULL, 0, 0), 0);
	SAME(ibv_dealloc_pd(second), 0);
	SAME(ibv_dereg_mr(mr), 0);
	SAME(ibv_dereg_mr(null), 0);
}

static void null_regions(void)
{
	struct ibv_mr *mr = ibv_alloc_null_mr(pd);

	NEED(mr);
	TRUE(mr->length == SIZE_MAX && !mr->addr && mr->lkey && !mr->rkey);
	SAME(ibv_dealloc_pd(pd), EBUSY);
	SAME(ibv_dereg_mr(mr), 0);
}

static void advices(void)
{
	struct ibv_mr *mr = ibv_reg_mr(pd, page, 12288, LOCAL | IBV_ACCESS_ON_DEMAND);
	struct ibv_mr *readonly = ibv_reg_mr(pd, page, 8192, IBV_ACCESS_ON_DEMAND);
	struct ibv_mr *pinned = ibv_reg_mr(pd, page, 8192, LOCAL);
	struct ibv_sge sge;
	int read = IBV_ADVISE_MR_ADVICE_PREFETCH, write = IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE;
	int wait = IBV_ADVISE_MR_FLAG_FLUSH;

	NEED(mr && readonly && pinned);
#define ADVISE(pd_, advice, flags, at, len, key, want)                                     \
	sge = (struct ibv_sge){(uintptr_t)(at), len, key};                                 \
	SAME(ibv_advise_mr(pd_, advice, flags, &sge, 1), want)
	ADVISE(pd, read, 0, page, 4096, mr->lkey, 0);
	ADVISE(pd, write, wait, page, 8192, mr->lkey, 0);
	ADVISE(pd, IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT, wait, page, 12288, mr->lkey, 0);
	ADVISE(pd, read, wait, page + 8192, 1, mr->lkey, EFAULT); /* nothing is there */
	ADVISE(pd, read, 0, page + 8192, 1, mr->lkey, 0);	  /* and nobody waits for it */
	ADVISE(pd, read, 0, page + 8192, 4097, mr->lkey, EFAULT);
	ADVISE(pd, read, 0, page - 1, 1, mr->lkey, EFAULT);
	ADVISE(pd, read, 0, page, 1, mr->lkey ^ 1, EFAULT);
	ADVISE(pd, write, 0, page, 1, readonly->lkey, EFAULT);
	ADVISE(other_pd, read, 0, page, 1, mr->lkey, EFAULT);
	ADVISE(pd, read, 0, page, 1, pinned->lkey, EINVAL);
	ADVISE(pd, read, 8, page, 1, mr->lkey, EINVAL);
	ADVISE(pd, 77, 0, page, 1, mr->lkey, EOPNOTSUPP);
	SAME(ibv_advise_mr(pd, read, 0, NULL, 1), EINVAL);
	SAME(ibv_advise_mr(pd, read, 0, NULL, 0), 0);
	SAME(ibv_dereg_mr(mr), 0);
	SAME(ibv_dereg_mr(readonly), 0);
	SAME(ibv_dereg_mr(pinned), 0);
}

static void windows(void)
{
	struct ibv_cq *cq = ibv_create_cq(ctx, 4, NULL, NULL, 0);
	struct ibv_qp_init_attr init = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = {1, 1, 1, 1}};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	struct ibv_mr *mr = ibv_reg_mr(pd, page, 4096, LOCAL | IBV_ACCESS_MW_BIND);
	struct ibv_mr *alien = ibv_reg_mr(other_pd, page, 4096, LOCAL | IBV_ACCESS_MW_BIND);
	struct ibv_mw *one = ibv_alloc_mw(pd, IBV_MW_TYPE_1);
	struct ibv_mw *two = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
	struct ibv_mw_bind bind = {.bind_info = {mr, (uintptr_t)page, 64, IBV_ACCESS_REMOTE_READ}};
	struct ibv_send_wr *bad, wr = {.opcode = IBV_WR_BIND_MW, .bind_mw = {one, 1, bind.bind_info}};

	NEED(cq && qp && mr && alien && one && two);
	TRUE(one->pd == pd && one->context == ctx && one->type == IBV_MW_TYPE_1 && one->rkey);
	NULL_AND(ibv_alloc_mw(pd, 3), EINVAL);
	SAME(ibv_dealloc_pd(pd), EBUSY);
	SAME(ibv_bind_mw(qp, two, &bind), EINVAL);
	SAME(ibv_bind_mw(qp, one, &bind), EINVAL); /* not in RTS */
	bind.bind_info.mr = NULL;
	SAME(ibv_bind_mw(qp, one, &bind), EINVAL);
	bind.bind_info.mr = alien;
	SAME(ibv_bind_mw(qp, one, &bind), EPERM); /* the header itself says so */
	bind.bind_info.mr = mr;
	bind.bind_info.mw_access_flags = IBV_ACCESS_ZERO_BASED;
	SAME(ibv_bind_mw(qp, one, &bind), EINVAL);
	SAME(ibv_post_send(qp, &wr, &bad), EINVAL); /* type 1 in a request */
	TRUE(bad == &wr);
	wr.bind_mw.mw = NULL;
	SAME(ibv_post_send(qp, &wr, &bad), EINVAL);
	SAME(ibv_dealloc_mw(one), 0);
	SAME(ibv_dealloc_mw(two), 0);
	SAME(ibv_dereg_mr(mr), 0);
	SAME(ibv_dereg_mr(alien), 0);
	SAME(ibv_destroy_qp(qp), 0);
	SAME(ibv_destroy_cq(cq), 0);
}

static void device_memory(void)
{
	struct ibv_device_attr_ex attr = {};
	struct ibv_alloc_dm_attr want = {.length = 100};
	unsigned int zero_based = LOCAL | IBV_ACCESS_ZERO_BASED;
	struct ibv_dm *dm, *second;
	struct ibv_context *import;
	struct ibv_mr *mr;

	SAME(ibv_query_device_ex(ctx, NULL, &attr), 0);
	TRUE(attr.max_dm_size >= 1 << 20);
	want.length = attr.max_dm_size + 1;
	NULL_AND(ibv_alloc_dm(ctx, &want), EINVAL);
	want.length = 0;
	NULL_AND(ibv_alloc_dm(ctx, &want), EINVAL);
	want = (struct ibv_alloc_dm_attr){.length = 100, .comp_mask = 1};
	NULL_AND(ibv_alloc_dm(ctx, &want), EINVAL);
	want = (struct ibv_alloc_dm_attr){.length = 100, .log_align_req = 40};
	NULL_AND(ibv_alloc_dm(ctx, &want), EINVAL);
	want.log_align_req = 16;
	NEED(dm = ibv_alloc_dm(ctx, &want));
	strcpy(page, "abcdefg");
	SAME(ibv_memcpy_to_dm(dm, 92, page, 8), 0);
	memset(page, 'x', 8);
	SAME(ibv_memcpy_from_dm(page, dm, 92, 8), 0);
	TRUE(!strcmp(page, "abcdefg"));
	SAME(ibv_memcpy_to_dm(dm, 3, page, 4), EINVAL);
	SAME(ibv_memcpy_to_dm(dm, 4, page, 3), EINVAL);
	SAME(ibv_memcpy_to_dm(dm, 96, page, 8), EFAULT);
	SAME(ibv_memcpy_to_dm(dm, 0, page, 104), EFAULT);
	SAME(ibv_memcpy_from_dm(page, dm, ~3UL, 8), EFAULT);
	SAME(ibv_memcpy_from_dm(page, dm, 8, ~3UL), EFAULT);
	SAME(ibv_memcpy_from_dm(page + 8192, dm, 0, 8), EFAULT); /* no memory there */
	SAME(ibv_memcpy_to_dm(dm, 0, NULL, 8), EFAULT);

	NULL_AND(ibv_reg_dm_mr(pd, dm, 0, 104, zero_based), EINVAL);
	NULL_AND(ibv_reg_dm_mr(pd, dm, 100, 4, zero_based), EINVAL);
	NULL_AND(ibv_reg_dm_mr(pd, dm, ~0UL, 2, zero_based), EINVAL);
	NULL_AND(ibv_reg_dm_mr(pd, dm, 0, 100, LOCAL), EINVAL);
	NULL_AND(ibv_reg_dm_mr(pd, dm, 0, 100, zero_based | IBV_ACCESS_ON_DEMAND), EINVAL);
	NULL_AND(ibv_reg_dm_mr(pd, dm, 0, 100, IBV_ACCESS_ZERO_BASED | IBV_ACCESS_REMOTE_WRITE),
		 EINVAL);
	NULL_AND(ibv_reg_dm_mr(other_pd, dm, 0, 100, zero_based), EINVAL);
	NEED(mr = ibv_reg_dm_mr(pd, dm, 4, 96, zero_based | IBV_ACCESS_REMOTE_READ));
	TRUE(mr->length == 96 && mr->pd == pd && mr->lkey);
	errno = 0;
	SAME(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, LOCAL),
	     IBV_REREG_MR_ERR_CMD);
	SAME(errno, EINVAL);
	SAME(ibv_free_dm(dm), EBUSY);
	SAME(ibv_memcpy_from_dm(page, dm, 0, 4), 0); /* still there */
	SAME(ibv_dereg_mr(mr), 0);

	NULL_AND(ibv_import_dm(other_ctx, dm->handle), ENOENT);
	NEED(import = ibv_import_device(dup(ctx->cmd_fd)));
	NULL_AND(ibv_import_dm(import, dm->handle + 1000), ENOENT);
	NEED(second = ibv_import_dm(import, dm->handle));
	SAME(ibv_memcpy_from_dm(page, second, 92, 8), 0);
	TRUE(!strcmp(page, "abcdefg"));
	SAME(ibv_free_dm(second), EINVAL);
	ibv_unimport_dm(second);
	SAME(ibv_close_device(import), 0);
	SAME(ibv_free_dm(dm), 0);
}

static void capabilities(void)
{
	struct ibv_device_attr_ex attr = {};
	unsigned int rc = IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_WRITE |
			  IBV_ODP_SUPPORT_READ | IBV_ODP_SUPPORT_ATOMIC | IBV_ODP_SUPPORT_SRQ_RECV;

	SAME(ibv_query_device_ex(ctx, NULL, &attr), 0);
	SAME(attr.odp_caps.general_caps, IBV_ODP_SUPPORT | IBV_ODP_SUPPORT_IMPLICIT);
	SAME(attr.odp_caps.per_transport_caps.rc_odp_caps & rc, rc);
	SAME(attr.odp_caps.per_transport_caps.uc_odp_caps,
	     IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_WRITE);
	SAME(attr.odp_caps.per_transport_caps.ud_odp_caps,
	     IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_SRQ_RECV);
	TRUE(attr.orig_attr.device_cap_flags & IBV_DEVICE_MEM_WINDOW);
	TRUE(attr.orig_attr.device_cap_flags & IBV_DEVICE_MEM_WINDOW_TYPE_2B);
	TRUE(!(attr.orig_attr.device_cap_flags & IBV_DEVICE_MEM_WINDOW_TYPE_2A));
	TRUE(attr.orig_attr.max_mw > 0);
}

/* Of the newest rdma-core; Debian's headers do not have it. */
struct init_attr {
	size_t length;
	int access;
	uint64_t comp_mask, iova;
	void *addr;
	int fd;
	uint64_t fd_offset;
	void *dmah;
};
typedef struct ibv_mr *reg_mr_ex(struct ibv_pd *pd, struct init_attr *attr);

static void one_call_for_all_regions(void)
{
	struct init_attr attr = {.length = 4096, .access = LOCAL, .comp_mask = 2, .addr = page};
	reg_mr_ex *reg = (reg_mr_ex *)dlsym(RTLD_DEFAULT, "ibv_reg_mr_ex");
	struct ibv_mr *mr;

	NEED(reg);
	NEED(mr = reg(pd, &attr));
	TRUE(mr->addr == page && mr->length == 4096);
	SAME(ibv_dereg_mr(mr), 0);
	attr.comp_mask = 3;
	attr.iova = 0x7000;
	TRUE(mr = reg(pd, &attr));
	SAME(ibv_dereg_mr(mr), 0);
	attr.iova = 0x7001;
	NULL_AND(reg(pd, &attr), EINVAL);
	attr.comp_mask = 2 | 4;
	NULL_AND(reg(pd, &attr), EINVAL);
	attr.comp_mask = 1;
	NULL_AND(reg(pd, &attr), EINVAL);
	attr.comp_mask = 4;
	NULL_AND(reg(pd, &attr), EOPNOTSUPP);
	attr.comp_mask = 2 | 16;
	NULL_AND(reg(pd, &attr), EOPNOTSUPP);
	NULL_AND(ibv_reg_dmabuf_mr(pd, 0, 64, 0, -1, 0), EOPNOTSUPP);
}

int main(int argc, char **argv)
{
	const char *name = argc > 1 ? argv[1] : NULL;

	ctx = open_device(name);
	other_ctx = open_device(name);
	NEED(pd = ibv_alloc_pd(ctx));
	NEED(other_pd = ibv_alloc_pd(other_ctx));
	page = mmap(NULL, 12288, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	NEED(page != MAP_FAILED);
	/* Not unmapped: a mapping of the library or of another thread might come to lie there. */
	NEED(!mprotect(page + 8192, 4096, PROT_NONE));
	RUN(flags_of_regions());
	RUN(registering_anew());
	RUN(null_regions());
	RUN(advices());
	RUN(windows());
	RUN(device_memory());
	RUN(capabilities());
	RUN(one_call_for_all_regions());
	SAME(ibv_dealloc_pd(pd), 0);
	SAME(ibv_dealloc_pd(other_pd), 0);
	SAME(ibv_close_device(ctx), 0);
	SAME(ibv_close_device(other_ctx), 0);
	return verdict();
}
