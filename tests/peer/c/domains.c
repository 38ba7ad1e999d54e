/* SPDX-License-Identifier: MIT OR Apache-2.0
 * domains: thread and parent domains, allocators of the program's, and objects imported within a process.
 * domains [-d DEV] [-g GID] [-m MTU] [-c CASES]    exit status 0 when every case passed
 * Build: cc -O2 -pthread -o domains domains.c -libverbs */
#include "judge.h"
#include "pair.h"
#include <fcntl.h>
#include <sys/wait.h>

static struct ibv_td *thread_domain(struct device *d)
{
	struct ibv_td_init_attr a = { 0 };
	struct ibv_td *td = ibv_alloc_td(d->ctx, &a);
	if (!td)
		DIE("ibv_alloc_td");
	return td;
}

static struct ibv_pd *parent(struct device *d, struct ibv_parent_domain_init_attr a)
{
	a.pd = a.pd ? a.pd : d->pd;
	struct ibv_pd *pd = ibv_alloc_parent_domain(d->ctx, &a);
	if (!pd)
		DIE("ibv_alloc_parent_domain");
	return pd;
}

static struct ibv_qp *queue_pair(struct ibv_pd *pd, struct ibv_cq *cq)
{
	struct ibv_qp_init_attr a = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .sq_sig_all = 1,
				      .cap = PAIR_DEFAULTS.cap };
	return ibv_create_qp(pd, &a);
}

/* A write from side 0 to side 1, checked. */
static void works(struct pair *p, const char *what)
{
	struct ibv_sge from = sge_at(&p->mem[0], 0, 64);
	struct ibv_send_wr wr = request(p, IBV_WR_RDMA_WRITE, &from, 1, 0);
	static uint8_t salt;
	memset(p->mem[0].base, ++salt, 64);
	SAME(what, post(p, &wr), 0);
	expect_wc(p, 0, IBV_WC_SUCCESS, what);
	if (memcmp(p->mem[0].base, p->mem[1].base, 64))
		FAIL("%s: other bytes arrived", what);
}

/* A connected pair whose side 0 is on `pd`. */
static struct pair pair_across(struct device *d, struct ibv_pd *pd)
{
	struct pair p = { .d = d };
	for (int i = 0; i < 2; i++) {
		p.cq[i] = ibv_create_cq(d->ctx, 64, NULL, NULL, 0);
		p.qp[i] = queue_pair(i ? d->pd : pd, p.cq[i]);
		if (!p.cq[i] || !p.qp[i])
			DIE("a queue pair");
		region_new(d, &p.mem[i], ALL_ACCESS);
	}
	if ((errno = pair_connect(&p, &PAIR_DEFAULTS)))
		DIE("connecting the pair");
	return p;
}

/* ---- domains ---- */

static void refusals(struct device *d)
{
	struct ibv_td_init_attr t = { .comp_mask = 1 };
	struct ibv_parent_domain_init_attr a = { .pd = d->pd, .comp_mask = 1 << 5 };
	NULL_AND("thread domain with a mask", ibv_alloc_td(d->ctx, &t), EINVAL);
	NULL_AND("parent domain with an unknown mask", ibv_alloc_parent_domain(d->ctx, &a), EINVAL);
	a.comp_mask = 0;
	a.pd = NULL;
	NULL_AND("parent domain of nothing", ibv_alloc_parent_domain(d->ctx, &a), EINVAL);
	a.pd = d->pd;
	a.comp_mask = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS;
	NULL_AND("allocators that are NULL", ibv_alloc_parent_domain(d->ctx, &a), EINVAL);
	struct ibv_cq_init_attr_ex c = { .cqe = 8, .comp_mask = IBV_CQ_INIT_ATTR_MASK_PD, .parent_domain = d->pd };
	NULL_AND("completion queue on a plain domain", ibv_create_cq_ex(d->ctx, &c), EINVAL);
	c.parent_domain = NULL;
	NULL_AND("completion queue on no domain", ibv_create_cq_ex(d->ctx, &c), EINVAL);
}

static void lifetimes(struct device *d)
{
	struct ibv_pd *base = ibv_alloc_pd(d->ctx);
	struct ibv_td *td = thread_domain(d);
	struct ibv_pd *pd = parent(d, (struct ibv_parent_domain_init_attr){ .pd = base, .td = td });
	struct ibv_cq *cq = ibv_create_cq(d->ctx, 8, NULL, NULL, 0);
	struct ibv_qp *qp = queue_pair(pd, cq);
	if (!base || !cq || !qp)
		DIE("objects on a parent domain");
	SAME("the queue pair's domain", qp->pd == pd, 1);
	SAME("parent domain in use", ibv_dealloc_pd(pd), EBUSY);
	SAME("thread domain in use", ibv_dealloc_td(td), EBUSY);
	SAME("base in use", ibv_dealloc_pd(base), EBUSY);
	SAME("queue pair", ibv_destroy_qp(qp), 0);
	struct ibv_cq_init_attr_ex c = { .cqe = 8, .comp_mask = IBV_CQ_INIT_ATTR_MASK_PD, .parent_domain = pd };
	struct ibv_cq_ex *ex = ibv_create_cq_ex(d->ctx, &c);
	if (!ex)
		DIE("a completion queue on a parent domain");
	SAME("parent domain in use by a completion queue", ibv_dealloc_pd(pd), EBUSY);
	SAME("completion queue", ibv_destroy_cq(ibv_cq_ex_to_cq(ex)), 0);
	SAME("parent domain", ibv_dealloc_pd(pd), 0);
	SAME("thread domain", ibv_dealloc_td(td), 0);
	SAME("base", ibv_dealloc_pd(base), 0);
	SAME("completion queue", ibv_destroy_cq(cq), 0);
}

/* "Completely interchangeable": keys of one domain serve queue pairs of the other. */
static void interchangeable(struct device *d)
{
	struct ibv_td *td = thread_domain(d);
	struct ibv_pd *pd = parent(d, (struct ibv_parent_domain_init_attr){ .td = td });
	struct pair p = pair_across(d, pd); /* regions on the base, side 0 on the parent domain */
	works(&p, "a region of the base");
	struct ibv_mr *mr = ibv_reg_mr(pd, p.mem[1].base, REGION, ALL_ACCESS);
	if (!mr)
		DIE("ibv_reg_mr on a parent domain");
	struct ibv_mr *other = p.mem[1].mr;
	p.mem[1].mr = mr; /* side 1, on the base, serves a region of the parent domain */
	works(&p, "a region of the parent domain");
	p.mem[1].mr = other;
	SAME("region", ibv_dereg_mr(mr), 0);
	pair_free(&p);
	SAME("parent domain", ibv_dealloc_pd(pd), 0);
	SAME("thread domain", ibv_dealloc_td(td), 0);
}

/* ---- allocators ---- */

struct pool {
	int what; /* 0 gives memory, 1 none, 2 leaves it to the library, 3 gives it misaligned */
	int given, taken;
	struct { void *at; size_t size; uint64_t type; } last;
	struct ibv_pd *pd;
};

static void *pool_alloc(struct ibv_pd *pd, void *context, size_t size, size_t alignment, uint64_t type)
{
	struct pool *pool = context;
	void *memory;
	if (pool->what == 1)
		return NULL;
	if (pool->what == 2)
		return IBV_ALLOCATOR_USE_DEFAULT;
	if (posix_memalign(&memory, alignment, size + alignment))
		DIE("posix_memalign");
	pool->given++;
	pool->pd = pd;
	pool->last.at = pool->what == 3 ? (char *)memory + 4 : memory;
	pool->last.size = size;
	pool->last.type = type;
	return pool->last.at;
}

static void pool_free(struct ibv_pd *pd, void *context, void *memory, uint64_t type)
{
	struct pool *pool = context;
	(void)pd, (void)type;
	pool->taken++;
	free(pool->what == 3 ? (char *)memory - 4 : memory);
}

static struct ibv_pd *pooled(struct device *d, struct pool *pool)
{
	return parent(d, (struct ibv_parent_domain_init_attr){ .alloc = pool_alloc, .free = pool_free, .pd_context = pool,
		.comp_mask = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT });
}

static void lives_there(struct pool *pool, const void *object, uint64_t type, const char *what)
{
	const char *at = object, *from = pool->last.at;
	if (at < from || at >= from + pool->last.size)
		FAIL("%s does not live in the memory that it was given", what);
	SAME(what, pool->last.type & UINT32_MAX, type);
}

static void allocators(struct device *d)
{
	struct pool pool = { 0 };
	struct ibv_pd *pd = pooled(d, &pool);
	struct ibv_cq_init_attr_ex c = { .cqe = 64, .comp_mask = IBV_CQ_INIT_ATTR_MASK_PD, .parent_domain = pd };
	struct ibv_cq_ex *cq = ibv_create_cq_ex(d->ctx, &c);
	lives_there(&pool, cq, 2, "completion queue");
	struct ibv_srq_init_attr s = { .attr = { .max_wr = 8, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(pd, &s);
	lives_there(&pool, srq, 3, "shared receive queue");
	struct ibv_qp_init_attr_ex a = { .send_cq = ibv_cq_ex_to_cq(cq), .recv_cq = ibv_cq_ex_to_cq(cq), .srq = srq,
		.cap = PAIR_DEFAULTS.cap, .qp_type = IBV_QPT_RC, .pd = pd, .send_ops_flags = IBV_QP_EX_WITH_SEND,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS };
	struct ibv_qp *qp = ibv_create_qp_ex(d->ctx, &a);
	lives_there(&pool, qp, 1, "queue pair");
	SAME("the domain that the allocator was told", pool.pd == pd, 1);
	SAME("queue pair", ibv_destroy_qp(qp), 0);
	SAME("shared receive queue", ibv_destroy_srq(srq), 0);
	SAME("completion queue", ibv_destroy_cq(ibv_cq_ex_to_cq(cq)), 0);
	SAME("pieces given", pool.given, 3);
	SAME("pieces taken back", pool.taken, 3);
	struct pair p = pair_across(d, pd);
	works(&p, "a queue pair in the program's memory");
	pair_free(&p);
	SAME("pieces taken back", pool.taken, pool.given);
	SAME("parent domain", ibv_dealloc_pd(pd), 0);
}

static void allocators_that_refuse(struct device *d)
{
	struct pool pool = { .what = 1 };
	struct ibv_pd *pd = pooled(d, &pool);
	struct ibv_cq *cq = ibv_create_cq(d->ctx, 8, NULL, NULL, 0);
	struct ibv_cq_init_attr_ex c = { .cqe = 64, .comp_mask = IBV_CQ_INIT_ATTR_MASK_PD, .parent_domain = pd };
	struct ibv_srq_init_attr s = { .attr = { .max_wr = 8, .max_sge = 1 } };
	NULL_AND("queue pair", queue_pair(pd, cq), ENOMEM);
	NULL_AND("completion queue", ibv_create_cq_ex(d->ctx, &c), ENOMEM);
	NULL_AND("shared receive queue", ibv_create_srq(pd, &s), ENOMEM);
	pool.what = 3;
	NULL_AND("misaligned memory", queue_pair(pd, cq), EINVAL);
	SAME("it went back", pool.taken, 1);
	pool.what = 2;
	struct pair p = pair_across(d, pd);
	works(&p, "memory left to the library");
	pair_free(&p);
	SAME("nothing was given", pool.given, 1);
	SAME("nothing is left on it", ibv_dealloc_pd(pd), 0);
	SAME("completion queue", ibv_destroy_cq(cq), 0);
}

/* ---- importing ---- */

static struct ibv_context *imported(struct device *d)
{
	struct ibv_context *ctx = ibv_import_device(dup(d->ctx->cmd_fd));
	if (!ctx)
		DIE("ibv_import_device");
	return ctx;
}

static void import_traffic(struct device *d)
{
	struct device i = *d;
	struct ibv_context *ctx = imported(d);
	SAME("events of its own", ctx->async_fd != d->ctx->async_fd, 1);
	SAME("the same device", ctx->device == d->ctx->device, 1);
	i.ctx = ctx;
	if (!(i.pd = ibv_import_pd(ctx, d->pd->handle)))
		DIE("ibv_import_pd");
	SAME("its context", i.pd->context == ctx, 1);
	struct pair p = pair_new(&i, &PAIR_DEFAULTS); /* all of it on the import */
	works(&p, "on an import");
	struct ibv_mr *mr = ibv_reg_mr(d->pd, p.mem[1].base, REGION, ALL_ACCESS);
	struct ibv_mr *import = ibv_import_mr(i.pd, mr->handle), *own = p.mem[1].mr;
	if (!import)
		DIE("ibv_import_mr");
	SAME("keys", import->rkey == mr->rkey && import->lkey == mr->lkey, 1);
	SAME("length", import->length, REGION);
	SAME("address is not told", import->addr == NULL, 1);
	p.mem[1].mr = import;
	works(&p, "a region that the original registered");
	ibv_unimport_mr(import);
	p.mem[1].mr = mr;
	works(&p, "unimported, it is still there");
	if (!(import = ibv_import_mr(i.pd, mr->handle)))
		DIE("ibv_import_mr again");
	uint32_t handle = mr->handle;
	SAME("deregistered by the import", ibv_dereg_mr(import), 0);
	NULL_AND("gone for all", ibv_import_mr(i.pd, handle), ENOENT);
	SAME("gone for the original too", ibv_dereg_mr(mr), EINVAL);
	ibv_unimport_mr(mr);
	p.mem[1].mr = own;
	SAME("the domain is in use", ibv_dealloc_pd(i.pd), EBUSY);
	pair_free(&p);
	ibv_unimport_pd(i.pd);
	SAME("close", ibv_close_device(ctx), 0);
}

/* The import outlives what it came from. */
static void import_outlives(struct device *d)
{
	struct device first, second;
	open_device(&first, ibv_get_device_name(d->ctx->device), d->gid_index, (int)mtu_bytes(d->mtu));
	second = first;
	second.ctx = imported(&first);
	if (!(second.pd = ibv_import_pd(second.ctx, first.pd->handle)))
		DIE("ibv_import_pd");
	struct pair p = pair_new(&second, &PAIR_DEFAULTS);
	struct ibv_mr *mr = ibv_reg_mr(first.pd, p.mem[1].base, REGION, ALL_ACCESS), *own = p.mem[1].mr;
	struct ibv_mr *import = ibv_import_mr(second.pd, mr->handle);
	if (!import)
		DIE("ibv_import_mr");
	SAME("close the original", ibv_close_device(first.ctx), 0);
	p.mem[1].mr = import;
	works(&p, "after the original is closed");
	struct ibv_context *third = ibv_import_device(dup(second.ctx->cmd_fd));
	if (!third)
		DIE("importing an import");
	SAME("close", ibv_close_device(third), 0);
	SAME("deregister", ibv_dereg_mr(import), 0);
	p.mem[1].mr = own;
	pair_free(&p);
	SAME("domain", ibv_dealloc_pd(second.pd), 0);
	SAME("close", ibv_close_device(second.ctx), 0);
}

static void import_refusals(struct device *d)
{
	struct device stranger;
	int pipes[2];
	open_device(&stranger, ibv_get_device_name(d->ctx->device), d->gid_index, 0);
	NULL_AND("another opening of the device", ibv_import_pd(stranger.ctx, d->pd->handle), ENOENT);
	NULL_AND("no such handle", ibv_import_pd(d->ctx, 0x7fffffff), ENOENT);
	NULL_AND("a domain is no region", ibv_import_mr(d->pd, d->pd->handle), ENOENT);
	NULL_AND("no descriptor", ibv_import_device(-1), EINVAL);
	if (pipe(pipes))
		DIE("pipe");
	NULL_AND("a descriptor of something else", ibv_import_device(pipes[0]), EINVAL);
	SAME("which stays open", close(pipes[0]) | close(pipes[1]), 0);
	SAME("domain", ibv_dealloc_pd(stranger.pd), 0);
	SAME("close", ibv_close_device(stranger.ctx), 0);
}

static const char *self;

static int exit_status(pid_t child)
{
	int status = -1;
	if (child < 0 || waitpid(child, &status, 0) != child)
		DIE("a child");
	return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + status;
}

/* What another process makes of our descriptor: 0 imported it, else the errno. */
static int import_there(int fd)
{
	return ibv_import_device(fd) ? 0 : errno;
}

static void other_processes(struct device *d)
{
	int fd = dup(d->ctx->cmd_fd); /* without close-on-exec */
	char number[16];
	snprintf(number, sizeof number, "%d", fd);
	fflush(NULL);
	pid_t child = fork();
	if (child == 0)
		_exit(import_there(fd));
	SAME("a child", exit_status(child), EOPNOTSUPP);
	child = fork();
	if (child == 0) {
		execl(self, self, "-I", number, (char *)NULL);
		_exit(1);
	}
	SAME("another program", exit_status(child), EOPNOTSUPP);
	close(fd);
}

static const struct test_case CASES[] = {
	{ "refusals", refusals },
	{ "lifetimes", lifetimes },
	{ "interchangeable", interchangeable },
	{ "allocators", allocators },
	{ "allocators_that_refuse", allocators_that_refuse },
	{ "import_traffic", import_traffic },
	{ "import_outlives", import_outlives },
	{ "import_refusals", import_refusals },
	{ "other_processes", other_processes },
};

int main(int argc, char **argv)
{
	program = "domains";
	self = argv[0];
	if (argc == 3 && !strcmp(argv[1], "-I"))
		return import_there(atoi(argv[2]));
	return case_main(argc, argv, CASES, LEN(CASES));
}
