/* SPDX-License-Identifier: MIT OR Apache-2.0
 * Any bytes as a program of verbs: calls with odd arguments on objects made before. The body of the fuzz target
 * of this name; with -DREPLAY a program that runs the files that it is given (tests/abi/run.sh).
 *
 * It aborts when a call crashes, answers what no call may answer, or when objects or descriptors stay behind. Freed
 * handles and requests that point to lists which are not there are left out: rdma-core promises nothing for them. */
#include "calls.h"
#include <dirent.h>

uint8_t *arena;

static struct ibv_context *open_lo(void)
{
	int n = 0;
	struct ibv_device **list = ibv_get_device_list(&n);
	struct ibv_context *ctx = NULL;
	for (int i = 0; list && i < n && !ctx; i++)
		if (!strcmp(ibv_get_device_name(list[i]), "rb_lo"))
			ctx = ibv_open_device(list[i]);
	ibv_free_device_list(list);
	if (!ctx) {
		fprintf(stderr, "no device rb_lo: run it where loopback is up, with ROCEBUD_DAEMON naming the command\n");
		exit(2);
	}
	fcntl(ctx->async_fd, F_SETFL, fcntl(ctx->async_fd, F_GETFL) | O_NONBLOCK);
	return ctx;
}

static void prepare(void)
{
	uint8_t *low = mmap(NULL, ARENA + 2ul * HOLE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (low == MAP_FAILED || mprotect(low + HOLE, ARENA, PROT_READ | PROT_WRITE))
		BROKEN("no memory");
	arena = low + HOLE;
	/* Held: what the process has once for all its objects is there from now on. */
	struct ibv_context *ctx = open_lo();
	struct ibv_pd *pd = ibv_alloc_pd(ctx);
	struct ibv_cq *cq = ibv_create_cq(ctx, 1, NULL, NULL, 0);
	struct ibv_qp_init_attr a = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = { 1, 1, 1, 1, 0 } };
	if (!pd || !cq || !ibv_create_qp(pd, &a))
		BROKEN("no queue pair: %s", strerror(errno));
}

/* Its own descriptor is in both counts. */
static int descriptors(void)
{
	DIR *d = opendir("/proc/self/fd");
	int n = 0;
	while (d && readdir(d))
		n++;
	closedir(d);
	return n;
}

static void (*const CALLS[])(struct world *, struct input *) = { make_memory, make_queues, make_qp, connect_pair, post_recv, post_send,
	reap, post_ex, reap_ex, make_srq, make_ah, make_windows, modify_qp, change_queues, change_memory, ask, destroy };

void verbs_args(const uint8_t *data, size_t n)
{
	if (!arena)
		prepare();
	struct input in = { data, data + n };
	struct world w = { .ctx = open_lo() };
	int before = descriptors();
	if (ibv_query_gid(w.ctx, 1, 0, &w.gid))
		BROKEN("no GID");
	keep(&w, PD, ibv_alloc_pd(w.ctx), 0);
	keep(&w, PD, ibv_alloc_pd(w.ctx), 0);
	while (in.at < in.end)
		CALLS[below(&in, LEN(CALLS))](&w, &in);
	if (destroy_all(&w))
		BROKEN("objects stay behind");
	if (descriptors() != before)
		BROKEN("%d descriptors before, %d after", before, descriptors());
	if (ibv_close_device(w.ctx))
		BROKEN("the device does not close");
}

#ifdef REPLAY
int main(int argc, char **argv)
{
	static uint8_t bytes[1 << 16];
	for (int i = 1; i < argc; i++) {
		FILE *f = fopen(argv[i], "rb");
		if (!f)
			return perror(argv[i]), 2;
		size_t n = fread(bytes, 1, sizeof bytes, f);
		fclose(f);
		fprintf(stderr, "%s\n", argv[i]);
		alarm(20); /* a hang ends it too, and the last line names the file */
		verbs_args(bytes, n);
	}
	printf("%d programs of odd calls\n", argc - 1);
	return argc < 2;
}
#endif
