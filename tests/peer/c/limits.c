/* SPDX-License-Identifier: MIT OR Apache-2.0
 * What runs out: descriptors, and what query_device promises. A call that cannot be answered says so
 * with the errno that names the cause, leaves nothing behind, and works again when there is room.
 *
 *   limits [-d DEV] [-g GID] [-c CASES]     exit status 0 when every behaviour held */
#include "pair.h"
#include <dirent.h>
#include <sys/resource.h>
#include <sys/wait.h>

/* ---- descriptors ---- */

static const char *wanted_device;
static int wanted_gid = -1;

static int open_fds(void)
{
	int n = -1; /* the one that looks */
	DIR *d = opendir("/proc/self/fd");
	for (struct dirent *e; d && (e = readdir(d));)
		n += e->d_name[0] != '.';
	if (d)
		closedir(d);
	return n;
}

static void limit_fds(rlim_t n)
{
	struct rlimit r;
	getrlimit(RLIMIT_NOFILE, &r);
	r.rlim_cur = n < r.rlim_max ? n : r.rlim_max;
	if (setrlimit(RLIMIT_NOFILE, &r))
		DIE("setrlimit");
}

/* All that a program opens, in order; the first that fails is named, its errno kept. */
struct program_state {
	struct ibv_device **list;
	struct ibv_context *ctx;
	struct ibv_pd *pd;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
};

static const char *open_all(struct program_state *s)
{
	int n = 0;
	struct ibv_device *found = NULL;
	errno = 0;
	if (!s->list && !(s->list = ibv_get_device_list(&n)))
		return "ibv_get_device_list";
	for (int i = 0; s->list[i] && !found; i++)
		if (!wanted_device || !strcmp(ibv_get_device_name(s->list[i]), wanted_device))
			found = s->list[i];
	if (!found) { /* without a daemon there are none */
		ibv_free_device_list(s->list);
		s->list = NULL;
		return "finding the device";
	}
	if (!s->ctx && !(s->ctx = ibv_open_device(found)))
		return "ibv_open_device";
	if (!s->pd && !(s->pd = ibv_alloc_pd(s->ctx)))
		return "ibv_alloc_pd";
	if (!s->channel && !(s->channel = ibv_create_comp_channel(s->ctx)))
		return "ibv_create_comp_channel";
	if (!s->cq && !(s->cq = ibv_create_cq(s->ctx, 16, NULL, s->channel, 0)))
		return "ibv_create_cq";
	struct ibv_qp_init_attr a = { .send_cq = s->cq, .recv_cq = s->cq, .qp_type = IBV_QPT_RC, .sq_sig_all = 1,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 } };
	if (!s->qp && !(s->qp = ibv_create_qp(s->pd, &a)))
		return "ibv_create_qp";
	return NULL;
}

/* With `spare` descriptors left: fails in order, then works when the limit is raised. Exit status: 0 it
 * worked at once, 1 it failed well and worked afterwards, else wrong. */
static int starved(int spare)
{
	struct program_state s = { 0 };
	int before = open_fds();
	failures = 0;
	alarm(30);
	limit_fds((rlim_t)(before + spare));
	const char *at = NULL;
	for (int tries = 0; tries < 6; tries++) /* again: a failure may cost nothing */
		if (!(at = open_all(&s)))
			break;
	int refused = errno;
	limit_fds(1024);
	if (at && refused != EMFILE)
		FAIL("%d descriptors left: %s: errno %d (%s), EMFILE expected", spare, at, refused, strerror(refused));
	const char *then = open_all(&s);
	if (then) {
		FAIL("%d descriptors left, then plenty: %s: errno %d (%s)", spare, then, errno, strerror(errno));
		return 2;
	}
	/* it moves data, to itself */
	struct device d = { .ctx = s.ctx, .pd = s.pd, .mtu = IBV_MTU_1024 };
	struct ibv_port_attr port;
	struct qp_addr self = { s.qp->qp_num, 5, { { 0 } } };
	struct ibv_recv_wr r = { .wr_id = 1 }, *br;
	struct ibv_send_wr w = { .wr_id = 2, .opcode = IBV_WR_SEND }, *bw;
	struct ibv_wc wc;
	ibv_query_device(s.ctx, &d.attr);
	ibv_query_port(s.ctx, 1, &port);
	d.gid_index = wanted_gid >= 0 ? wanted_gid : default_gid(s.ctx, port.gid_tbl_len);
	ibv_query_gid(s.ctx, 1, d.gid_index, &d.gid);
	self.gid = d.gid;
	if (to_init(s.qp, &QP_DEFAULTS) || to_rtr(&d, s.qp, &self, &QP_DEFAULTS) || to_rts(&d, s.qp, 5, &QP_DEFAULTS) ||
	    ibv_post_recv(s.qp, &r, &br) || ibv_post_send(s.qp, &w, &bw))
		FAIL("%d descriptors left, then plenty: connecting", spare);
	for (int i = 0; i < 2; i++)
		if (wait_wc(s.cq, &wc, 5000) != 1 || wc.status)
			FAIL("%d descriptors left, then plenty: no completion", spare);
	if (ibv_destroy_qp(s.qp) || ibv_destroy_cq(s.cq) || ibv_destroy_comp_channel(s.channel) || ibv_dealloc_pd(s.pd) ||
	    ibv_close_device(s.ctx))
		FAIL("%d descriptors left, then plenty: leaving", spare);
	return failures ? 2 : at != NULL;
}

/* Hands on what a child says on standard error. Whether it named its limit, with the number. */
static int tells_of_the_limit(int fd)
{
	char text[4096];
	size_t n = 0;
	for (ssize_t got; n < sizeof text - 1 && (got = read(fd, text + n, sizeof text - 1 - n)) > 0;)
		n += (size_t)got;
	close(fd);
	text[n] = 0;
	fputs(text, stderr);
	const char *at = strstr(text, "limit of open files is ");
	return at && atoi(at + strlen("limit of open files is ")) > 0;
}

/* Each number of spare descriptors in a process of its own, from none to enough. */
static void every_shortage_of_descriptors_is_an_errno(void)
{
	int spare = 0, worked = 0, short_of = 0, told = 0;
	for (; spare < 64 && worked < 3; spare++) {
		int status, said[2];
		if (pipe(said))
			DIE("pipe");
		pid_t child = fork();
		if (child == 0) {
			dup2(said[1], 2);
			close(said[0]);
			close(said[1]);
			_exit(starved(spare));
		}
		close(said[1]);
		int line = tells_of_the_limit(said[0]);
		waitpid(child, &status, 0);
		short_of += WIFEXITED(status) && WEXITSTATUS(status) == 1;
		told += WIFEXITED(status) && WEXITSTATUS(status) == 1 && line;
		if (!WIFEXITED(status) || WEXITSTATUS(status) > 1)
			FAIL("%d descriptors left: %s %d", spare, WIFEXITED(status) ? "exit status" : "signal",
			     WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
		worked = WIFEXITED(status) && WEXITSTATUS(status) == 0 ? worked + 1 : 0;
	}
	printf("   %d descriptors are enough for a program with one of each\n", spare - 3);
	printf("   %d programs were short of them, %d told\n", short_of, told);
	if (!worked)
		FAIL("%d descriptors are not enough", spare);
}

/* ---- rights ---- */

/* This program may open a packet socket here: it has CAP_NET_RAW. */
static int may_carry_raw(void)
{
	int fd = socket(AF_PACKET, SOCK_RAW, 0);
	return fd >= 0 && close(fd) == 0;
}

#define SHORT(call)                                                                               \
	do {                                                                                      \
		errno = 0;                                                                        \
		if (call)                                                                         \
			FAIL("%s: refused with errno %d (%s), EMFILE expected", #call, errno, strerror(errno)); \
	} while (0)

/* Fails otherwise than by EMFILE. */
static int not_short(int e) { return (errno = e) != EMFILE; }
static int not_null(void *p) { return p || errno != EMFILE; }

static uint32_t raw_caps(struct ibv_context *ctx)
{
	struct ibv_device_attr_ex x = { 0 };
	if (ibv_query_device_ex(ctx, NULL, &x))
		FAIL("ibv_query_device_ex");
	return x.raw_packet_caps;
}

/* Who has the right and no descriptor left is told of the descriptors: it is the limit of open files that is to be raised. */
static void shortage_is_no_want_of_right(struct device *d)
{
	struct ibv_cq *cq = ibv_create_cq(d->ctx, 16, NULL, NULL, 0);
	struct ibv_qp_init_attr ud = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_UD,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 } };
	struct ibv_qp_init_attr raw = ud;
	struct ibv_qp *qp = ibv_create_qp(d->pd, &ud);
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 0x80010000 };
	const int init = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY;
	struct ibv_counters_init_attr counting = { 0 };
	struct ibv_wq_init_attr receiving = { .wq_type = IBV_WQT_RQ, .max_wr = 4, .max_sge = 1, .pd = d->pd, .cq = cq };
	struct ibv_flow_attr rule = { .type = IBV_FLOW_ATTR_NORMAL, .size = sizeof rule, .port = 1 };
	struct ibv_context *other = ibv_open_device(d->ctx->device); /* not asked for its capabilities yet */
	raw.qp_type = IBV_QPT_RAW_PACKET;
	if (!cq || !qp || !other)
		DIE("objects");
	if (!may_carry_raw()) {
		printf("   without CAP_NET_RAW there is nothing to tell apart\n");
		return;
	}
	int n = 0, taken[1024];
	limit_fds(256);
	while (n < 1024 && (taken[n] = dup(0)) >= 0)
		n++;
	SHORT(not_short(ibv_modify_qp(qp, &a, init)));
	SHORT(not_null(ibv_create_qp(d->pd, &raw)));
	SHORT(not_null(ibv_create_flow(qp, &rule)));
	SHORT(not_null(ibv_create_counters(d->ctx, &counting)));
	SHORT(not_null(ibv_create_wq(d->ctx, &receiving)));
	raw_caps(other);
	while (n)
		close(taken[--n]);
	if (!raw_caps(other))
		FAIL("a device that was asked for its capabilities while descriptors were short shows none for ever");
	if (ibv_modify_qp(qp, &a, init))
		FAIL("a controlled Q_Key is refused when there are descriptors again: errno %d", errno);
	if (ibv_destroy_qp(qp) || ibv_destroy_cq(cq) || ibv_close_device(other))
		FAIL("leaving");
}

/* ---- what query_device promises ---- */

static void *destroyed(int error) { return (errno = error) ? NULL : &failures; }

/* Makes until it is refused: that must be after `most`, with ENOMEM; then one goes and one more fits. */
static void until_refused(const char *what, int most, void **made, void *(*make)(struct device *),
			  int (*unmake)(void *), struct device *d)
{
	int n = 0;
	uint64_t start = now_ns();
	while (n <= most && (made[n] = make(d)))
		n++;
	int refused = errno;
	if (n != most)
		FAIL("%s: %d made, %d promised (errno %d)", what, n, most, refused);
	else if (refused != ENOMEM)
		FAIL("%s number %d: errno %d, ENOMEM expected", what, n + 1, refused);
	if (n && (!destroyed(unmake(made[--n])) || !(made[n] = make(d))))
		FAIL("%s: none fits after one went: errno %d", what, errno);
	else
		n++;
	while (n)
		if (unmake(made[--n]))
			FAIL("%s number %d cannot be destroyed", what, n);
	printf("   %s: %d, %.1f s\n", what, most, (double)(now_ns() - start) / 1e9);
}

static char byte[64];
static void *make_cq(struct device *d) { return ibv_create_cq(d->ctx, 1, NULL, NULL, 0); }
static void *make_mr(struct device *d) { return ibv_reg_mr(d->pd, byte, sizeof byte, IBV_ACCESS_LOCAL_WRITE); }
static void *make_srq(struct device *d)
{
	struct ibv_srq_init_attr a = { .attr = { .max_wr = 1, .max_sge = 1 } };
	return ibv_create_srq(d->pd, &a);
}
static int unmake_cq(void *p) { return ibv_destroy_cq(p); }
static int unmake_mr(void *p) { return ibv_dereg_mr(p); }
static int unmake_srq(void *p) { return ibv_destroy_srq(p); }

static void promised_numbers_are_given_and_no_more(struct device *d)
{
	void **made = calloc((size_t)d->attr.max_mr + 1, sizeof *made);
	until_refused("completion queues", d->attr.max_cq, made, make_cq, unmake_cq, d);
	until_refused("shared receive queues", d->attr.max_srq, made, make_srq, unmake_srq, d);
	until_refused("regions", d->attr.max_mr, made, make_mr, unmake_mr, d);
	free(made);
}

/* The children of this one must not have a parent that uses verbs already. */
int main(int argc, char **argv)
{
	static const struct test_case all[] = {
		{ "promised_numbers_are_given_and_no_more", promised_numbers_are_given_and_no_more },
		{ "shortage_is_no_want_of_right", shortage_is_no_want_of_right },
	};
	static const char *shortage = "every_shortage_of_descriptors_is_an_errno";
	program = "limits";
	int opt, alone = 0, skip = 0;
	opterr = 0;
	while ((opt = getopt(argc, argv, "d:g:c:")) != -1)
		switch (opt) {
		case 'd': wanted_device = optarg; break;
		case 'g': wanted_gid = atoi(optarg); break;
		case 'c':
			skip = !strstr(optarg, shortage);
			alone = !strstr(optarg, all[0].name) && !strstr(optarg, all[1].name);
			break;
		}
	optind = 1;
	if (!skip) {
		every_shortage_of_descriptors_is_an_errno();
		printf("%s %s\n", failures ? "FAILED" : "ok", shortage);
		if (alone || failures)
			return failures != 0;
	}
	return case_main(argc, argv, all, sizeof all / sizeof *all);
}
