/* SPDX-License-Identifier: MIT OR Apache-2.0
 * Raw packets: frames, ends that take and check them, the wire between them (frames to a group come back to the
 * device that sends them), and rules. */
#ifndef ROCEBUD_PEER_RAW_H
#define ROCEBUD_PEER_RAW_H
#include "judge.h"
#include "pair.h"

#define SLOTS 64
#define SLOT 2048
#define PATIENCE_MS 20000

/* ---- frames ---- */

static const uint8_t GROUP[6] = { 0x01, 0x50, 0x56, 0x19, 0x20, 0xa7 };
static const uint8_t MARKER_GROUP[6] = { 0x01, 0x50, 0x56, 0x19, 0x20, 0xff };
static const uint8_t SRC[6] = { 0x02, 0x8a, 0x07, 0xa5, 0x28, 0xc8 };

struct frame {
	const uint8_t *dst;
	int vlan; /* tag; -1: none */
	uint16_t sport, dport;
	uint32_t id;
};
#define FRAME(port, number) ((struct frame){ GROUP, -1, 1000, port, number })
#define ID_AT(vlan) (14 + ((vlan) ? 4 : 0) + 20 + 8)
#define BYTES 128

static void put16(uint8_t *at, unsigned value)
{
	at[0] = (uint8_t)(value >> 8);
	at[1] = (uint8_t)value;
}

/* An UDP packet over IPv4, BYTES long, that ends with its number's bytes repeated. */
static void build(uint8_t *at, const struct frame *f)
{
	memset(at, 0, BYTES);
	memcpy(at, f->dst, 6);
	memcpy(at + 6, SRC, 6);
	uint8_t *p = at + 12;
	if (f->vlan >= 0) {
		put16(p, 0x8100);
		put16(p + 2, (unsigned)f->vlan);
		p += 4;
	}
	put16(p, 0x0800);
	uint8_t *ip = p + 2, *udp = ip + 20;
	unsigned rest = BYTES - (unsigned)(ip - at);
	ip[0] = 0x45;
	put16(ip + 2, rest);
	ip[8] = 64;
	ip[9] = 17;
	memcpy(ip + 12, (uint8_t[]){ 10, 1, 1, 1, 10, 2, 2, 2 }, 8);
	put16(udp, f->sport);
	put16(udp + 2, f->dport);
	put16(udp + 4, rest - 20);
	for (uint8_t *b = udp + 8; b + 4 <= at + BYTES; b += 4)
		memcpy(b, &f->id, 4);
}

/* ---- ends ---- */

struct end {
	struct device *d;
	struct ibv_cq_ex *cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	uint8_t *mem;
	int post; /* receives are posted again */
};

static int raw_up(struct ibv_qp *qp)
{
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	int e = ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PORT);
	a.qp_state = IBV_QPS_RTR;
	e = e ? e : ibv_modify_qp(qp, &a, IBV_QP_STATE);
	a.qp_state = IBV_QPS_RTS;
	return e ? e : ibv_modify_qp(qp, &a, IBV_QP_STATE);
}

static struct ibv_recv_wr slot_wr(struct end *e, int slot, struct ibv_sge *sge)
{
	*sge = (struct ibv_sge){ (uintptr_t)(e->mem + slot * SLOT), SLOT, e->mr->lkey };
	return (struct ibv_recv_wr){ .wr_id = (uint64_t)slot, .sg_list = sge, .num_sge = 1 };
}

static void post_slot(struct end *e, int slot)
{
	struct ibv_sge sge;
	struct ibv_recv_wr wr = slot_wr(e, slot, &sge), *bad;
	if ((errno = ibv_post_recv(e->qp, &wr, &bad)))
		DIE("ibv_post_recv");
}

static struct ibv_qp *raw_qp(struct device *d, struct ibv_cq *cq, uint32_t flags)
{
	struct ibv_qp_init_attr_ex a = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RAW_PACKET, .sq_sig_all = 1,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS, .pd = d->pd, .create_flags = flags,
		.cap = { 64, SLOTS, 2, 2, 64 } };
	return ibv_create_qp_ex(d->ctx, &a);
}

static struct end end_new(struct device *d, uint32_t flags)
{
	struct ibv_cq_init_attr_ex c = { .cqe = 4 * SLOTS, .wc_flags = IBV_WC_EX_WITH_BYTE_LEN | IBV_WC_EX_WITH_CVLAN
			| IBV_WC_EX_WITH_FLOW_TAG | IBV_WC_EX_WITH_QP_NUM };
	struct end e = { .d = d, .post = 1, .cq = ibv_create_cq_ex(d->ctx, &c) };
	if (!e.cq || !(e.qp = raw_qp(d, ibv_cq_ex_to_cq(e.cq), flags)))
		DIE("a raw packet queue pair");
	if (posix_memalign((void **)&e.mem, 4096, SLOTS * SLOT)
	    || !(e.mr = ibv_reg_mr(d->pd, e.mem, SLOTS * SLOT, IBV_ACCESS_LOCAL_WRITE)))
		DIE("memory");
	memset(e.mem, 0, SLOTS * SLOT);
	if ((errno = raw_up(e.qp)))
		DIE("raw packets: modify");
	for (int i = 0; i < SLOTS; i++)
		post_slot(&e, i);
	return e;
}

static void end_free(struct end *e)
{
	SAME("destroy_qp", ibv_destroy_qp(e->qp), 0);
	SAME("destroy_cq", ibv_destroy_cq(ibv_cq_ex_to_cq(e->cq)), 0);
	SAME("dereg_mr", ibv_dereg_mr(e->mr), 0);
	free(e->mem);
}

struct got {
	int any; /* a completion came */
	enum ibv_wc_status status;
	enum ibv_wc_opcode opcode;
	uint64_t wr_id;
	uint32_t bytes, tag, id, qp_num;
	uint16_t cvlan;
	int tagged; /* it still has its VLAN tag */
};

static struct got poll_one(struct end *e)
{
	struct ibv_poll_cq_attr p = { 0 };
	struct got g = { 0 };
	if (ibv_start_poll(e->cq, &p))
		return g;
	g = (struct got){ .any = 1, .status = e->cq->status, .wr_id = e->cq->wr_id, .opcode = ibv_wc_read_opcode(e->cq),
		.bytes = ibv_wc_read_byte_len(e->cq), .tag = ibv_wc_read_flow_tag(e->cq),
		.cvlan = ibv_wc_read_cvlan(e->cq), .qp_num = ibv_wc_read_qp_num(e->cq) };
	ibv_end_poll(e->cq);
	return g;
}

static struct got wait_one(struct end *e)
{
	uint64_t end = now_ns() + PATIENCE_MS * 1000000ull;
	struct got g;
	do
		g = poll_one(e);
	while (!g.any && now_ns() < end);
	return g;
}

/* The next frame that came, checked byte by byte; its receive is posted again. */
static struct got take(struct end *e)
{
	struct got g = poll_one(e);
	if (!g.any)
		return g;
	SAME("status of a receive", g.status, IBV_WC_SUCCESS);
	SAME("opcode of a receive", g.opcode, IBV_WC_RECV);
	SAME("queue pair of a receive", g.qp_num, e->qp->qp_num);
	const uint8_t *at = e->mem + g.wr_id * SLOT;
	g.tagged = at[12] == 0x81;
	memcpy(&g.id, at + ID_AT(g.tagged), 4);
	struct frame f = { GROUP, -1, (uint16_t)(at[34 + 4 * g.tagged] << 8 | at[35 + 4 * g.tagged]),
		(uint16_t)(at[36 + 4 * g.tagged] << 8 | at[37 + 4 * g.tagged]), g.id };
	uint8_t want[BYTES];
	if (g.tagged)
		f.vlan = at[14] << 8 | at[15];
	f.dst = at[5] == MARKER_GROUP[5] ? MARKER_GROUP : GROUP;
	build(want, &f);
	/* A frame whose tag was taken off is four bytes shorter, and its lengths still speak of them. */
	if (!g.cvlan && (g.bytes != BYTES || memcmp(at, want, BYTES)))
		FAIL("frame %u: %u bytes, which differ from those sent", g.id, g.bytes);
	if (e->post)
		post_slot(e, (int)g.wr_id);
	return g;
}

/* ---- the wire ---- */

static struct end sender, marker;
static struct ibv_flow *marker_rule;

static int post_frame(const uint8_t *frame, uint32_t bytes)
{
	memcpy(sender.mem, frame, bytes);
	struct ibv_sge sge = { (uintptr_t)sender.mem, bytes, sender.mr->lkey };
	struct ibv_send_wr wr = { .wr_id = 77, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
		.send_flags = IBV_SEND_SIGNALED }, *bad;
	return ibv_post_send(sender.qp, &wr, &bad);
}

static void send_frame(struct frame f)
{
	uint8_t bytes[BYTES];
	build(bytes, &f);
	SAME("post_send", post_frame(bytes, BYTES), 0);
	struct got g = wait_one(&sender);
	if (!g.any || g.status != IBV_WC_SUCCESS || g.opcode != IBV_WC_SEND || g.wr_id != 77)
		FAIL("frame %u: send completion %d, status %d", f.id, g.any, g.status);
}

/* Everything sent before has reached whom it reaches when this returns: frames stay in order. */
static void settle(void)
{
	static uint32_t number = 0x80000000;
	struct frame f = { MARKER_GROUP, -1, 1, 1, ++number };
	send_frame(f);
	uint64_t end = now_ns() + PATIENCE_MS * 1000000ull;
	while (now_ns() < end)
		if (take(&marker).id == number)
			return;
	DIE("a frame to a group never came back");
}

/* `e` got exactly these frames, in this order; 0 ends them. */
static void expect(int line, struct end *e, const uint32_t *ids)
{
	settle();
	for (struct got g = take(e); g.any; g = take(e)) {
		if (g.id & 0x80000000)
			continue; /* markers, at sniffers */
		if (g.id != *ids) {
			FAIL("line %d: frame %u, expected %u", line, g.id, *ids);
			return;
		}
		ids++;
	}
	if (*ids)
		FAIL("line %d: frame %u did not come", line, *ids);
}
#define EXPECT(e, ...) expect(__LINE__, e, (uint32_t[]){ __VA_ARGS__, 0 })
#define EXPECT_NOTHING(e) expect(__LINE__, e, (uint32_t[]){ 0 })

/* ---- rules ---- */

struct rule {
	struct ibv_flow_attr attr;
	uint8_t specs[512];
	unsigned used;
};

static struct rule rule_new(enum ibv_flow_attr_type type, unsigned priority)
{
	struct rule r = { .attr = { .type = type, .priority = (uint16_t)priority, .port = 1 } };
	return r;
}

static void spec_add(struct rule *r, const void *spec, unsigned size)
{
	memcpy(r->specs + r->used, spec, size);
	r->used += size;
	r->attr.num_of_specs++;
}
#define SPEC(kind, name) struct name s = { .type = kind, .size = sizeof s }

static void eth(struct rule *r, const uint8_t *dst, int vlan)
{
	SPEC(IBV_FLOW_SPEC_ETH, ibv_flow_spec_eth);
	memcpy(s.val.dst_mac, dst, 6);
	memset(s.mask.dst_mac, 0xff, 6);
	s.val.vlan_tag = htons((uint16_t)(vlan < 0 ? 0 : vlan));
	s.mask.vlan_tag = htons(vlan < 0 ? 0 : 0xfff);
	spec_add(r, &s, sizeof s);
}

static void udp(struct rule *r, uint16_t dport)
{
	SPEC(IBV_FLOW_SPEC_UDP, ibv_flow_spec_tcp_udp);
	s.val.dst_port = htons(dport);
	s.mask.dst_port = 0xffff;
	spec_add(r, &s, sizeof s);
}

static void tag(struct rule *r, uint32_t number)
{
	SPEC(IBV_FLOW_SPEC_ACTION_TAG, ibv_flow_spec_action_tag);
	s.tag_id = number;
	spec_add(r, &s, sizeof s);
}

static void count(struct rule *r, struct ibv_counters *c)
{
	SPEC(IBV_FLOW_SPEC_ACTION_COUNT, ibv_flow_spec_counter_action);
	s.counters = c;
	spec_add(r, &s, sizeof s);
}

static void drops(struct rule *r)
{
	SPEC(IBV_FLOW_SPEC_ACTION_DROP, ibv_flow_spec_action_drop);
	spec_add(r, &s, sizeof s);
}

static void of_kind(struct rule *r, unsigned kind)
{
	SPEC(kind, ibv_flow_spec_esp);
	spec_add(r, &s, sizeof s);
}

static struct ibv_flow *rule_make(struct end *e, struct rule r)
{
	struct ibv_flow *f = ibv_create_flow(e->qp, &r.attr);
	if (!f)
		DIE("ibv_create_flow");
	return f;
}

/* Packets to the group and this port. */
static struct ibv_flow *to_port(struct end *e, unsigned priority, uint16_t port, uint32_t flags)
{
	struct rule r = rule_new(IBV_FLOW_ATTR_NORMAL, priority);
	r.attr.flags = flags;
	eth(&r, GROUP, -1);
	udp(&r, port);
	return rule_make(e, r);
}

static void rule_end(struct ibv_flow *f)
{
	SAME("destroy_flow", ibv_destroy_flow(f), 0);
}

static void begin(struct device *d)
{
	sender = end_new(d, 0);
	marker = end_new(d, 0);
	struct rule r = rule_new(IBV_FLOW_ATTR_NORMAL, 0);
	eth(&r, MARKER_GROUP, -1);
	marker_rule = rule_make(&marker, r);
}

static void end(void)
{
	rule_end(marker_rule);
	end_free(&marker);
	end_free(&sender);
}
#endif
