/* SPDX-License-Identifier: MIT OR Apache-2.0
 * longest: messages of exactly max_msg_sz between two queue pairs of one process, every byte compared; one
 * byte more, and lists of segments whose sum does not fit 32 bits, are refused.
 * longest [-d DEV] [-g GID] OPERATION...
 * OPERATION: send write read (one segment), send2 write2 read2 (two of half the length, on both sides),
 * refused. Needs max_msg_sz bytes of memory: what is sent is a small file mapped over and over.
 * Build: cc -O2 -pthread -o longest longest.c -libverbs */
#define _GNU_SOURCE
#include "common.h"

#define GIB (1ull << 30)
/* Not a power of two, so that a byte that lands a power of two off is seen. */
#define CHUNK (48ull * 1024 * 1024 + 4096)
#define SECONDS_MAX 120

struct rig {
	struct device d;
	struct ibv_cq *cq;
	struct ibv_qp *qp[2];
	struct ibv_mr *from, *to;
	uint8_t *source, *target;
	uint64_t length;
};

/* `length` bytes of address space, all of it one file of CHUNK bytes, again and again. */
static uint8_t *pattern(uint64_t length)
{
	int fd = memfd_create("longest", MFD_CLOEXEC);
	if (fd < 0 || ftruncate(fd, CHUNK))
		DIE("memfd");
	uint64_t whole = (length + CHUNK - 1) / CHUNK * CHUNK;
	uint8_t *at = mmap(NULL, whole, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (at == MAP_FAILED)
		DIE("mmap of %llu bytes", (unsigned long long)whole);
	for (uint64_t i = 0; i < whole; i += CHUNK)
		if (mmap(at + i, CHUNK, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED)
			DIE("mmap of the pattern");
	close(fd);
	uint64_t *word = (uint64_t *)at;
	for (uint64_t i = 0; i < CHUNK / 8; i++)
		word[i] = mix(i);
	return at;
}

static void set_up(struct rig *r, const char *device, int gid)
{
	open_device(&r->d, device, gid, 0);
	r->length = r->d.port.max_msg_sz;
	r->source = pattern(r->length);
	r->target = mmap(NULL, r->length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (r->target == MAP_FAILED)
		DIE("mmap of the target");
	r->from = ibv_reg_mr(r->d.pd, r->source, r->length, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
	r->to = ibv_reg_mr(r->d.pd, r->target, r->length, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	r->cq = ibv_create_cq(r->d.ctx, 16, NULL, NULL, 0);
	if (!r->from || !r->to || !r->cq)
		DIE("registering %llu bytes", (unsigned long long)r->length);
	struct qp_addr end[2];
	for (int i = 0; i < 2; i++) {
		struct ibv_qp_init_attr a = { .send_cq = r->cq, .recv_cq = r->cq, .qp_type = IBV_QPT_RC,
					      .cap = { 4, 4, 6, 6, 0 } };
		if (!(r->qp[i] = ibv_create_qp(r->d.pd, &a)))
			DIE("ibv_create_qp with six segments");
		end[i] = (struct qp_addr){ r->qp[i]->qp_num, 0x700 + (uint32_t)i, r->d.gid };
	}
	for (int i = 0; i < 2; i++)
		if ((errno = to_init(r->qp[i], &QP_DEFAULTS)) || (errno = to_rtr(&r->d, r->qp[i], &end[!i], &QP_DEFAULTS)) ||
		    (errno = to_rts(&r->d, r->qp[i], end[i].psn, &QP_DEFAULTS)))
			DIE("ibv_modify_qp");
}

/* Segments one behind the other; `count` of them, the first `parts` of `each` bytes. */
static int segments(struct ibv_sge *s, struct ibv_mr *mr, uint64_t length, int parts)
{
	uint64_t at = (uintptr_t)mr->addr, each = length / (uint64_t)parts;
	for (int i = 0; i < parts; i++, at += each)
		s[i] = (struct ibv_sge){ at, (uint32_t)each, mr->lkey };
	return parts;
}

static int completion(struct rig *r, const char *what, enum ibv_wc_status wanted)
{
	struct ibv_wc wc;
	if (wait_wc(r->cq, &wc, SECONDS_MAX * 1000) != 1) {
		FAIL("%s: no completion in %d s", what, SECONDS_MAX);
		return 0;
	}
	if (wc.status != wanted)
		FAIL("%s: %s", what, ibv_wc_status_str(wc.status));
	return wc.status == wanted;
}

static void post(struct rig *r, const char *what, enum ibv_wr_opcode opcode, int parts)
{
	struct ibv_sge local[6], theirs[6];
	struct ibv_send_wr wr = { .opcode = opcode, .send_flags = IBV_SEND_SIGNALED, .sg_list = local }, *bad;
	struct ibv_mr *mine = opcode == IBV_WR_RDMA_READ ? r->to : r->from;
	struct ibv_mr *other = opcode == IBV_WR_RDMA_READ ? r->from : r->to;
	wr.num_sge = segments(local, mine, r->length, parts);
	wr.wr.rdma.remote_addr = (uintptr_t)other->addr;
	wr.wr.rdma.rkey = other->rkey;
	if (opcode == IBV_WR_SEND) {
		struct ibv_recv_wr rw = { .sg_list = theirs, .num_sge = segments(theirs, r->to, r->length, parts) }, *br;
		if ((errno = ibv_post_recv(r->qp[1], &rw, &br)))
			DIE("%s: ibv_post_recv", what);
	}
	int e = ibv_post_send(r->qp[0], &wr, &bad);
	if (e)
		FAIL("%s: ibv_post_send gives %d", what, e);
}

static void run(struct rig *r, const char *what, enum ibv_wr_opcode opcode, int parts)
{
	uint64_t start = now_ns();
	if (madvise(r->target, r->length, MADV_DONTNEED)) /* zeroes again */
		DIE("madvise");
	post(r, what, opcode, parts);
	for (int i = 0; i < (opcode == IBV_WR_SEND ? 2 : 1) && !failures; i++)
		completion(r, what, IBV_WC_SUCCESS);
	double took = (double)(now_ns() - start) / 1e9;
	if (!failures && memcmp(r->source, r->target, r->length))
		FAIL("%s: other bytes arrived than were sent", what);
	printf("%s: %llu bytes in %.1f s\n", what, (unsigned long long)r->length, took);
}

/* Refused when posted, or by a completion; nothing else may happen. */
static void refuse(struct rig *r, enum ibv_wr_opcode opcode, struct ibv_sge *s, int count)
{
	struct ibv_send_wr wr = { .opcode = opcode, .send_flags = IBV_SEND_SIGNALED, .sg_list = s, .num_sge = count }, *bad;
	uint64_t sum = 0;
	char what[64];
	for (int i = 0; i < count; i++)
		sum += s[i].length;
	snprintf(what, sizeof what, "opcode %d of %llu bytes", (int)opcode, (unsigned long long)sum);
	wr.wr.rdma.remote_addr = (uintptr_t)r->target;
	wr.wr.rdma.rkey = r->to->rkey;
	int e = ibv_post_send(r->qp[0], &wr, &bad);
	if (e && e != EINVAL)
		FAIL("%s: ibv_post_send gives %d, not EINVAL", what, e);
	if (!e && completion(r, what, IBV_WC_LOC_LEN_ERR))
		DIE("%s: refused by a completion: the queue pair is gone, no more can be tried", what);
}

static void refused(struct rig *r)
{
	static const enum ibv_wr_opcode opcodes[] = { IBV_WR_SEND, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ };
	uint64_t half = r->length / 2;
	for (int i = 0; i < 3; i++) {
		struct ibv_mr *mr = opcodes[i] == IBV_WR_RDMA_READ ? r->to : r->from;
		struct ibv_sge s[6];
		segments(s, mr, r->length, 2); /* the last byte twice: one more than fits */
		s[1].addr--;
		s[1].length++;
		refuse(r, opcodes[i], s, 2);
		/* sums of 2^32 + 16, which 32 bits take for 16, and of 5 GiB + 16 */
		for (int n = 4; n <= 5; n++) {
			for (int j = 0; j < n; j++)
				s[j] = (struct ibv_sge){ (uintptr_t)mr->addr, (uint32_t)(half < GIB ? half : GIB), mr->lkey };
			s[n] = (struct ibv_sge){ (uintptr_t)mr->addr, 16, mr->lkey };
			refuse(r, opcodes[i], s, n + 1);
		}
	}
	/* a receive may well be longer than any message: 4 GiB are not 0 */
	struct ibv_sge big[4], small = { (uintptr_t)r->source, 64, r->from->lkey };
	for (int j = 0; j < 4; j++)
		big[j] = (struct ibv_sge){ (uintptr_t)r->target, (uint32_t)GIB, r->to->lkey };
	struct ibv_recv_wr rw = { .sg_list = big, .num_sge = 4 }, *br;
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED, .sg_list = &small, .num_sge = 1 }, *bs;
	if ((errno = ibv_post_recv(r->qp[1], &rw, &br)) || (errno = ibv_post_send(r->qp[0], &wr, &bs)))
		DIE("posting 64 bytes into 4 GiB");
	completion(r, "64 bytes into 4 GiB", IBV_WC_SUCCESS);
	completion(r, "64 bytes into 4 GiB", IBV_WC_SUCCESS);
	printf("refused: as it should be\n");
}

int main(int argc, char **argv)
{
	static const struct { const char *name; enum ibv_wr_opcode opcode; } known[] = {
		{ "send", IBV_WR_SEND }, { "write", IBV_WR_RDMA_WRITE }, { "read", IBV_WR_RDMA_READ } };
	const char *device = NULL;
	int gid = -1, c;
	static struct rig r;

	program = "longest";
	while ((c = getopt(argc, argv, "d:g:")) != -1)
		if (c == 'd')
			device = optarg;
		else if (c == 'g')
			gid = atoi(optarg);
		else
			return 2;
	set_up(&r, device, gid);
	printf("max_msg_sz %llu\n", (unsigned long long)r.length);
	for (; optind < argc && !failures; optind++) {
		const char *what = argv[optind];
		if (!strcmp(what, "refused"))
			refused(&r);
		for (int i = 0; i < 3; i++)
			if (!strncmp(what, known[i].name, strlen(known[i].name)))
				run(&r, what, known[i].opcode, what[strlen(known[i].name)] == '2' ? 2 : 1);
		fflush(stdout);
	}
	printf(failures ? "longest: %d failures\n" : "longest ok\n", failures);
	return failures != 0;
}
