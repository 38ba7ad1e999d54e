/* SPDX-License-Identifier: MIT OR Apache-2.0
 * The scenarios: lines "COMMAND key=value ..." in, one line out: "ok key=value ..." or "error WHY".
 *
 *   open dev= addr=                the device (any, without dev), and the GID that is this address; ok index= dev=
 *   start type= mtu= psn= count= size= seed= timeout= retry= rnr= srq= cm= wait=
 *                                  memory and (unless cm=1) a queue pair in INIT; ok qpn= addr= key= key_ro= gid=
 *   connect qpn= psn= gid=         to RTS
 *   cm-listen addr= port= | cm-accept | cm-connect from= addr= port=
 *   remote addr= key= key_ro= qpn= where the other side's memory is
 *   respond op= late=              memory as the responder has it before; receives, unless late=1
 *   receives op=                   the receives that were late
 *   request op=                    posts all, waits for their completions, compares this side's memory
 *   verify op= lossy=              waits for the receives, compares the responder's memory
 *   finish                         everything destroyed
 */
#include "verbs.h"

#include "agent.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static const char *const NAMES[OPS] = { "send", "send_imm", "write", "write_imm", "read", "cas", "fadd", "bad_rkey_write",
	"bad_rkey_read", "read_only_write", "beyond_read", "long_send" };

int fault(struct scenario *s, const char *format, ...)
{
	va_list ap;
	va_start(ap, format);
	vsnprintf(s->why, sizeof s->why, format, ap);
	va_end(ap);
	return 0;
}

static uint64_t now_ms(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

/* ---- words of a line ---- */

/* The value of `key` in `line`, copied to `out`; 0 when it is not there. */
static int word(const char *line, const char *key, char *out, size_t room)
{
	size_t n = strlen(key);
	for (const char *p = line; (p = strstr(p, key)); p += n) {
		if (p == line || p[-1] != ' ' || p[n] != '=')
			continue;
		size_t len = strcspn(p + n + 1, " ");
		if (len >= room)
			return 0;
		memcpy(out, p + n + 1, len);
		out[len] = 0;
		return 1;
	}
	return 0;
}

static uint64_t number(const char *line, const char *key, uint64_t otherwise)
{
	char text[64];
	return word(line, key, text, sizeof text) ? strtoull(text, NULL, 0) : otherwise;
}

static int op_of(const char *line)
{
	char text[32];
	if (!word(line, "op", text, sizeof text))
		return OPS;
	int op = 0;
	while (op < OPS && strcmp(text, NAMES[op]))
		op++;
	return op;
}

static void gid_text(const union ibv_gid *g, char *out)
{
	for (int i = 0; i < 16; i++)
		sprintf(out + 2 * i, "%02x", g->raw[i]);
}

static int gid_parse(const char *text, union ibv_gid *g)
{
	for (int i = 0; i < 16; i++) {
		unsigned byte;
		if (sscanf(text + 2 * i, "%2x", &byte) != 1)
			return 0;
		g->raw[i] = (uint8_t)byte;
	}
	return 1;
}

/* ---- device and objects ---- */

static int find_gid(struct scenario *s, const char *addr)
{
	union ibv_gid want = { .raw = { 0 } }, g;
	struct in_addr v4;
	if (inet_pton(AF_INET, addr, &v4) == 1) {
		want.raw[10] = want.raw[11] = 0xff;
		memcpy(want.raw + 12, &v4, 4);
	} else if (inet_pton(AF_INET6, addr, want.raw) != 1) {
		return fault(s, "%s is no address", addr);
	}
	struct ibv_port_attr port;
	if (ibv_query_port(s->ctx, 1, &port))
		return fault(s, "ibv_query_port: %s", strerror(errno));
	for (int i = 0; i < port.gid_tbl_len; i++)
		if (!ibv_query_gid(s->ctx, 1, i, &g) && !memcmp(&g, &want, sizeof g)) {
			s->gid = g;
			s->gid_index = i;
			return 1;
		}
	return fault(s, "device %s has no GID for the address %s: ibv_devinfo -v shows those that it has",
		     ibv_get_device_name(s->ctx->device), addr);
}

/* The device of this name; without a name the first that has the address. */
static int open_device(struct scenario *s, const char *dev, const char *addr)
{
	int n = 0, right = 0;
	struct ibv_device **list = ibv_get_device_list(&n);
	if (s->ctx && s->own_ctx)
		ibv_close_device(s->ctx);
	s->ctx = NULL;
	if (n == 0)
		fault(s, "no RDMA device here at all: ibv_devices shows none");
	else
		fault(s, "no RDMA device is called %s: ibv_devices shows those that are (%d)", dev, n);
	for (int i = 0; list && i < n && !right; i++) {
		if (*dev && strcmp(ibv_get_device_name(list[i]), dev))
			continue;
		if (!(s->ctx = ibv_open_device(list[i]))) {
			fault(s, "device %s cannot be opened: %s", ibv_get_device_name(list[i]), strerror(errno));
			continue;
		}
		right = find_gid(s, addr);
		if (!right) {
			ibv_close_device(s->ctx);
			s->ctx = NULL;
		}
	}
	if (!right && !*dev && n > 0)
		fault(s, "none of the RDMA devices here (%d) has a GID for the address %s: ibv_devinfo -v shows those that they have", n, addr);
	if (list)
		ibv_free_device_list(list);
	s->own_ctx = right;
	return right;
}

struct ibv_qp_init_attr qp_attr(const struct scenario *s)
{
	return (struct ibv_qp_init_attr){ .send_cq = s->cq, .recv_cq = s->cq, .srq = s->rq, .qp_type = s->type, .sq_sig_all = 1,
		.cap = { s->count + 1, s->rq ? 0 : s->count + 1, 1, s->rq ? 0 : 1, 0 } };
}

int make_resources(struct scenario *s)
{
	struct ibv_device_attr dev;
	if (ibv_query_device(s->ctx, &dev))
		return fault(s, "ibv_query_device: %s", strerror(errno));
	s->rd_atomic = (uint32_t)(dev.max_qp_rd_atom < 8 ? dev.max_qp_rd_atom : 8);
	s->stride = (SLOT_HEAD + s->size + SLOT_TAIL + 63) / 64 * 64;
	size_t bytes = (size_t)s->stride * s->count;
	int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
	s->arena = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	s->expect = malloc(bytes);
	if (s->arena == MAP_FAILED || !s->expect)
		return fault(s, "memory: %s", strerror(errno));
	if (!(s->pd = ibv_alloc_pd(s->ctx)))
		return fault(s, "ibv_alloc_pd: %s", strerror(errno));
	if (!(s->mr = ibv_reg_mr(s->pd, s->arena, bytes, access)) ||
	    !(s->read_only = ibv_reg_mr(s->pd, s->arena, bytes, IBV_ACCESS_REMOTE_READ)))
		return fault(s, "ibv_reg_mr of %zu bytes: %s", bytes, strerror(errno));
	if (!(s->cq = ibv_create_cq(s->ctx, 2 * (int)s->count + 8, NULL, NULL, 0)))
		return fault(s, "ibv_create_cq: %s", strerror(errno));
	struct ibv_srq_init_attr srq = { .attr = { .max_wr = s->count + 1, .max_sge = 1 } };
	if (s->srq && !(s->rq = ibv_create_srq(s->pd, &srq)))
		return fault(s, "ibv_create_srq: %s", strerror(errno));
	return 1;
}

static int to_init(struct scenario *s)
{
	struct ibv_qp_init_attr a = qp_attr(s);
	if (!(s->qp = ibv_create_qp(s->pd, &a)))
		return fault(s, "ibv_create_qp: %s", strerror(errno));
	struct ibv_qp_attr q = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY };
	q.qp_access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
	if (s->type == IBV_QPT_RC)
		q.qp_access_flags |= IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
	int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | (s->type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS);
	int e = ibv_modify_qp(s->qp, &q, mask);
	return e ? fault(s, "modify to INIT: %s", strerror(e)) : 1;
}

static int start(struct scenario *s, const char *line)
{
	char type[8] = "rc";
	word(line, "type", type, sizeof type);
	s->type = type[0] == 'r' ? IBV_QPT_RC : type[1] == 'c' ? IBV_QPT_UC : IBV_QPT_UD;
	uint32_t mtu = (uint32_t)number(line, "mtu", 1024);
	s->mtu = mtu >= 4096 ? IBV_MTU_4096 : mtu >= 2048 ? IBV_MTU_2048 : mtu >= 1024 ? IBV_MTU_1024 : mtu >= 512 ? IBV_MTU_512 : IBV_MTU_256;
	s->psn = (uint32_t)number(line, "psn", 0xfffffc) & 0xffffff;
	s->count = (uint32_t)number(line, "count", 4);
	s->size = (uint32_t)number(line, "size", 64);
	s->seed = number(line, "seed", 1);
	s->timeout = (uint32_t)number(line, "timeout", 18);
	s->retry = (uint32_t)number(line, "retry", 7);
	s->rnr = (uint32_t)number(line, "rnr", 7);
	s->srq = (int)number(line, "srq", 0);
	s->cm = (int)number(line, "cm", 0);
	s->wait_s = (uint32_t)number(line, "wait", 20);
	if (s->count < 1 || s->count > 1024 || s->size > 64u << 20)
		return fault(s, "count 1..1024, size at most 64 MiB");
	return s->cm || (make_resources(s) && to_init(s));
}

static struct ibv_ah_attr path_to(const struct scenario *s, const union ibv_gid *to)
{
	return (struct ibv_ah_attr){ .is_global = 1, .port_num = 1,
		.grh = { .dgid = *to, .sgid_index = (uint8_t)s->gid_index, .hop_limit = 64 } };
}

static int connect_qp(struct scenario *s, const char *line)
{
	char text[40];
	union ibv_gid gid;
	if (!word(line, "gid", text, sizeof text) || !gid_parse(text, &gid))
		return fault(s, "connect wants a gid");
	uint32_t qpn = (uint32_t)number(line, "qpn", 0);
	struct ibv_qp_attr q = { .qp_state = IBV_QPS_RTR, .path_mtu = s->mtu, .dest_qp_num = qpn,
		.rq_psn = (uint32_t)number(line, "psn", 0), .max_dest_rd_atomic = (uint8_t)s->rd_atomic, .min_rnr_timer = 14,
		.ah_attr = path_to(s, &gid) };
	int mask = IBV_QP_STATE;
	if (s->type != IBV_QPT_UD)
		mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
	if (s->type == IBV_QPT_RC)
		mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	int e = ibv_modify_qp(s->qp, &q, mask);
	if (e)
		return fault(s, "modify to RTR: %s", strerror(e));
	q = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .sq_psn = s->psn, .timeout = (uint8_t)s->timeout,
		.retry_cnt = (uint8_t)s->retry, .rnr_retry = (uint8_t)s->rnr, .max_rd_atomic = (uint8_t)s->rd_atomic };
	mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
	if (s->type == IBV_QPT_RC)
		mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
	if ((e = ibv_modify_qp(s->qp, &q, mask)))
		return fault(s, "modify to RTS: %s", strerror(e));
	struct ibv_ah_attr to = path_to(s, &gid);
	if (s->type == IBV_QPT_UD && !(s->ah = ibv_create_ah(s->pd, &to)))
		return fault(s, "ibv_create_ah: %s", strerror(errno));
	return 1;
}

static void finish(struct scenario *s)
{
	if (s->ah)
		ibv_destroy_ah(s->ah);
	if (s->cm)
		cm_close(s);
	else if (s->qp)
		ibv_destroy_qp(s->qp);
	if (s->rq)
		ibv_destroy_srq(s->rq);
	if (s->cq)
		ibv_destroy_cq(s->cq);
	if (s->mr)
		ibv_dereg_mr(s->mr);
	if (s->read_only)
		ibv_dereg_mr(s->read_only);
	if (s->pd)
		ibv_dealloc_pd(s->pd);
	if (s->arena && s->arena != MAP_FAILED)
		munmap(s->arena, (size_t)s->stride * s->count);
	free(s->expect);
	if (s->events)
		rdma_destroy_event_channel(s->events);
	struct scenario fresh = { .out = s->out, .ctx = s->cm ? NULL : s->ctx, .own_ctx = s->own_ctx && !s->cm, .gid = s->gid,
		.gid_index = s->gid_index };
	*s = fresh;
}

/* ---- what memory holds ---- */

static uint8_t *slot(uint8_t *base, const struct scenario *s, uint32_t i) { return base + (size_t)i * s->stride + SLOT_HEAD; }

/* Every byte of every message is its own. */
static void paint(const struct scenario *s, uint8_t *at, uint32_t i, uint32_t len)
{
	uint64_t k = s->seed * 0x9e3779b97f4a7c15u + (uint64_t)i * 0xbf58476d1ce4e5b9u;
	for (uint32_t j = 0; j < len; j++)
		at[j] = (uint8_t)((k >> (8 * (j & 7))) + j * 7 + (j >> 8) * 13);
}

static uint64_t first_value(const struct scenario *s, uint32_t i) { return s->seed * 1000003u + i; }
/* Every second compare-and-swap misses. */
static uint64_t compare_value(const struct scenario *s, uint32_t i) { return first_value(s, i) + (i & 1); }
static uint64_t operand(const struct scenario *s, uint32_t i) { return 0x100000001u * (i + 1) + s->seed; }

static uint64_t last_value(const struct scenario *s, int op, uint32_t i)
{
	if (op == FADD)
		return first_value(s, i) + operand(s, i);
	return i & 1 ? first_value(s, i) : operand(s, i);
}

static int is_atomic(int op) { return op == CAS || op == FADD; }
static int sends(int op) { return op <= WRITE_IMM || op == BAD_RKEY_WRITE || op == READ_ONLY_WRITE || op == LONG_SEND; }
static int takes_receive(int op) { return op == SEND || op == SEND_IMM || op == WRITE_IMM || op == LONG_SEND; }
static int has_imm(int op) { return op == SEND_IMM || op == WRITE_IMM; }
static uint32_t imm(const struct scenario *s, uint32_t i) { return 0x10000u * (uint32_t)s->seed + i; }

/* Fills this side's memory for its part, before and (in `expect`) after. */
static void prepare(struct scenario *s, int op, int requester)
{
	size_t bytes = (size_t)s->stride * s->count;
	memset(s->arena, CANARY, bytes);
	for (uint32_t i = 0; i < s->count; i++) {
		uint8_t *at = slot(s->arena, s, i);
		uint64_t value = first_value(s, i);
		if (is_atomic(op) && !requester)
			memcpy(at, &value, 8);
		else if (requester ? sends(op) : op == READ)
			paint(s, at, i, s->size);
	}
	memcpy(s->expect, s->arena, bytes);
	for (uint32_t i = 0; i < s->count; i++) {
		uint8_t *at = slot(s->expect, s, i);
		uint64_t value = requester ? first_value(s, i) : last_value(s, op, i);
		if (is_atomic(op))
			memcpy(at, &value, 8);
		else if (requester ? op == READ : op <= WRITE_IMM)
			paint(s, at, i, s->size);
	}
}

static int compare(struct scenario *s, const char *whose)
{
	size_t bytes = (size_t)s->stride * s->count, at = 0;
	while (at < bytes && s->arena[at] == s->expect[at])
		at++;
	if (at == bytes)
		return 1;
	long off = (long)(at % s->stride) - SLOT_HEAD;
	return fault(s, "%s memory: message %zu, byte %ld of %u is 0x%02x, expected 0x%02x", whose, at / s->stride, off, s->size,
		     s->arena[at], s->expect[at]);
}

/* ---- posting and completions ---- */

#define RECEIVE_ID 0x100000u

static int post_receives(struct scenario *s, int op)
{
	for (uint32_t i = 0; takes_receive(op) && i < s->count; i++) {
		uint32_t grh = s->type == IBV_QPT_UD ? GRH_BYTES : 0, size = op == LONG_SEND ? s->size / 2 : s->size;
		struct ibv_sge sge = { (uintptr_t)slot(s->arena, s, i) - grh, size + grh, s->mr->lkey };
		struct ibv_recv_wr wr = { .wr_id = RECEIVE_ID + i, .sg_list = &sge, .num_sge = sge.length && op != WRITE_IMM }, *bad;
		int e = s->rq ? ibv_post_srq_recv(s->rq, &wr, &bad) : ibv_post_recv(s->qp, &wr, &bad);
		if (e)
			return fault(s, "post of receive %u: %s", i, strerror(e));
	}
	return 1;
}

static const enum ibv_wr_opcode WR_OPCODE[OPS] = { IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM,
	IBV_WR_RDMA_READ, IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE,
	IBV_WR_RDMA_READ, IBV_WR_SEND };
static const enum ibv_wc_opcode WC_OPCODE[OPS] = { IBV_WC_SEND, IBV_WC_SEND, IBV_WC_RDMA_WRITE, IBV_WC_RDMA_WRITE, IBV_WC_RDMA_READ,
	IBV_WC_COMP_SWAP, IBV_WC_FETCH_ADD };

static int post_request(struct scenario *s, int op, uint32_t i)
{
	struct ibv_sge sge = { (uintptr_t)slot(s->arena, s, i), s->size, s->mr->lkey };
	struct ibv_send_wr wr = { .wr_id = i, .sg_list = &sge, .num_sge = s->size != 0, .opcode = WR_OPCODE[op] }, *bad;
	uint64_t to = s->remote_addr + (uint64_t)i * s->stride + SLOT_HEAD;
	uint32_t key = op == READ_ONLY_WRITE ? s->remote_key_ro : op == BAD_RKEY_WRITE || op == BAD_RKEY_READ ? s->remote_key ^ 0x5a5a00 : s->remote_key;
	if (op == BEYOND_READ)
		to = s->remote_addr + (uint64_t)s->count * s->stride - s->size / 2;
	if (has_imm(op))
		wr.imm_data = htonl(imm(s, i));
	if (s->type == IBV_QPT_UD) {
		wr.wr.ud.ah = s->ah;
		wr.wr.ud.remote_qpn = s->remote_qpn;
		wr.wr.ud.remote_qkey = QKEY;
	} else if (is_atomic(op)) {
		wr.wr.atomic.remote_addr = to;
		wr.wr.atomic.rkey = key;
		wr.wr.atomic.compare_add = op == CAS ? compare_value(s, i) : operand(s, i);
		wr.wr.atomic.swap = operand(s, i);
	} else {
		wr.wr.rdma.remote_addr = to;
		wr.wr.rdma.rkey = key;
	}
	int e = ibv_post_send(s->qp, &wr, &bad);
	return e ? fault(s, "ibv_post_send of message %u: %s", i, strerror(e)) : 1;
}

static int poll_one(struct scenario *s, struct ibv_wc *wc, uint64_t end)
{
	for (unsigned idle = 0;; idle++) {
		int n = ibv_poll_cq(s->cq, 1, wc);
		if (n)
			return n > 0 ? 1 : fault(s, "ibv_poll_cq failed");
		if (now_ms() > end)
			return fault(s, "nothing");
		if (idle > 200)
			usleep(idle > 2000 ? 1000 : 50);
	}
}

/* Right fields of a good completion. */
static int judge(struct scenario *s, int op, const struct ibv_wc *wc, uint32_t want)
{
	uint32_t grh = s->type == IBV_QPT_UD ? GRH_BYTES : 0;
	if (wc->wr_id != want)
		return fault(s, "completion of request 0x%llx, expected 0x%x", (unsigned long long)wc->wr_id, want);
	if (wc->qp_num != s->qp->qp_num)
		return fault(s, "completion names queue pair 0x%x, not 0x%x", wc->qp_num, s->qp->qp_num);
	if (want < RECEIVE_ID)
		return wc->opcode == WC_OPCODE[op] ? 1 : fault(s, "send completion has opcode %d, expected %d", wc->opcode, WC_OPCODE[op]);
	enum ibv_wc_opcode opcode = op == WRITE_IMM ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV;
	if (wc->opcode != opcode || wc->byte_len != s->size + grh)
		return fault(s, "receive completion: opcode %d (expected %d), %u bytes (expected %u)", wc->opcode, opcode, wc->byte_len,
			     s->size + grh);
	if (has_imm(op) && (!(wc->wc_flags & IBV_WC_WITH_IMM) || ntohl(wc->imm_data) != imm(s, want - RECEIVE_ID)))
		return fault(s, "receive completion: immediate 0x%x, flags 0x%x, expected 0x%x", ntohl(wc->imm_data), wc->wc_flags,
			     imm(s, want - RECEIVE_ID));
	if (!has_imm(op) && wc->wc_flags & IBV_WC_WITH_IMM)
		return fault(s, "receive completion has an immediate nobody sent");
	if (grh && wc->src_qp != s->remote_qpn)
		return fault(s, "UD receive: source queue pair 0x%x, expected 0x%x", wc->src_qp, s->remote_qpn);
	return 1;
}

struct tally { uint32_t good, flushed; int status; };

/* Collects the completions of this side's part; stops at the time limit. A bad status is counted, not judged. */
static int harvest(struct scenario *s, int op, uint32_t first, struct tally *t, uint64_t end)
{
	struct ibv_wc wc;
	for (uint32_t i = 0; i < s->count; i++) {
		if (!poll_one(s, &wc, end))
			return 0;
		if (wc.status == IBV_WC_WR_FLUSH_ERR && t->status)
			t->flushed++;
		else if (wc.status != IBV_WC_SUCCESS)
			t->status = t->status ? t->status : (int)wc.status;
		else if (t->status)
			return fault(s, "a completion says success after one said %s", ibv_wc_status_str(t->status));
		else if (!judge(s, op, &wc, first + t->good))
			return 0;
		else
			t->good++;
	}
	return 1;
}

static void request(struct scenario *s, int op)
{
	struct tally t = { 0 };
	prepare(s, op, 1);
	for (uint32_t i = 0; i < s->count; i++)
		if (!post_request(s, op, i)) {
			say(s->out, "error %s", s->why);
			return;
		}
	if (!harvest(s, op, 0, &t, now_ms() + s->wait_s * 1000u))
		say(s->out, "error %s within %u s, after %u of %u completions", s->why, s->wait_s, t.good, s->count);
	else if (t.status == 0 && !compare(s, "requester's"))
		say(s->out, "error %s", s->why);
	else
		say(s->out, "ok good=%u status=%d flushed=%u", t.good, t.status, t.flushed);
}

/* UD's header area in front of each message is the device's to write. */
static void forgive_grh(struct scenario *s)
{
	for (uint32_t i = 0; s->type == IBV_QPT_UD && i < s->count; i++)
		memcpy(slot(s->expect, s, i) - GRH_BYTES, slot(s->arena, s, i) - GRH_BYTES, GRH_BYTES);
}


/* With losses a receive completes for whichever message came; its immediate tells which. */
static void verify_lossy(struct scenario *s, int op)
{
	uint32_t got = 0;
	struct ibv_wc wc;
	uint64_t end = now_ms() + 600;
	while (got < s->count && poll_one(s, &wc, end)) {
		if (wc.status != IBV_WC_SUCCESS) {
			say(s->out, "error receive completion: %s", ibv_wc_status_str(wc.status));
			return;
		}
		got++;
	}
	(void)op;
	say(s->out, "ok good=%u status=0 flushed=0", got);
}

static void verify(struct scenario *s, int op, int lossy, int data)
{
	struct tally t = { 0 };
	if (lossy) {
		verify_lossy(s, op);
		return;
	}
	if (takes_receive(op) && !harvest(s, op, RECEIVE_ID, &t, now_ms() + s->wait_s * 1000u)) {
		say(s->out, "error %s within %u s, after %u of %u receives", s->why, s->wait_s, t.good, s->count);
		return;
	}
	/* UC has no answer that says the last byte has come */
	uint64_t end = now_ms() + (s->type == IBV_QPT_UC && !takes_receive(op) ? 5000 : 0);
	forgive_grh(s);
	while (data && !compare(s, "responder's")) {
		if (now_ms() >= end) {
			say(s->out, "error %s", s->why);
			return;
		}
		usleep(2000);
	}
	say(s->out, "ok good=%u status=%d flushed=%u", t.good, t.status, t.flushed);
}

/* ---- lines ---- */

static void say_where(struct scenario *s)
{
	char gid[40];
	gid_text(&s->gid, gid);
	say(s->out, "ok qpn=0x%x addr=0x%llx key=0x%x key_ro=0x%x gid=%s", s->qp->qp_num, (unsigned long long)(uintptr_t)s->arena,
	    s->mr->rkey, s->read_only->rkey, gid);
}

static int manage(struct scenario *s, const char *line)
{
	char a[64] = "", b[64] = "", port[16] = "";
	word(line, "addr", a, sizeof a);
	word(line, "port", port, sizeof port);
	if (!strncmp(line, "open ", 5)) {
		word(line, "dev", b, sizeof b);
		return open_device(s, b, a);
	}
	if (!strncmp(line, "connect ", 8))
		return connect_qp(s, line);
	if (!strncmp(line, "cm-listen ", 10))
		return cm_listen(s, a, port);
	if (!strncmp(line, "remote ", 7)) {
		s->remote_addr = number(line, "addr", 0);
		s->remote_key = (uint32_t)number(line, "key", 0);
		s->remote_key_ro = (uint32_t)number(line, "key_ro", 0);
		s->remote_qpn = (uint32_t)number(line, "qpn", 0);
		return 1;
	}
	if (!strcmp(line, "finish")) {
		finish(s);
		return 1;
	}
	return fault(s, "unknown command: %s", line);
}

/* Commands that answer with where the queue pair and its memory are. */
static int place(struct scenario *s, const char *line)
{
	char a[64] = "", from[64] = "", port[16] = "";
	word(line, "addr", a, sizeof a);
	word(line, "from", from, sizeof from);
	word(line, "port", port, sizeof port);
	if (!strncmp(line, "start ", 6))
		return start(s, line);
	if (!strcmp(line, "cm-accept"))
		return cm_accept(s);
	return cm_connect(s, from, a, port);
}

static void act(struct scenario *s, const char *line)
{
	int op = op_of(line);
	if (op >= OPS || !s->qp) {
		say(s->out, "error %s", s->qp ? "unknown operation" : "no queue pair yet");
	} else if (!strncmp(line, "respond ", 8) || !strncmp(line, "receives ", 9)) {
		int late = (int)number(line, "late", 0), ok = 1;
		if (line[2] == 's')
			prepare(s, op, 0);
		if (!late)
			ok = post_receives(s, op);
		say(s->out, ok ? "ok" : "error %s", s->why);
	} else if (!strncmp(line, "request ", 8)) {
		request(s, op);
	} else {
		verify(s, op, (int)number(line, "lossy", 0), (int)number(line, "data", 1));
	}
}

static int begins(const char *line, const char *const *with)
{
	for (; *with; with++)
		if (!strncmp(line, *with, strlen(*with)))
			return 1;
	return 0;
}

int scenarios(int in, int out)
{
	static const char *const PLACES[] = { "start ", "cm-accept", "cm-connect ", NULL };
	static const char *const ACTS[] = { "respond ", "receives ", "request ", "verify ", NULL };
	static const char *const OPENS[] = { "open ", NULL };
	struct scenario s = { .out = out };
	char line[512];
	while (read_line(in, line, sizeof line)) {
		if (begins(line, ACTS))
			act(&s, line);
		else if (begins(line, PLACES) && !place(&s, line))
			say(out, "error %s", s.why);
		else if (begins(line, PLACES) && s.qp)
			say_where(&s);
		else if (begins(line, OPENS) && manage(&s, line))
			say(out, "ok index=%d dev=%s", s.gid_index, ibv_get_device_name(s.ctx->device));
		else if (begins(line, PLACES) || (!begins(line, OPENS) && manage(&s, line)))
			say(out, "ok");
		else
			say(out, "error %s", s.why);
	}
	finish(&s);
	return 0;
}
