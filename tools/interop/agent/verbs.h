/* SPDX-License-Identifier: MIT OR Apache-2.0
 * One scenario of the agent: a queue pair, memory in numbered slots, and what they must hold afterwards. */
#ifndef ROCEBUD_INTEROP_VERBS_H
#define ROCEBUD_INTEROP_VERBS_H

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include <stdint.h>

enum op { SEND, SEND_IMM, WRITE, WRITE_IMM, READ, CAS, FADD, BAD_RKEY_WRITE, BAD_RKEY_READ, READ_ONLY_WRITE, BEYOND_READ,
	  LONG_SEND, OPS };

#define SLOT_HEAD 64 /* canary in front of the data; a UD message's header area ends where the data begins */
#define SLOT_TAIL 64
#define GRH_BYTES 40
#define CANARY 0x5a
#define QKEY 0x11111111u

struct scenario {
	int out; /* answers go here */
	/* as asked for */
	enum ibv_qp_type type;
	enum ibv_mtu mtu;
	uint32_t psn, count, size, timeout, retry, rnr, wait_s;
	uint64_t seed;
	int srq, cm;
	/* the device */
	struct ibv_context *ctx;
	int own_ctx;
	union ibv_gid gid;
	int gid_index;
	/* what it made */
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_srq *rq;
	struct ibv_qp *qp;
	struct ibv_ah *ah;
	struct ibv_mr *mr, *read_only;
	uint8_t *arena, *expect;
	uint32_t stride, rd_atomic;
	/* the other side */
	uint64_t remote_addr;
	uint32_t remote_key, remote_key_ro, remote_qpn;
	/* rdma_cm */
	struct rdma_event_channel *events;
	struct rdma_cm_id *listener, *id;
	char why[256]; /* of the last failure */
};

/* Each answers 1, or 0 with `why` filled. */
int fault(struct scenario *s, const char *format, ...) __attribute__((format(printf, 2, 3)));
int make_resources(struct scenario *s);
struct ibv_qp_init_attr qp_attr(const struct scenario *s);
int cm_listen(struct scenario *s, const char *addr, const char *port);
int cm_accept(struct scenario *s);
int cm_connect(struct scenario *s, const char *from, const char *addr, const char *port);
void cm_close(struct scenario *s);

#endif
