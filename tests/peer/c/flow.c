/* SPDX-License-Identifier: MIT OR Apache-2.0
 * Flows that need more than one program at one end.
 *   flow sink [-d DEV] [-g GID] [-n N] [-s BYTES] [-w SECONDS]
 *     A UD queue pair with N receives. Prints "QPN 0x..."; ends when N datagrams have come, each once,
 *     or none for SECONDS: four bytes of number (0..N-1, big-endian), the rest filled with its low byte.
 *   flow stream [-d DEV] [-g GID] [-n N] [-s BYTES] [-f FIRST] QPN
 *     N datagrams, numbered from FIRST, to the `sink` of this number on the same host, at full rate.
 *   flow take [-d DEV] [-g GID] [-m MTU] [-p PORT]
 *     An RC queue pair that lets itself be written to; ends when the writer says so.
 *   flow fan [-d DEV] [-g GID] [-m MTU] [-n N] [-s BYTES] HOST PORT...
 *     One RC queue pair to each port's `take`; N writes of BYTES to each, all at full rate, and the
 *     last write's bytes compared by the taker.
 * Build: cc -O2 -pthread -o flow flow.c -libverbs */
#include "common.h"

#define PEERS_MAX 8
#define DEPTH 32

static int count = 1000, size = 65536, wait_s = 30, first;

static struct ibv_mr *memory(struct device *d, size_t bytes)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	struct ibv_mr *mr = p == MAP_FAILED ? NULL : ibv_reg_mr(d->pd, p, bytes, ALL_ACCESS);
	if (!mr)
		DIE("memory of %zu bytes", bytes);
	return mr;
}

static struct ibv_qp *queue_pair(struct device *d, struct ibv_cq *cq, enum ibv_qp_type type, int recvs)
{
	struct ibv_qp_init_attr a = { .send_cq = cq, .recv_cq = cq, .qp_type = type,
		.cap = { DEPTH, (uint32_t)recvs, 1, 1, 0 } };
	struct ibv_qp *qp = ibv_create_qp(d->pd, &a);
	if (!qp)
		DIE("ibv_create_qp");
	if ((errno = to_init(qp, &QP_DEFAULTS)))
		DIE("INIT");
	return qp;
}

static int sink(struct device *d)
{
	struct ibv_cq *cq = ibv_create_cq(d->ctx, count, NULL, NULL, 0);
	struct ibv_qp *qp = queue_pair(d, cq, IBV_QPT_UD, count);
	size_t room = 40 + (size_t)size;
	struct ibv_mr *mr = memory(d, room * (size_t)count);
	uint8_t *base = mr->addr, *seen = calloc(1, (size_t)count);
	for (int i = 0; i < count; i++) {
		struct ibv_sge s = { (uintptr_t)base + room * (size_t)i, (uint32_t)room, mr->lkey };
		struct ibv_recv_wr wr = { .wr_id = (uint64_t)i, .sg_list = &s, .num_sge = 1 }, *bad;
		if (ibv_post_recv(qp, &wr, &bad))
			DIE("ibv_post_recv");
	}
	if ((errno = to_rtr(d, qp, &(struct qp_addr){ 0 }, &QP_DEFAULTS)))
		DIE("RTR");
	printf("QPN 0x%x\n", qp->qp_num);
	fflush(stdout);
	int got = 0;
	struct ibv_wc wc;
	for (; got < count && wait_wc(cq, &wc, wait_s * 1000) == 1; got++) {
		const uint8_t *p = base + room * wc.wr_id + 40;
		uint32_t n;
		memcpy(&n, p, 4);
		n = ntohl(n);
		if (wc.status || wc.byte_len != room || n >= (uint32_t)count || seen[n]++)
			FAIL("datagram %u: status %d, %u bytes, or it came twice", n, wc.status, wc.byte_len);
		for (int i = 4; i < size; i++)
			if (p[i] != (uint8_t)n) {
				FAIL("datagram %u: wrong byte at %d", n, i);
				break;
			}
	}
	if (got < count)
		FAIL("%d of %d datagrams came", got, count);
	printf("sink: %d of %d\n", got, count);
	return failures != 0;
}

static int stream(struct device *d, uint32_t qpn)
{
	struct ibv_cq *cq = ibv_create_cq(d->ctx, DEPTH, NULL, NULL, 0);
	struct ibv_qp *qp = queue_pair(d, cq, IBV_QPT_UD, 1);
	struct ibv_mr *mr = memory(d, (size_t)size * DEPTH);
	struct ibv_ah_attr to = ah_of(d, &d->gid);
	struct ibv_ah *ah = ibv_create_ah(d->pd, &to);
	if (!ah || (errno = to_rtr(d, qp, &(struct qp_addr){ 0 }, &QP_DEFAULTS)) || (errno = to_rts(d, qp, 0, &QP_DEFAULTS)))
		DIE("address handle, RTR or RTS");
	printf("streaming\n");
	fflush(stdout);
	for (int sent = 0, done = 0; done < count;) {
		for (; sent < count && sent - done < DEPTH; sent++) {
			uint8_t *p = (uint8_t *)mr->addr + (size_t)(sent % DEPTH) * (size_t)size;
			uint32_t number = htonl((uint32_t)(first + sent));
			memset(p, first + sent, (size_t)size);
			memcpy(p, &number, 4);
			struct ibv_sge s = { (uintptr_t)p, (uint32_t)size, mr->lkey };
			struct ibv_send_wr wr = { .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED, .sg_list = &s, .num_sge = 1,
						  .wr.ud = { ah, qpn, QKEY } }, *bad;
			if ((errno = ibv_post_send(qp, &wr, &bad)))
				DIE("ibv_post_send");
		}
		struct ibv_wc wc;
		if (wait_wc(cq, &wc, wait_s * 1000) != 1 || wc.status) {
			FAIL("a datagram does not leave");
			break;
		}
		done++;
	}
	printf("stream: %d\n", count);
	return failures != 0;
}

struct greeting {
	struct qp_addr addr;
	uint64_t base;
	uint32_t rkey, bytes;
};

/* Both sides tell the other where they are, and connect. */
static struct greeting meet(struct device *d, struct ibv_qp *qp, struct ibv_mr *mr, int fd)
{
	struct greeting ours = { { qp->qp_num, 0x1234, d->gid }, (uintptr_t)mr->addr, mr->rkey, (uint32_t)mr->length }, theirs;
	tcp_send(fd, &ours, sizeof ours);
	tcp_recv(fd, &theirs, sizeof theirs);
	if ((errno = to_rtr(d, qp, &theirs.addr, &QP_DEFAULTS)) || (errno = to_rts(d, qp, ours.addr.psn, &QP_DEFAULTS)))
		DIE("connecting");
	barrier(fd, 0);
	return theirs;
}

static int take(struct device *d, const char *port)
{
	int listener = tcp_listen(port), fd = tcp_accept(listener, 120);
	uint32_t bytes;
	tcp_recv(fd, &bytes, sizeof bytes);
	struct ibv_mr *mr = memory(d, bytes);
	meet(d, queue_pair(d, ibv_create_cq(d->ctx, 16, NULL, NULL, 0), IBV_QPT_RC, 1), mr, fd);
	uint32_t last = barrier(fd, 0);
	for (uint32_t i = 0; i < bytes; i++)
		if (((uint8_t *)mr->addr)[i] != (uint8_t)last) {
			FAIL("byte %u is not the last write's", i);
			break;
		}
	barrier(fd, 0);
	return failures != 0;
}

struct lane {
	int fd, posted, done;
	struct ibv_qp *qp;
	struct greeting peer;
};

static void write_next(struct lane *l, struct ibv_mr *mr)
{
	int last = l->posted + 1 == count;
	/* the second half of the memory holds the bytes of the last write */
	struct ibv_sge s = { (uintptr_t)mr->addr + (last ? (size_t)size : 0), (uint32_t)size, mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &s, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { l->peer.base, l->peer.rkey } }, *bad;
	if (ibv_post_send(l->qp, &wr, &bad))
		DIE("ibv_post_send");
	l->posted++;
}

static int fan(struct device *d, const char *host, char **ports, int n)
{
	struct lane lanes[PEERS_MAX] = { 0 };
	if (n < 1 || n > PEERS_MAX)
		return 2;
	struct ibv_cq *cq = ibv_create_cq(d->ctx, DEPTH * n, NULL, NULL, 0);
	struct ibv_mr *mr = memory(d, 2 * (size_t)size);
	memset((char *)mr->addr + size, 0x5c, (size_t)size);
	for (int i = 0; i < n; i++) {
		struct lane *l = &lanes[i];
		l->fd = tcp_connect(host, ports[i], 120);
		uint32_t bytes = (uint32_t)size;
		tcp_send(l->fd, &bytes, sizeof bytes);
		l->qp = queue_pair(d, cq, IBV_QPT_RC, 1);
		l->peer = meet(d, l->qp, mr, l->fd);
	}
	uint64_t start = now_ns(), quiet = start;
	for (int left = n * count; left;) {
		for (int i = 0; i < n; i++)
			while (lanes[i].posted < count && lanes[i].posted - lanes[i].done < DEPTH)
				write_next(&lanes[i], mr);
		struct ibv_wc wc;
		if (ibv_poll_cq(cq, 1, &wc) != 1) {
			if (now_ns() - quiet > 60000000000u)
				DIE("no completion for a minute");
			continue;
		}
		quiet = now_ns();
		if (wc.status) {
			FAIL("status %d (%s)", wc.status, ibv_wc_status_str(wc.status));
			return 1;
		}
		for (int i = 0; i < n; i++)
			lanes[i].done += lanes[i].qp->qp_num == wc.qp_num;
		left--;
	}
	double s = (double)(now_ns() - start) / 1e9;
	for (int i = 0; i < n; i++)
		barrier(lanes[i].fd, 0x5c);
	for (int i = 0; i < n; i++)
		barrier(lanes[i].fd, 0);
	printf("fan: %d writes of %d bytes to %d processes, %.0f MB/s\n", count, size, n,
	       (double)n * count * size / 1e6 / s);
	return failures != 0;
}

int main(int argc, char **argv)
{
	const char *dev = NULL, *port = "18900", *what = argc > 1 ? argv[1] : "";
	int opt, gid = -1, mtu = 0;
	program = "flow";
	optind = 2;
	while (argc > 1 && (opt = getopt(argc, argv, "d:g:m:n:s:p:w:f:")) != -1)
		switch (opt) {
		case 'd': dev = optarg; break;
		case 'g': gid = atoi(optarg); break;
		case 'm': mtu = atoi(optarg); break;
		case 'n': count = atoi(optarg); break;
		case 's': size = atoi(optarg); break;
		case 'p': port = optarg; break;
		case 'w': wait_s = atoi(optarg); break;
		case 'f': first = atoi(optarg); break;
		default: return 2;
		}
	struct device d;
	open_device(&d, dev, gid, mtu);
	if (!strcmp(what, "sink"))
		return sink(&d);
	if (!strcmp(what, "stream") && optind < argc)
		return stream(&d, (uint32_t)strtoul(argv[optind], NULL, 0));
	if (!strcmp(what, "take"))
		return take(&d, port);
	if (!strcmp(what, "fan") && optind + 1 < argc)
		return fan(&d, argv[optind], argv + optind + 1, argc - optind - 1);
	fprintf(stderr, "usage: flow {sink|stream QPN|take|fan HOST PORT...} [options]\n");
	return 2;
}
