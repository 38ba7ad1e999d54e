/* SPDX-License-Identifier: MIT OR Apache-2.0
 * raw: RAW_PACKET queue pairs, flow rules, their counters, receive queues and indirection tables. One process is
 * sender and receiver: frames to a group come back to the device that sends them.
 * raw [-d DEV] [-g GID] [-c CASES]    exit status 0 when every case passed
 * raw -u ERRNO [-d DEV]               without the right: nothing of it is there, and this is why
 * Build: cc -O2 -o raw raw.c -libverbs */
#include "raw.h"

/* ---- cases ---- */

static void attributes(struct device *d)
{
	struct ibv_device_attr_ex x;
	SAME("query_device_ex", ibv_query_device_ex(d->ctx, NULL, &x), 0);
	SAME("steering", !!(x.orig_attr.device_cap_flags & IBV_DEVICE_MANAGED_FLOW_STEERING), 1);
	SAME("raw_packet_caps", x.raw_packet_caps, IBV_RAW_PACKET_CAP_CVLAN_STRIPPING);
	SAME("hash function", x.rss_caps.rx_hash_function, IBV_RX_HASH_FUNC_TOEPLITZ);
	SAME("hash types", x.rss_caps.supported_qpts, 1 << IBV_QPT_RAW_PACKET);
	SAME("tables", x.rss_caps.max_rwq_indirection_tables > 0 && x.max_wq_type_rq > 0, 1);
}

static void steering(struct device *d)
{
	begin(d);
	struct end a = end_new(d, 0), b = end_new(d, 0);
	send_frame(FRAME(7, 1)); /* no rule yet */
	struct ibv_flow *seven = to_port(&a, 0, 7, 0), *eight = to_port(&b, 0, 8, 0);
	for (uint32_t i = 0; i < 20; i++)
		send_frame(FRAME((uint16_t)(7 + i % 3), 10 + i));
	EXPECT(&a, 10, 13, 16, 19, 22, 25, 28);
	EXPECT(&b, 11, 14, 17, 20, 23, 26, 29);
	/* Equals share; the lower number decides; what is not trapped goes on. */
	struct ibv_flow *too = to_port(&b, 0, 7, 0);
	send_frame(FRAME(7, 30));
	EXPECT(&a, 30);
	EXPECT(&b, 30);
	rule_end(too);
	too = to_port(&b, 1, 7, 0);
	send_frame(FRAME(7, 31));
	EXPECT(&a, 31);
	EXPECT_NOTHING(&b);
	rule_end(seven);
	seven = to_port(&a, 0, 7, IBV_FLOW_ATTR_FLAGS_DONT_TRAP);
	send_frame(FRAME(7, 32));
	EXPECT(&a, 32);
	EXPECT(&b, 32);
	/* A rule that is gone steers no more. */
	rule_end(seven);
	rule_end(too);
	send_frame(FRAME(7, 33));
	EXPECT_NOTHING(&a);
	EXPECT_NOTHING(&b);
	rule_end(eight);
	end_free(&a);
	end_free(&b);
	end();
}

/* More rules than a filter of the kernel's holds: all steer. */
static void many_rules(struct device *d)
{
	static struct ibv_flow *f[400];
	begin(d);
	struct end a = end_new(d, 0);
	for (unsigned i = 0; i < LEN(f); i++)
		f[i] = to_port(&a, 0, (uint16_t)(1000 + i), 0);
	send_frame(FRAME(1000, 1));
	send_frame(FRAME(999, 2));
	send_frame(FRAME(1000 + LEN(f) - 1, 3));
	send_frame(FRAME(1000 + LEN(f), 4));
	EXPECT(&a, 1, 3);
	for (unsigned i = 0; i < LEN(f); i++)
		rule_end(f[i]);
	end_free(&a);
	end();
}

static void defaults(struct device *d)
{
	begin(d);
	struct end a = end_new(d, 0), all = end_new(d, 0), groups = end_new(d, 0), sniffer = end_new(d, 0);
	struct ibv_flow *f[] = { to_port(&a, 0, 7, 0), rule_make(&all, rule_new(IBV_FLOW_ATTR_ALL_DEFAULT, 0)),
		rule_make(&groups, rule_new(IBV_FLOW_ATTR_MC_DEFAULT, 0)) };
	/* The kernel may have something to say on the wire: frames that are not ours are skipped. */
	struct rule r = rule_new(IBV_FLOW_ATTR_SNIFFER, 0);
	struct ibv_flow *s = rule_make(&sniffer, r);
	send_frame(FRAME(7, 1));
	send_frame(FRAME(9, 2));
	settle();
	struct end *ends[] = { &a, &all, &groups, &sniffer };
	const uint32_t want[] = { 1, 2, 2, 1 | 2 };
	for (unsigned i = 0; i < LEN(ends); i++) {
		uint32_t seen = 0;
		for (struct got g = poll_one(ends[i]); g.any; g = poll_one(ends[i])) {
			const uint8_t *at = ends[i]->mem + g.wr_id * SLOT;
			uint32_t id;
			memcpy(&id, at + ID_AT(0), 4);
			if (g.status == IBV_WC_SUCCESS && g.bytes == BYTES && !memcmp(at, GROUP, 6))
				seen |= id;
		}
		SAME("frames at the end", seen, want[i]);
	}
	rule_end(s);
	for (unsigned i = 0; i < LEN(f); i++)
		rule_end(f[i]);
	for (unsigned i = 0; i < LEN(ends); i++)
		end_free(ends[i]);
	end();
}

/* Attached to an Ethernet group: a GID that ends with its address. Nothing is taken from rules, nor by them. */
static void groups(struct device *d)
{
	union ibv_gid group = { .raw = { [0] = 0 } }, other = group, address = group, strange;
	memcpy(group.raw + 10, GROUP, 6);
	memcpy(other.raw + 10, MARKER_GROUP, 6);
	memcpy(address.raw + 10, SRC, 6);
	strange = group;
	strange.raw[0] = 0xff;
	begin(d);
	struct end a = end_new(d, 0), b = end_new(d, 0), c = end_new(d, 0);
	struct ibv_flow *seven = to_port(&c, 0, 7, 0);
	SAME("no group", ibv_attach_mcast(a.qp, &address, 0), EINVAL);
	SAME("no Ethernet group", ibv_attach_mcast(a.qp, &strange, 0), EINVAL);
	SAME("not attached", ibv_detach_mcast(a.qp, &group, 0), EINVAL);
	send_frame(FRAME(8, 1));
	settle();
	SAME("attach", ibv_attach_mcast(a.qp, &group, 0), 0);
	SAME("attach again", ibv_attach_mcast(a.qp, &group, 0), 0);
	SAME("attach another", ibv_attach_mcast(b.qp, &group, 0), 0);
	send_frame(FRAME(7, 2));
	send_frame(FRAME(8, 3));
	EXPECT(&a, 2, 3);
	EXPECT(&b, 2, 3);
	EXPECT(&c, 2);
	SAME("destroy_qp while attached", ibv_destroy_qp(a.qp), EBUSY);
	SAME("detach", ibv_detach_mcast(a.qp, &group, 0), 0);
	SAME("detach again", ibv_detach_mcast(a.qp, &group, 0), EINVAL);
	SAME("detach from another group", ibv_detach_mcast(b.qp, &other, 0), EINVAL);
	send_frame(FRAME(8, 4));
	EXPECT_NOTHING(&a);
	EXPECT(&b, 4);
	SAME("detach the last", ibv_detach_mcast(b.qp, &group, 0), 0);
	send_frame(FRAME(8, 5));
	EXPECT_NOTHING(&b);
	EXPECT_NOTHING(&c);
	rule_end(seven);
	end_free(&a);
	end_free(&b);
	end_free(&c);
	end();
}

static void actions(struct device *d)
{
	begin(d);
	struct end a = end_new(d, 0);
	struct ibv_counters_init_attr none = { 0 };
	struct ibv_counters *c = ibv_create_counters(d->ctx, &none);
	if (!c)
		DIE("ibv_create_counters");
	struct ibv_counter_attach_attr packets = { IBV_COUNTER_PACKETS, 1, 0 }, bytes = { IBV_COUNTER_BYTES, 3, 0 };
	SAME("attach", ibv_attach_counters_point_flow(c, &packets, NULL), 0);
	SAME("attach twice", ibv_attach_counters_point_flow(c, &packets, NULL), EINVAL);
	SAME("attach far", ibv_attach_counters_point_flow(c, &(struct ibv_counter_attach_attr){ 0, 64, 0 }, NULL), EINVAL);
	SAME("attach", ibv_attach_counters_point_flow(c, &bytes, NULL), 0);
	struct rule r = rule_new(IBV_FLOW_ATTR_NORMAL, 0);
	eth(&r, GROUP, -1);
	udp(&r, 7);
	tag(&r, 0xabcdef);
	count(&r, c);
	struct ibv_flow *f = rule_make(&a, r);
	SAME("attach late", ibv_attach_counters_point_flow(c, &bytes, NULL), EBUSY);
	SAME("attach to a rule", ibv_attach_counters_point_flow(c, &bytes, f), EOPNOTSUPP);
	SAME("destroy counters in use", ibv_destroy_counters(c), EBUSY);
	for (uint32_t i = 1; i <= 5; i++)
		send_frame(FRAME((uint16_t)(i == 3 ? 8 : 7), i));
	settle();
	for (int i = 0; i < 4; i++)
		SAME("tag", take(&a).tag, 0xabcdef);
	uint64_t v[4] = { 9, 9, 9, 9 };
	SAME("read", ibv_read_counters(c, v, 4, IBV_READ_COUNTERS_ATTR_PREFER_CACHED), 0);
	SAME("packets", v[1], 4);
	SAME("bytes", v[3], 4 * BYTES);
	SAME("another place", v[2], 9);
	SAME("read too few", ibv_read_counters(c, v, 3, 0), EINVAL);
	rule_end(f);
	/* A rule that drops leaves nothing to others, and counts. */
	struct rule drop = rule_new(IBV_FLOW_ATTR_NORMAL, 0);
	udp(&drop, 7);
	count(&drop, c);
	drops(&drop);
	f = rule_make(&a, drop);
	struct ibv_flow *under = to_port(&a, 1, 7, 0);
	send_frame(FRAME(7, 9));
	EXPECT_NOTHING(&a);
	SAME("read", ibv_read_counters(c, v, 4, 0), 0);
	SAME("packets", v[1], 5);
	rule_end(under);
	rule_end(f);
	SAME("destroy counters", ibv_destroy_counters(c), 0);
	end_free(&a);
	end();
}

static void vlans(struct device *d)
{
	begin(d);
	struct end keeps = end_new(d, 0), strips = end_new(d, IBV_QP_CREATE_CVLAN_STRIPPING);
	struct end *ends[] = { &keeps, &strips };
	struct ibv_flow *f[2];
	for (int i = 0; i < 2; i++) {
		struct rule r = rule_new(IBV_FLOW_ATTR_NORMAL, 0);
		eth(&r, GROUP, 100);
		udp(&r, 7);
		f[i] = rule_make(ends[i], r);
	}
	const int tags[] = { -1, 0xa064, 101 }; /* priority 5, VLAN 100 */
	for (uint32_t i = 0; i < LEN(tags); i++)
		send_frame((struct frame){ GROUP, tags[i], 1000, 7, i + 1 });
	settle();
	for (int i = 0; i < 2; i++) {
		struct got g = take(ends[i]);
		SAME("the frame of the VLAN", g.id, 2);
		SAME("its tag", g.tagged, i == 0);
		SAME("the tag told", g.cvlan, i == 0 ? 0 : 0xa064);
		SAME("bytes", g.bytes, i == 0 ? BYTES : BYTES - 4);
		SAME("others", take(ends[i]).any, 0);
	}
	rule_end(f[0]);
	rule_end(f[1]);
	end_free(&keeps);
	end_free(&strips);
	end();
}

/* RESET and up again, with all receives posted. */
static void start_again(struct end *e)
{
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_RESET };
	SAME("to RESET", ibv_modify_qp(e->qp, &a, IBV_QP_STATE), 0);
	SAME("up again", raw_up(e->qp), 0);
	for (int s = 0; s < SLOTS; s++)
		post_slot(e, s);
}

/* What is wrong with one send completes it with this status and flushes the next; RESET heals. */
static void failing(struct end *e, struct ibv_sge bad_sge, enum ibv_wc_status status, const char *what)
{
	struct ibv_sge good = { (uintptr_t)e->mem, BYTES, e->mr->lkey };
	struct ibv_send_wr next = { .wr_id = 2, .sg_list = &good, .num_sge = 1, .opcode = IBV_WR_SEND };
	struct ibv_send_wr wr = { .wr_id = 1, .next = &next, .sg_list = &bad_sge, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad;
	SAME(what, ibv_post_send(e->qp, &wr, &bad), 0);
	struct got g = wait_one(e);
	SAME(what, g.wr_id, 1);
	SAME(what, g.status, status);
	g = wait_one(e);
	SAME(what, g.wr_id, 2);
	SAME(what, g.status, IBV_WC_WR_FLUSH_ERR);
	int flushed = 0;
	for (g = poll_one(e); g.any; g = poll_one(e), flushed++)
		SAME("a receive's status", g.status, IBV_WC_WR_FLUSH_ERR);
	SAME("receives flushed", flushed, SLOTS);
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_RESET };
	struct ibv_qp_init_attr i;
	SAME("query", ibv_query_qp(e->qp, &a, IBV_QP_STATE, &i), 0);
	SAME("state", a.qp_state, IBV_QPS_ERR);
	start_again(e);
}

static void errors(struct device *d)
{
	begin(d);
	uint32_t key = sender.mr->lkey;
	uint64_t at = (uintptr_t)sender.mem;
	failing(&sender, (struct ibv_sge){ at, BYTES, key ^ 0x5a5a5a00 }, IBV_WC_LOC_PROT_ERR, "a wrong key");
	failing(&sender, (struct ibv_sge){ at, SLOTS * SLOT + 1, key }, IBV_WC_LOC_LEN_ERR, "a frame beyond any interface");
	failing(&sender, (struct ibv_sge){ at, 10, key }, IBV_WC_LOC_LEN_ERR, "half a header");
	failing(&sender, (struct ibv_sge){ at, 0, key }, IBV_WC_LOC_LEN_ERR, "no frame at all");
	send_frame(FRAME(7, 1)); /* it works again */
	/* A receive that is too small stays for the next frame. */
	struct end a = end_new(d, 0);
	struct ibv_qp_attr m = { .qp_state = IBV_QPS_ERR };
	SAME("to ERR", ibv_modify_qp(a.qp, &m, IBV_QP_STATE), 0);
	m.qp_state = IBV_QPS_RESET;
	SAME("to RESET", ibv_modify_qp(a.qp, &m, IBV_QP_STATE), 0);
	SAME("nothing of before is left", poll_one(&a).any, 0);
	SAME("up", raw_up(a.qp), 0);
	struct ibv_flow *f = to_port(&a, 0, 7, 0);
	struct ibv_sge small = { (uintptr_t)a.mem, BYTES - 1, a.mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = 5, .sg_list = &small, .num_sge = 1 }, *bad;
	SAME("post_recv", ibv_post_recv(a.qp, &wr, &bad), 0);
	send_frame(FRAME(7, 2));
	settle();
	SAME("a frame that does not fit", poll_one(&a).any, 0);
	/* A receive whose memory is not ours. */
	struct ibv_sge foreign = { (uintptr_t)a.mem, BYTES, a.mr->lkey ^ 0x5a5a5a00 };
	struct ibv_recv_wr second = { .wr_id = 6, .sg_list = &foreign, .num_sge = 1 };
	SAME("to ERR", ibv_modify_qp(a.qp, &(struct ibv_qp_attr){ .qp_state = IBV_QPS_ERR }, IBV_QP_STATE), 0);
	SAME("the small one", wait_one(&a).wr_id, 5);
	SAME("to RESET", ibv_modify_qp(a.qp, &m, IBV_QP_STATE), 0);
	SAME("up", raw_up(a.qp), 0);
	SAME("post_recv", ibv_post_recv(a.qp, &second, &bad), 0);
	send_frame(FRAME(7, 3));
	struct got g = wait_one(&a);
	SAME("a wrong key", g.wr_id, 6);
	SAME("a wrong key", g.status, IBV_WC_LOC_PROT_ERR);
	rule_end(f);
	end_free(&a);
	end();
}

static void refusals(struct device *d)
{
	struct pair rc = pair_new(d, &PAIR_DEFAULTS);
	struct end a = end_new(d, 0);
	struct rule plain = rule_new(IBV_FLOW_ATTR_NORMAL, 0), r;
	eth(&plain, GROUP, -1);
	NULL_AND("a rule for RC", ibv_create_flow(rc.qp[0], &plain.attr), EINVAL);
	pair_free(&rc);
	NULL_AND("no rule", ibv_create_flow(a.qp, NULL), EINVAL);
#define BAD_RULE(what, change, e) do { r = plain; change; NULL_AND(what, ibv_create_flow(a.qp, &r.attr), e); } while (0)
	BAD_RULE("port 2", r.attr.port = 2, EINVAL);
	BAD_RULE("an unknown kind", r.attr.type = 4, EINVAL);
	BAD_RULE("a mask", r.attr.comp_mask = 1, EINVAL);
	BAD_RULE("an unknown flag", r.attr.flags = 1 << 3, EINVAL);
	BAD_RULE("what goes out", r.attr.flags = IBV_FLOW_ATTR_FLAGS_EGRESS, EOPNOTSUPP);
	BAD_RULE("a default with conditions", r.attr.type = IBV_FLOW_ATTR_ALL_DEFAULT, EINVAL);
	BAD_RULE("a sniffer with conditions", r.attr.type = IBV_FLOW_ATTR_SNIFFER, EINVAL);
	BAD_RULE("too many", r.attr.num_of_specs = 17, EINVAL);
	BAD_RULE("a wrong size", r.specs[4]++, EINVAL);
	BAD_RULE("no size", r.specs[4] = 0, EINVAL);
	BAD_RULE("an unknown spec", r.specs[0] = 0x7f, EINVAL);
	BAD_RULE("an inner header", r.specs[1] = 1, EOPNOTSUPP);
	const unsigned absent[] = { IBV_FLOW_SPEC_ESP, IBV_FLOW_SPEC_VXLAN_TUNNEL, IBV_FLOW_SPEC_GRE, IBV_FLOW_SPEC_MPLS,
		IBV_FLOW_SPEC_ACTION_HANDLE };
	for (unsigned i = 0; i < LEN(absent); i++)
		BAD_RULE("what is not matched", of_kind(&r, absent[i]), EOPNOTSUPP);
	struct ibv_flow *f = rule_make(&a, plain);
	SAME("destroy_qp under a rule", ibv_destroy_qp(a.qp), EBUSY);
	rule_end(f);

	uint8_t *mem = a.mem;
	struct ibv_sge sge[3] = { { (uintptr_t)mem, 64, a.mr->lkey }, { (uintptr_t)mem, 64, a.mr->lkey }, { (uintptr_t)mem, 64, a.mr->lkey } };
	struct ibv_send_wr wr = { .sg_list = sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE }, *bad = NULL;
	SAME("a WRITE", ibv_post_send(a.qp, &wr, &bad), EINVAL);
	SAME("bad_wr", bad == &wr, 1);
	wr.opcode = IBV_WR_SEND;
	wr.num_sge = 3;
	SAME("three pieces", ibv_post_send(a.qp, &wr, &bad), EINVAL);
	wr.num_sge = 1;
	wr.send_flags = IBV_SEND_IP_CSUM;
	SAME("checksums", ibv_post_send(a.qp, &wr, &bad), EINVAL);
	struct ibv_recv_wr rwr = { .sg_list = sge, .num_sge = 1 }, *rbad;
	SAME("one receive too many", ibv_post_recv(a.qp, &rwr, &rbad), ENOMEM);
	struct ibv_qp_attr m = { .qp_state = IBV_QPS_RTS, .qkey = 1, .port_num = 2, .rate_limit = 1 };
	SAME("a Q_Key", ibv_modify_qp(a.qp, &m, IBV_QP_STATE | IBV_QP_QKEY), EINVAL);
	m.qp_state = IBV_QPS_INIT;
	SAME("back to INIT", ibv_modify_qp(a.qp, &m, IBV_QP_STATE | IBV_QP_PORT), EINVAL);
	m.qp_state = IBV_QPS_RESET;
	SAME("to RESET", ibv_modify_qp(a.qp, &m, IBV_QP_STATE), 0);
	m.qp_state = IBV_QPS_INIT;
	SAME("port 2", ibv_modify_qp(a.qp, &m, IBV_QP_STATE | IBV_QP_PORT), EINVAL);
	SAME("INIT without a port", ibv_modify_qp(a.qp, &m, IBV_QP_STATE), EINVAL);
	wr.send_flags = 0;
	SAME("a send in RESET", ibv_post_send(a.qp, &wr, &bad), EINVAL);
	SAME("a receive in RESET", ibv_post_recv(a.qp, &rwr, &rbad), EINVAL);
	struct ibv_qp_rate_limit_attr rate = { .rate_limit = 1000 };
	SAME("a rate in RESET", ibv_modify_qp_rate_limit(a.qp, &rate), EINVAL);
	struct ibv_srq_init_attr s = { .attr = { 4, 1, 0 } };
	struct ibv_srq *srq = ibv_create_srq(d->pd, &s);
	struct ibv_qp_init_attr q = { .send_cq = ibv_cq_ex_to_cq(a.cq), .recv_cq = ibv_cq_ex_to_cq(a.cq), .srq = srq,
		.qp_type = IBV_QPT_RAW_PACKET, .cap = { 1, 1, 1, 1, 0 } };
	NULL_AND("a shared queue", ibv_create_qp(d->pd, &q), EINVAL);
	SAME("destroy_srq", ibv_destroy_srq(srq), 0);
	NULL_AND("frame check sequences", raw_qp(d, ibv_cq_ex_to_cq(a.cq), IBV_QP_CREATE_SCATTER_FCS), EOPNOTSUPP);
	end_free(&a);
}

/* ---- spreading ---- */

#define WQS 4
struct spread {
	struct ibv_cq *cq;
	struct ibv_wq *wq[WQS];
	struct ibv_rwq_ind_table *table;
	struct ibv_qp *qp;
};

static uint8_t key[40];

static struct ibv_qp *spread_qp(struct device *d, struct ibv_rwq_ind_table *t, uint64_t fields, uint8_t key_bytes)
{
	struct ibv_qp_init_attr_ex a = { .qp_type = IBV_QPT_RAW_PACKET, .pd = d->pd, .rwq_ind_tbl = t,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_IND_TABLE | IBV_QP_INIT_ATTR_RX_HASH,
		.rx_hash_conf = { IBV_RX_HASH_FUNC_TOEPLITZ, key_bytes, key, fields } };
	return ibv_create_qp_ex(d->ctx, &a);
}

static struct spread spread_new(struct device *d)
{
	struct spread s = { .cq = ibv_create_cq(d->ctx, 256, NULL, NULL, 0) };
	for (int i = 0; i < WQS; i++) {
		struct ibv_wq_init_attr w = { .wq_type = IBV_WQT_RQ, .max_wr = SLOTS, .max_sge = 1, .pd = d->pd, .cq = s.cq };
		if (!(s.wq[i] = ibv_create_wq(d->ctx, &w)))
			DIE("ibv_create_wq");
	}
	struct ibv_rwq_ind_table_init_attr t = { .log_ind_tbl_size = 2, .ind_tbl = s.wq };
	if (!(s.table = ibv_create_rwq_ind_table(d->ctx, &t)))
		DIE("ibv_create_rwq_ind_table");
	if (!(s.qp = spread_qp(d, s.table, IBV_RX_HASH_SRC_IPV4 | IBV_RX_HASH_SRC_PORT_UDP, sizeof key)))
		DIE("a queue pair with a table");
	return s;
}

static void spread_free(struct spread *s)
{
	SAME("destroy_table in use", ibv_destroy_rwq_ind_table(s->table), EBUSY);
	SAME("destroy_wq in use", ibv_destroy_wq(s->wq[0]), EBUSY);
	SAME("destroy_cq in use", ibv_destroy_cq(s->cq), EBUSY);
	SAME("destroy_qp", ibv_destroy_qp(s->qp), 0);
	SAME("destroy_table", ibv_destroy_rwq_ind_table(s->table), 0);
	for (int i = 0; i < WQS; i++)
		SAME("destroy_wq", ibv_destroy_wq(s->wq[i]), 0);
	SAME("destroy_cq", ibv_destroy_cq(s->cq), 0);
}

static int wq_to(struct ibv_wq *wq, enum ibv_wq_state state)
{
	struct ibv_wq_attr a = { .attr_mask = IBV_WQ_ATTR_STATE, .wq_state = state };
	return ibv_modify_wq(wq, &a);
}

static void spreading(struct device *d)
{
	for (unsigned i = 0; i < sizeof key; i++)
		key[i] = (uint8_t)mix(i);
	begin(d);
	struct spread s = spread_new(d);
	struct rule r = rule_new(IBV_FLOW_ATTR_NORMAL, 0);
	eth(&r, GROUP, -1);
	tag(&r, 1);
	struct ibv_flow *f = ibv_create_flow(s.qp, &r.attr);
	struct end mem = end_new(d, 0); /* its memory */
	struct ibv_sge sge;
	struct ibv_recv_wr wr, *bad;
	send_frame(FRAME(7, 1));
	settle();
	struct ibv_wc wc;
	SAME("queues in RESET", ibv_poll_cq(s.cq, 1, &wc), 0);
	for (int i = 0; i < WQS; i++) {
		wr = slot_wr(&mem, i, &sge);
		SAME("a receive in RESET", ibv_post_wq_recv(s.wq[i], &wr, &bad), EINVAL);
		SAME("to RDY", wq_to(s.wq[i], IBV_WQS_RDY), 0);
		SAME("state", s.wq[i]->state, IBV_WQS_RDY);
		for (int n = 0; n < SLOTS; n++)
			SAME("post", ibv_post_wq_recv(s.wq[i], &wr, &bad), 0);
		SAME("one too many", ibv_post_wq_recv(s.wq[i], &wr, &bad), ENOMEM);
	}
	/* Twice the same ports: the same queues. */
	uint32_t used = 0, where[32];
	for (int round = 0; round < 2; round++)
		for (uint32_t i = 0; i < LEN(where); i++) {
			send_frame((struct frame){ GROUP, -1, (uint16_t)(2000 + i), 7, i + 1 });
			settle();
			if (ibv_poll_cq(s.cq, 1, &wc) != 1 || wc.status != IBV_WC_SUCCESS || wc.byte_len != BYTES) {
				FAIL("frame %u did not come to a shared queue", i);
				continue;
			}
			unsigned q = 0;
			while (q < WQS && s.wq[q]->wq_num != wc.qp_num)
				q++;
			if (q == WQS)
				FAIL("frame %u came to no queue of the table", i);
			else if (round == 0)
				used |= 1u << (where[i] = q);
			else
				SAME("the queue", q, where[i]);
		}
	if (!(used & (used - 1)))
		FAIL("32 flows went to queues 0x%x", used);
	SAME("ERR to RDY", wq_to(s.wq[0], IBV_WQS_ERR) | (wq_to(s.wq[0], IBV_WQS_RDY) != EINVAL), 0);
	SAME("to RESET", wq_to(s.wq[0], IBV_WQS_RESET), 0);
	SAME("destroy_qp under a rule", ibv_destroy_qp(s.qp), EBUSY);
	rule_end(f);
	spread_free(&s);
	end_free(&mem);
	end();
}

static void spreading_refusals(struct device *d)
{
	struct spread s = spread_new(d);
	const uint64_t v4 = IBV_RX_HASH_SRC_IPV4, v6 = IBV_RX_HASH_DST_IPV6;
	NULL_AND("IPv4 and IPv6", spread_qp(d, s.table, v4 | v6, sizeof key), EINVAL);
	NULL_AND("TCP and UDP", spread_qp(d, s.table, IBV_RX_HASH_SRC_PORT_TCP | IBV_RX_HASH_DST_PORT_UDP, sizeof key), EINVAL);
	NULL_AND("inner headers", spread_qp(d, s.table, v4 | IBV_RX_HASH_INNER, sizeof key), EOPNOTSUPP);
	NULL_AND("a short key", spread_qp(d, s.table, v4, 39), EINVAL);
	NULL_AND("no table", spread_qp(d, NULL, v4, sizeof key), EINVAL);
	struct ibv_rwq_ind_table_init_attr t = { .log_ind_tbl_size = 8, .ind_tbl = s.wq };
	NULL_AND("256 queues", ibv_create_rwq_ind_table(d->ctx, &t), EINVAL);
	t = (struct ibv_rwq_ind_table_init_attr){ 0 };
	NULL_AND("no queues", ibv_create_rwq_ind_table(d->ctx, &t), EINVAL);
	struct ibv_wq_init_attr w = { .wq_type = IBV_WQT_RQ, .max_wr = 0, .max_sge = 1, .pd = d->pd, .cq = s.cq };
	NULL_AND("no receives", ibv_create_wq(d->ctx, &w), EINVAL);
	w.max_wr = (uint32_t)d->attr.max_qp_wr + 1;
	NULL_AND("too many receives", ibv_create_wq(d->ctx, &w), EINVAL);
	w = (struct ibv_wq_init_attr){ .max_wr = 1, .max_sge = 1, .pd = d->pd, .cq = s.cq, .comp_mask = IBV_WQ_INIT_ATTR_FLAGS,
		.create_flags = IBV_WQ_FLAGS_SCATTER_FCS };
	NULL_AND("frame check sequences", ibv_create_wq(d->ctx, &w), EOPNOTSUPP);
	struct ibv_wq_attr m = { .attr_mask = IBV_WQ_ATTR_STATE | IBV_WQ_ATTR_CURR_STATE, .wq_state = IBV_WQS_RDY,
		.curr_wq_state = IBV_WQS_ERR };
	SAME("another state than believed", ibv_modify_wq(s.wq[0], &m), EINVAL);
	SAME("RESET to ERR", wq_to(s.wq[0], IBV_WQS_ERR), EINVAL);
	SAME("no state", wq_to(s.wq[0], IBV_WQS_UNKNOWN), EINVAL);
	m.attr_mask = IBV_WQ_ATTR_FLAGS;
	SAME("flags", ibv_modify_wq(s.wq[0], &m), EOPNOTSUPP);
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	SAME("states", ibv_modify_qp(s.qp, &a, IBV_QP_STATE | IBV_QP_PORT), EOPNOTSUPP);
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND }, *bad;
	SAME("a send", ibv_post_send(s.qp, &wr, &bad) != 0, 1);
	struct ibv_recv_wr rwr = { 0 }, *rbad;
	SAME("a receive", ibv_post_recv(s.qp, &rwr, &rbad) != 0, 1);
	spread_free(&s);
}

/* A frame wakes a program that sleeps on its channel and calls no verb. */
static void sleepers(struct device *d)
{
	begin(d);
	struct end mem = end_new(d, 0); /* its memory */
	struct ibv_comp_channel *ch = ibv_create_comp_channel(d->ctx);
	struct ibv_cq *cq = ibv_create_cq(d->ctx, 16, NULL, ch, 0), *which;
	struct end a = mem;
	a.qp = raw_qp(d, cq, 0);
	if (!cq || !a.qp || raw_up(a.qp))
		DIE("a queue pair on a channel");
	struct ibv_flow *f = to_port(&a, 0, 7, 0);
	for (uint32_t i = 0; i < 5; i++) {
		post_slot(&a, 0);
		SAME("arm", ibv_req_notify_cq(cq, 0), 0);
		send_frame(FRAME(7, i + 1));
		struct pollfd p = { ch->fd, POLLIN, 0 };
		SAME("an event in time", poll(&p, 1, PATIENCE_MS), 1);
		void *context;
		SAME("get_cq_event", ibv_get_cq_event(ch, &which, &context), 0);
		ibv_ack_cq_events(which, 1);
		struct ibv_wc wc;
		SAME("one frame", ibv_poll_cq(cq, 1, &wc), 1);
		SAME("bytes", wc.byte_len, BYTES);
	}
	rule_end(f);
	SAME("destroy_qp", ibv_destroy_qp(a.qp), 0);
	SAME("destroy_cq", ibv_destroy_cq(cq), 0);
	SAME("destroy_comp_channel", ibv_destroy_comp_channel(ch), 0);
	end_free(&mem);
	end();
}

/* No faster than it was told to, by either call; without a limit again after RESET. */
static void pacing(struct device *d)
{
	begin(d);
	struct ibv_device_attr_ex x;
	SAME("query_device_ex", ibv_query_device_ex(d->ctx, NULL, &x), 0);
	SAME("offered", !!(x.packet_pacing_caps.supported_qpts & 1 << IBV_QPT_RAW_PACKET), 1);
	for (int way = 0; way < 2; way++) {
		struct ibv_qp_rate_limit_attr r = { .rate_limit = 4000 }; /* half a byte a microsecond */
		struct ibv_qp_attr a = { .qp_state = IBV_QPS_RTS, .rate_limit = 4000 };
		SAME("a rate", way ? ibv_modify_qp(sender.qp, &a, IBV_QP_STATE | IBV_QP_RATE_LIMIT)
				   : ibv_modify_qp_rate_limit(sender.qp, &r), 0);
		uint64_t start = now_ns();
		for (uint32_t i = 0; i < 200; i++)
			send_frame(FRAME(7, i));
		/* 25,600 bytes are 51.2 ms, less a burst of one RoCE packet. */
		if (now_ns() - start < 40000000)
			FAIL("200 frames in %lu us", (unsigned long)(now_ns() - start) / 1000);
	}
	start_again(&sender);
	settle();
	end();
}

/* A completion queue that overruns takes the queue pair with it, and says so. */
static void overrun(struct device *d)
{
	struct end mem = end_new(d, 0);
	struct ibv_cq *cq = ibv_create_cq(d->ctx, 1, NULL, NULL, 0);
	struct ibv_qp *qp = raw_qp(d, cq, 0);
	if (!cq || !qp || raw_up(qp))
		DIE("a queue pair on a short queue");
	uint8_t bytes[BYTES];
	build(bytes, &FRAME(7, 1));
	memcpy(mem.mem, bytes, BYTES);
	struct ibv_sge sge = { (uintptr_t)mem.mem, BYTES, mem.mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad;
	SAME("first", ibv_post_send(qp, &wr, &bad), 0);
	SAME("second", ibv_post_send(qp, &wr, &bad), 0);
	const enum ibv_event_type want[] = { IBV_EVENT_CQ_ERR, IBV_EVENT_QP_FATAL };
	for (unsigned i = 0; i < LEN(want); i++) {
		struct ibv_async_event e;
		struct pollfd p = { d->ctx->async_fd, POLLIN, 0 };
		SAME("an event in time", poll(&p, 1, PATIENCE_MS), 1);
		SAME("get_async_event", ibv_get_async_event(d->ctx, &e), 0);
		SAME("event", e.event_type, want[i]);
		SAME("about", i ? (void *)e.element.qp == qp : (void *)e.element.cq == cq, 1);
		ibv_ack_async_event(&e);
	}
	struct ibv_qp_attr a;
	struct ibv_qp_init_attr init;
	SAME("query", ibv_query_qp(qp, &a, IBV_QP_STATE, &init), 0);
	SAME("state", a.qp_state, IBV_QPS_ERR);
	SAME("destroy_qp", ibv_destroy_qp(qp), 0);
	SAME("destroy_cq", ibv_destroy_cq(cq), 0);
	/* The number of the queue is used again, and the next is sound. */
	cq = ibv_create_cq(d->ctx, 4, NULL, NULL, 0);
	qp = raw_qp(d, cq, 0);
	SAME("up", raw_up(qp), 0);
	SAME("a send", ibv_post_send(qp, &wr, &bad), 0);
	struct ibv_wc wc;
	SAME("completes", wait_wc(cq, &wc, PATIENCE_MS), 1);
	SAME("well", wc.status, IBV_WC_SUCCESS);
	SAME("destroy_qp", ibv_destroy_qp(qp), 0);
	SAME("destroy_cq", ibv_destroy_cq(cq), 0);
	end_free(&mem);
}

/* The device on an interface that was made just now. */
static struct device device_soon(const char *name)
{
	for (uint64_t end = now_ns() + PATIENCE_MS * 1000000ull; now_ns() < end; usleep(20000)) {
		int n = 0;
		struct ibv_device **list = ibv_get_device_list(&n);
		for (int i = 0; list && i < n; i++)
			if (!strcmp(ibv_get_device_name(list[i]), name)) {
				struct device d;
				ibv_free_device_list(list);
				open_device(&d, name, 0, 0);
				return d;
			}
		if (list)
			ibv_free_device_list(list);
	}
	DIE("device %s did not come", name);
}

/* An interface that goes down swallows frames, as a network card does; one that goes takes the queue pairs with it. */
static void removal(struct device *d)
{
	const char *first = "ip link add rawtmp0 type veth peer name rawtmp1 && ip link set rawtmp0 up && ip link set rawtmp1 up";
	if (system(first))
		DIE("ip link add");
	struct device own = device_soon("rb_rawtmp0");
	begin(&own);
	struct end a = end_new(&own, 0);
	struct ibv_flow *f = to_port(&a, 0, 7, 0);
	send_frame(FRAME(7, 1));
	EXPECT(&a, 1);
	if (system("ip link set rawtmp0 down"))
		DIE("ip link set down");
	send_frame(FRAME(7, 2));
	if (system("ip link set rawtmp0 up"))
		DIE("ip link set up");
	send_frame(FRAME(7, 3));
	EXPECT(&a, 3);
	if (system("ip link del rawtmp0"))
		DIE("ip link del");
	struct ibv_async_event e = { 0 };
	while (e.event_type != IBV_EVENT_DEVICE_FATAL) {
		struct pollfd p = { own.ctx->async_fd, POLLIN, 0 };
		if (poll(&p, 1, PATIENCE_MS) != 1 || ibv_get_async_event(own.ctx, &e)) {
			FAIL("no DEVICE_FATAL");
			break;
		}
		ibv_ack_async_event(&e);
	}
	int flushed = 0;
	for (struct got g = poll_one(&a); g.any; g = poll_one(&a), flushed++)
		SAME("a receive's status", g.status, IBV_WC_WR_FLUSH_ERR);
	SAME("receives flushed", flushed, SLOTS);
	rule_end(f);
	end_free(&a);
	end();
	SAME("close", ibv_close_device(own.ctx), 0);
	begin(d); /* others do not mind */
	send_frame(FRAME(7, 4));
	settle();
	end();
}

/* Whatever is left goes with the device, in use or not. */
static void left_over(struct device *d)
{
	struct device other;
	open_device(&other, ibv_get_device_name(d->ctx->device), d->gid_index, 0);
	begin(&other);
	struct spread s = spread_new(&other);
	struct rule r = rule_new(IBV_FLOW_ATTR_SNIFFER, 0);
	if (!ibv_create_flow(s.qp, &r.attr))
		FAIL("a sniffer");
	send_frame(FRAME(7, 1));
	SAME("close", ibv_close_device(other.ctx), 0);
	begin(d);
	send_frame(FRAME(7, 2));
	settle();
	end();
}

static const struct test_case CASES[] = {
	{ "attributes", attributes },
	{ "steering", steering },
	{ "many_rules", many_rules },
	{ "defaults", defaults },
	{ "groups", groups },
	{ "actions", actions },
	{ "vlans", vlans },
	{ "errors", errors },
	{ "refusals", refusals },
	{ "spreading", spreading },
	{ "spreading_refusals", spreading_refusals },
	{ "sleepers", sleepers },
	{ "pacing", pacing },
	{ "overrun", overrun },
	{ "removal", removal },
	{ "left_over", left_over },
};

static int without_the_right(int why, const char *name)
{
	struct device d;
	struct ibv_device_attr_ex x;
	struct ibv_counters_init_attr none = { 0 };
	open_device(&d, name, 0, 0);
	struct ibv_cq *cq = ibv_create_cq(d.ctx, 4, NULL, NULL, 0);
	SAME("query_device_ex", ibv_query_device_ex(d.ctx, NULL, &x), 0);
	SAME("steering", x.orig_attr.device_cap_flags & IBV_DEVICE_MANAGED_FLOW_STEERING, 0);
	SAME("raw_packet_caps", x.raw_packet_caps, 0);
	SAME("hashes", x.rss_caps.supported_qpts | x.max_wq_type_rq | x.rss_caps.max_rwq_indirection_tables, 0);
	NULL_AND("a queue pair", raw_qp(&d, cq, 0), why);
	struct ibv_wq_init_attr w = { .wq_type = IBV_WQT_RQ, .max_wr = 1, .max_sge = 1, .pd = d.pd, .cq = cq };
	NULL_AND("a receive queue", ibv_create_wq(d.ctx, &w), EOPNOTSUPP);
	NULL_AND("counters", ibv_create_counters(d.ctx, &none), EOPNOTSUPP);
	struct ibv_qp_init_attr q = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_UD, .cap = { 1, 1, 1, 1, 0 } };
	struct ibv_qp *ud = ibv_create_qp(d.pd, &q);
	struct rule r = rule_new(IBV_FLOW_ATTR_NORMAL, 0);
	NULL_AND("a rule", ibv_create_flow(ud, &r.attr), why);
	SAME("what needs no right", ibv_destroy_qp(ud), 0);
	printf("raw: %d failed\n", failures);
	return failures != 0;
}

int main(int argc, char **argv)
{
	program = "raw";
	if (argc > 2 && !strcmp(argv[1], "-u"))
		return without_the_right(atoi(argv[2]), argc > 4 ? argv[4] : NULL);
	return case_main(argc, argv, CASES, LEN(CASES));
}
