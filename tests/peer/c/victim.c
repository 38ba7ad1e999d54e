/* SPDX-License-Identifier: MIT OR Apache-2.0
 * victim: one end of a connection whose other end is a script that writes packets itself.
 * victim [-d DEV] [-g GID] [-m MTU] [-p PORT]
 * For each TCP connection: reads "A.B.C.D QPN PSN\n" (the script's end), makes a fresh RC queue pair with
 * four receives of 64 bytes and a region with canaries, answers "QPN PSN RKEY ADDRESS LENGTH\n", waits for
 * a line, and answers with what happened: "state N wc STATUS:LEN,... touched N received N\n"; `touched` is the
 * offset of the first changed byte of the remotely writable region or its canaries (-1: none). Ends at
 * "quit\n" in place of an address.
 * Build: cc -O2 -pthread -o victim victim.c -libverbs */
#include "pair.h"

static int read_line(int fd, char *buf, size_t n)
{
	size_t at = 0;
	while (at + 1 < n && recv(fd, buf + at, 1, 0) == 1 && buf[at] != '\n')
		at++;
	buf[at] = 0;
	return at > 0;
}

static void serve(struct device *d, int fd, const char *line)
{
	char address[64], text[512];
	struct qp_addr peer = { 0 };
	if (sscanf(line, "%63s %i %i", address, (int *)&peer.qpn, (int *)&peer.psn) != 3)
		DIE("strange line: %s", line);
	peer.gid.raw[10] = peer.gid.raw[11] = 0xff;
	if (inet_pton(AF_INET, address, peer.gid.raw + 12) != 1)
		DIE("strange address: %s", address);
	struct region target, receives;
	region_new(d, &target, ALL_ACCESS);
	region_new(d, &receives, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_cq *cq = ibv_create_cq(d->ctx, 64, NULL, NULL, 0);
	struct ibv_qp_init_attr a = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = { 4, 16, 1, 1, 0 } };
	struct ibv_qp *qp = ibv_create_qp(d->pd, &a);
	const uint32_t psn = 0x123456;
	if (!qp || (errno = to_init(qp, &QP_DEFAULTS)) || (errno = to_rtr(d, qp, &peer, &QP_DEFAULTS)) ||
	    (errno = to_rts(d, qp, psn, &QP_DEFAULTS)))
		DIE("queue pair");
	for (uint32_t i = 0; i < 4; i++) {
		struct ibv_sge s = sge_at(&receives, i * 64, 64);
		struct ibv_recv_wr wr = { .wr_id = i, .sg_list = &s, .num_sge = 1 }, *bad;
		if (ibv_post_recv(qp, &wr, &bad))
			DIE("ibv_post_recv");
	}
	int n = snprintf(text, sizeof text, "0x%x 0x%x 0x%x 0x%llx %d\n", qp->qp_num, psn, target.mr->rkey,
			 (unsigned long long)(uintptr_t)target.base, REGION);
	tcp_send(fd, text, (size_t)n);
	read_line(fd, text, sizeof text);
	struct ibv_qp_attr qa;
	struct ibv_qp_init_attr ia;
	struct ibv_wc wc;
	if (ibv_query_qp(qp, &qa, IBV_QP_STATE, &ia))
		DIE("ibv_query_qp");
	n = snprintf(text, sizeof text, "state %d wc ", qa.qp_state);
	while (wait_wc(cq, &wc, 20) == 1 && n < 400)
		n += snprintf(text + n, sizeof text - (size_t)n, "%d:%u,", wc.status, wc.status == IBV_WC_SUCCESS ? wc.byte_len : 0);
	n += snprintf(text + n, sizeof text - (size_t)n, " touched %ld received %ld\n", region_touched(&target, 0, 0),
		      region_touched(&receives, 0, 256));
	tcp_send(fd, text, (size_t)n);
	ibv_destroy_qp(qp);
	ibv_destroy_cq(cq);
	region_free(&target);
	region_free(&receives);
}

int main(int argc, char **argv)
{
	const char *dev = NULL, *port = "18800";
	int opt, gid = -1, mtu = 0;
	char line[128];
	program = "victim";
	while ((opt = getopt(argc, argv, "d:g:m:p:")) != -1)
		switch (opt) {
		case 'd': dev = optarg; break;
		case 'g': gid = atoi(optarg); break;
		case 'm': mtu = atoi(optarg); break;
		case 'p': port = optarg; break;
		default: return 2;
		}
	struct device d;
	open_device(&d, dev, gid, mtu);
	int listener = tcp_listen(port);
	for (;;) {
		int fd = tcp_accept(listener, 60);
		if (read_line(fd, line, sizeof line)) {
			if (!strcmp(line, "quit"))
				return 0;
			serve(&d, fd, line);
		}
		close(fd);
	}
}
